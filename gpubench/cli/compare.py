"""`gpubench compare`: is a new result faster or slower than a base? From the files alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubench.cli._options import Ascii, Color
from gpubench.cli.report import chosen_format, table_width, wants_color, write_text
from gpubench.errors import ExitCode, InputError, UsageError
from gpubench.suggestions import require_choice

if TYPE_CHECKING:
    from gpubench.model.case import Case
    from gpubench.model.result import Run
    from gpubench.report.compare import Comparison
    from gpubench.report.compare.options import CompareOptions
    from gpubench.report.compare.types import GateName


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
    threshold: Annotated[
        list[str] | None,
        typer.Option(
            "--threshold",
            metavar="[SEL=]PCT",
            show_default=False,
            help="Smaller changes are none; repeatable. Default: 5 %, or 10 % if sessions did not take turns.",
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
    color: Color = "auto",
    ascii: Ascii = False,
) -> int:
    """Decide FASTER, SLOWER, SAME or UNSURE for each case of two or more results. Needs 5 sessions a side."""
    from gpubench import store
    from gpubench.report import compare as comparing
    from gpubench.report.compare.render import FORMATS, render
    from gpubench.report.formats._options import TIME_UNITS, RenderOptions

    to_terminal = output in (None, "-") and sys.stdout.isatty()
    name = require_choice(chosen_format(format, output, to_terminal), FORMATS, "--format")
    look = RenderOptions(
        width=table_width(to_terminal), color=wants_color(color, os.environ, terminal=to_terminal),
        ascii_only=ascii, time_unit=require_choice(time_unit, TIME_UNITS, "--time-unit"),
    )  # fmt: skip
    options = _options(fail_on, threshold or [], ignore or [], alpha, advisory, allow_different_machine)
    if [base, *new].count("-") > 1:
        raise UsageError(
            "stdin-twice", "- is given more than once", why="standard input holds one result",
            hint="give the others as files",
        )  # fmt: skip
    if output is not None:
        store.check_writable(output)
    files = [_loaded(text) for text in (base, *new)]
    _require_matches((threshold or []), (ignore or []), [run for _, run in files])
    found = comparing.compare(files[0], files[1:], options)
    write_text(render(found, name, look), output)
    return _ended(found)


def _options(
    fail_on: str | None, thresholds: Sequence[str], ignore: Sequence[str], alpha: float, advisory: bool,
    allow_different_machine: bool,
) -> CompareOptions:  # fmt: skip
    """The options as checked values. Raises UsageError."""
    from gpubench.report.compare.options import CompareOptions

    if not 0 < alpha <= 0.5:
        raise UsageError(
            "bad-alpha", f"--alpha: {alpha:g} is no chance of a false alarm",
            why="it is a share, more than 0 and at most 0.5", hint="write it as 0.05",
        )  # fmt: skip
    parsed = [_threshold(text) for text in thresholds]
    # A threshold for some cases outweighs one for all, wherever it stands.
    parsed.sort(key=lambda pair: pair[0] is not None)
    return CompareOptions(
        fail_on=None if fail_on is None else _gates(fail_on), thresholds=tuple(parsed),
        ignored=tuple(_selector(text, "--ignore") for text in ignore), alpha=alpha, advisory=advisory,
        allow_different_machine=allow_different_machine, insist=_in_ci(os.environ),
    )  # fmt: skip


def _gates(text: str) -> tuple[GateName, ...]:
    from gpubench.report.compare.types import GATES

    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        require_choice(word, GATES, "--fail-on")
    return tuple(name for name in GATES if name in words)


def _threshold(text: str) -> tuple[Callable[[Case], bool] | None, float]:
    from gpubench.units import parse_percent

    path, equals, percent = text.rpartition("=")
    share = parse_percent(percent, option="--threshold")
    return (_selector(path, "--threshold") if equals else None), share


def _selector(text: str, option: str) -> Callable[[Case], bool]:
    from gpubench.selectors import selector

    return selector(text, option=option)


def _require_matches(thresholds: Sequence[str], ignore: Sequence[str], runs: Sequence[Run]) -> None:
    """A selector that selects nothing is a slip: renaming an op must not switch a gate off."""
    given = [(text.rpartition("=")[0], "--threshold") for text in thresholds if "=" in text]
    given += [(text, "--ignore") for text in ignore]
    for text, option in given:
        selects = _selector(text, option)
        if not any(selects(outcome.case) for run in runs for outcome in run.outcomes):
            raise UsageError(
                "no-such-case", f"{option}: {text[:60]!r} selects no case",
                why="none of the files has a case that it matches",
                hint="gpubench report --sections raw lists the cases with their ids",
            )  # fmt: skip


def _loaded(text: str) -> tuple[str, Run]:
    """`[LABEL=]FILE`: the name to show, and what the file holds. A file whose own name has = needs no label."""
    from gpubench import store

    label, equals, path = text.partition("=")
    if equals and label and not Path(text).exists():
        return label, store.load(path)
    return ("standard input" if text == "-" else Path(text).name), store.load(text)


def _in_ci(environ: Mapping[str, str]) -> bool:
    return environ.get("CI", "").lower() not in ("", "0", "false")


def _ended(found: Comparison) -> int:
    """The exit code, after the report. Raises InputError for a gate that could not have fired and had to."""
    if found.exit_code == ExitCode.INPUT:
        notice = next(notice for notice in found.warnings if notice.code == "no-gate")
        raise InputError(
            "gate-impossible", "the gate on regressions could not be applied",
            why="these files have too few sessions, or no case that it looks at, so it could not have failed",
            hint=f"{notice.hint}, or leave `slower` out of --fail-on",
        )  # fmt: skip
    return found.exit_code
