"""The count of cycles on a simulated SM: its clock and the steps of the global timer are given, the answer is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.backends.cupy.launches import COUNT, SPAN_NS, CycleCounter


class Sm:
    """What `CycleCounter` uses of CuPy, and the kernel: time stands in nanoseconds, each look at it takes 40 of them."""

    uint64 = "uint64"

    def __init__(self, hertz, step_ns, began_ns=12345.6):
        self.hertz, self.step_ns, self.now_ns = hertz, step_ns, began_ns
        self.made, self.launches = 0, 0

    def zeros(self, count, dtype):
        self.made += 1
        self.elapsed = [0] * count
        return self

    def get(self):
        return self.elapsed

    def global_timer(self):
        self.now_ns += 40
        return int(self.now_ns // self.step_ns * self.step_ns)

    def clock64(self):
        return int(self.now_ns * self.hertz * 1e-9)

    def kernel(self, grid, block, arguments):
        """`COUNT`, line by line."""
        self.launches += 1
        nanoseconds, elapsed = int(arguments[0]), arguments[1].elapsed
        before = begin = self.global_timer()
        while begin == before:
            begin = self.global_timer()
        first = self.clock64()
        end = begin
        while end - begin < nanoseconds:
            end = self.global_timer()
        elapsed[0], elapsed[1] = end - begin, self.clock64() - first


@given(st.floats(2e8, 3e9), st.sampled_from([1, 32, 1000, 1024]), st.floats(0, 1e6))
def test_the_clock_is_found_whatever_the_steps_of_the_timer_are(hertz, step_ns, began_ns):
    sm = Sm(hertz, step_ns, began_ns)
    assert CycleCounter(sm, sm.kernel).hertz() == pytest.approx(hertz, rel=2e-3)
    assert sm.now_ns - began_ns < 1.1 * SPAN_NS, "the device is not kept from its work"


def test_each_reading_counts_anew_in_the_same_memory():
    sm = Sm(1.98e9, 32)
    counter = CycleCounter(sm, sm.kernel)
    assert counter.hertz() == pytest.approx(1.98e9, rel=2e-3)
    sm.hertz = 1.2e9  # it counts differences: what the counter held before is no matter
    assert counter.hertz() == pytest.approx(1.2e9, rel=2e-3)
    assert (sm.made, sm.launches) == (1, 2)


@pytest.mark.parametrize("elapsed", [(0, 0), (100_000, 0), (100_000, 100), (100_000, 10**8)])
def test_counters_that_stand_still_or_cannot_be_true_are_no_clock(elapsed):
    sm = Sm(1e9, 1)

    def kernel(grid, block, arguments):
        sm.elapsed[:] = elapsed

    assert CycleCounter(sm, kernel).hertz() is None


def test_the_text_reads_the_global_timer_and_the_cycle_counter():
    assert "%globaltimer" in COUNT
    assert "clock64()" in COUNT
    assert 'extern "C" __global__ void count(' in COUNT
