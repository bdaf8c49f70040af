"""The limits of a device: its measured roofline, and its costs beside the kernels (opening, launching, waiting,
memory and transfers).

The roofline shows how near each case comes to the best rate of its device (Williams et al., 2009). The memory
peak is the rate of the best `copy`; the compute peak is the rate of the best `matmul` of the same dtype. Both
are from the same run as the case. A case with i FLOP per byte can reach min(compute peak, i x memory peak). The
bytes of a case are those that the op has to move in any case ("compulsory traffic").
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

import msgspec

from gpubench.analysis.analyse import Analysis, alone, derive_once
from gpubench.analysis.estimate import CALLS, OVERHEAD, CaseResult
from gpubench.analysis.samples import empty_launch_s
from gpubench.base import group_by
from gpubench.result.case import FUNCTIONS, QUEUED, TF32, Case
from gpubench.result.machine import cpu_cache_bytes
from gpubench.result.run import Run

Bound = Literal["memory", "compute"]


RateClock = Literal["device_hot", "derived", "wall"]


class Peaks(msgspec.Struct, frozen=True, kw_only=True):
    """The measured peaks of one piece of hardware for one dtype. A peak that was not measured is None."""

    aside: ClassVar = ("copy", "matmul")  # the fields that the JSON rows leave out
    device_ids: tuple[str, ...]  # the ids of all devices of this hardware
    dtype: str  # the dtype of the arithmetic
    bytes_per_s: float | None  # the memory peak
    bytes_case: str | None  # the id of the copy with the highest rate
    cache_sized: bool  # whether every copy may have fitted in a cache
    flops_per_s: float | None  # the compute peak
    flops_case: str | None  # the id of the matmul with the highest rate
    small_matmul: bool  # whether every matmul was too small to occupy the device
    ridge: float | None  # the FLOP per byte at which both peaks limit alike
    copy: CaseResult | None  # the case behind `bytes_case`
    matmul: CaseResult | None  # the case behind `flops_case`


class PeakShare(msgspec.Struct, frozen=True, kw_only=True):
    """One case with resident data, compared with the peak that limits it."""

    aside: ClassVar = ("case", "share", "weak_peak")  # the fields that the JSON rows leave out
    id: str  # the id of the case
    clock: RateClock  # the clock that gave `time_s`
    time_s: float  # the device time, or the wall time if the device has no clock
    bytes_per_s: float  # compulsory traffic / `time_s`
    flops_per_s: float  # declared FLOPs / `time_s`
    bound: Bound | None  # the kind of peak that limits this case; None if that peak was not measured
    percent_of_peak: float | None  # `share` in percent; None without a peak
    in_cache: bool  # whether the working set is so small that memory may not limit the case
    # device time of the vendor's library / device time of the case; None: one is unknown, or the case is the library
    to_library: float | None
    case: CaseResult  # the case
    share: float | None  # the time that the peak allows / `time_s`, not clipped; None without a peak
    weak_peak: bool  # whether the peak was measured at small sizes only


class Roofline(msgspec.Struct, frozen=True, kw_only=True):
    """The peaks of all hardware of a run, and the cases compared with them."""

    peaks: tuple[Peaks, ...] = ()  # the peaks, by hardware and dtype
    rows: tuple[PeakShare, ...] = ()  # the cases with their shares of the peak


MEMORY_OP, COMPUTE_OP = "copy", "matmul"
VENDOR_LIBRARY = "cupy"  # its library implementation calls the vendor's own kernels
# From this traffic on, an op is taken to work on memory. It exceeds the last-level cache of any GPU so far.
OUT_OF_CACHE_BYTES = 256 * 2**20
# The FLOP per byte above which a case counts as limited by computing, if only one of the device's peaks was
# measured.
ASSUMED_RIDGE = 4.0
# From this side on, a matrix product occupies a device (GPU, CPU). Smaller products mostly time launches and
# idle units.
FULL_SIDE, FULL_SIDE_CPU = 2048, 512
Rated = tuple[CaseResult, float]  # a case and its rate, per second


@derive_once
def roofline(analysis: Analysis) -> Roofline:
    """Return the peaks that the run reached, and how near each shown case with resident data came to its
    peak."""
    run = analysis.run
    # Backends that drive the same GPU are one device, and so are those of the CPU. A software adapter is a device of
    # its own, although it runs on the CPU.
    hardware = {
        device.id: "cpu" if device.kind == "cpu" else device.gpu_id or device.id for device in run.devices
    }

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
    """Tell whether the run measured nothing but peaks (`--ops roofline`)."""
    return set(run.selection.ops) == {MEMORY_OP, COMPUTE_OP} and run.selection.regimes == [QUEUED]


def _counts(case: CaseResult) -> bool:
    resident = case.case.queued and case.case.group not in CALLS and case.bytes > 0
    return resident and case.time is not None and not lacks_flops(case)


def lacks_flops(case: CaseResult) -> bool:
    """Tell whether the case is a user's function whose number of FLOPs is unknown."""
    return case.case.group == FUNCTIONS and not case.flops


