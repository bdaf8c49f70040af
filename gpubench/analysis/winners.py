"""The winners of a run. `ratio_map` returns the winner at each size, for each op, GPU and situation (the map of
the run). `situations` returns the winner in each situation, which is the evidence for a mode.

The map has a lane for each op and dtype (and params other than the size). A lane has a strip for each GPU and
situation. The ratio at a size is that of the curves of both sides; outside the curves it is unknown. The mode
itself is decided by gpubench/detect/recommend.py.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from gpubench.analysis.analyse import Analysis, derive_once
from gpubench.analysis.answer import AnswerRow, answer, answer_rows, op_cases
from gpubench.analysis.estimate import IMPLAUSIBLE, CaseResult
from gpubench.analysis.hybrid import SharedCall, shared_calls
from gpubench.analysis.machine import experiment
from gpubench.analysis.samples import empty_launch_s
from gpubench.analysis.speedup import BreakEven, about_equal, earliest
from gpubench.analysis.thresholds import (
    ALWAYS,
    AnswerCell,
    Gain,
    SizeUnit,
    declared_sizes,
    range_text,
    size_text,
    size_unit_of,
    threshold,
    threshold_text,
)
from gpubench.base import group_by
from gpubench.curves import TAIL, Margin, stats
from gpubench.result.case import MAPPED, QUEUED, WAITED, CellKey, SeriesKey, beside_size
from gpubench.result.machine import (
    Measured,
    MeasuredBreakEven,
    MeasuredSituation,
    MeasuredSplit,
    Recommendation,
)
from gpubench.result.run import Run

FULL = 32.0  # the ratio from which on the colour has its full strength
STRAIGHT = math.log(1.05)  # the largest error of the straight pieces that draw a curve, as ln(ratio)
MOST_DEVICES = 3  # the most devices that share a lane

StretchKind = Literal["known", "unsure", "unmeasured", "failed"]
StripKey = tuple[str, str]  # the ids of a device and a regime


class MapPoint(msgspec.Struct, frozen=True):
    """A point of the map: a size and its ratio."""

    size: float  # the size in elements (`AnswerRow.elements`)
    ratio: float  # the speedup; above 1 the GPU is faster


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a strip between two sizes."""

    # `known`: the faster side is sure; `unsure`: either side may be faster; `unmeasured`: a side has no time there;
    # `failed`: the device's cases there failed or gave wrong results
    kind: StretchKind
    start: float  # the smallest size, in elements
    end: float  # the largest size, in elements
    points: tuple[MapPoint, ...] = ()  # the ends of straight pieces in log-log; empty if nothing is known

    def ratio_at(self, size: float) -> float | None:
        """Return the ratio at a size in elements, or None if it is unknown."""
        for a, b in itertools.pairwise(self.points):
            if a.size <= size <= b.size:
                share = math.log(size / a.size) / math.log(b.size / a.size)
                inside: float = a.ratio * (b.ratio / a.ratio) ** share
                return min(max(inside, min(a.ratio, b.ratio)), max(a.ratio, b.ratio))
        return None


class Strip(msgspec.Struct, frozen=True, kw_only=True):
    """One op on one device in one situation."""

    cell: AnswerCell  # the size from which the device pays
    points: tuple[MapPoint, ...]  # the sizes at which both sides were timed
    stretches: tuple[Stretch, ...]  # the parts of the strip, from the smallest size to the largest

    def ratio_between(self, low: float, high: float) -> float | None:
        """Return the ratio in the geometric middle of `low` and `high`, or else at a measured size between
        them. Returns None if neither is known."""
        middle = math.sqrt(low * high)
        curve = (part.ratio_at(middle) for part in self.stretches if part.start <= middle <= part.end)
        inside = (point.ratio for point in self.points if low <= point.size < high)
        return next((ratio for ratio in itertools.chain(curve, inside) if ratio is not None), None)


class MapLane(msgspec.Struct, frozen=True, kw_only=True):
    """One op and dtype, with a strip for each device and situation."""

    row: AnswerRow  # the row of the answer with its name and the unit of its size
    start: float  # the smallest size, in elements
    end: float  # the largest size, in elements
    strips: dict[StripKey, Strip]  # the strips, by device and regime id


