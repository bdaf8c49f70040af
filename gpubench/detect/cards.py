"""DRM cards, and the GPUs on no PCI bus: those of the device tree.

Module names are no driver names, and a card may be the display beside its GPU: an Adreno's is bound to `msm_dpu`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from gpubench.detect.pci import DRIVER_VENDORS, Function, describe, parse_uevent
from gpubench.detect.records import DeviceRecord, address, make_fact
from gpubench.detect.root import Root
from gpubench.result.machine import NOT_PROBED, Fact

CARDS = "/sys/class/drm"
PLATFORM_DEVICES = "/sys/bus/platform/devices"


class Family(NamedTuple):
    """GPUs of one maker that stand in a device tree; the patterns are of drivers and of `compatible`."""

    drivers: str
    compatible: str
    vendor_id: int | None  # PCI's or Vulkan's, as its APIs tell it


# At most one GPU of a family stands in a chip, however many of its devices and cards do.
_FAMILIES = (
    Family(r"asahi", r"apple,agx", 0x106B),
    Family(r"nouveau|nvgpu|gk20a|g[mpva][0-9]+b|drm|tegra.*|nv_platform", r"nvidia,", 0x10DE),
    Family(r"msm.*|mdp[45]|dpu|adreno|kgsl.*", r"qcom,(adreno|kgsl)|amd,imageon", 0x5143),
    Family(r"panfrost|panthor|lima|mali.*", r"arm,mali|.*-mali", 0x13B5),
    Family(r"v3d|vc4.*", r"brcm,.*v3d", 0x14E4),
    Family(r"powervr|pvr.*", r"img,", 0x1010),
    Family(r"etnaviv.*|galcore", r"vivante,", None),
    Family(r"sgpu", r"samsung,.*sgpu", None),
)
# Drivers of displays and frame buffers, which render nothing. Compiled on use: most machines have PCI cards alone.
_DISPLAYS = (
    r"simple.*|(of|efi|vesa|vga)_?drm|vkms|vgem|evdi|udl|gud|bochs.*|cirrus.*|hyperv.*|virtio.*|vmwgfx|vboxvideo|qxl|ast|mgag200"
    r"|amdgpu_xcp.*|rockchip.*|sun[0-9]+i.*|meson.*|imx.*|mxsfb.*|lcdif.*|mediatek.*|exynos.*|hdlcd|komeda|mali_?dp|pl111.*|armada.*"
    r"|rcar.*|rz.*du|stm.*|sti.*|tidss|tilcdc.*|omapdrm|omapdss.*|zynqmp.*|xlnx.*|kirin.*|ade|ingenic.*|jz4740.*|aspeed.*|logicvc.*"
    r"|sprd.*|starfive.*|vs_drm|apple.*|adp|atmel.*|fsl_dcu.*|nwl.*|ssd13.*|ili9.*|st7.*|hx8357.*|panel.*|repaper|gm12u320"
)
# Buses that carry displays alone, in the modalias of a device.
_DISPLAY_BUSES = (
    "usb:",
    "spi:",
    "i2c:",
    "virtio:",
    "vmbus:",
    "platform:vgem",
    "platform:vkms",
    "platform:amdgpu_xcp",
)
_GPU_NODE = re.compile(
    r"(?:.*[.:,])?(gpu|mali|gk20a|gm20b|gp10b|gv11b|ga10b|v3d|sgx|kgsl-3d0|adreno|pvrsrvkm|sgpu)(\.[0-9]+)?"
)


class Card(NamedTuple):
    """A DRM device: its first node, /sys/class/drm/cardN or, where it has none, renderDN."""

    folder: str
    function: Function  # what its device folder says
    device: str  # the name of that folder
    renders: bool  # it has a render node


def read_cards(root: Root) -> list[Card] | None:
    """All DRM devices in the order of their nodes; None if the folder cannot be listed."""
    names = root.names(CARDS)
    if names is None:
        return None
    numbers = [match for name in names if (match := re.fullmatch(r"(card|renderD)(\d{1,4})", name))]
    devices: dict[str, list[str]] = {}
    for match in sorted(numbers, key=lambda match: (match[1], int(match[2]))):
        devices.setdefault(_device_name(root, match[0]) or match[0], []).append(match[0])
    cards = []
    for device, nodes in devices.items():
        folder = f"{CARDS}/{nodes[0]}"
        bdf = address(root.link(f"{folder}/device"))
        renders = any(node.startswith("renderD") for node in nodes)
        cards.append(Card(folder, describe(root, f"{folder}/device", "drm", bdf), device, renders))
    return cards


def _device_name(root: Root, node: str) -> str | None:
    """The name of the folder of a node's device; None where no link and no address tells it."""
    path = root.target(f"{CARDS}/{node}") or ""
    if "/drm/" in path:
        return path.partition("/drm/")[0].rpartition("/")[2]
    name = root.link(f"{CARDS}/{node}/device")
    uevent = parse_uevent(root.read(f"{CARDS}/{node}/device/uevent"))
    return name if name and name != ".." else uevent.get("PCI_SLOT_NAME") or uevent.get("OF_FULLNAME")


