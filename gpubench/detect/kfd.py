"""AMD's KFD: GPUs, their memory and partitions, and the links between them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from gpubench.detect.records import Address, DeviceRecord, first, known, lost, missing
from gpubench.detect.root import Root, size
from gpubench.result.machine import Fact, LinkPath, Partition

KFD_NODES = "/sys/class/kfd/kfd/topology/nodes"
_HEAPS = (1, 2)  # frame buffer, public and private
_LINK_KINDS = {2: "pcie", 11: "xgmi"}
# Bits of the flags of a link.
_NO_ATOMICS, _NO_PEER_ACCESS = 0b1100, 0b10000


class KfdNode(NamedTuple):
    """One KFD node; `said` is its properties, `memory` the sum of its banks in bytes."""

    number: int
    said: Fact[dict[str, int]]
    memory: Fact[int]

    @property
    def table(self) -> dict[str, int]:
        """The properties; empty if they cannot be read."""
        return self.said.value or {}

    @property
    def address(self) -> Address:
        """Function 0: in partitioned modes the low digits are a partition number."""
        location = self.table.get("location_id", 0)
        return Address(self.table.get("domain", 0), location >> 8 & 0xFF, location >> 3 & 31, 0)

    @property
    def place(self) -> int:
        return self.table.get("location_id", 0) & 7

    @property
    def gpu(self) -> tuple[str, object]:
        """What the nodes of one GPU have in common."""
        unique = self.table.get("unique_id", 0)
        return ("uuid", unique) if unique else ("address", self.address)

    @property
    def units(self) -> Fact[int]:
        if self.said.value is None:
            return lost(self.said)
        per_unit = self.table.get("simd_per_cu", 0)
        units = self.table["simd_count"] // per_unit if per_unit else 0
        return known(units, self.said.source or "") if units else missing("invalid", self.said.source)


def read_kfd(root: Root) -> list[DeviceRecord] | None:
    """One record per physical GPU; None if there is no KFD topology."""
    names = root.names(KFD_NODES)
    if names is None:
        return None
    nodes = []
    for number in sorted(int(name) for name in names if name.isascii() and name.isdigit()):
        said = root.fact(f"{KFD_NODES}/{number}/properties", properties)
        if said.value is None or said.value.get("simd_count", 0):  # the others are CPUs
            nodes.append(KfdNode(number, said, _banks(root, f"{KFD_NODES}/{number}/mem_banks")))
    groups: dict[tuple[str, object], list[KfdNode]] = {}
    for node in nodes:
        if node.table:
            groups.setdefault(node.gpu, []).append(node)
    alone: list[KfdNode] = []
    for node in [node for node in nodes if not node.table]:
        owners = _owners(node, [other for other in nodes if other.table])
        memory = node.memory if len(owners) == 1 else lost(node.said)
        for key in owners:
            groups[key].append(node._replace(memory=memory))
        if not owners and root.fact(f"{KFD_NODES}/{node.number}/gpu_id", size).value:
            alone.append(node)
    gpus = list(groups.values())
    paths = _paths(root, gpus)
    return [_record(nodes, own) for nodes, own in zip(gpus, paths, strict=True)] + [
        _unread(node) for node in alone
    ]


def _owners(unread: KfdNode, nodes: list[KfdNode]) -> set[tuple[str, object]]:
    """The GPUs of which a node that cannot be read may be a partition: the nodes of one GPU follow each other, and the
    neighbours' partition numbers tell whether one is missing there. Empty if it is none."""
    below = max((n for n in nodes if n.number < unread.number), key=lambda n: n.number, default=None)
    above = min((n for n in nodes if n.number > unread.number), key=lambda n: n.number, default=None)
    if below and above and below.gpu == above.gpu:
        return {below.gpu}
    last = max((node.place for node in nodes), default=0)
    found = set()
    if below and below.place + unread.number - below.number <= last:
        found.add(below.gpu)
    if above and above.place >= above.number - unread.number:
        found.add(above.gpu)
    return found


def _unread(node: KfdNode) -> DeviceRecord:
    """A GPU of which the properties cannot be read: other files say that it is one, and how much memory it has."""
    facts: dict[str, Fact[Any]] = {
        "driver.name": known("amdgpu", f"{KFD_NODES}/{node.number}/gpu_id"), "compute.units": node.units,
        "memory.dedicated_bytes": node.memory,
    }  # fmt: skip
    return DeviceRecord(source="kfd", ordinal=node.number, vendor_id=0x1002, facts=facts)


