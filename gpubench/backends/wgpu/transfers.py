"""Transfers between host arrays and wgpu buffers through staging buffers that are kept.

`queue.write_buffer` and `queue.read_buffer` allocate a new staging buffer each time and reach 1 to 2 GB/s. One
thread that copies into mapped buffers that are kept reaches 4 to 9 GB/s. So here several threads copy, while the
device moves earlier chunks (docs/kernels.md).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from typing import Any

from gpubench.backends.contract import Buffer, DeviceStream, HostMemory, Transfers
from gpubench.backends.shared.blocks import BlockThreads
from gpubench.backends.shared.host import bytes_of, copying_threads
from gpubench.backends.wgpu.programs import buffer_bytes
from gpubench.backends.wgpu.queues import Mapping, Queue, vendor_errors
from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.op import Array, Shape, Stored
from gpubench.result.run import Staging

# The feature of wgpu for buffers that both shaders and the host may touch.
MAPPABLE = "mappable-primary-buffers"

# Bytes of a staging buffer, and how many of them take turns in each direction. With these, 256 MiB are uploaded
# at 21 GB/s on an H200; with four buffers of 8 MiB at 14 GB/s.
CHUNK_BYTES, BUFFERS = 16 << 20, 3
# Bytes that a thread copies at a time. A chunk is a multiple of this. WebGPU maps at multiples of eight bytes.
PIECE_BYTES = 2 << 20
# Up to this size `write_buffer` is faster: 31 us for 64 KiB against 60 us of mapping (H200). It stays faster up to
# 1 MiB, but each call takes new staging memory. If that of two uploads exceeds the driver's block, 2 x 256 KiB take
# 1.9 ms, and 2 x 1 MiB take 2.2 ms, instead of 0.1 and 0.4 ms.
SMALL_BYTES = 1 << 16


class PlainTransfers(Transfers):
    """Transfers by the queue's own calls, as users of wgpu write them."""

    staging: Staging = "pageable"

    def __init__(self, device: Any) -> None:
        self._device = device

    def upload(self, buffer: Any, host: Array) -> None:
        """Call `write_buffer`, then submit an empty list, which starts the copy."""
        with vendor_errors():
            self._device.queue.write_buffer(buffer, 0, _pad(bytes_of(host)))
            self._device.queue.submit([])

    def download(self, buffer: Any, host: Array) -> None:
        data = memoryview(bytes_of(host))
        with vendor_errors():
            data[:] = self._device.queue.read_buffer(buffer, 0, round_up(len(data))).cast("B")[: len(data)]


class MappedTransfers(Transfers):
    """Transfers through staging buffers that are kept."""

    staging: Staging = "mapped"
    copies = True

    def __init__(self, device: Any, queue: Queue) -> None:
        self._device = device
        # A small upload waits in the queue for the next submit.
        self.unsent = False
        self._up, self._down = (Lane(device, queue, CHUNK_BYTES, write=write) for write in (True, False))
        self._threads = BlockThreads(copying_threads())

    def use_threads(self, count: int | None) -> None:
        self._threads.threads = count or copying_threads()

    def upload(self, buffer: Any, host: Array) -> None:
        data = bytes_of(host)

        def fill(mapped: Any, inside: slice, outside: slice) -> None:
            mapped[inside] = data[outside]

        with vendor_errors():
            if 0 < data.size <= SMALL_BYTES:
                self._device.queue.write_buffer(buffer, 0, _pad(data))
                self.unsent = True
            else:
                self._move(self._up, buffer, data.size, fill)

    def download(self, buffer: Any, host: Array) -> None:
        data = bytes_of(host)

        def empty(mapped: Any, inside: slice, outside: slice) -> None:
            data[outside] = mapped[inside]

        with vendor_errors():
            self._move(self._down, buffer, data.size, empty)

    def send(self) -> None:
        """Submit a small upload that still waits in the queue."""
        if self.unsent:
            self._device.queue.submit([])
            self.unsent = False

    def move(self, target: Array, source: Array) -> None:
        """Copy bytes within the host's memory on several threads."""

        def piece(start: int, stop: int) -> None:
            target[start:stop] = source[start:stop]

        self._threads.run(piece, source.size, PIECE_BYTES)

    def close(self) -> None:
        self._threads.close()
        self._up.destroy()
        self._down.destroy()

    def _move(self, lane: Lane, buffer: Any, size: int, copy: Copy) -> None:
        if not size:
            return
        lane.buffer = buffer
        try:
            if size <= PIECE_BYTES:  # one thread, which needs no pipeline
                mapping = lane.ask(0, 0, size)
                mapping.sync_wait()
                copy(mapping.memory(), slice(0, size), slice(0, size))
                lane.close(0, 0, size)
            else:
                pipeline = ChunkPipeline(lane, size, CHUNK_BYTES, BUFFERS)
                self._threads.run(lambda start, stop: pipeline.copy(start, stop, copy), size, PIECE_BYTES)
        except BaseException:
            # No thread works any longer, and some staging buffers may still be mapped.
            lane.destroy()
            raise


