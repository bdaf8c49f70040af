"""What each vendor's own files tell of a GPU: amdgpu's and Intel's in its folder, NVIDIA's in /proc."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from gpubench.detect.merge import SOC_DEVICES
from gpubench.detect.pci import Function
from gpubench.detect.records import (
    ABSENT,
    Address,
    DeviceRecord,
    address,
    derived,
    first,
    known,
    missing,
    uuid,
)
from gpubench.detect.root import Root, parse_name, positive, size
from gpubench.result.identity import is_placeholder
from gpubench.result.machine import NOT_PROBED, Fact, Platform

GIB = 1 << 30


def amd_facts(root: Root, folder: str, asleep: bool) -> dict[str, Fact[Any]]:
    """What amdgpu tells in a device folder; only the totals while the GPU sleeps."""
    totals = {
        name: root.fact(f"{folder}/mem_info_{name}_total", positive) for name in ("vram", "vis_vram", "gtt")
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
        "name": NOT_PROBED if asleep else root.fact(f"{folder}/product_name", parse_name),
    } | ({} if asleep else {
        "compute.now_hz": root.fact(f"{folder}/pp_dpm_sclk", clock_now),
        "compute.max_hz": root.fact(f"{folder}/pp_dpm_sclk", clock_max),
        **_power_limits(root, folder, "power1_cap", "power1_cap_default"),
    })  # fmt: skip


def clock_max(text: str) -> int | None:
    """The highest step of a table of lines such as "1: 2371Mhz *", in hertz. Raises ValueError."""
    return max(hertz for hertz, _ in _steps(text)) or None


def clock_now(text: str) -> int | None:
    """The step that is marked as the current one, in hertz. Raises ValueError."""
    return next((hertz for hertz, marked in _steps(text) if marked), 0) or None


def _steps(text: str) -> list[tuple[int, bool]]:
    steps = [re.fullmatch(r"\w: *(\d{1,5})Mhz *(\*?)", line.strip(), re.I) for line in text.splitlines()]
    if not steps or None in steps:
        raise ValueError("not a table of clocks")
    return [(int(step[1]) * 1_000_000, bool(step[2])) for step in steps if step]


def _power_limits(root: Root, folder: str, limit: str, default: str) -> dict[str, Fact[Any]]:
    """The power limits in watts, of the device's own sensors."""
    names = [name for name in root.names(f"{folder}/hwmon") or () if re.fullmatch(r"hwmon\d{1,4}", name)]
    files = {"power.limit_w": limit, "power.default_limit_w": default}
    return {
        path: first(*(root.fact(f"{folder}/hwmon/{name}/{file}", _watts) for name in names), ABSENT)
        for path, file in files.items()
    }


def _watts(text: str) -> float | None:
    return size(text) / 1_000_000 or None


def _megahertz(text: str) -> int | None:
    return size(text) * 1_000_000 or None


def unique_id(text: str) -> str | None:
    """`GPU-` and 16 hex digits; None for 0. Raises ValueError."""
    if not re.fullmatch(r"[0-9a-f]{1,16}", text, re.I):
        raise ValueError("not an id")
    value = int(text, 16)
    return f"GPU-{value:016x}" if value else None


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


# The first two digits of the device ids of Intel's GPUs: those of a processor or chipset, and those of cards. An id is
# Intel's word for one product; an address is what a hypervisor or a slot makes of it.
_INTEGRATED_IDS = frozenset(bytes.fromhex(
    "00 01 04 08 0a 0c 0d 0f 11 16 19 1a 22 25 27 29 2a 2e 31 35 3e 41 45 46 4c 4e 59 5a 64 71 7d 81 87 8a 98 9a 9b a0"
    "a7 b0 b6 d7 fd"
))  # fmt: skip
_DISCRETE_IDS = frozenset(bytes.fromhex("02 0b 12 49 4f 56 67 78 e2"))


def intel_facts(
    root: Root, function: Function, card: str | None, hypervisor: Fact[str]
) -> dict[str, Fact[Any]]:
    """Facts of one device folder; `card` is its /sys/class/drm/cardN, where i915 keeps the local memory; the
    device's own folder has the same card as drm/cardN."""
    folder = function.folder
    local = NOT_PROBED
    running: dict[str, Fact[Any]] = {}
    if not function.asleep:
        names = [name for name in root.names(f"{folder}/drm") or () if re.fullmatch(r"card\d{1,4}", name)]
        places = ([card] if card else []) + [f"{folder}/drm/{name}" for name in names]
        own = [root.fact(f"{place}/lmem_total_bytes", positive) for place in places]
        local = first(_tiles(root, folder), *own)
        files = {
            "compute.now_hz": ("gt_cur_freq_mhz", "cur_freq"),
            "compute.max_hz": ("gt_RP0_freq_mhz", "rp0_freq"),
        }
        running = _power_limits(root, folder, "power1_max", "power1_rated_max") | {
            path: first(
                root.fact(f"{folder}/tile0/gt0/freq0/{xe}", _megahertz),
                *(root.fact(f"{place}/{i915}", _megahertz) for place in places),
            )
            for path, (i915, xe) in files.items()
        }
    kind = _intel_kind(function, local, hypervisor)
    integrated = kind.value == "integrated"
    return {
        "kind": kind, "memory.unified": derived(kind, lambda _: integrated),
        "memory.dedicated_bytes": ABSENT if integrated else local, **running,
    }  # fmt: skip


