"""Facts from the files of each vendor: the device folders of amdgpu and Intel's drivers, NVIDIA's /proc, AMD's
KFD."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gpubench.base import AMD, INTEL, NVIDIA, group_by
from gpubench.detect.facts import (
    ABSENT,
    Address,
    DeviceRecord,
    Facts,
    Root,
    address,
    derive,
    first,
    implausible,
    integer,
    lost,
    make_fact,
    matching,
    missing,
    parse_name,
    positive,
    size,
    uuid,
)
from gpubench.detect.merge import SOC_DEVICES
from gpubench.detect.pci import ASLEEP, PCI_DEVICES, Function
from gpubench.result.identity import is_placeholder
from gpubench.result.machine import NOT_PROBED, Fact, LinkPath, Partition, Platform

GIB = 1 << 30


def amd_facts(root: Root, function: Function) -> Facts:
    """Return the facts that the files of an AMD GPU state. If it is asleep, its memory totals are read, and
    most other facts are not probed."""
    folder, asleep = function.folder, function.asleep
    facts = root.facts(folder, _AMD_TOTALS) | root.facts(folder, _AMD_AWAKE, asleep=asleep)
    vram = facts["memory.dedicated_bytes"]
    facts["memory.free_bytes"] = _free(vram, facts["memory.free_bytes"])
    kind = _kind_by_id(AMD, function.record.facts)
    if kind.value is None:
        kind = _kind(root, folder, vram.value, facts["memory.shared_limit_bytes"].value, asleep)
    facts |= _kind_facts(kind)
    return facts if asleep else facts | _running(root, folder, "power1_cap", "power1_cap_default")


def _kind_facts(kind: Fact[str]) -> Facts:
    return {"kind": kind, "memory.unified": derive(kind, lambda word: word == "integrated")}


def clock(text: str, mark: str = "") -> int | None:
    """Return the highest clock, in hertz, among lines such as "1: 2371Mhz *" that end in `mark`, or None.
    Raises ValueError for a line of another form."""
    step = matching(r"\w{1,2}: *(\d{1,5})[Mm][Hh][Zz] *\*?", lambda match: int(match[1]) * 1_000_000)
    steps = [(step(line.strip()), line.rstrip()) for line in text.splitlines()]
    return max((hertz for hertz, line in steps if line.endswith(mark)), default=0) or None


def _running(root: Root, folder: str, limit: str, default: str) -> Facts:
    """Return the power limits, in watts, that the sensors report in the files `limit` and `default`."""
    sensors = [f"{folder}/hwmon/{name}" for name in root.names_like(f"{folder}/hwmon", r"hwmon\d{1,4}")]
    files = {"power.limit_w": limit, "power.default_limit_w": default}
    return {
        path: first(
            *(root.fact(f"{sensor}/{file}", lambda text: size(text) / 1_000_000 or None) for sensor in sensors)
        )
        for path, file in files.items()
    }


def _megahertz(text: str) -> int | None:
    return size(text) * 1_000_000 or None


def _unique_id(match: re.Match[str]) -> str | None:
    return f"GPU-{value:016x}" if (value := int(match[0], 16)) else None


_AMD_TOTALS = {
    "memory.dedicated_bytes": ("mem_info_vram_total", positive),
    "memory.visible_bytes": ("mem_info_vis_vram_total", positive),
    "memory.shared_limit_bytes": ("mem_info_gtt_total", positive),
}
_AMD_AWAKE: dict[str, tuple[str, Callable[[str], Any]]] = {
    "memory.free_bytes": ("mem_info_vram_used", size), "name": ("product_name", parse_name),
    "uuid": ("unique_id", matching("[0-9a-fA-F]{1,16}", _unique_id)),
    "compute.now_hz": ("pp_dpm_sclk", lambda text: clock(text, "*")), "compute.max_hz": ("pp_dpm_sclk", clock),
}  # fmt: skip


def _kind(root: Root, folder: str, vram: int | None, gtt: int | None, asleep: bool) -> Fact[str]:
    """Return the kind of an AMD GPU whose id is unknown, by its board and sizes (`vram`, `gtt`) in bytes."""
    if not asleep and root.read(f"{folder}/board_info").text:
        return make_fact("discrete", f"{folder}/board_info")
    if vram is not None and gtt is not None and vram <= 4 * GIB and gtt >= 8 * GIB and gtt >= 4 * vram:
        return make_fact(
            "integrated", f"{folder}/mem_info_gtt_total", "small memory beside a large window on RAM"
        )
    return NOT_PROBED if asleep else ABSENT


def _free(total: Fact[int], used: Fact[int]) -> Fact[int]:
    if total.value is None or used.value is None:
        return used if used.value is None else total
    rest = total.value - used.value
    return make_fact(rest, used.source) if rest >= 0 else missing("invalid", used.source)


# The first two digits of the device ids of GPUs, or whole ids: of processors or chipsets, and of cards. An id
# identifies a product, but an address depends on the hypervisor or the slot, and the sizes of an AMD GPU's
# memories on the firmware's setup.
_KINDS_BY_ID = {
    AMD: {
        "integrated": {0x74A0, *bytes.fromhex("11 13 14 15 16 19 96 97 98 99")},  # 74a0: MI300A
        "discrete": {*bytes.fromhex("66 67 68 69 6f 73 74 75 94 95")},
    },
    INTEL: {
        "integrated": {*bytes.fromhex(
            "00 01 04 08 0a 0c 0d 0f 11 16 19 1a 22 25 27 29 2a 2e 31 35 3e 41 45 46 4c 4e 59 5a 64 71 7d 81 87 8a 98"
            "9a 9b a0 a7 b0 b6 d7 fd"
        ), *range(0x0BE0, 0x0BF0)},  # Cedarview, beside Ponte Vecchio
        "discrete": {*bytes.fromhex("02 0b 12 49 4f 56 67 78 e2")},
    },
}  # fmt: skip


def _kind_by_id(vendor: int, facts: Facts) -> Fact[str]:
    """Return the kind that a GPU's ids stand for. The fact is missing for an unknown product. `facts` may have
    the device id, in hexadecimal."""
    stated = facts.get("device_id", ABSENT)
    number = int(stated.value or "ffff", 16)
    for kind, ids in _KINDS_BY_ID.get(vendor, {}).items():
        if not ids.isdisjoint((number, number >> 8)):
            return make_fact(kind, stated.source)
    return missing("absent", stated.source)


def intel_facts(root: Root, function: Function, card: str | None, hypervisor: Fact[str]) -> Facts:
    """Return the facts of one Intel GPU. `card` is its folder /sys/class/drm/cardN, or None. Of a sleeping GPU
    only the kind is known."""
    folder = function.folder
    local = NOT_PROBED
    running: Facts = {}
    if not function.asleep:
        # i915 states the size of the local memory there, and in drm/cardN in the device folder
        places = ([card] if card else []) + [
            f"{folder}/drm/{name}" for name in root.names_like(f"{folder}/drm", r"card\d{1,4}")
        ]
        own = [root.fact(f"{place}/lmem_total_bytes", positive) for place in places]
        local = first(_tiles(root, folder), *own)
        files = {
            "compute.now_hz": ("gt_cur_freq_mhz", "cur_freq"), "compute.max_hz": ("gt_RP0_freq_mhz", "rp0_freq"),
        }  # fmt: skip
        running = _running(root, folder, "power1_max", "power1_rated_max") | {
            path: first(
                root.fact(f"{folder}/tile0/gt0/freq0/{xe}", _megahertz),
                *(root.fact(f"{place}/{i915}", _megahertz) for place in places),
            )
            for path, (i915, xe) in files.items()
        }
    kind = _intel_kind(function, local, hypervisor)
    own_memory = ABSENT if kind.value == "integrated" else local
    return {"memory.dedicated_bytes": own_memory, **_kind_facts(kind), **running}


def _intel_kind(function: Function, local: Fact[int], hypervisor: Fact[str]) -> Fact[str]:
    """Return the kind of an Intel GPU, by its own memory (`local`), its device id or its address."""
    if local.value is not None:
        return make_fact("discrete", local.source)
    kind = _kind_by_id(INTEL, function.record.facts)
    if kind.value is not None:
        return kind
    # a virtual machine may have any GPU there
    if function.bdf == Address(0, 0, 2, 0) and hypervisor.value == "none":
        return make_fact("integrated", function.folder, "Intel's processors have their GPU at this address")
    return missing("absent", kind.source, "neither memory of its own nor its id tells")


def _tiles(root: Root, folder: str) -> Fact[int]:
    """Return the memory of a GPU, which the driver xe lists tile by tile."""
    file, tiles = "physical_vram_size_bytes", root.names_like(folder, r"tile\d{1,2}")
    return _sum([root.fact(f"{folder}/{tile}/{file}", positive) for tile in tiles], f"{folder}/tile*/{file}")


# Chips whose GPU shares the CPU's memory, by the name in the firmware. It is the second proof, because a
# discrete card may refuse to state its size, too.
_SOC = re.compile(r"GB10|DGX[ _]Spark|Tegra|Jetson|Thor\b|Orin", re.I)
NVIDIA_FOLDER = "/proc/driver/nvidia"


def read_gpus(root: Root) -> list[DeviceRecord] | None:
    """Return one record for each folder of /proc/driver/nvidia/gpus, or None if they cannot be listed."""
    names = root.names(f"{NVIDIA_FOLDER}/gpus")
    if names is None:
        return None
    version = root.fact(f"{NVIDIA_FOLDER}/version", driver_version)
    return [_read_gpu(root, name, version) for name in names if address(name) is not None]


# Parses the driver version in the line NVRM, such as "535.183.01".
driver_version = matching(r"(?s:.*)NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s(?s:.*)", lambda match: match[1])


def parse_information(text: str) -> dict[str, str]:
    """Parse lines `Name: value` into a mapping, without lines that have no value. Raises ValueError if no line
    is left."""
    pairs = [line.partition(":") for line in text.splitlines()]
    table = {key.strip(): value.strip() for key, colon, value in pairs if colon and value.strip()}
    if not table:
        raise ValueError("no line of the form `Name: value`")
    return table


def parse_numa(text: str) -> tuple[int | None, int | None]:
    """Return the NUMA node that the GPU memory is, or None while it is no node, and the size of the memory in
    bytes, or None while no program uses the GPU. Raises ValueError or KeyError for a damaged file."""
    table = parse_information(text)
    node = integer(table["Node"])
    size = _hex_size(table["Size"]) if "Size" in table else None
    return None if node < 0 or table.get("Status") == "offline" else node, size


_hex_size = matching("(0[xX])?[0-9a-fA-F]{1,16}", lambda match: positive(str(int(match[0], 16))))


def nvidia_facts(function: Function, soc: Fact[str]) -> Facts:
    """Return the kind of an NVIDIA GPU: discrete, or not_probed if it may share the CPU's memory. `soc` is the
    firmware's name of a chip whose GPU does."""
    if soc.value is not None or function.record.device_id in SOC_DEVICES:
        return {"kind": missing("not_probed", soc.source, "may share the memory of the CPU")}
    return {"kind": make_fact("discrete", function.folder)}


