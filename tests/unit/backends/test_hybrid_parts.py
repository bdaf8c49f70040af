"""The pieces of the split: shares in whole units, a second thread that hands back what it raised."""

import threading
import weakref
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpubench import backends, kernels
from gpubench.backends.hybrid import BACKEND, CHUNK, gpu_units, reserved_cores
from gpubench.backends.shared.pieces import HeldPieces
from gpubench.backends.shared.sides import CompanionThread, DividedBuffer, granule, refusal, side_case
from gpubench.base.errors import BackendError, BackendUnavailable, DeviceLost, Unsupported
from gpubench.result.case import Case
from gpubench.result.run import Device


@given(st.integers(2, 1 << 40), st.floats(0, 1), st.floats(0, 1))
@example(1_073_741_799, 0.9921875, 1)
@example(5_293_057, 0.9999999999999999, 1)  # a step and one unit more
def test_each_side_of_a_real_split_gets_something_and_more_is_never_fewer(units, one, other) -> None:
    low, high = sorted((one, other))
    on_gpu = gpu_units(units, low)
    assert on_gpu <= gpu_units(units, high)
    assert gpu_units(units, float(f"{on_gpu / units:.6g}")) == on_gpu, "a file has six digits of a share"
    if 0 < low < 1:
        assert 1 <= on_gpu <= units - 1
        assert abs(on_gpu / units - low) <= 1.5 * granule(units) / units
    else:
        assert on_gpu == low * units


def test_both_run_at_once_and_errors_of_either_side_come_back() -> None:
    entered: list[str] = []
    session: Any = SimpleNamespace(enter=lambda: entered.append(threading.current_thread().name))
    beside = CompanionThread(session)
    meeting = threading.Barrier(2, timeout=10)
    fail = Mock(side_effect=ValueError("a side"))
    for aside, here in ((fail, int), (int, fail)):
        with pytest.raises(ValueError, match="a side"):
            beside.both(aside, here)
        beside.both(meeting.wait, meeting.wait)  # each waits for the other: in turn they would never meet
    assert entered == ["gpubench-beside"]
    array = np.zeros(1)
    held = weakref.ref(array)
    beside.both(partial(array.fill, 1), int)
    del array
    assert held() is None, "a thread that rests holds no arrays"
    beside.close()
    beside.close()


@pytest.mark.parametrize(("made", "expected"), [
    *((reserved_cores(threads, several=several), kept) for threads, several, kept in (
        (2, True, 0), (3, False, 1), (15, False, 1), (16, False, 2), (16, True, 4))),
    *((granule(units), step) for units, step in (
        (1, 1), (511, 1), (512, 2), (1 << 18, 1024), (1 << 20, 1024), (1 << 31, 8192))),
])  # fmt: skip
def test_the_cores_that_move_data_and_the_steps_of_a_share(made, expected) -> None:
    assert made == expected


@pytest.mark.parametrize(("backend", "kind", "name", "implementation"), [
    ("numpy", "cpu", "matmul", "tuned"), ("cupy", "gpu", "matmul", "library"), ("cupy", "gpu", "add", "tuned"),
    ("numpy", "cpu", "add", "tuned"), ("torch", "gpu", "add", "library"), ("fake", "cpu", "add", "library"),
])  # fmt: skip
def test_a_side_takes_its_kernel_and_if_that_is_the_librarys_only_the_cpu(backend, kind, name, implementation) -> None:  # fmt: skip
    device = Device(id=f"{backend}:0", backend=backend, kind=kind, name="a device", api="host")
    op = kernels.load(name)
    case = Case(name, op.group, {"n": 8}, "float32", "tuned", "transfer-once", "hybrid:cupy:0", 3)
    part: Any = side_case(op, case, {"n": 3}, cast("Any", SimpleNamespace(device=device)))
    asked = (part.implementation, part.params, part.calls, part.device_id, part.regime)
    assert asked == (implementation, {"n": 3}, None, f"{backend}:0", device.resident_regime)


def test_the_parts_of_an_operand_are_freed_by_their_sessions() -> None:
    freed: list[Any] = []
    session: Any = Mock(allocate=lambda shape, _: shape, free=freed.append, enter=lambda: freed.append("in"))
    operand = DividedBuffer((8,), "float32")
    first = operand.part(session, "resident", (4,))
    assert (operand.part(session, "resident", (4,)) is first, first.bytes) == (True, 16)
    assert operand.part(session, "resident", (5,)) is not first
    assert freed == ["in", (4,)], "a part of another shape is replaced"
    operand.free()
    assert freed == ["in", (4,), "in", (5,)]
    operand.free()
    assert len(freed) == 4


@pytest.mark.parametrize(("reason", "refused"), [(None, False), ("not-compiled", False), ("limit", True)])
def test_a_side_that_cannot_do_all_of_the_work_is_named(reason, refused) -> None:
    why = reason and Unsupported("no room", reason=reason, hint="buy some")
    session: Any = SimpleNamespace(
        device=Device(id="numpy:0", backend="numpy", kind="cpu", name="CPU", api="host"),
        supports=lambda op, case: why if case.implementation == "library" else None,
    )
    op = kernels.load("matmul")
    case = Case(op.name, op.group, {"n": 8}, "float32", "tuned", "resident", "hybrid:cupy:0")
    told = refusal(op, case, session)
    assert (told is not None) == refused
    assert told is None or (told.detail, told.reason, told.hint) == ("numpy:0: no room", "limit", "buy some")


