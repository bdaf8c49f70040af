"""The sizes of a run: the ladder of each op, its times so far with their curves, and the predicted costs of
steps.

A *rung* is a size of an op's ladder, and the *top* is the largest rung. A *slot* is a contender in a regime:
(device id, implementation, regime id). A *cell* is a GPU in a regime: (device id, regime id).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property

import msgspec

from gpubench import curves
from gpubench.base import group_by
from gpubench.curves import stats
from gpubench.measure.plan import SLOW_BYTES, Constraints, Series, Step, Workload, workload
from gpubench.result.case import DEVICE_GROUP, FUNCTIONS, RESIDENT, Case, calls_behind, copies
from gpubench.result.run import Block, DeviceKind, Measurement, Outcome


def device_ids(constraints: Constraints, kind: DeviceKind) -> list[str]:
    """Return the ids of the devices of this kind."""
    return [target.device.id for target in constraints.targets if target.device.kind == kind]


# ---------------------------------------------------------------- the ladder

# A launch is cheap if it takes at most CHEAP_S on a machine of SLOW_BYTES and SLOW_FLOPS a second.
CHEAP_S, SLOW_FLOPS = 8e-3, 4e10


class Rungs:
    """The ladder of one op, without sizes at which the given devices have no case."""

    def __init__(self, series: Series, constraints: Constraints) -> None:
        self.series = series
        self._cpu = device_ids(constraints, "cpu")
        self._host_alone = len(self._cpu) == len(constraints.targets)
        items = [workload(series, n, constraints) for n in series.ladder.rungs()]
        last = self._last(items)
        self.refused = [item for item in items[last + 1 :] if item.skips]
        self.items = {item.n: item for item in items[: last + 1] if item.cases}
        self.sizes = list(self.items)
        self.left = list(self.sizes)  # not measured yet
        self.dropped: list[int] = []  # the tops that take too long, ascending
        self.asked: set[int] = set()  # also where it failed: nothing is asked for again and again
        self.tops = 0  # how often the top was asked for again
        self.checked = False  # whether a size past a power of two was asked for

    def _last(self, items: Sequence[Workload]) -> int:
        """Return the index in `items` of the largest size that a GPU (if none can, a CPU) can run, or -1."""
        devices = [{case.device_id for case in item.cases} for item in items]
        # A device that cannot run the smallest size does not count.
        first = next(filter(None, devices), set())
        first = first - set(self._cpu) or first
        return max((i for i, present in enumerate(devices) if present & first), default=-1)

    @property
    def rest(self) -> list[int]:
        """The sizes that are still to be measured, without the dropped tops."""
        return [n for n in self.left if n not in self.dropped]

    @property
    def top(self) -> int:
        """The largest size of the ladder that has not been dropped, or the smallest size if all were."""
        return max((n for n in self.sizes if n not in self.dropped), default=self.sizes[0])

    @property
    def middle(self) -> int:
        return self.series.ladder.ends(self.sizes)[1]

    @property
    def ends(self) -> list[int]:
        """The smallest size, the third highest and the highest."""
        ladder = self.series.ladder
        # Without a size that has a case, those of the whole ladder let the run report why.
        return sorted({*ladder.ends(self.sizes or ladder.rungs())})

    def next(self) -> list[int]:
        """Return the sizes of the next turn: first the smallest and the largest cheap size, then all cheap
        ones, then the rest. A size is cheap if its launch takes at most CHEAP_S seconds on a slow machine."""
        if len(self.left) == len(self.sizes):
            return sorted({self.sizes[0], self._begin} & set(self.rest))
        return [n for n in self.rest if self._is_cheap(n)] or self.rest

    @property
    def _begin(self) -> int:
        """The largest cheap size, or the smallest size if none is cheap."""
        return max(filter(self._is_cheap, self.sizes), default=self.sizes[0])

    def _is_cheap(self, n: int) -> bool:
        op, params = self.series.op, self.series.params(n)
        seconds = (op.seconds(params) or op.flops(params) / SLOW_FLOPS, op.inputs_s(params))
        return max(op.bytes(params, self.series.dtype) / SLOW_BYTES, *seconds) <= CHEAP_S

    def at(self, n: int, *, whole: bool) -> Workload:
        """Return the workload at size `n` with the cases that are worth measuring there, or with all if `whole`
        is true. Cases on one CPU device that may affect a break-even are measured at every size, all others at
        a few sizes."""
        item = self.items[n]
        cases = tuple(case for case in item.cases if whole or self._stays(case, item, n))
        # Of a CPU alone the answer is about the largest sizes.
        explained = (self.top, self.middle if self._host_alone else self.sizes[0])
        return msgspec.structs.replace(item, cases=cases, explained=n in explained)

    def _stays(self, case: Case, item: Workload, n: int) -> bool:
        low, second, third = (self.sizes[min(i, len(self.sizes) - 1)] for i in range(3))
        if case.variant is not None:
            return n in (low, self.middle, self.top)
        if case.device_id in self._cpu:
            best = next(name for name in self._cpu if any(other.device_id == name for other in item.cases))
            beside = _outdone(case, item) or case.device_id != best
            return not beside or n in (second, self.middle, self.top)
        if _outdone(case, item):
            return n == self.top and case.regime.startswith(RESIDENT)
        return n in (low, self._begin, self.middle, self.top) or (
            n == third and case.regime != "transfer-always"
        )


def _outdone(case: Case, item: Workload) -> bool:
    """Tell whether a tuned case stands beside this library case, on the same device and in the same regime. If so,
    the library case does not affect a break-even, except that of a user's function."""
    if case.implementation == "tuned" or case.variant is not None or case.group == FUNCTIONS:
        return False
    place = ("tuned", case.device_id, case.regime_id)
    return any((other.implementation, other.device_id, other.regime_id) == place for other in item.cases)


