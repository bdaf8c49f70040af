"""An op split over the CPU and a scripted GPU is right: every op, dtype and regime, at every kind of share."""

import contextlib
import gc
import weakref
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest

from gpubench import backends, kernels
from gpubench.backends import hybrid
from gpubench.backends.contract import Transfers
from gpubench.backends.hidden.fake.session import FakeSession, FakeStream
from gpubench.backends.hybrid import SplitSession, cpu_arrays
from gpubench.base.errors import BuildError, DeviceLost, DeviceOutOfMemory, WrongResult
from gpubench.measure import conformance
from gpubench.measure.worker.operands import Operands
from gpubench.measure.worker.timer import Timer
from gpubench.measure.worker.workspace import gate, kind_of
from gpubench.result.case import Case

# Of ops whose work grows faster than n, or where n counts rows or images.
SIZES = {"matrix": (2, 17, 130), "layers": (2, 17, 130), "network": (2, 17)}
WIDTH = 8  # of rows and images, where an op says how wide they are
OPS = {name: kernels.load(name) for name in kernels.usual()}
SPLIT = {op.name: op for op in map(kernels.load, kernels.computing_ops()) if op.split is not None}
GPU_SHARES = (0.0, 0.03, 0.5, 0.77, 1.0)
REGIMES = ("resident-waited", "resident-queued", "transfer-once", "transfer-always")


@pytest.fixture(scope="module")
def session():
    opened = backends.load("hybrid").open("hybrid:fake:gpu")
    yield opened
    opened.close()


def case_of(op, regime, dtype="float32", device="hybrid:fake:gpu", **params):
    calls = 3 if regime == "transfer-once" else None
    return Case(op.name, op.group, params, dtype, "tuned", regime, device, calls)


def ready(session, case, folder, gpu_share=None, **more):
    op = kernels.load(case.op)
    workspace = kind_of(op)(session, op, case, 1, "random", folder, **more)
    if gpu_share is not None:
        session.divide(op, case, gpu_share)
    return Timer(workspace, case, gate(workspace, case, lambda phase: None).launch)


def check_everywhere(session, op, dtype, params, folder, device, gpu_shares=GPU_SHARES):
    """All regimes of one workload side by side, each at shares of its own, as in a session; the shares tried."""
    cases = [case_of(op, regime, dtype, device, **params) for regime in REGIMES]
    if session.supports(op, cases[0]) is not None:
        return 0
    workspace = kind_of(op)(session, op, cases[0], 1, "random", folder)
    cycles, tried = [], 0
    for gpu_share in gpu_shares:
        for case in cases:
            share = session.divide(op, case, gpu_share)
            assert 0 <= share <= 1
            assert (share in (0, 1)) == (gpu_share in (0, 1))
            cycle = Timer(workspace, case, gate(workspace, case, lambda phase: None).launch)
            cycle.verify()
            cycles.append(cycle)
            tried += 1
    for cycle in cycles[-3:]:  # what one case did is not undone by another
        cycle.seconds(3)
        cycle.verify()
    workspace.release()
    return tried


def test_the_contract_is_kept(monkeypatch):
    monkeypatch.setattr(conformance, "LARGE_BYTES", (1 << 20) + 12)  # neither side has staging buffers
    checks = conformance.Checks(sizes=lambda op: SIZES.get(op.group, (1, 255, 1025)), seeds=(1,))
    report = conformance.suite(backends.load("hybrid"), "hybrid:fake:gpu", checks=checks)
    assert (report.findings, {case_id.split("/")[0] for case_id in report.checked}) == ([], set(OPS))
    assert set(report.refused.values()) <= {"no-implementation", "no-dtype", "no-split"}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("op", SPLIT.values(), ids=SPLIT)