def _seconds(case: CaseResult) -> float:
    """Return the seconds of a launch by the device's own clock, else by wall time."""
    assert case.time is not None
    return case.device_hot_s or case.time.estimate


def _peak(run: Run, peers: Sequence[CaseResult], case: CaseResult) -> Peaks:
    """Return the memory and compute peaks of the hardware of `case`, for its dtype, from the run's
    cases there."""
    # A variant is a step of an optimization, or computes something else (TF32).
    plain = [peer for peer in peers if peer.case.variant is None]
    copies = [peer for peer in plain if peer.case.op == MEMORY_OP]
    large = [peer for peer in copies if peer.bytes >= out_of_cache_bytes(run, peer)]
    # For each device and implementation, only copies of the largest size count. Their dtype does not matter.
    by_implementation = group_by(
        large or copies, lambda peer: (peer.case.device_id, peer.case.implementation)
    ).values()
    most = [
        peer for same in by_implementation for peer in same if peer.bytes == max(other.bytes for other in same)
    ]
    copy = _best((peer, peer.bytes / _seconds(peer)) for peer in most)
    products = [peer for peer in plain if peer.case.op == COMPUTE_OP and peer.case.dtype == case.case.dtype]
    matmul = _best((peer, peer.flops / _seconds(peer)) for peer in products)
    full_side = FULL_SIDE if case.device_kind == "gpu" else FULL_SIDE_CPU
    return Peaks(
        device_ids=tuple(sorted({peer.case.device_id for peer in peers})), dtype=case.case.dtype,
        bytes_per_s=copy and copy[1], bytes_case=copy and copy[0].id, copy=copy and copy[0],
        cache_sized=bool(copies) and not large,
        flops_per_s=matmul and matmul[1], flops_case=matmul and matmul[0].id, matmul=matmul and matmul[0],
        ridge=matmul[1] / copy[1] if matmul and copy else None,
        small_matmul=bool(products) and max(peer.flops for peer in products) < 2 * full_side**3,
    )  # fmt: skip


def out_of_cache_bytes(run: Run, case: CaseResult) -> int:
    """Return the traffic in bytes from which the case is taken not to fit in a cache."""
    answer = cpu_cache_bytes(run.machine) if case.device_kind in ("cpu", "software") else None
    return max(OUT_OF_CACHE_BYTES, answer or 0)


def _best(rates: Iterable[Rated]) -> Rated | None:
    """Return the pair with the highest rate, or None without pairs."""
    # by id among equal rates, so that the order of the file does not matter
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
    """Return the seconds of a launch by the device's own clock, measured in a row of launches. Returns None
    without such a clock."""
    return case.device_hot_s if _clock(case) == "device_hot" else None


