"""Merged records -> the lists of the document: GPUs with their ids, and what is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from gpubench.detect import _access, _classify, _gpu
from gpubench.detect._access import Said
from gpubench.detect._fact import ABSENT, first, known
from gpubench.detect._gpu import Context
from gpubench.detect._merge import Device, Merged
from gpubench.detect._record import Address, Record, address, uuid_key
from gpubench.model.facts import Fact
from gpubench.model.machine import Accelerator, DisplayAdapter, Driver, Gpu, SoftwareRenderer

Access = Callable[[list[Gpu], list[Device]], list[Said]]


def gpus(merged: Merged, context: Context, access: Access | None) -> list[Gpu]:
    """All GPUs in address order, each judged usable or not."""
    names = ids(merged.devices)
    found = [_gpu.build(device, name, context) for device, name in zip(merged.devices, names, strict=True)]
    told = access(found, merged.devices) if access else [Said()] * len(found)
    judged = [_access.judge(gpu, said, context.live) for gpu, said in zip(found, told, strict=True)]
    return _with_peers(judged)


def _with_peers(found: list[Gpu]) -> list[Gpu]:
    """Linked GPUs by id instead of by address; an address that is no GPU's (a switch) is left out."""
    by_bdf = {address(gpu.bdf.value): gpu.id for gpu in found if gpu.bdf.value is not None}
    linked = []
    for gpu in found:
        peers = [by_bdf[bdf] for peer in gpu.link.peers if (bdf := address(peer)) in by_bdf]
        linked.append(msgspec.structs.replace(gpu, link=msgspec.structs.replace(gpu.link, peers=peers)))
    return linked


def ids(devices: list[Device]) -> list[str]:
    """uuid if unique here, else `pci:BDF` if that is unique, else `api:SOURCE:N`."""
    uuids = [_gpu.uuid_fact(device).value for device in devices]
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
    """Processing accelerators by address."""
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
        role = known(_classify.role(vendor, device), records[0].source)
        found.append(DisplayAdapter(id=f"pci:{bdf}", role=role, driver=_driver(records), **_ids(bdf, records)))
    return found


def software_renderers(merged: Merged) -> list[SoftwareRenderer]:
    """One entry a name, with the APIs that showed it."""
    names: dict[str, set[str]] = {}
    for record in merged.sorted.software:
        names.setdefault(record.name or record.driver or "unnamed", set()).add(record.source)
    return [SoftwareRenderer(name=name, apis=sorted(apis)) for name, apis in sorted(names.items())]


def _ids(bdf: Address, records: list[Record]) -> dict[str, Fact[str]]:
    found = {"bdf": known(str(bdf), records[0].source)}
    for name in ("vendor_id", "device_id", "pci_class"):
        facts = [record.facts[name] for record in records if name in record.facts]
        plain = [known(f"{getattr(r, name):04x}", r.source) for r in records if getattr(r, name) is not None]
        found[name] = first(*facts, *plain, ABSENT)
    return found


def _driver(records: list[Record]) -> Driver:
    names = [record.facts["driver.name"] for record in records if "driver.name" in record.facts]
    versions = [record.facts["driver.version"] for record in records if "driver.version" in record.facts]
    return Driver(name=first(*names, ABSENT), version=first(*versions, ABSENT))
