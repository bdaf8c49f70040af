"""Where two curves cross, and how sure that is."""

import itertools
import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench.curves import Side, TimedSizes, compare, fit, speedup_at
from gpubench.curves.threshold import isotonic, margin_at
from tests.examples import examples
from tests.unit.curves.simulated import LADDER, cpu, exact, gpu, scattered, threshold


def near(crossing, factors=(0.6, 0.77, 1.0, 1.3, 1.6)):
    """The ladder, and sizes around the crossing."""
    return sorted({*LADDER, *(round(crossing * factor) for factor in factors)})


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


def test_sides_that_are_equal_leave_both_ends_open():
    found = threshold(exact(gpu), exact(gpu))
    assert (found.state, found.low, found.high) == ("unsure", 0.0, math.inf)


def test_who_wins_at_the_top_may_be_open():
    """It surely loses below; 6 % ahead at the top may be chance."""
    found = threshold(exact(gpu), exact(lambda n: cpu(n, crossing=1.5e7)))
    assert (found.state, found.high) == ("unsure", math.inf)
    assert LADDER[0] < found.low < LADDER[-1]


def test_wins_and_losses_by_turns_are_mixed_and_the_last_crossing_counts():
    ratios = {64: 0.25, 256: 4.0, 1024: 0.25, 4096: 4.0}
    found = threshold(
        {n: [[1e-3 / ratio]] * 5 for n, ratio in ratios.items()}, exact(lambda n: 1e-3, ratios, sessions=5)
    )
    assert (found.state, found.mixed) == ("at", True)
    assert 1024 < found.low < found.n < found.high < 4096
    again = {64: 0.25, 256: 4.0, 1024: 0.25}
    lost = threshold({n: [[1e-3 / r]] * 5 for n, r in again.items()}, exact(lambda n: 1e-3, again, sessions=5))
    assert (lost.state, lost.mixed) == ("never", True)


def test_one_size_tells_the_winner_there():
    assert threshold(exact(gpu, [1 << 24]), exact(cpu, [1 << 24])).state == "always"
    assert threshold(exact(gpu, [1 << 10]), exact(cpu, [1 << 10])).state == "never"


def test_without_a_common_size_there_is_none():
    curves = fit(
        {"gpu": TimedSizes("waited", exact(gpu, [64, 128])), "cpu": TimedSizes("cpu", exact(cpu, [256, 512]))}
    )
    assert compare([curves["gpu"]], [curves["cpu"]]) is None
    assert compare([], [curves["cpu"]]) is None


def test_every_size_of_either_side_counts():
    """The GPU was timed at three sizes of the CPU's twelve, which hold its step."""
    sizes = near(300_000, (0.5, 0.8, 0.95, 1.05, 1.25, 2.0))
    found = threshold(
        exact(gpu, [1 << 10, 1 << 18, 1 << 24]), exact(lambda n: cpu(n, crossing=500_000, step=2.5), sizes)
    )
    assert 0.8 * 300_000 <= found.low <= found.n <= found.high <= 1.25 * 300_000


def test_a_contender_that_was_timed_at_one_size_counts_there_alone():
    """There it is three times as fast, which moves no threshold elsewhere."""
    once = TimedSizes("cpu", exact(lambda n: cpu(n) / 3, [1 << 13]))
    curves = fit({"gpu": TimedSizes("waited", exact(gpu)), "cpu": TimedSizes("cpu", exact(cpu)), "once": once})
    alone = compare([curves["gpu"]], [curves["cpu"]])
    beside = compare([curves["gpu"]], [curves["cpu"], curves["once"]])
    assert beside.n == pytest.approx(alone.n, rel=0.02)
    there, elsewhere = math.log(1 << 13), math.log(1 << 14)
    without, with_it = (
        [margin_at(Side([curves["gpu"]]), Side(other), x).log_ratio for x in (there, elsewhere)]
        for other in ([curves["cpu"]], [curves["cpu"], curves["once"]])
    )
    assert (without[0] - with_it[0], without[1]) == (pytest.approx(math.log(3), abs=0.1), with_it[1])


@pytest.mark.parametrize("step", [2.0, 4.0])
def test_beside_a_step_the_interval_spans_the_gap_that_holds_it(step):
    """The CPU takes `step` times as long somewhere between two sizes: that is where the sides change, and nobody knows
    at which size of the gap."""
    sizes = [1 << 10, 1 << 12, 1 << 14, 1 << 16, 200_000, 800_000, 1 << 22, 1 << 23, 1 << 24]

    def flat(n):
        return 1e-3 * (step if n > 200_001 else 1.0) * (n / 400_000) ** 0.05

    found = threshold(
        exact(lambda n: 1e-3 * math.sqrt(step), sizes, sessions=3), exact(flat, sizes, sessions=3)
    )
    assert found.state == "at"
    assert found.low < 200_000 * 1.25
    assert found.high > 800_000 / 1.25


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_the_nearest_rising_sequence(values):
    rising = isotonic(values)
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(rising))
    assert (math.fsum(rising), isotonic(rising)) == (pytest.approx(math.fsum(values)), pytest.approx(rising))


@settings(max_examples=examples(8), deadline=None)
@given(st.integers(0, 999), st.floats(2e4, 4e6))
def test_order_and_unit_of_time_change_no_threshold(seed, crossing):
    """Times of seconds, in two units: how calls of that length scatter is the same."""
    rng = random.Random(seed)
    sides = [scattered(lambda n: 1e5 * gpu(n), rng), scattered(lambda n: 1e5 * cpu(n, crossing=crossing), rng)]
    before = threshold(*sides)
    after = threshold(
        *(
            {n: [[value * 4 for value in row] for row in side[n]] for n in sorted(side, reverse=True)}
            for side in sides
        )
    )
    assert after.state == before.state
    assert (after.n, after.low, after.high) == pytest.approx((before.n, before.low, before.high), rel=0.01)


@pytest.mark.parametrize(("power", "step", "at"), [(0.6, 1.0, 1.0), (0.5, 2.5, 1.0), (0.5, 2.5, 3.0)])
def test_intervals_hold_the_truth(power, step, at):
    """Nine of ten runs, less three standard errors; sizes scatter by 5 %, blocks by 8 %."""
    rng, runs, hits, offs = random.Random(f"{power} {step} {at}"), 40, 0, []
    for _ in range(runs):
        crossing = math.exp(rng.uniform(math.log(3e4), math.log(3e6)))

        def times(n, crossing=crossing):
            # A step at the crossing lies on both sides of 1: it is where the sides change.
            scale = math.sqrt(step) if at == 1.0 else step if at < 1 else 1.0
            return cpu(n, crossing=crossing, power=power, step=step, at=at * crossing) / scale

        sizes = near(crossing * math.exp(rng.gauss(0, math.log(1.3))))
        found = threshold(scattered(gpu, rng, sizes), scattered(times, rng, sizes))
        hits += found.low <= crossing <= found.high
        offs.append(abs(math.log(found.n / crossing)) if 0 < found.n < math.inf else math.inf)
    assert hits / runs >= 0.9 - 3 * math.sqrt(0.9 * 0.1 / runs)
    assert statistics.median(offs) < math.log(1.6)


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
    curves = fit(
        {"gpu": TimedSizes("waited", exact(gpu))}
        | {name: TimedSizes("cpu", exact(cpu, sizes)) for name, sizes in halves.items()}
    )
    assert compare([curves["gpu"]], [curves[name] for name in halves]) is not None
