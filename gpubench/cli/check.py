"""`gpubench check`: has a new version become slower? Measures two environments in turns and compares them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from gpubench.base.errors import ExitCode, GpubenchError, UsageError
from gpubench.base.units import format_seconds, parse_duration
from gpubench.cli.options import CheckOptions, ComparisonOptions

# What a session takes beside its samples: processes start, libraries are imported, inputs are made.
START_S = 6.0
_ESTIMATE = re.compile(r"(?:budget|at most about) ([\d.]+) ?(ns|us|ms|s|min|h)\b")


class Version(NamedTuple):
    """A program that runs gpubench with one version of what is compared, the folder to run it in, and its result."""

    name: str
    program: str
    folder: Path
    result: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run gpubench there. Its outputs to continuous integration are those of the comparison alone."""
        environ = {name: value for name, value in os.environ.items() if name not in ("GITHUB_OUTPUT",)}
        return subprocess.run(
            [self.program, "run", *arguments], cwd=self.folder, env=environ, capture_output=True, text=True,
            check=False,
        )  # fmt: skip

    def measure(self, *arguments: str) -> None:
        """Add a session to the result. A case that breaks is for the comparison to judge. Raises GpubenchError."""
        ended = self.run(
            "--quick", "--sessions", "1", "--annotations", "never", "--no-progress", "--format", "plain",
            *arguments, "--append", str(self.result),
        )  # fmt: skip
        if ended.returncode > ExitCode.FAILED:
            raise self.failed(ended)

    def failed(self, ended: subprocess.CompletedProcess[str]) -> GpubenchError:
        """Return the error of a run that measured nothing, with what it said."""
        lines = [line for line in ended.stderr.splitlines() if line.strip()]
        said = [line for line in lines if line.startswith(("error:", "  why:"))] or lines[-2:]
        error = GpubenchError(
            "check-failed",
            f"{self.name} could not be measured: {self.program} ended with exit code {ended.returncode}",
            why=" ".join(" ".join(said).split()) or "it said nothing",
            hint=f"run it alone: {self.program} run",
        )  # fmt: skip
        known = ended.returncode in [int(code) for code in ExitCode]
        error.exit_code = ExitCode(ended.returncode) if known else ExitCode.FAILED
        return error


def check(options: CheckOptions) -> int:
    """Measure two environments in turns, session by session, and compare them: exit 3 for a regression."""
    from gpubench.cli.compare import check as checked
    from gpubench.cli.compare import compare

    arguments = options.plan or []
    results = _results(options)
    comparison = ComparisonOptions(
        **{name: getattr(options, name) for name in ComparisonOptions.declared if name not in ("base", "new")},
        base=str(results / "base.json"), new=[str(results / "new.json")],
    )  # fmt: skip
    checked(comparison)  # a misspelt gate is told before anything is measured
    base = _version("BASE", options.base, options.base_folder, results / "base.json")
    new = _version("NEW", options.new, options.new_folder, results / "new.json")
    _tell(f"{_estimate(new, arguments, options.sessions)} Results: {results}")
    began = time.monotonic()
    for number in range(1, options.sessions + 1):
        base.measure(*arguments)
        new.measure(*arguments, "--like", str(base.result))
        left_s = (time.monotonic() - began) / number * (options.sessions - number)
        if left_s:
            _tell(f"{number} of {options.sessions} sessions a side, about {format_seconds(left_s)} left")
    return compare(comparison)


def _results(options: CheckOptions) -> Path:
    """Return the folder of both results, a new one unless it is named. Raises UsageError if it has some."""
    if options.results_dir is None:
        parent = Path("results")
        parent.mkdir(exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="check-", dir=parent)).resolve()
    folder = options.results_dir.resolve()
    old = [name for name in ("base.json", "new.json") if (folder / name).exists()]
    if old:
        raise UsageError(
            "cannot-save", f"--results-dir: {options.results_dir} has a {old[0]}",
            why="the sessions of two checks are not mixed", hint="name another folder, or remove the file",
        )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _version(name: str, place: str, folder: Path | None, result: Path) -> Version:
    """Return the version at `place`: an environment's folder, or a program. Raises UsageError if there is none."""
    path = Path(place)
    candidates = [path / "bin" / "gpubench", path / "Scripts" / "gpubench.exe"] if path.is_dir() else [path]
    program = next((candidate for candidate in candidates if candidate.is_file()), None)
    if program is None:
        raise UsageError(
            "no-environment", f"{name}: there is no gpubench in {place}",
            why=f"{candidates[0]} does not exist",
            hint="give a virtual environment in which gpubench is installed, or a program that runs it",
        )  # fmt: skip
    where = Path() if folder is None else folder
    if not where.is_dir():
        raise UsageError(
            "no-environment", f"--{name.lower()}-folder: {folder} is no folder",
            why=f"the runs of {name} would begin there",
        )  # fmt: skip
    return Version(name, str(program.absolute()), where, result)


def _estimate(version: Version, arguments: list[str], sessions: int) -> str:
    """Return how long all sessions take, by the plan of one. Raises GpubenchError if there is no plan."""
    planned = version.run("--quick", "--sessions", "1", *arguments, "--dry-run")
    if planned.returncode:
        raise version.failed(planned)
    told = _ESTIMATE.search(planned.stdout)
    session_s = START_S + (parse_duration(f"{told[1]}{told[2]}") if told else 0.0)
    return f"{sessions} sessions of each version in turns, about {format_seconds(2 * sessions * session_s)}."


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
