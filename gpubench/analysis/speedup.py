"""Speedups, and break-evens among the measured sizes (docs/breakeven.md).

A speedup is the wall time of the fastest CPU implementation divided by that of the fastest GPU implementation.
A break-even is the smallest size from which the device wins at all larger ones.
"""

from __future__ import annotations

import fnmatch
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple

import msgspec

from gpubench.analysis.estimate import IMPLAUSIBLE, CaseResult, OfSeries, declaration, series_fields
from gpubench.analysis.machine import usable_cpus
from gpubench.analysis.samples import NO_HEADLINE, Label, gravest, workers
from gpubench.base import group_by
from gpubench.base.errors import InputError
from gpubench.base.installation import MAY_BE_SLOWED, NUMBA_MISSING
from gpubench.curves import Side, Threshold, TimeCurve, TimedSizes, compare, fit, stats
from gpubench.curves.stats import Interval, IntervalKind
from gpubench.result.case import FUNCTIONS, RESIDENT, Case, SeriesKey
from gpubench.result.run import Blas, DeviceKind, Measurement, Run, WorkerRecord

# "headline": the fastest implementations of both sides. "library": the library implementations of both sides.
# "case": any other implementation against the baseline of the headline, which only tables of all cases show.
SpeedupKind = Literal["headline", "library", "case"]
# Two times whose ratio is below EQUAL are about equal: there is no gain, and no break-even if this is so at the
# largest size. If the error of a ratio reaches WIDEST_EQUAL, the ratio is not known to be about 1.
EQUAL, WIDEST_EQUAL = 1.15, 1.5


def about_equal(ratio: float) -> bool:
    """Tell whether a ratio of two times lies between 1 / EQUAL and EQUAL."""
    return 1 / EQUAL <= ratio <= EQUAL


class Speedup(msgspec.Struct, frozen=True, kw_only=True):
    """The wall time of a baseline divided by the wall time of a case."""

    aside: ClassVar = ("case", "baseline")  # the fields that the JSON rows leave out
    id: str  # the id of the case
    baseline_id: str  # the id of the baseline
    kind: SpeedupKind  # the implementations that are compared
    ratio: float  # the speedup; above 1 the case is faster
    lo: float  # the low end of the interval
    hi: float  # the high end of the interval
    ci_kind: IntervalKind  # the source of the interval: the scatter of the sessions, or a prior
    label: Label  # the graver label of both sides
    headline: bool  # whether the speedup may be a headline; a grave label forbids it
    case: CaseResult  # the case
    baseline: CaseResult  # the baseline

    @property
    def n(self) -> int:
        """The size."""
        return self.case.n

    @property
    def state(self) -> Literal["win", "loss", "tie"]:
        """The outcome for the case: `win` or `loss` if the interval excludes 1, else `tie`."""
        return "win" if self.lo > 1 else "loss" if self.hi < 1 else "tie"

    @property
    def about_equal(self) -> bool:
        """Whether the ratio lies between 1 / EQUAL and EQUAL, and both ends of its interval within a factor
        WIDEST_EQUAL of it."""
        within = about_equal(self.ratio)
        return within and self.ratio / WIDEST_EQUAL <= self.lo and self.hi <= self.ratio * WIDEST_EQUAL

    @property
    def interval(self) -> Interval:
        """The ratio with its interval. Above 1 the case is faster."""
        return Interval(self.lo, self.ratio, self.hi, self.ci_kind)


def ids_beside(cases: Iterable[CaseResult]) -> frozenset[str]:
    """Return the ids of cases that do not run a user's function as written: they compile it, or use PyTorch on
    the CPU. Functions that do not run as written on both a CPU and a GPU are left out."""
    own = [item for item in cases if item.case.group == FUNCTIONS and item.time is not None]
    others = [
        item for item in own if item.case.implementation != "library" or item.case.device_id == "torch:cpu"
    ]
    aside = {item.id for item in others}
    kinds = {(item.case.op, item.device_kind) for item in own if item.id not in aside}
    return frozenset(item.id for item in others if {(item.case.op, "cpu"), (item.case.op, "gpu")} <= kinds)


