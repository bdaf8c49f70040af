"""A contest of gpubench and PyTorch. Each pair is a process of gpubench and one of PyTorch, in reverse order in
every second pair. A ratio is the median over the pairs, with its order-statistic interval."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from gpubench.backends.shared.host import usable_cpus

SIDES = ("ours", "torch")


def parser(description: str | None, *, budget_s: float) -> argparse.ArgumentParser:
    """Return a parser with the options that every contest has."""
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--pairs", type=int, default=10)
    options.add_argument("--budget-s", type=float, default=budget_s, help="of all pairs together")
    options.add_argument("--threads", type=int, default=usable_cpus())
    options.add_argument("-o", "--output", metavar="FILE.json")
    options.add_argument("--child", choices=SIDES, help=argparse.SUPPRESS)
    return options


def run_pairs(script: str, options: Any, named: Sequence[str]) -> tuple[Any, list[dict[str, Any]]]:
    """Run `script` with the options `named` in one process of gpubench, which compiles and chooses kernels, then in
    `options.pairs` pairs of processes, which share the time `options.budget_s`. Return the output of the first
    process, and for each pair the outputs by side."""
    began = time.monotonic()
    prepared = _run(script, "ours", options, named, 0.0)
    print(f"prepared in {time.monotonic() - began:.0f} s", file=sys.stderr)
    began, pairs = time.monotonic(), []
    for number in range(options.pairs):
        share = (options.budget_s - (time.monotonic() - began)) / (options.pairs - number) / len(SIDES)
        order = SIDES if number % 2 == 0 else SIDES[::-1]
        pairs.append({side: _run(script, side, options, named, share) for side in order})
        print(f"pair {number + 1} of {options.pairs}, {time.monotonic() - began:.0f} s", file=sys.stderr)
    return prepared, pairs


def _run(script: str, side: str, options: Any, named: Sequence[str], budget_s: float) -> Any:
    # -P keeps the folder of the script off the path: it has a module `coverage`, and numba imports another one.
    command = [sys.executable, "-P", script, "--child", side, "--budget-s", str(budget_s)]
    for name in (*named, "threads"):
        command += [f"--{name}", str(getattr(options, name))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"the process of {side} ended with {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])
