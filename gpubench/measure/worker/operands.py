"""Child side: data that the workloads of a device share: inputs, weights, references and outputs that passed
the check. All ops whose inputs are plain (drawn alike and written by nobody) read the beginning of the same few
arrays. A worker draws and uploads such an array once, and again only if a larger one is needed."""

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

# Elements after the longest input. A launch that writes past the end of its input writes into them.
GUARD = 64
# Larger operands are not shared. The limit is the same on every device, because shared operands have other
# values.
SHARED_BYTES = 256 * 2**20
# Share of the device's memory for one shared array, of which the device holds two copies.
_SHARED_SHARE = 0.02


def _at_most(device: Device, share: float, most: int) -> int:
    """Return `share` of the device's memory in bytes, but at most `most`."""
    return most if device.usable_bytes is None else min(most, int(share * device.usable_bytes))


def shared_bytes(device: Device) -> int:
    """Return the most bytes of an array that a device stores once for all ops."""
    return _at_most(device, _SHARED_SHARE, SHARED_BYTES)


class SharedArray:
    """A flat host array whose beginning is the input of several ops. It is on the device, too, once an op has
    bound it."""

    def __init__(self, array: Array, dtype: Dtype) -> None:
        array.flags.writeable = False
        self.array, self.dtype = array, dtype
        self.buffer: Buffer = None
        self._untouched: Buffer = None
        self._sharing: SharesBuffers | None = None

    def load(self, session: Session, sharing: SharesBuffers) -> None:
        """Upload the array unless it is on the device. Raises DeviceOutOfMemory. `sharing` is the session,
        typed as SharesBuffers."""
        if self.buffer is None:
            buffer = session.allocate(self.array.shape, self.dtype)
            session.upload(buffer, self.array)
            session.sync()
            if isinstance(session, ComparesBuffers):  # shows whether a launch has changed the other one
                self._untouched = session.copy_of(buffer, self.array.shape, self.dtype)
            self.buffer, self._sharing = buffer, sharing

    def beginning(self, shape: Shape) -> Buffer:
        """Return a buffer with the first elements on the device in this shape."""
        assert self._sharing is not None
        return self._sharing.beginning(self.buffer, shape)

    def restore(self, session: Session, count: int) -> bool:
        """Upload the array again if its beginning was changed, and return whether it was. The beginning is the
        first `count` elements and the GUARD elements after them."""
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
    """The shared arrays of one worker, by kind of values, number among the op's inputs of that kind, and dtype.
    An array is drawn again if a larger size is needed. Inputs that are bound to the shorter array keep it."""

    def __init__(self, seed: int, kind: str, most_bytes: int) -> None:
        self._seed, self._kind, self._most_bytes = seed, kind, most_bytes
        self._arrays: dict[tuple[Any, ...], SharedArray] = {}

    def holds(self, op: Op, operand: Operand, case: Case) -> bool:
        """Return whether the operand of this case is a shared array."""
        written = any(output.name == operand.name for output in op.outputs)
        size = (math.prod(operand.shape(case.params)) + GUARD) * ITEMSIZE[case.dtype]
        return is_plain(operand) and not written and size <= SHARED_BYTES

    def view(self, op: Op, operand: Operand, case: Case) -> Array:
        """Return the operand's values on the host."""
        shape = operand.shape(case.params)
        return self._array(op, operand, case).array[: math.prod(shape)].reshape(shape)

    def bind(self, session: Session, op: Op, operand: Operand, case: Case) -> SharedArray | None:
        """Upload the shared array that begins with the operand of this case, and return it. Raises
        DeviceOutOfMemory. Returns None if the array exceeds `most_bytes`, or if the session cannot use the
        beginning of a buffer."""
        shared = self._array(op, operand, case)
        if not isinstance(session, SharesBuffers) or shared.array.nbytes > self._most_bytes:
            return None
        shared.load(session, session)
        return shared

    def forget_buffers(self) -> None:
        """Forget the copies on the device, so that the next ops use newly allocated ones."""
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
    """Error: a launch wrote to an input that it shares with other ops."""

    def __init__(self, names: str = "") -> None:
        of = f" {names}" if names else ""
        super().__init__(
            f"the launch changed its input{of}, or what lies behind it",
            hint="a launch may write to its output alone: correct the kernel, or report it with the result file",
        )


# ---------------------------------------------------------------- outputs that passed

