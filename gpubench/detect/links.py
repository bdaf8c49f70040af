"""How GPUs reach each other: what the folders of PCI tell of each pair, the paths of a document, a small matrix.

The folders of a device are named, never entered, so no sleeping GPU wakes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from gpubench.base.table import Table, cells, heads, line_text, natural_width, number, table_lines
from gpubench.detect.pci import PCI_DEVICES, Function
from gpubench.detect.records import ABSENT, Address, DeviceRecord, address, first, known, missing
from gpubench.detect.root import Root
from gpubench.result.machine import Fact, Gpu, LinkPath

_ORDER = ("nvml", "kfd", "pci-sysfs")
_FIELDS = tuple(field for field in LinkPath.__struct_fields__ if field != "to")
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_LINKED = ("nvlink", "xgmi")


def with_pci_paths(root: Root, functions: Sequence[Function]) -> list[Function]:
    """The display functions with their paths to each other: the deepest bridge that two have in common, else the NUMA
    node."""
    routes = {f.bdf: route(root, f.bdf) for f in functions if f.bdf is not None and _may_link(f.record)}
    if len(routes) < 2:
        return list(functions)
    by_address = {f.bdf: f for f in functions}
    return [
        function._replace(record=msgspec.structs.replace(function.record, paths=tuple(
            _pci_path(function, by_address[other], routes[function.bdf], routes[other])
            for other in routes if other != function.bdf
        ))) if function.bdf in routes else function
        for function in functions
    ]  # fmt: skip


def _may_link(record: DeviceRecord) -> bool:
    return (record.pci_class or 0x0300) >> 8 in (0x03, 0x12)  # one that cannot be read may be a GPU


def route(root: Root, bdf: Address) -> list[str]:
    """The host bridge and the bridges above a function; empty where the folder is no link, as in some recordings."""
    parts = (root.target(f"{PCI_DEVICES}/{bdf}") or "").split("/")
    start = next((place for place, part in enumerate(parts) if _HOST_BRIDGE.fullmatch(part)), len(parts))
    return parts[start:-1]


def _pci_path(one: Function, other: Function, here: list[str], there: list[str]) -> LinkPath:
    common = _common(one, other, here, there)
    kinds = {"switch": "pcie", "host-bridge": "pcie"}
    kind = ABSENT if common.value is None else known(kinds.get(common.value, "host"), common.source or "")
    return LinkPath(to=str(other.bdf), kind=kind, common=common)


def _common(one: Function, other: Function, here: list[str], there: list[str]) -> Fact[str]:
    if not here or not there:
        return missing("absent", one.folder)
    if here[0] == there[0]:
        return known("switch" if here[1:2] == there[1:2] != [] else "host-bridge", one.folder)
    own, others = (function.record.facts["numa_node"] for function in (one, other))
    if own.value is None or others.value is None:
        return missing(
            "absent", own.source, "the two are below two host bridges, and their NUMA nodes are unknown"
        )
    return known("numa-node" if own.value == others.value else "system", own.source or "")


def with_paths(found: Sequence[Gpu], records: Sequence[Sequence[DeviceRecord]]) -> list[Gpu]:
    """The GPUs with the paths between them; `records` are those of each. An address that is no GPU's is left out, and a
    GPU that is cut into MIG instances has no paths."""
    whole = [gpu for gpu in found if not any(part.id.startswith("MIG-") for part in gpu.compute.partitions)]
    by_bdf = {address(gpu.bdf.value): gpu.id for gpu in whole if gpu.bdf.value is not None}
    linked = []
    for gpu, own in zip(found, records, strict=True):
        others = {bdf: name for bdf, name in by_bdf.items() if name != gpu.id} if gpu in whole else {}
        named = {others.get(address(peer)) for record in own for peer in record.peers}
        reported: dict[str, list[LinkPath]] = {}
        for record in sorted(own, key=_rank):
            for path in record.paths:
                if (other := others.get(address(path.to))) is not None:
                    reported.setdefault(other, []).append(path)
        paths = [_merged(other.id, reported[other.id]) for other in found if other.id in reported]
        named |= {path.to for path in paths if path.kind.value in _LINKED}
        peers = [other.id for other in found if other.id in named]
        link = msgspec.structs.replace(gpu.link, peers=peers, paths=paths)
        linked.append(msgspec.structs.replace(gpu, link=link))
    return linked


def _rank(record: DeviceRecord) -> tuple[int, str]:
    return (_ORDER.index(record.source) if record.source in _ORDER else len(_ORDER), record.source)


def _merged(to: str, reported: Sequence[LinkPath]) -> LinkPath:
    """Each fact from the best source that knows it."""
    return LinkPath(to=to, **{name: first(*(getattr(path, name) for path in reported)) for name in _FIELDS})


_WORDS = {"switch": "switch", "host-bridge": "bridge", "numa-node": "node", "system": "system"}
LEGEND = {
    "NV": "NVn: n NVLinks", "XGMI": "XGMI: AMD's link", "switch": "switch: one PCIe switch",
    "bridge": "bridge: one host bridge", "node": "node: one NUMA node", "system": "system: between NUMA nodes",
}  # fmt: skip


def matrix(gpus: Sequence[Gpu]) -> list[str]:
    """Rows of a small table, one GPU each, with its path to each other GPU; empty where nothing is known of a pair."""
    words = [[_cell(gpu, other) for other in gpus] for gpu in gpus]
    shown = {word for row in words for word in row} - {"-", "?"}
    if not shown:
        return []
    names = list(map(str, range(len(gpus))))
    rows = tuple(cells(name, *paths) for name, paths in zip(names, words, strict=True))
    table = Table(heads("", *map(number, names)), rows, bare=True)
    legend = [text for key, text in LEGEND.items() if any(word.startswith(key) for word in shown)]
    return [*map(line_text, table_lines(table, natural_width(table))), "; ".join(legend)]


def _cell(gpu: Gpu, other: Gpu) -> str:
    path = next((path for path in gpu.link.paths if path.to == other.id), None)
    if gpu is other:
        return "-"
    if path is None:
        return "?"
    if path.kind.value == "nvlink":
        return f"NV{path.lanes.value or '?'}"
    return "XGMI" if path.kind.value == "xgmi" else _WORDS.get(path.common.value or "", "?")
