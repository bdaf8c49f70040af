"""The time that a reader loses by following the break-evens of a result, judged by the times of
benchmarks/functions_sweep.py.

Run: python benchmarks/functions_loss.py RESULT.json SWEEP.jsonl [--markdown PAGE.md]

The script prints the table. With --markdown it replaces the table between the marks of the page instead. A cell
is a function, device and situation. Its reader takes the GPU for sizes from the printed break-even on, and the
CPU for smaller sizes. The loss at a size is (the time of the chosen device / the time of the faster one) - 1.
Below 10 % it counts as 0.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from gpubench.base.units import scale_size

STEPS, FREE = 64, 0.10
SHOWN = ("resident-waited", "transfer-always")
MARKS = "<!-- functions -->\n", "<!-- /functions -->\n"
NAMES = {"cupy": "CuPy", "torch": "PyTorch"}
Curve = dict[int, float]  # size -> seconds


class Judged(NamedTuple):
    """A cell of a report, with its true break-even and the loss of its reader."""

    op: str  # id of the function
    device_id: str  # id of the device
    regime: str  # id of the regime
    text: str  # printed text
    truth: str  # break-even by the sweep, as a text
    fastest_s: float  # seconds of a call on this device, at the largest size
    mean: float  # mean loss over the sizes
    worst: float  # largest loss


def at(curve: Curve, n: float) -> float:
    """Return the seconds at size n, by linear interpolation of ln(seconds) over ln(n)."""
    sizes = sorted(curve)
    if len(sizes) == 1:
        return curve[sizes[0]]
    low = max([m for m in sizes[:-1] if m <= n], default=sizes[0])
    high = sizes[sizes.index(low) + 1]
    share = math.log(n / low) / math.log(high / low)
    return float(curve[low] ** (1 - share) * curve[high] ** share)


def chosen_from(cell: dict[str, Any], low: float, high: float) -> float:
    """Return the smallest size at which a reader of the printed answer in `cell` chooses the GPU. Return `low` if the
    GPU always wins, and infinity if it never does. An interval counts as its geometric mean, with `low` or `high` in
    place of an open end."""
    if cell["verdict"] in ("always", "all-sizes"):
        return low
    if cell["verdict"] in ("never", "no-size") or cell.get("reason") in ("about-equal", "equal"):
        return math.inf
    return float(cell["n"] or math.sqrt((cell.get("lo") or low) * (cell.get("hi") or high)))


def judge(cell: dict[str, Any], cpu: Curve, gpu: Curve) -> Judged:
    """Compare the printed break-even of a cell with the times of the CPU and of the GPU."""
    low, high = max(min(cpu), min(gpu)), min(max(cpu), max(gpu))
    sizes = [min(low * (high / low) ** (i / STEPS), high) for i in range(STEPS + 1)] if low < high else [low]
    pairs = [(at(cpu, n), at(gpu, n)) for n in sizes]
    lost = [n for n, (cpu_s, gpu_s) in zip(sizes, pairs, strict=True) if cpu_s <= gpu_s]
    truth = "all sizes" if not lost else "> " + " ".join(scale_size(high))
    if lost and lost[-1] != sizes[-1]:
        truth = " ".join(scale_size(round(lost[-1])))
    start = chosen_from(cell, low, high)
    losses = [pair[n >= start] / min(pair) - 1 for n, pair in zip(sizes, pairs, strict=True)]
    losses = [loss if loss > FREE else 0.0 for loss in losses]
    return Judged(
        cell["op"], cell["device_id"], cell["regime"], cell["text"], truth, pairs[-1][1],
        statistics.mean(losses), max(losses),
    )  # fmt: skip


def read_times(path: str) -> dict[tuple[str, str, str], Curve]:
    """Return the curves of a sweep by function, device and situation."""
    times: dict[tuple[str, str, str], Curve] = {}
    with open(path, encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            situation = "cpu" if line["device"] == "cpu" else line["situation"]
            times.setdefault((line["op"], line["device"], situation), {})[line["n"]] = line["seconds"]
    return times


def table(cells: list[Judged], devices: dict[str, str]) -> str:
    """Return Markdown: a table with a line for each function, by its fastest library on the GPU, and a summary of all
    cells."""
    head = "| function | GPU by | waited | by hand | copied | by hand | mean loss | worst |\n|" + "---|" * 8
    lines = [head]
    for op in sorted({cell.op for cell in cells}):
        judged = [cell for cell in cells if cell.op == op]
        best = min(judged, key=lambda cell: (cell.regime != SHOWN[0], cell.fastest_s)).device_id
        shown = {cell.regime: cell for cell in judged if cell.device_id == best}
        answers = [
            text
            for regime in SHOWN
            for text in ((shown[regime].text, shown[regime].truth) if regime in shown else ("", ""))
        ]
        backend = best.partition(":")[0]
        mean, worst = statistics.mean(cell.mean for cell in judged), max(cell.worst for cell in judged)
        words = [op.partition(".")[2], NAMES.get(backend, backend), *answers, f"{mean:.1%}", f"{worst:.0%}"]
        lines.append("| " + " | ".join(words) + " |")
    over = sum(cell.worst > 0.5 for cell in cells)
    used = " and ".join(dict.fromkeys(devices[cell.device_id] for cell in cells))
    mean = statistics.mean(cell.mean for cell in cells)
    return (
        "\n".join(lines)
        + f"\n\n{used} against NumPy, float32: {len(cells)} cells (function, library, situation),"
        f" mean loss {mean:.2%}, {over} with more than 50 % at their worst size.\n"
    )


def main() -> None:
    """Judge all cells for which the sweep has times, and print or write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("result")
    parser.add_argument("sweep")
    parser.add_argument("--markdown", type=Path, metavar="PAGE.md")
    options = parser.parse_args()
    command = [sys.executable, "-m", "gpubench", "report", options.result, "--format", "json"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    times, cells = read_times(options.sweep), []
    for cell in report["break_even"]:
        cpu = times.get((cell["op"], "cpu", "cpu"))
        gpu = times.get((cell["op"], cell["device_id"], cell["regime"]))
        if cpu and gpu:
            cells.append(judge(cell, cpu, gpu))
    if not cells:
        sys.exit("no function has a threshold and a sweep")
    with open(options.result, encoding="utf-8") as file:
        devices = {device["id"]: device["name"] for device in json.load(file)["devices"]}
    text = table(cells, devices)
    if options.markdown is None:
        print(text)
        return
    page = options.markdown.read_text(encoding="utf-8")
    before, after = page.partition(MARKS[0])[0], page.partition(MARKS[1])[2]
    options.markdown.write_text(f"{before}{MARKS[0]}{text}{MARKS[1]}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
