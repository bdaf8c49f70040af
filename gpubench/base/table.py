"""Tables for the terminal and for Markdown. On the terminal, columns of a table that is too wide are dropped,
shortened or moved below each other.

All tables of gpubench are of the type Table. Cells contain text without markup.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from gpubench.base.streams import NARROWEST_WRAP, columns, cut, cut_middle, escape, fill, pad

Tone = Literal["plain", "good", "bad", "muted", "gpu", "cpu", "bold", "warn"]
# Terminal codes of the tones, for 256 colours and for 16.
_CODES: dict[Tone, str] = {
    "good": "32", "bad": "31", "muted": "2", "gpu": "38;5;75", "cpu": "38;5;208", "bold": "1", "warn": "33"
}  # fmt: skip
_FEW_CODES = _CODES | {"gpu": "94", "cpu": "33"}
FEW, MANY = 16, 256
GAP, GROUP_GAP, INDENT = "  ", "   ", "    "
SHORTEST = 8  # least width to which the first cells of a bare table are cut


class Column(msgspec.Struct, frozen=True):
    """The heading of a column, and how the column is shown."""

    name: str  # text of the heading
    right: bool = False  # whether the column is aligned to the right, as for numbers
    rank: int = 0  # the highest ranks are dropped first if the table is too wide; 0 is never dropped
    group: str = ""  # heading above this column and its neighbours of the same group
    # the least width to which the first column may be cut, or the last one wrapped, before any column is
    # dropped; 0: columns are dropped first
    least: int = 0


class Cell(msgspec.Struct, frozen=True):
    """A text with a tone, such as "good", "bad", "gpu" or "cpu". A colour shows the tone, but it is never the only
    sign of a meaning."""

    text: str  # one line of text
    tone: Tone = "plain"  # meaning of the text, which a colour may show
    more: tuple[Cell, ...] = ()  # lines below the text, in the last column
    again: bool = False  # whether the cell repeats the one above, so that a terminal shows it blank
    brief: str = ""  # shorter text, which is shown if the table is too wide; empty: there is none


Line = tuple[Cell, ...]  # a line of a terminal, without gaps between the cells


class Table(msgspec.Struct, frozen=True):
    """The rows of cells below headings."""

    columns: tuple[Column, ...]  # headings of the columns
    rows: tuple[tuple[Cell, ...], ...]  # a cell for each column
    title: str = ""  # line above the table
    note: str = ""  # line between title and table, such as the baseline of a speedup
    legend: str = ""  # lines below the table
    bare: bool = False  # whether there is no rule below the headings, as in the answer

    def groups(self) -> list[tuple[str, int, int]]:
        """Return (label, start, stop) of each group of columns that has a label. The group has the columns
        range(start, stop)."""
        runs = itertools.groupby(range(len(self.columns)), key=lambda i: self.columns[i].group)
        places = [(label, list(run)) for label, run in runs]
        return [(label, run[0], run[-1] + 1) for label, run in places if label]

    def headings(self) -> list[str]:
        """Return one heading for each column: its name, or `group: name` if it is in a group. A column
        without a name has the label of its group if it is the first of the group, otherwise an empty heading."""
        first = {start for _, start, _ in self.groups()}
        return [
            f"{column.group}: {column.name}" if column.group and column.name
            else column.name or (column.group if i in first else "")
            for i, column in enumerate(self.columns)
        ]  # fmt: skip

    def keep(self, places: Sequence[int]) -> Table:
        """Return the table with only the columns at these indices. A part of the legend that explains another
        column, such as `rate: ...`, is left out."""
        columns = tuple(self.columns[i] for i in places)
        gone = [column.name for column in self.columns if column not in columns]
        return replace(
            self, columns=columns, rows=tuple(tuple(line[i] for i in places) for line in self.rows),
            legend="; ".join(part for part in self.legend.split("; ") if part.partition(":")[0] not in gone),
        )  # fmt: skip


def number(name: str, rank: int = 0) -> Column:
    """Return a right-aligned column for numbers. `rank` is as in Column."""
    return Column(name, right=True, rank=rank)


def heads(*columns: str | Column | bool) -> tuple[Column, ...]:
    """Return the columns of a table. A text becomes a column with that name. A bool is left out, so that a caller
    may write `condition and column`."""
    return tuple(
        Column(column) if isinstance(column, str) else column
        for column in columns
        if not isinstance(column, bool)
    )


def cells(*texts: str | Cell | bool) -> tuple[Cell, ...]:
    """Return the cells of a row. A text becomes a plain cell. A bool is left out, so that a caller may write
    `condition and cell`."""
    return tuple(text if isinstance(text, Cell) else Cell(text) for text in texts if not isinstance(text, bool))


def mark_repeats(rows: Iterable[Sequence[Cell]], count: int) -> tuple[tuple[Cell, ...], ...]:
    """Return the rows, and mark (`again`) the leading cells of a row that are equal to those of the row above, but
    at most `count` cells."""
    marked: list[tuple[Cell, ...]] = []
    before: list[str] = []
    for line in rows:
        head = [cell.text for cell in line[:count]]
        same = sum(head[: i + 1] == before[: i + 1] for i in range(count))
        marked.append((*(replace(cell, again=True) for cell in line[:same]), *line[same:]))
        before = head
    return tuple(marked)


def table_lines(table: Table, width: int, *, rule: str = "") -> list[Line]:
    """Return the lines of a table, which `fit` narrows to `width` terminal columns. If it stays too wide, its rows
    continue on indented lines; a bare table is divided by its groups of columns instead. `rule` is the
    character of a continuous rule below the headings; "" means hyphens."""
    table = fit(table, width)
    parts = [table]
    if table.bare and table.groups() and natural_width(_with_short_names(table, width)) > width:
        parts = _parts(table)
    return [line for part in parts for line in _whole(_with_short_names(part, width), width, rule)]


def fit(table: Table, width: int) -> Table:
    """Narrow a table that is wider than `width`: its cells get their brief texts, and then columns are dropped,
    the highest rank first. Columns of rank 0 are kept even if they do not fit."""
    if natural_width(table) > width:
        brief = [tuple(replace(cell, text=cell.brief or cell.text) for cell in line) for line in table.rows]
        table = replace(table, rows=tuple(brief))
    while natural_width(table) > width and any(ranks := [column.rank for column in table.columns]):
        gone = ranks.index(max(ranks))
        table = table.keep([i for i in range(len(ranks)) if i != gone])
    return table


def natural_width(table: Table) -> int:
    """Return the width of a row in columns of the terminal. The first and the last column of the table count
    with their `least` width, if they have one."""
    widths = _widths(table)
    for i in {0, len(widths) - 1}:
        widths[i] = min(widths[i], table.columns[i].least or widths[i])
    return sum(widths) + sum(map(len, _gaps(table)))


def _with_short_names(table: Table, width: int) -> Table:
    """Shorten the first cell of each row if the table is wider than `width` and these cells may be cut."""
    first, last = table.columns[0].least, table.columns[-1].least
    least = first or (SHORTEST if table.bare and not last else 0)
    longest = _widths(table)[0]
    over = natural_width(table) + (longest - min(longest, first) if first else 0) - width
    if over <= 0 or not least:
        return table
    room = max(least, longest - over)
    rows = tuple((replace(line[0], text=cut_middle(line[0].text, room)), *line[1:]) for line in table.rows)
    return replace(table, rows=rows)


def _parts(table: Table) -> list[Table]:
    """Return a table for each group of columns. Each table begins with the columns before the first group."""
    groups = table.groups()
    return [table.keep([*range(groups[0][1]), *range(start, end)]) for _, start, end in groups]


def _widths(table: Table) -> list[int]:
    """Return the width of each column; the last column of a group has room for the group's label."""
    widths = [
        max(map(columns, (column.name, *(line.text for record in table.rows for line in (record[i], *record[i].more)))))
        for i, column in enumerate(table.columns)
    ]  # fmt: skip
    for label, start, end in table.groups():
        taken = sum(widths[start:end]) + len(GAP) * (end - start - 1)
        widths[end - 1] += max(0, columns(label) - taken)
    return widths


