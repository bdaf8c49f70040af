"""Stage assignments of least predicted time: the side that runs each stage of a workload, found by an exact search.

A stage assignment has a letter for each stage: `c` is the CPU, `g` is the GPU. Its predicted time is the sum of the
stage times on their sides, of a launch and its wait wherever the GPU takes over, and of the copies. A value is copied
once to each side that reads it and lacks it; a copy stays valid until a stage writes the value. The wanted values end
on the host. Nothing overlaps.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpubench.curves.stats import median
from gpubench.result.run import AssignmentTimes

CPU, GPU = "c", "g"
# Predicted times so near to the least one are worth a measurement, of so many stage assignments at most.
NEAR, MOST = 1.25, 3
# States that a narrow search keeps.
WIDTH = 32


class StageCost(NamedTuple):
    """The cost of one stage on each side."""

    cpu_s: float  # seconds in the CPU's chain
    gpu_s: float | None  # in the GPU's; None: the host does it
    reads: tuple[str, ...]  # values
    writes: tuple[str, ...]  # values


class AssignmentCosts(NamedTuple):
    """The costs that make a prediction."""

    steps: Sequence[StageCost]  # the stages
    up_s: Mapping[str, float]  # seconds of one copy of a value
    down_s: Mapping[str, float]  # the same, back
    enter_s: float  # an empty launch and its wait
    given: Mapping[str, str]  # the sides on which a value is at first
    wanted: Sequence[str]  # values that end on the host

    def without_copies(self) -> AssignmentCosts:
        """Return these costs where a copy takes no time."""
        return self._replace(up_s=dict.fromkeys(self.up_s, 0.0), down_s=dict.fromkeys(self.down_s, 0.0))


class Predicted(NamedTuple):
    """A stage assignment and its seconds."""

    seconds: float  # of one call
    assignment: str  # a letter a stage


def single_sides(steps: Sequence[StageCost]) -> tuple[str, str]:
    """Return two stage assignments: all stages on the CPU, and all on the GPU except the host's stages."""
    return CPU * len(steps), "".join(CPU if step.gpu_s is None else GPU for step in steps)


class _Step(NamedTuple):
    """A stage on one side. Two bits of a number stand for each value: whether its copy on the CPU is valid, and whether
    its copy on the GPU is."""

    seconds: float  # of the stage on this side
    reads: tuple[
        tuple[int, int, float], ...
    ]  # the bit of this side, both bits, and what a copy to this side takes
    written: int  # the bits of this side
    replaced: int  # both bits


class _Chain:
    """The costs in a form for trying many stage assignments. A value that both sides have from the start and that no
    stage writes is left out."""

    def __init__(self, costs: AssignmentCosts) -> None:
        self._costs = costs
        written = {name for step in costs.steps for name in step.writes}
        moving = [name for name, sides in costs.given.items() if name in written or sides != CPU + GPU]
        self._bits = {name: 1 << 2 * i for i, name in enumerate(dict.fromkeys([*moving, *sorted(written)]))}
        self.begin = sum(self._valid(name, sides) for name, sides in costs.given.items() if name in self._bits)
        self.steps = [{side: self._step(step, side) for side in _sides(step)} for step in costs.steps]
        self._wanted = [(self._bits[name], costs.down_s[name]) for name in costs.wanted if name in self._bits]
        last = {name: number for number, step in enumerate(costs.steps) for name in (*step.reads, *step.writes)}
        last |= dict.fromkeys(costs.wanted, len(costs.steps))
        # Behind each stage the bits of what somebody will still read.
        self.live = [
            sum(3 * bit for name, bit in self._bits.items() if last.get(name, -1) > number)
            for number in range(len(costs.steps))
        ]

    def _valid(self, name: str, sides: str) -> int:
        return sum(self._bits[name] << (CPU + GPU).index(side) for side in sides)

    def _step(self, step: StageCost, side: str) -> _Step:
        own_s = step.gpu_s if side == GPU else step.cpu_s
        assert own_s is not None
        copies = self._costs.up_s if side == GPU else self._costs.down_s
        reads = [name for name in dict.fromkeys(step.reads) if name in self._bits]
        return _Step(
            own_s,
            tuple(
                (self._valid(name, side), 3 * self._bits[name], copies.get(name, math.inf)) for name in reads
            ),
            sum(self._valid(name, side) for name in dict.fromkeys(step.writes)),
            sum(3 * self._bits[name] for name in dict.fromkeys(step.writes)),
        )

    def walk(self, number: int, side: str, valid: int, before: str) -> tuple[float, int]:
        """Return the seconds of a stage on `side`, copies included, and the copies that are valid after it. `valid`:
        the copies that are valid before it; `before`: the side of the previous stage."""
        step = self.steps[number][side]
        seconds = step.seconds + (self._costs.enter_s if side == GPU != before else 0.0)
        for here, both, copy_s in step.reads:
            if valid & both and not valid & here:
                seconds += copy_s
                valid |= here
        return seconds, valid & ~step.replaced | step.written

    def least_s(self) -> list[dict[str, float]]:
        """Return, for each stage and each side that it ran on, the least seconds of the stages after it, without
        copies."""
        bounds = [dict.fromkeys((CPU, GPU), 0.0)]
        for step in reversed(self.steps[1:]):
            enter_s = {(a, b): self._costs.enter_s if b == GPU != a else 0.0 for a in (CPU, GPU) for b in step}
            behind = bounds[-1]
            bounds.append(
                {a: min(step[b].seconds + enter_s[a, b] + behind[b] for b in step) for a in (CPU, GPU)}
            )
        return bounds[::-1]

    def end_s(self, valid: int) -> float:
        return sum(copy_s for bit, copy_s in self._wanted if not valid & bit)


