"""Child side: what the workloads of a device share: plain inputs of all ops, weights, references, outputs that passed.

Ops that read plain values of one kind and dtype read the beginning of the same few arrays. Each is drawn once in a
worker and goes up once to its device.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gpubench.backends.contract import Buffer, Session
from gpubench.backends.contract.protocols import ComparesBuffers, HostReadable, SharesBuffers
from gpubench.backends.shared.host import host_dtype, is_plain, plain_values, random_input
from gpubench.backends.shared.reference import Reference, references, same_bytes
from gpubench.base.errors import DeviceOutOfMemory, WrongResult
from gpubench.kernels.contract.op import ITEMSIZE, Array, Dtype, Op, Operand, Shape
from gpubench.result.case import REGIMES, Case, SeriesKey
from gpubench.result.run import Check, Device

# Elements behind the longest input: a launch that writes behind its input writes into them.
GUARD = 64
# Larger operands are not shared: the same on every device, because they decide the values.
SHARED_BYTES = 256 * 2**20
# The device holds each array twice. A few of them leave most of what the memory guard keeps free to other things.
_SHARED_SHARE = 0.02


def _at_most(device: Device, share: float, most: int) -> int:
    """Return that share of a device's memory, and no more bytes than `most`."""
    return most if device.usable_bytes is None else min(most, int(share * device.usable_bytes))


def shared_bytes(device: Device) -> int:
    """Return the size of the largest array of which a device keeps one copy for all ops."""
    return _at_most(device, _SHARED_SHARE, SHARED_BYTES)


