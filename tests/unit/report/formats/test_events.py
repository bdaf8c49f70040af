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
from tests.unit.report.samples import full_run, interrupted_run

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


@pytest.mark.parametrize("make", [full_run, interrupted_run, lambda: run_of([])])
def test_every_line_is_an_event_of_the_schema(make):
    found = lines(make())
    for line in found:
        VALIDATOR.validate(line)
        msgspec.convert(line, EventLine)
        assert next(iter(line)) == "reason"
    assert [line["reason"] for line in (found[0], found[-1])] == ["run-start", "run-complete"]
    order = [REASONS.index(line["reason"]) for line in found if not line["reason"].startswith("case-")]
    assert order == sorted(order)


@settings(max_examples=examples(20))
@given(st.lists(st.sampled_from(sorted(OUTCOMES)), max_size=8), st.text(max_size=200))
def test_each_case_completes_once_and_says_what_is_known(kinds, detail):
    outcomes = [OUTCOMES[kind](case(n=64 * (i + 1), device="cupy:0")) for i, kind in enumerate(kinds)]
    outcomes = [replace(one, detail=detail) if hasattr(one, "detail") else one for one in outcomes]
    found = lines(run_of(outcomes))
    complete = [msgspec.convert(line, CaseComplete) for line in found if line["reason"] == "case-complete"]
    assert Counter(line.id for line in complete) == Counter(outcome.id for outcome in outcomes)
    assert all((line.typical is None) == (line.cause is not None) for line in complete)
    started = {line["id"] for line in found if line["reason"] == "case-start"}
    assert started == {line.id for line in complete if line.outcome in ("measurement", "failure")}


def test_a_failed_gate_is_the_end_of_a_run_that_ended_well():
    analyses = analyse_runs([full_run()], gates=Gates(fail_on=("noisy",)))
    end = json.loads(draw_report(analyses, "jsonl").splitlines()[-1])
    assert (end["exit_code"], end["exit_reason"], end["complete"]) == (3, "gate", True)
