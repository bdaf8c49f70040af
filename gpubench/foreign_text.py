"""Text that others wrote (names of devices, messages of drivers), shown as it is, whatever it means to a reader."""

from __future__ import annotations

import re

# What Markdown could take for markup inside a line; "](" is the one way a bracket becomes a link, "]:" a target, and
# an underscore inside a word means nothing.
_INSIDE = re.compile(r"[\\`*~|]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|(?<=\])[(:]")
# What begins a heading, a quotation, a list or a rule at the start of a line, or of an entry of a list.
_AT_START = re.compile(r"(?P<number>\d{1,9}(?=[.)](?:\s|$)))|[#+=-]")


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
