"""Choose what a run measures next: first the ladders of all ops, then sizes that narrow the break-evens most.

A *rung* is one size of an op's ladder, and the *top* is its largest rung. A *wish* is the sizes of one op
that are worth measuring next. Its value is how much they are expected to narrow the break-evens of that op. The
wishes with the most value per second form the next step. A step has wishes of several ops, so that the blocks
of a case lie about a second apart: one slow second then does not affect all of them. An op's *check size* lies
just above a power of two, where padded and tiled kernels may be slower or wrong. It is measured once.
"""

from __future__ import annotations

import itertools
import math
import random
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, Self

import msgspec

from gpubench import curves
from gpubench.base import group_by
from gpubench.curves import stats
from gpubench.measure.plan import (
    ONE_BLOCK,
    Constraints,
    Purpose,
    Series,
    Step,
    Workload,
    only,
    together,
    workload,
)
from gpubench.measure.points import Cell, CostModel, Points, Rungs, Slot, cells, slot
from gpubench.measure.recorder import Recorder, is_out_of_time
from gpubench.result.case import FUNCTIONS, Case, copies, own_names
from gpubench.result.run import RunWarning

# A step is begun if this many times its predicted seconds fit the time left, since predictions may be too low.
MARGIN = 1.1
# Wishes of several ops, or the rest of one op's ladder, form one step if they take no longer than this.
ONE_STEP_S = 3.0
# This share of the time is kept for what comes after the ladder.
KEPT_SHARE = 0.25
# Steps of ln(n) in which two curves are compared to choose sizes.
COARSE = math.log(1.4)
# New sizes lie on a grid with this many points per octave. The grid differs by op, because relatives share
# curves.
GRID = 8
# A size within this factor of an interval still narrows it. A contender competes if it is at most this much
# slower than the fastest.
NEAR = math.log(1.3)
# A side with a smaller share of the variance of the speedup needs no new size.
QUIET = 0.25
# Most new sizes in one wish, and the least value per second of the next one relative to the first.
MOST_SIZES, WORTH_IT = 3, 0.5
# The top is timed ASSIGNMENTS times on the CPU in new memory. ln(seconds) then scatters by ASSIGNMENT.
# Narrowing ln(gain) is worth GAIN_WEIGHT times as much as narrowing ln(break-even).
ASSIGNMENTS, ASSIGNMENT, GAIN_WEIGHT = 3, 0.3, 0.3
# So is a break-even of the fastest code of a user's function, besides that of the function as it is written.
SECOND_WEIGHT = 0.3
# How often the top is measured again at most if its winner is not clear.
MOST_TOPS = 6
# Value of measuring a doubtful case again: that of a break-even that is open over a factor of ten.
DOUBT_WEIGHT = math.log(10)


class Goal(NamedTuple):
    """The precision at which a break-even needs no more sizes."""

    sharp: float  # the largest high / low of an interval that is narrow enough
    most_around: int  # the number of sizes in or near the interval that is enough
    least: float  # a size that is expected to narrow ln(high / low) by less than this is not measured
    # the number of blocks at a size. A second block lowers the variance of a size by a third, for a third of
    # the cost of a new size.
    purpose: Purpose


USUAL, WHOLE = Goal(2.25, 14, 0.05, Purpose(blocks=2)), Goal(1.1, 40, 0.005, Purpose(blocks=4))


