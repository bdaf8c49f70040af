"""The CPU: its model, cores, clocks, caches and the number of usable CPUs. A warning says if a BLAS starts
another number of threads.

A cache that several CPUs share is read once, and so is each cpufreq policy. This halves the number of files
that are read on a machine with 96 CPUs.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

from msgspec import UNSET
from msgspec.structs import replace

from gpubench.base import group_by
from gpubench.base.units import count_noun
from gpubench.detect import proc
from gpubench.detect.facts import (
    ABSENT,
    Root,
    derive,
    first,
    integer,
    list_form,
    lost,
    make_fact,
    matching,
    missing,
    parse_list,
    parse_mask,
    size,
)
from gpubench.detect.proc import CpuInfo, Groups
from gpubench.result.identity import is_placeholder
from gpubench.result.machine import Alternative, Cache, Cpu, CpuBlas, CpuKind, Fact, MachineWarning, Status

# CPUs are of one kind if their clocks, in order, differ by less than this factor from one to the next. Turbo
# raises the clock of some cores by up to 4 %, and AMD's driver has spread the clocks of 16 equal cores over 30 %, in
# steps of 3 %. Small cores reach at most 80 % of the clock of big ones.
SAME_KIND = 0.88
_PMU = ("cpu_core", "cpu_atom", "cpu_lowpower")


def read_cpu(
    root: Root, blocks: Fact[CpuInfo], hypervisor: Fact[str], groups: Groups, affinity: Fact[CpuSet]
) -> Cpu:
    """Return all facts about the CPUs that files contain. `blocks` is the parsed /proc/cpuinfo. `affinity` is
    the set of CPUs on which this process may run, with the status not_probed for a recorded machine."""
    listed = read_cpu_lists(root, blocks.value)
    cpus = reconcile(root, listed.online, affinity, proc.cpus(root, groups))
    info = blocks.value
    if info is not None and cpus.renumbered and info.cpus.keys() == listed.online.value:
        # It is unknown which CPU each block describes.
        info = info._replace(cpus={-1 - number: block for number, block in info.cpus.items()})
    blind = lost(cpus.online) if cpus.online.value is None else None
    online = cpus.online.value or frozenset()
    cores = blind or read_cores(root, online)
    caches = read_caches(root, online)
    clock = derive(blocks, proc.clock_hz)
    clocks = read_frequencies(root, online, now=clock.value is None)
    quota = proc.quota(root, groups)
    if affinity.status == "not_probed" and cpus.cpuset.value in (None, online):
        # A process that no cpuset puts there runs on no isolated CPU.
        affinity = first(derive(_cpu_set(root, "isolated"), lambda own: online - own or None), affinity)
    available, limited_by = usable(listed.online, affinity, cpus.cpuset, quota)
    complete = listed.present.value is None or listed.present.value <= online
    traits = Traits(online, cores.value, clocks.tables, caches.private if complete else {})
    return Cpu(
        model=derive(blocks, proc.model), vendor=derive(blocks, proc.vendor),
        packages=blind or read_packages(root, info, online), cores=derive(cores, len),
        logical=derive(cpus.online, len),
        online_cpus=_listed_form(cpus.online), possible=listed.possible,
        present=derive(listed.present, len), offline=_offline(listed.present, cpus.online),
        smt=smt(cores, hypervisor), kinds=blind or tell_kinds(root, info, traits),
        available=available, affinity=derive(affinity, list_form), cpuset=_listed_form(cpus.cpuset),
        quota_cpus=quota, limited_by=limited_by, caches=blind or caches.fact,
        isa=derive(blocks, lambda own: proc.isa(info or own, cpus.online.value)),
        governor=blind or clocks.merge(GOVERNOR, lambda names: min(names) if len({*names}) == 1 else "mixed"),
        now_hz=clock if clock.value is not None else blind or clocks.merge(NOW, max),
        base_hz=blind or clocks.merge(BASE, max), max_hz=blind or clocks.merge(MOST, max),
    )  # fmt: skip


class KernelCpus(NamedTuple):
    """Sets of CPUs in the kernel's own numbering, which the kernel's folders and the affinity use."""

    online: Fact[CpuSet]  # the CPUs that are online
    cpuset: Fact[CpuSet]  # the CPUs that the control group allows
    renumbered: bool  # whether the system's list of online CPUs uses another numbering


def reconcile(root: Root, listed: Fact[CpuSet], affinity: Fact[CpuSet], cpuset: Fact[CpuSet]) -> KernelCpus:
    """Return the sets of CPUs in the kernel's numbering. `listed` is the system's list of online CPUs, which may
    have another numbering. If it has the kernel's, offline CPUs are taken out of `cpuset`. The cpuset is invalid
    if it has no CPU of `affinity`."""
    # In a container, lxcfs numbers the CPUs from 0 in `online` and in /proc/cpuinfo, but the kernel's folders,
    # `affinity` and `cpuset` keep the kernel's numbers.
    if affinity.value and cpuset.value and not affinity.value & cpuset.value:
        note = f"names no CPU of this process's affinity ({list_form(affinity.value)})"
        cpuset = missing("invalid", cpuset.source, note)
    if listed.value is None:
        return KernelCpus(listed, cpuset, False)
    beyond = (cpuset.value or frozenset()) - listed.value
    proofs = [
        affinity.value is not None and not affinity.value <= listed.value,
        # A CPU that is offline, or is not there at all, stays in an older cpuset.
        any(
            root.read(f"{CPUS}/cpu{cpu}/online").text != "0"
            for cpu in beyond if beyond == cpuset.value or runs(root, cpu)
        ),
    ]  # fmt: skip
    own = [fact for fact in (cpuset, affinity) if fact.value]
    if not any(proofs):
        inside = derive(cpuset, lambda members: members & listed.value)
        # The kernel lets no process run on CPUs that are all offline.
        return KernelCpus(
            listed, inside if inside.value != frozenset() else missing("invalid", cpuset.source), False
        )
    # As many as are listed are the container's; else those on which this process runs.
    best = next((fact for fact in own if len(fact.value or ()) == len(listed.value)), own[-1])
    note = f"the kernel's own numbers; {listed.source} numbers otherwise ({list_form(listed.value)})"
    other = Alternative(list_form(listed.value), listed.source or "")
    return KernelCpus(Fact(best.value, "conflict", best.source, note, [other]), cpuset, True)


def usable(
    listed: Fact[CpuSet], affinity: Fact[CpuSet], cpuset: Fact[CpuSet], quota: Fact[float]
) -> tuple[Fact[int], Fact[str]]:
    """Return the number of CPUs that may be kept busy, and the name of the tightest limit: online, affinity,
    cpuset or quota. A quota is rounded up. Both facts are missing if `listed` and `affinity` are unknown."""
    if not listed.value and not affinity.value:
        return lost(listed), lost(listed)
    named = {"online": listed, "affinity": affinity, "cpuset": cpuset}.items()
    # sizes, not members: the sets may have different numberings
    bounds = [(name, len(fact.value), fact.source) for name, fact in named if fact.value]
    if quota.value is not None:
        bounds.append(("quota", math.ceil(quota.value), quota.source))
    unread = [name for name, fact in (("cpuset", cpuset), ("quota", quota)) if fact.status == "invalid"]
    note = f"could not read: {', '.join(unread)}" if unread else UNSET
    name, count, source = min(bounds, key=lambda bound: bound[1])
    return make_fact(max(1, count), source, note), make_fact(name, source, note)


def smt(cores: Fact[list[CpuSet]], hypervisor: Fact[str]) -> Fact[str]:
    """Return a fact about SMT: "on" if a core has two online CPUs, "hidden" if a hypervisor may hide it, else
    "off". The fact is missing if the cores are unknown, or if the files that show a hypervisor are damaged."""
    if cores.value is None:
        return lost(cores)
    if any(len(core) > 1 for core in cores.value):
        return make_fact("on", cores.source)
    if hypervisor.status not in ("ok", "conflict", "absent", "not_probed"):
        return lost(hypervisor)
    return make_fact("off" if hypervisor.value in (None, "none") else "hidden", cores.source)


def _listed_form(fact: Fact[CpuSet]) -> Any:
    """Return the fact with its set of CPUs written as a text such as "0-3,8"."""
    return fact if fact.value is None else replace(fact, value=list_form(fact.value))


def _offline(present: Fact[CpuSet], online: Fact[CpuSet]) -> Fact[int]:
    if present.value is None or online.value is None:
        return lost(present if present.value is None else online)
    if online.status == "conflict" or not online.value <= present.value:
        return missing("invalid", present.source, "the lists of CPUs number differently")
    return make_fact(len(present.value - online.value), present.source)


class Traits(NamedTuple):
    """The properties by which kinds of CPUs are distinguished."""

    online: CpuSet  # the CPUs to distinguish
    cores: list[CpuSet] | None  # the sets of SMT siblings of these CPUs; None: unknown
    clocks: Mapping[str, Mapping[int, int]]  # for each cpufreq file: the hertz by CPU
    private: Mapping[int, object]  # the L1 and L2 caches, by CPU; empty if a present CPU is offline


def tell_kinds(root: Root, info: CpuInfo | None, traits: Traits) -> Fact[list[CpuKind]]:
    """Group CPUs that are alike, fastest first. The fact names the first source that splits them. It is invalid
    if /proc/cpuinfo lists several kinds of cores without saying which CPUs they are."""
    clocks, online = traits.clocks, traits.online
    part = _parts(root, info, online)
    capacity = {cpu: fact.value for cpu in online
                if (fact := root.fact(f"{CPUS}/cpu{cpu}/cpu_capacity", integer)).value}  # fmt: skip
    width = {cpu: len(core) for core in traits.cores or () for cpu in core}
    private = {cpu: (own, width[cpu]) for cpu, own in traits.private.items() if cpu in width}
    blocks = info.cpus if info and not part else {}
    names = {n: name for n, block in blocks.items() if (name := proc.model(CpuInfo({n: block}, {})))}
    sources: Sequence[Any] = (  # the source, the function that splits a group, and the mark of each CPU
        ("/sys/devices/cpu_*/cpus", alike, _pmu(root, online)),
        (f"{CPUS}/cpu*/regs/identification/midr_el1", alike, part),
        ("/proc/cpuinfo", alike, names),
        (f"{CPUS}/cpufreq/policy*/{BASE}", by_clock, clocks[BASE]),
        (f"{CPUS}/cpufreq/policy*/{MOST}", by_clock, clocks[MOST]),
        (f"{CPUS}/cpu*/cache", alike, private),
    )
    # Each source may split the groups further, so a coarse source does not hide a finer one.
    groups, first_source = [online], f"{CPUS}/online"
    for source, split, marks in sources:
        finer = [finer for group in groups for finer in split(marks, group) or [group]]
        if len(groups) == 1 < len(finer):
            first_source = source
        groups = finer
    if len(groups) > 1:  # alone it never splits: it differs among equal cores
        groups = [finer for group in groups for finer in by_clock(capacity, group) or [group]]
    elif not part and info is not None and len(set(info.values("cpu part"))) > 1:
        note = "there are several kinds, but the file numbers the CPUs otherwise"
        return missing("invalid", "/proc/cpuinfo", note)
    return make_fact(rank_kinds([_kind(group, part, capacity, traits) for group in groups]), first_source)


def alike(marks: Mapping[int, Hashable], cpus: CpuSet) -> list[CpuSet]:
    """Group CPUs with equal marks. Return an empty list unless every CPU has a mark."""
    if not cpus <= set(marks):
        return []
    return [frozenset(group) for group in group_by(sorted(cpus), marks.__getitem__).values()]


def by_clock(table: Mapping[int, int], cpus: CpuSet) -> list[CpuSet]:
    """Group CPUs by clock: a CPU below SAME_KIND times the next faster one begins a group. Returns an empty list
    unless all CPUs have a clock."""
    if not cpus <= set(table):
        return []
    groups: list[list[int]] = []
    for cpu in sorted(cpus, key=lambda n: (-table[n], n)):
        if not groups or table[cpu] < SAME_KIND * table[groups[-1][-1]]:
            groups.append([])
        groups[-1].append(cpu)
    return [frozenset(group) for group in groups]


def rank_kinds(kinds: Iterable[CpuKind]) -> list[CpuKind]:
    """Return the kinds, fastest first, with their ranks: by capacity, clock and threads per core, then by the
    lowest CPU number."""

    def speed(kind: CpuKind) -> tuple[float, ...]:
        width = kind.logical / kind.cores if kind.cores else 0
        return (-(kind.capacity or 0), -(kind.max_hz or 0), -width, min(parse_list(kind.cpus), default=0))

    return [replace(kind, rank=n) for n, kind in enumerate(sorted(kinds, key=speed))]


def _kind(group: CpuSet, part: Mapping[int, str], capacity: Mapping[int, int], traits: Traits) -> CpuKind:
    def most(table: Mapping[int, int]) -> int | None:
        return max((table[cpu] for cpu in group if cpu in table), default=None)

    names = {part.get(cpu) for cpu in group}
    cores = None if traits.cores is None else sum(1 for core in traits.cores if core & group)
    return CpuKind(
        rank=0, cores=cores, logical=len(group), cpus=list_form(group), max_hz=most(traits.clocks[MOST]),
        base_hz=most(traits.clocks[BASE]), capacity=most(capacity), part=names.pop() if len(names) == 1 else None,
    )  # fmt: skip


def _pmu(root: Root, online: CpuSet) -> dict[int, str]:
    """Return the name of each CPU's performance counters ("" for none), or an empty dict if the lists
    are unusable."""
    lists = {name: root.fact(f"/sys/devices/{name}/cpus", parse_list).value or frozenset() for name in _PMU}
    members = [(cpu, name) for name, cpus in lists.items() for cpu in cpus & online]
    owners = dict(members)
    return dict.fromkeys(online, "") | owners if members and len(owners) == len(members) else {}


def _parts(root: Root, info: CpuInfo | None, online: CpuSet) -> Mapping[int, Any]:
    """Return each online CPU's bits 4 to 15 of MIDR_EL1, or its `CPU part`, or nothing if a CPU has neither."""
    if info is not None and info.any("flags"):
        return {}  # x86 has no such register: spare a file per CPU
    stated = {cpu: root.fact(f"{CPUS}/cpu{cpu}/regs/identification/midr_el1", _midr).value for cpu in online}
    return stated if all(stated.values()) else proc.parts(info, online) if info else {}


