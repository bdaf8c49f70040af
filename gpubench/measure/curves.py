"""Which size next? For ops without given sizes: a coarse ladder, then bisection of the break-even brackets.

Pure functions of what was measured; the runner pays the time. Only the side (CPU or GPU, or too
close to tell) is used here: it decides where to look, the estimate is made from the file (report/analysis).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

from gpubench import break_even
from gpubench.measure.plan import EXTRA_LAUNCHES, Series
from gpubench.model.op import Ladder

COARSE_SIZES = 3
LADDER_SHARE = 0.7
# A curve that loses at its largest size is followed upwards by this factor.
STRIDE = 4
NEARLY = 0.5
# A bracket wider than this gives no verdict.
WIDE = 4.0
# A bracket this narrow is left to the estimate.
NARROW = 1.25
# Timings a side: at each size of the grid, and at each size of the bisection.
GRID_TIMINGS, BISECTION_TIMINGS = 5, 7

Slot = tuple[str, str, str]  # device id, form (variants take no part in the search), regime id
Curve = tuple[str, str]  # device id, regime id


class Span(NamedTuple):
    """An estimate with its interval: seconds per launch, or a ratio of two of them."""

    low: float
    middle: float
    high: float


Times = Mapping[int, Mapping[Slot, Span]]  # size -> slot -> seconds per launch


def coarse_sizes(ladder: Ladder) -> list[int]:
    """`COARSE_SIZES` sizes of the ladder, spread evenly from its low end to `LADDER_SHARE` of its steps.

    The large sizes cost most; they are added only where the GPU still loses (see `next_step`).
    """
    sizes = ladder.sizes()
    last = round((len(sizes) - 1) * LADDER_SHARE)
    return sorted({sizes[round(i * last / (COARSE_SIZES - 1))] for i in range(COARSE_SIZES)})


def ratios(times: Times, cpu: Collection[str]) -> dict[Curve, dict[int, Span]]:
    """Fastest CPU form over fastest form of each GPU device and regime, by size; above 1 the GPU wins."""
    found: dict[Curve, dict[int, Span]] = {}
    for n, row in times.items():
        baseline = min((s for slot, s in row.items() if slot[0] in cpu), key=_middle, default=None)
        if baseline is None:
            continue
        for device, _, regime in row:
            if device not in cpu:
                best = min(
                    (s for slot, s in row.items() if (slot[0], slot[2]) == (device, regime)), key=_middle
                )
                found.setdefault((device, regime), {})[n] = Span(
                    baseline.low / best.high, baseline.middle / best.middle, baseline.high / best.low
                )
    return found


def bracket(curve: Mapping[int, Span]) -> tuple[int, int] | None:
    """(largest size at which the GPU surely loses, smallest size above it at which it surely wins).

    None if it never surely loses, or never wins above. Sizes between them are ties: noise hides the side.
    """
    loses = [n for n, ratio in curve.items() if ratio.high < 1]
    wins = [n for n, ratio in curve.items() if ratio.low > 1 and n > max(loses, default=n)]
    return (max(loses), min(wins)) if wins else None


def bisection(ladder: Ladder, ratios: Mapping[int, float]) -> int | None:
    """The geometric middle of the bracket of these ratios by size; None without a bracket, or once it is narrow."""
    ends = break_even.bracket(ratios)
    if ends is None or ends[1] <= ends[0] * NARROW:
        return None
    middle = _round(ladder, math.sqrt(ends[0] * ends[1]))
    return middle if ends[0] < middle < ends[1] else None


def settled(curve: Mapping[int, Span]) -> bool:
    """Whether the curve surely changes sides once at most, and then to a win: else no size is its break-even."""
    sides = [ratio.low > 1 for _, ratio in sorted(curve.items()) if ratio.low > 1 or ratio.high < 1]
    changes = [after for before, after in itertools.pairwise(sides) if before != after]
    return len(changes) <= 1 and all(changes)


def next_step(
    ladder: Ladder, times: Times, cpu: Collection[str], leave: Collection[Curve] = (), *, narrow: bool = True
) -> tuple[float, int] | None:
    """(urgency, size) of the most urgent size to measure next for any curve but those to `leave`, or None.

    Without `narrow` only wide gaps count: fresh timings settle the others, ties inside included, with less.

    A bracket asks for the geometric middle of its widest gap, with that gap's width high / low as urgency: ties
    inside a bracket end the search there too. A curve that does not win at its largest size and rises asks for
    a larger one, as urgently as a gap of that width.
    """
    steps = []
    for name, curve in ratios(times, cpu).items():
        if name in leave:
            continue
        ends = bracket(curve)
        top = max(curve)
        if ends is not None:
            gap = _widest_gap([n for n in sorted(curve) if ends[0] <= n <= ends[1]])
            middle = _round(ladder, math.sqrt(gap[0] * gap[1]))
            if gap[1] / gap[0] > (NARROW if narrow else WIDE) and gap[0] < middle < gap[1]:
                # Ties inside leave small gaps in a bracket that is still too wide for a verdict.
                undecided = ends[1] / ends[0] > WIDE
                steps.append((max(gap[1] / gap[0], WIDE if undecided else 0.0), middle))
        elif curve[top].low <= 1 and top < ladder.high and _rising(curve):
            # Above half the CPU's speed the next stride is likely to hold the crossing.
            near = curve[top].middle > NEARLY
            steps.append((float(STRIDE**2 if near else STRIDE), min(top * STRIDE, ladder.high)))
    return max(steps, default=None)


def _widest_gap(sizes: list[int]) -> tuple[int, int]:
    """The neighbouring sizes that lie furthest apart, as a ratio."""
    return max(itertools.pairwise(sizes), key=lambda pair: pair[1] / pair[0])


def _rising(curve: Mapping[int, Span]) -> bool:
    last, *before = (curve[n].middle for n in sorted(curve, reverse=True))
    return not before or last > before[0]


def contenders(times: Times, n: int, cpu: Collection[str]) -> set[Slot]:
    """The slots worth measuring at `n`: of each bracket that holds `n` the forms, on both sides, that are
    fastest at its ends. Above the largest size so far: those of the curves that do not win there."""
    wanted: set[Slot] = set()
    for (device, regime), curve in ratios(times, cpu).items():
        ends = bracket(curve)
        top = max(curve)
        if ends is None and n > top and curve[top].low <= 1:
            ends = (top, n)
        if ends is not None and ends[0] < n <= ends[1]:
            for end in set(ends) & curve.keys():
                row = times[end]
                wanted.add(_fastest(row, [slot for slot in row if slot[0] in cpu]))
                wanted.add(_fastest(row, [slot for slot in row if (slot[0], slot[2]) == (device, regime)]))
    return wanted


def _fastest(row: Mapping[Slot, Span], slots: list[Slot]) -> Slot:
    return min(slots, key=lambda slot: row[slot].middle)


def _middle(span: Span) -> float:
    return span.middle


def predicted_seconds(
    series: Series, n: int, times: Times, elapsed: Mapping[int, float], samples: int
) -> float:
    """What measuring size `n` will take, from the nearest smaller size: its own time plus the extra launches."""
    smaller = [m for m in elapsed if m < n and m in times]
    if not smaller:
        return max(elapsed.values(), default=0.0)
    nearest = max(smaller)
    growth = work(series, n) / max(work(series, nearest), 1)
    longer = sum(span.middle for span in times[nearest].values()) * (growth - 1) * (samples + EXTRA_LAUNCHES)
    return elapsed[nearest] + longer


def affordable(
    series: Series, n: int, times: Times, elapsed: Mapping[int, float], samples: int, limit_s: float
) -> int | None:
    """The largest size up to `n` that is predicted to fit `limit_s`, at least twice the largest measured one."""
    measured = max((m for m in elapsed if m in times), default=None)
    while predicted_seconds(series, n, times, elapsed, samples) > limit_s:
        n = _round(series.ladder, n / 2)
        if measured is None or n < 2 * measured:
            return None
    return n


def work(series: Series, n: int) -> int:
    """What a launch must do: the larger of its operations and its bytes."""
    params = series.params(n)
    if series.op.fits(params) is not None:
        return 0
    return max(series.op.flops(params), series.op.bytes(params, series.dtype))


def _round(ladder: Ladder, n: float) -> int:
    granule = ladder.granule if n >= 2 * ladder.granule else 1
    return min(max(round(n / granule) * granule, ladder.low), ladder.high)
