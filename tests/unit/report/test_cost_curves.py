"""Interpolation: exact at measured points, between them monotone, beyond them nothing."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.analysis.contenders import LEAST_SCATTER, Curve, Point, call_time, curve
from gpubench.analysis.estimate import case_results
from gpubench.model.result import Parts
from gpubench.stats import Interval
from tests.unit.report.builders import case, measured, regime_of, run_of

ROW = case_results(run_of([measured(case(), 1.0)]))[0]


def point(n: int, seconds: float, width: float = 0.01) -> Point:
    time = Interval(seconds * (1 - width), seconds, seconds * (1 + width), "prior")
    return Point(n=n, time=time, rows=(ROW,))


@st.composite
def curves(draw: st.DrawFn, apart: float = 1.0) -> Curve:
    """Each size `apart` times as large as the one before, at least."""
    drawn = sorted(draw(st.lists(st.integers(1, 2**40), min_size=1, max_size=8, unique=True)))
    sizes = drawn[:1]
    for n in drawn[1:]:
        if n >= apart * sizes[-1]:
            sizes.append(n)
    times = draw(st.lists(st.floats(1e-9, 1e4), min_size=len(sizes), max_size=len(sizes)))
    return curve(point(n, seconds) for n, seconds in zip(sizes, times, strict=True))


@given(curves(), st.integers(1, 2**40))
def test_nothing_is_told_outside_the_measured_sizes(found: Curve, n: int) -> None:
    inside = found.sizes[0] <= n <= found.sizes[-1]
    assert (found.seconds(n) is not None) == (found.expected(n) is not None) == inside


@given(curves())
def test_measured_points_are_given_back_as_they_are(found: Curve) -> None:
    for one in found.points:
        expected = found.expected(one.n)
        assert expected is not None
        assert (expected.time, expected.basis, expected.between) == (one.time, "measured", (one.n, one.n))
        assert found.seconds(one.n) == one.time.estimate
        assert found.measured(one.n)


@given(curves(apart=3.0), st.data())
def test_between_two_points_the_time_lies_between_theirs_and_is_monotone(
    found: Curve, data: st.DataObject
) -> None:
    if len(found.sizes) < 2:
        return
    i = data.draw(st.integers(1, len(found.sizes) - 1))
    a, b = found.sizes[i - 1], found.sizes[i]
    sizes = sorted(data.draw(st.lists(st.integers(a, b), min_size=2, max_size=6)))
    ends = (found.points[i - 1].time.estimate, found.points[i].time.estimate)
    times = [found.seconds(n) for n in (a, *sizes, b)]
    low, high = min(ends) * (1 - 1e-12), max(ends) * (1 + 1e-12)
    assert all(time is not None and low <= time <= high for time in times)
    rising = [time * (1 if ends[0] <= ends[1] else -1) for time in times if time is not None]
    assert all(y >= x - 1e-12 * abs(x) for x, y in itertools.pairwise(rising))


@given(curves(), st.integers(1, 2**40))
def test_the_interval_holds_the_estimate_and_the_fast_way_says_the_same(found: Curve, n: int) -> None:
    expected = found.expected(n)
    if expected is not None:
        assert 0 < expected.time.low <= expected.time.estimate <= expected.time.high
        assert found.seconds(n) == expected.time.estimate
        assert (expected.basis == "measured") == found.measured(n) == (n in found.sizes)


def test_a_power_of_n_is_interpolated_exactly() -> None:
    found = curve(point(n, 1e-9 * n**3) for n in (64, 256, 1024))
    assert found.seconds(700) == pytest.approx(1e-9 * 700**3)


def test_the_interval_is_as_wide_as_the_curve_bends() -> None:
    straight = curve(point(n, 1e-9 * n) for n in (64, 256, 1024, 4096)).expected(512)
    bent = curve(point(n, s) for n, s in ((64, 1e-6), (256, 1e-6), (1024, 1e-3), (4096, 1e-3))).expected(512)
    alone = curve(point(n, s) for n, s in ((256, 1e-6), (1024, 1e-3))).expected(512)
    assert straight is not None
    assert bent is not None
    assert alone is not None
    least = math.exp(2 * LEAST_SCATTER)  # single sizes lie so far off any line
    assert straight.time.high / straight.time.estimate == pytest.approx(1.25 * 1.01 * least, rel=0.01)
    for wide in (bent, alone):  # a jump anywhere in the gap is inside
        assert wide.time.low <= 1.02e-6
        assert wide.time.high >= 0.98e-3


@given(st.floats(-1.0, 3.0), st.floats(1e-9, 1.0), st.integers(101, 199))
def test_a_power_of_n_is_found_again_however_close_the_sizes_are(power: float, unit_s: float, n: int) -> None:
    found = curve(point(size, unit_s * size**power) for size in range(100, 201, 10)).seconds(n)
    assert found == pytest.approx(unit_s * n**power, rel=1e-3)


@given(st.floats(0.05, 0.4))
def test_sizes_close_by_share_a_trend_and_their_scatter_widens_the_interval(off: float) -> None:
    """Every second size is slower by `off` than its trend, the others faster."""
    sizes = range(500, 781, 10)
    found = curve(point(n, 1e-3 * math.exp(off if i % 2 else -off)) for i, n in enumerate(sizes)).expected(645)
    assert found is not None
    assert found.time.estimate == pytest.approx(1e-3, rel=0.35 * off)
    assert found.time.high / found.time.estimate > math.exp(1.8 * off)
    assert found.time.estimate / found.time.low > math.exp(1.8 * off)


def times(*, upload_s: float = 9.8e-3, **seconds: float) -> dict[str, object]:
    """Cases of one size by regime id; an allocation is part of transfer-always."""
    parts = Parts(
        session=0,
        alloc_s=[1e-4],
        upload_s=[upload_s],
        launch_s=[1e-5],
        sync_s=[1e-5],
        single_s=[1e-3],
        download_s=[1e-4],
    )
    outcomes = [
        measured(case(regime=name.replace("_", "-"), device="cupy:0"), s, parts=parts if name == "transfer_always" else None)
        for name, s in seconds.items()
    ]  # fmt: skip
    return {row.case.regime_id: row for row in case_results(run_of(outcomes))}


def seconds_of(regimes: dict[str, object], calls: int | None) -> float | None:
    found = call_time(regimes, regime_of(calls))  # type: ignore[arg-type]
    return None if found is None else found.time.estimate


def test_calls_that_were_measured_are_given_back_as_they_are() -> None:
    found = times(resident=1e-3, transfer_once=2e-3, transfer_always=11e-3)
    assert seconds_of(found, None) == pytest.approx(1e-3)
    assert seconds_of(found, 1) == pytest.approx(11e-3)
    assert seconds_of(found, 10) == pytest.approx(2e-3)
    for calls in (None, 1, 10):
        point = call_time(found, regime_of(calls))  # type: ignore[arg-type]
        assert point is not None
        assert point.measured


@pytest.mark.parametrize("calls", [2, 5, 9])
def test_fewer_calls_follow_the_line_of_the_measured_ones(calls: int) -> None:
    """T(calls) = a + b calls, with T1 less its allocation."""
    t1, tn = 11e-3 - 1e-4, 10 * 2e-3
    b = (tn - t1) / 9
    found = times(resident=1e-3, transfer_once=2e-3, transfer_always=11e-3)
    assert seconds_of(found, calls) == pytest.approx(((t1 - b) + b * calls) / calls)
    point = call_time(found, regime_of(calls))  # type: ignore[arg-type]
    assert point is not None
    assert not point.measured


def test_where_the_parts_miss_the_whole_none_of_them_is_taken_from_it() -> None:
    found = times(upload_s=1e-4, resident=1e-3, transfer_once=2e-3, transfer_always=11e-3)
    assert "transfer-mismatch" in found["transfer-always"].findings
    b = (10 * 2e-3 - 11e-3) / 9
    assert seconds_of(found, 5) == pytest.approx(((11e-3 - b) + b * 5) / 5)


def test_more_calls_come_closer_to_resident_and_never_below() -> None:
    found = times(resident=1e-3, transfer_once=2e-3, transfer_always=11e-3)
    many = [seconds_of(found, calls) for calls in (11, 100, 10**6)]
    assert many == [pytest.approx(1e-3 + 1e-3 * 10 / calls) for calls in (11, 100, 10**6)]


def test_calls_outside_of_what_was_measured_are_unknown() -> None:
    assert seconds_of(times(transfer_once=2e-3, transfer_always=11e-3), 11) is None
    assert seconds_of(times(resident=1e-3, transfer_once=2e-3), 5) is None
    assert seconds_of(times(resident=1e-3), 1) is None
    assert seconds_of(times(transfer_always=1e-3), None) is None
    assert seconds_of({}, 3) is None


@given(st.integers(2, 10**6))
def test_one_call_takes_less_the_more_calls_share_a_copy(calls: int) -> None:
    found = {"transfer-always": ALWAYS, "transfer-once-10": ONCE, "resident-queued": RESIDENT}
    more, fewer = seconds_of(found, calls + 1), seconds_of(found, calls)
    assert more is not None
    assert fewer is not None
    assert more <= fewer or math.isclose(more, fewer)


_FIXED = times(resident=1e-3, transfer_once=2e-3, transfer_always=11e-3)
RESIDENT, ONCE, ALWAYS = _FIXED["resident-queued"], _FIXED["transfer-once-10"], _FIXED["transfer-always"]