def find_soc(root: Root, platform: Platform, listed: Sequence[DeviceRecord]) -> Fact[str]:
    """Return the firmware's name of the chip, if its GPU shares the CPU's memory. The fact is absent if the
    records `listed` contain that GPU, because all others are cards then."""
    if any(r.device_id in SOC_DEVICES or (r.bdf is None and r.vendor_id == NVIDIA) for r in listed):
        return ABSENT

    def name(text: str) -> str | None:
        return text if _SOC.search(text) else None

    return first(root.fact("/proc/device-tree/model", name), derive(platform.dmi_product, name))


OFFLINE = "its memory is no NUMA node now"


class NumaNodes(NamedTuple):
    """The NUMA nodes that hold GPU memory."""

    known: frozenset[int]  # the numbers of the nodes
    unread: Fact[int] | None  # the fact of a GPU whose node cannot be read; None if all nodes can be read


def numa_nodes(records: list[DeviceRecord] | None) -> NumaNodes:
    """Return the NUMA nodes that the files `numa_status` of the GPUs name."""
    facts = [record.facts["memory.numa_node"] for record in records or ()]
    nodes = frozenset(fact.value for fact in facts if fact.value is not None)
    # The driver writes this file for each GPU or for none: if only some lack it, it is damaged.
    good = ("ok", "absent") if not nodes else ("ok",)
    return NumaNodes(nodes, next((f for f in facts if f.status not in good and f.note != OFFLINE), None))


