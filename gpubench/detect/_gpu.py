"""From the records of one device to the GPU of the document: each field has a fixed order of sources."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec import UNSET

from gpubench.detect import _classify, remedies
from gpubench.detect._fact import ABSENT, NOT_PROBED, first, known, missing
from gpubench.detect._merge import Device
from gpubench.detect._record import Record, to_json, uuid_key
from gpubench.model.facts import Alternative, Fact
from gpubench.model.machine import Access, Api, Compute, Driver, Gpu, GpuMemory, Link, Memory, Partition, Power

_MEMORY_ORDER = ("kfd", "drm", "pci-sysfs", "drm-ioctl", "nvml", "proc-nvidia", "cuda")
_KIND_ORDER = ("drm-ioctl", "kfd", "cuda", "nvml", "drm", "pci-sysfs", "proc-nvidia")
_OTHER_ORDER = ("pci-sysfs", "drm", "proc-nvidia", "nvml", "kfd", "drm-ioctl", "cuda")
_NAME_ORDER = ("nvml", "proc-nvidia", "cuda", "drm", "pci-sysfs")
_LOCAL = ("pci-sysfs", "drm", "kfd", "proc-nvidia", "drm-ioctl")  # sources that are no API for programs
# An OpenCL size is an allocation limit and a wgpu size a buffer limit: they count only where nothing else is known.
_WEAK = re.compile(r"opencl|wgpu|vulkan|webgpu|\bgl\b", re.I)
CONFLICT = 0.05  # ECC and reservations explain less of the larger size than this


class Context(NamedTuple):
    """What a GPU's facts depend on beside its own records."""

    live: bool
    memory: Memory
    debug: bool = False
    soc: bool = False  # the firmware names a chip whose GPU shares the memory
    device_name: Callable[[int, int], tuple[str, str] | None] = lambda _vendor, _device: None  # and its source


def build(device: Device, gpu_id: str, context: Context) -> Gpu:
    """All fields of one GPU."""
    vendor_id = device.vendor
    vendor = _classify.GPU_VENDORS.get(vendor_id) if vendor_id is not None else None
    soc = context.soc or device.device_id in _classify.SOC_DEVICES
    memory = _memory(device, vendor, soc)
    kind = _kind(device, vendor, memory, soc)
    name, precision = _name(device, context)
    state = _pick(device, "power.state", _OTHER_ORDER)
    return Gpu(
        id=gpu_id, kind=kind, vendor=known(vendor, _source(device)) if vendor else ABSENT, name=name,
        name_precision=precision, uuid=uuid_fact(device), bdf=_bdf(device), **_identity(device),
        numa_node=_pick(device, "numa_node", _OTHER_ORDER), local_cpus=_pick(device, "local_cpus", _OTHER_ORDER),
        display_attached=_pick(device, "display_attached", _OTHER_ORDER), usable=NOT_PROBED,
        why_not=_why_not(device), driver=Driver(name=_pick(device, "driver.name", _OTHER_ORDER),
                      version=_pick(device, "driver.version", ("proc-nvidia", "nvml", "pci-sysfs", "drm", "cuda"))),
        memory=_with_usable(device, memory, kind, vendor, context.memory), compute=_compute(device),
        link=_link(device), power=_power(device, state), access=Access(),
        apis=_apis(device),
        records=[to_json(r) for r in (*device.records, *device.partitions)] if context.debug else UNSET,
    )  # fmt: skip


def _facts(device: Device, path: str, order: tuple[str, ...]) -> list[Fact[Any]]:
    """What the records say about one field, best source first."""

    def rank(record: Record) -> tuple[int, str, str]:
        place = order.index(record.source) if record.source in order else len(order)
        return (place, record.source, record.driver or "")

    return [r.facts[path] for r in sorted(device.records, key=rank) if path in r.facts]


def _pick(device: Device, path: str, order: tuple[str, ...], default: Fact[Any] = NOT_PROBED) -> Fact[Any]:
    found = _facts(device, path, order)
    return first(*found) if found else default


def _identity(device: Device) -> dict[str, Any]:
    """PCI ids as the document writes them."""
    found: dict[str, Fact[Any]] = {}
    for name in ("vendor_id", "device_id", "pci_class"):
        told = [(getattr(r, name), r.source) for r in device.records if getattr(r, name) is not None]
        plain = known(f"{told[0][0]:04x}", told[0][1]) if told else ABSENT
        found[name] = first(*_facts(device, name, _OTHER_ORDER), plain)
    if found["vendor_id"].value is None and device.vendor is not None:
        found["vendor_id"] = known(f"{device.vendor:04x}", _source(device))
    for name in ("subvendor_id", "subdevice_id", "revision"):
        found[name] = _pick(device, name, _OTHER_ORDER, ABSENT)
    return found


