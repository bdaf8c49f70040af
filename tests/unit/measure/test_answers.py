"""What a worker answers in the process of the tests, what it times as an overhead, and on which CPU its blocks begin."""

import errno
import io
import json
import os
from itertools import pairwise
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from gpubench import backends, kernels
from gpubench.base import errors
from gpubench.measure import protocol
from gpubench.measure.worker import hardware
from gpubench.measure.worker.device import CpuTurns, current_cpu
from gpubench.measure.worker.main import DeviceWorker
from gpubench.measure.worker.workspace import Wrong
from gpubench.result.run import Check, WorkerRecord
from tests.unit.measure.builders import RIGHT, case, device, opened_worker

WRONG = Check(ok=False, max_error=1.0, limit=0.1, scale="value", index=[3])
REFUSED, BROKE = protocol.Refused, protocol.Broke
ERRORS = [
    (errors.BackendUnavailable("no driver", hint="install it"), REFUSED(id=7, reason="unavailable", detail="no driver", hint="install it")),
    (errors.Unsupported("no float64", reason="no-dtype"), REFUSED(id=7, reason="no-dtype", detail="no float64")),
    (errors.Unsupported("40 degrees", reason="warm"), REFUSED(id=7, reason="unsupported", detail="warm: 40 degrees")),
    (errors.DeviceOutOfMemory("it is full"), REFUSED(id=7, reason="out-of-memory", detail="it is full")),
    (MemoryError("8 GiB"), REFUSED(id=7, reason="out-of-memory", detail="host memory: 8 GiB")),
    (errors.BackendError("it broke", reason="odd"), BROKE(id=7, reason="error", detail="odd: it broke", phase="check")),
    (errors.DeviceLost("it fell off"), BROKE(id=7, reason="device-lost", detail="it fell off", phase="check", fatal=True)),
    (Wrong(WRONG, hint="mend it", detail="it is wrong"),
        BROKE(id=7, reason="wrong-result", detail="it is wrong", hint="mend it", phase="check", check=WRONG)),
]  # fmt: skip


@pytest.mark.parametrize(("error", "reply"), ERRORS, ids=[type(error).__name__ for error, _ in ERRORS])
def test_an_error_that_was_expected_is_a_reply(monkeypatch, error, reply):
    def fail(request):
        worker.announce("check")
        raise error

    worker = DeviceWorker(io.BytesIO())
    monkeypatch.setattr(worker, "_carry_out", fail)
    assert worker.answer(protocol.Reallocate(id=7)) == reply


@pytest.mark.parametrize(("error", "detail"), [
    (ZeroDivisionError("a bug"), "ZeroDivisionError: a bug"),
    (OSError(errno.EMFILE, "too many"), f"OSError: [Errno {errno.EMFILE}] too many: {errors.NO_FILES}"),
])  # fmt: skip
def test_any_other_error_is_named_with_the_limit_behind_it(error, detail):
    reply = DeviceWorker(io.BytesIO()).unforeseen(protocol.Close(id=3), error)
    assert reply == BROKE(id=3, reason="error", detail=detail)


def test_what_a_step_uses_stays_however_little_memory_there_is(tmp_path):
    """A CPU may hold 40 % of what it may use: here two of the sizes."""
    messages = io.BytesIO()
    worker = opened_worker("fake:cpu", tmp_path, messages, host_bytes=250_000)
    cases = [case(n, "fake:cpu") for n in (1000, 1500, 2000)]
    for each in cases:
        worker.answer(protocol.Load(id=2, case=each, reference=False))
    for each in cases:
        worker.answer(protocol.Prepare(id=3, case=each, session=0, time_it=False))
    phases = [protocol.decode_reply(line).name for line in messages.getvalue().splitlines()]
    assert phases.count("inputs") == 3


