"""Which side runs each stage of a workload: the placements of least predicted time, exactly.

A placement is a letter for each stage: `c` on the CPU, `g` on the GPU. Its time is that of the stages on their sides,
of a launch and its wait wherever the GPU takes over, and of one copy of each value to a side that reads it and has it
not. A copy stays valid, and what is wanted ends on the host. Nothing overlaps.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpubench.model.result import Placing
from gpubench.stats import median

CPU, GPU = "c", "g"
# Predicted times so near to the least one are worth a measurement, of so many placements at most.
NEAR, MOST = 1.25, 3
# Share of what was read of the stages that remains when a launch and its wait take all of a short chain.
LEAST = 0.1


class StageCost(NamedTuple):
    """One stage: its seconds in the chain of each side (`gpu_s` None: the host does it), and the values it uses."""

    cpu_s: float
    gpu_s: float | None
    reads: tuple[str, ...]
    writes: tuple[str, ...]


class PlacementCosts(NamedTuple):
    """What a prediction is made of. `up_s` and `down_s` have the seconds of one copy of a value, `enter_s` is an empty
    launch and its wait, `given` the sides on which a value is at first, `wanted` ends on the host."""

    steps: Sequence[StageCost]
    up_s: Mapping[str, float]
    down_s: Mapping[str, float]
    enter_s: float
    given: Mapping[str, str]
    wanted: Sequence[str]

    def without_copies(self) -> PlacementCosts:
        """The same where a copy takes no time."""
        return self._replace(up_s=dict.fromkeys(self.up_s, 0.0), down_s=dict.fromkeys(self.down_s, 0.0))


class Predicted(NamedTuple):
    """A placement and its seconds."""

    seconds: float
    placement: str


def single_sides(steps: Sequence[StageCost]) -> tuple[str, str]:
    """All on the CPU, and all on the GPU but what the host does."""
    return CPU * len(steps), "".join(CPU if step.gpu_s is None else GPU for step in steps)


def adding_up(steps_s: Sequence[float], whole_s: float) -> list[float]:
    """Seconds of the steps of a chain that add up to those of the whole, which ran without clock readings.

    A reading costs the same behind every step, so each loses the same; if that leaves less than nothing of one, or the
    readings cost nothing, the rest is in proportion.
    """
    extra = max(0.0, sum(steps_s) - whole_s) / max(1, len(steps_s))
    left = [max(0.0, seconds - extra) for seconds in steps_s]
    total = sum(left)
    return [seconds * whole_s / total for seconds in left] if total else left


def stage_seconds(placing: Placing) -> tuple[list[float], list[float | None]]:
    """What a prediction takes for each stage on the CPU, and on the GPU (None: the host does it).

    The stages of a side, and on a GPU with a clock of its own one launch and its wait, add up to that side alone.
    """
    enter_s = median(placing.enter_s) if placing.clock != "waited" else 0.0
    on_gpu = [median(one) for one in placing.gpu_s if one]
    left_s = max(median(placing.gpu_whole_s) - enter_s, LEAST * sum(on_gpu))
    gpu_s = iter(adding_up(on_gpu, left_s))
    return (
        adding_up([median(one) for one in placing.cpu_s], median(placing.cpu_whole_s)),
        [next(gpu_s) if one else None for one in placing.gpu_s],
    )


class _State(NamedTuple):
    """Where the values are that somebody will still read, and which side ran last."""

    places: tuple[tuple[str, str], ...]
    side: str


def _step(costs: PlacementCosts, number: int, side: str, before: _State) -> tuple[float, _State]:
    """Seconds of the stage on that side behind this state, copies included, and the state behind it."""
    step, places = costs.steps[number], dict(before.places)
    own_s = step.gpu_s if side == GPU else step.cpu_s
    assert own_s is not None
    seconds = own_s + (costs.enter_s if side == GPU != before.side else 0.0)
    copies = costs.up_s if side == GPU else costs.down_s
    for name in dict.fromkeys(step.reads):
        if name in places and side not in places[name]:
            seconds += copies[name]
            places[name] = CPU + GPU
    places.update(dict.fromkeys(step.writes, side))
    return seconds, _State(tuple(sorted(places.items())), side)


def _end_s(costs: PlacementCosts, state: _State) -> float:
    places = dict(state.places)
    return sum(costs.down_s[name] for name in costs.wanted if CPU not in places[name])


def _begin(costs: PlacementCosts) -> _State:
    return _State(tuple(sorted(costs.given.items())), CPU)


def predicted_s(costs: PlacementCosts, placement: str) -> float:
    """Seconds of one placement."""
    state, seconds = _begin(costs), 0.0
    for number, side in enumerate(placement):
        own_s, state = _step(costs, number, side, state)
        seconds += own_s
    return seconds + _end_s(costs, state)


def nearest(costs: PlacementCosts, most: int = MOST, near: float = NEAR) -> list[Predicted]:
    """The placement of least predicted time, and the others up to `near` times it, `most` in all, the best first.

    For each state the best `most` ways to it are kept: no other way can be among the best of the whole. What takes
    longer than a known placement may is cut off.
    """
    limit_s = near * min(predicted_s(costs, one) for one in single_sides(costs.steps))
    lasting = _last_uses(costs)
    ways: dict[_State, list[Predicted]] = {_begin(costs): [Predicted(0.0, "")]}
    for number, step in enumerate(costs.steps):
        after: dict[_State, list[Predicted]] = {}
        for before, known in ways.items():
            for side in (CPU,) if step.gpu_s is None else (CPU, GPU):
                own_s, state = _step(costs, number, side, before)
                live = tuple(one for one in state.places if lasting[one[0]] > number)
                after.setdefault(_State(live, side), []).extend(
                    Predicted(one.seconds + own_s, one.placement + side)
                    for one in known
                    if one.seconds + own_s <= limit_s * (1 + 1e-9)
                )
        ways = {state: heapq.nsmallest(most, known) for state, known in after.items() if known}
    ends = [
        Predicted(one.seconds + _end_s(costs, state), one.placement)
        for state, known in ways.items()
        for one in known
    ]
    best = heapq.nsmallest(most, ends)
    return [one for one in best if one.seconds <= near * best[0].seconds]


def _last_uses(costs: PlacementCosts) -> dict[str, int]:
    """The stage behind which nobody uses a value; what is wanted is used at the end. What both sides have from the
    start, and nobody writes, needs no looking after."""
    found = dict.fromkeys(costs.given, -1)
    for number, step in enumerate(costs.steps):
        found.update(dict.fromkeys((*step.reads, *step.writes), number))
    return found | dict.fromkeys(costs.wanted, len(costs.steps))
