"""The words of `--ops` that stand for some ops at sizes of their own: `roofline` shows what each device can do,
`health` whether a GPU is as fast as its like, by which fleets are compared, and with several GPUs what joins them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from gpubench import backends
from gpubench.base import units
from gpubench.kernels.contract.op import ITEMSIZE
from gpubench.result.case import GANG, Case
from gpubench.result.run import Device, Selection

HEALTH = "health"
# On every pair, and on gangs: left out where there is one GPU.
LINKS = ("p2p", "allreduce")
OPS = {"roofline": ("copy", "matmul"), HEALTH: ("matmul", "copy", "upload", "download", *LINKS)}
_MIB = 2**20
_HALVES = ("float16", "bfloat16")
# An array that no cache holds; where memory is short, a smaller one, and the report says "cache-sized".
_ARRAY_BYTES, _SMALL_ARRAY_BYTES, _SOFTWARE_ARRAY_BYTES = 256 * _MIB, 64 * _MIB, 128 * _MIB
# What such a copy takes with its margins: two sets of buffers on a device; float64 copies for the check on the host.
_DEVICE_BYTES, _HOST_BYTES = 1536 * _MIB, 5 * 1024 * _MIB
_LARGE_DEVICE_BYTES = 8 * 1024 * _MIB
_MANY_CPUS = 8


class Host(NamedTuple):
    """The facts that decide the CPU's sizes: free memory and usable CPUs, None where unknown."""

    memory_bytes: int | None
    cpus: int | None


def find_presets(text: str | None) -> list[str]:
    """Return the presets among the words of `--ops`."""
    return [word for word in OPS if word in units.split_words(text)]


def choose_sizes(
    preset: str,
    selection: Selection,
    devices: Sequence[Device],
    host: Host,
    keep: Callable[[Case], bool] | None,
) -> tuple[Selection, Callable[[Case], bool]]:
    """Return the selection with sizes for the preset's ops, and a filter: of these sizes each device takes its own.

    `health` leaves the GPUs alone, each model of them by the first backend that drives it; a machine without one keeps
    what it has, at the sizes of its roofs. Sizes that were given stay as they are, on all devices.
    """
    gpus = [device for device in devices if device.kind == "gpu"] if preset == HEALTH else []
    first = backends.drivers(gpu for gpu in gpus if gpu.backend != GANG)
    measured = [d for d in devices if d.backend in (GANG, first.get(d.name))] if gpus else devices
    ids = {device.id for device in measured}
    widest = max(ITEMSIZE[dtype] for dtype in selection.dtypes)
    sides = {"matmul": 8192, "copy": _ARRAY_BYTES // widest}  # of health; its other ops count bytes
    own = {
        (op, dtype, device.id): (sides.get(op, _ARRAY_BYTES),) if gpus else sizes(op, dtype, device, host)
        for op in OPS[HEALTH if gpus else "roofline"] if op in selection.ops and op not in selection.sizes
        for dtype in selection.dtypes
        for device in measured
    }  # fmt: skip
    added: dict[str, set[int]] = {}
    for (op, _, _), ns in own.items():
        added.setdefault(op, set()).update(ns)

    def keep_case(case: Case) -> bool:
        ns = own.get((case.op, case.dtype, case.device_id))
        right = case.device_id in ids and (ns is None or case.params["n"] in ns)
        return right and (keep is None or keep(case))

    all_sizes = selection.sizes | {op: sorted(ns) for op, ns in added.items()}
    return msgspec.structs.replace(selection, sizes=all_sizes), keep_case


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
