"""Memory of a session: pools that keep buffers from one call to the next, and operands in host memory.

A call on operands in host memory (in place) needs no copy. Either the device reads inputs and writes outputs
over the link, or pages of managed memory move to the side that touches them. Weights stay on the device, as in
calls that copy.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from weakref import WeakValueDictionary

from gpubench.backends.contract import (
    Buffer,
    HostMemory,
    Launch,
    ReadyBuffers,
    Session,
    Transfers,
    WrappedSession,
)
from gpubench.backends.contract.protocols import ComputesInPlace, HostReadable, Tunes
from gpubench.backends.shared.host import aligned_array, allocate_outputs, bytes_of, copy, host_dtype
from gpubench.base.errors import BackendError, DeviceOutOfMemory, Unsupported
from gpubench.base.messages import REASONS
from gpubench.kernels.contract.op import Array, Implementation, Op, Shape, Stored
from gpubench.result.case import Case
from gpubench.result.run import Staging


def open_in_place(session: Session, memory: str) -> Session:
    """Return a session of the same device whose operands lie in `memory` (mapped or managed). Raises
    Unsupported."""
    if isinstance(session, ComputesInPlace):
        return session.in_place(memory)
    why = f"{session.device.backend} offers no {memory} memory to compute in"
    raise Unsupported(why, hint=REASONS["not-in-place"].remedy, reason="not-in-place")


class PageLocked:
    """Page-locked memory with CUDA's array interface (version 3)."""

    def __init__(self, array: Array) -> None:
        self.array, self.address = array, int(array.ctypes.data)
        self.__cuda_array_interface__ = {**array.__array_interface__, "version": 3, "strides": None}


class PageLockedMemory(HostMemory):
    """Page-locked arrays of a session, which have the same address on the device. `buffer_in` makes a buffer in
    the memory of an array, and the buffer keeps the array alive."""

    def __init__(self, session: Session, buffer_in: Callable[[PageLocked, Shape, Stored], Buffer]) -> None:
        self._session, self._buffer_in = session, buffer_in
        self._memories: WeakValueDictionary[int, PageLocked] = WeakValueDictionary()  # by address

    def refuse(self, op: Op, case: Case) -> BackendError | None:
        """Return an error if the op's library call puts its result into a new array on the device, otherwise
        None."""
        if op.fills(case.backend):
            return None
        return Unsupported(f"{case.backend} puts the result of {op.name} on the device", reason="not-in-place")

    def allocate(self, shape: Shape, dtype: Stored) -> Buffer:
        memory = PageLocked(bytes_of(self._session.host_array(shape, dtype, "tuned")))
        self._memories[memory.address] = memory
        return self._buffer_in(memory, shape, dtype)

    def hold(self, buffers: Sequence[Buffer], *, write: bool) -> list[Array]:
        return [self._memories[buffer.data_ptr()].array for buffer in buffers]

    def compile(self, session: Session, op: Op, case: Case, inputs: Sequence[Buffer], output: Buffer) -> Launch:
        if output is None:
            output = allocate_outputs(InPlaceSession(session, self), op, case, inputs)
        return session.compile(op, case, inputs, output)


class InPlace(Transfers):
    """Transfers that use no link, because the host writes and reads the memory in which the device computes."""

    staging: Staging = "in-place"