class Unsharp(NamedTuple):
    """A break-even whose interval is still too wide."""

    race: Race  # the curves that it is derived from
    cell: Cell  # the device and the regime
    threshold: curves.Threshold  # the break-even with its interval, from the curves
    low: float  # lower end of its interval, as ln(n)
    high: float  # upper end of its interval, as ln(n)
    cpu: bool  # whether the CPU's curves make the interval wide
    gpu: bool  # whether the device's curves make the interval wide
    # ln(n) of the timed sizes of the side with wide curves; if both are wide, of the one with fewer sizes
    sizes: tuple[float, ...]
    share: float  # the share of the interval's variance that more sizes can remove
    weight: float  # how much narrowing it is worth
    around: int = 0  # the number of sizes in or near the interval

    def with_sizes(self, *more: float) -> Unsharp:
        """Return a copy of this break-even in which `more` sizes, as ln(n), count as measured."""
        sizes = tuple(sorted((*self.sizes, *more)))
        around = sum(self.low - NEAR <= x <= self.high + NEAR for x in sizes)
        return self._replace(sizes=sizes, around=around)

    def narrowing(self, x: float, tops: int | None = None) -> float:
        """Return by how much a measurement at x = ln(n) is expected to decrease ln(high / low) of the
        break-even, times its weight. `tops` is how often the largest size of the ladder was measured again, or
        None at any other size."""
        margins = self.threshold.margins
        i = min(bisect_right(margins, (x,)), len(margins) - 1)
        unknown = 4 * margins[i].wins * (1 - margins[i].wins)  # 1 where the faster side is not clear at all
        width, count = self.high - self.low, self.around if tops is None else tops + 1
        place = bisect_right(self.sizes, x)
        split = 0.0
        if 0 < place < len(self.sizes):
            below, above = self.sizes[place - 1 : place + 1]
            part = (x - below) / (above - below)
            split = min(above - below, width) / 2 * 4 * part * (1 - part) * self.share
        # It divides the gap between two measured sizes, or adds one more ratio near the break-even.
        narrower = max(split, width * (1 - math.sqrt(1 - self.share / (count + 1))))
        return self.weight * unknown * narrower


class Wish(NamedTuple):
    """The sizes of one op that are worth measuring next, with what they tell and take."""

    rungs: Rungs  # the ladder of the op
    slots: Mapping[int, set[Slot]]  # the contenders to measure, by size
    value: float  # the sum over the op's break-evens of the expected decrease of ln(high / low)
    cost_s: float  # predicted seconds to measure them

    @property
    def rate(self) -> float:
        """`value` / `cost_s`. The wishes with the highest rate are the next step."""
        return self.value / self.cost_s


RATE = attrgetter("rate")


class Contenders(curves.Side):
    """The curves of one side (the CPU, or a GPU in a regime). `fitted` has them by slot."""

    def __init__(self, fitted: Mapping[Slot, curves.TimeCurve]) -> None:
        self.fitted = fitted

    def __new__(cls, fitted: Mapping[Slot, curves.TimeCurve]) -> Self:
        return super().__new__(cls, fitted.values())

    def competing(self, x: float) -> set[Slot]:
        """Return the contenders that take at most exp(NEAR) times as long as the fastest at x = ln(n). A
        contender whose timed sizes do not reach x is left out."""
        heights = {
            name: curve.at(x).mean
            for name, curve in self.fitted.items()
            if curve.first - 1e-9 <= x <= curve.last + 1e-9
        }
        least = min(heights.values(), default=0.0)
        return {name for name, height in heights.items() if height <= least + NEAR}


# The contenders of an op, by cell (device and regime); the key None stands for the CPU.
Race = Mapping[Cell | None, Contenders]
NOBODY = Contenders({})


