"""Plain text: aligned columns, no colour, no box drawing."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.analysis.analyse import Analysis
from gpubench.base.escaping import wrapped
from gpubench.base.table import line_text, table_lines
from gpubench.report.layout import RenderOptions, Section, TextDocument, leading, visible


def render(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """The reports of all runs, one after the other."""
    from gpubench.report.contents import documents  # a comparison draws without it

    return draw(documents(analyses, options), options)


def draw(documents: Sequence[TextDocument], options: RenderOptions) -> str:
    """Any documents as text, one after the other."""
    texts = [
        _document_text(report, options.width) for report in visible(documents, ascii_only=options.ascii_only)
    ]
    text = ("\n" + "=" * min(options.width, 60) + "\n\n").join(texts)
    return text.encode("ascii", "replace").decode() if options.ascii_only else text


def _document_text(report: TextDocument, width: int) -> str:
    heading = ["\n".join(wrapped(line, width) for line in report.headings)] if report.headings else []
    lead = leading(report)
    parts = [_section_text(section, width) for section in report.sections]
    return "\n\n".join([*parts[:lead], *heading, *parts[lead:]]) + "\n"


def _section_text(section: Section, width: int) -> str:
    if section.screen:
        return "\n".join(map(line_text, section.screen))
    lines = [wrapped(line, width) for line in section.lines]
    head = "\n".join([section.title, "-" * len(section.title), *lines])
    parts = ["\n".join(map(line_text, table_lines(table, width))) for table in section.tables]
    for picture in section.pictures:
        title = [wrapped(picture.title, width)] if picture.title else []
        parts.append("\n".join([*title, *(row.text for row in picture.rows)]))
    return head + ("\n\n" if lines and parts else "\n" if parts else "") + "\n\n".join(parts)
