"""Staging buffers of wgpu that are kept, and how one chunk goes through them to the device or from it."""

from __future__ import annotations

import contextlib
from typing import Any

from gpubench.model.op import Array


class Kept:
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


class Up:
    """To `buffer`: a chunk is mapped, filled, unmapped and sent."""

    def __init__(self, device: Any, staging: Kept, buffer: Any) -> None:
        self.staging, self._device, self._buffer = staging, device, buffer

    def ask(self, turn: int, start: int, size: int) -> Any:
        return self.staging[turn].map_async("WRITE", 0, round_up(size))

    def mapped(self, turn: int, size: int) -> Any:
        staging = self.staging[turn]
        # The public call copies under the interpreter's lock: one thread at a time.
        view = getattr(staging, "_experimental_get_mapped_range", None)
        return _array(view(0, round_up(size))) if view is not None else _Written(staging)

    def close(self, turn: int, start: int, size: int) -> None:
        self.staging[turn].unmap()
        _submit_copy(self._device, self.staging[turn], 0, self._buffer, start, size)


class Down:
    """From `buffer`: a chunk is fetched, mapped, read and unmapped."""

    def __init__(self, device: Any, staging: Kept, buffer: Any) -> None:
        self.staging, self._device, self._buffer = staging, device, buffer

    def ask(self, turn: int, start: int, size: int) -> Any:
        _submit_copy(self._device, self._buffer, start, self.staging[turn], 0, size)
        return self.staging[turn].map_async("READ", 0, round_up(size))

    def mapped(self, turn: int, size: int) -> Any:
        return _array(self.staging[turn].read_mapped(0, round_up(size), copy=False))

    def close(self, turn: int, start: int, size: int) -> None:
        self.staging[turn].unmap()


class _Written:
    """A mapped buffer that is written by the public call."""

    def __init__(self, staging: Any) -> None:
        self._staging = staging

    def __setitem__(self, where: slice, data: Array) -> None:
        self._staging.write_mapped(data, where.start)


def _submit_copy(device: Any, source: Any, source_at: int, target: Any, target_at: int, size: int) -> None:
    encoder = device.create_command_encoder()
    encoder.copy_buffer_to_buffer(source, source_at, target, target_at, round_up(size))
    device.queue.submit([encoder.finish()])


def _array(memory: Any) -> Array:
    import numpy as np

    return np.frombuffer(memory, np.uint8)


def round_up(size: int) -> int:
    """To the multiple of four bytes that WebGPU copies."""
    return -(-size // 4) * 4
