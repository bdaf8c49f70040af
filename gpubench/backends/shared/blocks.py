"""Threads that run the blocks of one launch, that copy, and that empty the caches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

from gpubench.backends.contract import Session
from gpubench.backends.shared.host import usable_cpus

Block = Callable[[int, int], None]


class BlockThreads:
    """The threads that run a tuned NumPy kernel's blocks, and that copy: they stay, and each takes the next block when
    it is free. `threads` in all: the caller's own, and others that start with the first launch that needs them.

    One wake-up per thread and launch. A future per block costs more than that: every hand-over of the interpreter's
    lock is a wait, and blocks of 64 Ki elements then copy at half the rate (measured with two cores).
    `limit_blas(count)` sets the threads of the BLAS that blocks may call.
    """

    def __init__(self, threads: int, limit_blas: Callable[[int], None] = lambda count: None) -> None:
        self.threads = threads
        self._limit_blas = limit_blas
        self._waiting: SimpleQueue[_Launch | None] = SimpleQueue()
        self._others: list[threading.Thread] = []

    def run(self, function: Block, length: int, grain: int) -> None:
        """`function(start, stop)` for slices of `grain` up to `length`; a single one stays on this thread.

        Raises what the first block to fail raised, when all threads are done.
        """
        launch = _Launch(function, length, grain)
        others = min(self.threads, -(-length // grain)) - 1
        while (
            others and len(self._others) < self.threads - 1
        ):  # all at once: a caller may be bound to a CPU later
            thread = threading.Thread(
                target=self._serve, name=f"gpubench-block-{len(self._others)}", daemon=True
            )
            thread.start()
            self._others.append(thread)
        for _ in range(others):
            self._waiting.put(launch)
        launch.work()
        for _ in range(others):
            launch.finished.get()
        if launch.error is not None:
            raise launch.error

    def multiply(self, function: Block, length: int, grain: int) -> None:
        """Do the same for a function that multiplies: BLAS has one thread meanwhile. Two pools at once, each of as many
        threads as there are cores, take up to 13 times as long."""
        self._limit_blas(1)
        try:
            self.run(function, length, grain)
        finally:
            self._limit_blas(self.threads)

    def close(self) -> None:
        """End the threads; a later launch starts new ones."""
        for _ in self._others:
            self._waiting.put(None)
        for thread in self._others:
            thread.join()
        self._others = []

    def _serve(self) -> None:
        while (launch := self._waiting.get()) is not None:
            launch.work()
            launch.finished.put(None)
            del launch  # idle threads hold no arrays


class _Launch:
    """The blocks of one launch that nobody has taken yet."""

    def __init__(self, function: Block, length: int, grain: int) -> None:
        self.finished: SimpleQueue[None] = SimpleQueue()
        self.error: BaseException | None = None
        self._function, self._length, self._grain = function, length, grain
        self._starts = iter(range(0, length, grain))
        self._lock = threading.Lock()

    def work(self) -> None:
        """Take blocks until there are none."""
        try:
            while (start := self._next()) is not None:
                self._function(start, min(start + self._grain, self._length))
        except BaseException as error:  # handed to the caller of `run`
            self.error = self.error or error

    def _next(self) -> int | None:
        with self._lock:
            return next(self._starts, None)


class Flush:
    """Caches emptied: the host's by writing twice as much as they hold, the device's by its own session.

    Call it before the clock starts. `host_bytes`: twice the CPU's last level of cache.

    Every thread writes its share, because the caches near the cores are their own.
    """

    def __init__(self, session: Session, host_bytes: int) -> None:
        import numpy as np

        self._session = session
        self._threads = session.threads or usable_cpus()
        self.written = np.zeros(host_bytes, np.uint8)
        self._pool = ThreadPoolExecutor(self._threads)

    def __call__(self) -> None:
        """Flush both sides and wait for it."""
        if self._session.device.kind != "cpu":
            self._session.flush()
            self._session.sync()
        share = -(-self.written.size // self._threads)
        list(self._pool.map(self._write, range(0, self.written.size, share), [share] * self._threads))

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def _write(self, start: int, size: int) -> None:
        self.written[start : start + size] += 1
