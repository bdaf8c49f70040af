"""AMD: memory from the amdgpu driver's files, compute units and partitions from the KFD topology."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from gpubench.detect._fact import ABSENT, NOT_PROBED, derived, first, known, missing
from gpubench.detect._record import Address, Record
from gpubench.detect._root import Root, size, words
from gpubench.model.facts import Fact
from gpubench.model.machine import Partition

NODES = "/sys/class/kfd/kfd/topology/nodes"
GIB = 1 << 30
_HEAPS = (1, 2)  # frame buffer, public and private


class Node(NamedTuple):
    """One KFD node with compute units; `memory` is the sum of its banks in bytes."""

    number: int
    table: dict[str, int]
    memory: Fact[int]

    @property
    def address(self) -> Address:
        """Function 0: in partitioned modes the low digits are a partition number."""
        location = self.table.get("location_id", 0)
        return Address(self.table.get("domain", 0), location >> 8 & 0xFF, location >> 3 & 31, 0)

    @property
    def units(self) -> int | None:
        """Compute units."""
        per_unit = self.table.get("simd_per_cu", 0)
        return self.table["simd_count"] // per_unit if per_unit else None


def driver_facts(root: Root, folder: str, asleep: bool) -> dict[str, Fact[Any]]:
    """What amdgpu tells in a device folder; only the totals while the GPU sleeps."""
    totals = {
        name: root.fact(f"{folder}/mem_info_{name}_total", _positive) for name in ("vram", "vis_vram", "gtt")
    }
    used = NOT_PROBED if asleep else root.fact(f"{folder}/mem_info_vram_used", size)
    vram = totals["vram"]
    kind = _kind(root, folder, vram.value, totals["gtt"].value, asleep)
    integrated = kind.value == "integrated"
    return {
        "memory.dedicated_bytes": vram, "memory.visible_bytes": totals["vis_vram"],
        "memory.shared_limit_bytes": totals["gtt"], "memory.free_bytes": _free(vram, used), "kind": kind,
        "memory.unified": derived(kind, lambda _: integrated),
        "uuid": NOT_PROBED if asleep else root.fact(f"{folder}/unique_id", unique_id),
        "name": NOT_PROBED if asleep else root.fact(f"{folder}/product_name", words),
    }  # fmt: skip


def unique_id(text: str) -> str | None:
    """`GPU-` and 16 hex digits; None for 0. Raises ValueError."""
    if not re.fullmatch(r"[0-9a-f]{1,16}", text, re.I):
        raise ValueError("not an id")
    value = int(text, 16)
    return f"GPU-{value:016x}" if value else None


def kfd(root: Root) -> list[Record] | None:
    """One record per physical GPU; None if there is no KFD topology."""
    names = root.names(NODES)
    if names is None:
        return None
    groups: dict[tuple[str, object], list[Node]] = {}
    spoiled: list[int] = []
    for number in sorted(int(name) for name in names if name.isascii() and name.isdigit()):
        fact = root.fact(f"{NODES}/{number}/properties", properties)
        table = fact.value
        spoiled += [number] if fact.status not in ("ok", "absent") else []
        if table is None or table.get("simd_count", 0) == 0:
            continue
        node = Node(number, table, _banks(root, f"{NODES}/{number}/mem_banks"))
        unique = table.get("unique_id", 0)
        groups.setdefault(("uuid", unique) if unique else ("address", node.address), []).append(node)
    records = [_record(nodes, bool(spoiled)) for nodes in groups.values()]
    # A spoiled node is a GPU of its own if its gpu_id says so, unless it may be a partition of another.
    whole = all(len(nodes) == 1 for nodes in groups.values())
    return records + [_unread(root, number) for number in spoiled if whole and _is_gpu(root, number)]


def _is_gpu(root: Root, number: int) -> bool:
    return bool(root.fact(f"{NODES}/{number}/gpu_id", size).value)


def _unread(root: Root, number: int) -> Record:
    folder = f"{NODES}/{number}"
    facts: dict[str, Fact[Any]] = {
        "driver.name": known("amdgpu", f"{folder}/gpu_id"), "compute.units": missing("invalid", f"{folder}/properties"),
        "memory.dedicated_bytes": _banks(root, f"{folder}/mem_banks"),
    }  # fmt: skip
    return Record(source="kfd", ordinal=number, vendor_id=0x1002, facts=facts)


def properties(text: str) -> dict[str, int]:
    """Lines `name number` of a properties file. Raises ValueError if there is none, or one is no such line."""
    lines = [line.split() for line in text.splitlines()]
    if not lines or not all(len(words) == 2 and re.fullmatch(r"-?\d{1,20}", words[1]) for words in lines):
        raise ValueError("not a properties file")
    return {words[0]: int(words[1]) for words in lines}


def gfx(version: int) -> str | None:
    """ "gfx942" of 90402: major in decimal, minor and stepping in hex."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version > 0 else None


