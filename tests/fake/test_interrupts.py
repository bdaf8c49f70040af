"""Ctrl-C, SIGTERM, SIGHUP and kill -9 in the middle of a run: a readable file, the right exit code, no orphans."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from gpubench.result import store
from tests.faults.packages import install_scripted
from tests.forking import children, drives_a_device, is_alive

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="counts processes in /proc")
# Far more than can be measured before the interrupt comes.
LONG = "--devices fake:cpu,fake:noisy --ops add,mul,relu --sizes 1k:64k --sessions 50".split()


def drivers(process):
    """Those of its children that drive a device; another reads clocks and temperatures."""
    return set(filter(drives_a_device, children(process.pid)))


def wait_for(condition, seconds=30.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)


def read(folder):
    return json.loads((folder / "r.json").read_text())


def wait_for_progress(process):
    next(line for line in process.stderr if line.startswith("["))


def under_way(start, folder):
    """A run that has measured something."""
    process = start(*LONG)
    wait_for_progress(process)
    wait_for(lambda: (folder / "r.json.part").exists())
    assert len(drivers(process)) >= 2  # and where there are cores, those of the next session
    return process


def end(process, number, send=os.kill):
    """The exit code and the output of a run that gets a signal, and whose children end with it."""
    started = children(process.pid)
    send(process.pid, number)
    out, err = process.communicate(timeout=100)
    assert "Traceback" not in err
    wait_for(lambda: not any(map(is_alive, started)))
    return process.returncode, out


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.check
def test_an_interrupt_saves_what_there_is(start, tmp_path, name):
    returned, out = end(under_way(start, tmp_path), signal.Signals[name])
    assert returned == (130 if name == "SIGINT" else 143)
    result = read(tmp_path)
    ending = [result[field] for field in ("complete", "exit_code", "exit_reason")]
    assert ending == [False, returned, "interrupted"]
    types = {o["type"] for o in result["outcomes"]}
    assert types == {"measurement", "planned"}, "what was not reached is planned, not skipped or failed"
    assert "Speedup" in out, "the report of what there is"
    assert "interrupted" in out
    assert list((tmp_path / "tmp").iterdir()) == [], "no scratch file stays behind"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.json", "tmp"], "nor half a result"


def test_ctrl_c_reaches_the_whole_foreground_group_and_still_saves(tmp_path, start):
    """A terminal sends SIGINT to every process of the group at once."""
    process = start(*LONG, start_new_session=True)
    wait_for_progress(process)
    assert (end(process, signal.SIGINT, os.killpg)[0], read(tmp_path)["complete"]) == (130, False)


def test_an_interrupt_while_a_device_hangs(start, tmp_path):
    process = start(*"--devices fake:cpu,fake:hang --ops add --sizes 1k --regimes resident-queued".split())
    wait_for(lambda: len(drivers(process)) == 2)
    assert end(process, signal.SIGINT)[0] == 130


def test_an_interrupt_while_devices_are_listed(start, tmp_path):
    """A driver that hangs holds it up no longer; the limit of the listing is longer than the test."""
    habit = """
import pathlib, time
from gpubench.backends.hidden.fake import FakeBackend
FakeBackend.devices = lambda self: (pathlib.Path("listing").touch(), time.sleep(600))
"""
    env = {**install_scripted(tmp_path / "site", "stuck", habit), "GPUBENCH_PROBE_LIMIT": "300s"}
    process = start("--backends", "stuck", "--ops", "add", env=env)
    wait_for((tmp_path / "listing").exists)
    assert end(process, signal.SIGINT)[0] == 130


def test_a_run_under_nohup_outlives_the_terminal(start, tmp_path):
    """`nohup` ignores SIGHUP, and so does what it starts. With SIGCHLD ignored, git seems to end with status 0."""
    command = "--devices fake:cpu,fake:gpu --ops add --sizes 1k --quick"
    process = start(*command.split(), preexec_fn=lambda: [signal.signal(n, signal.SIG_IGN) for n in (signal.SIGHUP, signal.SIGCHLD)])  # fmt: skip
    wait_for_progress(process)
    assert (end(process, signal.SIGHUP)[0], read(tmp_path)["complete"]) == (0, True)


def test_kill_9_leaves_a_file_that_report_reads(start, tmp_path, in_process):
    end(under_way(start, tmp_path), signal.SIGKILL)
    assert not (tmp_path / "r.json").exists(), "it is written once, at the end"
    result = store.load(tmp_path / "r.json.part")
    assert not result.complete
    assert any(getattr(outcome, "blocks", []) for outcome in result.outcomes)
    absent = in_process("report", "r.json")
    assert (absent.returncode, "name r.json.part" in absent.stderr) == (4, True)
    report = in_process("report", "r.json.part", "--format", "markdown")
    assert report.returncode == 0, report.stderr
    assert ("add" in report.stdout, "| " in report.stdout) == (True, True)
