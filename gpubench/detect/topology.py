"""How CPUs share cores, packages and caches, and which clocks they have.

Caches are read once for each set of CPUs that share one, and clocks once for each policy of cpufreq: that is half the
files on a machine with 96 CPUs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, cast

from gpubench.detect import cpuinfo
from gpubench.detect.cpuinfo import CpuInfo
from gpubench.detect.records import ABSENT, derived, first, known, lost, missing
from gpubench.detect.root import FileText, Root, integer, parse_list, parse_mask, size
from gpubench.result.identity import is_placeholder
from gpubench.result.machine import Cache, Fact

CPUS = "/sys/devices/system/cpu"
CpuSet = frozenset[int]
CacheType = Literal["data", "instruction", "unified"]
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
    folders = frozenset(int(n[3:]) for n in root.names(CPUS) or () if re.fullmatch(r"cpu\d{1,5}", n))
    present = first(_cpu_set(root, "present"), known(folders, CPUS) if folders else ABSENT)
    online = first(_cpu_set(root, "online"), *_online_fallbacks(root, folders, info))
    return ListedCpus(online, derived(_cpu_set(root, "possible"), len), present)


def runs(root: Root, cpu: int) -> bool:
    """Whether the CPU's own folder says that it is online."""
    switch = root.read(f"{CPUS}/cpu{cpu}/online").text
    return switch == "1" or (switch is None and root.exists(f"{CPUS}/cpu{cpu}/topology"))


class Topology(NamedTuple):
    """How CPUs share cores and packages."""

    cores: Fact[list[CpuSet]]  # the sets of SMT siblings
    packages: Fact[int]


def read_topology(root: Root, info: CpuInfo | None, online: Fact[CpuSet]) -> Topology:
    """Read the folders of the `online` CPUs."""
    if online.value is None:
        return Topology(lost(online), lost(online))
    return Topology(_cores(root, online.value), _packages(root, online.value, shows_clusters(root, info)))


def _cpu_set(root: Root, name: str) -> Fact[CpuSet]:
    return root.fact(f"{CPUS}/{name}", lambda text: parse_list(text) or None)


def _online_fallbacks(root: Root, folders: CpuSet, info: CpuInfo | None) -> list[Fact[CpuSet]]:
    """cpuN whose own `online` is not 0 (cpu0 often has no such file), then the lines of cpuinfo."""
    found = []
    if folders:
        readings = {n: root.read(f"{CPUS}/cpu{n}/online") for n in folders}
        running = frozenset(n for n, reading in readings.items() if reading.text != "0")
        if all(_switch(reading) for reading in readings.values()) and running:
            found.append(known(running, f"{CPUS}/cpu*/online"))
        else:
            found.append(missing("invalid", f"{CPUS}/cpu*/online"))
    if info is not None and info.cpus:
        found.append(known(frozenset(info.cpus), "/proc/cpuinfo"))
    return found


def _switch(reading: FileText) -> bool:
    return reading.status == "absent" or reading.text in ("0", "1")


def siblings(root: Root, cpu: int, online: CpuSet) -> FileText | CpuSet:
    """The online CPUs on one core with `cpu`: the first source that parses and contains it."""
    worst = FileText("", None, "absent")
    for name, parse in _SIBLINGS:
        reading = root.read(f"{CPUS}/cpu{cpu}/topology/{name}")
        if reading.text is None:
            worst = reading if reading.status != "absent" else worst
            continue
        try:
            members = parse(reading.text)
        except ValueError:
            members = frozenset()
        if cpu in members:
            return members & online
        worst = FileText(reading.path, None, "invalid")
    return worst


def _cores(root: Root, online: CpuSet) -> Fact[list[CpuSet]]:
    sets: dict[CpuSet, None] = {}
    status: Any = "absent"
    for cpu in sorted(online):
        found = siblings(root, cpu, online)
        if isinstance(found, frozenset):
            sets[found] = None
        elif found.status != "absent":
            status = found.status
    source = f"{CPUS}/cpu*/topology"
    if not sets:
        return missing(status, source)
    members = [cpu for group in sets for cpu in group]
    if len(members) != len(online) or set(members) != online:
        return missing("invalid", source, "the sets of siblings overlap or leave a CPU out")
    return known(sorted(sets, key=min), source)


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


