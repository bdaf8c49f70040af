"""The fixed ladder of a run's ops: a few sizes that are the same in every run on every machine, measured first.

In turns over all ops, so that none is without an answer while another one has its third size: a low and a middle size,
what is cheap in between, then the rest. Where that would take too much of the time, the tops fall by a rung.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence

import msgspec

from gpubench.measure.costs import ONE_STEP_S, CostModel, count_together
from gpubench.measure.plan import ONE_BLOCK, SLOW_BYTES, Constraints, Series, Step, Workload, together, workload
from gpubench.measure.points import Slot, slot
from gpubench.measure.recorder import Recorder
from gpubench.result.case import RESIDENT, Case, own_names
from gpubench.result.run import Planned, RunWarning, Skip

# A launch is cheap if it takes so long on a slow machine of SLOW_BYTES, and so many operations, a second.
CHEAP_S, SLOW_FLOPS = 8e-3, 4e10
# Predictions are missed: a step is begun if it is predicted to fit with this much to spare.
MARGIN = 1.1


class Rungs:
    """The ladder of one op on the devices at hand: sizes without a case are left out."""

    def __init__(self, series: Series, constraints: Constraints) -> None:
        self.series = series
        self._scope = constraints
        self._cpu = [target.device.id for target in constraints.targets if target.device.kind == "cpu"]
        items = [workload(series, n, constraints) for n in series.ladder.rungs()]
        last = self._last(items)
        self.refused = [item for item in items[last + 1 :] if item.skips]
        self.items = {item.n: item for item in items[: last + 1] if item.cases}
        self.sizes = list(self.items)
        self.left = list(self.sizes)  # not measured yet
        self.dropped: list[int] = []  # the tops that take too long, ascending

    def _last(self, items: Sequence[Workload]) -> int:
        """The place of the largest size that memory holds: some GPU has to be left of those of the smallest one."""
        devices = [{case.device_id for case in item.cases} for item in items]
        wanted = next(filter(None, devices), set())
        wanted = wanted - set(self._cpu) or wanted
        return max((i for i, known in enumerate(devices) if known & wanted), default=-1)

    @property
    def rest(self) -> list[int]:
        """The sizes that are still to be measured, without the tops that were dropped."""
        return [n for n in self.left if n not in self.dropped]

    @property
    def top(self) -> int:
        """The largest size that is, or is to be, measured."""
        return max((n for n in self.sizes if n not in self.dropped), default=self.sizes[0])

    @property
    def middle(self) -> int:
        return self.series.ladder.ends(self.sizes)[1]

    @property
    def ends(self) -> list[int]:
        """A low, a middle and the largest size."""
        return sorted({self.sizes[0], self.middle, self.top}) if self.sizes else []

    def next(self) -> list[int]:
        """The sizes of the next turn: a low one and the largest cheap one, then all cheap ones, then the rest."""
        if len(self.left) == len(self.sizes):
            return sorted({self.sizes[0], self._begin} & set(self.rest))
        return [n for n in self.rest if self._is_cheap(n)] or self.rest

    @property
    def _begin(self) -> int:
        """The largest cheap size: with the lowest one it is the first answer of all."""
        return max(filter(self._is_cheap, self.sizes), default=self.sizes[0])

    def _is_cheap(self, n: int) -> bool:
        op, params = self.series.op, self.series.params(n)
        seconds = op.seconds(params) if op.seconds else op.flops(params) / SLOW_FLOPS
        return max(op.bytes(params, self.series.dtype) / SLOW_BYTES, seconds) <= CHEAP_S

    def at(self, n: int, *, whole: bool) -> Workload:
        """The cases of a size. CPUs have every size; GPUs, copies and what decides nothing have few, but for a size
        that is to be measured `whole`."""
        item, host_alone = self.items[n], len(self._cpu) == len(self._scope.targets)
        cases = tuple(case for case in item.cases if whole or self._stays(case, item, n))
        # Of a CPU alone the answer is about the largest sizes.
        explained = (self.top, self.middle if host_alone else self.sizes[0])
        return msgspec.structs.replace(item, cases=cases, explained=n in explained)

    def _stays(self, case: Case, item: Workload, n: int) -> bool:
        low, second, third = (self.sizes[min(i, len(self.sizes) - 1)] for i in range(3))
        if case.variant is not None:
            return n in (low, self.middle, self.top)
        if case.device_id in self._cpu:
            best = next(name for name in self._cpu if any(other.device_id == name for other in item.cases))
            beside = item.outdone(case) or case.device_id != best
            return not beside or n in (second, self.middle, self.top)
        if item.outdone(case):
            return n == self.top and case.regime.startswith(RESIDENT)
        return n in (low, self._begin, self.middle, self.top) or (
            n == third and case.regime != "transfer-always"
        )


class Climb:
    """The turns over the ladders of all ops. `reserve_s`: the time that it leaves."""

    def __init__(
        self, ladders: Sequence[Rungs], costs: CostModel, recorder: Recorder, scope: Constraints,
        left_s: Callable[[], float], reserve_s: float,
    ) -> None:  # fmt: skip
        self._ladders = ladders
        self._costs = costs
        self._recorder = recorder
        self._scope = scope
        self._left_s = left_s
        self._reserve_s = reserve_s
        self._halved: dict[str, RunWarning] = {}
        self._names = own_names(rungs.series.op.name for rungs in ladders)
        for rungs in ladders:  # those that an interrupted run has measured
            rungs.left = [n for n in rungs.left if not any(map(self._tried, rungs.at(n, whole=False).cases))]

    def _tried(self, case: Case) -> bool:
        outcome = self._recorder.outcome(case.id)
        unreached = outcome is None or isinstance(outcome, Planned)
        return not (unreached or (isinstance(outcome, Skip) and outcome.reason == "budget"))

    def steps(self) -> Iterator[Step]:
        """All rungs that fit, each once."""
        for rungs in self._ladders:
            if rungs.refused:
                yield Step(tuple(msgspec.structs.replace(item, cases=()) for item in rungs.refused), ONE_BLOCK)
        order = random.Random(f"{self._scope.settings.seed} ladder")
        while pending := [rungs for rungs in self._ladders if rungs.rest]:
            turn = order.sample(pending, len(pending))
            while turn:
                if self._left_s() <= 0:
                    return
                self._drop_tops()
                yield from self._measured(self._next(turn))

    def _next(self, turn: list[Rungs]) -> list[tuple[Rungs, list[int], bool]]:
        """Take from the ops of a turn as many as one step holds. Return each with its sizes, and whether those are
        measured whole. What is not known yet is one op."""
        asked = [(rungs, sizes, self._cost(rungs, sizes)) for rungs in turn if (sizes := rungs.next())]
        count = count_together((cost_s for *_, cost_s in asked), ONE_STEP_S if self._costs.known else 0.0)
        turn[:] = [rungs for rungs, *_ in asked[count:]]
        chosen = []
        for rungs, sizes, cost_s in asked[:count]:
            alone = len(rungs.left) < len(rungs.sizes) and cost_s > ONE_STEP_S
            chosen.append((rungs, sizes[:1] if alone else sizes, alone))
        return chosen

    def late(self) -> Iterator[Step]:
        """The tops that were dropped, as far as time is left for them after all."""
        for rungs in self._ladders:
            while rungs.dropped and MARGIN * self._cost(rungs, rungs.dropped[:1]) <= self._left_s():
                del rungs.dropped[0]
                yield from self._measured([(rungs, rungs.rest, True)])
                self._tell(rungs)

    def _measured(self, chosen: Sequence[tuple[Rungs, Sequence[int], bool]]) -> Iterator[Step]:
        """Steps of as many of these sizes as memory holds, an op's largest first: its operands serve the others."""
        items = []
        for rungs, sizes, whole in chosen:
            items += [rungs.at(n, whole=whole) for n in sorted(sizes, reverse=True)]
            rungs.left = [n for n in rungs.left if n not in sizes]
        for group in together([item for item in items if item.cases], self._scope):
            yield Step(group, ONE_BLOCK, ends=True)

    def _cost(self, rungs: Rungs, sizes: Sequence[int]) -> float:
        slots: dict[int, set[Slot]] = {
            n: {slot(case) for case in rungs.at(n, whole=n == rungs.top).cases} for n in sizes
        }
        return self._costs.of(rungs.series, slots) if slots else 0.0

    def _drop_tops(self) -> None:
        """Leave out tops, the dearest first, until what is left of all ladders fits."""
        begun = [rungs for rungs in self._ladders if rungs.left and len(rungs.left) < len(rungs.sizes)]
        for rungs in begun:
            rungs.dropped = []
        costs = {(i, n): self._cost(rungs, [n]) for i, rungs in enumerate(begun) for n in rungs.rest}
        allowed_s = self._left_s() - self._reserve_s
        while costs and math.fsum(costs.values()) > allowed_s:
            place, _ = max(costs, key=costs.__getitem__)
            top = begun[place].rest[-1]
            del costs[place, top]
            begun[place].dropped.insert(0, top)
        for rungs in begun:
            self._tell(rungs)

    def _tell(self, rungs: Rungs) -> None:
        """Say up to which size an op is measured, where that is not its top."""
        if (earlier := self._halved.pop(rungs.series.key, None)) is not None:
            self._recorder.withdraw(earlier)
        if rungs.dropped and rungs.dropped[-1] > rungs.top:
            self._halved[rungs.series.key] = warning = _halved(
                rungs, self._cost(rungs, rungs.dropped[-1:]), self._names[rungs.series.op.name]
            )
            self._recorder.warn(warning)


def _halved(rungs: Rungs, top_s: float, name: str) -> RunWarning:
    series, n, high = rungs.series, rungs.top, rungs.dropped[-1]
    key = series.key.replace(series.op.name, name, 1)
    return RunWarning(
        code="top-halved", severity="info",
        message=f"{key} is measured up to n = {n}, not {high}: that takes more than its share of the time, about"
        f" {top_s:.1f} s here",
        hint="raise --budget, or name the size with --sizes", data={"op": series.op.name, "dtype": series.dtype},
    )  # fmt: skip