def _sides(step: StageCost) -> tuple[str, ...]:
    return (CPU,) if step.gpu_s is None else (CPU, GPU)


def predicted_s(costs: AssignmentCosts, assignment: str) -> float:
    """Return the seconds of one stage assignment."""
    return _predicted_s(_Chain(costs), assignment)


def _predicted_s(chain: _Chain, assignment: str) -> float:
    valid, before, seconds = chain.begin, CPU, 0.0
    for number, side in enumerate(assignment):
        own_s, valid = chain.walk(number, side, valid, before)
        seconds, before = seconds + own_s, side
    return seconds + chain.end_s(valid)


def nearest(costs: AssignmentCosts, most: int = MOST, near: float = NEAR) -> list[Predicted]:
    """Return the stage assignment of least predicted time and those that take up to `near` times as long, at most
    `most` in all, the best first."""
    chain = _Chain(costs)
    limit_s = near * min(_predicted_s(chain, assignment) for assignment in single_sides(costs.steps))
    # What a narrow search finds is what the exact one has to beat.
    narrow = _search(chain, limit_s, most, WIDTH)
    if len(narrow) == most:
        limit_s = min(limit_s, narrow[-1].seconds)
    best = _search(chain, limit_s, most)
    return [assignment for assignment in best if assignment.seconds <= near * best[0].seconds]


def _search(chain: _Chain, limit_s: float, most: int, widest: int | None = None) -> list[Predicted]:
    """Return the best `most` stage assignments that take up to `limit_s`.

    A state is the set of valid copies and the side that ran last. The search keeps the best `most` ways to each state:
    no other way can be among the best of the whole. It drops a way that cannot end in time. If `widest` is given, it
    keeps at most that many states after each stage, and the result need not be the best.
    """
    limit_s, left_s = limit_s * (1 + 1e-9), chain.least_s()
    ways: dict[tuple[int, str], list[Predicted]] = {(chain.begin, CPU): [Predicted(0.0, "")]}
    for number, live in enumerate(chain.live):
        after: dict[tuple[int, str], list[Predicted]] = {}
        for (before, last), prefixes in ways.items():
            for side in chain.steps[number]:
                own_s, valid = chain.walk(number, side, before, last)
                latest_s = limit_s - left_s[number][side]
                after.setdefault((valid & live, side), []).extend(
                    Predicted(prefix.seconds + own_s, prefix.assignment + side)
                    for prefix in prefixes
                    if prefix.seconds + own_s <= latest_s
                )
        ways = {state: heapq.nsmallest(most, prefixes) for state, prefixes in after.items() if prefixes}
        if widest is not None and len(ways) > widest:
            cheapest = heapq.nsmallest(widest, ways, key=lambda state: ways[state][0].seconds)
            ways = {state: ways[state] for state in cheapest}
    ends = [
        Predicted(prefix.seconds + chain.end_s(valid), prefix.assignment)
        for (valid, _), prefixes in ways.items()
        for prefix in prefixes
    ]
    return heapq.nsmallest(most, (prefix for prefix in ends if prefix.seconds <= limit_s))


# ---------------------------------------------------------------- seconds of stages, without those of the clock

# Share of what was read of the stages that remains when a launch and its wait take all of a short chain.
LEAST = 0.1


def adding_up(steps_s: Sequence[float], whole_s: float) -> list[float]:
    """Return seconds of the steps of a chain that add up to `whole_s`, the time of the chain without clock readings.

    A reading costs the same after every step, so each step loses the same seconds, down to 0. The seconds that remain
    are scaled to the whole.
    """
    extra = max(0.0, sum(steps_s) - whole_s) / max(1, len(steps_s))
    rest = [max(0.0, seconds - extra) for seconds in steps_s]
    total = sum(rest)
    return [seconds * whole_s / total for seconds in rest] if total else rest


def stage_seconds(assignment_times: AssignmentTimes) -> tuple[list[float], list[float | None]]:
    """Return the seconds of each stage on the CPU and on the GPU for a prediction. A stage of the host has None on the
    GPU.

    The stages of the CPU add up to its chain. Those of a GPU with a clock of its own add up to its chain less one
    launch and its wait, but at least to `LEAST` of what was read.
    """
    enter_s = median(assignment_times.enter_s) if assignment_times.clock != "waited" else 0.0
    on_gpu = [median(times) for times in assignment_times.gpu_s if times]
    left_s = max(median(assignment_times.gpu_whole_s) - enter_s, LEAST * sum(on_gpu))
    gpu_s = iter(adding_up(on_gpu, left_s))
    return (
        adding_up([median(times) for times in assignment_times.cpu_s], median(assignment_times.cpu_whole_s)),
        [next(gpu_s) if times else None for times in assignment_times.gpu_s],
    )
