"""Stages of a workload on a wgpu device: by stamps of passes, and by waits where the device has no stamps."""

import threading

import numpy as np
import pytest

from gpubench import kernels
from gpubench.backends.contract import HostCall
from gpubench.measure.worker.timer import Timer
from gpubench.measure.worker.workspace import gate
from gpubench.result.case import WAITED, Case
from gpubench.workloads.chains import ChainWorkspace, time_stages

pytestmark = pytest.mark.vulkan


@pytest.fixture
def timer(session, tmp_path):
    case = Case("ffn", "network", {"n": 8, "width": 32}, "float32", "tuned", WAITED, session.device.id)
    workspace = ChainWorkspace(session, kernels.load("ffn"), case, 1, "random", tmp_path)
    yield Timer(workspace, case, gate(workspace, case, lambda phase: None).launch)
    workspace.release()


def fetch(timer):
    timer.workspace.spoil_host_output()
    timer.workspace.fetch(timer.launch.output, timer.session)
    return timer.workspace.host_outputs[0].copy()


@pytest.mark.parametrize("clock", ["pass-timestamp", "waited"])
def test_each_stage_has_its_time_and_the_result_is_the_chains(session, timer, clock, monkeypatch):
    if clock == "waited":
        monkeypatch.setattr(session, "stamps", None)
    elif session.device.clock is None:
        pytest.skip("this adapter has no time stamps")
    want = fetch(timer)
    found = time_stages(timer, 0, 0.25)
    assert (found.clock, found.stages) == (clock, ["ffn_in", "ffn_out"])
    lists = (*found.chain_s, *found.alone_s, found.span_s, found.wall_s, found.empty_s, found.recording_s)
    assert (len(found.alone_s), {len(times) for times in lists}) == (2, {len(found.wall_s)})
    assert all(min(chain) > 0 for chain in found.chain_s)
    recordings = zip(found.first_recording_s, found.recording_s, strict=True)
    assert all(0 <= first <= whole for first, whole in recordings)
    sums = [sum(values) for values in zip(*found.chain_s, strict=True)]
    assert all(total <= span * 1.000001 for total, span in zip(sums, found.span_s, strict=True))
    np.testing.assert_array_equal(fetch(timer), want)


def test_the_pipelines_of_a_chain_are_built_by_threads_and_once(session, tmp_path, monkeypatch):
    built, create = [], session.programs.device.create_compute_pipeline

    def noted(**words):
        built.append(threading.current_thread())
        return create(**words)

    monkeypatch.setattr(session.programs.device, "create_compute_pipeline", noted)
    params = {"n": 5, "width": 24, "heads": 2}
    case = Case("transformer_block", "network", params, "float32", "tuned", WAITED, session.device.id)
    workspace = ChainWorkspace(session, kernels.load("transformer_block"), case, 1, "random", tmp_path)
    assert gate(workspace, case, lambda phase: None).check.ok
    workspace.release()
    distinct = set()
    for stage in workspace.op.stages:
        own = stage.params(params)
        default = kernels.load(stage.op).at(own).kernel("wgpu", case.dtype)
        passes = default.build(own, case.dtype, session.limits).passes
        distinct |= {(step.source, step.entry) for step in passes}
    assert len(built) == len(distinct) > 4
    assert threading.main_thread() not in built


def test_what_a_stage_of_the_host_raises_is_no_loss_of_the_device(session):
    def fail():
        raise RuntimeError("no tokens")

    output = session.allocate((4,), "float32")
    with pytest.raises(RuntimeError, match="no tokens"):
        session.stage_times([(HostCall(session, fail, output), output)])
