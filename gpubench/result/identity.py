"""The comparison of two machine descriptions, which tells whether they describe the same machine.

Facts are compared only if both sides know them; an unknown fact neither agrees nor disagrees. Names are
compared only if both sides have them from the same source, because a driver, an API and a table of names may
use different names for one device.
"""

from __future__ import annotations

import operator
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from gpubench.result.machine import Cpu, Fact, Gpu, Machine

if TYPE_CHECKING:
    from gpubench.result.run import Device, Fingerprints, Run  # costs start-up

# Memory sizes may differ by this share. The kernel's part of RAM changes from boot to boot, and ECC and
# reservations change a GPU's memory as much.
TOLERANCE = 0.05
# Spellings that drivers and firmware change: trade marks, and the compiler of a software adapter.
_MARKS = re.compile(r"\((?:r|tm|c|llvm[^)]*)\)", re.IGNORECASE)
_PCI_IDS = ("vendor_id", "device_id", "subvendor_id", "subdevice_id")


# Words with which firmware and kernels fill a field that was never set.
_PLACEHOLDER = re.compile(
    r"unknown\b.*|n/?a|\(?(none|null|nil)\)?|undefined|invalid|empty|o\.?e\.?m\.?|default( string)?|<?bad index>?"
    r"|not (specified|available|applicable|present|defined|set)|to be filled (by|in)\b.*|type1productconfigid"
    r"|(system|product|base ?board|board|chassis) (manufacture|manufacturer|vendor|name|product name|version)"
    r"|0x0+|[0fx]{4,}|0+|0?123456789|[-_.*?# ]+",
    re.I,
)


def is_placeholder(text: str) -> bool:
    """Return whether a text is a placeholder instead of a name or an id."""
    return _PLACEHOLDER.fullmatch(text.strip()) is not None


class Likeness(NamedTuple):
    """The result of comparing the machine `here` with the machine `there`, which a result file describes."""

    differences: Mapping[str, str]  # descriptions of the facts that contradict each other, by name
    agreements: frozenset[str]  # the names of the identifying facts that are equal
    drivers: Mapping[str, str]  # descriptions of drivers that differ, by the id of the GPU here
    gpus: Mapping[str, str]  # by the id of a GPU there: the id of the same GPU here

    @property
    def same(self) -> bool:
        """Whether both are the same machine: an identifying fact is equal, and nothing contradicts."""
        return not self.differences and bool(self.agreements)


def measured_gpus(devices: Iterable[Device]) -> list[str]:
    """Return the ids (in `machine.gpus`) of the GPUs that the devices of a run use."""
    ids = (gpu_id for device in devices for gpu_id in (device.gpu_id, *device.gpu_ids))
    return list(dict.fromkeys(gpu_id for gpu_id in ids if gpu_id))


def compare(here: Machine, there: Machine, measured: Collection[str] = ()) -> Likeness:
    """Compare two machines. `measured` has the ids of the GPUs of `there` that must be here. If `there` has
    none of them, all of its GPUs must be here. A missing GPU is a difference only if the GPUs of `here` are
    known."""
    differences, agreements = _compare_hosts(here, there)
    needed = [gpu for gpu in there.gpus if gpu.id in measured] or there.gpus
    pairs = pair_gpus(here.gpus, needed)
    missing = [gpu for gpu in needed if gpu.id not in pairs]
    # Without a count, an empty list means that the GPUs are unknown.
    listed = bool(here.gpus) or here.gpu_count.value is not None
    if missing and listed:
        others = ", ".join(_gpu_words(gpu) for gpu in here.gpus) or "none"
        differences["GPU"] = f"{', '.join(map(_gpu_words, missing))}, here {others}"
    named = {gpu.id: gpu for gpu in needed}
    if any(_relation(gpu, named[there_id]) in (_UUID, _IDS) for there_id, gpu in pairs.items()):
        agreements.add("GPU")
    drivers = {
        gpu.id: words for there_id, gpu in pairs.items() if (words := _driver_words(gpu, named[there_id]))
    }
    return Likeness(
        differences, frozenset(agreements), drivers, {there_id: gpu.id for there_id, gpu in pairs.items()}
    )


