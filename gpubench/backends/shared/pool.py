"""Device memory that is kept from one call to the next."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable

from gpubench.backends.contract import Buffer, ReadyBuffers
from gpubench.base.errors import DeviceOutOfMemory

# Idle memory of sizes that are done with. It is released when a new size comes and there is more of it than this.
IDLE_BYTES = 1 << 30


class BufferPool(ABC):
    """Idle buffers, by the key under which they are asked for: a shape and dtype, or a number of bytes."""

    limit = IDLE_BYTES  # bytes that may lie idle when a new key comes
    most: float = math.inf  # bytes of the largest buffer that is kept

    def __init__(self) -> None:
        self._ready: dict[Hashable, ReadyBuffers] = {}
        self._idle: dict[Hashable, list[Buffer]] = {}
        self._in_use: set[Hashable] = set()  # keys for which buffers were made since the pool was last emptied

    @abstractmethod
    def make(self, key: Hashable) -> Buffer:
        """Return a new buffer. Raises DeviceOutOfMemory."""

    @abstractmethod
    def size(self, key: Hashable) -> int:
        """Return the bytes of a buffer."""

    @abstractmethod
    def release(self, buffers: list[Buffer]) -> None:
        """Give idle buffers back to the driver."""

    def ready(self, key: Hashable) -> ReadyBuffers:
        """Return the two ends of the list of one key. They stay valid when the pool is emptied."""
        ready = self._ready.get(key)
        if ready is None:
            idle: list[Buffer] = []
            pop = idle.pop
            self._idle[key] = idle
            ready = self._ready[key] = ReadyBuffers(
                take=lambda: pop() if idle else self._new(key),
                give_back=idle.append if self.size(key) <= self.most else lambda buffer: None,
            )
        return ready

    def idle_bytes(self) -> int:
        """Count the bytes that nobody holds."""
        return sum(self.size(key) * len(idle) for key, idle in self._idle.items())

    def empty(self) -> None:
        """Release all that nobody holds."""
        buffers = [buffer for idle in self._idle.values() for buffer in idle]
        for idle in self._idle.values():
            idle.clear()
        self._in_use.clear()
        self.release(buffers)

    def _new(self, key: Hashable) -> Buffer:
        """Return a new buffer, and release idle ones first if there are many, or if memory runs out without."""
        # A size that is in use empties nothing: the buffers of a large workload are idle between its launches.
        if key not in self._in_use and self.idle_bytes() > self.limit:
            self.empty()
        try:
            buffer = self.make(key)
        except DeviceOutOfMemory:
            self.empty()
            buffer = self.make(key)
        self._in_use.add(key)
        return buffer