class SharedArray:
    """A flat host array and, once an op has bound it, its copy on the device, with a second one to compare it with
    where the device is not the host."""

    def __init__(self, array: Array, dtype: Dtype) -> None:
        array.flags.writeable = False
        self.array, self.dtype = array, dtype
        self.buffer: Buffer = None
        self._untouched: Buffer = None
        self._sharing: SharesBuffers | None = None

    def load(self, session: Session, sharing: SharesBuffers) -> None:
        """Bring it to the device, once; `sharing` is the session too. Raises DeviceOutOfMemory."""
        if self.buffer is None:
            buffer = session.allocate(self.array.shape, self.dtype)
            session.upload(buffer, self.array)
            session.sync()
            if isinstance(session, ComparesBuffers):
                self._untouched = session.copy_of(buffer, self.array.shape, self.dtype)
            self.buffer, self._sharing = buffer, sharing

    def beginning(self, shape: Shape) -> Buffer:
        """Return its first elements on the device, in this shape."""
        assert self._sharing is not None
        return self._sharing.beginning(self.buffer, shape)

    def restore(self, session: Session, count: int) -> bool:
        """Return whether one of the first `count` elements, or one shortly behind them, was changed; it is then brought
        up again."""
        session.sync()
        shape = ((count + GUARD) // 4 * 4,)  # devices compare whole words
        part = self.beginning(shape)
        if self._untouched is not None and isinstance(session, ComparesBuffers):
            same = session.begins(self._untouched, part, shape, self.dtype)
        else:
            held = session.memory(part, shape, self.dtype) if isinstance(session, HostReadable) else None
            if held is None:
                held = self.array[: shape[0]].copy()
                session.download(part, held)
            same = same_bytes(held, self.array[: shape[0]])
        if not same:
            session.upload(self.buffer, self.array)
            session.sync()
        return not same


class SharedInputs:
    """The shared arrays of one worker by kind of values, number among the op's inputs of that kind, and dtype. They
    grow with the largest size that was asked for; what is bound to a shorter array stays so."""

    def __init__(self, seed: int, kind: str, most_bytes: int) -> None:
        self._seed, self._kind, self._most_bytes = seed, kind, most_bytes
        self._arrays: dict[tuple[Any, ...], SharedArray] = {}

    def holds(self, op: Op, operand: Operand, case: Case) -> bool:
        """Return whether the operand is one of those that are shared."""
        written = any(output.name == operand.name for output in op.outputs)
        size = (math.prod(operand.shape(case.params)) + GUARD) * ITEMSIZE[case.dtype]
        return is_plain(operand) and not written and size <= SHARED_BYTES

    def view(self, op: Op, operand: Operand, case: Case) -> Array:
        """The host's values of the operand."""
        shape = operand.shape(case.params)
        return self._array(op, operand, case).array[: math.prod(shape)].reshape(shape)

    def bind(self, session: Session, op: Op, operand: Operand, case: Case) -> SharedArray | None:
        """The array whose beginning is the operand, on the device. None if the session's buffers have no parts, or if
        the array is too large for it. Raises DeviceOutOfMemory."""
        shared = self._array(op, operand, case)
        if not isinstance(session, SharesBuffers) or shared.array.nbytes > self._most_bytes:
            return None
        shared.load(session, session)
        return shared

    def forget_buffers(self) -> None:
        """Have the next ops bind copies that are allocated anew."""
        self._arrays = {key: SharedArray(shared.array, shared.dtype) for key, shared in self._arrays.items()}

    def _array(self, op: Op, operand: Operand, case: Case) -> SharedArray:
        alike = [x.name for x in op.inputs if is_plain(x) and x.values == operand.values]
        number, count = alike.index(operand.name), math.prod(operand.shape(case.params)) + GUARD
        key = operand.values, number, case.dtype
        shared = self._arrays.get(key)
        if shared is None or shared.array.size < count:
            array = plain_values(operand.values, number, count, case.dtype, self._seed, self._kind)
            shared = self._arrays[key] = SharedArray(array, case.dtype)
        return shared


class ChangedInput(WrongResult):
    """A launch wrote to an input that it shares with other ops."""

    def __init__(self, names: str = "") -> None:
        of = f" {names}" if names else ""
        super().__init__(
            f"the launch changed its input{of}, or what lies behind it",
            hint="a launch may write to its output alone: correct the kernel, or report it with the result file",
        )


# ---------------------------------------------------------------- outputs that passed

# Smaller outputs are fetched and compared on the host: a kernel that compares them would take as long.
LEAST_BYTES = 2**20
# Copies take at most this share of a device's memory, and no more bytes.
_COPIES_SHARE, _COPIES_BYTES, _COPIES_BYTES_UNKNOWN = 0.05, 2**31, 2**28
_LINE = 64

Implementation = tuple[SeriesKey, str]


class Copy(NamedTuple):
    """Outputs of one size that passed."""

    case: Case  # whose outputs they are
    buffers: tuple[Buffer, ...]  # on the device
    size: int  # in bytes, of all of them
    check: Check  # that they passed


def copies_bytes(device: Device) -> int:
    """Return how many bytes of outputs that passed may stay on a device."""
    return _at_most(
        device, _COPIES_SHARE, _COPIES_BYTES_UNKNOWN if device.usable_bytes is None else _COPIES_BYTES
    )


class Passed:
    """Copies of outputs that passed the whole comparison; those that were asked for last stay.

    An output with the bits of one is right. So is one with the bits of the beginning of a larger one, where the op's
    output begins so, except at the sizes that are always compared whole: the lowest, a middle and the top one.
    """

    def __init__(self, session: Session, most_bytes: int) -> None:
        self._session, self._most_bytes = session, most_bytes
        self._copies: dict[tuple[Implementation, int], Copy] = {}  # the one that was asked for last comes last
        self._landing: Array | None = None

    def recall(self, op: Op, case: Case, outputs: Sequence[Buffer]) -> Check | None:
        """Return the check of outputs with the same bits. Returns None if no copy has them."""
        if op.written_bytes(case.params, case.dtype) < LEAST_BYTES:
            return None
        implementation, n, whole = _implementation(case), case.params["n"], op.sizes.ends(op.sizes.rungs())
        sizes = sorted(
            size
            for implementation_of, size in self._copies
            if implementation_of == implementation and size >= n
        )
        for size in sizes:
            copy = self._copies.pop((implementation, size))
            self._copies[implementation, size] = copy
            if size > n and (n in whole or not op.begins(case.params, copy.case.params)):
                continue
            if self._has_bits(op, case, outputs, copy):
                return copy.check if size == n else msgspec.structs.replace(copy.check, index=[])
        return None

    def keep(self, op: Op, case: Case, outputs: Sequence[Buffer], check: Check) -> None:
        """Copy outputs that passed, in place of others of this size."""
        size, session = op.written_bytes(case.params, case.dtype), self._session
        if (
            not LEAST_BYTES <= size <= self._most_bytes
            or op.updated
            or not isinstance(session, ComparesBuffers)
        ):
            return
        key = (_implementation(case), case.params["n"])
        if key in self._copies:
            self._drop(key)
        self._make_room(self._most_bytes - size)
        buffers: list[Buffer] = []
        try:
            for operand, output in zip(op.outputs, outputs, strict=True):
                copy = session.copy_of(output, operand.shape(case.params), operand.stored_dtype(case.dtype))
                if copy is not None:
                    buffers.append(copy)
        except DeviceOutOfMemory:
            self._make_room(0)
        if len(buffers) == len(op.outputs):
            self._copies[key] = Copy(case, tuple(buffers), size, check)
        else:
            self._free(buffers)

    def landing(self, op: Op, case: Case) -> list[Array]:
        """Return host arrays for the outputs, page-locked where the device has such memory. All cases share them."""
        shapes = [
            (operand.shape(case.params), host_dtype(operand.stored_dtype(case.dtype))) for operand in op.outputs
        ]
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in shapes]
        total = sum(-(-size // _LINE) * _LINE for size in sizes)
        if self._landing is None or self._landing.size < total:
            self._landing = self._session.host_array((total,), "uint8", "tuned")
        arrays, start = [], 0
        for (shape, dtype), size in zip(shapes, sizes, strict=True):
            arrays.append(self._landing[start : start + size].view(dtype).reshape(shape))
            start += -(-size // _LINE) * _LINE
        return arrays

    def release(self) -> None:
        """Free all memory."""
        self._make_room(0)
        self._landing = None

    def _has_bits(self, op: Op, case: Case, outputs: Sequence[Buffer], copy: Copy) -> bool:
        session = self._session
        return isinstance(session, ComparesBuffers) and all(
            session.begins(copied, output, operand.shape(case.params), operand.stored_dtype(case.dtype))
            for copied, output, operand in zip(copy.buffers, outputs, op.outputs, strict=True)
        )

    def _make_room(self, most_bytes: int) -> None:
        """Drop the copies that were asked for longest ago, until the rest is small enough."""
        while self._copies and sum(copy.size for copy in self._copies.values()) > most_bytes:
            self._drop(next(iter(self._copies)))

    def _drop(self, key: tuple[Implementation, int]) -> None:
        self._free(self._copies.pop(key).buffers)

    def _free(self, buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            self._session.free(buffer)


def _implementation(case: Case) -> Implementation:
    return case.series, case.implementation_id


# ---------------------------------------------------------------- weights, and the operands of an op

# What weights that nobody reads may take of a device: a quarter of what the memory guard leaves free, and no more bytes
_WEIGHTS_SHARE, _WEIGHTS_BYTES = 0.05, 128 * 2**20

Key = tuple[Any, ...]


def spare_bytes(device: Device) -> int:
    """Bytes of weights that a session may keep for later sizes."""
    return _at_most(device, _WEIGHTS_SHARE, _WEIGHTS_BYTES)


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
        return self._weight(op, operand, case).array

    def borrow(self, session: Session, op: Op, operand: Operand, case: Case) -> Buffer:
        """The buffer that holds it. Raises DeviceOutOfMemory."""
        weight = self._weight(op, operand, case)
        if weight.buffer is None:
            session.sync()
            began = time.perf_counter()
            buffer = session.allocate(operand.shape(case.params), operand.stored_dtype(case.dtype))
            session.upload(buffer, weight.array)
            session.sync()
            weight.load_s, weight.buffer = time.perf_counter() - began, buffer
        weight.readers += 1
        return weight.buffer

    def loading(self, op: Op, case: Case) -> tuple[int, float | None]:
        """Bytes of all weights of the op, and the seconds that it took to bring them to the device; None: they are not
        there."""
        weights = [self._weight(op, operand, case) for operand in op.inputs if operand.role == "weight"]
        times = [weight.load_s for weight in weights if weight.load_s is not None]
        size = sum(weight.array.nbytes for weight in weights)
        return size, math.fsum(times) if weights and len(times) == len(weights) else None

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

    def _weight(self, op: Op, operand: Operand, case: Case) -> Weight:
        key = _key(op, operand, case)
        weight = self._known.pop(key, None)
        if weight is None:
            weight = Weight(random_input(op, operand, case.params, case.dtype, self._seed, self._kind))
        self._known[key] = weight
        return weight


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

    page_locked = False  # the caller's arrays are, where the device has such memory

    def __init__(
        self, op: Op, seed: int, kind: str, scratch: Path, weights: Weights | None = None,
        shared: SharedInputs | None = None,
    ) -> None:  # fmt: skip
        self.op = op
        self.weights = weights or Weights(seed, kind)
        self._shared = shared
        self.drawn = self._seed, self._kind, self._scratch = seed, kind, scratch
        self._made: Case | None = None
        self._own: dict[str, Array] = {}

    def sibling(self, number: int) -> Operands:
        """Return operands with inputs of their own, and these weights."""
        return type(self)(self.op, self._seed + number, self._kind, self._scratch, self.weights)

    def inputs(self, case: Case) -> list[Array]:
        """A C-contiguous array for each operand."""
        made = self._made
        if made is None or made.series != case.series or not self._holds(made, case):
            self._made, self._own = case, {}
        return [self._input(operand, case) for operand in self.op.inputs]

    def references(self, case: Case) -> tuple[Reference, ...]:
        """The answer of each output, shared with other workers by files."""
        inputs, source = self.inputs(case), self._made
        split = self.op.split_at(case.params)
        if source is None or source.params == case.params or split is None or split.join is not None:
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
            self._own[operand.name] = self._draw(operand, self._made)
        array, shape = self._own[operand.name], operand.shape(case.params)
        return array if array.shape == shape else array[: shape[0]]

    def _draw(self, operand: Operand, case: Case) -> Array:
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
