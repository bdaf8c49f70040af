"""The PCI functions in sysfs with their names from pci.ids, the DRM cards, and the GPUs of the device tree.

Of a sleeping function, only those files are read that do not wake it. No decision depends on a name, because
one id stands for several products. If no driver names a GPU, its name comes from gpubench's table of PCI names,
or from a newer pci.ids of the described machine. The name of a kernel module is not taken for the name of a
driver. A card may belong to the display hardware beside a GPU: for example, the card of an Adreno is bound to
`msm_dpu`.
"""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from gpubench.base import AMD, APPLE, INTEL, NVIDIA, group_by
from gpubench.detect.facts import (
    Address,
    DeviceRecord,
    Facts,
    FileText,
    Root,
    address,
    derive,
    first,
    integer,
    list_form,
    make_fact,
    matching,
    missing,
    parse_list,
    parse_mask,
    size,
)
from gpubench.result.machine import NOT_PROBED, Fact, LinkPath

PCI_DEVICES = "/sys/bus/pci/devices"
# Drivers that are only bound to GPUs, with the vendor. The driver tells the vendor if no file does.
DRIVER_VENDORS = {
    "nvidia": NVIDIA, "nouveau": NVIDIA, "NovaCore": NVIDIA, "amdgpu": AMD, "radeon": AMD, "i915": INTEL,
    "xe": INTEL,
}  # fmt: skip
GPU_DRIVERS = (*DRIVER_VENDORS, "asahi")
FREE_DRIVERS = ("nouveau", "NovaCore", "radeon")  # there is no CUDA or ROCm on them
CHIP_NODE = "/dev/nvmap"  # through which CUDA computes on a Jetson
ASLEEP = ("suspended", "suspending")
_SPEEDS = (2.5, 5, 8, 16, 32, 64)  # of the generations of PCIe, from the first, in GT/s
_MODALIAS = re.compile(
    r"pci:v(?P<vendor_id>[0-9A-F]{8})d(?P<device_id>[0-9A-F]{8})sv(?P<subvendor_id>[0-9A-F]{8})sd(?P<subdevice_id>[0-9A-F]{8})"
    r"bc(?P<pci_class>[0-9A-F]{2}sc[0-9A-F]{2})i[0-9A-F]{2}"
)


class Function(NamedTuple):
    """A device in sysfs (a PCI function or a platform device): its folder and the facts that were read from it."""

    folder: str  # the folder of the device
    bdf: Address | None  # the PCI address; None if it is on no PCI bus, or if its address cannot be read
    asleep: bool  # whether the device sleeps; reading some of its files would wake it
    record: DeviceRecord  # the record of its facts
    uevent: Mapping[str, str]  # the entries of its uevent file


def read_functions(root: Root) -> list[Function] | None:
    """Return the display devices and accelerators on the PCI bus, by address, or None if the bus cannot be
    listed. The addresses of virtual functions (SR-IOV) are in the record of their physical function."""
    names = root.names(PCI_DEVICES)
    if names is None:
        return None
    functions = {}
    for bdf, name in sorted((bdf, name) for name in names if (bdf := address(name))):
        folder = f"{PCI_DEVICES}/{name}"
        value = _number(root, folder, "pci_class").value
        # A device whose class cannot be read may be a GPU: what else is said of its address decides.
        if value is None or value >> 8 in (0x03, 0x12) or value == 0x0B40:
            functions[bdf] = describe(root, folder, "pci-sysfs", bdf)
    return without_virtual(root, functions)


def without_virtual(root: Root, functions: Mapping[Address, Function]) -> list[Function]:
    """Keep one function for each device: the physical function, or the first virtual one if that is missing."""
    # In a guest, a virtual function has no link to its physical function, so it is a device of its own.
    leads = []
    for physical, own in group_by(
        functions, lambda bdf: address(root.link(f"{functions[bdf].folder}/physfn")) or bdf
    ).items():
        place = physical if physical in own else own[0]
        virtual = tuple(bdf for bdf in own if bdf != place)
        record = replace(functions[place].record, virtual=virtual)
        leads.append(functions[place]._replace(record=record))
    return leads


