"""Count the cases of each op whose time breakdown adds up to the time of the copying call within 10 %.

Run: .venv/bin/python benchmarks/parts.py FILE...
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

from gpubench.analysis.estimate import TimeBreakdown, case_results
from gpubench.curves.stats import median
from gpubench.result import store

WANTED = 0.10


def found_in(files: list[str]) -> dict[tuple[str, str], list[TimeBreakdown]]:
    """Return the time breakdowns of all cases that have one, by backend and op."""
    groups: dict[tuple[str, str], list[TimeBreakdown]] = defaultdict(list)
    for file in files:
        for case in case_results(store.load(Path(file))):
            if case.time_breakdown is not None:
                groups[case.case.backend, case.case.op].append(case.time_breakdown)
    return groups


def line(name: str, rows: list[TimeBreakdown]) -> str:
    """Return a line with the number of cases whose parts add up, the number of all cases, and the median unexplained
    share."""
    explained = sum(abs(breakdown.residual_share) <= WANTED for breakdown in rows)
    rest = median([breakdown.residual_share for breakdown in rows])
    return f"{name:24}{explained:>4} of {len(rows):<4}{explained / len(rows):>5.0%}   middle rest {rest:+.0%}"


def main(files: list[str]) -> None:
    """Print a line for each backend and op, and a line for all of them."""
    groups = found_in(files)
    for (backend, op), rows in sorted(groups.items()):
        print(line(f"{backend} {op}", rows))
    if groups:
        print(line("all", [breakdown for rows in groups.values() for breakdown in rows]))


if __name__ == "__main__":
    main(sys.argv[1:])
