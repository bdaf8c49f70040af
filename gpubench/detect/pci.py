"""PCI functions in sysfs; the names of devices from pci.ids.

A sleeping function is asked only for what the kernel answers from memory. Nothing is decided by a name: one id covers
several products. Our pci.ids, or a newer one of the described machine, is loaded for a GPU that no driver names.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gpubench.detect.records import (
    ABSENT,
    Address,
    DeviceRecord,
    address,
    derive,
    first,
    make_fact,
    missing,
)
from gpubench.detect.root import FileText, Root, integer, list_form, matching, parse_list, parse_mask
from gpubench.result.machine import NOT_PROBED, Fact, LinkPath

PCI_DEVICES = "/sys/bus/pci/devices"
# Drivers that hold nothing but GPUs, with their vendor: the driver tells it where no file can.
DRIVER_VENDORS = {
    "nvidia": 0x10DE, "nouveau": 0x10DE, "nova": 0x10DE, "amdgpu": 0x1002, "radeon": 0x1002, "i915": 0x8086,
    "xe": 0x8086,
}  # fmt: skip
GPU_DRIVERS = (*DRIVER_VENDORS, "asahi")
ASLEEP = ("suspended", "suspending")
_SPEEDS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_MODALIAS = re.compile(
    r"pci:v(?P<vendor>[0-9A-F]{8})d(?P<device>[0-9A-F]{8})sv(?P<subvendor>[0-9A-F]{8})sd(?P<subdevice>[0-9A-F]{8})"
    r"bc(?P<base>[0-9A-F]{2})sc(?P<sub>[0-9A-F]{2})i[0-9A-F]{2}"
)


class Function(NamedTuple):
    """One PCI function: the folder it was read from, and what it said."""

    folder: str
    bdf: Address | None
    asleep: bool
    record: DeviceRecord
    uevent: Mapping[str, str]


def read_functions(root: Root) -> list[Function] | None:
    """Display devices and accelerators of the bus in address order; None if the bus cannot be listed.

    The virtual functions of one device (SR-IOV) stand in the record of its physical function.
    """
    names = root.names(PCI_DEVICES)
    if names is None:
        return None
    functions = []
    for name in names:
        bdf = address(name)
        if bdf is None:
            continue
        folder = f"{PCI_DEVICES}/{name}"
        value = _number(root, folder, "pci_class").value
        # A device whose class cannot be read may be a GPU: what else is said of its address decides.
        if value is None or value >> 8 in (0x03, 0x12) or value == 0x0B40:
            functions.append(describe(root, folder, "pci-sysfs", bdf))
    return _without_virtual(root, sorted(functions, key=_place))


def _place(function: Function) -> Address:
    return function.bdf or Address(0, 0, 0, 0)


def _without_virtual(root: Root, functions: list[Function]) -> list[Function]:
    """One function a device: the physical one, else the first.

    In a guest a virtual function has no link to its physical function: it is a device of its own.
    """
    devices: dict[Address, list[Function]] = {}
    for function in functions:
        physical = address(root.link(f"{function.folder}/physfn"))
        devices.setdefault(physical or _place(function), []).append(function)
    leads = []
    for physical, own in devices.items():
        lead = next((function for function in own if function.bdf == physical), own[0])
        virtual = tuple(_place(function) for function in own if function is not lead)
        leads.append(lead._replace(record=msgspec.structs.replace(lead.record, virtual=virtual)))
    return sorted(leads, key=_place)


def describe(root: Root, folder: str, source: str, bdf: Address | None = None) -> Function:
    """All that one device folder tells. `source` names the enumeration."""
    state = root.fact(f"{folder}/power/runtime_status", matching("[a-z]{1,20}"))
    asleep = state.value in ASLEEP
    uevent = parse_uevent(root.read(f"{folder}/uevent"))
    listed, bdf = bdf, bdf or address(uevent.get("PCI_SLOT_NAME"))
    numbers = {name: _number(root, folder, name) for name in _NUMBERS}
    driver = bound_driver(root, folder, uevent)
    if numbers["vendor_id"].value is None and driver.value in DRIVER_VENDORS:
        numbers["vendor_id"] = derive(driver, DRIVER_VENDORS.__getitem__)
    facts: dict[str, Fact[Any]] = {name: derive(fact, lambda n: f"{n:04x}") for name, fact in numbers.items()}
    facts |= {"power.state": state, "driver.name": driver, **root.facts(folder, _FILES)}
    facts |= {"local_cpus": NOT_PROBED if asleep else _local_cpus(root, folder)}
    # Reading these wakes a device.
    facts |= root.facts(folder, _AWAKE_FILES, asleep=asleep)
    if bdf is not None and listed is None:
        facts["bdf"] = make_fact(str(bdf), f"{folder}/uevent")
    ids: dict[str, Any] = {name: numbers[name].value for name in ("vendor_id", "device_id", "pci_class")}
    return Function(folder, bdf, asleep, DeviceRecord(source=source, bdf=bdf, facts=facts, **ids), uevent)


def bound_driver(root: Root, folder: str, uevent: dict[str, str]) -> Fact[str]:
    """The bound driver: the link, else the line of uevent."""
    name, other = root.link(f"{folder}/driver"), uevent.get("DRIVER")
    return make_fact(name or other or None, f"{folder}/uevent" if other and not name else f"{folder}/driver")


class NumberPlaces(NamedTuple):
    """The places of an id, or of the class."""

    file: str
    form: str  # of its text in that file
    key: str  # in uevent
    key_form: str  # of the text behind the key
    alias: tuple[str, ...]  # the groups of the modalias


_HEX = "[0-9a-fA-F]"
_ID = rf"0x({_HEX}{{4}})"
_FIRST, _SECOND = rf"({_HEX}{{4}}):{_HEX}{{4}}", rf"{_HEX}{{4}}:({_HEX}{{4}})"
_NUMBERS = {
    "vendor_id": NumberPlaces("vendor", _ID, "PCI_ID", _FIRST, ("vendor",)),
    "device_id": NumberPlaces("device", _ID, "PCI_ID", _SECOND, ("device",)),
    "subvendor_id": NumberPlaces("subsystem_vendor", _ID, "PCI_SUBSYS_ID", _FIRST, ("subvendor",)),
    "subdevice_id": NumberPlaces("subsystem_device", _ID, "PCI_SUBSYS_ID", _SECOND, ("subdevice",)),
    "pci_class": NumberPlaces(
        "class", rf"0x({_HEX}{{4}}){_HEX}{{2}}", "PCI_CLASS", rf"({_HEX}{{3,4}}){_HEX}{{2}}", ("base", "sub")
    ),
}


def _hex(match: re.Match[str]) -> int:
    return int(match[1], 16)


def _number(root: Root, folder: str, name: str) -> Fact[int]:
    """An id, or the upper part of the class, by its own file, else by uevent, else by the modalias."""
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
            digits = "".join(match[group] for group in place.alias)
            return first(ABSENT, own) if digits == "FFFFFFFF" else make_fact(int(digits, 16), path)
    return first(ABSENT, own)


def parse_uevent(reading: FileText) -> dict[str, str]:
    """The lines `KEY=value` of a uevent file."""
    lines = (line.partition("=") for line in (reading.text or "").splitlines())
    return {key: value for key, equals, value in lines if equals}


def _node(text: str) -> int | None:
    node = integer(text)
    if node < -1:
        raise ValueError("not a node")
    return None if node == -1 else node


def _local_cpus(root: Root, folder: str) -> Fact[str]:
    listed = root.fact(f"{folder}/local_cpulist", lambda text: list_form(parse_list(text)) or None)
    if listed.value is not None:
        return listed
    return first(root.fact(f"{folder}/local_cpus", lambda text: list_form(parse_mask(text)) or None), listed)


def _generation(text: str) -> int | None:
    if text.startswith("Unknown"):
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?) GT/s(?: PCIe)?", text)
    if not match or float(match[1]) not in _SPEEDS:
        raise ValueError("not a link speed")
    return _SPEEDS[float(match[1])]


def _width(text: str) -> int | None:
    lanes = integer(text)
    if lanes in (0, 255):  # what the kernel shows for "no link" and "unknown"
        return None
    if lanes not in (1, 2, 4, 8, 12, 16, 32):
        raise ValueError("not a link width")
    return lanes


_FILES = {
    "revision": ("revision", matching(rf"0x({_HEX}{{2}})", lambda match: match[1].lower())),
    "numa_node": ("numa_node", _node),
}
_AWAKE_FILES = {
    "driver.version": ("driver/module/version", lambda text: text.split()[0] if text.isprintable() else None),
    "link.gen_max": ("max_link_speed", _generation), "link.width_max": ("max_link_width", _width),
    "link.gen_now": ("current_link_speed", _generation), "link.width_now": ("current_link_width", _width),
}  # fmt: skip


# ---------------------------------------------------------------- paths between GPUs

# The folders of a device are named, never entered, so no sleeping GPU wakes.
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


def with_pci_paths(root: Root, functions: Sequence[Function]) -> list[Function]:
    """The display functions with their paths to each other: the deepest bridge that two have in common, else the NUMA
    node."""
    routes = {f.bdf: route(root, f.bdf) for f in functions if f.bdf is not None and _may_link(f.record)}
    if len(routes) < 2:
        return list(functions)
    by_address = {f.bdf: f for f in functions}
    return [
        function._replace(record=msgspec.structs.replace(function.record, paths=tuple(
            _pci_path(function, by_address[other], routes[function.bdf], routes[other])
            for other in routes if other != function.bdf
        ))) if function.bdf in routes else function
        for function in functions
    ]  # fmt: skip


def _may_link(record: DeviceRecord) -> bool:
    return (record.pci_class or 0x0300) >> 8 in (0x03, 0x12)  # one that cannot be read may be a GPU


def route(root: Root, bdf: Address) -> list[str]:
    """The host bridge and the bridges above a function; empty where the folder is no link, as in some recordings."""
    parts = (root.target(f"{PCI_DEVICES}/{bdf}") or "").split("/")
    start = next((place for place, part in enumerate(parts) if _HOST_BRIDGE.fullmatch(part)), len(parts))
    return parts[start:-1]


def _pci_path(own: Function, other: Function, here: list[str], there: list[str]) -> LinkPath:
    common = _common(own, other, here, there)
    kinds = {"switch": "pcie", "host-bridge": "pcie"}
    kind = ABSENT if common.value is None else make_fact(kinds.get(common.value, "host"), common.source)
    return LinkPath(to=str(other.bdf), kind=kind, common=common)


def _common(own: Function, other: Function, here: list[str], there: list[str]) -> Fact[str]:
    if not here or not there:
        return missing("absent", own.folder)
    if here[0] == there[0]:
        return make_fact("switch" if here[1:2] == there[1:2] != [] else "host-bridge", own.folder)
    mine, others = (function.record.facts["numa_node"] for function in (own, other))
    if mine.value is None or others.value is None:
        note = "the two are below two host bridges, and their NUMA nodes are unknown"
        return missing("absent", mine.source, note)
    return make_fact("numa-node" if mine.value == others.value else "system", mine.source)


# ---------------------------------------------------------------- names

TABLE = Path(__file__).with_name("data") / "pci.ids.z"
PLACES = ("/usr/share/hwdata/pci.ids", "/usr/share/misc/pci.ids")
_DATE = re.compile(r"^#\s*Date:\s*(\d{4}-\d{2}-\d{2})", re.M)
_HEAD = 4096  # the date stands in the first lines
_LINE = re.compile(r"([0-9a-f]{4})  (\S.*)")


class Book(NamedTuple):
    """One file of names: what it calls itself, its date ("2026-10-24") and its text."""

    source: str
    date: str
    text: str


class Names:
    """Names by vendor and device id, for the machine below `root`; without one, from our table alone."""

    def __init__(self, root: Root | None = None) -> None:
        self.root = root
        self._books: list[Book] | None = None

    def __call__(self, vendor: int, device: int) -> tuple[str, str] | None:
        """The name and where it stands, or None."""
        if self._books is None:
            self._books = books(self.root)
        for book in self._books:
            if book.source in PLACES:
                name = ids_names(book.text, vendor).get(device)
            else:
                line = re.search(f"^{vendor:04x}{device:04x}(.*)$", book.text, re.M)
                name = line and line[1]
            if name is not None:
                return name, book.source
        return None


def books(root: Root | None) -> list[Book]:
    """The machine's own files that are newer than our table, newest first; then our table."""
    own = table()
    texts = {path: root.read(path).text or "" for path in PLACES} if root is not None else {}
    dated = [Book(path, ids_date(text) or "", text) for path, text in texts.items()]
    newer = [book for book in dated if book.date > own.date]
    return [*sorted(newer, key=lambda book: book.date, reverse=True), own]


