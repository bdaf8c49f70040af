"""Ways to put sessions that measured the same on two sides that take turns (measurement.md, section 13)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

# Half of the ways to label k pairs, as the other half are their mirror images: all up to k = 8, of more a sample.
MOST_HALVES = 128


class Labelling(NamedTuple):
    """The sessions of two sides: of each pair of consecutive sessions one went to each."""

    base: tuple[int, ...]
    new: tuple[int, ...]


def windows(sessions: Sequence[int], k: int) -> list[tuple[tuple[int, int], ...]]:
    """Every stretch of k consecutive pairs; `sessions` are in order of time, an odd last one is left out."""
    pairs = list(zip(sessions[0::2], sessions[1::2], strict=False))
    return [tuple(pairs[i : i + k]) for i in range(len(pairs) - k + 1)]


def labellings(pairs: Sequence[tuple[int, int]]) -> Iterator[Labelling]:
    """The ways to put one session of each pair on each side, one of every two mirror images."""
    free = len(pairs) - 1
    if 2**free <= MOST_HALVES:
        flips = list(itertools.product((False, True), repeat=free))
    else:
        import random

        draw = random.Random(free)  # the same for every file
        flips = [tuple(draw.random() < 0.5 for _ in range(free)) for _ in range(MOST_HALVES)]
    for chosen in flips:
        sides = [(b, a) if flip else (a, b) for (a, b), flip in zip(pairs, (False, *chosen), strict=True)]
        yield Labelling(tuple(a for a, _ in sides), tuple(b for _, b in sides))
