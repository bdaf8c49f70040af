"""From merged records to the GPUs of the document, and to what is none: each field has a fixed order of sources."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from gpubench.base.messages import DETECTION
from gpubench.detect.access import Said, judge_access
from gpubench.detect.links import with_paths
from gpubench.detect.merge import GPU_VENDORS, SOC_DEVICES, Merged, MergedDevice, role_of_display, vendor_of
from gpubench.detect.records import (
    ABSENT,
    Address,
    DeviceRecord,
    first,
    known,
    lost,
    missing,
    record_to_json,
    uuid_key,
)
from gpubench.result.machine import (
    NOT_PROBED,
    Accelerator,
    Access,
    Alternative,
    Api,
    Compute,
    DisplayAdapter,
    Driver,
    Fact,
    Gpu,
    GpuMemory,
    Link,
    Memory,
    Partition,
    Power,
    SoftwareRenderer,
)

_MEMORY_ORDER = ("kfd", "drm", "pci-sysfs", "drm-ioctl", "nvml", "proc-nvidia", "cuda", "hip")
_KIND_ORDER = ("drm-ioctl", "kfd", "cuda", "hip", "nvml", "drm", "pci-sysfs", "proc-nvidia")
_OTHER_ORDER = ("pci-sysfs", "drm", "proc-nvidia", "nvml", "kfd", "drm-ioctl", "cuda", "hip")
_NAME_ORDER = ("nvml", "proc-nvidia", "cuda", "hip", "drm", "pci-sysfs")
_LOCAL = (
    "pci-sysfs",
    "drm",
    "platform",
    "kfd",
    "proc-nvidia",
    "drm-ioctl",
)  # sources that are no API for programs
# An OpenCL size is an allocation limit and a wgpu size a buffer limit: they count only where nothing else is known.
_WEAK = re.compile(r"opencl|wgpu|vulkan|webgpu|\bgl\b", re.I)
CONFLICT = 0.05  # ECC and reservations explain less of the larger size than this


AccessReader = Callable[[list[Gpu], list[MergedDevice]], list[Said]]


class GpuContext(NamedTuple):
    """What a GPU's facts depend on beside its own records."""

    live: bool
    memory: Memory
    debug: bool = False
    soc: bool = False  # the firmware names a chip whose GPU shares the memory
    device_name: Callable[[int, int], tuple[str, str] | None] = lambda _vendor, _device: None  # and its source


def build_gpu(device: MergedDevice, gpu_id: str, context: GpuContext) -> Gpu:
    vendor_id = device.vendor
    vendor = GPU_VENDORS.get(vendor_id) if vendor_id is not None else None
    soc = context.soc or device.device_id in SOC_DEVICES
    memory = _memory(device, vendor, soc)
    kind = _kind(device, vendor, memory, soc)
    name, precision = _name(device, context)
    usable = _usable(device, memory, kind, vendor, context.memory)
    return Gpu(
        id=gpu_id, kind=kind, vendor=known(vendor, _source(device)) if vendor else ABSENT, name=name,
        name_precision=precision, uuid=uuid_fact(device), bdf=_bdf(device), **_identity(device),
        numa_node=_pick(device, "numa_node", _OTHER_ORDER), local_cpus=_pick(device, "local_cpus", _OTHER_ORDER),
        display_attached=_pick(device, "display_attached", _OTHER_ORDER), usable=NOT_PROBED,
        why_not=_why_not(device), driver=Driver(name=_pick(device, "driver.name", _OTHER_ORDER),
                      version=_pick(device, "driver.version", ("proc-nvidia", "nvml", "pci-sysfs", "drm", "cuda")),
                      cuda=_pick(device, "driver.cuda", ("nvml",))),
        memory=msgspec.structs.replace(memory, usable_bytes=usable), compute=_compute(device),
        link=_link(device), power=_power(device), access=Access(),
        apis=_apis(device),
        records=[record_to_json(r) for r in (*device.records, *device.partitions)] if context.debug else UNSET,
    )  # fmt: skip


def _facts_of(device: MergedDevice, path: str, order: tuple[str, ...]) -> list[Fact[Any]]:
    """What the records say about one field, best source first."""
    return [r.facts[path] for r in sorted(device.records, key=lambda r: _rank(r, order)) if path in r.facts]


def _rank(record: DeviceRecord, order: tuple[str, ...]) -> tuple[int, str, str]:
    return (_place(record.source, order), record.source, record.driver or "")