def speedups(
    cases: Sequence[CaseResult], shows: Callable[[Case], bool], baseline: str | None = None,
    beside: Collection[str] = (),
) -> tuple[Speedup, ...]:  # fmt: skip
    """Return the speedups of the shown cases. `baseline` is DEVICE, IMPLEMENTATION or IMPLEMENTATION@DEVICE
    (default: the fastest CPU implementation). Cases whose ids are in `beside` are in no headline. Raises
    InputError (`baseline-missing`) if no measured case matches the baseline."""
    numbered = [item for item in cases if item.time is not None]
    is_baseline = _baseline_rule(numbered, baseline)
    references = group_by(filter(is_baseline, numbered), lambda item: item.case.workload)
    ratios: list[Speedup | None] = []
    contenders = group_by(
        (item for item in numbered if not is_baseline(item) and item.device_kind != "cpu"),
        lambda item: (item.case.workload, item.case.regime_id, item.case.device_id),
    )
    # the headline first, then the other implementations, then library against library
    for group in contenders.values():
        if not any(shows(item.case) for item in group):
            continue
        bases = _baselines(references.get(group[0].case.workload, []), group[0])
        best, base = (fastest(item for item in rows if item.id not in beside) for rows in (group, bases))
        ratios.append(pair("headline", base, best))
        ratios += [pair("case", base, other) for other in group if other is not best]
        if baseline is None:
            ratios.append(pair("library", _library(bases), _library(group)))
    return tuple(item for item in ratios if item is not None and shows(item.case.case))


def pair_ratio(baseline: CaseResult, case: CaseResult) -> stats.Interval | None:
    """Return the time of `baseline` divided by the time of `case`. The interval comes from the sessions that
    measured both. Returns None if no session did."""
    common = sorted(baseline.blocks.keys() & case.blocks.keys())
    if not common or baseline.time is None or case.time is None:
        return None
    pairs = [(baseline.blocks[i], case.blocks[i]) for i in common]
    interval = stats.ratio_interval(pairs, (baseline.prior, case.prior))
    return interval.around(baseline.time.estimate / case.time.estimate)


def parse_baseline(name: str) -> Callable[[Case, bool], bool]:
    """Return a predicate for the baseline `name` (DEVICE, IMPLEMENTATION or IMPLEMENTATION@DEVICE). Its
    arguments are a case and whether a CPU runs the case."""
    implementation, at, device = name.partition("@")
    if not at:
        implementation, device = ("", name) if ":" in name or name not in ("library", "tuned") else (name, "")
    pattern = device if not device or ":" in device else f"{device}:*"

    def matches(case: Case, on_cpu: bool) -> bool:
        on_device = fnmatch.fnmatchcase(case.device_id, pattern) if pattern else on_cpu
        return on_device and implementation in ("", "*", case.implementation)

    return matches


def _baseline_rule(cases: Sequence[CaseResult], name: str | None) -> Callable[[CaseResult], bool]:
    if name is None:
        return lambda case: case.device_kind == "cpu"
    named = parse_baseline(name)
    chosen = {case.id for case in cases if named(case.case, case.device_kind == "cpu")}
    if not chosen:
        op = sorted({f"{case.case.implementation}@{case.case.device_id}" for case in cases})
        raise InputError(
            "baseline-missing", f"--baseline {name}: no measured case matches",
            why="a speedup needs a baseline that is in the file",
            hint=f"choose one of: {', '.join(op)}" if op else "run again; this file holds no estimate",
        )  # fmt: skip
    return lambda case: case.id in chosen


def _baselines(references: Sequence[CaseResult], contender: CaseResult) -> list[CaseResult]:
    """Return the cases of `references` that a contender is compared with: those of its regime, and the
    `resident` ones of CPUs."""
    return [
        item
        for item in references
        # A CPU's data is in host memory, so its case serves in all regimes.
        if item.case.regime_id == (RESIDENT if item.device_kind == "cpu" else contender.case.regime_id)
    ]


def fastest(rows: Iterable[CaseResult]) -> CaseResult | None:
    """Return the case with the least time, and among equal times the first by id. Returns None if no case has
    a time."""
    timed = [(item.time.estimate, item.id, item) for item in rows if item.time is not None]
    return min(timed)[2] if timed else None


