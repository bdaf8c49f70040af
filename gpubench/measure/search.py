"""Which size next? For ops without given sizes: a coarse ladder, then bisection of the break-even brackets.

Pure functions of what was measured; the runner pays the time. Only the sign of CPU against GPU is used here:
search timings decide where to look, the estimate is made from the file (report/analysis).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from gpubench.model.op import Dtype, Ladder, Op

COARSE_SIZES = 3
# A bracket this narrow is left to interpolation (measurement.md section 10, step 3).
NARROW = 1.25
# Launches of one case in one session beside its samples: calibration, warm-up, checks, parts.
EXTRA_LAUNCHES = 12

Slot = tuple[str, str, str]  # device id, form, regime id
Curve = tuple[str, str]  # device id, regime id
Times = Mapping[int, Mapping[Slot, float]]  # size -> slot -> seconds per launch


def coarse_sizes(ladder: Ladder) -> list[int]:
    """`COARSE_SIZES` sizes of the ladder, spread evenly, both ends included."""
    sizes = ladder.sizes()
    last = COARSE_SIZES - 1
    return sorted({sizes[round(i * (len(sizes) - 1) / last)] for i in range(COARSE_SIZES)})


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


def widest(ladder: Ladder, times: Times, cpu: Collection[str]) -> tuple[float, int] | None:
    """(high / low, geometric middle) of the widest bracket that is not narrow yet, or None."""
    found = None
    for curve in ratios(times, cpu).values():
        ends = bracket(curve)
        if ends is None:
            continue
        low, high = ends
        middle = _round(ladder, math.sqrt(low * high))
        if high / low > NARROW and low < middle < high and middle not in curve:
            found = max(found or (0.0, 0), (high / low, middle))
    return found


def contenders(times: Times, n: int, cpu: Collection[str]) -> set[Slot]:
    """The slots worth measuring at `n`: all CPU forms, and of each bracket that holds `n` the forms that
    are fastest at its ends."""
    wanted = {slot for row in times.values() for slot in row if slot[0] in cpu}
    for (device, regime), curve in ratios(times, cpu).items():
        ends = bracket(curve)
        if ends is not None and ends[0] < n < ends[1]:
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
