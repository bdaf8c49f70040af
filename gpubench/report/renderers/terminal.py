"""Tables for a terminal: bold titles, ruled headings, colour by direction; laid out as in plain text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpubench.analysis.analyse import Analysis
from gpubench.base.escaping import filled
from gpubench.base.table import Tone, painted, table_lines
from gpubench.report.layout import Cell, Line, RenderOptions, Section, TextDocument, leading, visible

_BLANK: Line = (Cell(""),)


def render(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """The reports of all runs as the characters for a terminal of `options.width` columns."""
    from gpubench.report.contents import documents  # a comparison draws without it

    return draw(documents(analyses, options), options)


def draw(documents: Sequence[TextDocument], options: RenderOptions) -> str:
    """Any documents as the characters for a terminal, one after the other."""
    lines: list[Line] = []
    for i, report in enumerate(visible(documents, ascii_only=options.ascii_only)):
        lines += [(Cell(("=" if options.ascii_only else "═") * options.width),)] * bool(i)
        lead = leading(report)
        parts = [list(_section(section, options)) for section in report.sections]
        headings = [_BLANK, *(line for text in report.headings for line in _lines(text, options))]
        lines += [line for part in (*parts[:lead], headings, *parts[lead:]) for line in part]
    # A line of a screen stays as it is: tables fit, and a file name that does not is of no use without its end.
    text = "\n".join(painted(line, color=options.color).rstrip() for line in lines).strip("\n") + "\n"
    return text.encode("ascii", "replace").decode() if options.ascii_only else text


def _lines(text: str, options: RenderOptions, tone: Tone = "plain") -> list[Line]:
    return [(Cell(line, tone),) for line in filled(text, options.width)]


def _section(section: Section, options: RenderOptions) -> Iterable[Line]:
    yield _BLANK
    if section.screen:
        yield from section.screen
        return
    yield from _lines(section.title, options, "bold")
    for text in section.lines:
        yield from _lines(text, options)
    for table in section.tables:
        yield from [_BLANK] * bool(table.title)
        yield from table_lines(table, options.width, rule="-" if options.ascii_only else "─")
    for picture in section.pictures:
        yield from [_BLANK, *(_lines(picture.title, options, "bold") if picture.title else [])]
        yield from ((row,) for row in picture.rows)
