"""NUMA nodes, and GPU memory that the kernel shows as nodes."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from gpubench.detect import _cgroup, _sets
from gpubench.detect._cgroup import Groups
from gpubench.detect._fact import ABSENT, derived, known, missing
from gpubench.detect._root import Root
from gpubench.model.facts import Fact
from gpubench.model.machine import MachineWarning, Numa, NumaNode

NODES = "/sys/devices/system/node"


class NodeMemory(NamedTuple):
    """MemTotal and MemFree of one node, in bytes."""

    total: Fact[int]
    free: Fact[int]


def acquire(root: Root, groups: Groups, gpu_nodes: frozenset[int]) -> tuple[Numa, list[MachineWarning]]:
    """All nodes; `gpu_nodes` are those that a GPU calls its memory."""
    ids = _ids(root)
    allowed = derived(_cut(_cgroup.nodes(root, groups), ids), sorted)
    if ids.value is None:
        return Numa(ids=ids, allowed_ids=allowed), []
    cpus = {node: _cpus(root, node) for node in ids.value}
    if _overlap([fact.value for fact in cpus.values() if fact.value]):
        text = "NUMA nodes share CPUs: the firmware's table is wrong, so no nodes are reported."
        return (Numa(ids=missing("invalid", f"{NODES}/node*/cpulist"), allowed_ids=allowed),
                [MachineWarning(code="NUMA_OVERLAP", text=text, refs=[NODES])])  # fmt: skip
    nodes = [
        NumaNode(
            id=node,
            cpus=derived(cpus[node], _sets.list_form),
            memory_bytes=memory(root, node).total,
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


def memory(root: Root, node: int) -> NodeMemory:
    """The two lines of nodeN/meminfo that count."""
    path = f"{NODES}/node{node}/meminfo"
    reading = root.read(path)
    total, free = (reading.fact(functools.partial(_line, key=key)) for key in ("MemTotal", "MemFree"))
    return NodeMemory(total, free)


def _ids(root: Root) -> Fact[list[int]]:
    online = root.fact(f"{NODES}/online", lambda text: sorted(_sets.parse_list(text)) or None)
    if online.value is not None:
        return online
    folders = sorted(int(n[4:]) for n in root.names(NODES) or () if re.fullmatch(r"node\d{1,5}", n))
    return known(folders, NODES) if folders else online


def _cpus(root: Root, node: int) -> Fact[frozenset[int]]:
    listed = root.fact(f"{NODES}/node{node}/cpulist", _sets.parse_list)
    if listed.value is not None:
        return listed
    mask = root.fact(f"{NODES}/node{node}/cpumap", _sets.parse_mask)
    return mask if mask.value is not None or listed.status == "absent" else listed


def _overlap(sets: list[frozenset[int]]) -> bool:
    return sum(map(len, sets)) != len(frozenset().union(*sets))


def _kind(node: int, cpus: Fact[frozenset[int]], gpu_nodes: frozenset[int]) -> Fact[str]:
    if node in gpu_nodes:
        return known("gpu", "/proc/driver/nvidia/gpus/*/numa_status")
    return known("dram", cpus.source or "") if cpus.value else ABSENT


def _line(text: str, key: str) -> int:
    found = re.search(rf"^Node \d+ {key}:\s+(\d{{1,15}}) kB$", text, re.M)
    if not found:
        raise ValueError(f"no {key}")
    return int(found[1]) * 1024
