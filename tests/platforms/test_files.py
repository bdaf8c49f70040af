"""Files under Windows' rules: what is open is not replaced, and messages say so."""

from __future__ import annotations

from typing import Any

import pytest

from gpubench.base import disk

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


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.3, "new"), (4, "close the program that has it open, or choose another place")]
)
def test_a_file_that_is_read_for_a_moment_is_replaced_after_it(
    computer: Any, seconds: float, text: str
) -> None:
    done = computer("win32").run("-c", _READ_MEANWHILE.replace("SECONDS", str(seconds)))
    assert done.stdout.strip() == text, done.stderr


def test_a_report_that_is_read_costs_no_result(computer: Any) -> None:
    here = computer("win32")
    fake = ("--devices", "fake:cpu", "--ops", "add", "--sizes", "64", "--max-samples", "5", "--sessions", "1")
    assert here.run("run", *fake, "-o", "r.json").returncode == 0
    with (here.folder / "r.json").open("rb"):
        shown = here.run("report", "r.json", "-o", "r.md")
    assert (shown.returncode, (here.folder / "r.md").exists()) == (0, True), shown.stderr


def test_a_result_that_stays_open_is_saved_elsewhere(computer: Any) -> None:
    here = computer("win32")
    fake = ("--devices", "fake:cpu", "--ops", "add", "--sizes", "64", "--max-samples", "5", "--sessions", "1")
    assert here.run("run", *fake, "-o", "r.json").returncode == 0
    holder = here.start(
        "-c", "import sys; file = open('r.json'); print(flush=True); sys.stdin.read()", stdin=-1
    )
    holder.stdout.readline()
    done = here.run("run", *fake, "-o", "r.json")
    holder.communicate()
    assert done.returncode == 1, done.stderr
    assert "fix: close the program that has it open" in done.stderr
    assert len(list((here.folder.parent / "home").rglob("*.json"))) == 1


@pytest.mark.parametrize(("platform", "text"), [("linux", " (ulimit -n)"), ("win32", "")])
def test_a_remedy_names_no_command_of_another_system(
    platform: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk.sys, "platform", platform)
    assert disk.mend(OSError(24, "Too many open files")) == f"raise the limit on open files{text}"


def test_wildcards_name_files_where_no_shell_expands_them(computer: Any) -> None:
    here = computer("win32")
    fake = (
        "--devices",
        "fake:cpu",
        "--ops",
        "add",
        "--label",
        "add*",
        "--sizes",
        "64",
        "--max-samples",
        "5",
        "--sessions",
        "1",
    )
    (here.folder / "additional").touch()  # the value of an option stays
    for name in ("one.json", "two.json"):
        done = here.run("run", *fake, "-o", name)
        assert done.returncode == 0, done.stderr
    assert b'"label":"add*"' in (here.folder / "one.json").read_bytes().replace(b" ", b"")
    merged = here.run("merge", "*.json", "-o", "both.json")
    assert (merged.returncode, (here.folder / "both.json").exists()) == (0, True), merged.stderr
    assert "*.json" in here.run("report", "none*.json").stderr


def test_a_folder_is_named_as_a_folder(computer: Any) -> None:
    here = computer("win32")
    (here.folder / "some").mkdir()
    shown = here.run("report", "some")
    assert (shown.returncode, "it is a folder" in shown.stderr) == (4, True), shown.stderr


def test_hints_are_quoted_for_windows_shells(computer: Any) -> None:
    here = computer("win32", libraries=False)
    shown = here.run("run", "--backends", "cupy", "--ops", "add")
    assert shown.returncode == 5, shown.stderr
    assert '[cuda13]"' in shown.stderr
    assert "'" not in shown.stderr.partition("fix:")[2]