# Smaller outputs are downloaded and compared on the host, since a kernel that compares them would take as long.
LEAST_BYTES = 2**20
# Copies take at most this share of a device's memory, and no more bytes.
_COPIES_SHARE, _COPIES_BYTES, _COPIES_BYTES_UNKNOWN = 0.05, 2**31, 2**28
_LINE = 64

Implementation = tuple[SeriesKey, str]


class Copy(NamedTuple):
    """A copy, on the device, of the outputs of one size that passed the check."""

    case: Case  # the case whose outputs were copied
    buffers: tuple[Buffer, ...]  # the buffers on the device
    size: int  # bytes of all buffers
    check: Check  # the passed check of the outputs


def copies_bytes(device: Device) -> int:
    """Return how many bytes of outputs that passed the check may stay on a device."""
    return _at_most(
        device, _COPIES_SHARE, _COPIES_BYTES_UNKNOWN if device.usable_bytes is None else _COPIES_BYTES
    )


class Passed:
    """The copies of outputs that passed the whole comparison. The most recently used copies stay. An output is
    right if it has the same bits as the copy of its size. If an op's outputs of all sizes begin with the same
    elements (`Op.begins`), the beginning of a larger copy serves, too, but not at the sizes of
    `Ladder.ends`."""

    def __init__(self, session: Session, most_bytes: int) -> None:
        self._session, self._most_bytes = session, most_bytes
        self._copies: dict[tuple[Implementation, int], Copy] = {}  # the one that was asked for last comes last
        self._landing: Array | None = None

    def recall(self, op: Op, case: Case, outputs: Sequence[Buffer]) -> Check | None:
        """Return the check of a copy that begins with the same bits as these outputs, or None. If the copy is
        larger, its check is returned without `index`. Outputs below LEAST_BYTES are never copied."""
        if op.written_bytes(case.params, case.dtype) < LEAST_BYTES:
            return None
        implementation, n, whole = _implementation(case), case.n, op.sizes.ends(op.sizes.rungs())
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

    def recall_host(self, op: Op, case: Case, outputs: Sequence[Array]) -> Check | None:
        """Return the check of the copy of this size if these host arrays have its bits, otherwise None."""
        # To fetch the copy takes less time than to compare with float64.
        copy = self._copies.get((_implementation(case), case.n))
        if copy is None:
            return None
        arrays = self.landing(op, case)
        for buffer, array in zip(copy.buffers, arrays, strict=True):
            self._session.download(buffer, array)
        return copy.check if all(map(same_bytes, outputs, arrays)) else None

    def keep(self, op: Op, case: Case, outputs: Sequence[Buffer], check: Check) -> None:
        """Copy outputs that passed the check, in place of an earlier copy of this size. Does nothing for very
        small or very large outputs, an op that updates an input, or a device that cannot compare buffers."""
        size, session = op.written_bytes(case.params, case.dtype), self._session
        if (
            not LEAST_BYTES <= size <= self._most_bytes
            or op.updated
            or not isinstance(session, ComparesBuffers)
        ):
            return
        key = (_implementation(case), case.n)
        if key in self._copies:
            self._drop(key)
        self._make_room(self._most_bytes - size)
        buffers: list[Buffer] = []
        try:
            for operand, output in zip(op.outputs, outputs, strict=True):
                copy = session.copy_of(output, *operand.form(case.params, case.dtype))
                if copy is not None:
                    buffers.append(copy)
        except DeviceOutOfMemory:
            self._make_room(0)
        if len(buffers) == len(op.outputs):
            self._copies[key] = Copy(case, tuple(buffers), size, check)
        else:
            self._free(buffers)

    def landing(self, op: Op, case: Case) -> list[Array]:
        """Return host arrays to download the outputs into, page-locked if the device has such memory. All cases
        share these arrays."""
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
            session.begins(copied, output, *operand.form(case.params, case.dtype))
            for copied, output, operand in zip(copy.buffers, outputs, op.outputs, strict=True)
        )

    def _make_room(self, most_bytes: int) -> None:
        """Drop the least recently used copies until the rest is at most `most_bytes`."""
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

# Share of the device's memory for weights that no case uses, and the most bytes of them.
_WEIGHTS_SHARE, _WEIGHTS_BYTES = 0.05, 128 * 2**20

Key = tuple[Any, ...]


class Weight(msgspec.Struct):
    """A weight on the host. Once an op has borrowed it, it is on the device, too."""

    array: Array  # the weight on the host
    buffer: Buffer = None  # the weight on the device; None before the first loan
    load_s: float | None = None  # the seconds of its upload; None before that
    readers: int = 0  # the number of borrowers


