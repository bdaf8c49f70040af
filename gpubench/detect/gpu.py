"""The GPUs, display adapters and software renderers of the document, made of merged records. Each field has a
fixed order of sources."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from gpubench.base.messages import DETECTION
from gpubench.detect.facts import (
    ABSENT,
    Address,
    DeviceRecord,
    Facts,
    address,
    derive,
    fact_types,
    first,
    first_field,
    lost,
    make_fact,
    missing,
    record_to_json,
    uuid_key,
)
from gpubench.detect.merge import GPU_VENDORS, SOC_DEVICES, Merged, MergedDevice, role_of_display, vendor_of
from gpubench.detect.pci import FREE_DRIVERS
from gpubench.result.machine import (
    NOT_PROBED,
    Accelerator,
    Alternative,
    Api,
    Compute,
    DisplayAdapter,
    Driver,
    Fact,
    Gpu,
    GpuMemory,
    Link,
    LinkPath,
    Memory,
    Partition,
    Power,
    SoftwareRenderer,
)

_KIND_ORDER = "drm-ioctl kfd cuda hip nvml drm pci-sysfs proc-nvidia"
_OTHER_ORDER = "pci-sysfs drm proc-nvidia nvml kfd drm-ioctl cuda hip"
# The sources of each fact, best first, by the path of the fact or by the part of its path before the dot.
_ORDERS = {
    "name": "nvml proc-nvidia cuda hip drm pci-sysfs", "kind": _KIND_ORDER,
    "uuid": "nvml proc-nvidia cuda kfd pci-sysfs drm", "memory.unified": _KIND_ORDER,
    "memory": "kfd drm pci-sysfs drm-ioctl nvml proc-nvidia cuda hip",
    "driver.version": "proc-nvidia nvml pci-sysfs drm cuda", "driver.cuda": "nvml",
    "compute": "kfd nvml cuda hip", "link": "pci-sysfs drm nvml",
    "power.limit_w": "nvml", "power.default_limit_w": "nvml", "paths": "nvml kfd pci-sysfs",
}  # fmt: skip
# Sources that are not an API for programs.
_LOCAL = ("pci-sysfs", "drm", "platform", "kfd", "proc-nvidia", "drm-ioctl")
# Sources whose sizes count only if no other size is known: an OpenCL size is an allocation limit, and a wgpu
# size is a buffer limit.
_WEAK = re.compile(r"opencl|wgpu|vulkan|webgpu|\bgl\b", re.I)
CONFLICT = 0.05  # sizes that differ by more than this share conflict; ECC and reservations differ by less
_IDS = ("vendor_id", "device_id", "pci_class")
_ADAPTER_KINDS = {"discrete": "discrete", "integrated": "integrated", "virtual": "vgpu"}


class GpuContext(NamedTuple):
    """The facts that are needed, besides a GPU's own records, to describe the GPU."""

    memory: Memory  # the memory of the host
    soc: bool  # whether the firmware names a chip whose GPU shares the CPU's memory
    # returns the name of a vendor's device by their two PCI ids, and the source of the name; None: unknown
    name_of: Callable[[int, int], tuple[str, str] | None]
    debug: bool  # whether to keep the raw records in the document


def build_gpus(devices: Sequence[MergedDevice], context: GpuContext) -> list[Gpu]:
    """Return all GPUs in the order of `devices`, with the paths between them."""
    gpus = [build_gpu(device, name, context) for device, name in zip(devices, ids(devices), strict=True)]
    return _with_paths(gpus, devices)


def build_gpu(device: MergedDevice, gpu_id: str, context: GpuContext) -> Gpu:
    """Return the description of one GPU, without paths to others. `gpu_id` is its id in the document."""
    vendor = GPU_VENDORS.get(device.vendor) if device.vendor is not None else None
    soc = context.soc or device.device_id in SOC_DEVICES
    groups: dict[str, dict[str, Any]] = {}  # facts
    for path in fact_types():
        group, _, leaf = path.rpartition(".")
        groups.setdefault(group, {})[leaf] = first(*(_facts_of(device, path) or [NOT_PROBED]))
    unified = _unified(device, groups["memory"]["unified"], vendor, soc)
    memory = GpuMemory(
        **groups["memory"] | {"unified": unified, "dedicated_bytes": _own_memory(device, unified)}
    )
    kind = _kind(device, vendor, unified, soc)
    name, precision = _name(device, context)
    # A device that has computed through one API is not held to what another says against it.
    against = (
        set()
        if any(r.checked for r in device.records)
        else {code for r in device.records for code in r.why_not}
    )
    usable = _usable(device, memory, kind, vendor, context.memory)
    own: dict[str, Any] = {
        "kind": kind, "vendor": make_fact(vendor, _source(device) if vendor else None), "name": name,
        "uuid": uuid_fact(device), "bdf": _bdf(device), "usable": NOT_PROBED, **_identity(device),
    }  # fmt: skip
    return Gpu(
        id=gpu_id, name_precision=precision, why_not=sorted(against & DETECTION.keys()),
        driver=Driver(**groups["driver"]),
        memory=replace(memory, usable_bytes=usable),
        compute=Compute(partitions=partitions(device), **groups["compute"]), link=Link(**groups["link"]),
        power=Power(throttle=sorted({word for r in device.records for word in r.throttle}), **groups["power"]),
        apis=_apis(device), **groups[""] | own,
        records=[record_to_json(r) for r in (*device.records, *device.partitions)] if context.debug else UNSET,
    )  # fmt: skip