def test_every_op_is_right_at_every_share(session, op, dtype, tmp_path):
    """A cut is of units, whatever their dtype: the others are tried at two shares of one size."""
    sizes = SIZES.get(op.group, (2048, 5005))
    gpu_shares = GPU_SHARES if dtype == "float32" else (0.03, 0.77)
    for n in sizes if dtype == "float32" else sizes[-1:]:
        tried = check_everywhere(session, op, dtype, narrow(op, n), tmp_path, "hybrid:fake:gpu", gpu_shares)
        assert tried == len(gpu_shares) * len(REGIMES)


def narrow(op, n):
    """Params of that size that take little time, whatever the op."""
    return {"n": n, **(dict.fromkeys(op.options, WIDTH) if op.group in ("layers", "network") else {})}


@pytest.mark.parametrize(("name", "params"), [
    ("matmul", {"n": 24, "m": 7, "k": 5}), ("matmul", {"n": 6, "batch": 5}), ("gemv", {"n": 9, "m": 31}),
    ("transpose", {"n": 33, "m": 5}), ("softmax", {"n": 300, "columns": 20}),
])  # fmt: skip
def test_other_shapes_are_right_too(session, name, params, tmp_path, monkeypatch):
    monkeypatch.setattr(hybrid, "_KEPT", 1)  # each binding takes the place of the one before
    assert check_everywhere(session, OPS[name], "float32", params, tmp_path, "hybrid:fake:gpu")


def test_a_single_element_that_neither_side_adds_is_found(session, tmp_path, monkeypatch):
    """It is far less than the error that a sum of halves may have."""

    def lose_first(launch):
        (x,) = cpu_arrays(launch)
        return [np.concatenate((0 * x[:1], x[1:]))]

    monkeypatch.setattr(hybrid, "cpu_arrays", lose_first)
    with pytest.raises(WrongResult, match="a term is missing"):
        check_everywhere(session, OPS["sum"], "float16", {"n": 5005}, tmp_path, "hybrid:fake:gpu", (0.5,))


@pytest.mark.parametrize("name", ["sum", "transpose"])
def test_much_data_takes_the_second_thread(session, name, tmp_path):
    n = 1500 if name == "transpose" else 1500 * 1500
    assert check_everywhere(session, OPS[name], "float32", {"n": n}, tmp_path, "hybrid:fake:gpu", (0.5,))


class DirectTransfers(Transfers):
    """Transfers of a device that moves the caller's arrays by itself."""

    def is_direct(self, host):
        return True

    def start_download(self, buffer, host):
        self.download(buffer, host)


@pytest.mark.parametrize("name", ["add", "sum"])
def test_arrays_that_the_device_moves_by_itself_arrive_without_a_thread(session, name, tmp_path, monkeypatch):
    gpu = session.gpu
    monkeypatch.setattr(gpu, "transfers", lambda implementation: DirectTransfers(gpu))
    monkeypatch.setattr(gpu, "both", Mock(side_effect=AssertionError("a second thread was started")))
    params = {"n": 1500 * 1500}
    assert check_everywhere(session, OPS[name], "float32", params, tmp_path, "hybrid:fake:gpu", (0.03, 0.77))


def in_pieces(word, folder, name="add", n=5 << 20):
    """A copying call over a scripted GPU that moves the caller's arrays by itself."""
    session = backends.load("hybrid").open(f"hybrid:fake:{word}")
    session.gpu.transfers = lambda implementation: DirectTransfers(session.gpu)
    op, case = OPS[name], case_of(OPS[name], "transfer-always", device=f"hybrid:fake:{word}", n=n)
    workspace = kind_of(op)(session, op, case, 1, "random", folder)
    session.divide(op, case, 0.7)
    return session, Timer(workspace, case, gate(workspace, case, lambda phase: None).launch)


