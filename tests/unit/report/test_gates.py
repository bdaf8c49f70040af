"""Gates of `report` and `run`: least speedups, and runs that are noisy, skip cases or end early."""

from __future__ import annotations

import json

import msgspec
import pytest

from gpubench.analysis import findings
from gpubench.analysis.findings import has_failures
from gpubench.base.errors import UsageError
from gpubench.cli import ci
from gpubench.compare.comparison import CompareOptions
from gpubench.compare.two_runs import compare
from gpubench.report import analyse_runs, draw_report
from gpubench.report.comparison import documents
from gpubench.report.layout import RenderOptions
from tests.unit.report.builders import (
    CPU,
    case,
    curve,
    measured,
    planned,
    run_of,
    skipped,
)
from tests.unit.report.builders import failed as failed_case
from tests.unit.report.sides import CASES, pair

WIDE = (0.5, 2.0, 0.6, 1.9, 0.7, 1.4, 1.0, 1.0, 0.9, 1.1)


def gates(outcomes, *min_speedups, fail_on=None, **kind):
    (analysis,) = analyse_runs([run_of(outcomes, **kind)], gates=ci.gates(min_speedups, fail_on))
    return findings.gates(analysis)


def gpu(n, **what):
    return case(n=n, device="cupy:0", **what)


def test_the_whole_interval_has_to_lie_below_what_is_asked():
    (gate,) = gates(curve({64: 0.5, 256: 4.0}), "matmul=2")
    assert (gate.low, gate.near, gate.missing, gate.passed) == ((gpu(64).id,), (), (), False)
    assert gates(curve({64: 2.5, 256: 4.0}), "matmul=2")[0].passed


def test_an_interval_that_contains_it_is_told_and_fails_nothing():
    (gate,) = gates(curve({256: 2.0}, sessions=3), "matmul=2x")
    assert (gate.near, gate.passed) == ((gpu(256).id,), True)


def test_a_selected_case_without_a_number_fails():
    cpu = measured(case(n=64), 1e-3)
    for missing in (skipped(gpu(64)), failed_case(gpu(64)), planned(gpu(64))):
        (gate,) = gates([cpu, missing], "matmul=2")
        assert (gate.missing, gate.passed) == ((gpu(64).id,), False)
    (gate,) = gates([skipped(case(n=64)), measured(gpu(64), 1e-4)], "matmul=2")
    assert not gate.passed, "without a baseline there is no speedup"


def test_cases_of_the_cpu_and_named_variants_are_not_asked():
    rows = [
        measured(case(n=64), 1e-3),
        measured(gpu(64), 1e-4),
        measured(gpu(64, form="tuned", variant="naive"), 1.0),
    ]
    (gate,) = gates(rows, "matmul=2")
    assert (gate.passed, gate.near) == (True, ())


def test_every_form_that_is_selected_has_to_reach_it():
    rows = [
        measured(case(n=64), 1e-3), measured(gpu(64), 0.9e-3), measured(gpu(64, form="tuned"), 1e-4)
    ]  # fmt: skip
    assert gates(rows, "matmul=2")[0].low == (gpu(64).id,)
    assert gates(rows, "matmul/*/*/tuned=2")[0].passed


def test_fail_on():
    noisy = measured(gpu(64), 1e-4, factors=WIDE)
    rows = [measured(case(n=64), 1e-3), noisy, skipped(gpu(128)), planned(gpu(256))]
    found = gates(rows, fail_on="incomplete, noisy,skipped", complete=False, exit_reason="interrupted")
    assert [(gate.name, gate.low) for gate in found] == [
        ("noisy", (noisy.id,)), ("skipped", (gpu(128).id,)), ("incomplete", (gpu(256).id,)),
    ]  # fmt: skip
    assert found[2].reason == "the run ended early (interrupted)"
    assert all(gate.passed for gate in gates(curve({64: 2.0}), fail_on="noisy,skipped,incomplete"))


def test_the_budget_that_ran_out_is_incomplete():
    (gate,) = gates(curve({64: 2.0}), fail_on="incomplete", exit_reason="budget")
    assert not gate.passed


