"""JSON lines: one event a line, told apart by `reason`, whatever the run went through."""

import json
from collections import Counter

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpubench.analysis.findings import Gates
from gpubench.report import analyse_runs, draw_report, render
from gpubench.report.document import CaseComplete, EventLine
from gpubench.result.store.document import schema
from tests.examples import examples
from tests.unit.report.builders import case, failed, measured, planned, run_of, skipped
from tests.unit.report.samples import cpu_run, full_run, interrupted_run, software_run

REASONS = ["run-start", "case-start", "case-complete", "speedup", "break-even", "warning", "run-complete"]
VALIDATOR = jsonschema.Draft202012Validator(schema("gpubench-events", EventLine))
OUTCOMES = {
    "measured": lambda what: measured(what, 1e-3), "no-samples": lambda what: measured(what, 1e-3, factors=()),
    "skipped": skipped, "failed": failed, "planned": planned,
}  # fmt: skip


def lines(*runs):
    text = render(list(runs), "jsonl")
    assert text.isascii()
    assert text.splitlines() == text.removesuffix("\n").split("\n")
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("make", [full_run, cpu_run, software_run, interrupted_run, lambda: run_of([])])
def test_every_line_is_an_event_of_the_schema(make):
    found = lines(make())
    for line in found:
        VALIDATOR.validate(line)
        msgspec.convert(line, EventLine)
        assert next(iter(line)) == "reason"
    assert [line["reason"] for line in (found[0], found[-1])] == ["run-start", "run-complete"]
    order = [REASONS.index(line["reason"]) for line in found if not line["reason"].startswith("case-")]
    assert order == sorted(order)


@settings(max_examples=examples(40))
@given(st.lists(st.sampled_from(sorted(OUTCOMES)), max_size=8), st.text(max_size=200))
def test_each_case_completes_once_and_says_what_is_known(kinds, detail):
    outcomes = [OUTCOMES[kind](case(n=64 * (i + 1), device="cupy:0")) for i, kind in enumerate(kinds)]
    outcomes = [
        replace(outcome, detail=detail) if hasattr(outcome, "detail") else outcome for outcome in outcomes
    ]
    found = lines(run_of(outcomes))
    for line in found:
        VALIDATOR.validate(line)
    complete = [msgspec.convert(line, CaseComplete) for line in found if line["reason"] == "case-complete"]
    assert Counter(line.id for line in complete) == Counter(outcome.id for outcome in outcomes)
    for line in complete:
        assert (line.typical is None) == (line.cause is not None)
        if line.typical is not None:
            assert line.typical.lower_bound <= line.typical.estimate <= line.typical.upper_bound
    started = {line["id"] for line in found if line["reason"] == "case-start"}
    assert started == {line.id for line in complete if line.outcome in ("measurement", "failure")}


def test_a_run_tells_how_it_ended():
    end = lines(interrupted_run())[-1]
    assert end == {"reason": "run-complete", "exit_code": 0, "exit_reason": "interrupted", "complete": False}


def test_a_failed_gate_is_the_end_of_a_run_that_ended_well():
    analyses = analyse_runs([full_run()], gates=Gates(fail_on=("noisy",)))
    end = json.loads(draw_report(analyses, "jsonl").splitlines()[-1])
    assert (end["exit_code"], end["exit_reason"], end["complete"]) == (3, "gate", True)


def test_several_runs_follow_one_another():
    found = [line["reason"] for line in lines(full_run(), cpu_run())]
    assert found.count("run-start") == found.count("run-complete") == 2
    assert found.index("run-complete") + 1 == len(found) - 1 - found[::-1].index("run-start")
