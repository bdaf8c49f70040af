"""Does the search for a break-even find it? Simulated timings, known answers (docs/breakeven.md holds the tables).

Run: .venv/bin/python benchmarks/break_even.py [REPEATS]. No GPU, no NumPy; the seed is fixed, so are the tables.
Coarse grid by factor 4 with 5 timings a side, bisection with 7, then the rest of 400 timings in the window. Which
size is next and where the window lies come from the functions with which `gpubench run` searches
(gpubench/measure/curves.py and search.py), the crossing from gpubench/break_even.py, the verdict from the analysis of a
result file with these samples. Exit code 0 in any case.
"""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec

from gpubench import break_even, kernels, stats
from gpubench.analysis.analyse import analyse
from gpubench.analysis.break_even import BreakEven
from gpubench.measure import curves as steps
from gpubench.measure import search as windows
from gpubench.measure.plan import Series
from gpubench.model.case import Case
from gpubench.model.machine import Machine
from gpubench.model.op import Ladder
from gpubench.model.result import (
    Block,
    Check,
    Device,
    Fingerprint,
    Fingerprints,
    Measurement,
    Run,
    Selection,
    Settings,
    Stop,
)

SEED = 20
BUDGET = 400  # timings of both sides together
NOISES = ((0.02, 0.0), (0.05, 0.01), (0.10, 0.02), (0.20, 0.05))  # log-normal sigma, share of outliers
OUTLIERS = (1.5, 5.0)
BLOCK = 5  # timings
SLOTS = (("numpy:0", "tuned", "resident"), ("cupy:0", "tuned", "resident-queued"))
CURVE = ("cupy:0", "resident-queued")
MEMORY_BYTES = 16 * 2**30
CPU = Device(id="numpy:0", backend="numpy", kind="cpu", name="simulated", api="host")
GPU = Device(
    id="cupy:0", backend="cupy", kind="gpu", name="simulated", api="cuda",
    memory_bytes=MEMORY_BYTES, usable_bytes=MEMORY_BYTES,
)  # fmt: skip


class Curve(NamedTuple):
    """Seconds per launch of either side over the size, and the sizes of the search."""

    name: str
    cpu_s: Callable[[float], float]
    gpu_s: Callable[[float], float]
    ladder: Ladder


def _knee_s(n: float) -> float:
    """Fast inside the cache of 2^20 elements, slow beyond."""
    return 1e-6 + 8 * min(n, 2**20) / 2e11 + 8 * max(n - 2**20, 0.0) / 2.5e10


CURVES = (
    Curve("matmul, transfer-always", lambda n: 3e-6 + 2 * n**3 / 8e11,
          lambda n: 12e-6 + 16 * n**2 / 5e10 + 2 * n**3 / 4.5e13, Ladder(1, 1024)),
    Curve("vector, resident", lambda n: 1e-6 + 12 * n / 4e10, lambda n: 1e-5 + 12 * n / 3e12, Ladder(256, 2**24)),
    Curve("vector, GPU only 1.5 x faster", lambda n: 2e-6 + 12 * n / 4e10, lambda n: 4e-5 + 12 * n / 6e10,
          Ladder(256, 2**26)),
    Curve("activation with a cache knee", _knee_s, lambda n: 25e-5 + 8 * n / 5e11, Ladder(256, 2**26)),
)  # fmt: skip


def _waves_s(n: float) -> float:
    """Four times slower, faster, slower, faster, by a factor of 16 in size."""
    return 1e-6 * n / (0.25 if math.log(n / 256, 16) % 2 < 1 else 4.0)


VERDICTS = (
    Curve("all-sizes", lambda n: 3e-10 * n, lambda n: 1e-10 * n, Ladder(256, 2**24)),
    Curve("at", CURVES[1].cpu_s, CURVES[1].gpu_s, CURVES[1].ladder),
    # At 2^20 the GPU has 0.3 of the CPU's speed, and the crossing lies at 3.6 million.
    Curve("no-size, rising", lambda n: 3e-10 * n, lambda n: 1e-3 + 3e-11 * n, Ladder(256, 2**20)),
    Curve("no-size", lambda n: 3e-10 * n, lambda n: 1e-5 + 6e-10 * n, Ladder(256, 2**24)),
    Curve("at, mixed", lambda n: 1e-6 * n, _waves_s, Ladder(256, 2**20)),
    Curve("undecided", lambda n: 3e-10 * n, lambda n: 3e-10 * n, Ladder(256, 2**24)),
)  # fmt: skip


class Noise(NamedTuple):
    """Readings of a time: log-normal, a share of them slowed."""

    sigma: float
    outliers: float
    draw: random.Random

    def times(self, seconds: float, count: int) -> list[float]:
        """`count` readings of `seconds`."""
        return [
            seconds
            * self.draw.lognormvariate(0, self.sigma)
            * (self.draw.uniform(*OUTLIERS) if self.draw.random() < self.outliers else 1.0)
            for _ in range(count)
        ]

    def sides(self, curve: Curve, n: int, count: int) -> break_even.Sides:
        """`count` timings of either side at size `n`."""
        return self.times(curve.cpu_s(n), count), self.times(curve.gpu_s(n), count)


class Found(NamedTuple):
    """One search: the verdict, and the timings that it took."""

    verdict: BreakEven
    timings: int


def search(curve: Curve, noise: Noise) -> Found:
    """The procedure of docs/breakeven.md on one simulated curve, in one session."""
    seen = {n: noise.sides(curve, n, steps.GRID_TIMINGS) for n in curve.ladder.sizes()}
    while _timings(seen) + 2 * steps.BISECTION_TIMINGS <= BUDGET / 2:
        middle = steps.bisection(curve.ladder, windows.middle_ratios(_samples(seen), CURVE, {CPU.id}))
        if middle is None:
            break
        seen[middle] = noise.sides(curve, middle, steps.BISECTION_TIMINGS)
    fresh = _estimate(curve, noise, seen)
    blocks = _outcomes(seen, "main") + _outcomes(fresh, "estimate")
    (verdict,) = analyse(_run(blocks)).break_even
    return Found(verdict, _timings(seen) + _timings(fresh))


