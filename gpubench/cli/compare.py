"""`gpubench compare`: is a new result faster or slower than a base? It measures nothing: it reads results, and
thresholds that `gpubench noise` wrote."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gpubench.base.errors import ExitCode, InputError, UsageError, require_choice
from gpubench.base.streams import in_ci
from gpubench.cli.options import ComparisonOptions

if TYPE_CHECKING:
    from gpubench.cli.ci import CiChannels
    from gpubench.compare.comparison import CompareOptions, Comparison, Thresholds
    from gpubench.report.layout import RenderOptions
    from gpubench.result.case import Case
    from gpubench.result.run import Run


class ComparisonPlan(NamedTuple):
    """The options of a comparison as checked values."""

    format: str  # format of the report
    style: RenderOptions  # look of the report
    channels: CiChannels  # outputs for continuous integration
    checked: CompareOptions  # the checked options of the comparison


def prepare(options: ComparisonOptions) -> ComparisonPlan:
    """Return the options as checked values, as far as they can be checked without a result. Raises UsageError
    if an option is wrong, and InputError if a named file cannot be used."""
    from gpubench.cli import ci, delivery
    from gpubench.report.comparison import FORMATS
    from gpubench.result import store

    output = options.output
    to_terminal = output in (None, "-") and sys.stdout.isatty()
    name = require_choice(delivery.chosen_format(options.format, output, to_terminal), FORMATS, "--format")
    style = delivery.look(options, to_terminal=to_terminal, time_unit=options.time_unit, full=options.full)
    plan = ComparisonPlan(name, style, ci.channels(options, os.environ), check(options))
    sources = [*map(_path, (options.base, *options.new)), options.thresholds or ""]
    if sources.count("-") > 1:
        raise UsageError("stdin-twice", why="standard input holds one result")
    if output is not None:
        store.check_writable(output, *sources)
    return plan


def compare(options: ComparisonOptions) -> int:
    """Decide FASTER, SLOWER, SAME or UNSURE for each case of two or more results. Of fewer than 5
    sessions a side, only large changes are told."""
    return compare_files(options, prepare(options))


def compare_files(options: ComparisonOptions, plan: ComparisonPlan) -> int:
    """Compare the files that the options name, write the report, and return the exit code. Raises InputError
    for files that cannot be compared, and for a requested gate that could not fail. Raises UsageError for a
    selector without cases, and GpubenchError if the report cannot be written."""
    from gpubench.cli import ci, delivery
    from gpubench.compare.two_runs import compare as comparing
    from gpubench.report.comparison import render
    from gpubench.report.layout import RenderOptions

    files = [options.base, *options.new]
    name, style, channels, checked = plan
    base, *new = [_load_side(text) for text in files]
    require_matches(options, [run for _, run in (base, *new)])
    comparison = comparing(base, new, checked)
    plain = RenderOptions(time_unit=options.time_unit)
    delivery.write(channels.comment(render(comparison, name, style), name), options.output, quiet=options.quiet)
    channels.tell(
        lambda: ci.of_comparison(comparison), lambda: render(comparison, "markdown", plain), _path(files[-1])
    )
    return _exit_code(comparison, checked)


def check(options: ComparisonOptions) -> CompareOptions:
    """Return the options as checked values. Raises UsageError if an option is wrong, and InputError if a named
    file cannot be used."""
    from gpubench.cli import ci
    from gpubench.compare.comparison import GATES, CompareOptions
    from gpubench.result.case import selector

    if not 0 < options.alpha <= 0.5:
        raise UsageError(
            "bad-alpha", f"--alpha: {options.alpha:g} is no chance of a false alarm",
            why="it is a share, more than 0 and at most 0.5"
        )  # fmt: skip
    thresholds = [_threshold(text) for text in options.threshold or []]
    # A threshold for some cases outweighs one for all, wherever it stands.
    thresholds.sort(key=lambda pair: pair[0] is not None)
    return CompareOptions(
        fail_on=None if options.fail_on is None else ci.parse_fail_on(options.fail_on, GATES),
        min_speedups=ci.parse_gates(options.min_speedup, None).min_speedups, thresholds=tuple(thresholds),
        noise=None if options.thresholds is None else _noise(options.thresholds),
        ignored=tuple(selector(text, option="--ignore") for text in options.ignore or []), alpha=options.alpha,
        advisory=options.advisory, allow_different_machine=options.allow_different_machine,
        insist=in_ci(os.environ)
    )  # fmt: skip


def require_matches(options: ComparisonOptions, runs: Sequence[Run]) -> None:
    """Raise UsageError for a selector that selects no case, so that a renamed op does not switch a gate off."""
    from gpubench.result.case import selector

    selections = [(text.rpartition("=")[0], "--threshold") for text in options.threshold or [] if "=" in text]
    selections += [(text.rpartition("=")[0], "--min-speedup") for text in options.min_speedup or []]
    selections += [(text, "--ignore") for text in options.ignore or []]
    cases = [outcome.case for run in runs for outcome in run.outcomes] if selections else []
    for text, option in selections:
        selects = selector(text, option=option)
        if not any(map(selects, cases)):
            raise UsageError(
                "no-such-case", f"{option}: {text[:60]!r} selects no case",
                why="none of the files has a case that it matches"
            )  # fmt: skip


def _threshold(text: str) -> tuple[Callable[[Case], bool] | None, float]:
    from gpubench.base.units import parse_percent
    from gpubench.result.case import selector

    path, equals, percent = text.rpartition("=")
    share = parse_percent(percent, option="--threshold")
    return (selector(path, option="--threshold") if equals else None), share


def _noise(path: str) -> Thresholds:
    """Return the thresholds from a file that `gpubench noise` wrote."""
    from gpubench.cli.noise import load
    from gpubench.compare.comparison import Thresholds

    noise = load(path)
    shares = {case.id: case.threshold for case in noise.cases}
    return Thresholds(source=Path(path).name, fingerprint=noise.fingerprint, shares=shares)


def _load_side(text: str) -> tuple[str, Run]:
    """Return the label and the run of `[LABEL=]FILE`."""
    from gpubench.result import store

    path = _path(text)
    label = text[: -len(path) - 1] if path != text else "standard input" if text == "-" else Path(text).name
    return label, store.load(path)


def _path(text: str) -> str:
    """Return the file of `[LABEL=]FILE`: the whole text, if a file has that name."""
    label, equals, path = text.partition("=")
    return path if equals and label and not os.path.exists(text) else text


def _exit_code(comparison: Comparison, options: CompareOptions) -> int:
    """Return the exit code, or raise InputError if a requested gate could not have failed."""
    if comparison.exit_code == ExitCode.INPUT:
        idle = next(gate for gate in comparison.gates if gate.impossible and options.must_count(gate.name))
        if idle.name != "slower":
            raise InputError(
                "gate-impossible", f"the gate {idle.name} could not be applied",
                why="--ignore leaves it no case, so it could not have failed"
            )  # fmt: skip
        notice = next(notice for notice in comparison.warnings if notice.code == "no-gate")
        raise InputError(
            "gate-impossible", "the gate on regressions could not be applied",
            why="every case has too few sessions (also for --alpha), was throttled or is not looked at, so it could "
            "not have failed",
            hint=f"{notice.hint}, or leave `slower` out of --fail-on"
        )  # fmt: skip
    return comparison.exit_code