class Passes:
    """The steps of a session that chooses its sizes. After each step, call `note_times` before the next step,
    and `took` before the one after that. If `whole` is true, the user named the budget, so all of it is
    used."""

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
        # A software adapter gets no verdict, so a break-even of it would be measured for nobody.
        self._software = {name for name, kind in kinds.items() if kind == "software"}
        self._compares = bool(self._cpu) and bool(kinds.keys() - self._cpu - self._software)
        self.points = Points(lambda: recorder.outcomes, series, kinds)
        self._costs = CostModel(self.points, constraints)
        self._every = [Rungs(item, constraints) for item in series]  # also those of which memory holds no size
        self._ladders = {rungs.series.key: rungs for rungs in self._every if rungs.sizes}
        self._races: dict[str, list[Race]] = {}
        self._wishes: dict[str, list[Wish]] = {}
        self._halved: dict[str, RunWarning] = {}
        self._names = own_names(item.op.name for item in series)
        self._repeated: set[tuple[str, int, Slot]] = set()

    def note_times(self, step: Step) -> None:
        """Note that the times of a step have changed: they were added or withdrawn."""
        for item in step.workloads:
            key = item.series.key
            self.points.forget(key)
            self._races.pop(key, None)
            self._wishes.pop(key, None)
            if key in self._ladders:
                self._ladders[key].asked.add(item.n)

    def took(self, step: Step, seconds: float) -> None:
        """Learn from the seconds that a step took with its checks, unless one of its ops has no ladder."""
        if self._ladders.keys() >= {item.series.key for item in step.workloads}:
            self._costs.took(step, seconds)

    def beginning(self) -> list[Workload]:
        """Return the workloads of the first turn of each op's ladder."""
        return [rungs.at(n, whole=False) for rungs in self._ladders.values() for n in rungs.next()]

    def steps(self) -> Iterator[Step]:
        """Yield all steps in order: the ladders, the wishes with the most value, then dropped tops that fit the
        time. If the user named the budget, further steps use up the rest of it."""
        left_s = self._left_s()
        reserve_s = KEPT_SHARE * left_s if self._compares and math.isfinite(left_s) else 0.0
        yield from self._climb(reserve_s)
        if self._compares:
            yield from self._passes()
        yield from self._late()
        while self._whole and math.isfinite(left_s):
            turn = itertools.chain(self._again(), self._passes())
            first = next(turn, None)
            if first is None:
                break
            yield first
            yield from turn

    # ---------------------------------------------------------------- the ladder of all ops

    def _has_outcome(self, case: Case) -> bool:
        outcome = self._recorder.outcome(case.id)
        return outcome is not None and not is_out_of_time(outcome)

    def _climb(self, reserve_s: float) -> Iterator[Step]:
        """Yield the steps that measure each rung once, as far as there is time besides `reserve_s` seconds."""
        for rungs in self._every:  # without those that an interrupted run has measured
            rungs.left = [
                n for n in rungs.left if not any(map(self._has_outcome, rungs.at(n, whole=False).cases))
            ]
        for rungs in self._every:
            if rungs.refused:
                yield Step(tuple(msgspec.structs.replace(item, cases=()) for item in rungs.refused), ONE_BLOCK)
        order = random.Random(f"{self._scope.settings.seed} ladder")
        while pending := [rungs for rungs in self._every if rungs.rest]:
            turn = order.sample(pending, len(pending))
            while turn:
                if self._left_s() <= 0:
                    return
                self._drop_tops(reserve_s)
                yield from self._rung_steps(self._next_rungs(turn))

    def _next_rungs(self, turn: list[Rungs]) -> list[tuple[Rungs, list[int], bool]]:
        """Remove the ops of the next step from `turn`. Returns a triple for each of them: its ladder, the
        sizes, and whether all cases are measured."""
        offers = [(rungs, sizes, self._rungs_cost(rungs, sizes)) for rungs in turn if (sizes := rungs.next())]
        count = count_together((cost_s for *_, cost_s in offers), ONE_STEP_S if self._costs.known else 0.0)
        turn[:] = [rungs for rungs, *_ in offers[count:]]
        chosen = []
        for rungs, sizes, cost_s in offers[:count]:
            alone = len(rungs.left) < len(rungs.sizes) and cost_s > ONE_STEP_S
            chosen.append((rungs, sizes[:1] if alone else sizes, alone))
        return chosen

    def _late(self) -> Iterator[Step]:
        """Yield steps for dropped tops that fit into the time left at the end."""
        for rungs in self._every:
            while rungs.dropped and MARGIN * self._rungs_cost(rungs, rungs.dropped[:1]) <= self._left_s():
                del rungs.dropped[0]
                yield from self._rung_steps([(rungs, rungs.rest, True)])
                self._tell(rungs)

    def _rung_steps(self, chosen: Sequence[tuple[Rungs, Sequence[int], bool]]) -> Iterator[Step]:
        """Yield steps for the chosen sizes, as many sizes per step as memory holds."""
        items = []
        for rungs, sizes, whole in chosen:
            # The largest size comes first, because smaller sizes use parts of its inputs.
            items += [rungs.at(n, whole=whole) for n in sorted(sizes, reverse=True)]
            rungs.left = [n for n in rungs.left if n not in sizes]
        for group in together([item for item in items if item.cases], self._scope):
            yield Step(group, ONE_BLOCK, ends=True)

    def _rungs_cost(self, rungs: Rungs, sizes: Sequence[int]) -> float:
        slots: dict[int, set[Slot]] = {
            n: {slot(case) for case in rungs.at(n, whole=n == rungs.top).cases} for n in sizes
        }
        return self._costs.of(rungs.series, slots) if slots else 0.0

    def _drop_tops(self, reserve_s: float) -> None:
        """Drop the most expensive tops of the begun ladders until the rest fits the time left minus
        `reserve_s`."""
        begun = [rungs for rungs in self._every if rungs.left and len(rungs.left) < len(rungs.sizes)]
        for rungs in begun:
            rungs.dropped = []
        costs = {(i, n): self._rungs_cost(rungs, [n]) for i, rungs in enumerate(begun) for n in rungs.rest}
        allowed_s = self._left_s() - reserve_s
        while costs and math.fsum(costs.values()) > allowed_s:
            place, _ = max(costs, key=costs.__getitem__)
            top = begun[place].rest[-1]
            del costs[place, top]
            begun[place].dropped.insert(0, top)
        for rungs in begun:
            self._tell(rungs)

    def _tell(self, rungs: Rungs) -> None:
        """Warn if the op is not measured up to the end of its ladder, in place of an earlier such warning."""
        if (earlier := self._halved.pop(rungs.series.key, None)) is not None:
            self._recorder.withdraw(earlier)
        if rungs.dropped and rungs.dropped[-1] > rungs.top:
            self._halved[rungs.series.key] = warning = _halving_warning(
                rungs, self._rungs_cost(rungs, rungs.dropped[-1:]), self._names[rungs.series.op.name]
            )
            self._recorder.warn(warning)

    # ---------------------------------------------------------------- the passes

    def _passes(self) -> Iterator[Step]:
        """Yield the steps of the best wishes while there is time, then those of the check sizes."""
        turn = 0
        while self._left_s() > 0:
            left_s = self._left_s()
            wishes = [
                self._wish(rungs, left_s / MARGIN, may_repeat=turn >= len(self._ladders))
                for rungs in self._ladders.values()
            ]
            chosen = _best([wish for wish in wishes if wish is not None], left_s / MARGIN)
            if chosen:
                yield from self._steps(chosen)
            elif turn >= len(self._ladders) or not self._ladders:
                break
            turn = turn + len(chosen) if chosen else len(self._ladders)
        yield from self._checks()

    def _steps(self, wishes: Sequence[Wish]) -> Iterator[Step]:
        """Yield the steps for these wishes, as few as memory allows."""
        items = [item for wish in wishes for item in self._items(wish)]
        yield from (Step(group, self._goal.purpose) for group in together(items, self._scope))

    def _items(self, wish: Wish) -> Iterator[Workload]:
        """Yield the workloads of a wish and of the op's check size, from the largest size to the smallest."""
        # It is forgotten first, so that the op makes a new one even if no workload is left.
        self._wishes.pop(wish.rungs.series.key, None)
        rungs, slots = wish.rungs, {**self._check(wish.rungs), **wish.slots}
        rows = self.points.rows(rungs.series)
        for n in sorted(slots, reverse=True):
            rungs.tops += n == rungs.top and n in rungs.asked
            rungs.asked.add(n)
            names = slots[n]
            self._repeated |= {(rungs.series.key, n, name) for name in names & rows.get(n, {}).keys()}
            yield from only(
                workload(rungs.series, n, self._scope),
                lambda case, names=names: case.variant is None and slot(case) in names,  # type: ignore[misc]
            )

    # ---------------------------------------------------------------- what an op asks for

    def _wish(self, rungs: Rungs, left_s: float, *, may_repeat: bool) -> Wish | None:
        """Return the op's best wish of at most `left_s` seconds, or None."""
        key = rungs.series.key
        if key not in self._wishes:
            self._wishes[key] = [*filter(None, (self._doubtful(rungs), self._new_sizes(rungs)))]
        wishes = (*self._wishes[key], self._top_again(rungs) if may_repeat else None)
        return max((wish for wish in wishes if wish and wish.cost_s <= left_s), key=RATE, default=None)

    def _doubtful(self, rungs: Rungs) -> Wish | None:
        """Return a wish to repeat cases that took much longer than at a larger size, or None."""
        least: dict[Slot, float] = {}
        slots: dict[int, set[Slot]] = {}
        for n, times in sorted(self.points.rows(rungs.series).items(), reverse=True):
            for name, sessions in times.items():
                shortest = min(itertools.chain(*sessions.values()))
                # Another program may have held its threads.
                late = shortest > stats.INTERRUPTED * least.get(name, math.inf)
                if late and (rungs.series.key, n, name) not in self._repeated:
                    slots.setdefault(n, set()).add(name)
                least[name] = min(shortest, least.get(name, math.inf))
        return self._worth(rungs, slots, DOUBT_WEIGHT) if slots else None

    def _new_sizes(self, rungs: Rungs) -> Wish | None:
        """Return a wish for up to MOST_SIZES new sizes, or None if no size narrows a break-even enough."""
        opens = self._open(rungs.series)
        sizes = self._grid(rungs, opens)
        wishes, cache = list[Wish](), dict[Any, Wish]()
        while len(wishes) < MOST_SIZES:
            around = [item for item in opens if item.around < self._goal.most_around]
            offers = (self._of_size(rungs, around, n, cache) for n in sizes)
            best = max(filter(None, offers), key=RATE, default=None)
            if best is None or (wishes and best.rate < WORTH_IT * wishes[0].rate):
                break
            wishes.append(best)
            (n,) = best.slots
            sizes.remove(n)
            opens = [item.with_sizes(math.log(n)) for item in opens]
        slots = {n: names for wish in wishes for n, names in wish.slots.items()}
        return self._worth(rungs, slots, sum(wish.value for wish in wishes)) if slots else None

    def _of_size(self, rungs: Rungs, opens: Sequence[Unsharp], n: int, cache: dict[Any, Wish]) -> Wish | None:
        """Return a wish to measure size `n`, or None if it narrows each of `opens` too little."""
        x, again = math.log(n), rungs.tops if n == rungs.top else None
        worths = [(item, item.narrowing(x, again)) for item in opens]
        worths = [(item, worth) for item, worth in worths if worth >= self._goal.least]
        if not worths:
            return None
        key = (n, *((item.cell, item.weight) for item, _ in worths))
        if key not in cache:  # whatever the value, which changes from call to call
            names = set[Slot]().union(*(_contenders(item, x) for item, _ in worths))
            cache[key] = self._worth(rungs, {n: names})
        return cache[key]._replace(value=math.fsum(worth for _, worth in worths))

    def _worth(self, rungs: Rungs, slots: Mapping[int, set[Slot]], value: float = 0.0) -> Wish:
        """Return a wish of this `value` to measure the contenders in `slots`."""
        return Wish(rungs, slots, value, self._costs.of(rungs.series, slots, self._goal.purpose.blocks or 1))

    def _grid(self, rungs: Rungs, opens: Sequence[Unsharp]) -> list[int]:
        """Return the new grid sizes in the intervals of `opens` and near their lower ends, since larger ones cost
        more, and the top if its winner is not clear."""
        low, top, step = rungs.sizes[0], rungs.top, math.log(2) / GRID
        place = self._series.index(rungs.series) / len(self._series)
        first, last = math.log(low), math.log(top)
        steps: set[int] = set()
        for item in opens:
            begin, end = max(item.low - NEAR, first), min(item.high, last)
            steps |= set(
                range(math.ceil((begin - first) / step - place), math.floor((end - first) / step - place) + 1)
            )
        sizes = {rungs.series.ladder.whole(math.exp(first + (i + place) * step)) for i in steps}
        rows = self.points.rows(rungs.series)
        sizes -= rows.keys() | rungs.asked
        sizes = {n for n in sizes if low < n < top and rungs.series.work(n)}
        open_top = any(item.threshold.high == math.inf for item in opens)
        if open_top and top in rows and rungs.tops < MOST_TOPS:
            sizes.add(top)
        return sorted(sizes)

    def races_of(self, series: Series) -> list[Race]:
        """Return the curves of an op by side. Those of a user's function come first as it is written, then with all
        code, if there is more."""
        if series.key not in self._races:
            fitted = self.points.fit(series)
            written = keep_own_code(fitted, self._cpu) if series.op.group == FUNCTIONS else fitted
            choices = [written] if len(written) == len(fitted) else [written, fitted]
            self._races[series.key] = [self._sides(chosen) for chosen in choices]
        return self._races[series.key]

    def _sides(self, fitted: Mapping[Slot, curves.TimeCurve]) -> Race:
        sides = group_by(fitted, lambda name: None if name[0] in self._cpu else (name[0], name[2]))
        return {cell: Contenders({name: fitted[name] for name in names}) for cell, names in sides.items()}

    def _open(self, series: Series) -> list[Unsharp]:
        """Return the break-evens of an op whose intervals are still too wide, one for each GPU, regime and race."""
        rows = self.points.rows(series)
        opens = []
        weighed = zip(self.races_of(series), (1.0, SECOND_WEIGHT), strict=False)
        for (race, weight), cell in itertools.product(weighed, cells(rows, self._cpu, self._software)):
            own, cpu = race.get(cell, NOBODY), race.get(None, NOBODY)
            threshold = curves.compare(own, cpu, COARSE)
            if threshold is None or threshold.state in ("always", "never"):
                continue
            low, high = (math.log(min(max(end, threshold.first), threshold.last)) for end in threshold[2:4])
            if high - low <= math.log(self._goal.sharp) and threshold.state == "at":
                continue
            x = min(max((low + high) / 2, math.log(threshold.first)), math.log(threshold.last))
            case, base = _variance(own, x), _variance(cpu, x)
            total = case + base
            offsets = curves.offset_apart(own, cpu)
            sides = [side.fitted for side, part in ((cpu, base), (own, case)) if part >= QUIET * total]
            timed = [
                [n for n, times in rows.items() if any(name in times for name in names)] for names in sides
            ]
            sizes = [math.log(n) for n in min(timed, key=len)]
            opens.append(
                Unsharp(
                    race, cell, threshold, low, high, cpu=base >= QUIET * total, gpu=case >= QUIET * total, sizes=(),
                    share=total / (total + offsets), weight=weight,
                ).with_sizes(*sizes)
            )  # fmt: skip
        return opens

    def _top_again(self, rungs: Rungs) -> Wish | None:
        """Return a wish to measure the top on the CPU again in newly allocated memory, or None."""
        times = self.points.rows(rungs.series).get(rungs.top, {})
        fitted = self.points.fit(rungs.series)
        cpu = {name: curve for name, curve in fitted.items() if name in times and name[0] in self._cpu}
        # The time of a CPU depends on where its data lies.
        names = Contenders(cpu).competing(math.log(rungs.top))
        count, gains = 1 + rungs.tops, len(cells({rungs.top: times}, self._cpu, self._software))
        if not names or not gains or count >= ASSIGNMENTS:
            return None
        value = GAIN_WEIGHT * gains * ASSIGNMENT * (1 - math.sqrt(count / (count + 1)))
        return self._worth(rungs, {rungs.top: names}, value)

    # ---------------------------------------------------------------- beside the break-evens

    def _check(self, rungs: Rungs) -> dict[int, set[Slot]]:
        """Return the op's check size with the contenders to measure, or an empty dict if there is none left."""
        if rungs.checked:
            return {}
        rungs.checked, series = True, rungs.series
        rows, race = self.points.rows(series), self.races_of(series)[0]
        opens = self._open(series)
        beyond = max([rungs.middle, *(2 * item.threshold.n for item in opens if item.threshold.state == "at")])
        step = max(1, series.ladder.granule)
        powers = [2**j for j in range(math.ceil(math.log2(beyond)), 64) if 2**j < rungs.top]
        n = ((powers[0] if powers else rungs.middle) // step + 1) * step
        if n in rows or not rungs.sizes[0] < n < rungs.top or not series.work(n):
            return {}
        x = math.log(n)
        resident = [cell for cell in cells(rows, self._cpu) if not copies(cell[1])]
        names = set[Slot]().union(*(race.get(side, NOBODY).competing(x) for side in (None, *resident)))
        return {n: names} if names else {}

    def _checks(self) -> Iterator[Step]:
        """Yield the steps of the check sizes that are still due."""
        ladders = self._ladders.values()
        yield from self._fitting([self._worth(x, slots) for x in ladders if (slots := self._check(x))])

    def _again(self) -> Iterator[Step]:
        """Yield all ladders again in newly allocated buffers, to use up a budget that the user named."""
        order = random.Random(f"{self._scope.settings.seed} again")
        wishes = []
        for rungs in order.sample(list(self._ladders.values()), len(self._ladders)):
            rows = self.points.rows(rungs.series)
            slots = {n: set(rows[n]) for n in rungs.sizes if n in rows}
            wishes += [self._worth(rungs, slots)] if slots else []
        yield from self._fitting(wishes)

    def _fitting(self, wishes: Sequence[Wish]) -> Iterator[Step]:
        """Yield the steps of those wishes for which there is time, in the given order."""
        rest = list(wishes)
        while rest:
            chosen = _first(rest, self._left_s() / MARGIN)
            yield from self._steps(chosen)
            rest = rest[max(1, len(chosen)) :]


def _best(wishes: Sequence[Wish], left_s: float) -> Sequence[Wish]:
    """Return the wishes of the next step: the best that fits, and others of nearly the same value per
    second."""
    fitting = sorted((wish for wish in wishes if wish.cost_s <= left_s), key=RATE, reverse=True)
    return _first([wish for wish in fitting if wish.rate >= WORTH_IT * fitting[0].rate], left_s)


def _first(wishes: Sequence[Wish], left_s: float) -> Sequence[Wish]:
    """Return as many of the first wishes as fit into one step, none if the first does not fit into `left_s`."""
    if not wishes or wishes[0].cost_s > left_s:
        return []
    return wishes[: count_together((wish.cost_s for wish in wishes), min(ONE_STEP_S, left_s))]


def keep_own_code(
    fitted: Mapping[Slot, curves.TimeCurve], cpu: Collection[str]
) -> Mapping[Slot, curves.TimeCurve]:
    """Return the curves of a user's function as written, or all curves if one side would lack any."""
    # Neither compiled code nor PyTorch on the CPU, as the answer compares NumPy with a library on a GPU.
    written = {slot: fitted[slot] for slot in fitted if slot[1] == "library" and slot[0] != "torch:cpu"}
    return written if {slot[0] in cpu for slot in written} == {True, False} else fitted


def _contenders(item: Unsharp, x: float) -> set[Slot]:
    """Return the contenders that compete at x = ln(n) on the sides of a break-even whose curves are uncertain."""
    sides = [side for side, uncertain in ((None, item.cpu), (item.cell, item.gpu)) if uncertain]
    return set[Slot]().union(*(item.race.get(side, NOBODY).competing(x) for side in sides))


def _variance(side: curves.Side, x: float) -> float:
    """Return the variance of ln(seconds) of the fastest contender at x = ln(n)."""
    height = side.fastest(x)
    # A step of the curve that may lie on either side of x adds its height.
    return height.variance + height.jump**2 * height.share * (1 - height.share)


def _halving_warning(rungs: Rungs, top_s: float, name: str) -> RunWarning:
    series, n, high = rungs.series, rungs.top, rungs.dropped[-1]
    key = name + series.key.removeprefix(series.op.name)
    return RunWarning(
        code="top-halved", severity="info",
        message=f"{key} is measured up to n = {n}, not {high}: that takes more than its share of the time, about"
        f" {top_s:.1f} s here",
        hint="raise --budget, or name the size with --sizes", data={"op": series.op.name, "dtype": series.dtype},
    )  # fmt: skip


def count_together(costs_s: Iterable[float], most_s: float) -> int:
    """Return how many of the first costs fit a step of `most_s` seconds, but at least one if there are
    costs."""
    totals = list(itertools.accumulate(costs_s))
    return max(min(len(totals), 1), sum(total <= most_s for total in totals))
