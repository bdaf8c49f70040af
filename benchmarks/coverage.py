"""How often intervals hold the truth and labels are wrong: simulated, the tables of docs/statistics.md.

Run: python benchmarks/coverage.py [REPEATS] [PART ...] (default 200 and all of times, labels, thresholds; 10 minutes).
The same seed gives the same tables. A break-even's sizes and blocks are those that a search takes (gpubench/measure).
`Before` is how gpubench estimated it until blocks became its observations: a bootstrap of samples, and from 5 sessions
on of sessions; it lives on here for comparison, on the same timings.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script, this file's own folder is there instead

from gpubench import break_even, stats
from gpubench.analysis.labels import noise_findings
from gpubench.break_even import Crossing, Timings
from gpubench.measure import curves, search
from gpubench.model.op import Ladder

SEED = 1
SESSIONS = (1, 2, 3, 5, 10)
BLOCK = 5  # samples
TRUE = 100.0

# ---------------------------------------------------------------- the time of a case, and a speedup

# Standard deviations between sessions, between blocks and between samples, in percent; 3 % of the samples take twice as
# long.
NOISES = ((2.0, 2.0, 3.0), (5.0, 5.0, 3.0), (5.0, 15.0, 3.0), (10.0, 15.0, 5.0))
OUTLIERS = 0.03
BLOCKS = (1, 2, 4)


def sessions(
    draw: random.Random, k: int, blocks: int, noise: Sequence[float], true: float
) -> list[list[float]]:
    """The values of so many blocks of k sessions around `true`, noise in percent."""
    between, apart, within = (share / 100 for share in noise)
    found = []
    for _ in range(k):
        centre = true * draw.lognormvariate(0, between)
        levels = [centre * draw.lognormvariate(0, apart) for _ in range(blocks)]
        found.append([stats.median(_samples(draw, level, within)) for level in levels])
    return found


def _samples(draw: random.Random, level: float, within: float) -> list[float]:
    return [level * draw.lognormvariate(0, within) * (1 + (draw.random() < OUTLIERS)) for _ in range(BLOCK)]


def run_value(draw: random.Random, k: int, blocks: int, noise: Sequence[float]) -> tuple[bool, float]:
    """Whether the interval of a time holds the truth, and its width in percent."""
    prior = stats.prior_of(1e-4 if noise[1] > 10 else 1e-2)
    found = stats.run_interval(sessions(draw, k, blocks, noise, TRUE), prior)
    return found.low <= TRUE <= found.high, 50 * (found.high - found.low) / TRUE


def speedup(draw: random.Random, k: int, blocks: int, noise: Sequence[float]) -> tuple[bool, float]:
    """The same of a speedup of 3."""
    prior = stats.prior_of(1e-4 if noise[1] > 10 else 1e-2)
    base, case = (sessions(draw, k, blocks, noise, true) for true in (3 * TRUE, TRUE))
    found = stats.ratio_interval(list(zip(base, case, strict=True)), (prior, prior))
    return found.low <= 3 <= found.high, 50 * (found.high - found.low) / 3


def times(held: Callable[..., tuple[bool, float]], repeats: int) -> None:
    """A row for each noise and number of sessions, a column for each number of blocks."""
    print(f"| sessions / blocks / samples scatter by | sessions |{''.join(f' blocks: {b} |' for b in BLOCKS)}")
    print("|---|---|" + "---|" * len(BLOCKS))
    for noise in NOISES:
        for k in SESSIONS:
            cells = []
            for blocks in BLOCKS:
                draw = random.Random(SEED)
                found = [held(draw, k, blocks, noise) for _ in range(repeats)]
                share = 100 * sum(hit for hit, _ in found) / repeats
                cells.append(f"{share:.0f} %, +-{stats.median(width for _, width in found):.1f} %")
            scatter = " / ".join(f"{share:g}" for share in noise)
            print(f"| {scatter} % | {k} | {' | '.join(cells)} |", flush=True)


# ---------------------------------------------------------------- the threshold of a break-even


class Curve(NamedTuple):
    """Seconds of either side over the size, the size at which they are equal, and the sizes that a search may take."""

    name: str
    cpu_s: Callable[[float], float]
    gpu_s: Callable[[float], float]
    true: float
    ladder: Ladder


MATRICES, VECTORS = Ladder(low=64, high=8192), Ladder(low=1024, high=2**26)


def _steps_s(n: float) -> float:
    """Work in whole tiles of 64, as a GPU does it."""
    return 12e-6 + 2 * (64 * math.ceil(n / 64)) ** 3 / 2e13


def _crossing_of(cpu_s: Callable[[float], float], gpu_s: Callable[[float], float]) -> float:
    low, high = 16.0, 2.0**26
    for _ in range(80):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if cpu_s(middle) < gpu_s(middle) else (low, middle)
    return math.sqrt(low * high)


def _curve(
    name: str, cpu_s: Callable[[float], float], gpu_s: Callable[[float], float], ladder: Ladder
) -> Curve:
    return Curve(name, cpu_s, gpu_s, _crossing_of(cpu_s, gpu_s), ladder)


def _bent(name: str, below: float, above: float) -> Curve:
    """A ratio that rises with one power of the size up to the very crossing, and with another one beyond it."""
    true = 30_000.0

    def gpu_s(n: float) -> float:
        return 1e-5 * math.pow(n / true, 1 - (below if n < true else above))

    return Curve(name, lambda n: 1e-5 * n / true, gpu_s, true, VECTORS)


CURVES = (
    _curve("matmul", lambda n: 3e-6 + 2 * n**3 / 8e11, lambda n: 12e-6 + 16 * n**2 / 5e10 + 2 * n**3 / 4.5e13,
           MATRICES),
    _curve("vector", lambda n: 1e-6 + 12 * n / 4e10, lambda n: 1e-5 + 12 * n / 3e12, VECTORS),
    _curve("cache ends", lambda n: 1e-6 + 8 * min(n, 2**20) / 2e11 + 8 * max(n - 2**20, 0.0) / 2.5e10,
           lambda n: 25e-5 + 8 * n / 5e11, VECTORS),
    _curve("tiles", lambda n: 3e-6 + 2 * n**3 / 8e11, _steps_s, MATRICES),
    _bent("knee, steeper above", 0.5, 1.5),
    _bent("knee, flatter above", 1.5, 0.5),
)  # fmt: skip
SMOOTH = ("matmul", "vector")
SAMPLES = 2  # of a block
OF_CPU, OF_GPU = ("cpu", "tuned", "resident"), ("gpu", "tuned", "resident-waited")
Shape = Literal["normal", "heavy", "drift", "clock"]


class Noise(NamedTuple):
    """Standard deviations of ln(time): of samples, of blocks, from size to size, from session to session."""

    name: str
    samples: float = 0.03
    blocks: float = 0.05
    scatter: float = 0.0
    between: float = 0.0
    shape: Shape = "normal"


class Simulated:
    """What a run measures of one curve: a search in its first session, and all its sizes again in later ones."""

    def __init__(self, draw: random.Random, curve: Curve, noise: Noise) -> None:
        self._draw, self._curve, self._noise = draw, curve, noise
        self._levels: dict[int, tuple[float, ...]] = {}
        self._rows: dict[int, dict[curves.Slot, dict[int, list[float]]]] = {}
        self._samples: dict[int, dict[int, tuple[list[float], list[float]]]] = {}

    def run(self, sessions: int) -> None:
        """So many sessions."""
        for session in range(sessions):
            self._shift = [self._draw.lognormvariate(0, self._noise.between) for _ in range(2)]
            self._drift = [0.0, 0.0]
            if session == 0:
                self._search()
            else:
                self._measure(session, sorted(self._rows), BLOCKS_OF_SIZE)

    def _search(self) -> None:
        """As `search.BreakEvenSearch` does for an op that has one curve, and time for its threshold."""
        ladder, checked = self._curve.ladder, False
        *below, top = search.first_sizes(ladder)
        self._measure(0, below, search.GLANCE.blocks or 0)
        self._measure(0, [top], BLOCKS_OF_SIZE)
        for _ in range(search.MOST_STEPS):
            state = curves.state_of(self._rows, OF_GPU[::2], {OF_CPU[0]}, {})
            wanted = curves.asked(state, ladder, search.MOST_ASKED) if state.open(search.ANSWERED) else []
            if state.near and not checked:
                checked, places = True, curves.checks(state, ladder)
                wanted += places[:: -(-(-len(places) // search.MOST_CHECKS) or 1)]
            if not wanted:
                break
            self._measure(0, wanted, BLOCKS_OF_SIZE)

    def _measure(self, session: int, sizes: Sequence[int], blocks: int) -> None:
        for _, n, side in itertools.product(range(blocks), sizes, (0, 1)):
            seconds = (
                self._level(n)[side] * self._shift[side] * _of_block(self._draw, self._noise, self._drift, side)
            )
            block = [seconds * _of_sample(self._draw, self._noise) for _ in range(SAMPLES)]
            row = self._rows.setdefault(n, {}).setdefault((OF_CPU, OF_GPU)[side], {})
            row.setdefault(session, []).append(stats.median(block))
            self._samples.setdefault(n, {}).setdefault(session, ([], []))[side].extend(block)

    def _level(self, n: int) -> tuple[float, ...]:
        """Seconds of both sides at this size, in all sessions alike."""
        if n not in self._levels:
            sigma = self._noise.scatter / math.sqrt(2)
            self._levels[n] = tuple(
                side(n) * self._draw.lognormvariate(0, sigma) for side in (self._curve.cpu_s, self._curve.gpu_s)
            )
        return self._levels[n]

    @property
    def blocks(self) -> Timings:
        """By size and session the blocks of both sides."""
        return {n: {i: (row[OF_CPU][i], row[OF_GPU][i]) for i in row[OF_CPU]} for n, row in self._rows.items()}

    @property
    def samples(self) -> Timings:
        """The same of the sizes around the crossing, as samples that know nothing of blocks."""
        return {n: self._samples[n] for n in break_even.sizes_around(self.blocks)}


BLOCKS_OF_SIZE = search.BLOCKS.blocks or 0


def _of_block(draw: random.Random, noise: Noise, drift: list[float], side: int) -> float:
    if (
        noise.shape == "drift"
    ):  # half of the variance of the block before, from size to size as they are measured
        drift[side] = math.sqrt(0.5) * drift[side] + draw.gauss(0, noise.samples * math.sqrt(0.5))
        return math.exp(drift[side])
    if noise.shape == "clock":  # four blocks of ten at a clock that is a sixth slower
        return 1.2 if draw.random() < 0.4 else 1.0
    return draw.lognormvariate(0, noise.blocks)


def _of_sample(draw: random.Random, noise: Noise) -> float:
    if noise.shape == "heavy":  # Student's distribution with 3 degrees of freedom
        return math.exp(noise.samples * draw.gauss(0, 1) / math.sqrt(draw.gammavariate(1.5, 1 / 1.5)))
    return draw.lognormvariate(0, noise.samples)


# What is simulated: noise, numbers of sessions, whether the prior counts.
CELLS: tuple[tuple[Noise, tuple[int, ...], bool], ...] = (
    (Noise("blocks 2 %", 0.01, 0.02), (1, 3), False),
    (Noise("blocks 10 %", 0.03, 0.10), (1, 3, 5), False),
    (Noise("size to size 5 %", scatter=0.05), (1, 3), False),
    (Noise("size to size 15 %", scatter=0.15), (1, 3), False),
    (Noise("sessions 2 %", between=0.02), (1, 3, 5, 10), True),
    (Noise("sessions 5 %", between=0.05), (1, 3, 5, 10), True),
    (Noise("sizes 5 %, sessions 5 %", scatter=0.05, between=0.05), (1, 3, 5, 10), True),
    (Noise("sizes 15 %, sessions 5 %", scatter=0.15, between=0.05), (1, 3, 5, 10), True),
    (Noise("heavy tails, sessions 2 %", 0.05, 0.0, between=0.02, shape="heavy"), (1, 3, 5, 10), True),
    (Noise("drift, sessions 2 %", 0.05, between=0.02, shape="drift"), (1, 3, 5, 10), True),
    (Noise("two clocks, sessions 2 %", between=0.02, shape="clock"), (1, 3, 5, 10), True),
)
ALL_CURVES = ("blocks 2 %", "sessions 2 %", "sessions 5 %")  # elsewhere the smooth ones alone


class Tally:
    """Intervals of one method: how many hold the truth, how wide they are, how many have no end."""

    def __init__(self) -> None:
        self.held, self.widths, self.open = 0, list[float](), 0

    def add(self, found: Crossing | None, true: float) -> None:
        """One more."""
        if found is None or found.low is None or found.high is None:
            self.open += 1
            return
        self.held += found.low <= true <= found.high
        self.widths.append(found.high / found.low)

    def text(self) -> str:
        """Coverage of those with two ends, and their median width as high / low."""
        if not self.widths:
            return "- | - | -"
        return f"{100 * self.held / len(self.widths):.0f} % | {stats.median(self.widths):.2f} | {self.open}"


def thresholds(repeats: int) -> None:
    """A row for each curve, noise and number of sessions."""
    print(
        "| noise | prior | curve | sessions | before: holds | high / low | open | now: holds | high / low | open |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for noise, numbers, prior in CELLS:
        for curve in CURVES:
            if noise.name not in ALL_CURVES and curve.name not in SMOOTH:
                continue
            for k in numbers:
                draw, before, now = random.Random(SEED), Tally(), Tally()
                for _ in range(repeats):
                    simulated = Simulated(draw, curve, noise)
                    simulated.run(k)
                    local = break_even.local_crossing(simulated.blocks, stats.BOTH_USUAL if prior else None)
                    now.add(local and local.crossing, curve.true)
                    samples = simulated.samples
                    before.add(Before(samples).crossing() if samples else None, curve.true)
                cells = f"{noise.name} | {'on' if prior else 'off'} | {curve.name} | {k}"
                print(f"| {cells} | {before.text()} | {now.text()} |", flush=True)


class Before:
    """The bootstrap of a weighted line: sessions are drawn again from 5 on, then samples."""

    RESAMPLES, MOST_WEIGHT = 200, 4.0

    def __init__(self, timings: Timings) -> None:
        self._sizes = sorted(timings)
        self._timings = [timings[n] for n in self._sizes]
        self._x = [math.log(n) for n in self._sizes]
        variances = [
            sum(self._variance(sides) for sides in by_session.values()) / len(by_session) ** 2
            for by_session in self._timings
        ]
        floor = stats.median(variances) / self.MOST_WEIGHT
        self._weights = [1 / max(variance, floor) for variance in variances]

    def crossing(self) -> Crossing | None:
        """The root, with the 2.5 % and 97.5 % quantiles of its draws."""
        root = self._root([{i: self._ratio(s) for i, s in by.items()} for by in self._timings], None)
        if root is None:
            return None
        draw = random.Random(SEED)
        names = sorted(self._timings[0])
        drawn = [
            {i: self._drawn(draw, sides, self.RESAMPLES) for i, sides in by.items()} for by in self._timings
        ]
        roots = []
        for turn in range(self.RESAMPLES):
            again = len(names) >= stats.MIN_BOOTSTRAP_SESSIONS
            chosen = draw.choices(names, k=len(names)) if again else names
            roots.append(self._root([{i: values[turn] for i, values in by.items()} for by in drawn], chosen))
        known = sorted(value for value in roots if value is not None)
        tail = math.floor(self.RESAMPLES * stats.ALPHA / 2)
        rank, n = tail - (self.RESAMPLES - len(known)), math.exp(root)
        if rank < 0 or rank >= len(known):
            return Crossing(n, None, None)
        low, high = math.exp(known[rank]), math.exp(known[-1 - rank])
        return Crossing(n, min(low, 0.99 * n), max(high, 1.01 * n))

    def _root(self, rows: Sequence[dict[int, float]], chosen: Sequence[int] | None) -> float | None:
        middles = [stats.median([row[i] for i in (chosen or row)]) for row in rows]
        return stats.line_root(self._x, middles, self._weights)

    def _drawn(self, draw: random.Random, sides: break_even.Sides, count: int) -> list[float]:
        medians = []
        for samples in sides:
            values, weights = zip(*stats.median_distribution(samples), strict=True)
            medians.append(draw.choices(values, weights, k=count))
        return [math.log(a / b) for a, b in zip(*medians, strict=True)]

    def _ratio(self, sides: break_even.Sides) -> float:
        return math.log(stats.median(sides[0]) / stats.median(sides[1]))

    def _variance(self, sides: break_even.Sides) -> float:
        return sum((1.86 * stats.mad([math.log(v) for v in side])) ** 2 / len(side) for side in sides)


# ---------------------------------------------------------------- labels

# The interquartile range of a session's blocks / their median, and how many blocks a session has.
SPREADS = (0.05, 0.08, 0.12, 0.20, 0.30)
BLOCKS_OF_LABELS = (2, 4, 8)
QUARTILES = 1.349  # interquartile range / standard deviation


def labels(repeats: int) -> None:
    """How often a case is called noisy or worse, and unstable, where its blocks scatter so far."""
    print("| true spread | blocks | " + " | ".join(f"{k} session{'s' * (k > 1)}" for k in (1, 3, 5, 10)) + " |")
    print("|---|---|---|---|---|---|")
    for spread in SPREADS:
        for count in BLOCKS_OF_LABELS:
            cells = []
            for k in (1, 3, 5, 10):
                draw = random.Random(SEED)
                found = [_label(draw, k, count, spread) for _ in range(repeats)]
                noisy = sum("noisy" in marks or "unstable" in marks for marks in found)
                unstable = sum("unstable" in marks for marks in found)
                cells.append(f"{100 * noisy / repeats:.0f} / {100 * unstable / repeats:.0f} %")
            print(f"| {100 * spread:.0f} % | {count} | {' | '.join(cells)} |", flush=True)


def _label(draw: random.Random, k: int, count: int, spread: float) -> list[str]:
    blocks = {i: [draw.lognormvariate(0, spread / QUARTILES) for _ in range(count)] for i in range(k)}
    return [str(mark) for mark in noise_findings(blocks, blocks)]


def main() -> None:
    numbers = [int(word) for word in sys.argv[1:] if word.isdecimal()]
    repeats, parts = (numbers or [200])[0], [word for word in sys.argv[1:] if not word.isdecimal()]
    if not parts or "times" in parts:
        print(f"Time of a case, {5 * repeats} repeats:\n")
        times(run_value, 5 * repeats)
        print(f"\nSpeedup of 3, {repeats} repeats:\n")
        times(speedup, repeats)
    if not parts or "labels" in parts:
        print(f"\nNoisy or worse / unstable, {5 * repeats} repeats:\n")
        labels(5 * repeats)
    if not parts or "thresholds" in parts:
        print(f"\nBreak-even, {repeats} repeats:\n")
        thresholds(repeats)


if __name__ == "__main__":
    main()