Scope = Literal["machine", "device"]
# The scope, the name of the field, and its text here and there.
ForeignField = tuple[Scope, str, str, str]


def foreign_fields(here: Fingerprints, there: Fingerprints) -> Iterator[ForeignField]:
    """Yield the contradicting fields of the two machines, then of their devices, sorted by name. A
    field or a device that only one side knows is left out."""
    for scope in get_args(Scope):
        fields, others = getattr(here, scope).known, getattr(there, scope).known
        for name in sorted(fields.keys() & others.keys()):
            if not same_text(name, fields[name], others[name]):
                yield scope, name, fields[name], others[name]


def foreign_gpus(here: Run, there: Run) -> Iterator[ForeignField]:
    """Yield the devices whose id means one GPU here and another GPU there, with descriptions of both. Equal
    GPUs without a uuid are told apart by their addresses if this machine has a GPU at both."""
    own, others = ({gpu.id: gpu for gpu in run.machine.gpus} for run in (here, there))
    measured = {device.id: measured_gpus([device]) for device in there.devices}
    for device in here.devices:
        for mine, its in zip(measured_gpus([device]), measured.get(device.id, ()), strict=False):
            gpu, other = own.get(mine), others.get(its)
            if gpu is None or other is None:
                continue
            relation = _relation(gpu, other)
            if relation == _OTHER or (relation != _UUID and mine != its and its in own):
                yield "device", device.id, f"{_gpu_words(gpu)} at {mine}", f"{_gpu_words(other)} at {its}"


def same_text(field: str, here: str, there: str) -> bool:
    """Return whether two texts of a fingerprint's field may describe the same thing. Names may be spelled
    differently, and a size of memory may be unknown or differ by TOLERANCE."""
    if not (here.endswith(" bytes") or field == "memory_gib"):
        return _same_name(here, there)
    sides = [text.removesuffix(" bytes").rpartition(", ") for text in (here, there)]
    (device, _, size), (other, _, other_size) = sides
    if not (size.isdecimal() and other_size.isdecimal()):
        return _same_name(device, other) and "None" in (size, other_size)
    low, high = sorted(map(int, (size, other_size)))
    # Sizes in GiB may differ by 1 through rounding.
    return _same_name(device, other) and high - low <= max(1, TOLERANCE * high)


def uuid_digest(text: str) -> str:
    """Return a digest of a GPU's uuid, written as `GPU-...`, which does not reveal the uuid. Equal uuids have
    equal digests. Results contain only digests."""
    prefix, _, rest = text.partition("-")
    return f"{prefix}-{uuid.uuid5(uuid.NAMESPACE_OID, rest)}"


def pair_gpus(here: Sequence[Gpu], there: Sequence[Gpu]) -> dict[str, Gpu]:
    """Return for each GPU of `there`, by its id, the GPU of `here` that may be the same. GPUs without a match
    are left out. GPUs are matched by their uuids, or by the other known facts if a uuid is unknown."""
    ranked = sorted(
        # The address tells equal cards without a uuid apart, but it changes if a card moves to another slot.
        (relation, other.id != gpu.id, other.bdf.value != gpu.bdf.value, i, j)
        for i, gpu in enumerate(there)
        for j, other in enumerate(here)
        if (relation := _relation(other, gpu)) != _OTHER
    )
    pairs: dict[int, int] = {}
    for *_, i, j in ranked:
        if i not in pairs and j not in pairs.values():
            pairs[i] = j
    return {there[i].id: here[j] for i, j in pairs.items()}


_UUID, _IDS, _UNKNOWN, _OTHER = range(4)


def _relation(here: Gpu, there: Gpu) -> int:
    """Return _UUID or _IDS if two GPUs are equal by uuid or by ids, _OTHER if they differ, else _UNKNOWN."""
    uuid_here, uuid_there = here.uuid.value, there.uuid.value
    if uuid_here and uuid_there:
        return (
            _UUID
            if uuid_there in (uuid_here, uuid_digest(uuid_here)) or uuid_here == uuid_digest(uuid_there)
            else _OTHER
        )
    ids = [pair for name in _PCI_IDS if (pair := _both(getattr(here, name), getattr(there, name)))]
    sizes = _both(here.memory.dedicated_bytes, there.memory.dedicated_bytes)
    makers = _both(here.vendor, there.vendor)
    units = _both(here.compute.units, there.compute.units)
    if any(a != b for a, b in (*ids, *filter(None, (makers, units)))) or (sizes and not _near(*sizes)):
        return _OTHER
    return (
        _IDS if _both(here.vendor_id, there.vendor_id) and _both(here.device_id, there.device_id) else _UNKNOWN
    )


