"""How many examples a property is tried with."""

from __future__ import annotations

from hypothesis import settings

USUAL = 100  # of the profile of `make test`


def examples(number: int) -> int:
    """`number` in `make test`; in `make check`, whose profile has fewer than usual, as small a share of it."""
    return -(-number * settings().max_examples // USUAL)