def _gaps(table: Table) -> list[str]:
    """Return the gap before each column, which is wider where a later group begins."""
    later = {start for _, start, _ in table.groups()[1:]}
    return ["", *(GROUP_GAP if i in later else GAP for i in range(1, len(table.columns)))]


def _whole(table: Table, width: int, rule: str) -> list[Line]:
    widths, gaps = _widths(table), _gaps(table)
    least = [*widths[:-1], min(widths[-1], NARROWEST_WRAP)]
    starts, taken = [0], 0  # the first column of each line of a row
    for i, room in enumerate(least):
        taken += len(gaps[i]) + room
        if i and taken > width and not table.bare:
            starts, gaps[i], taken = [*starts, i], INDENT, len(INDENT) + room
    widths[-1] = max(least[-1], min(widths[-1], width - taken + least[-1]))
    lines = _text(table.title, width, "bold") + _text(table.note, width, "muted")
    if groups := table.groups():
        text = ""
        for label, start, _ in groups:
            text = pad(text, sum(widths[:start]) + sum(map(len, gaps[: start + 1]))) + label
        lines.append((Cell(text, "muted"),))
    if any(column.name for column in table.columns):
        tone: Tone = "muted" if table.bare else "plain"
        lines += _row([Cell(column.name, tone) for column in table.columns], table, widths, gaps, starts)
    if not table.bare:
        whole = min(width, sum(widths) + sum(map(len, gaps)))
        continuous = rule or "-" * (len(starts) > 1)
        lines.append((Cell(continuous * whole or GAP.join("-" * n for n in widths)),))
    for record in table.rows:
        lines += _row(record, table, widths, gaps, starts)
    lines += _text(table.legend, width, "muted")
    if not table.bare:
        return lines
    return [line if columns(text := line_text(line)) <= width else (Cell(cut(text, width)),) for line in lines]


