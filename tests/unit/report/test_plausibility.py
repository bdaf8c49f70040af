"""A number that cannot be true is reported with both numbers, and takes part in nothing that is derived."""

import csv
import io
import json

import msgspec
import pytest
from msgspec.structs import replace

from gpubench.analysis.analyse import Analysis, analyse, means
from gpubench.analysis.claims import claims
from gpubench.analysis.hybrid import hybrids
from gpubench.analysis.policy import Policy
from gpubench.analysis.roofline import overheads, roofline
from gpubench.analysis.thresholds import amortizations
from gpubench.compare.comparison import CompareOptions
from gpubench.compare.noise import noise
from gpubench.compare.two_runs import compare
from gpubench.report import render
from gpubench.report.charts import chart_cases
from gpubench.result.run import Measurement, Parts, Run
from tests.unit.report.builders import CPU, GPU, HYBRID, case, measured, run_of, split

SIZES = (64, 256, 1024)
REGIMES = ("resident", "transfer-once", "transfer-always")
STEP_S = 1.1e-5  # of the clock: a sample of one launch of a millisecond is shorter than a hundred of them
TOOLS = ("gha-smaller", "gha-bigger", "bmf", "pytest-benchmark", "hyperfine", "google-benchmark", "go")


def whole_run() -> Run:
    """Everything that a report derives something from: implementations, regimes, sizes, a split, overheads."""
    found = []
    for n in SIZES:
        seconds = dict(zip(REGIMES, (1e-6 * n, 2e-6 * n, 4e-6 * n), strict=True))
        parts = Parts(session=0, alloc_s=[1e-6], upload_s=[2e-6 * n], launch_s=[1e-6], sync_s=[1e-6],
                      single_s=[1e-6 * n], download_s=[1e-6 * n])  # fmt: skip
        found += [
            measured(case(n=n), 3e-8 * n**2, sessions=5),
            *(
                measured(case(n=n, regime=regime, device="cupy:0"), seconds[regime], sessions=5, parts=parts,
                         cold_s=1e-6 * n if regime == "resident" else None)
                for regime in REGIMES
            ),
        ]  # fmt: skip
    alone = (3e-8 * 1024**2, 1e-6 * 1024)
    found.append(split(case(implementation="tuned", device="hybrid:cupy:0"), alone, 0.8e-3, sessions=5))
    found += [measured(case("copy", 2**26, device="cupy:0"), 3e-4, sessions=5)]
    found += [measured(case("add", 2**20, device="cupy:0"), 1e-5, sessions=5)]
    found += [measured(case("allocate", 2**22, "tuned", device="cupy:0"), 1e-6, sessions=5)]
    return run_of(found, devices=(CPU, GPU, HYBRID), sessions=5)


WHOLE = whole_run()


def doubtful(run: Run, case_id: str) -> Run:
    """The run in which samples of this case are shorter than the clock can tell."""
    outcomes = [
        replace(outcome, blocks=[one_launch(block) for block in outcome.blocks])
        if outcome.id == case_id and isinstance(outcome, Measurement)
        else outcome
        for outcome in run.outcomes
    ]
    workers = [replace(worker, clock_step_s=STEP_S) for worker in run.sessions[0].workers]
    sessions = [replace(session, workers=workers) for session in run.sessions]
    return replace(run, outcomes=outcomes, sessions=sessions)


def one_launch(block):
    return replace(block, repeat=1, wall_s=[min(value, 1e-3) for value in block.wall_s])


def derived(analysis: Analysis) -> str:
    """All that was derived from the cases, as text."""
    nouns = (means, amortizations, hybrids, claims, roofline, overheads)
    parts = (analysis.speedups, analysis.break_even, *(noun(analysis) for noun in nouns))
    return json.dumps([msgspec.to_builtins(part) for part in parts])


@pytest.mark.parametrize("case_id", [outcome.id for outcome in WHOLE.outcomes])
def test_it_takes_part_in_nothing_that_is_derived_and_has_no_estimate(case_id):
    assert f'"{case_id}"' in derived(analyse(WHOLE)), "as long as it is plausible, something is made of it"
    run = doubtful(WHOLE, case_id)
    found = analyse(run)
    assert f'"{case_id}"' not in derived(found)
    (row,) = [row for row in found.cases if row.label == "implausible"]
    assert (row.id, row.reason, row.time, row.rates, row.time_breakdown) == (
        case_id,
        "implausible",
        None,
        None,
        None,
    )
    assert "less than 100 steps of its clock (1.1e-05 s)" in row.detail
    assert case_id not in {shown.id for shown in chart_cases(found)}