def _library(rows: Sequence[CaseResult]) -> CaseResult | None:
    return fastest([item for item in rows if item.case.implementation == "library"])


def pair(
    kind: SpeedupKind, baseline: CaseResult | None, case: CaseResult | None, *, headline: bool | None = None
) -> Speedup | None:
    """Return the speedup of `case` over `baseline`, or None if one is None or no session measured both.
    `headline` tells whether it may be a headline. None lets `kind` and the labels decide."""
    ratio = pair_ratio(baseline, case) if baseline is not None and case is not None else None
    if baseline is None or case is None or ratio is None:
        return None
    if headline is None:
        headline = kind == "headline" and not {baseline.label, case.label} & NO_HEADLINE
    return Speedup(
        id=case.id, baseline_id=baseline.id, kind=kind, ratio=ratio.estimate, lo=ratio.low,
        hi=ratio.high, ci_kind=ratio.kind, headline=headline, case=case, baseline=baseline,
        label=gravest([item.label for item in (baseline, case) if item.label is not None]),
    )  # fmt: skip


def baseline_line(run: Run, rows: Sequence[Speedup]) -> str:
    """Return a text that describes the baselines of `rows`, such as `vs numpy tuned, OpenBLAS 0.3.29 (Haswell),
    16 of 16 threads`."""
    devices = group_by((item.baseline for item in rows), lambda case: case.case.device_id)
    parts = []
    for device_id in devices or _cpu_devices(run):
        cases = devices.get(device_id, [])
        implementations = {case.case.implementation for case in cases}
        implementation = (
            min(implementations) if len(implementations) == 1 else "library or tuned (the faster one)"
        )
        parts.append(_device_text(run, device_id, implementation, cases))
    return f"vs {'; '.join([*parts, *_absent(run)])}"


def cpu_line(run: Run) -> str:
    """Return a description of the CPU side, such as `numpy, OpenBLAS 0.3.29 (Haswell), 2 of 2 threads`."""
    texts = [_device_text(run, device_id, "", ()) for device_id in _cpu_devices(run)]
    return "; ".join([*texts, *_absent(run)])


NUMBA = "numba"
# Libraries that may be faster on the CPU. A run warns if they are not installed.
CPU_CONTENDERS = ("torch", NUMBA)


def _left_out(run: Run) -> list[str]:
    lacking = {w.data.get("backend") for w in run.warnings if w.code == "unavailable"}
    lacking |= {NUMBA for w in run.warnings if w.code == "cpu-not-compiled" and MAY_BE_SLOWED not in w.message}
    return [name for name in CPU_CONTENDERS if name in lacking]


def _absent(run: Run) -> list[str]:
    """Return a note for each library that may make the CPU faster but is missing or does not work."""
    broken = any(w.code == "cpu-not-compiled" and NUMBA_MISSING not in w.message for w in run.warnings)
    names = [name for name in _left_out(run) if name != NUMBA or not broken]
    missing = f"not installed: {' and '.join(names)}, with which the CPU may be faster"
    return [missing] * bool(names) + [f"{MAY_BE_SLOWED}: see the warning cpu-not-compiled"] * broken


class CpuCode(NamedTuple):
    """Code that computes on the CPU."""

    backend: str  # the name of the backend
    library: str  # numba, a BLAS such as `OpenBLAS 0.3.29 (Haswell)`, a user's program, or empty
    weaker: bool = False  # whether numba, which might be faster, was not installed or did not work
    own: bool = False  # whether the code is a user's program


def cpu_codes(run: Run, rows: Iterable[CaseResult]) -> tuple[CpuCode, ...]:
    """Return the kinds of code (backend, library) that computed the CPU cases among `rows`, the most frequent
    one first."""
    cpu = [item for item in rows if item.device_kind == "cpu"]
    blas = {
        device_id: next(
            (blas_text(worker.blas) for worker in workers(run, device_id) if worker.blas is not None), ""
        )
        for device_id in {item.case.device_id for item in cpu}
    }
    lacking = NUMBA in _left_out(run)

    def code(item: CaseResult) -> CpuCode:
        if item.case.backend == "numpy" and item.case.implementation == "library" and item.kernel:
            return CpuCode("numpy", item.kernel, own=True)
        library = NUMBA if _by_numba(item) else blas[item.case.device_id] if _by_blas(item) else ""
        return CpuCode(item.case.backend, library, weaker=lacking and not library)

    return tuple(item for item, _ in Counter(map(code, cpu)).most_common())


