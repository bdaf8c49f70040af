"""A crash, a hang or a lost device in a later session costs that session alone; only a wrong result erases."""

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from gpubench.base.errors import GpubenchError
from gpubench.result import store
from gpubench.result.run import Measurement, failures_of
from tests.forking import children, drives_a_device, environment

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds workers in /proc")
PLAN = "--devices numpy:0 --ops add --sizes 512k --implementations library --max-time 600ms --precision 0.001".split()


def sampled(file, session):
    """Whether the run has taken samples in this session."""
    try:
        run = store.load(file)
    except GpubenchError:
        return False
    blocks = [block for outcome in run.outcomes if isinstance(outcome, Measurement) for block in outcome.blocks]
    return any(block.session == session for block in blocks)


@pytest.fixture
def interfered(tmp_path, starter):
    """A run of which the workers meet an accident in these sessions: exit code, result, what it said."""

    def ended(*arguments, sessions, interfere):
        with open(tmp_path / "err", "w") as err:
            command, env = ("run", *arguments, "--no-progress"), environment(tmp_path)
            process = starter.begin(*command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=err)
            left = set(sessions)
            while process.poll() is None and left:
                if sampled(tmp_path / "r.json.part", min(left)):
                    for worker in filter(drives_a_device, children(process.pid)):
                        interfere(worker)
                    left.discard(min(left))
                time.sleep(0.02)
            out, _ = process.communicate(timeout=300)
        assert not left, "the accidents happened"
        return process.returncode, store.load(tmp_path / "r.json"), out + (tmp_path / "err").read_text()

    return ended


def kill(worker):
    with contextlib.suppress(ProcessLookupError):
        os.kill(worker, signal.SIGKILL)


def used(run):
    return sorted({block.session for o in run.outcomes if isinstance(o, Measurement) for block in o.blocks})


@pytest.mark.serial  # each accident has 0.6 s to happen
def test_a_killed_worker_costs_its_session_and_two_in_a_row_the_rest(interfered):
    code, run, said = interfered(*PLAN, "--sessions", "6", "-o", "r.json", sessions={1, 3, 4}, interfere=kill)
    assert code == 1
    (case,) = run.outcomes
    assert isinstance(case, Measurement)
    assert {failure.reason for failure in failures_of(case)} == {"worker-crashed"}
    assert [failure.session for failure in failures_of(case)] == [1, 3, 4]
    assert used(run) == [0, 2], "it is tried again in the next session, but for two failures in a row"
    assert (run.exit_code, run.complete) == (1, True)
    for session in (2, 4, 5):
        assert f"1 case went without session {session}: worker-crashed" in " ".join(said.split())
    assert ("Nothing was measured" in said, "Traceback" in said) == (False, False), said


def test_a_worker_that_hangs_in_a_later_session_costs_that_session(interfered):
    code, run, _ = interfered(*PLAN, "--sessions", "3", "--case-timeout", "2s", "-o", "r.json", sessions={1},
        interfere=lambda worker: os.kill(worker, signal.SIGSTOP))  # fmt: skip
    assert code == 1
    (failure,) = failures_of(run.outcomes[0])
    assert (failure.session, failure.reason) == (1, "timeout")
    assert {0, 2} <= set(used(run))


def test_a_run_that_is_killed_goes_on_where_it_was(tmp_path, gpubench, starter):
    """kill -9 of the run itself: the old file stands, what was measured is beside it, and `report` finds it."""
    gpubench("run", *PLAN, "--sessions", "2", "--append", "r.json", "-q", status=0)
    old = (tmp_path / "r.json").read_bytes()
    before = used(store.load(tmp_path / "r.json"))
    command, nowhere = ("run", "--append", "r.json", "--sessions", "50", "-q"), subprocess.DEVNULL
    process = starter.begin(*command, cwd=tmp_path, env=environment(tmp_path), stdout=nowhere, stderr=nowhere)
    while not sampled(tmp_path / "r.json.part", before[-1] + 2):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert (tmp_path / "r.json").read_bytes() == old
    left = store.load(tmp_path / "r.json.part")
    assert {*before, before[-1] + 1} <= set(used(left))
    shown = gpubench("report", "--results-dir", ".", "--format", "json", status=0)
    assert json.loads(shown.stdout)["sources"][0]["run_id"] == left.id
    assert not json.loads(shown.stdout)["sources"][0]["complete"]
    gpubench("run", "--append", "r.json.part", "--sessions", "1", "-q", status=0)
    assert set(used(left)) - {left.sessions[-1].index} <= set(used(store.load(tmp_path / "r.json")))
    assert not (tmp_path / "r.json.part").exists()