def _read_gpu(root: Root, name: str, version: Fact[str]) -> DeviceRecord:
    folder = f"{NVIDIA_FOLDER}/gpus/{name}"
    source = f"{folder}/information"
    # Reading this wakes the GPU. A recording still has the file.
    asleep = root.exists(source) and root.read(f"{PCI_DEVICES}/{name}/power/runtime_status").text in ASLEEP
    entries = {} if asleep else root.fact(source, parse_information).value or {}
    numa = root.fact(f"{folder}/numa_status", parse_numa)
    node = derive(numa, lambda pair: pair[0])
    if numa.value and node.value is None:
        node = missing("absent", numa.source, OFFLINE)
    facts: Facts = {
        "driver.name": make_fact("nvidia", folder), "driver.version": version, "memory.numa_node": node,
    }  # fmt: skip
    if numa.status == "invalid" or (numa.value and numa.value[1]):
        facts["memory.dedicated_bytes"] = derive(numa, lambda pair: pair[1])
    gpu_uuid, model = uuid(entries.get("GPU UUID", "")), entries.get("Model", "")
    stated = {"name": None if is_placeholder(model) or "?" in model else model, "uuid": gpu_uuid}
    facts |= {path: make_fact(text, source) for path, text in stated.items() if text}
    minor = entries.get("Device Minor", "")
    ordinal = int(minor) if re.fullmatch("[0-9]{1,9}", minor) else None
    return DeviceRecord(
        source="proc-nvidia", ordinal=ordinal, bdf=address(name), uuid=gpu_uuid, vendor_id=NVIDIA, facts=facts,
        # older drivers have the second name
        why_not=("EXCLUDED",) if "Yes" in map(entries.get, ("GPU Excluded", "Blacklisted")) else (),
    )  # fmt: skip


