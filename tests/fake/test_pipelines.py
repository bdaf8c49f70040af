"""Calls whose copies overlap: what a pipeline gains and is bound by, every set checked, and every bad case a reason."""

import json
from unittest.mock import Mock

import pytest

from gpubench import Policy, backends, kernels
from gpubench.analysis.analyse import analyse
from gpubench.analysis.hybrid import pipelines
from gpubench.base.errors import DeviceOutOfMemory
from gpubench.measure.worker.pipeline import PipelineTimer
from gpubench.measure.worker.workspace import Workspace, Wrong, gate
from gpubench.report import render
from gpubench.result.case import STREAMED, STREAMED_CALLS, Case
from gpubench.result.store import load

ARGUMENTS = "--ops add,matmul --sizes 1M --sizes matmul=256 --regimes copied,streamed".split()
OP = "add"
GPU = next(device for device in backends.load("fake").devices() if device.id == "fake:gpu")


@pytest.fixture
def open_timer(tmp_path):
    def start(device="gpu", most_sets=3, n=1000, op=OP):
        session, declared = backends.load("fake").open(f"fake:{device}"), kernels.load(op)
        how = ("float32", "library", STREAMED, f"fake:{device}", STREAMED_CALLS)
        case = Case(op, declared.group, {"n": n}, *how)
        workspace = Workspace(session, declared, case, 1, "random", tmp_path)
        launch = gate(workspace, case, lambda phase: None).launch
        return PipelineTimer(workspace, case, launch, most_sets)

    return start


@pytest.fixture(scope="module")
def ran(run_well):
    return run_well("--devices", "fake:cpu,fake:gpu", *ARGUMENTS)


def test_a_sample_is_rows_of_calls_in_sets_with_their_stages_beside_it(ran):
    (streamed,) = [o for name, o in ran.outcomes.items() if name.startswith("add") and "streamed" in name]
    assert {o["case"]["regime"] for o in ran.outcomes.values()} == {"resident", "transfer-always", "streamed"}
    assert (streamed["sets"], streamed["staging"], streamed["case"]["calls"]) == (3, "pinned", STREAMED_CALLS)
    assert all(block["repeat"] % STREAMED_CALLS == 0 for block in streamed["blocks"])
    stages = {name: min(seconds) for name, seconds in streamed["parts"][0]["stage_s"].items()}
    assert list(stages) == ["upload", "kernel", "download"]
    whole = min(min(block["wall_s"]) for block in streamed["blocks"])
    assert max(stages.values()) < whole < sum(stages.values())


@pytest.mark.parametrize("op", ["add", "softmax", "dot"])
def test_every_set_is_compared_with_the_answer_to_the_inputs_of_its_last_call(open_timer, op):
    timer = open_timer(op=op)
    timer.verify()  # before any sample, too
    timer.seconds(1)
    assert sorted(timer.last_inputs) == [0, 1, 2] != timer.last_inputs
    timer.verify()
    timer.sets[1].workspace.host_outputs[0].reshape(-1)[-1] += 1
    timer.seconds = None
    with pytest.raises(Wrong):
        timer.verify_sets()


@pytest.mark.parametrize("fault", ["no wait", "sets mixed up", "one call left out"])
def test_a_pipeline_with_a_bug_is_wrong(open_timer, monkeypatch, fault):
    timer = open_timer("overlaps" if fault == "no wait" else "gpu")
    if fault == "sets mixed up":
        timer.sets[0].sent, timer.sets[1].sent = timer.sets[1].sent, timer.sets[0].sent
    if fault == "one call left out":
        monkeypatch.setattr(timer.sets[2].stream, "download", lambda buffer, host: None)
    timer.seconds(1)
    with pytest.raises(Wrong):
        timer.verify()


