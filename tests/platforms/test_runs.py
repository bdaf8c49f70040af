"""Whole commands on a simulated Windows and macOS: exit codes, files, and nothing left over."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.platforms.conftest import SIMULATED

FAKE = "--devices fake:cpu,fake:gpu --ops add --sizes 64 --max-samples 10 --sessions".split()


def test_run_append_report_and_compare_on_windows(computer):
    """A kept result is found again. The reference of the op is a mapped file, which Windows does not remove."""
    here = computer("win32")
    plan = "--devices numpy:0 --ops sum --sizes 300k --sessions 1 --max-samples 10 --implementations library"
    here.run("run", *plan.split(), status=0)
    here.run("report", status=0)
    (path,) = [name.removeprefix("work/") for name in here.files() if name.count("/") == 3]
    here.run("run", "--append", path, "--sessions", "1", "--max-samples", "10", status=0)
    document = json.loads((here.folder / path).read_bytes())
    assert len(document["sessions"]) == 2
    assert all("blocks" in outcome for outcome in document["outcomes"]), document["outcomes"]
    for command in (("compare", path, path), ("report", path, "-o", "r.html")):
        shown = here.run(*command)
        assert (shown.returncode, "Traceback" in shown.stderr) == (0, False), shown.stderr
    folders = {f"work/{Path(path).parents[at].as_posix()}" for at in range(2)}
    assert set(here.files()) == {*folders, f"work/{path}", "work/r.html"}


def test_what_a_killed_run_left_is_removed_by_the_next_whose_result_decides_the_mode(computer):
    here = computer("win32")
    if not SIMULATED:
        pytest.skip("a whole group of processes is killed on Linux alone")
    killed = here.start("run", *FAKE, "50", "-o", "r.json", start_new_session=True)
    while not (here.folder / "r.json.part").exists():
        assert killed.poll() is None, killed.communicate()
        time.sleep(0.02)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert any("scratch" in name for name in here.files())
    here.run("run", *("1M" if word == "64" else word for word in FAKE), "1", status=0)
    assert not [name for name in here.files() if name.startswith("temporary/")]
    advice = json.loads(here.run("detect", "--json").stdout)["recommendation"]
    assert (advice["mode"], advice["confidence"]) == ("gpu", "measured")
