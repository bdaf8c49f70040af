"""The sections of a report for people and their order, the final screen, and the answer while a run
measures."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import msgspec

from gpubench.analysis.analyse import Analysis, analyse, machine_runs
from gpubench.analysis.answer import AnswerRow, MachineAnswer, answer
from gpubench.analysis.estimate import CALLS, OVERHEAD, declaration
from gpubench.analysis.roofline import measures_peaks, overheads
from gpubench.analysis.samples import count_sessions
from gpubench.analysis.thresholds import ABOUT_EQUAL, AnswerCell
from gpubench.base import group_by
from gpubench.base.plugins import error_text, sections
from gpubench.base.streams import columns, cut, printable
from gpubench.base.table import Cell, Table, cells, heads, line_text, table_lines
from gpubench.base.units import count_noun
from gpubench.report.layout import RenderOptions, Section, TextDocument, limit_columns, visible
from gpubench.report.sections.answer import HEIGHT, answer_screen, answer_table, brief_answer, sides_line
from gpubench.report.sections.answer import KEY as ANSWER
from gpubench.report.sections.map import KEY as MAP
from gpubench.result.run import Outcome, Run

_ENDINGS = {
    "budget": "budget exhausted", "failed": "cases failed", "wrong-result": "wrong results",
    "unavailable": "a required device was unavailable", "nothing-measured": "nothing measured", "gate": "a gate failed",
}  # fmt: skip


def documents(analyses: Sequence[Analysis], options: RenderOptions) -> list[TextDocument]:
    """Return the reports of all runs, after an overview if there are several runs. If the user chose columns,
    tables have only these. Raises UsageError for a column that no table has."""
    several = len(analyses) > 1
    reports = [document(analysis, options, several=several) for analysis in analyses]
    if several:
        together = overview(analyses, options)
        # If the user asked for the overview alone, no headings of empty reports follow it.
        reports = [report for report in reports if report.sections or not together.sections]
        reports = [together, *reports] if together.sections else reports
    reports = reports if any(report.sections for report in reports) else [_empty(reports, options)]
    return limit_columns(reports, options.columns)


def overview(analyses: Sequence[Analysis], options: RenderOptions) -> TextDocument:
    """Return the document with the sections that are about all files together."""
    machines = len(machine_runs(analyses))
    files = f"{len(analyses)} results of {count_noun(machines, 'machine')}"
    makers = sections.sections(options.sections, together=True)
    parts = tuple(part for maker in makers for part in draw_section(maker, analyses, options))
    return TextDocument(headings=(f"Files: {files}",), sections=parts)


def _empty(reports: Sequence[TextDocument], options: RenderOptions) -> TextDocument:
    """Return a report with one sentence: none of the requested sections has content."""
    runs = "These runs have" if len(reports) > 1 else "This run has"
    line = f"{runs} nothing for --sections {','.join(options.sections)}."
    section = Section(key=options.sections[0], title="Nothing to show", lines=(line,))
    return TextDocument(headings=reports[0].headings if len(reports) == 1 else (), sections=(section,))


def document(analysis: Analysis, options: RenderOptions, *, several: bool = False) -> TextDocument:
    """Return the report of one run, with the sections of `options.sections` that have content. With `several`
    runs, sections of the overview are left out. If the run measured only peaks, the roofline comes first."""
    alone = {*options.sections} <= {ANSWER, MAP}
    makers = sections.sections(options.sections)
    if several:
        whole = {maker.key for maker in sections.sections(options.sections, together=True)}
        makers = [maker for maker in makers if maker.key not in whole]
    if measures_peaks(analysis.run):
        makers.sort(key=lambda maker: maker.key != "roofline")
    return TextDocument(
        # The answer and the map name their machine, so alone on a screen they need no headings.
        headings=() if alone and not (options.full or several) else _headings(analysis),
        sections=tuple(part for maker in makers for part in draw_section(maker, analysis, options)),
    )


def draw_section(maker: sections.Maker, subject: object, options: RenderOptions) -> Iterator[Section]:
    """Yield the parts of a section that have content. `subject` is an analysis, or all analyses for a section
    about all files. If a section of another package raises an exception, one line tells this instead."""
    try:
        made = maker.make(subject, options)
    except Exception as error:
        if maker.make.__module__.startswith("gpubench."):
            raise
        made = Section(title=maker.key, lines=(f"left out: the section raises {error_text(error)}",))
    for part in made if isinstance(made, tuple) else (made,):
        section = Section(title=maker.help, tables=(part,)) if isinstance(part, Table) else part
        if section is not None and (section.lines or section.tables or section.picture or section.screen):
            yield msgspec.structs.replace(section, key=maker.key)


def final_screen(
    analysis: Analysis, options: RenderOptions, *, saved: Sequence[str] = (), height: int = HEIGHT
) -> TextDocument:
    """Return the screen at the end of a run: the answer, then sections such as gates and claims. If the run
    measured only peaks or overheads, these replace the answer. `saved` holds the files that the run has just
    written, and `height` is the number of lines of the terminal."""
    own = "roofline" if measures_peaks(analysis.run) else _own_section(analysis)
    ends = (declaration.key for declaration in sections.declarations() if declaration.at_end)
    keys = (*([] if own is None else [own]), *ends)
    parts = document(analysis, msgspec.structs.replace(options, sections=keys)).sections
    if own is not None:
        files = tuple((Cell(f"saved {printable(path)}"),) for path in saved)
        return TextDocument(headings=(), sections=(*parts, Section(key=ANSWER, title="", screen=files)))
    rest = [section.key for section in document(analysis, options).sections] if options.command else []
    more = tuple(dict.fromkeys(key for key in rest if key not in (ANSWER, *keys) and key in sections.names()))
    lines = tuple(answer_screen(analysis, options, saved=saved, more=more, height=height))
    return TextDocument(headings=(), sections=(Section(key=ANSWER, title="", screen=lines), *parts))


def list_runs(analyses: Sequence[Analysis], files: Sequence[str], options: RenderOptions) -> TextDocument:
    """Return the answer of each run in one line, newest first, in a table for each folder and machine. `files`
    holds the file name of each run."""
    ordered = sorted(zip(files, analyses, strict=True), key=lambda pair: pair[1].run.started_at, reverse=True)
    tables = []
    places = group_by(ordered, lambda pair: (os.path.dirname(pair[0]), printable(pair[1].machine)))
    for (folder, machine), runs in places.items():
        names = [printable(os.path.basename(file)) or analysis.run.started_at for file, analysis in runs]
        room = max(20, options.width - max(map(columns, names)) - 2)
        rows = tuple(
            cells(name, cut(brief_answer(pair[1]), room)) for name, pair in zip(names, runs, strict=True)
        )
        title = f"{printable(folder)}: {machine}" if folder else machine
        tables.append(Table(heads("file", "answer"), rows, title=title, bare=True))
    how = (
        "GPU wins: of so many ops with data on the GPU; copied: at every call.",
        "One of them: gpubench report FILE. All whole: --full. Side by side: --sections machines.",
    )
    title = f"{len(analyses)} results, the newest first"
    return TextDocument(headings=(), sections=(Section(title=title, lines=how, tables=tuple(tables)),))


def _own_section(analysis: Analysis) -> str | None:
    """Return the section that replaces the answer: `breakdown` if the run measured only overheads,
    else None."""
    groups = {entry.case.group for entry in analysis.cases}
    return "breakdown" if groups == {OVERHEAD} and overheads(analysis).rows else None


def _headings(analysis: Analysis) -> tuple[str, ...]:
    run = analysis.run
    label = f", {printable(run.label)}" if run.label else ""
    count = count_sessions(run)
    sessions = count_noun(count, "session")
    if len(run.sessions) > count:
        sessions += f" (and {len(run.sessions) - count} superseded)"
    return (
        f"Run: {run.started_at}{label}, {run.settings.preset} preset, {sessions}, {_state(run)}",
        f"Machine: {printable(analysis.machine)}",
    )


def _state(run: Run) -> str:
    """Return the state of a run as text, such as `complete` or `interrupted`."""
    if not run.complete and run.exit_reason == "interrupted":
        return "interrupted"
    state = "complete" if run.complete else "not complete"
    reason = printable(run.exit_reason)
    return state if reason == "ok" else f"{state}, {_ENDINGS.get(reason, reason)}"


_PENDING = AnswerCell(kind="pending")
# The reasons of open cells that more measuring time does not change.
_SETTLED = (ABOUT_EQUAL, "loses-again", "no-cpu-time")


class AnswerSoFar:
    """The answer while a run measures. Only ops with new outcomes are analysed again."""

    def __init__(self, options: RenderOptions) -> None:
        self._options = options
        self._known: dict[str, tuple[Sequence[Outcome], Analysis]] = {}

    def lines(self, run: Run, width: int) -> list[str]:
        """Return the line that names the CPU and the GPU, and the table of the answer, at most `width` columns
        wide. The list is empty until the first cell is known."""
        summary = answer(self._curves(run), by_device=self._options.by_device)
        compared = any(device.kind == "gpu" for device in run.devices)
        if not (summary.rows if compared else summary.implementations):
            return []
        if compared and not summary.named:
            apart = {winner.op for winner in summary.host}
            summary = _fill(summary, [op for op in run.selection.ops if op not in apart and not _is_call(op)])
        table = visible(answer_table(summary), ascii_only=self._options.ascii_only)
        return [
            cut(sides_line(run, summary, width), width),
            *map(line_text, [] if table is None else table_lines(table, width)),
        ]

    def _curves(self, run: Run) -> Analysis:
        by_op = group_by(run.outcomes, lambda outcome: outcome.case.op)
        for op, outcomes in by_op.items():
            before = self._known.get(op, ((), None))[0]
            if len(before) != len(outcomes) or any(a is not b for a, b in zip(before, outcomes, strict=True)):
                self._known[op] = (outcomes, analyse(msgspec.structs.replace(run, outcomes=outcomes)))
        parts = [self._known[op][1] for op in by_op]
        return analyse(run).replace(
            cases=tuple(entry for part in parts for entry in part.cases),
            break_even=tuple(entry for part in parts for entry in part.break_even),
            best_code=tuple(entry for part in parts for entry in part.best_code),
        )


def _is_call(op: str) -> bool:
    """Return whether the op is an overhead or a collective, which have no row in the answer."""
    declared = declaration(op)
    return declared is not None and declared.group in CALLS


def _fill(summary: MachineAnswer, ops: Sequence[str]) -> MachineAnswer:
    """Return the answer with a row for each of `ops`. Cells that are not known yet are pending."""
    rows = [
        msgspec.structs.replace(entry, cells={name: _open(cell) for name, cell in entry.cells.items()})
        for entry in summary.rows
    ]
    shown, first = {entry.op for entry in rows}, rows[0]
    rows += [
        AnswerRow(
            op=op, dtype=first.dtype, params={}, device_id=first.device_id, size_unit="elements",
            cells=dict.fromkeys(summary.regimes, _PENDING), count=first.count,
        )
        for op in ops if op not in shown
    ]  # fmt: skip
    rows.sort(key=lambda entry: (entry.op, entry.dtype))
    return msgspec.structs.replace(summary, rows=tuple(rows))


def _open(cell: AnswerCell) -> AnswerCell:
    waiting = cell.kind == "open" and cell.reason not in _SETTLED
    return msgspec.structs.replace(cell, kind="pending") if waiting else cell