def test_numpy_gives_threads_up_and_takes_them_back() -> None:
    from threadpoolctl import threadpool_info

    def blas() -> set[int]:
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

    usual = blas()
    session: Any = backends.load("numpy").open("numpy:0", 2)
    assert (session.threads, blas() <= {2}) == (2, True)
    session.use_threads(1)
    assert blas() <= {1}
    session.use_threads(None)
    assert blas() <= {2}
    session.close()
    assert blas() == usual


def split(n: int, outputs: int = 1) -> tuple[Any, list[Any], list[Any]]:
    """A session, what a split addition is compiled of, and its outputs."""
    session: Any = backends.load("hybrid").open("hybrid:fake:gpu")
    op = kernels.load("add")
    case = Case(op.name, op.group, {"n": n}, "float32", "tuned", "transfer-always", "hybrid:fake:gpu")
    a, b, *places = (session.allocate((n,), "float32") for _ in range(2 + outputs))
    return session, [(case, [a, b], place) for place in places], places


def run_split(session: Any, asked: list[Any], places: list[Any], times: int = 1) -> None:
    launches = [session.compile(kernels.load("add"), *one) for one in asked]
    for buffer in asked[0][1]:
        session.upload(buffer, np.ones(buffer.shape, np.float32))
    for launch in launches:
        session.run(launch)
    for place in places * times:  # the CPU's half of the first time went to the array alone
        got = np.zeros(place.shape, np.float32)
        session.download(place, got)
        assert (got == 2).all()
    session.close()


def test_as_many_launches_are_enqueued_as_are_asked_for_a_few_at_a_time(monkeypatch) -> None:
    session, [(case, inputs, place)], _ = split(2048)
    launch, counts = session.compile(kernels.load("add"), case, inputs, place), []
    for buffer in inputs:
        session.upload(buffer, np.ones(2048, np.float32))
    session.run(launch)
    session.sync()
    monkeypatch.setattr(session.gpu, "run", lambda launch, count: counts.append(count))
    session.run(launch, 2 * CHUNK + 3)
    assert counts == [CHUNK, CHUNK, 3]
    assert (launch.on_gpu, launch.on_cpu) == (1024, 1024), "half, until somebody says another share"
    monkeypatch.setattr(launch.gpu.way, "upload", upload := Mock())
    for again, sent in ((False, 0), (True, 2)):
        launch.gpu.send(again=again)
        assert len(upload.mock_calls) == sent, "what is there is sent again only if that is asked for"
    assert launch.staging == session.gpu.transfers("library").staging != session.gpu.transfers("tuned").staging
    session.gpu.tune = Mock()
    session.tune(kernels.load("add"), case, inputs)
    assert [(one.args[1].device_id, one.args[1].params) for one in session.gpu.tune.mock_calls] == [
        ("fake:gpu", {"n": 1024})
    ], "its GPU chooses a kernel for its half"


def test_a_launch_that_was_put_off_is_not_forgotten_for_the_next() -> None:
    run_split(*split(2048, outputs=2), times=2)


@pytest.mark.parametrize(("n", "threads"), [(1 << 19, 0), ((1 << 19) + 4096, 1)])
def test_more_than_two_mebibytes_for_the_gpus_half_take_a_thread(n, threads, monkeypatch) -> None:
    session, asked, places = split(n)
    both, threaded = session.gpu.both, []
    monkeypatch.setattr(session.gpu, "both", lambda *work: threaded.append(work) or both(*work))
    run_split(session, asked, places)
    assert len(threaded) == threads


@pytest.mark.parametrize(("threads", "asleep"), [(2, 1), (4, 0)])
def test_where_no_core_is_left_the_wait_for_the_gpu_is_asleep(threads, asleep, monkeypatch) -> None:
    session, asked, places = split(1 << 21)
    session.cpu.threads, waits = threads, []
    monkeypatch.setattr(session.gpu, "sync", lambda: waits.append("awake, for want of another way"))
    run_split(session, asked, places)
    assert len(waits) == 1 + asleep, "the result is waited for, too"


def test_both_sides_are_closed_even_if_the_pieces_cannot_be_freed(monkeypatch) -> None:
    session, _, _ = split(2048)
    closed: list[Any] = []
    monkeypatch.setattr(HeldPieces, "close", Mock(side_effect=DeviceLost("gone")))
    for side in (session.gpu, session.cpu):
        monkeypatch.setattr(side, "close", partial(closed.append, side))
    session.close()
    assert {*closed} == {session.gpu, session.cpu}


@pytest.mark.parametrize("error", [BackendUnavailable, BackendError])
def test_without_a_gpu_the_reasons_of_all_backends_are_told(monkeypatch, error) -> None:
    def refuse(name: str) -> None:
        raise error(f"no {name}")

    monkeypatch.setattr(backends, "load", refuse)
    with pytest.raises(BackendUnavailable, match="no numpy; no cupy; no wgpu"):
        BACKEND.devices()
