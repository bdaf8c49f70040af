"""The joint permutation correction over a family of cases that were measured in the same sessions (max-T)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

# All ways to put sessions on two sides up to this many; of more, so many are drawn.
MAX_RELABELLINGS = 2000
# A case that barely varies must not outrank all others by its tiny deviation.
QUIET_DEVIATION = 0.01


def max_t(base: Sequence[Sequence[float]], new: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Joint permutation correction over a family: per case (p that `new` is larger, p that it is smaller), adjusted.

    `base` and `new` hold the logarithms of each case in each session, all cases in the same sessions, at least three
    a side. p = share of relabellings of whole sessions whose largest T over the family reaches the case's T
    (Westfall and Young 1993). Above MAX_RELABELLINGS a fixed sample of them is drawn.
    """
    columns = sorted(
        [(values, False) for values in zip(*base, strict=True)]
        + [(values, True) for values in zip(*new, strict=True)]
    )
    observed = tuple(i for i, (_, is_new) in enumerate(columns) if is_new)
    sides = _relabellings(len(columns), observed)
    largest, smallest, seen = [-math.inf] * len(sides), [math.inf] * len(sides), []
    for case in zip(*(values for values, _ in columns), strict=True):
        centre = math.fsum(case) / len(case)
        row = [value - centre for value in case]
        found = [_trimmed_t([row[i] for i in ours], [row[i] for i in theirs]) for theirs, ours in sides]
        largest = list(map(max, largest, found))
        smallest = list(map(min, smallest, found))
        seen.append(found[0])
    close = 1e-9
    return [
        (
            sum(1 for most in largest if most >= t - close) / len(sides),
            sum(1 for least in smallest if least <= t + close) / len(sides),
        )
        for t in seen
    ]


def _relabellings(count: int, observed: tuple[int, ...]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Ways to split `count` sessions into (base, new), the observed one first."""
    k = len(observed)
    chosen: Iterable[tuple[int, ...]] = itertools.combinations(range(count), k)
    if math.comb(count, k) > MAX_RELABELLINGS:
        import random

        draw = random.Random(k * count)  # the same for every family, so that equal files give equal answers
        chosen = [tuple(sorted(draw.sample(range(count), k))) for _ in range(MAX_RELABELLINGS)]
        if (
            2 * k == count
        ):  # with each its mirror image: "faster" and "slower" stay alike when the files change places
            half = [observed, *chosen[: MAX_RELABELLINGS // 2]]
            chosen = [*half, *(_rest(count, one) for one in half)]
    splits = [observed, *(one for one in chosen if one != observed)]
    return [(_rest(count, one), one) for one in splits]


def _rest(count: int, chosen: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(i for i in range(count) if i not in chosen)


def _trimmed_t(new: Sequence[float], base: Sequence[float]) -> float:
    """Difference of the means, each side without its slowest session, over the pooled deviation."""
    mean_new, squares_new = _trimmed(new)
    mean_base, squares_base = _trimmed(base)
    deviation = math.sqrt((squares_new + squares_base) / (len(new) + len(base) - 4))
    return (mean_new - mean_base) / (deviation + QUIET_DEVIATION)


def _trimmed(values: Sequence[float]) -> tuple[float, float]:
    top, count = max(values), len(values) - 1
    mean = (sum(values) - top) / count
    return mean, max(0.0, sum(value * value for value in values) - top * top - count * mean * mean)
