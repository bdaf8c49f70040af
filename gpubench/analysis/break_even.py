"""Break-even: the smallest measured size from which the device wins for all larger ones (docs/breakeven.md)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

import msgspec

from gpubench import break_even, stats
from gpubench.analysis.estimate import IMPLAUSIBLE, CaseResult, implausible_ids
from gpubench.analysis.speedup import Speedup
from gpubench.break_even import fresh_crossing
from gpubench.model.case import Case, SeriesKey, beside_size
from gpubench.model.result import DeviceKind, Measurement, Outcome, Run

VerdictKind = Literal["at", "all-sizes", "no-size", "undecided"]
# `rising` is no doubt: the device loses at every measured size, and its ratio rises still.
UndecidedReason = Literal[
    "noise", "few-sizes", "throttled", "failed-cases", "budget", "loses-again", "rising", "flat", "about-equal"
]
State = Literal["win", "loss", "tie"]


class SizeRatio(msgspec.Struct, frozen=True):
    """One measured size: the headline pair's ratio, and what it says with confidence."""

    n: int
    state: State
    row: Speedup


class BreakEvenRow(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest size from which the device wins at all larger ones that were measured, up to `last`. `n`, `lo` and
    `hi` are sizes; `crossings` are all sizes at which the sides change, of which `n` is the last.

    `all-sizes`, `no-size`: it wins, or loses, at every size measured, from `first` to `last`.
    `lo` and `hi` without `n`: undecided, but it loses at `lo` and wins at `hi`. `text` says the verdict as tables do
    (`report/sections/answer_text.py`).
    """

    source: int
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
    crossings: tuple[int, ...]
    first: int
    last: int
    last_ratio: float
    reason: UndecidedReason | None
    text: str = ""


class BreakEven(BreakEvenRow, frozen=True, kw_only=True):
    """A row with what was measured at each size."""

    points: tuple[SizeRatio, ...]

    @property
    def at_last(self) -> Speedup:
        return self.points[-1].row

    @property
    def mixed(self) -> bool:
        """Whether it wins and loses by turns below the threshold."""
        return self.verdict == "at" and len(self.crossings) > 1

    @property
    def case(self) -> Case:
        """The device's case at the largest size."""
        return self.at_last.case.case


def earliest(rows: Iterable[BreakEven]) -> BreakEven | None:
    """Of the GPUs of one machine that with the earliest break-even; one without any if none has one.

    A bracket stands where its middle is, as a threshold does.
    """
    order: dict[VerdictKind, int] = {"all-sizes": 0, "at": 1, "undecided": 2, "no-size": 3}

    def place(row: BreakEven) -> tuple[int, float, bool]:
        if bracketed(row):
            return order["at"], math.sqrt((row.lo or 1) * (row.hi or 1)), True
        rises = row.reason == "rising"
        return order[row.verdict], row.n or (0 if rises else row.first), row.verdict != "at"

    return min((row for row in rows if row.at_last.case.device_kind == "gpu"), key=place, default=None)


def bracketed(row: BreakEven) -> bool:
    """Undecided, but the device is known to lose at `low` and to win at `high`."""
    return row.verdict == "undecided" and row.lo is not None and row.hi is not None


WIDEST_INTERVAL = 4.0
# High / low of a threshold that is known well.
CLOSE_INTERVAL = 2.25
# Runs from this protocol on take several blocks at sizes around each crossing, chosen by what they saw before.
SEARCHED_PROTOCOL = 2
MIN_SAMPLES = 3
# Of two timings the work of another program can double one, and nothing shows which: so they tell a win from a tie
# where the interval lies beyond twice as fast (docs/breakeven.md). One timing tells nothing.
FEW_SAMPLES, FEW_MARGIN = 2, 2.0
MEMORY_SHARE = 0.8  # the planner's guard: a case may take this share of what is free


def break_evens(
    run: Run, cases: Sequence[CaseResult], rows: Sequence[Speedup], kind: DeviceKind = "gpu"
) -> tuple[BreakEven, ...]:
    """One verdict per op, other params, dtype, regime and device of a kind, in the order of `rows`."""
    curves: dict[tuple[object, ...], list[Speedup]] = {}
    for row in rows:
        if row.kind == "headline" and row.case.device_kind == kind:
            curves.setdefault(_curve_key(row.case.case), []).append(row)
    doubtful = implausible_ids(run, ("estimate",)) if curves else frozenset()
    doubtful |= {row.id for row in cases if row.reason == IMPLAUSIBLE}
    # A curve asks for its own series alone: asking all cases for every curve takes minutes of a large file.
    timed: dict[SeriesKey, list[Outcome]] = {}
    for outcome in run.outcomes:
        if isinstance(outcome, Measurement) and any(block.phase == "estimate" for block in outcome.blocks):
            timed.setdefault(outcome.case.series, []).append(outcome)
    missing: dict[SeriesKey, list[CaseResult]] = {}
    for case in cases:
        if case.time is None:
            missing.setdefault(case.case.series, []).append(case)
    return tuple(
        _judge(
            msgspec.structs.replace(run, outcomes=timed.get(series, [])),
            missing.get(series, ()),
            curve,
            doubtful,
        )
        for curve in curves.values()
        for series in [curve[0].case.case.series]
    )


def _curve_key(case: Case) -> tuple[object, ...]:
    return (*case.series, case.regime_id, case.device_id)


def state(row: Speedup) -> State:
    """A win or a loss when the ratio's interval excludes 1, and with few samples twice as fast, too; else a tie.

    An unstable or throttled pair takes no headline: it counts only if besides every sample of one side beats every
    sample of the other.
    """
    samples = min(row.baseline.sample_count, row.case.sample_count)
    if samples < FEW_SAMPLES:
        return "tie"
    margin = 1 if samples >= MIN_SAMPLES else FEW_MARGIN
    low, high = row.lo, row.hi
    if not row.headline:
        common = row.baseline.sessions.keys() & row.case.sessions.keys()
        base = [value for i in common for value in row.baseline.sessions[i]]
        case = [value for i in common for value in row.case.sessions[i]]
        low, high = min(low, min(base) / max(case)), max(high, max(base) / min(case))
    return "win" if low > margin else "loss" if high * margin < 1 else "tie"


def _judge(
    run: Run, missing: Sequence[CaseResult], curve: Sequence[Speedup], doubtful: Collection[str]
) -> BreakEven:
    """The verdict of one curve; `run` holds the fresh timings of its series, `missing` are its cases without a time."""
    ordered = sorted(curve, key=lambda row: row.case.case.params["n"])
    points = [SizeRatio(row.case.case.params["n"], state(row), row) for row in ordered]
    crossings = _crossings(points)
    verdict, low, high = _verdict(points)
    n: float | None = None
    fresh = None if len(crossings) > 1 or points[-1].state == "loss" else _fresh(run, points, doubtful)
    local = _local(run, points) if fresh is None and len(crossings) <= 1 else None
    if local is not None and local.crossing is not None:
        fresh = _settled(points, local.crossing)
    wide = fresh is None or not fresh.low or not fresh.high or fresh.high > CLOSE_INTERVAL * fresh.low
    flat = local is not None and wide and local.slope < break_even.FLAT
    if fresh is not None and not flat:
        verdict, n, low, high, crossings = "at", fresh.n, fresh.low, fresh.high, [fresh.n]
    elif flat and points[-1].state != "loss":
        verdict = "undecided"
        low, high = (low, high) if fresh is None else (fresh.low, fresh.high)
    elif verdict == "at" and low is not None and high is not None:
        n = crossings[-1]
        low, high = min(low, n * (1 - break_even.NARROWEST)), max(high, n * (1 + break_even.NARROWEST))
    if verdict == "undecided" and low is not None and high is not None and local is not None:
        low, high = _tightened(low, high, local.crossing)
    tied = points[-1].row.about_equal
    verdict = "undecided" if verdict == "no-size" and tied else verdict
    case, reason = (
        ordered[-1].case,
        "flat" if flat and verdict == "undecided" and not tied else _reason(run, missing, verdict, points),
    )
    return BreakEven(
        source=0, op=case.case.op, dtype=case.case.dtype, params=dict(beside_size(case.case.params)),
        regime=case.case.regime_id, device_id=case.case.device_id, baseline_id=ordered[-1].baseline.case.device_id,
        verdict=verdict, first=points[0].n, last=points[-1].n, last_ratio=ordered[-1].ratio, points=tuple(points),
        n=None if n is None else round(n),
        lo=None if low is None else math.floor(low), hi=None if high is None else math.ceil(high),
        crossings=tuple(round(n) for n in crossings) if n is not None or reason == "loses-again" else (),
        reason=reason,
    )  # fmt: skip


def _tightened(low: float, high: float, found: break_even.Crossing | None) -> tuple[float, float]:
    """What lies between the sure sizes and, too wide for a threshold, inside the interval of the fitted one."""
    if found is None:
        return low, high
    ends = max(low, found.low or low), min(high, found.high or high)
    return ends if ends[0] < ends[1] else (low, high)


def _reason(
    run: Run, missing: Sequence[CaseResult], verdict: VerdictKind, points: Sequence[SizeRatio]
) -> UndecidedReason | None:
    if verdict == "no-size":
        return "rising" if _rising(run, points) else None
    return _why_undecided(run, missing, points) if verdict == "undecided" else None


def _verdict(points: Sequence[SizeRatio]) -> tuple[VerdictKind, float | None, float | None]:
    """The verdict, and the last confident loss and the first confident win after it where they are a bracket.

    A bracket wider than WIDEST_INTERVAL decides nothing, but it is still known. A tie leaves open where the side
    changes; nothing is said of a side that only ties hold.
    """
    sure = [point for point in points if point.state != "tie"]
    changes = [(a, b) for a, b in itertools.pairwise(sure) if a.state != b.state]
    if not sure or points[-1].state == "tie" or (changes and sure[-1].state == "loss"):
        return "undecided", None, None  # a device that loses again at the end has no size from which it wins
    if changes:
        low, high = changes[-1][0].n, changes[-1][1].n
        return ("at" if high <= low * WIDEST_INTERVAL else "undecided"), low, high
    if points[0].state == "tie":
        return "undecided", None, None
    return ("all-sizes" if sure[0].state == "win" else "no-size"), None, None


def _fresh(run: Run, points: Sequence[SizeRatio], doubtful: Collection[str]) -> break_even.Crossing | None:
    """The crossing by the timings made for it, where they settle it.

    None if there are none, if an end is open or lies beyond the measured sizes, if the interval is too wide, or if a
    size outside it says otherwise with confidence. Then the sizes decide as they do without them.
    """
    # The fastest CPU at the largest size need not be the one at the crossing.
    baselines = [point.row.baseline.case for point in points]
    return _settled(points, fresh_crossing(run, baselines, points[-1].row.case.case, doubtful))


def _local(run: Run, points: Sequence[SizeRatio]) -> break_even.Local | None:
    """The crossing by the very blocks that chose the sizes; None for a file of an engine that took too few of them."""
    if run.settings.protocol < SEARCHED_PROTOCOL:
        return None
    timings = {
        point.n: {
            session: (point.row.baseline.blocks[session], point.row.case.blocks[session])
            for session in point.row.baseline.blocks.keys() & point.row.case.blocks.keys()
        }
        for point in points
    }
    nearest = min(points, key=lambda point: abs(math.log(point.row.ratio)))
    return break_even.local_crossing(timings, (nearest.row.baseline.prior, nearest.row.case.prior))


def _settled(points: Sequence[SizeRatio], found: break_even.Crossing | None) -> break_even.Crossing | None:
    """The crossing where it settles the verdict."""
    if found is None or found.low is None or found.high is None:
        return None
    against = any(
        (point.state == "loss" and point.n > found.high) or (point.state == "win" and point.n < found.low)
        for point in points
    )
    inside = points[0].n * (1 - break_even.NARROWEST) <= found.low and found.high <= points[-1].n * (
        1 + break_even.NARROWEST
    )
    return found if inside and not against and found.high <= found.low * WIDEST_INTERVAL else None


def _rising(run: Run, points: Sequence[SizeRatio]) -> bool:
    """Loses everywhere: will a larger size help? Only a rise beyond the noise counts, and if it would fit."""
    if len(points) < 3:
        return False
    a, b, c = points[-3:]
    root = stats.line_root(
        [math.log(point.n) for point in (a, b, c)], [math.log(point.row.ratio) for point in (a, b, c)]
    )
    rising = a.row.ratio < b.row.ratio < c.row.ratio and a.row.hi < c.row.lo
    return rising and root is not None and _fits(run, points, root)


def _fits(run: Run, points: Sequence[SizeRatio], log_n: float) -> bool:
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


def _crossings(points: Sequence[SizeRatio]) -> list[float]:
    """The size at each confident change of side, interpolated between the sure sizes around it."""
    sure = [point for point in points if point.state != "tie"]
    found = []
    for a, b in itertools.pairwise(sure):
        if a.state != b.state:
            found.append(_root(points, a.n, b.n))
    return found


def _root(points: Sequence[SizeRatio], low: float, high: float) -> float:
    """The last place in [low, high] where the log-log curve through the measured ratios crosses 1.

    The ends count with the side that they are sure of, so a crossing always lies between them.
    """
    inside = [point for point in points if low <= point.n <= high]
    found = stats.last_crossing(
        [math.log(point.n) for point in inside], [math.log(point.row.ratio) for point in inside]
    )
    return math.sqrt(low * high) if found is None else math.exp(found)


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