_midr = matching("0x[0-9a-fA-F]{1,16}", lambda match: f"0x{int(match[0], 16) >> 4 & 0xFFF:03x}")


# Variables that set the number of threads. OpenBLAS and MKL otherwise use the affinity, never a quota.
VARIABLES = (
    "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "GOTO_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)  # fmt: skip
# The OpenBLAS in NumPy's wheels is built for at most this many threads.
MOST_THREADS = 64
_FITTING = ("online", "affinity")


def doubtful_blas(cpu: Cpu, environ: Mapping[str, str]) -> bool:
    """Tell whether a BLAS may start another number of threads than the number of usable CPUs."""
    if any(environ.get(name) for name in VARIABLES):
        return True
    available, bound = cpu.available.value, cpu.limited_by.value
    return available is not None and (bound not in _FITTING or available > MOST_THREADS)


def misfits(blas: CpuBlas, cpu: Cpu) -> bool:
    """Tell whether the library starts another number of threads than the number of usable CPUs, if both
    are known."""
    return cpu.available.value is not None and blas.threads not in (None, cpu.available.value)


def blas_warnings(cpu: Cpu) -> list[MachineWarning]:
    """Return a warning for each BLAS whose number of threads differs from the number of usable CPUs."""
    # Either way the CPU looks slow: too many threads compete for the CPUs, and too few leave some idle.
    return [
        MachineWarning(
            code="BLAS_THREADS", refs=[blas.library],
            text=f"{blas.library} starts {count_noun(blas.threads or 0, 'thread')}, but "
            f"{count_noun(cpu.available.value or 0, 'CPU')} may be kept busy; gpubench run sets the number itself, for "
            f"other programs set {_OWN_VARIABLES.get(blas.library, 'OMP_NUM_THREADS')}={cpu.available.value}.",
        )
        for blas in cpu.blas.value or () if misfits(blas, cpu)
    ]  # fmt: skip


