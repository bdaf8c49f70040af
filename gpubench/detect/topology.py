"""How CPUs share cores, packages and caches, and which clocks they have.

Caches are read once for each set of CPUs that share one, and clocks once for each policy of cpufreq: that is half the
files on a machine with 96 CPUs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, Literal, NamedTuple, cast

from gpubench.detect import cpuinfo
from gpubench.detect.cpuinfo import CpuInfo
from gpubench.detect.records import ABSENT, derive, first, make_fact, missing
from gpubench.detect.root import Root, integer, matching, parse_list, parse_mask, size
from gpubench.result.identity import is_placeholder
from gpubench.result.machine import Cache, Fact, Status

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
    """The CPUs that the system lists."""

    online: Fact[CpuSet]
    possible: Fact[int]
    present: Fact[CpuSet]


def read_cpu_lists(root: Root, info: CpuInfo | None) -> ListedCpus:
    """Read the lists in /sys/devices/system/cpu, else its folders, else /proc/cpuinfo."""
    folders = frozenset(int(name[3:]) for name in root.names_like(CPUS, r"cpu\d{1,5}"))
    present = first(_cpu_set(root, "present"), make_fact(folders, CPUS) if folders else ABSENT)
    online = first(_cpu_set(root, "online"), *_online_fallbacks(root, folders, info))
    return ListedCpus(online, derive(_cpu_set(root, "possible"), len), present)


def runs(root: Root, cpu: int) -> bool:
    """Whether the CPU's own folder says that it is online."""
    switch = root.read(f"{CPUS}/cpu{cpu}/online").text
    return switch == "1" or (switch is None and root.exists(f"{CPUS}/cpu{cpu}/topology"))


def _cpu_set(root: Root, name: str) -> Fact[CpuSet]:
    return root.fact(f"{CPUS}/{name}", lambda text: parse_list(text) or None)


def _online_fallbacks(root: Root, folders: CpuSet, info: CpuInfo | None) -> list[Fact[CpuSet]]:
    """cpuN whose own `online` is not 0 (cpu0 often has no such file), then the lines of cpuinfo."""
    facts = []
    if folders:
        source = f"{CPUS}/cpu*/online"
        readings = {n: root.read(f"{CPUS}/cpu{n}/online") for n in folders}
        running = frozenset(n for n, reading in readings.items() if reading.text != "0")
        whole = all(reading.status == "absent" or reading.text in ("0", "1") for reading in readings.values())
        facts.append(make_fact(running, source) if whole and running else missing("invalid", source))
    if info is not None and info.cpus:
        facts.append(make_fact(frozenset(info.cpus), "/proc/cpuinfo"))
    return facts


def siblings(root: Root, cpu: int, online: CpuSet) -> CpuSet | Status:
    """The online CPUs on one core with `cpu` by the first source that parses and contains it, else the reason."""
    worst: Status = "absent"
    for name, parse in _SIBLINGS:
        fact = root.fact(f"{CPUS}/cpu{cpu}/topology/{name}", parse)
        if fact.value is not None and cpu in fact.value:
            return frozenset(fact.value & online)
        if fact.status != "absent":
            worst = "invalid" if fact.status == "ok" else fact.status
    return worst


def read_cores(root: Root, online: CpuSet) -> Fact[list[CpuSet]]:
    """Read the sets of SMT siblings."""
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
    """Whether physical_package_id may be the number of a cluster of cores.

    It is before Linux 6.0 where a device tree describes the CPUs, and on 32-bit Arm to this day.
    """
    arch = cpuinfo.arch(info) if info is not None else None
    if arch is None or not arch.startswith(("aarch64", "arm", "riscv")):
        return False
    release = re.match(r"Linux version (\d+)\.", root.read("/proc/version").text or "")
    if release and int(release[1]) >= 6 and not arch.startswith("arm"):
        return False
    tree = any(root.read(f"/proc/device-tree/{name}").text for name in ("compatible", "model"))
    # Firmware with ACPI or DMI tables describes packages itself.
    return tree or not any(root.exists(path) for path in ("/sys/firmware/acpi/tables", "/sys/class/dmi/id"))


def read_packages(root: Root, info: CpuInfo | None, online: CpuSet) -> Fact[int]:
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
    """The fact of the document, and what tells kinds of CPUs apart."""

    fact: Fact[list[Cache]]
    private: dict[int, tuple[tuple[int, str, int], ...]]  # level, type and size of each CPU's L1 and L2


class CacheCensus:
    """The caches of the online CPUs. An index that an earlier CPU shares is not read again."""

    def __init__(self, online: CpuSet) -> None:
        self.online = online
        self.sizes: dict[tuple[int, CacheType, CpuSet], int] = {}  # some hypervisors list a cache twice
        self.seen: dict[str, set[int]] = {}  # the CPUs of which an index is known
        self.gaps: list[tuple[str, int, str]] = []  # an index of a CPU that is "invalid" or "absent"
        self.unshared: list[tuple[str, int, tuple[int, CacheType, int]]] = []

    def read(self, root: Root, cpu: int) -> None:
        for name in (f"index{number}" for number in range(32)):
            if cpu in self.seen.get(name, ()):
                continue
            entry = _read_cache(root, f"{CPUS}/cpu{cpu}/cache/{name}", cpu)
            if entry == "end":
                break
            if isinstance(entry, str):
                self.gaps.append((name, cpu, entry))
                continue
            level, kind, amount, members = entry
            if members is None:
                self.unshared.append((name, cpu, (level, kind, amount)))
            else:
                self.seen.setdefault(name, set()).update(members)
                self.sizes.setdefault((level, kind, members), amount)

    def finish(self) -> bool:
        """Count what no CPU shares, and tell whether each index that cannot be read is another CPU's too.

        What one CPU lacks and others tell is not absent, its file is gone.
        """
        gaps = [(name, cpu) for name, cpu, reason in self.gaps if reason == "invalid" or name in self.seen]
        for name, cpu, (level, kind, amount) in self.unshared:
            if name in self.seen:
                gaps.append((name, cpu))
            else:
                self.sizes.setdefault((level, kind, frozenset({cpu})), amount)
        return all(cpu in self.seen.get(name, ()) for name, cpu in gaps)


