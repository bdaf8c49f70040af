"""The worker process itself, line by line: order of its steps, what it survives, and when it ends."""

import os
import signal
import subprocess
import sys
import time

import msgspec
import pytest

from gpubench.base import child_main
from gpubench.base.child_main import FRAME
from gpubench.measure import protocol
from gpubench.measure.worker.timer import SLOW, TOO_SHORT
from gpubench.result.case import Case

ADD = Case("add", "vector", {"n": 1000}, "float32", "library", "resident-queued", "fake:gpu")


class Talk:
    """A worker and the replies and phases it sends."""

    def __init__(self, folder, start=subprocess.Popen):
        self.process = start(
            [sys.executable, "-PS", child_main.__file__, str(os.getpid()), "gpubench.measure.worker.main"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self.folder, self.number = folder, 0

    def ask(self, kind, **fields):
        """(phases, reply) of one request."""
        self.number += 1
        return self.send(protocol.encode(kind(id=self.number, **fields)))

    def send(self, line):
        self.process.stdin.write(line)
        self.process.stdin.flush()
        phases = []
        while True:
            message = self.hear()
            if not isinstance(message, protocol.Phase):
                assert message.id == self.number
                return phases, message
            phases.append(message.name)

    def hear(self):
        """Return its next message."""
        while not (line := self.process.stdout.readline()).startswith(FRAME):
            assert line == b"\n", line
        return protocol.decode_reply(line.removeprefix(FRAME))

    def open(self, device="fake:gpu", **fields):
        return self.ask(
            protocol.Open, device_id=device, threads=1, seed=1, inputs="random", scratch=bytes(self.folder),
            since=time.monotonic(), **fields,
        )  # fmt: skip

    def sample(self, case, **fields):
        wanted = {"session": 0, "round": 0, "position": 0, "samples": 3, "warmup_s": 0.0, "limit_s": 5.0}
        return self.ask(protocol.Sample, case_id=case.id, **{**wanted, **fields})


@pytest.fixture
def talk(tmp_path, starter):
    conversation = Talk(tmp_path, starter.children())
    yield conversation
    conversation.process.terminate()
    conversation.process.communicate()


def other(case=ADD, **changes):
    return msgspec.structs.replace(case, **changes)


def test_nothing_is_timed_before_the_whole_output_was_checked(talk):
    phases, opened = talk.open()
    assert (phases, type(opened)) == (["open"], protocol.Opened), "other devices open meanwhile"
    phases, overhead = talk.ask(protocol.MeasureOverhead)
    assert (phases, type(overhead)) == (["overhead"], protocol.MeasuredOverhead)
    phases, prepared = talk.ask(protocol.Prepare, case=ADD, session=0)
    assert (type(prepared), prepared.check.ok) == (protocol.Prepared, True)
    assert phases == ["supports", "inputs", "upload", "compile", "first launch", "check", "calibrate", "parts"]
    phases, sampled = talk.sample(ADD)
    assert (phases, len(sampled.block.wall_s) - sampled.block.warmup) == (["sample"], 3)
    phases, done = talk.ask(protocol.Finish, case_id=ADD.id)
    assert (phases, type(done)) == (["check"], protocol.Done), "and once more on what the last launch left"


def test_a_wrong_case_is_never_timed_and_nothing_is_where_only_the_check_is_asked_for(talk):
    talk.open("fake:wrong")
    phases, broke = talk.ask(protocol.Prepare, case=other(device_id="fake:wrong"), session=0)
    assert isinstance(broke, protocol.Broke)
    assert (broke.reason, broke.phase, broke.fatal, broke.check.ok) == ("wrong-result", "check", False, False)
    assert phases[-1] == "check"
    talk.open()
    phases, prepared = talk.ask(protocol.Prepare, case=ADD, session=0, time_it=False)
    assert (phases[-1], prepared.parts.alloc_s) == ("check", [])


def test_given_repeat_counts_are_used_and_not_found_again(talk):
    talk.open()
    once = other(regime="transfer-once", calls=10)
    for case, hot_repeat in ((ADD, 170), (once, None)):
        talk.ask(
            protocol.Prepare, case=case, session=1, repeat=200, hot_repeat=170
        )  # half as long as is asked for
        block = talk.sample(case, session=1)[1].block
        assert (block.repeat, block.hot_repeat) == (200, hot_repeat)


@pytest.mark.parametrize(("kind", "fields"), [
    (protocol.Prepare, {"case": ADD, "session": 0}), (protocol.Prepare, {"case": other(op="nonsense"), "session": 0}),
    (protocol.Finish, {"case_id": ADD.id}), (protocol.ListDevices, {"backend": "nonsense"}),
    (protocol.Open, {"device_id": "fake:nope", "threads": 1, "seed": 1, "inputs": "random", "scratch": b".", "since": 0.0}),
])  # fmt: skip
def test_a_request_that_cannot_be_met_is_answered_and_the_next_one_too(talk, kind, fields):
    reply = talk.ask(kind, **fields)[1]
    assert isinstance(reply, protocol.Refused | protocol.Broke)
    assert reply.detail
    assert isinstance(talk.open()[1], protocol.Opened)
    assert isinstance(talk.ask(protocol.Prepare, case=ADD, session=0)[1], protocol.Prepared)


def step(talk, case, **fields):
    """Measure a case as a step does, and return its phases up to the first sample."""
    talk.ask(protocol.Load, case=case, reference=False)
    phases, reply = talk.ask(protocol.Prepare, case=case, session=0, **fields)
    assert isinstance(reply, protocol.Prepared), reply
    assert isinstance(talk.sample(case)[1], protocol.Sampled)
    assert isinstance(talk.ask(protocol.Finish, case_id=case.id)[1], protocol.Done)
    return phases


def test_what_is_prepared_stays_so_until_memory_is_to_be_assigned_anew(talk):
    talk.open()
    relu = other(op="relu")
    whole = step(talk, ADD)
    step(talk, relu)
    assert step(talk, ADD, repeat=50) == ["supports"]
    assert isinstance(talk.ask(protocol.Reallocate)[1], protocol.Done)
    assert isinstance(talk.sample(ADD)[1], protocol.Broke)
    assert step(talk, ADD) == whole


def test_what_was_used_longest_ago_goes_where_memory_is_short(talk):
    """A CPU may hold 40 % of what it may use: here two of the sizes."""
    talk.open("fake:cpu", host_bytes=250_000)
    on_cpu = other(regime="resident", device_id="fake:cpu")
    cases = {n: other(on_cpu, params={"n": n}) for n in (1000, 1500, 2000)}
    for case in cases.values():
        step(talk, case)
    for n, gone in ((1500, False), (1000, True), (2000, True)):
        assert ("compile" in step(talk, cases[n], repeat=5)) == gone


def test_close_ends_the_process_and_so_does_the_end_of_file_in_the_middle_of_work(talk, tmp_path, starter):
    talk.open()
    assert isinstance(talk.ask(protocol.Close)[1], protocol.Done)
    assert talk.process.wait(10) in (0, -signal.SIGTERM)  # it ends with its group
    talk = Talk(tmp_path, starter.children())
    talk.open("fake:hang")
    talk.number += 1
    prepare = protocol.Prepare(id=talk.number, case=other(device_id="fake:hang"), session=0)
    talk.process.stdin.write(protocol.encode(prepare))
    talk.process.stdin.flush()
    while talk.hear().name != "first launch":
        pass
    talk.process.stdin.close()
    assert talk.process.wait(10) in (0, -signal.SIGTERM)


@pytest.mark.parametrize("expected_s", [None, 1e-9, 1e-4, 10.0])
def test_whatever_was_predicted_the_samples_of_a_block_are_long_enough_and_not_far_too_long(talk, expected_s):
    talk.open()
    untimed = {"device_clock": False, "part_samples": 0}
    phases, _ = talk.ask(protocol.Prepare, case=ADD, session=0, expected_s=expected_s, **untimed)
    assert phases[-1] == "check", "nothing is timed before the block"
    block = talk.sample(ADD)[1].block
    assert TOO_SHORT * 5e-3 <= block.repeat * min(block.wall_s) <= 2 * SLOW * 5e-3


def test_an_overhead_is_as_short_as_it_is(talk):
    talk.open()
    case = other(op="sync", group="overhead", params={"n": 1}, regime="resident-queued")
    _, prepared = talk.ask(protocol.Prepare, case=case, session=0, repeat=1)
    assert isinstance(prepared, protocol.Prepared), prepared
    (_, first), (_, second) = talk.sample(case), talk.sample(case)
    assert first.block.repeat == second.block.repeat == 1
