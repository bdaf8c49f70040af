"""Kinds of CPUs on one machine: performance and efficiency cores, told apart by the first source that splits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpubench.detect import _cpuinfo, _sets
from gpubench.detect._cpuinfo import CpuInfo
from gpubench.detect._fact import known
from gpubench.detect._frequency import Frequencies
from gpubench.detect._root import Root, integer
from gpubench.detect._topology import CPUS, CpuSet
from gpubench.model.facts import Fact
from gpubench.model.machine import Cache, CpuKind

# Cores favoured by turbo clock up to 4 % higher, small cores at most 80 % of big ones: the bound lies between.
SAME_KIND = 0.88
_PMU = ("cpu_core", "cpu_atom", "cpu_lowpower")


class Traits(NamedTuple):
    """What kinds are told apart by. `private` maps a CPU to the sizes of its L1 and L2 caches."""

    online: CpuSet
    complete: bool  # no present CPU is offline
    cores: list[CpuSet] | None
    frequencies: Frequencies
    private: dict[int, tuple[tuple[int, str, int], ...]]


def acquire(root: Root, info: CpuInfo | None, traits: Traits) -> Fact[list[CpuKind]]:
    """Groups of alike CPUs, fastest first; one group when no source splits them."""
    part = _parts(root, info, traits.online)
    groups, source = _split(root, part, traits)
    capacity = {cpu: fact.value for cpu in traits.online
                if (fact := root.fact(f"{CPUS}/cpu{cpu}/cpu_capacity", integer)).value}  # fmt: skip
    return known(rank([_kind(group, part, capacity, traits) for group in groups]), source)


def _split(root: Root, part: dict[int, str] | None, traits: Traits) -> tuple[list[CpuSet], str]:
    online, clocks = traits.online, traits.frequencies
    sources: list[tuple[list[CpuSet], str]] = [(_pmu(root, online), "/sys/devices/cpu_*/cpus")]
    if part:
        sources.append((alike(part, online), f"{CPUS}/cpu*/regs/identification/midr_el1"))
    sources.append((by_clock(clocks.base_hz, online), f"{CPUS}/cpufreq/policy*/base_frequency"))
    sources.append((by_clock(clocks.max_hz, online), f"{CPUS}/cpufreq/policy*/cpuinfo_max_freq"))
    if traits.complete and traits.cores and set(traits.private) >= online:
        width = {cpu: len(core) for core in traits.cores for cpu in core}
        marks = {cpu: (traits.private[cpu], width[cpu]) for cpu in online}
        sources.append((alike(marks, online), f"{CPUS}/cpu*/cache"))
    return next((found for found in sources if len(found[0]) > 1), ([online], f"{CPUS}/online"))


def alike(marks: Mapping[int, object], online: CpuSet) -> list[CpuSet]:
    """CPUs with equal marks; nothing unless every online CPU has one."""
    if not online <= set(marks):
        return []
    groups: dict[object, set[int]] = {}
    for cpu in sorted(online):
        groups.setdefault(marks[cpu], set()).add(cpu)
    return [frozenset(group) for group in groups.values()]


def by_clock(table: dict[int, int], online: CpuSet) -> list[CpuSet]:
    """A CPU slower than 0.88 times the fastest of a group opens the next group."""
    if not online <= set(table):
        return []
    groups: list[tuple[int, set[int]]] = []
    for cpu in sorted(online, key=lambda n: (-table[n], n)):
        if not groups or table[cpu] < SAME_KIND * groups[-1][0]:
            groups.append((table[cpu], set()))
        groups[-1][1].add(cpu)
    return [frozenset(group) for _, group in groups]


def rank(kinds: Iterable[CpuKind]) -> list[CpuKind]:
    """Number the kinds: by capacity, then clock, then threads per core."""

    def speed(kind: CpuKind) -> tuple[float, ...]:
        width = kind.logical / kind.cores if kind.cores else 0
        return (-(kind.capacity or 0), -(kind.max_hz or 0), -width, min(_sets.parse_list(kind.cpus), default=0))

    ordered = sorted(kinds, key=speed)
    return [CpuKind(rank=n, cores=k.cores, logical=k.logical, cpus=k.cpus, max_hz=k.max_hz, base_hz=k.base_hz,
                    capacity=k.capacity, part=k.part) for n, k in enumerate(ordered)]  # fmt: skip


def private_sizes(caches: dict[int, list[Cache]]) -> dict[int, tuple[tuple[int, str, int], ...]]:
    """L1 and L2 of each CPU as a comparable mark."""
    return {
        cpu: tuple(sorted((c.level, c.type, c.size_bytes) for c in own if c.level <= 2))
        for cpu, own in caches.items()
    }


def _kind(group: CpuSet, part: dict[int, str] | None, capacity: dict[int, int], traits: Traits) -> CpuKind:
    clocks = traits.frequencies
    names = {part[cpu] for cpu in group} if part else set()
    cores = None if traits.cores is None else sum(1 for core in traits.cores if core & group)
    return CpuKind(
        rank=0, cores=cores, logical=len(group), cpus=_sets.list_form(group),
        max_hz=max((clocks.max_hz[cpu] for cpu in group if cpu in clocks.max_hz), default=None),
        base_hz=max((clocks.base_hz[cpu] for cpu in group if cpu in clocks.base_hz), default=None),
        capacity=max((capacity[cpu] for cpu in group if cpu in capacity), default=None),
        part=names.pop() if len(names) == 1 else None,
    )  # fmt: skip


def _pmu(root: Root, online: CpuSet) -> list[CpuSet]:
    groups = []
    for name in _PMU:
        members = root.fact(f"/sys/devices/{name}/cpus", _sets.parse_list).value
        if members and members & online:
            groups.append(members & online)
    whole = sum(map(len, groups)) == len(online) and frozenset().union(*groups) == online
    return groups if whole else []


def _parts(root: Root, info: CpuInfo | None, online: CpuSet) -> dict[int, str] | None:
    """Bits 4 to 15 of MIDR_EL1 of each online CPU, else the `CPU part` of cpuinfo."""
    if info is not None and info.any("flags"):
        return None  # x86 has no such register: spare a file per CPU
    found = {}
    for cpu in sorted(online):
        fact = root.fact(f"{CPUS}/cpu{cpu}/regs/identification/midr_el1", _midr)
        if fact.value is None:
            return _cpuinfo.parts(info, online) if info else None
        found[cpu] = f"0x{fact.value >> 4 & 0xFFF:03x}"
    return found


def _midr(text: str) -> int:
    if not re.fullmatch(r"0x[0-9a-fA-F]{1,16}", text):
        raise ValueError("not a register")
    return int(text, 16)