def read_caches(root: Root, online: CpuSet) -> Caches:
    census = CacheCensus(online)
    for cpu in sorted(online):
        census.read(root, cpu)
    source = f"{CPUS}/cpu*/cache/index*"
    if not census.finish():
        return Caches(missing("invalid", source), {})
    counts = Counter((level, kind, amount) for (level, kind, _), amount in census.sizes.items())
    listed = [
        Cache(level=level, type=kind, size_bytes=amount, instances=instances)
        for (level, kind, amount), instances in sorted(counts.items())
    ]
    private: dict[int, list[tuple[int, str, int]]] = {}
    for (level, kind, members), amount in census.sizes.items():
        for cpu in members & online if level <= 2 else ():
            private.setdefault(cpu, []).append((level, kind, amount))
    return Caches(make_fact(listed or None, source), {cpu: tuple(sorted(own)) for cpu, own in private.items()})


def _read_cache(root: Root, folder: str, cpu: int) -> tuple[int, CacheType, int, CpuSet | None] | str:
    """One index folder: level, type, size and CPUs of the cache (None: not reported), or "end", "absent" (not reported)
    or "invalid"."""
    facts = root.facts(folder, {"level": ("level", size), "type": ("type", _cache_type)})
    if all(fact.status == "absent" for fact in facts.values()):
        return "end"
    facts["size"] = root.fact(f"{folder}/size", cache_size)
    if {fact.status for fact in facts.values()} - {"ok", "absent"}:
        return "invalid"
    level, kind, amount = (cast("Any", fact.value) for fact in facts.values())
    if None in (level, kind, amount):
        return "absent"
    sharing = root.fact(f"{folder}/shared_cpu_list", parse_list)
    if not sharing.value:
        sharing = first(root.fact(f"{folder}/shared_cpu_map", parse_mask), sharing)
    if sharing.status != "absent" and cpu not in (sharing.value or ()):
        return "invalid"
    return level, kind, amount, sharing.value


_cache_type = matching("Data|Instruction|Unified", lambda match: match[0].lower())
# Bytes of "48K" or "32M".
cache_size = matching(r"(\d{1,9})([KMG]?)", lambda match: int(match[1]) * _UNITS[match[2]] or None)


class Frequencies(NamedTuple):
    """The tables of cpufreq."""

    tables: dict[str, dict[int, Any]]  # by the file's name, the value of each CPU where the kernel tells
    invalid: frozenset[str]  # names of the spoiled files
    folder: str  # their place

    def merge(self, name: str, merge: Callable[[Collection[Any]], Any]) -> Fact[Any]:
        """Return the fact that one file of all CPUs makes."""
        source, values = f"{self.folder}/{name}", self.tables[name].values()
        if name in self.invalid:
            return missing("invalid", source)
        return make_fact(merge(values) if values else None, source)


def read_frequencies(root: Root, online: CpuSet, *, now: bool) -> Frequencies:
    """Read each cpufreq policy once; the current clock only if `now`: some kernels measure it for milliseconds."""
    files = {BASE: _kilohertz, MOST: _kilohertz, NOW: _kilohertz, GOVERNOR: matching("[a-z][a-z0-9_-]{0,31}")}
    tables: dict[str, dict[int, Any]] = {name: {} for name in files}
    invalid = set()
    policies = _policies(root, online)
    for folder, members in policies:
        for name, parse in files.items():
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


def governor(names: Collection[str]) -> str:
    """The governor all CPUs share, or "mixed"."""
    return "mixed" if len(set(names)) > 1 else next(iter(names))


def _policies(root: Root, online: CpuSet) -> list[tuple[str, CpuSet]]:
    policies: list[tuple[str, CpuSet]] = []
    for name in root.names_like(f"{CPUS}/cpufreq", r"policy\d+"):
        folder = f"{CPUS}/cpufreq/{name}"
        members = root.fact(f"{folder}/related_cpus", lambda text: parse_list(",".join(text.split())))
        policies.append((folder, (members.value or frozenset({int(name[6:])})) & online))
    covered = frozenset().union(*(members for _, members in policies))
    policies += [(f"{CPUS}/cpu{cpu}/cpufreq", frozenset({cpu})) for cpu in sorted(online - covered)]
    return [policy for policy in policies if policy[1]]


def _kilohertz(text: str) -> int | None:
    if is_placeholder(text.strip("<>")):
        return None
    value = size(text)
    if value > 100_000_000:
        raise ValueError("not a frequency")
    return value * 1000 or None
