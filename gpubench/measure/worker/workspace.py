"""Child side: one workload's inputs, buffers and reference, and the correctness gate in front of timing."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from gpubench.backends.shared.host import (
    calls_library,
    compare,
    fill,
    not_finite,
    op_hash,
    random_inputs,
    reference,
    same_bytes,
    sentinel_for,
    sentinels,
)
from gpubench.catalogue import REASONS
from gpubench.errors import BackendError, WrongResult
from gpubench.model.backend import Buffer, Launch, Session
from gpubench.model.case import Case
from gpubench.model.op import Array, Op, Operand, Shape
from gpubench.model.result import Check

_MEANINGLESS = "draw the op's inputs from a Range where it has a meaning, or let the op declare not_finite"


# Of a workload so many outputs that passed are kept, one for each form, to compare later ones with their bytes: a tenth
# of the time of a comparison with the float64 reference. Above so many bytes the memory is worth more.
KEPT = 2
KEPT_BYTES = 64 * 2**20


class Wrong(WrongResult):
    """The output is wrong; `check` says by how much and where, `element` what stands there, `hint` what to do."""

    def __init__(self, check: Check, element: str = "", hint: str = REASONS["wrong-result"].remedy) -> None:
        size = "not finite" if check.max_error is None else f"{check.max_error:.3g}"
        super().__init__(
            f"largest error {size} at {check.index}, allowed {check.limit:.3g}{element}",
            hint=hint,
        )
        self.check = check


class Material:
    """Inputs of one op and their float64 answer. They are made at the largest size that was asked for; where the op is
    cut along its first dimension, smaller sizes are their first part."""

    def __init__(self, op: Op, seed: int, kind: str, scratch: Path) -> None:
        self.op = op
        self._seed, self._kind, self._scratch = seed, kind, scratch
        self._made: Case | None = None
        self._inputs: list[Array] = []

    def inputs(self, case: Case) -> list[Array]:
        """A C-contiguous array for each operand."""
        made = self._made
        if made is None or made.series != case.series or not self._holds(made, case):
            self._made = case
            self._inputs = random_inputs(self.op, case.params, case.dtype, self._seed, self._kind)
        shapes = [operand.shape(case.params) for operand in self.op.inputs]
        return [x if x.shape == shape else x[: shape[0]] for x, shape in zip(self._inputs, shapes, strict=True)]

    def reference(self, case: Case) -> tuple[Array, Array | None]:
        """The answer, and the scale of its tolerance or None, shared with other workers by files."""
        inputs, source = self.inputs(case), self._made
        cut = self.op.cut(case.params)
        if source is None or source.params == case.params or cut is None or cut.join is not None:
            return reference(self.op.at(case.params), inputs, self._scratch, self._key(case))
        want, scale = reference(self.op.at(source.params), self._inputs, self._scratch, self._key(source))
        rows = self.op.output.shape(case.params)[0]
        shared = scale is None or not scale.ndim or scale.shape[0] != want.shape[0]
        return want[:rows], scale if scale is None or shared else scale[:rows]

    def _holds(self, made: Case, case: Case) -> bool:
        return made.params == case.params or self.op.begins(case.params, made.params)

    def _key(self, case: Case) -> str:
        return f"{case.workload} {self._seed} {self._kind}"


class Workspace:
    """What all cases of one workload share on one device: host inputs, device inputs, the reference."""

    def __init__(
        self, session: Session, op: Op, case: Case, seed: int, kind: str, scratch: Path,
        material: Material | None = None,
    ) -> None:  # fmt: skip
        self.session = session
        self.op = op.at(case.params)
        self.case = case
        self._material = material or Material(op, seed, kind, scratch)
        self.inputs: list[Array] = self._material.inputs(case)
        self.op_hash = op_hash(op)
        self.buffers: list[Buffer] = []
        self.outputs: dict[str, Buffer] = {}
        self._spoilt: dict[Shape, Array] = {}
        self._right: dict[str, deque[tuple[Array, Check]]] = {}  # by precision: outputs that passed

    def make_reference(self) -> None:
        """Have the float64 answer at hand before the first output is checked."""
        _ = self._reference

    @functools.cached_property
    def _reference(self) -> tuple[Array, Array | None]:
        return self._material.reference(self.case)

    @property
    def want(self) -> Array:
        """The float64 answer."""
        return self._reference[0]

    @functools.cached_property
    def sentinel(self) -> float:
        """What unwritten elements hold."""
        return sentinel_for(self.want)

    @functools.cached_property
    def meaningless(self) -> list[int]:
        """Where the reference is not finite though the op declares no such output; empty: nowhere."""
        return [] if self.op.not_finite else not_finite(self.want, self.inputs)

    @functools.cached_property
    def host_output(self) -> Array:
        """What outputs are downloaded into."""
        return sentinels(self.op.output.shape(self.case.params), self.case.dtype, self.sentinel)

    def upload_inputs(self) -> None:
        """Allocate the device's inputs once and fill them: all or none. Raises DeviceOutOfMemory."""
        if self.buffers:
            return
        taken: list[Buffer] = []
        try:
            for operand, host in zip(self.op.inputs, self.inputs, strict=True):
                taken.append(self.session.allocate(operand.shape(self.case.params), self.case.dtype))
                self.session.upload(taken[-1], host)
            self.session.sync()
        except BackendError:
            for buffer in taken:
                self.session.free(buffer)
            raise
        self.buffers = taken

    def output(self, case: Case) -> Buffer | None:
        """A tuned kernel's output, full of sentinels, one per variant; None for a case that makes its own each time."""
        if calls_library(self.op, case):
            return None
        if case.form_id not in self.outputs:
            shape = self.op.output.shape(self.case.params)
            self.outputs[case.form_id] = self.session.allocate(shape, self.case.dtype)
        self.spoil(self.outputs[case.form_id], self.op.output)
        return self.outputs[case.form_id]

    def verify(self, launch: Launch, precision: str | None = None) -> Check:
        """Download the launch's output and compare all of it. Raises Wrong."""
        self.spoil_host_output()
        self.session.download(launch.output, self.host_output)
        return self.verify_host_output(precision)

    def spoil_host_output(self) -> None:
        """Fill the host's output with sentinels, so that what is not downloaded fails."""
        fill(self.host_output, self.sentinel)

    def spoil(self, buffer: Buffer, operand: Operand) -> None:
        """Fill a device buffer with sentinels."""
        shape = operand.shape(self.case.params)
        full = self._spoilt.get(shape)
        if full is None:
            full = self._spoilt[shape] = sentinels(shape, self.case.dtype, self.sentinel)
        self.session.upload(buffer, full)

    def verify_host_output(self, precision: str | None = None) -> Check:
        """Compare what was downloaded last, with the tolerance of `precision` (None: of the dtype). Raises Wrong.

        A reference that is not finite where the op declares no such output is wrong itself: nothing is right by it.
        An output with the bytes of one that passed is right; any other is compared whole.
        """
        passed = self._right.setdefault(precision or self.case.dtype, deque(maxlen=KEPT))
        for output, known in passed:
            if same_bytes(output, self.host_output):
                return known
        check = compare(self.op, precision or self.case.dtype, self.host_output, *self._reference)
        if self.meaningless:
            at = msgspec.structs.replace(check, ok=False, max_error=None, index=self.meaningless)
            raise Wrong(at, f"{self._element(at.index)}: the reference itself is not finite", _MEANINGLESS)
        if not check.ok:
            raise Wrong(check, self._element(check.index))
        if self.host_output.nbytes <= KEPT_BYTES:
            passed.append((self.host_output.copy(), check))
        return check

    def _element(self, index: Sequence[int]) -> str:
        """Got and want at that place, with the inputs that have the output's shape."""
        place = tuple(index)
        if self.host_output.shape != self.want.shape:
            return f"; got the shape {self.host_output.shape}, want {self.want.shape}"
        inputs = [
            f"{operand.name}={float(array[place]):.9g}, "
            for operand, array in zip(self.op.inputs, self.inputs, strict=True)
            if array.shape == self.want.shape
        ]
        return (
            f"; {''.join(inputs)}got {float(self.host_output[place]):.9g}, want {float(self.want[place]):.9g}"
        )

    def release(self) -> None:
        """Give all buffers back."""
        for buffer in (*self.buffers, *self.outputs.values()):
            self.session.free(buffer)
        self.buffers, self.outputs, self._spoilt, self._right = [], {}, {}, {}


class CheckedLaunch(msgspec.Struct, frozen=True):
    """A launch that was right, and the seconds of choosing its kernel, of building it and of its first run."""

    launch: Launch
    check: Check
    compile_s: float
    first_launch_s: float
    tune_s: float = 0.0


def gate(workspace: Workspace, case: Case, announce: Callable[[str], None]) -> CheckedLaunch:
    """Build the form's launch, run it once on an output full of sentinels and compare all of it.

    All regimes of the form share the launch. Raises BuildError, Wrong or DeviceOutOfMemory.
    """
    session, clock = workspace.session, workspace.session.clock
    announce("upload")
    workspace.upload_inputs()
    began = clock()
    if session.tunes:  # before the output is filled, and outside the time of building
        announce("autotune")
        session.tune(workspace.op, case, workspace.buffers)
    tuned = clock()
    output = workspace.output(case)
    session.sync()
    announce("compile")
    start = clock()
    launch = session.compile(workspace.op, case, workspace.buffers, output)
    built = clock()
    announce("first launch")
    launched = clock()
    session.run(launch)
    session.sync()
    first = clock()
    announce("check")
    check = workspace.verify(launch, case.precision)
    return CheckedLaunch(launch, check, built - start, first - launched, tuned - began)