def describe(root: Root, folder: str, source: str, bdf: Address | None = None) -> Function:
    """Read all facts in the sysfs folder of a device. `source` is the source that the record names, and `bdf`
    the PCI address, or None if the folder states it. What would wake a sleeping device is not probed."""
    state = root.fact(f"{folder}/power/runtime_status", matching("[a-z]{1,20}"))
    asleep = state.value in ASLEEP
    reading = root.read(f"{folder}/uevent")
    uevent = parse_uevent(reading)
    listed, bdf = bdf, bdf or address(uevent.get("PCI_SLOT_NAME"))
    numbers = {name: _number(root, folder, name) for name in _NUMBERS}
    link = f"{folder}/driver"
    driver = first(make_fact(root.link(link), link), reading.fact(_driver))
    if numbers["vendor_id"].value is None and driver.value in DRIVER_VENDORS:
        numbers["vendor_id"] = derive(driver, DRIVER_VENDORS.__getitem__)
    facts: Facts = {name: derive(fact, lambda n: f"{n:04x}") for name, fact in numbers.items()}
    facts |= {
        "power.state": state, "driver.name": driver, **root.facts(folder, _FILES),
        "local_cpus": NOT_PROBED if asleep else _local_cpus(root, folder),
    }  # fmt: skip
    # Reading these wakes a device.
    facts |= root.facts(folder, _AWAKE_FILES, asleep=asleep)
    facts |= root.facts(_link_folder(root, folder, bdf, numbers["vendor_id"].value), _LINK_FILES, asleep=asleep)
    if bdf is not None and listed is None:
        facts["bdf"] = make_fact(str(bdf), f"{folder}/uevent")
    ids: dict[str, Any] = {name: numbers[name].value for name in ("vendor_id", "device_id", "pci_class")}
    return Function(folder, bdf, asleep, DeviceRecord(source=source, bdf=bdf, facts=facts, **ids), uevent)


def _link_folder(root: Root, folder: str, bdf: Address | None, vendor: int | None) -> str:
    """Return the folder whose files state the speed and the width of the link between a card and its slot."""
    bridges = [f"{PCI_DEVICES}/{name}" for name in route(root, bdf)[1:]] if bdf is not None else []
    ports = bridges[1:][-2:]  # the first is the root port
    ids = [tuple(_number(root, port, name).value for name in ("vendor_id", "device_id")) for port in ports]
    # A card may have a switch of its own, as AMD's since Vega and Intel's Arc have. Behind it a Radeon shows
    # the fastest link that it knows, and an Arc a single lane of the first generation: the upstream port tells.
    switched = len(ids) == 2 and (ids[1] in _VEGA_PORTS or all(maker == vendor for maker, _ in ids))
    return ports[0] if switched and vendor is not None else folder


# The downstream ports of the switches of Vega 10 and 20, which bear AMD's id for processors.
_VEGA_PORTS = ((0x1022, 0x1471), (0x1022, 0x14A1))


# Parses a uevent file into the name of the bound driver. The kernel writes other entries for each device, too.
_driver = matching(r"(?ms)(?=.*=)(?:.*^DRIVER=(\S+)$)?.*", lambda match: match[1])


class NumberPlaces(NamedTuple):
    """The places at which sysfs states an id or the class of a device."""

    file: str  # the name of its own file
    form: str  # the regular expression for the text of that file
    key: str  # its key in uevent
    key_form: str  # the regular expression for the value of that key


_HEX = "[0-9a-fA-F]"
_ID = rf"0x({_HEX}{{4}})"
_FIRST, _SECOND = rf"({_HEX}{{4}}):{_HEX}{{4}}", rf"{_HEX}{{4}}:({_HEX}{{4}})"
_NUMBERS = {
    "vendor_id": NumberPlaces("vendor", _ID, "PCI_ID", _FIRST),
    "device_id": NumberPlaces("device", _ID, "PCI_ID", _SECOND),
    "subvendor_id": NumberPlaces("subsystem_vendor", _ID, "PCI_SUBSYS_ID", _FIRST),
    "subdevice_id": NumberPlaces("subsystem_device", _ID, "PCI_SUBSYS_ID", _SECOND),
    "pci_class": NumberPlaces(
        "class", rf"0x({_HEX}{{4}}){_HEX}{{2}}", "PCI_CLASS", rf"({_HEX}{{3,4}}){_HEX}{{2}}"
    ),
}


def _hex(match: re.Match[str]) -> int:
    return int(match[1], 16)


