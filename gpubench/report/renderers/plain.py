"""Plain text: aligned columns, no colour, no box drawing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpubench.analysis.analyse import Analysis
from gpubench.base.escaping import NARROWEST_WRAP, columns, filled, wrapped
from gpubench.report.layout import (
    Cell,
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
    return "\n".join(table_lines(table, width))


Paint = Callable[[str, str], str]  # a text and its style -> what is written


def table_lines(
    table: Table, width: int, *, paint: Paint = lambda text, style: text, rule: str = ""
) -> list[str]:
    """The lines of a table that is made to fit `width`. `rule`: the sign of one line below the headings, for a
    terminal, where a title has a blank line above it; else each column has hyphens."""
    table = fitted(table, width, gap=len(GAP))
    size = widths(table)
    shrunk = _shrunk(size, width)
    lines = [*([""] if rule and table.title else [])]
    lines += [
        paint(wrapped(text, width), style)
        for text, style in ((table.title, "bold"), (table.note, "muted"))
        if text
    ]
    names = tuple(Cell(column.name) for column in table.columns)
    lines += _row(names, table, size, shrunk, paint)
    lines.append(
        rule * (sum(shrunk) + len(GAP) * (len(size) - 1)) if rule else GAP.join("-" * n for n in shrunk)
    )
    for row in table.rows:
        lines += _row(row, table, size, shrunk, paint)
    return lines + ([paint(wrapped(table.legend, width), "muted")] if table.legend else [])


def _row(
    cells: Sequence[Cell], table: Table, size: Sequence[int], shrunk: Sequence[int], paint: Paint
) -> list[str]:
    """One row; where the table is too wide, the last column wraps below itself."""
    texts = []
    for cell, n, column in zip(cells, size, table.columns, strict=True):
        blank = " " * (n - columns(cell.text))
        texts.append(
            blank + paint(cell.text, cell.tone) if column.right else paint(cell.text, cell.tone) + blank
        )
    last, *more = filled(cells[-1].text, shrunk[-1], indent="")
    if not more:
        return [GAP.join(texts).rstrip()]
    indent = " " * (sum(size[:-1]) + len(GAP) * (len(size) - 1))
    return [
        GAP.join([*texts[:-1], paint(last, cells[-1].tone)]),
        *(indent + paint(line, cells[-1].tone) for line in more),
    ]


def _shrunk(size: Sequence[int], width: int) -> list[int]:
    rest = width - sum(size[:-1]) - len(GAP) * (len(size) - 1)
    return [*size[:-1], min(size[-1], max(NARROWEST_WRAP, rest))]
