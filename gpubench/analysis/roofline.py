"""The limits of a device: its measured roofline, and its costs beside the kernels (opening, launching, waiting, memory
and transfers).

The roofline shows how near each case comes to the best of its device (Williams et al., 2009).

The memory peak is the best `copy`, the compute peak is the best `matmul` of the same dtype, both from the run itself. A
case with i FLOP per byte can reach min(compute peak, i x memory peak). Bytes are compulsory traffic, which the op has
to move in any case.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

import msgspec

from gpubench.analysis.analyse import Analysis, alone, derive_once
from gpubench.analysis.estimate import CALLS, OVERHEAD, CaseResult
from gpubench.analysis.samples import workers
from gpubench.base import group_by
from gpubench.curves.stats import median
from gpubench.result.case import FUNCTIONS, QUEUED, TF32, Case
from gpubench.result.machine import cpu_cache_bytes
from gpubench.result.run import Run

Bound = Literal["memory", "compute"]


RateClock = Literal["device_hot", "derived", "wall"]


class Peaks(msgspec.Struct, frozen=True, kw_only=True):
    """The measured peaks of one piece of hardware with one dtype; None: not measured."""

    aside: ClassVar = ("copy", "matmul")
    device_ids: tuple[str, ...]  # all names of the hardware
    dtype: str  # of the arithmetic
    bytes_per_s: float | None  # memory's peak
    bytes_case: str | None  # the copy that reached it
    cache_sized: bool  # no copy was larger than a cache may be
    flops_per_s: float | None  # computing's peak
    flops_case: str | None  # the matmul that reached it
    small_matmul: bool  # no matmul occupied the device
    ridge: float | None  # FLOP per byte where both meet
    copy: CaseResult | None  # the case behind `bytes_case`
    matmul: CaseResult | None  # the case behind `flops_case`


class PeakShare(msgspec.Struct, frozen=True, kw_only=True):
    """One case with resident data below its peak."""

    aside: ClassVar = ("case", "share", "weak_peak")
    id: str  # of the case
    clock: RateClock  # what `time_s` was read from
    time_s: float  # device time, or wall time where there is no clock
    bytes_per_s: float  # compulsory traffic / time
    flops_per_s: float  # declared FLOPs / time
    bound: Bound | None  # which peak is the lower one
    percent_of_peak: float | None  # `share` in percent
    in_cache: bool  # memory does not limit a working set of this size
    to_library: float | None  # device time of the vendor library / its own
    case: CaseResult  # the case
    share: float | None  # time that the peak allows / `time_s`; None without a peak, never clipped
    weak_peak: bool  # the peak was measured at small sizes alone


class Roofline(msgspec.Struct, frozen=True, kw_only=True):
    """The peaks of all hardware of a run, and the cases compared with them."""

    peaks: tuple[Peaks, ...] = ()  # by hardware and dtype
    rows: tuple[PeakShare, ...] = ()  # the cases


MEMORY_OP, COMPUTE_OP = "copy", "matmul"
VENDOR_LIBRARY = "cupy"  # its library implementation calls the vendor's own kernels
# Traffic from which on a copy, or an op, is taken to work on memory: above the last-level cache of any GPU so far.
OUT_OF_CACHE_BYTES = 256 * 2**20
# FLOP per byte at which a case is of the one kind or the other where its device has one of the peaks alone.
ASSUMED_RIDGE = 4.0
# Sides from which on a product occupies a device; a smaller one tells of launches and of idle units.
FULL_SIDE, FULL_SIDE_CPU = 2048, 512
Rated = tuple[CaseResult, float]  # a case and its rate


@derive_once
def roofline(analysis: Analysis) -> Roofline:
    """Return the peaks that the run reaches. For each shown case with resident data, also return its share of the
    peak."""
    run = analysis.run
    # Backends that drive the same GPU are one device. A software adapter is a device of its own, although it runs on
    # the CPU.
    hardware = {device.id: device.gpu_id or device.id for device in run.devices}

    def place(case: CaseResult) -> str:
        return hardware.get(case.case.device_id, case.case.device_id)

    cases = [case for case in analysis.everything if alone(case) and _counts(case)]
    peers = group_by(cases, place)
    by_peak = group_by(cases, lambda case: (place(case), case.case.dtype))
    peaks = {key: _peak(run, peers[key[0]], same[0]) for key, same in by_peak.items()}
    library = {(place(case), case.case.workload): _counted_s(case) for case in cases if _is_library(case)}
    shares = [
        _share(run, case, peaks[place(case), case.case.dtype], library.get((place(case), case.case.workload)))
        for case in analysis.shown_of(cases)
    ]
    kinds = {case.case.device_id: case.device_kind for case in cases}
    ordered = sorted(
        peaks.values(), key=lambda peak: (kinds[peak.device_ids[0]] != "cpu", peak.device_ids, peak.dtype)
    )
    return Roofline(peaks=tuple(ordered), rows=tuple(shares))


def measures_peaks(run: Run) -> bool:
    """Tell whether the run measured peaks only (`--ops roofline`): the ops copy and matmul, with resident data
    alone."""
    return set(run.selection.ops) == {MEMORY_OP, COMPUTE_OP} and run.selection.regimes == [QUEUED]


def _counts(case: CaseResult) -> bool:
    resident = case.case.queued and case.case.group not in CALLS and case.bytes > 0
    return resident and case.time is not None and not lacks_flops(case)


def lacks_flops(case: CaseResult) -> bool:
    """Tell whether the FLOPs of a user's function are unknown. Such a function has no peak as its limit."""
    return case.case.group == FUNCTIONS and not case.flops


