"""Whole commands on a simulated Windows and macOS: exit codes, files, and nothing left over."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.platforms.conftest import SIMULATED, SYSTEMS

FAKE = ("--devices", "fake:cpu,fake:gpu", "--ops", "add", "--sizes", "64", "--max-samples", "10", "--sessions")


@pytest.mark.parametrize("system", SYSTEMS)
def test_run_append_report_and_compare(computer: Any, system: str) -> None:
    here = computer(system)
    first = here.run("run", *FAKE, "1", "-o", "r.json")
    assert first.returncode == 0, first.stderr
    assert here.files() == ["work/r.json"]
    more = here.run("run", "--append", "r.json", "--sessions", "1", "--max-samples", "10")
    assert more.returncode == 0, more.stderr
    assert len(json.loads((here.folder / "r.json").read_bytes())["sessions"]) == 2
    for command in (("compare", "r.json", "r.json"), ("report", "r.json", "-o", "r.html")):
        shown = here.run(*command)
        assert shown.returncode == 0, shown.stderr
        assert "Traceback" not in shown.stderr
    assert here.files() == ["work/r.html", "work/r.json"]


def test_an_op_whose_reference_is_a_mapped_file(computer: Any) -> None:
    """Windows removes no file that is mapped."""
    here = computer("win32")
    sizes = ("--sizes", "300k", "--sessions", "1", "--max-samples", "5")
    done = here.run("run", "--devices", "numpy:0", "--ops", "add,sum", *sizes, "-o", "r.json")
    assert done.returncode == 0, done.stderr
    outcomes = json.loads((here.folder / "r.json").read_bytes())["outcomes"]
    assert all("blocks" in one for one in outcomes), outcomes
    assert here.files() == ["work/r.json"]


@pytest.mark.parametrize("system", SYSTEMS)
def test_what_a_killed_run_left_is_removed_by_the_next(computer: Any, system: str) -> None:
    here = computer(system)
    if not SIMULATED:
        pytest.skip("a whole group of processes is killed on Linux alone")
    killed = here.start("run", *FAKE, "50", "-o", "r.json", start_new_session=True)
    while not (here.folder / "r.json.part").exists():
        assert killed.poll() is None, killed.communicate()
        time.sleep(0.02)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert any("scratch" in name for name in here.files())
    again = here.run("run", *FAKE, "1", "-o", "s.json")
    assert again.returncode == 0, again.stderr
    assert not [name for name in here.files() if name.startswith("temporary/")]
    assert "work/s.json" in here.files()


def test_a_folder_of_results_is_found_again(computer: Any) -> None:
    here = computer("win32")
    assert here.run("run", *FAKE, "1").returncode == 0
    shown = here.run("report")
    assert shown.returncode == 0, shown.stderr
    assert [Path(name).suffix for name in here.files() if name.count("/") == 3] == [".json"]
