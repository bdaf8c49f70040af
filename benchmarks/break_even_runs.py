"""Does `gpubench run` find the break-even, and does its interval hold it? The whole program on scripted devices.

Run: .venv/bin/python benchmarks/break_even_runs.py [REPEATS] (default 20; some ten seconds for each, and noise). What
benchmarks/break_even.py asks of the functions, this asks of the program: command lines, worker processes, budget and
result files. The devices are `fake:cpu` and `fake:gpu`, whose clock is scripted: each sample is log-normal, outliers
take 1.5 to 5 times as long. Data is resident: a call that copies is a sum of many such costs, whose outliers add up
to another true N. The true N is that of a run without noise at sizes a few percent apart. Timings: as the search
counts them (docs/breakeven.md), both sides together.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from gpubench import stats
from gpubench.measure.curves import GRID_TIMINGS

NOISES = ((0.02, 0.0), (0.10, 0.02), (0.20, 0.05))  # deviation of the logarithm, share of outliers
# Where the curves cross: the CPU at 40 GB/s or 800 GFLOP/s against a GPU with 10 us of overhead.
AROUND = {"add": range(12_000, 24_000, 250), "gemv": range(160, 400, 4), "matmul": range(96, 192, 2)}


class Found(NamedTuple):
    """One curve of one run: its row of the report, and the timings that it took."""

    row: dict[str, Any]
    timings: int


def measure(
    folder: Path, *options: str, noise: tuple[float, float], seed: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The report of a run, and its result."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GPUBENCH_")}
    scripted = {"NOISE": str(noise[0]), "OUTLIERS": str(noise[1]), "SEED": str(seed)}
    command = [
        sys.executable, "-m", "gpubench", "run", "--devices", "fake:cpu,fake:gpu", "--regimes", "resident-queued",
        "--sessions", "1", "--format", "json", "--no-progress", "--no-config", *options,
    ]  # fmt: skip
    subprocess.run(
        [*command, "-o", "result.json"], cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env={**kept, **{f"GPUBENCH_FAKE_{name}": value for name, value in scripted.items()}},
    )  # fmt: skip
    told = subprocess.run(
        [sys.executable, "-m", "gpubench", "report", "result.json", "--format", "json"], cwd=folder, check=True,
        capture_output=True,
    )  # fmt: skip
    return json.loads(told.stdout), json.loads((folder / "result.json").read_bytes())


def curves(folder: Path, noise: tuple[float, float], seed: int) -> dict[str, Found]:
    """What a search finds, by op."""
    report, result = measure(folder, "--ops", ",".join(AROUND), noise=noise, seed=seed)
    return {row["op"]: Found(row, timings(result, row["op"])) for row in report["break_even"]}


def timings(result: dict[str, Any], op: str) -> int:
    """Of both sides; a size of the plan counts with five a side."""
    total = 0
    for outcome in result["outcomes"]:
        if outcome["type"] == "measurement" and outcome["case"]["op"] == op:
            counts = dict.fromkeys(("main", "search", "estimate"), 0)
            for block in outcome["blocks"]:
                counts[block.get("phase", "main")] += len(block["wall_s"]) - block.get("warmup", 0)
            total += min(counts["main"], GRID_TIMINGS) + counts["search"] + counts["estimate"]
    return total


def truth(folder: Path, op: str) -> float:
    """The size at which both sides take the same time."""
    options = [
        "--ops",
        op,
        "--sizes",
        ",".join(map(str, AROUND[op])),
        "--min-samples",
        "3",
        "--max-samples",
        "3",
    ]
    report, _ = measure(folder, *options, "--max-time", "50ms", noise=(0.0, 0.0), seed=0)
    (row,) = report["break_even"]
    assert row["verdict"] == "at", row
    return float(row["n"])


def line(op: str, true: float, noise: tuple[float, float], found: Iterable[Found]) -> str:
    """One row: reported / true N, how often the interval holds the truth, how often there is no answer."""
    known = list(found)
    answers = [one.row for one in known if one.row["verdict"] == "at"]
    ratios = sorted(row["n"] / true for row in answers)
    middle = " / ".join(f"{stats.quantile(ratios, q):.3f}" for q in (0.05, 0.5, 0.95)) if ratios else "-"
    covered = sum(row["lo"] <= true <= row["hi"] for row in answers)
    share = f"{covered} of {len(answers)}"
    noisy = f"{100 * noise[0]:.0f} % + {100 * noise[1]:.0f} %"
    return (
        f"| {op} ({true:.0f}) | {noisy} | {middle} | {share} | {len(known) - len(answers)} | "
        f"{max((one.timings for one in known), default=0)} |"
    )


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    print(
        "| curve (true N) | noise + outliers | reported / true, 5 / 50 / 95 % | covered | no answer | timings |"
    )
    print("|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        true = {op: truth(folder, op) for op in AROUND}
        for noise in NOISES:
            runs = [curves(folder, noise, seed) for seed in range(1, repeats + 1)]
            for op in AROUND:
                print(line(op, true[op], noise, [run[op] for run in runs if op in run]), flush=True)


if __name__ == "__main__":
    main()
