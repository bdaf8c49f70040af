"""`gpubench report`: render saved results from the files alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubench.cli import _plots
from gpubench.cli._ci_options import Annotations, FailOn, Marker, MaxBytes, MinSpeedup, Summary
from gpubench.cli._options import FORMAT_NAMES, Ascii, Color
from gpubench.cli._report_options import Baseline, Claims, Columns, Sort, listed, loaded_claims
from gpubench.cli._writing import write
from gpubench.errors import InputError, UsageError
from gpubench.suggestions import require_choice

if TYPE_CHECKING:
    from gpubench.model.result import Run

_SUFFIXES = {
    ".md": "markdown", ".json": "json", ".jsonl": "jsonl", ".csv": "csv", ".html": "html",
    ".txt": "plain", ".svg": "svg", ".png": "png",
}  # fmt: skip
_PLAIN_WIDTH = 80  # where no terminal says otherwise: the same bytes for the same file
_NARROWEST, _WIDEST = 60, 120


def report(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE]...",
            help="Results, fleets, folders of them, - for stdin. Default: the newest result.",
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help=f"{FORMAT_NAMES}. Default: table on a terminal, else plain text.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write here; format by suffix.")
    ] = None,
    sections: Annotated[
        str | None,
        typer.Option(
            "--sections",
            metavar="LIST",
            help="Only these of machines, history, verdict, breakeven, reuse, speedup, chart, hybrid, skipped, "
            "anatomy, roofline, claims, warnings, environment, raw. Default: all but raw.",
        ),
    ] = None,
    baseline: Baseline = None,
    claims: Claims = None,
    sort: Sort = None,
    columns: Columns = None,
    plots: _plots.Plots = None,
    plot_format: _plots.PlotFormat = "svg",
    filter: Annotated[
        list[str] | None, typer.Option("--filter", metavar="SEL", help="Show these cases only; repeatable.")
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option("--skip", metavar="SEL", help="Leave these cases out; repeatable.")
    ] = None,
    results_dir: Annotated[
        Path, typer.Option("--results-dir", metavar="DIR", help="Where the newest result is looked for.")
    ] = Path("results"),
    time_unit: Annotated[
        str, typer.Option("--time-unit", metavar="auto|s|ms|us|ns", help="Unit of times in tables.")
    ] = "auto",
    min_speedup: MinSpeedup = None,
    fail_on: FailOn = None,
    summary: Summary = False,
    annotations: Annotations = "auto",
    marker: Marker = None,
    max_bytes: MaxBytes = None,
    color: Color = "auto",
    ascii: Ascii = False,
) -> int:
    """Render saved results: verdict, break-even, speedup, where the time goes, warnings."""
    from gpubench import report as reports
    from gpubench import store
    from gpubench.cli import _ci, _demands

    to_terminal = output in (None, "-") and sys.stdout.isatty()
    name = chosen_format(format, output, to_terminal)
    require_choice(name, [*reports.FORMATS, *reports.PICTURES], "--format")
    _plots.check_format(name, to_terminal=to_terminal)
    keep = None
    if filter or skip:
        from gpubench import selectors

        keep = selectors.selection(filter or [], skip or [])
    told = _ci.ci(summary, annotations, marker, max_bytes, os.environ, formats=[name])
    demands = _demands.demands(min_speedup or [], fail_on)
    _plots.check(plots, plot_format)
    if output is not None:
        store.check_writable(output)
    paths = files or [_newest(results_dir)]
    runs = _read(paths)
    analyses = reports.analysed(
        runs, baseline=baseline, keep=keep, claims=loaded_claims(claims), demands=demands
    )
    _demands.require_measured(demands, analyses)
    if name in reports.PICTURES:
        _plots.write_picture(analyses, name, output, _listed(sections), time_unit)
    else:
        text = reports.drawn(
            analyses, name, width=table_width(to_terminal),
            color=wants_color(color, os.environ, terminal=to_terminal), ascii_only=ascii,
            sections=_listed(sections), time_unit=time_unit, columns=listed(columns), sort=sort,
        )  # fmt: skip
        write(told.comment(text, name), output)
    _plots.write(analyses, plots, plot_format, _listed(sections), time_unit)
    code = _demands.exit_code(analyses)
    told.tell_reports(
        analyses, code, paths[0],
        markdown=lambda: reports.drawn(
            analyses, "markdown", sections=_listed(sections), time_unit=time_unit, sort=sort
        ),
    )  # fmt: skip
    return code


def _files(paths: Sequence[object]) -> list[object]:
    """`paths` with all results of a folder, oldest first, in place of the folder. Raises InputError if it has none."""
    from gpubench import store

    found: list[object] = []
    for path in paths:
        inside = store.newest_first([str(path)])[::-1] if os.path.isdir(str(path)) else [path]
        if not inside:
            raise InputError(
                "no-results", f"{path} holds no result", why="it is a folder without a result file",
                hint="name a file that `gpubench run` has written, or the folder that it lies in",
            )  # fmt: skip
        found += inside
    return found


def _read(paths: Sequence[object]) -> list[Run]:
    """The runs of all files, those of a fleet's nodes included; a node without a result is told on stderr."""
    from gpubench.cli import _fleet_file

    found: list[Run] = []
    for path in _files(paths):
        runs, failed, _ = _fleet_file.read(str(path))
        found += runs
        for node in failed:
            print(f"{path}: the node {node.key} brought no result: {node.error}", file=sys.stderr)
    if found:
        return found
    raise InputError(
        "no-results", f"no node of {', '.join(map(str, paths))} brought a result", why="every one of them failed",
        hint="`gpubench merge` the fleet with the result files of its nodes",
    )  # fmt: skip


def chosen_format(format: str | None, output: str | None, to_terminal: bool) -> str:
    """The format asked for; else by the suffix of `output`; else by where the text goes."""
    if format is not None:
        return format
    if output is not None and output != "-":
        suffix = Path(output).suffix.lower()
        if suffix not in _SUFFIXES:
            raise UsageError(
                "unknown-suffix", f"--output: no format belongs to the suffix of {output!r}",
                why=f"known: {', '.join(_SUFFIXES)}", hint="name the format with --format",
            )  # fmt: skip
        return _SUFFIXES[suffix]
    return "table" if to_terminal else "plain"


def wants_color(choice: str, environ: Mapping[str, str], *, terminal: bool) -> bool:
    """--color, then NO_COLOR (set and not empty), then FORCE_COLOR, then: a terminal that is not dumb."""
    if choice != "auto":
        return choice == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return terminal and environ.get("TERM") != "dumb"


def table_width(to_terminal: bool) -> int:
    """The terminal's width within reason; 80 elsewhere."""
    if not to_terminal:
        return _PLAIN_WIDTH
    import shutil

    return max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size((_PLAIN_WIDTH, 24)).columns))


def _newest(results_dir: Path) -> str:
    from gpubench import store

    found = store.newest([results_dir]) or store.newest([store.user_data_dir() / "results"])
    if found is None:
        raise InputError(
            "no-results", "there is no result to report",
            why=f"no result file in {results_dir} nor in the user's data folder",
            hint="run `gpubench run` first, or name a FILE",
        )  # fmt: skip
    return str(found)


def _listed(sections: str | None) -> list[str] | None:
    if sections is None:
        return None
    return [name.strip() for name in sections.split(",") if name.strip()]
