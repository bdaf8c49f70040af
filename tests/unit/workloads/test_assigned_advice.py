"""Where one call of a network should run: a stage assignment of its stages is one of the answers."""

import shlex

import msgspec
import pytest

from gpubench.analysis.advice import Advice, answer
from gpubench.analysis.contenders import Key
from gpubench.analysis.policy import Policy
from gpubench.base.errors import InputError
from gpubench.report.advice import render
from gpubench.result.case import WAITED
from tests.unit.report.builders import CPU, GPU, HYBRID, assigned, case, measured, run_of

SPLIT_RUN = {"devices": (CPU, GPU, HYBRID), "sessions": 6}
FFN = Key("ffn", "float32")


def assignment_times(seconds, *, alone_s=1e-4):
    """A workload of three stages on two sides, each of which alone takes `alone_s` by its own case, too."""
    stages = {"first": (8e-5, 1e-5), "second": (1e-5, 8e-5), "third": (1e-5, 1e-5)}
    places = (("resident", "numpy:0"), (WAITED, "cupy:0"))
    alone = [measured(case("ffn", 64, "tuned", *place), alone_s, sessions=6) for place in places]
    what = case("ffn", 64, "tuned", WAITED, "hybrid:cupy:0")
    both = {"cpu": alone_s, "gpu": alone_s}
    return [*alone, assigned(what, stages, "gcg", seconds, beside_s=both, sessions=6)]


def asked_waited(outcomes):
    return answer([run_of(outcomes, **SPLIT_RUN)], FFN, 64, WAITED)


def test_an_assignment_that_pays_is_the_answer_with_its_stages_and_its_gain():
    advice = asked_waited(assignment_times(3.3e-5))
    assert (advice.device_id, advice.backend, advice.confidence) == ("hybrid:cupy:0", "hybrid", "clear")
    assert advice.gain is not None
    assert advice.gain.ratio == pytest.approx(1e-4 / 3.3e-5, rel=1e-4)
    assert advice.gain.device_id in ("numpy:0", "cupy:0")
    text = " ".join(render(advice, "table").split())
    assert "hybrid:cupy:0 (first, third on cupy:0, the rest on the CPU)" in text
    assert "Each stage runs where it is assigned" in text
    document = msgspec.json.decode(render(advice, "json"), type=Advice)
    assert document.split is not None
    assert (document.split.assignment, document.split.on_gpu) == ("gcg", ("first", "third"))
    assert document.split.gpu_share is None
    variables = dict(line.split("=", 1) for line in shlex.split(render(advice, "env")))
    assert (variables["GPUBENCH_ADVICE_ASSIGNMENT"], variables["GPUBENCH_ADVICE_GPU_SHARE"]) == ("gcg", "")


def test_an_assignment_that_does_not_pay_or_is_of_another_size_is_no_answer():
    for advice in map(asked_waited, (assignment_times(9.9e-5), assignment_times(3.3e-5, alone_s=2e-5))):
        assert advice.split is None
        assert advice.device_id in ("numpy:0", "cupy:0")
    with pytest.raises(InputError):
        answer([run_of(assignment_times(3.3e-5), **SPLIT_RUN)], Key("mlp_forward", "float32"), 64, WAITED)


def test_a_policy_names_an_assignment_to_a_caller_who_can_use_it():
    policy = Policy([run_of(assignment_times(3.3e-5), **SPLIT_RUN)])
    usual = policy.choose("ffn", shape=64, regime="resident")
    mixed = policy.choose("ffn", shape=64, regime="resident", hybrid=True)
    assert usual.assignment is None
    assert usual.device_id in ("numpy:0", "cupy:0")
    assert (mixed.backend, mixed.assignment, mixed.gpu_share) == ("hybrid", "gcg", None)