def _estimate(curve: Curve, noise: Noise, seen: dict[int, break_even.Sides]) -> dict[int, break_even.Sides]:
    """The rest of the budget, round-robin over the window; nothing without a bracket."""
    left = (BUDGET - _timings(seen)) // 2
    series = Series(msgspec.structs.replace(kernels.load("add"), sizes=curve.ladder), "float32")
    window = windows.around(series, _samples(seen), CURVE, {CPU.id}, left)
    if window is None:
        return {}
    count, over = left // len(window.sizes), left % len(window.sizes)
    return {n: noise.sides(curve, n, count + (i < over)) for i, n in enumerate(window.sizes)}


def _samples(seen: dict[int, break_even.Sides]) -> windows.Samples:
    return {n: dict(zip(SLOTS, sides, strict=True)) for n, sides in seen.items()}


def _timings(seen: dict[int, break_even.Sides]) -> int:
    return sum(len(cpu) + len(gpu) for cpu, gpu in seen.values())


def _outcomes(seen: dict[int, break_even.Sides], phase: Literal["main", "estimate"]) -> list[Measurement]:
    return [
        _measurement(n, device, samples, phase)
        for n, sides in seen.items()
        for device, samples in zip((CPU, GPU), map(list, sides), strict=True)
    ]


def _measurement(
    n: int, device: Device, samples: list[float], phase: Literal["main", "estimate"]
) -> Measurement:
    case = Case("add", "vector", {"n": n}, "float32", "tuned", device.resident_regime, device.id)
    return Measurement(
        id=f"{case.id}/{phase}", case=case, flops=n, bytes=12 * n, op_hash="0" * 12,
        check=Check(ok=True, max_error=0.0, limit=1e-6, scale="terms"), stops=[Stop(session=0, reason="max-samples")],
        blocks=[
            Block(session=0, round=i, position=0, repeat=10_000, phase=phase, wall_s=samples[i : i + BLOCK])
            for i in range(0, len(samples), BLOCK)
        ],
    )  # fmt: skip


def _run(outcomes: list[Measurement]) -> Run:
    empty = Fingerprint(hash="0" * 12, fields={})
    return Run(
        id="00000000-0000-4000-8000-000000000001", started_at="2026-01-02T03:04:05Z", complete=True,
        selection=Selection(ops=["add"]), settings=Settings(sessions=1, min_samples=steps.GRID_TIMINGS),
        machine=Machine(),
        fingerprint=Fingerprints(machine=empty, device=empty, software=empty), devices=[CPU, GPU],
        outcomes=[*outcomes],
    )  # fmt: skip


def truth(curve: Curve) -> float:
    """The size at which both sides take the same time, by bisection."""
    low, high = float(curve.ladder.low), float(curve.ladder.high)
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if curve.cpu_s(middle) < curve.gpu_s(middle) else (low, middle)
    return math.sqrt(low * high)


def accuracy(curve: Curve, sigma: float, outliers: float, repeats: int) -> str:
    """One row: reported / true N, how often the interval holds the truth, how often there is no answer."""
    noise = Noise(sigma, outliers, random.Random(SEED))
    true = truth(curve)
    found = [search(curve, noise) for _ in range(repeats)]
    answers = [one.verdict for one in found if one.verdict.verdict == "at"]
    ratios = sorted((row.n or 0) / true for row in answers)
    covered = sum((row.lo or 0) <= true <= (row.hi or 0) for row in answers)
    middle = " / ".join(f"{stats.quantile(ratios, q):.3f}" for q in (0.05, 0.5, 0.95)) if ratios else "-"
    share = f"{100 * covered / len(answers):.0f} %" if answers else "-"
    others = f"{100 * (1 - len(answers) / repeats):.0f} %"
    noisy = f"{100 * sigma:.0f} % + {100 * outliers:.0f} %"
    timings = max(one.timings for one in found)
    return f"| {curve.name} ({true:.0f}) | {noisy} | {middle} | {share} | {others} | {timings} |"


def verdict_row(curve: Curve, sigma: float, outliers: float, repeats: int) -> str:
    """One row: how often each verdict was given on a curve whose name is the right one."""
    noise = Noise(sigma, outliers, random.Random(SEED))
    given: Counter[str] = Counter(said(search(curve, noise).verdict) for _ in range(repeats))
    others = ", ".join(f"{name} {count}" for name, count in given.most_common() if name != curve.name)
    noisy = f"{100 * sigma:.0f} % + {100 * outliers:.0f} %"
    return f"| {curve.name} | {noisy} | {given[curve.name]} of {repeats} | {others or '-'} |"


def said(row: BreakEven) -> str:
    more = ", rising" if row.verdict == "no-size" and row.reason else ", mixed" if row.mixed else ""
    return row.verdict + more


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    print(
        "| curve (true N) | noise + outliers | reported / true, 5 / 50 / 95 % | covered | no answer | timings |"
    )
    print("|---|---|---|---|---|---|")
    for curve in CURVES:
        for sigma, outliers in NOISES:
            print(accuracy(curve, sigma, outliers, repeats), flush=True)
    print("\n| right verdict | noise + outliers | given | others |\n|---|---|---|---|")
    for curve in VERDICTS:
        for sigma, outliers in NOISES[::2]:
            print(verdict_row(curve, sigma, outliers, repeats), flush=True)


if __name__ == "__main__":
    main()