# ---------------------------------------------------------------- AMD's KFD: memory, partitions, links

KFD_NODES = "/sys/class/kfd/kfd/topology/nodes"
_HEAPS = (1, 2)  # frame buffer, public and private
_LINK_KINDS = {2: "pcie", 11: "xgmi"}
# The bits in the flags of a link.
_NO_ATOMICS, _NO_PEER_ACCESS = 0b1100, 0b10000


class KfdNode(NamedTuple):
    """One node of AMD's KFD topology."""

    number: int  # its number in the topology
    properties: Fact[dict[str, int]]  # the entries of the node's file `properties`
    memory: Fact[int]  # the sum of its memory banks of GPU memory, in bytes

    @property
    def table(self) -> dict[str, int]:
        """The properties, empty if they cannot be read."""
        return self.properties.value or {}

    @property
    def address(self) -> Address:
        """The PCI address with the function set to 0."""
        location = self.table.get("location_id", 0)
        # in partitioned modes, the stated function is the number of a partition
        return Address(self.table.get("domain", 0), location >> 8 & 0xFF, location >> 3 & 31, 0)

    @property
    def place(self) -> int:
        """The number of the partition: the highest bits of the location, or its PCI function, by the driver."""
        location = self.table.get("location_id", 0)
        return location >> 28 | location & 7

    @property
    def units(self) -> Fact[int]:
        """The number of compute units."""
        if self.properties.value is None:
            return lost(self.properties)
        per_unit = self.table.get("simd_per_cu", 0)
        units = self.table["simd_count"] // per_unit if per_unit else 0
        return make_fact(units, self.properties.source) if units else missing("invalid", self.properties.source)