def _number(root: Root, folder: str, name: str) -> Fact[int]:
    """Return the PCI id or class `name`, a key of _NUMBERS, from its own file, uevent or the modalias."""
    place = _NUMBERS[name]
    own = root.fact(f"{folder}/{place.file}", matching(place.form, _hex))
    if own.value is not None:
        return own
    reading, alias = root.read(f"{folder}/uevent"), root.read(f"{folder}/modalias")
    uevent = parse_uevent(reading)
    if match := re.fullmatch(place.key_form, uevent.get(place.key, "")):
        return make_fact(_hex(match), reading.path)
    for text, path in ((uevent.get("MODALIAS", ""), reading.path), (alias.text or "", alias.path)):
        if match := _MODALIAS.fullmatch(text):
            digits = match[name].replace("sc", "")
            return own if digits == "FFFFFFFF" else make_fact(int(digits, 16), path)
    return own


def parse_uevent(reading: FileText) -> dict[str, str]:
    """Return the entries `KEY=value` of a uevent file, or none if it cannot be read."""
    lines = (line.partition("=") for line in (reading.text or "").splitlines())
    return {key: value for key, equals, value in lines if equals}


def _local_cpus(root: Root, folder: str) -> Fact[str]:
    cpus = first(
        root.fact(f"{folder}/local_cpulist", parse_list), root.fact(f"{folder}/local_cpus", parse_mask)
    )
    return derive(cpus, lambda members: list_form(members) or None)


_generation = matching(
    r"Unknown.*|(\d+(?:\.\d+)?) GT/s(?: PCIe)?", lambda match: match[1] and _SPEEDS.index(float(match[1])) + 1
)


def _width(text: str) -> int | None:
    lanes = integer(text)
    if lanes in (0, 63, 255):  # the kernel shows these for no link, a card that is gone, and an unknown one
        return None
    if lanes not in (1, 2, 4, 8, 12, 16, 32):
        raise ValueError("not a link width")
    return lanes


_FILES = {
    "revision": ("revision", matching(rf"0x({_HEX}{{2}})", lambda match: match[1].lower())),
    "numa_node": ("numa_node", lambda text: None if text == "-1" else size(text)),
}
_AWAKE_FILES = {
    "driver.version": ("driver/module/version", lambda text: text.split()[0] if text.isprintable() else None),
}  # fmt: skip
_LINK_FILES = {
    "link.gen_max": ("max_link_speed", _generation), "link.width_max": ("max_link_width", _width),
    "link.gen_now": ("current_link_speed", _generation), "link.width_now": ("current_link_width", _width),
}  # fmt: skip


# ---------------------------------------------------------------- paths between GPUs

# Only the names of a device's folders are used. The folders are not read, so that no sleeping GPU wakes.
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


def with_pci_paths(root: Root, functions: Sequence[Function]) -> list[Function]:
    """Return the functions, each with its paths to the other ones that have an address. A path names the
    deepest part that both share: a switch, the host bridge, their NUMA node or the system."""
    routes = {f.bdf: route(root, f.bdf) for f in functions if f.bdf is not None}
    by_address = {f.bdf: f for f in functions}
    return [
        function._replace(record=replace(function.record, paths=tuple(
            _pci_path(function, by_address[other], routes[function.bdf], routes[other])
            for other in routes if other != function.bdf
        ))) if function.bdf in routes else function
        for function in functions
    ]  # fmt: skip


def route(root: Root, bdf: Address) -> list[str]:
    """Return the names of the host bridge and of the bridges between it and the function, from the top. The
    list is empty if the function's folder is not a link, as in some recordings."""
    parts = (root.target(f"{PCI_DEVICES}/{bdf}") or "").split("/")
    start = next((place for place, part in enumerate(parts) if _HOST_BRIDGE.fullmatch(part)), len(parts))
    return parts[start:-1]


def _pci_path(own: Function, other: Function, here: list[str], there: list[str]) -> LinkPath:
    """Return the path between two functions, whose routes are `here` and `there`."""
    mine, others = (function.record.facts["numa_node"] for function in (own, other))
    kind = "pcie" if here[:1] == there[:1] else "host"
    if not here or not there:
        common: Fact[str] = missing("absent", own.folder)
    elif kind == "pcie":
        common = make_fact("switch" if here[1:2] == there[1:2] != [] else "host-bridge", own.folder)
    elif mine.value is None or others.value is None:
        note = "the two are below two host bridges, and their NUMA nodes are unknown"
        common = missing("absent", mine.source, note)
    else:
        common = make_fact("numa-node" if mine.value == others.value else "system", mine.source)
    return LinkPath(to=str(other.bdf), common=common, kind=derive(common, lambda _: kind))


