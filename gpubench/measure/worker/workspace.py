"""Child side: the inputs, buffers and reference of one workload, and the correctness gate before timing."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gpubench.backends.contract import Buffer, Launch, Session, Transfers
from gpubench.backends.contract.protocols import Chains, HostReadable, JudgesBlocks, Streams, Tunes
from gpubench.backends.shared.choices import op_hash
from gpubench.backends.shared.host import allocate_outputs, calls_library
from gpubench.backends.shared.reference import (
    Reference,
    fill,
    judge,
    judge_choices,
    not_finite,
    probes,
    samples_of,
    sentinel_for,
    sentinel_of,
    sentinels,
)
from gpubench.backends.shared.sides import ask, stage_case
from gpubench.base.errors import BackendError, Unsupported, WrongResult
from gpubench.base.installation import install_command
from gpubench.base.messages import REASONS
from gpubench.base.plugins import wings
from gpubench.kernels.contract.op import Array, Op, Operand, Shape, Stored, Tolerance, each
from gpubench.measure.worker.operands import (
    ChangedInput,
    Operands,
    Passed,
    SharedArray,
    copies_bytes,
)
from gpubench.result.case import STREAMED, Case
from gpubench.result.run import AssignmentTimes, Check, RunWarning, StageTimes

# What to do about a wrong result of a user's function.
WRONG_FUNCTION = "mend the function, or say how its results are compared: tolerance= or same="
_MEANINGLESS = "draw the op's inputs from a Range where it has a meaning, or let the op declare not_finite"


class Wrong(WrongResult):
    """Error: the output is wrong. `check` has the largest error and its place, and `element` describes the
    values there. `hint` says what to do. `detail` replaces the usual sentence."""

    def __init__(
        self, check: Check, element: str = "", hint: str = REASONS["wrong-result"].remedy, detail: str = ""
    ) -> None:
        size = "not finite" if check.max_error is None else f"{check.max_error:.3g}"
        largest = f"largest error {size} at {check.index}, allowed {check.limit:.3g}{element}"
        super().__init__(detail or largest, hint=hint)
        self.check = check


# Hashes by the id of the op object. Computing one may take seconds for a layer.
_hashes: dict[int, tuple[Op, str]] = {}


def _hash_of(op: Op) -> str:
    if id(op) not in _hashes:
        _hashes[id(op)] = (op, op_hash(op))
    return _hashes[id(op)][1]


class Workspace:
    """The data that all cases of one workload share on one device: host inputs, device inputs and reference."""

    def __init__(
        self, session: Session, op: Op, case: Case, seed: int, kind: str, scratch: Path,
        operands: Operands | None = None,
    ) -> None:  # fmt: skip
        self.session = session
        self.op = op.at(case.params)
        self.case = case
        self._operands = operands or Operands(op, seed, kind, scratch)
        passed = self._operands.weights.passed if session.home is session else None
        self._passed = passed or Passed(session, copies_bytes(session.device))
        _ = self.inputs
        self.op_hash = _hash_of(op)
        self.buffers: list[Buffer] = []
        self.outputs: dict[str, Buffer] = {}
        self._shared: dict[int, SharedArray] = {}  # by the place of the input that is its beginning

    def sibling(self, number: int) -> Workspace:
        """Return a workspace of the same case with the same weights and other inputs, which `number`
        chooses."""
        operands = self._operands.sibling(number)
        return type(self)(self.session, operands.op, self.case, *operands.drawn, operands)

    def make_reference(self) -> None:
        """Compute the float64 references now, before the first output is checked."""
        _ = self.answers

    @functools.cached_property
    def inputs(self) -> list[Array]:
        """The host array of each input."""
        arrays = self._operands.inputs(self.case)
        return [
            self._caller_array(operand, array) if operand.travels else array
            for operand, array in zip(self.op.inputs, arrays, strict=True)
        ]

    @functools.cached_property
    def answers(self) -> tuple[Reference, ...]:
        """The float64 reference of each output."""
        return self._operands.references(self.case)

    def answer_samples(self) -> list[float]:
        """Return elements of the references, from the same places at each call, to compare two versions of a
        function."""
        return samples_of([answer.want for answer in self.answers])

    @functools.cached_property
    def sentinel(self) -> float:
        """The value of output elements that no launch has written. No reference result contains it."""
        return next(
            (value for reference in self.answers if (value := sentinel_for(reference.odd)) == value), math.nan
        )

    @functools.cached_property
    def meaningless(self) -> tuple[int, list[int]] | None:
        """The number of the first output whose reference has an infinity or NaN, and the index of that element.
        None without such an output, or if the op declares such outputs."""
        if self.op.not_finite:  # it declares such outputs
            return None
        places = enumerate(not_finite(reference, self.inputs) for reference in self.answers)
        return next(((number, place) for number, place in places if place is not None), None)

    @functools.cached_property
    def host_outputs(self) -> list[Array]:
        """The arrays that a timed call downloads into. They are filled with sentinels at first."""
        return [
            self._caller_array(operand, sentinels(*self._kind(operand), self.sentinel))
            for operand in self.op.outputs
        ]

    def _caller_array(self, operand: Operand, array: Array) -> Array:
        """Return the array in memory that a caller would use: a page-locked copy if requested, else the array
        itself."""
        if not self._operands.page_locked:
            return array
        host = self.session.host_array(*self._kind(operand), "tuned")
        host[...] = array
        return host

    def _kind(self, operand: Operand) -> tuple[Shape, Stored]:
        return operand.form(self.case.params, self.case.dtype)

    def upload_inputs(self) -> None:
        """Allocate and fill the device's input buffers, unless that was done. Raises DeviceOutOfMemory or
        MemoryError. After an error no buffer stays."""
        if self.buffers:
            return
        try:
            for operand, host in zip(self.op.inputs, self.inputs, strict=True):
                shared = self._operands.bind(self.session, operand, self.case)
                if shared is None:
                    self.buffers.append(self._upload(operand, host))
                else:
                    self._shared[len(self.buffers)] = shared
                    self.buffers.append(shared.beginning(host.shape))
            self.session.sync()
        except (BackendError, MemoryError):
            self._free_inputs()
            raise

    def _upload(self, operand: Operand, host: Array) -> Buffer:
        """Return a buffer with the input, or the host array itself if the host reads it."""
        if operand.role == "weight":
            return self._operands.weights.borrow(self.session.home, self.op, operand, self.case)
        if operand.role == "host":
            return host
        buffer = self.session.allocate(*self._kind(operand))
        self.session.upload(buffer, host)
        return buffer

    def loading(self) -> tuple[int, float | None]:
        """Return the bytes of the weights and the seconds of uploading them. The seconds are None if not all of
        them were uploaded."""
        return self._operands.weights.loading(self.op, self.case)

    @property
    def output_bytes(self) -> int:
        """The bytes of the outputs that move between host and device."""
        return self._travelling(self.op.outputs)

    @property
    def input_bytes(self) -> int | None:
        """The bytes of the inputs that move between host and device. None means that all operands move and a
        launch reads and writes each of them once (`Op.bytes`)."""
        plain = self.op.traffic is None and all(operand.travels for operand in self.op.operands)
        return None if plain else self._travelling(self.op.inputs)

    def _travelling(self, operands: Sequence[Operand]) -> int:
        case = self.case
        return sum(operand.bytes(case.params, case.dtype) for operand in operands if operand.travels)

    def _free_inputs(self) -> None:
        """Free the input buffers of this workspace, as far as they were allocated."""
        for i, (operand, buffer) in enumerate(zip(self.op.inputs, self.buffers, strict=False)):
            if operand.role == "weight":
                self._operands.weights.give_back(self.op, operand, self.case)
            elif operand.role != "host" and i not in self._shared:
                self.session.free(buffer)
        self.buffers, self._shared = [], {}

    def restore_inputs(self) -> list[str]:
        """Upload again the shared inputs that a launch changed. Returns their names."""
        return [
            self.op.inputs[i].name
            for i, shared in self._shared.items()
            if shared.restore(self.session, self.inputs[i].size)
        ]

    @contextlib.contextmanager
    def guard_inputs(self) -> Iterator[None]:
        """Restore the shared inputs after the launches in the `with` block. Raises ChangedInput if one was
        changed."""
        try:
            yield
        finally:
            changed = self.restore_inputs()
        if changed:
            raise ChangedInput(", ".join(changed))

    def rest(self) -> None:
        """Drop host arrays that can be made again. Data on the device stays."""
        for name in ("inputs", "answers", "host_outputs"):
            self.__dict__.pop(name, None)
        self._operands.rest()

    def output(self, case: Case) -> Buffer | None:
        """Return the output buffer of a tuned kernel, filled with sentinels, or None for a library case. Each
        variant has its own buffer. An output that updates an input is filled with that input."""
        if calls_library(self.op, case):
            return None
        if case.implementation_id not in self.outputs:
            self.outputs[case.implementation_id] = allocate_outputs(
                self.session, self.op, self.case, self.buffers
            )
        for i, buffer in enumerate(each(self.outputs[case.implementation_id])):
            if i in self.op.updated:  # as it was before any launch
                self.session.upload(buffer, self.inputs[self.op.updated[i]])
            else:
                self.spoil(buffer, self.op.outputs[i])
        self.spoil_between(case)
        return self.outputs[case.implementation_id]

    def tune(self, case: Case) -> None:
        """Have the session choose the kernels of the case."""
        if isinstance(self.session, Tunes):
            self.session.tune(self.op, case, self.buffers)

    def compile(self, case: Case, buffers: Sequence[Buffer], output: Buffer) -> Launch:
        """Return a launch of the case on these buffers, compiled by the session."""
        return self.session.compile(self.op, case, buffers, output)

    @staticmethod
    def refuse(session: Session, op: Op, case: Case) -> BackendError | None:
        """Return why the session cannot run the case, or None if it can."""
        return session.supports(op, case)

    # ---------------------------------------------------------------- what a wing may add to one launch

    # The stage assignment of each side alone, by the name of the side.
    sides: Mapping[str, str] = {}

    def chain(self, case: Case) -> Any:
        """Return the stages of the case as an object that compiles and checks them. Returns None if the case
        does not run stage by stage, as by default."""

    def check_between(self, case: Case, output: Buffer) -> None:
        """Check the results between the stages of a launch. Raises Wrong. The default checks nothing."""

    def spoil_between(self, case: Case) -> None:
        """Fill the results between stages with sentinels. The default does nothing."""

    def release_between(self) -> None:
        """Free the buffers of the results between stages. The default does nothing."""

    def time_stages(self, timed: Any, session: int, limit_s: float) -> StageTimes | None:
        """Time the stages of a timer's launch, for about `limit_s` seconds. Returns None if that is not possible,
        as by default. `session` is the index of the session, which is stored with the times."""

    def assign_stages(self, timed: Any, session: int, limit_s: float) -> AssignmentTimes | None:
        """Like `time_stages`, but time the stages on both sides and predict stage assignments."""

    def fetch(self, output: Buffer, way: Session | Transfers, *, travels: bool | None = None) -> None:
        """Download the outputs of a launch into `host_outputs`. If `travels` is True, only outputs that travel
        are downloaded. False downloads only the others, and None all outputs."""
        for buffer, operand, host in zip(each(output), self.op.outputs, self.host_outputs, strict=True):
            if travels is None or operand.travels == travels:
                way.download(buffer, host)

    def verify(self, launch: Launch, case: Case | None = None) -> Check:
        """Compare all outputs of a launch with the references. Raises Wrong. `case` is that of the workspace if
        it is None. If an earlier output that passed has the same bits, its check is returned."""
        case = case or self.case
        outputs = each(launch.output)
        earlier = self._passed.recall(self.op, case, outputs)
        if earlier is not None:
            return earlier
        check = self.verify_arrays(self._on_host(outputs), case.precision)
        self._passed.keep(self.op, case, outputs, check)
        return check

    def check_terms(self, launch: Launch, case: Case) -> float | None:
        """Run the launch on inputs that make every term of its sums count (`probes`), then restore the inputs.
        Raises Wrong. Returns the seconds of the first run, or None for an op without such inputs."""
        # The tolerance of a long sum hides single terms.
        if self.op.terms is None and self.op.probe is None:
            return None
        times: list[float] = []
        try:
            for inputs, compare in probes(self.op, case, self.inputs):
                self._overwrite_inputs(inputs)
                times.append(_run_once(self.session, launch))
                check = compare(self._on_host(each(launch.output))[0])
                if not check.ok:
                    raise Wrong(check, " on whole numbers with exact sums: a term is missing or counts twice")
                self.output(case)
        finally:
            self._overwrite_inputs(self.inputs)
            self.restore_inputs()  # an odd number of halves was written in whole words
            self.session.forget()
        return times[0]

    def _overwrite_inputs(self, arrays: Sequence[Array]) -> None:
        for operand, buffer, array in zip(self.op.inputs, self.buffers, arrays, strict=True):
            session = self.session.home if operand.role == "weight" else self.session  # as in `_upload`
            session.upload(buffer, array)
        self.session.sync()

    def require_fresh(self, limit_s: float | None) -> list[RunWarning]:
        """Check that a user's function does not return earlier results. Raises Wrong if it does. Returns a
        warning if the check would take longer than `limit_s` seconds. Other ops need no check."""
        return []

    def _on_host(self, outputs: Sequence[Buffer]) -> list[Array]:
        """Return the outputs as host arrays, which are either the device's own memory or copies."""
        kinds = [self._kind(operand) for operand in self.op.outputs]
        if isinstance(self.session, HostReadable):
            own = [self.session.memory(buffer, *kind) for buffer, kind in zip(outputs, kinds, strict=True)]
            if all(array is not None for array in own):
                return own
        # Two sides bind what they compute to the arrays that it is fetched into.
        arrays = self.host_outputs if self.session.device.composed else self._passed.landing(self.op, self.case)
        for buffer, array, (_, stored) in zip(outputs, arrays, kinds, strict=True):
            fill(array, sentinel_of(stored, self.sentinel))
            self.session.download(buffer, array)
        return arrays

    def spoil_host_output(self) -> None:
        """Fill the arrays that timed calls download into with sentinels, so that a missing download fails its
        check."""
        if "host_outputs" in vars(self):
            for array, operand in zip(self.host_outputs, self.op.outputs, strict=True):
                fill(array, sentinel_of(operand.stored_dtype(self.case.dtype), self.sentinel))

    def spoil(self, buffer: Buffer, operand: Operand) -> None:
        """Fill a device buffer with sentinels."""
        shape, stored = self._kind(operand)
        self.session.fill(buffer, shape, stored, sentinel_of(stored, self.sentinel))

    def verify_host_output(self, case: Case) -> Check:
        """Compare the outputs that a timed call of the case downloaded. Raises Wrong. They are compared with a
        copy that passed, or with the references if their bits differ."""
        earlier = self._passed.recall_host(self.op, case, self.host_outputs)
        return self.verify_arrays(self.host_outputs, case.precision) if earlier is None else earlier

    def verify_arrays(self, outputs: Sequence[Array], precision: str) -> Check:
        """Compare host arrays with the references, with the tolerance of `precision`. Raises Wrong. Returns the
        check of the output that is nearest to its limit. All outputs are wrong if `meaningless` is set."""
        checks = [
            self._judge(self.op.tolerance_of(operand), precision, got, answer)
            for operand, got, answer in zip(self.op.outputs, outputs, self.answers, strict=True)
        ]
        if self.meaningless is not None:
            number, place = self.meaningless
            at = msgspec.structs.replace(checks[number], ok=False, max_error=None, index=place)
            element = self._element(outputs[number], place, number)
            raise Wrong(at, f"{element}: the reference itself is not finite", _MEANINGLESS)
        worst = max(range(len(checks)), key=lambda i: _nearness(checks[i]))
        check = checks[worst]
        if not check.ok:
            hint = WRONG_FUNCTION if self.op.digest else REASONS["wrong-result"].remedy
            raise Wrong(check, self._element(outputs[worst], check.index, worst), hint)
        return check

    def _judge(self, tolerance: Tolerance, precision: str, got: Array, answer: Reference) -> Check:
        if tolerance.shortfall is not None:
            return judge_choices(tolerance, precision, got, self.inputs)
        errors = self.session.block_errors if isinstance(self.session, JudgesBlocks) else None
        return judge(tolerance, precision, got, answer.want, answer.scale, errors)

    def _element(self, got: Array, index: Sequence[int], number: int) -> str:
        """Describe one element of an output: its value, the reference's, and those of inputs of the same
        shape."""
        place, want = tuple(index), self.answers[number].want
        of = f" of {self.op.outputs[number].name}" if self.op.more_outputs else ""
        if got.shape != want.shape:
            return f"{of}; got the shape {got.shape}, want {want.shape}"
        inputs = [
            f"{operand.name}={float(array[place]):.9g}, "
            for operand, array in zip(self.op.inputs, self.inputs, strict=True)
            if array.shape == want.shape
        ]
        return f"{of}; {''.join(inputs)}got {float(got[place]):.9g}, want {float(want[place]):.9g}"

    def release(self) -> None:
        """Free the buffers of this workspace, and give its weights back. Shared inputs stay."""
        self._free_inputs()
        for output in self.outputs.values():
            for i, buffer in enumerate(each(output)):
                if i not in self.op.updated:
                    self.session.free(buffer)
        self.release_between()
        self._operands.weights.make_room(self.session.home)
        self.session.forget()
        if self._passed is not self._operands.weights.passed:
            self._passed.release()
        self.outputs = {}


