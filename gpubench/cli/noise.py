"""`gpubench noise`: how much does unchanged work seem to change on this machine? A/A, and thresholds for `compare`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubench.cli import _run_options as options
from gpubench.cli._command import given
from gpubench.cli._options import Ascii, Color, NoProgress, Quiet
from gpubench.cli._writing import write
from gpubench.cli.report import chosen_format, table_width, wants_color
from gpubench.errors import ExitCode, UsageError
from gpubench.suggestions import require_choice

if TYPE_CHECKING:
    from gpubench.cli._run_request import Typed
    from gpubench.model.result import Run
    from gpubench.report.noise import Noise

_FILE_TAKES = ("filter", "skip", "sessions")  # of the options that say what and how: the rest would be measured


def noise(
    ctx: typer.Context,
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE]", help="A result with 10 sessions or more, - for stdin. Default: measure."
        ),
    ] = None,
    ops: options.Ops = None,
    sizes: options.Sizes = None,
    params: options.Params = None,
    dtypes: options.Dtypes = "float32",
    backends: options.Backends = "auto",
    devices: options.Devices = None,
    mode: options.Mode = None,
    allow_software: options.AllowSoftware = False,
    forms: options.Forms = None,
    variant: options.Variant = None,
    allow_tf32: options.AllowTf32 = False,
    no_autotune: options.NoAutotune = False,
    regimes: options.Regimes = None,
    calls: options.Calls = 10,
    threads: options.Threads = None,
    filter: options.Filter = None,
    skip: options.Skip = None,
    quick: options.Quick = False,
    rigorous: options.Rigorous = False,
    sessions: Annotated[
        int, typer.Option("--sessions", min=5, max=100, help="Sessions a side: twice as many are measured.")
    ] = 5,
    min_samples: options.MinSamples = None,
    max_samples: options.MaxSamples = None,
    max_time: options.MaxTime = None,
    precision: options.Precision = None,
    case_timeout: options.CaseTimeout = "60s",
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="TIME",
            help="Limit of the whole run. Default: 60s a session without --sizes, else none.",
            show_default=False,
        ),
    ] = None,
    refine: options.Refine = "auto",
    break_even_timings: options.BreakEvenTimings = 400,
    order: options.Order = "interleave",
    seed: options.Seed = 1,
    inputs: options.Inputs = "random",
    cache: options.Cache = "warm",
    results_dir: options.ResultsDir = None,
    no_save: options.NoSave = False,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the thresholds here, for compare --thresholds; - in place of the table.",
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit 3 if more than 5 % of the comparisons have a false alarm.")
    ] = False,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="table|plain|markdown|json",
            show_default=False,
            help="Default: table on a terminal, else plain text.",
        ),
    ] = None,
    color: Color = "auto",
    ascii: Ascii = False,
    quiet: Quiet = False,
    no_progress: NoProgress = False,
) -> int:
    """Measure the same thing in 10 sessions and compare them with one another: false alarms and thresholds."""
    began = time.monotonic()
    from gpubench import store
    from gpubench.cli import _noise_file
    from gpubench.cli._run_request import Typed
    from gpubench.report.formats._options import RenderOptions
    from gpubench.report.noise import ALLOWED_SHARE
    from gpubench.report.noise import noise as found_in
    from gpubench.report.noise.text import FORMATS, render

    typed = Typed(
        ops=ops, sizes=sizes, params=params, dtypes=dtypes, backends=backends, devices=devices, mode=mode,
        allow_software=allow_software, forms=forms, variant=variant, allow_tf32=allow_tf32,
        no_autotune=no_autotune, regimes=regimes, calls=calls, threads=threads, filter=filter, skip=skip,
        quick=quick, rigorous=rigorous, min_samples=min_samples, max_samples=max_samples, max_time=max_time,
        precision=precision, case_timeout=case_timeout, budget=budget, refine=refine,
        break_even_timings=break_even_timings, order=order, seed=seed, inputs=inputs, cache=cache,
    )  # fmt: skip
    terminal = sys.stdout.isatty()
    name = require_choice(chosen_format(format, None, terminal), FORMATS, "--format")
    look = RenderOptions(
        width=table_width(terminal), color=wants_color(color, os.environ, terminal=terminal), ascii_only=ascii
    )
    if output is not None:
        _noise_file.check(output)
    if file is not None:
        _refuse_measuring(given(ctx))
        run = _chosen_part(store.load(file), typed)
    else:
        import msgspec

        typed = msgspec.structs.replace(
            typed, sessions=2 * sessions, budget=budget or _budget(typed, 2 * sessions)
        )
        run = _measured(typed, results_dir, no_save, quiet=quiet, no_progress=no_progress, began=began)
        if run.exit_code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
            return run.exit_code
    found = found_in(run, sessions)
    if output != "-":
        write(render(found, name, look, allowed_share=ALLOWED_SHARE), None)
    if output is not None:
        _noise_file.save(found, output)
    return _ended(found, 0 if file is not None else run.exit_code, check, ALLOWED_SHARE)


def _budget(typed: Typed, sessions: int) -> str | None:
    """Each session searches or repeats as much as one default run measures; None where sizes were given."""
    from gpubench.cli._selection import DEFAULT_BUDGET_S

    return None if typed.sizes else f"{DEFAULT_BUDGET_S * sessions:g}s"


def _measured(
    typed: Typed, results_dir: Path | None, no_save: bool, *, quiet: bool, no_progress: bool, began: float
) -> Run:
    """The sessions, measured and saved as `run` does it."""
    from gpubench.cli import _progress, _run_output, _run_request
    from gpubench.measure import runner

    _run_output.checked([], None, results_dir, no_save)
    request = _run_request.request(typed, began=began)
    saver = _run_output.Saver([], results_dir, no_save)
    with _progress.shown(quiet=quiet, no_progress=no_progress, environ=os.environ) as sink:
        finished = runner.run(request, sink, saver)
    if not quiet:
        for path in saver.paths:
            print(f"saved {path}", file=sys.stderr)
    return _run_output.as_stored(finished)


def _refuse_measuring(given: Sequence[str]) -> None:
    """Raises UsageError for options of the command line that only a measurement has. What a configuration file or the
    environment say about measuring stays unused, as it does in every command that measures nothing."""
    from gpubench.cli._run_request import Typed

    measuring = {*Typed.__struct_fields__, "results_dir", "no_save"} - {*_FILE_TAKES}
    for name in given:
        if name in measuring:
            raise UsageError(
                "already-measured", f"--{name.replace('_', '-')} does not go with a FILE",
                why="what the file holds was measured already",
                hint="leave it out, or leave FILE out and let `gpubench noise` measure",
            )  # fmt: skip


def _chosen_part(run: Run, typed: Typed) -> Run:
    """What --filter and --skip leave of a result. Raises UsageError where that is nothing."""
    from gpubench import selectors

    keep = selectors.selection(typed.filter or [], typed.skip or [])
    if keep is None:
        return run
    outcomes = [outcome for outcome in run.outcomes if keep(outcome.case)]
    if not outcomes:
        raise UsageError(
            "no-such-case", "--filter and --skip leave no case", why="no case of the file matches",
            hint="gpubench report --sections raw lists the cases with their ids",
        )  # fmt: skip
    import msgspec

    return msgspec.structs.replace(run, outcomes=outcomes)


def _ended(found: Noise, measured: int, check: bool, allowed: float) -> int:
    """What went wrong while measuring outweighs the gate."""
    if measured:
        return measured
    return ExitCode.GATE if check and found.false_alarm_share > allowed else ExitCode.OK
