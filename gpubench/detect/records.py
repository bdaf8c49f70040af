"""Facts and records: a fact without a value carries the most telling reason that any source gave."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args

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


def make_fact(value: T | None, source: str | None, note: str | None = None) -> Fact[T]:
    """Return the fact of a value, which is absent where that is None."""
    return Fact(value, "absent" if value is None else "ok", source, UNSET if note is None else note)


def missing(status: Status, source: str | None = None, note: str | None = None) -> Fact[Any]:
    return Fact(None, status, source, UNSET if note is None else note)


def first(*facts: Fact[T]) -> Fact[T]:
    """The first fact with a value, else the one whose reason tells most."""
    for fact in facts:
        if fact.value is not None:
            return fact
    return min(facts, key=lambda fact: _TELLING.index(fact.status)) if facts else ABSENT


def derive(fact: Fact[Any], change: Callable[[Any], T | None]) -> Fact[T]:
    """A fact computed from another one; a missing one stays missing for the same reason."""
    if fact.value is None:
        return fact
    return make_fact(change(fact.value), fact.source)


def lost(fact: Fact[Any]) -> Fact[Any]:
    """A fact that is missing because the one it rests on is missing."""
    return missing(fact.status, fact.source)


AdapterType = Literal["discrete", "integrated", "virtual", "cpu", "other"]
_BDF = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.I)


class Address(NamedTuple):
    """A PCI address; sorts like its text."""

    domain: int
    bus: int
    device: int
    function: int

    def __str__(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.device:02x}.{self.function}"


class DeviceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The words of one source about one device, normalised: ids are integers, uuids have one spelling."""

    source: str
    driver: str | None = None
    ordinal: int | str | None = None
    bdf: Address | None = None
    uuid: str | None = None
    vendor_id: int | None = None
    device_id: int | None = None
    pci_class: int | None = None
    vendor: str | None = None
    name: str | None = None
    adapter_type: AdapterType | None = None
    memory_bytes: int | None = None
    partition_of: str | None = None  # the uuid or the address of the parent
    version: str | None = None
    checked: bool | None = None  # whether a checked kernel ran on the device
    throttle: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    why_not: tuple[str, ...] = ()
    virtual: tuple[Address, ...] = ()  # addresses of its virtual functions (SR-IOV)
    renders: bool | None = None  # whether it has a render node
    paths: tuple[LinkPath, ...] = ()  # `to` is a PCI address
    facts: dict[str, Fact[Any]] = {}  # by their path in the document's `gpus[]` ("memory.free_bytes")
    partitions: tuple[Partition, ...] = ()

    @property
    def enumeration(self) -> tuple[str, str]:
        """Two records of one enumeration are never one device."""
        return (self.source, self.driver or "")

    def value(self, path: str) -> Any:
        """Return the value of a fact; None if there is none."""
        return self.facts.get(path, ABSENT).value


def first_field(records: Iterable[DeviceRecord], name: str) -> Any:
    """Return a field of the first record that has it; None if none has."""
    return next((value for r in records if (value := getattr(r, name)) is not None), None)


def address(text: object) -> Address | None:
    """ "00000002:01:00.0" or "02:01:00.0" as four integers; None if it is no address."""
    match = _BDF.fullmatch(text.strip()) if isinstance(text, str) else None
    return Address(*(int(part or "0", 16) for part in match.groups())) if match else None


def uuid(text: object) -> str | None:
    """One spelling: the prefix in capitals, the digits in lower case; None if it is no uuid."""
    form = r"(?:(GPU|MIG)-)?([0-9a-f][0-9a-f/-]{6,80})"
    match = re.fullmatch(form, text.strip(), re.I) if isinstance(text, str) else None
    if not match or not set(match[2]) - set("0-/"):
        return None
    return f"{(match[1] or 'GPU').upper()}-{match[2].lower()}"


def uuid_key(text: str) -> str:
    """Return what two spellings of one uuid have in common."""
    return text.removeprefix("GPU-").replace("-", "")


def pci_id(value: object) -> int | None:
    """A hex string ("10de", "0x10de") or an integer as a number."""
    if isinstance(value, str) and re.fullmatch(r"(0x)?[0-9a-f]{1,8}", value.strip(), re.I):
        return int(value, 16)
    number = _number(value)
    return number if number is not None and number >= 0 else None


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _texts(value: object) -> tuple[str, ...]:
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list | tuple) else ()


