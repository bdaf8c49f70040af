"""Memory of one CUDA device: a pool of buffers, page-locked staging for transfers, and host memory in which the
device computes.

Pageable memory moves at 7 to 15 GB/s, page-locked memory at 55 GB/s (docs/kernels.md). So in the tuned
implementation several threads copy the array into page-locked chunks, while the device moves earlier chunks.
The time of these copies belongs to the transfer.

With unified addressing, page-locked memory has the same address on host and device (CUDA C++ programming guide,
section mapped memory), and the device reads it over the link each time. A page of managed memory moves to the
side that touches it. Nothing is prefetched here (cudaMemPrefetchAsync), as in a plain program.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from gpubench.backends.contract import Buffer, DeviceStream, HostMemory, ReadyBuffers, Session, Transfers
from gpubench.backends.cupy.launches import CudaLaunch, vendor_errors
from gpubench.backends.shared.blocks import BlockThreads
from gpubench.backends.shared.host import bytes_of, copying_threads, host_dtype
from gpubench.backends.shared.memory import IDLE_BYTES, BufferPool
from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.op import ITEMSIZE, Array, Op, Shape, Stored
from gpubench.result.case import Case
from gpubench.result.run import Staging

# Least and most bytes that a thread copies at a time. Copying half of the least takes as long as waking another
# thread, so that the time of a copy does not jump at the size from which a second thread helps. With more than
# the most, the device would get the first piece late.
PIECE_BYTES, CHUNK_BYTES = 1 << 20, 4 << 20
# Largest buffer that the pool keeps. CuPy's pool takes larger ones, and frees them if memory runs out.
KEPT_BYTES = 64 << 20


class DevicePool(BufferPool):
    """A pool of arrays by shape and dtype. It is faster than CuPy's pool, which looks up the stream and the size
    for each allocation."""

    most = KEPT_BYTES

    def __init__(self, cupy: Any, device_bytes: int) -> None:
        super().__init__()
        self._cupy = cupy
        self.limit = min(IDLE_BYTES, device_bytes // 16)
        self._homes: dict[tuple[Shape, str], ReadyBuffers] = {}

    def make(self, key: Any) -> Buffer:
        shape, dtype = key
        with vendor_errors():
            array = self._cupy.empty(shape, host_dtype(dtype))
        self._homes[array.shape, array.dtype.char] = self.ready(key)
        return array

    def size(self, key: Any) -> int:
        shape, dtype = key
        return int(math.prod(shape)) * ITEMSIZE[dtype]

    def release(self, buffers: list[Buffer]) -> None:
        """Return the arrays to CuPy's pool, and then all idle memory of that pool to the driver."""
        buffers.clear()
        self._cupy.get_default_memory_pool().free_all_blocks()

    def give_back(self, buffer: Buffer) -> None:
        """Keep the array for later if the pool has made one of this shape and dtype. Otherwise drop it."""
        home = self._homes.get((buffer.shape, buffer.dtype.char))
        if home is not None:
            home.give_back(buffer)

    def idle_bytes(self) -> int:
        return super().idle_bytes() + int(self._cupy.get_default_memory_pool().free_bytes())