# ---------------------------------------------------------------- names

TABLE = Path(__file__).with_name("data") / "pci.ids.z"
PLACES = ("/usr/share/hwdata/pci.ids", "/usr/share/misc/pci.ids")
_DATE = re.compile(r"^#\s*Date:\s*(\d{4}-\d{2}-\d{2})", re.M)
_HEAD = 4096  # the date is in this many first characters
_LINE = re.compile(r"([0-9a-f]{4})  (\S.*)")


class Book(NamedTuple):
    """The content of one pci.ids file."""

    source: str  # its path, or the name of gpubench's own table
    date: str  # its date, such as "2026-10-24"
    text: str  # its whole text


def name_of(root: Root | None, vendor: int, device: int) -> tuple[str, str] | None:
    """Return the name of a PCI id (`vendor`, `device`) and its source, or None if the name is unknown. `root`
    has the machine's own tables. Without it, only gpubench's table is used."""
    for book in books(root):
        if book.source in PLACES:
            name = ids_names(book.text, vendor).get(device)
        else:
            line = re.search(f"^{vendor:04x}{device:04x}(.*)$", book.text, re.M)
            name = line and line[1]
        if name is not None:
            return name, book.source
    return None


@functools.lru_cache(1)
def books(root: Root | None) -> list[Book]:
    """Return gpubench's own table of PCI names, and before it the machine's newer pci.ids files,
    newest first."""
    own = table()
    readings = [root.read(path) for path in PLACES] if root is not None else []
    dated = [Book(path, ids_date(text or "") or "", text or "") for path, text, _ in readings]
    return [*sorted((b for b in dated if b.date > own.date), key=lambda book: book.date, reverse=True), own]


def table() -> Book:
    """Return the table of PCI names that is part of gpubench. It has no names if its file cannot be read."""
    try:
        text = zlib.decompress(TABLE.read_bytes()).decode()
        day = text[2 : text.index("\n")]
    except (OSError, ValueError, zlib.error):  # a spoiled installation costs names only
        return Book("pci.ids", "", "")
    return Book(f"pci.ids of {day}", day, text)


def ids_date(text: str) -> str | None:
    """Return the date in the head of a pci.ids `text`, or None if there is none."""
    match = _DATE.search(text[:_HEAD])
    return match[1] if match else None


def ids_names(text: str, vendor: int) -> dict[int, str]:
    """Return the names of a vendor's devices in the pci.ids `text`, by device id, without subsystems."""
    start = re.search(rf"^{vendor:04x}  ", text, re.M)
    table: dict[int, str] = {}
    for line in text[start.start() :].splitlines()[1:] if start else ():
        if not line.startswith(("\t", "#")) and line:
            break
        entry = _LINE.fullmatch(line[1:].rstrip())
        if entry and entry[2].isprintable():
            table.setdefault(int(entry[1], 16), entry[2])
    return table


def excerpt(text: str, devices: Collection[tuple[int, int]]) -> str:
    """Return the date and the names of `devices` (pairs of vendor and device id) in the pci.ids `text`, for a
    recording. Devices that `text` does not name are left out."""
    lines = [f"# Date: {ids_date(text)}"] if ids_date(text) else []
    for vendor in sorted({vendor for vendor, _ in devices}):
        names = ids_names(text, vendor)
        own = sorted(device for maker, device in devices if maker == vendor and device in names)
        lines += [f"{vendor:04x}  -", *(f"\t{device:04x}  {names[device]}" for device in own)] if own else []
    return "\n".join(lines)


# ---------------------------------------------------------------- DRM cards, and GPUs of the device tree

CARDS = "/sys/class/drm"
PLATFORM_DEVICES = "/sys/bus/platform/devices"


class Family(NamedTuple):
    """A vendor's GPUs that occur in device trees."""

    drivers: str  # the pattern of the names of their drivers
    compatible: str  # the pattern of `compatible` in the device tree
    vendor_id: int | None  # the PCI or Vulkan id of the vendor, as reported by its APIs; None: unknown


