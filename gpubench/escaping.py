"""Text that others wrote (names of devices, messages of drivers), shown as it is, whatever it means to a reader."""

from __future__ import annotations

import re

# What Markdown could take for markup inside a line; "](" is the one way a bracket becomes a link, "]:" a target, and
# an underscore inside a word means nothing.
_INSIDE = re.compile(r"[\\`*~|]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|(?<=\])[(:]")
# What begins a heading, a quotation, a list or a rule at the start of a line, or of an entry of a list.
_AT_START = re.compile(r"(?P<number>\d{1,9}(?=[.)](?:\s|$)))|[#+=-]")

# Marks that turn the direction of what stands around them, and so make a text look like another one.
_TURNING = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_TURNED = re.compile(b"|".join(mark.encode() for mark in _TURNING))


def json_in_order(text: bytes) -> bytes:
    """A JSON text in UTF-8 with marks that turn the direction as escapes: it shows in its order, and its values stay.

    All JSON that gpubench writes passes here.
    """
    return _TURNED.sub(lambda mark: f"\\u{ord(mark[0].decode()):04x}".encode(), text)


def visible(text: str) -> str:
    """`text` with a blank for what is not shown itself: escape codes, line ends, marks that turn the direction."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def escaped(text: str) -> str:
    """`text`, a line or a part of one, so that GitHub shows exactly it: HTML as entities, the rest with a backslash."""
    import html

    found = _INSIDE.sub(lambda mark: "\\" + mark[0], html.escape(text, quote=False))
    return _AT_START.sub(_harmless, found, count=1) if _AT_START.match(found) else found


def _harmless(mark: re.Match[str]) -> str:
    return f"{mark[0]}\\" if mark["number"] else f"\\{mark[0]}"


# Stands before a character of two columns while text is laid out: its length is then what it takes. No printable
# text holds one.
_SECOND = "\0"
NARROWEST_WRAP = 20


def columns(text: str) -> int:
    return len(text) if text.isascii() else len(_widened(text))


def filled(text: str, width: int, indent: str = "  ") -> list[str]:
    """`text` in lines of at most `width` columns, all but the first behind `indent`."""
    # A line may end between a character and what stands before it for its second column: one is kept free for that.
    room = max(width, NARROWEST_WRAP) - (not text.isascii())
    import textwrap

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
    import unicodedata

    return "".join(_SECOND + c if unicodedata.east_asian_width(c) in "WF" else c for c in text)


def printable(text: str) -> str:
    """One line without control characters or marks that reorder what follows them."""
    return " ".join(visible(text).split())


def wrapped(text: str, width: int) -> str:
    """`text` in lines of at most `width` columns, all but the first indented."""
    return "\n".join(filled(text, width))


def shortened(text: str, length: int = 40) -> str:
    """`text` on one line, cut to `length` columns: a name must not push a table off the page."""
    return cut(printable(text), length)
