"""The sizes from which the GPU won on this machine, between the measured sizes: short words on saved results.

The report judges noise as well (its verdicts may be "undecided"); where timings are clear, both say the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gpubench import stats
from gpubench.model.machine import MeasuredBreakEven


class Key(NamedTuple):
    """What is compared between devices; `params` are those beside the size, as text."""

    op: str
    params: str
    dtype: str
    regime: str
    n: int


class Times(NamedTuple):
    """Best form against best form, in seconds per launch; `backend` is the GPU's."""

    cpu_s: float | None
    gpu_s: float | None
    hybrid_s: float | None
    backend: str


class Point(NamedTuple):
    """One size that both sides have been measured at."""

    n: int
    cpu_s: float
    gpu_s: float
    backend: str

    @property
    def log_ratio(self) -> float:
        """Above 0 where the GPU wins."""
        return math.log(self.cpu_s / self.gpu_s)


def break_evens(table: Mapping[Key, Times]) -> Iterator[MeasuredBreakEven]:
    """Per op, other params, dtype and regime: the size from which the GPU wins at all larger ones."""
    curves: dict[tuple[str, str, str, str], list[Point]] = {}
    for key, found in sorted(table.items()):
        if found.cpu_s and found.gpu_s:
            point = Point(key.n, found.cpu_s, found.gpu_s, found.backend)
            curves.setdefault((key.op, key.params, key.dtype, key.regime), []).append(point)
    for (op, params, dtype, regime), curve in curves.items():
        size, at, note = _judge(curve)
        yield MeasuredBreakEven(
            op=op, params=params, dtype=dtype, regime=regime, backend=at.backend, size=size, gpu_s=at.gpu_s,
            cpu_s=at.cpu_s, note=note,
        )  # fmt: skip


def _judge(curve: Sequence[Point]) -> tuple[int | None, Point, str | None]:
    """The size, the measured point that shows it, and what else to know."""
    if curve[-1].log_ratio <= 0:
        return None, curve[-1], f"never up to n = {curve[-1].n}"
    crossing = stats.last_crossing([math.log(point.n) for point in curve], [point.log_ratio for point in curve])
    if crossing is None:
        return curve[0].n, curve[0], "the smallest size measured"
    size = round(math.exp(crossing))
    return size, next(point for point in curve if point.n >= size), None
