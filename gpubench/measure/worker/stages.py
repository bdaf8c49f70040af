"""Child side: where the time of a workload goes, stage by stage, alone and in the chain, beside the plain chain."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

from gpubench.measure.worker.timer import Timer, wall_s
from gpubench.model.backend import Buffer, Launch, Session, StageReading
from gpubench.model.result import StageTimes

# Stages explain a time, they do not estimate it.
ROUNDS = 15
# What goes before a stage that takes so long is forgotten in no time.
LONG_S = 0.005
# Stages that are read in one go: few enough for the stamps of any device.
TOGETHER = 256

Steps = Sequence[tuple[Launch, Buffer]]


def time_stages(timer: Timer, session_index: int, limit_s: float) -> StageTimes | None:
    """Rounds of the stamped chain, the plain chain, an empty launch and each stage alone, none begun after `limit_s`;
    None where the case has no stages, or the session cannot time them.

    All of a round are neighbours in time: medians of such samples add up, those that were taken one after the other do
    not. The first round is thrown away, unless there is no time for another. A short stage alone runs twice, and
    the second time counts: its operands are then in the caches, as for any case with resident data.
    """
    session, workspace = timer.session, timer.workspace
    chain = workspace.chain(timer.case)
    if chain is None:
        return None
    names = [stage.name for stage in workspace.op.stages]
    steps = chain.steps(workspace.buffers, timer.launch.output)
    empty = session.empty_launch()
    rounds: list[tuple[StageReading, float, float, list[float]]] = []
    began = time.perf_counter()
    while len(rounds) <= ROUNDS:
        reading = session.stage_times(steps)
        if reading is None:
            return None
        plain_s, empty_s = wall_s(session, timer.launch, 1), wall_s(session, empty, 1)
        rounds.append((reading, plain_s, empty_s, _alone(session, steps, reading.steps_s)))
        if time.perf_counter() - began > limit_s:
            break
    kept = rounds[1:] or rounds
    return StageTimes(
        session=session_index, clock=kept[0][0].clock, stages=list(dict.fromkeys(names)),
        chain_s=_by_name(names, [reading.steps_s for reading, *_ in kept]),
        alone_s=_by_name(names, [alone for *_, alone in kept]),
        span_s=[reading.span_s for reading, *_ in kept],
        wall_s=[plain_s for _, plain_s, _, _ in kept], empty_s=[empty_s for *_, empty_s, _ in kept],
        tokens={part: count(timer.case.params) for part, count in workspace.op.tokens.items()},
    )  # fmt: skip


def _alone(session: Session, steps: Steps, in_chain_s: Sequence[float]) -> list[float]:
    """Seconds of each step by itself, behind a run of its own where it is short."""
    found: list[float] = []
    for start in range(0, len(steps), TOGETHER):
        group = slice(start, start + TOGETHER)
        times = [1 if seconds >= LONG_S else 2 for seconds in in_chain_s[group]]
        reading = session.stage_times(
            [step for step, count in zip(steps[group], times, strict=True) for _ in range(count)]
        )
        if reading is None:
            return list(in_chain_s)
        found += (reading.steps_s[last - 1] for last in itertools.accumulate(times))
    return found


def _by_name(names: Sequence[str], rounds: Sequence[Sequence[float]]) -> list[list[float]]:
    """For each name the seconds of every round: stages that share a name, such as those of a loop, are added up."""
    return [
        [
            sum(seconds for other, seconds in zip(names, values, strict=True) if other == name)
            for values in rounds
        ]
        for name in dict.fromkeys(names)
    ]