def _bound(case: CaseResult, peak: Peaks) -> Bound | None:
    """Return the kind of peak that limits this case, or None if that peak was not measured."""
    # TF32 is not limited by the float32 peak
    if case.case.variant == TF32:
        return None
    ridge = peak.ridge if peak.ridge is not None else ASSUMED_RIDGE
    if case.flops > ridge * case.bytes:
        return "compute" if peak.flops_per_s is not None else None
    return "memory" if peak.bytes_per_s is not None else None


# ---------------------------------------------------------------- costs beside the kernels


class PoolOverhead(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of allocating memory from the pool, compared with an elementwise op on the same device. Times
    are wall times."""

    aside: ClassVar = ("allocate", "op")  # the fields that the JSON rows leave out
    id: str  # the id of the case that allocates
    op_id: str  # the id of the op's case
    share: float  # time of the allocation / time of the op, if many launches share one wait
    single_share: float | None  # the same quotient if each launch is waited for; None: not timed
    allocate: CaseResult  # the case that allocates
    op: CaseResult  # the case of the op


class Overheads(msgspec.Struct, frozen=True, kw_only=True):
    """The costs of the devices besides their kernels. These cases have no CPU side and are not compared."""

    rows: tuple[CaseResult, ...] = ()  # the cases, sorted by device
    pools: tuple[PoolOverhead, ...] = ()  # the cost of the memory pool of each device
    empty: dict[str, float] = {}  # the seconds of an empty launch and its wait, by device id


ELEMENTS = 2**20  # the size of the op with which the pool is compared
OUTPUT_BYTES = 4 * ELEMENTS
_ORDER = ("open", "launch", "roundtrip", "sync", "allocate", "upload", "download")
_ELEMENTWISE = ("vector", "activation")
_FIRST = "add"  # the preferred op, if several were measured


@derive_once
def overheads(analysis: Analysis) -> Overheads:
    """Return the shown overheads, sorted by device, and the costs of the memory pools."""
    cases = [case for case in analysis.cases if case.case.group == OVERHEAD and case.time is not None]
    pools = [
        _pool(analysis.everything, device_id) for device_id in sorted({case.case.device_id for case in cases})
    ]
    everywhere = sorted({case.case.device_id for case in analysis.cases})
    empty = {name: seconds for name in everywhere if (seconds := empty_launch_s(analysis.run, name))}
    return Overheads(rows=tuple(sorted(cases, key=_order)), pools=tuple(filter(None, pools)), empty=empty)


def _order(item: CaseResult) -> tuple[object, ...]:
    case = item.case
    rank = _ORDER.index(case.op) if case.op in _ORDER else len(_ORDER)
    return (case.device_id, rank, case.op, case.params.get("n", 0), case.implementation_id)


def _pool(cases: Sequence[CaseResult], device_id: str) -> PoolOverhead | None:
    """Return the cost of allocating about 1 Mi float32 elements from the memory pool, or None if it was
    not measured."""
    walls = [
        (case, case.time.estimate)
        for case in cases
        if case.case.device_id == device_id and case.time is not None and case.case.variant is None
    ]
    pooled = [pair for pair in walls if (pair[0].case.op, pair[0].case.implementation) == ("allocate", "tuned")]
    ops = [pair for pair in walls if _is_elementwise(pair[0].case)]
    if not pooled or not ops:
        return None
    # the nearest size that was measured
    allocate, allocate_s = min(pooled, key=lambda pair: abs(math.log(pair[0].n / OUTPUT_BYTES)))
    op, op_s = min(ops, key=lambda pair: (pair[0].case.op != _FIRST, pair[0].case.op, pair[1]))
    return PoolOverhead(
        id=allocate.id, op_id=op.id, allocate=allocate, op=op, share=allocate_s / op_s,
        single_share=None if op.single_s is None else allocate_s / op.single_s,
    )  # fmt: skip


def _is_elementwise(case: Case) -> bool:
    plain = case.queued and case.dtype == "float32" and case.group in _ELEMENTWISE
    return plain and case.params == {"n": ELEMENTS}
