"""False alarms and power of `gpubench compare` on simulated suites: the tables in docs/comparing.md.

Run: .venv/bin/python benchmarks/compare_power.py [SUITES] [TABLE ...] (100 suites, every table; half an hour)

TABLE is one of:

- power: base and new take turns, and one case of each suite is slower. Sessions follow noise model S of
  docs/comparing.md: low ends (the least time of a session) are log-normal, half of their variance is a
  slow drift of each case, and 3 % of the sessions are disturbed by 5 to 20 %;
- drift: no case is changed, but the whole machine becomes slower from the first session to the last. Base and
  new take turns, or base comes before new;
- speeds: the host has two speeds, and in half of the sessions all cases take 1.25 times as long;
- same: single cases with blocks and samples, of which none or a share is slower, and how often they are called
  SAME.

This is a report with a fixed seed, not a test.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterator

from gpubench.compare.comparison import APART, INTERLEAVED
from gpubench.compare.judge import SAME_ALPHA, SLOW_END, SessionValues, max_t
from gpubench.curves import stats

ALPHA = 0.05
FAMILIES, SIGMAS, SIDES, SLOWED = (12, 60), (0.02, 0.05, 0.10), (5, 10), (1.0, 1.1, 1.2, 1.5)
DRIFTS, DRIFTING = (0.0, 0.05, 0.10), 100
Side = list[list[float]]  # the logarithms of the low ends, by case and session


def sessions(chance: random.Random, sigma: float, count: int) -> list[float]:
    """Return the simulated ln(low end) of one case in each of `count` sessions, in the order of time. Their
    standard deviation is `sigma`, without disturbed sessions."""
    part = sigma * math.sqrt(0.5)
    drift, values = chance.gauss(0, part), []
    for _ in range(count):
        drift = 0.5 * drift + chance.gauss(0, part * math.sqrt(0.75))
        disturbed = math.log1p(chance.uniform(0.05, 0.20)) if chance.random() < 0.03 else 0.0
        values.append(drift + chance.gauss(0, part) + disturbed)
    return values


def slower(base: Side, new: Side, threshold: float) -> list[bool]:
    """Return, for each case of a suite, whether `compare` would judge it SLOWER at this `threshold`: the test of the
    case and the joint test are significant, and the ratio new / base of low ends is above 1 + `threshold`."""
    low = [
        ([math.exp(x) for x in before], [math.exp(x) for x in after])
        for before, after in zip(base, new, strict=True)
    ]
    return [
        max(stats.rank_test(*sides)[0], joint) <= ALPHA and stats.shift_ratio(*sides)[1] > 1 + threshold
        for (joint, _), sides in zip(max_t(base, new), low, strict=True)
    ]


def in_turns(values: list[float]) -> tuple[list[float], list[float]]:
    return values[0::2], values[1::2]


def one_after_the_other(values: list[float]) -> tuple[list[float], list[float]]:
    return values[: len(values) // 2], values[len(values) // 2 :]


def power(suites: int, chance: random.Random) -> Iterator[str]:
    """Yield the rows of the table `power`."""
    for count in FAMILIES:
        for sigma in SIGMAS:
            for side in SIDES:
                shares = []
                for slowed in SLOWED:
                    verdicts = []
                    for _ in range(suites):
                        parts = [in_turns(sessions(chance, sigma, 2 * side)) for _ in range(count)]
                        base, new = ([part[i] for part in parts] for i in (0, 1))
                        new[0] = [value + math.log(slowed) for value in new[0]]
                        verdicts.append(slower(base, new, INTERLEAVED))
                    # In an unchanged suite any hit is a false alarm; in the others the slowed case counts.
                    hits = [any(verdict) if slowed == 1.0 else verdict[0] for verdict in verdicts]
                    shares.append(f"{sum(hits) / suites:.0%}")
                yield f"| {count} | {sigma:.0%} | {side} | {' | '.join(shares)} |"


def drifting(suites: int, chance: random.Random) -> Iterator[str]:
    """Yield the rows of the table `drift`."""
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


SPEED, SPEED_CASES, SPEED_SIGMAS, SPEED_SIDES = math.log(1.25), 12, (0.02,), (5, 6, 7, 10)


def speeds(suites: int, chance: random.Random) -> Iterator[str]:
    """Yield the rows of the table `speeds`, for a host with two speeds."""
    for sigma in SPEED_SIGMAS:
        for side in SPEED_SIDES:
            shares = []
            for slowed in (1.0, 1.2):
                verdicts = []
                for _ in range(suites):
                    host = [SPEED * (chance.random() < 0.5) for _ in range(2 * side)]
                    cases = [[x + chance.gauss(0, sigma) for x in host] for _ in range(SPEED_CASES)]
                    base, new = ([in_turns(case)[i] for case in cases] for i in (0, 1))
                    new[0] = [value + math.log(slowed) for value in new[0]]
                    verdicts.append(slower(base, new, INTERLEAVED))
                hits = [any(verdict) if slowed == 1.0 else verdict[0] for verdict in verdicts]
                shares.append(f"{sum(hits) / suites:.0%}")
            yield f"| {sigma:.0%} | {side} | {' | '.join(shares)} |"


BLOCKS, SAMPLES = 4, 5
NOISES = {
    "1 / 1 / 1 %": (0.01, 0.01, 0.01),
    "1 / 5 / 2 %": (0.01, 0.05, 0.02),
    "2 / 5 / 3 %": (0.02, 0.05, 0.03),
}
MOVED = ((0.0, 1.0), (0.5, 1.1), (0.6, 1.1), (0.6, 2.0), (0.75, 1.3), (0.9, 1.1))  # (share of blocks, factor)


def a_side(
    chance: random.Random, noise: tuple[float, float, float], side: int, share: float, by: float
) -> Side:
    """Return simulated samples of one case in seconds: a list for each of `side` sessions.

    `noise` contains the standard deviations of ln(seconds) among sessions, among blocks, and among samples. A
    block takes `by` times as long with the probability `share`.
    """
    of_session, of_block, of_sample = noise
    sessions_s = []
    for _ in range(side):
        level, samples = chance.gauss(0, of_session), []
        for _ in range(BLOCKS):
            block = level + chance.gauss(0, of_block) + (math.log(by) if chance.random() < share else 0.0)
            samples += [math.exp(block + chance.gauss(0, of_sample)) for _ in range(SAMPLES)]
        sessions_s.append(samples)
    return sessions_s


def is_same(base: Side, new: Side) -> tuple[bool, bool]:
    """Return whether a case is SAME by the low ends alone, and whether it is SAME also by the medians and slow
    ends."""
    limit = 1 + INTERLEAVED
    low, _, high = stats.shift_ratio(
        [min(samples) for samples in base], [min(samples) for samples in new], SAME_ALPHA
    )
    alone = 1 / limit <= low and high <= limit
    medians, slow_ends = (
        SessionValues(*(dict(enumerate(map(value, side))) for side in (base, new)))
        for value in (block_median, lambda samples: stats.quantile(sorted(samples), SLOW_END))
    )
    return alone, alone and not medians.differ_beyond(limit) and not slow_ends.differ_beyond(limit)


def block_median(samples: list[float]) -> float:
    blocks = [samples[i : i + SAMPLES] for i in range(0, len(samples), SAMPLES)]
    return stats.median(map(stats.median, blocks))


def same(suites: int, chance: random.Random) -> Iterator[str]:
    """Yield the rows of the table `same`. Its cells are `low ends alone / with medians and slow ends`."""
    for name, noise in NOISES.items():
        for side in (5, 7, 10):
            cells = []
            for share, by in MOVED:
                pairs = [
                    is_same(a_side(chance, noise, side, 0.0, 1.0), a_side(chance, noise, side, share, by))
                    for _ in range(suites)
                ]
                cells.append(" / ".join(f"{sum(pair[i] for pair in pairs) / suites:.0%}" for i in (0, 1)))
            yield f"| {name} | {side} | {' | '.join(cells)} |"


# For each table: its headings, its seed, and the function that yields its rows.
TABLES: dict[str, tuple[tuple[str, ...], int, Callable[[int, random.Random], Iterator[str]]]] = {
    "power": (
        ("cases", "between sessions", "sessions a side", "suites with a false alarm", "+10 % found", "+20 %", "+50 %"),
        1, power,
    ),
    "drift": (
        ("drift from the first session to the last", "between sessions", "red suites in turns", "base then new"),
        2, drifting,
    ),
    "speeds": (
        ("between sessions", "sessions a side", "suites with a false alarm", "+20 % found"), 3, speeds,
    ),
    "same": (
        (
            "sessions / blocks / samples scatter by", "sessions a side", "equal",
            *(f"{share:.0%} of blocks x {by:g}" for share, by in MOVED[1:]),
        ), 4, same,
    ),
}  # fmt: skip


def main() -> None:
    counts = [int(text) for text in sys.argv[1:] if text.isdigit()]
    names = [text for text in sys.argv[1:] if not text.isdigit()] or list(TABLES)
    suites = counts[0] if counts else 100
    print(
        f"{suites} suites each, threshold {INTERLEAVED:.0%} in turns and {APART:.0%} apart, alpha {ALPHA:.0%}"
    )
    for name in names:
        headings, seed, rows = TABLES[name]
        print(f"\n| {' | '.join(headings)} |\n|{'---|' * len(headings)}")
        for line in rows(suites, random.Random(seed)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
