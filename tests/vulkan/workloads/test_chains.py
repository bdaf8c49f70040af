"""Chains of stages on a wgpu device: timed stage by stage, recorded for the next call meanwhile, and assigned to two sides."""

import threading
from unittest.mock import Mock

import numpy as np
import pytest

from gpubench import backends, kernels
from gpubench.backends.contract import HostCall
from gpubench.backends.wgpu import programs, queues
from gpubench.measure.worker.timer import Timer
from gpubench.measure.worker.workspace import gate
from gpubench.result.case import WAITED, Case
from gpubench.workloads import two_sides
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
    params = {"n": 33, "width": 12, "heads": 12}  # as in tests/conformance: the kernels are in the cache
    case = Case("transformer_block", "network", params, "float32", "tuned", WAITED, session.device.id)
    workspace = ChainWorkspace(session, kernels.load("transformer_block"), case, 1, "random", tmp_path)
    assert gate(workspace, case, lambda phase: None).check.ok
    workspace.release()
    distinct = set()
    for stage in workspace.op.stages:
        own = stage.params(params)
        default = kernels.load(stage.op).at(own).kernel("wgpu", case.dtype)
        passes = default.build(own, case.dtype, session.limits).passes
        distinct |= {step.source for step in passes}
    assert len(built) == len(distinct) > 4
    assert threading.main_thread() not in built


def test_what_a_stage_of_the_host_raises_is_no_loss_of_the_device(session):
    fail = Mock(side_effect=RuntimeError("no tokens"))
    output = session.allocate((4,), "float32")
    with pytest.raises(RuntimeError, match="no tokens"):
        session.stage_times([(HostCall(session, fail, output), output)])


# ---------------------------------------------------------------------- stages on NumPy and on the adapter


@pytest.fixture
def split():
    opened = backends.load("hybrid").open("hybrid:wgpu:0", 2, autotune=False)
    yield opened
    opened.close()


# Weights that are written in place; stages of many kinds. The others are chains of the same.
@pytest.mark.parametrize(("name", "more"), [("mlp_sgd", {}), ("transformer_block", {"width": 12, "heads": 12})])
def test_a_workload_has_a_place_for_each_of_its_stages(split, tmp_path, name, more):
    """On the CPU, on the GPU, and with each stage on another side than the one before it."""
    op = kernels.load(name)
    case = Case(name, op.group, {"n": 33, **more}, "float32", "tuned", "resident-waited", "hybrid:wgpu:0")
    assigned = split.for_op(op)
    workspace = ChainWorkspace(assigned, op, case, 1, "random", tmp_path)
    whole = two_sides.sides(op)["gpu"]
    for assignment in (*two_sides.sides(op).values(), ("cg" * len(whole))[: len(whole)]):
        assigned.assign(assignment)
        ready = Timer(workspace, case, gate(workspace, case, lambda _: None).launch)
        ready.split = assignment
        ready.seconds(1)
        ready.verify()


# ---------------------------------------------------------------------- a chain is recorded for its next call while the device works on this one


class Busy:
    """wgpu-native, whose device is done no earlier than at every sixth question: time for two slices and a finish."""

    def __init__(self, lib) -> None:
        self._lib, self._questions = lib, 0

    def __getattr__(self, name):
        return getattr(self._lib, name)

    def wgpuDevicePoll(self, *arguments) -> None:
        self._questions += 1
        if self._questions % 6 == 0:
            self._lib.wgpuDevicePoll(*arguments)


@pytest.fixture(params=["one submit", "several"])
def asking(request, monkeypatch):
    """A session that waits as that of a GPU does."""
    if request.param == "several":
        for name in ("FIRST_STEPS", "STEPS", "SLICE"):
            monkeypatch.setattr(programs, name, 1)
    monkeypatch.setattr(queues, "ASK_S", 60.0)
    busy = queues.library()._replace(lib=Busy(queues.library().lib))
    asked = lambda device, native, *, asks: queues.Queue(device, busy, asks=True)  # noqa: E731
    monkeypatch.setattr("gpubench.backends.wgpu.Queue", asked)
    backend = backends.load("wgpu")
    session = backend.open(next(d.id for d in backend.devices() if d.kind in ("software", "gpu")))
    yield session
    session.close()


@pytest.fixture
def chain(asking, tmp_path):
    case = Case("ffn", "network", {"n": 8, "width": 32}, "float32", "tuned", WAITED, asking.device.id)
    workspace = ChainWorkspace(asking, kernels.load("ffn"), case, 1, "random", tmp_path)
    yield workspace, gate(workspace, case, lambda phase: None).launch
    workspace.release()


@pytest.fixture
def recordings(asking, monkeypatch):
    """The launches that were begun to be recorded ahead."""
    found, record = [], queues.Queue.recording

    def noted(queue, launch):
        found.append(launch)
        return record(queue, launch)

    monkeypatch.setattr(queues.Queue, "recording", noted)
    return found


def call(session, chain, *, waits=True) -> np.ndarray:
    workspace, launch = chain
    got = np.empty(workspace.op.output.shape({"n": 8, "width": 32}), np.float32)
    session.run(launch)
    if waits:
        session.sync()
    session.download(launch.output, got)
    return got


def test_it_is_recorded_while_the_host_waits_and_does_what_a_new_record_does(asking, chain, recordings):
    workspace, launch = chain
    first = call(asking, chain)
    assert recordings == [launch]
    # What was recorded reads the operands as they are when it is submitted.
    changed = np.random.default_rng(7).standard_normal((8, 32), np.float32)
    asking.upload(workspace.buffers[0], changed)
    got = call(asking, chain)
    assert not np.array_equal(got, first)
    assert launch.take_ahead() is not None  # which lets go of it
    # The wait of a download is time enough.
    recordings.clear()
    np.testing.assert_array_equal(call(asking, chain, waits=False), got)
    assert recordings == [launch]
    np.testing.assert_array_equal(call(asking, chain), got)


def test_a_recording_that_fails_spoils_no_wait(asking, chain, monkeypatch):
    want = call(asking, chain)

    def fails(queue, launch):
        yield None
        raise RuntimeError("a buffer is gone")

    chain[1].take_ahead()
    monkeypatch.setattr(queues.Queue, "recording", fails)
    for _ in range(2):
        np.testing.assert_array_equal(call(asking, chain), want)


def test_what_was_begun_is_finished_by_the_call(asking, chain):
    launch, want = chain[1], call(asking, chain)
    native = queues.Queue(asking.programs.device, queues.library(), asks=False)
    for slices in range(3):
        launch.take_ahead()
        for _ in range(slices):
            launch.record_ahead(native.recording)
        np.testing.assert_array_equal(call(asking, chain), want)


def test_several_launches_at_once_leave_it(asking, chain, recordings):
    launch = chain[1]
    call(asking, chain)
    asking.run(launch, 3)
    asking.sync()
    # A launch of several submits takes what was recorded for one of its calls, so that it is recorded again.
    assert recordings == [launch] * (1 + (len(launch.parts()) > 1))


def test_a_launch_of_one_op_is_recorded_when_it_is_called(asking, recordings):
    case = Case("add", "vector", {"n": 64}, "float32", "tuned", WAITED, asking.device.id)
    buffers = [asking.allocate((64,), "float32") for _ in range(3)]
    launch = asking.compile(kernels.load("add"), case, buffers[:2], buffers[2])
    asking.run(launch)
    asking.sync()
    assert (recordings, launch.take_ahead()) == ([], None)