class PinnedMemory:
    """A source of page-locked host arrays from CuPy's pool. After each `IDLE_BYTES` bytes that it returned, it
    frees the idle memory of the pool."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._handed_out = 0

    def array(self, shape: Shape, dtype: Any) -> Array:
        """Return a C-contiguous page-locked array."""
        import numpy as np

        count = int(np.prod(shape, dtype=np.int64))
        size = max(1, count * np.dtype(dtype).itemsize)
        if self._handed_out > IDLE_BYTES:
            self.empty()
        self._handed_out += size
        memory = self._cupy.cuda.alloc_pinned_memory(size)
        return np.frombuffer(memory, dtype, count).reshape(shape)

    def empty(self) -> None:
        """Return the memory that no array uses to the system."""
        self._cupy.get_default_pinned_memory_pool().free_all_blocks()
        self._handed_out = 0


class PinnedTransfers(Transfers):
    """The transfers of the tuned implementation. Page-locked arrays move directly, other arrays through page-locked
    chunks. Each thread has two chunks, and copies one while the device moves the other."""

    staging: Staging = "pinned"
    copies = True

    def __init__(self, cupy: Any, pinned: PinnedMemory, enter: Callable[[], None]) -> None:
        self._cupy, self._runtime, self._pinned = cupy, cupy.cuda.runtime, pinned
        self._enter = enter
        self._threads = BlockThreads(copying_threads())
        self._own = threading.local()

    def use_threads(self, count: int | None) -> None:
        self._threads.threads = count or copying_threads()

    def upload(self, buffer: Buffer, host: Array) -> None:
        data, there, stream = bytes_of(host), buffer.data.ptr, self._cupy.cuda.get_current_stream()
        kind = self._runtime.memcpyHostToDevice

        def send(start: int, stop: int) -> None:
            chunk, event = self._chunk(stop - start)
            event.synchronize()  # the device has read the old content of the chunk
            chunk[:] = data[start:stop]
            self._runtime.memcpyAsync(there + start, chunk.ctypes.data, chunk.size, kind, stream.ptr)
            event.record(stream)

        with vendor_errors():
            if self.is_direct(data):
                self._runtime.memcpyAsync(there, data.ctypes.data, data.size, kind, stream.ptr)
            elif data.size:
                self._threads.run(send, data.size, self._piece(data.size))

    def download(self, buffer: Buffer, host: Array) -> None:
        data, there, stream = bytes_of(host), buffer.data.ptr, self._cupy.cuda.get_current_stream()
        kind = self._runtime.memcpyDeviceToHost

        def fetch(start: int, stop: int) -> None:
            middle = (start + stop) // 2
            halves = [part for part in ((start, middle), (middle, stop)) if part[0] < part[1]]
            chunks = [self._chunk(end - begin) for begin, end in halves]
            for (begin, _), (chunk, event) in zip(halves, chunks, strict=True):
                self._runtime.memcpyAsync(chunk.ctypes.data, there + begin, chunk.size, kind, stream.ptr)
                event.record(stream)
            for (begin, end), (chunk, event) in zip(halves, chunks, strict=True):
                event.synchronize()  # the second half arrives while the first is copied
                data[begin:end] = chunk

        with vendor_errors():
            if self.is_direct(data):
                self.start_download(buffer, host)
                stream.synchronize()
            elif data.size:
                self._threads.run(fetch, data.size, self._piece(data.size))

    def close(self) -> None:
        """Wait until the device has read the last chunk, then free the chunks and end the threads."""
        try:
            self._cupy.cuda.get_current_stream().synchronize()
        finally:  # a lost device raises
            self._threads.close()
            self._own = threading.local()

    def _piece(self, size: int) -> int:
        """Return how many bytes a thread takes at a time."""
        # Pieces are large, because each wait for the interpreter's lock is long while other threads compute.
        return min(CHUNK_BYTES, max(PIECE_BYTES, -(-size // self._threads.threads)))

    def start_download(self, buffer: Buffer, host: Array) -> None:
        stream, kind = self._cupy.cuda.get_current_stream(), self._runtime.memcpyDeviceToHost
        with vendor_errors():
            self._runtime.memcpyAsync(host.ctypes.data, buffer.data.ptr, host.nbytes, kind, stream.ptr)

    def is_direct(self, host: Array) -> bool:
        """Return whether the array is in page-locked memory of CuPy, as one of `PinnedMemory.array` is."""
        owner: Any = host
        while getattr(owner, "base", None) is not None:
            owner = owner.base
        # NumPy keeps the owner of a foreign buffer in a memoryview.
        return isinstance(getattr(owner, "obj", owner), self._cupy.cuda.PinnedMemoryPointer)

    def _chunk(self, size: int) -> tuple[Array, Any]:
        """Return `size` bytes of the chunk that this thread did not use last, and the event of its last copy."""
        own = self._own.__dict__
        if not own:
            self._enter()
            own["turn"], own["chunks"] = 0, [None, None]
        own["turn"] = 1 - own["turn"]
        staging = own["chunks"][own["turn"]]
        if staging is None or staging[0].size < size:
            if staging is not None:
                staging[1].synchronize()
            event = self._cupy.cuda.Event(disable_timing=True)
            # The first chunk is as large as needed now. A chunk that replaces it is large enough for all arrays.
            room = size if staging is None else CHUNK_BYTES
            staging = own["chunks"][own["turn"]] = (self._pinned.array((max(size, room),), "uint8"), event)
        return staging[0][:size], staging[1]


class CudaStream(DeviceStream):
    """A stream that does not wait for other streams."""

    def __init__(self, cupy: Any) -> None:
        self._runtime = cupy.cuda.runtime
        self._stream = cupy.cuda.Stream(non_blocking=True)

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Make this stream CuPy's current stream, on which launches run and allocate."""
        with vendor_errors(), self._stream:
            yield

    def upload(self, buffer: Buffer, host: Array) -> None:
        kind = self._runtime.memcpyHostToDevice
        self._runtime.memcpyAsync(buffer.data.ptr, host.ctypes.data, host.nbytes, kind, self._stream.ptr)

    def run(self, launch: Any) -> None:
        launch()

    def download(self, buffer: Buffer, host: Array) -> None:
        """Enqueue a copy to the host. If the dtypes differ, as with a user's function, wait for the copy."""
        if buffer.dtype == host.dtype:
            buffer.get(stream=self._stream, out=host, blocking=False)
        else:
            host[...] = buffer.get()

    def wait(self) -> None:
        with vendor_errors():
            self._stream.synchronize()


