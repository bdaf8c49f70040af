"""Foreign load: whose CPU time it was, and what is too short to tell."""

import os
import sys
import threading

import psutil
import pytest

from gpubench.base import processes
from gpubench.base.processes import CpuTimes
from gpubench.result.run import SessionRecord

START = CpuTimes(at_s=100.0, total_s=1000.0, busy_s=500.0, steal_s=7.0, ours_s=1.0)


def later(seconds=10.0, cpus=2, ours=0.0, theirs=0.0, stolen=0.0):
    return CpuTimes(START.at_s + seconds, START.total_s + cpus * seconds, START.busy_s + ours + theirs,
                    START.steal_s + stolen, START.ours_s + ours)  # fmt: skip


@pytest.mark.parametrize(("after", "share"), [
    (later(), (0.0, 0.0)), (later(ours=20.0), (0.0, 0.0)), (later(ours=10.0, theirs=1.0), (0.05, 0.0)), (later(theirs=20.0), (1.0, 0.0)),
    (later(ours=1.0, theirs=-0.5), (0.0, 0.0)),  # ticks of 10 ms, counted apart
    # What is stolen is a share of what was asked for, at least of one CPU's time: idle CPUs hide nothing.
    (later(ours=18.0, stolen=2.0), (0.0, 0.1)), (later(cpus=32, ours=18.0, stolen=2.0), (0.0, 0.1)), (later(cpus=32, stolen=1.0), (0.0, 0.1)),
    # A short session tells what is plain: one stood in for longer ones on a machine that was busy all the time.
    (later(2.0, theirs=0.1), (0.025, 0.0)), (later(1.0, theirs=0.21), (0.105, None)), (later(1.0, ours=0.4, stolen=1.6), (None, 0.8)),
    (later(0.5, stolen=0.21), (None, 0.42)), (later(0.2, theirs=0.3), (0.75, None))])  # fmt: skip
def test_what_is_not_ours_is_foreign(after, share):
    assert processes.load_between(START, after) == pytest.approx(share)


def test_what_cannot_be_told_is_none_and_not_zero():
    hasty = (later(seconds=1.0, theirs=0.19), later(seconds=0.1, theirs=0.2))
    # The last two: less than a tenth in half of two seconds.
    still = later(seconds=0.0)
    ends = (None, later(cpus=0), still, still._replace(total_s=START.total_s + 1.0), *hasty)
    for before, after in ((None, later()), *((START, end) for end in ends)):
        assert processes.load_between(before, after) == (None, None)


def test_cpus_that_are_offline_leave_no_other_out(monkeypatch):
    """The system lists the CPUs 0 and 2 alone."""
    cpu = psutil.cpu_times()
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: [cpu, cpu])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2}, raising=False)
    busy_s = cpu.user + getattr(cpu, "nice", 0.0) + cpu.system
    assert processes.read_cpu_times().busy_s == pytest.approx(2 * busy_s)


@pytest.mark.parametrize("listed", [True, False])
def test_a_child_of_a_child_is_ours_whether_or_not_the_system_lists_children(monkeypatch, tmp_path, listed):
    """As the pool of a user's function, or in a virtual environment on Windows the interpreter."""
    if not listed:
        monkeypatch.setattr(processes, "Path", lambda place: tmp_path)
    works = "import time\nwhile time.process_time() < 0.4: pass\nprint(1, flush=True)\ninput()"
    before = processes.read_cpu_times()
    assert 0 < before.ours_s < before.total_s >= before.busy_s > 0
    starts = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {works!r}])"
    child = processes.Child([sys.executable, "-c", starts], framed=False)
    try:
        child.lines.get(timeout=60)
        assert processes.read_cpu_times().ours_s - before.ours_s >= 0.3
    finally:
        child.kill()


@pytest.mark.parametrize(("foreign", "steal", "busy"), [
    (None, None, False), (0.05, 0.05, False), (0.051, 0.0, True), (0.0, 0.06, True), (None, 0.06, True),
])  # fmt: skip
def test_more_than_a_twentieth_is_contended(foreign, steal, busy):
    record = SessionRecord(index=0, started_at="t", foreign_cpu_share=foreign, steal_share=steal)
    assert record.contended == busy


@pytest.mark.parametrize("program", [None, ""])
def test_an_embedded_python_finds_its_program(monkeypatch, program):
    monkeypatch.setattr(sys, "executable", program)
    assert processes.run(processes.python("gpubench", "--version"), 30.0).output.startswith("gpubench ")


def test_a_command_that_no_signal_ends_is_abandoned(monkeypatch):
    tasks, owner, before = [], processes.Child.__base__, {*threading.enumerate()}
    send_kill = owner.send_kill
    monkeypatch.setattr(processes, "LET_GO_S", 0.1)
    monkeypatch.setattr(owner, "send_kill", lambda task: tasks.append(task))
    processes.run([sys.executable, "-c", "import time; time.sleep(20)"], 0.1)
    alive, daemons = tasks[0].alive, {thread.daemon for thread in {*threading.enumerate()} - before}
    send_kill(tasks[0])
    assert (alive, daemons) == (True, {True})


@pytest.mark.parametrize(("status", "text"), [
    (0, "exited with status 0"), (7, "exited with status 7"), (-6, "was ended by SIGABRT"), (-40, "was ended by signal 40"),
    (0xBFFFFFFF, "exited with status 3221225471"), (0xC0000000, "crashed with status 0xC0000000"), (0xC0000005, "crashed with status 0xC0000005")])  # fmt: skip
def test_the_end_of_a_process_has_words(status, text):
    assert processes.ending(status) == text


def test_a_child_of_our_session_is_ended_alone():
    words = "import os; print(os.getpgrp(), flush=True); input()"
    child = processes.Child([sys.executable, "-c", words], own_session=False, framed=False)
    assert int(child.lines.get(timeout=60)) == os.getpgrp()
    child.kill()
    assert (child.alive, child.wait(0)) == (False, -9)


@pytest.mark.parametrize(("parts", "text", "left_out"), [
    ([b"abc"], "abc", 0), ([b"abcd", b"efgh"], "abcdefgh", 0), ([b"abcdefgh", b"i"], "abcd\n[1 bytes left out]\nfghi", 1),
    ([b"ab", b"cdefghijkl"], "abcd\n[4 bytes left out]\nijkl", 4), ([b"\xff "], "\ufffd", 0)])  # fmt: skip
def test_of_a_long_output_the_begin_and_the_end_are_kept(parts, text, left_out):
    kept = processes.Excerpt(4)
    for part in parts:
        kept.add(part)
    assert (kept.text(), kept.left_out) == (text, left_out)
