"""`gpubench run`: check and measure ops on every backend, save the result, report."""

from __future__ import annotations

import os
import sys
import time

import typer

from gpubench.cli import _plots
from gpubench.cli import _run_options as options
from gpubench.cli._ci_options import Annotations, FailOn, Marker, MaxBytes, MinSpeedup, Summary
from gpubench.cli._command import given
from gpubench.cli._options import Ascii, Color, NoProgress, Quiet
from gpubench.cli._report_options import Baseline, Claims, Columns, Sort, listed, loaded_claims


def run(
    ctx: typer.Context,
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
    dry_run: options.DryRun = False,
    check_only: options.CheckOnly = False,
    quick: options.Quick = False,
    rigorous: options.Rigorous = False,
    sessions: options.Sessions = None,
    min_samples: options.MinSamples = None,
    max_samples: options.MaxSamples = None,
    max_time: options.MaxTime = None,
    precision: options.Precision = None,
    case_timeout: options.CaseTimeout = "60s",
    budget: options.Budget = None,
    refine: options.Refine = "auto",
    break_even_timings: options.BreakEvenTimings = 400,
    append: options.Append = None,
    like: options.Like = None,
    order: options.Order = "interleave",
    seed: options.Seed = 1,
    inputs: options.Inputs = "random",
    cache: options.Cache = "warm",
    output: options.Output = None,
    results_dir: options.ResultsDir = None,
    no_save: options.NoSave = False,
    label: options.Label = None,
    tag: options.Tag = None,
    context: options.Context = None,
    format: options.ReportFormat = None,
    sections: options.Sections = None,
    time_unit: options.TimeUnit = "auto",
    baseline: Baseline = None,
    claims: Claims = None,
    sort: Sort = None,
    columns: Columns = None,
    min_speedup: MinSpeedup = None,
    fail_on: FailOn = None,
    summary: Summary = False,
    annotations: Annotations = "auto",
    marker: Marker = None,
    max_bytes: MaxBytes = None,
    plots: _plots.Plots = None,
    plot_format: _plots.PlotFormat = "svg",
    color: Color = "auto",
    ascii: Ascii = False,
    quiet: Quiet = False,
    no_progress: NoProgress = False,
) -> int:
    """Check and measure ops on every backend, save the result file, and print the report."""
    began = time.monotonic()
    from gpubench import report
    from gpubench.cli import (
        _ci,
        _demands,
        _event_log,
        _progress,
        _rendering,
        _run_output,
        _run_request,
        _run_sequel,
    )
    from gpubench.measure import runner

    for option, texts in (("--label", [label]), ("--tag", tag), ("--context", context), ("--output", output)):
        _run_output.require_text(option, texts or [])
    typed = _run_request.Typed(
        ops=ops, sizes=sizes, params=params, dtypes=dtypes, backends=backends, devices=devices,
        mode=mode, allow_software=allow_software, forms=forms, variant=variant, allow_tf32=allow_tf32,
        no_autotune=no_autotune, regimes=regimes, calls=calls, threads=threads, filter=filter, skip=skip,
        check_only=check_only, quick=quick, rigorous=rigorous, sessions=sessions, min_samples=min_samples,
        max_samples=max_samples, max_time=max_time, precision=precision, case_timeout=case_timeout,
        budget=budget, refine=refine, break_even_timings=break_even_timings, order=order, seed=seed, inputs=inputs, cache=cache, label=label, tag=tag, context=context,
    )  # fmt: skip
    _plots.check(plots, plot_format)
    _run_sequel.require_result_file(append)
    look = _rendering.look(format, color, ascii, sections, time_unit, listed(columns), sort)
    expected = loaded_claims(claims)
    demands = _demands.demands(min_speedup or [], fail_on)
    outputs = _run_output.checked([*([append] if append else []), *(output or [])], look, results_dir, no_save)
    formats = _run_output.formats(outputs, look)
    told = _ci.ci(summary, annotations, marker, max_bytes, os.environ, formats=formats)
    request = _run_sequel.request(typed, given(ctx), append=append, like=like, began=began)
    _demands.require_planned(demands, request)
    _demands.require_baseline(baseline, request)
    if dry_run:
        from gpubench.cli import _dry_run

        sys.stdout.write(_dry_run.render(request))
        return 0
    saver = _run_output.Saver(outputs, results_dir, no_save)
    events = _event_log.EventLog(request.run, outputs, to_stdout=look.format == "jsonl")
    with _progress.shown(quiet=quiet, no_progress=no_progress, environ=os.environ) as sink:
        finished = runner.run(request, events.beside(sink), events.watching(saver))
    if not quiet:
        for path in saver.paths:
            print(f"saved {path}", file=sys.stderr)
    stored = _run_output.as_stored(finished)
    analyses = report.analysed([stored], baseline=baseline, demands=demands, claims=expected)
    stored, analyses = _run_output.gated(stored, analyses, saver)
    events.finish(analyses[0])
    _run_output.deliver(stored, analyses, outputs, look, told)
    _plots.write(analyses, plots, plot_format, look.sections, time_unit)
    told.tell_reports(
        analyses, stored.exit_code, next(map(str, saver.paths), None),
        markdown=lambda: look.render(analyses, "markdown"),
    )  # fmt: skip
    return stored.exit_code