def _place(source: str | None, order: tuple[str, ...]) -> int:
    return order.index(source) if source in order else len(order)


def _pick(
    device: MergedDevice, path: str, order: tuple[str, ...], default: Fact[Any] = NOT_PROBED
) -> Fact[Any]:
    found = _facts_of(device, path, order)
    return first(*found) if found else default


def _identity(device: MergedDevice) -> dict[str, Any]:
    """PCI ids as the document writes them."""
    found: dict[str, Fact[Any]] = {}
    for name in ("vendor_id", "device_id", "pci_class"):
        ids = [(getattr(r, name), r.source) for r in device.records if getattr(r, name) is not None]
        plain = known(f"{ids[0][0]:04x}", ids[0][1]) if ids else ABSENT
        found[name] = first(*_facts_of(device, name, _OTHER_ORDER), plain)
    if found["vendor_id"].value is None and device.vendor is not None:
        found["vendor_id"] = known(f"{device.vendor:04x}", _source(device))
    for name in ("subvendor_id", "subdevice_id", "revision"):
        found[name] = _pick(device, name, _OTHER_ORDER, ABSENT)
    return found


def _source(device: MergedDevice) -> str:
    record = next((r for r in device.records if vendor_of(r) is not None), device.records[0])
    fact = record.facts.get("vendor_id")
    return fact.source if fact is not None and fact.source else record.source


def _why_not(device: MergedDevice) -> list[str]:
    """What the records say against the device, unless it has computed through another API."""
    if any(record.checked for record in device.records):
        return []
    return sorted({code for record in device.records for code in record.why_not if code in DETECTION})


def uuid_fact(device: MergedDevice) -> Fact[str]:
    """The uuid as the vendor's own tools spell it."""
    reported = [
        known(r.uuid, r.source) for r in device.records if r.uuid is not None and not r.uuid.startswith("MIG-")
    ]
    facts = _facts_of(device, "uuid", ("nvml", "proc-nvidia", "cuda", "kfd", "pci-sysfs", "drm"))
    longest = sorted(reported, key=lambda fact: len(uuid_key(fact.value or "")), reverse=True)
    return first(*facts, *longest, NOT_PROBED)


def _bdf(device: MergedDevice) -> Fact[str]:
    record = next((r for r in device.records if r.bdf is not None), None)
    return record.facts.get("bdf", known(str(record.bdf), record.source)) if record else ABSENT


def _name(device: MergedDevice, context: GpuContext) -> tuple[Fact[str], Any]:
    names = [known(r.name, r.source) for r in device.records if r.name]
    exact = first(*_facts_of(device, "name", _NAME_ORDER), *_by_order(names, _NAME_ORDER), NOT_PROBED)
    if exact.value is not None:
        return exact, "exact"
    if device.vendor is not None and device.device_id is not None:
        family = context.device_name(device.vendor, device.device_id)
        if family is not None:
            return known(*family), "family"
    return exact, None


def _by_order(facts: list[Fact[Any]], order: tuple[str, ...]) -> list[Fact[Any]]:
    return sorted(facts, key=lambda fact: _place(fact.source, order))


def _memory(device: MergedDevice, vendor: str | None, soc: bool) -> GpuMemory:
    """Everything about memory but what is usable of it."""
    unified = _pick(device, "memory.unified", _KIND_ORDER)
    if unified.value is None and vendor == "nvidia" and any(
        r.source == "cuda" and r.adapter_type == "integrated" for r in device.records
    ):  # fmt: skip
        unified = known(True, "cuda")
    refused = [r.facts.get("memory.dedicated_bytes", ABSENT) for r in device.records if r.source == "nvml"]
    if unified.value is None and vendor == "nvidia" and soc and any(f.status == "unsupported" for f in refused):
        unified = known(True, "nvml", "NVML cannot tell a size, and the firmware names a chip with one memory")
    fields = {
        name: _pick(device, f"memory.{name}", _MEMORY_ORDER)
        for name in ("reserved_bytes", "free_bytes", "visible_bytes", "shared_limit_bytes", "numa_node")
    }
    return GpuMemory(dedicated_bytes=_dedicated(device, unified), unified=unified, **fields)


