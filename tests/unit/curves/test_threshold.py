"""Where two curves cross, and how sure that is."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.curves import TimedSizes, compare, doubt, fit, interval, speedup_at
from gpubench.curves.threshold import isotonic
from tests.unit.curves.simulated import LADDER, cpu, exact, gpu, threshold


def test_a_crossing_is_found_and_lies_in_its_interval():
    found = threshold(exact(gpu), exact(cpu))
    assert (found.state, found.mixed) == ("at", False)
    assert found.n == pytest.approx(300_000, rel=0.1)
    assert found.low < found.n < found.high
    assert (found.first, found.last) == pytest.approx((LADDER[0], LADDER[-1]))


@pytest.mark.parametrize(("factor", "state"), [(0.2, "always"), (5.0, "never")])
def test_one_side_wins_everywhere(factor, state):
    found = threshold(exact(lambda n: factor * 1e-5 * n**0.2), exact(lambda n: 1e-5 * n**0.2))
    assert found.state == state
    assert (found.low, found.high) == ((0.0, 0.0) if state == "always" else (math.inf, math.inf))


def test_wins_and_losses_by_turns_are_mixed_and_the_last_crossing_counts():
    ratios = {64: 0.25, 256: 4.0, 1024: 0.25, 4096: 4.0}
    gpu_s = {n: [[1e-3 / ratio]] * 5 for n, ratio in ratios.items()}
    found = threshold(gpu_s, exact(lambda n: 1e-3, ratios, sessions=5))
    assert (found.state, found.mixed) == ("at", True)
    assert 1024 < found.low < found.n < found.high < 4096
    again = {64: 0.25, 256: 4.0, 1024: 0.25}
    lost = threshold({n: [[1e-3 / r]] * 5 for n, r in again.items()}, exact(lambda n: 1e-3, again, sessions=5))
    assert (lost.state, lost.mixed) == ("never", True)


def test_one_size_tells_the_winner_there():
    assert threshold(exact(gpu, [1 << 24]), exact(cpu, [1 << 24])).state == "always"
    assert threshold(exact(gpu, [1 << 10]), exact(cpu, [1 << 10])).state == "never"


def test_without_a_common_size_there_is_none():
    few, later = TimedSizes("waited", exact(gpu, [64, 128])), TimedSizes("cpu", exact(cpu, [256, 512]))
    curves = fit({"gpu": few, "cpu": later})
    assert compare([curves["gpu"]], [curves["cpu"]]) is None
    assert compare([], [curves["cpu"]]) is None


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


def test_between_contenders_that_share_no_size_the_nearest_counts():
    halves = {"few": LADDER[:3], "many": LADDER[4:]}
    both = {name: TimedSizes("cpu", exact(cpu, sizes)) for name, sizes in halves.items()}
    curves = fit({"gpu": TimedSizes("waited", exact(gpu)), **both})
    assert compare([curves["gpu"]], [curves[name] for name in halves]) is not None


def curve(kind, seconds):
    """A contender that takes `seconds(n)`, in four blocks a size."""
    return fit({"it": TimedSizes(kind, {4**i: [[seconds(4**i)] * 4] for i in range(5, 13)})})["it"]


def test_a_step_that_may_lie_on_either_side_is_a_doubt_and_lies_in_the_interval():
    stepped, other = curve("cpu", lambda n: 1e-5 if n < 2**15 else 1e-3), curve("waited", lambda n: 1e-4)
    inside, beyond = math.log(2**15), math.log(2**22)
    low, _, high = interval(stepped, inside)
    assert low < 2e-5
    assert high > 5e-4
    assert doubt(other, [stepped], inside).wrong > 10 * doubt(other, [stepped], beyond).wrong
    assert doubt(other, [], inside) == (0.0, 0.0)
    assert doubt(other, [curve("waited", lambda n: 4e-4), other], inside).cost < 0.1, "the nearest rival counts"