def _by_blas(item: CaseResult) -> bool:
    """Tell whether a BLAS computes the case."""
    if item.blas is not None:
        return item.blas
    # Old files do not say so, but the declaration of an op that is known here does.
    case = item.case
    op = declaration(case.op)
    return op is not None and op.by_blas(case.backend, case.implementation, case.dtype)


def cpu_threads(run: Run, device_id: str | None = None) -> int | None:
    """Return the smallest number of threads among the workers of a device, or None if it is unknown.
    `device_id` None means all CPU devices."""
    devices = _cpu_devices(run) if device_id is None else [device_id]
    return _threads([record for name in devices for record in workers(run, name)])


def blas_text(blas: Blas | None) -> str:
    """Return the name of a BLAS, such as `OpenBLAS 0.3.29 (Haswell)`, or `BLAS unknown` for None."""
    if blas is None:
        return "BLAS unknown"
    name = {"openblas": "OpenBLAS", "mkl": "MKL", "blis": "BLIS"}.get(blas.library.lower(), blas.library)
    version = f" {blas.version}" if blas.version else ""
    return f"{name}{version}" + (f" ({blas.kernel})" if blas.kernel else "")


def cpu_limit(run: Run) -> str | None:
    """Return a text that tells why the CPU side does not use the whole machine: few threads, or a quota.
    Returns None if no such limit is known."""
    usable = usable_cpus(run)
    for device_id in _cpu_devices(run):
        threads = _threads(workers(run, device_id))
        if threads is not None and usable is not None and threads < usable:
            return f"the baseline uses {threads} of {usable} usable CPUs"
    quota, logical = run.machine.cpu.quota_cpus.value, run.machine.cpu.logical.value
    if quota is not None and logical is not None and quota < logical:
        return f"a quota leaves {quota:g} of {logical} CPUs to the baseline"
    return None


def _device_text(run: Run, device_id: str, implementation: str, cases: Sequence[CaseResult]) -> str:
    """Return a text that describes a baseline: the device, its implementation, libraries and threads."""
    backend = device_id.partition(":")[0]
    device = next((device for device in run.devices if device.id == device_id), None)
    if device is not None and device.kind != "cpu":
        return f"{device_id} {implementation}, {device.name}"
    records = workers(run, device_id)
    blas = next((worker.blas for worker in records if worker.blas is not None), None)
    threads, usable = _threads(records), usable_cpus(run)
    count = "threads unknown" if threads is None else f"{threads} of {usable or '?'} threads"
    limited = " (cpu-limited)" if cpu_limit(run) else ""
    measured = [outcome for outcome in run.measurements if outcome.case.device_id == device_id]
    # without `cases`, any measurement of the device tells
    compiler = "numba, " if any(map(_by_numba, cases or measured)) else ""
    return f"{backend} {implementation}".rstrip() + f", {compiler}{blas_text(blas)}, {count}{limited}"


def _by_numba(item: CaseResult | Measurement) -> bool:
    return (item.kernel or "").startswith(NUMBA)


def _threads(records: Sequence[WorkerRecord]) -> int | None:
    """Return the smallest number of threads among `records`, or None if it is unknown."""
    return min((worker.threads for worker in records if worker.threads is not None), default=None)


def _cpu_devices(run: Run) -> list[str]:
    return [device.id for device in run.devices if device.kind == "cpu"] or ["numpy:0"]


VerdictKind = Literal["at", "all-sizes", "no-size", "undecided"]
UndecidedReason = Literal[
    "noise", "few-sizes", "throttled", "failed-cases", "budget", "loses-again", "about-equal"
]