def _dedicated(device: MergedDevice, unified: Fact[bool]) -> Fact[int]:
    facts = _facts_of(device, "memory.dedicated_bytes", _MEMORY_ORDER)
    sized = sorted((r for r in device.records if r.memory_bytes), key=lambda r: _rank(r, _MEMORY_ORDER))
    facts += [known(r.memory_bytes, r.source) for r in sized if not _WEAK.search(r.source)]
    weak = [known(r.memory_bytes, r.source) for r in sized if _WEAK.search(r.source)]
    sizes = [fact for fact in facts if fact.value is not None]
    if unified.value and not any(fact.source and fact.source.startswith("/sys") for fact in sizes):
        # One memory for CPU and GPU: sizes from an API are the system's, only a carve-out is its own.
        return first(*[fact for fact in facts if fact.value is None], ABSENT)
    if sizes:
        return _agreed(sizes, weak)
    if weak and not facts:
        return _agreed(weak, [])
    if device.partitions and any(r.source == "nvml" for r in device.partitions):
        return missing("permission", "nvml", "only the instances report the size")
    return first(*facts) if facts else NOT_PROBED


def _agreed(strong: list[Fact[Any]], weak: list[Fact[Any]]) -> Fact[int]:
    """The best source's size; the others stand beside it, and a large difference is a conflict."""
    best = strong[0]
    others = [f for f in (*strong[1:], *weak) if f.value != best.value]
    sizes: list[int] = [fact.value or 0 for fact in strong]
    conflict = max(sizes) - min(sizes) > CONFLICT * max(sizes)
    if not others:
        return best
    listed = [Alternative(fact.value, fact.source or "") for fact in others]
    return Fact(best.value, "conflict" if conflict else "ok", best.source, best.note, listed)


def _kind(device: MergedDevice, vendor: str | None, memory: GpuMemory, soc: bool) -> Fact[str]:
    facts = _facts_of(device, "kind", _KIND_ORDER)
    if memory.unified.value:
        facts.insert(0, known("integrated", memory.unified.source or ""))
    types = {"discrete": "discrete", "integrated": "integrated", "virtual": "vgpu"}
    kinds = [known(types[r.adapter_type], r.source) for r in device.records if r.adapter_type in types]
    found = first(*facts, *_by_order(kinds, _KIND_ORDER), ABSENT)
    usual = {"apple": "integrated", "nvidia": None if soc else "discrete"}.get(vendor or "")
    return known(usual, _source(device)) if found.value is None and usual else found


def _usable(
    device: MergedDevice, memory: GpuMemory, kind: Fact[str], vendor: str | None, host: Memory
) -> Fact[int]:
    """What one process may hope for."""
    sizes = [p.memory_bytes for p in partitions(device)]
    if sizes:
        measured = [fact for fact in sizes if fact.value is not None]
        return max(measured, key=lambda fact: fact.value or 0) if measured else first(*sizes)
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
    limits = [fact for fact in (carved, window) if fact.value is not None]
    return known(max(f.value or 0 for f in limits), limits[0].source or "") if limits else first(carved, window)


def partitions(device: MergedDevice) -> list[Partition]:
    """Slices from the records, sorted by id; where two sources list them, and one by no uuid, those of one source."""
    own = {p.id: p for r in device.records for p in r.partitions}
    anonymous = Counter(record.source for record in device.partitions if not record.uuid)
    named = own or any(record.uuid for record in device.partitions)
    best = None if named else max(sorted(anonymous), key=anonymous.__getitem__, default=None)
    for record in device.partitions:
        if not record.uuid and record.source != best:
            continue
        size = record.facts.get("memory.dedicated_bytes", missing("absent", record.source))
        if record.memory_bytes is not None:
            size = known(record.memory_bytes, record.source)
        units = record.facts.get("compute.units", missing("not_probed"))
        name = record.uuid or f"{record.source}:{record.ordinal if record.ordinal is not None else len(own)}"
        own[name] = Partition(id=name, units=units, memory_bytes=size)
    return [own[key] for key in sorted(own, key=_natural)]


def _natural(text: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]


def _compute(device: MergedDevice) -> Compute:
    order = ("kfd", "nvml", "cuda", "hip")
    names = ("arch", "units", "now_hz", "max_hz", "ecc", "mode")
    fields = {name: _pick(device, f"compute.{name}", order) for name in names}
    return Compute(partitions=partitions(device), **fields)


def _link(device: MergedDevice) -> Link:
    names = ("gen_max", "width_max", "gen_now", "width_now")
    fields: dict[str, Any] = {
        name: _pick(device, f"link.{name}", ("pci-sysfs", "drm", "nvml")) for name in names
    }
    return Link(**fields)