def test_pieces_overlap_and_every_one_of_them_is_checked(tmp_path, monkeypatch):
    session, timer = in_pieces("gpu", tmp_path)
    assert session.pieces(timer.case) in (4, 8)
    timer.split = 0.7
    timer.verify_alone({"gpu": 1.0})
    timer.calibrate_at({"gpu": 1.0}, 0.0)
    overlapping = timer.seconds(2), timer.sides["gpu"]()
    session.held_pieces[timer.case.workload] = 1
    whole = timer.seconds(2), timer.sides["gpu"]()
    assert whole[1] > 1.2 * overlapping[1]
    assert whole[0] > overlapping[0]
    # The caller asks again for what came in pieces, and for launches on what is there.
    for count in (2, 8, 4):  # the memory of two is held
        session.held_pieces[timer.case.workload] = count
        timer.calibrate_at({"gpu": 1.0}, 0.0)
        timer.sides["gpu"]()
    launch, host = timer.launch, timer.workspace.host_outputs[0]
    session.upload(timer.workspace.buffers[0], timer.workspace.inputs[0])
    launch.gpu.launch.output, launch.gpu.inputs[0].buffer.array = None, np.full_like(host, np.nan)
    for repeat in (1, 1, 2):
        session.run(launch, repeat)
        for _ in range(2):
            host.fill(np.nan)
            session.download(launch.output, host)
            timer.workspace.verify_host_output(timer.case)
    launch.gpu.launch.output.array.fill(7)
    session.download(launch.output, host)
    assert host[0] == 7
    calls, run = [], FakeStream.run

    def lose_one(stream, launch):
        calls.append(launch)
        if len(calls) != 4:
            run(stream, launch)

    monkeypatch.setattr(FakeStream, "run", lose_one)
    with pytest.raises(WrongResult):
        timer.verify()
    session.close()


def test_pieces_of_several_workloads_give_way_to_each_other(tmp_path, monkeypatch):
    full, n, allocate, free = [True], 5 << 20, FakeSession.allocate, FakeSession.free

    def allocate_less(session, shape, dtype):
        if full[0] and shape[0] <= n // 4:
            raise DeviceOutOfMemory("scripted: no room for a piece")
        return allocate(session, shape, dtype)

    def note(session, buffer):
        full[0] = full[0] and buffer.array.shape[0] > n // 4
        free(session, buffer)

    monkeypatch.setattr(FakeSession, "allocate", allocate_less)
    monkeypatch.setattr(FakeSession, "free", note)
    session, timer = in_pieces("gpu", tmp_path, n=n)
    assert session.pieces(timer.case) == "no-gain"  # none was tried to the end
    timer.verify()
    session.held_pieces[timer.case.workload], timer.split, full[0] = 4, 0.7, False
    timer.calibrate_at({"gpu": 1.0}, 0.0)
    alone = timer.sides["gpu"]()
    timer.verify()
    session.forget()  # as another workload does
    assert timer.sides["gpu"]() == pytest.approx(alone, rel=1e-3)
    session.forget()
    timer.verify()
    full[0] = True
    timer.verify_alone({"gpu": 1.0})
    session.close()


def test_a_trial_of_pieces_that_fails_gives_its_memory_back(tmp_path, monkeypatch):
    live, allocate, free, op = {}, FakeSession.allocate, FakeSession.free, OPS["add"]

    def note(session, shape, dtype):
        buffer = allocate(session, shape, dtype)
        live[id(buffer)] = buffer
        return buffer

    monkeypatch.setattr(FakeSession, "allocate", note)
    monkeypatch.setattr(FakeSession, "free", lambda *held: (live.pop(id(held[1]), None), free(*held)))
    left = []
    for fails in (False, True):
        session = backends.load("hybrid").open("hybrid:fake:gpu")
        monkeypatch.setattr(session.gpu, "transfers", lambda _, gpu=session.gpu: DirectTransfers(gpu))
        case = case_of(op, "transfer-always", n=5 << 20)
        workspace = kind_of(op)(session, op, case, 1, "random", tmp_path)
        workspace.upload_inputs()
        session.divide(op, case, 1.0)
        if fails:
            monkeypatch.setattr(FakeStream, "run", Mock(side_effect=ZeroDivisionError))
        with pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext():
            session.tune(op, case, workspace.buffers)
        left.append(len(live))
        live.clear()
        session.close()
    assert left[0] == left[1]


