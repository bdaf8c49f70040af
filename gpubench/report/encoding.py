"""Values as JSON and CSV text: floats with six significant digits, nothing that a spreadsheet takes for a formula."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from gpubench.foreign_text import json_in_order, printable
from gpubench.report.layout import RenderOptions

SIGNIFICANT_DIGITS = 6
T = TypeVar("T", bound=msgspec.Struct)


def json_text(data: Any, options: RenderOptions) -> str:
    """`data` (structs, lists, dicts) indented, with one trailing newline; `ascii_only` changes no value."""
    plain = rounded(msgspec.to_builtins(data))
    if options.ascii_only:
        import json

        return json.dumps(plain, indent=2) + "\n"
    return json_in_order(msgspec.json.format(msgspec.json.encode(plain))).decode() + "\n"


def json_line(data: Any) -> str:
    """`data` on one line, in ASCII: U+2028 and its like would end a line for some readers."""
    import json

    return json.dumps(rounded(msgspec.to_builtins(data)), separators=(",", ":")) + "\n"


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
DIGITS = 6
_FORMULA = ("=", "+", "-", "@")


def cell(value: CsvValue) -> str:
    """Null is empty, a float has six significant digits, a list is separated by blanks, a text is one line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.{DIGITS}g}"
    if isinstance(value, int):
        return str(value)
    text = printable(value if isinstance(value, str) else " ".join(value))
    return f"'{text}" if text.startswith(_FORMULA) else text
