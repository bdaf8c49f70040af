"""The measured roofline: how near each case comes to what its device did at best (Williams et al., 2009).

Memory's roof is the best `copy`, computing's the best `matmul` of the same dtype, both of the run itself; a case
with i FLOP per byte can reach min(compute roof, i x memory roof). Bytes are compulsory: what an op has to move.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

import msgspec

from gpubench.analysis.analyse import Analysis, alone, derive_once
from gpubench.analysis.estimate import CALLS, CaseResult
from gpubench.result.case import FUNCTIONS, QUEUED, TF32
from gpubench.result.machine import cpu_cache_bytes
from gpubench.result.run import Run

Bound = Literal["memory", "compute"]


RoofClock = Literal["device_hot", "derived", "wall"]


class Roof(msgspec.Struct, frozen=True, kw_only=True):
    """The measured roofs of one piece of hardware with one dtype; null: not measured.

    The cases are those that reached them. `cache_sized`: no copy was larger than a cache may be; `small_matmul`: no
    matmul occupied the device. `ridge` is in FLOP per byte.
    """

    aside: ClassVar = ("copy", "matmul")
    device_ids: tuple[str, ...]
    dtype: str
    bytes_per_s: float | None
    bytes_case: str | None
    cache_sized: bool
    flops_per_s: float | None
    flops_case: str | None
    small_matmul: bool
    ridge: float | None
    copy: CaseResult | None
    matmul: CaseResult | None


class RoofShare(msgspec.Struct, frozen=True, kw_only=True):
    """One case with resident data below its roof. `to_library`: device time of the vendor library / its own.

    `time_s` is device time where `clock` says so, or derived from wall times of a device that has no clock. `share` =
    the time that the roof allows / `time_s`; it is None without a roof, and is never clipped: `in_cache` says that
    memory does not limit a working set of this size; `weak_roof`, that the roof was measured at small sizes alone.
    """

    aside: ClassVar = ("case", "share", "weak_roof")
    id: str
    clock: RoofClock
    time_s: float
    bytes_per_s: float
    flops_per_s: float
    bound: Bound | None
    percent_of_roof: float | None
    in_cache: bool
    to_library: float | None
    case: CaseResult
    share: float | None
    weak_roof: bool


class Roofline(msgspec.Struct, frozen=True, kw_only=True):
    """The roofs of all hardware of a run, and the cases below them."""

    roofs: tuple[Roof, ...] = ()
    rows: tuple[RoofShare, ...] = ()


MEMORY_OP, COMPUTE_OP = "copy", "matmul"
VENDOR_LIBRARY = "cupy"  # its library form calls the vendor's own kernels
# Traffic from which on a copy, or an op, is taken to work on memory: above the last-level cache of any GPU so far.
OUT_OF_CACHE_BYTES = 256 * 2**20
# FLOP per byte at which a case is of the one kind or the other where its device has one of the roofs alone.
ASSUMED_RIDGE = 4.0
# Sides from which on a product occupies a device; a smaller one tells of launches and of idle units.
FULL_SIDE, FULL_SIDE_CPU = 2048, 512
Rated = tuple[CaseResult, float]  # a case and its rate


@derive_once
def roofline(analysis: Analysis) -> Roofline:
    """Return the roofs that the run reaches, and the share of them of each case shown that has resident data."""
    run = analysis.run
    hardware = hardware_of(run)
    rows = [row for row in analysis.everything if alone(row) and _counts(row)]
    roofs: dict[tuple[str, str], Roof] = {}
    for row in rows:
        key = (hardware.get(row.case.device_id, row.case.device_id), row.case.dtype)
        if key not in roofs:
            peers = [peer for peer in rows if hardware.get(peer.case.device_id, peer.case.device_id) == key[0]]
            roofs[key] = _roof(run, peers, row)
    library = _library_seconds(rows, hardware)
    found = [
        _share(run, row, roofs[hardware.get(row.case.device_id, row.case.device_id), row.case.dtype],
               library.get((hardware.get(row.case.device_id, ""), row.case.workload)))
        for row in analysis.shown_of(rows)
    ]  # fmt: skip
    kinds = {row.case.device_id: row.device_kind for row in rows}
    ordered = sorted(
        roofs.values(), key=lambda roof: (kinds[roof.device_ids[0]] != "cpu", roof.device_ids, roof.dtype)
    )
    return Roofline(roofs=tuple(ordered), rows=tuple(found))


def measures_roofs(run: Run) -> bool:
    """Whether the run was made for its roofs (`--ops roofline`): these two ops, with resident data alone."""
    return set(run.selection.ops) == {MEMORY_OP, COMPUTE_OP} and run.selection.regimes == [QUEUED]


def hardware_of(run: Run) -> dict[str, str]:
    """Device id -> what it is physically: backends that drive the same GPU share a name. A software adapter is
    a device of its own, although it runs on the CPU."""
    return {device.id: device.gpu_id or device.id for device in run.devices}


def _counts(row: CaseResult) -> bool:
    resident = row.case.queued and row.case.group not in CALLS and row.bytes > 0
    return resident and row.time is not None and not is_untold(row)


def is_untold(row: CaseResult) -> bool:
    """Whether nobody told the FLOPs of a user's function: without them no roof is its limit."""
    return row.case.group == FUNCTIONS and not row.flops