def _source(device: Device) -> str:
    record = next((r for r in device.records if _classify.vendor_of(r) is not None), device.records[0])
    fact = record.facts.get("vendor_id")
    return fact.source if fact is not None and fact.source else record.source


def _why_not(device: Device) -> list[str]:
    """What the records say against the device, unless it has computed through another API."""
    if any(record.checked for record in device.records):
        return []
    return sorted({code for record in device.records for code in record.why_not if remedies.text(code)})


def uuid_fact(device: Device) -> Fact[str]:
    """The uuid as the vendor's own tools spell it."""
    told = [
        known(r.uuid, r.source) for r in device.records if r.uuid is not None and not r.uuid.startswith("MIG-")
    ]
    facts = _facts(device, "uuid", ("nvml", "proc-nvidia", "cuda", "kfd", "pci-sysfs", "drm"))
    longest = sorted(told, key=lambda fact: len(uuid_key(fact.value or "")), reverse=True)
    return first(*facts, *longest, NOT_PROBED)


def _bdf(device: Device) -> Fact[str]:
    record = next((r for r in device.records if r.bdf is not None), None)
    return known(str(record.bdf), record.source) if record else ABSENT


def _name(device: Device, context: Context) -> tuple[Fact[str], Any]:
    told = [known(r.name, r.source) for r in device.records if r.name]
    exact = first(*_facts(device, "name", _NAME_ORDER), *_by_order(told, _NAME_ORDER), NOT_PROBED)
    if exact.value is not None:
        return exact, "exact"
    if device.vendor is not None and device.device_id is not None:
        family = context.device_name(device.vendor, device.device_id)
        if family is not None:
            return known(*family), "family"
    return exact, None


def _by_order(facts: list[Fact[Any]], order: tuple[str, ...]) -> list[Fact[Any]]:
    return sorted(facts, key=lambda f: order.index(f.source) if f.source in order else len(order))


def _memory(device: Device, vendor: str | None, soc: bool) -> GpuMemory:
    """Everything about memory but what is usable of it."""
    unified = _pick(device, "memory.unified", _KIND_ORDER)
    if unified.value is None and vendor == "nvidia" and any(
        r.source == "cuda" and r.adapter_type == "integrated" for r in device.records
    ):  # fmt: skip
        unified = known(True, "cuda")
    if unified.value is None and vendor == "nvidia" and soc and _refused(device):
        unified = known(True, "nvml", "NVML cannot tell a size, and the firmware names a chip with one memory")
    fields = {
        name: _pick(device, f"memory.{name}", _MEMORY_ORDER)
        for name in ("reserved_bytes", "free_bytes", "visible_bytes", "shared_limit_bytes", "numa_node")
    }
    return GpuMemory(dedicated_bytes=_dedicated(device, unified), unified=unified, **fields)


def _refused(device: Device) -> bool:
    """Whether NVML said that there is no memory of the GPU's own."""
    facts = [r.facts.get("memory.dedicated_bytes") for r in device.records if r.source == "nvml"]
    return any(fact is not None and fact.status == "unsupported" for fact in facts)


def _dedicated(device: Device, unified: Fact[bool]) -> Fact[int]:
    facts = _facts(device, "memory.dedicated_bytes", _MEMORY_ORDER)
    sized = sorted((r for r in device.records if r.memory_bytes), key=_memory_rank)
    facts += [known(r.memory_bytes, r.source) for r in sized if not _WEAK.search(r.source)]
    weak = [known(r.memory_bytes, r.source) for r in sized if _WEAK.search(r.source)]
    told = _by_order([fact for fact in facts if fact.value is not None], ())
    if unified.value and not any(fact.source and fact.source.startswith("/sys") for fact in told):
        # One memory for CPU and GPU: sizes from an API are the system's, only a carve-out is its own.
        return first(*[fact for fact in facts if fact.value is None], ABSENT)
    if told:
        return _agreed(told, weak)
    if weak and not facts:
        return _agreed(weak, [])
    if device.partitions and any(r.source == "nvml" for r in device.partitions):
        return missing("permission", "nvml", "the size is told by the instances alone")
    return first(*facts) if facts else NOT_PROBED


def _memory_rank(record: Record) -> tuple[int, str, str, str]:
    place = _MEMORY_ORDER.index(record.source) if record.source in _MEMORY_ORDER else len(_MEMORY_ORDER)
    return (place, record.source, record.driver or "", str(record.ordinal))


def _agreed(told: list[Fact[Any]], weak: list[Fact[Any]]) -> Fact[int]:
    """The best source's size; the others stand beside it, and a large difference is a conflict."""
    best = told[0]
    others = [f for f in (*told[1:], *weak) if f.value != best.value]
    sizes: list[int] = [fact.value or 0 for fact in told]
    conflict = max(sizes) - min(sizes) > CONFLICT * max(sizes)
    if not others:
        return best
    listed = [Alternative(fact.value, fact.source or "") for fact in others]
    return Fact(best.value, "conflict" if conflict else "ok", best.source, best.note, listed)


