"""Reports: the numbers of result files for people and for other programs. They are made from the files alone,
without NumPy or a GPU."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gpubench.base.errors import UsageError, require_choice
from gpubench.base.plugins.sections import FORMATS as OWN_FORMATS
from gpubench.base.plugins.sections import TIME_UNITS, TOOLS, require
from gpubench.result.case import Case
from gpubench.result.run import Run

if TYPE_CHECKING:
    from gpubench.analysis.analyse import Analysis
    from gpubench.analysis.claims import Claim
    from gpubench.analysis.findings import Gates
    from gpubench.report.layout import RenderOptions

FORMATS = {**OWN_FORMATS, **TOOLS}
# The sections of a Markdown report if the user chose none. A default run has less than 120 lines of them.
SUMMARY = ("machines", "history", "answer", "map", "claims", "skipped", "warnings")


def render(
    runs: Sequence[Run],
    format: str,
    *,
    keep: Callable[[Case], bool] | None = None,
    **look: Any,
) -> str:
    """Analyse `runs` (see `analyse_runs`), and return their report in the given format (see `draw_report`).
    `look` holds fields of `RenderOptions`."""
    from gpubench.report.layout import RenderOptions

    return draw_report(analyse_runs(runs, keep=keep), format, RenderOptions(**look))


def analyse_runs(
    runs: Sequence[Run],
    *,
    baseline: str | None = None,
    keep: Callable[[Case], bool] | None = None,
    gates: Gates | None = None,
    claims: Sequence[Claim] = (),
) -> list[Analysis]:
    """Return the analysis of each run, in the order of `runs`. `baseline` is DEVICE, IMPLEMENTATION or
    IMPLEMENTATION@DEVICE; None means the fastest CPU implementation. `keep` selects the cases to show. Raises
    UsageError if `keep` leaves no case, and InputError for a baseline that was not measured."""
    from gpubench.analysis.analyse import analyse

    analyses = [analyse(run, baseline=baseline, keep=keep, gates=gates, claims=claims) for run in runs]
    if keep is not None and not any(analysis.cases for analysis in analyses):
        raise UsageError(
            "no-such-case", "--filter and --skip leave no case",
            why="no case of the file matches", hint="--sections raw lists the cases with their ids",
        )  # fmt: skip
    return analyses


def draw_report(analyses: Sequence[Analysis], format: str, options: RenderOptions | None = None) -> str:
    """Return the report of the analyses in the given format, as text with one trailing newline. The same files
    give the same bytes. Raises UsageError for an unknown format, section, time unit, sort key or column. Raises
    UsageError, too, for several runs in a format that takes only one."""
    from gpubench.report.layout import RenderOptions

    require_choice(format, FORMATS, "--format")
    module, _, function = FORMATS[format].partition(":")
    draw = getattr(importlib.import_module(f"gpubench.report.{module}"), function or "render")
    options = options or RenderOptions()
    require_look(format, options)
    if options.sort is not None:
        from gpubench.analysis.analyse import order_rows

        analyses = [order_rows(analysis, options.sort) for analysis in analyses]
    text: str = draw(analyses, options)
    return text


def screen(
    analyses: Sequence[Analysis], format: str, options: RenderOptions, *,
    files: Sequence[str] = (), saved: Sequence[str] = (), height: int,
) -> str:  # fmt: skip
    """Return the answer of one run, or one line for each of several runs. `format` is `table` (for a terminal
    of `height` lines) or `plain`. `files` holds the file names of several runs, and `saved` the files that the
    run has just saved."""
    from gpubench.report import renderers
    from gpubench.report.contents import final_screen, list_runs

    if len(analyses) == 1:
        document = final_screen(analyses[0], options, saved=saved, height=height)
    else:
        document = list_runs(analyses, files, options)
    return renderers.draw_lines([document], options, plain=format == "plain")


def require_look(format: str, options: RenderOptions) -> None:
    """Raise UsageError for an unknown section, time unit, sort key or CSV column. The columns of tables are
    checked later, when the tables exist."""
    from gpubench.analysis.analyse import KEYS

    require(options.sections)
    require_choice(options.time_unit, TIME_UNITS, "--time-unit")
    columns = options.columns
    if columns and format == "csv":
        from gpubench.report.exporters import csv_columns

        for name in columns:
            require_choice(name, csv_columns(options.sections), "--columns")
    if options.sort is not None:
        require_choice(options.sort.removeprefix("-"), KEYS, "--sort")
