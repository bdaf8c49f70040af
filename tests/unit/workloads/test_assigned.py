"""Where assigning the stages of a workload pays: the gain of sessions that did not choose, and the reason where it loses."""

import shlex

import msgspec
import pytest
from msgspec.structs import replace

from gpubench.analysis.advice import Advice, answer
from gpubench.analysis.analyse import analyse
from gpubench.analysis.contenders import Key
from gpubench.analysis.findings import findings
from gpubench.analysis.policy import Policy
from gpubench.base.errors import InputError
from gpubench.fleet.nodes import merge_runs
from gpubench.report import advice as advice_report
from gpubench.report import render
from gpubench.report.sections.answer import answer_sentences
from gpubench.result.case import WAITED
from gpubench.result.run import Run
from gpubench.workloads.stage_assignments import REASONS, Assignment, assignments
from tests.unit.report.builders import CPU, GPU, HYBRID, SOFTWARE, assigned, case, measured, run_of
from tests.unit.report.samples import assignment_run

STAGES = {"first": (9e-5, 1e-5), "second": (1e-5, 9e-5)}
BOTH = {"cpu": 1e-4, "gpu": 1e-4}


def run_with(seconds, assignment="gc", *, regime=WAITED, sessions=6, others=(), **given) -> Run:
    what = case("ffn", 64, "tuned", regime, "hybrid:cupy:0")
    timed = assigned(what, STAGES, assignment, seconds, sessions=sessions, **{"beside_s": BOTH, **given})
    return run_of([*others, timed], devices=(CPU, GPU, HYBRID), sessions=sessions)


def only(run: Run) -> Assignment:
    (row,) = assignments(analyse(run))
    return row


def test_a_mixture_that_pays_is_recommended_with_its_gain_over_the_better_side():
    row = only(run_with(2.2e-5))
    assert (row.recommended, row.reason, row.assignment) == (True, None, "gc")
    assert row.gain == pytest.approx(1e-4 / 2.2e-5)
    assert [(one.stage, one.runs_on) for one in row.stages] == [("first", "gpu"), ("second", "cpu")]
    assert sum(stage.share for stage in row.stages) + row.copies_s / row.predicted_s == pytest.approx(1)
    text = " ".join(answer_sentences(analyse(run_with(2.2e-5))))
    assert "with its stages on CPU and GPU it is 4.55x as fast" in text
    # The session that chose does not estimate.
    run = run_with(2.2e-5)
    (outcome,) = run.outcomes
    blocks = [replace(b, wall_s=[v / (1 if b.session else 10) for v in b.wall_s]) for b in outcome.blocks]
    assert only(replace(run, outcomes=[replace(outcome, blocks=blocks)])).gain == row.gain
    alone = only(run_with(2.2e-5, sessions=1))
    assert (alone.selected_in_sample, alone.reason) == (True, "selected-in-sample")
    devices = [CPU, SOFTWARE, replace(HYBRID, kind="software")]
    assert only(replace(run, devices=devices)).reason == "software"


def test_a_faster_case_of_one_side_counts_where_its_result_is_on_the_host():
    on_cpu = measured(case("ffn", 64), 5e-5, sessions=6)
    on_gpu = (case("ffn", 64, regime=regime, device="cupy:0") for regime in (WAITED, "transfer-always"))
    others = (on_cpu, *(measured(what, 3e-5, sessions=6) for what in on_gpu))
    assert only(run_with(2.2e-5, others=others)).gain == pytest.approx(5e-5 / 2.2e-5)
    copied = only(run_with(2.2e-5, regime="transfer-always", others=others))
    assert (copied.better, copied.gain) == ("gpu", pytest.approx(3e-5 / 2.2e-5))


@pytest.mark.parametrize(("given", "reason"), [
    ({"seconds": 1e-4, "assignment": "cc", "copy_s": 1e-4}, "transfer-bound"),
    ({"seconds": 1e-4, "assignment": "cc", "free_s": 0.98e-4}, "one-side-dominates"),
    ({"seconds": 1.2e-4}, "overhead-bound"), ({"seconds": 0.97e-4, "sessions": 2}, "noise"),
])  # fmt: skip
def test_a_loss_has_its_reason_and_names_the_side_that_wins(given, reason):
    run = run_with(**given)
    row = only(run)
    assert (row.recommended, row.reason) == (False, reason)
    text = " ".join(render([run], "plain", sections=("hybrid",)).split())
    assert REASONS[reason] in text
    assert (f"{row.better}-only wins ({reason}" in text) == (reason != "noise")


