"""How far times scatter: what is expected of a kind of call, and the points of a curve that blocks of times give.

Standard deviations are those of ln(seconds). The expected ones come from ten stored default runs and a run of five
minutes on three virtual machines (docs/statistics.md).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from gpubench.curves.stats import clean_sessions

Kind = Literal["cpu", "waited", "queued", "copied"]
Blocks = Mapping[int, Sequence[Sequence[float]]]  # size -> sessions -> seconds of each block


class Scatter(NamedTuple):
    """Expected standard deviations of calls below 50 us, below 1 ms, and longer."""

    short: float
    middle: float
    long: float

    def of(self, log_seconds: float) -> float:
        """The one for a call that takes exp(`log_seconds`)."""
        return self.short if log_seconds < LOG_SHORT else self.middle if log_seconds < LOG_LONG else self.long


LOG_SHORT, LOG_LONG = math.log(50e-6), math.log(1e-3)
# From block to block of one case in one session.
BLOCK: Mapping[Kind, Scatter] = {
    "cpu": Scatter(0.15, 0.20, 0.15), "copied": Scatter(0.15, 0.09, 0.09), "queued": Scatter(0.12, 0.05, 0.03),
    "waited": Scatter(0.09, 0.09, 0.03),
}  # fmt: skip
# What a case keeps to itself in a session: where its memory lies, its alignment, what its size does to caches.
CASE: Mapping[Kind, Scatter] = {
    "cpu": Scatter(0.11, 0.18, 0.11), "copied": Scatter(0.13, 0.077, 0.077), "queued": Scatter(0.07, 0.05, 0.02),
    "waited": Scatter(0.055, 0.055, 0.03),
}  # fmt: skip
# What shifts a whole curve from one session to the next.
OFFSET: Mapping[Kind, float] = {"cpu": 0.055, "waited": 0.055, "queued": 0.06, "copied": 0.06}
# The expected scatter counts as much as so many blocks that were seen.
PRIOR_DEGREES = 4
# A block further off than so many expected deviations counts no more than one that lies there.
FARTHEST = 2.5


class Point(NamedTuple):
    """One size of a curve: ln n, the mean of ln(seconds) and its variance."""

    x: float
    y: float
    variance: float


def kind_of(device_kind: str, regime: str) -> Kind:
    """The kind of a call on a device of this kind (`cpu`, or any other) in a regime, by its id."""
    if device_kind == "cpu":
        return "cpu"
    if regime.startswith("transfer"):
        return "copied"
    return "queued" if regime == "resident-queued" else "waited"


def points(kind: Kind, blocks: Blocks) -> list[Point]:
    """One point for each size that has a block, ascending. Blocks that were interrupted are left out."""
    result = list[Point]()
    for n in sorted(blocks):
        sessions = [session for session in _log_sessions(blocks[n]) if session]
        if sessions:
            result.append(_point(kind, n, sessions))
    return result


def _log_sessions(sessions: Sequence[Sequence[float]]) -> list[list[float]]:
    """ln(seconds) of the blocks of each session that nothing interrupted."""
    return [[math.log(value) for value in session] for session in clean_sessions(sessions)]


def _point(kind: Kind, n: int, sessions: Sequence[Sequence[float]]) -> Point:
    means = [statistics.fmean(session) for session in sessions]
    y = statistics.fmean(means)
    expected = BLOCK[kind].of(y)
    squares = sum(
        (value - mean) ** 2 for session, mean in zip(sessions, means, strict=True) for value in session
    )
    degrees = sum(len(session) - 1 for session in sessions)
    seen = min(squares, degrees * (FARTHEST * expected) ** 2)
    block = (PRIOR_DEGREES * expected**2 + seen) / (PRIOR_DEGREES + degrees)
    per_session = statistics.fmean(1 / len(session) for session in sessions)
    return Point(math.log(n), y, (CASE[kind].of(y) ** 2 + block * per_session) / len(sessions))


def offset_variance(kind: Kind, blocks: Blocks) -> float:
    """The variance of the offset of a whole curve: the expected one of a single session, mixed with how far the
    sessions lie apart over all sizes that they share."""
    apart: dict[int, list[float]] = {}
    count = max((len(sessions) for sessions in blocks.values()), default=1)
    for sessions in blocks.values():
        logs = _log_sessions(sessions)
        if len(logs) == count and all(logs):
            means = [statistics.fmean(session) for session in logs]
            middle = statistics.fmean(means)
            for i, mean in enumerate(means):
                apart.setdefault(i, []).append(mean - middle)
    expected = OFFSET[kind] ** 2
    squares = sum(statistics.fmean(values) ** 2 for values in apart.values()) if count > 1 else 0.0
    return (PRIOR_DEGREES * expected + squares) / (PRIOR_DEGREES + count - 1) / count
