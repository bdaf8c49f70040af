"""What is a GPU, and what only looks like one: software renderers, display adapters, accelerators."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Literal, NamedTuple

from gpubench.detect._pci import GPU_DRIVERS
from gpubench.detect._record import Address, Record, address

Sort = Literal["gpu", "display", "accelerator", "none"]
GPU_VENDORS = {0x10DE: "nvidia", 0x1002: "amd", 0x8086: "intel", 0x106B: "apple"}
# Sources that list nothing but GPUs.
_PROOF = ("kfd", "proc-nvidia", "nvml", "cuda")
_LAYERED = re.compile(r"dozen|\bdzn\b|venus|virgl|zink|Microsoft Direct3D12", re.I)
_SOFTWARE = re.compile(r"llvmpipe|lavapipe|swiftshader|\bwarp\b|basic render|softpipe|swrast", re.I)
_VENDOR_WORDS = (
    (r"nvidia", 0x10DE), (r"\bamd\b|advanced micro devices|\bati\b|radeon", 0x1002), (r"intel", 0x8086),
    (r"apple", 0x106B),
)  # fmt: skip
_BMC = {(0x1A03, 0x2000), (0x102B, None)}
_VIRTUAL = {
    (0x1AF4, 0x1050), (0x1B36, 0x0100), (0x1234, 0x1111), (0x15AD, 0x0405), (0x1013, 0x00B8), (0x80EE, 0xBEEF),
    (0x1414, None),
}  # fmt: skip
SOC_DEVICES = (0x2E12,)  # GB10: a chip whose GPU shares the memory of the CPU
VIRTIO_GPU = (0x1AF4, 0x1050)
MESA_SOFTWARE = 0x10005


class Sorted(NamedTuple):
    """Records by what they are about; display adapters and accelerators by address."""

    gpus: list[Record]
    partitions: list[Record]
    software: list[Record]
    displays: dict[Address, list[Record]]
    accelerators: dict[Address, list[Record]]


def sort(records: Iterable[Record]) -> Sorted:
    """Take apart what is no GPU. Records of one address are judged together."""
    found = Sorted([], [], [], {}, {})
    placed: dict[Address, list[Record]] = {}
    proofs = Counter[tuple[str, str]]()
    for record in records:
        if proves_virtio(record):
            proofs[record.enumeration] += 1
        if is_software(record):
            found.software.append(record)
        elif record.partition_of is not None:
            found.partitions.append(record)
        elif record.bdf is None:
            found.gpus.append(record)
        else:
            placed.setdefault(record.bdf, []).append(record)
    parents = {address(record.partition_of) for record in found.partitions}
    left = max(proofs.values(), default=0)  # adapters that passed, in the API that lists most
    for bdf in sorted(placed):
        virtio = _is_virtio(placed[bdf])
        # What can be cut into partitions computes, whoever made it.
        kind = "gpu" if bdf in parents else judge(bdf, placed[bdf], passed=virtio and left > 0)
        left -= virtio
        if kind == "gpu":
            found.gpus.extend(placed[bdf])
        elif kind == "display":
            found.displays[bdf] = placed[bdf]
        elif kind == "accelerator":
            found.accelerators[bdf] = placed[bdf]
    return found


def is_software(record: Record) -> bool:
    """A renderer that runs on the CPU, whatever API lists it."""
    said = f"{record.name or ''} {record.driver or ''}"
    return record.adapter_type == "cpu" or record.vendor_id == MESA_SOFTWARE or bool(_SOFTWARE.search(said))


def is_layered(record: Record) -> bool:
    """A driver that stands on another API and lists its device a second time."""
    return bool(_LAYERED.search(f"{record.name or ''} {record.driver or ''}"))


def proves_virtio(record: Record) -> bool:
    """A Vulkan adapter that stands for a virtio GPU and has computed; never one that the host's CPU runs."""
    return bool(record.checked) and "vulkan" in record.source and stands_for_virtio(record)


def stands_for_virtio(record: Record) -> bool:
    """An adapter of the driver of virtio GPUs: it bears the ids of the host's GPU, or virtio's own."""
    if is_software(record):
        return False
    said = f"{record.name or ''} {record.driver or ''}"
    return (record.vendor_id, record.device_id) == VIRTIO_GPU or bool(re.search(r"venus|virtio", said, re.I))


def _is_virtio(records: list[Record]) -> bool:
    return any((r.vendor_id, r.device_id) == VIRTIO_GPU for r in records)


def judge(bdf: Address, records: list[Record], *, passed: bool = False) -> Sort:
    """What all records of one address together are; `passed`: a virtio GPU that has computed."""
    vendor = next((r.vendor_id for r in records if r.vendor_id is not None), None)
    device = next((r.device_id for r in records if r.device_id is not None), None)
    pci_class = next((r.pci_class for r in records if r.pci_class is not None), None)
    drivers = {fact.value for r in records if (fact := r.facts.get("driver.name")) is not None}
    bound = not drivers.isdisjoint(GPU_DRIVERS)
    proven = any(r.source in _PROOF for r in records)
    if pci_class is None:  # a DRM card is there to draw, at least
        drawn = all(r.source in ("drm", "pci-sysfs") for r in records)
        return "gpu" if bound or vendor is None or vendor in GPU_VENDORS or not drawn else "display"
    if pci_class >> 8 not in (0x03, 0x0B, 0x12):
        return "gpu"
    if pci_class == 0x0B40:
        return "accelerator"
    if pci_class >> 8 == 0x12:
        return "gpu" if proven or (bound and vendor in GPU_VENDORS) else "accelerator"
    if bdf.function > 0 and pci_class == 0x0380 and not proven:
        return "none"
    if passed or ((vendor, device) == VIRTIO_GPU and any(r.checked for r in records)):
        return "gpu"
    # A 3D controller whose vendor cannot be read drives no display: it is there to compute.
    unreadable = vendor is None and pci_class == 0x0302
    return "gpu" if vendor in GPU_VENDORS or bound or proven or unreadable else "display"


def role(vendor_id: int | None, device_id: int | None) -> str:
    """What a display adapter is there for: bmc, virtual or other."""
    for table, name in ((_BMC, "bmc"), (_VIRTUAL, "virtual")):
        if (vendor_id, device_id) in table or (vendor_id, None) in table:
            return name
    return "other"


def vendor_of(record: Record) -> int | None:
    """PCI vendor id: told, else from the vendor's text. Ids from 0x10000 up are not PCI's."""
    if record.vendor_id is not None:
        return record.vendor_id if record.vendor_id < 0x10000 else None
    text = record.vendor or ""
    return next((number for pattern, number in _VENDOR_WORDS if re.search(pattern, text, re.I)), None)
