"""Child side: what the stages of a workload take on each of two sides, what copies take, and what that promises."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import msgspec

from gpubench import kernels
from gpubench.analysis.steps import stage_seconds
from gpubench.backends.contract import Buffer, SideReading
from gpubench.backends.contract.protocols import Places
from gpubench.curves.stats import median
from gpubench.kernels.contract.op import Op
from gpubench.measure.worker.timer import Timer, wall_s
from gpubench.result.case import Case
from gpubench.result.run import Placing
from gpubench.workloads import assignment
from gpubench.workloads.assignment import CPU, GPU, PlacementCosts, StageCost

# Rounds, and those that are thrown away: caches and clocks warm up.
ROUNDS, WARM_UP = 15, 1


def sides(op: Op) -> dict[str, str]:
    """The placement of each side alone, by its name; what the host does stays there."""
    cpu, gpu = assignment.single_sides([StageCost(0.0, None if host else 0.0, (), ()) for host in _hosts(op)])
    return {"cpu": cpu, "gpu": gpu}


def _hosts(op: Op) -> list[bool]:
    """Of each stage, whether the host does it."""
    return [kernels.load(stage.op).host is not None for stage in op.stages]


def placing(timed: Timer, session_index: int, limit_s: float) -> Placing | None:
    """Rounds of both chains with clock readings, of one copy of each value there and back, and of an empty launch; None
    where a side cannot time its stages. All of a round are neighbours in time, so that medians add up."""
    session, workspace = timed.session, timed.workspace
    chain = workspace.chain(timed.case)
    if chain is None or not isinstance(session, Places):
        return None
    op = workspace.op
    for placed in sides(op).values():  # every value has memory on both sides
        session.place(placed)
        session.run(timed.launch)
        session.sync()
    steps = chain.steps(workspace.buffers, timed.launch.output)
    values = chain.values(workspace.buffers, timed.launch.output)
    moved = {name: values[name] for name in _moved(op)}
    empty = session.empty_launch()
    rounds: list[tuple[SideReading, SideReading, dict[str, tuple[float, float]], float]] = []
    began = time.perf_counter()
    while len(rounds) < ROUNDS + WARM_UP:
        readings = session.side_times(steps)
        if readings is None:
            return None
        rounds.append((*readings, _copied(session, moved), wall_s(session, empty, 1)))
        if time.perf_counter() - began > limit_s:
            break
    kept = rounds[WARM_UP:] or rounds
    hosts, on_gpu = _hosts(op), iter(zip(*(gpu.steps.steps_s for _, gpu, _, _ in kept), strict=True))
    found = Placing(
        session=session_index, clock=kept[0][1].steps.clock, stages=[stage.name for stage in op.stages],
        cpu_s=[list(one) for one in zip(*(cpu.steps.steps_s for cpu, *_ in kept), strict=True)],
        gpu_s=[[] if host else list(next(on_gpu)) for host in hosts],
        cpu_whole_s=[cpu.whole_s for cpu, *_ in kept], gpu_whole_s=[gpu.whole_s for _, gpu, *_ in kept],
        up_s={name: [copies[name][0] for _, _, copies, _ in kept] for name in moved},
        down_s={name: [copies[name][1] for _, _, copies, _ in kept] for name in moved},
        enter_s=[seconds for *_, seconds in kept], predicted_s={}, free_s=0.0,
    )  # fmt: skip
    return _planned(found, costs(op, timed.case, found))


def _moved(op: Op) -> list[str]:
    """The values that may have to be copied: what flows into the stages and out of them. Weights are on both."""
    still = {operand.name for operand in op.inputs if operand.role != "activation"}
    used = dict.fromkeys(name for stage in op.stages for name in (*stage.reads, *stage.writes))
    return [name for name in used if name not in still]


def _copied(session: Places, values: Mapping[str, Buffer]) -> dict[str, tuple[float, float]]:
    return {name: session.copy_times(value) for name, value in values.items()}


def costs(op: Op, case: Case, found: Placing) -> PlacementCosts:
    """What the planner needs, by medians. A device without stamps has a launch and its wait in each stage already."""
    both = CPU + GPU
    given = {
        operand.name: CPU if operand.role == "host" or (operand.travels and not case.resident) else both
        for operand in op.inputs
    }
    steps = [
        StageCost(cpu_s, gpu_s, stage.reads, stage.writes)
        for stage, cpu_s, gpu_s in zip(op.stages, *stage_seconds(found), strict=True)
    ]
    return PlacementCosts(
        steps, _medians(found.up_s), _medians(found.down_s),
        median(found.enter_s) if found.clock != "waited" else 0.0, given,
        [operand.name for operand in op.outputs if operand.travels],
    )  # fmt: skip


def _medians(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: median(seconds) for name, seconds in values.items()}


def _planned(found: Placing, known: PlacementCosts) -> Placing:
    """With the placements that are worth a measurement: each side alone, and the best."""
    wanted = dict.fromkeys(assignment.single_sides(known.steps))
    wanted |= dict.fromkeys(one.placement for one in assignment.nearest(known))
    return msgspec.structs.replace(
        found,
        predicted_s={one: assignment.predicted_s(known, one) for one in wanted},
        free_s=assignment.nearest(known.without_copies())[0].seconds,
    )
