"""Tables for a terminal: bold titles, ruled headings, colour by direction; laid out as in plain text."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.analysis.analyse import Analysis
from gpubench.base.escaping import wrapped
from gpubench.report.layout import Line, RenderOptions, Section, TextDocument, leading, visible
from gpubench.report.renderers.plain import Paint, table_lines

# Of a tone, and of what stands around tables: how a terminal is told.
_CODES = {"good": 32, "bad": 31, "muted": 2, "gpu": 36, "cpu": 33, "bold": 1}


def render(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """The reports of all runs as the characters for a terminal of `options.width` columns."""
    from gpubench.report.contents import documents  # a comparison draws without it

    return draw(documents(analyses, options), options)


def draw(documents: Sequence[TextDocument], options: RenderOptions) -> str:
    """Any documents as the characters for a terminal, one after the other."""
    paint = _add_colour if options.color else _plain
    lines: list[str] = []
    for i, report in enumerate(visible(documents)):
        lines += [("=" if options.ascii_only else "═") * options.width] * bool(i)
        lead = leading(report)
        for section in report.sections[:lead]:
            lines += _section(section, options, paint)
        lines += ["", *(wrapped(line, options.width) for line in report.headings)]
        for section in report.sections[lead:]:
            lines += _section(section, options, paint)
    text = "\n".join(lines).strip("\n") + "\n"
    return text.encode("ascii", "replace").decode() if options.ascii_only else text


def _plain(text: str, style: str) -> str:
    return text


def _add_colour(text: str, style: str) -> str:
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if style in _CODES and text.strip() else text


def _section(section: Section, options: RenderOptions, paint: Paint) -> list[str]:
    width = options.width
    if section.screen:
        return ["", *(_cells(line, paint) for line in section.screen)]
    lines = [
        "",
        paint(wrapped(section.title, width), "bold"),
        *(wrapped(line, width) for line in section.lines),
    ]
    for table in section.tables:
        lines += table_lines(table, width, paint=paint, rule="-" if options.ascii_only else "─")
    for picture in section.pictures:
        lines += ["", *([paint(wrapped(picture.title, width), "bold")] if picture.title else [])]
        lines += [_cells((cell,), paint) for cell in picture.rows]
    return lines


def _cells(line: Line, paint: Paint) -> str:
    """Return a line as it is. Tables fit; a file name may not, and is of no use without its end."""
    return "".join(paint(cell.text, cell.tone) for cell in line).rstrip()
