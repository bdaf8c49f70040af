"""The merge of records from many sources into devices. The records are sorted by the kind of device, then
joined by uuid or by address. If a source states neither, they are joined by vendor and device id. They are
never joined by name.

Records of one list of a source describe different devices, or different parts of one, so identical GPUs remain
two devices. The result does not depend on the order of the records.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import msgspec
from msgspec.structs import replace

from gpubench.base import AMD, APPLE, INTEL, NVIDIA, SOFTWARE_NAMES, group_by
from gpubench.detect.facts import (
    Address,
    DeviceRecord,
    address,
    first_field,
    pci_id,
    record_to_json,
    uuid,
    uuid_key,
)
from gpubench.detect.pci import GPU_DRIVERS
from gpubench.result.machine import Machine, MachineWarning

if TYPE_CHECKING:
    from gpubench.result.run import Identity


_SEED_ORDER = "pci-sysfs drm kfd proc-nvidia drm-ioctl nvml cuda hip"


class MergedDevice:
    """The records of one physical GPU."""

    def __init__(self, *records: DeviceRecord) -> None:
        self.records = [*records]
        self.partitions: list[DeviceRecord] = []

    @property
    def bdf(self) -> Address | None:
        """The PCI address, or None if no record states it."""
        return cast("Address | None", first_field(self.records, "bdf"))

    @property
    def uuids(self) -> set[str]:
        """The uuids of the records, in a comparable form."""
        return {uuid_key(r.uuid) for r in self.records if r.uuid is not None}

    @property
    def vendor(self) -> int | None:
        """The PCI id of the vendor, as `vendor_of` finds it, or None."""
        return next((v for r in self.records if (v := vendor_of(r)) is not None), None)

    @property
    def device_id(self) -> int | None:
        """The PCI id of the product, or None if no record states it."""
        return cast("int | None", first_field(self.records, "device_id"))

    def listed_by(self, record: DeviceRecord) -> bool:
        """Tell whether the device already has as many records of the record's list as it can have. If so, the
        record describes another device."""
        # one for each PCI function or partition
        most = max(len(r.partitions) or 1 + len(r.virtual) for r in self.records)
        return sum(r.enumeration == record.enumeration for r in self.records) >= most


class Merged(NamedTuple):
    """The devices, and all records sorted by the kind of device."""

    devices: list[MergedDevice]  # the devices, in the order of their addresses
    sorted: Sorted  # all records, by the kind of device
    warnings: list[MachineWarning]  # warnings about records that belong to no known device


def merge(records: Iterable[DeviceRecord]) -> Merged:
    """Merge the records of several sources. Return one device for each GPU, all records by the kind of device,
    and warnings about records that belong to no known device."""
    sorts = sort_records(sorted(_physical(list(records)), key=_record_key))
    warnings: list[MachineWarning] = []
    devices: list[MergedDevice] = []
    index: _Index = defaultdict(set)
    instances = []
    placed = [r for r in sorts.gpus if r.bdf or r.uuid]
    parts = {record.uuid for record in sorts.partitions}
    for record in sorted(placed, key=_seed_rank):
        # CUDA states the uuid of an instance as that of a GPU.
        name = (record.uuid or "").replace("GPU-", "MIG-")
        if name in parts or name == record.uuid:
            instances.append(replace(record, uuid=name))
        else:
            _seed(devices, index, record)
    for record in sorts.partitions:
        _enter(index, _attach_partition(devices, record))
    for record in instances:
        parents = [d for d in devices if any(p.uuid == record.uuid for p in d.partitions)]
        if not parents:
            _seed(devices, index, record)
        elif not parents[0].listed_by(record):  # it is how the API lists the parent; its size is the instance's
            parents[0].records.append(replace(record, uuid=None, memory_bytes=None, facts={}))
            _enter(index, parents[0])
    devices.sort(key=_device_rank)
    loose = [r for r in sorts.gpus if not (r.bdf or r.uuid)]
    # The GPU of a chip without a PCI bus may have another uuid in each API.
    chips = {r.vendor_id for r in loose if r.source in _CHIP} - {None}
    anywhere = [d for d in devices if d.bdf is None and d.vendor in chips and not d.partitions]
    devices = [d for d in devices if d not in anywhere]
    loose = sorted((*loose, *(r for d in anywhere for r in d.records)), key=_loose_rank)
    metal = [record for record in loose if METAL.search(record.source) and vendor_of(record) is None]
    loose = [record for record in loose if record not in metal]
    for _, group in groupby(loose, key=lambda record: (record.enumeration, vendor_of(record))):
        rest = [record for record in group if not _attach_by_ids(devices, record)]
        for _, rivals in sorted(group_by(rest, lambda record: record.adapter_type or "").items()):
            _share_out(devices, rivals, sorts, warnings)
    counts = Counter(record.enumeration for record in metal)
    for record in sorted(metal, key=lambda record: -counts[record.enumeration]):
        _attach_metal(devices, record, warnings)
    devices.sort(key=_device_rank)
    return Merged(devices, sorts, warnings)


def _physical(records: list[DeviceRecord]) -> list[DeviceRecord]:
    """Return the records, with the physical function's address in place of that of a virtual function."""
    homes = {bdf: record.bdf for record in records for bdf in record.virtual}
    return [replace(r, bdf=homes[r.bdf]) if r.bdf in homes else r for r in records]


