"""CuPy on a real GPU: the conformance suite, large sizes, its clock, and running out of memory."""

import gc
from statistics import median

import pytest

from benchmarks import leak_traces as leaks
from gpubench import backends, kernels
from gpubench.base.errors import DeviceOutOfMemory
from gpubench.measure import conformance
from gpubench.measure.worker.pipeline import PipelineTimer
from gpubench.measure.worker.workspace import gate, kind_of
from gpubench.result.case import STREAMED, STREAMED_CALLS, Case
from tests.cuda.conftest import DEVICE
from tests.vulkan.test_words import (  # noqa: F401
    test_a_copy_begins_with_the_bits_of_a_buffer,
    test_every_element_is_filled,
)

pytestmark = pytest.mark.cuda

OPS = [kernels.load(name) for name in kernels.usual()]


def case(op, n, dtype="float32", implementation="library"):
    return Case(op.name, op.group, {"n": n}, dtype, implementation, "resident-queued", DEVICE)


def prepared(session, op, n, folder, implementation="library", dtype="float32"):
    """(workspace, launch) of one case that has passed the gate; the caller releases the workspace."""
    workspace = kind_of(op)(session, op, case(op, n, dtype, implementation), 1, "random", folder)
    return workspace, gate(workspace, case(op, n, dtype, implementation), lambda phase: None).launch


def times(session, launch, repeat=1, *, cold=False, count=5):
    return [session.time(launch, repeat, cold=cold) for _ in range(count)]


def test_the_suite():
    from gpubench.backends.cupy import BACKEND

    report = conformance.suite(BACKEND, DEVICE, checks=conformance.Checks(exhaust=True))
    assert report.findings == []
    # Every op runs as a CuPy user writes it, and every hand-written CUDA kernel was there.
    checked = {(text.split("/")[0], text.split("/")[3]) for text in report.checked}
    assert {(op.name, "library") for op in OPS} <= checked
    tuned = {op.name for op in OPS if op.tuned.get("cupy") and not op.tuned["cupy"][0].library}
    assert {(name, "tuned") for name in tuned} <= checked
    assert len(tuned) >= 10


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_large_sizes_in_every_implementation_and_dtype(op):
    from gpubench.backends.cupy import BACKEND

    def sizes(op):
        return (1023, 1500) if op.group == "matrix" else (2**20 + 3, 2**22 + 5)

    report = conformance.suite(BACKEND, DEVICE, [op], conformance.Checks(sizes=sizes, seeds=(5,), around=False))
    assert report.findings == []
    assert report.checked


def test_events_agree_with_the_wall_on_a_long_launch(session, tmp_path):
    workspace, launch = prepared(session, kernels.load("matmul"), 2048, tmp_path)
    device = median(times(session, launch, 10))
    walls = []
    for _ in range(5):
        start = session.clock()
        session.run(launch, 10)
        session.sync()
        walls.append(session.clock() - start)
    # 3 ms of work on a large GPU: the host's part of it is small, and the device's is never longer.
    assert 0.3 * median(walls) <= device <= 1.1 * median(walls)
    workspace.release()


def test_events_hold_no_host_time(session, tmp_path):
    """A tiny launch takes the host longer than the device: queued launches must not show the host's pace."""
    workspace, launch = prepared(session, kernels.load("add"), 1024, tmp_path, implementation="tuned")
    hot = median(times(session, launch, 100)) / 100
    start = session.clock()
    session.run(launch, 1000)
    enqueued = (session.clock() - start) / 1000
    session.sync()
    assert hot > 0
    assert hot <= 1.2 * enqueued
    workspace.release()


def test_a_cold_launch_is_slower_than_a_hot_one(session, tmp_path):
    """12 MB of operands stay in the L2 cache of every GPU that CUDA 13 knows well; a flush sends them out."""
    workspace, launch = prepared(session, kernels.load("add"), 2**20, tmp_path, implementation="tuned")
    hot = median(times(session, launch, 50)) / 50
    cold = median(times(session, launch, cold=True))
    assert cold > hot
    assert cold < 1e-3
    workspace.release()


