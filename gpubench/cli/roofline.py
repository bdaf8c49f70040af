"""The preset `--ops roofline`: copy and matmul, on each device at sizes that show what it can do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from gpubench.kernels.contract.op import ITEMSIZE
from gpubench.result.case import Case
from gpubench.result.run import Device, Selection

WORD = "roofline"
OPS = ("copy", "matmul")
SUMMARY = "copy and matmul with resident data, at sizes chosen to show what each device can do"
_MIB = 2**20
_HALVES = ("float16", "bfloat16")
# An array that no cache holds; where memory is short, a smaller one, and the report says "cache-sized".
_ARRAY_BYTES, _SMALL_ARRAY_BYTES, _SOFTWARE_ARRAY_BYTES = 256 * _MIB, 64 * _MIB, 128 * _MIB
# What such a copy takes with its margins: two sets of buffers on a device; float64 copies for the check on the host.
_DEVICE_BYTES, _HOST_BYTES = 1536 * _MIB, 5 * 1024 * _MIB
_LARGE_DEVICE_BYTES = 8 * 1024 * _MIB
_MANY_CPUS = 8


class Host(msgspec.Struct, frozen=True):
    """What decides the CPU's sizes: free memory and usable CPUs, None where unknown."""

    memory_bytes: int | None
    cpus: int | None


def asked(text: str | None) -> bool:
    """Whether `--ops` names the preset."""
    return text is not None and WORD in [word.strip() for word in text.split(",")]


def chosen(
    selection: Selection, devices: Sequence[Device], host: Host, keep: Callable[[Case], bool] | None
) -> tuple[Selection, Callable[[Case], bool]]:
    """The selection with sizes for the preset's ops, and a filter: of these sizes each device takes its own.

    Sizes that were given stay as they are, on all devices.
    """
    ours = {
        (op, dtype, device.id): sizes(op, dtype, device, host)
        for op in OPS if op not in selection.sizes
        for dtype in selection.dtypes
        for device in devices
    }  # fmt: skip
    added: dict[str, set[int]] = {}
    for (op, _, _), found in ours.items():
        added.setdefault(op, set()).update(found)

    def wanted(case: Case) -> bool:
        own = ours.get((case.op, case.dtype, case.device_id))
        return (own is None or case.params["n"] in own) and (keep is None or keep(case))

    all_sizes = selection.sizes | {op: sorted(found) for op, found in added.items()}
    return msgspec.structs.replace(selection, sizes=all_sizes), wanted


def sizes(op: str, dtype: str, device: Device, host: Host) -> tuple[int, ...]:
    """Elements of the copy, or sides of the matrices: large enough for the roof, small enough for a minute."""
    if op == "copy":
        return (_array_bytes(device, host) // ITEMSIZE[dtype],)
    if device.kind == "cpu":
        if dtype in _HALVES:  # no BLAS has them: each element is converted on its own
            return (512,)
        return (2048, 4096) if (host.cpus or 0) >= _MANY_CPUS else (1024, 2048)
    if device.kind != "gpu":
        return (512,)
    # Most GPUs have few units for float64, so that one large product takes seconds.
    small = (device.memory_bytes or device.usable_bytes or 0) < _LARGE_DEVICE_BYTES or dtype == "float64"
    return (2048, 4096) if small else (4096, 8192)


def _array_bytes(device: Device, host: Host) -> int:
    if device.kind == "cpu":
        free, needed = host.memory_bytes, _HOST_BYTES
    elif device.kind == "gpu":
        free, needed = device.usable_bytes, _DEVICE_BYTES
    else:
        return _SOFTWARE_ARRAY_BYTES if device.kind == "software" else _SMALL_ARRAY_BYTES
    return _SMALL_ARRAY_BYTES if free is not None and free < needed else _ARRAY_BYTES