@pytest.mark.parametrize(
    "case_id", ["matmul/n=1024/float32/library/resident-queued@cupy:0", WHOLE.outcomes[0].id]
)
def test_every_format_names_it_and_no_other_tool_gets_a_number_of_it(case_id):
    run = doubtful(WHOLE, case_id)
    for format in TOOLS:
        assert case_id not in render([run], format)
    rows = {row["case_id"]: row for row in csv.DictReader(io.StringIO(render([run], "csv")))}
    reported = {
        name: value
        for name, value in rows[case_id].items()
        if value and name.endswith(("_s", "speedup", "peak"))
    }
    assert reported == {}
    assert (rows[case_id]["label"], rows[case_id]["reason"]) == ("implausible", "implausible")
    (row,) = [row for row in json.loads(render([run], "json"))["cases"] if row["id"] == case_id]
    assert (row["time"], row["label"], row["device_cold_s"], row["rates"]) == (None, "implausible", None, None)
    assert "100 steps" in row["detail"]
    events = [json.loads(line) for line in render([run], "jsonl").splitlines()]
    (event,) = [event for event in events if event["reason"] == "case-complete" and event["id"] == case_id]
    assert (event["typical"], event["cause"], event["label"]) == (None, "implausible", "implausible")
    for format in ("plain", "markdown"):
        assert "excluded, implausible: a sample takes" in render([run], format)


def test_without_a_gpu_it_is_left_out_of_the_table_of_the_cpu_too():
    run = run_of(
        [measured(case(n=64), 1e-3), measured(case(n=64, implementation="tuned"), 0.77e-3)], devices=(CPU,)
    )
    before, after = (
        render([one], "plain") for one in (run, doubtful(run, case(n=64, implementation="tuned").id))
    )
    tables = [
        text.partition("library and tuned implementation")[2].partition("\n\n")[0] for text in (before, after)
    ]
    assert "77" in tables[0]
    assert "77" not in tables[1]


def test_the_kernel_of_a_doubtful_case_explains_no_other_one():
    always, resident = (case(regime=regime, device="cupy:0").id for regime in ("transfer-always", "resident"))
    kernels = [
        next(row.time_breakdown for row in analyse(run).cases if row.id == always)
        for run in (WHOLE, doubtful(WHOLE, resident))
    ]
    assert not kernels[0].kernel_derived
    assert kernels[1].kernel_derived


def test_it_neither_advises_nor_is_interpolated_between_nor_splits():
    """A GPU that were twice as fast by its own word would be chosen; what remains is the CPU or an honest neighbour."""
    gpu = case(n=256, device="cupy:0").id
    honest, seen = Policy([WHOLE]), Policy([doubtful(WHOLE, gpu)])
    assert honest.choose("matmul", shape=256, regime="resident-queued").device_id == "cupy:0"
    assert honest.choose("matmul", shape=256, regime="resident-queued").basis == "measured"
    between = seen.choose("matmul", shape=256, regime="resident-queued")
    assert between.basis in ("interpolated", "unknown")
    hybrid = case(implementation="tuned", device="hybrid:cupy:0").id
    assert hybrids(analyse(WHOLE))
    assert not hybrids(analyse(doubtful(WHOLE, hybrid)))


def test_it_makes_no_threshold_and_no_row_of_a_comparison():
    run = run_of([measured(case(n=n), 1e-3, sessions=10) for n in (64, 256)], sessions=10)
    seen = doubtful(run, case(n=64).id)
    assert [row.id for row in noise(run).cases] == [case(n=64).id, case(n=256).id]
    assert [row.id for row in noise(seen).cases] == [case(n=256).id]
    assert noise(seen).left_out == (case(n=64).id,)
    found = compare(("base", run), [("new", replace(seen, id="0" * 8))], CompareOptions())
    verdicts = {row.id: (row.verdict, row.reason) for row in found.cases}
    assert verdicts[case(n=64).id] == ("not-comparable", "implausible")
    assert verdicts[case(n=256).id][0] == "SAME"
