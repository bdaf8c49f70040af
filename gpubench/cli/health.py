"""The preset `--ops health`: four cases that show whether a GPU is as fast as its like, by which fleets are compared;
and with several GPUs what joins them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from gpubench import backends
from gpubench.cli import roofline
from gpubench.kernels.contract.op import ITEMSIZE, Op
from gpubench.result.case import GANG, Case
from gpubench.result.run import Device, Selection

WORD = "health"
OPS = ("matmul", "copy", "upload", "download")
# On every pair, and on gangs: left out where there is one GPU.
LINKS = ("p2p", "allreduce")
EVERY = (*OPS, *LINKS)
SUMMARY = (
    "matmul, copy, upload and download at one large size on every GPU, to find the slow one; with several GPUs p2p and "
    "allreduce among them"
)
_SIDE, _BYTES = 8192, 256 << 20


def asked(text: str | None) -> bool:
    """Whether `--ops` names the preset."""
    return text is not None and WORD in [word.strip() for word in text.split(",")]


def on_hand(
    selection: Selection, declared: Mapping[str, Op], devices: Sequence[Device]
) -> tuple[Selection, dict[str, Op]]:
    """Both without the collectives where no gang runs them."""
    gangs = any(device.backend == GANG for device in devices)
    ops = {name: op for name, op in declared.items() if gangs or name not in LINKS}
    return msgspec.structs.replace(selection, ops=list(ops)), ops


def chosen(
    selection: Selection, devices: Sequence[Device], host: roofline.Host, keep: Callable[[Case], bool] | None
) -> tuple[Selection, Callable[[Case], bool]]:
    """The selection with one size an op, and a filter that leaves the GPUs, each model of them by the first backend
    that drives it. A machine without one keeps what it has, at the sizes of its roofs. Sizes that were given stay."""
    if not any(device.kind == "gpu" for device in devices):
        return roofline.chosen(selection, devices, host, keep)
    first = backends.drivers(one for one in devices if one.kind == "gpu" and one.backend != GANG)
    gpus = {device.id for device in devices if device.backend in (GANG, first.get(device.name))}
    size = max(ITEMSIZE[dtype] for dtype in selection.dtypes)
    ours = {"matmul": _SIDE, "copy": _BYTES // size, "upload": _BYTES, "download": _BYTES}
    ours |= dict.fromkeys(LINKS, _BYTES)
    added = {op: [n] for op, n in ours.items() if op in selection.ops and op not in selection.sizes}

    def wanted(case: Case) -> bool:
        return case.device_id in gpus and (keep is None or keep(case))

    return msgspec.structs.replace(selection, sizes=selection.sizes | added), wanted
