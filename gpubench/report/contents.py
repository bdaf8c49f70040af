"""Which sections a report for people has, and in which order; which charts, and what a reader may choose among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.overheads import GROUP as OVERHEAD
from gpubench.analysis.roofline import measures_roofs
from gpubench.analysis.samples import count_sessions
from gpubench.base.escaping import printable
from gpubench.base.formats import DEFAULT_SECTIONS
from gpubench.report.charts import Chart, ChartSet, Line, all_series, charted, devices, headings, regimes
from gpubench.report.layout import Cell, RenderOptions, Section, TextDocument, limited
from gpubench.report.sections.anatomy import anatomy_chart, anatomy_section
from gpubench.report.sections.answer import HEIGHT, answer_screen, answer_section
from gpubench.report.sections.answer import KEY as ANSWER
from gpubench.report.sections.break_even import break_even_section, reuse_section
from gpubench.report.sections.cases import environment_section, raw_section, sample_chart, time_chart
from gpubench.report.sections.claims import claims_section
from gpubench.report.sections.collectives import collectives_section
from gpubench.report.sections.hybrid import hybrid_chart, hybrid_section
from gpubench.report.sections.map import KEY as MAP
from gpubench.report.sections.map import map_section
from gpubench.report.sections.placement import placement_section
from gpubench.report.sections.problems import gates_section, noise_section, skipped_section, warnings_section
from gpubench.report.sections.roofline import rate_chart, roofline_chart, roofline_section
from gpubench.report.sections.scaling import scaling_section
from gpubench.report.sections.speedup import means_section, speedup_sections
from gpubench.report.sections.speedup_chart import speedup_chart
from gpubench.report.sections.stages import stages_chart, stages_section
from gpubench.report.wording import series_name
from gpubench.result.run import Run

GATES = "gates"  # no section to choose: whoever asks for gates reads how they ended

_ENDINGS = {
    "budget": "budget exhausted", "failed": "cases failed", "wrong-result": "wrong results",
    "unavailable": "a required device was unavailable", "nothing-measured": "nothing measured", "gate": "a gate failed",
}  # fmt: skip


def documents(
    analyses: Sequence[Analysis], options: RenderOptions, *, full: bool = False
) -> list[TextDocument]:
    """The reports of all runs, their tables limited to the columns that were asked for.

    Raises UsageError for a column that no table has.
    """
    several = len(analyses) > 1
    found = [document(one, options, full=full, several=several) for one in analyses]
    if several:
        from gpubench.report.sections.machines import overview  # one file, the usual case, does without

        together = overview(analyses, options)
        # Who asked for the overview alone gets no headings of empty reports below it.
        found = [one for one in found if one.sections or not together.sections]
        found = [together, *found] if together.sections else found
    found = found if any(one.sections for one in found) else [_empty(found, options)]
    return limited(found, options.columns)


def _empty(found: Sequence[TextDocument], options: RenderOptions) -> TextDocument:
    """Where no section that was asked for has anything to show."""
    runs = "These runs have" if len(found) > 1 else "This run has"
    line = f"{runs} nothing for --sections {','.join(options.sections)}."
    section = Section(key=options.sections[0], title="Nothing to show", lines=(line,))
    return TextDocument(headings=found[0].headings if len(found) == 1 else (), sections=(section,))


def document(
    analysis: Analysis,
    options: RenderOptions,
    *,
    full: bool = False,
    several: bool = False,
) -> TextDocument:
    """The report of one run, or of one of several, limited to `options.sections`; sections without content are left
    out.

    `full`: every number in wide tables, for what is not read on a terminal.
    """
    unit = options.time_unit
    # Who names sections wants all of them that there is; a page puts the map behind the answer.
    asked = {*options.sections} - {MAP} != {*DEFAULT_SECTIONS} - {MAP}
    alone = {*options.sections} <= {ANSWER, MAP}
    makers: dict[str, Callable[[], Section | tuple[Section, ...]]] = {
        ANSWER: lambda: answer_section(
            analysis, options, full=full, alone=tuple(options.sections) == (ANSWER,)
        ),
        MAP: lambda: map_section(analysis, options, full=full),
        GATES: lambda: gates_section(analysis),
        "breakeven": lambda: break_even_section(analysis, full=full),
        "reuse": lambda: reuse_section(analysis, unit, full=full, every_size=full or asked),
        "speedup": lambda: (
            *speedup_sections(analysis, unit, full=full, in_order=options.sort is not None),
            means_section(analysis, full=full),
        ),
        "hybrid": lambda: (
            hybrid_section(analysis, unit, full=full),
            placement_section(analysis, unit, every_size=full or asked),
        ),
        "skipped": lambda: skipped_section(analysis, full=full),
        "anatomy": lambda: anatomy_section(analysis, unit, full=full, every_size=full or asked),
        "collectives": lambda: collectives_section(analysis, unit),
        "scaling": lambda: scaling_section(analysis, unit),
        "stages": lambda: stages_section(analysis, unit, full=full, every_size=full or asked),
        "roofline": lambda: roofline_section(analysis, full=full or asked),
        "claims": lambda: claims_section(analysis, unit, full=full),
        "noise": lambda: noise_section(analysis),
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
    return TextDocument(
        # The answer and the map name their machine: by themselves, and not on a page, they are the whole screen.
        headings=() if alone and not (full or several) else _headings(analysis),
        sections=tuple(part for part in made if part.lines or part.tables or part.pictures or part.screen),
    )


def final_screen(
    analysis: Analysis, options: RenderOptions, *, saved: Sequence[str], height: int = HEIGHT
) -> TextDocument:
    """What a run ends with: the answer, then scaling, gates and claims where they were asked for. A run that was made
    for roofs or for overheads ends with these."""
    own = "roofline" if measures_roofs(analysis.run) else _own_section(analysis)
    wanted = ("scaling", "claims") if own is None else (own, "scaling", "claims")
    found = document(analysis, msgspec.structs.replace(options, sections=wanted)).sections
    if own is not None:
        files = tuple((Cell(f"saved {printable(path)}"),) for path in saved)
        return TextDocument(headings=(), sections=(*found, Section(key=ANSWER, title="", screen=files)))
    lines = tuple(answer_screen(analysis, options, saved=saved, height=height))
    return TextDocument(headings=(), sections=(Section(key=ANSWER, title="", screen=lines), *found))


def _own_section(analysis: Analysis) -> str | None:
    """That of a run without anything else than overheads."""
    groups = {row.case.group for row in analysis.cases}
    return "anatomy" if groups == {OVERHEAD} and analysis.overheads.rows else None


def _headings(analysis: Analysis) -> tuple[str, ...]:
    run = analysis.run
    label = f", {printable(run.label)}" if run.label else ""
    count = count_sessions(run)
    sessions = f"{count} session{'s' if count != 1 else ''}"
    if len(run.sessions) > count:
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


def chart_set(analysis: Analysis, sections: Sequence[str], unit: str, *, samples: bool = True) -> ChartSet:
    """The charts of `sections`, without that of all samples unless `samples`. Needs altair; raises GpubenchError if
    it does not work."""
    from gpubench.report.vega import altair_failures, altair_unchecked

    makers: tuple[tuple[str, Callable[[], Chart]], ...] = (
        ("speedup", lambda: time_chart(analysis, unit)),
        ("speedup", lambda: speedup_chart(analysis, unit)),
        ("roofline", lambda: rate_chart(analysis)),
        ("roofline", lambda: roofline_chart(analysis)),
        ("hybrid", lambda: hybrid_chart(analysis, unit)),
        ("anatomy", lambda: anatomy_chart(analysis, unit)),
        ("stages", lambda: stages_chart(analysis, unit)),
        ("speedup", lambda: sample_chart(analysis, unit)),
    )
    series = all_series(analysis)
    if not series:
        return ChartSet()
    with altair_failures(), altair_unchecked():
        charts = [make() for section, make in makers[: None if samples else -1] if section in sections]
    return ChartSet(
        series=series, chosen=_most_telling(analysis, series), devices=devices(analysis),
        regimes=regimes(analysis), headings=headings(analysis),
        forms=tuple(dict.fromkeys(row.case.form_id for row in charted(analysis))),
        charts=tuple(chart for chart in charts if any(chart.rows.values())),
    )  # fmt: skip


def _most_telling(analysis: Analysis, series: Sequence[Line]) -> str:
    """The series with the most break-evens, then with the most sizes; of equal ones the first."""
    found = [series_name(row.case) for row in analysis.break_even if row.verdict == "at"]
    return max(series, key=lambda one: (found.count(one.name), len(one.sizes))).name