_OWN_VARIABLES = {"openblas": "OPENBLAS_NUM_THREADS", "mkl": "MKL_NUM_THREADS", "blis": "BLIS_NUM_THREADS"}
CPUS = "/sys/devices/system/cpu"
CpuSet = frozenset[int]
CacheType = Literal["data", "instruction", "unified"]
# The files of a cpufreq policy.
BASE, MOST, NOW, GOVERNOR = "base_frequency", "cpuinfo_max_freq", "scaling_cur_freq", "scaling_governor"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

# Newest first; the last two are the names of the same files before Linux 5.3.
_SIBLINGS = (
    ("core_cpus_list", parse_list), ("core_cpus", parse_mask),
    ("thread_siblings_list", parse_list), ("thread_siblings", parse_mask),
)  # fmt: skip


class ListedCpus(NamedTuple):
    """The sets of CPUs that the system lists."""

    online: Fact[CpuSet]  # the CPUs that are online
    possible: Fact[int]  # the number of CPUs for which the kernel is built
    present: Fact[CpuSet]  # the CPUs that are present


def read_cpu_lists(root: Root, info: CpuInfo | None) -> ListedCpus:
    """Read the lists of CPUs in /sys/devices/system/cpu. For a missing list, use the cpuN folders there,
    or /proc/cpuinfo."""
    folders = frozenset(int(name[3:]) for name in root.names_like(CPUS, r"cpu\d{1,5}"))
    present = first(_cpu_set(root, "present"), make_fact(folders, CPUS) if folders else ABSENT)
    online = first(_cpu_set(root, "online"), *_online_fallbacks(root, folders, info))
    return ListedCpus(online, derive(_cpu_set(root, "possible"), len), present)


