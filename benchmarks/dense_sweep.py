"""Compare the break-even and the time of a search with those of a dense sweep.

Run: .venv/bin/python benchmarks/dense_sweep.py [--devices numpy:0,cupy:0] [--curves OP/REGIME,...] [--out DIR]

For each curve, `gpubench run` searches within its budget. A separate run then measures the same two
implementations at every 1/64 octave around the break-even that the search found. The break-even of the sweep
comes from curves through all its sizes. The table shows whether it lies inside the interval of the search, and
the time of both. The exit code is always 0.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from gpubench import curves, kernels
from gpubench.curves import stats
from gpubench.measure import points
from gpubench.measure.plan import Series
from gpubench.result import store
from gpubench.result.run import Measurement, Run

STEPS = 64  # sizes for each octave
CURVES = "matmul/resident-waited,matmul/transfer-always,add/transfer-always"
COMMAND = [sys.executable, "-m", "gpubench"]
# The options of the sweep. Few samples are enough for a median, because there are many sizes.
SWEEP = ("--quick", "--min-samples", "5", "--max-samples", "5", "--sessions", "1", "--no-autotune")


class Found(NamedTuple):
    """A break-even that a search found."""

    op: str  # name of the op
    regime: str  # id of the regime
    n: float  # size of the break-even
    low: float  # lower end of its interval
    high: float  # upper end of its interval
    implementations: tuple[str, str]  # implementations of the CPU and of the device
    seconds: float  # seconds of the search


def main() -> None:
    options = _options()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    regimes_of: dict[str, list[str]] = {}
    for word in options.curves.split(","):
        op, _, regime = word.partition("/")
        regimes_of.setdefault(op, []).append(regime)
    rows = []
    for op, regimes in regimes_of.items():
        for crossing in search(op, regimes, options, out):
            rows.append(row(crossing, *sweep(crossing, options, out)))
            print(rows[-1], file=sys.stderr, flush=True)
    print("| curve | search: n [low, high] | dense: n [low, high] | last change of side | inside | search | sweep |"
          " share | of the whole ladder |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|")
    print("\n".join(rows))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", default="numpy:0,cupy:0")
    parser.add_argument("--curves", default=CURVES, help="OP/REGIME,...")
    parser.add_argument("--sessions", default="5")
    parser.add_argument("--budget", default="20s", help="of a search, for all regimes of one op")
    parser.add_argument("--octaves", type=float, default=0.5, help="how far the sweep goes, to either side")
    parser.add_argument("--out", default="dense-sweep", help="folder for the result files")
    return parser.parse_args()


def search(op: str, regimes: list[str], options: argparse.Namespace, out: Path) -> list[Found]:
    """Return the break-evens of one op in these regimes, from one run."""
    path = out / f"search-{op}.json"
    began = time.monotonic()
    subprocess.run(
        [*COMMAND, "run", "--ops", op, "--regimes", ",".join(regimes), "--devices", options.devices, "--sessions",
         options.sessions, "--budget", options.budget, "-q", "-o", str(path)],
        stdout=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    seconds = (time.monotonic() - began) / len(regimes)
    report = subprocess.run(
        [*COMMAND, "report", str(path), "--format", "json"], capture_output=True, check=True
    )
    crossings = []
    for curve in json.loads(report.stdout)["break_even"]:
        implementations = _implementations(store.load(path), curve)
        name = f"{op}/{curve['regime']}"
        if curve["verdict"] != "at" or implementations is None:
            why = curve.get("reason") or "no such implementations"
            print(f"{name}: {curve['verdict']} ({why}): nothing to sweep around", file=sys.stderr)
            continue
        crossings.append(
            Found(op, curve["regime"], curve["n"], curve["lo"], curve["hi"], implementations, seconds)
        )
    return crossings


def _implementations(run: Run, curve: dict[str, Any]) -> tuple[str, str] | None:
    """Return the fastest implementation of each side at the measured size nearest to the break-even, or None if no
    size has both."""
    times_by_size = points.rows(run.outcomes, Series(kernels.load(curve["op"]), curve["dtype"]))
    sides: dict[int, list[dict[str, float]]] = {}
    for n, times in times_by_size.items():
        both: list[dict[str, float]] = [{}, {}]
        for (device, implementation, regime), sessions in times.items():
            if device == curve["baseline_id"] or (device, regime) == (curve["device_id"], curve["regime"]):
                both[device != curve["baseline_id"]][implementation] = points.seconds(sessions)
        if all(both):
            sides[n] = both
    if not sides or curve["n"] is None:
        return None
    base, case = sides[min(sides, key=lambda n: abs(math.log(n / curve["n"])))]
    return min(base, key=base.__getitem__), min(case, key=case.__getitem__)


def sweep(
    crossing: Found, options: argparse.Namespace, out: Path
) -> tuple[curves.Threshold | None, float, int, float]:
    """Make a dense sweep around a break-even. Return the sweep's break-even (None: there is none), the last size at
    which the order of the medians changes (0: nowhere), the number of sizes, and the seconds of the sweep."""
    cpu, gpu = options.devices.split(",")
    granule = kernels.load(crossing.op).sizes.granule
    steps = round(options.octaves * STEPS)
    exact = [crossing.n * 2 ** (i / STEPS) for i in range(-steps, steps + 1)]
    sizes = sorted({max(granule, round(n / granule) * granule) for n in exact})
    base = f"{crossing.op}/*/float32/{crossing.implementations[0]}/resident@{cpu}"
    case = f"{crossing.op}/*/float32/{crossing.implementations[1]}/{crossing.regime}@{gpu}"
    path = out / f"sweep-{crossing.op}-{crossing.regime}.json"
    began = time.monotonic()
    subprocess.run(
        [*COMMAND, "run", "--ops", crossing.op, "--sizes", ",".join(map(str, sizes)), "--devices", options.devices,
         "--regimes", crossing.regime, *SWEEP, "--filter", base, "--filter", case, "-q", "-o", str(path)],
        stdout=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    seconds = time.monotonic() - began
    blocks = _blocks(store.load(path), cpu)
    ratios = {n: stats.median(base) / stats.median(case) for n, (base, case) in sorted(blocks.items())}
    changes = [(a, b) for a, b in itertools.pairwise(ratios) if (ratios[a] < 1) != (ratios[b] < 1)]
    last = math.sqrt(math.prod(changes[-1])) if changes else 0.0
    kinds: tuple[curves.Kind, curves.Kind] = ("cpu", curves.kind_of("gpu", crossing.regime))
    fitted = curves.fit(
        {
            side: curves.TimedSizes(kinds[side], {n: [both[side]] for n, both in blocks.items()})
            for side in (0, 1)
        }
    )
    return curves.compare([fitted[1]], [fitted[0]]), last, len(sizes), seconds


def _blocks(run: Run, cpu: str) -> dict[int, tuple[list[float], list[float]]]:
    """Return the block times of the CPU and of the GPU for each size at which both were measured."""
    sides: dict[int, dict[bool, list[float]]] = {}
    for outcome in run.outcomes:
        if isinstance(outcome, Measurement):
            values = [stats.median(block.wall_s[block.warmup :]) for block in outcome.blocks]
            sides.setdefault(outcome.case.params["n"], {})[outcome.case.device_id == cpu] = values
    return {n: (pair[True], pair[False]) for n, pair in sides.items() if len(pair) == 2 and all(pair.values())}


def row(crossing: Found, dense: curves.Threshold | None, last: float, sizes: int, seconds: float) -> str:
    """Return one line of the table. It includes the time of a sweep over the whole ladder, estimated from the time
    per size."""
    ladder = kernels.load(crossing.op).sizes
    whole_s = seconds / sizes * STEPS * math.log2(ladder.high / ladder.low)
    name = f"{crossing.op}, {crossing.regime}"
    by_search = f"{crossing.n:.0f} [{crossing.low:.0f}, {crossing.high:.0f}]"
    if dense is None:
        by_sweep, inside = "none", "-"
    else:
        ends = f"{dense.low:.0f}, {dense.high:.0f}"
        by_sweep, inside = (
            f"{dense.n:.0f} [{ends}]",
            "yes" if crossing.low <= dense.n <= crossing.high else "no",
        )
    shares = f"1/{seconds / crossing.seconds:.1f} | 1/{whole_s / crossing.seconds:.0f}"
    took = f"{crossing.seconds:.0f} s | {seconds:.0f} s"
    return f"| {name} | {by_search} | {by_sweep} | {last:.0f} | {inside} | {took} | {shares} |"


if __name__ == "__main__":
    main()
