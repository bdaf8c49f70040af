"""`gpubench noise`: an A/A test, which shows how much unchanged work seems to change here, and thresholds for
`compare`."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from gpubench.base.errors import ExitCode, GpubenchError, InputError, UsageError, require_choice
from gpubench.cli.options import NoiseOptions, SavingOptions, SelectionOptions, commands

if TYPE_CHECKING:
    from gpubench.compare.two_runs import Noise
    from gpubench.result.run import Run


def noise(options: NoiseOptions) -> int:
    """Measure the same thing in 10 sessions and compare them with one another: false alarms and thresholds."""
    began = time.monotonic()
    from gpubench.cli import delivery
    from gpubench.compare.comparison import ALLOWED_SHARE
    from gpubench.compare.two_runs import noise as noise_of
    from gpubench.report.comparison import render_noise
    from gpubench.report.renderers import DOCUMENT_FORMATS

    terminal = sys.stdout.isatty()
    name = require_choice(delivery.chosen_format(options.format, None, terminal), DOCUMENT_FORMATS, "--format")
    style = delivery.look(options, to_terminal=terminal)
    if options.output is not None:
        _check_output(options.output, options.file or "")
    if options.file is not None:
        _refuse_measuring(options)
        document, ending = noise_of(_load_cases(options.file, options), options.sessions), 0
    else:
        run = _measure(options, began)
        if run.exit_code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
            return run.exit_code
        document, ending = judge_sessions(run, options.sessions), run.exit_code
    if options.output != "-":
        delivery.write(render_noise(document, name, style), None)
    if options.output is not None:
        _save(document, options.output)
    if ending:  # what went wrong while measuring outweighs the gate
        return ending
    return ExitCode.GATE if options.check and document.false_alarm_share > ALLOWED_SHARE else ExitCode.OK


# ---------------------------------------------------------------- the sessions: of a file, or measured


def _refuse_measuring(options: NoiseOptions) -> None:
    """Raise UsageError for a typed option that is only about measuring."""
    # A file is asked for some of its cases and sessions; the rest was decided when it was measured.
    decided = {*options.measuring(), *SavingOptions.declared} - {"filter", "skip", "sessions"}
    for name in options.explicit:
        if name in decided:
            raise UsageError(
                "already-measured", f"--{options.declared[name].key} does not go with a FILE",
                why="what the file holds was measured already"
            )  # fmt: skip


def _load_cases(file: str, options: SelectionOptions) -> Run:
    """Return the result with the cases that --filter and --skip leave. Raises InputError for a file that cannot
    be used, and UsageError if no case is left."""
    import msgspec

    from gpubench.result import store
    from gpubench.result.case import select_cases

    run = store.load(file)
    keep = select_cases(options.filter or [], options.skip or [])
    if keep is None:
        return run
    outcomes = [outcome for outcome in run.outcomes if keep(outcome.case)]
    if not outcomes:
        raise UsageError("no-such-case", "--filter and --skip leave no case", why="no case of the file matches")
    return msgspec.structs.replace(run, outcomes=outcomes)


def _measure(options: NoiseOptions, began: float) -> Run:
    """Measure the sessions of both sides and save them as `run` does; the budget begins at `began`."""
    import msgspec

    from gpubench.cli import delivery, progress, request
    from gpubench.cli.exit import tell
    from gpubench.measure import runner

    taken = {name: getattr(options, name) for name in options.measuring()}
    delivery.check_folder([], options)
    plan: Any = commands()["run"](**{**taken, "sessions": 2 * options.sessions, "budget": options.budget})
    saver = delivery.Saver([], options)
    with progress.show(options, os.environ) as display:
        spec = progress.tell(display, plan, lambda tell: request.request(plan, began=began, tell=tell))
        saver.check(spec.run)
        finished = runner.run(spec, display, saver)
    saver.finish(finished)
    if not options.quiet:
        for path in saver.saved:
            print(f"saved {path}", file=sys.stderr)
    if saver.error is not None:
        tell(saver.error)
        finished = msgspec.structs.replace(finished, exit_code=int(ExitCode.FAILED))
    return delivery.read_back(finished)


def judge_sessions(run: Run, sessions: int) -> Noise:
    """Return the noise of the sessions of a run that was measured here. Raises GpubenchError if there are too
    few sessions. The exit code of this error is the run's or, if that is 0, BUDGET or INPUT."""
    from gpubench.compare.two_runs import noise

    try:
        return noise(run, sessions)
    except InputError as error:
        raise _too_little(run, _cut_short(run, 2 * sessions)) from error


def _cut_short(run: Run, sessions: int) -> bool:
    """Return whether the budget ended before all cases were measured in `sessions` sessions."""
    from gpubench.analysis.samples import used_sessions

    counting = used_sessions(run) or ()
    stopped = any(
        stop.reason == "budget" and stop.session in counting
        for outcome in run.measurements
        for stop in outcome.stops
    )
    return stopped or len(run.sessions) < sessions or run.exit_code == ExitCode.BUDGET


def _too_little(run: Run, cut_short: bool) -> GpubenchError:
    from gpubench.result.run import Failure, Skip

    # Failures are graver than skips. If the budget ended first, that is why the measured cases lack sessions.
    cut = cut_short and bool(run.measurements)
    lost: list[Failure | Skip] = [outcome for outcome in run.outcomes if isinstance(outcome, Failure)]
    if not (lost or cut):
        skips = [outcome for outcome in run.outcomes if isinstance(outcome, Skip)]
        lost = sorted(skips, key=lambda skip: skip.reason != "budget")
    why, hint = "no case has a number that can be true", "`gpubench run` with the same options tells more"
    if lost:
        why = f"{lost[0].id}: {lost[0].reason}: {lost[0].detail}"
    elif cut_short:
        why = "the time budget ended first"
    if lost[0].reason == "budget" if lost else cut_short:
        hint = "raise --budget, or measure less"
    error = GpubenchError("nothing-to-compare", why=why, hint=hint)
    error.exit_code = ExitCode(run.exit_code) or (ExitCode.BUDGET if cut_short else ExitCode.INPUT)
    return error


# ---------------------------------------------------------------- the `gpubench-noise` document on disk


def _check_output(path: str, source: str) -> None:
    """Raise UsageError if the document cannot be saved as `path`, or if `path` is the file `source`."""
    from gpubench.result import store

    if path != "-" and not store.is_result_name(path):
        raise UsageError(
            "unknown-suffix", f"--output: {path!r} is no name for thresholds", why="they are written as JSON",
            hint="end it in .json or .json.gz; --format is about the table on standard output"
        )  # fmt: skip
    store.check_writable(path, source)


def _save(document: Noise, path: str) -> None:
    """Write the document to the file `path`, or to standard output for `-`."""
    from gpubench.cli import delivery
    from gpubench.result import store

    if path == "-":
        delivery.write(store.dumps(document), None)
    else:
        store.replace(path, store.dumps(document))


def load(path: str) -> Noise:
    """Return the document in the file `path`, or in standard input for `-`. Raises InputError if it cannot be
    used."""
    from gpubench.compare.two_runs import NAME, VERSION, Noise
    from gpubench.result import store

    return store.loads_as(Noise, *store.read(path), name=NAME, newest=VERSION)
