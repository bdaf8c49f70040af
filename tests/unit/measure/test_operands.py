"""Operands in a worker: what is drawn, shared by sizes and ops, sent once, kept, travels and is checked, with roles, dtypes and several outputs."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from gpubench import backends, kernels
from gpubench.backends.hidden.fake import FakeSession
from gpubench.backends.numpy import NumpySession
from gpubench.backends.shared import host
from gpubench.backends.shared.host import random_inputs
from gpubench.base.errors import DeviceOutOfMemory, WrongResult
from gpubench.kernels.contract.kernel import Kernel
from gpubench.kernels.contract.op import EXACT, Ids, Ladder, Op, Operand, Params, Range, Tolerance
from gpubench.measure import conformance, protocol
from gpubench.measure.worker.operands import GUARD, SHARED_BYTES, Operands, SharedInputs, Weights
from gpubench.measure.worker.timer import Timer
from gpubench.measure.worker.workspace import Workspace, Wrong, gate
from gpubench.result.case import Case
from tests import judging
from tests.unit.measure.builders import opened_worker


def case(op, n, dtype="float32", implementation="library", regime="resident", calls=None, **shape):
    return Case(op.name, op.group, {"n": n, **shape}, dtype, implementation, regime, "numpy:0", calls)


def sizes(op):
    """Three small sizes of its ladder, the largest first, as a visit asks for them."""
    small, middle, large = op.sizes.sizes()[:3] if op.sizes.low < 1024 else (1024, 3072, 4096)
    return large, small, middle


# Drawing does not know the op, nor cutting the dtype: of each op two dtypes, each with another kind of values.
@pytest.mark.parametrize(("name", "dtype", "kind"), [
    (name, *drawn) for name in kernels.usual()
    for drawn in zip(kernels.load(name).dtypes, ("random", "normal"), strict=False)
])  # fmt: skip
def test_a_smaller_size_has_the_inputs_and_the_answer_that_it_has_alone(name, dtype, kind, tmp_path):
    op = kernels.load(name)
    shared = Operands(op, 1, kind, tmp_path)
    for n in sizes(op):
        ours = case(op, n, dtype)
        inputs = host.random_inputs(op, ours.params, dtype, 1, kind)
        found = shared.inputs(ours)
        assert [x.shape for x in found] == [operand.shape(ours.params) for operand in op.inputs]
        assert [x.tobytes() for x in found] == [x.tobytes() for x in inputs]
        assert all(x.flags["C_CONTIGUOUS"] for x in found)
        ((want, scale, _),) = shared.references(ours)
        expected, spread, _ = judging.reference(op, inputs, tmp_path, f"alone {name} {n} {dtype} {kind}")
        assert want.shape == expected.shape
        np.testing.assert_allclose(want, expected, rtol=1e-12, atol=1e-12)
        assert (scale is None) == (spread is None)
        if scale is not None:
            ours, theirs = (np.broadcast_to(found, want.shape) for found in (scale, spread))
            np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize("other", [
    ("add", 1000, "float64", {}), ("add", 2000, "float32", {}), ("softmax", 1024, "float32", {"columns": 64}),
])  # fmt: skip
def test_a_larger_size_another_dtype_and_another_shape_are_made_anew(other, tmp_path):
    name, n, dtype, shape = other
    op = kernels.load(name)
    shared, larger = Operands(op, 1, "random", tmp_path), case(op, n, dtype, **shape)
    shared.inputs(case(op, 1024 if shape else 1000, "float32"))
    alone = host.random_inputs(op, larger.params, dtype, 1)
    assert [(x.shape, x.tobytes()) for x in shared.inputs(larger)] == [(x.shape, x.tobytes()) for x in alone]


@pytest.mark.parametrize(("name", "small", "large", "begins"), [
    *((name, {"n": 4096}, {"n": 2**24}, True) for name in ("add", "gelu", "softmax", "dot")),
    ("add", {"n": 2**24}, {"n": 4096}, False), ("matmul", {"n": 64}, {"n": 4096}, False),
    ("softmax", {"n": 2048, "columns": 256}, {"n": 4096, "columns": 256}, True), ("softmax", {"n": 1117}, {"n": 4096}, False),
])  # fmt: skip
def test_ops_of_one_length_begin_and_those_of_squares_or_other_rows_do_not(name, small, large, begins):
    assert kernels.load(name).begins(small, large) == begins


# ---------------------------------------------------------------------- inputs that the ops of a run share


@pytest.fixture
def shared():
    return SharedInputs(1, "random", SHARED_BYTES)


def workspace(session, shared, op, n, folder):
    operands = Operands(op, 1, "random", folder, shared=shared)
    return Workspace(session, op, case(op, n), 1, "random", folder, operands)


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


def test_what_an_earlier_case_changed_is_no_fault_of_the_next(tmp_path):
    worker = opened_worker("numpy:0", tmp_path)
    first, second = (case(kernels.load(name), 100) for name in ("relu", "copy"))
    worker.answer(protocol.Prepare(id=2, case=first, session=0, expected_s=1e-3))
    place = {"session": 0, "round": 0, "position": 0}
    worker.answer(protocol.Sample(id=3, case_id=first.id, samples=2, warmup_s=0.0, limit_s=9.0, **place))
    worker.device.kept.of_case(first.id).workspace.buffers[0].base[:] ^= 1
    reply = worker.answer(protocol.Prepare(id=4, case=second, session=0, expected_s=1e-3))
    assert isinstance(reply, protocol.Prepared), reply
    assert worker.answer(protocol.Finish(id=5, case_id=first.id)).reason == "wrong-result"


def test_the_half_behind_an_odd_size_which_a_device_writes_with_it_is_restored(
    session, shared, tmp_path, monkeypatch
):
    total, upload = kernels.load("sum"), session.upload
    memory = shared.bind(session, total, total.inputs[0], case(total, 1000)).buffer

    def upload_words(buffer, host):
        upload(buffer, host)
        memory[33] *= host.size != 33

    monkeypatch.setattr(session, "upload", upload_words)
    ours = workspace(session, shared, total, 33, tmp_path)
    assert gate(ours, ours.case, lambda phase: None).check.ok


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


# ---------------------------------------------------------------------- roles and dtypes of their own, several outputs


ROWS, WIDTH = 50, 12


def expr(xp: Any, ids: Any, x: Any, table: Any) -> tuple[Any, Any, Any]:
    rows = table[ids]
    return rows * x, table * 0 + xp.sum(x, axis=0), ids + ids


def build(np: Any, blocks: Any, params: Params) -> Any:
    def launch(inputs: Sequence[Any], outputs: tuple[Any, ...]) -> None:
        for output, result in zip(outputs, expr(np, *inputs), strict=True):
            np.copyto(output, result)

    return launch


def scale(xp: Any, ids: Any, x: Any, table: Any) -> Any:
    return xp.broadcast_to(xp.sum(xp.abs(x), axis=0), table.shape)


OP = Op(
    name="lookup", group="test", summary="rows of a table", params={"n": "rows"}, sizes=Ladder(1, 1000),
    dtypes=("float32", "float64"),
    inputs=(
        Operand("ids", lambda p: (p["n"],), Ids(lambda p: ROWS), dtype="int32"),
        Operand("x", lambda p: (p["n"], WIDTH), "normal"),
        Operand("table", lambda p: (ROWS, WIDTH), "fan-in", "weight"),
    ),
    output=Operand("y", lambda p: (p["n"], WIDTH)),
    more_outputs=(
        Operand("grad", lambda p: (ROWS, WIDTH), role="weight", tolerance=Tolerance(64, scale)),
        Operand("twice", lambda p: (p["n"],), dtype="int32", tolerance=EXACT),
    ),
    flops=lambda p: p["n"] * WIDTH, expr=expr, tolerance=Tolerance(2),
    tuned={"numpy": (Kernel("numpy", build),)},
)  # fmt: skip
IMPLEMENTATIONS = ("library", "tuned")


@pytest.fixture
def session():
    opened = backends.load("numpy").open("numpy:0", 1)
    yield opened
    opened.close()


def timer_of(session, folder, implementation, regime, op=OP):
    own = case(op, 37, "float32", implementation, regime, 2 if regime == "transfer-once" else None)
    workspace = Workspace(session, op, own, 1, "random", folder)
    return Timer(workspace, own, gate(workspace, own, lambda phase: None).launch)


# ---------------------------------------------------------------- weights


def counted(session, monkeypatch):
    """By name the calls that the session gets from now on: arrays that are uploaded, allocations, what is freed."""
    calls = {"allocate": [], "upload": [], "free": []}

    def noting(name, call):
        return lambda *asked: (calls[name].append(asked), call(*asked))[1]

    for name in calls:
        monkeypatch.setattr(session, name, noting(name, getattr(session, name)))
    return calls


def at_sizes(session, folder, weights, sizes=(3, 700, 5), op=OP):
    """One workspace after the other, each released before the next."""
    operands = Operands(op, 1, "random", folder, weights)
    for n in sizes:
        own = case(op, n, implementation="tuned")
        workspace = Workspace(session, op, own, 1, "random", folder, operands)
        told = gate(workspace, own, lambda phase: None).check
        assert told.limit > 0, "of an exact output and one with errors it is the latter's"
        workspace.release()


def test_the_loading_of_weights_is_timed_once(session, tmp_path):
    weights, size = Weights(1, "random"), 4 * ROWS * WIDTH
    first, second = (
        Workspace(session, OP, case(OP, n), 1, "random", tmp_path, Operands(OP, 1, "random", tmp_path, weights))
        for n in (3, 700)
    )  # fmt: skip
    assert first.loading() == (size, None)
    seen, upload = [], session.upload
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "sync", lambda: seen.append("wait"))
        patch.setattr(session, "upload", lambda buffer, host: (seen.append(host.shape), upload(buffer, host)))
        first.upload_inputs()
    assert seen[-4:] == ["wait", (ROWS, WIDTH), "wait", "wait"], "and nothing else is timed"
    _, load_s = first.loading()
    assert load_s > 0
    second.upload_inputs()
    assert second.loading() == (size, load_s)


@pytest.mark.parametrize("error", [DeviceOutOfMemory, MemoryError])
def test_inputs_that_find_no_memory_are_uploaded_whole_the_next_time(session, tmp_path, monkeypatch, error):
    workspace = Workspace(session, OP, case(OP, 3), 1, "random", tmp_path)
    upload, sent = session.upload, []

    def failing_upload(buffer, host):
        sent.append(host)
        if len(sent) == 2:
            raise error("no room")
        upload(buffer, host)

    monkeypatch.setattr(session, "upload", failing_upload)
    with pytest.raises(error):
        workspace.upload_inputs()
    workspace.upload_inputs()
    assert len(workspace.buffers) == len(OP.inputs)


def test_weights_that_nobody_reads_are_kept_while_there_is_room(session, tmp_path, monkeypatch):
    calls, size = counted(session, monkeypatch), 4 * ROWS * WIDTH
    weights, other = Weights(1, "random", spare=size), replace(OP, name="other")
    at_sizes(session, tmp_path, weights, (3,))
    at_sizes(session, tmp_path, weights, (3,), other)
    assert len(calls["allocate"]) - len(calls["free"]) == 1, "the last one is kept"
    sent = len(calls["upload"])
    at_sizes(session, tmp_path, weights, (5,), other)
    assert (ROWS, WIDTH) not in [host.shape for _, host in calls["upload"][sent:]], "and need not go up again"
    at_sizes(session, tmp_path, Weights(1, "random", spare=size - 1), (3,))
    assert len(calls["allocate"]) - len(calls["free"]) == 1, "without room none is kept"


def test_a_worker_sends_the_weights_of_an_op_once_for_all_its_sizes(tmp_path, monkeypatch):
    sent, original = [], NumpySession.upload
    monkeypatch.setattr(
        NumpySession, "upload", lambda self, buffer, host: (sent.append(host.shape), original(self, buffer, host)),
    )  # fmt: skip
    worker = opened_worker("numpy:0", tmp_path)
    for number, n in enumerate((3, 5, 4)):
        layer = case(kernels.load("layernorm"), n, implementation="tuned")
        reply = worker.answer(protocol.Prepare(id=2 + number, case=layer, session=0, time_it=False))
        assert isinstance(reply, protocol.Prepared), reply
    shared = [(n * 256 + GUARD,) for n in (3, 5)]
    assert sorted(sent) == [(256,), (256,), *shared], "n = 4 is the beginning of n = 5"
    gpu, own = (
        opened_worker("fake:gpu", tmp_path),
        replace(layer, device_id="fake:gpu", implementation="library"),
    )
    other = gpu.answer(protocol.Prepare(id=2, case=own, session=0, time_it=False))
    assert (reply.parts.weights_bytes, other.parts.weights_bytes) == (None, 2 * 256 * 4), "a CPU loads none"


# ---------------------------------------------------------------- what is drawn


def test_a_weight_is_the_same_at_every_size_and_in_every_other_param():
    small, large = (random_inputs(OP, params, "float32", 1) for params in ({"n": 3}, {"n": 700, "other": 2}))
    for operand, first, second in zip(OP.inputs, small, large, strict=True):
        if operand.role == "weight":
            assert first.tobytes() == second.tobytes()
    again = random_inputs(replace(OP, name="other"), {"n": 3}, "float32", 1)
    assert small[2].tobytes() != again[2].tobytes(), "another op has other weights"


@pytest.mark.parametrize("kind", ["random", "zeros", "ones", "normal"])
@pytest.mark.parametrize("below", [1, 2, 50])
def test_ids_are_whole_and_in_their_range(kind, below):
    op = replace(OP, inputs=(replace(OP.inputs[0], values=Ids(lambda p: below)),))
    (ids,) = random_inputs(op, {"n": 4000}, "float16", 1, kind)
    assert (ids.dtype, set(ids) <= set(range(below))) == (np.int32, True)
    if kind in ("random", "normal"):
        assert set(ids) == set(range(below))


# ---------------------------------------------------------------- what travels


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("regime", ["transfer-once", "transfer-always"])
def test_activations_travel_and_nothing_else(session, tmp_path, implementation, regime):
    timer = timer_of(session, tmp_path, implementation, regime)
    moved = {"up": [], "down": []}
    timer.transfers = SimpleNamespace(
        upload=lambda buffer, host: (moved["up"].append(host), session.upload(buffer, host)),
        download=lambda buffer, host: (moved["down"].append(host), session.download(buffer, host)),
    )
    timer.seconds(1)
    workspace = timer.workspace
    sides = (("up", OP.inputs, workspace.inputs), ("down", OP.outputs, workspace.host_outputs))
    for way, operands, arrays in sides:
        expected = [id(x) for operand, x in zip(operands, arrays, strict=True) if operand.travels]
        assert [id(x) for x in moved[way]] == expected
    timer.release()
    workspace.release()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("regime", ["resident", "transfer-once", "transfer-always"])
def test_every_output_is_checked_in_every_regime(session, tmp_path, implementation, regime):
    timer = timer_of(session, tmp_path, implementation, regime)
    timer.verify()
    run_right, spoilt = session.run, []

    def run(launch, repeat=1):
        run_right(launch, repeat)
        for number in spoilt:
            launch.output[number][-1] += 1

    session.run = run
    for number, operand in enumerate(OP.outputs):
        spoilt.append(number)
        with pytest.raises(Wrong, match=rf"of {operand.name};"):
            timer.verify()
        spoilt.clear()
        timer.seconds(1)
        timer.verify()


@pytest.mark.parametrize(("regime", "skipped"), [
    ("transfer-once", "download"), ("transfer-always", "upload"), ("transfer-always", "download"),
])  # fmt: skip
def test_a_copy_that_does_nothing_leaves_no_earlier_answer(session, tmp_path, monkeypatch, regime, skipped):
    timer = timer_of(session, tmp_path, "tuned", regime)
    timer.verify()
    timer.seconds(1)
    monkeypatch.setattr(timer.transfers, skipped, lambda buffer, host: None)
    with pytest.raises(IndexError if skipped == "upload" else Wrong):  # what fills ids is none
        timer.verify()


# ---------------------------------------------------------------- who computes them


@pytest.mark.parametrize("device", ["fake:gpu", "numpy:0", "hybrid:fake:gpu"])
def test_every_backend_keeps_the_contract_with_such_an_op(device):
    backend = backends.load(device.partition(":")[0])
    report = conformance.suite(backend, device, [OP], conformance.Checks(around=False))
    assert report.findings == []
    assert bool(report.checked) == (backend.name != "hybrid"), "an op with several outputs is not split"