def test_one_queue_takes_the_stages_one_after_the_other(open_timer):
    """A device that overlaps nothing is right, and its calls take the sum of the stages."""
    timer = open_timer("one-queue", n=1_000_000)
    stages = {name: min(seconds) for name, seconds in timer.stage_times(2).items()}
    timer.flush = Mock()
    assert timer.seconds(1) == pytest.approx(sum(stages.values()), rel=0.02)
    assert timer.flush.call_count == 1, "a sample begins with cold caches where they are asked for"
    timer.verify()


def test_what_a_device_cannot_do_costs_its_pipelines_alone(run):
    ends = {
        "no-streams": ("skip", "no-streams"), "breaks-off": ("failure", "device-lost"),
        "overlaps": ("failure", "wrong-result"),
    }  # fmt: skip
    devices = ",".join(f"fake:{word}" for word in ("cpu", *ends))
    ended = run("--devices", devices, *ARGUMENTS[2:4], "--ops", "add", *ARGUMENTS[-2:])
    outcomes = {name.partition("/library/")[2]: o for name, o in ended.outcomes.items()}
    for word, end in ends.items():
        assert outcomes[f"transfer-always@fake:{word}"]["type"] == "measurement"
        streamed = outcomes[f"streamed@fake:{word}"]
        assert (streamed["type"], streamed["reason"]) == end
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("error", [DeviceOutOfMemory, MemoryError])
@pytest.mark.parametrize(("buffers", "sets"), [(100, 3), (7, 2), (5, None)])
def test_without_memory_for_three_sets_there_are_two_or_none(open_timer, monkeypatch, buffers, sets, error):
    """A set of `add` is two buffers on this device, and so is the workload itself."""
    session_type = type(backends.load("fake").open("fake:gpu"))
    allocate, taken, given = session_type.allocate, [], []

    def bounded(self, shape, dtype):
        if len(taken) >= buffers:
            raise error("no room")
        taken.append(shape)
        return allocate(self, shape, dtype)

    monkeypatch.setattr(session_type, "allocate", bounded)
    monkeypatch.setattr(session_type, "free", lambda self, buffer: given.append(buffer))
    if sets is None:
        with pytest.raises(error):
            open_timer()
        assert len(given) == len(taken) - 2
    else:
        assert len(open_timer().sets) == sets
        assert len(given) == (buffers == 7)


def test_the_report_says_what_a_pipeline_gains_and_what_bounds_it(ran):
    measured = load(ran.folder / "r.json")
    add, matmul = pipelines(analyse(measured))
    assert (add.case.case.op, add.bound, matmul.bound) == ("add", "upload", "upload")
    assert add.gain == pytest.approx(add.copied.time.estimate / add.case.time.estimate)
    assert (add.lo < add.gain < add.hi, add.pays) == (True, True)
    assert add.reached == pytest.approx(max(add.stages_s.values()) / add.case.time.estimate)
    assert 0.9 < add.reached < 1 < add.overlap
    assert "Pipelines, float32 on fake:gpu" in ran.out
    assert "as a pipeline: write independent calls with page-locked arrays" in " ".join(ran.out.split())
    assert "copied in a pipeline" in render([measured], "plain")
    page = render([measured], "html")
    assert "Write independent calls as a pipeline" in page
    assert "copied in a pipeline" in page
    rows = json.loads(render([measured], "json"))["pipelines"]
    assert [row["id"] for row in rows] == [add.id, matmul.id]
    alone = pipelines(analyse(measured, keep=lambda case: case.regime != "transfer-always"))
    assert [(row.gain, row.copied_id, row.pays) for row in alone] == [(None, None, False)] * 2


def test_advice_and_thresholds_know_pipelines(ran):
    policy = Policy.load(ran.folder / "r.json")
    answer = policy.choose("add", 1 << 20, regime="streamed")
    assert answer.device_id == "fake:gpu"
    assert 2 * answer.expected_s < policy.choose("add", 1 << 20, regime="copied").expected_s
    assert policy.threshold("add", "streamed").situation == "streamed"