def _seconds(row: CaseResult) -> float:
    """Device time where there is a clock, else wall time."""
    assert row.time is not None
    return row.device_hot_s or row.time.estimate


def _roof(run: Run, peers: Sequence[CaseResult], row: CaseResult) -> Roof:
    """The roof of one piece of hardware for the dtype of `row`. Variants are rungs of a ladder, or compute
    something else (TF32): none of them makes a roof."""
    plain = [peer for peer in peers if peer.case.variant is None]
    copies = [peer for peer in plain if peer.case.op == MEMORY_OP]
    large = [peer for peer in copies if peer.bytes >= out_of_cache_bytes(run, peer)]
    copy = _best((peer, peer.bytes / _seconds(peer)) for peer in _largest(large or copies))
    products = [peer for peer in plain if peer.case.op == COMPUTE_OP and peer.case.dtype == row.case.dtype]
    matmul = _best((peer, peer.flops / _seconds(peer)) for peer in products)
    return Roof(
        device_ids=tuple(sorted({peer.case.device_id for peer in peers})), dtype=row.case.dtype,
        bytes_per_s=copy and copy[1], bytes_case=copy and copy[0].id, copy=copy and copy[0],
        cache_sized=bool(copies) and not large,
        flops_per_s=matmul and matmul[1], flops_case=matmul and matmul[0].id, matmul=matmul and matmul[0],
        ridge=matmul[1] / copy[1] if matmul and copy else None,
        small_matmul=bool(products) and max(peer.flops for peer in products) < _full_flops(row),
    )  # fmt: skip


def _full_flops(row: CaseResult) -> int:
    return 2 * (FULL_SIDE if row.device_kind == "gpu" else FULL_SIDE_CPU) ** 3


def out_of_cache_bytes(run: Run, row: CaseResult) -> int:
    """The traffic from which on the case does not live in a cache; a CPU's cache is known and may be larger."""
    known = cpu_cache_bytes(run.machine) if row.device_kind in ("cpu", "software") else None
    return max(OUT_OF_CACHE_BYTES, known or 0)


def _largest(copies: Sequence[CaseResult]) -> list[CaseResult]:
    """Of each device and form the copies of its largest size: bytes are bytes, whatever their dtype."""
    most: dict[tuple[str, str], int] = {}
    for row in copies:
        key = (row.case.device_id, row.case.form)
        most[key] = max(most.get(key, 0), row.bytes)
    return [row for row in copies if row.bytes == most[row.case.device_id, row.case.form]]


def _best(rates: Iterable[Rated]) -> Rated | None:
    """The case with the highest rate; of equal ones the last by id, so that the file's order decides nothing."""
    return max(rates, key=lambda pair: (pair[1], pair[0].id), default=None)


def _library_seconds(rows: Sequence[CaseResult], hardware: dict[str, str]) -> dict[tuple[str, str], float]:
    """Device seconds of the vendor library by hardware and workload."""
    return {
        (hardware.get(row.case.device_id, ""), row.case.workload): seconds
        for row in rows
        if row.case.backend == VENDOR_LIBRARY and row.case.form_id == "library" and (seconds := _counted_s(row))
    }


def _share(run: Run, row: CaseResult, roof: Roof, library_s: float | None) -> RoofShare:
    seconds = _seconds(row)
    bound = _bound(row, roof)
    if bound is None:
        share = None
    elif bound == "memory":
        share = row.bytes / (roof.bytes_per_s or 1.0) / seconds
    else:
        share = row.flops / (roof.flops_per_s or 1.0) / seconds
    own = row.case.backend == VENDOR_LIBRARY and row.case.form_id == "library"
    ours = None if own else _counted_s(row)
    return RoofShare(
        id=row.id, case=row, time_s=seconds, clock=_clock(row), bound=bound, share=share,
        bytes_per_s=row.bytes / seconds, flops_per_s=row.flops / seconds,
        percent_of_roof=None if share is None else share * 100,
        in_cache=bound == "memory" and row.bytes < out_of_cache_bytes(run, row),
        weak_roof=roof.cache_sized if bound == "memory" else roof.small_matmul if bound == "compute" else False,
        to_library=library_s / ours if library_s and ours else None,
    )  # fmt: skip


def _clock(row: CaseResult) -> RoofClock:
    if not row.device_hot_s:
        return "wall"
    return "derived" if "no-device-clock" in row.findings else "device_hot"


def _counted_s(row: CaseResult) -> float | None:
    """Hot seconds by a clock of the device's own: a ratio mixes no clocks."""
    return row.device_hot_s if _clock(row) == "device_hot" else None


def _bound(row: CaseResult, roof: Roof) -> Bound | None:
    """Which roof is the lower one for this case; None where the one that counts was not measured, and for
    TF32, whose roof is none of float32's."""
    if row.case.variant == TF32:
        return None
    ridge = roof.ridge if roof.ridge is not None else ASSUMED_RIDGE
    if row.flops > ridge * row.bytes:
        return "compute" if roof.flops_per_s is not None else None
    return "memory" if roof.bytes_per_s is not None else None
