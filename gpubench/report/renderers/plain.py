"""Plain text: aligned columns, no colour, no box drawing."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.analysis.analyse import Analysis
from gpubench.escaping import NARROWEST_WRAP, columns, filled, padded, wrapped
from gpubench.report.layout import (
    Picture,
    RenderOptions,
    Section,
    Table,
    TextDocument,
    fitted,
    leading,
    visible,
    widths,
)

GAP = "  "


def render(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """The reports of all runs, one after the other."""
    from gpubench.report.contents import documents  # a comparison draws without it

    return draw(documents(analyses, options), options)


def draw(documents: Sequence[TextDocument], options: RenderOptions) -> str:
    """Any documents as text, one after the other."""
    texts = [_document_text(report, options.width) for report in visible(documents)]
    text = ("\n" + "=" * min(options.width, 60) + "\n\n").join(texts)
    return text.encode("ascii", "replace").decode() if options.ascii_only else text


def _document_text(report: TextDocument, width: int) -> str:
    heading = ["\n".join(wrapped(line, width) for line in report.headings)] if report.headings else []
    lead = leading(report)
    parts = [
        *(_section_text(section, width) for section in report.sections[:lead]), *heading,
        *(_section_text(section, width) for section in report.sections[lead:]),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _section_text(section: Section, width: int) -> str:
    if section.screen:
        return "\n".join("".join(cell.text for cell in line) for line in section.screen)
    lines = [wrapped(line, width) for line in section.lines]
    parts = ["\n".join([section.title, "-" * len(section.title), *lines])]
    parts += [_table_text(table, width) for table in section.tables]
    parts += [_picture_text(picture, width) for picture in section.pictures]
    first = "\n" if not section.lines else "\n\n"
    return parts[0] + (first + "\n\n".join(parts[1:]) if parts[1:] else "")


def _picture_text(picture: Picture, width: int) -> str:
    title = [wrapped(picture.title, width)] if picture.title else []
    return "\n".join([*title, *(row.text for row in picture.rows)])


def _table_text(table: Table, width: int) -> str:
    table = fitted(table, width, gap=len(GAP))
    size = widths(table)
    lines = [wrapped(text, width) for text in (table.title, table.note) if text]
    lines.append(_row([column.name for column in table.columns], table, size, width))
    lines.append(GAP.join("-" * n for n in _shrunk(size, width)))
    lines += [_row([cell.text for cell in row], table, size, width) for row in table.rows]
    return "\n".join(lines + ([wrapped(table.legend, width)] if table.legend else []))


def _row(texts: Sequence[str], table: Table, size: Sequence[int], width: int) -> str:
    """One row; where the table is too wide, the last column wraps below itself."""
    shrunk = _shrunk(size, width)
    cells = [
        padded(text, n, right=column.right) for text, n, column in zip(texts, size, table.columns, strict=True)
    ]
    left = GAP.join(cells[:-1])
    last = filled(texts[-1], shrunk[-1], indent="")
    if len(last) == 1:
        return (left + GAP + cells[-1] if left else cells[-1]).rstrip()
    indent = " " * (columns(left) + len(GAP))
    return "\n".join([(left + GAP + last[0]).rstrip(), *(indent + line for line in last[1:])])


def _shrunk(size: Sequence[int], width: int) -> list[int]:
    rest = width - sum(size[:-1]) - len(GAP) * (len(size) - 1)
    return [*size[:-1], min(size[-1], max(NARROWEST_WRAP, rest))]
