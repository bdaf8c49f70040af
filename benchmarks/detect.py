"""Costs of `gpubench detect`: the time of whole commands as ratios to `python -c pass`, and the time of each
provider.

Run: .venv/bin/python benchmarks/detect.py [--rounds N] [--deep] [RECORDED_MACHINE ...]

A RECORDED_MACHINE is a folder, or a .tar.gz file, with one machine or with folders of machines. This is a
report, not a test: the exit code is always 0.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

BASE = "python -c pass"
LIMIT_OF_FILES_MS = 50.0


def took_s(arguments: list[str], folder: str) -> tuple[float, str]:
    """Return the wall seconds and the output of one process."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    return time.perf_counter() - start, done.stdout


def compare(programs: dict[str, list[str]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each program in each round. The programs take turns, and the first round only warms
    the file cache."""
    samples: dict[str, list[float]] = {name: [] for name in programs}
    with tempfile.TemporaryDirectory() as folder:
        for index in range(rounds + 1):
            for name, arguments in programs.items():
                seconds, _ = took_s(arguments, folder)
                if index:
                    samples[name].append(seconds)
    return samples


def providers(arguments: list[str], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each provider in each round, and `total`, the time of detection without the start
    of Python."""
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            document: dict[str, Any] = json.loads(
                took_s(["-m", "gpubench", "detect", "--json", *arguments], folder)[1]
            )
            for provider in document["providers"]:
                seconds.setdefault(provider["name"], []).append(provider["took_s"])
            seconds.setdefault("total", []).append(document["took_s"])
    return seconds


def machines(path: Path, unpacked: Path) -> list[Path]:
    """Return the recorded machines in a folder or an archive: its folders that contain `proc` or `sys`. An archive
    is extracted to `unpacked`."""
    top = path
    if not path.is_dir():
        top = unpacked
        with tarfile.open(path) as archive:
            # Python before 3.11.4 has no filters; the archives are the caller's own.
            safe: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            archive.extractall(unpacked, **safe)
    roots = [top, *sorted(top.iterdir())]
    return [root for root in roots if (root / "proc").is_dir() or (root / "sys").is_dir()]


def show(name: str, seconds: list[float], note: str = "") -> None:
    median = statistics.median(seconds) * 1e3
    print(
        f"{name:34} {median:8.1f} ms  ({min(seconds) * 1e3:.1f} to {max(seconds) * 1e3:.1f})  {note}".rstrip()
    )


def show_parts(name: str, arguments: list[str], rounds: int) -> None:
    for part, seconds in providers(arguments, rounds).items():
        slow = statistics.median(seconds) * 1e3 > LIMIT_OF_FILES_MS
        note = f"limit {LIMIT_OF_FILES_MS:g} ms: {'TOO SLOW' if slow else 'ok'}" if part == "files" else ""
        show(f"{name}: {part}", seconds, note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--deep", action="store_true", help="measure `detect --deep` as well")
    parser.add_argument("machines", nargs="*", type=Path)
    options = parser.parse_args()
    programs = {
        BASE: ["-c", "pass"],
        "detect (files only, --sysroot /)": ["-m", "gpubench", "detect", "--json", "--sysroot", "/"],
        "detect --json": ["-m", "gpubench", "detect", "--json"],
        "detect": ["-m", "gpubench", "detect"],
    }
    if options.deep:
        programs["detect --deep"] = ["-m", "gpubench", "detect", "--deep"]
    ratios = compare(programs, options.rounds)
    print(f"medians of {options.rounds}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    for name, seconds in ratios.items():
        ratio = statistics.median(a / b for a, b in zip(seconds, ratios[BASE], strict=True))
        show(name, seconds, f"{ratio:.1f} x")
    show_parts("this machine", [], options.rounds)
    for path in options.machines:
        with tempfile.TemporaryDirectory() as folder:
            for root in machines(path, Path(folder)):
                show_parts(path.name.removesuffix(".tar.gz"), ["--sysroot", str(root)], options.rounds)


if __name__ == "__main__":
    main()
