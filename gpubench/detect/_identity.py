"""Which GPU of the document a backend's device is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpubench.detect._record import address, pci_id, uuid, uuid_key
from gpubench.model.machine import Gpu, Machine

if TYPE_CHECKING:
    from gpubench.model.result import Identity


class Told(NamedTuple):
    """The fields of `model.result.Identity` that count, for callers that do not load results."""

    uuid: str | None = None
    pci: str | None = None
    vendor_id: int | None = None
    device_id: int | None = None


def gpu_for(machine: Machine, identity: Identity | Told) -> str | None:
    """`gpus[].id` by uuid, then by address, then by vendor and device id if only one GPU has them; never by name."""
    own = uuid(identity.uuid)
    if own is not None:
        for gpu in machine.gpus:
            known = [gpu.uuid.value, *(partition.id for partition in gpu.compute.partitions)]
            if any(uuid_key(text) == uuid_key(own) for text in known if text):
                return gpu.id
    bdf = address(identity.pci)
    at = [gpu.id for gpu in machine.gpus if bdf is not None and address(gpu.bdf.value) == bdf]
    if len(at) == 1:
        return at[0]
    if bdf is not None and at:
        return None
    same = [gpu.id for gpu in machine.gpus if identity.vendor_id is not None and _alike(gpu, identity)]
    return same[0] if len(same) == 1 else None


def _alike(gpu: Gpu, identity: Identity | Told) -> bool:
    return (
        pci_id(gpu.vendor_id.value) == identity.vendor_id and pci_id(gpu.device_id.value) == identity.device_id
    )
