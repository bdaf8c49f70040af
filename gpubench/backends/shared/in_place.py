"""A device that computes where the host's data is: a session whose operands lie in host memory.

A call in place needs no copy. The device reads its inputs and writes its outputs over the link, or pages of managed
memory move to the side that touches them. Weights stay on the device, as they do where others copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

from gpubench.backends.contract import Buffer, HostMemory, Launch, Session, Transfers
from gpubench.backends.contract.protocols import ComputesInPlace, HostReadable, Tunes
from gpubench.backends.shared.host import aligned_array, allocate_outputs, bytes_of, copy, host_dtype
from gpubench.base.errors import BackendError, Unsupported
from gpubench.base.messages import REASONS
from gpubench.kernels.contract.op import Array, Implementation, Op, Shape, Stored
from gpubench.result.case import Case
from gpubench.result.run import Staging


def open_in_place(session: Session, memory: str) -> Session:
    """Return the session of the device whose operands lie in this memory. Raises Unsupported."""
    if isinstance(session, ComputesInPlace):
        return session.in_place(memory)
    why = f"{session.device.backend} offers no {memory} memory to compute in"
    raise Unsupported(why, hint=REASONS["not-in-place"].remedy, reason="not-in-place")


class PageLocked:
    """Page-locked bytes, as CUDA's array interface (version 3) tells of them."""

    def __init__(self, array: Array) -> None:
        self.array, self.address = array, int(array.ctypes.data)
        self.__cuda_array_interface__ = {**array.__array_interface__, "version": 3, "strides": None}


class PageLockedMemory(HostMemory):
    """Page-locked arrays of a session, which CUDA maps at the same address. `buffer_in` makes a buffer that lies in one
    and keeps it."""

    def __init__(self, session: Session, buffer_in: Callable[[PageLocked, Shape, Stored], Buffer]) -> None:
        self._session, self._buffer_in = session, buffer_in
        self._memories: WeakValueDictionary[int, PageLocked] = WeakValueDictionary()  # by address

    def refuse(self, op: Op, case: Case) -> BackendError | None:
        """Refuse what the library puts into a fresh array of the device."""
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
    """No transfer: the host writes and reads where the device computes."""

    staging: Staging = "in-place"


class InPlaceSession(Session, HostReadable, Tunes):
    """The session of a device with its operands in host memory; all else is the device's own session."""

    def __init__(self, home: Session, memory: HostMemory) -> None:
        self._home, self.host_memory = home, memory
        self.device, self.limits, self.threads, self.blas = home.device, home.limits, home.threads, home.blas

    @property
    def home(self) -> Session:
        return self._home

    def supports(self, op: Op, case: Case) -> BackendError | None:
        return self._home.supports(op, case) or self.host_memory.refuse(op, case)

    def host_array(self, shape: Shape, dtype: Stored, implementation: Implementation) -> Array:
        return self._home.host_array(shape, dtype, implementation)

    def allocate(self, shape: Shape, dtype: Stored) -> Buffer:
        return self.host_memory.allocate(shape, dtype)

    def free(self, buffer: Buffer) -> None:
        self.host_memory.free(buffer)

    def upload(self, buffer: Buffer, host: Array) -> None:
        """Write where the buffer lies."""
        self.sync()
        (held,) = self.host_memory.hold([buffer], write=True)
        copy(bytes_of(host), held[: host.nbytes])
        del held
        self.host_memory.lend([buffer])

    def download(self, buffer: Buffer, host: Array) -> None:
        """Read where the buffer lies."""
        self.sync()
        (held,) = self.host_memory.hold([buffer], write=False)
        copy(held[: host.nbytes], bytes_of(host))
        del held
        self.host_memory.lend([buffer])

    def transfers(self, implementation: Implementation) -> Transfers:
        return InPlace(self)

    def memory(self, buffer: Buffer, shape: Shape, dtype: Stored) -> Array:
        """Return what the host reads in the buffer's memory."""
        array = aligned_array(shape, host_dtype(dtype))
        self.download(buffer, array)
        return array

    def compile(self, op: Op, case: Case, inputs: Sequence[Buffer], output: Buffer) -> Launch:
        return self.host_memory.compile(self._home, op, case, inputs, output)

    def tune(self, op: Op, case: Case, inputs: Sequence[Buffer]) -> None:
        if isinstance(self._home, Tunes):
            self._home.tune(op, case, inputs)

    def run(self, launch: Any, repeat: int = 1) -> None:
        self._home.run(launch, repeat)

    def sync(self) -> None:
        self._home.sync()

    def enter(self) -> None:
        self._home.enter()

    def forget(self) -> None:
        self._home.forget()
        self.host_memory.forget()

    def empty_launch(self) -> Launch:
        return self._home.empty_launch()

    def clock(self) -> float:
        return self._home.clock()

    def close(self) -> None:
        """Free the memory; the device's session stays open."""
        self.host_memory.close()