class InPlaceSession(WrappedSession, HostReadable, Tunes):
    """A session whose operands lie in host memory. The device's session `home` runs the launches."""

    def __init__(self, home: Session, memory: HostMemory) -> None:
        super().__init__(home)
        self.host_memory = memory

    @property
    def home(self) -> Session:
        return self._inner

    def supports(self, op: Op, case: Case) -> BackendError | None:
        return self._inner.supports(op, case) or self.host_memory.refuse(op, case)

    def allocate(self, shape: Shape, dtype: Stored) -> Buffer:
        return self.host_memory.allocate(shape, dtype)

    def free(self, buffer: Buffer) -> None:
        self.host_memory.free(buffer)

    def upload(self, buffer: Buffer, host: Array) -> None:
        self.sync()
        (held,) = self.host_memory.hold([buffer], write=True)
        copy(bytes_of(host), held[: host.nbytes])
        del held
        self.host_memory.lend([buffer])

    def download(self, buffer: Buffer, host: Array) -> None:
        self.sync()
        (held,) = self.host_memory.hold([buffer], write=False)
        copy(held[: host.nbytes], bytes_of(host))
        del held
        self.host_memory.lend([buffer])

    def transfers(self, implementation: Implementation) -> Transfers:
        return InPlace(self)

    def memory(self, buffer: Buffer, shape: Shape, dtype: Stored) -> Array:
        """Return a copy of the buffer's content as a host array."""
        array = aligned_array(shape, host_dtype(dtype))
        self.download(buffer, array)
        return array

    def compile(self, op: Op, case: Case, inputs: Sequence[Buffer], output: Buffer) -> Launch:
        return self.host_memory.compile(self._inner, op, case, inputs, output)

    def tune(self, op: Op, case: Case, inputs: Sequence[Buffer]) -> None:
        if isinstance(self._inner, Tunes):
            self._inner.tune(op, case, inputs)

    def forget(self) -> None:
        super().forget()
        self.host_memory.forget()

    def close(self) -> None:
        """Free the host memory. The device's session stays open."""
        self.host_memory.close()


# If a buffer of a new size is needed and more bytes than these are idle, all idle buffers are released.
IDLE_BYTES = 1 << 30


class BufferPool(ABC):
    """A pool of idle buffers by key. A key is (shape, dtype) or a number of bytes, as the subclass decides."""

    limit = IDLE_BYTES  # most idle bytes when a buffer with a new key is needed
    most: float = math.inf  # bytes of the largest buffer that the pool keeps

    def __init__(self) -> None:
        self._ready: dict[Hashable, ReadyBuffers] = {}
        self._idle: dict[Hashable, list[Buffer]] = {}
        self._in_use: set[Hashable] = set()  # keys for which buffers were made since the pool was last emptied

    @abstractmethod
    def make(self, key: Hashable) -> Buffer:
        """Return a new buffer. Raises DeviceOutOfMemory."""

    @abstractmethod
    def size(self, key: Hashable) -> int:
        """Return the bytes of a buffer with this key."""

    @abstractmethod
    def release(self, buffers: list[Buffer]) -> None:
        """Return idle buffers to the driver."""

    def ready(self, key: Hashable) -> ReadyBuffers:
        """Return a source of buffers of this key. It stays valid when the pool is emptied."""
        ready = self._ready.get(key)
        if ready is None:
            idle: list[Buffer] = []
            pop = idle.pop
            self._idle[key] = idle
            ready = self._ready[key] = ReadyBuffers(
                take=lambda: pop() if idle else self._new(key),
                give_back=idle.append if self.size(key) <= self.most else lambda buffer: None,
            )
        return ready

    def idle_bytes(self) -> int:
        """Return the bytes of all idle buffers."""
        return sum(self.size(key) * len(idle) for key, idle in self._idle.items())

    def empty(self) -> None:
        """Release all idle buffers."""
        buffers = [buffer for idle in self._idle.values() for buffer in idle]
        for idle in self._idle.values():
            idle.clear()
        self._in_use.clear()
        self.release(buffers)

    def _new(self, key: Hashable) -> Buffer:
        """Return a new buffer. First release all idle buffers if there are too many, or if memory runs out."""
        # A key that is in use releases nothing: the buffers of a large workload are idle between its launches.
        if key not in self._in_use and self.idle_bytes() > self.limit:
            self.empty()
        try:
            buffer = self.make(key)
        except DeviceOutOfMemory:
            self.empty()
            buffer = self.make(key)
        self._in_use.add(key)
        return buffer
