"""The chunks of one transfer through mapped staging buffers, copied piece by piece by several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

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


class Turns:
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