@pytest.mark.parametrize("place", ["queue", "cpu"])
def test_copies_under_way_have_ended_when_a_call_fails(place, tmp_path, monkeypatch):
    session, timer = in_pieces("gpu", tmp_path)
    timer.split, waits = 0.7, []
    timer.verify()
    owner, name = (FakeStream, "run") if place == "queue" else (session.cpu, "run")
    monkeypatch.setattr(owner, name, Mock(side_effect=DeviceLost("scripted")))
    monkeypatch.setattr(FakeStream, "wait", lambda stream: waits.append(stream))
    with pytest.raises(DeviceLost):
        timer.seconds(1)
    assert waits
    session.close()


@pytest.mark.parametrize(("word", "name", "n", "why"), [
    ("no-streams", "add", 2**20, "no-streams"), ("gpu", "add", 2**20 - 1, "small"), ("gpu", "sum", 2**22, "uncut"),
    ("gpu", "add", 2**20, "ordinary-arrays"),
])  # fmt: skip
def test_what_moves_in_one_piece_says_why(word, name, n, why, tmp_path, monkeypatch):
    monkeypatch.setattr(DirectTransfers, "is_direct", lambda way, host: why != "ordinary-arrays")
    session, timer = in_pieces(word, tmp_path, name, n)
    assert session.pieces(timer.case) == why
    timer.verify()
    session.close()


def test_page_locked_arrays_of_the_caller_come_from_the_device(session, tmp_path, monkeypatch):
    handed_out = []

    def host_array(*kind):
        array = np.empty(kind[0], kind[1])
        handed_out.append(id(array))
        return array

    monkeypatch.setattr(session, "host_array", host_array)
    operands = Operands(OPS["add"], 1, "random", tmp_path)
    operands.page_locked = True
    cycle = ready(session, case_of(OPS["add"], "transfer-always", n=5000), tmp_path, operands=operands)
    cycle.verify()
    arrays = (*cycle.workspace.inputs, *cycle.workspace.host_outputs)
    assert {id(array) for array in arrays} <= set(handed_out)
    cycle.workspace.release()


def test_the_cpus_part_is_computed_by_the_faster_of_two(tmp_path, monkeypatch):
    seconds = []
    for other in ("faster", "refuses", None):
        gpu = backends.load("fake").open("fake:gpu")
        slower, faster = gpu.cpu_beside(), gpu.cpu_beside()
        monkeypatch.setattr(faster, "supports", lambda op, case, other=other: {"refuses": "no"}.get(other))
        run = slower.run
        monkeypatch.setattr(slower, "run", lambda launch, repeat=1, run=run: run(launch, 10 * repeat))
        both = SplitSession(gpu.device, gpu, slower, partial(next, iter([other and faster])), True)
        seconds.append(ready(both, case_of(OPS["add"], "transfer-always", n=1 << 20), tmp_path, 0.0).seconds(1))
        both.close()
    assert seconds[1] == seconds[2] > 5 * seconds[0]


def test_what_cannot_be_cut_is_refused_by_name(session):
    for name, params in [("add", {"n": 1}), ("softmax", {"n": 257}), ("matmul", {"n": 8, "m": 1})]:
        refusal = session.supports(OPS[name], case_of(OPS[name], "resident-queued", **params))
        assert (refusal.reason, "1 unit" in refusal.detail) == ("no-split", True)
    launch = kernels.load("launch")
    assert session.supports(launch, case_of(launch, "resident", n=1)).reason == "no-implementation"


def test_the_sessions_of_workloads_forget_too(session, monkeypatch):
    forget = Mock()
    monkeypatch.setattr(session.for_op(kernels.load("ffn")), "forget", forget)
    session.forget()
    assert forget.call_count == 1


