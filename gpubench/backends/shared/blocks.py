"""Threads that run the blocks of a launch, copy arrays, or empty the caches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

from gpubench.backends.contract import Session
from gpubench.backends.shared.host import usable_cpus

Block = Callable[[int, int], None]


class BlockThreads:
    """Threads that run the blocks of a tuned NumPy kernel, or copy arrays. `threads` includes the caller's
    thread; the others start with the first launch that needs them. `limit_blas(count)` sets the number of BLAS
    threads for blocks that call the BLAS."""

    def __init__(self, threads: int, limit_blas: Callable[[int], None] = lambda count: None) -> None:
        self.threads = threads
        self._limit_blas = limit_blas
        self._waiting: SimpleQueue[_Launch | None] = SimpleQueue()
        self._others: list[threading.Thread] = []

    def run(self, function: Block, length: int, grain: int) -> None:
        """Call `function(start, stop)` for all slices of `grain` elements from 0 to `length`, on several
        threads. A single slice runs in the calling thread. If slices fail, raises one of their errors after all
        threads are done."""
        # A launch wakes each thread once: a future for each block would halve the rate of copying blocks of 64
        # Ki elements (measured with two cores).
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
        """Like `run`, but with one BLAS thread meanwhile, for a function that multiplies matrices. Two thread
        pools, each as large as the number of cores, would slow each other down."""
        self._limit_blas(1)
        try:
            self.run(function, length, grain)
        finally:
            self._limit_blas(self.threads)

    def close(self) -> None:
        """End the threads. A later launch starts new ones."""
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
    """The blocks of one launch that no thread has taken yet."""

    def __init__(self, function: Block, length: int, grain: int) -> None:
        self.finished: SimpleQueue[None] = SimpleQueue()
        self.error: BaseException | None = None
        self._function, self._length, self._grain = function, length, grain
        self._starts = iter(range(0, length, grain))
        self._lock = threading.Lock()

    def work(self) -> None:
        """Take and run blocks until no block is left."""
        try:
            while (start := self._next()) is not None:
                self._function(start, min(start + self._grain, self._length))
        except BaseException as error:  # handed to the caller of `run`
            self.error = self.error or error

    def _next(self) -> int | None:
        with self._lock:
            return next(self._starts, None)


class Flush:
    """Empties the caches before a timed launch. On the host, threads write `host_bytes` bytes, which should be
    twice the size of the caches. Each thread writes a part, because each core has its own caches. The device's
    session empties the device's caches."""

    def __init__(self, session: Session, host_bytes: int) -> None:
        import numpy as np

        self._session = session
        self._threads = session.threads or usable_cpus()
        self.written = np.zeros(host_bytes, np.uint8)
        self._pool = ThreadPoolExecutor(self._threads)

    def __call__(self) -> None:
        """Empty the caches of the host and of the device, and wait."""
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