def gpu_for(machine: Machine, identity: Identity, api: str = "") -> str | None:
    """Return the id in `gpus[]` of the GPU that a backend describes by `identity`, or None if the match is not
    certain. `api` is the backend's interface to the GPU, such as "cuda" or "vulkan"."""
    own, bdf = uuid(identity.uuid), address(identity.pci)
    if gpu_id := find_gpu(machine, own, bdf, identity.vendor_id, identity.device_id):
        return gpu_id
    # Some APIs and drivers state no PCI ids, such as Metal and those of Adreno: the only GPU that `api` lists
    # is the match.
    listed = [gpu.id for gpu in machine.gpus if any(api in name.split(":") for name in gpu.apis)]
    stated = max(identity.vendor_id or _NO_PCI_ID, identity.device_id or _NO_PCI_ID)
    return listed[0] if bdf is None and stated >= _NO_PCI_ID and len(listed) == 1 else None


def find_gpu(
    machine: Machine, own: str | None, bdf: Address | None, vendor_id: int | None, device_id: int | None
) -> str | None:
    """Return the id in `gpus[]` of the GPU with the uuid `own`, or None without a match. If no GPU has it, the
    only one with the address `bdf` is taken, or else the only one with `vendor_id` and `device_id`. An argument
    that is None matches no GPU."""
    for gpu in machine.gpus if own else ():
        names = (gpu.uuid.value, *(partition.id for partition in gpu.compute.partitions))
        if any(uuid_key(name) == uuid_key(own or "") for name in names if name):
            return gpu.id
    ids = (vendor_id, device_id)
    fitting = [g.id for g in machine.gpus if bdf is not None and address(g.bdf.value) == bdf] or [
        g.id
        for g in machine.gpus
        if vendor_id is not None and (pci_id(g.vendor_id.value), pci_id(g.device_id.value)) == ids
    ]
    return fitting[0] if len(fitting) == 1 else None


# The devices by uuid and by address. Each record is compared with those alone, as a fleet may have thousands.
_Index = defaultdict[object, set[MergedDevice]]


def _seed(devices: list[MergedDevice], index: _Index, record: DeviceRecord) -> None:
    """Add a record with a uuid or an address to its device, or make a new device of it."""
    own = uuid_key(record.uuid or "")
    near = sorted({*index[own], *index[record.bdf]}, key=devices.index)
    free = [device for device in near if not device.listed_by(record)]
    homes = [d for d in free if own in d.uuids and not _differ(d.bdf, record.bdf)] + [
        d for d in free
        if record.bdf is not None and d.bdf == record.bdf and not _differ(d.vendor, vendor_of(record))
        # Each family of APIs has a form of its own. AMD's, of 16 digits, is that of the card or of a part.
        and all(len(other) != len(own) or len(own) == 16 for other in d.uuids)
    ]  # fmt: skip
    if not homes:
        homes = [MergedDevice()]
        devices += homes
    homes[0].records.append(record)
    _enter(index, homes[0])


