"""Text by the columns that it takes on a terminal, where an East Asian character or an emoji takes two."""

from __future__ import annotations

import textwrap
import unicodedata

# Stands before a character of two columns while text is laid out: its length is then what it takes. No printable
# text holds one.
_SECOND = "\0"
NARROWEST_WRAP = 20


def columns(text: str) -> int:
    """The columns that `text` takes."""
    return len(text) if text.isascii() else len(_widened(text))


def filled(text: str, width: int, indent: str = "  ") -> list[str]:
    """`text` in lines of at most `width` columns, all but the first behind `indent`."""
    # A line may end between a character and what stands before it for its second column: one is kept free for that.
    room = max(width, NARROWEST_WRAP) - (not text.isascii())
    lines = textwrap.wrap(_widened(text), room, subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace(_SECOND, "") for line in lines] or [""]


def cut(text: str, width: int) -> str:
    """`text` itself, or its beginning and three dots in `width` columns."""
    if columns(text) <= width:
        return text
    return _widened(text)[: width - 3].replace(_SECOND, "") + "..."


def padded(text: str, width: int, *, right: bool = False) -> str:
    """`text` with blanks behind it, or before it, to `width` columns."""
    blanks = " " * (width - columns(text))
    return blanks + text if right else text + blanks


def _widened(text: str) -> str:
    if text.isascii():
        return text
    return "".join(_SECOND + c if unicodedata.east_asian_width(c) in "WF" else c for c in text)
