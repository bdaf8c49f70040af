"""Which CPUs run, and how they share cores and packages."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from gpubench.detect import _sets
from gpubench.detect._cpuinfo import CpuInfo
from gpubench.detect._fact import ABSENT, derived, first, known, lost, missing
from gpubench.detect._root import Reading, Root, integer
from gpubench.model.facts import Fact

CPUS = "/sys/devices/system/cpu"
CpuSet = frozenset[int]

# Newest first; the last two are the names of the same files before Linux 5.3.
_SIBLINGS = (
    ("core_cpus_list", _sets.parse_list), ("core_cpus", _sets.parse_mask),
    ("thread_siblings_list", _sets.parse_list), ("thread_siblings", _sets.parse_mask),
)  # fmt: skip


class Topology(NamedTuple):
    """`online` as a set (None if unknown) with its fact; `cores` are the sets of SMT siblings, cut to it."""

    online: Fact[CpuSet]
    possible: Fact[int]
    present: Fact[CpuSet]
    cores: Fact[list[CpuSet]]
    packages: Fact[int]


def acquire(root: Root, info: CpuInfo | None) -> Topology:
    """Read the CPU folders below /sys/devices/system/cpu."""
    folders = frozenset(int(n[3:]) for n in root.names(CPUS) or () if re.fullmatch(r"cpu\d{1,5}", n))
    present = first(_set(root, "present"), known(folders, CPUS) if folders else ABSENT)
    online = first(_set(root, "online"), *_online_fallbacks(root, folders, info))
    possible = derived(_set(root, "possible"), len)
    if online.value is None:
        return Topology(online, possible, present, lost(online), lost(online))
    return Topology(online, possible, present, _cores(root, online.value), _packages(root, online.value))


def _set(root: Root, name: str) -> Fact[CpuSet]:
    return root.fact(f"{CPUS}/{name}", lambda text: _sets.parse_list(text) or None)


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


def _switch(reading: Reading) -> bool:
    return reading.status == "absent" or reading.text in ("0", "1")


def siblings(root: Root, cpu: int, online: CpuSet) -> Reading | CpuSet:
    """The online CPUs on one core with `cpu`: the first source that parses and contains it."""
    worst = Reading("", None, "absent")
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
        worst = Reading(reading.path, None, "invalid")
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


def _packages(root: Root, online: CpuSet) -> Fact[int]:
    source = f"{CPUS}/cpu*/topology/physical_package_id"
    facts = [root.fact(source.replace("*", str(cpu)), integer) for cpu in sorted(online)]
    ids = {fact.value for fact in facts if fact.value is not None and fact.value >= 0}
    if any(fact.status == "invalid" for fact in facts):
        return missing("invalid", source)
    return known(len(ids), source) if ids else missing("absent", source)
