"""Sections, tables and cells of the report as elements."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree.ElementTree import Element

from gpubench.report.formats._document import Cell, Column, Picture, Section, Table
from gpubench.report.formats._html.elements import Content, element
from gpubench.report.formats._visible import visible

WHOLE, ID = 32, 80  # characters of a cell, and of a single word in it, up to which it is not broken
_SIZE = re.compile(r"(n = \d+(?: \[[^\]]*\])?)")


def section(part: Section, name: str, *, folded: bool = False) -> Element:
    """One section with its heading, of the id `name`; what is folded opens on demand."""
    heading = element("h2", {}, part.title)
    tables = [table(item, part.title) for item in part.tables]
    body = [*_lines(part.lines), *(_picture(item) for item in part.pictures), *tables]
    if part.folded or folded:
        return element("section", {"id": name}, element("details", {}, element("summary", {}, heading), *body))
    return element("section", {"id": name}, heading, *body)


def verdict(part: Section, prefix: str) -> Element:
    """The verdict in large words: what a sentence is about stands out."""
    sentences = []
    for line in part.lines:
        subject, colon, rest = line.partition(": ")
        named = bool(colon) and len(subject) <= 60
        words: list[Content] = [element("strong", {}, subject + ":"), " "] if named else []
        sentences.append(element("li", {}, *words, *_sizes_whole(rest if named else line)))
    size = "few" if len(sentences) <= 4 else "many"
    return element(
        "section", {"id": f"{prefix}verdict", "class": "verdict"},
        element("h2", {}, part.title), element("ul", {"class": size}, *sentences),
    )  # fmt: skip


def _picture(found: Picture) -> Element:
    text = "\n".join(row.text for row in found.rows)
    drawing = element("pre", {"class": "scroll", "role": "img", "aria-label": found.title, "tabindex": "0"})
    drawing.text = "\n".join(visible(line) for line in text.split("\n"))
    return element("div", {"class": "table"}, element("p", {}, found.title), drawing)


def _sizes_whole(text: str) -> list[Content]:
    """`text` with its sizes kept on one line: no break in `n = 1408 [1312, 1504]`."""
    return [
        element("span", {"class": "whole"}, part) if i % 2 else part for i, part in enumerate(_SIZE.split(text))
    ]


def table(found: Table, name: str) -> Element:
    """A table in a box of its own that scrolls, with the mouse and by keyboard, instead of the page."""
    title = found.title or name
    head = element("tr", {}, *(_heading(column) for column in found.columns))
    body = [_row(row, found.columns) for row in found.rows]
    caption = element("caption", {}, element("span", {"class": "title" if found.title else "unseen"}, title))
    if found.note:
        caption.append(element("span", {"class": "note"}, found.note))
    whole = element("table", {}, caption, element("thead", {}, head), element("tbody", {}, *body))
    box = element("div", {"class": "scroll", "role": "group", "aria-label": title, "tabindex": "0"}, whole)
    legend = element("p", {"class": "legend"}, found.legend) if found.legend else None
    return element("div", {"class": "table"}, box, legend)


def _lines(lines: Sequence[str]) -> list[Element]:
    if len(lines) == 1:
        return [element("p", {}, lines[0])]
    return [element("ul", {"class": "lines"}, *(element("li", {}, line) for line in lines))] if lines else []


def _heading(column: Column) -> Element:
    return element("th", {"scope": "col", **_side(column)}, column.name)


def _row(row: Sequence[Cell], columns: Sequence[Column]) -> Element:
    return element("tr", {}, *(_cell(cell, columns[i], head=i == 0) for i, cell in enumerate(row)))


def _cell(cell: Cell, column: Column, *, head: bool) -> Element:
    classes = ["n"] if column.right else []
    classes += ["whole"] if len(cell.text) <= WHOLE or (len(cell.text) <= ID and " " not in cell.text) else []
    classes += [cell.tone] if cell.tone != "plain" else []
    head = head and bool(cell.text)  # a cell that repeats the one above heads nothing
    attributes = ({"class": " ".join(classes)} if classes else {}) | ({"scope": "row"} if head else {})
    return element("th" if head else "td", attributes, cell.text)


def _side(column: Column) -> dict[str, str]:
    return {"class": "n"} if column.right else {}
