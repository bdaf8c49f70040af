"""Crossings of timings that never change, in all ways that an interval is made: `python -m tests.golden` writes them
anew. That the intervals hold the truth is tested by simulation; here no digit of them changes unseen."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from gpubench import break_even, stats
from gpubench.stats import Prior

PATH = Path(__file__).with_name("crossing_figures.json")
TRUTH = 1000.0
SIZES = (130, 300, 480, 790, 900, 1450, 2400, 5200)
PRIORS = {"usual": stats.BOTH_USUAL, "apart": (Prior(0.02, 0.01), Prior(0.2, 0.07)), "none": None}
# ln(ratio) over ln(n / TRUTH).
CURVES: dict[str, Callable[[float], float]] = {
    "straight": lambda a: 0.9 * a, "flat": lambda a: 0.1 * a, "steep after": lambda a: (0.4 if a < 0 else 1.6) * a,
    "steep before": lambda a: (1.6 if a < 0 else 0.4) * a, "step": lambda a: 0.8 * a + (0.15 if a > 0.2 else -0.1),
    "bump": lambda a: 0.9 * a + 0.25 * math.sin(9 * a), "low": lambda a: 0.9 * (a + 1.4), "high": lambda a: 0.9 * (a - 1.4),
}  # fmt: skip
NOISES = {"exact": (0.0, 0.0), "calm": (0.004, 0.002), "blocks": (0.06, 0.0), "sessions": (0.01, 0.08)}


def timings(curve: str, noise: str, sessions: int, blocks: int) -> break_even.Timings:
    """The last session lacks the smallest size; the second size has a block more and one that took three times as long."""
    draw = random.Random(f"{curve} {noise} {sessions} {blocks}")
    within, between = NOISES[noise]
    shifts = [(draw.gauss(0, between), draw.gauss(0, between)) for _ in range(sessions)]
    found: dict[int, dict[int, break_even.Sides]] = {}
    for place, n in enumerate(SIZES):
        heights = CURVES[curve](math.log(n / TRUTH)), 0.0
        row = {}
        for i in range(sessions):
            base, case = (
                [math.exp(height + shift + draw.gauss(0, within)) * 1e-3 for _ in range(blocks + (place == 1))]
                for height, shift in zip(heights, shifts[i], strict=True)
            )
            if place == 1 and blocks > 3:
                base[-1] *= 3
            if place or i < max(sessions - 1, 1):
                row[i] = (base, case)
        found[n] = row
    return found


def _digits(value: float | None) -> str | None:
    return None if value is None else f"{value:.9g}"


def figures() -> dict[str, list[str | None] | None]:
    """By the words of each set of timings: n, low, high and apart of both ways, and the slope."""
    return dict(_figures())


def _figures() -> Iterator[tuple[str, list[str | None] | None]]:
    counts = ((1, 1), (1, 4), (2, 2), (3, 4), (6, 3))
    every = itertools.product(CURVES, NOISES, counts, PRIORS.items())
    for curve, noise, (sessions, blocks), (name, priors) in itertools.islice(
        every, 0, None, 2
    ):  # half of them do
        given = timings(curve, noise, sessions, blocks)
        words = f"{curve}, {noise}, {sessions} sessions of {blocks}, prior {name}"
        line = break_even.crossing(given, priors)
        yield f"{words}: line", line and [*map(_digits, line)]
        local = break_even.local_crossing(given, priors)
        near = local and [_digits(local.slope), *map(_digits, local.crossing or ())]
        yield f"{words}: local", near
    yield from ((f"exceeded by a tenth: {n}", [_digits(break_even.exceeded_by_a_tenth(n))]) for n in (1, 2, 9))


def write() -> None:
    lines = (f"{json.dumps(words)}: {json.dumps(found)}" for words, found in figures().items())
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8", newline="\n")