class BreakEven(OfSeries, frozen=True, kw_only=True):
    """The smallest measured size from which a device wins at all larger measured sizes, with the evidence."""

    aside: ClassVar = ("points", "threshold")  # the fields that the JSON rows leave out
    regime: str  # the id of the regime
    device_id: str  # the id of the device
    baseline_id: str  # the id of the device that is the baseline at the largest size
    verdict: VerdictKind  # `all-sizes` and `no-size`: it wins, or loses, at every measured size
    n: int | None  # the break-even; None: unknown, or the verdict is `all-sizes` or `no-size`
    # the low end of the interval of n; None: this end is open or unknown, or the verdict is `all-sizes` or
    # `no-size`. An undecided verdict may have it, too.
    lo: int | None
    hi: int | None  # the high end of the interval of n; None: as for `lo`
    mixed: bool  # whether both sides win by turns below the break-even
    first: int  # the smallest measured size
    last: int  # the largest measured size
    last_ratio: float  # the speedup at the largest measured size
    reason: UndecidedReason | None  # the reason of an undecided verdict; None for the others
    text: str = ""  # the verdict as tables show it (`thresholds.threshold_text`); empty except in exported rows
    points: tuple[Speedup, ...]  # the headline speedup at each measured size, ascending
    threshold: Threshold | None  # where the curves cross; None without a common size

    @property
    def case(self) -> Case:
        """The case of the device at the largest size."""
        return self.points[-1].case.case

    @property
    def bracketed(self) -> bool:
        """Whether the verdict is undecided although the device is known to lose at `lo` and to win at `hi`."""
        return self.verdict == "undecided" and self.lo is not None and self.hi is not None

    @property
    def size(self) -> float | None:
        """The size from which the device wins, or the geometric middle of a bracket. It is infinity if the
        device wins at no measured size, and None if the size is unknown."""
        if self.bracketed:
            return math.sqrt((self.lo or 1) * (self.hi or 1))
        return {"no-size": math.inf, "all-sizes": self.first}.get(self.verdict, self.n)


def earliest(curves: Iterable[BreakEven]) -> BreakEven | None:
    """Return the GPU curve that pays from the smallest size, or None without GPU curves. If none pays, an
    undecided curve is preferred to one that wins at no size."""
    order: dict[VerdictKind, int] = {"all-sizes": 0, "at": 1, "undecided": 2, "no-size": 3}

    def place(curve: BreakEven) -> tuple[int, float, bool]:
        verdict: VerdictKind = "at" if curve.bracketed else curve.verdict
        n = curve.size if verdict != "no-size" else None
        return order[verdict], n or curve.first, curve.verdict != "at"

    gpus = (curve for curve in curves if curve.points[-1].case.device_kind == "gpu")
    return min(gpus, key=place, default=None)


# A break-even is known (`at`) if the ends of its interval differ by at most this factor.
WIDEST_INTERVAL = 4.0

ContenderKey = tuple[SeriesKey, str, str, str]  # series, device, implementation and regime, by id


def break_evens(
    run: Run,
    cases: Sequence[CaseResult],
    ratios: Sequence[Speedup],
    kind: DeviceKind = "gpu",
    *,
    fitted: bool = True,
) -> tuple[BreakEven, ...]:
    """Return a break-even for each series, regime and device of this `kind` with a headline speedup in
    `ratios`. The curves are fitted through `cases`. Without `fitted`, no curve is fitted and all verdicts
    are undecided."""
    headlines = [ratio for ratio in ratios if ratio.kind == "headline" and ratio.case.device_kind == kind]
    if not headlines:
        return ()
    by_device = group_by(headlines, lambda ratio: ratio.case.case.cell)
    baselines = group_by({contender_key(ratio.baseline.case) for ratio in ratios}, lambda key: key[0])
    curves = fit(case_series(cases), lambda key: key[0] in baselines) if fitted else {}
    missing = group_by((case for case in cases if case.time is None), lambda case: case.case.series)
    sides: dict[tuple[ContenderKey, ...], Side] = {}
    return tuple(
        _judge(run, missing.get(series, ()), points, _threshold(curves, points[0], baselines[series], sides))
        for (series, *_), points in by_device.items()
    )


def contender_key(case: Case) -> ContenderKey:
    """Return the key of the curve on which the case lies."""
    return case.series, case.device_id, case.implementation, case.regime_id