class Weights:
    """The weights of ops, by op, name, shape and dtype. Each is drawn and uploaded once for all sizes of the
    op. Weights that no case uses stay on the device as long as they take at most `spare` bytes together."""

    def __init__(self, seed: int, kind: str, spare: int = 0) -> None:
        self._seed, self._kind, self._spare = seed, kind, spare
        self.passed: Passed | None = None  # of the device, if all its workspaces share one
        self._known: dict[Key, Weight] = {}  # the one that was wanted last comes last

    def array(self, op: Op, operand: Operand, case: Case) -> Array:
        return self._weight(op, operand, case).array

    def borrow(self, session: Session, op: Op, operand: Operand, case: Case) -> Buffer:
        """Return the buffer of the weight on the device, after uploading it if needed. Raises
        DeviceOutOfMemory."""
        weight = self._weight(op, operand, case)
        if weight.buffer is None:
            session.sync()
            began = time.perf_counter()
            buffer = session.allocate(*operand.form(case.params, case.dtype))
            session.upload(buffer, weight.array)
            session.sync()
            weight.load_s, weight.buffer = time.perf_counter() - began, buffer
        weight.readers += 1
        return weight.buffer

    def loading(self, op: Op, case: Case) -> tuple[int, float | None]:
        """Return the total bytes of the op's weights, and the total seconds of their uploads. The seconds are
        None if the op has no weights or not all of them are on the device."""
        weights = [self._weight(op, operand, case) for operand in op.inputs if operand.role == "weight"]
        times = [weight.load_s for weight in weights if weight.load_s is not None]
        size = sum(weight.array.nbytes for weight in weights)
        return size, math.fsum(times) if weights and len(times) == len(weights) else None

    def give_back(self, op: Op, operand: Operand, case: Case) -> None:
        """Note that one borrower no longer uses the weight."""
        self._known[_key(op, operand, case)].readers -= 1

    def make_room(self, session: Session) -> None:
        """Free unused weights, least recently used first, until the rest of them takes at most `spare`
        bytes."""
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
    """Return the weights of a session. Their `passed` has the checked outputs of all workspaces."""
    # A split keeps weights on the device once for each regime.
    spare = _at_most(session.device, _WEIGHTS_SHARE, _WEIGHTS_BYTES)
    spare //= len(REGIMES) if session.device.composed else 1
    weights = Weights(seed, kind, spare)
    weights.passed = Passed(session, copies_bytes(session.device))
    return weights


def _key(op: Op, operand: Operand, case: Case) -> Key:
    return op.name, operand.name, operand.shape(case.params), case.dtype


class Operands:
    """The inputs of one op and their float64 reference, made at the largest size that was asked for so far. If
    the op can be split along its first dimension, smaller sizes use the beginning of them."""

    page_locked = False  # keep the caller's arrays in page-locked memory, if the device has it

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
        """Return operands with the same weights and other inputs. Each number gives other inputs."""
        return type(self)(self.op, self._seed + number, self._kind, self._scratch, self.weights)

    def inputs(self, case: Case) -> list[Array]:
        """Return a C-contiguous host array for each input of the case."""
        made = self._made
        if made is None or made.series != case.series or not self._holds(made, case):
            self._made, self._own = case, {}
        return [self._input(operand, case) for operand in self.op.inputs]

    def references(self, case: Case) -> tuple[Reference, ...]:
        """Return the reference of each output of the case. Workers share references through files."""
        inputs, source = self.inputs(case), self._made
        split = self.op.split_at(case.params)
        if source is None or source.params == case.params or split is None or split.join is not None:
            return references(self.op.at(case.params), inputs, self._scratch, self._key(case))
        (whole,) = references(self.op.at(source.params), self.inputs(source), self._scratch, self._key(source))
        return (whole.beginning(self.op.output.shape(case.params)[0]),)

    def bind(self, session: Session, operand: Operand, case: Case) -> SharedArray | None:
        """Like `SharedInputs.bind`. Returns None, too, if the operand is no shared array."""
        if self._shared is None or not self._shared.holds(self.op, operand, case):
            return None
        return self._shared.bind(session, self.op, operand, case)

    def rest(self) -> None:
        """Drop the arrays that are not shared. They are made again when needed."""
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
        """Return, for each input, whether it is a shared array, which has other values than an unshared one."""
        shared = self._shared
        return [shared is not None and shared.holds(self.op, operand, case) for operand in self.op.inputs]

    def _key(self, case: Case) -> str:
        return f"{case.workload} {self._seed} {self._kind}"
