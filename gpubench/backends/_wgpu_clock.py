"""The device clock of wgpu: timestamps at the begin and the end of a compute pass."""

from __future__ import annotations

from typing import Any


class Stamps:
    """Two timestamps of one pass, resolved and read back."""

    def __init__(self, device: Any) -> None:
        import wgpu

        self._device = device
        self._set = device.create_query_set(type="timestamp", count=2)
        usage = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
        self._resolved = device.create_buffer(size=16, usage=usage)
        self._readable = device.create_buffer(
            size=16, usage=wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
        )
        self.period_s = timestamp_period_s(device)
        self.writes = {
            "query_set": self._set,
            "beginning_of_pass_write_index": 0,
            "end_of_pass_write_index": 1,
        }

    def read(self, encoder: Any) -> float | None:
        """Submit and return end - begin in seconds; None if the clock went backwards or stood still."""
        encoder.resolve_query_set(self._set, 0, 2, self._resolved, 0)
        encoder.copy_buffer_to_buffer(self._resolved, 0, self._readable, 0, 16)
        self._device.queue.submit([encoder.finish()])
        self._readable.map_sync("READ")
        begin, end = memoryview(self._readable.read_mapped()).cast("B").cast("Q")
        self._readable.unmap()
        return (end - begin) * self.period_s if end > begin else None


def timestamp_period_s(device: Any) -> float:
    """Seconds per tick. Only the native library tells; without it WebGPU's own unit, 1 ns."""
    try:
        from wgpu.backends.wgpu_native import lib

        return float(lib.wgpuQueueGetTimestampPeriod(device.queue._internal)) * 1e-9
    except (ImportError, AttributeError):
        return 1e-9
