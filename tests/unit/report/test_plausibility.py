"""A number that cannot be true is reported with both numbers, and takes part in nothing that is derived."""

import csv
import io
import json

import msgspec
import pytest
from msgspec.structs import replace

from gpubench.analysis.analyse import analyse, means
from gpubench.analysis.hybrid import hybrids
from gpubench.analysis.roofline import overheads, roofline
from gpubench.analysis.thresholds import amortizations
from gpubench.report import draw_report
from gpubench.report.charts import chart_cases
from gpubench.result.run import Measurement
from tests.unit.report.samples import full_run, hybrid_run

STEP_S = 1.1e-5  # of the clock: a sample of one launch of a millisecond is shorter than a hundred of them
TOOLS = ("gha-smaller", "gha-bigger", "bmf", "pytest-benchmark", "hyperfine", "google-benchmark", "go")
QUEUED = "resident-queued@cupy:0"


def doubtful(run, case_id):
    """The run in which samples of this case are shorter than the clock can tell."""

    def spoiled(outcome):
        if outcome.id != case_id or not isinstance(outcome, Measurement):
            return outcome
        short = [[min(value, 1e-3) for value in block.wall_s] for block in outcome.blocks]
        both = zip(outcome.blocks, short, strict=True)
        return replace(outcome, blocks=[replace(block, repeat=1, wall_s=wall_s) for block, wall_s in both])

    workers = [replace(worker, clock_step_s=STEP_S) for worker in run.sessions[0].workers]
    sessions = [replace(session, workers=workers) for session in run.sessions]
    return replace(run, outcomes=[*map(spoiled, run.outcomes)], sessions=sessions)


def derived(analysis):
    """All that was derived from the cases, as text."""
    nouns = (means, amortizations, hybrids, roofline, overheads)
    parts = (analysis.speedups, analysis.break_even, *(noun(analysis) for noun in nouns))
    return json.dumps([msgspec.to_builtins(part) for part in parts])


@pytest.mark.parametrize(("make", "case_id"), [
    *((full_run, f"matmul/n=1024/float32/{name}") for name in (
        "library/resident@numpy:0", f"library/{QUEUED}", "library/transfer-once-10@cupy:0", "library/transfer-always@cupy:0")),
    (full_run, f"copy/n=67108864/float32/library/{QUEUED}"), (full_run, "allocate/n=4194304/float32/tuned/resident@cupy:0"),
    (hybrid_run, "matmul/n=1024/float32/tuned/resident-queued@hybrid:cupy:0"),
])  # fmt: skip
def test_it_takes_part_in_nothing_that_is_derived_and_has_no_estimate(make, case_id):
    assert f'"{case_id}"' in derived(analyse(make())), "as long as it is plausible, something is made of it"
    found = analyse(doubtful(make(), case_id))
    assert f'"{case_id}"' not in derived(found)
    (row,) = [row for row in found.cases if row.id == case_id]
    assert (row.label, row.reason) == ("implausible", "implausible")
    assert (row.time, row.rates, row.time_breakdown) == (None, None, None)
    assert "less than 100 steps of its clock (1.1e-05 s)" in row.detail
    assert case_id not in {shown.id for shown in chart_cases(found)}


def test_every_format_names_it_and_no_other_tool_gets_a_number_of_it():
    case_id = f"matmul/n=1024/float32/library/{QUEUED}"
    analyses = [analyse(doubtful(full_run(), case_id))]
    assert not [format for format in TOOLS if case_id in draw_report(analyses, format)]
    table = csv.DictReader(io.StringIO(draw_report(analyses, "csv")))
    row = next(row for row in table if row["case_id"] == case_id)
    assert not [name for name, value in row.items() if value and name.endswith(("_s", "speedup", "peak"))]
    assert (row["label"], row["reason"]) == ("implausible", "implausible")
    row = next(row for row in json.loads(draw_report(analyses, "json"))["cases"] if row["id"] == case_id)
    assert (row["time"], row["label"], row["device_cold_s"], row["rates"]) == (None, "implausible", None, None)
    assert "excluded, implausible: a sample takes" in draw_report(analyses, "plain")
