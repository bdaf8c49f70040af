"""The vendor's ceilings of a CUDA device, by the attributes that its driver tells (measurement.md, section 7)."""

from __future__ import annotations

from collections.abc import Callable

from gpubench.model.result import Theoretical

# cudaDeviceAttr (CUDA runtime API).
CLOCK_KHZ, MULTIPROCESSORS, MEMORY_CLOCK_KHZ, MEMORY_BUS_BITS = 13, 16, 36, 37
DATA_RATE = 2  # transfers per period of the memory clock as the driver counts it
# Float32 units of one multiprocessor (CUDA C++ programming guide, arithmetic instructions). Other capabilities have
# none here: what is newer may compute float32 products by other units, and nothing true may be refused.
FLOAT32_UNITS = {
    (5, 0): 128, (5, 2): 128, (5, 3): 128, (6, 0): 64, (6, 1): 128, (6, 2): 128, (7, 0): 64, (7, 2): 64, (7, 5): 64,
    (8, 0): 64, (8, 6): 128, (8, 7): 128, (8, 9): 128, (9, 0): 128,
}  # fmt: skip
SOURCE = "clocks, bus and units of the device as CUDA tells them"


def vendor_ceilings(attribute: Callable[[int], int], capability: tuple[int, int]) -> Theoretical:
    """Bytes/s of its memory and float32 FLOP/s; what the driver does not tell is left out.

    `attribute` gives the value of one attribute, 0 or an exception for none. Tensor cores are not counted: the other
    dtypes have no ceiling here.
    """

    def known(number: int) -> int:
        try:
            return max(0, int(attribute(number)))
        except Exception:  # each version of the runtime has its own words for an attribute that it dropped
            return 0

    bytes_per_s = DATA_RATE * known(MEMORY_CLOCK_KHZ) * 1e3 * known(MEMORY_BUS_BITS) / 8
    units = FLOAT32_UNITS.get(capability, 0) * known(MULTIPROCESSORS)
    flops_per_s = 2 * units * known(CLOCK_KHZ) * 1e3
    return Theoretical(
        bytes_per_s=bytes_per_s or None, flops_per_s={"float32": flops_per_s} if flops_per_s else {},
        source=SOURCE if bytes_per_s or flops_per_s else None,
    )  # fmt: skip
