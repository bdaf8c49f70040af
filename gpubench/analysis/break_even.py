"""Break-even: the smallest measured size from which the device wins for all larger ones (docs/breakeven.md)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Literal

import msgspec

from gpubench.analysis.estimate import IMPLAUSIBLE, CaseResult
from gpubench.analysis.speedup import Speedup
from gpubench.base.groups import group_by
from gpubench.curves import Side, Threshold, TimeCurve, TimedSizes, compare, fit
from gpubench.result.case import Case, SeriesKey, beside_size
from gpubench.result.run import DeviceKind, Run

VerdictKind = Literal["at", "all-sizes", "no-size", "undecided"]
UndecidedReason = Literal[
    "noise", "few-sizes", "throttled", "failed-cases", "budget", "loses-again", "about-equal"
]


class BreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest size from which the device wins at all larger ones that were measured, from `first` to `last`.

    `all-sizes`, `no-size`: it wins, or loses, at every size measured. `n` with `lo` and `hi`, the ends of its interval,
    stand wherever they are known, of an undecided verdict too.
    """

    aside: ClassVar = ("points", "threshold")
    op: str
    dtype: str
    params: dict[str, int]
    regime: str
    device_id: str
    baseline_id: str
    verdict: VerdictKind
    n: int | None
    lo: int | None
    hi: int | None
    mixed: bool  # it wins and loses by turns below
    first: int
    last: int
    last_ratio: float
    reason: UndecidedReason | None
    text: str = ""  # the verdict as tables say it (`thresholds.threshold_text`)
    points: tuple[Speedup, ...]  # the headline of each measured size, ascending
    threshold: Threshold | None

    @property
    def case(self) -> Case:
        """The device's case at the largest size."""
        return self.points[-1].case.case

    @property
    def bracketed(self) -> bool:
        """Undecided, but the device is known to lose at `lo` and to win at `hi`."""
        return self.verdict == "undecided" and self.lo is not None and self.hi is not None

    @property
    def size(self) -> float | None:
        """The size from which the device wins, of a bracket its middle: infinity where it wins nowhere, None where that
        is not known."""
        if self.bracketed:
            return math.sqrt((self.lo or 1) * (self.hi or 1))
        return {"no-size": math.inf, "all-sizes": self.first}.get(self.verdict, self.n)


def earliest(curves: Iterable[BreakEven]) -> BreakEven | None:
    """Return the curve with the earliest break-even of the GPUs of one machine; one without any if none has one."""
    order: dict[VerdictKind, int] = {"all-sizes": 0, "at": 1, "undecided": 2, "no-size": 3}

    def place(curve: BreakEven) -> tuple[int, float, bool]:
        verdict: VerdictKind = "at" if curve.bracketed else curve.verdict
        n = curve.size if verdict != "no-size" else None
        return order[verdict], n or curve.first, curve.verdict != "at"

    gpus = (curve for curve in curves if curve.points[-1].case.device_kind == "gpu")
    return min(gpus, key=place, default=None)


WIDEST_INTERVAL = 4.0

ContenderKey = tuple[SeriesKey, str, str, str]  # series, device, form and regime, by id


def break_evens(
    run: Run, cases: Sequence[CaseResult], ratios: Sequence[Speedup], kind: DeviceKind = "gpu"
) -> tuple[BreakEven, ...]:
    """Return a verdict per op, other params, dtype, regime and device of a kind, in the order of `ratios`."""
    headlines = [ratio for ratio in ratios if ratio.kind == "headline" and ratio.case.device_kind == kind]
    if not headlines:
        return ()
    by_device = group_by(headlines, lambda ratio: ratio.case.case.cell)
    baselines = group_by({contender_key(ratio.baseline.case) for ratio in ratios}, lambda key: key[0])
    curves = fit(case_series(cases), lambda key: key[0] in baselines)
    missing = group_by((case for case in cases if case.time is None), lambda case: case.case.series)
    sides: dict[tuple[ContenderKey, ...], Side] = {}
    return tuple(
        _judge(run, missing.get(series, ()), points, _threshold(curves, points[0], baselines[series], sides))
        for (series, *_), points in by_device.items()
    )


def contender_key(case: Case) -> ContenderKey:
    """Return the curve on which the case lies."""
    return case.series, case.device_id, case.form, case.regime_id


def fit_cases(cases: Iterable[CaseResult]) -> dict[ContenderKey, TimeCurve]:
    """Return the curve of each contender that has a time, each by all of its sizes."""
    return fit(case_series(cases))


def case_series(cases: Iterable[CaseResult]) -> dict[ContenderKey, TimedSizes]:
    """Return the times of each contender that has one."""
    timed = (
        case
        for case in cases
        if case.time is not None and case.blocks and case.case.variant is None and case.case.shared_with is None
    )
    groups = group_by(timed, lambda case: contender_key(case.case))
    return {key: _series(key, members) for key, members in groups.items()}


def _series(key: ContenderKey, cases: Sequence[CaseResult]) -> TimedSizes:
    (_, dtype, params), device_id, form, regime = key
    blocks = {case.n: list(case.blocks.values()) for case in cases}
    moved = {} if params else {case.n: (case.bytes, case.written_bytes) for case in cases}
    return TimedSizes.of(cases[0].device_kind, (dtype, device_id, form, regime), blocks, moved)


def _threshold(
    curves: Mapping[ContenderKey, TimeCurve], ratio: Speedup, baselines: Iterable[ContenderKey],
    sides: dict[tuple[ContenderKey, ...], Side],
) -> Threshold | None:  # fmt: skip
    """Return where the device of `ratio`, by its fastest implementation, overtakes the fastest of the baselines.
    `sides`: baselines that other devices were compared with."""
    case, regime = ratio.case.case, ratio.baseline.case.regime_id
    own = [curve for key, curve in curves.items() if (key[0], key[1], key[3]) == case.cell]
    others = tuple(
        key for key in sorted(baselines) if key in curves and key[3] == regime and key[1] != case.device_id
    )
    return compare(own, sides.setdefault(others, Side(curves[key] for key in others)))


def _judge(
    run: Run, missing: Sequence[CaseResult], ratios: Sequence[Speedup], threshold: Threshold | None
) -> BreakEven:
    """Return the verdict of one device; `missing` are cases of its series without a time."""
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
        op=case.op, dtype=case.dtype, params=dict(beside_size(case.params)), regime=case.regime_id,
        device_id=case.device_id, baseline_id=last.baseline.case.device_id, verdict=verdict, n=n, lo=low,
        hi=high, mixed=threshold is not None and threshold.mixed and threshold.state != "never",
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
