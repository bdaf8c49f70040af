"""GitHub Markdown: answer and break-even first, details folded, every foreign character escaped."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpubench.analysis.analyse import Analysis
from gpubench.base.streams import escape
from gpubench.base.table import Table, line_text, markdown_table
from gpubench.report.layout import RenderOptions, Section, TextDocument, visible


def render(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """The reports of all runs, one after the other."""
    from gpubench.report.contents import documents  # a comparison draws without it

    return draw(
        [arrange(document) for document in documents(analyses, msgspec.structs.replace(options, full=True))],
        options,
    )


def arrange(report: TextDocument) -> TextDocument:
    """Put answer, break-even and speedup first, then the machine, the warnings, and folded whatever else there is."""
    machine = Section(key="machine", title="Machine", lines=report.headings)
    warnings = [part for part in report.sections if part.key == "warnings"]
    lead = [part for part in report.sections if not part.folded and part not in warnings]
    rest = [part for part in report.sections if part.folded]
    return TextDocument(headings=(), sections=(*lead, machine, *warnings, *rest))


def draw(documents: Sequence[TextDocument], options: RenderOptions, title: str = "gpubench report") -> str:
    """Any documents as text, one after the other, each below `title`."""
    text = "\n---\n\n".join(
        _document_text(report, title) for report in visible(documents, ascii_only=options.ascii_only)
    )
    return text.encode("ascii", "xmlcharrefreplace").decode() if options.ascii_only else text


def _document_text(report: TextDocument, title: str) -> str:
    parts = [f"## {title}", *(escape(line) for line in report.headings)]
    return "\n\n".join([*parts, *(_section_text(section) for section in report.sections)]) + "\n"


def _section_text(section: Section) -> str:
    parts = ["\n".join(f"- {escape(line)}" for line in section.lines)] if section.lines else []
    parts += [_table_text(table) for table in section.tables]
    # Inside the fence stand names of ops, sizes and ratios alone.
    parts += ["\n".join(("~~~text", *map(line_text, section.picture), "~~~"))] if section.picture else []
    body = "\n\n".join(parts)
    if section.folded:
        return f"<details>\n<summary>{escape(section.title)}</summary>\n\n{body}\n\n</details>"
    return f"### {escape(section.title)}\n\n{body}"


def _table_text(table: Table) -> str:
    parts = [f"**{escape(table.title)}**"] if table.title else []
    parts += [escape(table.note)] if table.note else []
    parts.append(markdown_table(table))
    parts += [escape(table.legend)] if table.legend else []
    return "\n\n".join(parts)