def properties(text: str) -> dict[str, int]:
    """Lines `name number` of a properties file. Raises ValueError if there is none, or one is no such line."""
    lines = [line.split() for line in text.splitlines()]
    if not lines or not all(len(words) == 2 and re.fullmatch(r"-?\d{1,20}", words[1]) for words in lines):
        raise ValueError("not a properties file")
    return {words[0]: int(words[1]) for words in lines}


def gfx(version: int) -> str | None:
    """ "gfx942" of 90402: major in decimal, minor and stepping in hex."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version > 0 else None


def _record(nodes: list[KfdNode], paths: tuple[LinkPath, ...]) -> DeviceRecord:
    """One GPU; at least one of its nodes can be read."""
    nodes = sorted(nodes, key=lambda node: node.number)
    lead = next(node for node in nodes if node.table)
    source = lead.said.source or ""
    unique = lead.table.get("unique_id", 0)
    vendor, device = lead.table.get("vendor_id") or 0x1002, lead.table.get("device_id") or None
    arch = gfx(lead.table.get("gfx_target_version", 0))
    apu = all(node.table.get("cpu_cores_count", 0) > 0 for node in nodes if node.table)
    clock = lead.table.get("max_engine_clk_fcompute", 0)
    facts: dict[str, Fact[Any]] = {
        "bdf": known(str(lead.address), source), "vendor_id": known(f"{vendor:04x}", source),
        "driver.name": known("amdgpu", source),
        "memory.dedicated_bytes": _sum([node.memory for node in nodes]),
        "compute.units": _sum([node.units for node in nodes]),
        "compute.arch": known(arch, source) if arch else missing("absent", source),
        "compute.max_hz": known(clock * 1_000_000, source) if clock else missing("absent", source),
    }  # fmt: skip
    if device:
        facts["device_id"] = known(f"{device:04x}", source)
    if unique:
        facts["uuid"] = known(f"GPU-{unique:016x}", source)
    if apu:
        facts |= {"kind": known("integrated", source), "memory.unified": known(True, source)}
    return DeviceRecord(
        source="kfd", bdf=lead.address, uuid=f"GPU-{unique:016x}" if unique else None,
        vendor_id=vendor, device_id=device, facts=facts, paths=paths,
        partitions=tuple(map(_partition, nodes)) if len(nodes) > 1 else (),
    )  # fmt: skip


def _partition(node: KfdNode) -> Partition:
    return Partition(id=f"kfd:{node.number}", units=node.units, memory_bytes=node.memory)


def _sum(facts: list[Fact[int]]) -> Fact[int]:
    """All or nothing: a partial sum would be a wrong size."""
    unknown = [fact for fact in facts if fact.value is None]
    return first(*unknown) if unknown else known(sum(fact.value or 0 for fact in facts), facts[0].source or "")


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


def _paths(root: Root, groups: Sequence[Sequence[KfdNode]]) -> list[tuple[LinkPath, ...]]:
    """The paths of each GPU, given the nodes of each; partitions of one GPU have none to each other."""
    owner = {node.number: place for place, nodes in enumerate(groups) for node in nodes}
    found: list[dict[int, LinkPath]] = [{} for _ in groups]
    for place, nodes in enumerate(groups):
        for node in nodes:
            for folder in _link_folders(root, node.number):
                said = root.fact(f"{folder}/properties", properties)
                table = said.value or {}
                other = owner.get(table.get("node_to", -1))
                if other not in (None, place) and table.get("type") in _LINK_KINDS and other is not None:
                    lead = next((n for n in groups[other] if n.table), None)
                    if lead is not None:
                        found[place].setdefault(other, _path(lead.address, table, said.source or ""))
    return [tuple(paths[other] for other in sorted(paths)) for paths in found]


def _link_folders(root: Root, node: int) -> list[str]:
    places = [f"{KFD_NODES}/{node}/{kind}" for kind in ("io_links", "p2p_links")]
    return [
        f"{place}/{name}"
        for place in places
        for name in sorted(root.names(place) or (), key=lambda name: (len(name), name))
    ]


def _path(to: Address, table: dict[str, int], source: str) -> LinkPath:
    rate, flags = table.get("max_bandwidth", 0), table.get("flags")
    peer: Fact[Any] = missing("absent", source)
    atomics = peer
    if flags is not None:
        peer = known(not flags & _NO_PEER_ACCESS, source)
        atomics = known(not flags & _NO_ATOMICS, source)
    kind = _LINK_KINDS[table["type"]]
    return LinkPath(
        to=str(to), kind=known(kind, source), read=peer, write=peer, atomics=atomics,
        via=known("direct", source) if kind == "xgmi" else missing("absent", source),
        max_bytes_per_s=known(rate * 1_000_000, source) if rate > 0 else missing("absent", source),
    )  # fmt: skip
