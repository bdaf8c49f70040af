"""Memory and driver version of GPUs from Windows' registry, which keeps them for each driver of a display adapter.

The entry of a card that was taken out stays: an entry describes a GPU that a library lists, and is none by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from gpubench.detect.records import DeviceRecord, known
from gpubench.result.machine import Fact

_ADAPTERS = r"SYSTEM\CurrentControlSet\Control\Class\{4d36e968-e325-11ce-bfc1-08002be10318}"
_IDS = re.compile(r"PCI\\VEN_([0-9A-F]{4})&DEV_([0-9A-F]{4})", re.IGNORECASE)
_SIZE, _SOURCE = "HardwareInformation.qwMemorySize", "registry"


def describe(records: Sequence[DeviceRecord]) -> list[DeviceRecord]:
    """Return the records of adapters with the facts of their entry. Other systems have no registry: none there."""
    entries = read_entries()
    return [
        msgspec.structs.replace(record, facts=entries[ids] | record.facts)
        if (ids := (record.vendor_id, record.device_id)) in entries and record.source.startswith("wgpu")
        else record
        for record in records
    ]


def read_entries() -> Mapping[tuple[int | None, int | None], dict[str, Fact[Any]]]:
    """Return the facts of each model by its vendor and device id. Two entries of one model that differ tell nothing."""
    entries: dict[tuple[int | None, int | None], dict[str, Fact[Any]]] = {}
    for values in _adapters():
        match = _IDS.match(str(values.get("MatchingDeviceId", "")))
        if match is None:
            continue
        ids, facts = (int(match[1], 16), int(match[2], 16)), _facts(values)
        other = entries.get(ids, facts)
        entries[ids] = {path: fact for path, fact in facts.items() if other.get(path) == fact}
    return entries


def _facts(values: Mapping[str, Any]) -> dict[str, Fact[Any]]:
    size, version = values.get(_SIZE), values.get("DriverVersion")
    if isinstance(size, bytes):  # by the driver a number or its bytes
        size = int.from_bytes(size, "little")
    facts: dict[str, Fact[Any]] = {}
    if isinstance(size, int) and size > 0:
        facts["memory.dedicated_bytes"] = known(size, _SOURCE)
    if isinstance(version, str) and version:
        facts["driver.version"] = known(version, _SOURCE)
    return facts


def _adapters() -> Iterator[dict[str, Any]]:
    """The values of each entry, by their names."""
    try:
        import winreg
    except ImportError:
        return
    registry: Any = winreg  # typeshed has its names for Windows alone
    try:
        with registry.OpenKey(registry.HKEY_LOCAL_MACHINE, _ADAPTERS) as adapters:
            for number in range(registry.QueryInfoKey(adapters)[0]):
                name = registry.EnumKey(adapters, number)
                if not re.fullmatch(r"\d{4}", name):
                    continue
                try:
                    with registry.OpenKey(adapters, name) as key:
                        count = registry.QueryInfoKey(key)[1]
                        yield {
                            value[0]: value[1] for value in (registry.EnumValue(key, i) for i in range(count))
                        }
                except OSError:  # one that may not be read
                    continue
    except OSError:
        return
