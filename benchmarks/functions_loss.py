"""The loss of a reader who follows the thresholds of a result, by the times of benchmarks/functions_sweep.py.

Run: python benchmarks/functions_loss.py RESULT.json SWEEP.jsonl

The reader of a cell (function, device, situation) takes the GPU from the printed threshold on, else the CPU. The loss
at a size is what the chosen side takes longer than the faster one; less than 10 % counts as none.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from typing import Any

STEPS, FREE = 64, 0.10
Loss = tuple[float, float]  # the mean and the largest
SHOWN = {"resident-waited": "data there", "transfer-always": "copied"}


def at(curve: dict[int, float], n: float) -> float:
    """Seconds at n: on straight lines of ln(seconds) over ln(n)."""
    sizes = sorted(curve)
    low = max([m for m in sizes[:-1] if m <= n], default=sizes[0])
    high = sizes[sizes.index(low) + 1]
    share = math.log(n / low) / math.log(high / low)
    return float(curve[low] ** (1 - share) * curve[high] ** share)


def chosen_from(cell: dict[str, Any], low: float, high: float) -> float:
    """The size from which on the printed answer chooses the GPU."""
    if cell["verdict"] in ("always", "all-sizes"):
        return low
    if cell["verdict"] in ("never", "no-size") or cell.get("reason") in ("about-equal", "equal"):
        return math.inf
    return float(cell["n"] or math.sqrt((cell.get("lo") or low) * (cell.get("hi") or high)))


def main() -> None:
    """Print a line for each function, and the figures of all cells."""
    command = [sys.executable, "-m", "gpubench", "report", sys.argv[1], "--format", "json"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    times: dict[tuple[str, str, str], dict[int, float]] = {}
    with open(sys.argv[2], encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            situation = "cpu" if line["device"] == "cpu" else line["situation"]
            times.setdefault((line["op"], line["device"], situation), {})[line["n"]] = line["seconds"]
    table: dict[str, tuple[list[str], list[Loss]]] = {}
    cells: list[Loss] = []
    for cell in report["break_even"]:
        cpu = times.get((cell["op"], "cpu", "cpu"))
        gpu = times.get((cell["op"], cell["device_id"], cell["regime"]))
        if not cpu or not gpu:
            continue
        low, high = max(min(cpu), min(gpu)), min(max(cpu), max(gpu))
        sizes = [min(low * (high / low) ** (i / STEPS), high) for i in range(STEPS + 1)]
        pairs = [(at(cpu, n), at(gpu, n)) for n in sizes]
        start, lost = (
            chosen_from(cell, low, high),
            [n for n, (a, b) in zip(sizes, pairs, strict=True) if a <= b],
        )
        turn = low if not lost else math.inf if lost[-1] == sizes[-1] else lost[-1]
        losses = [pair[n >= start] / min(pair) - 1 for n, pair in zip(sizes, pairs, strict=True)]
        losses = [loss if loss > FREE else 0.0 for loss in losses]
        cells.append((statistics.mean(losses), max(losses)))
        texts, of_cells = table.setdefault(cell["op"].partition(".")[2], ([], []))
        of_cells.append(cells[-1])
        if cell["regime"] in SHOWN:
            truth = "never" if turn == math.inf else "always" if turn == low else f"{turn:.0f}"
            texts.append(
                f"{cell['device_id'].partition(':')[0]} {SHOWN[cell['regime']]}: {cell['text']} ({truth})"
            )
    print("| function | printed (by the sweep) | mean loss | worst |\n|---|---|---|---|")
    for name, (answers, of_cells) in table.items():
        mean, worst = statistics.mean(x for x, _ in of_cells), max(x for _, x in of_cells)
        print(f"| {name} | {'; '.join(answers)} | {mean:.1%} | {worst:.0%} |")
    if not cells:
        sys.exit("no function has a threshold and a sweep")
    over = sum(worst > 0.5 for _, worst in cells)
    print(f"{len(cells)} cells: mean loss {statistics.mean(x for x, _ in cells):.2%}, {over} over 50 %")


if __name__ == "__main__":
    main()
