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
State = Literal["win", "loss", "tie"]


class SizeRatio(msgspec.Struct, frozen=True):
    """One measured size: the headline pair's ratio, and what it says with confidence."""

    n: int
    state: State
    row: Speedup


class BreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest size from which the device wins at all larger ones that were measured, up to `last`.

    `mixed`: it wins and loses by turns below.

    `all-sizes`, `no-size`: it wins, or loses, at every size measured, from `first` to `last`. `n` with `lo` and `hi`,
    the ends of its interval, stand wherever they are known, of an undecided verdict too. `text` says the verdict as
    tables do (`report/sections/answer_text.py`).
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
    mixed: bool
    first: int
    last: int
    last_ratio: float
    reason: UndecidedReason | None
    text: str = ""
    points: tuple[SizeRatio, ...]
    threshold: Threshold | None

    @property
    def at_last(self) -> Speedup:
        return self.points[-1].row

    @property
    def case(self) -> Case:
        """The device's case at the largest size."""
        return self.at_last.case.case

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


def earliest(rows: Iterable[BreakEven]) -> BreakEven | None:
    """Of the GPUs of one machine that with the earliest break-even; one without any if none has one."""
    order: dict[VerdictKind, int] = {"all-sizes": 0, "at": 1, "undecided": 2, "no-size": 3}

    def place(row: BreakEven) -> tuple[int, float, bool]:
        verdict: VerdictKind = "at" if row.bracketed else row.verdict
        n = row.size if verdict != "no-size" else None
        return order[verdict], n or row.first, row.verdict != "at"

    return min((row for row in rows if row.at_last.case.device_kind == "gpu"), key=place, default=None)


WIDEST_INTERVAL = 4.0

ContenderKey = tuple[SeriesKey, str, str, str]  # series, device, form and regime, by id


def break_evens(
    run: Run, cases: Sequence[CaseResult], rows: Sequence[Speedup], kind: DeviceKind = "gpu"
) -> tuple[BreakEven, ...]:
    """One verdict per op, other params, dtype, regime and device of a kind, in the order of `rows`."""
    by_device: dict[tuple[object, ...], list[Speedup]] = {}
    for row in rows:
        if row.kind == "headline" and row.case.device_kind == kind:
            case = row.case.case
            by_device.setdefault((case.series, case.regime_id, case.device_id), []).append(row)
    if not by_device:
        return ()
    wanted = {row.case.case.series for row in rows}
    curves = fit(case_series(cases), lambda key: key[0] in wanted)
    baselines: dict[SeriesKey, set[ContenderKey]] = {}
    for row in rows:
        baselines.setdefault(row.case.case.series, set()).add(contender_key(row.baseline.case))
    missing = group_by((result for result in cases if result.time is None), lambda result: result.case.series)
    sides: dict[tuple[ContenderKey, ...], Side] = {}
    return tuple(
        _judge(run, missing.get(series, ()), points, _threshold(curves, points[0], baselines[series], sides))
        for points in by_device.values()
        for series in [points[0].case.case.series]
    )


def contender_key(case: Case) -> ContenderKey:
    """The curve on which the case lies."""
    return case.series, case.device_id, case.form, case.regime_id


def fit_cases(cases: Iterable[CaseResult]) -> dict[ContenderKey, TimeCurve]:
    """The curve of each contender that has a time, each by all of its sizes."""
    return fit(case_series(cases))


def case_series(cases: Iterable[CaseResult]) -> dict[ContenderKey, TimedSizes]:
    """The times of each contender that has one."""
    groups = group_by(
        (
            row
            for row in cases
            if row.time is not None and row.blocks and row.case.variant is None and row.case.shared_with is None
        ),
        lambda row: contender_key(row.case),
    )
    return {key: _series(key, rows) for key, rows in groups.items()}


def _series(key: ContenderKey, rows: Sequence[CaseResult]) -> TimedSizes:
    (_, dtype, params), device_id, form, regime = key
    blocks = {row.case.params["n"]: list(row.blocks.values()) for row in rows}
    moved = {} if params else {row.case.params["n"]: (row.bytes, row.written_bytes) for row in rows}
    return TimedSizes.of(rows[0].device_kind, (dtype, device_id, form, regime), blocks, moved)


