"""Networks on one device, in the worker: all stages run as one launch, each stage is checked, and the stages are
timed alone and in the chain."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpubench import kernels
from gpubench.backends.contract import Buffer, HostCall, Launch, Session
from gpubench.backends.contract.protocols import (
    BuildsAhead,
    Chains,
    DeviceGroup,
    Records,
    Steps,
    TimesStages,
    Tunes,
)
from gpubench.backends.shared.choices import TrialsNeeded, trials_forbidden, without_trials
from gpubench.backends.shared.reference import judge_alone, sentinel_of, sentinels, widen
from gpubench.backends.shared.sides import compile_stage, stage_case
from gpubench.base import hash_text
from gpubench.base.errors import BackendError
from gpubench.kernels.contract.op import Array, Op, each
from gpubench.measure.worker.timer import Timer, wall_s
from gpubench.measure.worker.workspace import Workspace, Wrong, chain_refusal, no_library
from gpubench.result.case import Case
from gpubench.result.run import AssignmentTimes, Check, StageTimes
from gpubench.workloads.two_sides import assign_stages, sides

# Most launches that a chain keeps: one for the resident buffers, one for buffers that a pool gives out repeatedly.
_KEPT = 2


def runs_by_stage(session: Session, op: Op, case: Case) -> bool:
    """Return whether the case runs the stages of its op one by one. Only tuned cases on a single device do."""
    return bool(op.stages) and case.implementation == "tuned" and not isinstance(session, DeviceGroup)


class Chain:
    """The stages of one workload and the buffers between them."""

    def __init__(self, session: Session, op: Op, case: Case) -> None:
        self._session, self._op, self._case = session, op, case
        self._stage_cases = [stage_case(session, stage, case) for stage in op.stages]
        self._between: dict[str, Buffer] = {}
        # By the ids of the buffers. These are kept with the launch, so that no other object gets the id of one.
        self._launches: dict[tuple[int, ...], tuple[Launch, tuple[Buffer, ...]]] = {}

    def tune(self, inputs: Sequence[Buffer], output: Buffer) -> None:
        """Choose the kernel of every stage, as remembered or by trials on the values that the stage reads. Raises
        TrialsNeeded if trials are needed but forbidden."""
        self._launches.clear()
        values = self.values(inputs, output)
        waiting = self._without_choice(values)
        if not waiting:
            return
        if trials_forbidden():
            raise TrialsNeeded(f"{self._case.id}: kernels of its stages are still to be chosen")
        self._build()
        last = max(waiting)
        for number, own in enumerate(self._stage_cases[:last]):
            if number in waiting:
                self._choose(number, values)
            self._session.run(self._join([compile_stage(self._session, own, values)], output))
            self._session.sync()
        self._choose(last, values)

    def _without_choice(self, values: dict[str, Buffer]) -> set[int]:
        """Return the indices of the stages whose kernel needs trials, one for each distinct case."""
        first: dict[str, int] = {}
        for number, (_, op, case) in enumerate(self._stage_cases):
            if op.host is None:
                first.setdefault(case.id, number)
        waiting: set[int] = set()
        for number in first.values():
            try:
                with without_trials():
                    self._choose(number, values)
            except TrialsNeeded:
                waiting.add(number)
        return waiting

    def _choose(self, number: int, values: dict[str, Buffer]) -> None:
        stage, op, case = self._stage_cases[number]
        if isinstance(self._session, Tunes):
            self._session.tune(op, case, [values[name] for name in stage.reads])

    def compile(self, inputs: Sequence[Buffer], output: Buffer) -> Launch:
        """Return all stages as one launch. Calls with the same buffers return the same launch. Raises BuildError and
        DeviceOutOfMemory."""
        held = (*inputs, *each(output))
        key = tuple(map(id, held))
        if key not in self._launches:
            if len(self._launches) >= _KEPT:
                self._launches.clear()
            self._launches[key] = (self._make(inputs, output), held)
        return self._launches[key][0]

    def _build(self) -> None:
        """Build the kernels of all stages, several of them concurrently."""
        own = {case.id: (op, case) for _, op, case in self._stage_cases if op.host is None}
        if isinstance(self._session, BuildsAhead):
            self._session.build(list(own.values()))

    def _make(self, inputs: Sequence[Buffer], output: Buffer) -> Launch:
        self._build()
        steps = self.steps(inputs, output)
        launch = self._join(steps, output)
        text = " ".join(f"{step.kernel_hash} {step.kernel_name}" for step, _ in steps)
        launch.kernel_hash = hash_text(text)
        return launch

    def steps(self, inputs: Sequence[Buffer], output: Buffer) -> list[tuple[Launch, Buffer]]:
        """Return the launch of each stage and the buffer of its result. Raises BuildError and
        DeviceOutOfMemory."""
        values = self.values(inputs, output)
        return [compile_stage(self._session, own, values) for own in self._stage_cases]

    def _join(self, steps: Sequence[tuple[Launch, Buffer]], output: Buffer) -> Launch:
        assert isinstance(self._session, Chains)
        return self._session.chain(steps, output)

    def values(self, inputs: Sequence[Buffer], output: Buffer) -> dict[str, Buffer]:
        """Return the buffers of all values, by the name of the value. The first call allocates the buffers of values
        between the stages."""
        for operand in self._op.between:
            if operand.name not in self._between:
                form = operand.form(self._case.params, self._case.dtype)
                self._between[operand.name] = self._session.allocate(*form)
        names = [operand.name for operand in self._op.operands]
        return {**self._between, **dict(zip(names, (*inputs, *each(output)), strict=True))}

    def spoil(self, sentinel: float) -> None:
        """Fill the buffers between the stages with sentinels. A stage that reads a value before it is written then
        fails its check."""
        for operand in self._op.between:
            if operand.name in self._between:
                shape, stored = operand.form(self._case.params, self._case.dtype)
                self._session.fill(self._between[operand.name], shape, stored, sentinel_of(stored, sentinel))

    def check(
        self, inputs: Sequence[Buffer], output: Buffer, fail: Callable[[Check, str], BackendError]
    ) -> None:
        """Check each stage against a float64 reference, which is computed from the values that the stage read on the
        device. If a check fails, raise `fail(check, text)`, where the text names the stage."""
        values = self.values(inputs, output)
        fetched: dict[str, Array] = {}
        # Weights are converted to float64 only once, because every turn of a repeat reads them.
        weights = {operand.name for operand in self._op.inputs if operand.role == "weight"}
        wide: dict[str, Array] = {}
        # All values are read after the last stage. So a stage that adds to a state is judged by the part that it adds.
        for stage, op, _ in self._stage_cases:
            for name, operand in zip((*stage.reads, *stage.writes), op.operands, strict=True):
                if name not in fetched and operand.role == "host":
                    fetched[name] = values[name]
                elif name not in fetched:
                    params = stage.params(self._case.params)
                    fetched[name] = sentinels(*operand.form(params, self._case.dtype))
                    self._session.download(values[name], fetched[name])
                if name in weights and name not in wide:
                    wide[name] = widen(fetched[name])
                    wide[name].flags.writeable = False
            operands = [wide[name] if name in wide else widen(fetched[name]) for name in stage.reads]
            made = [fetched[name] for name in stage.writes]
            for name, check in zip(
                stage.writes, judge_alone(op, self._case.dtype, operands, made), strict=True
            ):
                if not check.ok:
                    raise fail(check, f" of {name} in the stage {stage.name}")

    def release(self) -> None:
        """Free the buffers between the stages."""
        for buffer in self._between.values():
            self._session.free(buffer)
        self._between, self._launches = {}, {}


# Most rounds that count. The times of stages explain a result and need not be as exact.
ROUNDS = 15
# Least rounds that count, unless they take more than twice the time limit: one disturbed round must not be the median.
LEAST_ROUNDS = 3
# A stage that takes so many seconds is hardly affected by what ran just before it.
LONG_S = 0.005
# Most stages that are timed in one chain: every device has timestamps for so many.
TOGETHER = 256
# The lists of StageTimes with one value for each round. Some sessions leave some of them empty.
_TIMES = (
    "chain_s", "alone_s", "span_s", "wall_s", "empty_s", "stamping_s", "first_recording_s", "recording_s",
)  # fmt: skip


def time_stages(timer: Timer, session_index: int, limit_s: float) -> StageTimes | None:
    """Time the stages of a case in rounds. No round begins after `limit_s` seconds, except that the first few may
    begin in twice that time. The parts of a round are timed close together, so that their medians add up. Returns
    None if the case has no stages or the session cannot time them."""
    session, workspace = timer.session, timer.workspace
    chain = workspace.chain(timer.case)
    if chain is None or not isinstance(session, TimesStages):
        return None
    names = [stage.name for stage in workspace.op.stages]
    steps = chain.steps(workspace.buffers, timer.launch.output)
    empty = session.empty_launch()
    plain = _on_device(session, steps)
    times: dict[str, list[Any]] = {name: [] for name in _TIMES}
    began, call_s = time.perf_counter(), 0.0
    # A round times the chain with a clock reading after each stage, with one reading and with none, an empty
    # launch, and each stage alone.
    while len(times["span_s"]) <= ROUNDS:
        if call_s < LONG_S:
            wall_s(session, timer.launch, 1)  # a chain before this one, as the plain chain has
        reading = session.stage_times(steps)
        if reading is None:
            return None
        times["chain_s"].append(reading.steps_s)
        times["span_s"].append(reading.span_s)
        if reading.clock != "host" and (once := session.stage_times([plain])) is not None:
            by_step = zip(steps, reading.steps_s, strict=True)
            hosts_s = sum(seconds for (launch, _), seconds in by_step if isinstance(launch, HostCall))
            times["stamping_s"].append(reading.span_s - hosts_s - once.span_s)
        # Readings of the host's clock cost nothing, and two calls on a CPU may differ by half. So the chain that was
        # just timed is used as the whole call.
        call_s = reading.span_s if reading.clock == "host" else _warm(session, timer.launch)[1]
        issued_s, empty_s = _warm(session, empty)
        times["wall_s"].append(call_s)
        times["empty_s"].append(empty_s)
        recording = session.recording(timer.launch) if isinstance(session, Records) else None
        if recording is not None:  # without the time of an empty launch, which `empty_s` has
            times["first_recording_s"].append(max(0.0, recording.first_s - issued_s))
            times["recording_s"].append(max(0.0, recording.whole_s - issued_s))
        times["alone_s"].append(_alone(session, steps, reading.steps_s))
        spent_s = time.perf_counter() - began
        if spent_s > limit_s and (len(times["span_s"]) > LEAST_ROUNDS or spent_s > 2 * limit_s):
            break
    assert reading is not None, "there was a round"
    # The first round is discarded if there is another.
    lists = {name: values[1:] or values for name, values in times.items()}
    lists |= {name: _by_name(names, lists[name]) for name in ("chain_s", "alone_s")}
    tokens = {part: count(timer.case.params) for part, count in workspace.op.tokens.items()}
    return StageTimes(
        session=session_index, clock=reading.clock, stages=list(dict.fromkeys(names)), tokens=tokens, **lists
    )


def _warm(session: Session, launch: Launch) -> tuple[float, float]:
    """Return the seconds of a call until it is enqueued, and until it ends."""
    first = _time_call(session, launch)
    # A short call runs again, with its operands in the caches, because the first one after other work takes longer.
    return first if first[1] >= LONG_S else _time_call(session, launch)


def _time_call(session: Session, launch: Launch) -> tuple[float, float]:
    start = session.clock()
    session.run(launch, 1)
    issued = session.clock()
    session.sync()
    return issued - start, session.clock() - start


def _on_device(session: Session, steps: Steps) -> tuple[Launch, Buffer]:
    """Return all steps except those of the host as one step, a chain without clock readings inside."""
    own = [step for step in steps if not isinstance(step[0], HostCall)]
    assert isinstance(session, Chains)
    output = own[-1][1]
    return session.chain(own, output), output


def _alone(session: TimesStages, steps: Steps, in_chain_s: Sequence[float]) -> list[float]:
    """Return the seconds of each step by itself, or in the chain if the session cannot time it."""
    alone_s: list[float] = []
    for start in range(0, len(steps), TOGETHER):
        group = slice(start, start + TOGETHER)
        # A short step runs twice, and the second run is used.
        times = [1 if seconds >= LONG_S else 2 for seconds in in_chain_s[group]]
        reading = session.stage_times(
            [step for step, count in zip(steps[group], times, strict=True) for _ in range(count)]
        )
        if reading is None:
            return list(in_chain_s)
        alone_s += (reading.steps_s[last - 1] for last in itertools.accumulate(times))
    return alone_s


def _by_name(names: Sequence[str], rounds: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return, for each distinct name, the sums of the seconds of its stages in each round."""
    return [
        [
            sum(seconds for other, seconds in zip(names, values, strict=True) if other == name)
            for values in rounds
        ]
        for name in dict.fromkeys(names)
    ]


