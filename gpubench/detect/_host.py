"""Is a result of this machine? Told from files alone, in milliseconds: no probe, no GPU."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from gpubench.detect import _files, _portable
from gpubench.detect._root import Root
from gpubench.model.machine import Machine

# The kernel's own share of RAM changes from boot to boot.
_MEMORY_TOLERANCE = 0.05


def differences(there: Machine, here: Machine | None = None) -> Mapping[str, str]:
    """In what the host `there` differs from `here` (None: this machine), in words by name; empty for the same.

    Looks at the CPU model, the usable CPUs and the memory. A fact that either side lacks speaks for nothing.
    """
    mine = here or this_host()
    found = {}
    for name, ours, theirs in (
        ("CPU", mine.cpu.model.value, there.cpu.model.value),
        ("usable CPUs", mine.cpu.available.value, there.cpu.available.value),
    ):
        if ours is not None and theirs is not None and ours != theirs:
            found[name] = f"{theirs}, here {ours}"
    ours_bytes, theirs_bytes = mine.memory.total_bytes.value, there.memory.total_bytes.value
    if ours_bytes and theirs_bytes and abs(theirs_bytes / ours_bytes - 1) > _MEMORY_TOLERANCE:
        found["memory"] = f"{theirs_bytes / 2**30:.0f} GiB, here {ours_bytes / 2**30:.0f} GiB"
    return found


@cache
def this_host() -> Machine:
    """CPU and memory of this machine, from files."""
    affinity = _portable.affinity()
    files = _portable.completed(_files.acquire(Root(), affinity), affinity)
    return Machine(cpu=files.cpu, memory=files.memory)