@pytest.mark.parametrize(
    ("value", "plain"), [(np.float32(1.5), 1.5), (np.str_("a"), "a"), (np.int64(3), 3), (Mock(spec=[]), None)]
)
def test_a_message_holds_the_numbers_and_texts_of_a_library(value, plain):
    done = protocol.Done(id=1, notes=[value])
    if plain is None:
        with pytest.raises(TypeError, match="no message can hold an object of type Mock"):
            protocol.encode(done)
    else:
        assert json.loads(protocol.encode(done))["notes"] == [plain]


def test_no_cpu_is_known_where_the_c_library_does_not_tell_it(monkeypatch):
    for library, number in (
        (Mock(sched_getcpu=lambda: 3), 3),
        (Mock(sched_getcpu=lambda: 0), 0),
        (Mock(sched_getcpu=lambda: -1), None),
        (Mock(spec=[]), None),
    ):
        monkeypatch.setattr("gpubench.measure.worker.device.ctypes.CDLL", lambda name, library=library: library)
        assert current_cpu() == number


@pytest.mark.parametrize(("opens", "reason", "detail"), [
    (Mock(side_effect=TypeError("Can't instantiate abstract class Own")), "bad-plugin", "the backend fake lacks what a session has to have: Can't"),
    (lambda *_, **__: 7, "error", "open of the backend fake returns no Session but int"), (Mock(side_effect=TypeError("else")), None, "else")])  # fmt: skip
def test_a_backend_that_opens_no_session_is_at_fault(monkeypatch, opens, reason, detail):
    monkeypatch.setattr(type(backends.load("fake")), "open", opens)
    worker, asked = (
        DeviceWorker(io.BytesIO()),
        protocol.Open(id=7, device_id="fake:gpu", threads=1, seed=1, inputs="random", scratch=b"", since=0.0),
    )
    if reason is None:
        with pytest.raises(TypeError, match=detail):
            worker.answer(asked)
    else:
        reply = worker.answer(asked)
        assert (type(reply), reply.reason, reply.phase, reply.detail.startswith(detail)) == (
            BROKE,
            reason,
            "open",
            True,
        )


def test_without_a_device_there_is_nothing_to_measure():
    reply = DeviceWorker(io.BytesIO()).answer(protocol.MeasureOverhead(id=1))
    assert (type(reply), reply.detail) == (protocol.Refused, "no device is open")


# ------------------------------------------------------------------- opening, as an overhead


@pytest.fixture
def opened(monkeypatch):
    """The timer of `open` on a scripted device, and the replies of the processes that it starts."""
    replies, session, op = [], backends.load("fake").open("fake:gpu"), kernels.load("open")
    worker = SimpleNamespace(ask=lambda request, deadline_s: replies.pop(), close=lambda: None)
    monkeypatch.setattr(hardware, "Worker", lambda threads: worker)
    asked = protocol.Open(
        id=1, device_id="fake:gpu", threads=1, seed=1, inputs="random", scratch=b"", since=0.0
    )
    yield hardware.OverheadTimer(session, op, case(1, "fake:gpu", op="open"), asked), replies
    session.close()


def reply_after(open_s):
    record = WorkerRecord(device_id="fake:gpu", threads=1, env={}, open_s=open_s)
    return protocol.Opened(id=1, device=device("fake:gpu"), record=record)


def test_a_device_is_opened_in_fresh_processes_and_once_to_see_that_it_can_be(opened):
    timer, replies = opened
    replies += [reply_after(open_s) for open_s in (0.5, 0.25, 9.0)]
    timer.verify()
    timer.verify()
    assert timer.seconds(2) == 0.375
    replies += [reply_after(None), protocol.Refused(id=1, reason="unavailable", detail="it is in use")]
    for why in ("it is in use", "a second process cannot open the device"):
        with pytest.raises(errors.BackendUnavailable, match=why):
            timer.seconds(1)


