"""Feed 100,000 damaged documents, machine trees and command lines to gpubench, and print the outcomes as a
table.

Run: `python benchmarks/fuzz.py [--count N] [--seed N]`. The table is for docs/reliability.md. Every failure is
printed with its kind and its seed, which reproduce it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.faults import fuzzer


def main() -> int:
    """Print the table on stdout and the failures on stderr. Return 1 if there are failures, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    options = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    slowest: dict[str, float] = {}
    failures = 0
    began = time.monotonic()
    with multiprocessing.Pool(options.processes, _start) as pool:
        for attempt in pool.imap_unordered(_attempt, fuzzer.inputs(options.count, options.seed), chunksize=100):
            counts[attempt.kind, attempt.outcome] += 1
            slowest[attempt.kind] = max(slowest.get(attempt.kind, 0.0), attempt.took_s)
            if attempt.outcome == "failed":
                failures += 1
                print(f"{attempt.kind}, seed {attempt.seed}: {attempt.why}", file=sys.stderr, flush=True)
    print(table(counts, slowest))
    print(
        f"\nSeeds {options.seed} to {options.seed + options.count - 1}, {time.monotonic() - began:.0f} s "
        f"on {options.processes} CPUs."
    )
    return 1 if failures else 0


def table(counts: Counter[tuple[str, str]], slowest: dict[str, float]) -> str:
    """Return a Markdown table of the outcomes, with a row for each kind of input and a row for all kinds.
    `counts` has the number of inputs by (kind, outcome), and `slowest` the most seconds of an input by kind."""
    outcomes = ("reported", "refused", "failed")
    lines = ["| input | tried | reported | refused | failed | slowest |", "|---|---|---|---|---|---|"]
    for kind in fuzzer.KINDS:
        totals = [counts[kind, outcome] for outcome in outcomes]
        if sum(totals):
            lines.append(_row(kind, totals, slowest[kind]))
    every = [
        sum(count for (_, reported), count in counts.items() if reported == outcome) for outcome in outcomes
    ]
    return "\n".join([*lines, _row("**all**", every, max(slowest.values()))])


def _row(name: str, totals: list[int], slowest_s: float) -> str:
    numbers = " | ".join(f"{number:,}" for number in (sum(totals), *totals))
    return f"| {name} | {numbers} | {slowest_s:.1f} s |"


_folder = Path()  # the scratch folder of this process


def _start() -> None:
    global _folder
    _folder = Path(tempfile.mkdtemp(prefix="fuzz-"))


def _attempt(item: tuple[str, int]) -> fuzzer.Tried:
    return fuzzer.attempt(*item, _folder)


if __name__ == "__main__":
    sys.exit(main())
