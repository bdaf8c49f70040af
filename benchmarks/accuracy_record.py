"""The file format of `benchmarks/accuracy.py`: readings of one kernel by gpubench and by another tool in
turns."""

from __future__ import annotations

import statistics
from typing import Literal

import msgspec

# `hot`, `cold` and `wall` are gpubench's clocks. The other two are in no result file; they explain differences.
# `single` is one warm launch, and `cold - events` is the cold clock minus the seconds that two events measure
# around nothing.
Clock = Literal["hot", "cold", "single", "wall", "cold - events"]
EVENTS = "nothing, cold"  # the floor that `cold - events` subtracts
Reading = dict[Clock, float]  # seconds per launch
LONG_S = 20e-6
LONG_SHARE = 0.02
SHORT_SHARE, SHORT_S = 0.05, 0.5e-6


class Pairing(msgspec.Struct, frozen=True):
    """The times of one kernel by another tool and by one clock of gpubench."""

    op: str  # name of the op
    n: int  # size of the op
    library: str  # library that made the kernel
    tool: str  # name of the tool
    clock: Clock  # gpubench's clock
    ours_s: list[float]  # seconds per launch by gpubench, for each turn
    theirs_s: list[float]  # seconds per launch by the tool, for each turn
    judged: bool = True  # whether the tool claims to measure the same as this clock
    host_s: float | None = None  # host's seconds per launch, if the tool reports them

    @property
    def ours(self) -> float:
        """The median of gpubench's seconds over the turns."""
        return statistics.median(self.ours_s)

    @property
    def theirs(self) -> float:
        """The median of the tool's seconds over the turns."""
        return statistics.median(self.theirs_s)

    @property
    def excess(self) -> float:
        """The median over the turns of gpubench's time / the tool's time - 1."""
        return statistics.median(a / b for a, b in zip(self.ours_s, self.theirs_s, strict=True)) - 1

    @property
    def agrees(self) -> bool | None:
        """Whether the excess is within the target, or None if there is no target."""
        # ncu judges short kernels, because it reads the start and end of the kernel itself. All other tools judge
        # long kernels, because they include their events, or the host's time for a launch.
        if not self.judged or (self.ours > LONG_S) == self.tool.startswith("ncu"):
            return None
        if self.ours > LONG_S:
            return abs(self.excess) <= LONG_SHARE
        return abs(self.excess) <= SHORT_SHARE or abs(self.ours - self.theirs) <= SHORT_S


class Agreement(msgspec.Struct, frozen=True):
    """One measurement with all tools."""

    measured_at: str  # time of the measurement
    device: str  # name of the GPU
    driver: str | None  # version of its driver; None if unknown
    versions: dict[str, str]  # versions of the tools and libraries, by name
    absent: dict[str, str]  # reason for each tool without pairings
    floors: dict[str, float]  # seconds of launches without work, by name
    pairings: list[Pairing]  # times
    name: str = "gpubench-accuracy"  # name of the file format
    schema_version: int = 1  # version of the file format