def _place(source: str | None, path: str) -> int:
    """Return the rank of a source for the fact at `path`, 0 for the best."""
    order = _ORDERS.get(path) or _ORDERS.get(path.partition(".")[0], _OTHER_ORDER)
    return [*order.split(), source].index(source)


def _rank(device: MergedDevice, path: str) -> list[DeviceRecord]:
    """Return the records of a device, those of the best sources for the fact at `path` first."""
    return sorted(device.records, key=lambda r: (_place(r.source, path), r.source, r.driver or ""))


def _facts_of(device: MergedDevice, path: str) -> list[Fact[Any]]:
    """Return the facts at `path` of a device's records, best source first."""
    return [record.facts[path] for record in _rank(device, path) if path in record.facts]


def _identity(device: MergedDevice) -> Facts:
    """Return the PCI ids and the class of a device as facts, in the form of the document."""
    identity = {}
    for name in _IDS:
        stated = [(record.source, getattr(record, name)) for record in device.records]
        numbers = [make_fact(f"{number:04x}", source) for source, number in stated if number is not None]
        identity[name] = first(*_facts_of(device, name), *numbers)
    if identity["vendor_id"].value is None and device.vendor is not None:
        identity["vendor_id"] = make_fact(f"{device.vendor:04x}", _source(device))
    more = ("subvendor_id", "subdevice_id", "revision")
    return identity | {name: first(*_facts_of(device, name)) for name in more}


def _source(device: MergedDevice) -> str:
    record = next((r for r in device.records if vendor_of(r) is not None), device.records[0])
    return record.facts.get("vendor_id", ABSENT).source or record.source


def uuid_fact(device: MergedDevice) -> Fact[str]:
    """Return the uuid in the spelling of the vendor's own tools, without a value if no source states one. Uuids
    of MIG instances do not count."""
    whole = [(r.uuid, r.source) for r in _rank(device, "uuid") if r.uuid and not r.uuid.startswith("MIG-")]
    whole.sort(key=lambda pair: -len(uuid_key(pair[0])))
    return first(*_facts_of(device, "uuid"), *(make_fact(*pair) for pair in whole), NOT_PROBED)


def _bdf(device: MergedDevice) -> Fact[str]:
    record = next((r for r in device.records if r.bdf is not None), None)
    return record.facts.get("bdf", make_fact(str(record.bdf), record.source)) if record else ABSENT


def _name(device: MergedDevice, context: GpuContext) -> tuple[Fact[str], Any]:
    """Return the name of a GPU, and whether it is "exact" or that of its PCI id ("family")."""
    names = [make_fact(r.name, r.source) for r in device.records if r.name]
    exact = first(*_facts_of(device, "name"), *_by_source(names, "name"), NOT_PROBED)
    if exact.value is not None:
        return exact, "exact"
    if device.vendor is not None and device.device_id is not None:
        family = context.name_of(device.vendor, device.device_id)
        if family is not None:
            return make_fact(*family), "family"
    return exact, None


def _by_source(facts: list[Fact[Any]], path: str) -> list[Fact[Any]]:
    return sorted(facts, key=lambda fact: _place(fact.source, path))


def _unified(device: MergedDevice, stated: Fact[bool], vendor: str | None, soc: bool) -> Fact[bool]:
    """Return whether CPU and GPU share one memory, by the sources (`stated`) or by the chip (`soc`)."""
    if stated.value is not None or vendor != "nvidia":
        return stated
    if any(r.source == "cuda" and r.adapter_type == "integrated" for r in device.records):
        return make_fact(True, "cuda")
    refused = [r.facts.get("memory.dedicated_bytes", ABSENT) for r in device.records if r.source == "nvml"]
    if soc and any(fact.status == "unsupported" for fact in refused):
        return make_fact(True, "nvml", "NVML cannot tell a size, and the chip has one memory")
    return stated


