"""Memory of one CUDA device: buffers that are kept for the next workload, and page-locked staging for transfers.

Pageable memory moves at 7 to 15 GB/s, page-locked memory at 55 (docs/kernels.md): the tuned form copies through
page-locked chunks on several threads, while the device fetches the chunk before. That copy is part of the transfer.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

from gpubench.backends._host import host_dtype, usable_cpus
from gpubench.model.backend import Buffer
from gpubench.model.op import Array, Dtype, Shape
from gpubench.model.result import Staging

Guard = Callable[[], AbstractContextManager[None]]

# Long enough to hide what starting threads and a copy costs, short enough that the first one is soon over.
CHUNK_BYTES = 16 << 20
CHUNKS = 3
# Below this one thread copies: handing out the pieces would take longer.
PIECE_BYTES = 2 << 20
MOST_THREADS = 8
# A larger buffer goes back to CuPy's pool, which gives it up by itself when memory runs out.
KEPT_BYTES = 64 << 20
# Idle memory of sizes that are done with: emptied when a new size comes and there is more of it than this.
IDLE_BYTES = 1 << 30


class DevicePool:
    """Buffers by shape and dtype in front of CuPy's own pool, so that taking one costs a look-up."""

    def __init__(self, cupy: Any, device_bytes: int) -> None:
        self._cupy = cupy
        self._limit = min(IDLE_BYTES, device_bytes // 16)
        self._free: dict[tuple[Shape, str], list[Buffer]] = {}
        self._asked: dict[tuple[Shape, str], tuple[Shape, str]] = {}
        self._in_use: set[tuple[Shape, str]] = set()

    def idle(self, shape: Shape, dtype: Dtype) -> Buffer | None:
        """A buffer of that shape that is there already."""
        found = self._free.get((shape, dtype))
        return found.pop() if found else None

    def take(self, shape: Shape, dtype: Dtype) -> Buffer:
        """A new buffer of that shape. Raises CuPy's OutOfMemoryError once nothing idle is left."""
        # Not for a size that is in use: a large workload's buffers are idle between its launches.
        if (shape, dtype) not in self._in_use and self.idle_bytes() > self._limit:
            self.empty()
        try:
            found = self._cupy.empty(shape, host_dtype(dtype))
        except self._cupy.cuda.memory.OutOfMemoryError:
            self.empty()
            found = self._cupy.empty(shape, host_dtype(dtype))
        if found.nbytes <= KEPT_BYTES:
            self._asked[found.shape, found.dtype.char] = (shape, dtype)
        self._in_use.add((shape, dtype))
        return found

    def give_back(self, buffer: Buffer) -> None:
        """Keep it, if it is not large, for the next one who asks for its shape and dtype."""
        asked = self._asked.get((buffer.shape, buffer.dtype.char))
        if asked is not None:
            self._free.setdefault(asked, []).append(buffer)

    def idle_bytes(self) -> int:
        """What is kept here, and what CuPy's pool keeps."""
        kept = sum(int(buffer.nbytes) for idle in self._free.values() for buffer in idle)
        return kept + int(self._cupy.get_default_memory_pool().free_bytes())

    def empty(self) -> None:
        """Back to the driver with all that nobody holds."""
        self._free.clear()
        self._asked.clear()
        self._in_use.clear()
        self._cupy.get_default_memory_pool().free_all_blocks()


class PinnedMemory:
    """Page-locked host arrays from CuPy's pool, which is emptied when it may hold more than `IDLE_BYTES`."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._handed_out = 0

    def array(self, shape: Shape, dtype: Any) -> Array:
        """A C-contiguous page-locked array."""
        import numpy as np

        count = int(np.prod(shape, dtype=np.int64))
        size = max(1, count * np.dtype(dtype).itemsize)
        if self._handed_out > IDLE_BYTES:
            self.empty()
        self._handed_out += size
        memory = self._cupy.cuda.alloc_pinned_memory(size)
        return np.frombuffer(memory, dtype, count).reshape(shape)

    def empty(self) -> None:
        """Back to the system with all that no array holds."""
        self._cupy.get_default_pinned_memory_pool().free_all_blocks()
        self._handed_out = 0


class PinnedTransfers:
    """Transfers of the tuned form: straight from page-locked arrays, through page-locked chunks from others."""

    staging: Staging = "pinned"

    def __init__(self, cupy: Any, pinned: PinnedMemory, guard: Guard) -> None:
        self._cupy, self._runtime, self._pinned, self._guard = cupy, cupy.cuda.runtime, pinned, guard
        self._chunks: list[tuple[Array, Any]] = []
        self._threads: ThreadPoolExecutor | None = None
        self._most = min(MOST_THREADS, usable_cpus())

    def use_threads(self, count: int | None) -> None:
        """Copy with at most so many threads from now on (None: as many as usual): the CPU has work of its own."""
        count = count or min(MOST_THREADS, usable_cpus())
        if count != self._most:
            self.close()
            self._most = count

    def upload(self, buffer: Buffer, host: Array) -> None:
        """Copy in on the current stream."""
        with self._guard():
            data, there = _bytes(host), buffer.data.ptr
            if not data.size or self._page_locked(data):
                self._enqueue(there, data.ctypes.data, data.size, self._runtime.memcpyHostToDevice)
                return
            for turn, start in enumerate(range(0, data.size, CHUNK_BYTES)):
                part = data[start : start + CHUNK_BYTES]
                chunk, event = self._chunk(turn, min(data.size, CHUNK_BYTES))
                event.synchronize()  # what this chunk held before has left it
                self._copy(chunk[: part.size], part)
                self._enqueue(there + start, chunk.ctypes.data, part.size, self._runtime.memcpyHostToDevice)
                event.record()

    def download(self, buffer: Buffer, host: Array) -> None:
        """Copy out on the current stream; done on return."""
        with self._guard():
            data = _bytes(host)
            if not data.size or self._page_locked(data):
                self._enqueue(data.ctypes.data, buffer.data.ptr, data.size, self._runtime.memcpyDeviceToHost)
                self._cupy.cuda.get_current_stream().synchronize()
                return
            starts = range(0, data.size, CHUNK_BYTES)
            for turn in range(min(CHUNKS, len(starts))):
                self._fetch(buffer, data, starts, turn)
            for turn, start in enumerate(starts):
                part = data[start : start + CHUNK_BYTES]
                chunk, event = self._chunk(turn, min(data.size, CHUNK_BYTES))
                event.synchronize()
                self._copy(part, chunk[: part.size])
                if turn + CHUNKS < len(starts):
                    self._fetch(buffer, data, starts, turn + CHUNKS)

    def close(self) -> None:
        """Let go of the chunks and the threads."""
        self._chunks = []
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None

    def _fetch(self, buffer: Buffer, data: Array, starts: range, turn: int) -> None:
        size = min(CHUNK_BYTES, data.size - starts[turn])
        chunk, event = self._chunk(turn, min(data.size, CHUNK_BYTES))
        self._enqueue(chunk.ctypes.data, buffer.data.ptr + starts[turn], size, self._runtime.memcpyDeviceToHost)
        event.record()

    def _enqueue(self, target: int, source: int, size: int, kind: int) -> None:
        if size:
            stream = self._cupy.cuda.get_current_stream().ptr
            self._runtime.memcpyAsync(target, source, size, kind, stream)

    def _page_locked(self, host: Array) -> bool:
        """True if the memory behind the array is one of CuPy's page-locked pieces (`PinnedMemory.array`)."""
        owner: Any = host
        while getattr(owner, "base", None) is not None:
            owner = owner.base
        # NumPy keeps the owner of a foreign buffer in a memoryview.
        return isinstance(getattr(owner, "obj", owner), self._cupy.cuda.PinnedMemoryPointer)

    def _chunk(self, turn: int, size: int) -> tuple[Array, Any]:
        """The chunk whose turn it is, and the event of the last copy into or out of it."""
        index = turn % CHUNKS
        while len(self._chunks) <= index:
            self._chunks.append((self._pinned.array((size,), "uint8"), self._event()))
        if self._chunks[index][0].size < size:
            self._chunks[index][1].synchronize()
            self._chunks[index] = (self._pinned.array((CHUNK_BYTES,), "uint8"), self._event())
        return self._chunks[index]

    def _event(self) -> Any:
        return self._cupy.cuda.Event(disable_timing=True)

    def _copy(self, target: Array, source: Array) -> None:
        """Between host arrays of bytes, on several threads if it is long."""
        pieces = range(0, target.size, PIECE_BYTES)
        if len(pieces) < 2 or self._most < 2:
            target[:] = source
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._most)

        def piece(start: int) -> None:
            target[start : start + PIECE_BYTES] = source[start : start + PIECE_BYTES]

        list(self._threads.map(piece, pieces))


def _bytes(host: Array) -> Array:
    """The array's own memory (0-d arrays included)."""
    return host.reshape(-1).view("uint8")