# A chip contains at most one GPU of a family, however many of its devices and cards are listed.
_FAMILIES = (
    Family(r"asahi", r"apple,agx", APPLE),
    Family(r"nouveau|nvgpu|gk20a|g[mpva][0-9]+b|drm|tegra.*|nv_platform", r"nvidia,", NVIDIA),
    Family(r"msm.*|mdp[45]|dpu|adreno|kgsl.*", r"qcom,(adreno|kgsl)|amd,imageon", 0x5143),
    Family(r"panfrost|panthor|lima|mali.*", r"arm,mali|.*-mali", 0x13B5),
    Family(r"v3d|vc4.*", r"brcm,.*v3d", 0x14E4),
    Family(r"powervr|pvr.*", r"img,", 0x1010),
    Family(r"etnaviv.*|galcore", r"vivante,", None),
    Family(r"sgpu", r"samsung,.*sgpu", None),
)
# Drivers of displays, frame buffers and NPUs, which do not render. The pattern is compiled on use, because most
# machines only have PCI cards.
_DISPLAYS = (
    r"simple.*|(of|efi|vesa|vga)_?drm|vkms|vgem|evdi|udl|gud|bochs.*|cirrus.*|hyperv.*|virtio.*|vmwgfx|vboxvideo|qxl|ast|mgag200"
    r"|amdgpu_xcp.*|rockchip.*|sun[0-9]+i.*|meson.*|imx.*|mxsfb.*|lcdif.*|mediatek.*|exynos.*|hdlcd|komeda|mali_?dp|pl111.*|armada.*"
    r"|rcar.*|rz.*du|stm.*|sti.*|tidss|tilcdc.*|omapdrm|omapdss.*|zynqmp.*|xlnx.*|kirin.*|ade|ingenic.*|jz4740.*|aspeed.*|logicvc.*"
    r"|RKNPU|nvdla|sprd.*|starfive.*|vs_drm|apple.*|adp|atmel.*|fsl_dcu.*|nwl.*|ssd13.*|ili9.*|st7.*|hx8357.*|panel.*|repaper|gm12u320"
)
# Buses that only have displays, by the modalias of a device.
_DISPLAY_BUSES = "usb:|spi:|i2c:|virtio:|vmbus:|platform:(vgem|vkms|amdgpu_xcp)"
_GPU_NODE = re.compile(
    r"(?:.*[.:,])?((?:img)?gpu(?:3d)?|mali|gk20a|gm20b|gp10b|gv11b|ga10b|v3d|sgx|kgsl-3d0|adreno|pvrsrvkm|sgpu)(\.[0-9]+)?"
)


class Card(NamedTuple):
    """A DRM device."""

    folder: str  # the folder of its first node: /sys/class/drm/cardN, or renderDN without a card
    function: Function  # the facts of its device folder
    device: str  # the name of its device folder
    node: str | None  # the name of its render node; None: it has none


def read_cards(root: Root) -> list[Card] | None:
    """Return all DRM devices, in the order of their nodes, or None if the folder cannot be listed."""
    if root.names(CARDS) is None:
        return None
    names = root.names_like(CARDS, r"(card|renderD)\d{1,4}")
    devices: dict[str, list[str]] = {}
    for name in sorted(names, key=lambda name: (name[0], len(name), name)):
        devices.setdefault(_device_name(root, name) or name, []).append(name)
    cards = []
    for device, nodes in devices.items():
        folder = f"{CARDS}/{nodes[0]}"
        place = f"{folder}/device"
        bdf = address(root.link(place))
        if parse_uevent(root.read(f"{place}/uevent")).get("MODALIAS", "").startswith("auxiliary:"):
            place += "/.."  # a driver of two parts, such as NovaCore: the GPU is the device of the first one
        node = next((node for node in nodes if node.startswith("renderD")), None)
        cards.append(Card(folder, describe(root, place, "drm", bdf), device, node))
    return cards


def _device_name(root: Root, node: str) -> str | None:
    """Return the name of the folder of the device that has this DRM node, or None if nothing names it."""
    path = root.target(f"{CARDS}/{node}") or ""
    if "/drm/" in path:
        return path.partition("/drm/")[0].rpartition("/")[2]
    name = root.link(f"{CARDS}/{node}/device")
    uevent = parse_uevent(root.read(f"{CARDS}/{node}/device/uevent"))
    return name if name and name != ".." else uevent.get("PCI_SLOT_NAME") or uevent.get("OF_FULLNAME")


