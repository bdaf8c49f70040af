"""Access to the files of a machine below one root, and the data types for facts and for the records in which
sources describe devices.

Paths are those of the described machine ("/proc/meminfo"). Only regular files are opened, and at most 16 MiB of
each are read. Links never lead out of the root. A fact without a value has the most informative reason that any
source gave.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeVar, cast

import msgspec
from msgspec import UNSET, UnsetType

from gpubench.base import VENDOR_ALIASES, disk
from gpubench.result.identity import is_placeholder
from gpubench.result.machine import NOT_PROBED, Fact, Gpu, LinkPath, Partition, Status

T = TypeVar("T")
Facts = dict[str, Fact[Any]]  # facts by their path in `gpus[]` of the document, such as "memory.free_bytes"

MOST_BYTES = 16 << 20  # /proc/cpuinfo of 2,000 CPUs has 5 MiB
MOST_LINKS = 40
MOST_WORDS = 1024  # the most characters of a name; a longer text is a damaged file
MOST_MEMBERS = 1 << 16  # more CPUs or nodes than any kernel supports; a larger number is a damaged file
_ABSENT = (errno.ENOENT, errno.ENOTDIR)


class FileText(NamedTuple):
    """The text of a file without outer white space."""

    path: str  # its path on the described machine
    text: str | None  # the text of the file; None if it cannot be read
    status: Status  # "ok", or the reason why the file cannot be read

    def fact(self, parse: Callable[[str], T | None]) -> Fact[T]:
        """Return the fact whose value `parse` makes of the text. It is invalid if `parse` raises ValueError,
        LookupError or OverflowError, and absent if `parse` returns None. Without a text it has the status of
        the file."""
        if self.text is None:
            return missing(self.status, self.path)
        try:
            value = parse(self.text)
        except (ValueError, LookupError, OverflowError):
            return missing("invalid", self.path)
        return make_fact(value, self.path)


class TouchedFiles(NamedTuple):
    """All files, folders and links that were read or looked up, by path."""

    files: dict[str, str]  # the texts of the files
    folders: dict[str, list[str]]  # the names in the folders
    links: dict[str, str]  # the targets of the links
    refused: set[str]  # the files that may not be read


class Root:
    """The file system of a machine: this one, or one that is recorded in the folder `base`. `trace` collects
    what is read or looked up, for a recording. Missing files raise no error."""

    def __init__(self, base: str = "/", trace: TouchedFiles | None = None) -> None:
        self.base = base
        self.trace = trace or TouchedFiles({}, {}, {}, set())
        self._resolved: dict[str, str | None] = {}
        self._direct = os.path.realpath(base) == "/" and trace is None

    def read(self, path: str) -> FileText:
        """Read at most 16 MiB of a regular file, without NUL bytes, CR and outer white space. Errors become
        the status."""
        real = self._real(path)
        if real is None:
            return FileText(path, None, "absent")
        try:
            raw = disk.read_regular(self._host(real), MOST_BYTES)
        except OSError as error:
            if error.errno in _ABSENT:
                return FileText(path, None, "absent")
            # A recording gives the same answer: a refused file is one without rights, a broken one a folder.
            if error.errno in (errno.EACCES, errno.EPERM):
                self.trace.refused.add(real)
                return FileText(path, None, "permission")
            self.trace.folders.setdefault(real, [])
            return FileText(path, None, "invalid")
        text = self.trace.files[real] = re.sub("[\0\r]", "", raw.decode("utf-8", "replace")).strip()
        return FileText(path, text, "ok")

    def fact(self, path: str, parse: Callable[[str], Any]) -> Fact[Any]:
        """Return the fact whose value `parse` makes of the text of a file (`FileText.fact`)."""
        return self.read(path).fact(parse)

    def facts(
        self, folder: str, files: Mapping[str, tuple[str, Callable[[str], Any]]], *, asleep: bool = False
    ) -> Facts:
        """Return the facts that the files in a folder state, by the name of the fact. `files` holds the file
        name and the parser of each fact. If `asleep` is True, no file is read and the facts are not_probed."""
        return {
            name: NOT_PROBED if asleep else self.fact(f"{folder}/{file}", parse)
            for name, (file, parse) in files.items()
        }

    def names(self, path: str) -> list[str] | None:
        """Return the sorted names in a folder, or None if it cannot be listed."""
        real = self._real(path)
        if real is None:
            return None
        try:
            names = self.trace.folders[real] = sorted(os.listdir(self._host(real)))
        except OSError:
            return None
        return names

    def names_like(self, path: str, form: str) -> list[str]:
        """Return the names in a folder that match the whole pattern `form`. There are none if the folder cannot
        be listed."""
        return [name for name in self.names(path) or () if re.fullmatch(form, name)]

    def link(self, path: str) -> str | None:
        """Return the last part of a link's target, or None if `path` is not a link."""
        target = self.target(path)
        return None if target is None else target.rstrip("/").rpartition("/")[2]

    def target(self, path: str) -> str | None:
        """Return a link's target as it is stored, or None if `path` is not a link."""
        parent, _, name = path.rpartition("/")
        folder = self._real(parent) if parent else "/"
        return None if folder is None else self._target(f"{folder.rstrip('/')}/{name}")[0]

    def exists(self, path: str) -> bool:
        """Tell whether `path` exists. A link that leads nowhere does not."""
        real = self._real(path)
        if real is None or not os.path.lexists(self._host(real)):
            return False
        if os.path.isdir(self._host(real)):
            self.trace.folders.setdefault(real, [])
        else:
            self.trace.files.setdefault(real, "")
        return True

    def _host(self, real: str) -> str:
        return real if self._direct else self.base.rstrip("/") + real

    def _real(self, path: str) -> str | None:
        """Return `path` with its links resolved below the root, or None if a part is missing."""
        if "\0" in path:
            return None
        if self._direct:
            return path
        if path not in self._resolved:
            self._resolved[path] = self._walk(path)
        return self._resolved[path]

    def _walk(self, path: str) -> str | None:
        parent, _, name = path.rstrip("/").rpartition("/")
        folder = self._real(parent) if parent else ""
        if folder is None or not name:
            return folder
        budget = MOST_LINKS
        todo, at, there = [name], folder, True
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                at, there = at.rpartition("/")[0], True
                continue
            step = f"{at}/{part}"
            # /proc/self is a link to a number that changes: a recording keeps the word instead.
            target, there = (None, True) if step == "/proc/self" else self._target(step)
            if target is None:
                at = step
                continue
            # links may form a circle
            budget -= 1
            if budget < 0:
                return None
            if target.startswith("/"):
                at = ""
            todo += reversed(target.split("/"))
        return at if there else None

    def _target(self, step: str) -> tuple[str | None, bool]:
        """Return the target of a link (None: no link), and whether anything exists at `step`."""
        try:
            target = os.readlink(self._host(step))
        except OSError as error:  # there may be something that is no link; opening it tells
            return None, error.errno not in _ABSENT
        self.trace.links[step] = target
        return target, True