class RatioMap(msgspec.Struct, frozen=True, kw_only=True):
    """The map of a run: all its lanes."""

    lanes: tuple[MapLane, ...] = ()  # the lanes, the earliest break-even first
    shown: tuple[str, ...] = ()  # the ids of the devices that are shown at first
    situations: tuple[str, ...] = ()  # the ids of the regimes that are shown at first
    low: float = 1.0  # the low end of the common axis, in elements
    high: float = 1.0  # the high end of the common axis, in elements

    def position(self, size: float) -> float:
        """Return the place of a size on the axis, from 0 at the low end to 1 at the high end."""
        return math.log(size / self.low) / math.log(self.high / self.low) if self.high > self.low else 0.5


def tint(ratio: float) -> float:
    """Return the colour strength of a ratio, from -1 (CPU) over 0 (grey) to 1 (GPU)."""
    # a logarithm, because a step would look like an edge
    return max(-1.0, min(1.0, math.log(ratio) / math.log(FULL)))


@derive_once
def fastest_map(analysis: Analysis) -> RatioMap:
    """Return the map of a run, with its fastest GPU backend shown first."""
    return ratio_map(analysis)


def ratio_map(analysis: Analysis, backend: str | None = None) -> RatioMap:
    """Return the map of all GPUs of a run. It has no lanes if no GPU was compared with a CPU. The fastest
    backend is shown first, or `backend` if it is given."""
    summary, cases = answer(analysis, backend=backend), op_cases(analysis)
    curves = {curve.case.cell: curve for curve in analysis.break_even}
    devices = tuple(dict.fromkeys(curve.device_id for curve in analysis.break_even))
    rows = [
        item
        for device in devices
        for item in answer_rows(analysis.break_even, cases, device)
        if not item.on_host
    ]
    broken = [case for case in cases if case.outcome == "failure" or case.reason == IMPLAUSIBLE]
    failed = {
        cell: {case.n for case in same} for cell, same in group_by(broken, lambda case: case.case.cell).items()
    }
    lanes = []
    for series, same in group_by(rows, lambda case: (case.op, case.dtype, beside_size(case.params))).items():
        lane = _lane(series, same, curves, failed)
        lanes += [lane] if lane is not None else []
    if not lanes:
        return RatioMap()
    # GPUs that do not differ are one row of the answer.
    shown = tuple(dict.fromkeys(item.device_id for item in summary.rows))[:MOST_DEVICES]
    lanes.sort(key=lambda lane: _place(lane, shown, summary.regimes or (WAITED,)))
    return RatioMap(
        lanes=tuple(lanes), shown=shown, situations=summary.regimes, low=min(lane.start for lane in lanes),
        high=max(lane.end for lane in lanes),
    )  # fmt: skip


def _lane(
    series: SeriesKey, rows: Sequence[AnswerRow], curves: Mapping[CellKey, BreakEven],
    failed: Mapping[CellKey, set[int]],
) -> MapLane | None:  # fmt: skip
    """Return the lane of a series, or None if neither the declaration of the op nor a measurement gives
    its sizes."""
    first = rows[0]
    ladder = declared_sizes(first.op, first.params)
    sizes = [gain.n for case in rows for cell in case.cells.values() for gain in cell.gains]
    sizes += [] if ladder is None else [ladder.low, ladder.high]
    if not sizes:
        return None
    lane = MapLane(row=first, start=first.elements(min(sizes)), end=first.elements(max(sizes)), strips={})
    for case in rows:
        for regime, cell in case.cells.items():
            key = (series, case.device_id, regime)
            points = tuple(MapPoint(case.elements(gain.n), gain.ratio) for gain in cell.gains)
            threshold = curves[key].threshold if key in curves else None
            bad = {float(case.elements(n)) for n in failed.get(key, ())}
            stretches = _stretches(lane, cell, points, threshold.margins if threshold else (), bad)
            lane.strips[case.device_id, regime] = Strip(cell=cell, points=points, stretches=tuple(stretches))
    return lane


