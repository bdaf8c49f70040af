"""The CPU: model, cores, and how many of them may be used; a warning where the threads of a BLAS do not fit them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from gpubench.detect import cgroup, cpuinfo
from gpubench.detect.cgroup import Groups
from gpubench.detect.cpuinfo import CpuInfo
from gpubench.detect.records import derived, known, lost, missing
from gpubench.detect.root import Root, integer, list_form, parse_list
from gpubench.detect.topology import (
    CPUS,
    CpuSet,
    Frequencies,
    Topology,
    governor,
    highest,
    read_caches,
    read_frequencies,
    read_topology,
)
from gpubench.model.machine import Cache, Cpu, CpuBlas, CpuKind, Fact, MachineWarning

# Cores favoured by turbo clock up to 4 % higher, small cores at most 80 % of big ones: the bound lies between.
SAME_KIND = 0.88
_PMU = ("cpu_core", "cpu_atom", "cpu_lowpower")


def read_cpu(
    root: Root, blocks: Fact[CpuInfo], hypervisor: Fact[str], groups: Groups, affinity: Fact[CpuSet]
) -> Cpu:
    """Everything that files tell about the CPUs; `affinity` comes from a live source or is not_probed."""
    topology = read_topology(root, blocks.value)
    online = topology.online.value or frozenset()
    caches = read_caches(root, online)
    clocks = read_frequencies(root, online)
    cpuset = _cut(cgroup.cpus(root, groups), topology.online)
    quota = cgroup.quota(root, groups)
    available, limited_by = usable(topology.online, affinity, cpuset, quota)
    blind = lost(topology.online) if topology.online.value is None else None
    complete = topology.present.value is None or topology.present.value <= online
    traits = Traits(online, complete, topology.cores.value, clocks, private_sizes(caches.by_cpu))
    return Cpu(
        model=_said(blocks, cpuinfo.model), vendor=_said(blocks, cpuinfo.vendor),
        packages=topology.packages, cores=derived(topology.cores, len), logical=derived(topology.online, len),
        online_cpus=derived(topology.online, list_form), possible=topology.possible,
        present=derived(topology.present, len), offline=_offline(topology), smt=smt(topology.cores, hypervisor),
        kinds=blind or tell_kinds(root, blocks.value, traits),
        available=available, affinity=derived(affinity, list_form), cpuset=derived(cpuset, list_form),
        quota_cpus=quota, limited_by=limited_by, caches=blind or caches.fact,
        isa=_said(blocks, lambda found: cpuinfo.isa(found, topology.online.value)),
        governor=blind or governor(clocks),
        base_hz=blind or highest(clocks.base_hz, "base_frequency", clocks),
        max_hz=blind or highest(clocks.max_hz, "cpuinfo_max_freq", clocks),
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


class Traits(NamedTuple):
    """What distinguishes one kind from another. `private` maps a CPU to the sizes of its L1 and L2 caches."""

    online: CpuSet
    complete: bool  # no present CPU is offline
    cores: list[CpuSet] | None
    frequencies: Frequencies
    private: dict[int, tuple[tuple[int, str, int], ...]]


def tell_kinds(root: Root, info: CpuInfo | None, traits: Traits) -> Fact[list[CpuKind]]:
    """Groups of alike CPUs, fastest first; one group when no source splits them."""
    part = _parts(root, info, traits.online)
    groups, source = _split(root, part, traits)
    capacity = {cpu: fact.value for cpu in traits.online
                if (fact := root.fact(f"{CPUS}/cpu{cpu}/cpu_capacity", integer)).value}  # fmt: skip
    return known(rank_kinds([_kind(group, part, capacity, traits) for group in groups]), source)


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


def rank_kinds(kinds: Iterable[CpuKind]) -> list[CpuKind]:
    """Number the kinds: by capacity, then clock, then threads per core."""

    def speed(kind: CpuKind) -> tuple[float, ...]:
        width = kind.logical / kind.cores if kind.cores else 0
        return (-(kind.capacity or 0), -(kind.max_hz or 0), -width, min(parse_list(kind.cpus), default=0))

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
        rank=0, cores=cores, logical=len(group), cpus=list_form(group),
        max_hz=max((clocks.max_hz[cpu] for cpu in group if cpu in clocks.max_hz), default=None),
        base_hz=max((clocks.base_hz[cpu] for cpu in group if cpu in clocks.base_hz), default=None),
        capacity=max((capacity[cpu] for cpu in group if cpu in capacity), default=None),
        part=names.pop() if len(names) == 1 else None,
    )  # fmt: skip


def _pmu(root: Root, online: CpuSet) -> list[CpuSet]:
    groups = []
    for name in _PMU:
        members = root.fact(f"/sys/devices/{name}/cpus", parse_list).value
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
            return cpuinfo.parts(info, online) if info else None
        found[cpu] = f"0x{fact.value >> 4 & 0xFFF:03x}"
    return found


def _midr(text: str) -> int:
    if not re.fullmatch(r"0x[0-9a-fA-F]{1,16}", text):
        raise ValueError("not a register")
    return int(text, 16)


# OpenBLAS and MKL look at the affinity, never at a quota; these variables overrule both.
VARIABLES = (
    "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "GOTO_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)  # fmt: skip
# The OpenBLAS inside NumPy's wheels is built for at most so many threads.
MOST_THREADS = 64
_FITTING = ("online", "affinity")


def doubtful_blas(cpu: Cpu, environ: Mapping[str, str]) -> bool:
    """Whether the threads that a BLAS starts on its own may differ from the usable CPUs."""
    if any(environ.get(name) for name in VARIABLES):
        return True
    available, bound = cpu.available.value, cpu.limited_by.value
    return available is not None and (bound not in _FITTING or available > MOST_THREADS)


def misfits(blas: CpuBlas, cpu: Cpu) -> bool:
    """Whether the library starts another number of threads than CPUs are usable."""
    return cpu.available.value is not None and blas.threads not in (None, cpu.available.value)


def blas_warnings(cpu: Cpu) -> list[MachineWarning]:
    """Too many threads fight for the CPUs, too few leave some idle: either makes the CPU look slow."""
    return [
        MachineWarning(
            code="BLAS_THREADS", refs=[blas.library],
            text=f"{blas.library} starts {_count(blas.threads, 'thread')}, but "
            f"{_count(cpu.available.value, 'CPU')} may be kept busy; gpubench run sets the number itself, for other "
            f"programs set {_variable(blas)}={cpu.available.value}.",
        )
        for blas in cpu.blas.value or () if misfits(blas, cpu)
    ]  # fmt: skip


def _count(number: int | None, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _variable(blas: CpuBlas) -> str:
    own = {"openblas": "OPENBLAS_NUM_THREADS", "mkl": "MKL_NUM_THREADS", "blis": "BLIS_NUM_THREADS"}
    return own.get(blas.library, "OMP_NUM_THREADS")