def _packages(root: Root, online: CpuSet, clusters: bool) -> Fact[int]:
    source = f"{CPUS}/cpu*/topology/physical_package_id"
    facts = [root.fact(source.replace("*", str(cpu)), integer) for cpu in sorted(online)]
    ids = {fact.value for fact in facts if fact.value is not None and fact.value >= 0}
    if any(fact.status == "invalid" for fact in facts):
        return missing("invalid", source)
    if clusters and len(ids) > 1:
        note = f"this kernel numbers clusters of cores there ({len(ids)}), not packages"
        return missing("unsupported", source, note)
    return known(len(ids), source) if ids else missing("absent", source)


class Caches(NamedTuple):
    """The fact of the document and, for telling kinds apart, the caches of each CPU."""

    fact: Fact[list[Cache]]
    by_cpu: dict[int, list[Cache]]


class CacheCensus:
    """The caches of the online CPUs. An index that an earlier CPU shares is not read again."""

    def __init__(self, online: CpuSet) -> None:
        self.online = online
        self.counts: dict[tuple[int, CacheType, int], int] = {}
        self.counted: set[tuple[int, CacheType, CpuSet]] = set()
        self.by_cpu: dict[int, list[Cache]] = {}
        self.seen: dict[str, set[int]] = {}
        self.spoiled: list[tuple[str, int]] = []
        self.unread: list[tuple[str, int]] = []
        self.unshared: list[tuple[str, int, Cache]] = []

    def read(self, root: Root, cpu: int) -> None:
        for name in (f"index{number}" for number in range(32)):
            if cpu in self.seen.get(name, ()):
                continue
            found = _read_cache(root, f"{CPUS}/cpu{cpu}/cache/{name}", cpu)
            if found == "end":
                break
            if isinstance(found, str):
                (self.spoiled if found == "invalid" else self.unread).append((name, cpu))
            elif found[1] is None:
                self.unshared.append((name, cpu, found[0]))
            else:
                self.seen.setdefault(name, set()).update(found[1])
                self._count(found[0], found[1])

    def finish(self) -> None:
        """Count what no CPU shares; what one CPU lacks and others tell is not absent, its file is gone."""
        self.spoiled += [gap for gap in self.unread if gap[0] in self.seen]
        for name, cpu, cache in self.unshared:
            if name in self.seen:
                self.spoiled.append((name, cpu))
            else:
                self._count(cache, frozenset({cpu}))

    def complete(self) -> bool:
        """Whether each spoiled index is reported by another CPU that shares it."""
        return all(cpu in self.seen.get(name, ()) for name, cpu in self.spoiled)

    def _count(self, cache: Cache, members: CpuSet) -> None:
        if (cache.level, cache.type, members) in self.counted:  # some hypervisors list a cache twice
            return
        self.counted.add((cache.level, cache.type, members))
        key = (cache.level, cache.type, cache.size_bytes)
        self.counts[key] = self.counts.get(key, 0) + 1
        for member in members & self.online:
            self.by_cpu.setdefault(member, []).append(cache)


def read_caches(root: Root, online: CpuSet) -> Caches:
    census = CacheCensus(online)
    for cpu in sorted(online):
        census.read(root, cpu)
    census.finish()
    source = f"{CPUS}/cpu*/cache/index*"
    if not census.complete():
        return Caches(missing("invalid", source), {})
    if not census.counts:
        return Caches(missing("absent", source), {})
    listed = [
        Cache(level=level, type=kind, size_bytes=amount, instances=number)
        for (level, kind, amount), number in sorted(census.counts.items())
    ]
    return Caches(known(listed, source), census.by_cpu)


def _read_cache(root: Root, folder: str, cpu: int) -> tuple[Cache, CpuSet | None] | str:
    """One index folder: the cache and its CPUs (None: not reported), or "end", "absent" (not reported) or "invalid"."""
    level = root.fact(f"{folder}/level", size)
    kind = root.fact(f"{folder}/type", _cache_type)
    if level.status == kind.status == "absent":
        return "end"
    amount = root.fact(f"{folder}/size", cache_size)
    if {level.status, kind.status, amount.status} - {"ok", "absent"}:
        return "invalid"
    if level.value is None or kind.value is None or amount.value is None:
        return "absent"
    sharing = root.fact(f"{folder}/shared_cpu_list", parse_list)
    if not sharing.value:
        sharing = first(root.fact(f"{folder}/shared_cpu_map", parse_mask), sharing)
    if sharing.status != "absent" and cpu not in (sharing.value or ()):
        return "invalid"
    return Cache(level=level.value, type=kind.value, size_bytes=amount.value, instances=1), sharing.value


