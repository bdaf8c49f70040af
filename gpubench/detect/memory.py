"""Host memory: what is there, what is free, and what the control groups leave of it."""

from __future__ import annotations

import re

from gpubench.detect import _cgroup, _numa
from gpubench.detect._cgroup import Groups
from gpubench.detect._fact import derived, known, lost, missing
from gpubench.detect._root import Root
from gpubench.model.facts import Fact
from gpubench.model.machine import Memory

MEMINFO = "/proc/meminfo"


def acquire(root: Root, groups: Groups, gpu_nodes: Fact[frozenset[int]]) -> Memory:
    """All in bytes; `gpu_nodes` are the NUMA nodes that hold GPU memory (absent: none)."""
    reading = root.read(MEMINFO)
    table = reading.fact(parse)
    os_total = _entry(table, "MemTotal")
    gpu_total, gpu_free = _gpu_memory(root, gpu_nodes)
    total = _less(os_total, gpu_total)
    available = _less(_available(table), gpu_free)
    bounds = _cgroup.memory(root, groups)
    usable, limited_by = _usable(available, bounds)
    return Memory(
        total_bytes=total, os_total_bytes=os_total, gpu_numa_bytes=gpu_total, available_bytes=available,
        limit_bytes=bounds.limit, usable_bytes=usable, limited_by=limited_by,
        swap_total_bytes=_entry(table, "SwapTotal"),
    )  # fmt: skip


def parse(text: str) -> dict[str, int]:
    """Bytes by name from /proc/meminfo. Raises ValueError if MemTotal is not among them."""
    table = {key: int(amount) * 1024 for key, amount in re.findall(r"^(\w+):\s+(\d{1,15}) kB$", text, re.M)}
    if not table.get("MemTotal"):
        raise ValueError("no MemTotal")
    return table


def _entry(table: Fact[dict[str, int]], key: str) -> Fact[int]:
    if table.value is None:
        return lost(table)
    return known(table.value[key], MEMINFO) if key in table.value else missing("absent", MEMINFO)


def _available(table: Fact[dict[str, int]]) -> Fact[int]:
    told = _entry(table, "MemAvailable")
    if told.value is not None or table.value is None:
        return told
    parts = [table.value.get(key) for key in ("MemFree", "Buffers", "Cached")]
    if parts[0] is None:
        return told
    return known(
        sum(part or 0 for part in parts), MEMINFO, "MemFree + Buffers + Cached: the kernel is too old to say"
    )


def _gpu_memory(root: Root, gpu_nodes: Fact[frozenset[int]]) -> tuple[Fact[int], Fact[int]]:
    if gpu_nodes.value is None:
        return lost(gpu_nodes), lost(gpu_nodes)
    found = [_numa.memory(root, node) for node in sorted(gpu_nodes.value)]
    source = f"{_numa.NODES}/node*/meminfo"
    if any(node.total.value is None for node in found):
        return missing("invalid", source), missing("invalid", source)
    free = [node.free.value or 0 for node in found]
    return known(sum(node.total.value or 0 for node in found), source), known(sum(free), source)


def _less(whole: Fact[int], part: Fact[int]) -> Fact[int]:
    """`whole` without `part`, where absent means nothing to subtract."""
    if whole.value is None or part.status == "absent":
        return whole
    if part.value is None:
        return missing("invalid", part.source, "memory of a GPU is counted as RAM, and its size cannot be read")
    rest = whole.value - part.value
    return derived(whole, lambda _: rest) if rest >= 0 else missing("invalid", part.source)


def _usable(available: Fact[int], bounds: _cgroup.MemoryBounds) -> tuple[Fact[int], Fact[str]]:
    if available.value is None:
        return lost(available), lost(available)
    if bounds.room.status == "absent":
        return available, known("host", available.source or "")
    if bounds.room.value is None:
        return lost(bounds.room), lost(bounds.room)
    tight = bounds.room if bounds.room.value < available.value else available
    return tight, known("cgroup" if tight is bounds.room else "host", tight.source or "")
