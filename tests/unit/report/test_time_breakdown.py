"""The parts of a GPU call add up to the whole, and say so when they do not."""

from __future__ import annotations

import json

import msgspec
import pytest

from gpubench.analysis.analyse import analyse
from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.findings import find_waiting
from gpubench.report import render
from gpubench.report.sections.time_breakdown import rest_text
from gpubench.result.run import Parts
from tests.unit.report.builders import case, measured, run_of

PARTS = Parts(
    session=0, compile_s=0.3, first_launch_s=2e-3, alloc_s=[1e-5], upload_s=[4e-4, 4e-4, 9.0], launch_s=[1e-5],
    sync_s=[2e-5], single_s=[1.3e-4], download_s=[2e-4],
)  # fmt: skip
SUM_S = 1e-5 + 4e-4 + 1e-5 + 1e-4 + 2e-5 + 2e-4  # with a kernel of 1e-4


def always(seconds: float, **more: object) -> CaseResult:
    what = case(regime="transfer-always", device="cupy:0")
    return analyse(run_of([measured(what, seconds, parts=PARTS, **more)])).cases[0]  # type: ignore[arg-type]


def test_the_residual_is_zero_when_the_parts_are_the_whole():
    found = always(SUM_S, cold_s=1e-4).time_breakdown
    assert found is not None
    assert found.residual_s == pytest.approx(0, abs=1e-9)
    assert not found.mismatch
    assert not found.kernel_derived


def test_the_parts_and_the_residual_add_up_always():
    for seconds in (1e-4, 5e-4, 2e-3):
        found = always(seconds, cold_s=1e-4).time_breakdown
        assert found is not None
        parts = (found.alloc_s, found.upload_s, found.launch_s, found.kernel_s, found.sync_s, found.download_s)
        assert sum(parts) + found.residual_s == pytest.approx(found.whole_s)


def test_a_residual_above_ten_percent_is_a_finding_in_both_directions():
    assert "transfer-mismatch" in always(SUM_S * 1.3, cold_s=1e-4).findings
    assert "transfer-mismatch" in always(SUM_S * 0.7, cold_s=1e-4).findings
    assert "transfer-mismatch" not in always(SUM_S * 1.05, cold_s=1e-4).findings


def test_without_a_device_clock_the_kernel_is_derived():
    found = always(SUM_S).time_breakdown
    assert found is not None
    assert found.kernel_derived
    assert found.kernel_s == pytest.approx(1.3e-4 - 1e-5 - 2e-5)


def test_the_kernel_time_may_stand_in_the_resident_case():
    always_case = case(regime="transfer-always", device="cupy:0")
    run = run_of([
        measured(always_case, SUM_S, parts=PARTS), measured(case(device="cupy:0"), 1.2e-4, cold_s=1e-4),
    ])  # fmt: skip
    found = next(row.time_breakdown for row in analyse(run).cases if row.id == always_case.id)
    assert found is not None
    assert (found.kernel_s, found.kernel_derived) == (pytest.approx(1e-4), False)


def test_the_first_result_pays_for_everything_once():
    found = always(SUM_S, cold_s=1e-4).time_breakdown
    assert found is not None
    assert found.first_result_s == pytest.approx(0.2 + 0.3 + 2e-3 + 1e-5 + 4e-4 + 2e-4)


def test_nothing_is_predicted_from_parts_that_miss_the_whole():
    assert always(SUM_S * 1.05, cold_s=1e-4).time_breakdown.first_result_s is not None
    assert always(SUM_S * 1.3, cold_s=1e-4).time_breakdown.first_result_s is None


def test_a_small_residual_of_a_short_call_is_no_finding():
    """15 % of 100 us are within what two fences take."""
    short = msgspec.structs.replace(
        PARTS, alloc_s=[1e-6], upload_s=[3e-5], launch_s=[1e-5], sync_s=[2e-6], download_s=[3e-5]
    )
    what = case(regime="transfer-always", device="cupy:0")
    found = analyse(run_of([measured(what, 1e-4, parts=short, cold_s=1.2e-5)])).cases[0]
    assert found.time_breakdown is not None
    assert found.time_breakdown.residual_share == pytest.approx(0.15)
    assert "transfer-mismatch" not in found.findings


@pytest.mark.parametrize(("factor", "text"), [(1.3, "+23%"), (1.0, "0%"), (0.7, "-43%"), (1.00001, "0%")])
def test_the_rest_is_shown_with_its_sign(factor, text):
    found = always(SUM_S * factor, cold_s=1e-4).time_breakdown
    assert found is not None
    assert rest_text(found) == text


def test_missing_parts_give_no_time_breakdown():
    what = case(regime="transfer-always", device="cupy:0")
    bare = Parts(session=0, upload_s=[1e-3])
    assert analyse(run_of([measured(what, 1e-3, parts=bare)])).cases[0].time_breakdown is None
    assert analyse(run_of([measured(case(device="cupy:0"), 1e-3, parts=PARTS)])).cases[0].time_breakdown is None


def test_one_launch_that_is_waited_for_stands_beside_the_wall_time_of_many():
    """The middle of the used sessions; where the data travels every call is waited for anyway."""
    what = case(device="cupy:0")
    resident = measured(what, 1e-4, parts=PARTS)
    sessions = [
        msgspec.structs.replace(PARTS, session=i, single_s=[s]) for i, s in enumerate((3e-4, 1.3e-4, 1e-4))
    ]
    resident = msgspec.structs.replace(resident, parts=sessions)
    always_case = case(regime="transfer-always", device="cupy:0")
    run = run_of([measured(case(), 1e-3), resident, measured(always_case, SUM_S, parts=PARTS)])
    found = {row.id: row.single_s for row in analyse(run).cases}
    assert found == {case().id: None, what.id: pytest.approx(1.3e-4), always_case.id: None}
    (row,) = [row for row in json.loads(render([run], "json"))["cases"] if row["id"] == what.id]
    assert row["single_s"] == pytest.approx(1.3e-4)


def test_markdown_tells_when_the_first_result_is_there():
    always_case = case(regime="transfer-always", device="cupy:0")
    run = run_of([measured(case(), 1e-3), measured(always_case, SUM_S, cold_s=1e-4, parts=PARTS)])
    text = render([run], "markdown", sections=["breakdown"])
    # open 200 ms, compile 300 ms, first launch 2 ms, memory and copies 0.61 ms
    assert "| first result |" in text
    assert "503 ms |" in text
    mismatch = run_of([measured(case(), 1e-3), measured(always_case, 2 * SUM_S, cold_s=1e-4, parts=PARTS)])
    assert "first result" not in render([mismatch], "markdown", sections=["breakdown"])


def waiting(launches: dict[int, float], single_s: float) -> list[str]:
    rows = []
    for n, launch_s in launches.items():
        what = case("mine.f", n=n, regime="transfer-always", device="cupy:0")
        what = msgspec.structs.replace(what, group="function")
        parts = msgspec.structs.replace(PARTS, launch_s=[launch_s], single_s=[single_s])
        rows.append(measured(what, 5e-3, parts=parts))
    return find_waiting(run_of(rows))


def test_a_call_that_waits_by_itself_is_told_by_its_time():
    assert len(waiting({1000: 1e-5, 10**6: 9.5e-4}, 1e-3)) == 1
    assert waiting({1000: 1e-5, 10**6: 1e-5}, 1e-3) == []
    assert waiting({1000: 9.0e-4, 10**6: 9.5e-4}, 1e-3) == []  # many launches, whatever the size
