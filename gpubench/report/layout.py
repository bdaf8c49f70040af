"""The content of a report as text in tables, without any markup, and the options for its look. This module also
writes values as JSON and CSV, where floats have six significant digits. A spreadsheet reads no text of the CSV
as a formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from gpubench.base import streams
from gpubench.base.errors import require_choice
from gpubench.base.plugins.sections import usual
from gpubench.base.streams import inert_json, printable
from gpubench.base.table import Line, Table
from gpubench.result.store.document import SIGNIFICANT_DIGITS


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the report."""

    key: str = ""  # the name of the section in `--sections`, set by a report
    id: str = ""  # the anchor of the section, set by a page
    title: str  # the title
    lines: tuple[str, ...] = ()  # sentences above the tables
    tables: tuple[Table, ...] = ()  # the tables, in order
    folded: bool = False  # whether the section is a detail, which is closed if the format allows it
    # whether the user asked for it and has to act on it, as for gates and claims; a page shows it above the details
    asked: bool = False
    # a drawing made of characters, for pages and Markdown, whose lines are not wrapped
    picture: tuple[Line, ...] = ()
    screen: tuple[Line, ...] = ()  # in terminals and plain text, lines that replace the section and its title


class TextDocument(msgspec.Struct, frozen=True):
    """A document without markup, as renderers draw it: a report, a comparison, a list of runs, or a screen."""

    headings: tuple[str, ...]  # the lines about the run and the machine
    sections: tuple[Section, ...]  # the sections, in order


def leading(document: TextDocument) -> int:
    """Return the number of sections above the document's headings: 1 if the first section is a screen, else
    0."""
    return int(bool(document.sections and document.sections[0].screen))


def limit_columns(documents: Sequence[TextDocument], columns: Sequence[str]) -> list[TextDocument]:
    """Return the documents with only the named columns. A table that has none of them keeps all of its columns.
    The name of a column is its heading or the first word of its heading, in upper or lower case. Raises
    UsageError for a name that no table has."""
    if not columns:
        return list(documents)
    tables = [table for document in documents for part in document.sections for table in part.tables]
    headings = dict.fromkeys(heading for table in tables for heading in table.headings())
    names = {name.lower() for heading in headings for name in (heading, heading.partition(" ")[0])}
    for name in columns:
        if name.lower() not in names:
            require_choice(name, headings, "--columns")
    return [
        msgspec.structs.replace(
            document,
            sections=tuple(
                msgspec.structs.replace(
                    part,
                    tables=tuple(
                        table.keep(_positions(table, columns) or range(len(table.columns)))
                        for table in part.tables
                    ),
                )
                for part in document.sections
            ),
        )
        for document in documents
    ]


def _positions(table: Table, columns: Sequence[str]) -> list[int]:
    """Return the positions of the named columns, by whole headings or else by their first words."""
    names = [heading.lower() for heading in table.headings()]
    places: list[int] = []
    for name in map(str.lower, columns):
        exact = [i for i, heading in enumerate(names) if heading == name]
        places += exact or [i for i, heading in enumerate(names) if heading.partition(" ")[0] == name]
    return list(dict.fromkeys(places))


def visible(part: Any, *, ascii_only: bool = False) -> Any:
    """Return `part` (a text, cell, table or whole document) with a blank for each character that cannot be
    shown. All texts pass this function before they are shown, since device names and driver messages can
    contain escape sequences. With `ascii_only`, `²` becomes `^2`."""
    square = "^2" if ascii_only else "²"
    return each_text(part, lambda text: streams.visible(text).replace("²", square))


def each_text(part: Any, change: Callable[[str], str]) -> Any:
    """Return `part` with `change` applied to each text in it. `part` may nest texts, lists, tuples and structs.
    Lists become tuples."""
    if isinstance(part, str):
        return change(part)
    if isinstance(part, tuple | list):
        items = tuple(each_text(item, change) for item in part)
        return type(part)(*items) if hasattr(part, "_fields") else items
    if isinstance(part, msgspec.Struct):
        fields = {name: each_text(getattr(part, name), change) for name in part.__struct_fields__}
        return msgspec.structs.replace(part, **fields)
    return part


def in_ascii(markup: str, options: RenderOptions) -> str:
    """Return `markup` (HTML or Markdown). With `ascii_only`, references replace characters outside of ASCII."""
    return markup.encode("ascii", "xmlcharrefreplace").decode() if options.ascii_only else markup


class RenderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options for the look of a report."""

    width: int = 80  # the width in characters
    color: int = 0  # the number of colours to use; 0: none
    ascii_only: bool = False  # whether only ASCII characters are used
    sections: Sequence[str] = msgspec.field(default_factory=usual)  # the keys of the sections, in any order
    full: bool = False  # whether sections have all their numbers and sizes, for other media than terminals
    time_unit: str = "auto"  # one of TIME_UNITS
    columns: tuple[str, ...] = ()  # the columns of tables (and CSV); empty: all
    # one of `analyse.KEYS`, with `-` in front for the largest first; None: as in the file
    sort: str | None = None
    by_device: bool = False  # whether the answer has a row for each GPU backend
    command: str = "gpubench report"  # the command that reports the same file again; empty if nothing was saved

    @property
    def every_size(self) -> bool:
        """Whether sections show every size: in a full report, or if the user chose the sections. The map does
        not count as a choice, because a page always adds it."""
        return self.full or {*self.sections} - {"map"} != {*usual()} - {"map"}


# ---------------------------------------------------------------- values as text

T = TypeVar("T", bound=msgspec.Struct)


def json_text(data: Any, options: RenderOptions) -> str:
    """Return `data` (structs, lists, dicts) as indented JSON with one trailing newline. `ascii_only` escapes
    the characters outside of ASCII."""
    plain = round_numbers(msgspec.to_builtins(data))
    if options.ascii_only:
        import json

        return inert_json(json.dumps(plain, indent=2).encode()).decode() + "\n"
    return inert_json(msgspec.json.format(msgspec.json.encode(plain))).decode() + "\n"


def json_line(data: Any) -> str:
    """Return `data` as one line of JSON, with its line end. Characters outside of ASCII are escaped, because
    some readers take a character such as U+2028 for the end of the line."""
    import json

    text = json.dumps(round_numbers(msgspec.to_builtins(data)), separators=(",", ":"))
    return inert_json(text.encode()).decode() + "\n"


def convert(struct: msgspec.Struct, kind: type[T], **fields: Any) -> T:
    """Return a struct of type `kind`. `fields` are some of its fields, and `struct` has the others under the same
    names."""
    return kind(
        **{name: getattr(struct, name) for name in kind.__struct_fields__ if name not in fields}, **fields
    )


def round_numbers(value: Any) -> Any:
    """Return plain JSON data with every float rounded to the digits of a result file. Tuples become lists."""
    if isinstance(value, float):
        return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    if isinstance(value, dict):
        return {key: round_numbers(item) for key, item in value.items()}
    return [round_numbers(item) for item in value] if isinstance(value, list | tuple) else value


CsvValue = str | int | float | bool | tuple[str, ...] | None
_FORMULA = ("=", "+", "-", "@")


def csv_text(value: CsvValue) -> str:
    """Return a value as CSV text. None is empty, and a float has six significant digits. Blanks separate the
    items of a list. A text is one line, with an apostrophe in front if a spreadsheet would read it as a
    formula."""
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
