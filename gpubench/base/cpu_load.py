"""Foreign load: what part of the CPUs that we may use others took meanwhile.

Two readings of counters that the system keeps in any case, one before and one after: nothing runs beside a sample.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import NamedTuple

# The part of the CPUs' time that others may take without disturbing (docs/measuring.md).
BUSY_SHARE = 0.05
# Linux' states that add up to all time: `guest` is part of `user`. Windows counts `interrupt` and `dpc` in `system`.
_STATES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
# The system counts in ticks of up to 16 ms; in less time than this a few of them decide about a twentieth.
LONG_ENOUGH_S = 2.0


class CpuTimes(NamedTuple):
    """Seconds since some moment: the wall's, and per CPU that we may use, added up: all states, busy, stolen; and
    those of ours, of this process and of its workers."""

    at_s: float
    total_s: float
    busy_s: float
    steal_s: float
    ours_s: float


class Share(NamedTuple):
    """Shares of the usable CPUs' time, from 0 to 1; None where it was not measured, or too shortly to tell."""

    foreign: float | None
    steal: float | None


def read() -> CpuTimes | None:
    """The counters now; None on a system that does not keep them."""
    try:
        import psutil

        every = psutil.cpu_times(percpu=True)
        usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(every))
        cpus = [every[i] for i in usable if i < len(every)]
        own = psutil.Process().cpu_times()
        return CpuTimes(
            at_s=time.perf_counter(),
            total_s=sum(getattr(cpu, name, 0.0) for cpu in cpus for name in _STATES),
            busy_s=sum(cpu.user + getattr(cpu, "nice", 0.0) + cpu.system for cpu in cpus),
            steal_s=sum(getattr(cpu, "steal", 0.0) for cpu in cpus),
            ours_s=own.user
            + own.system
            + getattr(own, "children_user", 0.0)
            + getattr(own, "children_system", 0.0)
            + _of_living_children(),
        )
    except Exception:  # a psutil that is broken, or built for another system, costs this one figure
        return None


def _of_living_children() -> float:
    """Seconds that workers have used which have not ended yet. Linux lists them by thread; elsewhere every process is
    looked at."""
    import psutil

    listed = [file.read_text() for file in Path("/proc/self/task").glob("*/children")]
    numbers = [int(number) for text in listed for number in text.split()]
    taken = 0.0
    for child in [psutil.Process(number) for number in numbers] if listed else psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            taken += sum(child.cpu_times()[:4])  # its own, and of its children that have ended
    return taken


def unread() -> None:
    """For devices on a scripted clock, which no load disturbs."""


def between(before: CpuTimes | None, after: CpuTimes | None) -> Share:
    """The load between two readings.

    In a short time only a large share can be seen in ticks: in half the time one twice as large.
    """
    shares = in_ticks(before, after)
    if before is None or after is None or shares == Share(None, None):
        return shares
    elapsed_s = after.at_s - before.at_s
    if elapsed_s >= LONG_ENOUGH_S:
        return shares
    least = BUSY_SHARE * LONG_ENOUGH_S / elapsed_s
    return Share(*(share if share is not None and share > least else None for share in shares))


def in_ticks(before: CpuTimes | None, after: CpuTimes | None) -> Share:
    """The load between two readings, though a few ticks may be all of it."""
    if before is None or after is None:
        return Share(None, None)
    total_s = after.total_s - before.total_s
    if total_s <= 0 or after.at_s <= before.at_s:  # counters that stand still, as some sandboxes have them
        return Share(None, None)
    foreign_s = (after.busy_s - before.busy_s) - (after.ours_s - before.ours_s)
    return Share(_share(foreign_s, total_s), _share(after.steal_s - before.steal_s, total_s))


def _share(seconds: float, total_s: float) -> float:
    return round(min(max(seconds / total_s, 0.0), 1.0), 4)
