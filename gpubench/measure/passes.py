"""What a run measures next: the ladder of all ops first, then, op by op, the size that is worth the most.

A size is worth what it is expected to narrow, over all thresholds of its op, for each second that it costs. New sizes
come before more blocks of old ones. The best sizes of several ops are one step: the blocks of a case lie a second
apart there, and a machine that is slow for a second makes them differ. Steps are handed out one at a time, because what
comes next depends on what was measured.
"""

from __future__ import annotations

import itertools
import math
import random
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from gpubench import curves
from gpubench.curves import stats
from gpubench.measure.climb import MARGIN, Climb, Rungs
from gpubench.measure.costs import ONE_STEP_S, CostModel, count_together
from gpubench.measure.plan import Constraints, Purpose, Series, Step, Workload, together, workload
from gpubench.measure.points import Cell, Points, Rows, Slot, cells, slot
from gpubench.measure.recorder import Recorder
from gpubench.result.case import FUNCTIONS

# This share of the time is kept for what comes after the ladder.
KEPT_SHARE = 0.25
# To choose sizes it is enough to look at two curves in such steps of ln(n).
COARSE = math.log(1.4)
# Sizes that are asked for lie on a grid of so many an octave, which is another one for each op: relatives share curves.
GRID = 8
# A size within this factor of an interval still tells something of its ends, and competes around there who is not
# slower than the fastest by more.
NEAR = math.log(1.3)
# A side whose share of the variance of a ratio is smaller needs no new size.
QUIET = 0.25
# Sizes of one step, and how much less worth the next one may be.
MOST_SIZES, WORTH_IT = 3, 0.5
# Times of the top, each in memory that was allocated anew: how far those of a CPU lie apart, and how many tell that.
PLACEMENTS, PLACEMENT, GAIN_WEIGHT = 3, 0.3, 0.3
# How often the top is measured again at most, where it is open who wins there.
MOST_TOPS = 6
# What a case that took too long is worth, measured again: as much as a threshold that is open over a decade.
DOUBT_WEIGHT = math.log(10)


class Goal(NamedTuple):
    """When a threshold needs no more sizes: high / low within `sharp`, so many sizes around it, or the best of those
    that are left would narrow ln(high / low) by less than `least`. `purpose`: how often a size is measured. A second
    block lowers the variance of a size by a third, and costs a third of a new size."""

    sharp: float
    most_around: int
    least: float
    purpose: Purpose


USUAL, WHOLE = Goal(2.25, 14, 0.05, Purpose(blocks=2)), Goal(1.1, 40, 0.005, Purpose(blocks=4))


class Unsharp(NamedTuple):
    """A threshold that is not sharp: its interval in ln(n), the sides that make it wide, and the sizes at which those
    were timed. `share`: how much of the variance sizes can take away; the rest is what runs differ by."""

    cell: Cell
    threshold: curves.Threshold
    low: float
    high: float
    cpu: bool
    gpu: bool
    sizes: tuple[float, ...]
    share: float
    around: int = 0  # how many of the sizes lie in or near the interval

    def with_sizes(self, *more: float) -> Unsharp:
        """Return this threshold as it will be once more sizes were measured, as far as that is known before."""
        sizes = tuple(sorted((*self.sizes, *more)))
        around = sum(self.low - NEAR <= x <= self.high + NEAR for x in sizes)
        return self._replace(sizes=sizes, around=around)

    def narrowing(self, x: float, tops: int | None = None) -> float:
        """Return by how much ln(high / low) is expected to shrink by a size at x: it splits a gap between sizes, or is
        one more that tells the ratio; more so the less is known of who wins there. At the top, which was measured again
        `tops` times, that alone closes an interval."""
        margins = self.threshold.margins
        i = min(bisect_right(margins, (x,)), len(margins) - 1)
        unknown = 4 * margins[i].wins * (1 - margins[i].wins)
        width, count = self.high - self.low, self.around if tops is None else tops + 1
        place = bisect_right(self.sizes, x)
        split = 0.0
        if 0 < place < len(self.sizes):
            below, above = self.sizes[place - 1 : place + 1]
            part = (x - below) / (above - below)
            split = min(above - below, width) / 2 * 4 * part * (1 - part) * self.share
        return unknown * max(split, width * (1 - math.sqrt(1 - self.share / (count + 1))))


class Wish(NamedTuple):
    """A step of one op, what it is expected to narrow, and the seconds that it takes."""

    series: Series
    slots: Mapping[int, set[Slot]]
    value: float
    cost_s: float

    @property
    def rate(self) -> float:
        """What decides which step is next."""
        return self.value / self.cost_s