def _enter(index: _Index, device: MergedDevice) -> None:
    for key in filter(None, (device.bdf, *device.uuids)):
        index[key].add(device)


def _attach_partition(devices: list[MergedDevice], record: DeviceRecord) -> MergedDevice:
    """Add a partition to its device, or to a new one, and return the device."""
    parent_uuid, parent_bdf = uuid(record.partition_of), address(record.partition_of)
    for device in devices:
        same = parent_bdf is not None and device.bdf == parent_bdf
        if same or (parent_uuid is not None and uuid_key(parent_uuid) in device.uuids):
            device.partitions.append(record)
            return device
    # The parent itself was not listed (a container shows the instance alone): it exists all the same.
    vendor_id = record.vendor_id or (NVIDIA if record.source in ("nvml", "cuda") else None)
    parent = MergedDevice(
        DeviceRecord(source=record.source, bdf=parent_bdf, uuid=parent_uuid, vendor_id=vendor_id)
    )
    parent.partitions.append(record)
    devices.append(parent)
    return parent


def _attach_by_ids(devices: list[MergedDevice], record: DeviceRecord) -> bool:
    """Add a record to a device with the same ids, preferably one of the same kind. Tell whether there is one."""
    ids = (vendor_of(record), record.device_id)
    if stands_for_virtio(record):  # it bears the ids of the host's GPU
        ids = VIRTIO_GPU
    homes = [d for d in devices if (d.vendor, d.device_id) == ids and not d.listed_by(record)]
    if None in ids or not homes:
        return False
    min(homes, key=lambda device: _kind_distance(device, record)).records.append(record)
    return True


METAL = re.compile(r"(^|:)metal(:|$)")


def _attach_metal(devices: list[MergedDevice], record: DeviceRecord, warnings: list[MachineWarning]) -> None:
    """Add a record of Metal to the only GPU that Metal lists, warn of several, or make a new device."""
    listed = [device for device in devices if any(METAL.search(r.source) for r in device.records)]
    homes = [device for device in listed if not device.listed_by(record)]
    if len(homes) == len(listed) == 1:
        homes[0].records.append(record)
    elif homes:
        # it has neither address nor ids
        warnings.append(_warn_of(record, f"one that may be any of {len(homes)}"))
    else:
        devices.append(MergedDevice(record))


def _share_out(
    devices: list[MergedDevice], rivals: list[DeviceRecord], sorts: Sorted, warnings: list[MachineWarning]
) -> None:
    """Assign records of one list, vendor and kind to known or new devices, and warn of doubtful ones."""
    homes = _homes(devices, rivals)
    fitting = [record for record in rivals if any(_fits(device, record) for device in homes)]
    others = [record for record in rivals if record not in fitting]
    if not homes:
        listed = {(r.vendor_id, r.device_id) for group in sorts.displays.values() for r in group}
        if _may_repeat(rivals[0]):
            listed |= {(device.vendor, number) for device in devices for number in (device.device_id, None)}
        for record in others:
            # In WSL a layer is the only driver that some GPUs have.
            real = not is_layer(record) or (record.checked and "vulkan" in record.source)
            if real and (record.vendor_id, record.device_id) not in listed:
                devices.append(MergedDevice(record))
                if record.source not in _CHIP:
                    warnings.append(_warn_of(record, "a device that nothing else knows"))
        return
    # Where the devices are of several models, it is unknown which record belongs to which device.
    if _interchangeable(homes, fitting):
        for device, record in zip(homes, fitting, strict=False):
            device.records.append(record)
        others = fitting[len(homes) :] + others
    elif len(fitting) >= len(homes):  # each of the devices is listed
        for device in homes:
            device.records.append(_anonymous(fitting[0]))
        others = [_anonymous(record) for record in fitting[len(homes) :]] + others
    else:
        warnings += [_warn_of(r, f"one that may be any of {len(homes)}") for r in fitting if not is_layer(r)]
    if others:
        _share_out(devices, others, sorts, warnings)


