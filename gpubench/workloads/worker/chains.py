"""Child side: a workload's stages on one device, as one launch, and the gate that judges them one by one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from gpubench import kernels
from gpubench.backends.contract import Buffer, HostCall, Launch, Session
from gpubench.backends.contract.protocols import BuildsAhead, Chains, Tunes
from gpubench.backends.shared.choices import TrialsNeeded, trials_forbidden, without_trials
from gpubench.backends.shared.reference import judge_alone, on_host, sentinels, spoil, widened
from gpubench.base.errors import BackendError, Unsupported
from gpubench.kernels.contract.op import Array, Op, Stage, each
from gpubench.result.case import Case
from gpubench.result.run import Check

# Launches of a chain that are kept: that of the resident buffers, and of those that a pool hands out again.
_KEPT = 2


class Placed(NamedTuple):
    """A stage on a device: its op at its params, and its case."""

    stage: Stage
    op: Op
    case: Case


def placed(session: Session, op: Op, case: Case) -> list[Placed]:
    """The stages as resident cases of the session, in the best form that it has for each."""
    found = []
    for stage in op.stages:
        params = dict(stage.params(case.params))
        own = kernels.load(stage.op)
        kernel = own.kernel(session.device.backend, case.dtype)
        # Two sides take the best that each has.
        library = not session.device.composed and (kernel is None or kernel.library)
        one = Case(
            own.name, own.group, params, case.dtype, "library" if library else "tuned",
            session.device.resident_regime, case.device_id,
        )  # fmt: skip
        found.append(Placed(stage, own.at(params), one))
    return found


def staged(op: Op, case: Case) -> bool:
    """Whether the case runs stage by stage; the library form runs the expression of the whole."""
    return bool(op.stages) and case.form == "tuned"


def refusal(session: Session, op: Op, case: Case) -> BackendError | None:
    """Why a workload cannot run here, or None."""
    if not isinstance(session, Chains):
        why = f"{session.device.backend} does not run several ops as one launch"
        return Unsupported(why, reason="no-implementation")
    distinct = {one.case.id: one for one in placed(session, op, case)}
    for stage, own, one in distinct.values():
        if own.host is not None:
            continue
        refused = session.supports(own, one)
        # Without compiled kernels a stage runs its plain expression.
        if refused is not None and refused.reason != "not-compiled":
            return Unsupported(f"{stage.name}: {refused.detail}", hint=refused.hint, reason=refused.reason)
    return None


def _writing(session: Session, one: Placed) -> Placed:
    """Where the library call is the kernel, it has a form that writes to a given array."""
    stage, op, case = one
    if case.form != "library" or op.kernel(session.device.backend, case.dtype) is None:
        return one
    own = Case(case.op, case.group, case.params, case.dtype, "tuned", case.regime, case.device_id)
    return Placed(stage, op, own)


class Chain:
    """The stages of one workload and the buffers between them, which stay as long as the workload does."""

    def __init__(self, session: Session, op: Op, case: Case) -> None:
        self._session, self._op, self._case = session, op, case
        self._placed = [_writing(session, one) for one in placed(session, op, case)]
        self._between: dict[str, Buffer] = {}
        # The buffers are kept with the launch: as long as they live, no other object has their id.
        self._launches: dict[tuple[int, ...], tuple[Launch, tuple[Buffer, ...]]] = {}

    def tune(self, inputs: Sequence[Buffer], output: Buffer) -> None:
        """Let each stage choose its kernel. What is remembered needs no data; trials run on what the stages before
        made, and no stage runs behind the last one that needs them. Raises TrialsNeeded where this is no time for
        trials."""
        self._launches.clear()
        values = self.values(inputs, output)
        waiting = self._without_choice(values)
        if not waiting:
            return
        if trials_forbidden():
            raise TrialsNeeded(f"{self._case.id}: kernels of its stages are still to be chosen")
        self._build()
        for number in range(max(waiting) + 1):
            if number in waiting:
                self._choose(number, values)
            if number < max(waiting):
                self._session.run(self._joined([self._step(number, values)], output))
                self._session.sync()

    def _without_choice(self, values: dict[str, Buffer]) -> set[int]:
        """The first stage of each case whose kernel has to be found by trials."""
        waiting: set[int] = set()
        seen: set[str] = set()
        for number, (_, op, case) in enumerate(self._placed):
            if op.host is not None or case.id in seen:
                continue
            seen.add(case.id)
            try:
                with without_trials():
                    self._choose(number, values)
            except TrialsNeeded:
                waiting.add(number)
        return waiting

    def _choose(self, number: int, values: dict[str, Buffer]) -> None:
        stage, op, case = self._placed[number]
        if isinstance(self._session, Tunes):
            self._session.tune(op, case, [values[name] for name in stage.reads])

    def compile(self, inputs: Sequence[Buffer], output: Buffer) -> Launch:
        """All stages as one launch. Where the buffers are those of before it is that of before: a copying call builds
        nothing. Raises BuildError and DeviceOutOfMemory."""
        held = (*inputs, *each(output))
        key = tuple(map(id, held))
        if key not in self._launches:
            if len(self._launches) >= _KEPT:
                self._launches.clear()
            self._launches[key] = (self._built(inputs, output), held)
        return self._launches[key][0]

    def _build(self) -> None:
        """What the stages need, side by side. Raises BuildError."""
        own = {case.id: (op, case) for _, op, case in self._placed if op.host is None}
        if isinstance(self._session, BuildsAhead):
            self._session.build(list(own.values()))

    def _built(self, inputs: Sequence[Buffer], output: Buffer) -> Launch:
        self._build()
        steps = self.steps(inputs, output)
        launch = self._joined(steps, output)
        text = " ".join(f"{step.kernel_hash} {step.kernel_name}" for step, _ in steps)
        launch.kernel_hash = hashlib.sha256(text.encode()).hexdigest()[:12]
        return launch

    def steps(self, inputs: Sequence[Buffer], output: Buffer) -> list[tuple[Launch, Buffer]]:
        """The launch of each stage and where its result lies. Raises BuildError and DeviceOutOfMemory."""
        values = self.values(inputs, output)
        return [self._step(number, values) for number in range(len(self._placed))]

    def _joined(self, steps: Sequence[tuple[Launch, Buffer]], output: Buffer) -> Launch:
        assert isinstance(self._session, Chains)
        return self._session.chain(steps, output)

    def _step(self, number: int, values: dict[str, Buffer]) -> tuple[Launch, Buffer]:
        stage, op, case = self._placed[number]
        made = tuple(values[name] for name in stage.writes)
        target = made if op.more_outputs else made[0]
        if op.host is not None:
            given = [values[name] for name in stage.reads]
            return HostCall(self._session, partial(on_host, op, given), target), target
        into = None if case.form == "library" else target
        return self._session.compile(op, case, [values[name] for name in stage.reads], into), target

    def values(self, inputs: Sequence[Buffer], output: Buffer) -> dict[str, Buffer]:
        """Every value by its name; those between stages are taken at the first call."""
        for operand in self._op.between:
            if operand.name not in self._between:
                shape, stored = operand.shape(self._case.params), operand.stored(self._case.dtype)
                self._between[operand.name] = self._session.allocate(shape, stored)
        names = [operand.name for operand in self._op.operands]
        return {**self._between, **dict(zip(names, (*inputs, *each(output)), strict=True))}

    def spoil(self, sentinel: float) -> None:
        """Fill what lies between the stages with sentinels: a stage that reads what nobody wrote fails."""
        for operand in self._op.between:
            if operand.name in self._between:
                shape, stored = operand.shape(self._case.params), operand.stored(self._case.dtype)
                spoil(self._session, self._between[operand.name], shape, stored, sentinel)

    def check(
        self, inputs: Sequence[Buffer], output: Buffer, fail: Callable[[Check, str], BackendError]
    ) -> None:
        """Judge each stage by the float64 reference of what the device itself gave it. Raises what `fail` makes of the
        check and of the stage's name. A state is as the last stage left it: what others added is not this one's."""
        values = self.values(inputs, output)
        fetched: dict[str, Array] = {}
        # In float64, once: every turn of a repeat reads them.
        weights = {operand.name for operand in self._op.inputs if operand.role == "weight"}
        wide: dict[str, Array] = {}
        for stage, op, _ in self._placed:
            for name, operand in zip((*stage.reads, *stage.writes), op.operands, strict=True):
                if name not in fetched and operand.role == "host":
                    fetched[name] = values[name]
                elif name not in fetched:
                    shape = operand.shape(stage.params(self._case.params))
                    fetched[name] = sentinels(shape, operand.stored(self._case.dtype))
                    self._session.download(values[name], fetched[name])
                if name in weights and name not in wide:
                    wide[name] = widened(fetched[name])
                    wide[name].flags.writeable = False
            given = [wide[name] if name in wide else widened(fetched[name]) for name in stage.reads]
            made = [fetched[name] for name in stage.writes]
            for name, check in zip(stage.writes, judge_alone(op, self._case.dtype, given, made), strict=True):
                if not check.ok:
                    raise fail(check, f" of {name} in the stage {stage.name}")

    def release(self) -> None:
        """Give the buffers back."""
        for buffer in self._between.values():
            self._session.free(buffer)
        self._between, self._launches = {}, {}