def runs(root: Root, cpu: int) -> bool:
    """Tell whether the CPU is online according to its folder."""
    switch = root.read(f"{CPUS}/cpu{cpu}/online").text
    # a CPU that cannot be switched off has no file `online`
    return switch == "1" or (switch is None and root.exists(f"{CPUS}/cpu{cpu}/topology"))


def _cpu_set(root: Root, name: str) -> Fact[CpuSet]:
    return root.fact(f"{CPUS}/{name}", lambda text: parse_list(text) or None)


def _online_fallbacks(root: Root, folders: CpuSet, info: CpuInfo | None) -> list[Fact[CpuSet]]:
    """Return the online CPUs by their folders cpuN, and by cpuinfo."""
    facts = []
    if folders:
        source = f"{CPUS}/cpu*/online"
        readings = {n: root.read(f"{CPUS}/cpu{n}/online") for n in folders}
        # cpu0 may have no file `online`
        running = frozenset(n for n, reading in readings.items() if reading.text != "0")
        whole = all(reading.status == "absent" or reading.text in ("0", "1") for reading in readings.values())
        facts.append(make_fact(running, source) if whole and running else missing("invalid", source))
    if info is not None and info.cpus:
        facts.append(make_fact(frozenset(info.cpus), "/proc/cpuinfo"))
    return facts