def _warn_of(record: DeviceRecord, what: str) -> MachineWarning:
    text = f"{record.source} lists {what}: {record.name or 'without a name'}."
    return MachineWarning(code="UNMATCHED_ADAPTER", text=text, refs=[record.source])


def _homes(devices: list[MergedDevice], rivals: list[DeviceRecord]) -> list[MergedDevice]:
    """Return the devices of the nearest kind to which at least one of the records may belong."""
    fitting = [
        device for device in devices
        if any(_fits(device, record) for record in rivals) and not device.listed_by(rivals[0])
    ]  # fmt: skip
    distances = [_kind_distance(device, rivals[0]) for device in fitting]
    return [device for device, far in zip(fitting, distances, strict=True) if far == min(distances)]


def _fits(device: MergedDevice, record: DeviceRecord) -> bool:
    """Tell whether the record may be about the device, by vendor and device id."""
    vendor = vendor_of(record)
    if device.vendor is None and device.records[0].source in _CHIP:  # its driver is in no list of ours
        return record.source not in _CHIP
    # The GPU of the chips in SOC_DEVICES is on a PCI bus inside the chip.
    if device.bdf and record.source in _CHIP and record.value("kind") and device.device_id not in SOC_DEVICES:
        return False
    ids = (device.device_id, record.device_id)
    # Ids that are no PCI ids differ by API for the GPU of a chip.
    own = max(number or 0 for number in ids) >= _NO_PCI_ID
    return vendor is not None and device.vendor == vendor and (own or not _differ(*ids))


def _interchangeable(homes: list[MergedDevice], rivals: list[DeviceRecord]) -> bool:
    """Tell whether any of the records may be assigned to any of the devices, as all are of one model."""
    models = {device.device_id for device in homes}
    if models != {None}:
        return len(models) == 1
    device_ids = {record.device_id for record in rivals}
    return len(homes) == len(rivals) == 1 or (
        len(device_ids) == 1 and None not in device_ids and len(rivals) >= len(homes)
    )


def _anonymous(record: DeviceRecord) -> DeviceRecord:
    """Return a record that says only that the API lists the device."""
    return DeviceRecord(
        source=record.source, driver=record.driver, vendor_id=vendor_of(record), version=record.version
    )


def _kind_distance(device: MergedDevice, record: DeviceRecord) -> int:
    """Return 0 if record and device are of one kind (discrete or integrated), 2 if not, 1 if a kind
    is unknown."""
    kinds = {kind for r in device.records for kind in (r.adapter_type, r.value("kind"))}
    both = {"discrete", "integrated"}
    if record.adapter_type not in both:
        return 1
    return 0 if record.adapter_type in kinds else 1 + bool(kinds & both)


def _differ(own: object, other: object) -> bool:
    return own is not None and other is not None and own != other


def _record_key(record: DeviceRecord) -> bytes:
    """Return the whole record as one text, a sort key that ignores the order in which records arrive."""
    return msgspec.json.encode(record_to_json(record) | {"partitions": record.partitions}, order="sorted")


def _seed_rank(record: DeviceRecord) -> tuple[object, ...]:
    order = [*_SEED_ORDER.split(), record.source].index(record.source)
    return (order, record.bdf is None, record.bdf or (), record.uuid or "", _record_key(record))


def _loose_rank(record: DeviceRecord) -> tuple[object, ...]:
    return (
        _may_repeat(record), record.source not in _CHIP, record.enumeration, vendor_of(record) or 0,
        record.device_id is None, record.vendor_id is None, _ordinal(record), _record_key(record)
    )  # fmt: skip


def _ordinal(record: DeviceRecord) -> tuple[int, str]:
    return (record.ordinal, "") if isinstance(record.ordinal, int) else (1 << 30, record.ordinal or "")


def _device_rank(device: MergedDevice) -> tuple[object, ...]:
    """Return the sort key of a device: by address if it has one, then by uuid and first record."""
    lead = device.records[0]
    return (device.bdf is None, device.bdf or (), sorted(device.uuids), _ordinal(lead), _record_key(lead))


