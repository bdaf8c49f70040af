"""Did you mean ...? for every name that a user can mistype."""

from __future__ import annotations

from collections.abc import Iterable

from gpubench.errors import UsageError


def suggest(word: str, names: Iterable[str]) -> str:
    """`did you mean 'matmul'?`, or an empty text when nothing is near."""
    from difflib import get_close_matches

    lowered = {name.lower(): name for name in names}
    near = get_close_matches(word.lower(), lowered, n=1, cutoff=0.6)
    return f"did you mean {lowered[near[0]]!r}?" if near else ""


def require_choice(word: str, names: Iterable[str], what: str) -> str:
    """`word` if it is one of `names`. Raises UsageError; `what` says what it is, such as "--format"."""
    allowed = list(names)
    if word in allowed:
        return word
    raise UsageError(
        "unknown-value",
        f"{what}: there is no {word!r}",
        why="possible: " + ", ".join(allowed),
        hint=suggest(word, allowed) or f"take one of these for {what}",
    )
