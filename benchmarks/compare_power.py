"""False alarms and power of `gpubench compare` on simulated suites: the tables behind docs/comparing.md.

Run: .venv/bin/python benchmarks/compare_power.py [SUITES] (100; some fifteen minutes). Sessions follow noise model S of
docs/comparing.md: log-normal low ends, half of their variance slow drift of each case, 3 % of the sessions disturbed by
5 to 20 %. First table: both sides in turns, one case of each suite slowed. Second table: nothing is slowed, but the
machine becomes slower from the first session to the last, for all cases alike; base and new in turns, and base before
new. A report with a fixed seed, not a test.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator

from gpubench import stats
from gpubench.analysis.comparison import APART, INTERLEAVED
from gpubench.analysis.judge import BH_ROOM, max_t

ALPHA = 0.05
FAMILIES, SIGMAS, SIDES, SLOWED = (12, 60), (0.02, 0.05, 0.10), (5, 10), (1.0, 1.1, 1.2, 1.5)
DRIFTS, DRIFTING = (0.0, 0.05, 0.10), 100
Side = list[list[float]]  # the logarithms of the low ends, by case and session


def sessions(chance: random.Random, sigma: float, count: int) -> list[float]:
    """Logarithms of one case's low ends in so many sessions, in the order of time."""
    part = sigma * math.sqrt(0.5)
    drift, values = chance.gauss(0, part), []
    for _ in range(count):
        drift = 0.5 * drift + chance.gauss(0, part * math.sqrt(0.75))
        disturbed = math.log1p(chance.uniform(0.05, 0.20)) if chance.random() < 0.03 else 0.0
        values.append(drift + chance.gauss(0, part) + disturbed)
    return values


def slower(base: Side, new: Side, threshold: float) -> list[bool]:
    """Which cases are called SLOWER, as the command does it for a family of this size."""
    low = [
        ([math.exp(x) for x in ours], [math.exp(x) for x in theirs])
        for ours, theirs in zip(base, new, strict=True)
    ]
    raw = [stats.rank_test(ours, theirs)[0] for ours, theirs in low]
    if BH_ROOM * stats.smallest_p(len(base[0]), len(new[0])) <= ALPHA / len(base):
        adjusted = stats.benjamini_hochberg(raw)
    else:
        adjusted = [slow for slow, _ in max_t(base, new)]
    return [
        max(p, joint) <= ALPHA and stats.shift_ratio(*sides)[1] > 1 + threshold
        for p, joint, sides in zip(raw, adjusted, low, strict=True)
    ]


def in_turns(values: list[float]) -> tuple[list[float], list[float]]:
    return values[0::2], values[1::2]


def one_after_the_other(values: list[float]) -> tuple[list[float], list[float]]:
    return values[: len(values) // 2], values[len(values) // 2 :]


def power(suites: int, chance: random.Random) -> Iterator[str]:
    """Rows of the first table."""
    for count in FAMILIES:
        for sigma in SIGMAS:
            for side in SIDES:
                found = []
                for slowed in SLOWED:
                    verdicts = []
                    for _ in range(suites):
                        parts = [in_turns(sessions(chance, sigma, 2 * side)) for _ in range(count)]
                        base, new = ([part[i] for part in parts] for i in (0, 1))
                        new[0] = [value + math.log(slowed) for value in new[0]]
                        verdicts.append(slower(base, new, INTERLEAVED))
                    # An unchanged suite tells of false alarms, the others of the slowed case.
                    hits = [any(row) if slowed == 1.0 else row[0] for row in verdicts]
                    found.append(f"{sum(hits) / suites:.0%}")
                yield f"| {count} | {sigma:.0%} | {side} | {' | '.join(found)} |"


def drifting(suites: int, chance: random.Random) -> Iterator[str]:
    """Rows of the second table."""
    for drift in DRIFTS:
        for sigma in SIGMAS:
            shares = []
            for split, threshold in ((in_turns, INTERLEAVED), (one_after_the_other, APART)):
                red = 0
                for _ in range(suites):
                    steps = [math.log1p(drift) * i / 9 for i in range(10)]
                    parts = [
                        split([x + step for x, step in zip(sessions(chance, sigma, 10), steps, strict=True)])
                        for _ in range(DRIFTING)
                    ]
                    red += any(slower([base for base, _ in parts], [new for _, new in parts], threshold))
                shares.append(f"{red / suites:.0%}")
            yield f"| {drift:.0%} | {sigma:.0%} | {' | '.join(shares)} |"


def main() -> None:
    suites = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    print(
        f"{suites} suites each, threshold {INTERLEAVED:.0%} in turns and {APART:.0%} apart, alpha {ALPHA:.0%}\n"
    )
    print(
        "| cases | between sessions | sessions a side | suites with a false alarm | +10 % found | +20 % | +50 % |"
    )
    print("|---|---|---|---|---|---|---|")
    for line in power(suites, random.Random(1)):
        print(line, flush=True)
    print(
        "\n| drift from the first session to the last | between sessions | red suites in turns | base then new |"
    )
    print("|---|---|---|---|")
    for line in drifting(suites, random.Random(2)):
        print(line, flush=True)


if __name__ == "__main__":
    main()
