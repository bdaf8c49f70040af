"""CUDA's own clock: two events around launches that are queued behind a spinning kernel (measurement.md, section 3)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gpubench.backends._cuda import CudaLaunch

SPIN = r"""
extern "C" __global__ void spin(long long nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - start < nanoseconds);
}
extern "C" __global__ void nothing() {}
"""
# Longest wait that is put in front of queued launches: far below a watchdog.
LONGEST_DELAY_S = 0.1
LAUNCH_S = 10e-6  # host time of one launch before any was seen (CuPy: 5 to 15 us)
SPARE_S = 50e-6


class EventClock:
    """Device seconds of launches on the current stream; `spin` is the kernel of `SPIN`, `flush_bytes` what it takes to
    empty the caches."""

    def __init__(
        self, cupy: Any, spin: Any, flush_bytes: int, *, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self._cupy, self._spin, self._now = cupy, spin, now
        self._events = (cupy.cuda.Event(), cupy.cuda.Event())
        self._flush: Any = None
        self._flush_bytes = flush_bytes
        self._launch_s = LAUNCH_S

    def time(self, launch: CudaLaunch, repeat: int = 1, *, cold: bool = False) -> float:
        """Seconds between two events around `repeat` launches, queued so that no host time is inside.

        `cold` overwrites the caches first. More launches than the stream holds are timed in portions: beyond that the
        host waits for the device with every launch, and its time would be inside.
        """
        total, left = 0.0, repeat
        while left:
            count = -(-left // -(-left // launch.queued))  # portions of about the same length
            seconds, hidden = self._span(launch, count, cold=cold)
            if hidden or count == 1:
                total, left = total + seconds, left - count
            else:
                launch.queued = max(1, count // 2)
        return total

    def close(self) -> None:
        """Let go of the memory that empties the caches."""
        self._flush = None

    def _span(self, launch: CudaLaunch, count: int, *, cold: bool) -> tuple[float, bool]:
        """Seconds of `count` launches, and whether all, and the end after them, were queued before the first began.

        Too short a delay is noticed, because the first event has then passed, and doubled. Where the host takes longer
        with every longer delay, it is not slow: it waits for a full stream, and no delay will do.
        """
        import numpy as np

        begin, end = self._events
        delay_s, before_s = self._launch_s * count + SPARE_S, 0.0
        while True:
            self._cupy.cuda.get_current_stream().synchronize()
            self._spin((1,), (1,), (np.int64(delay_s * 1e9),))
            if cold:
                self.write_over_the_caches()
            begin.record()
            start = self._now()
            for _ in range(count):
                launch()
            host_s = self._now() - start
            end.record()
            # With the end in the queue too, or the host's time before it would be inside.
            hidden = not begin.done
            end.synchronize()
            full = before_s > 0 and host_s > 1.5 * before_s
            if hidden or full or delay_s >= LONGEST_DELAY_S:
                if hidden and count > 16:
                    self._launch_s = max(LAUNCH_S, 1.5 * host_s / count)
                return float(self._cupy.cuda.get_elapsed_time(begin, end)) * 1e-3, hidden
            delay_s, before_s = min(max(2 * delay_s, 1.5 * host_s), LONGEST_DELAY_S), host_s

    def write_over_the_caches(self) -> None:
        """Enqueue a write of as much as empties them."""
        if self._flush is None:
            self._flush = self._cupy.empty(self._flush_bytes, self._cupy.uint8)
        self._flush.data.memset_async(0, self._flush_bytes)
