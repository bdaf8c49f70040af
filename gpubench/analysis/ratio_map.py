"""The map of a run: for each op, GPU and situation who wins at which size, and by how much. The ratio of a size is that
of both sides' curves; nothing beyond them is said."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.answer import AnswerRow, answer, answer_rows, op_cases
from gpubench.analysis.break_even import BreakEven
from gpubench.analysis.estimate import IMPLAUSIBLE
from gpubench.analysis.thresholds import AnswerCell, declared_sizes
from gpubench.base.groups import group_by
from gpubench.curves import TAIL, Margin
from gpubench.result.case import WAITED, CellKey, SeriesKey, beside_size

FULL = 32.0  # a ratio from which on the colour grows no stronger
STRAIGHT = math.log(1.05)  # a curve may lie so far off the straight pieces that are drawn of it, as ln(ratio)
MOST_DEVICES = 3  # that share a lane

StretchKind = Literal["known", "unsure", "unmeasured", "failed"]
StripKey = tuple[str, str]  # device and regime, by id


class MapPoint(msgspec.Struct, frozen=True):
    """A size, in elements of one array, and the ratio there: above 1 the GPU is faster."""

    size: float
    ratio: float


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a lane between two sizes. `known`: both sides have a curve there, which goes straight between `points`
    in log-log; `unsure`: they have, and either side may win. The others have no points: nothing was measured there, or
    it gave no true number."""

    kind: StretchKind
    start: float
    end: float
    points: tuple[MapPoint, ...] = ()

    def ratio_at(self, size: float) -> float | None:
        """Return the ratio of a size; None where none is known."""
        for a, b in itertools.pairwise(self.points):
            if a.size <= size <= b.size:
                share = math.log(size / a.size) / math.log(b.size / a.size)
                inside: float = a.ratio * (b.ratio / a.ratio) ** share
                return min(max(inside, min(a.ratio, b.ratio)), max(a.ratio, b.ratio))
        return None


class Strip(msgspec.Struct, frozen=True, kw_only=True):
    """One op on one device in one situation. `points`: the sizes at which both sides were timed. `stretches` cover its
    lane, from the smallest size to the largest."""

    cell: AnswerCell
    points: tuple[MapPoint, ...]
    stretches: tuple[Stretch, ...]

    def ratio_between(self, low: float, high: float) -> float | None:
        """Return the ratio in the middle of `low` and `high`, where that is known; else that of a measured size between
        them."""
        middle = math.sqrt(low * high)
        curve = (part.ratio_at(middle) for part in self.stretches if part.start <= middle <= part.end)
        inside = (point.ratio for point in self.points if low <= point.size < high)
        return next((ratio for ratio in itertools.chain(curve, inside) if ratio is not None), None)


class MapLane(msgspec.Struct, frozen=True, kw_only=True):
    """One op and dtype. `row` has its name and what its size counts; `start` and `end` are in elements."""

    row: AnswerRow
    start: float
    end: float
    strips: dict[StripKey, Strip]


class RatioMap(msgspec.Struct, frozen=True, kw_only=True):
    """The lanes, the earliest threshold first. `shown` are the devices and the situations to begin with; `low` and
    `high` the ends of the axis of all lanes."""

    lanes: tuple[MapLane, ...] = ()
    shown: tuple[str, ...] = ()
    situations: tuple[str, ...] = ()
    low: float = 1.0
    high: float = 1.0

    def position(self, size: float) -> float:
        """0 at the low end of the axis, 1 at the high one."""
        return math.log(size / self.low) / math.log(self.high / self.low) if self.high > self.low else 0.5


def tint(ratio: float) -> float:
    """Return how strong the colour of a ratio is: 1 is the GPU's, -1 the CPU's, 0 grey. It follows the logarithm
    without a step, which would look like an edge."""
    return max(-1.0, min(1.0, math.log(ratio) / math.log(FULL)))


def ratio_map(analysis: Analysis, backend: str | None = None) -> RatioMap:
    """Return the map of all GPUs of a run; without lanes where none was timed beside a CPU. `backend`: shows this one
    instead of the fastest."""
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
    for series, same in group_by(rows, _series).items():
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


def _series(case: AnswerRow) -> SeriesKey:
    return case.op, case.dtype, beside_size(case.params)


def _lane(
    series: SeriesKey, rows: Sequence[AnswerRow], curves: Mapping[CellKey, BreakEven],
    failed: Mapping[CellKey, set[int]],
) -> MapLane | None:  # fmt: skip
    """Return one lane; None where neither a declaration nor a measurement says how long it is."""
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
    """Yield what is known of a lane, from its start to its end without a gap."""
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
    """Yield what lies beyond the curves, if anything does."""
    if start < end * (1 - 1e-9):
        bad = any(start <= size <= end for size in failed)
        yield Stretch(kind="failed" if bad else "unmeasured", start=start, end=end)


def _straighten(line: Sequence[MapPoint]) -> list[MapPoint]:
    """Return the points that straight pieces need to stay near all of them (Douglas and Peucker, 1973)."""
    first, last = line[0], line[-1]
    whole = Stretch(kind="known", start=first.size, end=last.size, points=(first, last))
    far = [abs(math.log(point.ratio / (whole.ratio_at(point.size) or point.ratio))) for point in line]
    worst = max(range(len(line)), key=far.__getitem__)
    if far[worst] <= STRAIGHT:
        return [first, last]
    return [*_straighten(line[: worst + 1])[:-1], *_straighten(line[worst:])]


def _place(lane: MapLane, shown: Sequence[str], regimes: Sequence[str]) -> tuple[object, ...]:
    """Return where the lane stands on the staircase: by the first situation, then by the next one."""
    steps = []
    for regime in regimes:
        strips = [lane.strips[device, regime] for device in shown if (device, regime) in lane.strips]
        steps.append(_step(lane, strips[0].cell) if strips else NOWHERE)
    return (*steps, lane.row.op, lane.row.dtype, sorted(lane.row.params.items()))


NOWHERE = (4, 0.0)  # what has no number comes last


def _step(lane: MapLane, cell: AnswerCell) -> tuple[int, float]:
    """Return all sizes first, then thresholds by size, what is open, no size, and what gave no number."""
    ranks = {"all-sizes": 0, "below": 0, "at": 1, "range": 1, "no-size": 3, "above": 3, "wrong": 4, "failed": 4}
    rank = ranks.get(cell.kind, 2)
    largest = 0.0 if cell.gain is None else -cell.gain.ratio
    sizes = {0: float(cell.high or 0), 1: float(lane.row.elements(cell.n or 0)), 4: 0.0}
    return rank, sizes.get(rank, largest)