# ---------------------------------------------------------------- the times so far

Slot = tuple[str, str, str]  # device id, implementation (the search ignores variants), regime id
Cell = tuple[str, str]  # device id, regime id
Sessions = Mapping[int, Sequence[float]]  # by session: seconds per launch, a value for each block
Row = Mapping[Slot, Sessions]
Rows = Mapping[int, Row]  # by size


def slot(case: Case) -> Slot:
    """Return the device id, the implementation and the regime of the case."""
    return (case.device_id, case.implementation, case.regime_id)


class SeriesTimes:
    """The times of one series so far."""

    def __init__(
        self, series: Series, outcomes: Iterable[Outcome], kinds: Mapping[str, DeviceKind]
    ) -> None:  # fmt: skip
        self._series, self._kinds = series, kinds
        self.rows = rows(outcomes, series)
        self._by_slot: dict[Slot, dict[int, Sessions]] = {}
        for n, sessions_by_slot in self.rows.items():
            for name, sessions in sessions_by_slot.items():
                self._by_slot.setdefault(name, {})[n] = sessions

    @cached_property
    def typical(self) -> Mapping[Slot, Mapping[int, float]]:
        """The typical seconds per launch of each slot, by size."""
        return {
            name: {n: seconds(sessions) for n, sessions in sizes.items()}
            for name, sizes in self._by_slot.items()
        }

    @cached_property
    def contenders(self) -> Mapping[tuple[str, Slot], curves.TimedSizes]:
        """The times of each slot as `TimedSizes`, by series and slot."""
        return {(self._series.key, name): self._contender(name, sizes) for name, sizes in self._by_slot.items()}

    def _contender(self, name: Slot, times: Mapping[int, Sessions]) -> curves.TimedSizes:
        series, op = self._series, self._series.op
        blocks = {n: list(sessions.values()) for n, sessions in times.items()}
        sizes = [] if series.shape else [(n, series.params(n)) for n in times]
        moved = {n: (op.bytes(at, series.dtype), op.written_bytes(at, series.dtype)) for n, at in sizes}
        return curves.TimedSizes.of(self._kinds[name[0]], (series.dtype, *name), blocks, moved)


