"""DRM cards: the address of each, and devices that are on no PCI bus."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from gpubench.detect import _pci
from gpubench.detect._fact import NOT_PROBED, known, missing
from gpubench.detect._pci import Function
from gpubench.detect._record import Address, Record, address
from gpubench.detect._root import Root
from gpubench.model.facts import Fact

CARDS = "/sys/class/drm"
# Device-tree drivers of real GPUs; the vendor is None where the document has no word for it.
_TREE_GPUS = {
    "asahi": 0x106B, "tegra": 0x10DE, "nvgpu": 0x10DE, "panfrost": None, "panthor": None, "lima": None, "msm": None,
    "v3d": None, "etnaviv": None, "powervr": None,
}  # fmt: skip
_BUS_DRIVERS = {
    "nvidia": 0x10DE, "nouveau": 0x10DE, "nova": 0x10DE, "amdgpu": 0x1002, "radeon": 0x1002, "i915": 0x8086,
    "xe": 0x8086,
}  # fmt: skip


class Card(NamedTuple):
    """`folder` is /sys/class/drm/cardN, `function` what its device folder says."""

    folder: str
    function: Function


def acquire(root: Root) -> list[Card] | None:
    """All cards in numeric order; None if the folder cannot be listed."""
    names = root.names(CARDS)
    if names is None:
        return None
    numbers = sorted(int(name[4:]) for name in names if re.fullmatch(r"card\d{1,4}", name))
    cards = []
    for number in numbers:
        folder = f"{CARDS}/card{number}"
        bdf = address(root.link(f"{folder}/device"))
        cards.append(Card(folder, _pci.describe(root, f"{folder}/device", "drm", bdf)))
    return cards


def unplaced_record(card: Card, ordinal: int) -> Record | None:
    """A GPU without an address: one of the device tree; None for a card that only displays."""
    record = card.function.record
    name = record.facts["driver.name"].value
    if name in _BUS_DRIVERS:
        # A PCI card whose address cannot be read: it is still there, and its driver says whose it is.
        vendor = record.vendor_id if record.vendor_id is not None else _BUS_DRIVERS[name]
        return msgspec.structs.replace(record, ordinal=ordinal, vendor_id=vendor)
    if name not in _TREE_GPUS:
        return None
    facts: dict[str, Fact[Any]] = {
        "kind": known("integrated", f"{card.folder}/device/uevent"),
        "memory.unified": known(True, f"{card.folder}/device/uevent"),
        "driver.name": record.facts["driver.name"],
    }
    return Record(source="drm", ordinal=ordinal, vendor_id=_TREE_GPUS[name], facts=facts)


def display_attached(root: Root, card: Card) -> Fact[bool]:
    """Whether a connector of the card reports a display."""
    if card.function.asleep:
        return NOT_PROBED
    prefix = card.folder.rpartition("/")[2] + "-"
    names = [name for name in root.names(CARDS) or () if name.startswith(prefix)]
    states = [root.read(f"{CARDS}/{name}/status").text for name in names]
    source = f"{card.folder}-*/status"
    if not any(states):
        return missing("absent", source)
    return known("connected" in states, source)


def by_address(cards: list[Card]) -> dict[Address, Card]:
    """The first card of each PCI address."""
    found: dict[Address, Card] = {}
    for card in cards:
        if card.function.bdf is not None:
            found.setdefault(card.function.bdf, card)
    return found