@pytest.mark.parametrize(
    "text", ["", "=", "matmul", "matmul=", "matmul=x", "matmul=0", "matmul=-1", "matmul=inf", "matmul=nan", "/=2", "a//b=2"]
)  # fmt: skip
def test_what_is_no_gate_is_refused(text):
    with pytest.raises(UsageError, match="--min-speedup"):
        ci.gates([text], None)


def test_unknown_conditions_get_a_suggestion():
    with pytest.raises(UsageError) as refused:
        ci.gates([], "noisy,skiped")
    assert "did you mean 'skipped'?" in refused.value.hint


def test_every_format_says_how_the_gates_ended():
    rows = [*curve({64: 0.5, 256: 4.0}), skipped(gpu(512))]
    found = analyse_runs([run_of(rows)], gates=ci.gates(["matmul/n<=256=2", "matmul/n=256=3"], "skipped"))
    assert has_failures(found)
    document = json.loads(draw_report(found, "json"))
    assert (document["exit_code"], document["exit_reason"]) == (3, "gate")
    assert [(row["name"], row["selector"], row["least"], row["passed"]) for row in document["gates"]] == [
        ("min-speedup", "matmul/n<=256=2", 2.0, False), ("min-speedup", "matmul/n=256=3", 3.0, True),
        ("skipped", None, None, False),
    ]  # fmt: skip
    for name in ("plain", "markdown"):
        text = " ".join(draw_report(found, name, RenderOptions(sections=["answer"])).split())
        assert f"min-speedup matmul/n<=256=2: FAILED: below 2x: {gpu(64).id}" in text.replace("&lt;", "<")
        assert "min-speedup matmul/n=256=3: passed" in text
        assert f"skipped: FAILED: {gpu(512).id}" in text
    quiet = json.loads(draw_report(analyse_runs([run_of(rows)]), "json"))
    assert (quiet["gates"], quiet["exit_code"], quiet["exit_reason"]) == ([], 0, "ok")


def test_a_run_on_the_cpu_alone_has_nothing_to_ask():
    (analysis,) = analyse_runs(
        [run_of([measured(case(n=64), 1e-3)], devices=[CPU])], gates=ci.gates([], "noisy")
    )
    assert findings.gates(analysis)[0].passed


class TestInComparisons:
    """`compare --min-speedup`: how many times faster than in base."""

    def found(self, *texts, slow=None, change=lambda run: run, **options):
        base, new = pair(slow, sigma=0.004)
        asked = CompareOptions(min_speedups=ci.gates(texts, None).min_speedups, fail_on=(), **options)
        return compare(("a", base), [("b", change(new))], asked)

    def test_the_whole_interval_has_to_lie_below(self):
        faster = {CASES[1].id: 0.5, CASES[2].id: 1 / 1.5}
        result = self.found("matmul/n=128=1.5", "matmul/n=256=1.5", "matmul/n=512=1.5", slow=faster)
        reached, near, missed = result.gates
        assert (reached.passed, reached.near, reached.ids) == (True, (), ())
        assert (near.passed, near.near) == (True, (CASES[2].id,))
        assert (missed.passed, missed.ids) == (False, (CASES[3].id,))
        assert (result.exit_code, result.exit_reason) == (3, "gate")
        assert (missed.name, missed.selector, missed.least) == ("min-speedup", "matmul/n=512=1.5", 1.5)

    def test_a_selected_case_without_a_ratio_fails(self):
        def broken(run):
            return msgspec.structs.replace(run, outcomes=[failed_case(CASES[0]), *run.outcomes[1:]])

        (gate,) = self.found("matmul=0.5", change=broken).gates
        assert (gate.passed, gate.missing, gate.ids) == (False, (CASES[0].id,), ())

    def test_ignored_cases_are_not_asked(self):
        (gate,) = self.found("matmul=2", ignored=(lambda case: case.params["n"] != 64,)).gates
        assert gate.ids == (CASES[0].id,)
        assert self.found("matmul=2", advisory=True).exit_code == 0

    def test_it_is_told(self):
        (lines,) = [
            s.lines
            for s in documents(self.found("matmul/n=64=1"), RenderOptions())[0].sections
            if s.key == "gates"
        ]
        assert lines == (
            f"min-speedup matmul/n=64=1: passed, but 1x lies inside the interval of {CASES[0].id}",
        )
