"""The report as text in tables, before any format, and how it is to look. Cells hold no markup.

And values as JSON and CSV text: floats with six significant digits, nothing that a spreadsheet takes for a formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import msgspec

from gpubench.base import escaping
from gpubench.base.errors import require_choice
from gpubench.base.escaping import columns, json_in_order, printable
from gpubench.base.formats import DEFAULT_SECTIONS

Tone = Literal["plain", "good", "bad", "muted", "gpu", "cpu"]


class Column(msgspec.Struct, frozen=True):
    """A heading. Columns of a higher `rank` are left out first where the width does not suffice; 0 never."""

    name: str
    right: bool = False
    rank: int = 0


class Cell(msgspec.Struct, frozen=True):
    """Text and its direction: better or worse, or which side wins. Colour may follow it, and never says anything
    alone."""

    text: str
    tone: Tone = "plain"


Line = tuple[Cell, ...]  # what stands on one line of a terminal, without gaps between the cells


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
    """One part of the report, under one key of `--sections`. `folded`: a detail, closed where possible.

    `screen`: lines that are all of the section, without its title; for a terminal and for plain text alone.
    """

    key: str
    title: str
    lines: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    folded: bool = False
    pictures: tuple[Picture, ...] = ()
    screen: tuple[Line, ...] = ()


class TextDocument(msgspec.Struct, frozen=True):
    """The whole report of one run. `headings` come first: run and machine."""

    headings: tuple[str, ...]
    sections: tuple[Section, ...]


def leading(document: TextDocument) -> int:
    """How many sections stand above the headings: the answer is the first thing that people read."""
    return int(bool(document.sections and document.sections[0].screen))


def cells(*texts: str | Cell) -> tuple[Cell, ...]:
    """A row; text becomes a plain cell."""
    return tuple(text if isinstance(text, Cell) else Cell(text) for text in texts)


def widths(table: Table) -> list[int]:
    """The width of each column: its heading or its widest cell."""
    names = [column.name for column in table.columns]
    size = columns
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


def limited(documents: Sequence[TextDocument], wanted: Sequence[str]) -> list[TextDocument]:
    """The documents with tables of the columns `wanted`; a table that has none of them stays whole.

    A column is named by its heading or the first word of it, in any case. Raises UsageError for a name that no table
    has.
    """
    if not wanted:
        return list(documents)
    tables = [table for document in documents for part in document.sections for table in part.tables]
    headings = dict.fromkeys(column.name for table in tables for column in table.columns)
    names = {name.lower() for heading in headings for name in (heading, heading.partition(" ")[0])}
    for name in wanted:
        if name.lower() not in names:
            require_choice(name, headings, "--columns")
    return [
        msgspec.structs.replace(
            document,
            sections=tuple(
                msgspec.structs.replace(part, tables=tuple(_limited(table, wanted) for table in part.tables))
                for part in document.sections
            ),
        )
        for document in documents
    ]


def _limited(table: Table, wanted: Sequence[str]) -> Table:
    narrower = None if table.narrower is None else _limited(table.narrower, wanted)
    kept = _positions(table, wanted)
    if not kept:
        return msgspec.structs.replace(table, narrower=narrower)
    return msgspec.structs.replace(
        table, columns=tuple(table.columns[i] for i in kept), narrower=narrower,
        rows=tuple(tuple(row[i] for i in kept) for row in table.rows),
    )  # fmt: skip


def _positions(table: Table, wanted: Sequence[str]) -> list[int]:
    """Where the wanted columns stand: the heading itself before headings that only begin with the word."""
    names = [column.name.lower() for column in table.columns]
    found: list[int] = []
    for name in wanted:
        low = name.lower()
        exact = [i for i, heading in enumerate(names) if heading == low]
        found += exact or [i for i, heading in enumerate(names) if heading.partition(" ")[0] == low]
    return list(dict.fromkeys(found))


def visible(part: Any) -> Any:
    """`part` (texts, cells, tables, whole documents) with a blank for each character that is not shown itself.

    Escape sequences, line ends and the marks that turn the direction of writing come from a device's name or a
    driver's message; drawing is the one place that all of them pass.
    """
    if isinstance(part, str):
        return escaping.visible(part)
    if isinstance(part, tuple | list):
        return tuple(visible(item) for item in part)
    if isinstance(part, msgspec.Struct):
        fields = {name: visible(getattr(part, name)) for name in part.__struct_fields__}
        return msgspec.structs.replace(part, **fields)
    return part


class RenderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`width` in characters; `sections` by key, in the order of SECTIONS whatever order they are given in.

    `time_unit`: one of TIME_UNITS. `columns`: what tables (and CSV) are cut down to; none: all of theirs. `sort`: one
    of `analyse.KEYS`, with `-` the largest first; None: as the file has them. `by_device`: the answer has a row for
    each GPU backend.
    """

    width: int = 80
    color: bool = False
    ascii_only: bool = False
    sections: Sequence[str] = DEFAULT_SECTIONS
    time_unit: str = "auto"
    columns: tuple[str, ...] = ()
    sort: str | None = None
    by_device: bool = False


# ---------------------------------------------------------------- values as text

SIGNIFICANT_DIGITS = 6
T = TypeVar("T", bound=msgspec.Struct)


def json_text(data: Any, options: RenderOptions) -> str:
    """`data` (structs, lists, dicts) indented, with one trailing newline; `ascii_only` changes no value."""
    plain = rounded(msgspec.to_builtins(data))
    if options.ascii_only:
        import json

        return json_in_order(json.dumps(plain, indent=2).encode()).decode() + "\n"
    return json_in_order(msgspec.json.format(msgspec.json.encode(plain))).decode() + "\n"


def json_line(data: Any) -> str:
    """`data` on one line, in ASCII: U+2028 and its like would end a line for some readers."""
    import json

    text = json.dumps(rounded(msgspec.to_builtins(data)), separators=(",", ":"))
    return json_in_order(text.encode()).decode() + "\n"


def narrowed(row: msgspec.Struct, kind: type[T], **given: Any) -> T:
    """The fields of `kind` from a row that may have more, such as one of a derived type; `given` replaces some."""
    return kind(**{name: getattr(row, name) for name in kind.__struct_fields__ if name not in given}, **given)


def rounded(value: Any) -> Any:
    """`value` with every float cut to the digits that a result file has."""
    if isinstance(value, float):
        return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list | tuple) else value


CsvValue = str | int | float | bool | tuple[str, ...] | None
_FORMULA = ("=", "+", "-", "@")


def csv_text(value: CsvValue) -> str:
    """Null is empty, a float has six significant digits, a list is separated by blanks, a text is one line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.{SIGNIFICANT_DIGITS}g}"
    if isinstance(value, int):
        return str(value)
    text = printable(value if isinstance(value, str) else " ".join(value))
    return f"'{text}" if text.startswith(_FORMULA) else text
