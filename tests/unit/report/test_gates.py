"""Gates of `report` and `run`: least speedups, and runs that are noisy, skip cases or end early."""

import json

import pytest

from gpubench.analysis import findings
from gpubench.analysis.findings import has_failures
from gpubench.base.errors import UsageError
from gpubench.cli import ci
from gpubench.report import analyse_runs, draw_report
from tests.unit.report.builders import CPU, case, curve, failed, measured, planned, run_of, skipped

WIDE = (0.5, 2.0, 0.6, 1.9, 0.7, 1.4, 1.0, 1.0, 0.9, 1.1)


def gates(outcomes, *min_speedups, fail_on=None, **kind):
    (analysis,) = analyse_runs([run_of(outcomes, **kind)], gates=ci.parse_gates(min_speedups, fail_on))
    return findings.gates(analysis)


def gpu(n, **what):
    return case(n=n, device="cupy:0", **what)


SMALL = gpu(64).id
CPU_64, GPU_64 = measured(case(n=64), 1e-3), measured(gpu(64), 1e-4)


@pytest.mark.parametrize(
    ("outcomes", "low", "near", "missing"),
    [
        (curve({64: 0.5, 256: 4.0}), (SMALL,), (), ()), (curve({64: 2.5, 256: 4.0}), (), (), ()),
        (curve({256: 2.0}, sessions=3), (), (gpu(256).id,), ()),  # its interval holds 2
        *(([CPU_64, lost(gpu(64))], (), (), (SMALL,)) for lost in (skipped, failed, planned)),
        ([skipped(case(n=64)), GPU_64], (), (), (SMALL,)),  # without a baseline there is no speedup
        # Cases of the CPU and named variants are not asked; every implementation that is selected is.
        ([CPU_64, GPU_64, measured(gpu(64, implementation="tuned", variant="naive"), 1.0)], (), (), ()),
        ([CPU_64, measured(gpu(64), 0.9e-3), measured(gpu(64, implementation="tuned"), 1e-4)], (SMALL,), (), ()),
    ],
)  # fmt: skip
def test_the_whole_interval_has_to_lie_below_what_is_asked(outcomes, low, near, missing):
    (gate,) = gates(outcomes, "matmul=2")
    assert (gate.low, gate.near, gate.missing, gate.passed) == (low, near, missing, not low and not missing)
    assert gates(outcomes, "matmul=2x")[0].passed == gate.passed


def test_fail_on():
    noisy = measured(gpu(64), 1e-4, factors=WIDE)
    rows = [CPU_64, noisy, skipped(gpu(128)), planned(gpu(256))]
    found = gates(rows, fail_on="incomplete, noisy,skipped", complete=False, exit_reason="interrupted")
    told = [(gate.name, gate.low) for gate in found]
    assert told == [("noisy", (noisy.id,)), ("skipped", (gpu(128).id,)), ("incomplete", (gpu(256).id,))]
    assert found[2].reason == "the run ended early (interrupted)"
    assert all(gate.passed for gate in gates(curve({64: 2.0}), fail_on="noisy,skipped,incomplete"))
    assert not gates(curve({64: 2.0}), fail_on="incomplete", exit_reason="budget")[0].passed
    assert gates([CPU_64], fail_on="noisy", devices=[CPU])[0].passed, "a CPU alone has nothing to ask"


@pytest.mark.parametrize(
    "text", ["", "=", "matmul", "matmul=", "matmul=x", "matmul=0", "matmul=-1", "matmul=inf", "matmul=nan", "/=2", "a//b=2"]
)  # fmt: skip
def test_what_is_no_gate_is_refused(text):
    with pytest.raises(UsageError, match="--min-speedup"):
        ci.parse_gates([text], None)


def test_every_format_says_how_the_gates_ended():
    rows = [*curve({64: 0.5, 256: 4.0}), skipped(gpu(512))]
    found = analyse_runs([run_of(rows)], gates=ci.parse_gates(["matmul/n<=256=2", "matmul/n=256=3"], "skipped"))
    assert has_failures(found)
    document = json.loads(draw_report(found, "json"))
    assert (document["exit_code"], document["exit_reason"]) == (3, "gate")
    assert [(row["name"], row["selector"], row["least"], row["passed"]) for row in document["gates"]] == [
        ("min-speedup", "matmul/n<=256=2", 2.0, False), ("min-speedup", "matmul/n=256=3", 3.0, True),
        ("skipped", None, None, False),
    ]  # fmt: skip
    quiet = json.loads(draw_report(analyse_runs([run_of(rows)]), "json"))
    assert (quiet["gates"], quiet["exit_code"], quiet["exit_reason"]) == ([], 0, "ok")
