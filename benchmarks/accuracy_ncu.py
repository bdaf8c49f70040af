"""Compare Nsight Compute with gpubench. ncu runs `python -m benchmarks.accuracy_ncu` and times the kernels that
it launches.

The profiler slows down everything around a kernel, so gpubench's readings come from another process. Each
kernel is launched `LAUNCHES` times after one launch of an empty kernel, which separates the rows of the output.
"""

from __future__ import annotations

import csv
import glob
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.accuracy_record import Clock, Pairing, Reading

ROOT = Path(__file__).parents[1]
METRIC = "gpu__time_duration.sum"
EMPTY = "nothing"
LAUNCHES = 7
AWAKE_S = 0.1
KERNELS = (
    *(("add", 1 << power) for power in range(12, 25, 2)),
    *(("matmul", n) for n in (64, 128, 256, 512, 1024, 2048)),
)
# For each mode: its name, the value of ncu's option --cache-control, and the comparable clocks of gpubench. The
# bool next to a clock says whether the pairing has to meet a target.
MODES: tuple[tuple[str, str, tuple[tuple[Clock, bool], ...]], ...] = (
    ("ncu, caches flushed", "all", (("cold", True),)),
    ("ncu, caches kept", "none", (("hot", True), ("single", False))),
)


def where() -> str | None:
    """Return the path of the command `ncu`, from PATH or from a CUDA toolkit, or None if there is none."""
    return shutil.which("ncu") or next(iter(sorted(glob.glob("/usr/local/cuda*/bin/ncu"), reverse=True)), None)


def durations(lines: Iterable[str]) -> list[tuple[str, float]]:
    """Return pairs (kernel name, seconds) in the order of the launches.

    The lines are the output of `ncu --csv --page raw --print-units base`.
    """
    rows = csv.DictReader(line for line in lines if line.startswith('"'))
    return [
        (kernel["Kernel Name"], float(kernel[METRIC].replace(",", "")) * 1e-9)
        for kernel in rows
        if kernel["ID"].isdigit()
    ]


def per_launch(rows: Sequence[tuple[str, float]]) -> list[list[float]]:
    """Return, for each subject in order, a list with the seconds of each of its `LAUNCHES` launches, all kernels of
    a launch together. A subject begins after a row of the empty kernel. Raises IndexError if the first row is of
    another kernel, and ValueError if the kernels of a subject are no whole launches."""
    groups: list[list[float]] = []
    for name, seconds in rows:
        if name.partition("(")[0] == EMPTY:
            groups.append([])
        else:
            groups[-1].append(seconds)
    if any(not group or len(group) % LAUNCHES for group in groups):
        raise ValueError(f"not {LAUNCHES} launches each: {[len(group) for group in groups]} kernels")
    sizes = [len(group) // LAUNCHES for group in groups]
    return [
        [sum(group[at : at + size]) for at in range(0, len(group), size)]
        for group, size in zip(groups, sizes, strict=True)
    ]


def empty_s(rows: Sequence[tuple[str, float]]) -> float:
    """Return the median seconds of the empty kernel."""
    return statistics.median(seconds for name, seconds in rows if name.partition("(")[0] == EMPTY)


def profile(cache: str, *, timeout_s: float) -> list[tuple[str, float]]:
    """Run ncu and return pairs (kernel name, seconds) for the kernels that it timed.

    `cache` is `all` to flush the caches before each kernel, or `none` to keep them. Raises OSError if ncu is not
    installed, TimeoutExpired after `timeout_s` seconds, and ValueError if no kernel was timed.
    """
    command = where()
    if command is None:
        raise OSError("ncu is not installed")
    words = [
        command, "--clock-control", "none", "--cache-control", cache, "--metrics", METRIC, "--csv", "--page", "raw",
        "--print-units", "base", "--profile-from-start", "off", sys.executable, "-m", "benchmarks.accuracy_ncu",
    ]  # fmt: skip
    ended = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s, cwd=ROOT, check=False)
    kernels = durations(ended.stdout.splitlines())
    if not kernels:
        raise ValueError(
            " / ".join((ended.stdout + ended.stderr).strip().splitlines()[-4:]) or "ncu said nothing"
        )
    return kernels


def pairings(
    tool: str, clocks: Sequence[tuple[Clock, bool]], rows: Sequence[tuple[str, float]],
    readings: dict[tuple[str, int], Reading],
) -> list[Pairing]:  # fmt: skip
    """Return a pairing for each kernel in `KERNELS` and each of `clocks`, if `readings` has the kernel on that
    clock. A pairing compares gpubench's reading with the median launch in ncu's `rows` (kernel name, seconds). The bool
    next to a clock says whether the pairing has to meet a target."""
    seconds = dict(zip(KERNELS, per_launch(rows), strict=True))
    return [
        Pairing(
            op, n, "cupy", tool, clock, [readings[op, n][clock]], [statistics.median(seconds[op, n])], judged
        )
        for op, n in KERNELS
        if (op, n) in readings
        for clock, judged in clocks
        if clock in readings[op, n]
    ]


def launch_all() -> None:
    """Launch all kernels in the process that ncu profiles. A large product between the launches keeps the
    device awake."""
    from benchmarks.accuracy_subjects import inputs_of, library_launch
    from gpubench import backends

    session = backends.load("cupy").open("cupy:0")
    import cupy

    empty = session.empty_launch()
    wake = library_launch(session, "matmul", 2048, inputs_of(session, "matmul", 2048))
    for op, n in KERNELS:
        launch = library_launch(session, op, n, inputs_of(session, op, n))
        until = time.perf_counter() + AWAKE_S
        while time.perf_counter() < until:
            session.run(wake, 10)
            session.sync()
        session.run(launch, 3)
        session.sync()
        cupy.cuda.runtime.profilerStart()
        session.run(empty)
        session.run(launch, LAUNCHES)
        session.sync()
        cupy.cuda.runtime.profilerStop()


if __name__ == "__main__":
    launch_all()
