"""What only a live system tells: affinity and uname; and psutil's figures where there is no /proc."""

from __future__ import annotations

import os
import sys
from typing import Any

import msgspec

from gpubench.detect._fact import NOT_PROBED, derived, known, missing
from gpubench.detect._files import Files
from gpubench.detect._topology import CpuSet
from gpubench.model.facts import Fact


def affinity() -> Fact[CpuSet]:
    """CPUs on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return known(frozenset(os.sched_getaffinity(0)), "sched_getaffinity")
    try:
        import psutil

        return known(frozenset(psutil.Process().cpu_affinity()), "psutil")
    except Exception:  # macOS has no affinity, and a broken psutil must not end detection
        return NOT_PROBED if sys.platform != "darwin" else missing("unsupported", "psutil")


def completed(files: Files, allowed: Fact[CpuSet]) -> Files:
    """The files' facts with those of uname and, off Linux, of psutil."""
    uname = _uname()
    facts = {key: known(value, "uname") for key, value in uname.items() if value}
    files = files._replace(platform=msgspec.structs.replace(files.platform, **facts))
    if files.memory.total_bytes.status == "absent" and sys.platform != "linux":
        files = _from_psutil(files, allowed)
    return files


def _uname() -> dict[str, Any]:
    if hasattr(os, "uname"):
        told = os.uname()
        return {"os": told.sysname.lower(), "kernel": told.release, "arch": told.machine.lower()}
    import platform

    return {"os": platform.system().lower(), "kernel": platform.release(), "arch": platform.machine().lower()}


def _from_psutil(files: Files, allowed: Fact[CpuSet]) -> Files:
    try:
        import psutil

        memory, logical, cores = psutil.virtual_memory(), psutil.cpu_count(), psutil.cpu_count(logical=False)
    except Exception:  # see above
        return files
    total, free = known(memory.total, "psutil"), known(memory.available, "psutil")
    host = msgspec.structs.replace(
        files.memory, total_bytes=total, os_total_bytes=total, available_bytes=free, usable_bytes=free,
        limited_by=known("host", "psutil"),
    )  # fmt: skip
    count = known(logical, "psutil") if logical else missing("absent", "psutil")
    usable = derived(allowed, len) if allowed.value is not None else count
    cpu = msgspec.structs.replace(
        files.cpu, logical=count, cores=known(cores, "psutil") if cores else missing("absent", "psutil"),
        available=usable, affinity=files.cpu.affinity,
        limited_by=known("affinity" if usable is not count and usable.value != count.value else "online", "psutil"),
    )  # fmt: skip
    return files._replace(memory=host, cpu=cpu)
