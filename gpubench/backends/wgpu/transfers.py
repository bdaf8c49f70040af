"""Transfers between host arrays and wgpu buffers through persistent staging buffers.

`queue.write_buffer` and `queue.read_buffer` allocate a fresh staging buffer each time and reach 1 to 2 GB/s; one
thread that copies into mapped buffers that are kept reaches 4 to 9. So several do, while the device moves the chunks
before (docs/kernels.md).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from gpubench.backends.contract import Transfers
from gpubench.backends.shared.blocks import BlockThreads
from gpubench.backends.shared.host import bytes_of, copying_threads
from gpubench.backends.wgpu.queues import Mapping, Queue
from gpubench.kernels.contract.op import Array
from gpubench.result.run import Staging

Guard = Callable[[], AbstractContextManager[None]]

# What a staging buffer holds, and how many of them take turns in each direction: 256 MiB go up at 21 GB/s on an H200,
# at 14 with four of 8 MiB.
CHUNK_BYTES, BUFFERS = 16 << 20, 3
# What a thread copies at a time: a chunk holds several whole ones. WebGPU maps at multiples of eight bytes.
PIECE_BYTES = 2 << 20
# Up to here the convenience call is quicker: 31 us for 64 KiB against 60 us of mapping (H200). It would stay
# quicker up to 1 MiB, but each call takes fresh staging memory: once two of them outgrow the driver's block,
# an upload of 2 x 256 KiB was seen to take 1.9 ms, and one of 2 x 1 MiB 2.2 ms, instead of 0.1 and 0.4 ms.
SMALL_BYTES = 1 << 16


class PlainTransfers(Transfers):
    """The convenience calls of the queue, as a wgpu user writes them."""

    staging: Staging = "pageable"

    def __init__(self, device: Any, guard: Guard) -> None:
        self._device, self._guard = device, guard

    def upload(self, buffer: Any, host: Array) -> None:
        """`write_buffer`, and an empty submit that sets it going."""
        with self._guard():
            self._device.queue.write_buffer(buffer, 0, _padded(bytes_of(host)))
            self._device.queue.submit([])

    def download(self, buffer: Any, host: Array) -> None:
        """`read_buffer`, then into `host`."""
        data = memoryview(bytes_of(host))
        with self._guard():
            data[:] = self._device.queue.read_buffer(buffer, 0, round_up(len(data))).cast("B")[: len(data)]


class MappedTransfers(Transfers):
    """Upload and download through staging buffers that are kept."""

    staging: Staging = "mapped"
    copies = True

    def __init__(self, device: Any, queue: Queue, guard: Guard) -> None:
        self._device, self._queue, self._guard = device, queue, guard
        # A small upload waits in the queue for the next submit.
        self.unsent = False
        self._up, self._down = (
            _StagingBuffers(device, CHUNK_BYTES, write=True),
            _StagingBuffers(device, CHUNK_BYTES, write=False),
        )
        self._threads = BlockThreads(copying_threads())

    def use_threads(self, count: int | None) -> None:
        self._threads.threads = count or copying_threads()

    def upload(self, buffer: Any, host: Array) -> None:
        data = bytes_of(host)

        def fill(mapped: Any, inside: slice, outside: slice) -> None:
            mapped[inside] = data[outside]

        with self._guard():
            if 0 < data.size <= SMALL_BYTES:
                self._device.queue.write_buffer(buffer, 0, _padded(data))
                self.unsent = True
            elif data.size:
                self._move(_Up(self._queue, self._up, buffer), data.size, fill)

    def download(self, buffer: Any, host: Array) -> None:
        data = bytes_of(host)

        def empty(mapped: Any, inside: slice, outside: slice) -> None:
            data[outside] = mapped[inside]

        with self._guard():
            if data.size:
                self._move(_Down(self._queue, self._down, buffer), data.size, empty)

    def send(self) -> None:
        """Set a small upload going that nothing was submitted after."""
        if self.unsent:
            self._device.queue.submit([])
            self.unsent = False

    def close(self) -> None:
        self._threads.close()
        self._up.destroy()
        self._down.destroy()

    def _move(self, lane: _Up | _Down, size: int, copy: Copy) -> None:
        pipeline = ChunkPipeline(lane, size, CHUNK_BYTES, BUFFERS)
        try:
            self._threads.run(lambda start, stop: pipeline.copy(start, stop, copy), size, PIECE_BYTES)
        except BaseException:
            # Some may be mapped still, and no thread is at work any longer.
            lane.staging.destroy()
            raise


def _padded(data: Array) -> Array | bytes:
    """WebGPU copies multiples of four bytes."""
    return data if data.size % 4 == 0 else data.tobytes() + bytes(-data.size % 4)


# ---------------------------------------------------------------- staging buffers that are kept


class _StagingBuffers:
    """The staging buffers of one direction, which come into being when their turn comes."""

    def __init__(self, device: Any, size: int, *, write: bool) -> None:
        self._device, self._bytes, self._write = device, size, write
        self._buffers: dict[int, Any] = {}

    def __getitem__(self, turn: int) -> Any:
        import wgpu

        if turn not in self._buffers:
            use = wgpu.BufferUsage
            usage = use.MAP_WRITE | use.COPY_SRC if self._write else use.MAP_READ | use.COPY_DST
            self._buffers[turn] = self._device.create_buffer(size=self._bytes, usage=usage)
        return self._buffers[turn]

    def destroy(self) -> None:
        """Give them up; the next transfer makes new ones."""
        for buffer in self._buffers.values():
            with contextlib.suppress(Exception):
                buffer.destroy()
        self._buffers = {}


class _Lane:
    """One way, to or from `buffer`: what is mapped of a turn's staging buffer."""

    def __init__(self, queue: Queue, staging: _StagingBuffers, buffer: Any) -> None:
        self.staging, self._queue, self._buffer = staging, queue, buffer
        self._mappings: dict[int, Mapping] = {}

    def _map(self, turn: int, size: int, *, write: bool) -> Mapping:
        self._mappings[turn] = self._queue.map(self.staging[turn], round_up(size), write=write)
        return self._mappings[turn]

    def mapped(self, turn: int, size: int) -> Any:
        return self._mappings[turn].memory()

    def close(self, turn: int, start: int, size: int) -> None:
        self._mappings.pop(turn).close()


