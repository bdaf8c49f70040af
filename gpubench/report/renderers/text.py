"""The report as lines: plain text, and for a terminal bold titles, ruled headings and colour by direction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpubench.analysis.analyse import Analysis
from gpubench.base.streams import columns, fill
from gpubench.base.table import Cell, Line, Tone, paint, table_lines
from gpubench.report.layout import RenderOptions, Section, TextDocument, leading, visible

_BLANK: Line = (Cell(""),)


def render_terminal(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """The reports of all runs as the characters for a terminal of `options.width` columns."""
    from gpubench.report.contents import documents  # a comparison draws without it

    return draw(documents(analyses, options), options)


def render_plain(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """The reports of all runs, one after the other."""
    from gpubench.report.contents import documents

    return draw(documents(analyses, options), options, plain=True)


def draw(documents: Sequence[TextDocument], options: RenderOptions, *, plain: bool = False) -> str:
    """Any documents, one after the other. `plain`: without colour and box drawing."""
    lines: list[Line] = []
    rule = "=" * min(options.width, 60) if plain else ("=" if options.ascii_only else "═") * options.width
    for i, report in enumerate(visible(documents, ascii_only=options.ascii_only)):
        lines += [_BLANK, (Cell(rule),)] if i else []
        lead = leading(report)
        blocks = [list(_section(section, options, plain=plain)) for section in report.sections]
        headings = [line for text in report.headings for line in _lines(text, options)]
        for block in (*blocks[:lead], headings, *blocks[lead:]):
            lines += [_BLANK, *block] if block else []
    # A line of a screen stays as it is: tables fit, and a file name that does not is of no use without its end.
    color = 0 if plain else options.color
    text = "\n".join(paint(line, color=color).rstrip() for line in lines).strip("\n") + "\n"
    return text.encode("ascii", "replace").decode() if options.ascii_only else text


def _lines(text: str, options: RenderOptions, tone: Tone = "plain") -> list[Line]:
    return [(Cell(line, tone),) for line in fill(text, options.width)]


def _section(section: Section, options: RenderOptions, *, plain: bool) -> Iterable[Line]:
    if section.screen:
        yield from section.screen
        return
    yield from _lines(section.title, options, "bold")
    if plain:
        yield (Cell("-" * min(columns(section.title), options.width)),)
    for text in section.lines:
        yield from _lines(text, options)
    for i, table in enumerate(section.tables):
        yield from [_BLANK] * bool(i or section.lines if plain else table.title)
        yield from table_lines(table, options.width, rule="" if plain else "-" if options.ascii_only else "─")