class ChainWorkspace(Workspace):
    """The workspace of a network on one device: its inputs, its outputs and the values between its stages."""

    _chain: Chain | None = None

    def chain(self, case: Case) -> Chain | None:
        if not runs_by_stage(self.session, self.op, case):
            return None
        if self._chain is None:
            self._chain = Chain(self.session, self.op, case)
        return self._chain

    def tune(self, case: Case) -> None:
        chain = self.chain(case)
        if chain is None:
            super().tune(case)
        else:
            chain.tune(self.buffers, self.output(case))

    def compile(self, case: Case, buffers: Sequence[Buffer], output: Buffer) -> Launch:
        chain = self.chain(case)
        return super().compile(case, buffers, output) if chain is None else chain.compile(buffers, output)

    @staticmethod
    def refuse(session: Session, op: Op, case: Case) -> BackendError | None:
        missing = [why for name in {stage.op for stage in op.stages} if (why := no_library(kernels.load(name)))]
        if missing:
            return missing[0]
        by_stage = runs_by_stage(session, op, case)
        return chain_refusal(session, op, case) if by_stage else session.supports(op, case)

    @functools.cached_property
    def sides(self) -> Mapping[str, str]:  # type: ignore[override]
        """The stage assignments `cpu` and `gpu`, with every stage on one side. Host stages are on the CPU in both."""
        return sides(self.op)

    def check_between(self, case: Case, output: Buffer) -> None:
        chain = self.chain(case)
        if chain is not None:
            chain.check(self.buffers, output, Wrong)

    def spoil_between(self, case: Case) -> None:
        chain = self.chain(case)
        if chain is not None:
            chain.spoil(self.sentinel)

    def release_between(self) -> None:
        if self._chain is not None:
            self._chain.release()

    def time_stages(self, timed: Timer, session: int, limit_s: float) -> StageTimes | None:
        return time_stages(timed, session, limit_s)

    def assign_stages(self, timed: Timer, session: int, limit_s: float) -> AssignmentTimes | None:
        return assign_stages(timed, session, limit_s)