def _threshold(
    curves: Mapping[ContenderKey, TimeCurve], row: Speedup, baselines: Iterable[ContenderKey],
    sides: dict[tuple[ContenderKey, ...], Side],
) -> Threshold | None:  # fmt: skip
    """Where the device of `row`, by its fastest implementation, overtakes the fastest of the baselines. `sides`:
    baselines that other rows were compared with."""
    case, regime = row.case.case, row.baseline.case.regime_id
    place = (case.series, case.device_id, case.regime_id)
    ours = [curve for key, curve in curves.items() if (key[0], key[1], key[3]) == place]
    theirs = tuple(
        key for key in sorted(baselines) if key in curves and key[3] == regime and key[1] != case.device_id
    )
    return compare(ours, sides.setdefault(theirs, Side(curves[key] for key in theirs)))


def state(row: Speedup) -> State:
    """A win or a loss when the ratio's interval excludes 1; else a tie."""
    return "win" if row.lo > 1 else "loss" if row.hi < 1 else "tie"


def _judge(
    run: Run, missing: Sequence[CaseResult], rows: Sequence[Speedup], threshold: Threshold | None
) -> BreakEven:
    """The verdict of one device; `missing` are cases of its series without a time."""
    ordered = sorted(rows, key=lambda row: row.case.case.params["n"])
    points = [SizeRatio(row.case.case.params["n"], state(row), row) for row in ordered]
    verdict = _verdict(threshold, points)
    n, low, high = _sizes(threshold, verdict)
    case = ordered[-1].case.case
    mixed = threshold is not None and threshold.mixed and threshold.state != "never"
    return BreakEven(
        op=case.op, dtype=case.dtype, params=dict(beside_size(case.params)), regime=case.regime_id,
        device_id=case.device_id, baseline_id=ordered[-1].baseline.case.device_id, verdict=verdict, n=n, lo=low,
        hi=high, mixed=mixed, first=points[0].n, last=points[-1].n,
        last_ratio=ordered[-1].ratio, points=tuple(points), threshold=threshold,
        reason=_why_undecided(run, missing, points) if verdict == "undecided" else None,
    )  # fmt: skip


def _verdict(threshold: Threshold | None, points: Sequence[SizeRatio]) -> VerdictKind:
    if threshold is None or (points[-1].row.about_equal and threshold.state != "at"):
        return "undecided"
    if threshold.state == "never":
        return "undecided" if threshold.mixed else "no-size"
    if threshold.state == "always":
        return "all-sizes"
    close = threshold.low > 0 and threshold.high <= threshold.low * WIDEST_INTERVAL
    return "at" if threshold.state == "at" and close else "undecided"


def _sizes(threshold: Threshold | None, verdict: VerdictKind) -> tuple[int | None, int | None, int | None]:
    """`n`, `lo` and `hi` as far as they are known; of a side that wins everywhere there are none."""
    if threshold is None or verdict in ("all-sizes", "no-size"):
        return None, None, None
    n, low, high = threshold.n, threshold.low, threshold.high
    return (
        round(n) if 0 < n < math.inf else None,
        math.floor(low) if 0 < low < math.inf else None,
        math.ceil(high) if 0 < high < math.inf else None,
    )


def _why_undecided(run: Run, missing: Sequence[CaseResult], points: Sequence[SizeRatio]) -> UndecidedReason:
    case = points[-1].row.case
    sure = [point.state for point in points if point.state != "tie"]
    if points[-1].state == "loss" and "win" in sure:
        return "loses-again"
    if any("throttled" in (point.row.label, point.row.case.label) for point in points if point.state == "tie"):
        return "throttled"
    if points[-1].row.about_equal:
        return "about-equal"
    if any(point.state == "tie" for point in points):
        return "noise"
    missing = [row for row in missing if _belongs(row, case)]
    if any(row.outcome == "failure" or row.reason in ("timeout", IMPLAUSIBLE) for row in missing):
        return "failed-cases"
    if run.exit_reason == "budget" or any(row.reason == "budget" for row in missing):
        return "budget"
    return "few-sizes"


def _belongs(row: CaseResult, case: CaseResult) -> bool:
    """Whether `row`, of the same series, is a point that this curve, or its baseline, lacks."""
    ours, theirs = row.case, case.case
    return row.device_kind == "cpu" or (ours.device_id, ours.regime_id) == (theirs.device_id, theirs.regime_id)