def matching(form: str, read: Callable[[re.Match[str]], Any] = lambda match: match[0]) -> Callable[[str], Any]:
    """Return a parser for texts that match the whole pattern `form`. It returns `read(match)`, by default the
    text itself. It raises ValueError for other texts."""

    def parse(text: str) -> Any:
        match = re.fullmatch(form, text)
        if match is None:
            raise ValueError(f"not of the form {form}")
        return read(match)

    return parse


def integer(text: str) -> int:
    """Parse a decimal number of at most 20 digits, which may be negative. Raises ValueError for other texts,
    such as "1_0" and "+1"."""
    if not re.fullmatch("-?[0-9]{1,20}", text):
        raise ValueError(f"not a number: {text[:20]!r}")
    return int(text)


def size(text: str) -> int:
    """Parse a number that is not negative, such as a number of bytes. Raises ValueError for other texts."""
    value = integer(text)
    if value < 0:
        raise ValueError("a negative size")
    return value


def positive(text: str) -> int | None:
    """Parse a number of bytes below 1 EiB. Returns None for 0, which some files state for an unknown number.
    Raises ValueError for other texts."""
    if implausible(value := size(text)):
        raise ValueError("no memory is that large")
    return value or None


def implausible(value: object) -> bool:
    """Tell whether the value is a number of bytes that no memory has: below 0, or 1 EiB and more."""
    return isinstance(value, int) and bool(value >> 60)


