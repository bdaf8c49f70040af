"""Measure how large a fleet `merge` and `report` can process, and how often the rule for slow GPUs is wrong
(docs/fleet.md).

python benchmarks/fleet.py scale --nodes 10,100,1000
nice python benchmarks/fleet.py alarms
"""

from __future__ import annotations

import argparse
import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from gpubench.fleet.survey import Figure, compare_gpus  # noqa: E402
from gpubench.result.store import save  # noqa: E402
from tests.unit.fleet.fleets import fleet_runs  # noqa: E402

CASES = ("matmul", "copy", "upload", "download")
RUN_NOISE = 0.005
SEED = 20260101


# ---------------------------------------------------------------- scale


def scale(counts: list[int], gpus: int, sessions: int) -> None:
    """Merge and report synthetic fleets. Print for each step its time and peak memory, the bytes of the fleet's files,
    and the lines of its output."""
    print(f"{'nodes':>6} {'step':>7} {'time s':>8} {'peak MB':>8} {'file MB':>8} {'lines':>6}")
    for count in counts:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            nodes = folder / "nodes"
            nodes.mkdir()
            for run in fleet_runs(count, gpus, slow={"U0001-1": 1.2}, seed=SEED, sessions=sessions):
                save(run, nodes / f"{run.id}.json.gz")
            fleet = folder / "fleet.json"
            files = sorted(map(str, nodes.iterdir()))
            for step, command in (
                ("merge", ["merge", *files, "-o", str(fleet)]), ("report", ["report", str(fleet)]),
            ):  # fmt: skip
                seconds, peak, text = _time([sys.executable, "-m", "gpubench", *command], folder)
                print(
                    f"{count:>6} {step:>7} {seconds:>8.1f} {peak / 1e6:>8.0f} {_size(folder) / 1e6:>8.1f} "
                    f"{len(text.splitlines()):>6}", flush=True,
                )  # fmt: skip


def _size(folder: Path) -> int:
    files = [folder / "fleet.json", *folder.glob("fleet.d/*")]
    return sum(path.stat().st_size for path in files)


_WATCH = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(done.returncode)
"""


def _time(command: list[str], folder: Path) -> tuple[float, int, str]:
    """Return the wall seconds of the command, the most resident bytes of its process, and its output."""
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _WATCH, *command], cwd=folder, capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder)},
    )  # fmt: skip
    unit = 1 if sys.platform == "darwin" else 1024
    return time.perf_counter() - begun, int(done.stderr.split()[-1]) * unit, done.stdout


# ---------------------------------------------------------------- false alarms and detection


def gauss(draw: random.Random) -> float:
    return draw.gauss(0, 1)


def heavy(draw: random.Random) -> float:
    """Return a random number from Student's t distribution with 5 degrees of freedom, scaled to unit
    variance."""
    chi = sum(draw.gauss(0, 1) ** 2 for _ in range(5))
    return draw.gauss(0, 1) / math.sqrt(chi / 5) / math.sqrt(5 / 3)


def synthetic(
    count: int, cv: float, tail: Callable[[random.Random], float], draw: random.Random, short: float = 0.0
) -> list[Figure]:
    """Return simulated rates of `count` identical GPUs for four cases and two sessions. The rates of different
    GPUs vary by `cv`, times random numbers from `tail(draw)`. The first GPU is slower by the share `short`."""
    runs = []
    for case in CASES:
        for i in range(count):
            own = (1 + cv * tail(draw)) * (1 - short if i == 0 else 1)
            rates = tuple(own * (1 + RUN_NOISE * draw.gauss(0, 1)) for _ in range(2))
            runs.append(
                Figure(
                    node=f"{i // 8}", gpu=f"{i:05}", device=f"cupy:{i % 8}", started_at="", bdf=None, case=case,
                    group=case, driver="", size=1, rates=rates,
                )
            )  # fmt: skip
    return runs


def alarms(counts: list[int], figures: int) -> None:
    """Print two tables for fleets with these numbers of GPUs. The first shows how many healthy GPUs of a fleet the
    rule confirms as slow. The second shows how often it confirms one slow GPU. Each cell simulates about `figures`
    values."""
    print("confirmed false alarms a healthy fleet")
    print(f"{'tails':>7} {'cv':>6} " + " ".join(f"{f'n = {count}':>10}" for count in counts))
    for tail in (gauss, heavy):
        for cv in (0.008, 0.02):
            cells = [f"{false_alarms(count, cv, tail, figures):>10.2f}" for count in counts]
            print(f"{tail.__name__:>7} {cv:>6.1%} " + " ".join(cells), flush=True)
    print("one slow GPU of a Gaussian fleet is confirmed")
    print(f"{'short':>7} {'cv':>6} " + " ".join(f"{f'n = {count}':>10}" for count in counts))
    for short in (0.06, 0.10, 0.15):
        for cv in (0.008, 0.02):
            cells = [f"{detection(count, cv, short, figures):>10.0%}" for count in counts]
            print(f"{short:>7.0%} {cv:>6.1%} " + " ".join(cells), flush=True)


def false_alarms(count: int, cv: float, tail: Callable[[random.Random], float], figures: int) -> float:
    draw = random.Random(f"{SEED} {count} {cv} {tail.__name__}")
    fleets = max(5, figures // (count * len(CASES)))
    alarms = 0
    for _ in range(fleets):
        peers = compare_gpus(synthetic(count, cv, tail, draw))
        alarms += len({verdict.gpu for verdict in peers.verdicts if verdict.confirmed})
    return alarms / fleets


def detection(count: int, cv: float, short: float, figures: int) -> float:
    """Return the share of simulated fleets of `count` GPUs in which the rule confirms the slow GPU by its matmul
    case. One GPU of each fleet is slower by the share `short`, and `cv` is the variation among the GPUs. About
    `figures` values are simulated in all."""
    draw = random.Random(f"{SEED} {count} {cv} {short}")
    fleets = min(400, max(20, figures // (count * len(CASES))))
    hits = 0
    for _ in range(fleets):
        peers = compare_gpus(synthetic(count, cv, gauss, draw, short))
        hits += any(
            verdict.gpu == "00000" and verdict.confirmed and verdict.case == CASES[0]
            for verdict in peers.verdicts
        )
    return hits / fleets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["scale", "alarms"])
    parser.add_argument("--nodes", default="10,100,1000", help="sizes of the fleets of `scale`")
    parser.add_argument("--gpus", default="8,64,256,8000", help="sizes of the fleets of `alarms`")
    parser.add_argument("--gpus-a-node", type=int, default=8)
    parser.add_argument("--sessions", type=int, default=8, help="of each node of `scale`; 8 make 142 kB")
    parser.add_argument("--figures", type=int, default=160_000, help="of each cell of the table of `alarms`")
    options = parser.parse_args()
    if options.what == "scale":
        scale([int(word) for word in options.nodes.split(",")], options.gpus_a_node, options.sessions)
    else:
        alarms([int(word) for word in options.gpus.split(",")], options.figures)


if __name__ == "__main__":
    main()
