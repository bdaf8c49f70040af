"""Charts as pictures, for `report` and `run`: `--plots DIR` beside the report, `--format svg|png` in its place."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubench.cli._writing import cannot_write
from gpubench.cli._writing import write as write_report
from gpubench.errors import UsageError
from gpubench.suggestions import require_choice

if TYPE_CHECKING:
    from gpubench.report.analysis import Analysis

Plots = Annotated[
    Path | None,
    typer.Option("--plots", metavar="DIR", help="Write the charts into this folder.", show_default=False),
]
PlotFormat = Annotated[str, typer.Option("--plot-format", metavar="svg|png", help="How --plots writes them.")]


def check(folder: Path | None, format: str) -> None:
    """Before anything is measured or read. Raises UsageError without the extra `plots`, and for an unknown format."""
    if folder is None:
        return
    from gpubench import store
    from gpubench.report import PICTURES, plots

    require_choice(format, PICTURES, "--plot-format")
    plots.require_library("--plots")
    store.check_folder(folder, option="--plots")


def write(
    analyses: Sequence[Analysis],
    folder: Path | None,
    format: str,
    sections: Sequence[str] | None,
    time_unit: str,
) -> None:
    """Write the charts and say how many on stderr; nothing without a folder. Raises GpubenchError."""
    if folder is None:
        return
    from gpubench.report import plots

    try:
        count = plots.write(analyses, folder, format, sections=sections, time_unit=time_unit)
    except OSError as error:
        raise cannot_write(f"the charts into {folder}", error) from error
    print(f"wrote {count} chart{'s' if count != 1 else ''} to {folder}", file=sys.stderr)


def check_format(format: str, *, to_terminal: bool) -> None:
    """Before anything is measured or read. Raises UsageError for a picture that cannot be drawn or shown here."""
    from gpubench.report import PICTURES, plots

    if format not in PICTURES:
        return
    plots.require_library(f"--format {format}")
    if to_terminal and format == "png":
        raise UsageError(
            "not-text", "--format png: a terminal does not show it", why="a PNG is no text",
            hint="name a file: -o report.png",
        )  # fmt: skip


def write_picture(
    analyses: Sequence[Analysis],
    format: str,
    output: str | None,
    sections: Sequence[str] | None,
    time_unit: str,
) -> None:
    """To the file `output`, or to standard output. Raises GpubenchError."""
    from gpubench.report import plots

    write_report(plots.picture(analyses, format, sections=sections, time_unit=time_unit), output)