def case_series(cases: Iterable[CaseResult]) -> dict[ContenderKey, TimedSizes]:
    """Return the times of each contender, by size. Cases without a time, variants and splits are left out."""
    timed = (
        case
        for case in cases
        if case.time is not None and case.blocks and case.case.variant is None and case.case.shared_with is None
    )
    groups = group_by(timed, lambda case: contender_key(case.case))
    return {key: _series(key, members) for key, members in groups.items()}


def _series(key: ContenderKey, cases: Sequence[CaseResult]) -> TimedSizes:
    (_, dtype, params), device_id, implementation, regime = key
    blocks = {case.n: list(case.blocks.values()) for case in cases}
    moved = {} if params else {case.n: (case.bytes, case.written_bytes) for case in cases}
    return TimedSizes.of(cases[0].device_kind, (dtype, device_id, implementation, regime), blocks, moved)


def _threshold(
    curves: Mapping[ContenderKey, TimeCurve], ratio: Speedup, baselines: Iterable[ContenderKey],
    sides: dict[tuple[ContenderKey, ...], Side],
) -> Threshold | None:  # fmt: skip
    """Return where the device of `ratio` overtakes the baseline, or None if they have no common size."""
    case, regime = ratio.case.case, ratio.baseline.case.regime_id
    own = [curve for key, curve in curves.items() if (key[0], key[1], key[3]) == case.cell]
    others = tuple(
        key for key in sorted(baselines) if key in curves and key[3] == regime and key[1] != case.device_id
    )
    return compare(own, sides.setdefault(others, Side(curves[key] for key in others)))


def _judge(
    run: Run, missing: Sequence[CaseResult], ratios: Sequence[Speedup], threshold: Threshold | None
) -> BreakEven:
    """Return the break-even of one device and regime, from its speedups and the crossing of its curves."""
    points = tuple(sorted(ratios, key=lambda ratio: ratio.n))
    last = points[-1]
    verdict = _verdict(threshold, last)
    n = low = high = None
    if threshold is not None and verdict not in ("all-sizes", "no-size"):
        n, low, high = (
            whole(size) if 0 < size < math.inf else None
            for whole, size in ((round, threshold.n), (math.floor, threshold.low), (math.ceil, threshold.high))
        )
    case = last.case.case
    return BreakEven(
        **series_fields(case), regime=case.regime_id, device_id=case.device_id,
        baseline_id=last.baseline.case.device_id, verdict=verdict, n=n, lo=low, hi=high,
        mixed=threshold is not None and threshold.mixed and threshold.state != "never",
        first=points[0].n, last=last.n, last_ratio=last.ratio, points=points, threshold=threshold,
        reason=_reason(run, missing, points) if verdict == "undecided" else None,
    )  # fmt: skip


def _verdict(threshold: Threshold | None, last: Speedup) -> VerdictKind:
    if threshold is None or (last.about_equal and threshold.state != "at"):
        return "undecided"
    if threshold.state == "never":
        return "undecided" if threshold.mixed else "no-size"
    if threshold.state == "always":
        return "all-sizes"
    close = threshold.low > 0 and threshold.high <= threshold.low * WIDEST_INTERVAL
    return "at" if threshold.state == "at" and close else "undecided"


def _reason(run: Run, missing: Sequence[CaseResult], points: Sequence[Speedup]) -> UndecidedReason:
    last = points[-1]
    ties = [point for point in points if point.state == "tie"]
    if last.state == "loss" and any(point.state == "win" for point in points):
        return "loses-again"
    if any("throttled" in (point.label, point.case.label) for point in ties):
        return "throttled"
    if last.about_equal:
        return "about-equal"
    if ties:
        return "noise"
    # Points that this curve, or its baseline, lacks.
    missing = [case for case in missing if case.device_kind == "cpu" or case.case.cell == last.case.case.cell]
    if any(case.outcome == "failure" or case.reason in ("timeout", IMPLAUSIBLE) for case in missing):
        return "failed-cases"
    if run.exit_reason == "budget" or any(case.reason == "budget" for case in missing):
        return "budget"
    return "few-sizes"
