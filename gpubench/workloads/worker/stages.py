"""Child side: where the time of a workload goes, stage by stage, alone and in the chain, beside the plain chain."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import NamedTuple

from gpubench.backends.contract import Buffer, HostCall, Launch, Recording, Session, StageReading
from gpubench.backends.contract.protocols import Chains, Records, Steps, TimesStages
from gpubench.measure.worker.timer import Timer, wall_s
from gpubench.result.run import StageTimes

# Stages explain a time, they do not estimate it.
ROUNDS = 15
# Fewer leave the median to one disturbed round: so many are made, if they take twice the time at most.
LEAST_ROUNDS = 3
# What goes before a stage that takes so long is forgotten in no time.
LONG_S = 0.005
# Stages that are read in one go: few enough for the stamps of any device.
TOGETHER = 256


class _Round(NamedTuple):
    reading: StageReading
    stamping_s: float | None
    wall_s: float
    empty_s: float
    recording: Recording | None
    alone_s: list[float]


def time_stages(timer: Timer, session_index: int, limit_s: float) -> StageTimes | None:
    """Rounds of the stamped chain, the plain chain with one reading and with none, an empty launch and each stage
    alone, but for the first few none begun after `limit_s`; None where the case has no stages, or the session cannot
    time them.

    All of a round are neighbours in time: medians of such samples add up, those that were taken one after the other do
    not. The first round is thrown away, unless there is no time for another. What is short, a stage alone or a call of
    the plain chain, runs twice, and the second time counts: its operands are then in the caches, as for any case with
    resident data.
    """
    session, workspace = timer.session, timer.workspace
    chain = workspace.chain(timer.case)
    if chain is None or not isinstance(session, TimesStages):
        return None
    names = [stage.name for stage in workspace.op.stages]
    steps = chain.steps(workspace.buffers, timer.launch.output)
    empty = session.empty_launch()
    plain = _on_device(session, steps)
    rounds: list[_Round] = []
    began = time.perf_counter()
    while len(rounds) <= ROUNDS:
        wall_s(session, timer.launch, 1)  # or only the plain chain would have one just before it
        reading = session.stage_times(steps)
        if reading is None:
            return None
        once = session.stage_times([plain]) if plain is not None and reading.clock != "host" else None
        call, nothing = _warm(session, timer.launch), _warm(session, empty)
        hosts_s = _hosts_s(steps, reading)
        stamping_s = reading.span_s - hosts_s - once.span_s if once is not None else None
        recording = session.recording(timer.launch) if isinstance(session, Records) else None
        if recording is not None:  # less that of an empty launch, whose time is known with its wait
            recording = Recording(*(max(0.0, seconds - nothing.issued_s) for seconds in recording))
        alone_s = _alone(session, steps, reading.steps_s)
        rounds.append(_Round(reading, stamping_s, call.wall_s, nothing.wall_s, recording, alone_s))
        spent_s = time.perf_counter() - began
        if spent_s > limit_s and (len(rounds) > LEAST_ROUNDS or spent_s > 2 * limit_s):
            break
    kept = rounds[1:] or rounds
    recorded = [one.recording for one in kept if one.recording is not None]
    return StageTimes(
        session=session_index, clock=kept[0].reading.clock, stages=list(dict.fromkeys(names)),
        chain_s=_by_name(names, [one.reading.steps_s for one in kept]),
        alone_s=_by_name(names, [one.alone_s for one in kept]),
        span_s=[one.reading.span_s for one in kept], wall_s=[one.wall_s for one in kept],
        empty_s=[one.empty_s for one in kept],
        stamping_s=[one.stamping_s for one in kept if one.stamping_s is not None],
        first_recording_s=[one.first_s for one in recorded], recording_s=[one.whole_s for one in recorded],
        tokens={part: count(timer.case.params) for part, count in workspace.op.tokens.items()},
    )  # fmt: skip


class _Call(NamedTuple):
    """Seconds of a call up to its wait, and with it."""

    issued_s: float
    wall_s: float


def _warm(session: Session, launch: Launch) -> _Call:
    """A call, behind another one where it is short: the first call after another kind of work took a third longer on
    WebGPU."""
    first = _timed(session, launch)
    return first if first.wall_s >= LONG_S else _timed(session, launch)


def _timed(session: Session, launch: Launch) -> _Call:
    start = session.clock()
    session.run(launch, 1)
    issued = session.clock()
    session.sync()
    return _Call(issued - start, session.clock() - start)


def _on_device(session: Session, steps: Steps) -> tuple[Launch, Buffer] | None:
    """The plain chain of what the device does, as one step; what the host does before it is done."""
    own = [step for step in steps if not isinstance(step[0], HostCall)]
    if not own or not isinstance(session, Chains):
        return None
    return session.chain(own, own[-1][1]), own[-1][1]


def _hosts_s(steps: Steps, reading: StageReading) -> float:
    """Seconds of what the host does."""
    by_step = zip(steps, reading.steps_s, strict=True)
    return sum(seconds for (launch, _), seconds in by_step if isinstance(launch, HostCall))


def _alone(session: TimesStages, steps: Steps, in_chain_s: Sequence[float]) -> list[float]:
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
