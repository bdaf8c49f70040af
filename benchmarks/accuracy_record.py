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
    """One tool beside one clock of gpubench on one op and size. Entry i of both lists was taken in turn i.

    `judged`: the tool claims to measure the same as this clock. `library` owns the kernel. `host_s` is the host's time
    per launch as the tool itself reports it.
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
        """The median over turns of gpubench's seconds."""
        return statistics.median(self.ours_s)

    @property
    def theirs(self) -> float:
        """The median over turns of the tool's seconds."""
        return statistics.median(self.theirs_s)

    @property
    def excess(self) -> float:
        """The median over turns of gpubench's time / the tool's time of the same turn, less 1."""
        return statistics.median(a / b for a, b in zip(self.ours_s, self.theirs_s, strict=True)) - 1

    @property
    def agrees(self) -> bool | None:
        """Whether the excess is within the target. None if there is no target.

        Long kernels are compared with the tools that time programs. Short kernels are compared with ncu alone, which
        reads the kernel's own start and end: all other tools include their events, or the host's time for a launch.
        """
        if not self.judged or (self.ours > LONG_S) == self.tool.startswith("ncu"):
            return None
        if self.ours > LONG_S:
            return abs(self.excess) <= LONG_SHARE
        return abs(self.excess) <= SHORT_SHARE or abs(self.ours - self.theirs) <= SHORT_S


class Agreement(msgspec.Struct, frozen=True):
    """One measurement with all tools. `absent` says why a tool gave nothing; `floors` are seconds of launches without
    work."""

    measured_at: str
    device: str
    driver: str | None
    versions: dict[str, str]
    absent: dict[str, str]
    floors: dict[str, float]
    pairings: list[Pairing]
    name: str = "gpubench-accuracy"
    schema_version: int = 1
