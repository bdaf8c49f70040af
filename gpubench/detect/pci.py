"""PCI functions in sysfs; the names of devices from pci.ids.

A sleeping function is asked only for what the kernel answers from memory. Nothing is decided by a name: one id covers
several products. Our pci.ids, or a newer one of the described machine, is loaded for a GPU that no driver names.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gpubench.detect.records import (
    ABSENT,
    Address,
    DeviceRecord,
    address,
    derived,
    first,
    known,
    missing,
)
from gpubench.detect.root import FileText, Root, integer, list_form, parse_list, parse_mask
from gpubench.result.machine import NOT_PROBED, Fact

PCI_DEVICES = "/sys/bus/pci/devices"
# Drivers that hold nothing but GPUs, with their vendor: the driver tells it where no file can.
DRIVER_VENDORS = {
    "nvidia": 0x10DE, "nouveau": 0x10DE, "nova": 0x10DE, "amdgpu": 0x1002, "radeon": 0x1002, "i915": 0x8086,
    "xe": 0x8086,
}  # fmt: skip
GPU_DRIVERS = (*DRIVER_VENDORS, "asahi")
ASLEEP = ("suspended", "suspending")
_LINK = ("gen_max", "width_max", "gen_now", "width_now")
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


def read_functions(root: Root) -> list[Function] | None:
    """Display devices and accelerators of the bus in address order; None if the bus cannot be listed.

    The virtual functions of one device (SR-IOV) stand in the record of its physical function.
    """
    names = root.names(PCI_DEVICES)
    if names is None:
        return None
    found = []
    for name in names:
        bdf = address(name)
        if bdf is None:
            continue
        folder = f"{PCI_DEVICES}/{name}"
        value = _class(root, folder).value
        # A device whose class cannot be read may be a GPU: what else is said of its address decides.
        if value is None or value >> 8 in (0x03, 0x12) or value == 0x0B40:
            found.append(describe(root, folder, "pci-sysfs", bdf))
    return _without_virtual(root, sorted(found, key=_place))


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
        leads.append(
            lead._replace(record=msgspec.structs.replace(lead.record, virtual=virtual)) if virtual else lead
        )
    return sorted(leads, key=_place)


def describe(root: Root, folder: str, source: str, bdf: Address | None = None) -> Function:
    """All that one device folder tells. `source` names the enumeration."""
    state = _state(root, folder)
    asleep = state.value in ASLEEP
    uevent = parse_uevent(root.read(f"{folder}/uevent"))
    listed, bdf = bdf, bdf or address(uevent.get("PCI_SLOT_NAME"))
    ids = {
        name: _id(root, folder, name, uevent)
        for name in ("vendor_id", "device_id", "subvendor_id", "subdevice_id")
    }
    bound = bound_driver(root, folder, uevent)
    if ids["vendor_id"].value is None and bound.value in DRIVER_VENDORS:
        ids["vendor_id"] = derived(bound, DRIVER_VENDORS.__getitem__)
    pci_class = _class(root, folder)
    facts: dict[str, Fact[Any]] = {name: derived(fact, lambda n: f"{n:04x}") for name, fact in ids.items()}
    facts |= {
        "pci_class": derived(pci_class, lambda n: f"{n:04x}"), "revision": root.fact(f"{folder}/revision", _revision),
        "numa_node": root.fact(f"{folder}/numa_node", _node), "power.state": state,
        "local_cpus": NOT_PROBED if asleep else _local_cpus(root, folder), "driver.name": bound,
        "driver.version": NOT_PROBED if asleep else _driver_version(root, folder),
    }  # fmt: skip
    facts |= {f"link.{key}": NOT_PROBED for key in _LINK} if asleep else link(root, folder)
    if bdf is not None and listed is None:
        facts["bdf"] = known(str(bdf), f"{folder}/uevent")
    record = DeviceRecord(source=source, bdf=bdf, vendor_id=ids["vendor_id"].value, device_id=ids["device_id"].value,
                    pci_class=pci_class.value, facts=facts)  # fmt: skip
    return Function(folder, bdf, asleep, record)


def bound_driver(root: Root, folder: str, uevent: dict[str, str]) -> Fact[str]:
    """The bound driver: the link, else the line of uevent."""
    name = root.link(f"{folder}/driver")
    if name:
        return known(name, f"{folder}/driver")
    if uevent.get("DRIVER"):
        return known(uevent["DRIVER"], f"{folder}/uevent")
    return missing("absent", f"{folder}/driver")


def link(root: Root, folder: str) -> dict[str, Fact[Any]]:
    """PCIe generation and width, most and now. Reading them wakes a sleeping device: ask first."""
    names = ("max_link_speed", "max_link_width", "current_link_speed", "current_link_width")
    parsers = (_generation, _width, _generation, _width)
    pairs = zip(_LINK, names, parsers, strict=True)
    return {f"link.{key}": root.fact(f"{folder}/{name}", parse) for key, name, parse in pairs}


def asleep(root: Root, folder: str) -> bool:
    """Whether touching the device would wake it."""
    return _state(root, folder).value in ASLEEP


def _state(root: Root, folder: str) -> Fact[str]:
    return root.fact(f"{folder}/power/runtime_status", _word)


def _word(text: str) -> str:
    if not re.fullmatch(r"[a-z]{1,20}", text):
        raise ValueError("not a state")
    return text


def _class(root: Root, folder: str) -> Fact[int]:
    own = root.fact(f"{folder}/class", _class_file)
    return own if own.value is not None else first(_from_uevent(root, folder, "class"), own)


def _class_file(text: str) -> int:
    if not re.fullmatch(r"0x[0-9a-f]{6}", text, re.I):
        raise ValueError("not a class")
    return int(text, 16) >> 8


def _id_file(text: str) -> int:
    if not re.fullmatch(r"0x[0-9a-f]{4}", text, re.I):
        raise ValueError("not an id")
    return int(text, 16)


def _id(root: Root, folder: str, name: str, uevent: dict[str, str]) -> Fact[int]:
    files = {"vendor_id": "vendor", "device_id": "device", "subvendor_id": "subsystem_vendor",
             "subdevice_id": "subsystem_device"}  # fmt: skip
    own = root.fact(f"{folder}/{files[name]}", _id_file)
    if own.value is not None:
        return own
    key, position = ("PCI_ID" if name in ("vendor_id", "device_id") else "PCI_SUBSYS_ID"), int("device" in name)
    found = re.fullmatch(r"([0-9A-F]{4}):([0-9A-F]{4})", uevent.get(key, ""), re.I)
    if found:
        return known(int(found[position + 1], 16), f"{folder}/uevent")
    return first(_from_uevent(root, folder, name.removesuffix("_id")), own)


def _from_uevent(root: Root, folder: str, part: str) -> Fact[int]:
    """A class or id out of uevent's PCI_CLASS, else out of the modalias."""
    reading = root.read(f"{folder}/uevent")
    uevent = parse_uevent(reading)
    if part == "class" and re.fullmatch(r"[0-9A-F]{5,6}", uevent.get("PCI_CLASS", ""), re.I):
        return known(int(uevent["PCI_CLASS"], 16) >> 8, reading.path)
    alias = root.read(f"{folder}/modalias")
    for text, path in ((uevent.get("MODALIAS", ""), reading.path), (alias.text or "", alias.path)):
        if found := _MODALIAS.fullmatch(text):
            wide = found["base"] + found["sub"] if part == "class" else found[part]
            return ABSENT if wide.upper() == "FFFFFFFF" else known(int(wide, 16), path)
    return ABSENT