class StagedStream(DeviceStream):
    """A stream with its own staging buffers. WebGPU has only one queue, so the host fills and empties these buffers
    while the device works for other streams. A `with` block of `on` is one submission."""

    staging: Staging = "mapped"

    def __init__(self, device: Any, queue: Queue, transfers: MappedTransfers) -> None:
        self._device, self._queue, self._transfers = device, queue, transfers
        self._buffers: dict[
            tuple[int, bool], Any
        ] = {}  # staging by the buffer's id, and whether it is for uploads
        self._writable: dict[int, Mapping] = {}
        self._landings: dict[int, Landing] = {}
        self._aside = ThreadPoolExecutor(1)
        self._up: list[tuple[int, Any, Buffer]] = []
        self._down: list[tuple[int, Buffer, Any, Array]] = []
        self._launch: Any = None

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Collect the work of the `with` block, and submit it at the end of the block."""
        with vendor_errors():
            self._up, self._down, self._launch = [], [], None
            yield
            self._submit()

    def upload(self, buffer: Buffer, host: Array) -> None:
        """Fill the staging buffer, after the device has read its old content. Meanwhile a thread copies earlier
        downloads to their arrays."""
        self._start_landing()
        if host.nbytes <= SMALL_BYTES:
            self._transfers.upload(buffer, host)
            return
        data, key = bytes_of(host), id(buffer)
        staging = self._staging(buffer, data.size, write=True)
        mapping = self._writable.pop(key, None) or Mapping(self._queue, staging, staging.size, write=True)
        mapping.sync_wait()
        self._transfers.move(mapping.memory()[: data.size], data)
        mapping.close()
        self._up.append((key, staging, buffer))

    def run(self, launch: Any) -> None:
        self._launch = launch

    def download(self, buffer: Buffer, host: Array) -> None:
        key = id(buffer)
        self._finish_landing(key)
        self._down.append((key, buffer, self._staging(buffer, host.nbytes, write=False), host))

    def wait(self) -> None:
        with vendor_errors():
            self._start_landing()
            for key in list(self._landings):
                self._finish_landing(key)
            self._transfers.send()
            self._queue.wait()

    def close(self) -> None:
        self._aside.shutdown()
        for staging in self._buffers.values():
            with contextlib.suppress(Exception):
                staging.destroy()
        self._buffers, self._writable, self._landings = {}, {}, {}

    def _submit(self) -> None:
        if not (self._up or self._down or self._launch):
            return
        first = [(staging, 0, buffer, 0, staging.size) for _, staging, buffer in self._up]
        last = [(buffer, 0, staging, 0, staging.size) for _, buffer, staging, _ in self._down]
        sent = self._queue.call(first, self._launch, last)
        self._transfers.unsent = False
        for key, staging, _ in self._up:
            self._writable[key] = Mapping(self._queue, staging, staging.size, write=True, behind=sent)
        for key, _, staging, host in self._down:
            mapping = Mapping(self._queue, staging, staging.size, write=False, behind=sent)
            self._landings[key] = Landing(mapping, bytes_of(host))

    def _start_landing(self) -> None:
        """Have a thread copy finished downloads to their arrays, if that takes longer than waking the thread."""
        for landing in self._landings.values():
            if landing.copied is None and landing.target.size > PIECE_BYTES:
                landing.mapping.sync_wait()
                source = landing.mapping.memory()[: landing.target.size]
                landing.copied = self._aside.submit(self._transfers.move, landing.target, source)

    def _finish_landing(self, key: int) -> None:
        landing = self._landings.pop(key, None)
        if landing is None:
            return
        if landing.copied is not None:
            landing.copied.result()
        else:
            landing.mapping.sync_wait()
            self._transfers.move(landing.target, landing.mapping.memory()[: landing.target.size])
        landing.mapping.close()

    def _staging(self, buffer: Buffer, size: int, *, write: bool) -> Any:
        key = (id(buffer), write)
        if key not in self._buffers:
            self._buffers[key] = staging_buffer(self._device, round_up(size), write=write)
        return self._buffers[key]


class Landing:
    """A download that has to be copied from a staging buffer to the array `target`."""

    def __init__(self, mapping: Mapping, target: Array) -> None:
        self.mapping, self.target = mapping, target
        self.copied: Future[None] | None = None  # end of the copy, if another thread makes it


class MappableMemory(HostMemory):
    """Host memory in storage buffers that the host can map, on adapters that use the host's memory (`on_host`). By
    the rules of WebGPU no shader may touch a mapped buffer. Raises Unsupported for other adapters."""

    def __init__(self, memory: str, device: Any, queue: Queue, on_host: bool) -> None:
        why = "" if memory == "mapped" else f"WebGPU has no {memory} memory"
        # On an H200 the driver puts such buffers into the GPU's memory, so a call is as fast as with data on the GPU.
        if not on_host:
            why = why or "on a card such buffers lie in its own memory, which the host reads slowly"
        elif MAPPABLE not in device.features:
            why = why or f"the adapter refuses storage buffers that the host maps (no feature {MAPPABLE})"
        if why:
            raise Unsupported(why, reason="not-in-place")
        self._device, self._queue = device, queue
        self._buffers: list[Buffer] = []
        self._mappings: list[Mapping] = []

    def allocate(self, shape: Shape, dtype: Stored) -> Buffer:
        import wgpu

        use = wgpu.BufferUsage
        usage = use.STORAGE | use.COPY_SRC | use.COPY_DST | use.MAP_READ | use.MAP_WRITE
        with vendor_errors():
            buffer = self._device.create_buffer(size=buffer_bytes(shape, dtype), usage=usage)
        self._buffers.append(buffer)
        return buffer

    def free(self, buffer: Buffer) -> None:
        self._buffers.remove(buffer)
        buffer.destroy()

    def hold(self, buffers: Sequence[Buffer], *, write: bool) -> list[Array]:
        with vendor_errors():
            mappings = [Mapping(self._queue, buffer, buffer.size, write=write) for buffer in buffers]
            self._mappings += mappings
            for mapping in mappings:
                mapping.sync_wait()
            return [mapping.memory() for mapping in mappings]

    def lend(self, buffers: Sequence[Buffer]) -> None:
        mappings, self._mappings = self._mappings, []
        with vendor_errors():
            for mapping in mappings:
                mapping.close()

    def close(self) -> None:
        with contextlib.suppress(Exception):
            for buffer in self._buffers:
                buffer.destroy()


def staging_buffer(device: Any, size: int, *, write: bool) -> Any:
    """Return a buffer that the host can map. With `write` it takes data to the device, otherwise to the host."""
    import wgpu

    use = wgpu.BufferUsage
    usage = use.MAP_WRITE | use.COPY_SRC if write else use.MAP_READ | use.COPY_DST
    return device.create_buffer(size=size, usage=usage)


def _pad(data: Array) -> Array | bytes:
    """Return the data, padded to a multiple of four bytes if needed, because WebGPU copies only such
    multiples."""
    return data if data.size % 4 == 0 else data.tobytes() + bytes(-data.size % 4)


def round_up(size: int) -> int:
    """Return `size` rounded up to a multiple of four, because WebGPU copies only such numbers of bytes."""
    return -(-size // 4) * 4


# ---------------------------------------------------------------- chunks that several threads copy


class Lane:
    """One direction of transfers between the host and `buffer`. A chunk is `size` bytes from byte `start` of the
    array, in staging buffer number `turn`. Only one thread at a time may call it, because wgpu-py does not
    promise to be thread-safe."""

    def __init__(self, device: Any, queue: Queue, chunk: int, *, write: bool) -> None:
        self.buffer: Any = None
        self._device, self._queue, self._chunk, self._write = device, queue, chunk, write
        self._staging: dict[int, Any] = {}
        self._mappings: dict[int, Mapping] = {}

    def ask(self, turn: int, start: int, size: int) -> Mapping:
        """Request the mapped memory of a chunk. The caller waits for it by `sync_wait` of the returned mapping."""
        if turn not in self._staging:
            self._staging[turn] = staging_buffer(self._device, self._chunk, write=self._write)
        staging = self._staging[turn]
        if not self._write:
            self._queue.copy(self.buffer, start, staging, 0, round_up(size))
        self._mappings[turn] = Mapping(self._queue, staging, round_up(size), write=self._write)
        return self._mappings[turn]

    def close(self, turn: int, start: int, size: int) -> None:
        """Unmap the chunk and, for an upload, have the device copy it. No thread may use its memory after that."""
        self._mappings.pop(turn).close()
        if self._write:
            self._queue.copy(self._staging[turn], 0, self.buffer, start, round_up(size))

    def destroy(self) -> None:
        """Destroy the staging buffers. The next transfer creates new ones."""
        for staging in self._staging.values():
            with contextlib.suppress(Exception):
                staging.destroy()
        self._staging = {}


# `copy(mapped, inside, outside)` copies between slices of a chunk's mapped memory and of the caller's array, in
# bytes.
Copy = Callable[[Any, slice, slice], None]


class Chunk:
    """One chunk of an array: its place (turn, start, size), the bytes that are left to copy, and its state."""

    def __init__(self, turn: int, start: int, size: int) -> None:
        self.place = (turn, start, size)
        self.left = size
        self.claimed = False
        self.asked, self.open, self.closed = Future[Any](), Future[Any](), Future[None]()


class ChunkPipeline:
    """The chunks of one array, in `buffers` staging buffers (at least two) that take turns. The device moves one
    chunk while threads copy another. Threads must take pieces in order, and a piece must lie in one chunk."""

    def __init__(self, lane: Lane, total: int, chunk: int, buffers: int) -> None:
        self._lane, self._bytes, self._buffers = lane, chunk, buffers
        self._chunks = [
            Chunk(number % buffers, start, min(chunk, total - start))
            for number, start in enumerate(range(0, total, chunk))
        ]
        self._change = threading.Lock()
        self._calling = threading.Lock()
        self._error: BaseException | None = None

    def copy(self, start: int, stop: int, copy: Copy) -> None:
        """Copy one piece, the bytes `start` to `stop` of the array. Raises the first error of any piece."""
        number, inside = divmod(start, self._bytes)
        chunk = self._chunks[number]
        try:
            # No variable has the mapped memory, which does not exist any more once the chunk is closed.
            copy(self._map(number), slice(inside, inside + stop - start), slice(start, stop))
            with self._change:
                chunk.left -= stop - start
                last = not chunk.left
            # No thread waits for all others: the thread that finishes the last piece closes the chunk.
            if last:
                chunk.open = Future()
                with self._calling:
                    self._lane.close(*chunk.place)
                chunk.closed.set_result(None)
        except BaseException as error:
            with self._change:
                self._error = self._error or error
                for each in self._chunks:
                    for state in (each.asked, each.open, each.closed):
                        with contextlib.suppress(InvalidStateError):  # it is done
                            state.set_exception(self._error)
            raise self._error from None

    def _map(self, number: int) -> Any:
        chunk = self._chunks[number]
        with self._change:
            first, chunk.claimed = not chunk.claimed, True
        if not first:
            return chunk.open.result()
        if number == 0:
            self._ask(0)
        # The first thread with a piece of the chunk waits for its memory, then requests the next chunk.
        mapping = chunk.asked.result()
        mapping.sync_wait()
        with self._calling:
            mapped = mapping.memory()
        if number + 1 < len(self._chunks):
            if number + 1 >= self._buffers:
                self._chunks[number + 1 - self._buffers].closed.result()
            self._ask(number + 1)
        chunk.open.set_result(mapped)
        return mapped

    def _ask(self, number: int) -> None:
        chunk = self._chunks[number]
        with self._calling:
            request = self._lane.ask(*chunk.place)
        chunk.asked.set_result(request)