class Race:
    """The curves of an op by side: of the CPU, and of each cell. Who competes at a size is found once."""

    def __init__(self, fitted: Mapping[Slot, curves.TimeCurve], cpu: Collection[str]) -> None:
        self._sides: dict[Cell | None, dict[Slot, curves.TimeCurve]] = {None: {}}
        for name, curve in fitted.items():
            self._sides.setdefault(None if name[0] in cpu else (name[0], name[2]), {})[name] = curve
        self._fastest = {cell: curves.Side(side.values()) for cell, side in self._sides.items()}
        self._competing: dict[tuple[Cell | None, float], set[Slot]] = {}

    def names(self, cell: Cell | None) -> list[Slot]:
        """Return the contenders of a cell; None: of the CPU."""
        return list(self._sides.get(cell, ()))

    def curves(self, cell: Cell | None) -> curves.Side:
        """Return their curves."""
        return self._fastest.get(cell, curves.Side())

    def competing(self, cell: Cell | None, x: float) -> set[Slot]:
        """Return those that are not far behind the fastest of them at x."""
        if (cell, x) not in self._competing:
            self._competing[cell, x] = _competing(self._sides.get(cell, {}), x)
        return self._competing[cell, x]


class Passes:
    """The steps of a session that chooses its sizes. Each has to be measured and reported by `measured` before the next
    is asked for, and its time by `took` before the one after that. `whole`: the budget was named, and is to be used
    up."""

    def __init__(
        self, series: Sequence[Series], constraints: Constraints, recorder: Recorder, left_s: Callable[[], float],
        *, whole: bool = False,
    ) -> None:  # fmt: skip
        self._series = series
        self._scope = constraints
        self._recorder = recorder
        self._left_s = left_s
        self._goal = WHOLE if whole else USUAL
        self._whole = whole
        kinds = {target.device.id: target.device.kind for target in constraints.targets}
        self._cpu = {name for name, kind in kinds.items() if kind == "cpu"}
        # A software adapter gets no verdict, so a threshold of it would be measured for nobody.
        self._software = {name for name, kind in kinds.items() if kind == "software"}
        self._compares = bool(self._cpu) and bool(kinds.keys() - self._cpu - self._software)
        self.points = Points(lambda: recorder.outcomes, series, kinds)
        self._costs = CostModel(self.points, constraints)
        self._every = [Rungs(item, constraints) for item in series]  # also those of which memory holds no size
        self._ladders = {rungs.series.key: rungs for rungs in self._every if rungs.sizes}
        self._asked: set[tuple[str, int]] = set()
        self._races: dict[str, Race] = {}
        self._wishes: dict[str, Wish | None] = {}
        self._checked: set[str] = set()
        self._tops: dict[str, int] = {}  # how often the top was asked for again
        self._doubted: set[tuple[str, int, Slot]] = set()

    def known(self, series: Series) -> Rows:
        """Return what was measured of a series, by size and contender."""
        return self.points.rows(series)

    def measured(self, step: Step) -> None:
        """Note that the times of a step are there, or are no longer."""
        for item in step.workloads:
            key = item.series.key
            self.points.forget(key)
            self._races.pop(key, None)
            self._wishes.pop(key, None)
            self._asked.add((key, item.n))  # also where it failed: nothing is asked for again and again

    def took(self, step: Step, seconds: float) -> None:
        """Note that a step took so many seconds, with its checks."""
        if all(item.series.key in self._ladders for item in step.workloads):
            self._costs.took(step, seconds)

    def beginning(self) -> list[Workload]:
        """Return the workloads of the first turn over all ops."""
        return [rungs.at(n, whole=False) for rungs in self._ladders.values() for n in rungs.next()]

    def steps(self) -> Iterator[Step]:
        """All of them, in the order of the module's text."""
        left_s = self._left_s()
        reserve_s = KEPT_SHARE * left_s if self._compares and math.isfinite(left_s) else 0.0
        climb = Climb(self._every, self._costs, self._recorder, self._scope, self._left_s, reserve_s)
        yield from climb.steps()
        if self._compares:
            yield from self._passes()
        yield from climb.late()
        while self._whole and math.isfinite(left_s):
            turn = itertools.chain(self._again(), self._passes())
            first = next(turn, None)
            if first is None:
                break
            yield first
            yield from turn

    def _passes(self) -> Iterator[Step]:
        """The steps that are worth the most, again and again."""
        turn = 0
        while self._left_s() > 0:
            left_s = self._left_s()
            wishes = [
                self._wish(rungs, may_repeat=turn >= len(self._ladders)) for rungs in self._ladders.values()
            ]
            chosen = _best([wish for wish in wishes if wish is not None], left_s / MARGIN)
            if chosen:
                yield from self._steps(chosen)
            elif turn >= len(self._ladders) or not self._ladders:
                break
            turn = turn + len(chosen) if chosen else len(self._ladders)
        yield from self._checks()

    def _steps(self, wishes: Sequence[Wish]) -> Iterator[Step]:
        """The steps that these wishes of several ops ask for: one, as far as memory holds it."""
        items = [item for wish in wishes for item in self._items(wish)]
        for group in together(items, self._scope):
            yield Step(group, self._goal.purpose)

    def _items(self, wish: Wish) -> Iterator[Workload]:
        """The workloads of a wish, the largest first."""
        slots, key = dict(wish.slots), wish.series.key
        if key not in self._checked:
            self._checked.add(key)
            slots |= {n: names for n, names in self._check(wish.series).items() if n not in slots}
        for n in sorted(slots, reverse=True):
            item = workload(wish.series, n, self._scope)
            cases = tuple(case for case in item.cases if case.variant is None and slot(case) in slots[n])
            if (key, n) in self._asked and n == self._ladders[key].top:
                self._tops[key] = self._tops.get(key, 0) + 1
            self._asked.add((key, n))
            if cases:
                yield msgspec.structs.replace(item, cases=cases, skips=(), explained=False)

    # ---------------------------------------------------------------- what an op asks for

    def _wish(self, rungs: Rungs, *, may_repeat: bool) -> Wish | None:
        """The best step of an op; None where no size would narrow a threshold, and its top is known well."""
        key = rungs.series.key
        if key not in self._wishes:
            self._wishes[key] = self._doubtful(rungs) or self._new_sizes(rungs)
        wishes = (self._wishes[key], self._top_again(rungs) if may_repeat else None)
        return max(filter(None, wishes), key=lambda wish: wish.rate, default=None)

    def _doubtful(self, rungs: Rungs) -> Wish | None:
        """Who took much longer than it takes at a larger size, once more: something else may have had its threads."""
        least: dict[Slot, float] = {}
        slots: dict[int, set[Slot]] = {}
        for n, row in sorted(self.points.rows(rungs.series).items(), reverse=True):
            for name, sessions in row.items():
                shortest = min(itertools.chain(*sessions.values()))
                known = (rungs.series.key, n, name)
                if shortest > stats.INTERRUPTED * least.get(name, math.inf) and known not in self._doubted:
                    self._doubted.add(known)
                    slots.setdefault(n, set()).add(name)
                least[name] = min(shortest, least.get(name, math.inf))
        return Wish(rungs.series, slots, DOUBT_WEIGHT, self._cost(rungs, slots)) if slots else None

    def _new_sizes(self, rungs: Rungs) -> Wish | None:
        """Up to MOST_SIZES new sizes, the best first."""
        race = self._race(rungs.series)
        opens = self._open(rungs.series, race)
        sizes = self._grid(rungs, opens)
        slots: dict[int, set[Slot]] = {}
        value, first = 0.0, 0.0
        for _ in range(MOST_SIZES):
            best = self._best_size(
                rungs,
                race,
                [item for item in opens if self._counts(item)],
                [n for n in sizes if n not in slots],
            )
            if best is None or best[1] / self._cost(rungs, {best[0]: best[2]}) < WORTH_IT * first:
                break
            n, worth, names = best
            slots[n] = names
            value += worth
            first = first or worth / self._cost(rungs, {n: names})
            opens = [item.with_sizes(math.log(n)) for item in opens]
        return Wish(rungs.series, slots, value, self._cost(rungs, slots)) if slots else None

    def _best_size(
        self, rungs: Rungs, race: Race, opens: Sequence[Unsharp], sizes: Sequence[int],
    ) -> tuple[int, float, set[Slot]] | None:  # fmt: skip
        """The size that narrows the most for its cost, what it narrows, and who competes there."""
        best: tuple[float, int, float, set[Slot]] | None = None
        top, again = rungs.top, self._tops.get(rungs.series.key, 0)
        for n in sizes:
            x = math.log(n)
            worths = [(item, item.narrowing(x, again if n == top else None)) for item in opens]
            worths = [(item, worth) for item, worth in worths if worth >= self._goal.least]
            if not worths:
                continue
            names = _contenders(race, [item for item, _ in worths], x)
            total = math.fsum(worth for _, worth in worths)
            rate = total / self._cost(rungs, {n: names})
            if best is None or rate > best[0]:
                best = (rate, n, total, names)
        return None if best is None else best[1:]

    def _counts(self, item: Unsharp) -> bool:
        return item.around < self._goal.most_around

    def _grid(self, rungs: Rungs, opens: Sequence[Unsharp]) -> list[int]:
        """Return the new sizes in and near the intervals, within the ladder; and its top, where it is open who wins."""
        key, top = rungs.series.key, rungs.top
        ladder, step = rungs.series.ladder, math.log(2) / GRID
        place = self._series.index(rungs.series) / len(self._series)
        first, last = math.log(rungs.sizes[0]), math.log(top)
        steps: set[int] = set()
        for item in opens:
            low, high = max(item.low - NEAR, first), min(item.high + NEAR, last)
            steps |= set(
                range(math.ceil((low - first) / step - place), math.floor((high - first) / step - place) + 1)
            )
        sizes = {ladder.whole(math.exp(first + (i + place) * step)) for i in steps}
        known = self.points.rows(rungs.series)
        sizes = {
            n for n in sizes if rungs.sizes[0] < n < top and n not in known and (key, n) not in self._asked
        }
        sizes = {n for n in sizes if rungs.series.work(n)}
        open_top = any(item.threshold.high == math.inf for item in opens)
        if open_top and top in known and self._tops.get(key, 0) < MOST_TOPS:
            sizes.add(top)
        return sorted(sizes)

    def _race(self, series: Series) -> Race:
        if series.key not in self._races:
            fitted = self.points.fitted(series)
            if series.op.group == FUNCTIONS:
                fitted = _as_written(fitted, self._cpu)
            self._races[series.key] = Race(fitted, self._cpu)
        return self._races[series.key]

    def _open(self, series: Series, race: Race) -> list[Unsharp]:
        """The thresholds of an op that are not sharp."""
        rows = self.points.rows(series)
        cpu = race.curves(None)
        opens = []
        for cell in cells(rows, self._cpu, self._software):
            ours = race.curves(cell)
            threshold = curves.compare(ours, cpu, COARSE)
            if threshold is None or threshold.state in ("always", "never"):
                continue
            low, high = (math.log(min(max(end, threshold.first), threshold.last)) for end in threshold[2:4])
            if high - low <= math.log(self._goal.sharp) and threshold.state == "at":
                continue
            x = min(max((low + high) / 2, math.log(threshold.first)), math.log(threshold.last))
            case, base = _variance(ours, x), _variance(cpu, x)
            total = case + base
            offsets = max(curve.offset for curve in ours) + max(curve.offset for curve in cpu)
            sides = [race.names(side) for side, part in ((None, base), (cell, case)) if part >= QUIET * total]
            known = [[n for n, row in rows.items() if any(name in row for name in names)] for names in sides]
            sizes = [math.log(n) for n in min(known, key=len)]
            opens.append(
                Unsharp(
                    cell, threshold, low, high, cpu=base >= QUIET * total, gpu=case >= QUIET * total, sizes=(),
                    share=total / (total + offsets),
                ).with_sizes(*sizes)
            )  # fmt: skip
        return opens

    def _top_again(self, rungs: Rungs) -> Wish | None:
        """The top once more on the CPU, in memory that is allocated anew: gains depend on where that lies."""
        row = self.points.rows(rungs.series).get(rungs.top, {})
        fitted = self.points.fitted(rungs.series)
        cpu = {name: curve for name, curve in fitted.items() if name in row and name[0] in self._cpu}
        names = _competing(cpu, math.log(rungs.top))
        count = 1 + self._tops.get(rungs.series.key, 0)
        if not names or count >= PLACEMENTS:
            return None
        gains = len(cells({rungs.top: row}, self._cpu, self._software))
        value = GAIN_WEIGHT * gains * PLACEMENT * (1 - math.sqrt(count / (count + 1)))
        slots = {rungs.top: names}
        return Wish(rungs.series, slots, value, self._cost(rungs, slots)) if gains else None

    def _cost(self, rungs: Rungs, slots: Mapping[int, set[Slot]]) -> float:
        return self._costs.of(rungs.series, slots, self._goal.purpose.blocks or 1)

    # ---------------------------------------------------------------- beside the thresholds

    def _check(self, series: Series) -> dict[int, set[Slot]]:
        """A size just past a power of two, where padded and tiled kernels lose again, or are wrong: above the
        thresholds, as far as that is below the top."""
        rungs, rows = self._ladders[series.key], self.points.rows(series)
        race = self._race(series)
        highest = max((item.threshold.n for item in self._open(series, race) if item.threshold.state == "at"),
                      default=0.0)  # fmt: skip
        step = max(1, series.ladder.granule)
        powers = [
            2**j for j in range(math.ceil(math.log2(max(rungs.middle, 2 * highest, 1))), 64) if 2**j < rungs.top
        ]
        n = ((powers[0] if powers else rungs.middle) // step + 1) * step
        if n in rows or not rungs.sizes[0] < n < rungs.top or not series.work(n):
            return {}
        x = math.log(n)
        resident = [cell for cell in cells(rows, self._cpu) if not cell[1].startswith("transfer")]
        names = set[Slot]().union(*(race.competing(side, x) for side in (None, *resident)))
        return {n: names} if names else {}

    def _checks(self) -> Iterator[Step]:
        """That size of the ops that asked for none beside it."""
        wishes = []
        for rungs in self._ladders.values():
            key = rungs.series.key
            slots = self._check(rungs.series) if key not in self._checked else {}
            self._checked.add(key)
            if slots:
                wishes.append(Wish(rungs.series, slots, 0.0, self._cost(rungs, slots)))
        yield from self._fitting(wishes)

    def _again(self) -> Iterator[Step]:
        """All ladders once more, in fresh buffers: what a named budget leaves goes there."""
        order = random.Random(f"{self._scope.settings.seed} again")
        wishes = []
        for rungs in order.sample(list(self._ladders.values()), len(self._ladders)):
            rows = self.points.rows(rungs.series)
            slots = {n: set(rows[n]) for n in rungs.sizes if n in rows}
            if slots:
                wishes.append(Wish(rungs.series, slots, 0.0, self._cost(rungs, slots)))
        yield from self._fitting(wishes)

    def _fitting(self, wishes: Sequence[Wish]) -> Iterator[Step]:
        """The steps of these wishes for which there is time, in their order."""
        rest = list(wishes)
        while rest:
            chosen = _first(rest, self._left_s() / MARGIN)
            yield from self._steps(chosen)
            rest = rest[max(1, len(chosen)) :]


def _best(wishes: Sequence[Wish], left_s: float) -> Sequence[Wish]:
    """Return what the next step measures: the best of the wishes that fit, and others that are worth nearly as much, as
    long as all of them take no longer than a step should."""
    fitting = sorted((wish for wish in wishes if wish.cost_s <= left_s), key=lambda wish: -wish.rate)
    return _first([wish for wish in fitting if wish.rate >= WORTH_IT * fitting[0].rate], left_s)


def _first(wishes: Sequence[Wish], left_s: float) -> Sequence[Wish]:
    """Return as many of the first wishes as one step holds: one at least, if that fits."""
    if not wishes or wishes[0].cost_s > left_s:
        return []
    return wishes[: count_together((wish.cost_s for wish in wishes), min(ONE_STEP_S, left_s))]


def _as_written(
    fitted: Mapping[Slot, curves.TimeCurve], cpu: Collection[str]
) -> Mapping[Slot, curves.TimeCurve]:
    """Leave out code that is not the user's, compiled or PyTorch on the CPU, where NumPy and a library of a GPU run it:
    the answer compares these two."""
    written = {slot: fitted[slot] for slot in fitted if slot[1] == "library" and slot[0] != "torch:cpu"}
    return written if {slot[0] in cpu for slot in written} == {True, False} else fitted


def _contenders(race: Race, opens: Sequence[Unsharp], x: float) -> set[Slot]:
    """Return who competes at x on the sides that make these thresholds wide."""
    sides = {None for item in opens if item.cpu} | {item.cell for item in opens if item.gpu}
    return set[Slot]().union(*(race.competing(side, x) for side in sides))


def _variance(side: curves.Side, x: float) -> float:
    """The variance of ln(seconds) of the fastest at x, a step that may lie on either side of it included."""
    height = side.fastest(x)
    return height.variance + height.jump**2 * height.share * (1 - height.share)


def _competing(fitted: Mapping[Slot, curves.TimeCurve], x: float) -> set[Slot]:
    """The contenders that are not far behind the fastest at x."""
    heights = {
        name: curve.at(x).mean for name, curve in fitted.items() if curve.first - 1e-9 <= x <= curve.last + 1e-9
    }
    least = min(heights.values(), default=0.0)
    return {name for name, height in heights.items() if height <= least + NEAR}