def _record(nodes: list[Node], spoiled: bool) -> Record:
    lead = nodes[0]
    source = f"{NODES}/{lead.number}/properties"
    unique = lead.table.get("unique_id", 0)
    units = [node.units for node in nodes]
    arch = gfx(lead.table.get("gfx_target_version", 0))
    apu = all(node.table.get("cpu_cores_count", 0) > 0 for node in nodes)
    clock = lead.table.get("max_engine_clk_fcompute", 0)
    facts: dict[str, Fact[Any]] = {
        "driver.name": known("amdgpu", source), "memory.dedicated_bytes": _sum([node.memory for node in nodes]),
        "compute.units": known(sum(n or 0 for n in units), source) if all(units) else missing("invalid", source),
        "compute.arch": known(arch, source) if arch else missing("absent", source),
        "compute.max_hz": known(clock * 1_000_000, source) if clock else missing("absent", source),
    }  # fmt: skip
    if spoiled and len(nodes) > 1:  # the node that cannot be read may be one of these partitions
        facts["compute.units"] = facts["memory.dedicated_bytes"] = missing("invalid", NODES)
    if unique:
        facts["uuid"] = known(f"GPU-{unique:016x}", source)
    if apu:
        facts |= {"kind": known("integrated", source), "memory.unified": known(True, source)}
    return Record(
        source="kfd", bdf=lead.address, uuid=f"GPU-{unique:016x}" if unique else None,
        vendor_id=lead.table.get("vendor_id") or 0x1002, device_id=lead.table.get("device_id") or None, facts=facts,
        partitions=tuple(_partition(node) for node in nodes) if len(nodes) > 1 else (),
    )  # fmt: skip


def _partition(node: Node) -> Partition:
    source = f"{NODES}/{node.number}/properties"
    units = known(node.units, source) if node.units else missing("invalid", source)
    return Partition(id=f"kfd:{node.number}", units=units, memory_bytes=node.memory)


def _sum(facts: list[Fact[int]]) -> Fact[int]:
    """All or nothing: a partial sum would be a wrong size."""
    lost = [fact for fact in facts if fact.value is None]
    return first(*lost) if lost else known(sum(fact.value or 0 for fact in facts), facts[0].source or "")


def _banks(root: Root, folder: str) -> Fact[int]:
    total, seen = 0, False
    for name in root.names(folder) or ():
        bank = root.fact(f"{folder}/{name}/properties", properties)
        table = bank.value
        if table is None or "heap_type" not in table or table.get("size_in_bytes", -1) < 0:
            return missing("invalid", f"{folder}/{name}/properties")
        if table["heap_type"] in _HEAPS:
            total, seen = total + table["size_in_bytes"], True
    return known(total, folder) if seen and total else missing("absent", folder)


def _kind(root: Root, folder: str, vram: int | None, gtt: int | None, asleep: bool) -> Fact[str]:
    """Discrete cards have a board and a maker of memory; an APU has a small carve-out and a large window."""
    for name in () if asleep else ("board_info", "mem_info_vram_vendor"):
        if root.read(f"{folder}/{name}").text:
            return known("discrete", f"{folder}/{name}")
    if vram is not None and gtt is not None and vram <= 4 * GIB and gtt >= 8 * GIB and gtt >= 4 * vram:
        return known("integrated", f"{folder}/mem_info_gtt_total", "small memory beside a large window on RAM")
    return NOT_PROBED if asleep else ABSENT


def _free(total: Fact[int], used: Fact[int]) -> Fact[int]:
    if total.value is None or used.value is None:
        return used if used.value is None else total
    rest = total.value - used.value
    return known(rest, used.source or "") if rest >= 0 else missing("invalid", used.source)


def _positive(text: str) -> int | None:
    return size(text) or None
