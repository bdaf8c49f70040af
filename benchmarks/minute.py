"""Show how the stored runs of a machine scatter, and simulate how much a default run of it can decide.

Run: python benchmarks/minute.py FILE FILE [FILE ...] [--repeats 10] [--budgets 45,300] (some minutes; no GPU)

The files are default runs of one machine. The first table shows how much their times at the least size differ.
It divides the differences into a part that all ops of a run share and a part of each op. The second table is of
simulated runs of one session, with the real passes and the real verdict. Their true curves are pooled from the
files; their scatter and costs are constants, measured on H200 hosts. It shows three shares: of cells with an
answer, of break-evens within 2.25, and of intervals that contain the true one. An answer is a break-even within
a factor of 4, one side at all sizes, or about equal. It also shows when every op has been measured once, when
the ladder ends, and when the run ends.
"""

from __future__ import annotations

import argparse
import bisect
import math
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script, this file's own folder is there instead

from gpubench import curves, kernels
from gpubench.analysis import analyse
from gpubench.analysis.speedup import WIDEST_INTERVAL, BreakEven
from gpubench.analysis.thresholds import SHARP
from gpubench.curves import stats
from gpubench.measure.passes import Passes
from gpubench.measure.plan import Constraints, Series, Step, Target
from gpubench.measure.recorder import Recorder
from gpubench.result.case import Case
from gpubench.result.run import Block, Check, Measurement, Run
from gpubench.result.store import files

Key = tuple[str, str, str, str]  # the op, device, implementation and regime
SAMPLE_S = 1e-3


class Costs(NamedTuple):
    """The time of a run that is not spent in samples."""

    step_s: float  # seconds for each step
    case_s: float  # seconds for each case
    element_s: float  # seconds for each element of a size
    block_s: float  # seconds for each block
    start_s: float  # seconds before the first step
    end_s: float  # seconds after the last step
    launches: float  # number of launches of a case in addition to its samples


# The costs on an H200 host with 16 cores: `before` without, and `after` with launches and operands that are
# kept.
COSTS = {
    "before": Costs(0.06, 0.014, 1.5e-8, 1.5e-3, 7.5, 2.0, 3),
    "after": Costs(0.03, 0.012, 1e-9, 1.5e-3, 5.0, 2.0, 1.5),
}


class Scatter(NamedTuple):
    """How far ln(time) scatters, as standard deviations. Each field has three: for calls below 50 us, for calls
    from 50 us to 1 ms, and for longer calls."""

    # of a block; in the tail, TAIL_SHARE of the blocks, it is TAIL times as large
    block: tuple[float, float, float]
    size: tuple[float, float, float]  # of a case at one size from its smooth curve


# The scatter of the blocks of ten default runs and of one run of five minutes on H200 hosts. One block in seven
# is in the tail.
SCATTER: Mapping[curves.Kind, Scatter] = {
    "cpu": Scatter((0.11, 0.16, 0.13), (0.08, 0.12, 0.09)),
    "copied": Scatter((0.13, 0.075, 0.06), (0.08, 0.06, 0.06)),
    "queued": Scatter((0.08, 0.03, 0.015), (0.06, 0.04, 0.02)),
    "waited": Scatter((0.06, 0.06, 0.02), (0.045, 0.045, 0.02)),
}
TAIL_SHARE, TAIL = 0.15, 3.5
# The standard deviations of ln(time) of a contender in a session, and of a whole device in a step.
SESSION, TOGETHER = 0.05, 0.05
QUICK_S = 45.0
BANDWIDTH = 0.5  # the bandwidth of the smoothing of pooled curves, in ln(n)


def key_of(case: Case) -> Key:
    """Return the op, the device, the implementation and the regime of a case."""
    return (case.op, case.device_id, case.implementation, case.regime_id)


def block_values(run: Run) -> Iterator[tuple[Case, list[float]]]:
    """Yield each measured case that is neither a variant nor split between two devices, with the median seconds
    of each of its blocks."""
    for outcome in run.outcomes:
        if isinstance(outcome, Measurement) and not outcome.case.variant and not outcome.case.shared_with:
            blocks = [stats.median(block.wall_s[block.warmup :] or block.wall_s) for block in outcome.blocks]
            if blocks:
                yield outcome.case, blocks


# ---------------------------------------------------------------- scatter


def correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the correlation of pairs of deviations, whose means are 0."""
    xx, yy = math.fsum(x * x for x, _ in pairs), math.fsum(y * y for _, y in pairs)
    return math.fsum(x * y for x, y in pairs) / math.sqrt(xx * yy) if xx * yy > 0 else 0.0


def scatter(runs: Sequence[Run]) -> None:
    """Print how much the times of the runs differ, for each device, implementation and regime that at least
    five ops have. The columns are the difference at the smallest common size, the ops' common part, each op's
    own, and the correlation with the next larger size."""
    times: dict[Key, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for case, blocks in block_values(run):
            times[key_of(case)][case.params["n"]].append(stats.median(blocks))
    print(
        "| device | implementation | regime | ops | runs differ by | in common | each op's own | low with middle |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for place in sorted({key[1:] for key in times}):
        away: list[list[list[float]]] = []  # by op, low and middle, run: ln(time) from the mean of the runs
        for key in (key for key in times if key[1:] == place):
            low, middle, *_ = [n for n, values in sorted(times[key].items()) if len(values) == len(runs)] + [
                0,
                0,
            ]
            both = [times[key].get(n, []) for n in (low, middle)]
            if all(len(values) == len(runs) for values in both):
                away.append([_from_mean([math.log(value) for value in values]) for values in both])
        if len(away) < 5:
            continue
        low_ones = [op[0] for op in away]
        common = [math.fsum(op[i] for op in low_ones) / len(low_ones) for i in range(len(runs))]
        freedom = len(runs) - 1
        total = math.sqrt(math.fsum(x * x for op in low_ones for x in op) / freedom / len(low_ones))
        shared = math.sqrt(math.fsum(x * x for x in common) / freedom)
        own = math.sqrt(max(0.0, total**2 - shared**2))
        together = correlation([pair for op in away for pair in zip(*op, strict=True)])
        cells = [*place, str(len(away)), *(f"{100 * x:.0f} %" for x in (total, shared, own)), f"{together:.2f}"]
        print(f"| {' | '.join(cells)} |")


def _from_mean(values: Sequence[float]) -> list[float]:
    mean = math.fsum(values) / len(values)
    return [value - mean for value in values]


# ---------------------------------------------------------------- search


class Truth:
    """Smooth curves of ln(seconds) over ln(n) through the times of all runs."""

    def __init__(self, runs: Sequence[Run]) -> None:
        pooled: dict[Key, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for run in runs:
            for case, blocks in block_values(run):
                pooled[key_of(case)][case.params["n"]].append(math.log(stats.median(blocks)))
        self._curves = {key: _smooth(points) for key, points in pooled.items()}
        self.ops = sorted({key[0] for key in self._curves})

    def __contains__(self, key: Key) -> bool:
        return key in self._curves

    def seconds(self, key: Key, n: float) -> float:
        """Return the seconds of a launch at size n, by linear interpolation between neighbouring points of the
        curve."""
        x, y = self._curves[key]
        at = math.log(n)
        if len(x) == 1:
            return math.exp(y[0])
        i = min(max(bisect.bisect_right(x, at) - 1, 0), len(x) - 2)
        return math.exp(y[i] + (y[i + 1] - y[i]) * (at - x[i]) / (x[i + 1] - x[i]))

    def crossing(self, curve: BreakEven) -> float | None:
        """Return the last size at which the device begins to be faster. Return None if it never begins, or if it is
        slower at the largest size."""
        base = [key for key in self._curves if key[0] == curve.op and key[3] == "resident"]
        case = [
            key for key in self._curves if (key[0], key[1], key[3]) == (curve.op, curve.device_id, curve.regime)
        ]
        size, won = None, True
        for i in range(600):
            n = curve.first * (curve.last / curve.first) ** (i / 599)
            wins = min(self.seconds(key, n) for key in base) >= min(self.seconds(key, n) for key in case)
            size = n if wins and not won else None if won and not wins else size
            won = wins
        return size


def _smooth(points: Mapping[int, Sequence[float]]) -> tuple[list[float], list[float]]:
    sizes = sorted(points)
    x = [math.log(n) for n in sizes]
    y = [math.fsum(points[n]) / len(points[n]) for n in sizes]
    smooth = []
    for at, middle in zip(x, y, strict=True):
        near = [
            len(points[n]) * math.exp(-(((b - at) / BANDWIDTH) ** 2) / 2) for n, b in zip(sizes, x, strict=True)
        ]
        if sum(weight > 1e-4 for weight in near) < 3:
            smooth.append(middle)
            continue
        intercept, slope = _fit_line(x, y, [max(weight, 1e-9) for weight in near])
        smooth.append(intercept + slope * at)
    return x, smooth


def _fit_line(x: Sequence[float], y: Sequence[float], w: Sequence[float]) -> tuple[float, float]:
    """Return the (intercept, slope) of the least-squares line with the weights `w`."""
    total = math.fsum(w)
    mean_x = math.fsum(a * b for a, b in zip(w, x, strict=True)) / total
    mean_y = math.fsum(a * b for a, b in zip(w, y, strict=True)) / total
    variance = math.fsum(a * (b - mean_x) ** 2 for a, b in zip(w, x, strict=True))
    if variance <= 0:
        raise ValueError("a line needs two different x")
    slope = math.fsum(a * (b - mean_x) * (c - mean_y) for a, b, c in zip(w, x, y, strict=True)) / variance
    return mean_y - slope * mean_x, slope


class Minute:
    """One simulated default run. No step is executed. The simulated clock advances by the estimated time of each step,
    and by the real time of choosing the step (`choosing_clock`)."""

    choosing_clock = staticmethod(time.process_time)

    def __init__(
        self, truth: Truth, like: Run, seed: int, budget_s: float, costs: Costs, *, whole: bool = False
    ) -> None:
        self._truth, self._draw, self._costs = truth, random.Random(seed), costs
        settings = msgspec.structs.replace(like.settings, budget_s=budget_s)
        devices = [device for device in like.devices if device.kind in ("cpu", "gpu")]
        implementations = ("tuned", "library")
        scope = Constraints(
            tuple(Target(device, implementations) for device in devices), like.selection, None,
            keep=lambda case: key_of(case) in truth, settings=settings,
        )  # fmt: skip
        empty = msgspec.structs.replace(
            like, outcomes=[], warnings=[], settings=settings, sessions=like.sessions[:1], devices=devices
        )
        self._recorder = Recorder(empty, lambda run: None)
        self._now, self._sessions, self._sizes = costs.start_s, dict[Key, float](), dict[str, float]()
        self._kinds = {device.id: device.kind for device in devices}
        series = [Series(kernels.load(op), "float32") for op in truth.ops]
        self._passes = Passes(
            series, scope, self._recorder, lambda: budget_s - costs.end_s - self._now, whole=whole
        )
        self.answered_s = self.ladder_s = self.choosing_s = 0.0
        self.steps = 0

    def run(self) -> Run:
        """Simulate all steps, and return the run."""
        answered: set[str] = set()
        steps = self._passes.steps()
        while True:
            chosen = self.choosing_clock()
            step = next(steps, None)
            chosen = self.choosing_clock() - chosen
            self.choosing_s += chosen
            self._now += chosen
            if step is None:
                break
            self.steps += 1
            began = self._now
            self._measure(step)
            self._passes.note_times(step)
            self._passes.took(step, self._now - began)
            if not answered.issuperset(item.op.name for item in step.workloads):
                answered |= {item.op.name for item in step.workloads}
                self.answered_s = self._now
            if step.ends:
                self.ladder_s = self._now
        return self._recorder.run

    @property
    def ended_s(self) -> float:
        """The simulated second at which the run ends."""
        return self._now + self._costs.end_s

    def _measure(self, step: Step) -> None:
        self._now += self._costs.step_s
        together: dict[str, float] = {}
        for item in step.workloads:
            self._now += item.n * self._costs.element_s
            for case in item.cases:
                luck = together.setdefault(case.device_id, self._draw.gauss(0, 1))
                self._case(case, step.purpose.blocks or 4, luck)

    def _case(self, case: Case, blocks: int, luck: float) -> None:
        key, draw, costs = key_of(case), self._draw, self._costs
        true_s = self._truth.seconds(key, case.params["n"])
        scatter = SCATTER[curves.kind_of(self._kinds[case.device_id], case.regime_id)]
        place = bisect.bisect((50e-6, 1e-3), true_s)
        own = self._sessions.setdefault(key, draw.gauss(0, SESSION)) + self._size(case, scatter.size[place])
        if self._recorder.outcome(case.id) is None:
            check = Check(ok=True, max_error=0, limit=1, scale="value")
            self._recorder.put(Measurement(id=case.id, case=case, flops=1, bytes=1, op_hash="0", check=check))
        repeat = max(1, math.ceil(SAMPLE_S / true_s))
        for number in range(blocks):
            deviation = scatter.block[place] * (TAIL if draw.random() < TAIL_SHARE else 1.0)
            level = true_s * math.exp(luck * TOGETHER + own + draw.gauss(0, deviation))
            wall_s = [level * draw.lognormvariate(0, 0.03) for _ in range(2)]
            self._recorder.add(
                case.id, blocks=Block(session=0, round=number, position=0, repeat=repeat, wall_s=wall_s)
            )
        launch_s = true_s * (case.calls or 1)
        samples_s = 3 * max(SAMPLE_S, launch_s) if launch_s < 0.02 else launch_s
        self._now += costs.case_s + costs.launches * launch_s + blocks * (samples_s + costs.block_s)

    def _size(self, case: Case, deviation: float) -> float:
        """Return a random deviation of ln(time) for a case at its size."""
        own = self._sizes.setdefault(case.id, self._draw.gauss(0, deviation))
        # Half of the variance is drawn once for each case, the other half at each call, as if new memory were
        # allocated.
        return (own + self._draw.gauss(0, deviation)) / math.sqrt(2)


MOST_EQUAL = 6  # the largest number of cells for which `about equal` counts as an answer


def width(curve: BreakEven) -> float:
    """Return high / low of a break-even, or 1 if one side is faster at all sizes of the op. Return infinity if an end
    is unknown, or if one side is faster but the run ended at a smaller size."""
    if curve.verdict in ("all-sizes", "no-size"):
        return 1.0 if curve.last >= kernels.load(curve.op).sizes.high else math.inf
    return curve.hi / curve.lo if curve.lo and curve.hi else math.inf


def count_answers(rows: Sequence[BreakEven]) -> int:
    """Return the number of cells with an answer: a break-even within a factor of 4, one side at all sizes, or about
    equal. At most MOST_EQUAL cells count as about equal."""
    equal = sum(curve.reason == "about-equal" and width(curve) > WIDEST_INTERVAL for curve in rows)
    return sum(width(curve) <= WIDEST_INTERVAL for curve in rows) + min(equal, MOST_EQUAL)


def simulate(runs: Sequence[Run], repeats: int, budgets: Sequence[float], engines: Sequence[str]) -> None:
    """Print a row for each engine and budget: how many cells have an answer, how good the break-evens are, and
    how long it takes. A budget above the default is used completely."""
    truth = Truth(runs)
    # within 2.25: break-evens within this factor; held: intervals that contain the true one; off by: its
    # distance from guesses (median and 90 %); then seconds until every op has an answer, the ladder ends and the
    # run ends; choosing: the time to choose a step.
    print("| engine | budget | answered | within 2.25 | held | off by | every op | ladder | end | choosing |")
    print("|---" * 10 + "|")
    for engine in engines:
        for budget_s in budgets:
            print(
                f"| {engine} | {budget_s:g} s | {_row(truth, runs[0], repeats, budget_s, engine)} |", flush=True
            )


def _row(truth: Truth, like: Run, repeats: int, budget_s: float, engine: str) -> str:
    figures: list[tuple[float, ...]] = []
    held: list[bool] = []
    off: list[float] = []
    for seed in range(repeats):
        minute = Minute(truth, like, seed, budget_s, COSTS[engine], whole=budget_s > QUICK_S)
        cells = analyse.analyse(minute.run()).break_even
        widths = [width(curve) for curve in cells]
        spans = [w for w in widths if 1 < w < math.inf]
        figures.append(
            (
                count_answers(cells) / len(cells), sum(w <= SHARP for w in spans) / len(spans),
                minute.answered_s, minute.ladder_s, minute.ended_s, minute.choosing_s / max(minute.steps, 1),
            )
        )  # fmt: skip
        sure = [curve for curve, w in zip(cells, widths, strict=True) if 1 < w < math.inf]
        held += _hold_truth(truth, sure)
        off += [
            abs(math.log(curve.n / n))
            for curve in sure
            if curve.n is not None and (n := truth.crossing(curve)) is not None
        ]
    answered, sharp, *times = (math.fsum(values) / repeats for values in zip(*figures, strict=True))
    guesses = " and ".join(f"{math.exp(stats.quantile(sorted(off), q)):.2f}" for q in (0.5, 0.9))
    columns = [
        f"{100 * answered:.0f} %",
        f"{100 * sharp:.0f} %",
        f"{100 * sum(held) / len(held):.0f} %",
        guesses,
    ]
    columns += [f"{value:.1f}" for value in times[:-1]] + [f"{1e3 * times[-1]:.0f} ms"]
    return " | ".join(columns)


def _hold_truth(truth: Truth, rows: Sequence[BreakEven]) -> list[bool]:
    return [
        (n := truth.crossing(curve)) is not None
        and curve.lo is not None
        and curve.hi is not None
        and curve.lo <= n <= curve.hi
        for curve in rows
    ]


def main() -> None:
    """Print both tables for the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--budgets", default="45,300")
    parser.add_argument("--engines", default=",".join(COSTS))
    options = parser.parse_args()
    runs = [files.load(name) for name in options.files]
    scatter(runs)
    print()
    budgets = [float(value) for value in options.budgets.split(",")]
    simulate(runs, options.repeats, budgets, options.engines.split(","))


if __name__ == "__main__":
    main()