def _seconds(case: CaseResult) -> float:
    """Return the device time if the device has a clock, else the wall time."""
    assert case.time is not None
    return case.device_hot_s or case.time.estimate


def _peak(run: Run, peers: Sequence[CaseResult], case: CaseResult) -> Peaks:
    """Return the peaks of one piece of hardware for the dtype of `case`. Variants are ignored: they are steps of an
    optimization, or compute something else (TF32)."""
    plain = [peer for peer in peers if peer.case.variant is None]
    copies = [peer for peer in plain if peer.case.op == MEMORY_OP]
    large = [peer for peer in copies if peer.bytes >= out_of_cache_bytes(run, peer)]
    # Of each device and implementation the copies of its largest size: bytes are bytes, whatever their dtype.
    by_implementation = group_by(
        large or copies, lambda peer: (peer.case.device_id, peer.case.implementation)
    ).values()
    most = [
        peer for same in by_implementation for peer in same if peer.bytes == max(other.bytes for other in same)
    ]
    copy = _best((peer, peer.bytes / _seconds(peer)) for peer in most)
    products = [peer for peer in plain if peer.case.op == COMPUTE_OP and peer.case.dtype == case.case.dtype]
    matmul = _best((peer, peer.flops / _seconds(peer)) for peer in products)
    return Peaks(
        device_ids=tuple(sorted({peer.case.device_id for peer in peers})), dtype=case.case.dtype,
        bytes_per_s=copy and copy[1], bytes_case=copy and copy[0].id, copy=copy and copy[0],
        cache_sized=bool(copies) and not large,
        flops_per_s=matmul and matmul[1], flops_case=matmul and matmul[0].id, matmul=matmul and matmul[0],
        ridge=matmul[1] / copy[1] if matmul and copy else None,
        small_matmul=bool(products) and max(peer.flops for peer in products) < _full_flops(case),
    )  # fmt: skip


def _full_flops(case: CaseResult) -> int:
    return 2 * (FULL_SIDE if case.device_kind == "gpu" else FULL_SIDE_CPU) ** 3


def out_of_cache_bytes(run: Run, case: CaseResult) -> int:
    """Return the traffic from which the case does not fit in a cache. A CPU's cache size is known and can raise the
    usual bound."""
    answer = cpu_cache_bytes(run.machine) if case.device_kind in ("cpu", "software") else None
    return max(OUT_OF_CACHE_BYTES, answer or 0)


def _best(rates: Iterable[Rated]) -> Rated | None:
    """Return the case with the highest rate. Among equal rates, return the last case by id, so the order of the file
    does not matter."""
    return max(rates, key=lambda pair: (pair[1], pair[0].id), default=None)


def _is_library(case: CaseResult) -> bool:
    return case.case.backend == VENDOR_LIBRARY and case.case.implementation_id == "library"


def _share(run: Run, case: CaseResult, peak: Peaks, library_s: float | None) -> PeakShare:
    seconds = _seconds(case)
    bound, share, weak = _bound(case, peak), None, False
    bytes_per_s, flops_per_s = case.bytes / seconds, case.flops / seconds
    if bound == "memory":
        share, weak = bytes_per_s / (peak.bytes_per_s or 1.0), peak.cache_sized
    elif bound == "compute":
        share, weak = flops_per_s / (peak.flops_per_s or 1.0), peak.small_matmul
    own_s = None if _is_library(case) else _counted_s(case)
    return PeakShare(
        id=case.id, case=case, time_s=seconds, clock=_clock(case), bound=bound, share=share,
        bytes_per_s=bytes_per_s, flops_per_s=flops_per_s, percent_of_peak=None if share is None else share * 100,
        in_cache=bound == "memory" and case.bytes < out_of_cache_bytes(run, case), weak_peak=weak,
        to_library=library_s / own_s if library_s and own_s else None,
    )  # fmt: skip