def siblings(root: Root, cpu: int, online: CpuSet) -> CpuSet | Status:
    """Return the online CPUs on the core of `cpu`, by the first file that contains `cpu`. Without such a file,
    return the status that says why."""
    worst: Status = "absent"
    for name, parse in _SIBLINGS:
        fact = root.fact(f"{CPUS}/cpu{cpu}/topology/{name}", parse)
        if fact.value is not None and cpu in fact.value:
            return frozenset(fact.value & online)
        if fact.status != "absent":
            worst = "invalid" if fact.status == "ok" else fact.status
    return worst


def read_cores(root: Root, online: CpuSet) -> Fact[list[CpuSet]]:
    """Read the set of online CPUs (SMT siblings) of each core. The fact is invalid if the sets overlap or leave
    an online CPU out."""
    answers = [siblings(root, cpu, online) for cpu in sorted(online)]
    sets = {answer for answer in answers if not isinstance(answer, str)}
    source = f"{CPUS}/cpu*/topology"
    if not sets:
        reasons: list[Any] = [answer for answer in answers if answer != "absent"]
        return missing(reasons[-1] if reasons else "absent", source)
    if sum(map(len, sets)) != len(online) or frozenset().union(*sets) != online:
        return missing("invalid", source, "the sets of siblings overlap or leave a CPU out")
    return make_fact(sorted(sets, key=min), source)


