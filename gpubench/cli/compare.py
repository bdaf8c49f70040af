"""`gpubench compare`: is a new result faster or slower than a base? From the files alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubench.cli._ci_options import Annotations, Marker, MaxBytes, Summary
from gpubench.cli._options import Ascii, Color
from gpubench.cli._writing import write
from gpubench.cli.report import chosen_format, table_width, wants_color
from gpubench.errors import ExitCode, InputError, UsageError
from gpubench.suggestions import require_choice

if TYPE_CHECKING:
    from gpubench.model.result import Run
    from gpubench.report.compare import CompareOptions, Comparison


def compare(
    base: Annotated[str, typer.Argument(metavar="BASE", help="Result file to compare with, - for stdin.")],
    new: Annotated[list[str], typer.Argument(metavar="NEW...", help="Result files, each [LABEL=]FILE.")],
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="table|plain|markdown|json|csv",
            show_default=False,
            help="Default: table on a terminal, else plain text.",
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write here; format by suffix.")
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on",
            metavar="LIST",
            show_default=False,
            help="Exit 3 for any of slower,unsure,failed,missing,noisy. Default: slower,failed,missing.",
        ),
    ] = None,
    min_speedup: Annotated[
        list[str] | None,
        typer.Option(
            "--min-speedup",
            metavar="SEL=X",
            help="Exit 3 if a selected case is not X times faster than in BASE; repeatable.",
        ),
    ] = None,
    threshold: Annotated[
        list[str] | None,
        typer.Option(
            "--threshold",
            metavar="[SEL=]PCT",
            show_default=False,
            help="Smaller changes are none; repeatable. Default: 5 %, or 10 % if sessions did not take turns.",
        ),
    ] = None,
    thresholds: Annotated[
        str | None,
        typer.Option(
            "--thresholds",
            metavar="FILE",
            show_default=False,
            help="What `gpubench noise -o` wrote: raises the threshold of noisy cases.",
        ),
    ] = None,
    alpha: Annotated[
        float, typer.Option("--alpha", metavar="P", help="Chance of a false alarm over all cases.")
    ] = 0.05,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore", metavar="SEL", help="Show these cases, but no gate looks at them; repeatable."
        ),
    ] = None,
    advisory: Annotated[bool, typer.Option("--advisory", help="Tell failed gates, but exit 0.")] = False,
    allow_different_machine: Annotated[
        bool,
        typer.Option("--allow-different-machine", help="Compare results of different machines all the same."),
    ] = False,
    time_unit: Annotated[
        str, typer.Option("--time-unit", metavar="auto|s|ms|us|ns", help="Unit of times in tables.")
    ] = "auto",
    summary: Summary = False,
    annotations: Annotations = "auto",
    marker: Marker = None,
    max_bytes: MaxBytes = None,
    color: Color = "auto",
    ascii: Ascii = False,
) -> int:
    """Decide FASTER, SLOWER, SAME or UNSURE for each case of two or more results. Needs 5 sessions a side."""
    from gpubench import store
    from gpubench.cli import _ci, _compare_options
    from gpubench.report import compare as comparing
    from gpubench.report.ci import of_comparison
    from gpubench.report.compare.render import FORMATS, render
    from gpubench.report.formats._options import TIME_UNITS, RenderOptions

    to_terminal = output in (None, "-") and sys.stdout.isatty()
    name = require_choice(chosen_format(format, output, to_terminal), FORMATS, "--format")
    look = RenderOptions(
        width=table_width(to_terminal), color=wants_color(color, os.environ, terminal=to_terminal),
        ascii_only=ascii, time_unit=require_choice(time_unit, TIME_UNITS, "--time-unit"),
    )  # fmt: skip
    plain = RenderOptions(time_unit=time_unit)
    told = _ci.ci(summary, annotations, marker, max_bytes, os.environ, formats=[name])
    options = _compare_options.options(
        fail_on=fail_on, min_speedups=min_speedup or [], thresholds=threshold or [], noise=thresholds,
        ignore=ignore or [], alpha=alpha, advisory=advisory, allow_different_machine=allow_different_machine,
    )  # fmt: skip
    if [*map(_path, (base, *new)), thresholds].count("-") > 1:
        raise UsageError(
            "stdin-twice", "- is given more than once", why="standard input holds one result",
            hint="give the others as files",
        )  # fmt: skip
    if output is not None:
        store.check_writable(output)
    files = [_loaded(text) for text in (base, *new)]
    _compare_options.require_matches(
        threshold or [], min_speedup or [], ignore or [], [run for _, run in files]
    )
    found = comparing.compare(files[0], files[1:], options)
    write(told.comment(render(found, name, look), name), output)
    told.tell(lambda: of_comparison(found), lambda: render(found, "markdown", plain), _path(new[-1]))
    return _ended(found, options)


def _loaded(text: str) -> tuple[str, Run]:
    """`[LABEL=]FILE`: the name to show, and what the file holds. A file whose own name has = needs no label."""
    from gpubench import store

    path = _path(text)
    label = text[: -len(path) - 1] if path != text else "standard input" if text == "-" else Path(text).name
    return label, store.load(path)


def _path(text: str) -> str:
    """What of `[LABEL=]FILE` is the file."""
    label, equals, path = text.partition("=")
    return path if equals and label and not os.path.exists(text) else text


def _ended(found: Comparison, options: CompareOptions) -> int:
    """The exit code, after the report. Raises InputError for a gate that could not have failed and had to count."""
    if found.exit_code == ExitCode.INPUT:
        idle = next(gate for gate in found.gates if gate.impossible and options.must_count(gate.name))
        if idle.name != "slower":
            raise InputError(
                "gate-impossible", f"the gate {idle.name} could not be applied",
                why="--ignore leaves it no case, so it could not have failed",
                hint="ignore less, or leave the gate out",
            )  # fmt: skip
        notice = next(notice for notice in found.warnings if notice.code == "no-gate")
        raise InputError(
            "gate-impossible", "the gate on regressions could not be applied",
            why="every case has too few sessions (also for --alpha), was throttled or is not looked at, so it could "
            "not have failed",
            hint=f"{notice.hint}, or leave `slower` out of --fail-on",
        )  # fmt: skip
    return found.exit_code
