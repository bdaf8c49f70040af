"""Broken folders, streams, environments and libraries around the program: the documented exit code and the true reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpubench.base.errors import ExitCode
from gpubench.result import store
from tests.forking import Starter, outside
from tests.unit.report.samples import full_run

PROGRAM = (sys.executable, "-m", "gpubench")
FAKE = (
    "run",
    "--backends",
    "fake",
    "--ops",
    "add",
    "--sizes",
    "1k",
    "--quick",
    "--min-samples",
    "5",
    "--max-time",
    "50ms",
)
RUN = ("run", "--backends", "numpy", "--implementations", "library", *FAKE[3:], "-o", "n.json")


@pytest.fixture
def result(tmp_path: Path) -> str:
    path = tmp_path / "result.json"
    path.write_bytes(store.dumps(full_run()))
    return str(path)


def shell(
    script: str, folder: Path, program: str = " ".join(PROGRAM), **environment: str
) -> subprocess.CompletedProcess[str]:
    """A script of bash in which $gpubench is the program."""
    env = {**outside(), "gpubench": program, **environment}
    return subprocess.run(
        ["bash", "-c", script], cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False
    )


def in_deleted_folder(command: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    return shell(f"mkdir gone && cd gone && rmdir ../gone && $gpubench {command}", tmp_path)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("detect", ExitCode.OK),
        ("report {result} --format csv", ExitCode.OK),
        ("report relative.json", ExitCode.INPUT),
        ("report", ExitCode.INPUT),
        ("run --backends fake --ops add", ExitCode.USAGE),
    ],
)
def test_a_deleted_working_folder(tmp_path: Path, result: str, command: str, code: int) -> None:
    ended = in_deleted_folder(command.format(result=result), tmp_path)
    assert (ended.returncode, "Traceback" in ended.stderr) == (code, False), ended.stderr
    if code == ExitCode.USAGE:
        assert "the working folder is no longer there" in ended.stderr


@pytest.mark.parametrize(
    ("command", "reader"),
    [("--version", "true"), ("--help", "true"), ("ops", "true"), ("schema gpubench-result", "head -c 1"), ("detect", "true")],
)  # fmt: skip
def test_a_reader_that_leaves(tmp_path: Path, command: str, reader: str, starter: Starter) -> None:
    script = f"$gpubench {command} | {reader} > /dev/null; exit ${{PIPESTATUS[0]}}"
    ended = shell(script, tmp_path, starter.command())
    assert (ended.returncode, ended.stderr) == (ExitCode.OK, "")


@pytest.mark.parametrize(
    ("command", "code", "closed"),
    [
        ("--version", 0, "<&- >&- 2>&-"), ("--help", 0, ">&-"), ("ops --format json", 0, ">&-"),
        *(("report {result}", 0, closed) for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-")),
        *(("report no.json", 4, closed) for closed in ("2>&-", "<&- >&- 2>&-")),
    ],
)  # fmt: skip
def test_closed_streams(tmp_path: Path, result: str, command: str, code: int, closed: str) -> None:
    ended = shell(f"$gpubench {command.format(result=result)} {closed}", tmp_path)
    assert (ended.returncode, "Traceback" in ended.stderr) == (code, False), ended.stderr
    assert ended.stderr == "" or command.startswith("report")


@pytest.mark.parametrize("command", ["--version", "report {result}", "detect"])
def test_a_full_disk_behind_the_output(tmp_path: Path, result: str, command: str, starter: Starter) -> None:
    ended = shell(f"$gpubench {command.format(result=result)} > /dev/full", tmp_path, starter.command())
    assert ended.returncode == ExitCode.FAILED
    assert ended.stderr.splitlines()[:2] == [
        "error: cannot write to standard output", "  why: No space left on device",
    ]  # fmt: skip
    script = f"$gpubench {command.format(result=result)} > /dev/full 2> /dev/full"
    ended = shell(script, tmp_path, starter.command())
    assert ended.returncode == ExitCode.FAILED


def test_a_temporary_folder_that_takes_nothing(tmp_path: Path, result: str, starter: Starter) -> None:
    """tempfile itself looks for another one, so that all works as long as there is any."""
    for command in (
        f"report {result} --format svg --sections speedup",
        "detect",
        " ".join([*FAKE, "-o", "r.json"]),
    ):
        ended = shell(f"$gpubench {command} > out", tmp_path, starter.command(), TMPDIR="/proc/self")
        assert (ended.returncode, "Traceback" in ended.stderr) == (ExitCode.OK, False), ended.stderr


@pytest.mark.parametrize("folder", ["", "/proc"])
def test_a_home_that_is_missing_or_read_only(
    tmp_path: Path, result: str, folder: str, starter: Starter
) -> None:
    for command, code in (
        (f"report {result}", 0),
        ("report", 4),
        ("detect", 0),
        (" ".join([*FAKE, "-o", "r.json"]), 0),
    ):
        script = f"unset XDG_DATA_HOME XDG_CONFIG_HOME; HOME={folder} $gpubench {command} > out"
        ended = shell(script, tmp_path, starter.command())
        assert (ended.returncode, "Traceback" in ended.stderr) == (code, False), ended.stderr


def with_module(folder: Path, name: str, text: str) -> dict[str, str]:
    """The environment in which a module of this text stands before the library of its name."""
    place = folder / "modules"
    place.mkdir(exist_ok=True)
    (place / f"{name}.py").write_text(text)
    return {"PYTHONPATH": os.pathsep.join([str(place), *filter(None, [os.environ.get("PYTHONPATH")])])}


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("raise RuntimeError('broken')", ("detect",)),
        (
            "class Error(Exception): pass\ndef cpu_times(percpu=False): return [None]\nclass Process:\n    pass",
            RUN,
        ),
        ("class Error(Exception): pass\ndef __getattr__(name): raise Error(name)", RUN),
        ("class Error(Exception): pass\ndef __getattr__(name): raise Error(name)", ("detect",)),
    ],
)
def test_a_broken_psutil(gpubench: Any, tmp_path: Path, text: str, command: tuple[str, ...]) -> None:
    ended = gpubench(*command, env=with_module(tmp_path, "psutil", text))
    assert (ended.returncode, "Traceback" in ended.stderr) == (ExitCode.OK, False), ended.stderr


BROKEN_DRAWING = {
    "aborts": ("vl_convert", "import os\ndef __getattr__(name): os.abort()", "SIGABRT"),
    "exits": ("vl_convert", "import os\ndef __getattr__(name): os._exit(7)", "status 7"),
    "raises": ("vl_convert", "def __getattr__(name): raise ValueError('no fonts')", "no fonts"),
    "cannot be imported": ("vl_convert", "raise ImportError('libfoo.so: no such file')", "libfoo.so"),
    "altair raises": ("altair", "def __getattr__(name): raise ValueError('no schema')", "no schema"),
    "altair cannot be imported": ("altair", "raise ImportError('no narwhals')", "no narwhals"),
}  # fmt: skip


@pytest.mark.parametrize("how", BROKEN_DRAWING)
def test_a_page_without_its_drawing_library_has_no_charts_and_says_why(
    gpubench: Any, tmp_path: Path, result: str, how: str
) -> None:
    name, text, why = BROKEN_DRAWING[how]
    nothing_kept = {"GPUBENCH_CACHE_DIR": str(tmp_path / "cache")}
    env = {**with_module(tmp_path, name, text), **nothing_kept}
    page = gpubench("report", result, "--format", "html", env=env)
    assert (page.returncode, page.stderr) == (ExitCode.OK, "")
    assert "There are no charts in this page because" in page.stdout
    assert why in page.stdout


@pytest.mark.parametrize(
    ("how", "arguments"),
    [
        ("aborts", ("--plots", "charts")), ("altair raises", ("--plots", "charts")),
        ("altair raises", ("--format", "svg", "-o", "r.svg")), ("aborts", ("--format", "png", "-o", "r.png")),
    ],
)  # fmt: skip
def test_a_picture_that_cannot_be_drawn_is_an_error(
    gpubench: Any, tmp_path: Path, result: str, how: str, arguments: tuple[str, ...]
) -> None:
    """One library fails in a process of its own, the other in the program; a page tells the other ways of each."""
    name, text, why = BROKEN_DRAWING[how]
    ended = gpubench("report", result, *arguments, env=with_module(tmp_path, name, text))
    assert ended.returncode == ExitCode.FAILED
    assert ended.stderr.startswith("error: the charts cannot be drawn\n")
    assert why in ended.stderr
    # The answer itself comes before its charts.
    assert ("the GPU wins matmul" in ended.stdout) == ("--plots" in arguments)