# cudaDeviceAttr, and cudaHostAllocMapped (CUDA runtime API).
INTEGRATED, CAN_MAP_HOST_MEMORY, UNIFIED_ADDRESSING, MANAGED_MEMORY, HOST_PAGE_TABLES = 18, 19, 41, 83, 100
HOST_ALLOC_MAPPED = 2
_NEEDS = {"mapped": (CAN_MAP_HOST_MEMORY, UNIFIED_ADDRESSING), "managed": (MANAGED_MEMORY,)}


def is_unified(attribute: Callable[[int], int]) -> bool:
    """Return whether the device shares the host's memory: it is an integrated GPU, or it uses the host's page
    tables (Grace). `attribute` returns the value of a cudaDeviceAttr, or 0 if it is unknown."""
    return bool(attribute(INTEGRATED) or attribute(HOST_PAGE_TABLES))


class CudaHostMemory(HostMemory):
    """Mapped or managed host memory in a CuPy pool. Library calls allocate their results in this pool, too."""

    def __init__(self, cupy: Any, ordinal: int, memory: str) -> None:
        self._cupy, self._ordinal = cupy, ordinal
        attribute = cupy.cuda.runtime.deviceGetAttribute
        with vendor_errors():
            lacking = [number for number in _NEEDS[memory] if not attribute(number, ordinal)]
        if lacking:
            why = f"cupy:{ordinal} has no {memory} memory (its cudaDeviceAttr {lacking[0]} is 0)"
            raise Unsupported(why, reason="not-in-place")
        self._touches = memory == "managed"
        self._pool = cupy.cuda.MemoryPool(cupy.cuda.malloc_managed if self._touches else self._lock_pages)
        self._bytes: dict[tuple[int, int], Array] = {}  # by address and size

    def _lock_pages(self, size: int) -> Any:
        """Allocate page-locked memory for a CuPy pool."""
        cuda = self._cupy.cuda
        locked = cuda.pinned_memory.PinnedMemory(size, HOST_ALLOC_MAPPED)
        return cuda.MemoryPointer(cuda.UnownedMemory(locked.ptr, size, locked, self._ordinal), 0)

    def allocate(self, shape: Shape, dtype: Stored) -> Buffer:
        with vendor_errors(), self._cupy.cuda.using_allocator(self._pool.malloc):
            return self._cupy.empty(shape, host_dtype(dtype))

    def hold(self, buffers: Sequence[Buffer], *, write: bool) -> list[Array]:
        """Return the bytes of the arrays. Before that, read one byte of each page of managed memory, which moves
        the page to the host."""
        held = [self._on_host(buffer) for buffer in buffers]
        if self._touches:
            for array in held:
                array[:: mmap.PAGESIZE].max(initial=0)
        return held

    def _on_host(self, buffer: Buffer) -> Array:
        """Return the bytes of an array as a host array, or raise Unsupported if they lie elsewhere."""
        import numpy as np

        place = (buffer.data.ptr, buffer.nbytes)
        if place not in self._bytes:
            with vendor_errors():
                address = self._cupy.cuda.runtime.pointerGetAttributes(place[0]).hostPointer
            if not address or not buffer.flags.c_contiguous:
                why = "the library's result is no plain array of host memory"
                raise Unsupported(why, reason="not-in-place")
            memory = (ctypes.c_uint8 * place[1]).from_address(address)
            self._bytes[place] = np.frombuffer(memory, np.uint8)
        return self._bytes[place]

    def compile(
        self, session: Session, op: Op, case: Case, inputs: Sequence[Buffer], output: Buffer
    ) -> CudaLaunch:
        launch = session.compile(op, case, inputs, output)
        assert isinstance(launch, CudaLaunch)
        return launch if launch.steps is not None else CudaLaunch(partial(self._call, launch))

    def _call(self, launch: CudaLaunch) -> Buffer:
        """Run a library call, with its arrays allocated in this pool."""
        with self._cupy.cuda.using_allocator(self._pool.malloc):
            launch()
        return launch.output

    def forget(self) -> None:
        self._bytes.clear()
        self._pool.free_all_blocks()