def test_both_sides_are_at_work_at_once(session, tmp_path):
    """On the scripted clock: the time is that of the longer side, not the sum."""
    case = case_of(OPS["matmul"], "resident-queued", n=512)
    times = {share: ready(session, case, tmp_path, share).seconds(20) for share in (0.0, 0.5, 1.0)}
    assert times[0.5] == pytest.approx(times[0.0] / 2, rel=0.05)
    assert times[1.0] < times[0.5]


@pytest.mark.parametrize("regime", REGIMES)
def test_the_sides_are_timed_alone_and_beside_each_other(session, tmp_path, regime):
    cycle = ready(session, case_of(OPS["add"], regime, n=1 << 16), tmp_path, 0.25)
    host_output = None if regime.startswith("resident") else cycle.workspace.host_outputs[0]
    sides = session.sides(cycle.launch, 3, host_output)
    assert sides["cpu_beside_s"] == pytest.approx(sides["cpu_alone_s"], rel=0.3)
    assert sides["gpu_alone_s"] > 0


def test_the_callers_arrays_are_computed_in_and_never_written_to(session, tmp_path):
    op = OPS["add"]
    case = case_of(op, "transfer-always", n=5000)
    workspace = kind_of(op)(session, op, case, 1, "random", tmp_path)
    before = [array.copy() for array in workspace.inputs]
    session.divide(op, case, 0.5)
    sentinels = np.full(5000, np.nan, "float32")
    output = session.allocate((5000,), "float32")
    session.upload(output, sentinels)
    buffers = [session.allocate((5000,), "float32") for _ in op.inputs]
    for buffer, host in zip(buffers, workspace.inputs, strict=True):
        session.upload(buffer, host)
    launch = session.compile(op, case, buffers, output)
    session.run(launch)
    session.sync()
    host_output = np.empty(5000, "float32")
    session.download(output, host_output)
    np.testing.assert_array_equal(host_output, workspace.inputs[0] + workspace.inputs[1])
    session.upload(buffers[0], workspace.inputs[0])
    session.run(launch)
    for _ in range(2):  # the second time, no side holds what was computed in the caller's first array
        again = np.empty(5000, "float32")
        session.download(output, again)
        np.testing.assert_array_equal(again, host_output)
    assert np.isnan(sentinels).all()
    assert all((array == old).all() for array, old in zip(workspace.inputs, before, strict=True))


def test_a_workload_that_is_released_leaves_no_array_behind(tmp_path):
    session = backends.load("hybrid").open("hybrid:fake:gpu")
    op, arrays = OPS["add"], []
    for regime in REGIMES:
        cycle = ready(session, case_of(op, regime, n=4096), tmp_path)
        cycle.seconds(2)
        arrays += [weakref.ref(array) for array in (*cycle.workspace.inputs, cycle.workspace.host_outputs[0])]
        cycle.workspace.release()
        del cycle
    small = kind_of(op)(session, op, case_of(op, "resident-queued", n=8), 1, "random", tmp_path)
    gate(small, small.case, lambda phase: None)  # the actor remembers the inputs that it saw last
    gc.collect()
    assert not [ref for ref in arrays if ref() is not None]
    session.close()


@pytest.mark.parametrize(("word", "raised"), [
    ("wrong", WrongResult), ("oom", DeviceOutOfMemory), ("build", BuildError), ("lost", DeviceLost),
])  # fmt: skip
@pytest.mark.parametrize("regime", REGIMES)
def test_a_gpu_that_fails_is_found_out(word, raised, regime, tmp_path):
    session = backends.load("hybrid").open(f"hybrid:fake:{word}")
    with pytest.raises(raised):
        ready(session, case_of(OPS["add"], regime, device=f"hybrid:fake:{word}", n=2048), tmp_path)
    session.close()
    session.close()
