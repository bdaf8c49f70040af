"""Files under Windows' rules: what is open is not replaced, and messages say so."""

import shutil

import pytest

from gpubench.base import disk
from gpubench.result import store
from tests.unit.report.samples import full_run

_READ_MEANWHILE = """
import threading
from pathlib import Path
from gpubench.base import disk
Path("old").write_text("old")
Path("new").write_text("new")
reader = open("old")
threading.Timer(SECONDS, reader.close).start()
try:
    disk.replace("new", "old")
except PermissionError as error:
    print(disk.remedy(error))
else:
    print(Path("old").read_text())
"""
FAKE = "run --devices fake:cpu --ops add --label add* --sizes 64 --max-samples 5 --sessions 1 -o r.json".split()


@pytest.mark.parametrize(("seconds", "text"), [
    (0.3, "new"), (4, "close the program that has it open, or choose another place")])  # fmt: skip
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
    done = here.run(*FAKE)
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
    here.run(*FAKE, status=0)
    assert b'"label":"add*"' in (here.folder / "r.json").read_bytes().replace(b" ", b"")
    shutil.copy(here.folder / "r.json", here.folder / "s.json")
    here.run("compare", "--no-progress", "*.json", status=0)
    assert "*.json" in here.run("report", "none*.json").stderr


def test_a_folder_is_named_as_a_folder_and_hints_are_quoted_for_windows_shells(computer):
    here = computer("win32", libraries=False)
    (here.folder / "some").mkdir()
    shown = here.run("report", "some")
    assert (shown.returncode, "it is a folder" in shown.stderr) == (4, True), shown.stderr
    shown = here.run("run", "--backends", "cupy", "--ops", "add")
    assert (shown.returncode, '[cuda13]"' in shown.stderr) == (5, True), shown.stderr
    assert "'" not in shown.stderr.partition("fix:")[2]
