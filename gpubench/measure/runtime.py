"""What measuring a workload needs from the run around it, and the counts for whoever watches."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from gpubench.measure.crew import Crew
from gpubench.measure.events import Sink
from gpubench.measure.recorder import Recorder
from gpubench.model.result import Block, Settings


class Progress:
    """Counts for whoever watches: cases begun, finished and planned, and the time that is left."""

    def __init__(self, cases: int, sessions: int, remaining: Callable[[], float | None]) -> None:
        self.number = 0
        self.finished = 0
        self.cases = cases
        self.sessions = sessions
        self.remaining = remaining


class Runtime(msgspec.Struct, frozen=True):
    """What measuring a workload needs from the run around it; `repeats` has blocks of cases whose counts are set."""

    crew: Crew
    recorder: Recorder
    settings: Settings
    sink: Sink
    progress: Progress
    session: int
    out_of_budget: Callable[[], bool]
    device_kind: Callable[[str], str]
    check_only: bool = False
    left_s: Callable[[], float] = lambda: float("inf")
    repeats: Mapping[str, Block] = {}
