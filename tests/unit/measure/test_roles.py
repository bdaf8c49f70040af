"""Operands with roles and dtypes of their own, and ops with several outputs: what is drawn, what travels, what is
checked."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from gpubench import backends
from gpubench.backends.numpy import NumpySession
from gpubench.backends.shared.host import random_inputs
from gpubench.base.errors import DeviceOutOfMemory
from gpubench.kernels.contract.kernel import Kernel
from gpubench.kernels.contract.op import EXACT, Ids, Ladder, Op, Operand, Params, Tolerance
from gpubench.measure import conformance, protocol
from gpubench.measure.worker.operands import GUARD, Operands, Weights
from gpubench.measure.worker.timer import Timer
from gpubench.measure.worker.workspace import Workspace, Wrong, gate
from gpubench.result.case import Case
from tests.unit.measure.builders import opened_worker

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
    case = case_of(op, 37, implementation, regime, 2 if regime == "transfer-once" else None)
    workspace = Workspace(session, op, case, 1, "random", folder)
    return Timer(workspace, case, gate(workspace, case, lambda phase: None).launch)


# ---------------------------------------------------------------- weights


def case_of(op, n, implementation="tuned", regime="resident", calls=None):
    return Case(op.name, op.group, {"n": n}, "float32", implementation, regime, "numpy:0", calls)


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
        case = case_of(op, n)
        workspace = Workspace(session, op, case, 1, "random", folder, operands)
        gate(workspace, case, lambda phase: None)
        workspace.release()


def test_the_loading_of_weights_is_timed_once(session, tmp_path):
    weights, size = Weights(1, "random"), 4 * ROWS * WIDTH
    first, second = (
        Workspace(session, OP, case_of(OP, n), 1, "random", tmp_path, Operands(OP, 1, "random", tmp_path, weights))
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
    workspace = Workspace(session, OP, case_of(OP, 3), 1, "random", tmp_path)
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
        case = Case("linear", "layers", {"n": n, "k": 7, "m": 9}, "float32", "tuned", "resident", "numpy:0")
        reply = worker.answer(protocol.Prepare(id=2 + number, case=case, session=0, time_it=False))
        assert isinstance(reply, protocol.Prepared), reply
    assert sent.count((7, 9)) == 1
    shared = {shape[0] for shape in sent if len(shape) == 1 and shape[0] > 28}
    assert shared == {n * 7 + GUARD for n in (3, 5)}, "n = 4 is the beginning of n = 5"


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


def drawn(values: str, shape: tuple[int, ...], dtype: str = "float64") -> np.ndarray:
    op = replace(OP, inputs=(Operand("x", lambda p: shape, values),))
    return random_inputs(op, {"n": 1}, dtype, 1)[0]


@pytest.mark.parametrize(("shape", "terms"), [((400, 300), 400), ((64, 32, 3, 3), 32 * 9)])
def test_fan_in_keeps_the_size_of_a_sum(shape, terms):
    assert drawn("fan-in", shape).std() == pytest.approx(terms**-0.5, rel=0.02)


def test_other_values_are_what_they_say():
    assert (drawn("ones", (9, 9)) == 1).all()
    assert (drawn("zeros", (9, 9)) == 0).all()
    assert drawn("relu", (100, 100)).min() == 0
    assert (drawn("relu", (100, 100)) > 0).mean() == pytest.approx(0.5, abs=0.03)
    rows = drawn("probabilities", (3000, 10))
    assert rows.min() > 0
    np.testing.assert_allclose(rows.sum(axis=-1), 1)
    np.testing.assert_array_equal(drawn("probabilities", (300, 10)), rows[:300])


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