def shows_clusters(root: Root, info: CpuInfo | None) -> bool:
    """Tell whether physical_package_id may number clusters of cores instead of packages. This is possible on
    Arm and RISC-V before Linux 6.0, and on 32-bit Arm in all versions."""
    arch = proc.arch(info) if info is not None else None
    if arch is None or not arch.startswith(("aarch64", "arm", "riscv")):
        return False
    release = re.match(r"Linux version (\d+)\.", root.read("/proc/version").text or "")
    if release and int(release[1]) >= 6 and not arch.startswith("arm"):
        return False
    # A machine with ACPI tables but without a device tree numbers packages. Docker hides both, so DMI tables
    # alone prove nothing.
    tree = any(root.read(f"/proc/device-tree/{name}").text for name in ("compatible", "model"))
    return tree or not root.exists("/sys/firmware/acpi/tables")


def read_packages(root: Root, info: CpuInfo | None, online: CpuSet) -> Fact[int]:
    """Return the number of CPU packages (sockets). It is unsupported if the kernel numbers clusters of
    cores there."""
    source = f"{CPUS}/cpu*/topology/physical_package_id"
    facts = [root.fact(source.replace("*", str(cpu)), integer) for cpu in sorted(online)]
    ids = {fact.value for fact in facts if fact.value is not None and fact.value >= 0}
    if any(fact.status == "invalid" for fact in facts):
        return missing("invalid", source)
    if len(ids) > 1 and shows_clusters(root, info):
        note = f"this kernel numbers clusters of cores there ({len(ids)}), not packages"
        return missing("unsupported", source, note)
    return make_fact(len(ids) or None, source)


class Caches(NamedTuple):
    """The caches of the online CPUs."""

    fact: Fact[list[Cache]]  # the caches as in the document
    private: Mapping[int, object]  # by CPU: the level, type and size of its L1 and L2 caches


def read_caches(root: Root, online: CpuSet) -> Caches:
    """Read the caches. The fact is absent if none is listed, and invalid if groups of CPUs that share one kind
    of cache overlap. It is also invalid if a cache has a damaged file on all of its CPUs, or is incomplete on
    some only."""
    source = f"{CPUS}/cpu*/cache/index*"
    sizes: dict[tuple[int, CacheType], dict[CpuSet, int]] = {}  # some hypervisors list a cache twice
    seen: dict[str, set[int]] = {}  # the CPUs of which an index is known
    gaps: list[tuple[str, int, bool]] = []  # an index, a CPU, and whether a file is spoiled
    for cpu in sorted(online):
        for name in root.names_like(f"{CPUS}/cpu{cpu}/cache", r"index\d{1,2}"):
            # a cache that several CPUs share is read once
            if cpu in seen.get(name, ()):
                continue
            folder = f"{CPUS}/cpu{cpu}/cache/{name}"
            facts = root.facts(folder, _CACHE_FILES)
            sharing = root.fact(f"{folder}/shared_cpu_list", parse_list)
            if not sharing.value:
                sharing = first(root.fact(f"{folder}/shared_cpu_map", parse_mask), sharing)
            members = frozenset({cpu}) if sharing.status == "absent" else sharing.value or ()
            spoiled = cpu not in members or bool({fact.status for fact in facts.values()} - {"ok", "absent"})
            level, kind, amount = (cast("Any", fact.value) for fact in facts.values())
            if spoiled or None in (level, kind, amount):
                gaps.append((name, cpu, spoiled))
            else:
                seen.setdefault(name, set()).update(members)
                sizes.setdefault((level, kind), {}).setdefault(frozenset(members), amount)
    lost = any((spoiled or name in seen) and cpu not in seen.get(name, ()) for name, cpu, spoiled in gaps)
    if lost or any(sum(map(len, sets)) > len(frozenset().union(*sets)) for sets in sizes.values()):
        return Caches(missing("invalid", source), {})
    counts = Counter((*cache, amount) for cache, sets in sizes.items() for amount in sets.values())
    listed = [
        Cache(level=level, type=kind, size_bytes=amount, instances=instances)
        for (level, kind, amount), instances in sorted(counts.items())
    ]
    private: dict[int, list[object]] = {}
    for cache, sets in sorted(sizes.items()):
        for members, amount in sets.items():
            for cpu in members & online if cache[0] <= 2 else ():
                private.setdefault(cpu, []).append((*cache, amount))
    return Caches(make_fact(listed or None, source), {cpu: tuple(own) for cpu, own in private.items()})


