"""`gpubench check`: has a new version become slower? Measures two environments in turns and compares their
results."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from gpubench.base import disk
from gpubench.base.errors import ExitCode, GpubenchError, UsageError
from gpubench.base.units import count_noun, format_seconds
from gpubench.cli.options import CheckOptions, ComparisonOptions

# Seconds of a session in addition to its samples: processes start, libraries are imported, inputs are made.
START_S = 6.0
# Seconds that an interrupted run may take to end by itself, and to save its session after a signal.
OWN_END_S, SAVING_S = 1.0, 15.0


class Version(NamedTuple):
    """One of the two compared versions."""

    name: str  # the name of the version in messages
    program: str  # the program that runs this gpubench
    folder: Path  # the working folder of its runs
    result: Path  # the result file of the version

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `gpubench run` of this version, and return the ended process with its output. Raises UsageError
        if the program cannot be started."""
        # Only the final comparison writes outputs for continuous integration.
        environ = {name: value for name, value in os.environ.items() if name != "GITHUB_OUTPUT"}
        command = [self.program, "run", *arguments]
        try:
            child = subprocess.Popen(
                command, cwd=self.folder, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, encoding="utf-8", errors="replace",
            )  # fmt: skip
        except OSError as error:
            raise UsageError(
                "no-environment", f"{self.name}: {self.program} cannot be started", why=disk.reason(error)
            ) from error
        with child:
            try:
                stdout, stderr = child.communicate()
            except BaseException:
                _end(child)
                raise
        return subprocess.CompletedProcess(command, child.returncode, stdout, stderr)

    def measure(self, *arguments: str) -> None:
        """Add a session to the result. A run with broken cases counts, because the comparison reports them.
        Raises GpubenchError if nothing was saved."""
        before = _file_state(self.result)
        ended = self.run(
            "--quick", "--sessions", "1", "--annotations", "never", "--no-progress", "--format", "plain",
            *arguments, "--append", str(self.result),
        )  # fmt: skip
        # A run that was killed has a negative code; one that could not save ends as one with a broken case.
        if ended.returncode not in (ExitCode.OK, ExitCode.FAILED) or _file_state(self.result) == before:
            raise self.failure(ended)

    def failure(self, ended: subprocess.CompletedProcess[str]) -> GpubenchError:
        """Return the error for a run that failed. Its reason is the run's own message."""
        from gpubench.base import processes

        lines = [line for line in ended.stderr.splitlines() if line.strip()]
        message = [line for line in lines if line.startswith(("error:", "  why:"))] or lines[-2:]
        error = GpubenchError(
            "check-failed",
            f"{self.name} could not be measured: {self.program} {processes.ending(ended.returncode)}",
            why=" ".join(" ".join(message).split()) or "it said nothing",
            hint=f"run it alone, in {self.folder.absolute()}: {shlex.join(ended.args)}",
        )  # fmt: skip
        documented = {int(code) for code in ExitCode} - {ExitCode.OK}
        error.exit_code = ExitCode(ended.returncode) if ended.returncode in documented else ExitCode.FAILED
        return error


def check(options: CheckOptions) -> int:
    """Measure two environments in turns, session by session, and compare them: exit 3 for a regression."""
    from gpubench.cli.compare import compare_files, prepare

    programs = (
        _program("BASE", options.base, options.base_folder),
        _program("NEW", options.new, options.new_folder),
    )
    results = _results(options)
    comparison = ComparisonOptions(
        **{name: getattr(options, name) for name in ComparisonOptions.declared if name not in ("base", "new")},
        base=str(results / "base.json"), new=[str(results / "new.json")],
    )  # fmt: skip
    base, new = Version(*programs[0], results / "base.json"), Version(*programs[1], results / "new.json")
    try:
        comparing = prepare(comparison)  # a misspelt gate is told before anything is measured
        _measure(base, new, options)
    except BaseException:
        if any(version.result.exists() for version in (base, new)):
            _tell(options, f"ended early: what was measured is in {results}")
        elif options.results_dir is None:
            with contextlib.suppress(OSError):
                results.rmdir()
        raise
    return compare_files(comparison, comparing)