def _stretches(
    lane: MapLane, cell: AnswerCell, points: Sequence[MapPoint], margins: Sequence[Margin], failed: set[float]
) -> Iterator[Stretch]:
    """Yield the stretches of a strip without gaps, from the start of the lane to its end."""
    bad = failed - {point.size for point in points}
    if not points or not margins:
        hatch: StretchKind = "failed" if cell.kind in ("wrong", "failed") or bad else "unmeasured"
        yield Stretch(kind=hatch, start=lane.start, end=lane.end)
        return
    power = math.log(lane.row.elements(2)) / math.log(2)
    curve = [(MapPoint(math.exp(power * margin.x), math.exp(margin.log_ratio)), margin) for margin in margins]
    inside = [point.size for point in points if curve[0][0].size < point.size < curve[-1][0].size]
    measured = [curve[0][0].size, *inside, curve[-1][0].size]
    broken = [(a, b) for a, b in itertools.pairwise(measured) if any(a < size < b for size in bad)]

    def kind(pair: tuple[tuple[MapPoint, Margin], tuple[MapPoint, Margin]]) -> StretchKind:
        (a, _), (b, margin) = pair
        if any(low < b.size and a.size < high for low, high in broken):
            return "failed"
        return "unsure" if TAIL < margin.wins < 1 - TAIL else "known"

    yield from _gap(lane.start, curve[0][0].size, bad)
    for name, pairs in itertools.groupby(itertools.pairwise(curve), key=kind):
        part = list(pairs)
        line = [part[0][0][0], *(point for _, (point, _) in part)]
        drawn = () if name == "failed" else tuple(_straighten(line))
        yield Stretch(kind=name, start=line[0].size, end=line[-1].size, points=drawn)
    yield from _gap(curve[-1][0].size, lane.end, bad)


def _gap(start: float, end: float, failed: Iterable[float]) -> Iterator[Stretch]:
    """Yield a stretch for a part of a lane without a curve, unless the part is empty."""
    if start < end * (1 - 1e-9):
        bad = any(start <= size <= end for size in failed)
        yield Stretch(kind="failed" if bad else "unmeasured", start=start, end=end)


def _straighten(line: Sequence[MapPoint]) -> list[MapPoint]:
    """Return the corners of a polyline within STRAIGHT of all points of `line` (Douglas and Peucker 1973)."""
    first, last = line[0], line[-1]
    whole = Stretch(kind="known", start=first.size, end=last.size, points=(first, last))
    far = [abs(math.log(point.ratio / (whole.ratio_at(point.size) or point.ratio))) for point in line]
    worst = max(range(len(line)), key=far.__getitem__)
    if far[worst] <= STRAIGHT:
        return [first, last]
    return [*_straighten(line[: worst + 1])[:-1], *_straighten(line[worst:])]


def _place(lane: MapLane, shown: Sequence[str], regimes: Sequence[str]) -> tuple[object, ...]:
    """Return the sort key of a lane: its cells by regime, then the op, dtype and params."""
    steps = []
    for regime in regimes:
        strips = [lane.strips[device, regime] for device in shown if (device, regime) in lane.strips]
        steps.append(_step(lane, strips[0].cell) if strips else NOWHERE)
    return (*steps, lane.row.op, lane.row.dtype, sorted(lane.row.params.items()))


NOWHERE = (4, 0.0)  # the key of a cell without a number, which comes last


def _step(lane: MapLane, cell: AnswerCell) -> tuple[int, float]:
    """Return the sort key of a cell: first where the GPU wins at all sizes, then break-evens, cells without a
    verdict, those where the GPU loses at all sizes, and failures."""
    match cell.kind:
        case "all-sizes" | "below":
            return 0, cell.high or 0
        case "at" | "range":
            return 1, lane.row.elements(cell.n or 0)
        case "wrong" | "failed":
            return NOWHERE
    # open cells and losses by the gain, the largest first
    return 3 if cell.kind in ("no-size", "above") else 2, -cell.gain.ratio if cell.gain else 0.0


# The situations by which the mode is chosen. The last one, queued calls, does not count: a program that queues its
# calls knows so.
SITUATIONS = (WAITED, ALWAYS, MAPPED, QUEUED)
# If a GPU loses with a call shorter than this many empty launches, it had too little work, and a larger size
# may give another result.
FEWEST_LAUNCHES = 10
ANOTHER_GPU = "another-gpu-faster"
Outcome = Literal["gpu", "equal", "unsure", "cpu"]
_BEST_FIRST: tuple[Outcome, ...] = ("gpu", "equal", "unsure", "cpu")


class OpOutcome(NamedTuple):
    """The winner of an op in one situation on one GPU, at the largest size."""

    regime: str  # the id of the situation's regime
    winner: Outcome  # the side that wins; `equal` and `unsure` name neither
    op: AnswerRow  # the row of the answer
    cell: AnswerCell  # the cell of the row for the situation
    gain: Gain  # the gain at the largest size
    small: bool  # whether the GPU lost because it had too little work


