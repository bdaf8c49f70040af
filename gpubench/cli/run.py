"""`gpubench run`: check and measure ops on every backend, save the result, print the answer."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from gpubench.base import streams
from gpubench.cli.options import RunOptions

if TYPE_CHECKING:
    from gpubench.analysis.findings import Gates
    from gpubench.cli.request import Tell
    from gpubench.measure.schedule import RunSpec


def run(options: RunOptions) -> int:
    """Check and measure ops on every backend, save the result, print the answer."""
    began = time.monotonic()
    if options.functions or options.ops:
        from gpubench.cli import own

        options = own.with_functions(options)
    from gpubench import report
    from gpubench.cli import ci, progress, rendering, resume, saving
    from gpubench.measure import runner
    from gpubench.report.ci import of_reports

    saving.require_text(options)
    rendering.check_plots(options)
    append = resume.result_file(options.append)
    style = rendering.report_style(options)
    expected = rendering.loaded_claims(options.claims)
    gates = ci.gates(options.min_speedup or [], options.fail_on)
    outputs = saving.checked([*([append] if append else []), *(options.output or [])], style, options)
    channels = ci.channels(options, os.environ)
    wanted = options.replace(append=append)
    if options.dry_run:
        streams.put(_plan(_request(wanted, began, gates, None)))
        return 0
    with saving.locked(outputs, options):
        saving.keep_part(outputs, resumed=append is not None)
        with progress.shown(options, os.environ) as display:
            request = progress.tell(display, wanted, lambda tell: _request(wanted, began, gates, tell))
            saver = saving.Saver(outputs, options)
            saver.check(request.run)
            events = progress.EventLog(request.run, outputs, to_stdout=style.format == "jsonl")
            watched = display.watching(events.watching(saver), style.options)
            finished = runner.run(request, events.beside(display), watched)
        saver.finish(finished)
        saved = [str(path) for path in saver.saved]
        if not (options.quiet or style.screen):
            for path in saved:
                print(f"saved {path}", file=sys.stderr)
        stored = saving.as_stored(finished)
        analyses = report.analysed([stored], baseline=options.baseline, gates=gates, claims=expected)
        stored, analyses = saving.gated(stored, analyses, saver)
        events.finish(analyses[0])
        errors = saving.deliver(stored, analyses, outputs, saved, style, channels)
        rendering.write_plots(analyses, options, style.options.sections, style.options.time_unit)
        channels.tell(
            lambda: of_reports(analyses, stored.exit_code), lambda: style.render(analyses, "markdown"),
            next(iter(saved), None),
        )  # fmt: skip
        return saving.ended(stored, [*events.errors, *errors, *([saver.error] if saver.error else [])])


def _request(options: RunOptions, began: float, gates: Gates, tell: Tell | None) -> RunSpec:
    """Return what is measured, once gates and baseline can be judged by it."""
    from gpubench.cli import ci, resume

    request = resume.request(options, began=began, tell=tell)
    ci.require_planned(gates, request)
    ci.require_baseline(options.baseline, request)
    return request


def _plan(request: RunSpec) -> str:
    """The plan of --dry-run: every case and skip of the plan, one a line, and how long it may take."""
    from collections import Counter

    from gpubench.base import units
    from gpubench.measure.plan import estimate_seconds
    from gpubench.measure.schedule import planned

    workloads = planned(request)
    cases = [case for w in workloads for case in w.cases]
    skips = [skip for w in workloads for skip in w.skips]
    settings = request.settings
    lines = [f"{case.id}" for case in cases]
    reasons = Counter((s.reason, s.detail) for s in skips)
    lines += [f"skip {count} x {reason}: {detail}" for (reason, detail), count in sorted(reasons.items())]
    count = request.sessions
    lines.append(f"{len(cases)} cases, {len(skips)} skipped, {count} session{'s' if count != 1 else ''}")
    if settings.budget_s is not None:
        grows = "; a search adds sizes while time is left" if request.searches else ""
        lines.append(f"budget {units.format_seconds(settings.budget_s)}{grows}")
    else:
        lines.append(f"at most about {units.format_seconds(estimate_seconds(workloads, settings))} of sampling")
    return "\n".join(lines) + "\n"
