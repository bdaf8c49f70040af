"""Analysis -> Document: which sections a report for people has, and in which order."""

from __future__ import annotations

from collections import Counter

from gpubench.report.analysis.types import Analysis
from gpubench.report.formats._details import anatomy_section, environment_section, raw_section
from gpubench.report.formats._document import Document, Section, printable
from gpubench.report.formats._options import RenderOptions
from gpubench.report.formats._problems import skipped_section, warnings_section
from gpubench.report.formats._ratios import break_even_section, speedup_section


def document(analysis: Analysis, options: RenderOptions) -> Document:
    """The report of one run, limited to `options.sections`; sections without content are left out."""
    sections = (
        _verdict_section(analysis),
        break_even_section(analysis),
        speedup_section(analysis, options.time_unit),
        skipped_section(analysis),
        anatomy_section(analysis, options.time_unit),
        warnings_section(analysis),
        environment_section(analysis),
        raw_section(analysis, options.time_unit),
    )
    shown = [part for part in sections if part.key in options.sections and (part.lines or part.tables)]
    return Document(headings=_headings(analysis), sections=tuple(shown))


def _headings(analysis: Analysis) -> tuple[str, ...]:
    run = analysis.run
    label = f", {printable(run.label)}" if run.label else ""
    count = len(run.sessions) or run.settings.sessions
    sessions = f"{count} session{'s' if count != 1 else ''}"
    state = "complete" if run.complete else f"not complete ({run.exit_reason})"
    return (
        f"Run: {run.started_at}{label}, {run.settings.preset} preset, {sessions}, {state}",
        f"Machine: {printable(analysis.machine)}",
    )


def _verdict_section(analysis: Analysis) -> Section:
    lines = [printable(sentence) for sentence in analysis.verdicts]
    counts = Counter(row.outcome for row in analysis.cases)
    if not analysis.run.complete:
        reason = analysis.run.exit_reason
        lines.append(f"The run ended early ({reason}): {counts['planned']} cases were not reached.")
    if counts["failure"]:
        failed = "1 case" if counts["failure"] == 1 else f"{counts['failure']} cases"
        lines.append(f"Failed, with no number: {failed}; the reasons are below.")
    return Section(key="verdict", title="Verdict", lines=tuple(lines))
