"""How often the intervals hold the truth: simulated sessions, and the tables of docs/statistics.md.

Run: python benchmarks/coverage.py [REPEATS] (default 1000; a minute). The same seed gives the same tables.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script, this file's own folder is there instead

from gpubench import stats

# Standard deviations between and within sessions, in percent; of the samples 3 % take twice as long.
NOISES = ((0.5, 3.0), (2.0, 2.0), (5.0, 2.0))
OUTLIERS = 0.03
SESSIONS = (2, 3, 4, 5, 6, 7, 8, 10, 12)
SAMPLES = (7, 10, 15, 30)
TRUE = 100.0


def sessions(
    draw: random.Random, k: int, n: int, between: float, within: float, true: float
) -> list[list[float]]:
    """k sessions of n samples around `true`, noise in percent."""
    found = []
    for _ in range(k):
        centre = true * (1 + draw.gauss(0, between / 100))
        found.append(
            [draw.gauss(centre, true * within / 100) * (1 + (draw.random() < OUTLIERS)) for _ in range(n)]
        )
    return found


def run_value(draw: random.Random, k: int, n: int, between: float, within: float) -> bool:
    """Whether the interval of a run value holds the truth."""
    found = stats.run_interval(sessions(draw, k, n, between, within, TRUE))
    return found.low <= TRUE <= found.high


def speedup(draw: random.Random, k: int, n: int, between: float, within: float) -> bool:
    """The same of a speedup of 3."""
    base, case = (sessions(draw, k, n, between, within, true) for true in (3 * TRUE, TRUE))
    found = stats.ratio_interval(list(zip(base, case, strict=True)))
    return found.low <= 3 <= found.high


def table(held: Callable[..., bool], repeats: int, samples: Sequence[int]) -> str:
    """A row per number of sessions, a column per number of samples; a cell has one share for each noise."""
    lines = [["sessions", *(f"{n} samples" for n in samples)], ["---"] * (len(samples) + 1)]
    for k in SESSIONS:
        cells = []
        for n in samples:
            draw = random.Random(1)
            shares = (sum(held(draw, k, n, *noise) for _ in range(repeats)) / repeats for noise in NOISES)
            cells.append(" / ".join(f"{share * 100:.0f}" for share in shares))
        lines.append([str(k), *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    print(f"Run value, {repeats} repeats, %:\n\n{table(run_value, repeats, SAMPLES)}\n")
    print(f"Speedup, {repeats // 2} repeats, %:\n\n{table(speedup, repeats // 2, (10, 30))}")


if __name__ == "__main__":
    main()
