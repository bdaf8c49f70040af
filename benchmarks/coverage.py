"""Simulate how often intervals contain the true value and how often labels are wrong: the tables in
docs/statistics.md.

Run: python benchmarks/coverage.py [REPEATS] [PART ...] [seed=S,S] (default: 200 repeats of times, labels and
thresholds; 10 minutes). The same seed gives the same tables.

Each row of the thresholds simulates runs of two contenders whose true curves are known, at the sizes of a
default run. One is a CPU, with or without a step where its data no longer fit into a cache. The other is a GPU
with a launch cost.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script has its own folder there instead

from gpubench.analysis.samples import noise_findings
from gpubench.curves import Threshold, TimedSizes, compare, fit, stats
from gpubench.curves.threshold import OFFSETS_TOGETHER
from gpubench.kernels.contract.op import Ladder

SEED = 1
SESSIONS = (1, 2, 3, 5, 10)
BLOCK = 5  # samples
TRUE = 100.0

# ---------------------------------------------------------------- the time of a case, and a speedup

# Standard deviations between sessions, between blocks and between samples, in percent. In addition, 3 % of the
# samples take twice as long.
NOISES = ((2.0, 2.0, 3.0), (5.0, 5.0, 3.0), (5.0, 15.0, 3.0), (10.0, 15.0, 5.0))
OUTLIERS = 0.03
BLOCKS = (1, 2, 4)


def sessions(
    draw: random.Random, k: int, blocks: int, noise: Sequence[float], true: float
) -> list[list[float]]:
    """Return a list for each of `k` simulated sessions, with the median seconds of each of its `blocks` blocks.
    The medians vary around `true`. `noise` contains the variation between sessions, between blocks and within a
    block, in percent."""
    between, apart, within = (share / 100 for share in noise)
    values = []
    for _ in range(k):
        centre = true * draw.lognormvariate(0, between)
        levels = [centre * draw.lognormvariate(0, apart) for _ in range(blocks)]
        values.append([stats.median(_samples(draw, level, within)) for level in levels])
    return values


def _samples(draw: random.Random, level: float, within: float) -> list[float]:
    return [level * draw.lognormvariate(0, within) * (1 + (draw.random() < OUTLIERS)) for _ in range(BLOCK)]


def run_value(draw: random.Random, k: int, blocks: int, noise: Sequence[float]) -> tuple[bool, float]:
    """Simulate a case with `k` sessions of `blocks` blocks each; `noise` is as in `sessions`. Return whether the
    interval of its time contains the true value, and half the width of the interval in percent of that value."""
    prior = stats.prior_of(1e-4 if noise[1] > 10 else 1e-2)
    interval = stats.run_interval(sessions(draw, k, blocks, noise, TRUE), prior)
    return interval.low <= TRUE <= interval.high, 50 * (interval.high - interval.low) / TRUE


def speedup(draw: random.Random, k: int, blocks: int, noise: Sequence[float]) -> tuple[bool, float]:
    """Simulate a speedup of 3, from `k` sessions of `blocks` blocks of both sides; `noise` is as in `sessions`.
    Return whether its interval contains 3, and half the width of the interval in percent of 3."""
    prior = stats.prior_of(1e-4 if noise[1] > 10 else 1e-2)
    base, case = (sessions(draw, k, blocks, noise, true) for true in (3 * TRUE, TRUE))
    interval = stats.ratio_interval(list(zip(base, case, strict=True)), (prior, prior))
    return interval.low <= 3 <= interval.high, 50 * (interval.high - interval.low) / 3


def times(held: Callable[..., tuple[bool, float]], repeats: int) -> None:
    """Print a row for each noise and number of sessions, with a column for each number of blocks.

    `held` simulates one case: it is `run_value` or `speedup`.
    """
    print(f"| sessions / blocks / samples scatter by | sessions |{''.join(f' blocks: {b} |' for b in BLOCKS)}")
    print("|---|---|" + "---|" * len(BLOCKS))
    for noise in NOISES:
        for k in SESSIONS:
            cells = []
            for blocks in BLOCKS:
                draw = random.Random(SEED)
                intervals = [held(draw, k, blocks, noise) for _ in range(repeats)]
                share = 100 * sum(hit for hit, _ in intervals) / repeats
                cells.append(f"{share:.0f} %, +-{stats.median(width for _, width in intervals):.1f} %")
            scatter = " / ".join(f"{share:g}" for share in noise)
            print(f"| {scatter} % | {k} | {' | '.join(cells)} |", flush=True)


# ---------------------------------------------------------------- the break-even of two curves

# The sizes of a default run, each with one block: its ladder, and some sizes near the crossing that the ladder
# shows.
LADDER = Ladder(low=2**10, high=2**24).rungs()
NEAR = (0.6, 0.77, 1.0, 1.3, 1.6)


class Noise(NamedTuple):
    """The standard deviations of ln(seconds), and two other kinds of noise."""

    block: float = 0.08  # standard deviation between blocks
    size: float = 0.05  # standard deviation between sizes
    session: float = 0.04  # standard deviation between sessions
    tails: float = 0.0  # share of blocks that take up to three times as long
    speeds: float = 1.0  # ratio of the two speeds of the host; each block has one of them


class Shape(NamedTuple):
    """The true curves of a CPU and a GPU. The ratio CPU seconds / GPU seconds rises with a power of n and is 1
    near the crossing."""

    power: float = 0.5  # exponent of the ratio
    step: float = 1.0  # factor by which the CPU's time rises at the step
    at: float = 1.0  # size of both steps / the crossing
    jump: float = 1.0  # factor by which the GPU's time rises at the step
    # Pairs (factor, position): the CPU's time rises by the factor around position * crossing, over a factor of
    # 3.
    caches: tuple[tuple[float, float], ...] = ()
    # If not 0: the exponent above 0.8 of the crossing. It is BENT_POWER from there down to 0.2 of the crossing, and
    # 1 below.
    bend: float = 0.0
    # If not 0: the GPU computes in waves, whose size is this share of the crossing. A part of a wave takes as long
    # as a whole one.
    waves: float = 0.0


Curve = Callable[[float], float]
# The width in ln(n) over which a cache ends, and the exponent of a ratio that hardly rises.
SMEARED, BENT_POWER = 0.25, 0.1


def true_curves(shape: Shape, crossing: float) -> tuple[Curve, Curve]:
    """Return two functions from ln(n) to ln(seconds), for the CPU and for the GPU."""
    low = math.log(2e-5)
    middle = math.log(crossing)

    def smooth(x: float) -> float:
        return math.log(math.exp(low) + 4e-12 * math.exp(x))

    def gpu(x: float) -> float:
        if shape.waves:
            wave = shape.waves * crossing
            return math.log(math.exp(low) * (1 + 0.5 * math.ceil(math.exp(x) / wave - 1e-9) * shape.waves))
        return smooth(x) + math.log(shape.jump) * (x > middle + math.log(shape.at))

    def ratio(x: float) -> float:
        if shape.bend:
            below, near = middle + math.log(0.2), middle + math.log(0.8)
            height = -shape.bend * math.log(1 / 0.8)
            if x > near:
                return shape.bend * (x - middle)
            return height + BENT_POWER * (max(x, below) - near) + min(x - below, 0.0)
        return shape.power * (x - middle) + math.log(shape.step) * (x > middle + math.log(shape.at))

    def cpu(x: float) -> float:
        rises = [
            math.log(by) / (1 + math.exp((middle + math.log(at) - x) / SMEARED)) for by, at in shape.caches
        ]
        return smooth(x) + ratio(x) + math.fsum(rises)

    return cpu, gpu


def truth(cpu: Curve, gpu: Curve) -> float:
    """Return the last size on a fine grid at which the GPU begins to be faster, or infinity if there is none."""
    low, high = math.log(LADDER[0]), math.log(LADDER[-1])
    grid = [low + (high - low) * i / 20000 for i in range(20001)]
    turn = math.inf
    for x in reversed(grid):
        if cpu(x) < gpu(x):
            break
        turn = x
    return math.exp(turn) if math.isfinite(turn) else turn


def simulated_blocks(
    curve: Curve, sizes: Sequence[int], noise: Noise, shift: float, rng: random.Random
) -> dict[int, list[list[float]]]:
    """Return the simulated times of a case: size -> a list of sessions -> a list of seconds, here a single one.
    `curve` gives the true ln(seconds) for ln(n), to which `noise` is added. `shift` is the number of standard
    deviations by which the session shifts all cases."""
    offset = noise.session * (
        math.sqrt(OFFSETS_TOGETHER) * shift + math.sqrt(1 - OFFSETS_TOGETHER) * rng.gauss(0, 1)
    )
    times: dict[int, list[list[float]]] = {}
    for n in sizes:
        value = curve(math.log(n)) + offset + rng.gauss(0, noise.size) + rng.gauss(0, noise.block)
        if rng.random() < noise.tails:
            value += rng.uniform(0, math.log(3))
        if noise.speeds > 1 and rng.random() < 0.5:
            value += math.log(noise.speeds)
        times[n] = [[math.exp(value)]]
    return times


CACHES = ((1.6, 0.2), (1.9, 2.0))
ROWS: dict[str, tuple[Shape, Noise]] = {
    "smooth, power 0.5": (Shape(), Noise()),
    **{f"smooth, power {p}": (Shape(power=p), Noise()) for p in (0.2, 0.35, 0.8, 1.0, 1.5)},
    **{
        f"step {s}x {name} the crossing": (Shape(step=s, at=at), Noise())
        for s in (1.5, 2.5, 4.0) for name, at in (("below", 0.3), ("in", 1.0), ("above", 3.0))
    },
    "sizes 15 %": (Shape(), Noise(size=0.15)),
    "sessions 10 %": (Shape(), Noise(session=0.10)),
    "heavy tails": (Shape(), Noise(tails=0.15)),
    "two speeds": (Shape(), Noise(speeds=1.4)),
    "step 2.5x in the crossing, sizes 15 %": (Shape(step=2.5), Noise(size=0.15)),
    "GPU jumps by 1.5x in the crossing": (Shape(jump=1.5), Noise()),
    "power 0.35, two speeds, sizes 15 %": (Shape(power=0.35), Noise(size=0.15, speeds=1.4)),
    "caches end at 0.2 and 2 of the crossing": (Shape(caches=CACHES), Noise()),
    "caches end, two speeds": (Shape(caches=CACHES), Noise(speeds=1.4)),
    "caches end, heavy tails, sizes 15 %": (Shape(caches=CACHES), Noise(size=0.15, tails=0.15)),
    "hardly rises below the crossing": (Shape(bend=0.8), Noise()),
    "hardly rises below the crossing, heavy tails": (Shape(bend=0.8), Noise(tails=0.15)),
    "hardly rises below the crossing, sizes 15 %": (Shape(bend=0.8), Noise(size=0.15)),
    "GPU in waves of half the crossing": (Shape(power=0.8, waves=0.5), Noise()),
    "GPU in waves of twice the crossing": (Shape(power=0.8, waves=2.0), Noise()),
    "GPU in waves, two speeds": (Shape(power=0.8, waves=0.5), Noise(speeds=1.4)),
    "all scatter as far as expected": (Shape(), Noise(block=0.15, size=0.11, session=0.055)),
}  # fmt: skip


def threshold_of(shape: Shape, noise: Noise, rng: random.Random) -> tuple[float, Threshold] | None:
    """Simulate a run. Return the true and the estimated break-even, or None if the true one is outside the
    sizes."""
    crossing = math.exp(rng.uniform(math.log(2e4), math.log(4e6)))
    cpu, gpu = true_curves(shape, crossing)
    size = truth(cpu, gpu)
    if not LADDER[0] * 1.5 < size < LADDER[-1] / 1.5:
        return None
    # The ladder shows the crossing within a factor of 1.3, and sizes near it are added.
    centre = size * math.exp(rng.gauss(0, math.log(1.3)))
    near = [min(max(int(centre * f) // 64 * 64, LADDER[0]), LADDER[-1]) for f in NEAR]
    sizes = sorted({*LADDER, *near})
    shift = rng.gauss(0, 1)
    series = {
        "cpu": TimedSizes("cpu", simulated_blocks(cpu, sizes, noise, shift, rng)),
        "gpu": TimedSizes("waited", simulated_blocks(gpu, sizes, noise, shift, rng)),
    }
    fitted = fit(series)
    estimate = compare([fitted["gpu"]], [fitted["cpu"]])
    return None if estimate is None else (size, estimate)


def thresholds(repeats: int, seeds: Sequence[int]) -> None:
    """Print a row for each kind of curves: the share of intervals that contain the true break-even, their median
    width, the median distance of estimates from the true break-even, and the share of widths up to 2.25."""
    print("| curve | held | high / low | off by | within 2.25 |\n|---|---|---|---|---|")
    for name, (shape, noise) in ROWS.items():
        draws = [random.Random(f"{seed} {name}") for seed in seeds]
        tried = (threshold_of(shape, noise, rng) for rng in draws for _ in range(repeats))
        results = [threshold for threshold in tried if threshold is not None]
        held = sum(threshold.low <= size <= threshold.high for size, threshold in results) / len(results)
        widths = [threshold.high / threshold.low if threshold.low > 0 else math.inf for _, threshold in results]
        off = [
            abs(math.log(threshold.n / size)) if 0 < threshold.n < math.inf else math.inf
            for size, threshold in results
        ]
        sharp = sum(width <= 2.25 for width in widths) / len(results)
        far, wide = math.exp(stats.median(off)), stats.median(widths)
        print(f"| {name} | {held:.0%} | {wide:.2f} | {far:.2f}x | {sharp:.0%} |", flush=True)


# ---------------------------------------------------------------- labels

# The interquartile range of the blocks of a session / their median, and the numbers of blocks in a session.
SPREADS = (0.05, 0.08, 0.12, 0.20, 0.30)
BLOCKS_OF_LABELS = (2, 4, 8)
QUARTILES = 1.349  # interquartile range / standard deviation


def labels(repeats: int) -> None:
    """Print a table of labels for simulated cases, by the true spread of blocks, their number and the sessions.
    A cell shows how often a case is labelled at least noisy, and how often unstable."""
    print("| true spread | blocks | " + " | ".join(f"{k} session{'s' * (k > 1)}" for k in (1, 3, 5, 10)) + " |")
    print("|---|---|---|---|---|---|")
    for spread in SPREADS:
        for count in BLOCKS_OF_LABELS:
            cells = []
            for k in (1, 3, 5, 10):
                draw = random.Random(SEED)
                all_marks = [_label(draw, k, count, spread) for _ in range(repeats)]
                noisy = sum("noisy" in marks or "unstable" in marks for marks in all_marks)
                unstable = sum("unstable" in marks for marks in all_marks)
                cells.append(f"{100 * noisy / repeats:.0f} / {100 * unstable / repeats:.0f} %")
            print(f"| {100 * spread:.0f} % | {count} | {' | '.join(cells)} |", flush=True)


def _label(draw: random.Random, k: int, count: int, spread: float) -> list[str]:
    blocks = {i: [draw.lognormvariate(0, spread / QUARTILES) for _ in range(count)] for i in range(k)}
    return [str(mark) for mark in noise_findings(blocks, blocks)]


def main() -> None:
    numbers = [int(word) for word in sys.argv[1:] if word.isdecimal()]
    repeats, parts = (numbers or [200])[0], [word for word in sys.argv[1:] if word.isalpha()]
    if not parts or "times" in parts:
        print(f"Time of a case, {5 * repeats} repeats:\n")
        times(run_value, 5 * repeats)
        print(f"\nSpeedup of 3, {repeats} repeats:\n")
        times(speedup, repeats)
    if not parts or "labels" in parts:
        print(f"\nNoisy or worse / unstable, {5 * repeats} repeats:\n")
        labels(5 * repeats)
    if not parts or "thresholds" in parts:
        print(f"\nBreak-evens, {repeats} repeats:\n")
        seeds = next((word[5:].split(",") for word in sys.argv if word.startswith("seed=")), [SEED])
        thresholds(repeats, [*map(int, seeds)])


if __name__ == "__main__":
    main()
