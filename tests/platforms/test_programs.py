"""Whole commands, files and children on a simulated Windows and macOS: exit codes, what is open is not replaced, and nothing is left over."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from gpubench.base import disk
from gpubench.result import store
from tests.forking import is_alive
from tests.platforms.conftest import SIMULATED
from tests.unit.report.samples import full_run

FAKE = "--devices fake:cpu,fake:gpu --ops add --sizes 64 --max-samples 10 --sessions".split()


def test_run_append_report_and_compare_on_windows(computer):
    """A kept result is found again. The reference of the op is a mapped file, which Windows does not remove."""
    here = computer("win32")
    plan = "--devices numpy:0 --ops sum --sizes 300k --sessions 1 --max-samples 10 --implementations library --no-repeats"
    here.run("run", *plan.split(), status=0)
    here.run("report", status=0)
    (path,) = [name.removeprefix("work/") for name in here.files() if name.count("/") == 3]
    here.run("run", "--append", path, "--sessions", "1", "--max-samples", "10", "--no-repeats", status=0)
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


# ---------------------------------------------------------------------- files under Windows' rules


_READ_MEANWHILE = """
import threading
from pathlib import Path
from gpubench.base import disk
Path("old").write_text("old")
Path("new").write_text("new")
reader = open("old")
if SECONDS:
    threading.Timer(SECONDS, reader.close).start()
try:
    disk.replace("new", "old")
except PermissionError as error:
    print(disk.remedy(error))
else:
    print(Path("old").read_text())
"""
LABELLED = "run --devices fake:cpu --ops add --label add* --sizes 64 --max-samples 5 --sessions 1 -o r.json".split()  # fmt: skip


@pytest.mark.parametrize(("seconds", "text"), [
    (0.3, "new"), (0, "close the program that has it open, or choose another place")])  # fmt: skip
def test_a_file_that_is_read_for_a_moment_is_replaced_after_it(computer, seconds, text):
    done = computer("win32").run("-c", _READ_MEANWHILE.replace("SECONDS", str(seconds)))
    assert done.stdout.strip() == text, done.stderr


def test_a_result_that_is_open_is_read_and_one_that_stays_open_is_saved_elsewhere(computer):
    here = computer("win32")
    store.save(full_run(), here.folder / "r.json")
    holding = "import sys; file = open('r.json'); print(flush=True); sys.stdin.read()"
    holder = here.start("-c", holding, stdin=-1)
    holder.stdout.readline()
    shown = here.run("report", "r.json", "-o", "r.md")
    assert (shown.returncode, (here.folder / "r.md").exists()) == (0, True), shown.stderr
    done = here.run(*LABELLED)
    holder.communicate()
    assert (done.returncode, "fix: close the program that has it open" in done.stderr) == (1, True), done.stderr
    assert len(list((here.folder.parent / "home").rglob("*.json"))) == 1


@pytest.mark.parametrize(("platform", "text"), [("linux", " (ulimit -n)"), ("win32", "")])
def test_a_remedy_names_no_command_of_another_system(platform, text, monkeypatch):
    monkeypatch.setattr(disk.sys, "platform", platform)
    assert disk.mend(OSError(24, "Too many open files")) == f"raise the limit on open files{text}"


def test_wildcards_name_files_where_no_shell_expands_them(computer):
    here = computer("win32")
    (here.folder / "additional").touch()  # the value of an option stays
    here.run(*LABELLED, status=0)
    assert b'"label":"add*"' in (here.folder / "r.json").read_bytes().replace(b" ", b"")
    shutil.copy(here.folder / "r.json", here.folder / "s.json")
    here.run("compare", "--no-progress", "*.json", status=0)
    assert "*.json" in here.run("report", "none*.json").stderr
    (here.folder / "mine.md").write_text("mine")
    here.run("report", "r.json", "-o", "*.md")
    assert (here.folder / "mine.md").read_text() == "mine"


def test_a_folder_is_named_as_a_folder_and_hints_are_quoted_for_windows_shells(computer):
    here = computer("win32", libraries=False)
    (here.folder / "some").mkdir()
    shown = here.run("report", "some")
    assert (shown.returncode, "it is a folder" in shown.stderr) == (4, True), shown.stderr
    shown = here.run("run", "--backends", "cupy", "--ops", "add")
    assert (shown.returncode, '[cuda13]"' in shown.stderr) == (5, True), shown.stderr
    assert "'" not in shown.stderr.partition("fix:")[2]


# ---------------------------------------------------------------------- children and streams


# A program of gpubench's name is one of the product for the simulation.
_TREE = """
import sys
from gpubench.base import processes
text = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)']); time.sleep(300)"
child = processes.Child([sys.executable, "-c", text])
import psutil, time
while not (below := psutil.Process(child._process.pid).children()):
    time.sleep(0.02)
print(child._process.pid, below[0].pid, flush=True)
child.kill()
"""


def test_a_child_is_killed_with_those_that_it_started(computer):
    done = computer("win32").run("-c", _TREE)
    assert done.returncode == 0, done.stderr
    numbers = [int(number) for number in done.stdout.split()]
    until = time.monotonic() + 10
    while any(map(is_alive, numbers)) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(map(is_alive, numbers))


def test_a_reader_that_went_is_no_failure(computer):
    process = computer("win32").start("ops")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(60), errors) == (0, "")
