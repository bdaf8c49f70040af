"""Child side: one workload's inputs, buffers and reference, and the correctness gate in front of timing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from gpubench.backends._host import (
    calls_library,
    compare,
    op_hash,
    poison_for,
    poisoned,
    random_inputs,
    reference,
)
from gpubench.errors import BackendError, WrongResult
from gpubench.model.backend import Buffer, Launch, Session
from gpubench.model.case import Case
from gpubench.model.op import Array, Op, Operand
from gpubench.model.result import Check


class Wrong(WrongResult):
    """The output is wrong; `check` says by how much and where."""

    def __init__(self, check: Check) -> None:
        size = "not finite" if check.max_error is None else f"{check.max_error:.3g}"
        super().__init__(
            f"largest error {size} at {check.index}, allowed {check.limit:.3g}",
            hint="this is a defect of the kernel or of the driver: please report it with the result file",
        )
        self.check = check


class Material:
    """What all cases of one workload share on one device: host inputs, device inputs, the reference."""

    def __init__(self, session: Session, op: Op, case: Case, seed: int, kind: str, scratch: Path) -> None:
        self.session = session
        self.op = op
        self.case = case
        self.inputs: list[Array] = random_inputs(op, case.params, case.dtype, seed, kind)
        self.want, self.scale = reference(op, self.inputs, scratch, f"{case.workload} {seed} {kind}")
        self.op_hash = op_hash(op)
        self.buffers: list[Buffer] = []
        self.outputs: dict[str, Buffer] = {}
        self.poison = poison_for(self.want)
        self.landing: Array = poisoned(op.output.shape(case.params), case.dtype, self.poison)

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
        """The poisoned output of a tuned kernel, one per variant; None for a case that makes its own each time."""
        if calls_library(self.op, case):
            return None
        if case.form_id not in self.outputs:
            shape = self.op.output.shape(self.case.params)
            self.outputs[case.form_id] = self.session.allocate(shape, self.case.dtype)
        self.spoil(self.outputs[case.form_id], self.op.output)
        return self.outputs[case.form_id]

    def verify(self, launch: Launch, precision: str | None = None) -> Check:
        """Download the launch's output and compare all of it. Raises Wrong."""
        self.poison_landing()
        self.session.download(launch.output, self.landing)
        return self.verify_landing(precision)

    def poison_landing(self) -> None:
        """Fill the host's output with poison, so that what is not downloaded fails."""
        self.landing.fill(self.poison)

    def spoil(self, buffer: Buffer, operand: Operand) -> None:
        """Fill a device buffer with poison."""
        shape = operand.shape(self.case.params)
        self.session.upload(buffer, poisoned(shape, self.case.dtype, self.poison))

    def verify_landing(self, precision: str | None = None) -> Check:
        """Compare what was downloaded last, with the tolerance of `precision` (None: of the dtype). Raises Wrong."""
        check = compare(self.op, precision or self.case.dtype, self.landing, self.want, self.scale)
        if not check.ok:
            raise Wrong(check)
        return check

    def release(self) -> None:
        """Give all buffers back."""
        for buffer in (*self.buffers, *self.outputs.values()):
            self.session.free(buffer)
        self.buffers, self.outputs = [], {}


class Gated(msgspec.Struct, frozen=True):
    """A launch that was right, and the seconds of choosing its kernel, of building it and of its first run."""

    launch: Launch
    check: Check
    compile_s: float
    first_launch_s: float
    tune_s: float = 0.0


def gate(material: Material, case: Case, announce: Callable[[str], None]) -> Gated:
    """Build the form's launch, run it once on a poisoned output and compare all of it.

    All regimes of the form share the launch. Raises BuildError, Wrong or DeviceOutOfMemory.
    """
    session, clock = material.session, material.session.clock
    announce("upload")
    material.upload_inputs()
    tune, began = getattr(session, "tune", None), clock()
    if tune is not None:  # before the output is poisoned, and outside the time of building
        announce("autotune")
        tune(material.op, case, material.buffers)
    tuned = clock()
    output = material.output(case)
    session.sync()
    announce("compile")
    start = clock()
    launch = session.compile(material.op, case, material.buffers, output)
    built = clock()
    announce("first launch")
    launched = clock()
    session.run(launch)
    session.sync()
    first = clock()
    announce("check")
    check = material.verify(launch, case.precision)
    return Gated(launch, check, built - start, first - launched, tuned - began)
