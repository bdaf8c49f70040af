"""Break-even: the smallest measured size from which the device wins for all larger ones (section 10)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

from gpubench import stats, threshold
from gpubench.crossing import fresh_crossing
from gpubench.model.case import Case, beside_size
from gpubench.model.result import Run
from gpubench.report.analysis.estimate import IMPLAUSIBLE, implausible_ids
from gpubench.report.analysis.types import (
    BreakEven,
    CaseResult,
    Speedup,
    UndecidedReason,
    VerdictKind,
)

WIDEST_INTERVAL = 4.0
MIN_SAMPLES = 3  # fewer timings on a side cannot tell a win from a tie
MEMORY_SHARE = 0.8  # the planner's guard: a case may take this share of what is free
State = Literal["win", "loss", "tie"]


class Point(msgspec.Struct, frozen=True):
    """One measured size: the headline pair's ratio, and what it says with confidence."""

    n: int
    ratio: stats.Interval
    state: State
    row: Speedup


def break_evens(run: Run, cases: Sequence[CaseResult], rows: Sequence[Speedup]) -> tuple[BreakEven, ...]:
    """One verdict per op, other params, dtype, regime and GPU device, in the order of `rows`."""
    curves: dict[tuple[object, ...], list[Speedup]] = {}
    for row in rows:
        if row.kind == "headline" and row.case.device_kind in ("gpu", "fake"):
            curves.setdefault(_curve(row.case.case), []).append(row)
    doubtful = implausible_ids(run, ("estimate",)) if curves else frozenset()
    doubtful |= {row.id for row in cases if row.reason == IMPLAUSIBLE}
    return tuple(_judge(run, cases, curve, doubtful) for curve in curves.values())


def _curve(case: Case) -> tuple[object, ...]:
    return (*case.series, case.regime_id, case.device_id)


def state(row: Speedup) -> State:
    """A win or a loss when the ratio's interval excludes 1; else a tie.

    An unstable or throttled pair takes no headline: it counts only if every sample of one side beats every
    sample of the other, which no label can put in doubt.
    """
    if min(row.baseline.sample_count, row.case.sample_count) < MIN_SAMPLES:
        return "tie"
    low, high = row.ratio.low, row.ratio.high
    if not row.headline:
        common = row.baseline.sessions.keys() & row.case.sessions.keys()
        base = [value for i in common for value in row.baseline.sessions[i]]
        case = [value for i in common for value in row.case.sessions[i]]
        low, high = min(base) / max(case), max(base) / min(case)
    return "win" if low > 1 else "loss" if high < 1 else "tie"


def _judge(
    run: Run, cases: Sequence[CaseResult], curve: Sequence[Speedup], doubtful: Collection[str]
) -> BreakEven:
    ordered = sorted(curve, key=lambda row: row.case.case.params["n"])
    points = [Point(row.case.case.params["n"], row.ratio, state(row), row) for row in ordered]
    verdict, low, high = _verdict(run, points)
    crossings = tuple(round(n) for n in _crossings(points))
    n: float | None = None
    fresh = None if verdict == "unstable" else _fresh(run, points, doubtful)
    if fresh is not None:
        verdict, (n, low, high), crossings = "at", fresh, (round(fresh.n),)
    elif verdict == "at" and low is not None and high is not None:
        n = _root(points, low, high)
        low, high = min(low, n * (1 - threshold.NARROWEST)), max(high, n * (1 + threshold.NARROWEST))
    case = ordered[-1].case
    reason = _why_undecided(run, cases, case, points) if verdict == "undecided" else None
    return BreakEven(
        op=case.case.op, dtype=case.case.dtype, params=dict(beside_size(case.case.params)),
        regime=case.case.regime, calls=case.case.calls, device_id=case.case.device_id,
        device_kind=case.device_kind, baseline_id=ordered[-1].baseline.case.device_id,
        verdict=verdict, first=points[0].n, last=points[-1].n,
        last_ratio=points[-1].ratio, last_label=points[-1].row.label,
        n=None if n is None else round(n),
        low=None if low is None else math.floor(low), high=None if high is None else math.ceil(high),
        crossings=crossings if verdict in ("at", "unstable") else (), reason=reason,
    )  # fmt: skip