def _intel_kind(function: Function, local: Fact[int], hypervisor: Fact[str]) -> Fact[str]:
    """Memory of its own, then the id, then, on a real machine, its place in the processor's own part of bus 0."""
    if local.value is not None:
        return known("discrete", local.source or "")
    device_id = function.record.device_id
    family = -1 if device_id is None else device_id >> 8
    source = function.record.facts["device_id"].source or function.folder
    for kind, ids in (("integrated", _INTEGRATED_IDS), ("discrete", _DISCRETE_IDS)):
        if family in ids:
            return known(kind, source)
    if function.bdf == Address(0, 0, 2, 0) and hypervisor.value == "none":
        return known("integrated", function.folder, "Intel's processors have their GPU at this address")
    return missing("absent", source, "neither memory of its own nor its id tells")


def _tiles(root: Root, folder: str) -> Fact[int]:
    """xe: the sum over the tiles, all or nothing."""
    tiles = [name for name in root.names(folder) or () if re.fullmatch(r"tile\d{1,2}", name)]
    facts = [root.fact(f"{folder}/{tile}/physical_vram_size_bytes", positive) for tile in tiles]
    if not facts or all(fact.status == "absent" for fact in facts):
        return ABSENT
    lost = [fact for fact in facts if fact.value is None]
    source = f"{folder}/tile*/physical_vram_size_bytes"
    return missing(lost[0].status, lost[0].source) if lost else known(sum(f.value or 0 for f in facts), source)


# Unified memory has a second proof: the firmware names the chip (a discrete card may refuse its size too).
_SOC = re.compile(r"GB10|DGX[ _]Spark|Tegra|Jetson|Thor\b|Orin", re.I)
NVIDIA_FOLDER = "/proc/driver/nvidia"


def read_gpus(root: Root) -> list[DeviceRecord] | None:
    """One record per folder of /proc/driver/nvidia/gpus; None if that cannot be listed."""
    names = root.names(f"{NVIDIA_FOLDER}/gpus")
    if names is None:
        return None
    version = root.fact(f"{NVIDIA_FOLDER}/version", driver_version)
    return [_read_gpu(root, name, version) for name in names if address(name) is not None]


def driver_version(text: str) -> str:
    """ "535.183.01" of the NVRM line. Raises ValueError."""
    found = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    if not found:
        raise ValueError("no version")
    return found[1]


def parse_information(text: str) -> dict[str, str]:
    """Lines `Name:  value`. Raises ValueError if there is none."""
    pairs = [line.partition(":") for line in text.splitlines()]
    table = {key.strip(): value.strip() for key, colon, value in pairs if colon and value.strip()}
    if not table:
        raise ValueError("no line of the form `Name: value`")
    return table


def parse_numa(text: str) -> tuple[int, int] | None:
    """NUMA node and bytes; None where the memory is no node. Raises ValueError."""
    table = parse_information(text)
    if not re.fullmatch(r"-?\d{1,5}", table.get("Node", "")):
        raise ValueError("no node")
    node = int(table["Node"])
    if node < 0:
        return None
    if not re.fullmatch(r"(0x)?[0-9a-f]{1,16}", table.get("Size", ""), re.I):
        raise ValueError("no size")
    return node, int(table["Size"], 16)


def nvidia_facts(function: Function, soc: Fact[str]) -> dict[str, Fact[Any]]:
    """The kind, unless the chip's GPU shares the memory of the CPU."""
    if soc.value is not None or function.record.device_id in SOC_DEVICES:
        return {"kind": missing("not_probed", soc.source, "may share the memory of the CPU")}
    return {"kind": known("discrete", function.folder)}


def find_soc(root: Root, platform: Platform) -> Fact[str]:
    """The chip that the firmware names, if it is one whose GPU shares the CPU's memory."""
    tree = root.fact("/proc/device-tree/model", lambda text: text if _SOC.search(text) else None)
    product = platform.dmi_product
    if tree.value is None and product.value is not None and _SOC.search(product.value):
        return product
    return tree if tree.value is not None else missing("absent")


class NumaNodes(NamedTuple):
    """The nodes that GPUs call their memory; `unread` is what a GPU says that cannot tell its node."""

    known: frozenset[int]
    unread: Fact[int] | None


def numa_nodes(records: list[DeviceRecord] | None) -> NumaNodes:
    """What the files `numa_status` say. The driver writes one for each GPU or for none: one that is gone is spoiled."""
    facts = [record.facts["memory.numa_node"] for record in records or ()]
    nodes = frozenset(fact.value for fact in facts if fact.value is not None)
    good = ("ok", "absent") if not nodes else ("ok",)
    return NumaNodes(nodes, next((fact for fact in facts if fact.status not in good), None))


def _read_gpu(root: Root, name: str, version: Fact[str]) -> DeviceRecord:
    folder = f"{NVIDIA_FOLDER}/gpus/{name}"
    table = root.fact(f"{folder}/information", parse_information)
    numa = root.fact(f"{folder}/numa_status", parse_numa)
    entries = table.value or {}
    source = f"{folder}/information"
    facts: dict[str, Fact[Any]] = {
        "driver.name": known("nvidia", folder), "driver.version": version,
        "memory.numa_node": derived(numa, lambda found: found[0]),
    }  # fmt: skip
    if numa.value:
        facts["memory.dedicated_bytes"] = known(numa.value[1], numa.source or "")
    elif numa.status == "invalid":
        facts["memory.dedicated_bytes"] = missing("invalid", numa.source)
    gpu_uuid = uuid(entries.get("GPU UUID", ""))
    model = entries.get("Model", "")
    if model and not is_placeholder(model) and "?" not in model:
        facts["name"] = known(model, source)
    if gpu_uuid:
        facts["uuid"] = known(gpu_uuid, source)
    minor = entries.get("Device Minor", "")
    ordinal = int(minor) if minor.isascii() and minor.isdigit() else None
    return DeviceRecord(
        source="proc-nvidia", ordinal=ordinal, bdf=address(name), uuid=gpu_uuid, vendor_id=0x10DE, facts=facts
    )