def _clock(case: CaseResult) -> RateClock:
    if not case.device_hot_s:
        return "wall"
    return "derived" if "no-device-clock" in case.findings else "device_hot"


def _counted_s(case: CaseResult) -> float | None:
    """Return the hot seconds by the device's own clock, else None. A ratio must not mix clocks."""
    return case.device_hot_s if _clock(case) == "device_hot" else None


def _bound(case: CaseResult, peak: Peaks) -> Bound | None:
    """Return which peak is the lower one for this case. Return None if this peak was not measured, and for TF32,
    because the float32 peak is not its limit."""
    if case.case.variant == TF32:
        return None
    ridge = peak.ridge if peak.ridge is not None else ASSUMED_RIDGE
    if case.flops > ridge * case.bytes:
        return "compute" if peak.flops_per_s is not None else None
    return "memory" if peak.bytes_per_s is not None else None


# ---------------------------------------------------------------- costs beside the kernels


class PoolOverhead(msgspec.Struct, frozen=True, kw_only=True):
    """Wall time of memory from the pool / that of an elementwise op of 1 Mi elements on the same device."""

    aside: ClassVar = ("allocate", "op")
    id: str  # of the case that allocates
    op_id: str  # of the op
    share: float  # launches waited for together
    single_share: float | None  # one waited for alone; None: not timed
    allocate: CaseResult  # the case that allocates
    op: CaseResult  # the op


class Overheads(msgspec.Struct, frozen=True, kw_only=True):
    """The costs of a device beside its kernels. These cases have no CPU side and take no part in comparisons."""

    rows: tuple[CaseResult, ...] = ()  # by device
    pools: tuple[PoolOverhead, ...] = ()  # what the pool costs
    empty: dict[str, float] = {}  # by device id the seconds of an empty launch and its wait


ELEMENTS = 2**20  # the size of the op that the pool is held against
OUTPUT_BYTES = 4 * ELEMENTS
_ORDER = ("open", "launch", "roundtrip", "sync", "allocate", "upload", "download")
_ELEMENTWISE = ("vector", "activation")
_FIRST = "add"  # the op that is preferred, where several were measured


@derive_once
def overheads(analysis: Analysis) -> Overheads:
    """Return the shown overheads, sorted by device, and the cost of the memory pool. The pool cost also uses cases that
    are not shown."""
    cases = [case for case in analysis.cases if case.case.group == OVERHEAD and case.time is not None]
    pools = [
        _pool(analysis.everything, device_id) for device_id in sorted({case.case.device_id for case in cases})
    ]
    everywhere = sorted({case.case.device_id for case in analysis.cases})
    empty = {name: seconds for name in everywhere if (seconds := _empty(analysis.run, name))}
    return Overheads(rows=tuple(sorted(cases, key=_order)), pools=tuple(filter(None, pools)), empty=empty)


def _empty(run: Run, device_id: str) -> float | None:
    """Return the median over the workers of their median time of an empty launch. Return None if no worker has such a
    time."""
    medians = [median(worker.overhead_s) for worker in workers(run, device_id) if worker.overhead_s]
    return median(medians) if medians else None


def _order(item: CaseResult) -> tuple[object, ...]:
    case = item.case
    rank = _ORDER.index(case.op) if case.op in _ORDER else len(_ORDER)
    return (case.device_id, rank, case.op, case.params.get("n", 0), case.implementation_id)


def _pool(cases: Sequence[CaseResult], device_id: str) -> PoolOverhead | None:
    """Return the cost of pool memory for an output of 1 Mi float32 elements, or of the nearest measured size. Return
    None if the allocation or the op was not measured."""
    walls = [
        (case, case.time.estimate)
        for case in cases
        if case.case.device_id == device_id and case.time is not None and case.case.variant is None
    ]
    pooled = [pair for pair in walls if (pair[0].case.op, pair[0].case.implementation) == ("allocate", "tuned")]
    ops = [pair for pair in walls if _is_elementwise(pair[0].case)]
    if not pooled or not ops:
        return None
    allocate, allocate_s = min(pooled, key=lambda pair: abs(math.log(pair[0].n / OUTPUT_BYTES)))
    op, op_s = min(ops, key=lambda pair: (pair[0].case.op != _FIRST, pair[0].case.op, pair[1]))
    return PoolOverhead(
        id=allocate.id, op_id=op.id, allocate=allocate, op=op, share=allocate_s / op_s,
        single_share=None if op.single_s is None else allocate_s / op.single_s,
    )  # fmt: skip


def _is_elementwise(case: Case) -> bool:
    plain = case.queued and case.dtype == "float32" and case.group in _ELEMENTWISE
    return plain and case.params == {"n": ELEMENTS}
