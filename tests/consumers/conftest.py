"""Reports as files, for the programs that read them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gpubench.report import render
from gpubench.result.run import Run
from tests.unit.report.builders import case, measured, run_of
from tests.unit.report.samples import full_run

Report = Callable[..., Path]


def small_run(seconds: float = 1e-3, sessions: int = 5) -> Run:
    """Two cases, and enough sessions for whoever tests them."""
    cpu, gpu = case(), case(device="cupy:0")
    outcomes = [measured(what, s, sessions=sessions) for what, s in ((cpu, 4 * seconds), (gpu, seconds))]
    return run_of(outcomes, sessions=sessions)


@pytest.fixture
def report(tmp_path: Path) -> Report:
    """Write the report of a run (default: the one of the golden files) in a format; the file's path."""

    def write(format: str, run: Run | None = None, name: str = "report") -> Path:
        path = tmp_path / name
        path.write_text(render([run or full_run()], format), encoding="utf-8", newline="\n")
        return path

    return write
