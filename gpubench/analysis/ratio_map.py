"""The map of a run: for each op, GPU and situation who wins at which size, and by how much. Between two measured sizes
the ratio is interpolated in log-log; nothing beyond them is said."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.answer import AnswerCell, AnswerRow, MachineAnswer, answer
from gpubench.analysis.estimate import IMPLAUSIBLE
from gpubench.analysis.speedup import EQUAL
from gpubench.model.case import REGIMES, WAITED, SeriesKey, beside_size
from gpubench.model.op import Ladder

FULL = 32.0  # a ratio from which on the colour grows no stronger
FIRST_TINT = 0.25  # the step at 10 %: weaker colours look like grey to some eyes
SPARSE = 16.0  # between sizes further apart the interpolation is a guess
MOST_DEVICES = 3  # that share a lane

StretchKind = Literal["measured", "sparse", "unmeasured", "failed"]
StripKey = tuple[str, str]  # device and regime, by id


class MapPoint(msgspec.Struct, frozen=True):
    """A measured size, in elements of one array, and the ratio there: above 1 the GPU is faster."""

    size: float
    ratio: float


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a lane between two sizes. `measured`: both ends are; `sparse`: they are, but far apart. The others have
    no ratios: nothing was measured there, or it gave no true number."""

    kind: StretchKind
    start: float
    end: float
    ratios: tuple[float, float] | None = None

    def ratio_at(self, size: float) -> float | None:
        """Interpolated in log-log between the two measured ends; None where there are none."""
        if self.ratios is None or not self.start <= size <= self.end:
            return None
        first, last = self.ratios
        share = math.log(size / self.start) / math.log(self.end / self.start) if self.end > self.start else 0.0
        inside: float = first * (last / first) ** share
        return min(max(inside, min(self.ratios)), max(self.ratios))

    def tints(self) -> tuple[MapPoint, ...]:
        """Sizes from the start to the end and the tint there, which between them is linear over log(size). A size that
        stands twice is a step."""
        if self.ratios is None:
            return ()
        first, last = self.ratios
        edges = [
            edge for edge in (1 / FULL, 1 / EQUAL, EQUAL, FULL) if min(self.ratios) < edge < max(self.ratios)
        ]
        if first > last:
            edges.reverse()
        # A hair inside: an end that lies on an edge has the tint of its own stretch.
        inside = (last / first) ** 1e-9
        found = [MapPoint(self.start, tint(first * inside))]
        for edge in edges:
            size = self.start * (self.end / self.start) ** (math.log(edge / first) / math.log(last / first))
            # The tint before the edge, and the one after it.
            sides = (edge * (1 - 1e-9), edge * (1 + 1e-9))
            found += [MapPoint(size, tint(side)) for side in (sides if first < last else sides[::-1])]
        return (*found, MapPoint(self.end, tint(last / inside)))


class Strip(msgspec.Struct, frozen=True, kw_only=True):
    """One op on one device in one situation. `stretches` cover its lane, from the smallest size to the largest."""

    cell: AnswerCell
    points: tuple[MapPoint, ...]
    stretches: tuple[Stretch, ...]

    def last_crossing(self) -> float | None:
        """Where the interpolated ratio passes 1 for the last time; None where it never does."""
        for part in reversed(self.stretches):
            if part.ratios is not None and min(part.ratios) < 1 <= max(part.ratios):
                first, last = part.ratios
                share = math.log(first) / math.log(first / last)
                crossing: float = part.start * (part.end / part.start) ** share
                return crossing
        return None

    def ratio_between(self, low: float, high: float) -> float | None:
        """The ratio in the middle of `low` and `high`, where that is known; else that of a measured size between
        them."""
        middle = math.sqrt(low * high)
        found = (part.ratio_at(middle) for part in self.stretches if part.start <= middle <= part.end)
        inside = (point.ratio for point in self.points if low <= point.size < high)
        return next((ratio for ratio in itertools.chain(found, inside) if ratio is not None), None)


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
    devices: tuple[str, ...] = ()
    regimes: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    situations: tuple[str, ...] = ()
    low: float = 1.0
    high: float = 1.0

    def position(self, size: float) -> float:
        """0 at the low end of the axis, 1 at the high one."""
        return math.log(size / self.low) / math.log(self.high / self.low) if self.high > self.low else 0.5

    @property
    def others(self) -> tuple[str, ...]:
        """The situations that a reader has to ask for."""
        return tuple(regime for regime in self.regimes if regime not in self.situations)


def tint(ratio: float) -> float:
    """How strong the colour of a ratio is: 1 is the GPU's, -1 the CPU's, 0 grey. It follows the logarithm."""
    if 1 / EQUAL <= ratio <= EQUAL:
        return 0.0
    share = math.log(max(ratio, 1 / ratio) / EQUAL) / math.log(FULL / EQUAL)
    return math.copysign(min(1.0, FIRST_TINT + (1 - FIRST_TINT) * share), ratio - 1)


def ratio_map(analysis: Analysis) -> RatioMap:
    """The map of all GPUs of a run; without lanes where none was timed beside a CPU."""
    found = answer(analysis)
    devices = tuple(dict.fromkeys(row.device_id for row in analysis.break_even))
    rows = {device: _rows(analysis, device) for device in devices}
    failed = _failed(analysis)
    lanes = []
    for series in dict.fromkeys(key for ours in rows.values() for key in ours):
        lane = _lane({device: ours[series] for device, ours in rows.items() if series in ours}, failed)
        lanes += [lane] if lane is not None else []
    if not lanes:
        return RatioMap()
    regimes = {regime for lane in lanes for _, regime in lane.strips}
    # GPUs that do not differ are one row of the answer.
    shown = tuple(dict.fromkeys(row.device_id for row in found.rows))[:MOST_DEVICES]
    lanes.sort(key=lambda lane: _place(lane, shown, found))
    return RatioMap(
        lanes=tuple(lanes), devices=devices, regimes=tuple(sorted(regimes, key=_regime_order)), shown=shown,
        situations=found.regimes, low=min(lane.start for lane in lanes), high=max(lane.end for lane in lanes),
    )  # fmt: skip


