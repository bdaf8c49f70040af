"""`--columns`: tables cut down to the columns that somebody wants, in the order in which they are named."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpubench.report.formats._document import Document, Table
from gpubench.suggestions import require_choice


def limited(documents: Sequence[Document], wanted: Sequence[str]) -> list[Document]:
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
