"""What a search knows of its curves: ratios of the fastest forms, sizes that would tell more, and the grid."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpubench import kernels
from gpubench.break_even import Crossing
from gpubench.measure import curves
from gpubench.measure.curves import CurveState
from gpubench.measure.plan import Series
from gpubench.model.op import Ladder

CPU = {"numpy:0"}
BASE, OTHER = ("numpy:0", "library", "resident"), ("numpy:0", "tuned", "resident")
GPU, SLOW = ("cupy:0", "tuned", "resident-queued"), ("cupy:0", "library", "resident-queued")
CURVE = ("cupy:0", "resident-queued")

ladders = st.builds(
    lambda low, octaves, factor, granule: Ladder(low * granule, low * granule << octaves, factor, granule),
    st.integers(1, 1000), st.integers(2, 14), st.sampled_from([2, 4]), st.sampled_from([1, 8, 64]),
)  # fmt: skip


def row(cpu_s, gpu_s):
    """Two forms a side; one of each competes."""
    return {BASE: {0: [cpu_s]}, OTHER: {0: [1.7 * cpu_s]}, GPU: {0: [gpu_s]}, SLOW: {0: [1.3 * gpu_s]}}


def test_ratios_are_of_the_fastest_forms_where_both_sides_were_measured():
    known = {64: row(1.0, 2.0), 256: row(4.0, 2.0), 1024: {GPU: {0: [1.0]}}, 4096: {BASE: {0: [1.0]}}}
    assert curves.curves(known, CPU) == [CURVE]
    assert curves.ratios(known, CURVE, CPU) == {64: 0.5, 256: 2.0}
    assert curves.pairs(known, CURVE, CPU)[64] == (BASE, GPU)
    assert curves.curves(known, CPU, without={"cupy:0"}) == []


def test_blocks_of_sessions_that_both_sides_have_are_paired():
    known = {64: {BASE: {0: [1.0, 2.0], 1: [3.0]}, GPU: {0: [4.0], 2: [5.0]}}}
    assert curves.timings(known, CURVE, CPU) == {64: {0: ([1.0, 2.0], [4.0])}}


@given(ladders, st.floats(0.05, 0.95), st.floats(0.05, 0.95), st.floats(1.01, 5))
def test_what_is_asked_for_lies_inside_what_was_measured_and_is_new(ladder, a, b, ratio):
    sizes = ladder.sizes()
    assume(len(sizes) >= 4)
    low, high = sorted((sizes[int(a * len(sizes))], sizes[int(b * len(sizes))]))
    assume(low < high)
    measured = {n: 1 / ratio if n <= low else ratio for n in (sizes[0], low, high, sizes[-1])}
    for found in (None, Crossing(math.sqrt(low * high), low, high)):
        state = CurveState(measured, (low, high), found)
        wanted = curves.asked(state, ladder, 3)
        assert len(wanted) <= 3
        assert not set(wanted) & set(measured)
        assert all(sizes[0] < n < sizes[-1] and n == ladder.snapped(n) for n in wanted)


def test_a_curve_that_does_not_cross_asks_for_nothing_and_is_not_open():
    state = CurveState({64: 2.0, 256: 3.0}, None, None)
    assert curves.asked(state, Ladder(64, 4096), 3) == curves.checks(state, Ladder(64, 4096)) == []
    assert not state.open(1.5)
    assert state.near


@pytest.mark.parametrize(("crossing", "is_open"), [
    (None, True), (Crossing(100, None, 120), True), (Crossing(100, 80, None), True), (Crossing(100, 60, 200), True),
    (Crossing(100, 80, 120), False),
])  # fmt: skip
def test_a_curve_is_open_until_its_threshold_is_known_closely(crossing, is_open):
    ratios = {64: 0.5, 80: 0.7, 256: 2.0, 300: 2.2}
    assert CurveState(ratios, (80, 256), crossing).open(2.25) == is_open


def test_a_threshold_that_few_sizes_agree_on_is_still_open():
    """Two sizes lie on a line whatever their scatter."""
    sizes = {80: 0.8, 90: 0.9, 110: 1.1, 120: 1.2, 130: 1.3}
    known = Crossing(100, 95, 105)
    for count in range(2, len(sizes) + 1):
        ratios = dict(list(sizes.items())[-count:]) | {10: 0.1}
        ends = max(n for n, ratio in ratios.items() if ratio < 1), min(n for n in ratios if ratios[n] > 1)
        assert CurveState(ratios, ends, known).open(2.25) == (count < curves.FEWEST_AROUND)


def test_what_more_sizes_do_not_tell_is_not_asked_for():
    """Sessions that lie apart widen an interval whatever the sizes say, and so does noise that seven sizes show."""
    measured = {100: 0.5, 200: 1.5, 300: 1.7, 400: 2.0}
    for apart, is_open in ((1.0, True), (2.4, True), (2.9, False)):
        found = Crossing(150.0, 90.0, 270.0, apart)
        assert CurveState(measured, (100, 200), found).open(2.25) is is_open
    many = {100 + 10 * i: 0.5 if i < 5 else 1.5 for i in range(curves.MOST_AROUND)}
    wide = Crossing(145.0, 50.0, 500.0)
    assert not CurveState(many, (140, 150), wide).open(2.25)
    assert CurveState(dict(list(many.items())[1:]), (140, 150), wide).open(2.25)


@given(ladders, st.floats(0.1, 0.9))
def test_checks_lie_above_the_threshold_just_past_powers_of_two_in_whole_granules(ladder, where):
    sizes = ladder.sizes()
    assume(len(sizes) >= 3)
    low = sizes[int(where * (len(sizes) - 1))]
    high = sizes[sizes.index(low) + 1]
    for n in curves.checks(CurveState(dict.fromkeys(sizes, 1.0), (low, high), None), ladder):
        assert high < n < sizes[-1]
        assert n % ladder.granule == 0
        assert 0 < n - 2 ** math.floor(math.log2(n)) <= ladder.granule


@given(ladders, st.floats(1, 1e7))
def test_sizes_of_the_grid_are_whole_and_few(ladder, n):
    snapped = ladder.snapped(n)
    assert 1 <= snapped <= ladder.high
    assert snapped % ladder.granule == 0
    if n <= ladder.high and snapped > 8 * ladder.granule:
        assert abs(math.log2(snapped / n)) <= 1 / 8 + 0.1


@given(ladders)
def test_a_ladder_rises_to_its_top(ladder):
    sizes = ladder.sizes()
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == ladder.high
    assert sizes[0] <= ladder.low * 1.2 + ladder.granule


@pytest.mark.parametrize("name", kernels.names())
def test_the_default_sizes_of_an_op_have_a_shape(name):
    op = kernels.load(name)
    assert [op.fits({"n": n}) for n in op.sizes.sizes()] == [None] * len(op.sizes.sizes())


@pytest.mark.parametrize("name", ["add", "matmul", "transpose"])
def test_default_sizes_below_the_top_lie_off_the_powers_of_two(name):
    """Padded and tiled kernels look better there than they are."""
    *below, _ = kernels.load(name).sizes.sizes()
    assert not [n for n in below if n > 64 and n & (n - 1) == 0]


@pytest.mark.parametrize("name", kernels.computed())
def test_larger_sizes_are_more_work(name):
    op = kernels.load(name)
    work = [curves.work(Series(op, "float32"), n) for n in op.sizes.sizes()]
    assert work == sorted(work)
    assert work[0] > 0


@given(st.lists(st.integers(50, 200_000), max_size=6), st.integers(1_000, 10_000), st.booleans())
def test_a_size_that_other_curves_ask_for_is_shared_where_it_tells_nearly_as_much(others, place, above):
    state = CurveState({100: 0.5, 100_000: 2.0}, (100, 100_000), Crossing(place, place / 2, place * 2))
    wanted = place * 2 if above else place // 2
    found = curves.shared(wanted, state, others)
    near = [n for n in others if 1 / curves.SHARED <= n / wanted <= curves.SHARED and (n >= place) == above]
    assert found == wanted if not near else found in near
    assert all(abs(math.log(found / wanted)) <= abs(math.log(n / wanted)) for n in near)
    assert found not in state.ratios
