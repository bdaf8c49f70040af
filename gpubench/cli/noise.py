"""`gpubench noise`: how much does unchanged work seem to change on this machine? A/A, and thresholds for `compare`."""

from __future__ import annotations

import os
import sys
import time
from typing import Annotated

import typer

from gpubench.cli import _run_options as options
from gpubench.cli._command import given
from gpubench.cli._options import Ascii, Color, NoProgress, Quiet
from gpubench.cli._writing import write
from gpubench.cli.report import chosen_format, table_width, wants_color
from gpubench.errors import ExitCode
from gpubench.suggestions import require_choice


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
    from gpubench.cli import _noise_file, _noise_source
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
        _noise_source.refuse_measuring(given(ctx))
        found, ending = found_in(_noise_source.stored(file, typed), sessions), 0
    else:
        run = _noise_source.measured(
            typed, 2 * sessions, results_dir, no_save, quiet=quiet, no_progress=no_progress, began=began
        )
        if run.exit_code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
            return run.exit_code
        found, ending = _noise_source.judged(run, sessions), run.exit_code
    if output != "-":
        write(render(found, name, look, allowed_share=ALLOWED_SHARE), None)
    if output is not None:
        _noise_file.save(found, output)
    if ending:  # what went wrong while measuring outweighs the gate
        return ending
    return ExitCode.GATE if check and found.false_alarm_share > ALLOWED_SHARE else ExitCode.OK
