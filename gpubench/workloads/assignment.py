"""The exact search for the stage assignments with the least predicted time.

A stage assignment is a string with one letter for each stage: `c` if the CPU runs it, `g` if the GPU does. Its
predicted time is the sum of the times of its stages and copies, plus a launch and its wait for each stage on the
GPU that follows one on the CPU. A value is copied to a side when a stage there reads it and the side has no valid
copy. A copy is valid until a stage writes the value. The values that the caller wants are copied to the host at the
end. The prediction assumes that nothing overlaps.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpubench.curves.stats import median
from gpubench.result.run import AssignmentTimes

CPU, GPU = "c", "g"
# The assignments to measure: those whose predicted time is at most `NEAR` times the least one, `MOST` at most.
NEAR, MOST = 1.25, 3
# The number of states that the narrow search keeps after each stage.
WIDTH = 32


class StageCost(NamedTuple):
    """The cost of one stage on the CPU and on the GPU."""

    cpu_s: float  # seconds of the stage in the chain on the CPU
    # seconds of the stage in the chain on the GPU; None if only the host can run the stage
    gpu_s: float | None
    reads: tuple[str, ...]  # names of the values that the stage reads
    writes: tuple[str, ...]  # names of the values that the stage writes


class AssignmentCosts(NamedTuple):
    """All that the prediction for a stage assignment needs."""

    steps: Sequence[StageCost]  # costs of each stage, in order
    up_s: Mapping[str, float]  # seconds of one copy of a value to the GPU, by the value's name
    down_s: Mapping[str, float]  # seconds of one copy back to the host, by the value's name
    enter_s: float  # seconds of an empty launch and its wait
    # letters of the sides that have a value at first (`c`, `g` or `cg`), by the value's name
    initial_sides: Mapping[str, str]
    host_values: Sequence[str]  # names of the values that must end on the host

    def without_copies(self) -> AssignmentCosts:
        """Return a copy of these costs in which no copy takes any time."""
        return self._replace(up_s=dict.fromkeys(self.up_s, 0.0), down_s=dict.fromkeys(self.down_s, 0.0))


class Predicted(NamedTuple):
    """A stage assignment and its predicted time."""

    seconds: float  # predicted seconds of one call
    assignment: str  # one letter for each stage


def single_sides(on_host: Sequence[bool]) -> dict[str, str]:
    """Return two stage assignments by name: `cpu` has every stage on the CPU, and `gpu` on the GPU. `on_host` says
    for each stage whether only the host can run it; such a stage is on the CPU in both."""
    return {"cpu": CPU * len(on_host), "gpu": "".join(CPU if host else GPU for host in on_host)}


class _Step(NamedTuple):
    """One stage on the CPU or on the GPU."""

    # The bits of an integer say which copies are valid: each value has a bit for the CPU's copy and one for the GPU's.
    seconds: float  # seconds of the stage here
    # for each value that the stage reads: this side's bit, both bits, and the seconds of a copy to this side
    reads: tuple[tuple[int, int, float], ...]
    written: int  # bits of this side for the values that the stage writes
    replaced: int  # both bits of every value that the stage writes


class StageChain:
    """The costs of all stages, prepared for trying many stage assignments quickly."""

    def __init__(self, costs: AssignmentCosts) -> None:
        self._costs = costs
        written = {name for step in costs.steps for name in step.writes}
        moving = [name for name, sides in costs.initial_sides.items() if name in written or sides != CPU + GPU]
        self._bits = {name: 1 << 2 * i for i, name in enumerate(dict.fromkeys([*moving, *sorted(written)]))}
        self.begin = sum(
            self._valid(name, sides) for name, sides in costs.initial_sides.items() if name in self._bits
        )
        self.steps = [{side: self._step(step, side) for side in _sides(step)} for step in costs.steps]
        self._host_values = [
            (self._bits[name], costs.down_s[name]) for name in costs.host_values if name in self._bits
        ]
        last = {name: number for number, step in enumerate(costs.steps) for name in (*step.reads, *step.writes)}
        last |= dict.fromkeys(costs.host_values, len(costs.steps))
        # For each stage: both bits of every value that a later stage or the caller still uses.
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
        """Return the seconds of stage `number` on `side` with its copies, and the bits (see `_Step`) of the copies that
        are valid after it. `valid` has the bits of those that are valid before it. `before` is the side of the
        previous stage."""
        step = self.steps[number][side]
        seconds = step.seconds + (self._costs.enter_s if side == GPU != before else 0.0)
        for here, both, copy_s in step.reads:
            if valid & both and not valid & here:
                seconds += copy_s
                valid |= here
        return seconds, valid & ~step.replaced | step.written

    def least_s(self) -> list[dict[str, float]]:
        """Return, for each stage, lower bounds of the seconds that all later stages take, without copies. A stage has
        two bounds, by the side that runs it, because a launch is needed if the GPU follows the CPU."""
        bounds = [dict.fromkeys((CPU, GPU), 0.0)]
        for step in reversed(self.steps[1:]):
            enter_s = {(a, b): self._costs.enter_s if b == GPU != a else 0.0 for a in (CPU, GPU) for b in step}
            behind = bounds[-1]
            bounds.append(
                {a: min(step[b].seconds + enter_s[a, b] + behind[b] for b in step) for a in (CPU, GPU)}
            )
        return bounds[::-1]

    def end_s(self, valid: int) -> float:
        """Return the seconds of the copies to the host after the last stage. `valid` has the bits of the copies that
        are valid then."""
        return sum(copy_s for bit, copy_s in self._host_values if not valid & bit)


def _sides(step: StageCost) -> tuple[str, ...]:
    return (CPU,) if step.gpu_s is None else (CPU, GPU)


def predicted_s(chain: StageChain, assignment: str) -> float:
    """Return the predicted seconds of one call with this stage assignment."""
    valid, before, seconds = chain.begin, CPU, 0.0
    for number, side in enumerate(assignment):
        own_s, valid = chain.walk(number, side, valid, before)
        seconds, before = seconds + own_s, side
    return seconds + chain.end_s(valid)


def nearest(costs: AssignmentCosts) -> list[Predicted]:
    """Return the stage assignment with the least predicted time, and others that take at most NEAR times as long: at
    most MOST in all, the fastest first."""
    chain = StageChain(costs)
    alone = single_sides([step.gpu_s is None for step in costs.steps]).values()
    limit_s = NEAR * min(predicted_s(chain, assignment) for assignment in alone)
    # The exact search need not follow ways that are slower than the results of a narrow search.
    narrow = _search(chain, limit_s, WIDTH)
    if len(narrow) == MOST:
        limit_s = min(limit_s, narrow[-1].seconds)
    best = _search(chain, limit_s)
    return [assignment for assignment in best if assignment.seconds <= NEAR * best[0].seconds]


def _search(chain: StageChain, limit_s: float, widest: int | None = None) -> list[Predicted]:
    """Return the MOST fastest stage assignments of at most `limit_s` seconds, the fastest first. With `widest`, only
    that many states are followed, and faster assignments may be missed."""
    limit_s, left_s = limit_s * (1 + 1e-9), chain.least_s()
    # A state is the set of valid copies and the side that ran the last stage. For each state the MOST fastest
    # ways to it are kept: no other way can be among the fastest overall.
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
        ways = {state: heapq.nsmallest(MOST, prefixes) for state, prefixes in after.items() if prefixes}
        if widest is not None and len(ways) > widest:
            cheapest = heapq.nsmallest(widest, ways, key=lambda state: ways[state][0].seconds)
            ways = {state: ways[state] for state in cheapest}
    ends = [
        Predicted(prefix.seconds + chain.end_s(valid), prefix.assignment)
        for (valid, _), prefixes in ways.items()
        for prefix in prefixes
    ]
    return heapq.nsmallest(MOST, (prefix for prefix in ends if prefix.seconds <= limit_s))


# ---------------------------------------------------------------- seconds of stages, without those of the clock

# A launch and its wait may take all of a short chain. The stages then still have this share of their measured seconds.
LEAST = 0.1


def fit_to_sum(steps_s: Sequence[float], whole_s: float) -> list[float]:
    """Fit `steps_s`, the seconds of a chain's steps, to `whole_s`, the seconds of the same chain without clock
    readings. Each step loses the same time, but none falls below 0; then all are scaled to add up to `whole_s`."""
    # a clock reading takes the same time after every step
    extra = max(0.0, sum(steps_s) - whole_s) / max(1, len(steps_s))
    rest = [max(0.0, seconds - extra) for seconds in steps_s]
    total = sum(rest)
    return [seconds * whole_s / total for seconds in rest] if total else rest


def stage_seconds(assignment_times: AssignmentTimes) -> tuple[list[float], list[float | None]]:
    """Return two lists: the seconds of each stage on the CPU, and on the GPU (None for a stage that only the host can
    run). Each list adds up to the time of its chain. On a GPU that has a clock, an empty launch is subtracted."""
    enter_s = median(assignment_times.enter_s) if assignment_times.clock != "waited" else 0.0
    on_gpu = [median(times) for times in assignment_times.gpu_s if times]
    left_s = max(median(assignment_times.gpu_whole_s) - enter_s, LEAST * sum(on_gpu))
    gpu_s = iter(fit_to_sum(on_gpu, left_s))
    return (
        fit_to_sum([median(times) for times in assignment_times.cpu_s], median(assignment_times.cpu_whole_s)),
        [next(gpu_s) if times else None for times in assignment_times.gpu_s],
    )