def _rows(analysis: Analysis, device_id: str) -> dict[SeriesKey, AnswerRow]:
    """The answer of one GPU, as if there were no other."""
    alone = msgspec.structs.replace(
        analysis, break_even=tuple(row for row in analysis.break_even if row.device_id == device_id)
    )
    return {(row.op, row.dtype, beside_size(row.params)): row for row in answer(alone).rows}


def _failed(analysis: Analysis) -> dict[tuple[SeriesKey, str, str], set[int]]:
    """The sizes that gave no true number, by series, device and regime."""
    found: dict[tuple[SeriesKey, str, str], set[int]] = {}
    for row in analysis.cases:
        broken = row.outcome == "failure" or row.reason == IMPLAUSIBLE
        if broken and row.case.variant is None:
            key = (row.case.series, row.case.device_id, row.case.regime_id)
            found.setdefault(key, set()).add(row.case.params["n"])
    return found


def _lane(rows: dict[str, AnswerRow], failed: dict[tuple[SeriesKey, str, str], set[int]]) -> MapLane | None:
    """None where neither a declaration nor a measurement says how long it is."""
    row = next(iter(rows.values()))
    points = {
        (device, regime): tuple(MapPoint(one.elements(gain.n), gain.ratio) for gain in cell.gains)
        for device, one in rows.items()
        for regime, cell in one.cells.items()
    }
    ladder = _ladder(row)
    sizes = [point.size for found in points.values() for point in found]
    sizes += [] if ladder is None else [row.elements(ladder.low), row.elements(ladder.high)]
    if not sizes:
        return None
    start, end = min(sizes), max(sizes)
    series = (row.op, row.dtype, beside_size(row.params))
    strips = {
        (device, regime): Strip(
            cell=rows[device].cells[regime], points=found,
            stretches=_stretches(
                found, start, end, rows[device].cells[regime].kind,
                [row.elements(n) for n in failed.get((series, device, regime), ())],
            ),
        )
        for (device, regime), found in points.items()
    }  # fmt: skip
    return MapLane(row=row, start=start, end=end, strips=strips)


def _ladder(row: AnswerRow) -> Ladder | None:
    """The sizes that the op declares; None where this installation does not know it, or where other params shape it."""
    from gpubench import kernels  # as every report loads this module, and few need the declarations of ops

    if row.params or row.op not in kernels.names():
        return None
    return kernels.load(row.op).sizes


def _stretches(
    points: Sequence[MapPoint], start: float, end: float, kind: str, failed: Iterable[float]
) -> tuple[Stretch, ...]:
    """What is known of a lane, from its start to its end without a gap."""
    bad = sorted(set(failed) - {point.size for point in points})
    if not points:
        return (
            Stretch(
                kind="failed" if kind in ("wrong", "failed") or bad else "unmeasured", start=start, end=end
            ),
        )
    found = [_gap(start, points[0].size, bad)]
    for a, b in itertools.pairwise(points):
        if any(a.size < size < b.size for size in bad):
            found.append(_gap(a.size, b.size, bad))
            continue
        sparse = b.size > a.size * SPARSE
        found.append(
            Stretch(
                kind="sparse" if sparse else "measured", start=a.size, end=b.size, ratios=(a.ratio, b.ratio)
            )
        )
    found.append(_gap(points[-1].size, end, bad))
    return tuple(part for part in found if part.start < part.end)


def _gap(start: float, end: float, failed: Sequence[float]) -> Stretch:
    bad = any(start <= size <= end for size in failed)
    return Stretch(kind="failed" if bad else "unmeasured", start=start, end=end)


def _regime_order(regime: str) -> tuple[int, int]:
    kinds = [kind for kind in REGIMES if regime.startswith(kind)]
    calls = regime.rpartition("-")[2]
    return (REGIMES.index(kinds[0]) if kinds else len(REGIMES), int(calls) if calls.isdigit() else 0)


def _place(lane: MapLane, shown: Sequence[str], found: MachineAnswer) -> tuple[object, ...]:
    """Where the lane stands on the staircase: by the first situation, then by the next one."""
    steps = []
    for regime in found.regimes or (WAITED,):
        strips = [lane.strips[device, regime] for device in shown if (device, regime) in lane.strips]
        steps.append(_step(lane, strips[0]) if strips else NOWHERE)
    return (*steps, lane.row.op, lane.row.dtype, sorted(lane.row.params.items()))


NOWHERE = (4, 0.0)  # what has no number comes last


def _step(lane: MapLane, strip: Strip) -> tuple[int, float]:
    """All sizes first, then thresholds by size, what is open, no size, and what gave no number."""
    cell = strip.cell
    if cell.kind in ("wrong", "failed"):
        return NOWHERE
    if cell.kind in ("all-sizes", "below"):
        return 0, float(cell.high or 0)
    if cell.kind in ("at", "range"):
        middle = math.sqrt((cell.low or 1) * (cell.high or 1))
        # Of a bracket alone the place where the colour changes.
        known = None if cell.n is None else float(lane.row.elements(cell.n))
        return 1, known or strip.last_crossing() or float(lane.row.elements(round(middle)))
    gain = cell.gain
    return 3 if cell.kind in ("no-size", "above") else 2, 0.0 if gain is None else -gain.ratio
