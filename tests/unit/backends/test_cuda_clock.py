"""The event clock on a simulated stream: host and device times as numbers, a queue of bounded length. The cycle
counter."""

from collections import deque
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpubench.backends.cupy.launches import MOST_QUEUED, PORTION, SPAN_NS, CudaLaunch, CycleCounter, EventClock

DEPTH = 1024


class Stream:
    """What `EventClock` uses of CuPy. Enqueueing takes `host_s`; with DEPTH entries waiting the host waits, too."""

    uint8 = "uint8"

    def __init__(self, host_s):
        self.host_s, self.host, self.device = host_s, 0.0, 0.0
        self.waiting = deque()
        self.cuda = self
        self.data = self
        self.flushed = self.spins = 0

    def enqueue(self, seconds):
        self.host += self.host_s
        while self.waiting and self.waiting[0] <= self.host:  # they end in order
            self.waiting.popleft()
        if len(self.waiting) >= DEPTH:
            self.host = self.waiting[-DEPTH]
        self.device = max(self.host, self.device) + seconds
        self.waiting.append(self.device)

    def spin(self, grid, block, arguments):
        self.spins += 1
        self.enqueue(float(arguments[0]) * 1e-9)

    def Event(self):
        return Mark(self)

    def get_elapsed_time(self, begin, end):
        return (end.at - begin.at) * 1e3

    def get_current_stream(self):
        return self

    def synchronize(self):
        self.host = max(self.host, self.device)

    def empty(self, size, dtype):
        return self

    def memset_async(self, value, size):
        self.flushed += 1
        self.enqueue(1e-4)


class Mark:
    def __init__(self, stream):
        self.stream = stream

    def record(self):
        self.stream.enqueue(0.0)
        self.at = self.stream.device

    @property
    def done(self):
        return self.at <= self.stream.host

    def synchronize(self):
        self.stream.host = max(self.stream.host, self.at)


def timed(kernel_s, repeat, *, host_s=4e-6, kernels=1, cold=False):
    stream = Stream(host_s)
    clock = EventClock(stream, stream.spin, 1 << 20, now=lambda: stream.host)

    def call():
        for _ in range(kernels):
            stream.enqueue(kernel_s)

    launch = CudaLaunch(call, None)
    first = clock.time(launch, repeat, cold=cold)
    assert clock.time(launch, repeat, cold=cold) == pytest.approx(first, rel=1e-6)
    return first, launch, stream


@given(st.floats(1e-6, 1e-3), st.integers(1, 3000), st.floats(1e-6, 3e-5), st.integers(1, 6), st.booleans())
@example(8e-6, 1, 2.9e-5, 1, False)  # the end comes late where enqueueing is slow
@pytest.mark.slow
def test_no_host_time_is_inside(kernel_s, repeat, host_s, kernels, cold):
    seconds, _, stream = timed(kernel_s, repeat, host_s=host_s, kernels=kernels, cold=cold)
    assert (seconds, stream.flushed > 0) == (pytest.approx(kernel_s * kernels * repeat, rel=1e-6), cold)


def test_a_launch_of_several_kernels_is_queued_in_smaller_portions():
    seconds, launch, _ = timed(1.4e-6, 512, kernels=8)
    assert seconds == pytest.approx(512 * 8 * 1.4e-6, rel=1e-6)
    assert launch.queued * 8 < DEPTH
    assert timed(1.4e-6, 512)[1].queued == MOST_QUEUED


def test_a_slow_host_gets_a_longer_delay_once():
    """50 us a launch: the first try is too short, and the second time there is one try."""
    assert timed(2e-6, 200, host_s=5e-5)[2].spins == timed(2e-6, 200)[2].spins + 1


@pytest.mark.parametrize("host_s", [1e-6, 4e-5])
def test_events_between_the_stages_of_a_chain_tell_the_time_of_each(host_s):
    """However slow the host is: no launch is inside, and a chain that is longer than the stream is cut."""
    stream = Stream(host_s)
    clock = EventClock(stream, stream.spin, 1 << 20, now=lambda: stream.host)
    seconds = [1e-3, 2e-6, 5e-4] * PORTION
    reading = clock.each([CudaLaunch(partial(stream.enqueue, one), None) for one in seconds])
    assert (reading.clock, reading.steps_s) == ("event", pytest.approx(seconds, rel=1e-6))
    assert reading.span_s == pytest.approx(sum(seconds))


@pytest.mark.parametrize(("nanoseconds", "cycles", "hertz"), [
    (SPAN_NS, 198_000, 1.98e9), (SPAN_NS + 24, 198_000, 1.98e14 / (SPAN_NS + 24)),
    # Counters that stand still, or cannot be true, are no clock.
    (0, 0, None), (SPAN_NS, 0, None), (SPAN_NS, 100, None), (SPAN_NS, 10**8, None),
])  # fmt: skip
def test_cycles_are_counted_against_the_global_timer(nanoseconds, cycles, hertz):
    elapsed = [7, 7]

    def kernel(grid, block, arguments):
        assert arguments[0] == SPAN_NS
        elapsed[:] = nanoseconds, cycles

    cupy = SimpleNamespace(uint64="uint64", zeros=lambda count, dtype: SimpleNamespace(get=lambda: elapsed))
    assert CycleCounter(cupy, kernel).hertz() == hertz