def test_out_of_memory_leaves_the_session_usable(session, tmp_path):
    def fill_the_device():
        held = []
        while True:
            held.append(session.allocate((2**32,), "float32"))

    with pytest.raises(DeviceOutOfMemory):
        fill_the_device()
    workspace, _ = prepared(session, kernels.load("add"), 2**20, tmp_path)
    workspace.release()


def test_out_of_memory_inside_a_launch(session, tmp_path):
    """The library implementation allocates its output while it runs: that error is ours as well."""
    import cupy

    pool = cupy.get_default_memory_pool()
    gc.collect()
    pool.free_all_blocks()  # else the inputs come out of a large cached block, which holds the output too
    op = kernels.load("add")
    workspace = kind_of(op)(session, op, case(op, 2**27), 1, "random", tmp_path)
    workspace.upload_inputs()
    launch = session.compile(op, case(op, 2**27), workspace.buffers, None)
    pool.free_all_blocks()
    pool.set_limit(size=pool.total_bytes() + 2**20)  # less than the 512 MiB of the output
    try:
        with pytest.raises(DeviceOutOfMemory):
            session.run(launch)
    finally:
        pool.set_limit(size=0)
    session.run(launch)
    assert workspace.verify(launch).ok
    workspace.release()


def test_ten_thousand_launches_and_two_hundred_openings_leave_nothing_behind(session, tmp_path):
    from gpubench.backends.cupy import BACKEND

    op = kernels.load("saxpy")
    traces = [
        leaks.launches(session, op, case(op, 2**16, implementation="tuned"), tmp_path, leaks.Repeats(10_000)),
        leaks.openings(BACKEND, DEVICE, op, tmp_path, leaks.Repeats(200)),
    ]
    assert [trace.leaks() for trace in traces] == [[], []]
    assert [trace.count for trace in traces] == [10_000, 200]


def test_the_device_tells_what_detection_needs():
    from gpubench.backends.cupy import BACKEND

    device = BACKEND.devices()[0]
    assert (device.kind, device.api) == ("gpu", "cuda")
    assert device.memory_bytes > 2**30
    assert device.clock is not None
    assert device.identity.pci
    assert 1e11 < device.theoretical.bytes_per_s < 1e14
    assert all(1e12 < flops_per_s < 1e15 for flops_per_s in device.theoretical.flops_per_s.values())


def test_the_cycles_of_the_device_agree_with_themselves_and_cost_no_time(session):
    """Warm, so that the clock is not on its way: readings in a row differ by little, and are those of a GPU."""
    launch = session.empty_launch()
    for _ in range(200):
        session.time(launch, 500)
    began = session.clock()
    found = [session.core_hz() for _ in range(50)]
    assert (session.clock() - began) / 50 < 1e-3
    assert all(2e8 < hertz < 5e9 for hertz in found)
    assert (sorted(found)[45] - sorted(found)[5]) / median(found) < 0.02


@pytest.mark.parametrize("backend", ["cupy", "torch:cuda"])
@pytest.mark.parametrize("op", ["add", "softmax", "matmul", "transpose"])
def test_calls_in_flight_keep_their_inputs_and_outputs_apart(tmp_path, backend, op):
    device, declared = f"{backend}:0", kernels.load(op)
    opened = backends.load(backend.partition(":")[0]).open(device)
    streamed = Case(op, declared.group, {"n": 512}, "float32", "library", STREAMED, device, STREAMED_CALLS)
    workspace = kind_of(declared)(opened, declared, streamed, 1, "random", tmp_path)
    timer = PipelineTimer(workspace, streamed, gate(workspace, streamed, lambda phase: None).launch, 3)
    for _ in range(20):
        timer.seconds(4)
        timer.verify()
    timer.release()
    workspace.release()
    opened.close()