def _own_memory(device: MergedDevice, unified: Fact[bool]) -> Fact[int]:
    facts = _facts_of(device, "memory.dedicated_bytes")
    # An API that lists the partitions tells their sizes.
    sized = [
        r for r in _rank(device, "memory") if r.memory_bytes and not any(o.partitions for o in device.records)
    ]
    facts += [make_fact(r.memory_bytes, r.source) for r in sized if not _WEAK.search(r.source)]
    weak = [make_fact(r.memory_bytes, r.source) for r in sized if _WEAK.search(r.source)]
    sizes = [fact for fact in facts if fact.value is not None]
    if unified.value:
        # CPU and GPU share one memory, and only a carve-out is the GPU's own. Sizes from an API are those of the
        # system. KFD's size, the first one in /sys, may be the part of RAM that the GPU can map, so the last counts.
        files = [fact for fact in facts if (fact.source or "").startswith("/sys") and fact.status != "absent"]
        return first(*files[-1:], *[fact for fact in facts if fact.value is None])
    if sizes:
        return _agree(sizes, weak)
    if weak and not facts:
        return _agree(weak, [])
    if any(r.source == "nvml" for r in device.partitions):
        return missing("permission", "nvml", "only the instances report the size")
    return first(*facts) if facts else NOT_PROBED


def _agree(strong: list[Fact[Any]], weak: list[Fact[Any]]) -> Fact[int]:
    """Return the size of the best source, the first in `strong`. Other sizes become its alternatives, and one in
    `strong` that differs much makes it a conflict."""
    best = strong[0]
    others = [Alternative(f.value, f.source or "") for f in (*strong[1:], *weak) if f.value != best.value]
    if not others:
        return best
    sizes: list[int] = [fact.value or 0 for fact in strong]
    # only the sizes in `strong` can be in conflict
    conflict = max(sizes) - min(sizes) > CONFLICT * max(sizes)
    return Fact(best.value, "conflict" if conflict else "ok", best.source, best.note, others)


def _kind(device: MergedDevice, vendor: str | None, unified: Fact[bool], soc: bool) -> Fact[str]:
    facts = [make_fact("integrated", unified.source)] if unified.value else []
    typed = [r for r in device.records if r.adapter_type in _ADAPTER_KINDS]
    kinds = [make_fact(_ADAPTER_KINDS[r.adapter_type or ""], r.source) for r in typed]
    kind = first(*facts, *_facts_of(device, "kind"), *_by_source(kinds, "kind"), ABSENT)
    usual = {"apple": "integrated", "nvidia": None if soc else "discrete"}.get(vendor or "")
    return make_fact(usual, _source(device)) if kind.value is None and usual else kind


def _usable(
    device: MergedDevice, memory: GpuMemory, kind: Fact[str], vendor: str | None, host: Memory
) -> Fact[int]:
    """Return the bytes that one process can expect to use on the GPU."""
    sizes = [partition.memory_bytes for partition in partitions(device)]
    # a partitioned GPU: its largest partition
    if sizes:
        measured = [fact for fact in sizes if fact.value is not None]
        return max(measured, key=lambda fact: fact.value or 0) if measured else first(*sizes)
    if memory.unified.value or kind.value == "integrated":
        return _budget(memory, vendor, host.usable_bytes)
    reserved = memory.reserved_bytes.value or 0
    return derive(memory.dedicated_bytes, lambda size: max(0, size - reserved))


def _budget(memory: GpuMemory, vendor: str | None, ram: Fact[int]) -> Fact[int]:
    """Return the bytes that an integrated GPU can use, of the host's usable `ram`."""
    if vendor != "amd":
        return ram
    # An AMD GPU has a part of RAM of its own, the carve-out, and can map another part. Both are the same RAM,
    # so the larger one counts and not the sum.
    window = memory.shared_limit_bytes
    carved = first(memory.free_bytes, memory.dedicated_bytes)
    if ram.value is None:
        window = ram
    elif window.value is not None:
        window = make_fact(min(window.value, ram.value), window.source)
    if "invalid" in (carved.status, window.status):  # it is unknown which one is larger
        return lost(window if window.status == "invalid" else carved)
    return derive(first(carved, window), lambda _: max(carved.value or 0, window.value or 0))


