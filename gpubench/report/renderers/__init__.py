"""The formats for people: lines, Markdown and HTML. This file draws documents as lines and as Markdown, and it
draws a comparison or noise in a chosen format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from gpubench.analysis.analyse import Analysis
from gpubench.base.streams import columns, escape, fill
from gpubench.base.table import Cell, Line, Table, Tone, line_text, markdown_table, paint, table_lines
from gpubench.report.layout import RenderOptions, Section, TextDocument, in_ascii, json_text, leading, visible


def render_markdown(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """Return the reports of all runs as Markdown, one after the other."""
    from gpubench.report.contents import documents  # a comparison draws without it

    return draw_markdown(
        [arrange(document) for document in documents(analyses, msgspec.structs.replace(options, full=True))],
        options,
    )


def arrange(report: TextDocument) -> TextDocument:
    """Return the report with its sections in the order of Markdown: the sections that are not folded, the
    machine, the warnings, the folded sections."""
    machine = Section(key="machine", title="Machine", lines=report.headings)
    warnings = [part for part in report.sections if part.key == "warnings"]
    lead = [part for part in report.sections if not part.folded and part not in warnings]
    rest = [part for part in report.sections if part.folded]
    return TextDocument(headings=(), sections=(*lead, machine, *warnings, *rest))


def draw_markdown(
    documents: Sequence[TextDocument], options: RenderOptions, title: str = "gpubench report"
) -> str:
    """Return documents as Markdown, one after the other, each below `title`."""
    texts = [
        "\n\n".join([f"## {title}", *map(escape, report.headings), *map(_section_text, report.sections)]) + "\n"
        for report in visible(documents, ascii_only=options.ascii_only)
    ]
    return in_ascii("\n---\n\n".join(texts), options)


def _section_text(section: Section) -> str:
    parts = ["\n".join(f"- {escape(line)}" for line in section.lines)] if section.lines else []
    parts += [_table_text(table) for table in section.tables]
    # The fence contains only names of ops, sizes and ratios, so nothing can end it early.
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


_BLANK: Line = (Cell(""),)


def render_terminal(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """Return the reports of all runs as text for a terminal of `options.width` columns."""
    from gpubench.report.contents import documents  # a comparison draws without it

    return draw_lines(documents(analyses, options), options)


def render_plain(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """Return the reports of all runs as plain text, one after the other."""
    from gpubench.report.contents import documents

    return draw_lines(documents(analyses, options), options, plain=True)


def draw_lines(documents: Sequence[TextDocument], options: RenderOptions, *, plain: bool = False) -> str:
    """Return documents as lines, one document after the other. `plain` leaves out colours and box drawing."""
    lines: list[Line] = []
    rule = "=" * min(options.width, 60) if plain else ("=" if options.ascii_only else "═") * options.width
    for i, report in enumerate(visible(documents, ascii_only=options.ascii_only)):
        lines += [_BLANK, (Cell(rule),)] if i else []
        lead = leading(report)
        blocks = [list(_section(section, options, plain=plain)) for section in report.sections]
        headings = [line for text in report.headings for line in _lines(text, options)]
        for block in (*blocks[:lead], headings, *blocks[lead:]):
            lines += [_BLANK, *block] if block else []
    # Lines of a screen are not cut: tables fit, and a file name is of no use without its end.
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


DOCUMENT_FORMATS = ("table", "plain", "markdown", "html", "json")


def render_documents(
    content: msgspec.Struct, documents: Callable[[], Sequence[TextDocument]], format: str, options: RenderOptions,
    title: str,
) -> str:  # fmt: skip
    """Return text with one trailing newline: `content` as JSON, or its `documents` in another format. `format`
    is one of DOCUMENT_FORMATS. Markdown and HTML put `title` above the documents."""
    if format == "json":
        return json_text(content, options)
    if format == "html":
        from gpubench.report.renderers import html

        return in_ascii(html.draw(documents(), title), options)
    if format == "markdown":
        return draw_markdown(documents(), options, title)

    return draw_lines(documents(), options, plain=format == "plain")
