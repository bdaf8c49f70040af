"""False alarms and power of `gpubench compare` on simulated suites: the table behind docs/comparing.md.

Run: .venv/bin/python benchmarks/compare_power.py [SUITES]. Sessions follow noise model S of measurement.md: log-normal
low ends, half of their variance slow drift, 3 % of the sessions disturbed by 5 to 20 %; five sessions a side in turns,
one case of each suite slowed. A report with a fixed seed, not a test; 500 suites take about twelve minutes.
"""

from __future__ import annotations

import math
import random
import sys

from gpubench import stats
from gpubench.report.compare.max_t import max_t

ALPHA, THRESHOLD, SESSIONS = 0.05, 0.05, 5
FAMILIES, SIGMAS, SLOWED = (12, 60, 150), (0.02, 0.03), (1.0, 1.1, 1.2)


def sessions(chance: random.Random, sigma: float, slowed: float) -> tuple[list[float], list[float]]:
    """Logarithms of one case's low ends on both sides, taking turns."""
    part = sigma * math.sqrt(0.5)
    drift, values = chance.gauss(0, part), []
    for _ in range(2 * SESSIONS):
        drift = 0.5 * drift + chance.gauss(0, part * math.sqrt(0.75))
        disturbed = math.log1p(chance.uniform(0.05, 0.20)) if chance.random() < 0.03 else 0.0
        values.append(drift + chance.gauss(0, part) + disturbed)
    return values[0::2], [value + math.log(slowed) for value in values[1::2]]


def slower(base: list[list[float]], new: list[list[float]]) -> list[bool]:
    """Which cases are called SLOWER, as the command does it for a family of this size."""
    found = []
    for ours, theirs, (adjusted, _) in zip(base, new, max_t(base, new), strict=True):
        low_base, low_new = [math.exp(x) for x in ours], [math.exp(x) for x in theirs]
        p, _ = stats.rank_test(low_base, low_new)
        ratio = stats.shift_ratio(low_base, low_new)[1]
        found.append(max(p, adjusted) <= ALPHA and ratio > 1 + THRESHOLD)
    return found


def main() -> None:
    suites = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    chance = random.Random(1)
    print(
        f"{suites} suites each, {SESSIONS} sessions a side in turns, threshold {THRESHOLD:.0%}, alpha {ALPHA:.0%}"
    )
    print("cases  noise  slowed by  found  suites with a false alarm")
    for count in FAMILIES:
        for sigma in SIGMAS:
            for slowed in SLOWED:
                hits = alarms = 0
                for _ in range(suites):
                    first = sessions(chance, sigma, slowed)
                    rest = [sessions(chance, sigma, 1.0) for _ in range(count - 1)]
                    verdicts = slower([first[0], *(b for b, _ in rest)], [first[1], *(n for _, n in rest)])
                    hits += verdicts[0]
                    # An unchanged first case is one more chance of a false alarm.
                    alarms += any(verdicts if slowed == 1.0 else verdicts[1:])
                share = "    -" if slowed == 1.0 else f"{hits / suites:5.0%}"
                print(f"{count:5}  {sigma:5.0%}  {slowed - 1:9.0%}  {share}  {alarms / suites:25.1%}")


if __name__ == "__main__":
    main()
