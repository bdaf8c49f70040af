"""Which size next? For ops without given sizes: a coarse ladder, then bisection of the break-even brackets.

Pure functions of what was measured; the runner pays the time. Only the sign of CPU against GPU is used here:
search timings decide where to look, the estimate is made from the file (report/analysis).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from gpubench.model.op import Dtype, Ladder, Op

COARSE_SIZES = 3
COARSE_SHARE = 0.7
# A curve that loses at its largest size is followed upwards by this factor.
STRIDE = 4
# A bracket this narrow is left to interpolation (measurement.md section 10, step 3).
NARROW = 1.25
# Launches of one case in one session beside its samples: calibration, warm-up, checks, parts.
EXTRA_LAUNCHES = 12

Slot = tuple[str, str, str]  # device id, form, regime id
Curve = tuple[str, str]  # device id, regime id
Times = Mapping[int, Mapping[Slot, float]]  # size -> slot -> seconds per launch


def coarse_sizes(ladder: Ladder) -> list[int]:
    """`COARSE_SIZES` sizes of the ladder, spread evenly from its low end to `COARSE_SHARE` of its steps.

    The large sizes cost most; they are added only where the GPU still loses (see `next_step`).
    """
    sizes = ladder.sizes()
    last = round((len(sizes) - 1) * COARSE_SHARE)
    return sorted({sizes[round(i * last / (COARSE_SIZES - 1))] for i in range(COARSE_SIZES)})


def ratios(times: Times, cpu: Collection[str]) -> dict[Curve, dict[int, float]]:
    """Fastest CPU form over fastest form of each GPU device and regime, by size; above 1 the GPU wins."""
    found: dict[Curve, dict[int, float]] = {}
    for n, row in times.items():
        baseline = min((seconds for slot, seconds in row.items() if slot[0] in cpu), default=None)
        if baseline is None:
            continue
        for device, _, regime in row:
            if device not in cpu:
                best = min(s for slot, s in row.items() if (slot[0], slot[2]) == (device, regime))
                found.setdefault((device, regime), {})[n] = baseline / best
    return found


def bracket(curve: Mapping[int, float]) -> tuple[int, int] | None:
    """(largest measured size at which the GPU loses, next measured size).

    None if it never loses, or still loses at the largest size.
    """
    sizes = sorted(curve)
    loses = [n for n in sizes if curve[n] <= 1]
    if not loses or loses[-1] == sizes[-1]:
        return None
    return loses[-1], sizes[sizes.index(loses[-1]) + 1]


def next_step(ladder: Ladder, times: Times, cpu: Collection[str]) -> tuple[float, int] | None:
    """(urgency, size) of the most urgent size to measure next, or None.

    A bracket asks for its geometric middle, with its width high / low as urgency. A curve that loses at its
    largest size and still rises asks for a larger one, as urgently as a bracket of that width.
    """
    steps = []
    for curve in ratios(times, cpu).values():
        ends = bracket(curve)
        top = max(curve)
        if ends is not None:
            low, high = ends
            middle = _round(ladder, math.sqrt(low * high))
            if high / low > NARROW and low < middle < high and middle not in curve:
                steps.append((high / low, middle))
        elif curve[top] <= 1 and top < ladder.high and _rising(curve):
            steps.append((float(STRIDE), min(top * STRIDE, ladder.high)))
    return max(steps, default=None)


def _rising(curve: Mapping[int, float]) -> bool:
    *_, before, last = (curve[n] for n in sorted(curve)) if len(curve) > 1 else (0.0, curve[max(curve)])
    return last > before


def contenders(times: Times, n: int, cpu: Collection[str]) -> set[Slot]:
    """The slots worth measuring at `n`: all CPU forms, and of each bracket that holds `n` the forms that
    are fastest at its ends. Above the largest size so far: the fastest forms of the curves that lose there."""
    wanted = {slot for row in times.values() for slot in row if slot[0] in cpu}
    for (device, regime), curve in ratios(times, cpu).items():
        ends = bracket(curve) or (max(curve),)
        if ends[0] < n < ends[-1] or (len(ends) == 1 and ends[0] < n and curve[ends[0]] <= 1):
            for end in ends:
                row = {s: t for s, t in times[end].items() if (s[0], s[2]) == (device, regime)}
                wanted.add(min(row, key=lambda slot: row[slot]))
    return wanted


def predicted_seconds(
    op: Op, n: int, dtype: Dtype, times: Times, elapsed: Mapping[int, float], samples: int
) -> float:
    """What measuring size `n` will take, from the nearest smaller size: its own time plus the extra launches."""
    smaller = [m for m in elapsed if m < n and m in times]
    if not smaller:
        return max(elapsed.values(), default=0.0)
    nearest = max(smaller)
    growth = work(op, n, dtype) / max(work(op, nearest, dtype), 1)
    longer = sum(times[nearest].values()) * (growth - 1) * (samples + EXTRA_LAUNCHES)
    return elapsed[nearest] + longer


def affordable(
    op: Op, n: int, dtype: Dtype, times: Times, elapsed: Mapping[int, float], samples: int, limit_s: float
) -> int | None:
    """The largest size up to `n` that is predicted to fit `limit_s`, at least twice the largest measured one."""
    measured = max((m for m in elapsed if m in times), default=None)
    while predicted_seconds(op, n, dtype, times, elapsed, samples) > limit_s:
        n = _round(op.sizes, n / 2)
        if measured is None or n < 2 * measured:
            return None
    return n


def work(op: Op, n: int, dtype: Dtype) -> int:
    """What a launch must do: the larger of its operations and its bytes."""
    return max(op.flops({"n": n}), op.bytes({"n": n}, dtype))


def _round(ladder: Ladder, n: float) -> int:
    granule = ladder.granule if n >= 2 * ladder.granule else 1
    return min(max(round(n / granule) * granule, ladder.low), ladder.high)
