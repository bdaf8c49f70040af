"""The CPU part of the document."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gpubench.detect import _caches, _cgroup, _cpuinfo, _frequency, _kinds, _sets, _topology
from gpubench.detect._cgroup import Groups
from gpubench.detect._cpuinfo import CpuInfo
from gpubench.detect._fact import derived, known, lost, missing
from gpubench.detect._root import Root
from gpubench.detect._topology import CpuSet, Topology
from gpubench.model.facts import Fact
from gpubench.model.machine import Cpu


def acquire(
    root: Root, blocks: Fact[CpuInfo], hypervisor: Fact[str], groups: Groups, affinity: Fact[CpuSet]
) -> Cpu:
    """Everything that files tell about the CPUs; `affinity` comes from a live source or is not_probed."""
    topology = _topology.acquire(root, blocks.value)
    online = topology.online.value or frozenset()
    caches = _caches.acquire(root, online)
    clocks = _frequency.acquire(root, online)
    cpuset = _cut(_cgroup.cpus(root, groups), topology.online)
    quota = _cgroup.quota(root, groups)
    available, limited_by = usable(topology.online, affinity, cpuset, quota)
    blind = lost(topology.online) if topology.online.value is None else None
    return Cpu(
        model=_said(blocks, _cpuinfo.model), vendor=_said(blocks, _cpuinfo.vendor),
        packages=topology.packages, cores=derived(topology.cores, len), logical=derived(topology.online, len),
        online_cpus=derived(topology.online, _sets.list_form), possible=topology.possible,
        present=derived(topology.present, len), offline=_offline(topology), smt=smt(topology.cores, hypervisor),
        kinds=blind or _all_kinds(root, blocks.value, topology, clocks, caches.by_cpu),
        available=available, affinity=derived(affinity, _sets.list_form), cpuset=derived(cpuset, _sets.list_form),
        quota_cpus=quota, limited_by=limited_by, caches=blind or caches.fact,
        isa=_said(blocks, lambda found: _cpuinfo.isa(found, topology.online.value)),
        governor=blind or _frequency.governor(clocks),
        base_hz=blind or _frequency.highest(clocks.base_hz, "base_frequency", clocks),
        max_hz=blind or _frequency.highest(clocks.max_hz, "cpuinfo_max_freq", clocks),
    )  # fmt: skip


def usable(
    online: Fact[CpuSet], affinity: Fact[CpuSet], cpuset: Fact[CpuSet], quota: Fact[float]
) -> tuple[Fact[int], Fact[str]]:
    """How many CPUs may be kept busy, and which bound is the tightest."""
    if online.value is None:
        return lost(online), lost(online)
    bounds = [("online", len(online.value), online.source)]
    for name, fact in (("affinity", affinity), ("cpuset", cpuset)):
        if fact.value is not None:
            bounds.append((name, len(fact.value & online.value), fact.source))
    if quota.value is not None:
        bounds.append(("quota", math.ceil(quota.value), quota.source))
    unread = [name for name, fact in (("cpuset", cpuset), ("quota", quota)) if fact.status == "invalid"]
    note = f"could not read: {', '.join(unread)}" if unread else None
    name, count, source = min(bounds, key=lambda bound: bound[1])
    return known(max(1, count), source or "", note), known(name, source or "", note)


def smt(cores: Fact[list[CpuSet]], hypervisor: Fact[str]) -> Fact[str]:
    """ "on" if a core has two online CPUs, "hidden" if a hypervisor may hide it, else "off"."""
    if cores.value is None:
        return lost(cores)
    if any(len(core) > 1 for core in cores.value):
        return known("on", cores.source or "")
    if hypervisor.status not in ("ok", "absent", "not_probed"):
        return lost(hypervisor)
    virtual = hypervisor.value not in (None, "none")
    return known("hidden" if virtual else "off", cores.source or "")


def _all_kinds(
    root: Root,
    info: CpuInfo | None,
    topology: Topology,
    clocks: _frequency.Frequencies,
    caches: dict[int, list[Any]],
) -> Fact[Any]:
    online = topology.online.value or frozenset()
    complete = topology.present.value is None or topology.present.value <= online
    private = _kinds.private_sizes(caches)
    return _kinds.acquire(root, info, _kinds.Traits(online, complete, topology.cores.value, clocks, private))


def _said(blocks: Fact[CpuInfo], ask: Callable[[CpuInfo], Any]) -> Fact[Any]:
    if blocks.value is None:
        return blocks
    value = ask(blocks.value)
    return missing("absent", blocks.source) if value is None else known(value, blocks.source or "")


def _cut(cpuset: Fact[CpuSet], online: Fact[CpuSet]) -> Fact[CpuSet]:
    if cpuset.value is None or online.value is None:
        return cpuset
    inside = cpuset.value & online.value
    return known(inside, cpuset.source or "") if inside else missing("invalid", cpuset.source)


def _offline(topology: Topology) -> Fact[int]:
    present, online = topology.present, topology.online
    if present.value is None or online.value is None:
        return lost(present if present.value is None else online)
    return known(len(present.value - online.value), present.source or "")
