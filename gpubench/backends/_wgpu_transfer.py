"""Transfers between host arrays and wgpu buffers through persistent staging buffers.

`queue.write_buffer` and `queue.read_buffer` allocate a fresh staging buffer each time and reach 1 to 2 GB/s;
mapped buffers that are kept reach 10. Two staging buffers take turns, so that the host copies one chunk
while the device moves the other.
"""

from __future__ import annotations

from typing import Any

from gpubench.model.op import Array
from gpubench.model.result import Staging

CHUNK_BYTES = 32 << 20
# Up to here the convenience call is quicker: 31 us for 64 KiB against 165 us of mapping (H200). It would stay
# quicker up to 1 MiB, but each call takes fresh staging memory: once two of them outgrow the driver's block,
# an upload of 2 x 256 KiB was seen to take 1.9 ms, and one of 2 x 1 MiB 2.2 ms, instead of 0.1 and 0.4 ms.
SMALL_BYTES = 1 << 16


class PlainTransfers:
    """The convenience calls of the queue, as a wgpu user writes them."""

    staging: Staging = "pageable"

    def __init__(self, device: Any) -> None:
        self._device = device

    def upload(self, buffer: Any, host: Array) -> None:
        """`write_buffer`, and an empty submit that sets it going."""
        self._device.queue.write_buffer(buffer, 0, _padded(_bytes_of(host)))
        self._device.queue.submit([])

    def download(self, buffer: Any, host: Array) -> None:
        """`read_buffer`, then into `host`."""
        data = _bytes_of(host)
        data[:] = self._device.queue.read_buffer(buffer, 0, _round_up(len(data))).cast("B")[: len(data)]


class Transfers:
    """Upload and download through staging buffers that are kept."""

    staging: Staging = "mapped"

    def __init__(self, device: Any) -> None:
        self._device = device
        # A small upload waits in the queue for the next submit.
        self.unsent = False
        self._up: list[Any] = []
        self._down: list[Any] = []
        self._fence: Any = None

    def upload(self, buffer: Any, host: Array) -> None:
        """Copy `host` (C-contiguous) to the start of `buffer`."""
        data = _bytes_of(host)
        if not len(data):
            return
        if len(data) <= SMALL_BYTES:
            self._device.queue.write_buffer(buffer, 0, _padded(data))
            self.unsent = True
            return
        for turn, start in enumerate(range(0, len(data), CHUNK_BYTES)):
            chunk = data[start : start + CHUNK_BYTES]
            staging = self._staging(self._up, turn % 2, write=True)
            staging.map_sync("WRITE", 0, _round_up(len(chunk)))
            staging.write_mapped(chunk)
            staging.unmap()
            encoder = self._device.create_command_encoder()
            encoder.copy_buffer_to_buffer(staging, 0, buffer, start, _round_up(len(chunk)))
            self._device.queue.submit([encoder.finish()])

    def download(self, buffer: Any, host: Array) -> None:
        """Copy the start of `buffer` into `host` (C-contiguous); done on return."""
        data = _bytes_of(host)
        starts = list(range(0, len(data), CHUNK_BYTES))
        for turn, start in enumerate(starts[:2]):
            self._fetch(buffer, start, len(data), turn)
        for turn, start in enumerate(starts):
            size = min(CHUNK_BYTES, len(data) - start)
            staging = self._staging(self._down, turn % 2, write=False)
            staging.map_sync("READ", 0, _round_up(size))
            data[start : start + size] = memoryview(staging.read_mapped(0, _round_up(size), copy=False))[:size]
            staging.unmap()
            if turn + 2 < len(starts):
                self._fetch(buffer, starts[turn + 2], len(data), turn)

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
        """Destroy the staging buffers."""
        for staging in (*self._up, *self._down, *([self._fence] if self._fence is not None else [])):
            staging.destroy()
        self._fence = None
        self._up, self._down = [], []

    def _fetch(self, buffer: Any, start: int, total: int, turn: int) -> None:
        size = _round_up(min(CHUNK_BYTES, total - start))
        encoder = self._device.create_command_encoder()
        encoder.copy_buffer_to_buffer(buffer, start, self._staging(self._down, turn % 2, write=False), 0, size)
        self._device.queue.submit([encoder.finish()])

    def _staging(self, buffers: list[Any], index: int, *, write: bool) -> Any:
        import wgpu

        use = wgpu.BufferUsage
        usage = use.MAP_WRITE | use.COPY_SRC if write else use.MAP_READ | use.COPY_DST
        while len(buffers) <= index:
            buffers.append(self._device.create_buffer(size=CHUNK_BYTES, usage=usage))
        return buffers[index]


def _bytes_of(host: Array) -> memoryview:
    """The array's own memory as bytes (0-d arrays included)."""
    return memoryview(host.reshape(-1)).cast("B")


def _padded(data: memoryview) -> memoryview | bytes:
    """WebGPU copies multiples of four bytes."""
    return data if len(data) % 4 == 0 else bytes(data) + bytes(-len(data) % 4)


def _round_up(size: int) -> int:
    return -(-size // 4) * 4