def read_kfd(root: Root) -> list[DeviceRecord] | None:
    """Return one record for each physical GPU, with its partitions and links, or None without a
    KFD topology."""
    if root.names(KFD_NODES) is None:
        return None
    nodes = []
    for number in sorted(map(int, root.names_like(KFD_NODES, "[0-9]+"))):
        stated = root.fact(f"{KFD_NODES}/{number}/properties", properties)
        if stated.value is None or stated.value.get("simd_count", 0):  # the others are CPUs
            nodes.append(KfdNode(number, stated, _banks(root, f"{KFD_NODES}/{number}/mem_banks")))
    groups = _gpus([node for node in nodes if node.table])
    alone: list[KfdNode] = []
    for node in [node for node in nodes if not node.table]:
        owners = _owners(node.number, groups)
        memory = node.memory if len(owners) == 1 else lost(node.properties)
        for lead in owners:
            groups[lead].append(node._replace(memory=memory))
        if not owners and root.fact(f"{KFD_NODES}/{node.number}/gpu_id", size).value:
            alone.append(node)
    gpus = list(groups.values())
    paths = _paths(root, gpus)
    return [_record(nodes, own) for nodes, own in zip(gpus, paths, strict=True)] + [
        _unread(node) for node in alone
    ]


def _gpus(nodes: list[KfdNode]) -> dict[int, list[KfdNode]]:
    """Return the nodes of each GPU, by the number of the first one."""
    groups: dict[int, list[KfdNode]] = {}
    for own in group_by(nodes, lambda node: node.address).values():
        # Newer drivers give each partition an id of its own, so only equal numbers show that there are more GPUs.
        parts = len({node.place for node in own}) == len(own)
        split = [own] if parts else group_by(own, lambda node: node.table.get("unique_id")).values()
        groups |= {group[0].number: group for group in split}
    return groups


def _owners(unread: int, groups: Mapping[int, list[KfdNode]]) -> set[int]:
    """Return the keys of the GPUs in `groups` that may own the unreadable node with the number `unread`."""
    # The nodes of one GPU follow each other, and the partition numbers of its neighbours show whether one is
    # missing.
    homes = {node.number: (lead, node.place) for lead, nodes in groups.items() for node in nodes if node.table}
    below = max((number for number in homes if number < unread), default=unread)
    above = min((number for number in homes if number > unread), default=unread)
    last = max((place for _, place in homes.values()), default=0)
    near = [(number, *homes[number]) for number in (below, above) if number in homes]
    if len({lead for _, lead, _ in near}) < len(near):
        return {near[0][1]}
    return {lead for number, lead, place in near if 0 <= place + unread - number <= last}


def _unread(node: KfdNode) -> DeviceRecord:
    """Return the record of a GPU whose properties cannot be read."""
    facts: Facts = {
        "driver.name": make_fact("amdgpu", f"{KFD_NODES}/{node.number}/gpu_id"), "compute.units": node.units,
        "memory.dedicated_bytes": node.memory,
    }  # fmt: skip
    return DeviceRecord(source="kfd", ordinal=node.number, vendor_id=AMD, facts=facts)


def properties(text: str) -> dict[str, int]:
    """Parse the lines `name number` of a properties file. Raises ValueError for an empty file or a line of
    another form."""
    table = {name: integer(number) for name, number in map(str.split, text.splitlines())}
    if not table:
        raise ValueError("not a properties file")
    return table