def _power(device: MergedDevice) -> Power:
    fields = {name: _pick(device, f"power.{name}", ("nvml",)) for name in ("limit_w", "default_limit_w")}
    throttle = sorted({reason for r in device.records for reason in r.throttle})
    return Power(state=_pick(device, "power.state", _OTHER_ORDER), throttle=throttle, **fields)


def _apis(device: MergedDevice) -> dict[str, Api]:
    """The APIs that list the device, by source and, where one source has several drivers, by driver."""
    found: dict[str, Api] = {}
    for record in sorted((r for r in device.records if r.source not in _LOCAL), key=lambda r: r.enumeration):
        key = record.source if record.source not in found else f"{record.source}:{record.driver}"
        found[key] = Api(ordinal=record.ordinal, version=record.version)
    return found


def build_gpus(merged: Merged, context: GpuContext, access: AccessReader | None) -> list[Gpu]:
    """All GPUs in address order, each judged usable or not."""
    names = ids(merged.devices)
    found = [build_gpu(device, name, context) for device, name in zip(merged.devices, names, strict=True)]
    answers = access(found, merged.devices) if access else [Said()] * len(found)
    judged = [judge_access(gpu, said, context.live) for gpu, said in zip(found, answers, strict=True)]
    return with_paths(judged, [device.records for device in merged.devices])


def ids(devices: list[MergedDevice]) -> list[str]:
    """uuid if unique here, else `pci:BDF` if that is unique, else `api:SOURCE:N`."""
    uuids = [uuid_fact(device).value for device in devices]
    addresses = [str(device.bdf) if device.bdf is not None else None for device in devices]
    uuid_count = Counter(uuid_key(uuid) for uuid in uuids if uuid)
    address_count = Counter(addresses)
    found, numbers = [], Counter[str]()
    for device, uuid, bdf in zip(devices, uuids, addresses, strict=True):
        if uuid and uuid_count[uuid_key(uuid)] == 1:
            found.append(uuid)
        elif bdf and address_count[bdf] == 1:
            found.append(f"pci:{bdf}")
        else:
            source = device.records[0].source
            found.append(f"api:{source}:{numbers[source]}")
            numbers[source] += 1
    return found


def accelerators(merged: Merged) -> list[Accelerator]:
    return [
        Accelerator(id=f"pci:{bdf}", driver=_driver(records), **_ids(bdf, records))
        for bdf, records in merged.sorted.accelerators.items()
    ]


def display_adapters(merged: Merged) -> list[DisplayAdapter]:
    """Adapters that only draw, by address."""
    found = []
    for bdf, records in merged.sorted.displays.items():
        vendor = next((r.vendor_id for r in records if r.vendor_id is not None), None)
        device = next((r.device_id for r in records if r.device_id is not None), None)
        kind, facts = role_of_display(vendor, device), _ids(bdf, records)
        unknown = next((facts[name] for name in ("vendor_id", "device_id") if facts[name].value is None), None)
        role = lost(unknown) if kind == "other" and unknown else known(kind, records[0].source)
        found.append(DisplayAdapter(id=f"pci:{bdf}", role=role, driver=_driver(records), **facts))
    return found


def software_renderers(merged: Merged) -> list[SoftwareRenderer]:
    """One entry a name, with the APIs that showed it."""
    names: dict[str, set[str]] = {}
    for record in merged.sorted.software:
        names.setdefault(record.name or record.driver or "unnamed", set()).add(record.source)
    return [SoftwareRenderer(name=name, apis=sorted(apis)) for name, apis in sorted(names.items())]


def _ids(bdf: Address, records: list[DeviceRecord]) -> dict[str, Fact[str]]:
    found = {"bdf": known(str(bdf), records[0].source)}
    for name in ("vendor_id", "device_id", "pci_class"):
        facts = [record.facts[name] for record in records if name in record.facts]
        plain = [known(f"{getattr(r, name):04x}", r.source) for r in records if getattr(r, name) is not None]
        found[name] = first(*facts, *plain, ABSENT)
    return found


def _driver(records: list[DeviceRecord]) -> Driver:
    name, version = (
        first(*(record.facts[path] for record in records if path in record.facts), ABSENT)
        for path in ("driver.name", "driver.version")
    )
    return Driver(name=name, version=version)