class Points:
    """The times of the series of a run. Call `forget` when a series has new times. `outcomes` returns all
    outcomes so far, and `kinds` maps each device id to the kind of the device."""

    def __init__(
        self,
        outcomes: Callable[[], Iterable[Outcome]],
        series: Sequence[Series],
        kinds: Mapping[str, DeviceKind],
    ) -> None:
        self._outcomes = outcomes
        self._series = {item.key: item for item in series}
        self._kinds = kinds
        self._by_op: dict[tuple[str, str], list[Outcome]] | None = None
        self._times: dict[str, SeriesTimes] = {}
        self._curves: dict[str, dict[Slot, curves.TimeCurve]] = {}
        self._fitted: dict[str, dict[Slot, curves.Blocks]] = {}  # the times that these curves were fitted to

    def forget(self, key: str) -> None:
        """Read the times of the series `key` again when they are next used."""
        self._by_op = None
        self._times.pop(key, None)

    def rows(self, series: Series) -> Rows:
        """Return the times of a series, by size and slot."""
        return self._of(series).rows

    def times(self, series: Series) -> Mapping[Slot, Mapping[int, float]]:
        """Return the typical seconds per launch of each slot, by size."""
        return self._of(series).typical

    def fit(self, series: Series) -> Mapping[Slot, curves.TimeCurve]:
        """Return the curve of each slot that has a time. A fit may use the times of relatives in other
        series."""
        key = series.key
        blocks = {name: item.blocks for (_, name), item in self._of(series).contenders.items()}
        before = self._fitted.get(key, {})
        changed = {(key, name) for name, times in blocks.items() if before.get(name) != times}
        if changed:
            every = {
                name: item
                for other in self._series.values()
                for name, item in self._of(other).contenders.items()
            }
            fitted = curves.fit(every, only=changed.__contains__)
            self._curves[key] = self._curves.get(key, {}) | {name: curve for (_, name), curve in fitted.items()}
            self._fitted[key] = blocks
        return self._curves.get(key, {})

    def _of(self, series: Series) -> SeriesTimes:
        if series.key not in self._times:
            if self._by_op is None:  # a run has a thousand outcomes, and all ops ask for theirs
                self._by_op = group_by(self._outcomes(), lambda outcome: (outcome.case.op, outcome.case.dtype))
            outcomes = self._by_op.get((series.op.name, series.dtype), ())
            self._times[series.key] = SeriesTimes(series, outcomes, self._kinds)
        return self._times[series.key]


def rows(outcomes: Iterable[Outcome], series: Series) -> Rows:
    """Return the median seconds of each block of a series' `main` phase, by size, slot and session. Splits,
    device groups and variants are left out."""
    times: dict[int, dict[Slot, dict[int, list[float]]]] = {}
    for outcome in outcomes:
        case = outcome.case
        apart = case.variant or case.shared_with or case.backend == DEVICE_GROUP
        if not isinstance(outcome, Measurement) or apart or not series.has(case):
            continue
        sessions: dict[int, list[float]] = {}
        for block in outcome.blocks:
            if block.phase == "main" and (middle := _middle(block)) is not None:
                sessions.setdefault(block.session, []).append(middle)
        if sessions:
            times.setdefault(case.n, {})[slot(case)] = sessions
    return times


def _middle(block: Block) -> float | None:
    used = block.wall_s[block.warmup :]
    values = [value for i, value in enumerate(used, block.warmup) if str(i) not in block.discarded] or used
    return stats.median(values) if values else None


def seconds(sessions: Sessions) -> float:
    """Return the median seconds per launch of a slot at one size, over all blocks of all sessions."""
    return stats.median([value for blocks in sessions.values() for value in blocks])


def cells(rows: Rows, cpu: Collection[str], without: Collection[str] = ()) -> list[Cell]:
    """Return each cell of a GPU that has times. `cpu` contains the ids of the CPUs, and `without` the ids of
    devices to leave out."""
    others = {*cpu, *without}
    places = ((device_id, regime) for times in rows.values() for device_id, _, regime in times)
    return list(dict.fromkeys(place for place in places if place[0] not in others))


def ratios(rows: Rows, cell: Cell, cpu: Collection[str]) -> dict[int, float]:
    """Return, by size, the fastest time on a CPU divided by the fastest time of the cell. Above 1 the cell
    wins. Sizes that lack one of the two are left out."""
    ratio = {}
    for n, slots in sorted(rows.items()):
        base = [seconds(times) for name, times in slots.items() if name[0] in cpu]
        case = [seconds(times) for name, times in slots.items() if (name[0], name[2]) == cell]
        if base and case:
            ratio[n] = min(base) / min(case)
    return ratio


# ---------------------------------------------------------------- what a launch takes

# No time grows faster than this power of the size. It is that of matmul, whose size is the side of a matrix.
STEEPEST = 3.0


