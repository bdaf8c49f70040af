"""The parts of a GPU call add up to the whole, and say so when they do not."""

import json

import pytest
from msgspec.structs import replace

from gpubench.analysis.analyse import analyse
from gpubench.analysis.findings import find_waiting
from gpubench.report import render
from gpubench.report.sections.time_breakdown import rest_text
from tests.unit.report.builders import case, measured, run_of
from tests.unit.report.parts import CALL, SUM_S

ALWAYS = case(regime="transfer-always", device="cupy:0")


def always(seconds, parts=CALL, **more):
    return analyse(run_of([measured(ALWAYS, seconds, parts=parts, **more)])).cases[0]


@pytest.mark.parametrize(
    ("factor", "mismatch", "text"),
    [(1.0, False, "0%"), (1.00001, False, "0%"), (1.05, False, "+4.8%"), (1.3, True, "+23%"), (0.7, True, "-43%")],
)  # fmt: skip
def test_a_residual_above_ten_percent_is_a_finding_in_both_directions(factor, mismatch, text):
    """Of parts that miss the whole nothing is predicted."""
    row = always(SUM_S * factor, cold_s=1e-4)
    found = row.time_breakdown
    differs = ("transfer-mismatch" in row.findings, found.mismatch)
    assert (differs, found.kernel_derived) == ((mismatch, mismatch), False)
    first_s = 0.2 + 0.3 + 2e-3 + 1e-5 + 4e-4 + 2e-4  # pays for everything once
    assert found.first_result_s == (None if mismatch else pytest.approx(first_s))
    assert rest_text(found) == text
    parts = (found.alloc_s, found.upload_s, found.launch_s, found.kernel_s, found.sync_s, found.download_s)
    assert sum(parts) + found.residual_s == pytest.approx(found.whole_s) == pytest.approx(SUM_S * factor)
    assert found.residual_s == pytest.approx(SUM_S * (factor - 1), abs=1e-9)


def test_the_kernel_time_may_stand_in_the_resident_case():
    rows = [measured(ALWAYS, SUM_S, parts=CALL), measured(case(device="cupy:0"), 1.2e-4, cold_s=1e-4)]
    found = next(row.time_breakdown for row in analyse(run_of(rows)).cases if row.id == ALWAYS.id)
    assert (found.kernel_s, found.kernel_derived) == (pytest.approx(1e-4), False)


def test_parts_of_superseded_sessions_do_not_count():
    """Where no session is known, all parts do."""
    late = replace(measured(ALWAYS, SUM_S, cold_s=1e-4), parts=[CALL, replace(CALL, session=1, alloc_s=[3e-5])])
    run = run_of([late])
    again = replace(run, sessions=[replace(one, superseded=one.index == 1) for one in run.sessions])
    runs = (run, again, replace(run, sessions=[]))
    shown = [analyse(run).cases[0].time_breakdown.alloc_s for run in runs]
    assert shown == pytest.approx([2e-5, 1e-5, 2e-5])


@pytest.mark.parametrize(
    ("result_s", "kernel_s", "download_s"), [(3.5e-4, 1e-4, 2.3e-4), (5e-5, 5e-5, 0.0), (1.1e-4, 1e-4, 0.0)]
)
def test_a_fetch_that_waits_for_the_kernel_is_less_the_kernel_and_the_wait(result_s, kernel_s, download_s):
    found = always(SUM_S, cold_s=1e-4, parts=replace(CALL, result_s=[result_s])).time_breakdown
    assert (found.kernel_s, found.download_s) == pytest.approx((kernel_s, download_s))
    unheard = always(SUM_S, cold_s=1e-4, parts=replace(CALL, result_s=[result_s], sync_s=[]))
    assert unheard.time_breakdown is None


def test_one_launch_that_is_waited_for_stands_beside_the_wall_time_of_many():
    """The middle of the used sessions; where the data travels every call is waited for anyway."""
    what = case(device="cupy:0")
    sessions = [replace(CALL, session=i, single_s=[s]) for i, s in enumerate((3e-4, 1.3e-4, 1e-4))]
    resident = replace(measured(what, 1e-4), parts=sessions)
    run = run_of([measured(case(), 1e-3), resident, measured(ALWAYS, SUM_S, parts=CALL)])
    found = {row.id: row.single_s for row in analyse(run).cases}
    assert found == {case().id: None, what.id: pytest.approx(1.3e-4), ALWAYS.id: None}
    document = json.loads(render([run], "json"))
    assert {row["id"]: row["single_s"] for row in document["cases"]} == found


@pytest.mark.parametrize(
    ("small_s", "large_s", "waits"),
    [(1e-5, 9.5e-4, 1), (1e-5, 1e-5, 0), (9.0e-4, 9.5e-4, 0)],  # the last: many launches, whatever the size
)
def test_a_call_that_waits_by_itself_is_told_by_its_time(small_s, large_s, waits):
    rows = []
    for n, launch_s in ((1000, small_s), (10**6, large_s)):
        what = replace(case("mine.f", n=n, regime="transfer-always", device="cupy:0"), group="function")
        rows.append(measured(what, 5e-3, parts=replace(CALL, launch_s=[launch_s], single_s=[1e-3])))
    assert len(find_waiting(run_of(rows))) == waits
