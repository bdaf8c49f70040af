"""Which size next? For ops without given sizes: a coarse ladder, then bisection of the break-even brackets.

Pure functions of what was measured; the runner pays the time. Only the sign of CPU against GPU is used here:
search timings decide where to look, the estimate is made from the file (report/analysis).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gpubench.model.op import Dtype, Ladder, Op

COARSE_SIZES = 3
# A bracket this narrow is left to interpolation (measurement.md section 10, step 3).
NARROW = 1.25
# Launches of one case in one session beside its samples: calibration, warm-up, checks, parts.
EXTRA_LAUNCHES = 12

Slot = tuple[str, str, str]  # device id, form, regime id
Times = Mapping[int, Mapping[Slot, float]]  # size -> slot -> seconds per launch


def coarse_sizes(ladder: Ladder) -> list[int]:
    """`COARSE_SIZES` sizes of the ladder, spread evenly, both ends included."""
    sizes = ladder.sizes()
    last = COARSE_SIZES - 1
    return sorted({sizes[round(i * (len(sizes) - 1) / last)] for i in range(COARSE_SIZES)})


def bracket(times: Times, slot: Slot, cpu: Sequence[Slot]) -> tuple[int, int] | None:
    """(largest measured size at which the slot loses to the best CPU slot, next measured size).

    None if it never loses, or still loses at the largest size.
    """
    sizes = sorted(n for n, row in times.items() if slot in row and any(c in row for c in cpu))
    loses = [n for n in sizes if times[n][slot] >= min(times[n][c] for c in cpu if c in times[n])]
    if not loses or loses[-1] == sizes[-1]:
        return None
    return loses[-1], sizes[sizes.index(loses[-1]) + 1]


def next_size(ladder: Ladder, times: Times, cpu: Sequence[Slot], gpu: Sequence[Slot]) -> int | None:
    """The geometric middle of the widest bracket that is not narrow yet, or None."""
    brackets = [found for slot in gpu if (found := bracket(times, slot, cpu))]
    for low, high in sorted(brackets, key=lambda b: b[1] / b[0], reverse=True):
        middle = _round(ladder, math.sqrt(low * high))
        if high / low > NARROW and low < middle < high and middle not in times:
            return middle
    return None


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
