"""Where the sessions of `noise` come from: a result file, or a measurement of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from gpubench import selectors, store
from gpubench.cli import _progress, _run_output, _run_request
from gpubench.cli._run_request import Typed
from gpubench.cli._selection import DEFAULT_BUDGET_S
from gpubench.errors import ExitCode, GpubenchError, InputError, UsageError
from gpubench.model.result import Failure, Measurement, Run, Skip
from gpubench.report.noise import Noise, noise

# Of the options that say what to measure and how: a file is asked for some of its cases and sessions.
FILE_TAKES = {"filter", "skip", "sessions"}
MEASURING = {*Typed.__struct_fields__, "results_dir", "no_save"} - FILE_TAKES


def refuse_measuring(given: Iterable[str]) -> None:
    """Raises UsageError for options of the command line that only a measurement has. What a configuration file or the
    environment say about measuring stays unused, as it does in every command that measures nothing."""
    for name in given:
        if name in MEASURING:
            raise UsageError(
                "already-measured", f"--{name.replace('_', '-')} does not go with a FILE",
                why="what the file holds was measured already",
                hint="leave it out, or leave FILE out and let `gpubench noise` measure",
            )  # fmt: skip


def stored(file: str, typed: Typed) -> Run:
    """What --filter and --skip leave of a result. Raises InputError, and UsageError where that is nothing."""
    run = store.load(file)
    keep = selectors.selection(typed.filter or [], typed.skip or [])
    if keep is None:
        return run
    outcomes = [outcome for outcome in run.outcomes if keep(outcome.case)]
    if not outcomes:
        raise UsageError(
            "no-such-case", "--filter and --skip leave no case", why="no case of the file matches",
            hint="gpubench report --sections raw lists the cases with their ids",
        )  # fmt: skip
    return msgspec.structs.replace(run, outcomes=outcomes)


def measured(
    typed: Typed, sessions: int, results_dir: Path | None, no_save: bool, *, quiet: bool, no_progress: bool,
    began: float,
) -> Run:  # fmt: skip
    """So many sessions, measured and saved as `run` does it."""
    from gpubench.measure import runner

    # Each session searches or repeats as much as one default run measures.
    budget = typed.budget or (None if typed.sizes else f"{DEFAULT_BUDGET_S * sessions:g}s")
    _run_output.checked([], None, results_dir, no_save)
    request = _run_request.request(
        msgspec.structs.replace(typed, sessions=sessions, budget=budget), began=began
    )
    saver = _run_output.Saver([], results_dir, no_save)
    with _progress.shown(quiet=quiet, no_progress=no_progress, environ=os.environ) as sink:
        finished = runner.run(request, sink, saver)
    if not quiet:
        for path in saver.paths:
            print(f"saved {path}", file=sys.stderr)
    return _run_output.as_stored(finished)


def judged(run: Run, sessions: int) -> Noise:
    """The noise of what was measured here. Raises GpubenchError where that is too little, with what went wrong as the
    reason and the exit code of the run."""
    try:
        return noise(run, sessions)
    except InputError as error:
        raise _too_little(run, _cut_short(run, 2 * sessions)) from error


def _cut_short(run: Run, sessions: int) -> bool:
    """Whether the budget ended before so many sessions of all cases were measured."""
    counting = {session.index for session in run.sessions if not session.superseded}
    stopped = any(
        stop.reason == "budget" and stop.session in counting
        for row in run.outcomes
        if isinstance(row, Measurement)
        for stop in row.stops
    )
    return stopped or len(run.sessions) < sessions or run.exit_code == ExitCode.BUDGET


def _too_little(run: Run, cut_short: bool) -> GpubenchError:
    # What broke is graver than what was left out. Where the budget ended first, that is why the cases that were
    # measured lack sessions, whatever else was left out.
    cut = cut_short and any(isinstance(row, Measurement) for row in run.outcomes)
    lost = sorted(
        (
            row for row in run.outcomes
            if isinstance(row, Failure) or (isinstance(row, Skip) and (row.reason == "budget" or not cut))
        ),
        key=lambda row: (isinstance(row, Skip), row.reason != "budget"),
    )  # fmt: skip
    why, hint = "no case has a number that can be true", "`gpubench run` with the same options tells more"
    if lost:
        why = f"{lost[0].id}: {lost[0].reason}: {lost[0].detail}"
    elif cut_short:
        why = "the time budget ended first"
    if lost[0].reason == "budget" if lost else cut_short:
        hint = "raise --budget, or measure less"
    found = GpubenchError(
        "nothing-to-compare", "too little was measured to tell noise from change", why=why, hint=hint
    )
    found.exit_code = ExitCode(run.exit_code) or (ExitCode.BUDGET if cut_short else ExitCode.INPUT)
    return found