DeviceSort = Literal["gpu", "display", "accelerator", "none"]
GPU_VENDORS = {NVIDIA: "nvidia", AMD: "amd", INTEL: "intel", APPLE: "apple"}
_CHIP = ("drm", "platform")  # the sources of GPUs without a PCI address: the device tree
# Sources that only list GPUs.
_PROOF = ("kfd", "proc-nvidia", "nvml", "cuda", "hip")
_LAYERED = re.compile(r"dozen|\bdzn\b|venus|virgl|zink|Microsoft Direct3D12", re.I)
_VENDOR_WORDS = (
    (r"nvidia", NVIDIA), (r"\bamd\b|advanced micro devices|\bati\b|radeon", AMD), (r"intel", INTEL),
    (r"apple", APPLE), (r"\bmali\b", 0x13B5),
)  # fmt: skip
# Adapters of management controllers: ASPEED, Matrox, Huawei, XGI, Silicon Motion, and the ES1000 of ATI.
_BMC = {(0x1A03, 0x2000), (0x102B, None), (0x19E5, 0x1711), (0x18CA, None), (0x126F, None), (0x1002, 0x515E)}
# Emulated ones: virtio, QXL, Bochs and Amazon's, VMware, Cirrus, VirtualBox, Parallels, bhyve, Hyper-V.
_VIRTUAL = {
    (0x1AF4, 0x1050), (0x1B36, 0x0100), (0x1234, 0x1111), (0x1D0F, 0x1111), (0x15AD, None), (0x1013, 0x00B8),
    (0x80EE, 0xBEEF), (0x1AB8, None), (0xFB5D, 0x40FB), (0x1414, None),
}  # fmt: skip
SOC_DEVICES = (0x2B00, *range(0x2E00, 0x2F00))  # Thor, GB10 and N1X: the GPU shares the memory of the CPU
_NO_PCI_ID = 0x10000
VIRTIO_GPU = (0x1AF4, 0x1050)


class Sorted(NamedTuple):
    """Records by the kind of device that they describe."""

    gpus: list[DeviceRecord]  # the records of GPUs
    partitions: list[DeviceRecord]  # the records of partitions of GPUs
    software: list[DeviceRecord]  # the records of renderers on the CPU
    # the records of adapters that only show pictures, by PCI address
    displays: dict[Address, list[DeviceRecord]]
    accelerators: dict[Address, list[DeviceRecord]]  # the records of accelerators, by address


def sort_records(records: Iterable[DeviceRecord]) -> Sorted:
    """Sort the records into GPUs, software renderers, partitions, display adapters and accelerators. The
    records of one address are judged together, and those of a device that `judge_sort` calls "none" are
    left out."""
    sorts = Sorted([], [], [], {}, {})
    placed: dict[Address, list[DeviceRecord]] = {}
    proofs = Counter[tuple[str, str]]()
    for record in records:
        # A Vulkan adapter that represents a virtio GPU and has computed.
        if record.checked and "vulkan" in record.source and stands_for_virtio(record):
            proofs[record.enumeration] += 1
        if is_software(record):
            sorts.software.append(record)
        elif record.partition_of is not None:
            sorts.partitions.append(record)
        elif record.bdf is None:
            sorts.gpus.append(record)
        else:
            placed.setdefault(record.bdf, []).append(record)
    parents = {address(record.partition_of) for record in sorts.partitions}
    unproven = max(proofs.values(), default=0)  # adapters that passed, in the API that lists most
    for bdf, own in sorted(placed.items()):
        virtio = any(map(_is_virtio, own))
        # What can be cut into partitions computes, whoever made it.
        kind = "gpu" if bdf in parents else judge_sort(bdf, own, passed=virtio and unproven > 0)
        unproven -= virtio
        if kind == "gpu":
            sorts.gpus.extend(own)
        elif kind != "none":
            (sorts.displays if kind == "display" else sorts.accelerators)[bdf] = own
    return sorts


def is_software(record: DeviceRecord) -> bool:
    """Tell whether the record is of a renderer that runs on the CPU."""
    # Mesa's number is that of its renderers on the CPU, and of a driver that states its kind (Apple's GPUs).
    mesa = (record.vendor_id, record.adapter_type) == (0x10005, None)
    return mesa or record.adapter_type == "cpu" or bool(re.search(SOFTWARE_NAMES, _names(record), re.I))