@pytest.mark.parametrize(("call", "events"), [
    ("sync", "wait clock wait wait wait clock"), ("roundtrip", "clock run wait run wait run wait clock"),
    ("launch", "clock run run clock wait clock run clock wait"), ("upload", "clock up wait up wait up wait clock"),
    ("download", "clock down down down clock"),
])  # fmt: skip
def test_an_overhead_is_its_calls_and_nothing_else(monkeypatch, call, events):
    """A queue of two launches is waited for outside of what is timed."""
    monkeypatch.setattr(hardware, "QUEUE", 2)
    session, op = backends.load("fake").open("fake:gpu"), kernels.load(call)
    timer = hardware.OverheadTimer(session, op, case(64, "fake:gpu", op=call), None)
    assert timer.verify() == RIGHT
    seen = []
    for name, word in (("sync", "wait"), ("run", "run"), ("upload", "up"), ("download", "down")):
        place = timer.transfers if name.endswith("load") else session
        monkeypatch.setattr(place, name, lambda *asked, word=word: seen.append(word))
    monkeypatch.setattr(session, "clock", lambda: (seen.append("clock"), float(len(seen)))[1])
    seconds = timer.seconds(3)
    assert " ".join(seen) == events
    at = [i for i, word in enumerate(seen, 1) if word == "clock"]
    assert seconds == sum(end - begin for begin, end in zip(at[::2], at[1::2], strict=True)) / 3


# ---------------------------------------------------------------------- CPUs in turn: those that are like the first one, and the thread stays free to move


ALL = set(range(8))


@pytest.fixture
def system(monkeypatch):
    """Eight CPUs, the thread on number 1; `moves` has every affinity that was set."""
    moves = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(ALL), raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: moves.append(set(cpus)), raising=False)
    monkeypatch.setattr("gpubench.measure.worker.device.current_cpu", lambda: 1)
    return moves


def blocks(moves):
    """The CPU of each block; after each move the thread is free again."""
    assert moves[1::2] == [ALL] * (len(moves) // 2)
    return [next(iter(cpus)) for cpus in moves[::2]]


@pytest.mark.parametrize(("alike", "among"), [
    ([], ALL), (["0-7"], ALL), (["0-3", "4-7"], {0, 1, 2, 3}), (["0-3", "4-7", "0-1,4-5", "2-3,6-7"], {0, 1}),
    (["4-7"], ALL),
])  # fmt: skip
def test_each_block_begins_on_another_cpu_that_is_like_the_first(system, alike, among):
    turns = CpuTurns(alike, "a")
    for _ in range(20 * len(among)):
        turns.next()
    found = blocks(system)
    assert all(first != second for first, second in pairwise(found))
    rounds = [found[start : start + len(among)] for start in range(0, len(found), len(among))]
    assert all(set(one) == among for one in rounds), "every CPU once before any comes again"
    assert len(among) < 3 or len(set(map(tuple, rounds))) > 1, "in other orders"


def test_workers_take_them_in_orders_of_their_own(system):
    orders = set()
    for seed in "abcdef":
        turns = CpuTurns([], seed)
        del system[:]
        for _ in ALL:
            turns.next()
        orders.add(tuple(blocks(system)))
    assert len(orders) > 3


def test_one_cpu_or_one_that_went_offline_or_a_system_that_moves_no_threads_ends_nothing(system, monkeypatch):
    CpuTurns(["0-7", "1"], "a").next()
    assert system == []
    monkeypatch.setattr(os, "sched_setaffinity", Mock(side_effect=OSError("no such CPU")), raising=False)
    CpuTurns([], "a").next()
    monkeypatch.delattr(os, "sched_getaffinity")
    CpuTurns(["0-3"], "a").next()


def test_the_blocks_of_a_gpu_have_turns_and_those_of_the_cpu_none(monkeypatch, tmp_path):
    seeds = []
    monkeypatch.setattr("gpubench.measure.worker.device.CpuTurns", lambda alike, seed: seeds.append(seed))
    for device_id in ("fake:cpu", "fake:gpu"):
        opened_worker(device_id, tmp_path).device.close()
    assert seeds == ["fake:gpu 0.0"]