def _verdict(run: Run, points: Sequence[Point]) -> tuple[VerdictKind, float | None, float | None]:
    """The verdict, and the last confident loss and the first confident win where they are a bracket.

    A bracket wider than WIDEST_INTERVAL decides nothing, but it is still known.
    """
    sure = [point for point in points if point.state != "tie"]
    changes = [(a, b) for a, b in itertools.pairwise(sure) if a.state != b.state]
    if len(changes) > 1 or (changes and changes[0][1].state == "loss"):
        return "unstable", None, None  # a device that wins and then loses again has no single threshold either
    if len(points) < 2 or not sure or points[-1].state == "tie":
        return "undecided", None, None
    if changes:
        low, high = changes[0][0].n, changes[0][1].n
        return ("at" if high <= low * WIDEST_INTERVAL else "undecided"), low, high
    if points[0].state == "tie":
        return "undecided", None, None
    if sure[0].state == "win":
        return "always", None, None
    return _losing(run, points), None, None


def _fresh(run: Run, points: Sequence[Point], doubtful: Collection[str]) -> threshold.Crossing | None:
    """The crossing by the timings made for it, where they settle it.

    None if there are none, if an end is open or lies beyond the measured sizes, if the interval is too wide, or if a
    size outside it says otherwise with confidence. Then the sizes decide as they do without them.
    """
    row = points[-1].row
    found = fresh_crossing(run, row.baseline.case, row.case.case, doubtful)
    if found is None or found.low is None or found.high is None:
        return None
    against = any(
        (point.state == "loss" and point.n > found.high) or (point.state == "win" and point.n < found.low)
        for point in points
    )
    inside = points[0].n * (1 - threshold.NARROWEST) <= found.low and found.high <= points[-1].n * (
        1 + threshold.NARROWEST
    )
    return found if inside and not against and found.high <= found.low * WIDEST_INTERVAL else None


def _losing(run: Run, points: Sequence[Point]) -> VerdictKind:
    """Loses everywhere: will a larger size help? Only a rise beyond the noise counts, and if it would fit."""
    if len(points) < 3:
        return "undecided"
    a, b, c = points[-3:]
    rising = a.ratio.estimate < b.ratio.estimate < c.ratio.estimate and a.ratio.high < c.ratio.low
    root = stats.line_root(
        [math.log(point.n) for point in (a, b, c)], [math.log(point.ratio.estimate) for point in (a, b, c)]
    )
    if not rising or root is None:
        return "never"
    return "beyond-limit" if _fits(run, points, root) else "never"


def _fits(run: Run, points: Sequence[Point], log_n: float) -> bool:
    """Whether the case at exp(log_n) would fit into the device; unknown memory contradicts nothing."""
    device_id = points[-1].row.case.case.device_id
    device = next((device for device in run.devices if device.id == device_id), None)
    limit = (device.usable_bytes or device.memory_bytes) if device else None
    needs = [(point.n, point.row.case.bytes) for point in points if point.row.case.bytes > 0]
    sizes = [(math.log(n), math.log(need)) for n, need in needs]
    if not limit or len(sizes) < 2:
        return True
    intercept, slope = stats.fit_line(*zip(*sizes[-2:], strict=True))
    return intercept + slope * log_n <= math.log(limit * MEMORY_SHARE)


def _crossings(points: Sequence[Point]) -> list[float]:
    """The size at each confident change of side, interpolated between the sure sizes around it."""
    sure = [point for point in points if point.state != "tie"]
    found = []
    for a, b in itertools.pairwise(sure):
        if a.state != b.state:
            found.append(_root(points, a.n, b.n))
    return found


def _root(points: Sequence[Point], low: float, high: float) -> float:
    """The last place in [low, high] where the log-log curve through the measured ratios crosses 1.

    The ends count with the side that they are sure of, so a crossing always lies between them.
    """
    inside = [point for point in points if low <= point.n <= high]
    found = stats.last_crossing(
        [math.log(point.n) for point in inside], [math.log(point.ratio.estimate) for point in inside]
    )
    return math.sqrt(low * high) if found is None else math.exp(found)


def _why_undecided(
    run: Run, cases: Sequence[CaseResult], case: CaseResult, points: Sequence[Point]
) -> UndecidedReason:
    if any("throttled" in (point.row.label, point.row.case.label) for point in points if point.state == "tie"):
        return "throttled"
    if any(point.state == "tie" for point in points):
        return "noise"
    missing = [row for row in cases if row.time is None and _belongs(row, case)]
    if any(row.outcome == "failure" or row.reason in ("timeout", IMPLAUSIBLE) for row in missing):
        return "failed-cases"
    if run.exit_reason == "budget" or any(row.reason == "budget" for row in missing):
        return "budget"
    return "few-sizes"


def _belongs(row: CaseResult, case: CaseResult) -> bool:
    """Whether `row` is a point that this curve, or its baseline, lacks."""
    ours, theirs = row.case, case.case
    same = ours.series == theirs.series
    on_curve = (ours.device_id, ours.regime_id) == (theirs.device_id, theirs.regime_id)
    return same and (on_curve or row.device_kind == "cpu")
