"""Transfers between host arrays and wgpu buffers through persistent staging buffers.

`queue.write_buffer` and `queue.read_buffer` allocate a fresh staging buffer each time and reach 1 to 2 GB/s; one
thread that copies into mapped buffers that are kept reaches 4 to 9. So several do, while the device moves the chunks
before (docs/kernels.md).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from gpubench.backends._block_threads import BlockThreads
from gpubench.backends._host import bytes_of, copying_threads
from gpubench.backends._wgpu_staging import Down, Kept, Up, round_up
from gpubench.backends._wgpu_turns import Copy, Turns
from gpubench.model.op import Array
from gpubench.model.result import Staging

Guard = Callable[[], AbstractContextManager[None]]

# What a staging buffer holds, and how many of them take turns in each direction: 256 MiB go up at 21 GB/s on an H200,
# at 14 with four of 8 MiB.
CHUNK_BYTES, BUFFERS = 16 << 20, 3
# What a thread copies at a time: a chunk holds several whole ones. WebGPU maps at multiples of eight bytes.
PIECE_BYTES = 2 << 20
# Up to here the convenience call is quicker: 31 us for 64 KiB against 165 us of mapping (H200). It would stay
# quicker up to 1 MiB, but each call takes fresh staging memory: once two of them outgrow the driver's block,
# an upload of 2 x 256 KiB was seen to take 1.9 ms, and one of 2 x 1 MiB 2.2 ms, instead of 0.1 and 0.4 ms.
SMALL_BYTES = 1 << 16


class PlainTransfers:
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


class Transfers:
    """Upload and download through staging buffers that are kept."""

    staging: Staging = "mapped"

    def __init__(self, device: Any, guard: Guard) -> None:
        self._device, self._guard = device, guard
        # A small upload waits in the queue for the next submit.
        self.unsent = False
        self._up, self._down = Kept(device, CHUNK_BYTES, write=True), Kept(device, CHUNK_BYTES, write=False)
        self._threads = BlockThreads(copying_threads())
        self._fence: Any = None

    def use_threads(self, count: int | None) -> None:
        """Copy with at most so many threads from now on (None: as many as usual): the CPU has work of its own."""
        self._threads.threads = count or copying_threads()

    def upload(self, buffer: Any, host: Array) -> None:
        """Copy `host` (C-contiguous) to the start of `buffer`; ordered with launches."""
        data = bytes_of(host)

        def fill(mapped: Any, inside: slice, outside: slice) -> None:
            mapped[inside] = data[outside]

        with self._guard():
            if 0 < data.size <= SMALL_BYTES:
                self._device.queue.write_buffer(buffer, 0, _padded(data))
                self.unsent = True
            elif data.size:
                self._move(Up(self._device, self._up, buffer), data.size, fill)

    def download(self, buffer: Any, host: Array) -> None:
        """Copy the start of `buffer` into `host` (C-contiguous); done on return."""
        data = bytes_of(host)

        def empty(mapped: Any, inside: slice, outside: slice) -> None:
            data[outside] = mapped[inside]

        with self._guard():
            if data.size:
                self._move(Down(self._device, self._down, buffer), data.size, empty)

    def send(self) -> None:
        """Set a small upload going that nothing was submitted after."""
        if self.unsent:
            self._device.queue.submit([])
            self.unsent = False

    def fence(self) -> None:
        """Wait for the queue by reading four bytes back."""
        import wgpu

        if self._fence is None:
            usage = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
            self._fence = self._device.create_buffer(size=4, usage=usage)
        self._fence.map_sync("READ")
        self._fence.unmap()

    def close(self) -> None:
        """Destroy the staging buffers and end the threads."""
        self._threads.close()
        self._up.destroy()
        self._down.destroy()
        if self._fence is not None:
            self._fence.destroy()
            self._fence = None

    def _move(self, lane: Up | Down, size: int, copy: Copy) -> None:
        turns = Turns(lane, size, CHUNK_BYTES, BUFFERS)
        try:
            self._threads.run(lambda start, stop: turns.copy(start, stop, copy), size, PIECE_BYTES)
        except BaseException:
            # Some may be mapped still, and no thread is at work any longer.
            lane.staging.destroy()
            raise


def _padded(data: Array) -> Array | bytes:
    """WebGPU copies multiples of four bytes."""
    return data if data.size % 4 == 0 else data.tobytes() + bytes(-data.size % 4)