class TreeGpus(NamedTuple):
    """The GPUs that are on no PCI bus."""

    records: list[tuple[DeviceRecord, Card | None]]  # the records of the GPUs, with their cards
    doubtful: bool  # whether a card may be a GPU, but no file says so


def read_tree_gpus(root: Root, cards: list[Card]) -> TreeGpus:
    """Return the GPUs that are on no PCI bus, by the DRM cards and the device tree. Each family of GPUs is
    listed once. A PCI card whose address cannot be read is listed, too."""
    gpus: list[tuple[DeviceRecord, Card | None]] = []
    families: set[Family | None] = set()
    seen: set[str] = set()
    doubtful = False
    devices = {
        name: describe(root, f"{PLATFORM_DEVICES}/{name}", "platform")
        for name in root.names(PLATFORM_DEVICES) or () if _GPU_NODE.fullmatch(name)
    }  # fmt: skip
    # A card may be that of the display beside the GPU, whose own device has another driver then.
    drivers = {
        _family(gpu): driver for gpu in devices.values() if (driver := gpu.record.facts["driver.name"]).value
    }
    # The card that renders stands for its chip, not the display beside it.
    for ordinal, card in sorted(enumerate(cards), key=lambda entry: not entry[1].node):
        function = card.function
        if function.bdf is not None:
            continue
        record, family = function.record, _family(function)
        driver = record.value("driver.name")
        seen.add(card.device)
        if driver in DRIVER_VENDORS and not (family and "OF_FULLNAME" in function.uevent):
            # A PCI card whose address cannot be read: it is still there.
            gpus.append((replace(record, ordinal=ordinal, node=card.node), card))
        elif family in families or (
            not family
            and (
                "PCI_ID" in function.uevent
                or re.fullmatch(_DISPLAYS, _plain_driver(function))
                or re.match(_DISPLAY_BUSES, function.uevent.get("MODALIAS", ""))
            )
        ):
            continue  # the bus lists what is on it
        elif family or card.node:
            own = drivers.get(family) if family and card.device not in devices else None
            gpus.append((_record(record, ordinal, family, card.node, own), card))
            families |= {family} - {None}
        elif not any(card.node for card in cards):  # else the kernel says that this card does not render
            doubtful = True
    for name, device in devices.items():
        family = _family(device)
        if name not in seen and family not in families:
            gpus.append((_record(device.record, len(gpus), family), None))
            families |= {family} - {None}
    return TreeGpus(gpus, doubtful)


def _family(function: Function) -> Family | None:
    plain = _plain_driver(function)
    compatible = [function.uevent.get(f"OF_COMPATIBLE_{number}", "") for number in range(4)]
    if re.fullmatch(_DISPLAYS, plain):
        return None
    for family in _FAMILIES:
        described = not plain and any(re.match(family.compatible, text) for text in compatible)
        if re.fullmatch(family.drivers, plain) or described:
            return family
    return None


def _plain_driver(function: Function) -> str:
    return (function.record.value("driver.name") or "").replace("-", "_")


def _record(
    record: DeviceRecord, ordinal: int, family: Family | None, node: str | None = None,
    driver: Fact[str] | None = None,
) -> DeviceRecord:  # fmt: skip
    """Return the record of a GPU that has no PCI address. `driver` is its driver, by default that in `record`."""
    driver = driver or record.facts["driver.name"]
    facts: Facts = {"driver.name": driver}
    if family is not None:
        # it is integrated, and shares the memory of its chip
        source = driver.source or record.source
        facts |= {"kind": make_fact("integrated", source), "memory.unified": make_fact(True, source)}
    vendor_id = family.vendor_id if family else record.vendor_id
    return DeviceRecord(source=record.source, ordinal=ordinal, vendor_id=vendor_id, node=node, facts=facts)


def read_display_state(root: Root, card: Card) -> Fact[bool]:
    """Return the fact whether a display is connected to the card. It is absent if no connector states that, and
    not probed if the card sleeps."""
    if card.function.asleep:
        return NOT_PROBED
    states = [
        root.read(f"{CARDS}/{name}/status").text
        for name in root.names_like(CARDS, f"{card.folder.rpartition('/')[2]}-.*")
    ]
    source = f"{card.folder}-*/status"
    return make_fact("connected" in states if any(states) else None, source)