def _nearness(check: Check) -> tuple[bool, float]:
    """Return a sort key: failed checks are the largest, then those nearest to their limits."""
    if check.max_error is None:
        return not check.ok, math.inf
    return not check.ok, check.max_error / check.limit if check.limit else 0.0


def kind_of(op: Op) -> type[Workspace]:
    """Return the class of the op's workspaces. A wing may bring one."""
    return wings.for_op("workspaces", op) or Workspace


def no_library(op: Op) -> Unsupported | None:
    """Return an error if the op calls a library that is not installed on the host, otherwise None."""
    if op.host is None or importlib.util.find_spec(op.host.name) is not None:
        return None
    why = f"{op.name} calls {op.host.name}, which is not installed"
    return Unsupported(why, hint=install_command(op.host.extra), reason="no-library")


def chain_refusal(session: Session, op: Op, case: Case) -> Unsupported | None:
    """Return why the session cannot run the stages of the op as one launch, or None if it can. Stages that run on
    the host are not asked about."""
    if not isinstance(session, Chains):
        why = f"{session.device.backend} does not run several ops as one launch"
        return Unsupported(why, reason="no-implementation")
    stages = [stage_case(session, stage, case) for stage in op.stages]
    for stage, own_op, own_case in {own.case.id: own for own in stages}.values():  # equal cases are asked once
        refused = ask(session, own_op, own_case) if own_op.host is None else None
        # Without compiled kernels a stage runs its plain expression.
        if refused is not None and refused.reason != "not-compiled":
            return Unsupported(f"{stage.name}: {refused.detail}", hint=refused.hint, reason=refused.reason)
    return None