def _cache_type(text: str) -> CacheType:
    if text not in ("Data", "Instruction", "Unified"):
        raise ValueError("not a type of cache")
    return cast("CacheType", text.lower())


def cache_size(text: str) -> int | None:
    """Bytes of "48K" or "32M". Raises ValueError."""
    found = re.fullmatch(r"(\d{1,9})([KMG]?)", text)
    if not found:
        raise ValueError("not a size of a cache")
    return int(found[1]) * _UNITS[found[2]] or None


class Frequencies(NamedTuple):
    """Hertz and governors by CPU, for those CPUs where the kernel tells."""

    base_hz: dict[int, int]
    max_hz: dict[int, int]
    now_hz: dict[int, int]
    governors: dict[int, str]
    invalid: frozenset[str]  # names of the spoiled files
    folder: str  # their place


def read_frequencies(root: Root, online: CpuSet, *, now: bool) -> Frequencies:
    """Read each cpufreq policy once; the current clock only if `now`: some kernels measure it for milliseconds."""
    parsers: dict[str, Callable[[str], Any]] = {
        "base_frequency": _kilohertz, "cpuinfo_max_freq": _kilohertz, "scaling_cur_freq": _kilohertz,
        "scaling_governor": _governor_name,
    }  # fmt: skip
    tables: dict[str, dict[int, Any]] = {name: {} for name in parsers}
    invalid = set()
    policies = _policies(root, online)
    for folder, members in policies:
        for name, parse in parsers.items():
            if name == "scaling_cur_freq" and not now:
                continue
            fact = root.fact(f"{folder}/{name}", parse)
            if fact.value is not None:
                tables[name].update(dict.fromkeys(members, fact.value))
            elif fact.status == "invalid":
                invalid.add(name)
    grouped = any(folder.startswith(f"{CPUS}/cpufreq/") for folder, _ in policies)
    place = f"{CPUS}/cpufreq/policy*" if grouped else f"{CPUS}/cpu*/cpufreq"
    base, highest_hz, now_hz, governors = tables.values()
    return Frequencies(base, highest_hz, now_hz, governors, frozenset(invalid), place)


def governor(found: Frequencies) -> Fact[str]:
    """The governor all CPUs share, or "mixed"."""
    source = f"{found.folder}/scaling_governor"
    if "scaling_governor" in found.invalid:
        return missing("invalid", source)
    names = set(found.governors.values())
    if not names:
        return missing("absent", source)
    return known(names.pop() if len(names) == 1 else "mixed", source)


def highest(table: dict[int, int], name: str, found: Frequencies) -> Fact[int]:
    """The largest value of a table of hertz."""
    source = f"{found.folder}/{name}"
    if name in found.invalid:
        return missing("invalid", source)
    return known(max(table.values()), source) if table else missing("absent", source)


def _policies(root: Root, online: CpuSet) -> list[tuple[str, list[int]]]:
    found: list[tuple[str, list[int]]] = []
    covered: set[int] = set()
    for name in root.names(f"{CPUS}/cpufreq") or ():
        if re.fullmatch(r"policy\d+", name):
            folder = f"{CPUS}/cpufreq/{name}"
            members = root.fact(f"{folder}/related_cpus", lambda text: parse_list(",".join(text.split())))
            own = (members.value or frozenset({int(name[6:])})) & online
            covered |= own
            found.append((folder, sorted(own)))
    found += [(f"{CPUS}/cpu{cpu}/cpufreq", [cpu]) for cpu in sorted(online - covered)]
    return [entry for entry in found if entry[1]]


def _governor_name(text: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,31}", text):
        raise ValueError("not a governor")
    return text


def _kilohertz(text: str) -> int | None:
    if is_placeholder(text.strip("<>")):
        return None
    value = integer(text)
    if value < 0 or value > 100_000_000:
        raise ValueError("not a frequency")
    return value * 1000 or None
