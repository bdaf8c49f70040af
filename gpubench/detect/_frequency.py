"""Clocks and governors of CPUs from cpufreq: one reading per policy, not per CPU."""

from __future__ import annotations

import re
from typing import NamedTuple

from gpubench.detect import _sets
from gpubench.detect._fact import known, missing
from gpubench.detect._root import Root, integer
from gpubench.detect._topology import CPUS, CpuSet
from gpubench.model.facts import Fact


class Frequencies(NamedTuple):
    """Hertz by CPU, for those CPUs where the kernel tells; `invalid` names the spoiled files."""

    base_hz: dict[int, int]
    max_hz: dict[int, int]
    governors: dict[int, str]
    invalid: frozenset[str]


def acquire(root: Root, online: CpuSet) -> Frequencies:
    """Read each cpufreq policy once."""
    tables: tuple[dict[int, int], dict[int, int], dict[int, str]] = ({}, {}, {})
    invalid = set()
    for folder, members in _policies(root, online):
        for table, name in zip(tables[:2], ("base_frequency", "cpuinfo_max_freq"), strict=True):
            fact = root.fact(f"{folder}/{name}", _kilohertz)
            if fact.value is not None:
                table.update(dict.fromkeys(members, fact.value))
            elif fact.status == "invalid":
                invalid.add(name)
        if governor := root.read(f"{folder}/scaling_governor").text:
            tables[2].update(dict.fromkeys(members, governor.split()[0][:32]))
    return Frequencies(*tables, frozenset(invalid))


def governor(found: Frequencies) -> Fact[str]:
    """The governor all CPUs share, or "mixed"."""
    source = f"{CPUS}/cpufreq/policy*/scaling_governor"
    names = set(found.governors.values())
    if not names:
        return missing("absent", source)
    return known(names.pop() if len(names) == 1 else "mixed", source)


def highest(table: dict[int, int], name: str, found: Frequencies) -> Fact[int]:
    """The largest value of a table of hertz."""
    source = f"{CPUS}/cpufreq/policy*/{name}"
    if name in found.invalid:
        return missing("invalid", source)
    return known(max(table.values()), source) if table else missing("absent", source)


def _policies(root: Root, online: CpuSet) -> list[tuple[str, list[int]]]:
    found: list[tuple[str, list[int]]] = []
    covered: set[int] = set()
    for name in root.names(f"{CPUS}/cpufreq") or ():
        if re.fullmatch(r"policy\d+", name):
            folder = f"{CPUS}/cpufreq/{name}"
            members = root.fact(f"{folder}/related_cpus", lambda text: _sets.parse_list(",".join(text.split())))
            own = (members.value or frozenset({int(name[6:])})) & online
            covered |= own
            found.append((folder, sorted(own)))
    found += [(f"{CPUS}/cpu{cpu}/cpufreq", [cpu]) for cpu in sorted(online - covered)]
    return [entry for entry in found if entry[1]]


def _kilohertz(text: str) -> int | None:
    value = integer(text)
    if value < 0 or value > 100_000_000:
        raise ValueError("not a frequency")
    return value * 1000 or None
