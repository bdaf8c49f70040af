"""The SM clock of a CUDA device by its own counters: cycles against the global timer (measurement.md, section 6).

The driver's reading is one of its registers, some time ago; this is the clock at which the last launch ended.
"""

from __future__ import annotations

from typing import Any

# The global timer advances in steps, of 32 ns to 1 us by the device: the count begins with one step and ends
# with another, so that its length is exact whatever they are.
COUNT = r"""
__device__ unsigned long long global_timer() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}
extern "C" __global__ void count(unsigned long long nanoseconds, unsigned long long* elapsed) {
    unsigned long long before = global_timer(), begin, end;
    do { begin = global_timer(); } while (begin == before);
    long long first = clock64();
    do { end = global_timer(); } while (end - begin < nanoseconds);
    elapsed[0] = end - begin;
    elapsed[1] = clock64() - first;
}
"""
# Reading the timer takes below 0.1 us, at each end: 0.1 % of this.
SPAN_NS = 100_000
# What no SM has run at; outside of it the counters of a virtual GPU are not those of the device.
PLAUSIBLE_HZ = (1e7, 1e11)


class CycleCounter:
    """Cycles per second of one SM, counted on the current stream; `kernel` is that of `COUNT`."""

    def __init__(self, cupy: Any, kernel: Any) -> None:
        self._kernel = kernel
        # Taken before any workload: a device that one has filled has no room left for sixteen bytes.
        self._elapsed: Any = cupy.zeros(2, cupy.uint64)

    def hertz(self) -> float | None:
        """The clock after all enqueued work, in about 0.15 ms; None if the counters stand still."""
        import numpy as np

        self._kernel((1,), (1,), (np.uint64(SPAN_NS), self._elapsed))
        nanoseconds, cycles = (int(value) for value in self._elapsed.get())
        hertz = cycles / nanoseconds * 1e9 if nanoseconds else 0.0
        return hertz if PLAUSIBLE_HZ[0] < hertz < PLAUSIBLE_HZ[1] else None

    def close(self) -> None:
        """Let go of its sixteen bytes."""
        self._elapsed = None
