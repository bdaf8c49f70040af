"""Which devices are measured: `auto` takes what is usable, a name is a requirement (exit 5 if absent)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from gpubench import backends
from gpubench.errors import RequiredUnavailable
from gpubench.measure.devices import Listing, list_devices
from gpubench.measure.plan import Target
from gpubench.model.result import Device, RunWarning

Mode = Literal["cpu", "gpu", "hybrid"]


class Wish(msgspec.Struct, frozen=True):
    """What the user asked for. `optional` backends (`cupy?`) may be absent; `devices` are ids. A `mode` says which
    sides are measured, and what it names has to be there, unless it is `lenient`."""

    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    allow_software: bool = False
    mode: Mode | None = None
    lenient: bool = False

    @property
    def auto(self) -> bool:
        """Nothing was named: take whatever is usable."""
        return not (self.required or self.optional or self.devices)


class Choice(msgspec.Struct, frozen=True):
    """The devices to measure, what every backend answered, and what the user should know."""

    targets: tuple[Target, ...]
    listings: tuple[Listing, ...]
    warnings: tuple[RunWarning, ...]

    @property
    def versions(self) -> dict[str, str]:
        """Library versions by backend."""
        return {listing.backend: listing.version for listing in self.listings if listing.version}


def choose(wish: Wish, *, one_of_each: bool = False) -> Choice:
    """Ask the backends and apply the wish. Raises RequiredUnavailable for what was named and is not there.

    `one_of_each`: of equal devices of one backend only the first is taken, unless ids were named. A search
    for sizes inside a budget has no time to measure eight equal GPUs.
    """
    named = [*wish.required, *wish.optional, *(d.partition(":")[0] for d in wish.devices)]
    listings = list_devices(_unique(_of_mode(wish.mode) if wish.auto else named))
    warnings = []
    for listing in listings:
        if listing.reason is not None:
            if listing.backend in wish.required:
                raise _unavailable(f"the backend {listing.backend} is not available", listing)
            warnings.append(_absence(listing))
    targets = [
        Target(device, listing.forms)
        for listing in listings
        for device in listing.devices
        if _wanted(device.id, device.kind == "software", listing, wish)
    ]
    for device_id in wish.devices:
        if all(target.device.id != device_id for target in targets):
            listing = next(x for x in listings if x.backend == device_id.partition(":")[0])
            raise _unavailable(f"there is no device {device_id}", listing)
    if wish.mode is not None:
        targets = _one_split_each(targets)
        _require_mode(wish, targets, listings)
    warnings += _left_out(listings, targets)
    if one_of_each and not wish.devices:
        firsts = {(t.device.backend, t.device.name): t for t in reversed(targets)}
        warnings += [_twin(t.device) for t in targets if t not in firsts.values()]
        targets = [t for t in targets if t in firsts.values()]
    return Choice(tuple(targets), tuple(listings), tuple(warnings))


def required(wish: Wish, choice: Choice) -> frozenset[str]:
    """The devices that were asked for, by id, by backend or by a mode: none of them may fail to open."""
    named = {t.device.id for t in choice.targets if t.device.backend in wish.required}
    if wish.mode in ("gpu", "hybrid") and not wish.lenient:
        named |= {t.device.id for t in choice.targets if _is_of(wish.mode, t.device)}
    return frozenset(named | set(wish.devices))


def _of_mode(mode: Mode | None) -> tuple[str, ...]:
    """The backends to ask."""
    if mode == "cpu":
        return ("numpy",)
    return (*backends.usual(), *(backends.COMPOSED if mode == "hybrid" else ()))


def _one_split_each(targets: list[Target]) -> list[Target]:
    """Of the splits those of the first backend that has any: the same GPU through another one is the same hardware."""
    inner = [t.device.id.split(":")[1] for t in targets if t.device.backend in backends.COMPOSED]
    return [
        t for t in targets if t.device.backend not in backends.COMPOSED or t.device.id.split(":")[1] == inner[0]
    ]


def _is_of(mode: Mode, device: Device) -> bool:
    """Whether a device is what the mode is about."""
    return device.backend in backends.COMPOSED if mode == "hybrid" else device.kind != "cpu"


def _require_mode(wish: Wish, targets: Sequence[Target], listings: Sequence[Listing]) -> None:
    """Raises RequiredUnavailable if what the mode is about is not there."""
    mode = wish.mode
    if mode in (None, "cpu") or wish.lenient or any(_is_of(mode, t.device) for t in targets):
        return
    why = [
        f"{x.backend}: {x.detail}"
        for x in listings
        if x.reason is not None and x.backend not in backends.COMPOSED
    ]
    if any(device.kind == "software" for listing in listings for device in listing.devices):
        why.append("a software adapter is no GPU")
    raise RequiredUnavailable(
        "unavailable", f"--mode {mode}: there is no GPU that a backend can use",
        why="; ".join(why) or "no backend lists one",
        hint="`gpubench detect` tells what is missing; --allow-software admits adapters",
    )  # fmt: skip


def _twin(device: Device) -> RunWarning:
    return RunWarning(
        code="budget", severity="info",
        message=f"{device.id} is another {device.name}: left out of the search for sizes",
        hint=f"name it with --devices {device.id}, or give --sizes",
    )  # fmt: skip


def records(choice: Choice) -> list[dict[str, Any]]:
    """What the backends know of their GPUs, as records that detection merges with its own findings."""
    return [
        {
            "source": "cuda" if device.api == "cuda" else f"{listing.backend}:{device.api}",
            "ordinal": int(device.id.partition(":")[2]),
            "name": device.name,
            "memory_bytes": device.memory_bytes,
            "adapter_type": "cpu" if device.kind == "software" else None,
            **_identity(device),
        }
        for listing in choice.listings
        if listing.backend not in (*backends.HIDDEN, *backends.COMPOSED)
        for device in listing.devices
        if device.identity is not None
    ]


def _identity(device: Device) -> dict[str, str | None]:
    known = device.identity
    assert known is not None
    return {
        "uuid": f"GPU-{known.uuid}" if known.uuid else None,
        "bdf": known.pci,
        "vendor_id": None if known.vendor_id is None else f"{known.vendor_id:04x}",
        "device_id": None if known.device_id is None else f"{known.device_id:04x}",
    }


def with_gpu_memory(devices: Sequence[Device], usable_bytes: Mapping[str, int | None]) -> list[Device]:
    """Each device with the memory that one worker may count on: its GPU's, shared by the workers on that GPU.

    `usable_bytes` is by GPU id. Two backends on one card hold the same workload side by side.
    """
    sharing = Counter(device.gpu_id for device in devices if device.gpu_id)
    found = []
    for device in devices:
        known = [x for x in (device.usable_bytes, usable_bytes.get(device.gpu_id or "")) if x is not None]
        if device.gpu_id and known:
            device = msgspec.structs.replace(device, usable_bytes=min(known) // sharing[device.gpu_id])
        found.append(device)
    return found


def _wanted(device_id: str, software: bool, listing: Listing, wish: Wish) -> bool:
    """Software adapters run only when named, by id or by backend, or when they are allowed."""
    if wish.devices and device_id in wish.devices:
        return True
    by_backend = listing.backend in (*wish.required, *wish.optional)
    if listing.backend in backends.HIDDEN:
        return by_backend and not wish.devices and device_id in ("fake:cpu", "fake:gpu")
    if backends.hidden(device_id):
        return False
    if wish.devices and not by_backend:
        return False
    return not software or wish.allow_software or listing.backend in wish.required


def _left_out(listings: Sequence[Listing], targets: Sequence[Target]) -> list[RunWarning]:
    taken = {target.device.id for target in targets}
    return [
        RunWarning(
            code="software-device",
            severity="info",
            message=f"{device.id} ({device.name}) is a software adapter, not a GPU: it was left out",
            hint="--allow-software measures it all the same, without headlines",
        )  # fmt: skip
        for listing in listings
        if listing.backend not in backends.COMPOSED
        for device in listing.devices
        if device.kind == "software" and device.id not in taken
    ]


def _absence(listing: Listing) -> RunWarning:
    return RunWarning(
        code="unavailable", severity="info", message=f"{listing.backend} was left out: {listing.detail}",
        hint=listing.hint, data={"backend": listing.backend, "reason": listing.reason or ""},
    )  # fmt: skip


def _unavailable(message: str, listing: Listing) -> RequiredUnavailable:
    there = ", ".join(device.id for device in listing.devices if not backends.hidden(device.id))
    why = listing.detail or (
        f"{listing.backend} has {there}" if there else f"{listing.backend} has no device of that name"
    )
    hint = listing.hint or "leave it out, or let --backends auto take what is there"
    return RequiredUnavailable("unavailable", message, why=why, hint=hint)


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
