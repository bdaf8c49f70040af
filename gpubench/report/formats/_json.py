"""Any data as JSON text: indented or as one line, floats with six significant digits."""

from __future__ import annotations

from typing import Any

import msgspec

from gpubench.report.formats._options import RenderOptions

SIGNIFICANT_DIGITS = 6


def json_text(data: Any, options: RenderOptions) -> str:
    """`data` (structs, lists, dicts) indented, with one trailing newline; `ascii_only` changes no value."""
    plain = rounded(msgspec.to_builtins(data))
    if options.ascii_only:
        import json

        return json.dumps(plain, indent=2) + "\n"
    return msgspec.json.format(msgspec.json.encode(plain)).decode() + "\n"


def json_line(data: Any) -> str:
    """`data` on one line, in ASCII: U+2028 and its like would end a line for some readers."""
    import json

    return json.dumps(rounded(msgspec.to_builtins(data)), separators=(",", ":")) + "\n"


def rounded(value: Any) -> Any:
    """`value` with every float cut to the digits that a result file has."""
    if isinstance(value, float):
        return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list | tuple) else value