class TreeGpus(NamedTuple):
    """The GPUs on no PCI bus. `doubtful` is a card that may be one: nothing tells."""

    records: list[tuple[DeviceRecord, Card | None]]
    doubtful: bool


def read_tree_gpus(root: Root, cards: list[Card]) -> TreeGpus:
    """GPUs of the device tree, by their cards and by their own devices, each family once."""
    gpus: list[tuple[DeviceRecord, Card | None]] = []
    families: set[Family] = set()
    seen: set[str] = set()
    doubtful = False
    any_renders = any(card.renders for card in cards)
    # The card that renders stands for its chip, not the display beside it.
    for ordinal, card in sorted(enumerate(cards), key=lambda entry: not entry[1].renders):
        if card.function.bdf is not None:
            continue
        driver = card.function.record.value("driver.name")
        uevent = card.function.uevent
        family = _family(driver, uevent)
        in_tree = "OF_FULLNAME" in uevent or driver not in DRIVER_VENDORS
        seen.add(card.device)
        if driver in DRIVER_VENDORS and not (in_tree and family):
            # A PCI card whose address cannot be read: it is still there.
            gpus.append((msgspec.structs.replace(card.function.record, ordinal=ordinal), card))
        elif family is not None:
            if family not in families:
                gpus.append((_record(card.function.record, ordinal, family), card))
            families.add(family)
        elif _only_displays(driver, uevent) or "PCI_ID" in uevent:  # the bus lists what is on it
            continue
        elif card.renders:
            gpus.append((_record(card.function.record, ordinal, None), card))
        elif not any_renders:  # a kernel that shows render nodes says that this card has none
            doubtful = True
    for name in root.names(PLATFORM_DEVICES) or ():
        if _GPU_NODE.fullmatch(name) and name not in seen:
            device = describe(root, f"{PLATFORM_DEVICES}/{name}", "platform")
            family = _family(device.record.value("driver.name"), device.uevent)
            if family is None or family not in families:
                gpus.append((_record(device.record, len(gpus), family), None))
                families |= {family} if family else set()
    return TreeGpus(gpus, doubtful)


def _family(driver: str | None, uevent: Mapping[str, str]) -> Family | None:
    plain = (driver or "").replace("-", "_")
    compatible = [uevent.get(f"OF_COMPATIBLE_{number}", "") for number in range(4)]
    if re.fullmatch(_DISPLAYS, plain):
        return None
    for family in _FAMILIES:
        described = not plain and any(re.match(family.compatible, text) for text in compatible)
        if re.fullmatch(family.drivers, plain) or described:
            return family
    return None


def _only_displays(driver: str | None, uevent: Mapping[str, str]) -> bool:
    plain = (driver or "").replace("-", "_")
    alias = uevent.get("MODALIAS", "")
    return bool(re.fullmatch(_DISPLAYS, plain)) or alias.startswith(_DISPLAY_BUSES)


def _record(record: DeviceRecord, ordinal: int, family: Family | None) -> DeviceRecord:
    """A GPU without an address; one of a family shares the memory of its chip."""
    driver = record.facts["driver.name"]
    facts: dict[str, Fact[Any]] = {"driver.name": driver}
    if family is not None:
        source = driver.source or record.source
        facts |= {"kind": make_fact("integrated", source), "memory.unified": make_fact(True, source)}
    vendor_id = family.vendor_id if family else record.vendor_id
    return DeviceRecord(source=record.source, ordinal=ordinal, vendor_id=vendor_id, facts=facts)


def read_display_state(root: Root, card: Card) -> Fact[bool]:
    """Whether a connector of the card reports a display."""
    if card.function.asleep:
        return NOT_PROBED
    prefix = card.folder.rpartition("/")[2] + "-"
    names = [name for name in root.names(CARDS) or () if name.startswith(prefix)]
    states = [root.read(f"{CARDS}/{name}/status").text for name in names]
    source = f"{card.folder}-*/status"
    return make_fact("connected" in states if any(states) else None, source)
