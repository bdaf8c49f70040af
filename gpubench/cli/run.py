"""`gpubench run`: check and measure ops on every backend, save the result, print the answer."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpubench.base import streams
from gpubench.cli.options import RunOptions

if TYPE_CHECKING:
    from gpubench.analysis.findings import Gates
    from gpubench.cli.delivery import ReportStyle
    from gpubench.cli.request import Tell
    from gpubench.measure.schedule import RunSpec
    from gpubench.report.document import Plan

# Most cases of a plan that are shown on a line each.
SCREEN = 40


def run(options: RunOptions) -> int:
    """Check and measure ops on every backend, save the result, print the answer."""
    began = time.monotonic()
    if options.functions or options.ops:
        from gpubench.cli import selection

        options = selection.with_functions(options)
    from gpubench import report
    from gpubench.cli import ci, delivery, progress, resume
    from gpubench.cli.request import default_claims
    from gpubench.measure import runner

    delivery.require_text(options)
    delivery.check_plots(options)
    append = resume.result_file(options.append)
    style = delivery.report_style(options)
    expected = delivery.loaded_claims(options.claims or default_claims(options))
    gates = ci.parse_gates(options.min_speedup, options.fail_on)
    outputs = delivery.check_outputs([*([append] if append else []), *(options.output or [])], options)
    channels = ci.channels(options, os.environ)
    plan_options = options.replace(append=append)
    if options.dry_run:
        streams.put(_plan_text(_plan(_request(plan_options, began, gates, None)), style))
        return 0
    with delivery.lock(outputs, options):
        delivery.keep_part(outputs, resumed=append is not None)
        with progress.show(options, os.environ) as display:
            request = progress.tell(
                display, plan_options, lambda tell: _request(plan_options, began, gates, tell)
            )
            saver = delivery.Saver(outputs, options)
            saver.check(request.run)
            events = progress.EventLog(request.run, outputs, to_stdout=style.format == "jsonl")
            watched = display.watching(events.watching(saver), style.options)
            finished = runner.run(request, events.beside(display), watched)
        saver.finish(finished)
        saved = [str(path) for path in saver.saved]
        if saver.empty and not options.quiet:
            print("no result is saved: nothing was measured (-o FILE keeps it all the same)", file=sys.stderr)
        if not (options.quiet or style.screen):
            for path in saved:
                print(f"saved {path}", file=sys.stderr)
        stored = delivery.read_back(finished)
        analyses = report.analyse_runs([stored], baseline=options.baseline, gates=gates, claims=expected)
        stored, analyses = delivery.judge_gates(stored, analyses, saver)
        events.finish(analyses[0])
        errors = delivery.deliver(stored, analyses, outputs, saved, style, channels)
        if options.open_page:
            delivery.open_page(analyses, style, outputs)
        delivery.write_plots(analyses, options, style.options)
        channels.tell(
            lambda: ci.of_reports(analyses, stored.exit_code), lambda: style.render(analyses, "markdown"),
            next(iter(saved), None),
        )  # fmt: skip
        return delivery.exit_code(stored, [*events.errors, *errors, *([saver.error] if saver.error else [])])


def _request(options: RunOptions, began: float, gates: Gates, tell: Tell | None) -> RunSpec:
    """Return the input of the runner, after checking that gates and baseline select planned cases."""
    from gpubench.cli import ci, resume

    request = resume.request(options, began=began, tell=tell)
    ci.require_in_plan(gates, request)
    ci.require_baseline(options.baseline, request)
    return request


def _plan(request: RunSpec) -> Plan:
    """Return the plan of --dry-run."""
    from collections import Counter

    from gpubench.measure.plan import estimate_seconds
    from gpubench.measure.schedule import plan_workloads
    from gpubench.report.document import Plan, SkippedCases

    workloads, budget_s = plan_workloads(request), request.settings.budget_s
    reasons = Counter((skip.reason, skip.detail) for workload in workloads for skip in workload.skips)
    return Plan(
        cases=[case.id for workload in workloads for case in workload.cases],
        skips=[SkippedCases(count, *why) for why, count in sorted(reasons.items())],
        sessions=request.sessions, has_budget=budget_s is not None, searches=request.searches,
        seconds=estimate_seconds(workloads, request.settings) if budget_s is None else budget_s,
    )  # fmt: skip


def _plan_text(plan: Plan, style: ReportStyle) -> str:
    """Return a plan as JSON, or as lines of text."""
    from gpubench.base.units import count_noun, format_seconds

    if style.format == "json":
        from gpubench.report.layout import json_text

        return json_text(plan, style.options)
    skips, seconds = plan.skips, format_seconds(plan.seconds)
    skipped = sum(skip.count for skip in skips)
    grows = "; a search adds sizes while time is left" if plan.searches else ""
    lines = [
        *(plan.cases if len(plan.cases) <= SCREEN else _group_lines(plan.cases)),
        *(f"skip {skip.count} x {skip.reason}: {skip.detail}" for skip in skips),
        f"{count_noun(len(plan.cases), 'case')}, {skipped} skipped, {count_noun(plan.sessions, 'session')}",
        f"budget {seconds}{grows}" if plan.has_budget else f"at most about {seconds} of sampling",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _group_lines(ids: Sequence[str]) -> Iterator[str]:
    """Yield a line for each op, dtype and params, with the sizes, implementations and devices. The last line
    tells how to list the cases."""
    from gpubench.base import group_by
    from gpubench.report.wording import data_text
    from gpubench.result.case import RESIDENT, beside_size, parse_case_id

    cases = [parse_case_id(case_id) for case_id in ids]
    groups = group_by(cases, lambda case: (case.op, case.dtype, beside_size(case.params)))
    for (op, dtype, params), same in groups.items():
        sizes = sorted({case.params["n"] for case in same})
        n = f"{sizes[0]}..{sizes[-1]} ({len(sizes)} sizes)" if sizes[1:] else f"{sizes[0]}"
        implementations = dict.fromkeys(
            f"{case.implementation_id}@{case.device_id}"
            + ("" if case.regime == RESIDENT else f" {data_text(case)}")
            for case in same
        )
        rest = "".join(f",{name}={value}" for name, value in params)
        yield f"{op}/n={n}{rest}/{dtype}: {', '.join(implementations)}"
    yield "each case by its id: --format json"
