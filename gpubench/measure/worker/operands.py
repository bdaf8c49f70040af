"""Child side: inputs and references of an op, and the weights of all ops, which stay as long as a session has room."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from gpubench.backends.contract import Buffer, Session
from gpubench.backends.shared.host import random_input
from gpubench.backends.shared.reference import Reference, references
from gpubench.kernels.contract.op import Array, Op, Operand
from gpubench.measure.worker.passed import Passed, copies_bytes
from gpubench.measure.worker.shared import SharedArray, SharedInputs
from gpubench.result.case import REGIMES, Case
from gpubench.result.run import Device

# What weights that nobody reads may take of a device: a quarter of what the memory guard leaves free, and no more bytes
_SHARE, _MOST_BYTES = 0.05, 128 * 2**20

Key = tuple[Any, ...]


def spare_bytes(device: Device) -> int:
    """Bytes of weights that a session may keep for later sizes."""
    return _MOST_BYTES if device.usable_bytes is None else min(_MOST_BYTES, int(_SHARE * device.usable_bytes))


class Weight:
    """A weight on the host and, once somebody borrowed it, on the device."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.buffer: Buffer = None
        self.load_s: float | None = None
        self.readers = 0


class Weights:
    """Weights by op, name, shape and dtype: each is drawn once and goes up once, whatever sizes of the op read it.

    Of those that nobody borrows `spare` bytes are kept, the ones that were wanted last.
    """

    def __init__(self, seed: int, kind: str, spare: int = 0) -> None:
        self._seed, self._kind, self._spare = seed, kind, spare
        self.passed: Passed | None = None  # of the device, if all its workspaces share one
        self._known: dict[Key, Weight] = {}  # the one that was wanted last comes last

    def array(self, op: Op, operand: Operand, case: Case) -> Array:
        return self._found(op, operand, case).array

    def borrow(self, session: Session, op: Op, operand: Operand, case: Case) -> Buffer:
        """The buffer that holds it. Raises DeviceOutOfMemory."""
        found = self._found(op, operand, case)
        if found.buffer is None:
            session.sync()
            began = time.perf_counter()
            buffer = session.allocate(operand.shape(case.params), operand.stored(case.dtype))
            session.upload(buffer, found.array)
            session.sync()
            found.load_s, found.buffer = time.perf_counter() - began, buffer
        found.readers += 1
        return found.buffer

    def loading(self, op: Op, case: Case) -> tuple[int, float | None]:
        """Bytes of all weights of the op, and the seconds that it took to bring them to the device; None: they are not
        there."""
        found = [self._found(op, operand, case) for operand in op.inputs if operand.role == "weight"]
        times = [one.load_s for one in found if one.load_s is not None]
        size = sum(one.array.nbytes for one in found)
        return size, math.fsum(times) if found and len(times) == len(found) else None

    def give_back(self, op: Op, operand: Operand, case: Case) -> None:
        """One reader less."""
        self._known[_key(op, operand, case)].readers -= 1

    def make_room(self, session: Session) -> None:
        """Free what nobody reads, the oldest first, until the rest is little enough."""
        idle = [key for key, weight in self._known.items() if not weight.readers]
        size = sum(self._known[key].array.nbytes for key in idle)
        for key in idle:
            if size <= self._spare:
                return
            weight = self._known.pop(key)
            size -= weight.array.nbytes
            if weight.buffer is not None:
                session.free(weight.buffer)

    def _found(self, op: Op, operand: Operand, case: Case) -> Weight:
        key = _key(op, operand, case)
        found = self._known.pop(key, None)
        if found is None:
            found = Weight(random_input(op, operand, case.params, case.dtype, self._seed, self._kind))
        self._known[key] = found
        return found


def weights_of(session: Session, seed: int, kind: str) -> Weights:
    """Return what all ops of a session share: its weights, and its outputs that passed."""
    # A split keeps weights on the device once for each regime.
    spare = spare_bytes(session.device) // (len(REGIMES) if session.device.composed else 1)
    weights = Weights(seed, kind, spare)
    weights.passed = Passed(session, copies_bytes(session.device))
    return weights


def _key(op: Op, operand: Operand, case: Case) -> Key:
    return op.name, operand.name, operand.shape(case.params), case.dtype


class Operands:
    """Inputs of one op and their float64 answer. They are made at the largest size that was asked for; where the op is
    cut along its first dimension, smaller sizes are their first part."""

    def __init__(
        self, op: Op, seed: int, kind: str, scratch: Path, weights: Weights | None = None,
        shared: SharedInputs | None = None,
    ) -> None:  # fmt: skip
        self.op = op
        self.weights = weights or Weights(seed, kind)
        self._shared = shared
        self._seed, self._kind, self._scratch = seed, kind, scratch
        self._made: Case | None = None
        self._own: dict[str, Array] = {}

    def inputs(self, case: Case) -> list[Array]:
        """A C-contiguous array for each operand."""
        made = self._made
        if made is None or made.series != case.series or not self._holds(made, case):
            self._made, self._own = case, {}
        return [self._input(operand, case) for operand in self.op.inputs]

    def references(self, case: Case) -> tuple[Reference, ...]:
        """The answer of each output, shared with other workers by files."""
        inputs, source = self.inputs(case), self._made
        cut = self.op.cut(case.params)
        if source is None or source.params == case.params or cut is None or cut.join is not None:
            return references(self.op.at(case.params), inputs, self._scratch, self._key(case))
        (whole,) = references(self.op.at(source.params), self.inputs(source), self._scratch, self._key(source))
        return (whole.beginning(self.op.output.shape(case.params)[0]),)

    def bind(self, session: Session, operand: Operand, case: Case) -> SharedArray | None:
        """The shared array on the device whose beginning is the operand; None if it has a buffer of its own. Raises
        DeviceOutOfMemory."""
        if self._shared is None or not self._shared.holds(self.op, operand, case):
            return None
        return self._shared.bind(session, self.op, operand, case)

    def rest(self) -> None:
        """Let go of the arrays that no other op reads: they are drawn again when they are needed."""
        self._own = {}

    def _input(self, operand: Operand, case: Case) -> Array:
        if self._shared is not None and self._shared.holds(self.op, operand, case):
            return self._shared.view(self.op, operand, case)
        if operand.name not in self._own:
            assert self._made is not None
            self._own[operand.name] = self._drawn(operand, self._made)
        array, shape = self._own[operand.name], operand.shape(case.params)
        return array if array.shape == shape else array[: shape[0]]

    def _drawn(self, operand: Operand, case: Case) -> Array:
        if operand.role == "weight":
            return self.weights.array(self.op, operand, case)
        return random_input(self.op, operand, case.params, case.dtype, self._seed, self._kind)

    def _holds(self, made: Case, case: Case) -> bool:
        if made.params == case.params:
            return True
        return self.op.begins(case.params, made.params) and self._sharing(made) == self._sharing(case)

    def _sharing(self, case: Case) -> list[bool]:
        """Which of the inputs are shared: they have other values than those that are not."""
        shared = self._shared
        return [shared is not None and shared.holds(self.op, operand, case) for operand in self.op.inputs]

    def _key(self, case: Case) -> str:
        return f"{case.workload} {self._seed} {self._kind}"
