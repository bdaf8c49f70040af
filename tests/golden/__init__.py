"""Golden reports: `python -m tests.golden` writes them anew; look at the difference before committing it."""

from __future__ import annotations

from pathlib import Path

from gpubench.report import render
from tests.unit.report.samples import cpu_run, full_run, interrupted_run, software_run

FOLDER = Path(__file__).parent
SUFFIXES = {"table": "table.txt", "plain": "txt", "markdown": "md", "json": "json", "csv": "csv"}
RUNS = {"full": full_run, "cpu-only": cpu_run, "software-only": software_run, "interrupted": interrupted_run}
# Every format of the full run; of the others what people read.
CASES = [("full", name) for name in SUFFIXES] + [(run, "plain") for run in RUNS if run != "full"]


def path(run: str, format: str) -> Path:
    """Where the golden report lies."""
    return FOLDER / f"{run}.{SUFFIXES[format]}"


def text(run: str, format: str) -> str:
    """What the report says now."""
    return render([RUNS[run]()], format)
