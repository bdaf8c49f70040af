"""The crossing from fresh timings: on lines whose root is known, on noise, and where there is none."""

from __future__ import annotations

import math
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench import threshold

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
    found = threshold.crossing(line(random.Random(1), sigma=0.0), seed=1)
    assert found == pytest.approx((110.0, 110.0 * 0.99, 110.0 * 1.01))


@pytest.mark.parametrize(
    ("sessions", "samples", "between"), [(1, 12, 0.0), (1, 25, 0.0), (3, 9, 0.0), (5, 7, 0.05), (8, 5, 0.05)]
)
def test_the_interval_covers_the_truth(sessions, samples, between):
    draw = random.Random(sessions * 100 + samples)
    hits, runs = 0, 60
    for _ in range(runs):
        timings = line(draw, samples=samples, sessions=sessions, between=between)
        found = threshold.crossing(timings, seed=1)
        hits += found.low is not None and found.low <= 110 <= found.high
    assert hits >= 0.9 * runs


def test_a_line_that_does_not_rise_has_no_root_and_noise_leaves_both_ends_open():
    assert threshold.crossing(line(random.Random(2), slope=-1.0), seed=1) is None
    assert threshold.crossing(line(random.Random(2), sizes=SIZES[:1]), seed=1) is None
    assert threshold.crossing({}, seed=1) is None
    flat = threshold.crossing(line(random.Random(4), slope=0.02, sigma=0.3), seed=1)
    assert flat is None or (flat.low, flat.high) == (None, None)


@pytest.mark.parametrize(
    ("without", "ends"), [(0, (10, 389)), (6, (4, 389)), (10, (0, 389)), (11, None), (400, None)]
)
def test_an_end_leaves_ten_of_four_hundred_draws_outside(without, ends):
    """2.5 % on either side; a draw without a root lies beyond both ends, and above 2.5 % of them leave the ends open."""
    roots = [*map(float, range(400 - without)), *([None] * without)]
    random.Random(1).shuffle(roots)
    low, high = (None, None) if ends is None else (float(ends[0]), float(ends[1]))
    assert threshold._ends(roots) == (low, high)


@pytest.mark.parametrize(("sessions", "foresees"), [(2, False), (4, False), (5, True), (8, True)])
def test_from_five_sessions_on_the_interval_knows_how_far_they_differ(sessions, foresees):
    """Sessions that scatter by a tenth, without noise inside: fewer than five are not drawn again, whatever they say."""
    timings = line(random.Random(12), sigma=0.0, sessions=sessions, between=0.1, samples=5)
    found = threshold.crossing(timings, seed=1)
    narrowest = pytest.approx((found.n * 0.99, found.n * 1.01))
    assert ((found.low, found.high) != narrowest) is foresees


def test_a_size_without_spread_does_not_decide_alone():
    """A few equal timings are chance: 20 % beside the line, alone they would say 97; they weigh as much as four sizes."""
    timings = line(random.Random(13), sigma=0.03)
    timings[112] = {0: ([(112 / 110) ** 1.5 * 1.2] * 25, [1.0] * 25)}
    assert threshold.crossing(timings, seed=1).n == pytest.approx(110 * 1.2 ** (-0.4 / 1.5), rel=0.02)


def test_the_size_with_more_noise_counts_less():
    timings = line(random.Random(3), sigma=0.001)
    draw = random.Random(5)
    wrong = [2.0 * draw.lognormvariate(0, 0.8) for _ in range(25)]
    timings[157] = {0: (timings[157][0][0], wrong)}
    assert threshold.crossing(timings, seed=1).n == pytest.approx(110, rel=0.08)


@settings(max_examples=15)
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
    expected = threshold.crossing(timings, seed=7)
    assert threshold.crossing(mixed, seed=7) == pytest.approx(expected, rel=1e-9)


def test_sessions_that_missed_a_size_still_count_at_the_others():
    timings = line(random.Random(8), sessions=6, samples=7)
    del timings[80][3]
    timings[157] = {2: timings[157][2]}
    found = threshold.crossing(timings, seed=1)
    assert found.low < 110 < found.high


def test_four_hundred_timings_take_milliseconds():
    timings = line(random.Random(9), samples=28)
    start = time.process_time()
    for _ in range(5):
        threshold.crossing(timings, seed=1)
    assert time.process_time() - start < 5 * 0.25  # measured: 0.01 s; a slow machine in CI is no defect


def test_bracket():
    assert threshold.bracket({64: 0.5, 256: 0.9, 1024: 3.0, 4096: 9.0}) == (256, 1024)
    assert threshold.bracket({64: 0.5, 256: 2.0, 1024: 0.9, 4096: 9.0}) == (1024, 4096)
    assert threshold.bracket({64: 2.0, 256: 3.0}) is None
    assert threshold.bracket({64: 0.2, 256: 0.3}) is None
    assert threshold.bracket({}) is None


def search(slope, sigma, sizes=(64, 90, 110, 128, 256)):
    draw = random.Random(11)
    return {n: sides[0] for n, sides in line(draw, slope=slope, sigma=sigma, samples=7, sizes=sizes).items()}


def test_the_window_lies_around_the_bracket_and_widens_with_noise_up_to_a_factor_of_two():
    quiet, noisy, wild = (threshold.window(search(1.5, sigma), 100, 110, 100) for sigma in (0.001, 0.2, 3.0))
    middle = math.sqrt(100 * 110)
    assert len(quiet) == len(wild) == threshold.WINDOW_SIZES
    assert quiet[0] == round(middle / 1.12)
    assert quiet[-1] == round(middle * 1.12)
    assert quiet[0] > noisy[0] >= wild[0] == round(middle / 2)
    assert wild[-1] == round(middle * 2)


def test_the_window_holds_the_bracket_keeps_the_granule_and_stays_inside_the_sizes():
    assert (
        threshold.window(search(1.5, 0.0), 80, 120, 100)[0],
        threshold.window(search(1.5, 0.0), 80, 120, 100)[-1],
    ) == (80, 120)
    sizes = threshold.window(search(1.5, 3.0), 96, 128, 100, granule=16, most=160)
    assert all(n % 16 == 0 for n in sizes)
    assert sizes[-1] == 160
    assert threshold.window(search(1.5, 3.0), 100, 110, 100, least=90)[0] == 90
    assert threshold.window(search(-1.0, 0.01), 100, 110, 100)[0] == round(math.sqrt(100 * 110) / 2)
    assert threshold.window({3: ([1.0], [2.0]), 4: ([3.0], [2.0])}, 3, 4, 10) == (3, 4)
