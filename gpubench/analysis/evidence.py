"""By what the mode of a machine can be chosen: the rates of CPU and GPU, the break-evens and the splits of a run.

The mode is decided in one place (gpubench/detect/recommend.py); here the evidence is made of what the report shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpubench import stats
from gpubench.analysis.break_even import BreakEven, bracketed, earliest
from gpubench.analysis.hybrid import Hybrid
from gpubench.analysis.speedup import Speedup
from gpubench.model.case import QUEUED, WAITED, Case, SeriesKey
from gpubench.model.machine import Measured, MeasuredBreakEven, MeasuredSplit, Recommendation
from gpubench.model.result import Run


def evidence(
    run: Run, ratios: Sequence[Speedup], curves: Sequence[BreakEven], splits: Sequence[Hybrid]
) -> Measured | None:
    """What a mode can be chosen by; None where neither a CPU and a GPU were compared with resident data nor a split is
    recommended. `ratios` are over the fastest CPU form."""
    rows = [row for row in ratios if row.kind == "headline" and row.case.device_kind == "gpu"]
    s = _rate_ratio(rows)
    if s is None and not any(split.recommended for split in splits):
        return None
    return Measured(
        date=run.started_at, s=None if s is None else round(s, 6), break_even=[*_break_evens(curves, rows)],
        splits=[_split(row) for row in splits],
    )  # fmt: skip


def recommended(run: Run, found: Measured | None) -> Recommendation | None:
    """The mode for the machine of the run: by the evidence, else what detection said at the run's start; None if
    neither says anything."""
    # Here, as `advise` loads this package too, and needs no detection.
    from gpubench.detect.recommend import decide, gpus_of

    advice = run.machine.recommendation
    if found is None:
        return advice if advice.reasons else None
    return decide(run.machine, advice, found, gpus_of(run))


def _rate_ratio(rows: Iterable[Speedup]) -> float | None:
    """CPU rate / GPU rate: geometric mean over the ops, other params and dtypes at their largest common size, each
    call waited for on data that is there (version 1 of a file has queued ones alone). What takes no headline takes no
    part."""
    rows = list(rows)
    regime = WAITED if any(row.case.case.regime == WAITED for row in rows) else QUEUED
    largest: dict[SeriesKey, tuple[int, float]] = {}
    for row in rows:
        if row.headline and row.case.case.regime == regime:
            key, found = row.case.case.series, (row.case.case.params["n"], row.ratio)
            largest[key] = max(largest.get(key, found), found)
    return stats.geometric_mean([1 / ratio for _, ratio in largest.values()]) if largest else None


def _break_evens(curves: Sequence[BreakEven], rows: Sequence[Speedup]) -> Iterable[MeasuredBreakEven]:
    """Of each op, other params, dtype and regime the earliest break-even of all GPUs."""
    families: dict[tuple[object, ...], list[BreakEven]] = {}
    for curve in curves:
        key = (curve.op, tuple(curve.params.items()), curve.dtype, curve.regime)
        families.setdefault(key, []).append(curve)
    on_series: dict[SeriesKey, list[Speedup]] = {}
    for row in rows:
        on_series.setdefault(row.case.case.series, []).append(row)
    for family in families.values():
        best = earliest(family)
        if best is not None:
            series = (best.op, best.dtype, tuple(sorted(best.params.items())))
            yield _break_even(best, on_series.get(series, ()))


def _break_even(curve: BreakEven, rows: Sequence[Speedup]) -> MeasuredBreakEven:
    size = curve.first if curve.verdict == "all-sizes" else curve.n
    at = _shown_at(curve, size, rows)
    return MeasuredBreakEven(
        op=curve.op, params=_words(curve.params), dtype=curve.dtype, regime=curve.regime,
        backend=curve.device_id.partition(":")[0], size=size, note=_note(curve),
        gpu_s=at.case.time.estimate if at and at.case.time else None,
        cpu_s=at.baseline.time.estimate if at and at.baseline.time else None,
    )  # fmt: skip


def _shown_at(curve: BreakEven, size: int | None, rows: Sequence[Speedup]) -> Speedup | None:
    """The measured size that shows it, among the rows of its series: the first at or above it, else the largest."""
    ours = sorted(
        (row for row in rows if _on_curve(row.case.case, curve)),
        key=lambda row: row.case.case.params["n"],
    )
    above = (row for row in ours if size is not None and row.case.case.params["n"] >= size)
    return next(above, ours[-1] if ours else None)


def _on_curve(case: Case, curve: BreakEven) -> bool:
    return (case.device_id, case.regime_id) == (curve.device_id, curve.regime)


def _note(curve: BreakEven) -> str:
    """Why there is no size, and what else to know of one."""
    if curve.verdict == "at":
        return f"measured up to n = {curve.last}{', mixed below' if curve.mixed else ''}"
    if curve.verdict == "all-sizes":
        return f"the smallest size measured, up to n = {curve.last}"
    if curve.verdict == "no-size" and curve.reason is None:
        return f"no size up to n = {curve.last}"
    if bracketed(curve):
        return f"between n = {curve.lo} and {curve.hi}"
    return (
        f"no size up to n = {curve.last}, rising"
        if curve.verdict == "no-size"
        else f"undecided ({curve.reason})"
    )


def _split(row: Hybrid) -> MeasuredSplit:
    return MeasuredSplit(
        op=row.op, params=_words(row.params), dtype=row.dtype, regime=row.regime, n=row.n, device_id=row.device_id,
        fraction=round(row.fraction, 6), gain=round(row.gain, 6), lo=round(row.lo, 6), hi=round(row.hi, 6),
        reason=row.reason,
    )  # fmt: skip


def _words(params: dict[str, int]) -> str:
    return ",".join(f"{name}={value}" for name, value in params.items())