@derive_once
def evidence(analysis: Analysis) -> Measured | None:
    """Return the evidence for choosing a mode, from all cases of the file, shown or not. Returns None for an
    experiment, and for a run that neither compares a CPU with a GPU nor has a shared call."""
    run, whole = analysis.run, analysis.whole
    if experiment(run):
        return None
    curves, compared = whole.break_even, whole.compared
    judged = situations(run, compared, curves)
    shared = [_shared_call(call, compared) for call in shared_calls(whole)]
    if not judged and not shared:
        return None
    waited = next((situation.ratio for situation in judged if situation.regime == WAITED), None)
    groups = group_by(curves, lambda curve: (curve.op, _words(curve.params), curve.dtype, curve.regime))
    best = (earliest(group) for group in groups.values())
    return Measured(
        date=run.started_at, s=round(1 / waited, 6) if waited else None, situations=judged,
        break_even=[_break_even(curve) for curve in best if curve], splits=shared,
    )  # fmt: skip


def why_silent(run: Run) -> str:
    """Return why a run has no evidence for a mode: it is an experiment, or it compares no GPU with a CPU."""
    odd = ", ".join(f"{name} {value}" for name, value in experiment(run).items())
    return f"it is an experiment ({odd})" if odd else "it compares no GPU with a CPU"


def recommend_mode(analysis: Analysis) -> Recommendation | None:
    """Return the mode for the machine of the run by the evidence, or else what `detect` recommended when the
    run started. Returns None if there is neither."""
    # Here, as `advise` loads this package too, and needs no detection.
    from gpubench.detect.recommend import decide

    run, measured = analysis.run, evidence(analysis)
    advice = run.machine.recommendation
    gpus = [device.gpu_id or device.id for device in run.devices if device.kind == "gpu"]
    decided = None if measured is None else decide(run.machine, advice, measured, list(dict.fromkeys(gpus)))
    return decided or (advice if advice.reasons else None)


def situations(
    run: Run, compared: Sequence[CaseResult], curves: Sequence[BreakEven]
) -> list[MeasuredSituation]:
    """Return which side wins in each of SITUATIONS that has times of a CPU and a GPU. Each op counts with the
    GPU that does best. `curves` are the break-evens of the cases `compared`."""
    outcomes = [
        _outcome(run, regime, op, cell, cell.gain)
        for device_id in dict.fromkeys(curve.device_id for curve in curves)
        for op in answer_rows(curves, compared, device_id)
        for regime, cell in op.cells.items()
        if cell.gain is not None
    ]
    by_op = group_by(outcomes, lambda it: (it.regime, it.op.op, it.op.dtype, _words(it.op.params)))
    best = [min(same, key=lambda it: (_BEST_FIRST.index(it.winner), -it.gain.ratio)) for same in by_op.values()]
    by_regime = group_by(best, lambda outcome: outcome.regime)
    dtypes = {outcome.op.dtype for outcome in best}
    return [
        _situation(regime, by_regime[regime], dtypes_shown=len(dtypes) > 1)
        for regime in SITUATIONS
        if regime in by_regime
    ]


def _outcome(run: Run, regime: str, op: AnswerRow, cell: AnswerCell, gain: Gain) -> OpOutcome:
    idle_s = FEWEST_LAUNCHES * empty_launch_s(run, op.device_id)
    small = gain.winner == "cpu" and not gain.top and gain.gpu_s < idle_s
    winner: Outcome = "unsure" if small or gain.winner == "noisy" else gain.winner
    return OpOutcome(regime, winner, op, cell, gain, small)


def _situation(regime: str, outcomes: Sequence[OpOutcome], *, dtypes_shown: bool) -> MeasuredSituation:
    """Return the judgement of a situation, by the geometric mean over the ops with a sure winner."""
    count = Counter(outcome.winner for outcome in outcomes)
    sure = [outcome for outcome in outcomes if outcome.winner != "unsure"]
    judged = MeasuredSituation(
        regime=regime, gpu=count["gpu"], cpu=count["cpu"], equal=count["equal"], unsure=count["unsure"]
    )
    # no winner if more than half of the ops have none
    if len(sure) < count["unsure"] or not sure:
        small = any(outcome.small for outcome in outcomes)
        note = "the sizes are too small to tell" if small else "the times are too noisy to tell"
        return msgspec.structs.replace(judged, note=note)
    ratio = stats.geometric_mean([outcome.gain.ratio for outcome in sure])
    winner: Literal["gpu", "cpu", "equal", "mixed"] = "gpu" if ratio > 1 else "cpu"
    if about_equal(ratio):
        winner = "mixed" if count["gpu"] and count["cpu"] else "equal"
    other = "cpu" if winner == "gpu" else "gpu"
    exceptions = (_exception(outcome, dtypes_shown) for outcome in outcomes if outcome.winner == other)
    return msgspec.structs.replace(
        judged, winner=winner, ratio=float(f"{ratio:.6g}"), exceptions=sorted(exceptions)
    )


