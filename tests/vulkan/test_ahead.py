"""A chain is recorded for its next call while the device works on this one."""

from __future__ import annotations

import numpy as np
import pytest

from gpubench import backends, kernels
from gpubench.backends.wgpu import programs, queues
from gpubench.measure.worker.workspace import Workspace, gate
from gpubench.model.case import WAITED, Case

pytestmark = pytest.mark.vulkan


@pytest.fixture(params=["one submit", "several"])
def asking(request, monkeypatch):
    """A session that waits as that of a GPU does."""
    if request.param == "several":
        monkeypatch.setattr(programs, "FIRST_STEPS", 1)
        monkeypatch.setattr(programs, "STEPS", 1)
    monkeypatch.setattr(queues, "ASK_S", 60.0)
    monkeypatch.setattr(
        "gpubench.backends.wgpu.queue_of", lambda device, *, asks: queues.queue_of(device, asks=True)
    )
    backend = backends.load("wgpu")
    session = backend.open(next(d.id for d in backend.devices() if d.kind in ("software", "gpu")))
    yield session
    session.close()


@pytest.fixture
def chain(asking, tmp_path):
    """A workspace and its launch, of two ops."""
    case = Case("ffn", "network", {"n": 8, "width": 32}, "float32", "tuned", WAITED, asking.device.id)
    workspace = Workspace(asking, kernels.load("ffn"), case, 1, "random", tmp_path)
    yield workspace, gate(workspace, case, lambda phase: None).launch
    workspace.release()


def call(session, launch, shape) -> np.ndarray:
    got = np.empty(shape, np.float32)
    session.run(launch)
    session.sync()
    session.download(launch.output, got)
    return got


def test_it_is_recorded_while_the_host_waits_and_does_what_a_new_record_does(asking, chain):
    workspace, launch = chain
    shape = workspace.op.output.shape({"n": 8, "width": 32})
    call(asking, launch, shape)
    assert launch.ahead or launch.begun, "as much as the device left time for"
    first = call(asking, launch, shape)
    # What was recorded reads the operands as they are when it is submitted.
    changed = np.random.default_rng(7).standard_normal((8, 32), np.float32)
    asking.upload(workspace.buffers[0], changed)
    got = call(asking, launch, shape)
    assert not np.array_equal(got, first)
    launch.take_ahead()
    np.testing.assert_array_equal(call(asking, launch, shape), got)


def test_what_was_recorded_in_part_is_finished_by_the_call(asking, chain):
    workspace, launch = chain
    shape = workspace.op.output.shape({"n": 8, "width": 32})
    want = call(asking, launch, shape)
    queue = queues.queue_of(asking.programs.device, asks=False)
    for slices in range(len(launch.steps) + 1):
        launch.take_ahead()  # which lets go of what nobody submits
        for _ in range(slices):
            launch.record_ahead(queue.recording)
        np.testing.assert_array_equal(call(asking, launch, shape), want)


def test_several_launches_at_once_leave_it(asking, chain):
    workspace, launch = chain
    call(asking, launch, workspace.op.output.shape({"n": 8, "width": 32}))
    kept = list(launch.ahead), launch.begun
    asking.run(launch, 3)
    assert (launch.ahead, launch.begun) == (kept if len(launch.parts()) == 1 else ([], None))
    asking.sync()


def test_a_launch_of_one_op_is_recorded_when_it_is_called(asking):
    case = Case("add", "vector", {"n": 64}, "float32", "tuned", WAITED, asking.device.id)
    buffers = [asking.allocate((64,), "float32") for _ in range(3)]
    launch = asking.compile(kernels.load("add"), case, buffers[:2], buffers[2])
    asking.run(launch)
    asking.sync()
    assert launch.take_ahead() == ([], None)
