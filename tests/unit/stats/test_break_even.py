"""The crossing from fresh timings: on lines whose root is known, on noise, and where there is none."""

from __future__ import annotations

import math
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench import break_even, stats
from tests.examples import examples

SIZES = (80, 90, 100, 112, 125, 140, 157)


def line(draw, *, n=110.0, slope=1.5, sigma=0.1, samples=25, sessions=1, between=0.0, sizes=SIZES):
    """Timings whose ln(ratio) is slope * ln(size / n), with log-normal noise within and between sessions."""
    shift = [draw.gauss(0, between) for _ in range(sessions)]

    def side(seconds):
        return [seconds * draw.lognormvariate(0, sigma) for _ in range(samples)]

    return {
        size: {i: (side((size / n) ** slope * math.exp(shift[i])), side(1.0)) for i in range(sessions)} for size in sizes
    }  # fmt: skip


def test_without_noise_the_root_is_exact_and_the_interval_is_one_percent():
    found = break_even.crossing(line(random.Random(1), sigma=0.0), None)
    assert found == pytest.approx((110.0, 110.0 * 0.99, 110.0 * 1.01, 1.0))


def test_sides_that_are_alike_at_every_size_cross_nowhere():
    assert break_even.crossing(line(random.Random(1), slope=0.0, sigma=0.0), None) is None


def test_sessions_agree_unless_it_is_said_how_far_they_lie_apart():
    crossing = break_even.Crossing(100.0, 80.0, 120.0)
    assert crossing.apart == 1.0, "high / low of one and the same place"


@pytest.mark.parametrize(
    ("sessions", "samples", "between"), [(1, 12, 0.0), (1, 25, 0.0), (3, 9, 0.0), (5, 7, 0.05), (8, 5, 0.05)]
)
@pytest.mark.slow
def test_the_interval_covers_the_truth(sessions, samples, between):
    draw = random.Random(sessions * 100 + samples)
    hits, runs = 0, 60
    for _ in range(runs):
        timings = line(draw, samples=samples, sessions=sessions, between=between)
        found = break_even.crossing(timings, None)
        hits += found.low is not None and found.low <= 110 <= found.high
    assert hits >= 0.9 * runs


def test_a_line_that_does_not_rise_has_no_root_and_noise_leaves_both_ends_open():
    assert break_even.crossing(line(random.Random(2), slope=-1.0)) is None
    assert break_even.crossing(line(random.Random(2), sizes=SIZES[:1])) is None
    assert break_even.crossing({}) is None
    flat = break_even.crossing(line(random.Random(4), slope=0.02, sigma=0.3))
    assert flat is None or (flat.low, flat.high) == (None, None)


@pytest.mark.parametrize(("ln_n", "found"), [(99.0, True), (-99.0, True), (101.0, False), (-101.0, False)])
def test_a_root_that_no_memory_holds_is_none(ln_n, found):
    timings = line(random.Random(5), n=math.exp(ln_n), slope=0.05, sigma=0.0)
    crossing = break_even.crossing(timings)
    assert (crossing is not None) == found
    if found:
        assert math.log(crossing.n) == pytest.approx(ln_n)


@pytest.mark.parametrize("sessions", [2, 3, 5, 8])
def test_from_two_sessions_on_the_interval_knows_how_far_they_differ(sessions):
    """Sessions that scatter by a tenth, without noise inside."""
    timings = line(random.Random(12), sigma=0.0, sessions=sessions, between=0.1, samples=5)
    alike = {n: dict.fromkeys(by_session, by_session[0]) for n, by_session in timings.items()}
    apart, together = (break_even.crossing(found, None) for found in (timings, alike))
    assert math.log(apart.high / apart.low) > 2 * math.log(together.high / together.low)


def test_one_session_has_the_width_of_its_prior():
    """Without noise inside: 1.96 standard deviations of both sides together, over the slope of 1.5."""
    found = break_even.crossing(
        line(random.Random(1), sigma=0.0), (stats.Prior(0.07, 0.03), stats.Prior(0.07, 0.04))
    )
    half = 1.96 * 0.05 / 1.5
    ends = (110 * math.exp(-half), 110 * math.exp(half))
    assert found == pytest.approx((110, *ends, math.exp(2 * half)), rel=2e-3), "sessions alone make it so wide"


@pytest.mark.parametrize("sessions", [stats.MIN_BOOTSTRAP_SESSIONS - 1, stats.MIN_BOOTSTRAP_SESSIONS])
def test_sessions_speak_for_themselves_once_there_are_enough(sessions):
    timings = line(random.Random(7), sigma=0.02, sessions=sessions, between=0.05)
    little, wide = stats.Prior(0.01, 0.01), stats.Prior(0.3, 0.3)
    one, other = (break_even.crossing(timings, (prior, prior)) for prior in (little, wide))
    assert (one == other) == (sessions == stats.MIN_BOOTSTRAP_SESSIONS)


def test_of_single_blocks_on_a_line_the_priors_of_both_sides_say_how_far_they_scatter():
    """Standard deviations of 0.18 and 0.24 make 0.3."""
    timings = line(random.Random(1), sigma=0.0, samples=1)
    both, one, less = (
        break_even.crossing(timings, (stats.Prior(base, 0.0), stats.Prior(case, 0.0)))
        for base, case in ((0.18, 0.24), (0.3, 0.0), (0.2, 0.0))
    )
    assert tuple(both) == pytest.approx(tuple(one))
    assert one.high / one.low > less.high / less.low > 1.04


