"""The file that `benchmarks/accuracy.py` stores: readings of one kernel by gpubench and another tool, in turns."""

from __future__ import annotations

import statistics
from typing import Literal

import msgspec

# `hot`, `cold` and `wall` are gpubench's clocks. Two more are here to explain, and are not in a result file: `single`,
# one warm launch, and `cold - events`, less what a pair of events shows around nothing.
Clock = Literal["hot", "cold", "single", "wall", "cold - events"]
EVENTS = "nothing, cold"  # the floor that is meant
Reading = dict[Clock, float]  # seconds per launch
LONG_S = 20e-6
LONG_SHARE = 0.02
SHORT_SHARE, SHORT_S = 0.05, 0.5e-6


class Pairing(msgspec.Struct, frozen=True):
    """One tool beside one clock of gpubench on one op and size; entry i of both lists was taken in turn i.

    `judged`: the tool claims to measure what this clock measures. `library` owns the kernel. `host_s` is what the tool
    itself says of the host's time per launch.
    """

    op: str
    n: int
    library: str
    tool: str
    clock: Clock
    ours_s: list[float]
    theirs_s: list[float]
    judged: bool = True
    host_s: float | None = None

    @property
    def ours(self) -> float:
        """Seconds: the median over turns."""
        return statistics.median(self.ours_s)

    @property
    def theirs(self) -> float:
        """Seconds: the median over turns."""
        return statistics.median(self.theirs_s)

    @property
    def excess(self) -> float:
        """Ours over theirs, less 1: the median over turns, each against its own neighbour."""
        return statistics.median(a / b for a, b in zip(self.ours_s, self.theirs_s, strict=True)) - 1

    @property
    def agrees(self) -> bool | None:
        """Within the target; None where there is no target.

        Long kernels are held against the tools that programs are timed with, short ones against ncu alone, which reads
        the kernel's own start and end: all others include their events, or the host's time for a launch.
        """
        if not self.judged or (self.ours > LONG_S) == self.tool.startswith("ncu"):
            return None
        if self.ours > LONG_S:
            return abs(self.excess) <= LONG_SHARE
        return abs(self.excess) <= SHORT_SHARE or abs(self.ours - self.theirs) <= SHORT_S


class Agreement(msgspec.Struct, frozen=True):
    """One measurement of all. `absent` says why a tool gave nothing; `floors` are seconds of launches without work."""

    measured_at: str
    device: str
    driver: str | None
    versions: dict[str, str]
    absent: dict[str, str]
    floors: dict[str, float]
    pairings: list[Pairing]
    name: str = "gpubench-accuracy"
    schema_version: int = 1