def parse_uevent(reading: FileText) -> dict[str, str]:
    """The lines `KEY=value` of a uevent file."""
    lines = (line.partition("=") for line in (reading.text or "").splitlines())
    return {key: value for key, equals, value in lines if equals}


def _revision(text: str) -> str:
    if not re.fullmatch(r"0x[0-9a-f]{2}", text, re.I):
        raise ValueError("not a revision")
    return text[2:].lower()


def _node(text: str) -> int | None:
    node = integer(text)
    if node < -1:
        raise ValueError("not a node")
    return None if node == -1 else node


def _local_cpus(root: Root, folder: str) -> Fact[str]:
    listed = root.fact(f"{folder}/local_cpulist", lambda text: list_form(parse_list(text)) or None)
    if listed.value is not None:
        return listed
    mask = root.fact(f"{folder}/local_cpus", lambda text: list_form(parse_mask(text)) or None)
    return first(mask, listed)


def _driver_version(root: Root, folder: str) -> Fact[str]:
    return root.fact(
        f"{folder}/driver/module/version", lambda text: text.split()[0] if text.isprintable() else None
    )


def _generation(text: str) -> int | None:
    if text.startswith("Unknown"):
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?) GT/s(?: PCIe)?", text)
    if not found or float(found[1]) not in _SPEEDS:
        raise ValueError("not a link speed")
    return _SPEEDS[float(found[1])]


def _width(text: str) -> int | None:
    lanes = integer(text)
    if lanes in (0, 255):  # what the kernel shows for "no link" and "unknown"
        return None
    if lanes not in (1, 2, 4, 8, 12, 16, 32):
        raise ValueError("not a link width")
    return lanes


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
            name = _shipped(book.text, vendor, device) if book.source.startswith("pci.ids") else (
                ids_names(book.text, vendor).get(device))  # fmt: skip
            if name is not None:
                return name, book.source
        return None


def books(root: Root | None) -> list[Book]:
    """The machine's own files that are newer than our table, newest first; then our table."""
    own = table()
    newer = []
    for path in PLACES if root is not None else ():
        text = root.read(path).text if root is not None else None
        if text is not None and (dated := ids_date(text)) is not None and dated > own.date:
            newer.append(Book(path, dated, text))
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
    found = _DATE.search(text[:_HEAD])
    return found[1] if found else None


def ids_names(text: str, vendor: int) -> dict[int, str]:
    """Names of a vendor's devices by id. Subsystems, comments and what cannot be read are left out."""
    start = re.search(rf"^{vendor:04x}  ", text, re.M)
    found: dict[int, str] = {}
    for line in text[start.start() :].splitlines()[1:] if start else ():
        if not line.startswith(("\t", "#")) and line:
            break
        entry = _LINE.fullmatch(line[1:].rstrip()) if line[1:2] != "\t" else None
        if entry and entry[2].isprintable():
            found.setdefault(int(entry[1], 16), entry[2])
    return found


def excerpt(text: str, wanted: Collection[tuple[int, int]]) -> str:
    """A pci.ids with nothing but its date and the names of `wanted` devices, for a recording."""
    lines = [f"# Date: {ids_date(text)}"] if ids_date(text) else []
    for vendor in sorted({vendor for vendor, _ in wanted}):
        names = ids_names(text, vendor)
        own = sorted(device for maker, device in wanted if maker == vendor and device in names)
        lines += [f"{vendor:04x}  -", *(f"\t{device:04x}  {names[device]}" for device in own)] if own else []
    return "\n".join(lines)


def _shipped(text: str, vendor: int, device: int) -> str | None:
    key = f"\n{vendor:04x}{device:04x}"
    start = text.find(key)
    return None if start < 0 else text[start + len(key) : text.index("\n", start + 1)]