@pytest.mark.parametrize("sessions", [1, 3])
def test_what_a_size_does_beside_the_line_widens_the_interval(sessions):
    """Tiles, thread counts: 10 % up or down at a size, in all sessions alike, which no block and no session shows."""
    timings = line(random.Random(3), sigma=0.01, sessions=sessions)
    draw = random.Random(4)
    uneven = {}
    for n, by_session in timings.items():
        factor = draw.lognormvariate(0, 0.1)
        uneven[n] = {i: ([value * factor for value in base], case) for i, (base, case) in by_session.items()}
    smooth, rough = break_even.crossing(timings, None), break_even.crossing(uneven, None)
    assert math.log(rough.high / rough.low) > 3 * math.log(smooth.high / smooth.low)


def test_one_block_a_size_is_no_certainty():
    """Seven single values on a line tell by their distance from it how far they scatter; the prior knows more."""
    timings = line(random.Random(5), sigma=0.05, samples=1)
    alone, known = break_even.crossing(timings, None), break_even.crossing(timings)
    assert alone.low < 110 < alone.high
    assert known.low < alone.low < alone.high < known.high
    two = {n: timings[n] for n in SIZES[::6]}
    unsure = break_even.crossing(two, None)
    assert (unsure.low, unsure.high) == (None, None), "two single values lie on a line whatever they are"


def test_a_size_without_spread_does_not_decide_alone():
    """A few equal timings are chance: 20 % beside the line, alone they would say 97. A line so uneven counts all alike."""
    timings = line(random.Random(13), sigma=0.03)
    timings[112] = {0: ([(112 / 110) ** 1.5 * 1.2] * 25, [1.0] * 25)}
    assert break_even.crossing(timings).n == pytest.approx(110 * 1.2 ** (-1 / 7 / 1.5), rel=0.01)


def test_the_size_with_more_noise_counts_less():
    timings = line(random.Random(3), sigma=0.001)
    draw = random.Random(5)
    wrong = [2.0 * draw.lognormvariate(0, 0.8) for _ in range(25)]
    timings[157] = {0: (timings[157][0][0], wrong)}
    assert break_even.crossing(timings).n == pytest.approx(110, rel=0.08)


@settings(max_examples=examples(15))
@given(st.integers(0, 999), st.integers(-8, 8), st.sampled_from([1, 3, 6]))
def test_order_and_unit_do_not_matter(seed, power, sessions):
    timings = line(random.Random(6), sessions=sessions, samples=7)
    shuffle = random.Random(seed)
    mixed = {}
    for size in shuffle.sample(list(timings), len(timings)):
        by_session = shuffle.sample(list(timings[size].items()), sessions)
        mixed[size] = {
            i: tuple([value * 2.0**power for value in shuffle.sample(side, len(side))] for side in sides)
            for i, sides in by_session
        }
    expected = break_even.crossing(timings)
    assert break_even.crossing(mixed) == pytest.approx(expected, rel=1e-9)


def test_sessions_that_missed_a_size_still_count_at_the_others():
    timings = line(random.Random(8), sessions=6, samples=7)
    del timings[80][3]
    timings[157] = {2: timings[157][2]}
    found = break_even.crossing(timings)
    assert found.low < 110 < found.high


def test_four_hundred_timings_take_milliseconds():
    timings = line(random.Random(9), samples=28)
    start = time.process_time()
    for _ in range(5):
        break_even.crossing(timings)
    assert time.process_time() - start < 5 * 0.25  # measured: 0.01 s; a slow machine in CI is no defect


def test_bracket():
    assert break_even.bracket({64: 0.5, 256: 0.9, 1024: 3.0, 4096: 9.0}) == (256, 1024)
    assert break_even.bracket({64: 0.5, 256: 2.0, 1024: 0.9, 4096: 9.0}) == (1024, 4096)
    assert break_even.bracket({64: 2.0, 256: 3.0}) is None
    assert break_even.bracket({64: 0.2, 256: 0.3}) is None
    assert break_even.bracket({}) is None


def test_the_size_with_more_samples_counts_more():
    def root(count):
        """Of a line on which one size lies too low, with so many samples there and ten elsewhere."""
        spread = {size: [0.95, 1.05] * (count // 2 if size == 140 else 5) for size in SIZES}
        timings = {
            size: {0: ([x * (size / 110.0) ** 1.5 * (0.8 if size == 140 else 1.0) for x in spread[size]], spread[size])}
            for size in SIZES
        }  # fmt: skip
        return break_even.crossing(timings).n

    assert root(6) < root(10) < root(40)


def test_the_size_with_more_sessions_counts_more():
    def root(sessions):
        spread = [0.95, 1.05] * 5
        timings = {
            size: {
                i: ([x * (size / 110.0) ** 1.5 * (0.8 if size == 140 else 1.0) for x in spread], spread)
                for i in range(sessions if size == 140 else 2)
            }
            for size in SIZES
        }
        return break_even.crossing(timings).n

    assert root(1) < root(2) < root(4)


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 999), st.integers(1, 6), st.integers(1, 6), st.floats(0.001, 0.3), st.booleans())
def test_an_interval_holds_its_estimate_and_one_session_is_no_narrower_than_its_prior(
    seed, sessions, samples, sigma, with_prior
):
    timings = line(random.Random(seed), sigma=sigma, sessions=sessions, samples=samples)
    found = break_even.crossing(timings, stats.BOTH_USUAL if with_prior else None)
    if found is None or found.low is None or found.high is None:
        return
    assert found.low <= 0.99 * found.n * (1 + 1e-12) < 1.01 * found.n * (1 - 1e-12) <= found.high
    if with_prior and sessions == 1 and samples > 1:  # of single blocks the prior knows more than they tell
        alone = break_even.crossing(timings, None)
        assert alone.low is None or (found.low <= alone.low and alone.high <= found.high)
