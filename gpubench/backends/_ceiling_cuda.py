"""The vendor's ceilings of a CUDA device, by the attributes that its driver tells (measurement.md, section 7)."""

from __future__ import annotations

from collections.abc import Callable

from gpubench.model.result import Theoretical

# cudaDeviceAttr (CUDA runtime API).
CLOCK_KHZ, MULTIPROCESSORS, MEMORY_CLOCK_KHZ, MEMORY_BUS_BITS = 13, 16, 36, 37
DATA_RATE = 2  # transfers per period of the memory clock as the driver counts it
# Float32 units of one multiprocessor (CUDA C++ programming guide, arithmetic instructions), of those that run no faster
# than the clock that CUDA tells. Cards for desktops raise theirs above it by themselves, and what is newer may compute
# float32 products by other units: nothing true may be refused.
FLOAT32_UNITS = {(6, 0): 64, (8, 0): 64, (9, 0): 128}
# Boards whose memory is the CPU's: what CUDA tells of a bus there is not that of their memory.
BOARDS = {(5, 3), (6, 2), (7, 2), (8, 7)}
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

    bus = 0 if capability in BOARDS else known(MEMORY_BUS_BITS)
    bytes_per_s = DATA_RATE * known(MEMORY_CLOCK_KHZ) * 1e3 * bus / 8
    units = FLOAT32_UNITS.get(capability, 0) * known(MULTIPROCESSORS)
    flops_per_s = 2 * units * known(CLOCK_KHZ) * 1e3
    return Theoretical(
        bytes_per_s=bytes_per_s or None, flops_per_s={"float32": flops_per_s} if flops_per_s else {},
        source=SOURCE if bytes_per_s or flops_per_s else None,
    )  # fmt: skip
