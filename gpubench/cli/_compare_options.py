"""From the words of `compare`'s options to CompareOptions; a selector that selects nothing is a slip."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gpubench.cli import _noise_file
from gpubench.cli._demands import demands
from gpubench.errors import UsageError
from gpubench.model.case import Case
from gpubench.model.result import Run
from gpubench.report.compare.options import CompareOptions, Thresholds
from gpubench.report.compare.pairing import is_compared
from gpubench.report.compare.types import GATES, FailOn
from gpubench.selectors import selector
from gpubench.suggestions import require_choice
from gpubench.units import parse_percent


def options(
    *, fail_on: str | None, min_speedups: Sequence[str], thresholds: Sequence[str], noise: str | None,
    ignore: Sequence[str], alpha: float, advisory: bool, allow_different_machine: bool,
) -> CompareOptions:  # fmt: skip
    """The options as checked values; `noise` is the file of --thresholds. Raises UsageError and InputError."""
    if not 0 < alpha <= 0.5:
        raise UsageError(
            "bad-alpha", f"--alpha: {alpha:g} is no chance of a false alarm",
            why="it is a share, more than 0 and at most 0.5", hint="write it as 0.05",
        )  # fmt: skip
    parsed = [_threshold(text) for text in thresholds]
    # A threshold for some cases outweighs one for all, wherever it stands.
    parsed.sort(key=lambda pair: pair[0] is not None)
    return CompareOptions(
        fail_on=None if fail_on is None else _gates(fail_on), min_speedups=demands(min_speedups, None).min_speedups,
        thresholds=tuple(parsed),
        noise=None if noise is None else _found(noise),
        ignored=tuple(selector(text, option="--ignore") for text in ignore), alpha=alpha, advisory=advisory,
        allow_different_machine=allow_different_machine, insist=_in_ci(os.environ),
    )  # fmt: skip


def require_matches(
    thresholds: Sequence[str], min_speedups: Sequence[str], ignore: Sequence[str], runs: Sequence[Run]
) -> None:
    """A selector that selects nothing is a slip: renaming an op must not switch a gate off. Raises UsageError."""
    given = [(text.rpartition("=")[0], "--threshold") for text in thresholds if "=" in text]
    given += [(text.rpartition("=")[0], "--min-speedup") for text in min_speedups]
    given += [(text, "--ignore") for text in ignore]
    known = [outcome.case for run in runs for outcome in run.outcomes if is_compared(outcome)] if given else []
    for text, option in given:
        selects = selector(text, option=option)
        if not any(map(selects, known)):
            raise UsageError(
                "no-such-case", f"{option}: {text[:60]!r} selects no case",
                why="none of the files has a case that it matches",
                hint="gpubench report --sections raw lists the cases with their ids",
            )  # fmt: skip


def _gates(text: str) -> tuple[FailOn, ...]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        require_choice(word, GATES, "--fail-on")
    return tuple(name for name in GATES if name in words)


def _threshold(text: str) -> tuple[Callable[[Case], bool] | None, float]:
    path, equals, percent = text.rpartition("=")
    share = parse_percent(percent, option="--threshold")
    return (selector(path, option="--threshold") if equals else None), share


def _found(path: str) -> Thresholds:
    found = _noise_file.load(path)
    shares = {row.id: row.threshold for row in found.cases}
    return Thresholds(source=Path(path).name, fingerprint=found.fingerprint, shares=shares)


def _in_ci(environ: Mapping[str, str]) -> bool:
    return environ.get("CI", "").lower() not in ("", "0", "false")