def parse_name(text: str) -> str | None:
    """Return the text if it is a printable name, or None for an empty text or a placeholder. Raises ValueError
    for other texts."""
    if len(text) > MOST_WORDS or not text.replace("\n", "").replace("\t", "").isprintable() or "\ufffd" in text:
        raise ValueError("not text")
    return None if not text or is_placeholder(text) else text


def parse_list(text: str) -> frozenset[int]:
    """Parse an ascending list such as "0-3,8" and return its members, none for an empty text. Raises ValueError
    for other texts."""
    members: set[int] = set()
    before = -1
    for item in text.split(",") if text else ():
        low, dash, high = item.strip().partition("-")
        first = size(low)
        last = size(high) if dash else first
        if not before < first <= last < MOST_MEMBERS:
            raise ValueError(f"not a list of numbers: {text[:40]!r}")
        before = last
        members.update(range(first, last + 1))
    return frozenset(members)


def parse_mask(text: str) -> frozenset[int]:
    """Return the numbers of the bits that are set in a hexadecimal mask. A comma separates groups of 32 bits:
    "2,00000001" has the bits 33 and 0. Raises ValueError for other texts."""
    if not re.fullmatch("(0x)?[0-9a-fA-F]+(,[0-9a-fA-F]{1,8})*", text) or len(text) * 4 > MOST_MEMBERS:
        raise ValueError(f"not a mask: {text[:40]!r}")
    value = int("".join(group.zfill(8) for group in text.removeprefix("0x").split(",")), 16)
    return frozenset(n for n in range(value.bit_length()) if value >> n & 1)


def list_form(members: Iterable[int]) -> str:
    """Return the shortest list of the members, ascending, such as "0-2,8" for {0, 1, 2, 8}."""
    runs: list[list[int]] = []
    for n in sorted(set(members)):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


ABSENT: Fact[Any] = Fact(None, "absent", None)

# The statuses of facts without a value, the most informative first: a damaged file comes before a missing one.
_TELLING: tuple[Status, ...] = (
    "invalid", "permission", "mismatch", "crashed", "timeout", "unsupported", "not_probed", "absent",
)  # fmt: skip


def make_fact(value: T | None, source: str | None, note: str | UnsetType = UNSET) -> Fact[T]:
    """Return the fact of a value with the status "ok", or "absent" if the value is None. `source` is the file,
    library or command that states the value."""
    return Fact(value, "absent" if value is None else "ok", source, note)


def missing(status: Status, source: str | None = None, note: str | UnsetType = UNSET) -> Fact[Any]:
    """Return a fact without a value. `status` is the reason, and `note` explains it."""
    return Fact(None, status, source, note)


def first(*facts: Fact[T]) -> Fact[T]:
    """Return the first fact with a value, or else the fact with the most informative status. Returns an absent
    fact without `facts`."""
    for fact in facts:
        if fact.value is not None:
            return fact
    return min(facts, key=lambda fact: _TELLING.index(fact.status), default=ABSENT)


def derive(fact: Fact[Any], change: Callable[[Any], T | None]) -> Fact[T]:
    """Return a fact with the value `change(fact.value)` and the source of `fact`. It is absent if `change`
    returns None. A fact without a value is returned unchanged."""
    if fact.value is None:
        return fact
    return make_fact(change(fact.value), fact.source)


def lost(fact: Fact[Any]) -> Fact[Any]:
    """Return a fact without a value, with the status and source of `fact`."""
    return missing(fact.status, fact.source)


AdapterType = Literal["discrete", "integrated", "virtual", "cpu", "other"]
_BDF = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.I)


class Address(NamedTuple):
    """A PCI address. Addresses sort by their numbers."""

    domain: int  # 0 on most machines
    bus: int  # 0 to 255
    device: int  # 0 to 31
    function: int  # 0 to 7

    def __str__(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.device:02x}.{self.function}"


class DeviceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one source about one device, normalised: ids are integers, and uuids have one spelling. A
    field is None or empty if the source does not state it."""

    source: str  # the source that lists the device: `pci-sysfs`, `nvml`, `wgpu:vulkan`
    driver: str | None = None  # the driver of the API
    ordinal: int | str | None = None  # the index of the device in the source's list
    bdf: Address | None = None  # the PCI address
    uuid: str | None = None  # the uuid with its prefix
    vendor_id: int | None = None  # the PCI id of the vendor; from 0x10000 on it is Vulkan's
    device_id: int | None = None  # the PCI id of the device
    pci_class: int | None = None  # the PCI base class and subclass
    vendor: str | None = None  # the name of the vendor
    name: str | None = None  # the name of the product
    adapter_type: AdapterType | None = None  # the kind of adapter that the API reports
    memory_bytes: int | None = None  # the bytes of memory that the API reports
    partition_of: str | None = None  # the uuid or the address of the GPU that this device is a partition of
    version: str | None = None  # the version of the driver or the API
    checked: bool | None = None  # whether a test kernel gave the right result; None if no test kernel was run
    throttle: tuple[str, ...] = ()  # the reasons why its clocks are lowered at present
    why_not: tuple[str, ...] = ()  # the codes of the reasons against its use
    virtual: tuple[Address, ...] = ()  # the addresses of its virtual functions (SR-IOV)
    node: str | None = None  # the name of its render node; None: none is known
    paths: tuple[LinkPath, ...] = ()  # the paths to other GPUs, whose `to` is a PCI address
    facts: Facts = {}  # what the source states of the device
    partitions: tuple[Partition, ...] = ()  # its partitions

    @property
    def enumeration(self) -> tuple[str, str]:
        """The list in which the source found the device: the source and the driver."""
        # two records of one list are two devices, or two partitions or functions of one
        return (self.source, self.driver or "")

    def value(self, path: str) -> Any:
        """Return the value of the fact at `path`, or None if it has none."""
        return self.facts.get(path, ABSENT).value


def first_field(records: Iterable[DeviceRecord], name: str) -> Any:
    """Return the field `name` of the first record that has it, or None if no record has it."""
    return next((value for r in records if (value := getattr(r, name)) is not None), None)


def address(text: object) -> Address | None:
    """Parse a PCI address such as "00000002:01:00.0" or "02:01:00.0". Returns None for anything else, and
    for 0000:00:00.0."""
    match = _BDF.fullmatch(text.strip()) if isinstance(text, str) else None
    numbers = [int(part or "0", 16) for part in match.groups()] if match else []
    # CUDA states zeros for the GPU of a chip without a PCI bus
    return Address(*numbers) if any(numbers) else None


def uuid(text: object) -> str | None:
    """Return a uuid in one spelling: "GPU-" (the default) or "MIG-", then digits in lower case. Returns None
    for anything else, and for a uuid of zeros."""
    form = r"(?:(GPU|MIG)-)?([0-9a-f][0-9a-f/-]{6,80})"
    match = re.fullmatch(form, text.strip(), re.I) if isinstance(text, str) else None
    if not match or not set(match[2]) - set("0-/"):
        return None
    return f"{(match[1] or 'GPU').upper()}-{match[2].lower()}"


def uuid_key(text: str) -> str:
    """Return the uuid of a GPU or of a MIG instance without its prefix and dashes, to compare spellings."""
    return re.sub("^(GPU|MIG)-|-", "", text)


def pci_id(value: object) -> int | None:
    """Return the number of a PCI id, given as a hex string ("10de", "0x10de") or an integer. Returns None for
    anything else, and for 0, an unknown id."""
    if isinstance(value, str) and re.fullmatch(r"(0x)?[0-9a-f]{1,8}", value.strip(), re.I):
        return int(value, 16) or None
    return max(0, _number(value) or 0) or None


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# Parsers of the fields whose JSON needs more than a conversion to the field's type. They return None, or an
# empty tuple, for a value that cannot be parsed.
_PARSERS: dict[str, Callable[[Any], Any]] = {
    "bdf": address, "uuid": uuid, "device_id": pci_id, "pci_class": pci_id,
    "vendor_id": lambda value: VENDOR_ALIASES.get(number := pci_id(value), number),
    "name": lambda name: None if not isinstance(name, str) or is_placeholder(name) else name,
    "memory_bytes": lambda value: None if implausible(value) else _number(value) or None,
    "virtual": lambda texts: tuple(filter(None, map(address, texts))) if isinstance(texts, list) else (),
}  # fmt: skip
# Fields that a JSON record may also state as a fact with its source.
_AS_FACTS = ("bdf", "uuid", "vendor_id", "device_id", "pci_class")
_FIELDS = {
    field.name: field
    for field in msgspec.structs.fields(DeviceRecord)
    if field.name not in ("facts", "partitions", "paths")
}

_PATH_TYPES = {field.name: field.type for field in msgspec.structs.fields(LinkPath) if field.name != "to"}


def parse_record(raw: object) -> DeviceRecord:
    """Return the record that a JSON object describes, without fields that cannot be parsed. Raises ValueError
    if `raw` is not an object or its `source` is not a text."""
    if not isinstance(raw, dict):
        raise ValueError("a record is an object")
    fields: dict[str, Any] = {}
    for name, field in _FIELDS.items():
        value = raw.get(name)
        if name in _AS_FACTS and isinstance(value, dict):
            value = value.get("value")
        if name in _PARSERS:
            fields[name] = _PARSERS[name](value) if value is not None else field.default
        elif value not in (None, ""):
            with contextlib.suppress(msgspec.ValidationError):
                fields[name] = msgspec.convert(value, field.type)
    if "source" not in fields:
        raise ValueError("a record needs a `source`")
    source = fields["source"]
    return DeviceRecord(
        **fields, paths=tuple(_paths(raw.get("paths"), source)), facts=dict(_facts(raw, source))
    )


def record_to_json(record: DeviceRecord) -> dict[str, Any]:
    """Return the JSON object of a record, as child processes write it and `--records` reads it, without
    empty fields."""
    raw: dict[str, Any] = {
        name: value for name in _FIELDS if (value := getattr(record, name)) not in (None, ())
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
    """Yield the facts of a JSON record, with their paths in `gpus[]`."""
    # keys are nested or dotted, and a value is a whole fact or a plain value
    for key, value in raw.items():
        full = isinstance(value, dict) and "status" in value
        if full or (key not in _FIELDS and not isinstance(value, dict)):
            leaves = {key: value}
        else:
            leaves = {f"{key}.{name}": leaf for name, leaf in value.items()} if isinstance(value, dict) else {}
        for path, leaf in leaves.items():
            if path in fact_types() and (fact := _fact(fact_types()[path], leaf, source)):
                # No GPU has a memory of 0 bytes: the source cannot tell.
                none = path == "memory.dedicated_bytes" and fact.value == 0
                yield path, missing("unsupported", fact.source) if none else fact


def _paths(raw: object, source: str) -> Iterator[LinkPath]:
    """Yield the paths to other GPUs in `raw`, the list of a JSON record."""
    for entry in raw if isinstance(raw, list) else ():
        if isinstance(entry, dict) and (to := address(entry.get("to"))) is not None:
            facts = {name: fact for name, kind in _PATH_TYPES.items()
                     if name in entry and (fact := _fact(kind, entry[name], source))}  # fmt: skip
            yield LinkPath(to=str(to), **facts)


def _fact(kind: Any, value: object, source: str) -> Fact[Any] | None:
    """Return the fact of `value`, a whole fact or a plain value. Returns None if it does not have the type
    `kind`, if its value and its status contradict each other, or if no number of this kind is that large."""
    stated = value if isinstance(value, dict) else {"value": value, "status": "ok"}
    try:
        fact = cast("Fact[Any]", msgspec.convert({"source": source} | stated, kind))
    except msgspec.ValidationError:
        return None
    if (fact.value is not None) != (fact.status in ("ok", "conflict")) or implausible(fact.value):
        return None
    return fact if fact.value is None or fact.source else msgspec.structs.replace(fact, source=source)


@functools.cache
def fact_types() -> dict[str, Any]:
    """Return the type of each fact of a Gpu, by the fact's path such as `memory.free_bytes`."""
    types: dict[str, Any] = {}
    for field in msgspec.structs.fields(Gpu):
        group = isinstance(field.default, msgspec.Struct) and not isinstance(field.default, Fact)
        leaves = msgspec.structs.fields(field.type) if group else (field,)
        types |= {f"{field.name}.{leaf.name}" if group else field.name: leaf.type for leaf in leaves
                  if isinstance(leaf.default, Fact)}  # fmt: skip
    return types
