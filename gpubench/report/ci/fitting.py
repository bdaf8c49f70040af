"""Markdown that fits into a comment or a summary: folded sections go first, the last of them before the others."""

from __future__ import annotations

import re

# As the Markdown format writes them; text inside cannot hold these tags, because it is escaped.
_FOLDED = re.compile(r"^<details>\n.*?^</details>\n\n?", re.MULTILINE | re.DOTALL)
_NOTICE = "\n**truncated**: {what} left out to stay below {limit} bytes; `gpubench report` shows all.\n"


def marked(text: str, marker: str) -> str:
    """`text` below an invisible line by which a later run finds its own comment."""
    return f"<!-- gpubench:{marker} -->\n{text}"


def fitted(text: str, limit: int) -> str:
    """`text` in at most `limit` bytes of UTF-8: without folded sections, then without its end; a notice says so.

    Empty where not even the notice fits.
    """
    if _size(text) <= limit:
        return text
    dropped = 0
    for found in reversed(list(_FOLDED.finditer(text))):
        text = text[: found.start()] + text[found.end() :]
        dropped += 1
        shortened = text.rstrip("\n") + "\n" + _notice(dropped, limit, cut=False)
        if _size(shortened) <= limit:
            return shortened
    notice = _notice(dropped, limit, cut=True)
    room = limit - _size(notice)
    if room < 0:
        return ""
    kept = text.encode()[:room].decode("utf-8", "ignore")
    return kept[: kept.rfind("\n") + 1] + notice


def _notice(dropped: int, limit: int, *, cut: bool) -> str:
    sections = f"{dropped} folded section{'s' if dropped != 1 else ''}"
    what = (
        sections if not cut else f"{sections} and the end of the report" if dropped else "the end of the report"
    )
    return _NOTICE.format(what=what, limit=limit)


def _size(text: str) -> int:
    return len(text.encode())
