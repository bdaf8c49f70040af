"""A number that cannot be true is reported with both numbers, and takes part in nothing that is derived."""

import csv
import functools
import io
import json

import msgspec
import pytest
from msgspec.structs import replace

from gpubench.analysis.analyse import analyse, means
from gpubench.analysis.claims import claims
from gpubench.analysis.hybrid import hybrids
from gpubench.analysis.policy import Policy
from gpubench.analysis.roofline import overheads, roofline
from gpubench.analysis.thresholds import amortizations
from gpubench.compare.two_runs import noise
from gpubench.report import draw_report
from gpubench.report.charts import chart_cases
from gpubench.result.run import Measurement, Parts
from tests.unit.report.builders import CPU, GPU, HYBRID, case, measured, run_of, split
from tests.unit.report.sides import compared

REGIMES = ("resident", "transfer-once", "transfer-always")
STEP_S = 1.1e-5  # of the clock: a sample of one launch of a millisecond is shorter than a hundred of them
TOOLS = ("gha-smaller", "gha-bigger", "bmf", "pytest-benchmark", "hyperfine", "google-benchmark", "go")
QUEUED = "resident-queued"


def whole_run():
    """Everything that a report derives something from: implementations, regimes, sizes, a split, overheads."""
    found = []
    for n in (64, 256, 1024):
        parts = Parts(session=0, alloc_s=[1e-6], upload_s=[2e-6 * n], launch_s=[1e-6], sync_s=[1e-6],
                      single_s=[1e-6 * n], download_s=[1e-6 * n])  # fmt: skip
        found.append(measured(case(n=n), 3e-8 * n**2, sessions=5))
        for regime, seconds in zip(REGIMES, (1e-6 * n, 2e-6 * n, 4e-6 * n), strict=True):
            cold_s = 1e-6 * n if regime == "resident" else None
            what = case(n=n, regime=regime, device="cupy:0")
            found.append(measured(what, seconds, sessions=5, parts=parts, cold_s=cold_s))
    hybrid = case(implementation="tuned", device="hybrid:cupy:0")
    found.append(split(hybrid, (3e-8 * 1024**2, 1e-6 * 1024), 0.8e-3, sessions=5))
    for op, n, implementation, seconds in (
        ("copy", 2**26, "library", 3e-4), ("add", 2**20, "library", 1e-5), ("allocate", 2**22, "tuned", 1e-6),
    ):  # fmt: skip
        found.append(measured(case(op, n, implementation, device="cupy:0"), seconds, sessions=5))
    return run_of(found, devices=(CPU, GPU, HYBRID), sessions=5)


WHOLE = whole_run()


def doubtful(run, case_id):
    """The run in which samples of this case are shorter than the clock can tell."""

    def spoiled(outcome):
        if outcome.id != case_id or not isinstance(outcome, Measurement):
            return outcome
        blocks = [
            replace(one, repeat=1, wall_s=[min(value, 1e-3) for value in one.wall_s]) for one in outcome.blocks
        ]
        return replace(outcome, blocks=blocks)

    workers = [replace(worker, clock_step_s=STEP_S) for worker in run.sessions[0].workers]
    sessions = [replace(session, workers=workers) for session in run.sessions]
    return replace(run, outcomes=[*map(spoiled, run.outcomes)], sessions=sessions)


def derived(analysis):
    """All that was derived from the cases, as text."""
    nouns = (means, amortizations, hybrids, claims, roofline, overheads)
    parts = (analysis.speedups, analysis.break_even, *(noun(analysis) for noun in nouns))
    return json.dumps([msgspec.to_builtins(part) for part in parts])


@functools.cache
def derived_from_whole():
    return derived(analyse(WHOLE))


@pytest.mark.parametrize("case_id", [outcome.id for outcome in WHOLE.outcomes])
def test_it_takes_part_in_nothing_that_is_derived_and_has_no_estimate(case_id):
    assert f'"{case_id}"' in derived_from_whole(), "as long as it is plausible, something is made of it"
    found = analyse(doubtful(WHOLE, case_id))
    assert f'"{case_id}"' not in derived(found)
    (row,) = [row for row in found.cases if row.label == "implausible"]
    assert (row.id, row.reason, row.time, row.rates, row.time_breakdown) == (
        case_id, "implausible", *[None] * 3,
    )  # fmt: skip
    assert "less than 100 steps of its clock (1.1e-05 s)" in row.detail
    assert case_id not in {shown.id for shown in chart_cases(found)}


@pytest.mark.parametrize("case_id", [f"matmul/n=1024/float32/library/{QUEUED}@cupy:0", WHOLE.outcomes[0].id])
def test_every_format_names_it_and_no_other_tool_gets_a_number_of_it(case_id):
    analyses = [analyse(doubtful(WHOLE, case_id))]
    assert not [format for format in TOOLS if case_id in draw_report(analyses, format)]
    row = next(
        row for row in csv.DictReader(io.StringIO(draw_report(analyses, "csv"))) if row["case_id"] == case_id
    )
    assert not [name for name, value in row.items() if value and name.endswith(("_s", "speedup", "peak"))]
    assert (row["label"], row["reason"]) == ("implausible", "implausible")
    row = next(row for row in json.loads(draw_report(analyses, "json"))["cases"] if row["id"] == case_id)
    assert (row["time"], row["label"], row["device_cold_s"], row["rates"]) == (None, "implausible", None, None)
    assert "100 steps" in row["detail"]
    events = [json.loads(line) for line in draw_report(analyses, "jsonl").splitlines()]
    (event,) = [event for event in events if event["reason"] == "case-complete" and event["id"] == case_id]
    assert (event["typical"], event["cause"], event["label"]) == (None, "implausible", "implausible")
    for format in ("plain", "markdown"):
        assert "excluded, implausible: a sample takes" in draw_report(analyses, format)


def test_the_kernel_of_a_doubtful_case_explains_no_other_one():
    always, resident = (case(regime=regime, device="cupy:0").id for regime in ("transfer-always", "resident"))
    runs = [analyse(run).cases for run in (WHOLE, doubtful(WHOLE, resident))]
    derived = [next(row.time_breakdown.kernel_derived for row in cases if row.id == always) for cases in runs]
    assert derived == [False, True]


def test_it_neither_advises_nor_is_interpolated_between_nor_splits():
    """A GPU that were twice as fast by its own word would be chosen; what remains is the CPU or an honest neighbour."""
    honest, seen = (
        Policy([run]).choose("matmul", shape=256, regime=QUEUED) for run in (WHOLE, doubtful(WHOLE, case(n=256, device="cupy:0").id))
    )  # fmt: skip
    assert (honest.device_id, honest.basis) == ("cupy:0", "measured")
    assert seen.basis in ("interpolated", "unknown")
    hybrid = case(implementation="tuned", device="hybrid:cupy:0").id
    assert [bool(hybrids(analyse(run))) for run in (WHOLE, doubtful(WHOLE, hybrid))] == [True, False]


def test_it_makes_no_threshold_and_no_row_of_a_comparison():
    small, large = case(n=64).id, case(n=256).id
    run = run_of([measured(case(n=n), 1e-3, sessions=10) for n in (64, 256)], sessions=10)
    seen = doubtful(run, small)
    assert [row.id for row in noise(run).cases] == [small, large]
    assert ([row.id for row in noise(seen).cases], noise(seen).left_out) == ([large], (small,))
    verdicts = {row.id: (row.verdict, row.reason) for row in compared(run, replace(seen, id="0" * 8)).cases}
    assert (verdicts[small], verdicts[large][0]) == (("not-comparable", "implausible"), "SAME")