def _measure(base: Version, new: Version, options: CheckOptions) -> None:
    """Measure the sessions of both versions in turns."""
    arguments = _shared_plan(base, new, options)
    _tell(options, f"{_estimate(new, arguments, options.sessions)} Results: {new.result.parent}")
    began = time.monotonic()
    for number in range(1, options.sessions + 1):
        base.measure(*arguments)
        new.measure(*arguments, "--like", str(base.result))
        left_s = (time.monotonic() - began) / number * (options.sessions - number)
        if left_s and not options.no_progress:
            _tell(
                options, f"{number} of {options.sessions} sessions a side, about {format_seconds(left_s)} left"
            )


def _shared_plan(base: Version, new: Version, options: CheckOptions) -> list[str]:
    """Return the words of the plan, without the files of functions that BASE lacks. Raises UsageError if
    nothing else would be measured."""

    def has(version: Version, word: str) -> bool:
        return (version.folder / re.sub(r":\w*$", "", word)).is_file()

    plan = options.plan or []
    words = [word for option, word in zip(["", *plan], plan, strict=False) if option != "--ops"]
    files = [word for word in words if re.search(r"\.py(:\w*)?$", word) and has(new, word)]
    fresh = [word for word in files if not has(base, word)]
    if not fresh:
        return plan
    if fresh == files and not any(word.startswith("--ops") for word in plan):
        raise UsageError(
            "bad-function", f"BASE has no {', '.join(fresh)}", why="there is nothing to compare with",
            hint=f"measure it alone: gpubench run {shlex.join(fresh)}"
        )  # fmt: skip
    _tell(options, f"BASE has no {', '.join(fresh)} yet: left out of the comparison.")
    return [word for word in plan if word not in fresh]


def _results(options: CheckOptions) -> Path:
    """Return the folder for both results: the one that the user named, or a new one in `results`. Raises
    UsageError if it cannot be used."""
    from gpubench.result import store

    folder = (options.results_dir or Path("results")).absolute()
    store.check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if options.results_dir is None:
        return Path(tempfile.mkdtemp(prefix="check-", dir=folder))
    for name in ("base.json", "new.json"):
        if (folder / name).exists():
            raise UsageError(
                "cannot-save", f"--results-dir: {options.results_dir} has a {name}",
                why="the sessions of two checks are not mixed", hint="name another folder, or remove the file"
            )  # fmt: skip
    return folder


def _program(name: str, place: str, folder: Path | None) -> tuple[str, str, Path]:
    """Find the gpubench of `place`, a program or an environment's folder. Return `name`, the program and its
    working folder. Raises UsageError if one of them is missing."""
    path = Path(place)
    candidates = (
        [path / "bin" / "gpubench", path / "Scripts" / "gpubench.exe"] if os.path.isdir(path) else [path]
    )
    program = next((str(path.absolute()) for path in candidates if os.path.isfile(path)), None) or shutil.which(
        place
    )
    if program is None:
        raise UsageError(
            "no-environment", f"{name}: there is no gpubench in {place}",
            why=f"{candidates[0]} does not exist",
            hint="give a virtual environment in which gpubench is installed, or a program that runs it"
        )  # fmt: skip
    where = folder or Path()
    if not where.is_dir():
        raise UsageError(
            "no-environment", f"--{name.lower()}-folder: {folder} is no folder",
            why=f"the runs of {name} would begin there"
        )  # fmt: skip
    return name, program, where


def _file_state(result: Path) -> tuple[int, int] | None:
    """Return what identifies the last write of the file, or None without a file."""
    try:
        state = result.stat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_ino


def _end(child: subprocess.Popen[str]) -> None:
    """Let an interrupted run save its session, then kill it."""
    try:
        child.communicate(timeout=OWN_END_S)
    except subprocess.TimeoutExpired:
        # Ctrl-C in a terminal reached the run, too, but other signals reached only this process.
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=SAVING_S)
    finally:
        child.kill()


def _estimate(version: Version, arguments: list[str], sessions: int) -> str:
    """Return a text that tells how long all sessions take, by the plan of one session. Raises GpubenchError if
    there is no plan."""
    plan = version.run("--quick", "--sessions", "1", *arguments, "--format", "json", "--dry-run")
    if plan.returncode:
        raise version.failure(plan)
    turns = f"{count_noun(sessions, 'session')} of each version in turns"
    try:
        session_s = START_S + json.loads(plan.stdout)["seconds"]
    except (ValueError, TypeError, KeyError):  # a version that tells its plan in another way
        return f"{turns}."
    return f"{turns}, about {format_seconds(2 * sessions * session_s)}."


def _tell(options: CheckOptions, text: str) -> None:
    if not options.quiet:
        print(text, file=sys.stderr, flush=True)
