"""Long lists in few words."""

from __future__ import annotations

from collections.abc import Sequence


def first_few(texts: Sequence[str], most: int, *, between: str = ", ") -> str:
    """The first `most` texts, and how many there are besides: `a, b and 3 more`."""
    rest = len(texts) - most
    return between.join(texts[:most]) + (f" and {rest} more" if rest > 0 else "")
