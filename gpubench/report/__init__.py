"""Result files -> a report. Works from the file alone, on any machine, without NumPy or a GPU."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpubench.errors import UsageError
from gpubench.model.case import Case
from gpubench.model.result import Run
from gpubench.suggestions import require_choice

if TYPE_CHECKING:
    from gpubench.report.analysis import Analysis, Claim, Demands

# Format -> its module; a module is imported only when its format is asked for (rich draws tables alone).
FORMATS = {
    "table": "terminal", "plain": "plain", "markdown": "markdown", "json": "json_document", "jsonl": "jsonl",
    "csv": "csv_rows", "html": "html_page", "gha-smaller": "gha_smaller", "gha-bigger": "gha_bigger", "bmf": "bmf",
    "pytest-benchmark": "pytest_benchmark", "hyperfine": "hyperfine", "google-benchmark": "google_benchmark",
    "go": "go_bench",
}  # fmt: skip

# What is drawn as a picture, and no text (plots.py).
PICTURES = ("svg", "png")
WITH_COLUMNS = ("table", "plain", "markdown", "csv")


def render(
    runs: Sequence[Run],
    format: str,
    *,
    width: int = 80,
    color: bool = False,
    ascii_only: bool = False,
    sections: Sequence[str] | None = None,
    time_unit: str = "auto",
    baseline: str | None = None,
    keep: Callable[[Case], bool] | None = None,
) -> str:
    """The report of `runs` as text with one trailing newline: `drawn` of `analysed`, and what they raise."""
    analyses = analysed(runs, baseline=baseline, keep=keep)
    return drawn(
        analyses,
        format,
        width=width,
        color=color,
        ascii_only=ascii_only,
        sections=sections,
        time_unit=time_unit,
    )


def analysed(
    runs: Sequence[Run],
    *,
    baseline: str | None = None,
    keep: Callable[[Case], bool] | None = None,
    demands: Demands | None = None,
    claims: Sequence[Claim] = (),
) -> list[Analysis]:
    """What the runs say, in their order.

    `baseline` is DEVICE, FORM or FORM@DEVICE (None: the fastest CPU form); `keep` selects the cases shown; `demands`
    are the gates, `claims` what others expect. Raises UsageError when `keep` keeps nothing, InputError for a baseline
    that was not measured.
    """
    from gpubench.report.analysis import NOTHING_DEMANDED, analyse

    wanted = demands or NOTHING_DEMANDED
    analyses = [analyse(run, baseline=baseline, keep=keep, demands=wanted, claims=claims) for run in runs]
    if keep is not None and not any(analysis.cases for analysis in analyses):
        raise UsageError(
            "no-such-case", "--filter and --skip leave no case",
            why="no case of the file matches", hint="--sections raw lists the cases with their ids",
        )  # fmt: skip
    return analyses


def drawn(
    analyses: Sequence[Analysis],
    format: str,
    *,
    width: int = 80,
    color: bool = False,
    ascii_only: bool = False,
    sections: Sequence[str] | None = None,
    time_unit: str = "auto",
    columns: Sequence[str] = (),
    sort: str | None = None,
) -> str:
    """The analyses as text with one trailing newline; the same bytes for the same files.

    `width` in characters; `sections` by key (None: all but raw); `time_unit` auto, s, ms, us or ns.
    `columns` limits tables (and CSV) to these; `sort` is a key of `analysis.order`, with `-` the largest first.
    Raises UsageError for an unknown format, section, unit, column or key.
    """
    from gpubench.report.formats._options import DEFAULT_SECTIONS, SECTIONS, TIME_UNITS, RenderOptions

    module = importlib.import_module(
        f"gpubench.report.formats.{FORMATS[require_choice(format, FORMATS, '--format')]}"
    )
    chosen = DEFAULT_SECTIONS
    if sections is not None:
        chosen = tuple(require_choice(name, SECTIONS, "--sections") for name in sections)
    options = RenderOptions(
        width=width, color=color, ascii_only=ascii_only, sections=chosen,
        time_unit=require_choice(time_unit, TIME_UNITS, "--time-unit"), columns=tuple(columns),
        in_order=sort is not None,
    )  # fmt: skip
    if sort is not None:
        from gpubench.report.analysis.order import KEYS, ordered

        require_choice(sort.removeprefix("-"), KEYS, "--sort")
        analyses = [ordered(analysis, sort) for analysis in analyses]
    require_columns(format, columns)
    text: str = module.render(analyses, options)
    return text


def require_columns(format: str, columns: Sequence[str]) -> None:
    """Raises UsageError for columns of a format that has none, and for unknown ones of CSV.

    Which columns tables have, only their drawing tells.
    """
    if columns and format not in WITH_COLUMNS:
        raise UsageError(
            "no-columns", f"--columns does not go with --format {format}", why="other programs read it as a whole",
            hint=f"take one of these formats: {', '.join(WITH_COLUMNS)}",
        )  # fmt: skip
    if columns and format == "csv":
        from gpubench.report.formats.csv_rows import COLUMNS

        for name in columns:
            require_choice(name, COLUMNS, "--columns")