def partitions(device: MergedDevice) -> list[Partition]:
    """Return the partitions of a GPU, sorted by id. Those that an API lists without a uuid count only if no other
    is known, and then from the API that lists the most."""
    own = {p.id: p for r in device.records for p in r.partitions}
    anonymous = Counter(record.source for record in device.partitions if not record.uuid)
    named = own or any(record.uuid for record in device.partitions)
    best = None if named else max(sorted(anonymous), key=anonymous.__getitem__, default=None)
    for record in device.partitions:
        if not record.uuid and record.source != best:
            continue
        size = record.facts.get("memory.dedicated_bytes", missing("absent", record.source))
        if record.memory_bytes is not None:
            size = make_fact(record.memory_bytes, record.source)
        name = record.uuid or f"{record.source}:{record.ordinal if record.ordinal is not None else len(own)}"
        own[name] = Partition(id=name, units=record.facts.get("compute.units", NOT_PROBED), memory_bytes=size)
    # A shorter number comes first.
    return [
        own[key]
        for key in sorted(
            own, key=lambda key: [(part.isdecimal() * len(part), part) for part in re.split(r"(\d+)", key)]
        )
    ]


def _apis(device: MergedDevice) -> dict[str, Api]:
    """Return the APIs that list the device, by source, or by `SOURCE:DRIVER` from its second driver on."""
    apis: dict[str, Api] = {}
    lists = {r.enumeration: r for r in reversed(device.records) if r.source not in _LOCAL}
    for (source, driver), record in sorted(lists.items()):
        key = source if source not in apis else f"{source}:{driver}"
        apis[key] = Api(ordinal=record.ordinal, version=record.version)
    return apis


def _with_paths(gpus: Sequence[Gpu], devices: Sequence[MergedDevice]) -> list[Gpu]:
    """Return the GPUs with the paths between them."""
    # a GPU that is divided into MIG instances has no paths
    whole = {g.id for g in gpus if not any(part.id.startswith("MIG-") for part in g.compute.partitions)}
    by_bdf = {address(g.bdf.value): g.id for g in gpus if g.id in whole and g.bdf.value is not None}
    linked = []
    for gpu, device in zip(gpus, devices, strict=True):
        reported: dict[str | None, list[LinkPath]] = {}
        for record in _rank(device, "paths"):
            for path in record.paths if gpu.id in whole else ():
                reported.setdefault(by_bdf.get(address(path.to)), []).append(path)
        # Each fact is the best source's that knows it.
        paths = [
            LinkPath(to=other.id, **{
                name: first(*(getattr(path, name) for path in reported[other.id]))
                for name in LinkPath.__struct_fields__ if name != "to"
            }) for other in gpus if reported and other.id in reported and other is not gpu
        ]  # fmt: skip
        peers = [path.to for path in paths if path.kind.value in ("nvlink", "xgmi")]
        linked.append(replace(gpu, link=replace(gpu.link, peers=peers, paths=paths)))
    return linked


def ids(devices: Sequence[MergedDevice]) -> list[str]:
    """Return an id for each device: its uuid, else `pci:BDF`, else `api:SOURCE:N`. An id that two devices would
    share is not used. N counts the nameless devices of a source."""
    uuids = [uuid_fact(device).value for device in devices]
    uuid_count = Counter(uuid_key(uuid) for uuid in uuids if uuid)
    address_count = Counter(device.bdf for device in devices)
    names, numbers = [], Counter[str]()
    for device, uuid in zip(devices, uuids, strict=True):
        if uuid and uuid_count[uuid_key(uuid)] == 1:
            names.append(uuid)
        elif device.bdf is not None and address_count[device.bdf] == 1:
            names.append(f"pci:{device.bdf}")
        else:
            source = device.records[0].source
            names.append(f"api:{source}:{numbers[source]}")
            numbers[source] += 1
    return names


def accelerators(merged: Merged) -> list[Accelerator]:
    """Return the accelerators that are no GPUs, sorted by address."""
    return [Accelerator(**_describe(*entry)) for entry in merged.sorted.accelerators.items()]


def display_adapters(merged: Merged) -> list[DisplayAdapter]:
    """Return the adapters that only show pictures, sorted by address."""
    adapters = []
    for bdf, records in merged.sorted.displays.items():
        described = _describe(bdf, records)
        kind = role_of_display(*(first_field(records, name) for name in _IDS[:2]))
        unknown = next((described[name] for name in _IDS[:2] if described[name].value is None), None)
        role = lost(unknown) if kind == "other" and unknown else make_fact(kind, records[0].source)
        adapters.append(DisplayAdapter(role=role, **described))
    return adapters


def _describe(bdf: Address, records: list[DeviceRecord]) -> dict[str, Any]:
    """Return the fields of a device that is not a GPU: id, address, driver and PCI ids."""
    device = MergedDevice(*records)
    ids = _identity(device)
    driver = Driver(**{name: first(*_facts_of(device, f"driver.{name}")) for name in ("name", "version")})
    identity: dict[str, Any] = {name: ids[name] for name in _IDS}
    return {"id": f"pci:{bdf}", "bdf": make_fact(str(bdf), records[0].source), "driver": driver, **identity}


