"""Analysis -> Document: which sections a report for people has, and in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from gpubench.model.result import Run
from gpubench.report.analysis.hybrid import sentences as split_sentences
from gpubench.report.analysis.roofline import measures_roofs
from gpubench.report.analysis.samples import used_sessions
from gpubench.report.analysis.types import Analysis
from gpubench.report.analysis.verdict import sentences
from gpubench.report.formats._anatomy import anatomy_section
from gpubench.report.formats._breakeven import break_even_section
from gpubench.report.formats._chart import TITLE, chart_section
from gpubench.report.formats._claims import claims_section
from gpubench.report.formats._columns import limited
from gpubench.report.formats._details import environment_section, raw_section
from gpubench.report.formats._document import Document, Section, printable
from gpubench.report.formats._gates import gates_section
from gpubench.report.formats._hybrid import hybrid_section
from gpubench.report.formats._means import means_section
from gpubench.report.formats._options import DEFAULT_SECTIONS, RenderOptions
from gpubench.report.formats._problems import skipped_section, warnings_section
from gpubench.report.formats._reuse import reuse_section
from gpubench.report.formats._roofline import roofline_section
from gpubench.report.formats._speedup import speedup_sections

GATES = "gates"  # no section to choose: whoever asks for gates is told how they ended
MANY_SENTENCES = 8  # more of them leave out their intervals, so that one screen holds the verdict

_ENDINGS = {
    "budget": "budget exhausted", "failed": "cases failed", "wrong-result": "wrong results",
    "unavailable": "a required device was unavailable", "nothing-measured": "nothing measured", "gate": "a gate failed",
}  # fmt: skip


def documents(
    analyses: Sequence[Analysis], options: RenderOptions, *, full: bool = False, charts: bool = False
) -> list[Document]:
    """The reports of all runs, their tables limited to the columns that were asked for.

    Raises UsageError for a column that no table has.
    """
    found = [document(analysis, options, full=full, charts=charts) for analysis in analyses]
    if len(found) > 1:
        from gpubench.report.formats._machines import overview  # one file, the usual case, does without

        together = overview(analyses, options)
        # Who asked for the overview alone gets no headings of empty reports below it.
        found = [one for one in found if one.sections or not together.sections]
        found = [together, *found] if together.sections else found
    return limited(found, options.columns)


def document(
    analysis: Analysis, options: RenderOptions, *, full: bool = False, charts: bool = False
) -> Document:
    """The report of one run, limited to `options.sections`; sections without content are left out.

    `full`: every number in wide tables, for what is not read on a terminal. `charts`: drawings in characters
    where they are few; whoever names the section gets them anyway.
    """
    unit = options.time_unit
    # Who names sections wants all of them that there is.
    asked = options.sections != DEFAULT_SECTIONS
    makers: dict[str, Callable[[], Section | tuple[Section, ...]]] = {
        "verdict": lambda: _verdict_section(analysis),
        GATES: lambda: gates_section(analysis),
        "breakeven": lambda: break_even_section(analysis, full=full),
        "reuse": lambda: reuse_section(analysis, unit, full=full, every_size=full or asked),
        "speedup": lambda: (
            *speedup_sections(analysis, unit, full=full, in_order=options.in_order),
            means_section(analysis, full=full),
        ),
        "chart": lambda: _charts(analysis, options, charts, asked=asked),
        "hybrid": lambda: hybrid_section(analysis, unit, full=full),
        "skipped": lambda: skipped_section(analysis, full=full),
        "anatomy": lambda: anatomy_section(analysis, unit, full=full, every_size=full or asked),
        "roofline": lambda: roofline_section(analysis, full=full or asked),
        "claims": lambda: claims_section(analysis, unit, full=full),
        "warnings": lambda: warnings_section(analysis, full=full),
        "environment": lambda: environment_section(analysis),
        "raw": lambda: raw_section(analysis, unit),
    }
    order = sorted(makers, key=lambda key: key != "roofline") if measures_roofs(analysis.run) else list(makers)
    made: list[Section] = []
    for key in order:
        if key in options.sections or key == GATES:
            found = makers[key]()
            made += [found] if isinstance(found, Section) else found
    return Document(
        headings=_headings(analysis),
        sections=tuple(part for part in made if part.lines or part.tables or part.pictures),
    )


def _charts(analysis: Analysis, options: RenderOptions, charts: bool, *, asked: bool) -> Section:
    if not (charts or asked):
        return Section(key="chart", title=TITLE)
    return chart_section(analysis, options.width, ascii_only=options.ascii_only, every=asked)


def _headings(analysis: Analysis) -> tuple[str, ...]:
    run = analysis.run
    label = f", {printable(run.label)}" if run.label else ""
    used = used_sessions(run)
    count = run.settings.sessions if used is None else len(used)
    sessions = f"{count} session{'s' if count != 1 else ''}"
    if used is not None and len(run.sessions) > count:
        sessions += f" (and {len(run.sessions) - count} superseded)"
    return (
        f"Run: {run.started_at}{label}, {run.settings.preset} preset, {sessions}, {_state(run)}",
        f"Machine: {printable(analysis.machine)}",
    )


def _state(run: Run) -> str:
    """`complete` means that the run came to its own end, whatever that end was."""
    if not run.complete and run.exit_reason == "interrupted":
        return "interrupted"
    state = "complete" if run.complete else "not complete"
    reason = printable(run.exit_reason)
    return state if reason == "ok" else f"{state}, {_ENDINGS.get(reason, reason)}"


def _verdict_section(analysis: Analysis) -> Section:
    found = analysis.verdicts
    many = len(found) > MANY_SENTENCES
    short = (*sentences(analysis.break_even, short=True), *split_sentences(analysis.hybrid))
    lines = [printable(text) for text in (short if many else found) or found]
    counts = Counter(row.outcome for row in analysis.cases)
    if not analysis.run.complete:
        reason = analysis.run.exit_reason
        why = f" ({reason})" if reason != "ok" else ""
        lines.append(f"The run ended early{why}: {_missed(counts['planned'])}.")
    if counts["failure"]:
        failed = "1 case" if counts["failure"] == 1 else f"{counts['failure']} cases"
        lines.append(f"Failed, with no number: {failed}; the reasons are below.")
    return Section(key="verdict", title="Verdict", lines=tuple(lines))


def _missed(count: int) -> str:
    """What an early end has cost: `count` cases, or sessions of cases that all have been reached."""
    if not count:
        return "every case was reached, but not in every session"
    return "1 case was not reached" if count == 1 else f"{count} cases were not reached"