_cache_type = matching("Data|Instruction|Unified", lambda match: match[0].lower())
# Parses "48K" or "32M" into bytes.
cache_size = matching(r"(\d{1,9})([KMG]?)", lambda match: int(match[1]) * _UNITS[match[2]] or None)
_CACHE_FILES = {"level": ("level", size), "type": ("type", _cache_type), "size": ("size", cache_size)}


class Frequencies(NamedTuple):
    """The values of the cpufreq files."""

    tables: dict[str, dict[int, Any]]  # for each file: its known values by CPU
    invalid: frozenset[str]  # the names of the damaged files
    folder: str  # the folder of the files, as a pattern

    def merge(self, name: str, merge: Callable[[Collection[Any]], Any]) -> Fact[Any]:
        """Return one fact for the cpufreq file `name`, whose value `merge` makes of the CPUs' values. It is
        invalid if a file is damaged, and absent if no CPU has a value."""
        source, values = f"{self.folder}/{name}", self.tables[name].values()
        if name in self.invalid:
            return missing("invalid", source)
        return make_fact(merge(values) if values else None, source)


def read_frequencies(root: Root, online: CpuSet, *, now: bool) -> Frequencies:
    """Read the files of each cpufreq policy, which holds for a group of CPUs. The current clock is read if
    `now` is True."""
    clocks = dict.fromkeys((BASE, MOST, NOW), parse_kilohertz)
    files: dict[str, Any] = {**clocks, GOVERNOR: matching("[a-z][a-z0-9_-]{0,31}")}
    tables: dict[str, dict[int, Any]] = {name: {} for name in files}
    invalid = set()
    policies = _policies(root, online)
    for folder, members in policies:
        for name, parse in files.items():
            # some kernels first measure it
            if name == NOW and not now:
                continue
            fact = root.fact(f"{folder}/{name}", parse)
            if fact.value is not None:
                tables[name].update(dict.fromkeys(members, fact.value))
            elif fact.status == "invalid":
                invalid.add(name)
    grouped = any(folder.startswith(f"{CPUS}/cpufreq/") for folder, _ in policies)
    place = f"{CPUS}/cpufreq/policy*" if grouped else f"{CPUS}/cpu*/cpufreq"
    return Frequencies(tables, frozenset(invalid), place)


def _policies(root: Root, online: CpuSet) -> list[tuple[str, CpuSet]]:
    policies: list[tuple[str, CpuSet]] = []
    for name in root.names_like(f"{CPUS}/cpufreq", r"policy\d+"):
        folder = f"{CPUS}/cpufreq/{name}"
        members = root.fact(f"{folder}/related_cpus", lambda text: parse_list(",".join(text.split())))
        policies.append((folder, (members.value or frozenset({int(name[6:])})) & online))
    covered = frozenset().union(*(members for _, members in policies))
    policies += [(f"{CPUS}/cpu{cpu}/cpufreq", frozenset({cpu})) for cpu in sorted(online - covered)]
    return [policy for policy in policies if policy[1]]


def parse_kilohertz(text: str) -> int | None:
    """Parse kilohertz and return hertz, or None for 0 and for a placeholder such as "<unknown>". Raises
    ValueError for anything else, and for more than 100 GHz."""
    if is_placeholder(text.strip("<>")):
        return None
    value = size(text)
    if value > 100_000_000:
        raise ValueError("not a frequency")
    return value * 1000 or None