class _Up(_Lane):
    """To `buffer`: a chunk is mapped, filled, unmapped and sent."""

    def ask(self, turn: int, start: int, size: int) -> Mapping:
        return self._map(turn, size, write=True)

    def close(self, turn: int, start: int, size: int) -> None:
        super().close(turn, start, size)
        self._queue.copy(self.staging[turn], 0, self._buffer, start, round_up(size))


class _Down(_Lane):
    """From `buffer`: a chunk is fetched, mapped, read and unmapped."""

    def ask(self, turn: int, start: int, size: int) -> Mapping:
        self._queue.copy(self._buffer, start, self.staging[turn], 0, round_up(size))
        return self._map(turn, size, write=False)


def round_up(size: int) -> int:
    """To the multiple of four bytes that WebGPU copies."""
    return -(-size // 4) * 4


# ---------------------------------------------------------------- chunks that several threads copy

# `copy(mapped, inside, outside)`: between a chunk's mapped memory and the caller's array, both by bytes.
Copy = Callable[[Any, slice, slice], None]


class Lane(Protocol):
    """One direction. A chunk of `size` bytes lies at `start` of the array and in staging buffer number `turn`.

    One thread at a time calls it: wgpu-py promises nothing about several.
    """

    def ask(self, turn: int, start: int, size: int) -> Any:
        """Ask for the chunk's mapped memory; what is returned waits for it (`sync_wait`)."""

    def mapped(self, turn: int, size: int) -> Any:
        """That memory by bytes, once it was waited for."""

    def close(self, turn: int, start: int, size: int) -> None:
        """Unmap it, and hand it to the device: nobody holds it any longer."""


class ChunkPipeline:
    """The chunks of one array in order, in so many staging buffers (two at least) that take turns.

    A chunk is asked for when the one before is there and its staging buffer is free. The first thread that has a
    piece of it waits for it, the last to be done closes it: no thread waits for all the others, and the device moves
    one chunk while they copy another. Pieces are taken in order, and none lies in two chunks.
    """

    def __init__(self, lane: Lane, total: int, chunk: int, buffers: int) -> None:
        self._lane, self._chunk, self._buffers = lane, chunk, buffers
        self._sizes = [min(chunk, total - start) for start in range(0, total, chunk)]
        self._left = list(self._sizes)
        self._claimed: set[int] = set()
        self._asked: dict[int, Any] = {}
        self._open: dict[int, Any] = {}
        self._closed: set[int] = set()
        self._error: BaseException | None = None
        self._change = threading.Condition()
        self._calling = threading.Lock()

    def copy(self, start: int, stop: int, copy: Copy) -> None:
        """One piece, from `start` to `stop` of the array. Raises what the first piece to fail raised."""
        index, inside = divmod(start, self._chunk)
        try:
            # No frame keeps the mapped memory: it is gone once the chunk is closed.
            copy(self._mapped(index), slice(inside, inside + stop - start), slice(start, stop))
            self._done(index, stop - start)
        except BaseException as error:
            with self._change:
                self._error = self._error or error
                self._change.notify_all()
            raise

    def _mapped(self, index: int) -> Any:
        with self._change:
            first = index not in self._claimed
            self._claimed.add(index)
            if first and index > 0:
                self._until(lambda: index in self._asked)
            elif not first:
                self._until(lambda: index in self._open)
                return self._open[index]
        if index == 0:
            self._ask(0)
        self._asked[index].sync_wait()
        with self._calling:
            mapped = self._lane.mapped(index % self._buffers, self._sizes[index])
        after = index + 1
        if after < len(self._sizes):
            with self._change:
                self._until(lambda: after < self._buffers or after - self._buffers in self._closed)
            self._ask(after)
        with self._change:
            self._open[index] = mapped
            self._change.notify_all()
        return mapped

    def _ask(self, index: int) -> None:
        with self._calling:
            asked = self._lane.ask(index % self._buffers, index * self._chunk, self._sizes[index])
        with self._change:
            self._asked[index] = asked
            self._change.notify_all()

    def _done(self, index: int, size: int) -> None:
        with self._change:
            self._left[index] -= size
            if self._left[index]:
                return
            del self._open[index]
        with self._calling:
            self._lane.close(index % self._buffers, index * self._chunk, self._sizes[index])
        with self._change:
            self._closed.add(index)
            self._change.notify_all()

    def _until(self, true: Callable[[], bool]) -> None:
        self._change.wait_for(lambda: self._error is not None or true())
        if self._error is not None:
            raise self._error
