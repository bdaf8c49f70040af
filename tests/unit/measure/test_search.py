"""The search: always inside the ladder and the bracket, never a size twice, it ends, and it finds the crossing."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from gpubench import kernels
from gpubench.measure import curves
from gpubench.measure.curves import NARROW, Span
from gpubench.measure.plan import Series
from gpubench.model.op import Ladder

CPU = {"numpy:0"}
BASE, OTHER = ("numpy:0", "library", "resident"), ("numpy:0", "tuned", "resident")
GPU, SLOW = ("cupy:0", "tuned", "resident-queued"), ("cupy:0", "library", "resident-queued")
# Far more than a search that halves a bracket of 2^14 on a logarithmic scale ever needs.
ENOUGH = 60

ladders = st.builds(
    lambda low, octaves, factor, granule: Ladder(low * granule, low * granule << octaves, factor, granule),
    st.integers(1, 1000), st.integers(1, 14), st.sampled_from([2, 4]), st.sampled_from([1, 8, 64]),
)  # fmt: skip


def row(n, crossing, *, scale=1.0, noise=0.0, slope=3.0):
    """Times of two forms a side at size n; the GPU wins from `crossing` on. `noise` is a relative half-width."""
    cpu = 1e-6 * (1 + n / crossing * slope)
    gpu = 1e-6 * (1 + slope / 2 + n / crossing * slope / 2)
    spans = {BASE: cpu, OTHER: 1.7 * cpu, GPU: gpu, SLOW: 1.3 * gpu}
    return {
        slot: Span(t * scale * (1 - noise), t * scale, t * scale * (1 + noise)) for slot, t in spans.items()
    }


def run(ladder, crossing, **curve):
    """All times once the search has ended; each step is checked on the way."""
    times = {n: row(n, crossing, **curve) for n in curves.coarse_sizes(ladder)}
    for _ in range(ENOUGH):
        step = curves.next_step(ladder, times, CPU)
        if step is None:
            return times
        urgency, n = step
        assert urgency > 1
        assert ladder.low <= n <= ladder.high
        assert n not in times
        ends = curves.bracket(curves.ratios(times, CPU)["cupy:0", "resident-queued"])
        if ends is not None:
            assert ends[0] < n < ends[1]
        else:
            assert n > max(times)
        assert {BASE, GPU} == curves.contenders(times, n, CPU)  # the slower forms can wait
        times[n] = row(n, crossing, **curve)
    raise AssertionError(f"still searching after {ENOUGH} sizes: {sorted(times)}")


@given(ladders, st.floats(0.0, 1.0), st.floats(0.5, 20))
@example(Ladder(1024, 2**24), 0.5, 3.0)
def test_the_crossing_is_bracketed_narrowly(ladder, where, slope):
    crossing = ladder.low * (ladder.high / ladder.low) ** where * 1.0001
    assume(ladder.low < crossing < ladder.high)
    times = run(ladder, crossing, slope=slope)
    ends = curves.bracket(curves.ratios(times, CPU)["cupy:0", "resident-queued"])
    if ends is None:  # the crossing lies within rounding of an end of the ladder
        assert crossing < 1.001 * ladder.low or crossing > 0.999 * ladder.high
        return
    low, high = ends
    assert low <= crossing <= high
    assert high / low <= NARROW or high - low <= 2 * ladder.granule


@given(ladders, st.floats(0.02, 0.2))
@example(Ladder(1024, 2**24), 0.2)
def test_noise_ends_the_search_too(ladder, noise):
    """Around the crossing the two are as fast as each other: those sizes are ties, not losses."""
    crossing = (ladder.low * ladder.high) ** 0.5
    times = run(ladder, crossing, noise=noise)
    ends = curves.bracket(curves.ratios(times, CPU)["cupy:0", "resident-queued"])
    assert ends is None or ends[0] <= crossing <= ends[1]


@given(ladders)
def test_a_gpu_that_always_wins_asks_for_nothing(ladder):
    times = run(ladder, ladder.low / 100)
    assert sorted(times) == curves.coarse_sizes(ladder)


@given(ladders)
def test_a_gpu_that_rises_and_never_wins_is_followed_to_the_top(ladder):
    times = run(ladder, ladder.high * 1000)
    assert max(times) == ladder.high


@given(ladders)
def test_a_gpu_that_falls_behind_is_left_alone(ladder):
    times = {
        n: {BASE: Span(1e-6, 1e-6, 1e-6), GPU: Span(2e-6 * i, 2e-6 * i, 2e-6 * i)}
        for i, n in enumerate(curves.coarse_sizes(ladder), 1)
    }
    assume(len(times) > 1)
    assert curves.next_step(ladder, times, CPU) is None


@given(ladders, st.floats(0.1, 0.9), st.floats(1e-6, 1e6))
def test_the_unit_of_time_does_not_matter(ladder, where, scale):
    crossing = ladder.low * (ladder.high / ladder.low) ** where
    sizes = curves.coarse_sizes(ladder)
    one, other = ({n: row(n, crossing, scale=s) for n in sizes} for s in (1.0, scale))
    assume(all(abs(r.middle - 1) > 1e-9 for r in curves.ratios(one, CPU)["cupy:0", "resident-queued"].values()))
    assert curves.next_step(ladder, one, CPU) == curves.next_step(ladder, other, CPU)


@given(ladders)
def test_the_coarse_sizes_are_of_the_ladder(ladder):
    sizes = curves.coarse_sizes(ladder)
    assert sizes == sorted(set(sizes))
    assert set(sizes) <= set(ladder.sizes())
    assert sizes[0] == ladder.low


def test_a_row_without_a_baseline_says_nothing():
    assert curves.ratios({64: {GPU: Span(1, 1, 1)}}, CPU) == {}
    assert curves.next_step(Ladder(64, 1024), {64: {GPU: Span(1, 1, 1)}}, CPU) is None
    assert curves.next_step(Ladder(64, 1024), {}, CPU) is None


def test_the_ratio_is_of_the_fastest_forms():
    times = {64: {BASE: Span(4, 4, 4), OTHER: Span(2, 2, 2), GPU: Span(1, 1, 1), SLOW: Span(8, 8, 8)}}
    assert curves.ratios(times, CPU) == {("cupy:0", "resident-queued"): {64: Span(2, 2, 2)}}


@given(st.floats(1e-3, 100), st.sampled_from([2**14, 2**20, 2**24]))
def test_what_is_affordable_is_predicted_to_fit(limit_s, n):
    curve = Series(kernels.load("add"), "float32")
    times = {1024: row(1024, 5000), 8192: row(8192, 5000)}
    elapsed = {1024: 0.2, 8192: 0.25}
    found = curves.affordable(curve, n, times, elapsed, 5, limit_s)
    if found is None:
        assert curves.predicted_seconds(curve, 2 * 8192, times, elapsed, 5) > limit_s
    else:
        assert 2 * 8192 <= found <= n
        assert curves.predicted_seconds(curve, found, times, elapsed, 5) <= limit_s


@pytest.mark.parametrize("name", kernels.computed())
def test_larger_sizes_are_predicted_to_take_longer(name):
    op = kernels.load(name)
    low, *more = op.sizes.sizes()
    times, elapsed = {low: row(low, 5000)}, {low: 0.2}
    predicted = [curves.predicted_seconds(Series(op, "float32"), n, times, elapsed, 5) for n in more]
    assert predicted == sorted(predicted)
    assert predicted[0] >= elapsed[low]
