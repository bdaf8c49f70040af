"""Tier 0: everything that files alone tell, as parts of the document and as records to merge."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from gpubench.detect import _amd, _cgroup, _cpuinfo, _drm, _intel, _numa, _nvidia, _pci, cpu, memory, system
from gpubench.detect._classify import SOC_DEVICES
from gpubench.detect._drm import Card
from gpubench.detect._fact import known, missing
from gpubench.detect._pci import Function
from gpubench.detect._record import Record
from gpubench.detect._root import Root
from gpubench.detect._topology import CpuSet
from gpubench.model.facts import Fact
from gpubench.model.machine import Cpu, MachineWarning, Memory, Numa, Platform

AMD, INTEL, NVIDIA = 0x1002, 0x8086, 0x10DE
# Unified memory has a second proof: the firmware names the chip (a discrete card may refuse its size too).
_SOC = re.compile(r"GB10|DGX[ _]Spark|Tegra|Jetson|Thor\b|Orin", re.I)


class Files(NamedTuple):
    """`gpu_folders` names the folders that could list GPUs: none means that their number is unknown."""

    platform: Platform
    cpu: Cpu
    memory: Memory
    numa: Numa
    warnings: list[MachineWarning]
    records: list[Record]
    gpu_folders: list[str]
    soc: Fact[str]


def acquire(root: Root, affinity: Fact[CpuSet]) -> Files:
    """Read the machine below `root`; `affinity` is the caller's, because no file tells it."""
    info = root.read("/proc/cpuinfo")
    blocks = info.fact(_cpuinfo.parse)
    platform = system.acquire(root, blocks)
    groups = _cgroup.acquire(root)
    nvidia = _nvidia.acquire(root)
    nodes = _nvidia.numa_nodes(nvidia)
    numa, warnings = _numa.acquire(root, groups, nodes.value or frozenset())
    soc = _soc(root, platform)
    pci, drm, kfd = _pci.acquire(root), _drm.acquire(root), _amd.kfd(root)
    folders = [path for path, found in (
        (_pci.DEVICES, pci), (_drm.CARDS, drm), (f"{_nvidia.FOLDER}/gpus", nvidia), (_amd.NODES, kfd),
    ) if found is not None]  # fmt: skip
    devices = _devices(root, pci or [], drm or [], soc)
    return Files(
        platform, cpu.acquire(root, blocks, platform.hypervisor, groups, affinity),
        memory.acquire(root, groups, nodes), numa, warnings, devices + (nvidia or []) + (kfd or []), folders, soc,
    )  # fmt: skip


def _devices(root: Root, pci: list[Function], drm: list[Card], soc: Fact[str]) -> list[Record]:
    cards = _drm.by_address(drm)
    records = []
    for function in pci:
        card = cards.get(function.bdf) if function.bdf is not None else None
        records.append(_enriched(root, function, card, soc))
    listed = {function.bdf for function in pci}
    for ordinal, card in enumerate(drm):
        if card.function.bdf is None:
            loose = _drm.unplaced_record(card, ordinal)
            if loose is not None and loose.vendor_id in (AMD, INTEL):
                loose = _enriched(root, card.function._replace(record=loose), card, soc)
            records += [loose] if loose else []
        elif card.function.bdf not in listed and cards[card.function.bdf] is card:
            records.append(_enriched(root, card.function, card, soc))
    return records


def _enriched(root: Root, function: Function, card: Card | None, soc: Fact[str]) -> Record:
    """The PCI facts with those of the vendor's driver and of the card."""
    record, facts = function.record, {}
    if record.vendor_id == AMD:
        facts = _amd.driver_facts(root, function.folder, function.asleep)
    elif record.vendor_id == INTEL:
        folder = card.folder if card else None
        facts = _intel.driver_facts(root, function.folder, function.bdf, folder, function.asleep)
    elif record.vendor_id == NVIDIA:
        facts = _nvidia_facts(function, soc)
    if card is not None:
        facts["display_attached"] = _drm.display_attached(root, card)
    uuid = facts["uuid"].value if "uuid" in facts else None
    return msgspec.structs.replace(record, facts=record.facts | facts, uuid=uuid)


def _nvidia_facts(function: Function, soc: Fact[str]) -> dict[str, Fact[Any]]:
    if soc.value is not None or function.record.device_id in SOC_DEVICES:
        return {"kind": missing("not_probed", soc.source, "may share the memory of the CPU")}
    return {"kind": known("discrete", function.folder)}


def _soc(root: Root, platform: Platform) -> Fact[str]:
    """The chip that the firmware names, if it is one whose GPU shares the CPU's memory."""
    tree = root.fact("/proc/device-tree/model", lambda text: text if _SOC.search(text) else None)
    if tree.value is not None:
        return tree
    product = platform.dmi_product
    if product.value is not None and _SOC.search(product.value):
        return product
    return missing("absent")
