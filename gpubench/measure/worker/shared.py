"""Child side: plain random inputs that all ops of a run read, and the search for a launch that changed one.

Ops that read plain values of one kind and dtype read the beginning of the same few arrays. Each is drawn once in a
worker and goes up once to its device.
"""

from __future__ import annotations

import math
from typing import Any

from gpubench.backends.contract import Buffer, Session
from gpubench.backends.contract.protocols import ComparesBuffers, HostReadable, SharesBuffers
from gpubench.backends.shared.host import is_plain, plain_values
from gpubench.backends.shared.reference import same_bytes
from gpubench.base.errors import WrongResult
from gpubench.kernels.contract.op import ITEMSIZE, Array, Dtype, Op, Operand, Shape
from gpubench.result.case import Case
from gpubench.result.run import Device

# Elements behind the longest input: a launch that writes behind its input writes into them.
GUARD = 64
# Larger operands are not shared: the same on every device, because they decide the values.
MOST_BYTES = 256 * 2**20
# The device holds each array twice. A few of them leave most of what the memory guard keeps free to other things.
_SHARE = 0.02


def shared_bytes(device: Device) -> int:
    """Return the size of the largest array of which a device keeps one copy for all ops."""
    return MOST_BYTES if device.usable_bytes is None else min(MOST_BYTES, int(_SHARE * device.usable_bytes))


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
        return is_plain(operand) and not written and size <= MOST_BYTES

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