def software_renderers(merged: Merged) -> list[SoftwareRenderer]:
    """Return the software renderers, one for each name, with the APIs that list them."""
    names: dict[str, set[str]] = {}
    for record in merged.sorted.software:
        names.setdefault(record.name or record.driver or "unnamed", set()).add(record.source)
    return [SoftwareRenderer(name=name, apis=sorted(apis)) for name, apis in sorted(names.items())]


# ---------------------------------------------------------------- which GPUs the environment hides


def parse_visible(text: str, count: int, uuids: Sequence[str] = ()) -> list[int | str]:
    """Parse a list of visible devices, such as CUDA_VISIBLE_DEVICES. Return its numbers (below `count`) or its
    full uuids, which the text may shorten to unique beginnings. The list ends at its first invalid item, and a
    duplicate makes it empty."""
    seen: list[int | str] = []
    for token in (part.strip() for part in text.split(",")):
        fitting: list[int | str] = [
            uuid for uuid in uuids if re.match(r"(GPU|MIG)-.", token) and uuid.lower().startswith(token.lower())
        ]
        if re.fullmatch("[0-9]{1,9}", token) and int(token) < count:
            fitting = [int(token)]
        if len(fitting) != 1 or (seen and type(fitting[0]) is not type(seen[0])):
            break
        seen += fitting
    return seen if len(set(seen)) == len(seen) else []


def hidden(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> dict[str, Fact[str]]:
    """Return the fact `access.hidden_by_env` of each GPU, by the GPU's id: the environment variable that
    hides the GPU. It is absent if none does, and has another status if a variable is set but its effect
    is unknown."""
    verdicts = {gpu.id: ABSENT for gpu in gpus}
    # HIP reads its own variable or, if that is empty, CUDA's, whatever GPUs there are; an empty list hides
    # nothing from HIP. WebGPU heeds none of them.
    hip = next((name for name in ("HIP_VISIBLE_DEVICES", _CUDA) if environ.get(name)), "")
    for vendor, variables in (("nvidia", (_CUDA,)), ("amd", ("ROCR_VISIBLE_DEVICES", hip))):
        visible = [g for g in gpus if g.vendor.value == vendor and g.driver.name.value not in FREE_DRIVERS]
        for variable in variables:
            if variable not in environ or not visible:
                continue
            shown = _list_visible(variable, visible, environ)
            if isinstance(shown, Fact):
                verdicts |= {gpu.id: shown for gpu in visible}
                break
            verdicts |= {gpu.id: make_fact(variable, variable) for gpu in visible if gpu not in shown}
            # the next variable numbers only what this one left visible
            visible = shown
    return verdicts


_CUDA = "CUDA_VISIBLE_DEVICES"


def _list_visible(variable: str, gpus: list[Gpu], environ: Mapping[str, str]) -> list[Gpu] | Fact[str]:
    """Return the GPUs of one vendor that the variable leaves visible, or a fact that says why this
    is unknown."""
    cuda = gpus[0].vendor.value == "nvidia"
    if not cuda and any(gpu.compute.partitions for gpu in gpus):
        return gpus  # the numbers count partitions, whose order no file tells
    owners = {
        uuid: gpu.id
        for gpu in gpus
        for uuid in (gpu.uuid.value, *(p.id for p in gpu.compute.partitions))
        if uuid
    }
    # MIG-GPU-UUID/1/2, the older name of a MIG instance, counts as the name of its GPU.
    text = re.sub(r"MIG-(GPU-[\da-f-]+)/\d+/\d+(,MIG-\1/\d+/\d+)*", r"\1", environ[variable], flags=re.I)
    if "GPU-" in text and None in {gpu.uuid.value for gpu in gpus}:
        return missing("not_probed", variable, "a sleeping GPU does not tell its uuid")
    seen = parse_visible(text, len(gpus), list(owners))
    # CUDA's default order is fastest first: position is known only where all models are equal.
    alike = len({(gpu.device_id.value, gpu.name.value) for gpu in gpus}) == 1
    ordered = not cuda or alike or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    named = {owners[item] for item in seen if isinstance(item, str)}
    if not ordered and not named and len(seen) not in (0, len(gpus)):
        note = f"{variable}={environ[variable]}: its numbers follow speed, not the bus"
        return missing("not_probed", variable, note)
    return [gpu for n, gpu in enumerate(gpus) if n in seen or gpu.id in named]
