"""The curve of one contender, through its points and with what its relatives know; where two cross, and how sure that is."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.curves import TimedSizes, compare, fit, speedup_at
from gpubench.curves.threshold import isotonic
from tests.unit.curves.simulated import LADDER, cpu, exact, gpu


def seconds(curve, n):
    return math.exp(curve.at(math.log(n)).mean)


def test_it_says_nothing_beyond_its_sizes():
    curve = fit({"it": TimedSizes("cpu", exact(cpu, [1 << 12, 1 << 20]))})["it"]
    for n in (1 << 11, 1 << 21):
        assert not curve.knows(math.log(n))
        with pytest.raises(ValueError, match="beyond"):
            curve.at(math.log(n))


def test_sizes_too_far_apart_leave_a_gap_in_which_it_is_no_rival():
    curve = fit({"it": TimedSizes("cpu", exact(cpu, [1 << 10, 1 << 20]))})["it"]
    assert curve.knows(math.log(1 << 10))
    assert curve.knows(math.log((1 << 10) * 1.55))
    assert not curve.knows(math.log((1 << 10) * 1.65))
    assert not curve.knows(math.log(1 << 15))
    for last, known in ((19_900, True), (20_100, False)):
        ends = fit({"it": TimedSizes("cpu", exact(cpu, [1000, last]))})["it"]
        assert ends.knows(math.log(4000)) == known


def test_the_mean_is_that_of_the_height_and_beyond_the_ends_that_of_the_end():
    curve = fit({"it": TimedSizes("cpu", exact(cpu, [1 << 12, 1 << 16, 1 << 20]))})["it"]
    for n in (1 << 12, 5000, 60_000, 70_000, 1_000_000, 1 << 20):
        assert curve.mean(math.log(n)) == pytest.approx(curve.at(math.log(n)).mean, rel=1e-12)
    assert [curve.mean(x) for x in (0.0, 30.0)] == [curve.mean(curve.first), curve.mean(curve.last)]
    assert fit({"none": TimedSizes("cpu", {}), "empty": TimedSizes("cpu", {64: [[]]})}) == {}


def test_a_call_of_nearly_a_measured_size_takes_nearly_the_time_measured_there():
    """A single size that lies off the curve keeps its time: one element more does not double it."""
    near = {1000: 4e-5, 1080: 9e-5, 4000: 1e-4, 16000: 3e-4, 64000: 2e-3}
    curve = fit({"it": TimedSizes("cpu", {n: [[seconds] * 3] for n, seconds in near.items()})})["it"]

    def expected(n):
        return math.exp(curve.mean(math.log(n)) + curve.pull(math.log(n)))

    assert [expected(n) for n in near] == pytest.approx(list(near.values()))
    assert expected(1001) == pytest.approx(4e-5, rel=0.05)
    assert 4e-5 < expected(1040) < 9e-5, "between two near sizes it goes from the one to the other"
    assert curve.pull(math.log(8000)) == 0, "far from all sizes the curve tells"


@pytest.mark.parametrize(("at_1m", "steps"), [(4.1e-5, False), (1.9e-5, True)])
def test_a_step_leads_down_only_where_the_time_falls(at_1m, steps):
    """A time that rises less than beside the gap has not fallen: PyTorch's `div` had a step by a factor of 3 there."""
    times = {23605: 7.6e-6, 39698: 1.5e-5, 133528: 2.1e-5, 2**20: at_1m, 1796535: 1.2e-4, 3294860: 2.1e-4}
    curve = fit({"it": TimedSizes("cpu", {n: [[value] * 4] for n, value in times.items()})})["it"]
    assert (curve.at(math.log(400_000)).jump < 0) == steps


# ---------------------------------------------------------------------- where two curves cross


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_the_nearest_rising_sequence(values):
    rising = isotonic(values)
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(rising))
    assert (math.fsum(rising), isotonic(rising)) == (pytest.approx(math.fsum(values)), pytest.approx(rising))


def test_a_speedup_is_known_from_the_first_size_to_the_last():
    curves = fit({"gpu": TimedSizes("waited", exact(gpu)), "cpu": TimedSizes("cpu", exact(cpu))})
    both = compare([curves["gpu"]], [curves["cpu"]])
    for n in (LADDER[0], LADDER[0] + 30, 30_000, 2_000_000, LADDER[-1] - 1000, LADDER[-1]):
        ratio = math.exp(curves["cpu"].at(math.log(n)).mean - curves["gpu"].at(math.log(n)).mean)
        assert speedup_at(both, n) == pytest.approx(ratio, rel=0.02)
    assert [speedup_at(both, n) for n in (LADDER[0] - 1, LADDER[-1] + 100)] == [None, None]
    assert speedup_at(None, 1000) is None
    one = fit({"a": TimedSizes("waited", exact(gpu, [1000])), "b": TimedSizes("cpu", exact(cpu, [1000]))})
    assert speedup_at(compare([one["a"]], [one["b"]]), 1000) == pytest.approx(cpu(1000) / gpu(1000), rel=0.02)
