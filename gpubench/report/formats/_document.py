"""The report as text in tables, before any format: sections, lines and cells. Cells hold no markup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from gpubench.foreign_text import visible
from gpubench.report.formats import _display

Tone = Literal["plain", "good", "bad", "muted"]


class Column(msgspec.Struct, frozen=True):
    """A heading. Columns of a higher `rank` are left out first where the width does not suffice; 0 never."""

    name: str
    right: bool = False
    rank: int = 0


class Cell(msgspec.Struct, frozen=True):
    """Text and its direction: better or worse. Colour may follow it, and never says anything alone."""

    text: str
    tone: Tone = "plain"


class Table(msgspec.Struct, frozen=True):
    """`note` stands above the table (the baseline of a speedup), `legend` below.

    `narrower` says the same in shorter cells, for where this one does not fit.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    note: str = ""
    legend: str = ""
    narrower: Table | None = None


class Picture(msgspec.Struct, frozen=True):
    """A drawing made of characters: lines that must not be wrapped, each with its direction."""

    rows: tuple[Cell, ...]
    title: str = ""


class Section(msgspec.Struct, frozen=True):
    """One part of the report, under one key of `--sections`. `folded`: a detail, closed where possible."""

    key: str
    title: str
    lines: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    folded: bool = False
    pictures: tuple[Picture, ...] = ()


class Document(msgspec.Struct, frozen=True):
    """The whole report of one run. `headings` come first: run and machine."""

    headings: tuple[str, ...]
    sections: tuple[Section, ...]


def cells(*texts: str | Cell) -> tuple[Cell, ...]:
    """A row; text becomes a plain cell."""
    return tuple(text if isinstance(text, Cell) else Cell(text) for text in texts)


def printable(text: str) -> str:
    """One line without control characters or marks that reorder what follows them."""
    return " ".join(visible(text).split())


def wrapped(text: str, width: int) -> str:
    """`text` in lines of at most `width` columns, all but the first indented."""
    return "\n".join(_display.filled(text, width))


def shortened(text: str, length: int = 40) -> str:
    """`text` on one line, cut to `length` columns: a name must not push a table off the page."""
    return _display.cut(printable(text), length)


def widths(table: Table) -> list[int]:
    """The width of each column: its heading or its widest cell."""
    names = [column.name for column in table.columns]
    size = _display.columns
    return [max([size(name), *(size(row[i].text) for row in table.rows)]) for i, name in enumerate(names)]


def fitted(table: Table, width: int, *, gap: int = 2) -> Table:
    """The first of the table and its narrower forms that fits `width` characters without ranked columns; then
    without as few columns of the highest rank as it takes."""
    while table.narrower is not None and _needs(_unranked(table), gap) > width:
        table = table.narrower
    while _needs(table, gap) > width:
        ranks = [column.rank for column in table.columns]
        if max(ranks) == 0:
            return table
        table = _without(table, ranks.index(max(ranks)))
    return table


def _needs(table: Table, gap: int) -> int:
    return sum(widths(table)) + gap * (len(table.columns) - 1)


def _unranked(table: Table) -> Table:
    while (rank := max(column.rank for column in table.columns)) > 0:
        table = _without(table, [column.rank for column in table.columns].index(rank))
    return table


def _without(table: Table, index: int) -> Table:
    def keep(items: Sequence[Cell]) -> tuple[Cell, ...]:
        return (*items[:index], *items[index + 1 :])

    columns = (*table.columns[:index], *table.columns[index + 1 :])
    return msgspec.structs.replace(table, columns=columns, rows=tuple(keep(row) for row in table.rows))
