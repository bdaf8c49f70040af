"""Which records are about the same device: by uuid, then by address, never by name.

A device never holds two records of one enumeration, so equal twins stay two. The result does not depend on
the order of the records.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from gpubench.detect import _classify
from gpubench.detect._classify import Sorted, is_layered, vendor_of
from gpubench.detect._record import Address, Record, address, to_json, uuid, uuid_key
from gpubench.model.machine import MachineWarning

_SEED_ORDER = ("pci-sysfs", "drm", "kfd", "proc-nvidia", "drm-ioctl", "nvml", "cuda")


class Device:
    """Records of one physical GPU, while the merge goes on."""

    def __init__(self, lead: Record) -> None:
        self.records = [lead]
        self.partitions: list[Record] = []

    @property
    def bdf(self) -> Address | None:
        """The address, if one of the records has it."""
        return next((r.bdf for r in self.records if r.bdf is not None), None)

    @property
    def uuids(self) -> set[str]:
        """Comparable uuids of the records."""
        return {uuid_key(r.uuid) for r in self.records if r.uuid is not None}

    @property
    def vendor(self) -> int | None:
        """PCI vendor id."""
        return next((v for r in self.records if (v := vendor_of(r)) is not None), None)

    @property
    def device_id(self) -> int | None:
        """PCI device id."""
        return next((r.device_id for r in self.records if r.device_id is not None), None)

    def listed_by(self, record: Record) -> bool:
        """Whether the record's enumeration has its say already."""
        return any(r.enumeration == record.enumeration for r in self.records)

    def is_partition(self, record: Record) -> bool:
        """Whether the record is about one of the partitions of this device."""
        return record.uuid is not None and any(p.uuid == record.uuid for p in self.partitions)


class Merged(NamedTuple):
    """Devices in address order, and what is none."""

    devices: list[Device]
    sorted: Sorted
    warnings: list[MachineWarning]


def merge(records: Iterable[Record]) -> Merged:
    """Group records into devices."""
    found = _classify.sort(sorted(records, key=_key))
    warnings: list[MachineWarning] = []
    seeds = [r for r in found.gpus if r.bdf is not None or r.uuid is not None]
    devices: list[Device] = []
    deferred = []
    for record in sorted(seeds, key=_seed_rank):
        if record.uuid is not None and record.uuid.startswith("MIG-"):
            deferred.append(record)
        else:
            _seed(devices, record)
    for record in found.partitions:
        _attach_partition(devices, record)
    for record in deferred:
        parent = next((device for device in devices if device.is_partition(record)), None)
        if parent is None:
            _seed(devices, record)
        elif not parent.listed_by(record):  # it is how the API lists the parent; its size is the instance's
            parent.records.append(msgspec.structs.replace(record, uuid=None, memory_bytes=None, facts={}))
    devices.sort(key=_device_rank)
    for record in sorted((r for r in found.gpus if r.bdf is None and r.uuid is None), key=_loose_rank):
        _attach_loose(devices, record, found, warnings)
    devices.sort(key=_device_rank)
    return Merged(devices, found, warnings)


def _seed(devices: list[Device], record: Record) -> None:
    free = [device for device in devices if not device.listed_by(record)]
    own = uuid_key(record.uuid) if record.uuid else None
    by_uuid = [d for d in free if own in d.uuids and not _differ(d.bdf, record.bdf)]
    by_address = [
        d for d in free
        if record.bdf is not None and d.bdf == record.bdf and not _differ(d.vendor, vendor_of(record))
        and not _other_uuid(d, own)
    ]  # fmt: skip
    home = next(iter(by_uuid), None) or next(iter(by_address), None)
    if home is None:
        devices.append(Device(record))
    else:
        home.records.append(record)


def _other_uuid(device: Device, own: str | None) -> bool:
    """Whether the device has another uuid of the same form (each API family has a form of its own)."""
    return own is not None and own not in device.uuids and any(len(u) == len(own) for u in device.uuids)


