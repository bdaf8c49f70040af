"""What a contender's call takes: as measured, between sizes by its curve, between numbers of calls by a line, beyond
what was measured nothing."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.analysis.contenders import call_time, case_groups, contenders
from gpubench.analysis.estimate import case_results
from gpubench.result.run import Parts
from tests.unit.report.builders import case, measured, regime_of, run_of


def contender(seconds):
    """A CPU with these times by size."""
    (group,) = case_groups(run_of([measured(case(n=n), s) for n, s in seconds.items()])).values()
    (found,) = contenders(group, "resident-waited")
    return found


TIMES = st.dictionaries(st.integers(1, 2**40), st.floats(1e-7, 1e3), min_size=1, max_size=6)


@given(TIMES, st.integers(1, 2**40))
def test_nothing_is_told_outside_the_measured_sizes(seconds, n):
    found = contender(seconds)
    inside = min(seconds) <= n <= max(seconds)
    assert (found.seconds(n) is not None) == (found.expect(n) is not None) == inside


@given(TIMES)
def test_measured_sizes_are_given_back_as_they_are(seconds):
    found = contender(seconds)
    assert (found.first, found.last) == (min(seconds), max(seconds))
    for n, point in found.points.items():
        expected = found.expect(n)
        assert (expected.time, expected.basis, expected.between) == (point.time, "measured", (n, n))
        assert found.seconds(n) == point.time.estimate
        assert found.is_timed_at(n)


@given(TIMES, st.integers(1, 2**40))
def test_the_interval_holds_the_estimate_and_the_fast_way_says_the_same(seconds, n):
    found = contender(seconds)
    expected = found.expect(n)
    if expected is not None:
        assert 0 < expected.time.low <= expected.time.estimate <= expected.time.high
        assert found.seconds(n) == pytest.approx(expected.time.estimate, rel=1e-9)
        assert (expected.basis == "measured") == found.is_timed_at(n) == (n in seconds)
        low, high = expected.between
        assert low <= n <= high


@given(st.floats(0.1, 1.0), st.floats(1e-9, 1e-3))
def test_a_power_of_n_is_found_again_between_sizes(power, unit_s):
    found = contender({4**i: unit_s * 4 ** (i * power) for i in range(4, 12)})
    for n in (300, 5000, 100_000, 3_000_000):
        assert found.seconds(n) == pytest.approx(unit_s * n**power, rel=0.05)


def test_the_interval_is_wider_far_from_the_sizes_and_holds_a_step_anywhere_in_its_gap():
    straight = contender({4**i: 1e-9 * 4**i for i in (4, 5, 6, 7, 12)})
    near, far = straight.expect(2000), straight.expect(4**9)
    bent = contender({64: 1e-6, 256: 1e-6, 1024: 1e-3, 4096: 1e-3}).expect(512)
    assert far.time.high / far.time.low > 1.2 * near.time.high / near.time.low
    assert bent.time.low <= 1.02e-6
    assert bent.time.high >= 0.98e-3


def times(*, upload_s=9.8e-3, **seconds):
    """Cases of one size by regime id; an allocation is part of transfer-always."""
    parts = Parts(
        session=0, alloc_s=[1e-4], upload_s=[upload_s], launch_s=[1e-5], sync_s=[1e-5], single_s=[1e-3],
        download_s=[1e-4],
    )  # fmt: skip
    outcomes = [
        measured(case(regime=name.replace("_", "-"), device="cupy:0"), s, parts=parts if name == "transfer_always" else None)
        for name, s in seconds.items()
    ]  # fmt: skip
    return {row.case.regime_id: row for row in case_results(run_of(outcomes))}


def seconds_of(regimes, calls):
    found = call_time(regimes, regime_of(calls))  # type: ignore[arg-type]
    return None if found is None else found.time.estimate


def test_calls_that_were_measured_are_given_back_as_they_are():
    found = times(resident=1e-3, transfer_once=2e-3, transfer_always=11e-3)
    assert (seconds_of(found, None), seconds_of(found, 1)) == (pytest.approx(1e-3), pytest.approx(11e-3))
    assert seconds_of(found, 10) == pytest.approx(2e-3)
    for calls in (None, 1, 10):
        point = call_time(found, regime_of(calls))  # type: ignore[arg-type]
        assert point.measured


@pytest.mark.parametrize("resident", [1e-3, 3e-3])
@pytest.mark.parametrize("calls", [2, 5, 9])
def test_fewer_calls_follow_the_line_of_the_measured_ones(calls, resident):
    """T(calls) = a + b calls, with T1 less its allocation, whatever a call on data that stays takes."""
    t1, tn = 11e-3 - 1e-4, 10 * 2e-3
    b = (tn - t1) / 9
    found = times(resident=resident, transfer_once=2e-3, transfer_always=11e-3)
    assert seconds_of(found, calls) == pytest.approx(((t1 - b) + b * calls) / calls)
    point = call_time(found, regime_of(calls))  # type: ignore[arg-type]
    assert not point.measured


def test_where_the_parts_miss_the_whole_none_of_them_is_taken_from_it():
    found = times(upload_s=1e-4, resident=1e-3, transfer_once=2e-3, transfer_always=11e-3)
    assert "transfer-mismatch" in found["transfer-always"].findings
    b = (10 * 2e-3 - 11e-3) / 9
    assert seconds_of(found, 5) == pytest.approx(((11e-3 - b) + b * 5) / 5)


def test_more_calls_come_closer_to_resident_and_never_below():
    found = times(resident=1e-3, transfer_once=2e-3, transfer_always=11e-3)
    many = [seconds_of(found, calls) for calls in (11, 100, 10**6)]
    assert many == [pytest.approx(1e-3 + 1e-3 * 10 / calls) for calls in (11, 100, 10**6)]


def test_calls_outside_of_what_was_measured_are_unknown():
    assert seconds_of(times(transfer_once=2e-3, transfer_always=11e-3), 11) is None
    assert seconds_of(times(resident=1e-3, transfer_once=2e-3), 5) is None
    assert seconds_of(times(resident=1e-3), 1) is None
    assert seconds_of(times(transfer_always=1e-3), None) is None
    assert seconds_of({}, 3) is None


@given(st.integers(2, 10**6))
def test_one_call_takes_less_the_more_calls_share_a_copy(calls):
    found = {"transfer-always": ALWAYS, "transfer-once-10": ONCE, "resident-queued": RESIDENT}
    more, fewer = seconds_of(found, calls + 1), seconds_of(found, calls)
    assert more is not None
    assert fewer is not None
    assert more <= fewer or math.isclose(more, fewer)


_FIXED = times(resident=1e-3, transfer_once=2e-3, transfer_always=11e-3)
RESIDENT, ONCE, ALWAYS = _FIXED["resident-queued"], _FIXED["transfer-once-10"], _FIXED["transfer-always"]
