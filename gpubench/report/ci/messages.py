"""Messages beside the log of GitHub Actions: `::error title=...::text`, one line each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpubench.foreign_text import visible
from gpubench.report.ci.outcome import Outcome

# GitHub shows ten of each kind in a step; the tenth says how many there are.
MOST = 9
TITLE = "gpubench"


def messages(found: Outcome) -> Iterator[str]:
    """The lines, errors first, without their newlines."""
    yield from _lines("error", found.errors)
    yield from _lines("warning", found.warnings)


def _lines(kind: str, texts: Sequence[str]) -> Iterator[str]:
    for text in texts[:MOST]:
        yield f"::{kind} title={TITLE}::{escaped(text)}"
    if len(texts) > MOST:
        yield f"::{kind} title={TITLE}::and {len(texts) - MOST} more: see the report"


def escaped(text: str) -> str:
    """`text` as the runner reads it back; what it takes for a line's end is a percent code."""
    for character, code in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A")):
        text = text.replace(character, code)
    return visible(text)
