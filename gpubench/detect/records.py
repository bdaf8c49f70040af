"""Facts and records: a fact without a value carries the most telling reason that any source gave."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar, cast

import msgspec
from msgspec import UNSET

from gpubench.result.identity import is_placeholder
from gpubench.result.machine import Fact, Gpu, LinkPath, Partition, Status

T = TypeVar("T")

ABSENT: Fact[Any] = Fact(None, "absent", None)

# What a reader most wants to hear when nobody knows: a broken file before a missing one.
_TELLING: tuple[Status, ...] = (
    "invalid", "permission", "mismatch", "crashed", "timeout", "unsupported", "not_probed", "absent",
)  # fmt: skip


def known(value: T, source: str, note: str | None = None) -> Fact[T]:
    return Fact(value, "ok", source, UNSET if note is None else note)


def missing(status: Status, source: str | None = None, note: str | None = None) -> Fact[Any]:
    return Fact(None, status, source, UNSET if note is None else note)


def first(*facts: Fact[T]) -> Fact[T]:
    """The first fact with a value, else the one whose reason tells most."""
    for fact in facts:
        if fact.value is not None:
            return fact
    return min(facts, key=lambda fact: _TELLING.index(fact.status)) if facts else ABSENT


def derived(fact: Fact[Any], change: Callable[[Any], T]) -> Fact[T]:
    """A fact computed from another one; a missing one stays missing for the same reason."""
    if fact.value is None:
        return fact
    return known(change(fact.value), fact.source or "")


def lost(fact: Fact[Any]) -> Fact[Any]:
    """A fact that is missing because the one it rests on is missing."""
    return missing(fact.status, fact.source)


AdapterType = Literal["discrete", "integrated", "virtual", "cpu", "other"]
_BDF = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.I)
_PLAIN = (
    "source", "driver", "ordinal", "bdf", "uuid", "luid", "vendor_id", "device_id", "pci_class", "vendor", "name",
    "adapter_type", "memory_bytes", "partition_of", "version", "checked", "throttle", "peers", "why_not",
    "virtual", "renders",
)  # fmt: skip
_TYPES = ("discrete", "integrated", "virtual", "cpu", "other")


class Address(NamedTuple):
    """A PCI address; sorts like its text."""

    domain: int
    bus: int
    device: int
    function: int

    def __str__(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.device:02x}.{self.function}"


class DeviceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Normalised: ids are integers, addresses four of them, uuids in one spelling.

    `facts` holds further facts by their path in the document's `gpus[]` ("memory.free_bytes").
    `checked`: a checked kernel ran on the device. `virtual`: addresses of its virtual functions (SR-IOV). `renders`: it
    has a render node. `throttle`, `peers` and `why_not` as in the document. `paths` as
    there too, but for `to`, which is a PCI address.
    """

    source: str
    driver: str | None = None
    ordinal: int | str | None = None
    bdf: Address | None = None
    uuid: str | None = None
    luid: str | None = None
    vendor_id: int | None = None
    device_id: int | None = None
    pci_class: int | None = None
    vendor: str | None = None
    name: str | None = None
    adapter_type: AdapterType | None = None
    memory_bytes: int | None = None
    partition_of: str | None = None
    version: str | None = None
    checked: bool | None = None
    throttle: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    paths: tuple[LinkPath, ...] = ()
    why_not: tuple[str, ...] = ()
    virtual: tuple[Address, ...] = ()
    renders: bool | None = None
    facts: dict[str, Fact[Any]] = {}
    partitions: tuple[Partition, ...] = ()

    @property
    def enumeration(self) -> tuple[str, str]:
        """Two records of one enumeration are never one device."""
        return (self.source, self.driver or "")


def address(text: object) -> Address | None:
    """ "00000002:01:00.0" or "02:01:00.0" as four integers; None if it is no address."""
    found = _BDF.fullmatch(text.strip()) if isinstance(text, str) else None
    return Address(*(int(part or "0", 16) for part in found.groups())) if found else None


def uuid(text: object) -> str | None:
    """One spelling: the prefix in capitals, the digits in lower case; None if it is no uuid."""
    found = (
        re.fullmatch(r"(?:(GPU|MIG)-)?([0-9a-f][0-9a-f/-]{6,80})", text.strip(), re.I)
        if isinstance(text, str)
        else None
    )
    if not found or not set(found[2]) - set("0-/"):
        return None
    return f"{(found[1] or 'GPU').upper()}-{found[2].lower()}"


def uuid_key(text: str) -> str:
    """What two spellings of one uuid have in common."""
    return text.removeprefix("GPU-").replace("-", "")


