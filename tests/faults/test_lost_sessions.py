"""A crash in a later session costs that session alone."""

import contextlib
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
    try:
        run = store.load(file)
    except GpubenchError:
        return False
    blocks = [block for outcome in run.outcomes if isinstance(outcome, Measurement) for block in outcome.blocks]
    return any(block.session == session for block in blocks)


@pytest.mark.serial  # each accident has 0.6 s to happen
def test_a_killed_worker_costs_its_session_and_two_in_a_row_the_rest(tmp_path, starter):
    """The kernel's OOM killer sends SIGKILL: a crash like any other."""
    command, env = ("run", *PLAN, "--sessions", "6", "-o", "r.json", "--no-progress"), environment(tmp_path)
    with open(tmp_path / "err", "w") as err:
        process = starter.begin(*command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=err)
        for session in (1, 3, 4):
            while not sampled(tmp_path / "r.json.part", session):
                assert process.poll() is None, "the accidents happen"
                time.sleep(0.02)
            for worker in filter(drives_a_device, children(process.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
        out, _ = process.communicate(timeout=300)
    run, said = store.load(tmp_path / "r.json"), out + (tmp_path / "err").read_text()
    (case,) = run.outcomes
    assert isinstance(case, Measurement)
    failures = failures_of(case)
    assert [(one.session, one.reason) for one in failures] == [
        (number, "worker-crashed") for number in (1, 3, 4)
    ]
    assert all("SIGKILL" in one.detail for one in failures)
    used = {block.session for block in case.blocks}
    assert used == {0, 2}, "it is tried again in the next session, but for two failures in a row"
    assert (process.returncode, run.exit_code, run.complete) == (1, 1, True)
    for session in (2, 4, 5):
        assert f"1 case went without session {session}: worker-crashed" in " ".join(said.split())
    assert ("Nothing was measured" in said, "Traceback" in said) == (False, False), said
