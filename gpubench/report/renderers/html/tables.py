"""Sections and tables on a page. A narrow page keeps the first column in sight, and below it the device."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from xml.etree.ElementTree import Element

from gpubench.report.layout import Cell, Column, Picture, Section, Table, visible
from gpubench.report.markup import element

WHOLE, ID = 32, 80  # characters of a cell, and of a single word in it, up to which it is not broken
# Who reads a narrow page sees these columns below the first one, which stays in sight.
NEAR = ("device", "GPU", "adapter", "hybrid", "machine")


def section(part: Section, name: str, *, folded: bool = False) -> Element:
    """One section with its heading, of the id `name`; what is folded opens on demand."""
    heading = element("h2", {}, part.title)
    tables = [table(item, part.title) for item in part.tables]
    body = [*lines(part.lines), *(_picture(item) for item in part.pictures), *tables]
    if part.folded or folded:
        return element("section", {"id": name}, element("details", {}, element("summary", {}, heading), *body))
    return element("section", {"id": name}, heading, *body)


def _picture(found: Picture) -> Element:
    text = "\n".join(row.text for row in found.rows)
    drawing = element("pre", {"class": "scroll", "role": "img", "aria-label": found.title, "tabindex": "0"})
    drawing.text = "\n".join(visible(line) for line in text.split("\n"))
    return element("div", {"class": "table"}, element("p", {}, found.title) if found.title else None, drawing)


def table(found: Table, name: str) -> Element:
    """A table in a box of its own that scrolls, with the mouse and by keyboard, instead of the page."""
    title = found.title or name
    near = _near(found.columns)
    body = _rows(found)
    caption = element("caption", {}, element("span", {"class": "title" if found.title else "unseen"}, title))
    if found.note:
        caption.append(element("span", {"class": "note"}, found.note))
    head = element("thead", {}, *_heads(found.columns, near))
    whole = element("table", {}, caption, head, element("tbody", {}, *body))
    box = element("div", {"class": "scroll", "role": "group", "aria-label": title, "tabindex": "0"}, whole)
    legend = element("p", {"class": "legend"}, found.legend) if found.legend else None
    return element("div", {"class": "table"}, box, legend)


def lines(texts: Sequence[str]) -> list[Element]:
    """One as a paragraph, several as a list."""
    if len(texts) == 1:
        return [element("p", {}, texts[0])]
    return [element("ul", {"class": "lines"}, *(element("li", {}, line) for line in texts))] if texts else []


def _heads(columns: Sequence[Column], near: int | None) -> list[Element]:
    """The headings; where neighbours share what stands before a colon, that is a heading above them."""
    groups = [column.name.partition(": ")[0] if ": " in column.name else "" for column in columns]
    if not any(a and a == b for a, b in itertools.pairwise(groups)):
        return [element("tr", {}, *(_heading(c, c.name, near=i == near) for i, c in enumerate(columns)))]
    above = []
    for group, found in itertools.groupby(groups):
        count = len(list(found))
        over = {"colspan": str(count), "scope": "colgroup", "class": "group"}
        above += [element("th", over, group)] if group else [element("td", {}) for _ in range(count)]
    names = [
        c.name.removeprefix(f"{group}: ") if group else c.name for c, group in zip(columns, groups, strict=True)
    ]
    below = [_heading(c, name, near=i == near) for i, (c, name) in enumerate(zip(columns, names, strict=True))]
    return [element("tr", {}, *above), element("tr", {}, *below)]


def _heading(column: Column, name: str, *, near: bool) -> Element:
    classes = " ".join([*(["n"] if column.right else []), *(["far"] if near else [])])
    look = {"class": classes} if classes else {}
    return element("th", {"scope": "col", **look}, name) if name else element("td", look)


def _near(columns: Sequence[Column]) -> int | None:
    """The place of the column that a narrow page shows below the first one."""
    return next((i for i, column in enumerate(columns) if i and column.name in NEAR), None)


def _rows(found: Table) -> list[Element]:
    near, above, made = _near(found.columns), "", []
    for row in found.rows:
        above = row[0].text or above
        cells = [_cell(cell, found.columns[i], head=not i, far=i == near) for i, cell in enumerate(row)]
        if not row[0].text and above:  # what the cell repeats, for where the one above is out of sight
            cells[0].append(element("span", {"class": "again"}, above))
        if near is not None and row[near].text:
            cells[0].append(element("span", {"class": "near"}, row[near].text))
        made.append(element("tr", {}, *cells))
    return made


def _cell(cell: Cell, column: Column, *, head: bool, far: bool) -> Element:
    classes = ["n"] if column.right else []
    classes += ["whole"] if len(cell.text) <= WHOLE or (len(cell.text) <= ID and " " not in cell.text) else []
    classes += [cell.tone] if cell.tone != "plain" else []
    classes += ["far"] if far else []
    head = head and bool(cell.text)  # a cell that repeats the one above heads nothing
    attributes = ({"class": " ".join(classes)} if classes else {}) | ({"scope": "row"} if head else {})
    return element("th" if head else "td", attributes, cell.text)
