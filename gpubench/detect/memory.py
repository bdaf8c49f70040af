"""RAM: total, what a control group leaves of it, and its NUMA nodes."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from gpubench.detect import cgroup
from gpubench.detect.cgroup import Groups
from gpubench.detect.records import ABSENT, derived, known, lost, missing
from gpubench.detect.root import Root, list_form, parse_list, parse_mask
from gpubench.detect.vendors import NumaNodes
from gpubench.result.machine import Fact, MachineWarning, Memory, Numa, NumaNode

MEMINFO = "/proc/meminfo"


def read_memory(root: Root, groups: Groups, gpu_nodes: NumaNodes) -> Memory:
    """All in bytes; `gpu_nodes` are the NUMA nodes that hold GPU memory."""
    reading = root.read(MEMINFO)
    table = reading.fact(parse_meminfo)
    os_total = _entry(table, "MemTotal")
    gpu_total, gpu_free = _gpu_memory(root, gpu_nodes)
    total = _less(os_total, gpu_total)
    available = _less(_available(table), gpu_free)
    bounds = cgroup.memory(root, groups)
    usable, limited_by = _usable(available, bounds)
    return Memory(
        total_bytes=total, os_total_bytes=os_total, gpu_numa_bytes=gpu_total, available_bytes=available,
        limit_bytes=bounds.limit, usable_bytes=usable, limited_by=limited_by,
        swap_total_bytes=_entry(table, "SwapTotal"),
    )  # fmt: skip


def parse_meminfo(text: str) -> dict[str, int]:
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
    reported = _entry(table, "MemAvailable")
    if reported.value is not None or table.value is None:
        return reported
    parts = [table.value.get(key) for key in ("MemFree", "Buffers", "Cached")]
    if parts[0] is None:
        return reported
    return known(
        sum(part or 0 for part in parts), MEMINFO, "MemFree + Buffers + Cached: the kernel is too old to say"
    )


def _gpu_memory(root: Root, gpu_nodes: NumaNodes) -> tuple[Fact[int], Fact[int]]:
    if gpu_nodes.unread is not None:
        unread = missing("invalid", gpu_nodes.unread.source)
        return unread, unread
    if not gpu_nodes.known:
        return ABSENT, ABSENT
    found = [read_node_memory(root, node) for node in sorted(gpu_nodes.known)]
    source = f"{NUMA_NODES}/node*/meminfo"
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


def _usable(available: Fact[int], bounds: cgroup.MemoryBounds) -> tuple[Fact[int], Fact[str]]:
    if available.value is None:
        return lost(available), lost(available)
    if bounds.room.status == "absent":
        return available, known("host", available.source or "")
    if bounds.room.value is None:
        return lost(bounds.room), lost(bounds.room)
    tight = bounds.room if bounds.room.value < available.value else available
    return tight, known("cgroup" if tight is bounds.room else "host", tight.source or "")


NUMA_NODES = "/sys/devices/system/node"


class NodeMemory(NamedTuple):
    """MemTotal and MemFree of one node, in bytes."""

    total: Fact[int]
    free: Fact[int]


def read_numa(root: Root, groups: Groups, gpu_nodes: NumaNodes) -> tuple[Numa, list[MachineWarning]]:
    """All nodes; `gpu_nodes` are those that a GPU calls its memory."""
    ids = _ids(root)
    allowed = derived(_cut(cgroup.nodes(root, groups), ids), sorted)
    if ids.value is None:
        return Numa(ids=ids, allowed_ids=allowed), []
    cpus = {node: _cpus(root, node) for node in ids.value}
    if _overlap([fact.value for fact in cpus.values() if fact.value]):
        text = "NUMA nodes share CPUs: the firmware's table is wrong, so no nodes are reported."
        return (Numa(ids=missing("invalid", f"{NUMA_NODES}/node*/cpulist"), allowed_ids=allowed),
                [MachineWarning(code="NUMA_OVERLAP", text=text, refs=[NUMA_NODES])])  # fmt: skip
    nodes = [
        NumaNode(
            id=node,
            cpus=derived(cpus[node], list_form),
            memory_bytes=read_node_memory(root, node).total,
            kind=_kind(node, cpus[node], gpu_nodes),
        )
        for node in ids.value
    ]
    return Numa(ids=ids, allowed_ids=allowed, nodes=nodes), []


def _cut(allowed: Fact[frozenset[int]], ids: Fact[list[int]]) -> Fact[frozenset[int]]:
    """An older cpuset may name nodes that are not there."""
    if allowed.value is None or ids.value is None:
        return allowed
    inside = allowed.value & frozenset(ids.value)
    return derived(allowed, lambda _: inside) if inside else missing("invalid", allowed.source)


def read_node_memory(root: Root, node: int) -> NodeMemory:
    """The two lines of nodeN/meminfo that count."""
    path = f"{NUMA_NODES}/node{node}/meminfo"
    reading = root.read(path)
    total, free = (reading.fact(functools.partial(_line, key=key)) for key in ("MemTotal", "MemFree"))
    return NodeMemory(total, free)


def _ids(root: Root) -> Fact[list[int]]:
    online = root.fact(f"{NUMA_NODES}/online", lambda text: sorted(parse_list(text)) or None)
    if online.value is not None:
        return online
    folders = sorted(int(n[4:]) for n in root.names(NUMA_NODES) or () if re.fullmatch(r"node\d{1,5}", n))
    return known(folders, NUMA_NODES) if folders else online


def _cpus(root: Root, node: int) -> Fact[frozenset[int]]:
    listed = root.fact(f"{NUMA_NODES}/node{node}/cpulist", parse_list)
    if listed.value is not None:
        return listed
    mask = root.fact(f"{NUMA_NODES}/node{node}/cpumap", parse_mask)
    return mask if mask.value is not None or listed.status == "absent" else listed


def _overlap(sets: list[frozenset[int]]) -> bool:
    return sum(map(len, sets)) != len(frozenset().union(*sets))


def _kind(node: int, cpus: Fact[frozenset[int]], gpu_nodes: NumaNodes) -> Fact[str]:
    if node in gpu_nodes.known:
        return known("gpu", "/proc/driver/nvidia/gpus/*/numa_status")
    if cpus.value:
        return known("dram", cpus.source or "")
    return lost(gpu_nodes.unread) if gpu_nodes.unread else ABSENT  # it may be that GPU's


def _line(text: str, key: str) -> int:
    found = re.search(rf"^Node \d+ {key}:\s+(\d{{1,15}}) kB$", text, re.M)
    if not found:
        raise ValueError(f"no {key}")
    return int(found[1]) * 1024