def table() -> Book:
    """The names that gpubench ships."""
    try:
        text = zlib.decompress(TABLE.read_bytes()).decode()
        day = text[2 : text.index("\n")]
    except (OSError, ValueError, zlib.error):  # a spoiled installation costs names only
        return Book("pci.ids", "", "")
    return Book(f"pci.ids of {day}", day, text)


def ids_date(text: str) -> str | None:
    match = _DATE.search(text[:_HEAD])
    return match[1] if match else None


def ids_names(text: str, vendor: int) -> dict[int, str]:
    """Names of a vendor's devices by id. Subsystems, comments and what cannot be read are left out."""
    start = re.search(rf"^{vendor:04x}  ", text, re.M)
    table: dict[int, str] = {}
    for line in text[start.start() :].splitlines()[1:] if start else ():
        if not line.startswith(("\t", "#")) and line:
            break
        entry = _LINE.fullmatch(line[1:].rstrip()) if line[1:2] != "\t" else None
        if entry and entry[2].isprintable():
            table.setdefault(int(entry[1], 16), entry[2])
    return table


def excerpt(text: str, devices: Collection[tuple[int, int]]) -> str:
    """A pci.ids with nothing but its date and the names of `devices`, for a recording."""
    lines = [f"# Date: {ids_date(text)}"] if ids_date(text) else []
    for vendor in sorted({vendor for vendor, _ in devices}):
        names = ids_names(text, vendor)
        own = sorted(device for maker, device in devices if maker == vendor and device in names)
        lines += [f"{vendor:04x}  -", *(f"\t{device:04x}  {names[device]}" for device in own)] if own else []
    return "\n".join(lines)