def _compare_hosts(here: Machine, there: Machine) -> tuple[dict[str, str], set[str]]:
    differences: dict[str, str] = {}
    agreements: set[str] = set()

    def judge(
        name: str,
        pair: tuple[Any, Any] | None,
        same: Callable[[Any, Any], bool] = operator.eq,
        words: str = "{}",
    ) -> None:
        if pair is None:
            return
        if same(*pair):
            agreements.add(name)
        else:
            differences[name] = f"{words.format(pair[1])}, here {words.format(pair[0])}"

    mine, other = here.cpu, there.cpu
    judge("CPU", _both_names(mine.model, other.model), _same_name)
    judge("CPU parts", _both_parts(mine, other))
    judge("architecture", _both_names(here.platform.arch, there.platform.arch))
    counts = (("cores", "cores"), ("CPUs", "logical"), ("usable CPUs", "available"))
    for name, field in counts:
        judge(name, _both(getattr(mine, field), getattr(other, field)))
    sizes = _both(here.memory.total_bytes, there.memory.total_bytes)
    gib = None if sizes is None else (sizes[0] / 2**30, sizes[1] / 2**30)
    judge("memory", gib, _near, "{:.0f} GiB")
    if differences and "CPU" not in agreements:  # a name says more about another machine than a count
        judge("CPU", _both(mine.model, other.model), _same_name)
    # An equal count, size or architecture alone does not identify a machine.
    identifying = agreements & {"CPU", "CPU parts"} or (
        {"cores"} if agreements >= {"cores", "memory"} else set()
    )
    return differences, identifying


def _both(here: Fact[Any], there: Fact[Any]) -> tuple[Any, Any] | None:
    """Return the values of both sides, or None if a side has no value or a placeholder."""
    values = (here.value, there.value)
    unknown = any(value is None or (isinstance(value, str) and is_placeholder(value)) for value in values)
    return None if unknown else values


def _both_names(here: Fact[str], there: Fact[str]) -> tuple[str, str] | None:
    """Return both names as `_both` does, but None if the two sides have them from different sources."""
    return _both(here, there) if here.source == there.source else None


def _both_parts(here: Cpu, there: Cpu) -> tuple[str, str] | None:
    """Return the part numbers of the kinds of cores on both sides, or None if a side has none."""
    # A 64-bit Arm kernel reports them instead of a CPU model.
    texts = [
        ",".join(sorted({kind.part for kind in cpu.kinds.value or () if kind.part})) for cpu in (here, there)
    ]
    return (texts[0], texts[1]) if all(texts) else None


def _same_name(first: str, second: str) -> bool:
    plain = [" ".join(_MARKS.sub(" ", name).split()).casefold() for name in (first, second)]
    if not all(" @ " in name for name in plain):  # some systems leave the clock out
        plain = [name.partition(" @ ")[0] for name in plain]
    return plain[0] == plain[1]


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= TOLERANCE * max(a, b)


def _driver_words(here: Gpu, there: Gpu) -> str:
    """Return how the drivers of one GPU differ, as text, or "" if no known fact differs."""
    for fact_here, fact_there in (
        (here.driver.name, there.driver.name),
        (here.driver.version, there.driver.version),
    ):
        pair = _both(fact_here, fact_there)
        if pair is not None and pair[0] != pair[1]:
            return f"driver {pair[1]}, here {pair[0]}"
    return ""


def _gpu_words(gpu: Gpu) -> str:
    """Return a text such as `NVIDIA H200 (10de:2335, GPU-46eaa005)`, without unknown parts."""
    ids = ":".join(str(fact.value) for fact in (gpu.vendor_id, gpu.device_id) if fact.value)
    marks = ", ".join(filter(None, (ids, (gpu.uuid.value or "")[:12])))
    return " ".join(filter(None, (gpu.name.value or gpu.id, f"({marks})" if marks else "")))