def is_layer(record: DeviceRecord) -> bool:
    """Tell whether the record comes from OpenGL, or from a layer over another API, such as dozen over D3D12.
    Another API may list the same device."""
    return record.source.endswith(":gl") or bool(_LAYERED.search(_names(record)))


def _may_repeat(record: DeviceRecord) -> bool:
    """Tell whether the record's list may name a GPU twice."""
    # D3D12's list may, and PyTorch's list of Intel GPUs names each tile.
    return record.source.endswith((":dx12", ":xpu")) or is_layer(record)


def _names(record: DeviceRecord) -> str:
    return f"{record.name or ''} {record.driver or ''}"


def stands_for_virtio(record: DeviceRecord) -> bool:
    """Tell whether the adapter belongs to the driver of virtio GPUs, and does not run on the CPU."""
    driven = _is_virtio(record) or bool(re.search(r"venus|virtio", _names(record), re.I))
    return driven and not is_software(record)


def _is_virtio(record: DeviceRecord) -> bool:
    return (record.vendor_id, record.device_id) == VIRTIO_GPU


def judge_sort(bdf: Address, records: list[DeviceRecord], *, passed: bool = False) -> DeviceSort:
    """Return what sort of device is at the address `bdf`, by all of its records. "none" is a second function of
    a GPU, or a device that nothing tells of. `passed` means that a virtio GPU there has computed."""
    vendor, device, pci_class = (first_field(records, name) for name in ("vendor_id", "device_id", "pci_class"))
    bound = any(r.value("driver.name") in GPU_DRIVERS for r in records)
    proven = any(r.source in _PROOF for r in records)
    if (
        pci_class is None
        and not bound
        and all(r.source == "pci-sysfs" and "pci_class" in r.facts for r in records)
    ):
        # Nothing but the bus tells of it, and what it is cannot be read.
        return "display" if role_of_display(vendor, device) != "other" else "none"
    if pci_class is None:  # a DRM card is there to draw, at least
        drawn = all(r.source in ("drm", "pci-sysfs") for r in records)
        return "gpu" if bound or vendor is None or vendor in GPU_VENDORS or not drawn else "display"
    if pci_class >> 8 not in (0x03, 0x0B, 0x12):
        return "gpu"
    if pci_class == 0x0B40:
        return "accelerator"
    if pci_class >> 8 == 0x12:
        return "gpu" if proven or (bound and vendor in GPU_VENDORS) else "accelerator"
    if bdf.function > 0 and pci_class == 0x0380 and not (proven or bound):
        return "none"
    if passed or ((vendor, device) == VIRTIO_GPU and any(r.checked for r in records)):
        return "gpu"
    if role_of_display(vendor, device) != "other" and not proven:
        return "display"
    # A 3D controller whose vendor cannot be read drives no display: it is there to compute.
    unreadable = vendor is None and pci_class == 0x0302
    # What has a render node computes, whoever made it.
    renders = any(r.node for r in records)
    return "gpu" if vendor in GPU_VENDORS or bound or proven or unreadable or renders else "display"


def role_of_display(vendor_id: int | None, device_id: int | None) -> str:
    """Return the role of a display adapter: bmc (of a management controller), virtual (emulated) or other."""
    for table, name in ((_BMC, "bmc"), (_VIRTUAL, "virtual")):
        if (vendor_id, device_id) in table or (vendor_id, None) in table:
            return name
    return "other"


def vendor_of(record: DeviceRecord) -> int | None:
    """Return the PCI vendor id that the record states, or that its vendor's or product's name tells, or None."""
    named = record.vendor_id is not None and record.vendor_id >= _NO_PCI_ID
    if record.vendor_id is not None and not named:
        return record.vendor_id
    # A number from 0x10000 on is no PCI id but Vulkan's for the maker of the driver: the product's name tells.
    text = record.vendor or (record.name if named else None) or ""
    return next((number for pattern, number in _VENDOR_WORDS if re.search(pattern, text, re.I)), None)
