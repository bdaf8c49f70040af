"""CPU caches: one reading per set of sharing CPUs, not per CPU (half the files on a 96-CPU machine)."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, cast

from gpubench.detect import _sets
from gpubench.detect._fact import first, known, missing
from gpubench.detect._root import Root, size
from gpubench.detect._topology import CPUS, CpuSet
from gpubench.model.facts import Fact
from gpubench.model.machine import Cache

CacheType = Literal["data", "instruction", "unified"]
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Caches(NamedTuple):
    """The fact of the document and, for telling kinds apart, the caches of each CPU."""

    fact: Fact[list[Cache]]
    by_cpu: dict[int, list[Cache]]


def acquire(root: Root, online: CpuSet) -> Caches:
    """Walk the online CPUs; an index that an earlier CPU shares is not read again."""
    counts: dict[tuple[int, CacheType, int], int] = {}
    by_cpu: dict[int, list[Cache]] = {}
    seen: dict[str, set[int]] = {}
    spoiled: list[tuple[str, int]] = []
    for cpu in sorted(online):
        for number in range(32):
            name = f"index{number}"
            if cpu in seen.get(name, ()):
                continue
            found = _one(root, f"{CPUS}/cpu{cpu}/cache/{name}", cpu)
            if found == "end":
                break
            if isinstance(found, str):
                spoiled += [(name, cpu)] if found == "invalid" else []
                continue
            cache, sharing = found
            seen.setdefault(name, set()).update(sharing)
            key = (cache.level, cache.type, cache.size_bytes)
            counts[key] = counts.get(key, 0) + 1
            for member in sharing & online:
                by_cpu.setdefault(member, []).append(cache)
    source = f"{CPUS}/cpu*/cache/index*"
    if any(cpu not in seen.get(name, ()) for name, cpu in spoiled):  # no sharing CPU told it either
        return Caches(missing("invalid", source), {})
    if not counts:
        return Caches(missing("absent", source), {})
    listed = [Cache(level=k[0], type=k[1], size_bytes=k[2], instances=n) for k, n in sorted(counts.items())]
    return Caches(known(listed, source), by_cpu)


def _one(root: Root, folder: str, cpu: int) -> tuple[Cache, CpuSet] | str:
    """One index folder: the cache and its CPUs, or "end", "absent" (untold) or "invalid"."""
    level = root.fact(f"{folder}/level", size)
    kind = root.fact(f"{folder}/type", _type)
    if level.status == kind.status == "absent":
        return "end"
    amount = root.fact(f"{folder}/size", cache_size)
    if {level.status, kind.status, amount.status} - {"ok", "absent"}:
        return "invalid"
    if level.value is None or kind.value is None or amount.value is None:
        return "absent"
    sharing = root.fact(f"{folder}/shared_cpu_list", _sets.parse_list)
    if not sharing.value:
        sharing = first(root.fact(f"{folder}/shared_cpu_map", _sets.parse_mask), sharing)
    if sharing.status != "absent" and cpu not in (sharing.value or ()):
        return "invalid"
    members = sharing.value or frozenset({cpu})
    return Cache(level=level.value, type=kind.value, size_bytes=amount.value, instances=1), members


def _type(text: str) -> CacheType:
    if text not in ("Data", "Instruction", "Unified"):
        raise ValueError("not a type of cache")
    return cast("CacheType", text.lower())


def cache_size(text: str) -> int | None:
    """Bytes of "48K" or "32M". Raises ValueError."""
    found = re.fullmatch(r"(\d{1,9})([KMG]?)", text)
    if not found:
        raise ValueError("not a size of a cache")
    return int(found[1]) * _UNITS[found[2]] or None
