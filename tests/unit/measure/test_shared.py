"""Ops of a run read the beginning of the same few inputs: drawn once, sent once, and never written to."""

import numpy as np
import pytest
from msgspec.structs import replace

from gpubench import kernels
from gpubench.backends.hidden.fake import FakeSession
from gpubench.backends.numpy import NumpyBackend
from gpubench.base.errors import WrongResult
from gpubench.kernels.contract.op import Range
from gpubench.measure import protocol
from gpubench.measure.worker.operands import GUARD, SHARED_BYTES, Operands, SharedInputs
from gpubench.measure.worker.workspace import Workspace, gate
from gpubench.result.case import Case
from tests.unit.measure.builders import opened_worker

SEED = 1


@pytest.fixture(scope="module")
def session():
    opened = NumpyBackend().open("numpy:0", 1, autotune=False)
    yield opened
    opened.close()


@pytest.fixture
def shared():
    return SharedInputs(SEED, "random", SHARED_BYTES)


def case(op, n, dtype="float32"):
    return Case(op.name, op.group, {"n": n}, dtype, "library", "resident", "numpy:0")


def workspace(session, shared, op, n, folder):
    operands = Operands(op, SEED, "random", folder, shared=shared)
    return Workspace(session, op, case(op, n), SEED, "random", folder, operands)


def inputs(shared, name, n, dtype="float32"):
    op = kernels.load(name)
    return [shared.view(op, operand, case(op, n, dtype)) for operand in op.inputs]


def test_ops_read_the_same_arrays_and_smaller_sizes_their_beginning(shared):
    small = inputs(shared, "add", 100)
    x, y = inputs(shared, "add", 3 << 20)
    assert [array.tobytes() for array in small] == [x[:100].tobytes(), y[:100].tobytes()]
    assert not np.array_equal(x, y)
    assert not x.flags.writeable
    for name, n in (("relu", 1000), ("sub", 10), ("matmul", 20)):
        arrays = inputs(shared, name, n)
        assert all(np.shares_memory(array, whole) for array, whole in zip(arrays, (x, y), strict=False))


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_each_dtype_and_each_kind_of_values_has_its_own(shared, dtype):
    (x,), (other,) = inputs(shared, "relu", 100), inputs(shared, "relu", 100, dtype)
    assert other.dtype.name == dtype
    assert not np.shares_memory(x, other)
    inputs_of_ops = [(op, operand) for op in map(kernels.load, kernels.usual()) for operand in op.inputs]
    ranges = {
        operand.values: shared.view(op, operand, case(op, 100)) for op, operand in inputs_of_ops
        if isinstance(operand.values, Range) and shared.holds(op, operand, case(op, 100))
    }  # fmt: skip
    assert all(((drawn.low <= x) & (x <= drawn.high)).all() for drawn, x in ranges.items())


def test_what_is_no_plain_input_and_what_is_too_large_is_not_shared(shared):
    for op in map(kernels.load, kernels.computing_ops()):
        params = dict.fromkeys(op.params, 64) if op.fits(dict.fromkeys(op.params, 64)) is None else None
        for operand in op.inputs if params else ():
            held = shared.holds(op, operand, replace(case(op, 1), params=params))
            assert not held or (operand.role == "activation" and operand.dtype is None)
    add = kernels.load("add")
    most = SHARED_BYTES // 4 - GUARD
    assert [shared.holds(add, add.inputs[0], case(add, n)) for n in (most, most + 1)] == [True, False]


def test_all_sizes_and_ops_of_a_device_read_one_copy_of_each(session, shared, tmp_path, monkeypatch):
    sent = []
    upload = session.upload
    monkeypatch.setattr(session, "upload", lambda buffer, host: (sent.append(host), upload(buffer, host)))
    asked = (("add", 3000), ("sub", 3000), ("add", 70), ("relu", 3000), ("mul", 3000))
    made = [workspace(session, shared, kernels.load(name), n, tmp_path) for name, n in asked]
    for one in made:
        one.upload_inputs()
    assert [host.size for host in sent] == [3000 + GUARD] * 2
    assert all(np.shares_memory(one.buffers[0], made[0].buffers[0]) for one in made)
    for one in made:
        one.release()


@pytest.mark.parametrize("behind", [False, True], ids=["into its input", "behind it"])
@pytest.mark.parametrize("n", [1000, 64], ids=["the largest size", "a smaller one"])
def test_who_writes_to_its_input_is_wrong_and_the_next_finds_it_whole(session, shared, tmp_path, behind, n):
    copy = kernels.load("copy")
    memory = shared.bind(session, copy, copy.inputs[0], case(copy, 1000)).buffer

    def trespass(xp, x):
        right = x.copy()
        memory[n if behind else n - 1] += 1
        return right

    ours = workspace(session, shared, replace(copy, expr=trespass, reference=lambda xp, x: +x), n, tmp_path)
    with pytest.raises(WrongResult, match="changed its input x") as caught:
        gate(ours, ours.case, lambda phase: None)
    assert caught.value.hint
    after = workspace(session, shared, copy, 1000, tmp_path)
    assert gate(after, after.case, lambda phase: None).check.ok


@pytest.mark.parametrize("page_locked", [False, True])
def test_a_caller_of_a_gpu_has_page_locked_arrays_where_they_are_asked_for(tmp_path, monkeypatch, page_locked):
    asked, whole = [], FakeSession.host_array

    def noting(self, shape, *kind):
        asked.append(shape)
        return whole(self, shape, *kind)

    monkeypatch.setattr(FakeSession, "host_array", noting)
    worker = opened_worker("fake:gpu", tmp_path, page_locked=page_locked)
    relu = replace(case(kernels.load("relu"), 77), device_id="fake:gpu", regime="transfer-always")
    reply = worker.answer(protocol.Prepare(id=2, case=relu, session=0))
    assert isinstance(reply, protocol.Prepared), reply
    assert asked.count((77,)) == page_locked
    ended = []
    monkeypatch.setattr(FakeSession, "close", lambda self: ended.append(worker.device.kept.find(relu)))
    assert isinstance(worker.answer(protocol.Close(id=3)), protocol.Done)
    assert ended == [None], "closing a worker frees its memory and closes its device"


def test_copies_that_are_assigned_anew_lie_elsewhere(session, shared, tmp_path):
    add = kernels.load("add")
    first = workspace(session, shared, add, 1 << 20, tmp_path)
    first.upload_inputs()
    shared.forget_buffers()
    second = workspace(session, shared, add, 1 << 20, tmp_path)
    second.upload_inputs()
    for one, other in zip(first.buffers, second.buffers, strict=True):
        assert not np.shares_memory(one, other)
        assert one.tobytes() == other.tobytes()
