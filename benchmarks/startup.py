"""The start-up times of the commands in COMMANDS as ratios to `python -c pass`.

Run: .venv/bin/python benchmarks/startup.py [ROUNDS]

The times are medians of the processor time of whole processes, which take turns. The bytecode should be
compiled before. This is a report, not a test: a ratio hardly depends on the speed or the load of the machine.
The commands read a small result of scripted devices that this program measures first. A command that
fails ends the program with an error, because its time would say nothing.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence

RESULT = "result.json"
MEASURE = (
    "-m", "gpubench", "run", "--devices", "fake:cpu,fake:gpu", "--ops", "add", "--sizes", "4k", "--quick", "--max-time",
    "20ms", "--quiet", "-o", RESULT,
)  # fmt: skip
BASE = "python -c pass"
# Triples (name, arguments, limit as a ratio to BASE). The limits are from docs/architecture.md, "Start-up".
COMMANDS: tuple[tuple[str, tuple[str, ...], float], ...] = (
    ("--version", ("--version",), 2),
    ("--help", ("--help",), 8),
    ("usage error", ("rnu",), 8),
    ("run --help", ("run", "--help"), 8),
    ("ops", ("ops",), 9),
    ("schema", ("schema",), 9),
    ("report --format markdown", ("report", RESULT, "--format", "markdown"), 10),
    ("compare --format markdown", ("compare", RESULT, RESULT, "--format", "markdown"), 10),
    ("merge", ("merge", RESULT, "-o", "merged.json"), 10),
    ("advise --from", ("advise", "add", "--size", "4k", "--from", RESULT), 10),
    ("detect --sysroot", ("detect", "--sysroot", ".", "--format", "json"), 12),
)


def took_s(arguments: Sequence[str], folder: str) -> float:
    """Return the processor seconds of one complete process. Raises RuntimeError if the process fails, except for the
    usage error `rnu`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    if ended.returncode and "rnu" not in arguments:
        raise RuntimeError(f"{' '.join(arguments)}: {ended.stderr[-500:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(rounds: int) -> dict[str, list[float]]:
    """Return the processor seconds of each command in each round. The first round warms the file cache and is
    dropped."""
    programs = {BASE: ["-c", "pass"]} | {name: ["-m", "gpubench", *rest] for name, rest, _ in COMMANDS}
    samples: dict[str, list[float]] = {name: [] for name in programs}
    with tempfile.TemporaryDirectory() as folder:
        took_s(MEASURE, folder)
        for index in range(rounds + 1):
            for name, arguments in programs.items():
                seconds = took_s(arguments, folder)
                if index:
                    samples[name].append(seconds)
    return samples


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    ratios = measure(rounds)
    base = statistics.median(ratios[BASE])
    print(
        f"{BASE}: {base * 1e3:.1f} ms (median of {rounds}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs)"
    )
    for name, _, limit in COMMANDS:
        seconds = statistics.median(ratios[name])
        ratio = statistics.median(a / b for a, b in zip(ratios[name], ratios[BASE], strict=True))
        verdict = "ok" if ratio <= limit else "TOO SLOW"
        print(f"{name:26} {seconds * 1e3:7.1f} ms  {ratio:5.1f} x  (limit {limit:g} x)  {verdict}")


if __name__ == "__main__":
    main()
