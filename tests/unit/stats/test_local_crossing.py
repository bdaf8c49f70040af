"""Where a search's own blocks say that the sides change: on bent curves, with the noise that the priors state."""

from __future__ import annotations

import math
import random

import pytest

from gpubench import break_even, stats
from gpubench.stats import Prior

AROUND = (1 / 30, 1 / 2.2, 1 / 1.5, 1.0, 1.5, 2.2, 30)
TRUTH = 30_000.0


def bent(n):
    """Times of both sides that are equal at TRUTH; one has a fixed part, as a launch has."""
    return 1e-5 * n / TRUTH, 1e-5 * (0.7 + 0.3 * n / TRUTH)


def straight(slope):
    return lambda n: (1e-5 * (n / TRUTH) ** slope, 1e-5)


def measured(draw, curve, prior, *, blocks=4, sessions=1, off=1.0):
    """Blocks at sizes around a guess that is `off` the truth; a session shifts each side as a whole."""
    shift = [[draw.gauss(0, prior.session) for _ in range(2)] for _ in range(sessions)]

    def side(seconds, place, session):
        return [seconds * math.exp(shift[session][place] + draw.gauss(0, prior.block)) for _ in range(blocks)]

    return {
        n: {
            i: tuple(side(seconds, place, i) for place, seconds in enumerate(curve(n))) for i in range(sessions)
        }
        for n in (round(TRUTH * off * step) for step in AROUND)
    }


def knee(below, above):
    """The ratio rises with one power of the size up to TRUTH, and with another one beyond it."""
    return lambda n: (1e-5, 1e-5 * (n / TRUTH) ** -(below if n < TRUTH else above))


@pytest.mark.parametrize("sessions", [1, 3])
@pytest.mark.parametrize(("below", "above"), [(0.5, 1.5), (1.5, 0.5), (0.3, 1.2)])
def test_a_knee_at_the_crossing_is_inside_the_interval(below, above, sessions):
    draw, prior, hits, runs = random.Random(11), Prior(0.05, 0.02), 0, 60
    for _ in range(runs):
        timings = measured(draw, knee(below, above), prior, sessions=sessions, off=draw.uniform(0.8, 1.25))
        found = break_even.local_crossing(timings, (prior, prior)).crossing
        hits += found.low is None or found.high is None or found.low <= TRUTH <= found.high
    assert hits >= 0.9 * runs


@pytest.mark.parametrize(("below", "above", "off"), [(0.3, 1.5, 0.9), (1.5, 0.3, 1.1)])
def test_beside_a_knee_the_sizes_around_the_crossing_tell_it(below, above, off):
    """Without noise a line through all sizes near it misses it by a quarter and more."""
    exact = measured(random.Random(12), knee(below, above), Prior(1e-4, 0.0), off=off)
    line = break_even.crossing({n: exact[n] for n in break_even.sizes_around(exact)}, None)
    found = break_even.local_crossing(exact, None).crossing
    assert abs(math.log(line.n / TRUTH)) > math.log(1.25)
    assert abs(math.log(found.n / TRUTH)) < math.log(1.1)
    assert found.low < TRUTH < found.high


@pytest.mark.parametrize("curve", [straight(0.8), straight(1.5)])
def test_a_straight_curve_keeps_the_interval_of_its_line(curve):
    draw, prior = random.Random(13), Prior(0.05, 0.02)
    kept = 0
    for _ in range(40):
        timings = measured(draw, curve, prior)
        line = break_even.crossing({n: timings[n] for n in break_even.sizes_around(timings)}, (prior, prior))
        kept += break_even.local_crossing(timings, (prior, prior)).crossing.n == line.n
    assert kept >= 36


@pytest.mark.parametrize(
    "prior", [stats.USUAL, Prior(0.02, 0.05), Prior(stats.SHORT_BLOCK, stats.LAUNCH_SESSION)]
)
@pytest.mark.parametrize("curve", [bent, straight(0.8), straight(1.5)])
def test_the_interval_covers_the_truth(prior, curve):
    draw, hits, runs = random.Random(7), 0, 80
    for _ in range(runs):
        local = break_even.local_crossing(
            measured(draw, curve, prior, off=draw.uniform(0.8, 1.25)), (prior, prior)
        )
        found = None if local is None else local.crossing
        open_end = found is None or found.low is None or found.high is None
        hits += open_end or found.low <= TRUTH <= found.high
    assert hits >= 0.9 * runs


def test_the_line_ends_near_the_crossing():
    """Far from it the curve bends: those sizes take no part."""
    exact = measured(random.Random(1), bent, Prior(0.001, 0.0))
    local = break_even.local_crossing(exact, (Prior(0.001, 0.001),) * 2)
    assert local.crossing.n == pytest.approx(TRUTH, rel=0.05)
    far = {n: row for n, row in exact.items() if n not in (min(exact), max(exact))}
    assert break_even.local_crossing(far, (Prior(0.001, 0.001),) * 2) == local


def test_it_is_wider_than_the_fit_to_sizes_that_nobody_chose():
    timings = measured(random.Random(2), straight(1.0), Prior(0.05, 0.0))
    near = {n: row for n, row in timings.items() if TRUTH / 4 < n < TRUTH * 4}
    plain, local = break_even.crossing(near), break_even.local_crossing(near).crossing
    assert local.n == plain.n
    assert local.low < plain.low < plain.high < local.high


@pytest.mark.parametrize("slope", [0.02, 0.1, 0.3])
def test_of_a_flat_curve_the_slope_is_told(slope):
    local = break_even.local_crossing(measured(random.Random(3), straight(slope), Prior(0.001, 0.0)))
    assert local.slope == pytest.approx(slope, abs=0.01)


def test_sides_that_do_not_change_have_no_crossing():
    never = {n: {0: ([1.0] * 4, [2.0] * 4)} for n in (64, 256, 1024)}
    assert break_even.local_crossing(never) is None
    assert break_even.local_crossing({}) is None
    falling = measured(random.Random(4), straight(-1.0), Prior(0.001, 0.0))
    assert break_even.local_crossing(falling) is None


def test_neighbours_that_lose_together_bound_the_crossing_where_none_is_sure_alone():
    """A knee above the crossing, and a pair of sizes before it that falls by chance: the pieces leave the end open."""
    ratios = {200: 0.72, 240: 0.74, 290: 0.71, 340: 1.0, 680: 0.98, 810: 1.31, 960: 1.53, 2100: 5.8}
    spread = (0.85, 0.95, 1.05, 1.18)

    def timings(kept):
        return {n: {0: ([ratios[n] * s for s in spread], [1.0] * 4)} for n in ratios if n in kept}

    prior = Prior(0.08, 0.05)
    together = break_even.local_crossing(timings(ratios), (prior, prior)).crossing
    alone = break_even.local_crossing(timings(set(ratios) - {200, 240}), (prior, prior)).crossing
    assert alone.low is None or alone.low < 200
    assert together.low is not None
    assert together.low >= 200