def pci_id(value: object) -> int | None:
    """A hex string ("10de", "0x10de") or an integer as a number."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if value >= 0 else None
    if isinstance(value, str) and re.fullmatch(r"(0x)?[0-9a-f]{1,8}", value.strip(), re.I):
        return int(value, 16)
    return None


def parse_record(raw: object) -> DeviceRecord:
    """A record from its JSON object. What cannot be understood is left out; raises ValueError without `source`."""
    if not isinstance(raw, dict) or not isinstance(raw.get("source"), str) or not raw["source"]:
        raise ValueError("a record needs a `source`")
    kind = raw.get("adapter_type")
    source = raw["source"]
    ordinal = raw.get("ordinal")
    memory = raw.get("memory_bytes")
    return DeviceRecord(
        source=source, driver=_text(raw.get("driver")) , ordinal=ordinal if isinstance(ordinal, int | str) else None,
        bdf=address(_value(raw, "bdf")), uuid=uuid(_value(raw, "uuid")), luid=_text(raw.get("luid")),
        vendor_id=pci_id(_value(raw, "vendor_id")), device_id=pci_id(_value(raw, "device_id")),
        pci_class=pci_id(_value(raw, "pci_class")), vendor=_text(raw.get("vendor")), name=_name(raw.get("name")),
        adapter_type=cast("AdapterType", kind) if kind in _TYPES else None,
        memory_bytes=memory if isinstance(memory, int) and not isinstance(memory, bool) and memory > 0 else None,
        partition_of=_text(raw.get("partition_of")), version=_text(raw.get("version")),
        checked=raw.get("checked") if isinstance(raw.get("checked"), bool) else None,
        throttle=_texts(raw.get("throttle")), peers=_texts(raw.get("peers")),
        paths=tuple(_paths(raw.get("paths"), source)), why_not=_texts(raw.get("why_not")),
        virtual=tuple(bdf for text in _texts(raw.get("virtual")) if (bdf := address(text)) is not None),
        renders=raw.get("renders") if isinstance(raw.get("renders"), bool) else None,
        facts=dict(_facts(raw, source)),
    )  # fmt: skip


def record_to_json(record: DeviceRecord) -> dict[str, Any]:
    """The JSON object of a record, as a child writes it and `--records` reads it."""
    raw: dict[str, Any] = {key: value for key in _PLAIN if (value := getattr(record, key)) not in (None, ())}
    for key, digits in (("vendor_id", 4), ("device_id", 4), ("pci_class", 4)):
        if key in raw:
            raw[key] = f"{raw[key]:0{digits}x}"
    if record.bdf is not None:
        raw["bdf"] = str(record.bdf)
    if record.virtual:
        raw["virtual"] = [str(bdf) for bdf in record.virtual]
    if record.paths:
        raw["paths"] = [msgspec.to_builtins(path) for path in record.paths]
    return raw | {path: msgspec.to_builtins(fact) for path, fact in sorted(record.facts.items())}


def _facts(raw: dict[str, Any], source: str) -> list[tuple[str, Fact[Any]]]:
    """Facts of section `gpus[]`, nested or by dotted path, each a full fact or a bare value."""
    found = []
    for key, value in raw.items():
        if key in _PLAIN and not (isinstance(value, dict) and "status" in value):
            continue
        if isinstance(value, dict) and "status" not in value:
            found += [
                (f"{key}.{name}", fact)
                for name, inner in value.items()
                if (fact := _fact(f"{key}.{name}", inner, source))
            ]
        elif fact := _fact(key, value, source):
            found.append((key, fact))
    return found


def _paths(raw: object, source: str) -> list[LinkPath]:
    """The paths to other GPUs; one that names no address is left out."""
    found = []
    fields = [field for field in msgspec.structs.fields(LinkPath) if field.name != "to"]
    for entry in raw if isinstance(raw, list) else ():
        if isinstance(entry, dict) and address(entry.get("to")) is not None:
            facts = {field.name: fact for field in fields if field.name in entry
                     and (fact := _converted(field.type, entry[field.name], source))}  # fmt: skip
            found.append(LinkPath(to=str(address(entry["to"])), **facts))
    return found


def _fact(path: str, value: object, source: str) -> Fact[Any] | None:
    wanted = fact_types().get(path)
    return None if wanted is None else _converted(wanted, value, source)


def _converted(wanted: Any, value: object, source: str) -> Fact[Any] | None:
    if not isinstance(value, dict):
        value = {"value": value, "status": "ok", "source": source}
    value = {"source": source} | value
    try:
        fact = cast("Fact[Any]", msgspec.convert(value, wanted))
    except msgspec.ValidationError:
        return None
    has_value = fact.value is not None
    if has_value != (fact.status in ("ok", "conflict")):
        return None
    return known(fact.value, source) if has_value and not fact.source else fact


@functools.cache
def fact_types() -> dict[str, Any]:
    """Type of every fact of a Gpu by its path, from the document's own declaration."""
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(Gpu):
        inner = field.type
        if (
            isinstance(inner, type)
            and issubclass(inner, msgspec.Struct)
            and inner.__struct_fields__[:1] != ("value",)
        ):
            found |= {f"{field.name}.{leaf.name}": leaf.type for leaf in msgspec.structs.fields(inner)
                      if "Fact" in str(leaf.type)}  # fmt: skip
        elif "Fact" in str(inner):
            found[field.name] = inner
    return found


def _value(raw: dict[str, Any], key: str) -> object:
    """What is reported plainly, or as a fact with its source."""
    entry = raw.get(key)
    return entry.get("value") if isinstance(entry, dict) else entry


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _name(value: object) -> str | None:
    text = _text(value)
    return None if text is None or is_placeholder(text) else text


def _texts(value: object) -> tuple[str, ...]:
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list | tuple) else ()
