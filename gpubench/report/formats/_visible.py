"""Text that only shows: nothing in it moves a cursor, changes colours, hides or reorders what follows."""

from __future__ import annotations

from typing import Any

import msgspec

from gpubench import foreign_text


def visible(part: Any) -> Any:
    """`part` (texts, cells, tables, whole documents) with a blank for each character that is not shown itself.

    Escape sequences, line ends and the marks that turn the direction of writing come from a device's name or a
    driver's message; drawing is the one place that all of them pass.
    """
    if isinstance(part, str):
        return foreign_text.visible(part)
    if isinstance(part, tuple | list):
        return tuple(visible(item) for item in part)
    if isinstance(part, msgspec.Struct):
        fields = {name: visible(getattr(part, name)) for name in part.__struct_fields__}
        return msgspec.structs.replace(part, **fields)
    return part