def _attach_partition(devices: list[Device], record: Record) -> None:
    parent_uuid, parent_bdf = uuid(record.partition_of), address(record.partition_of)
    for device in devices:
        if (parent_bdf is not None and device.bdf == parent_bdf) or (
            parent_uuid is not None and uuid_key(parent_uuid) in device.uuids
        ):
            device.partitions.append(record)
            return
    # The parent itself was not listed (a container shows the instance alone): it exists all the same.
    vendor_id = record.vendor_id or (0x10DE if record.source in ("nvml", "cuda") else None)
    parent = Device(Record(source=record.source, bdf=parent_bdf, uuid=parent_uuid, vendor_id=vendor_id))
    parent.partitions.append(record)
    devices.append(parent)


def _attach_loose(devices: list[Device], record: Record, found: Sorted, warnings: list[MachineWarning]) -> None:
    """A record without address and uuid: onto a device of equal vendor and id that lacks its enumeration."""
    vendor = vendor_of(record)
    if _classify.stands_for_virtio(record):  # it bears the ids of the host's GPU
        virtio = [
            d for d in devices if (d.vendor, d.device_id) == _classify.VIRTIO_GPU and not d.listed_by(record)
        ]
        if virtio:
            virtio[0].records.append(record)
            return
    fitting = [
        device for device in devices
        if vendor is not None and device.vendor == vendor and not device.listed_by(record)
        and not _differ(device.device_id, record.device_id)
    ]  # fmt: skip
    if fitting:
        min(fitting, key=lambda device: _kind_distance(device, record)).records.append(record)
    elif not is_layered(record) and not _is_display(record, found):
        devices.append(Device(record))
        text = f"{record.source} lists a device that nothing else knows: {record.name or 'without a name'}."
        warnings.append(MachineWarning(code="UNMATCHED_ADAPTER", text=text, refs=[record.source]))


def _kind_distance(device: Device, record: Record) -> int:
    """0 where both call the device discrete (or integrated), 2 where they disagree; ties keep address order."""
    kinds: set[str | None] = {r.adapter_type for r in device.records}
    kinds |= {fact.value for r in device.records if (fact := r.facts.get("kind")) is not None}
    if record.adapter_type not in ("discrete", "integrated"):
        return 1
    other = "integrated" if record.adapter_type == "discrete" else "discrete"
    return 0 if record.adapter_type in kinds else 2 if other in kinds else 1


def _is_display(record: Record, found: Sorted) -> bool:
    own = (record.vendor_id, record.device_id)
    return any(own == (r.vendor_id, r.device_id) for group in found.displays.values() for r in group)


def _differ(one: object, other: object) -> bool:
    return one is not None and other is not None and one != other


def _key(record: Record) -> bytes:
    """All of a record as one text: a place in line that does not depend on the order of arrival."""
    return msgspec.json.encode(to_json(record) | {"partitions": record.partitions}, order="sorted")


def _seed_rank(record: Record) -> tuple[object, ...]:
    order = _SEED_ORDER.index(record.source) if record.source in _SEED_ORDER else len(_SEED_ORDER)
    return (order, record.bdf is None, record.bdf or (), record.uuid or "", _key(record))


def _loose_rank(record: Record) -> tuple[object, ...]:
    return (
        record.enumeration,
        record.device_id is None,
        record.vendor_id is None,
        _ordinal(record),
        _key(record),
    )


def _ordinal(record: Record) -> tuple[int, str]:
    return (record.ordinal, "") if isinstance(record.ordinal, int) else (1 << 30, record.ordinal or "")


def _device_rank(device: Device) -> tuple[object, ...]:
    """Address order; devices without one last, by uuid, then by what their first record says."""
    return (
        device.bdf is None,
        device.bdf or (),
        sorted(device.uuids),
        _ordinal(device.records[0]),
        _key(device.records[0]),
    )