def gfx(version: int) -> str | None:
    """Return the name of a gfx version, such as "gfx90a" for 90010, or None for 0. A version is 10000 times the major
    number, 100 times the minor one, and the stepping. The name has the last two in hexadecimal."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version > 0 else None


def _record(nodes: list[KfdNode], paths: tuple[LinkPath, ...]) -> DeviceRecord:
    """Return the record of one GPU from its nodes, at least one of which is readable."""
    nodes = sorted(nodes, key=lambda node: node.number)
    lead = next(node for node in nodes if node.table)
    table, source = lead.table, lead.properties.source
    # Newer drivers state the ids of the partitions. Several of them are not the GPU's.
    own, *others = {node.table.get("unique_id", 0) for node in nodes if node.table}
    unique = f"GPU-{own:016x}" if own and not others else None
    vendor, device = table.get("vendor_id") or AMD, table.get("device_id") or None
    stated: dict[str, Any] = {
        "bdf": str(lead.address), "vendor_id": f"{vendor:04x}", "driver.name": "amdgpu", "uuid": unique,
        "device_id": f"{device:04x}" if device else None,
    }  # fmt: skip
    facts: Facts = {path: make_fact(value, source) for path, value in stated.items() if value}
    facts |= {
        "memory.dedicated_bytes": _sum([node.memory for node in nodes], nodes[0].memory.source),
        "compute.units": _sum([node.units for node in nodes], source),
        "compute.arch": make_fact(gfx(table.get("gfx_target_version", 0)), source),
        "compute.max_hz": make_fact(table.get("max_engine_clk_fcompute", 0) * 1_000_000 or None, source),
    }
    kind = _kind_by_id(vendor, facts)
    if table.get("cpu_cores_count", 0) > 0:
        kind = make_fact("integrated", source)
    facts |= _kind_facts(kind)
    return DeviceRecord(
        source="kfd", bdf=lead.address, uuid=unique, vendor_id=vendor, device_id=device, facts=facts, paths=paths,
        partitions=tuple(
            Partition(id=f"kfd:{node.number}", units=node.units, memory_bytes=node.memory)
            for node in nodes if len(nodes) > 1
        ),
    )  # fmt: skip


def _sum(facts: Sequence[Fact[int]], source: str | None) -> Fact[int]:
    """Return the sum of the facts' values, missing if a value is, or if there are no facts."""
    unknown = [fact for fact in facts if fact.value is None]
    # a partial sum would be a wrong size
    return first(*unknown) if unknown else make_fact(sum(fact.value or 0 for fact in facts) or None, source)


def _banks(root: Root, folder: str) -> Fact[int]:
    total = 0
    for name in root.names(folder) or ():
        path = f"{folder}/{name}/properties"
        bank = root.fact(path, properties).value or {}
        if not {"heap_type", "size_in_bytes"} <= bank.keys() or implausible(bank["size_in_bytes"]):
            return missing("invalid", path)
        total += bank["size_in_bytes"] if bank["heap_type"] in _HEAPS else 0
    return make_fact(total or None, folder)


def _paths(root: Root, groups: Sequence[Sequence[KfdNode]]) -> list[tuple[LinkPath, ...]]:
    """Return the paths of each GPU to the others. `groups` holds the nodes of each GPU, in the same order."""
    owner = {node.number: place for place, nodes in enumerate(groups) for node in nodes}
    paths_of: list[dict[int, LinkPath]] = [{} for _ in groups]
    for place, nodes in enumerate(groups):
        for node in nodes:
            own = f"{KFD_NODES}/{node.number}"
            folders = [f"{own}/{kind}/{n}" for kind in ("io_links", "p2p_links")
                       for n in sorted(root.names_like(f"{own}/{kind}", r"\d+"), key=int)]  # fmt: skip
            for folder in folders:
                link = root.fact(f"{folder}/properties", properties)
                table = link.value or {}
                other = owner.get(table.get("node_to", -1))
                if other is None or other == place or table.get("type") not in _LINK_KINDS:
                    continue
                lead = next(n for n in groups[other] if n.table)
                paths_of[place].setdefault(other, _path(lead.address, table, link.source))
    return [tuple(paths[other] for other in sorted(paths)) for paths in paths_of]


def _path(to: Address, table: dict[str, int], source: str | None) -> LinkPath:
    flags, kind = table.get("flags"), _LINK_KINDS[table["type"]]
    peer, atomics = (
        missing("absent", source) if flags is None else make_fact(not flags & denied, source)
        for denied in (_NO_PEER_ACCESS, _NO_ATOMICS)
    )
    return LinkPath(
        to=str(to), kind=make_fact(kind, source), read=peer, write=peer, atomics=atomics,
        via=make_fact("direct" if kind == "xgmi" else None, source),
        max_bytes_per_s=make_fact(max(0, table.get("max_bandwidth", 0)) * 1_000_000 or None, source),
    )  # fmt: skip