def _kind(device: Device, vendor: str | None, memory: GpuMemory, soc: bool) -> Fact[str]:
    facts = _facts(device, "kind", _KIND_ORDER)
    if memory.unified.value:
        facts.insert(0, known("integrated", memory.unified.source or ""))
    types = {"discrete": "discrete", "integrated": "integrated", "virtual": "vgpu"}
    told = [known(types[r.adapter_type], r.source) for r in device.records if r.adapter_type in types]
    found = first(*facts, *_by_order(told, _KIND_ORDER), ABSENT)
    if found.value is None and vendor == "nvidia" and not soc:  # NVIDIA's are discrete unless unified
        return known("discrete", _source(device))
    if found.value is None and vendor == "apple":
        return known("integrated", _source(device))
    return found


def _with_usable(
    device: Device, memory: GpuMemory, kind: Fact[str], vendor: str | None, host: Memory
) -> GpuMemory:
    """`memory` with what one process may hope for."""
    fields = {name: getattr(memory, name) for name in memory.__struct_fields__}
    return GpuMemory(**(fields | {"usable_bytes": _usable(device, memory, kind, vendor, host)}))


def _usable(device: Device, memory: GpuMemory, kind: Fact[str], vendor: str | None, host: Memory) -> Fact[int]:
    sizes = [p.memory_bytes for p in partitions(device)]
    if sizes:
        told = [fact for fact in sizes if fact.value is not None]
        return max(told, key=lambda fact: fact.value or 0) if told else first(*sizes)
    if memory.unified.value or kind.value == "integrated":
        return _budget(memory, vendor, host.usable_bytes)
    dedicated = memory.dedicated_bytes
    if dedicated.value is None:
        return dedicated
    return known(max(0, dedicated.value - (memory.reserved_bytes.value or 0)), dedicated.source or "")


def _budget(memory: GpuMemory, vendor: str | None, ram: Fact[int]) -> Fact[int]:
    """Of an APU: the larger of its free carve-out and its window on RAM, never the sum (they are one RAM)."""
    if vendor != "amd":
        return ram
    window = memory.shared_limit_bytes
    carved = memory.free_bytes if memory.free_bytes.value is not None else memory.dedicated_bytes
    if window.value is not None and ram.value is not None:
        window = known(min(window.value, ram.value), window.source or "")
    elif ram.value is None:
        window = ram
    told = [fact for fact in (carved, window) if fact.value is not None]
    return known(max(f.value or 0 for f in told), told[0].source or "") if told else first(carved, window)


def partitions(device: Device) -> list[Partition]:
    """Slices from the records, sorted by id."""
    own = {p.id: p for r in device.records for p in r.partitions}
    for record in device.partitions:
        size = record.facts.get("memory.dedicated_bytes", missing("absent", record.source))
        if record.memory_bytes is not None:
            size = known(record.memory_bytes, record.source)
        units = record.facts.get("compute.units", missing("not_probed"))
        name = record.uuid or f"{record.source}:{record.ordinal if record.ordinal is not None else len(own)}"
        own[name] = Partition(id=name, units=units, memory_bytes=size)
    return [own[key] for key in sorted(own, key=_natural)]


def _natural(text: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]


def _compute(device: Device) -> Compute:
    order = ("kfd", "nvml", "cuda")
    fields = {
        name: _pick(device, f"compute.{name}", order) for name in ("arch", "units", "max_hz", "ecc", "mode")
    }
    return Compute(partitions=partitions(device), **fields)


def _link(device: Device) -> Link:
    names = ("gen_max", "width_max", "gen_now", "width_now")
    # What the GPU itself can do (NVML) before what the port reports: sysfs gives the slot's view.
    fields = {name: _pick(device, f"link.{name}", ("pci-sysfs", "drm", "nvml")) for name in names}
    return Link(peers=sorted({peer for r in device.records for peer in r.peers}), **fields)


def _power(device: Device, state: Fact[str]) -> Power:
    throttle = sorted({reason for r in device.records for reason in r.throttle})
    limit, default = (_pick(device, f"power.{name}", ("nvml",)) for name in ("limit_w", "default_limit_w"))
    return Power(state=state, limit_w=limit, default_limit_w=default, throttle=throttle)


def _apis(device: Device) -> dict[str, Api]:
    """The APIs that list the device, by source and, where one source has several drivers, by driver."""
    found: dict[str, Api] = {}
    for record in sorted((r for r in device.records if r.source not in _LOCAL), key=lambda r: r.enumeration):
        key = record.source if record.source not in found else f"{record.source}:{record.driver}"
        found[key] = Api(ordinal=record.ordinal, version=record.version)
    return found