def _text(text: str, width: int, tone: Tone) -> list[Line]:
    return [(Cell(line, tone),) for line in fill(text, width)] if text else []


def _row(
    record: Sequence[Cell], table: Table, widths: Sequence[int], gaps: Sequence[str], starts: Sequence[int]
) -> list[Line]:
    """Return the lines of one row, with its last cell wrapped. `starts` has the first column of each line."""
    *others, last = (Cell("", cell.tone) if cell.again else cell for cell in record)
    right = table.columns[-1].right
    first, *below = (
        Cell(pad(text, widths[-1], right=right), part.tone)
        for part in (last, *last.more)
        for text in fill(part.text, widths[-1], indent="")
    )
    lines: list[list[Cell]] = []
    for i, cell in enumerate((*others, first)):
        if i in starts:
            lines.append([])
        blank = Cell(" " * (widths[i] - columns(cell.text)))
        lines[-1] += [Cell(gaps[i]), *((blank, cell) if table.columns[i].right else (cell, blank))]
    indent = Cell(" " * (sum(widths[starts[-1] : -1]) + sum(map(len, gaps[starts[-1] :]))))
    return [trim(line) for line in (*lines, *([indent, part] for part in below))]


def trim(line: Iterable[Cell]) -> Line:
    """Return the line without empty cells and without blanks at its end. At least one cell is left."""
    cells = [cell for cell in line if cell.text]
    while len(cells) > 1 and not cells[-1].text.strip():
        cells.pop()
    return (*cells[:-1], replace(cells[-1], text=cells[-1].text.rstrip())) if cells else (Cell(""),)


def line_text(line: Line) -> str:
    """Return the text of the line without tones."""
    return "".join(cell.text for cell in line)


def paint(line: Line, *, color: int) -> str:
    """Return the line as text, with a terminal's codes for its tones. `color` is the number of colours: 0 (no
    codes), FEW or MANY. Cells of blanks get no codes."""
    if not color:
        return line_text(line)
    codes = _FEW_CODES if color == FEW else _CODES
    return "".join(
        f"\x1b[{codes[cell.tone]}m{cell.text}\x1b[0m" if cell.tone in codes and cell.text.strip() else cell.text
        for cell in line
    )  # fmt: skip


def markdown_table(table: Table) -> str:
    """Return the headings, a rule and the rows in GitHub Markdown, with all text escaped."""
    rule = "|" + "|".join(" ---: " if column.right else " --- " for column in table.columns) + "|"
    rows: list[list[list[str]]] = [[[heading] for heading in table.headings()]]
    rows += [[[cell.text, *(line.text for line in cell.more)] for cell in record] for record in table.rows]
    head, *body = (
        "| " + " | ".join("<br>".join(map(escape, cell)) for cell in record) + " |" for record in rows
    )
    return "\n".join([head, rule, *body])