def _exception(outcome: OpOutcome, dtypes_shown: bool) -> str:
    """Return an op that the other side wins as text, with its size if the GPU wins: `matmul from 930 x 930`."""
    op, cell = outcome.op, outcome.cell
    params = [f"{key}={value}" for key, value in sorted(op.params.items())]
    name = " ".join([op.op, *params, *([op.dtype] if dtypes_shown else [])])
    # Below the upper end of a range, the GPU is not known to win.
    n = cell.n if cell.kind == "at" else cell.high if cell.kind == "range" else None
    if outcome.winner != "gpu" or n is None:
        return name
    size = {"side": f"{n} x {n}", "plain": f"n = {n}"}.get(op.size_unit, f"{size_text(n, 'elements')} elements")
    return f"{name} from {size}" + ("" if cell.kind == "at" else " at the latest")


def _shared_call(call: SharedCall, compared: Sequence[CaseResult]) -> MeasuredSplit:
    return MeasuredSplit(
        op=call.op, params=_words(call.params), dtype=call.dtype, regime=call.regime, n=call.n,
        device_id=call.device_id, gpu_share=None if call.gpu_share is None else round(call.gpu_share, 6),
        assignment=call.assignment, gain=round(call.gain, 6),
        lo=round(call.lo, 6), hi=round(call.hi, 6), reason=call.reason or _beaten_by(call.case, compared),
    )  # fmt: skip


def _beaten_by(shared: CaseResult, compared: Sequence[CaseResult]) -> str | None:
    """Return ANOTHER_GPU if another GPU alone is faster than the shared call, else None."""
    assert shared.time is not None, "what is judged has a time"
    faster = (
        other.device_kind == "gpu" and other.time is not None and other.time.estimate < shared.time.estimate
        and (other.case.workload, other.case.regime_id) == (shared.case.workload, shared.case.regime_id)
        for other in compared
        if other.case.device_id != shared.case.shared_with
    )  # fmt: skip
    return ANOTHER_GPU if any(faster) else None


def _words(params: Mapping[str, int]) -> str:
    """Return the params other than the size as text, such as `m=16`."""
    return ",".join(f"{name}={value}" for name, value in params.items() if name != "n")


def _break_even(curve: BreakEven) -> MeasuredBreakEven:
    """Return a break-even as evidence. The times of both sides are those at the first size from the break-even
    on, or at the largest size."""
    cell = threshold(curve)
    size = cell.n if cell.kind in ("at", "range") else None
    size = curve.first if curve.verdict == "all-sizes" else size
    # else at the largest size
    at = next((point for point in curve.points if size is not None and point.n >= size), curve.points[-1])
    return MeasuredBreakEven(
        op=curve.op, params=_words(curve.params), dtype=curve.dtype, regime=curve.regime,
        backend=curve.device_id.partition(":")[0], size=size, note=_note(curve),
        gpu_s=at.case.time.estimate if at.case.time else None,
        cpu_s=at.baseline.time.estimate if at.baseline.time else None,
    )  # fmt: skip


def _note(curve: BreakEven) -> str:
    """Return a text on the break-even: how far it was measured, in which range it lies, or why there
    is none."""
    unit: SizeUnit = "elements" if size_unit_of(curve.case) == "elements" else "plain"
    last = size_text(curve.last, unit)
    if curve.verdict == "at":
        return f"measured up to n = {last}{', mixed below' if curve.mixed else ''}"
    if curve.verdict == "all-sizes":
        return f"the smallest size measured, up to n = {last}"
    if curve.bracketed and not threshold(curve).tied:
        return f"somewhere in {range_text(curve.lo or 0, curve.hi or 0, unit)}"
    return f"no size up to n = {last}" if curve.verdict == "no-size" else threshold_text(curve)