def refusal(session: Session, op: Op, case: Case) -> BackendError | None:
    """Return why the session cannot run the case, or None if it can."""
    if op.host is not None and session.device.kind != "cpu":
        return Unsupported(f"{op.name} runs on the host, not on {session.device.id}", reason="host-stage")
    if case.regime == STREAMED and not isinstance(session, Streams):
        return Unsupported(f"{session.device.id} copies nothing while it computes", reason="no-streams")
    missing = no_library(op)
    if missing is not None:
        return missing
    return kind_of(op).refuse(session, op, case)


class CheckedLaunch(msgspec.Struct, frozen=True):
    """A launch whose output passed the check."""

    launch: Launch  # the launch
    check: Check  # the passed check of the launch
    compile_s: float  # seconds of building the launch
    first_launch_s: float  # seconds of its first run
    tune_s: float = 0.0  # seconds of choosing its kernel


def choose(workspace: Workspace, case: Case, announce: Callable[[str], None]) -> float:
    """Choose the kernels of the case on its inputs, and return the seconds that it took. Raises
    DeviceOutOfMemory. They are chosen by trials unless the machine remembers the choice."""
    announce("upload")
    workspace.upload_inputs()
    began = workspace.session.clock()
    if isinstance(workspace.session, Tunes):
        announce("autotune")
        workspace.tune(case)
    return workspace.session.clock() - began


def gate(workspace: Workspace, case: Case, announce: Callable[[str], None]) -> CheckedLaunch:
    """Build the launch of the implementation, run it once over sentinels, and compare the whole output. All
    regimes of the implementation share the launch. `announce` tells the parent the name of each phase. Raises
    BuildError, Wrong, ChangedInput or DeviceOutOfMemory."""
    session, clock = workspace.session, workspace.session.clock
    with workspace.guard_inputs():
        tune_s = choose(
            workspace, case, announce
        )  # before the output is filled, and outside the time of building
        output = workspace.output(case)
        session.sync()
        announce("compile")
        start = clock()
        launch = workspace.compile(case, workspace.buffers, output)
        built = clock()
        announce("first launch")
        first_s = workspace.check_terms(launch, case)
        took_s = _run_once(session, launch)
        announce("check")
        workspace.check_between(case, launch.output)
        check = workspace.verify(launch, case)
    return CheckedLaunch(launch, check, built - start, took_s if first_s is None else first_s, tune_s)


def _run_once(session: Session, launch: Launch) -> float:
    """Run the launch, wait for it, and return the seconds that both took."""
    began = session.clock()
    session.run(launch)
    session.sync()
    return session.clock() - began
