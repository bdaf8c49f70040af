"""What a contender's call takes: as measured, between sizes by its curve, between numbers of calls by a line, beyond
what was measured nothing."""

import pytest
from msgspec.structs import replace

from gpubench.analysis.contenders import call_time, case_groups, contenders
from gpubench.analysis.estimate import case_results, time_breakdown
from gpubench.result.run import Parts
from tests.unit.report.builders import case, measured, regime_of, run_of


def contender(seconds):
    """A CPU with these times by size."""
    (group,) = case_groups(run_of([measured(case(n=n), s) for n, s in seconds.items()])).values()
    (found,) = contenders(group, "resident-waited")
    return found


@pytest.mark.parametrize("n", [255, 256, 300, 5000, 4**11, 3_000_000, 4**11 + 1])
def test_a_time_is_that_of_its_size_between_sizes_that_of_its_curve_and_beyond_them_none(n):
    found = contender({4**i: 1e-6 * 4 ** (i * 0.6) for i in range(4, 12)})
    expected = found.expect(n)
    assert (found.first, found.last, found.is_timed_at(n)) == (256, 4**11, n in (256, 4**11))
    assert (expected is None) == (found.seconds(n) is None) == (not 256 <= n <= 4**11)
    if expected is not None:
        assert found.seconds(n) == expected.time.estimate == pytest.approx(1e-6 * n**0.6, rel=0.05)
        assert expected.time.low <= expected.time.estimate <= expected.time.high
        assert (expected.basis == "measured") == (expected.between == (n, n)) == found.is_timed_at(n)
        assert expected.between[0] <= n <= expected.between[1]


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
        session=0, alloc_s=[1e-4], upload_s=[upload_s], launch_s=[1e-5], sync_s=[1e-5], download_s=[1e-4]
    )
    split = {"transfer_always": replace(parts, single_s=[1e-3])}
    cases = {name: case(regime=name.replace("_", "-"), device="cupy:0") for name in seconds}
    outcomes = [measured(cases[name], s, parts=split.get(name)) for name, s in seconds.items()]
    return {row.case.regime_id: row for row in case_results(run_of(outcomes))}


ALL = {"resident": 1e-3, "transfer_once": 2e-3, "transfer_always": 11e-3}


@pytest.mark.parametrize(("regimes", "calls", "expected"), [
    (ALL, None, 1e-3), (ALL, 1, 11e-3), (ALL, 10, 2e-3), (("transfer_once", "transfer_always"), 11, None),
    (("resident", "transfer_once"), 5, None), (("resident",), 1, None), (("transfer_always",), None, None), ((), 3, None),
])  # fmt: skip
def test_calls_that_were_measured_are_given_back_as_they_are_and_those_outside_are_unknown(
    regimes, calls, expected
):
    point = call_time(times(**{name: ALL[name] for name in regimes}), regime_of(calls))
    assert (point is None) == (expected is None)
    assert point is None or (point.time.estimate, point.measured) == (pytest.approx(expected), True)


@pytest.mark.parametrize("resident", [1e-3, 3e-3])
@pytest.mark.parametrize("calls", [2, 5, 9])
def test_fewer_calls_follow_the_line_of_the_measured_ones(calls, resident):
    """T(calls) = a + b calls, with T1 less its allocation, whatever a call on data that stays takes."""
    t1, tn = 11e-3 - 1e-4, 10 * 2e-3
    b = (tn - t1) / 9
    point = call_time(times(**ALL | {"resident": resident}), regime_of(calls))
    assert (point.time.estimate, point.measured) == (pytest.approx(((t1 - b) + b * calls) / calls), False)


def test_where_the_parts_miss_the_whole_none_of_them_is_taken_from_it():
    # Of 11 ms 8, 12 and 88 % are missing.
    for upload_s, misses in ((8.92e-3, False), (8.48e-3, True), (1e-4, True)):
        found = times(upload_s=upload_s, **ALL)
        assert ("transfer-mismatch" in found["transfer-always"].findings) == misses
    b = (10 * 2e-3 - 11e-3) / 9
    assert call_time(found, regime_of(5)).time.estimate == pytest.approx(((11e-3 - b) + b * 5) / 5)


@pytest.mark.parametrize(("single_s", "misses"), [(2.0, False), (1.99, True)])
def test_a_tenth_of_the_whole_may_be_missing_and_no_more(single_s, misses):
    """Of 10 s the parts without the kernel, which takes 1 s less than the single call, take 8 s."""
    parts = Parts(session=0, alloc_s=[1.0], upload_s=[5.0], launch_s=[0.5], sync_s=[0.5], download_s=[1.0])
    parts = replace(parts, single_s=[single_s])
    what = measured(case(regime="transfer-always", device="cupy:0"), 10.0, parts=parts)
    assert time_breakdown(run_of([what]), what, 10.0, None, {}).mismatch == misses