@pytest.mark.parametrize(("seconds", "mismatch"), [(2.2e-5, False), (2.7e-5, True), (1.5e-5, True)])
def test_a_time_far_from_its_prediction_is_a_finding(seconds, mismatch):
    run = run_with(seconds)
    assert only(run).mismatch == mismatch
    assert ("assignment-mismatch" in {finding.code for finding in findings(analyse(run))}) == mismatch
    text = " ".join(render([run], "plain", sections=("hybrid",)).split())
    assert ("differ by more than 25 %" in text) == mismatch


def test_merging_keeps_by_what_each_run_chose_and_refuses_two_assignments():
    one, two = assignment_run(), replace(assignment_run(), id="0" * 36)
    together = merge_runs([one, two])
    assert [[p.session for p in o.assignment_times] for o in together.outcomes] == [[0, 6], [0, 6]]
    with pytest.raises(InputError, match="what each side does differs"):
        merge_runs([run_with(2.2e-5), replace(run_with(2.2e-5, "cg"), id="0" * 36)])


FFN = Key("ffn", "float32")


def three_staged(seconds, *, alone_s=1e-4):
    """A run of three stages on two sides, each of which alone takes `alone_s` by its own case, too."""
    stages = {"first": (8e-5, 1e-5), "second": (1e-5, 8e-5), "third": (1e-5, 1e-5)}
    places = (("resident", "numpy:0"), (WAITED, "cupy:0"))
    alone = [measured(case("ffn", 64, "tuned", *place), alone_s, sessions=6) for place in places]
    what, both = case("ffn", 64, "tuned", WAITED, "hybrid:cupy:0"), {"cpu": alone_s, "gpu": alone_s}
    outcomes = [*alone, assigned(what, stages, "gcg", seconds, beside_s=both, sessions=6)]
    return run_of(outcomes, devices=(CPU, GPU, HYBRID), sessions=6)


def test_an_assignment_that_pays_is_the_answer_with_its_stages_and_its_gain():
    run, one_side = three_staged(3.3e-5), ("numpy:0", "cupy:0")
    advice = answer([run], FFN, 64, WAITED)
    assert (advice.device_id, advice.backend, advice.confidence) == ("hybrid:cupy:0", "hybrid", "clear")
    assert advice.gain.ratio == pytest.approx(1e-4 / 3.3e-5, rel=1e-4)
    assert advice.gain.device_id in one_side
    text = " ".join(advice_report.render(advice, "table").split())
    assert "hybrid:cupy:0 (first, third on cupy:0, the rest on the CPU)" in text
    assert "Each stage runs where it is assigned" in text
    document = msgspec.json.decode(advice_report.render(advice, "json"), type=Advice)
    split = document.split
    assert (split.assignment, split.on_gpu, split.gpu_share) == ("gcg", ("first", "third"), None)
    variables = dict(line.split("=", 1) for line in shlex.split(advice_report.render(advice, "env")))
    assert (variables["GPUBENCH_ADVICE_ASSIGNMENT"], variables["GPUBENCH_ADVICE_GPU_SHARE"]) == ("gcg", "")
    for other in (three_staged(9.9e-5), three_staged(3.3e-5, alone_s=2e-5)):
        advice = answer([other], FFN, 64, WAITED)
        assert (advice.split, advice.device_id in one_side) == (None, True)
    with pytest.raises(InputError):
        answer([run], Key("mlp_forward", "float32"), 64, WAITED)
    policy = Policy([run])
    usual, mixed = (policy.choose("ffn", 64, regime="resident", hybrid=hybrid) for hybrid in (False, True))
    assert (usual.assignment, usual.device_id in one_side) == (None, True)
    assert (mixed.backend, mixed.assignment, mixed.gpu_share) == ("hybrid", "gcg", None)
