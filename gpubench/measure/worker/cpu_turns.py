"""Each block of a GPU begins on another CPU, so that blocks are observations of their own.

Where CPUs run at two speeds, as those of a virtual machine do whose hardware others share, a thread that stays where it
is meets one of them for a second and more: four blocks in a row then say what one does. On another CPU each they agree
no more than by chance (docs/decisions/0020-blocks-begin-on-other-cpus.md). A kernel of the CPU runs on threads of a
pool, where a thread that is moved takes the CPU of another one: it is left alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
from collections.abc import Sequence

from gpubench.detect.facts import parse_list


class CpuTurns:
    """CPUs like the one that this thread is on, each once before any comes again, by an order of the `seed` that is
    another one every time: in one order alone a case could meet the same CPU in each of its rounds. `alike` are the
    lists of the machine (`0-7,16-23`) whose members have the same cores or the same memory beside them: to leave them
    would change what is measured."""

    def __init__(self, alike: Sequence[str], seed: str) -> None:
        self._allowed = os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else set[int]()
        here = current_cpu()
        own = [members for members in map(parse_list, alike) if here in members]
        self._cpus = sorted(self._allowed.intersection(*own)) if here is not None else []
        self._random = random.Random(seed)
        self._next: list[int] = []

    def next(self) -> None:
        """Move this thread to the next CPU, then leave it to the system again: who else comes there may drive it away.
        Nothing happens on a system that moves no threads, or with one CPU."""
        if len(self._cpus) < 2:
            return
        cpu = self._draw()
        with contextlib.suppress(OSError):  # it went offline, or the allowed ones changed
            os.sched_setaffinity(0, {cpu})
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, self._allowed)

    def _draw(self) -> int:
        if len(self._next) < 2:  # the last one stays, so that none comes twice in a row
            last = self._next
            fresh = self._random.sample(self._cpus, len(self._cpus))
            if last and fresh[-1] == last[0]:
                fresh.reverse()
            self._next = [*fresh, *last]
        return self._next.pop()


def current_cpu() -> int | None:
    """Return the CPU that this thread runs on. Returns None where the C library does not tell."""
    try:
        found = int(ctypes.CDLL(None).sched_getcpu())
    except (OSError, AttributeError, TypeError):
        return None
    return found if found >= 0 else None