# How the fields of a record are read from JSON: None, or no item, for what cannot be understood.
_FIELDS: dict[str, Callable[[Any], Any]] = {
    "driver": _text, "ordinal": lambda value: value if isinstance(value, int | str) else None, "bdf": address,
    "uuid": uuid, "vendor_id": pci_id, "device_id": pci_id, "pci_class": pci_id, "vendor": _text,
    "name": lambda value: None if (text := _text(value)) is None or is_placeholder(text) else text,
    "adapter_type": lambda value: value if value in get_args(AdapterType) else None,
    "memory_bytes": lambda value: size if (size := _number(value)) and size > 0 else None, "partition_of": _text,
    "version": _text, "checked": _flag, "throttle": _texts, "peers": _texts, "why_not": _texts,
    "virtual": lambda value: tuple(bdf for text in _texts(value) if (bdf := address(text))), "renders": _flag,
}  # fmt: skip
# Fields that a record may state as a fact with its source too.
_AS_FACTS = ("bdf", "uuid", "vendor_id", "device_id", "pci_class")


def parse_record(raw: object) -> DeviceRecord:
    """A record from its JSON object. What cannot be understood is left out; raises ValueError without `source`."""
    if not isinstance(raw, dict) or not (source := _text(raw.get("source"))):
        raise ValueError("a record needs a `source`")
    fields = {}
    for name, parse in _FIELDS.items():
        value = raw.get(name)
        if name in _AS_FACTS and isinstance(value, dict):
            value = value.get("value")
        fields[name] = parse(value)
    return DeviceRecord(
        source=source, paths=tuple(_paths(raw.get("paths"), source)), facts=dict(_facts(raw, source)), **fields
    )


def record_to_json(record: DeviceRecord) -> dict[str, Any]:
    """The JSON object of a record, as a child writes it and `--records` reads it."""
    raw: dict[str, Any] = {
        name: value for name in ("source", *_FIELDS) if (value := getattr(record, name)) not in (None, ())
    }
    raw |= {name: f"{raw[name]:04x}" for name in ("vendor_id", "device_id", "pci_class") if name in raw}
    if record.bdf is not None:
        raw["bdf"] = str(record.bdf)
    if record.virtual:
        raw["virtual"] = [str(bdf) for bdf in record.virtual]
    if record.paths:
        raw["paths"] = [msgspec.to_builtins(path) for path in record.paths]
    return raw | {path: msgspec.to_builtins(fact) for path, fact in sorted(record.facts.items())}


def _facts(raw: dict[str, Any], source: str) -> Iterator[tuple[str, Fact[Any]]]:
    """The facts of `gpus[]`, nested or by dotted path, each a full fact or a bare value."""
    for key, value in raw.items():
        full = isinstance(value, dict) and "status" in value
        if full or (key not in _FIELDS and not isinstance(value, dict)):
            leaves = {key: value}
        else:
            leaves = {f"{key}.{name}": leaf for name, leaf in value.items()} if isinstance(value, dict) else {}
        for path, leaf in leaves.items():
            if path in fact_types() and (fact := _fact(fact_types()[path], leaf, source)):
                yield path, fact


def _paths(raw: object, source: str) -> Iterator[LinkPath]:
    """The paths to other GPUs; one that names no address is left out."""
    types = {field.name: field.type for field in msgspec.structs.fields(LinkPath) if field.name != "to"}
    for entry in raw if isinstance(raw, list) else ():
        if isinstance(entry, dict) and (to := address(entry.get("to"))) is not None:
            facts = {name: fact for name, kind in types.items()
                     if name in entry and (fact := _fact(kind, entry[name], source))}  # fmt: skip
            yield LinkPath(to=str(to), **facts)


def _fact(kind: Any, value: object, source: str) -> Fact[Any] | None:
    """The fact, of which `value` is all or the bare value; None if it is not of the type `kind`."""
    stated = value if isinstance(value, dict) else {"value": value, "status": "ok"}
    try:
        fact = cast("Fact[Any]", msgspec.convert({"source": source} | stated, kind))
    except msgspec.ValidationError:
        return None
    if (fact.value is not None) != (fact.status in ("ok", "conflict")):
        return None
    return fact if fact.value is None or fact.source else make_fact(fact.value, source)


@functools.cache
def fact_types() -> dict[str, Any]:
    """Type of every fact of a Gpu by its path, from the document's own declaration."""
    types: dict[str, Any] = {}
    for field in msgspec.structs.fields(Gpu):
        group = isinstance(field.default, msgspec.Struct) and not isinstance(field.default, Fact)
        leaves = msgspec.structs.fields(field.type) if group else (field,)
        types |= {f"{field.name}.{leaf.name}" if group else field.name: leaf.type for leaf in leaves
                  if isinstance(leaf.default, Fact)}  # fmt: skip
    return types