# A TimeCurve is not used here: to fit it after each new time takes 0.3 to 2.5 ms, about 2 s of a default run,
# and it has no value at larger sizes, which the ladder needs.
def between(times: Mapping[int, float], n: int) -> float | None:
    """Return the seconds at size `n`, interpolated linearly on logarithmic axes between measured sizes. Below
    the smallest size, return its time. Return None above the largest size."""
    above = min((m for m in times if m >= n), default=None)
    if above is None:
        return None
    below = max((m for m in times if m <= n), default=None)
    if below is None:
        return times[above]
    return times[below] * math.pow(n / below, _power(times, below, above))


def _power(times: Mapping[int, float], low: int, high: int) -> float:
    """Return the slope of the line through two sizes, on logarithmic axes."""
    return math.log(times[high] / times[low]) / math.log(high / low) if high > low else 0.0


class Pace:
    """The seconds per launch of each case by size, for predictions at other sizes."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[object, ...], dict[int, float]] = {}

    def note(self, case: Case, seconds: float) -> None:
        """Store the seconds of a launch of the case."""
        if seconds > 0:
            self._seconds.setdefault(self._curve(case), {})[case.n] = seconds

    def expected_s(self, case: Case) -> float | None:
        """Return the expected seconds of a launch, or None if no size was measured. Above the measured sizes
        the time grows with the slope between the last two. That slope is limited: it is from 1 to STEEPEST."""
        # Too many seconds are better than too few: a sample with too few launches is corrected at little cost.
        times = self._seconds.get(self._curve(case))
        if not times:
            return None
        n, sizes = case.n, sorted(times)
        if (seconds := between(times, n)) is not None:
            return seconds
        power = min(max(_power(times, *sizes[-2:]), 1.0), STEEPEST) if len(sizes) > 1 else 1.0
        return times[sizes[-1]] * math.pow(n / sizes[-1], power)

    def least_s(self, case: Case) -> float:
        """Return a low estimate of the seconds of a launch, or 0 if no size was measured. It is the time of the
        nearest measured size, changed in proportion to the size."""
        n, times = case.n, self._seconds.get(self._curve(case), {})
        nearest = min(times, key=lambda m: abs(math.log(m / n)), default=n)
        return times.get(nearest, 0.0) * n / nearest

    @staticmethod
    def _curve(case: Case) -> tuple[object, ...]:
        return (*case.series, case.implementation_id, case.regime_id, case.device_id)


# ---------------------------------------------------------------- what a step takes

# First guesses: seconds of a step, seconds of a case in addition to its launches, and seconds for each byte of
# its operands, which are drawn, uploaded and compared.
STEP_S, CASE_S, BYTE_S = 0.08, 0.02, 4e-9
# Launches of a case with one block (the first one, trials, samples, checks), seconds and launches of each
# further block, and how many of the slowest launches take as long as the float64 reference.
LAUNCHES, BLOCK_S, BLOCK_LAUNCHES, REFERENCE_LAUNCHES = 6, 0.005, 2, 4
# Number of steps from which the seconds of a case and of a byte are estimated.
REMEMBERED = 9
# Limits of the factor by which the cost of an op may differ from the usual.
LEAST_SCALE, MOST_SCALE = 0.3, 3.0


class CostModel:
    """A model of how long steps take, which learns from the steps of a session."""

    def __init__(self, points: Points, constraints: Constraints) -> None:
        self._points = points
        self._cpu, self._gpu = device_ids(constraints, "cpu"), device_ids(constraints, "gpu")
        self._calls = constraints.selection.calls
        self._case_s: deque[float] = deque(maxlen=REMEMBERED)
        self._byte_s: deque[float] = deque(maxlen=REMEMBERED)
        self._scale: dict[str, float] = {}
        # Bytes and work of a launch, which some ops add up from many stages.
        self._sizes: dict[tuple[str, int], tuple[int, int]] = {}

    def took(self, step: Step, took_s: float) -> None:
        """Learn from a step, whose times must already be in the points. `took_s` are its seconds less those in
        which devices chose kernels. It may be below 0, because devices choose at the same time and their
        seconds are summed."""
        sizes = [(item.series, item.n, set(map(slot, item.cases))) for item in step.workloads if item.cases]
        if not sizes:
            return
        ops = group_by(sizes, lambda size: size[0].key)
        blocks = step.purpose.blocks or 1
        cases = sum(len(names) for *_, names in sizes)
        moved = sum(self._size(curve, n)[0] for curve, n, _ in sizes)
        launches_s = math.fsum(self._launches_s(curve, n, names, blocks - 1) for curve, n, names in sizes)
        rest_s = max(0.0, took_s - len(ops) * STEP_S - launches_s - cases * (blocks - 1) * BLOCK_S)
        if moved * self.byte_s <= cases * self.case_s:
            self._case_s.append(max(0.0, rest_s - moved * self.byte_s) / cases)
        else:
            self._byte_s.append(max(0.0, rest_s - cases * self.case_s) / moved)
        expected = {
            key: self.of(same[0][0], {n: names for _, n, names in same}, blocks) for key, same in ops.items()
        }
        whole_s = math.fsum(expected.values())
        for key, expected_s in expected.items():  # who was to take longer is the likelier cause
            scale = self._scale.get(key, 1.0) * (max(took_s, 0.0) / whole_s) ** (expected_s / whole_s)
            self._scale[key] = min(max(scale, LEAST_SCALE), MOST_SCALE)

    @property
    def known(self) -> bool:
        """Whether the model has learned from at least one step."""
        return bool(self._case_s or self._byte_s)

    @property
    def case_s(self) -> float:
        """The seconds of a case in addition to its launches."""
        return stats.median(self._case_s) if self._case_s else CASE_S

    @property
    def byte_s(self) -> float:
        """The seconds for each byte of the operands."""
        return stats.median(self._byte_s) if self._byte_s else BYTE_S

    def of(self, series: Series, slots: Mapping[int, Collection[Slot]], blocks: int = 1) -> float:
        """Predict the seconds of a step. `slots` are the slots to measure at each size, and `blocks` is the
        number of blocks of each case."""
        total_s = STEP_S
        for n, names in slots.items():
            total_s += len(names) * (self.case_s + (blocks - 1) * BLOCK_S)
            total_s += self._launches_s(series, n, names, blocks - 1)
            total_s += self.byte_s * self._size(series, n)[0] + series.op.inputs_s(series.params(n))
        return total_s * self._scale.get(series.key, 1.0)

    def _launches_s(self, series: Series, n: int, names: Collection[Slot], more: int) -> float:
        """Return the seconds of all launches of the contenders `names` at size `n`, and of the reference."""
        times = {name: self._launch_s(series, name, n) for name in names}
        every = math.fsum(launch_s * self._count(name) for name, launch_s in times.items())
        return (LAUNCHES + more * BLOCK_LAUNCHES) * every + REFERENCE_LAUNCHES * max(
            times.values(), default=0.0
        )

    def _count(self, name: Slot) -> int:
        return (self._calls if name[2].startswith("transfer-once") else calls_behind(name[2])) or 1

    def _size(self, series: Series, n: int) -> tuple[int, int]:
        """Return the bytes and the work (`Series.work`) of a launch."""
        key = (series.key, n)
        if key not in self._sizes:
            self._sizes[key] = (series.op.bytes(series.params(n), series.dtype), series.work(n))
        return self._sizes[key]

    def _launch_s(self, series: Series, name: Slot, n: int) -> float:
        """Return the expected seconds of a launch, from measured sizes if there are any."""
        times = self._points.times(series).get(name)
        if not times:  # about as long as the others of its side, or as the op itself says
            said_s = series.op.seconds(series.params(n))
            return max(self._cpu_s(series, n), default=said_s) if name[0] in self._cpu else 0.0
        if (launch_s := between(times, n)) is not None:
            return launch_s
        # Above the measured sizes the time grows with the work, or with the bytes if the launch copies them.
        low, copied = max(times), copies(name[2])
        more, before = (self._size(series, size)[0 if copied else 1] for size in (n, low))
        grown_s = times[low] * more / max(before, 1)
        # A GPU that waits for its next launch takes hardly longer. It competes with the CPU or is not worth it.
        bounds = self._cpu_s(series, n) if name[0] in self._gpu and not copied else []
        return min([grown_s, *bounds])

    def _cpu_s(self, series: Series, n: int) -> list[float]:
        """Return the seconds of a launch by each contender of the CPU."""
        return [self._launch_s(series, name, n) for name in self._points.times(series) if name[0] in self._cpu]
