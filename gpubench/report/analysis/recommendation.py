"""Should this machine use its CPU, its GPU or both? What its measured file says, for the report and for `detect`.

The mode is decided in one place (gpubench/detect/measured.py); here the evidence is made of what the report shows: its
speedups, its break-evens, and its splits with the report's own word on each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpubench import stats
from gpubench.model.case import Case, SeriesKey, beside_size, regime_name
from gpubench.model.machine import Measured, MeasuredBreakEven, MeasuredSplit, Recommendation
from gpubench.model.result import GPUS, Run
from gpubench.report.analysis.across import earliest
from gpubench.report.analysis.types import BreakEven, Hybrid, Speedup
from gpubench.report.analysis.verdict import verdict_text


def evidence(
    run: Run, ratios: Sequence[Speedup], curves: Sequence[BreakEven], splits: Sequence[Hybrid]
) -> Measured | None:
    """What a mode can be chosen by; None where neither a CPU and a GPU were compared with resident data nor a split is
    recommended. `ratios` are over the fastest CPU form."""
    rows = [row for row in ratios if row.kind == "headline" and row.case.device_kind in GPUS]
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
    from gpubench.detect.measured import decide, gpus_of

    advice = run.machine.recommendation
    if found is None:
        return advice if advice.reasons else None
    return decide(run.machine, advice, found, gpus_of(run))


def _rate_ratio(rows: Iterable[Speedup]) -> float | None:
    """CPU rate / GPU rate: geometric mean over the ops, other params and dtypes at their largest common size, data
    resident. What takes no headline takes no part."""
    largest: dict[SeriesKey, tuple[int, float]] = {}
    for row in rows:
        if row.headline and row.case.case.regime == "resident":
            key, found = row.case.case.series, (row.case.case.params["n"], row.ratio.estimate)
            largest[key] = max(largest.get(key, found), found)
    return stats.geometric_mean([1 / ratio for _, ratio in largest.values()]) if largest else None


def _break_evens(curves: Sequence[BreakEven], rows: Sequence[Speedup]) -> Iterable[MeasuredBreakEven]:
    """Of each op, other params, dtype and regime the earliest break-even of all GPUs."""
    families: dict[tuple[object, ...], list[BreakEven]] = {}
    for curve in curves:
        key = (curve.op, tuple(curve.params.items()), curve.dtype, curve.regime, curve.calls)
        families.setdefault(key, []).append(curve)
    for family in families.values():
        best = earliest(family)
        if best is not None:
            yield _break_even(best, rows)


def _break_even(curve: BreakEven, rows: Sequence[Speedup]) -> MeasuredBreakEven:
    size = curve.first if curve.verdict == "always" else curve.n
    at = _shown_at(curve, size, rows)
    return MeasuredBreakEven(
        op=curve.op, params=_words(curve.params), dtype=curve.dtype, regime=regime_name(curve.regime, curve.calls),
        backend=curve.device_id.partition(":")[0], size=size, note=_note(curve),
        gpu_s=at.case.time.estimate if at and at.case.time else None,
        cpu_s=at.baseline.time.estimate if at and at.baseline.time else None,
    )  # fmt: skip


def _shown_at(curve: BreakEven, size: int | None, rows: Sequence[Speedup]) -> Speedup | None:
    """The measured size that shows it: the first at or above it, else the largest."""
    key = (curve.op, curve.dtype, tuple(sorted(curve.params.items())))
    ours = sorted(
        (row for row in rows if row.case.case.series == key and _on_curve(row.case.case, curve)),
        key=lambda row: row.case.case.params["n"],
    )
    above = (row for row in ours if size is not None and row.case.case.params["n"] >= size)
    return next(above, ours[-1] if ours else None)


def _on_curve(case: Case, curve: BreakEven) -> bool:
    return (case.device_id, case.regime, case.calls) == (curve.device_id, curve.regime, curve.calls)


def _note(curve: BreakEven) -> str | None:
    """Why there is no size, and what else to know of one."""
    if curve.verdict == "at":
        return None
    if curve.verdict == "always":
        return "the smallest size measured"
    return f"never up to n = {curve.last}" if curve.verdict == "never" else verdict_text(curve)


def _split(row: Hybrid) -> MeasuredSplit:
    case = row.case.case
    return MeasuredSplit(
        op=case.op, params=_words(dict(beside_size(case.params))),
        dtype=case.dtype, regime=case.regime_id, n=case.params["n"], device_id=row.device_id,
        fraction=round(row.fraction, 6), gain=round(row.gain.estimate, 6), lo=round(row.gain.low, 6),
        hi=round(row.gain.high, 6), reason=row.reason,
    )  # fmt: skip


def _words(params: dict[str, int]) -> str:
    return ",".join(f"{name}={value}" for name, value in params.items())
