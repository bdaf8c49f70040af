"""List the devices of the backends, and choose those that the user asked for."""

from __future__ import annotations

import contextlib
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
from msgspec.structs import replace

import gpubench.detect as detection
from gpubench import backends
from gpubench.base.errors import BadPlugin, RequiredUnavailable
from gpubench.base.units import truncate
from gpubench.kernels.contract.op import Op
from gpubench.measure import adapters, protocol
from gpubench.measure.plan import Target
from gpubench.measure.protocol import Listing
from gpubench.measure.worker_pool import Spares, Worker, WorkerGone
from gpubench.result.case import DEVICE_GROUP, SEVERAL
from gpubench.result.machine import Mode
from gpubench.result.run import Device, Identity, RunWarning

# A driver without persistence mode may take more than 25 s to load.
DEADLINE_S = 45.0


def list_devices(
    names: Sequence[str],
    deadline_s: float | None = None,
    *,
    yielding: bool = False,
    spares: Spares | None = None,
    threads: int | None = None,
) -> list[Listing]:
    """Return one listing for each name of a backend, in the given order; there is at least one. `deadline_s`
    limits each backend (None: the user's limit, or `DEADLINE_S`). With `yielding`, a backend that yields to
    others lists its GPUs only if the others list none. `spares` gets the workers that can be used further.
    Raises UsageError for a bad limit of the user."""
    limit_s = deadline_s or detection.user_limit_s() or DEADLINE_S
    workers = {
        name: _worker(threads) for name in names
    }  # by this thread: they end with the one that starts them

    def ask(name: str) -> Listing:
        host_only = yielding and bool(_before(name, names))
        return _ask(name, workers[name], limit_s, host_only=host_only, spares=spares)

    with ThreadPoolExecutor(len(names)) as pool:
        try:
            listings = dict(zip(names, pool.map(ask, names), strict=True))
        except BaseException:  # an interrupt would else wait for the threads, and they for a driver
            for worker in workers.values():
                if isinstance(worker, Worker):
                    worker.kill()
            raise
    for name in names:
        before = _before(name, names) if yielding else ()
        if before and not any(device.kind == "gpu" for other in before for device in listings[other].devices):
            spare = spares.take(name) if spares else None
            worker = spare.worker if spare else _worker(threads)
            listings[name] = _ask(name, worker, limit_s, spares=spares)
    return list(listings.values())


def _before(name: str, names: Sequence[str]) -> list[str]:
    """Return the backends among `names` to which the backend `name` yields."""
    facts = backends.facts(name)
    return [other for other in names if facts and other in facts.yields_to]


def _worker(threads: int | None) -> Worker | WorkerGone:
    """Return a new worker, or the error that says why it cannot be started."""
    try:
        return Worker(threads)
    except WorkerGone as gone:
        return gone


def _ask(
    backend: str,
    worker: Worker | WorkerGone,
    deadline_s: float,
    *,
    host_only: bool = False,
    spares: Spares | None = None,
) -> Listing:
    if isinstance(worker, WorkerGone):
        return Listing(backend, reason=worker.reason, detail=worker.detail)
    with contextlib.ExitStack() as stack:
        stack.callback(worker.close)
        try:
            request = protocol.ListDevices(id=worker.next_id, backend=backend, host_only=host_only)
            reply = worker.ask(request, deadline_s)
        except WorkerGone as gone:
            return Listing(backend, reason=gone.reason, detail=gone.detail, hint=gone.stderr_tail[-200:])
        # To list devices with one of ours touches none: who uses them is not asked yet.
        built_in = backends.facts(backend) is not None
        if spares is not None and built_in and isinstance(reply, protocol.Devices) and reply.listing.devices:
            spares.keep(backend, worker)
            stack.pop_all()
    if isinstance(reply, protocol.Devices):
        return reply.listing
    assert isinstance(reply, protocol.Refused | protocol.Broke)
    return Listing(backend, reason=reply.reason, detail=reply.detail, hint=reply.hint)


class DeviceRequest(msgspec.Struct, frozen=True):
    """The devices that the user asked for."""

    required: tuple[str, ...] = ()  # backends that must be available
    optional: tuple[str, ...] = ()  # backends that may be absent (`cupy?`)
    devices: tuple[str, ...] = ()  # ids of devices that must be available, also `cupy:*` and `cupy:0-3`
    allow_software: bool = False  # whether software adapters are measured like GPUs
    mode: Mode | None = None  # the sides to measure; None: all that are available
    # whether the mode `gpu` or `hybrid` is allowed on a machine that has no such device; if not, `choose`
    # raises RequiredUnavailable there
    lenient: bool = False
    beside: tuple[str, ...] = ()  # backends to list in addition
    # Returns further targets, made from the chosen ones and all listings; None: there are none.
    more: Callable[[Sequence[Target], Sequence[Listing]], list[Target]] | None = None
    # whether only the usual one of two libraries that drive a GPU is taken, unless the user named the other one
    yielding: bool = True

    @property
    def auto(self) -> bool:
        """Whether the user named no device and no backend."""
        return not (self.required or self.optional or self.devices)

    @property
    def asked(self) -> tuple[str, ...]:
        """The backends to list, each once."""
        if not self.auto:
            ids = (device.partition(":")[0] for device in self.devices)
            names: Iterable[str] = (*self.required, *self.optional, *ids)
        elif self.mode == "cpu":
            names = filter(backends.may_drive_cpu, backends.usual())
        else:
            names = (*backends.usual(), *(backends.COMPOSED if self.mode == "hybrid" else ()))
        return tuple(dict.fromkeys((*names, *self.beside)))


class DeviceSelection(msgspec.Struct, frozen=True):
    """The devices to measure."""

    targets: tuple[Target, ...]  # the chosen devices with their implementations
    listings: tuple[Listing, ...]  # the listing of every backend
    warnings: tuple[RunWarning, ...]  # warnings for the user
    # Identical GPUs that a search leaves out. Each group begins with the target that is measured for all of
    # them.
    identical: tuple[tuple[Target, ...], ...] = ()

    @property
    def versions(self) -> dict[str, str]:
        return {listing.backend: listing.version for listing in self.listings if listing.version}

    @property
    def scripted(self) -> bool:
        """Whether all targets have scripted clocks, which the load of the machine does not affect."""
        scripted = {device_id for listing in self.listings for device_id in listing.scripted}
        return all(target.device.id in scripted for target in self.targets)

    def equip(self, op: Op) -> Op:
        """Return the op with the kernels that the backends bring. If several backends in `op.one_of` drive a
        GPU here, `op.only` leaves out all but the first, because they would run the same program."""
        for listing in self.listings:
            op = op.with_kernels(listing.backend, listing.brought.get(op.name, ()))
        there = [target.device.backend for target in self.targets if target.device.kind != "cpu"]
        same = [name for name in op.one_of if name in there][1:]
        if same and not op.only:
            only = dict.fromkeys(t.device.backend for t in self.targets if t.device.backend not in same)
            op = replace(op, only=tuple(only))
        return op


def plugin_warning(error: BadPlugin) -> RunWarning:
    """Return the warning about an entry point of another package that cannot be used."""
    return RunWarning(code="bad-plugin", message=f"{error.message}: {error.why}", hint=error.hint)


def choose(
    request: DeviceRequest,
    *,
    one_of_each: bool = False,
    spares: Spares | None = None,
    threads: int | None = None,
    trial: adapters.Trial | None = None,
) -> DeviceSelection:
    """List the devices of the backends and choose those of the request.

    With `one_of_each`, one of several equal devices of a backend is taken, unless ids were named. `trial` times
    the adapters of a card (None: the first is taken). Raises RequiredUnavailable if something required is
    absent, and UsageError for a bad GPUBENCH_PROBE_LIMIT.
    """
    yielding = request.auto and request.yielding
    listings = list_devices(request.asked, yielding=yielding, spares=spares, threads=threads)
    warnings = [
        plugin_warning(error) for name, error in backends.find_namesakes().items() if name in request.asked
    ]
    for listing in listings:
        if listing.reason is not None:
            if listing.backend in request.required:
                raise _unavailable(f"the backend {listing.backend} is not available", listing)
            warnings.append(_absence(listing))
    request = expand_ids(request, listings)
    targets = [
        Target(device, listing.implementations)
        for listing in listings
        for device in listing.devices
        if _is_asked_for(device, listing, request) and not (request.mode == "cpu" and device.kind != "cpu")
    ]
    if request.yielding:
        targets = _without_yielding(targets, listings, request)
    targets, notes = _one_adapter_each(targets, request, trial)
    warnings += notes
    for device_id in request.devices:
        if all(target.device.id != device_id for target in targets):
            listing = next(x for x in listings if x.backend == device_id.partition(":")[0])
            raise _unavailable(f"there is no device {device_id}", listing)
    if request.more is not None:
        targets += request.more(targets, listings)
    if request.mode is not None:
        targets = _one_split_each(targets)
        _require_mode(request, targets, listings)
    warnings += _left_out(listings, targets)
    pairs: list[tuple[Target, ...]] = []
    if one_of_each and not request.devices:
        firsts = {
            (t.device.backend, t.device.id if t.device.backend == DEVICE_GROUP else t.device.name): t
            for t in reversed(targets)
        }
        rest = [t for t in targets if t not in firsts.values()]
        identical = [(first, *(t for t in rest if _are_identical(first, t))) for first in firsts.values()]
        warnings += [_left_out_of_search(t.device) for t in rest if t.device.kind != "gpu"]
        targets = [t for t in targets if t in firsts.values()]
        pairs = [group for group in reversed(identical) if len(group) > 1]
    return DeviceSelection(tuple(targets), tuple(listings), tuple(warnings), tuple(pairs))


def expand_ids(request: DeviceRequest, listings: Sequence[Listing]) -> DeviceRequest:
    """Return the request with full ids: `cupy:*` becomes all devices of the backend, `cupy:0-3` becomes four
    ids. A word that stands for no device stays as it is."""
    ids: list[str] = []
    for word in request.devices:
        backend, _, index = word.partition(":")
        run = re.fullmatch(r"(\d{1,4})-(\d{1,4})", index)
        if index == "*":
            every = [device.id for x in listings if x.backend == backend for device in x.devices]
            ids += every or [word]
        elif run:
            ids += [f"{backend}:{number}" for number in range(int(run[1]), int(run[2]) + 1)] or [word]
        else:
            ids.append(word)
    return replace(request, devices=tuple(dict.fromkeys(ids)))


def _without_yielding(
    targets: Sequence[Target], listings: Sequence[Listing], request: DeviceRequest
) -> list[Target]:
    """Return the targets without the GPUs that a preferred backend drives, too, unless they were named."""
    yields = {listing.backend: listing.yields_to for listing in listings}

    def has_another_way(device: Device) -> bool:
        return any(
            other.device.backend in yields[device.backend] and _same_gpu(device.identity, other.device.identity)
            for other in targets
        )

    return [
        t
        for t in targets
        if t.device.id in request.devices
        or t.device.backend in request.required
        or not has_another_way(t.device)
    ]


def _one_adapter_each(
    targets: Sequence[Target], request: DeviceRequest, trial: adapters.Trial | None
) -> tuple[list[Target], list[RunWarning]]:
    """Return the targets with one adapter for each card and backend, and warnings about the others."""
    timed = None if trial is None else functools.cache(trial)
    by_backend: dict[tuple[str, ...], list[Device]] = {}
    for target in sorted(targets, key=lambda target: target.device.composed):
        device = target.device
        if device.kind == "gpu" and device.backend != DEVICE_GROUP:
            by_backend.setdefault((device.backend,), []).append(device)
        elif device.kind == "hybrid":
            by_backend.setdefault(backends.names_of(device.id), []).append(device)
    left_out, warnings = set[str](), list[RunWarning]()
    for names, devices in by_backend.items():
        ids, notes = adapters.choose_adapters(devices, request.devices, timed)
        left_out.update(ids)
        if names[1:] not in by_backend:  # else it is said of the adapter itself
            warnings += notes
    return [target for target in targets if target.device.id not in left_out], warnings


def _same_gpu(a: Identity | None, b: Identity | None) -> bool:
    """Return whether both are the same GPU, by UUID or else by PCI address."""
    if a is None or b is None:
        return False
    if a.uuid and b.uuid:  # each part of a divided GPU has its own
        return a.uuid == b.uuid
    return a.pci is not None and a.pci == b.pci


def ids_required_by(request: DeviceRequest, choice: DeviceSelection) -> frozenset[str]:
    """Return the ids of the devices that were asked for: by id, by a required backend, or by the mode. The
    modes `gpu` and `hybrid` ask for devices unless the request is lenient."""
    named = {t.device.id for t in choice.targets if t.device.backend in request.required}
    if request.mode in ("gpu", "hybrid") and not request.lenient:
        named |= {t.device.id for t in choice.targets if _is_of(request.mode, t.device)}
    return frozenset(named | set(expand_ids(request, choice.listings).devices))


def _one_split_each(targets: list[Target]) -> list[Target]:
    """Return the targets with the splits of only one backend, since other backends drive the same hardware."""
    inner = [backends.names_of(t.device.id)[1:] for t in targets if t.device.composed]
    return [t for t in targets if not t.device.composed or backends.names_of(t.device.id)[1:] == inner[0]]


def _is_of(mode: Mode, device: Device) -> bool:
    return device.backend in backends.COMPOSED if mode == "hybrid" else device.kind != "cpu"


def _require_mode(request: DeviceRequest, targets: Sequence[Target], listings: Sequence[Listing]) -> None:
    """Raise RequiredUnavailable if the mode needs a device that is missing."""
    mode = request.mode
    if mode in (None, "cpu") or request.lenient or any(_is_of(mode, t.device) for t in targets):
        return
    why = [
        f"{x.backend}: {x.detail}"
        for x in listings
        if x.reason is not None and x.backend not in backends.COMPOSED
    ]
    machine = detection.inspect()
    lacking = detection.lacks(machine, "gpu")
    missing = [warning.text for warning in machine.warnings if {"cupy", "torch"} & set(warning.refs)]
    remedies = missing or ([lacking.hint] if lacking is not None else [])
    if any(device.kind == "software" for listing in listings for device in listing.devices):
        why.append("a software adapter is no GPU")
        remedies.append("--allow-software admits the software adapter")
    raise RequiredUnavailable(
        "unavailable", f"--mode {mode}: there is no GPU that a backend can use",
        why="; ".join(why) or "no backend lists one",
        hint="; ".join([*remedies, "`gpubench detect` tells more"]),
    )  # fmt: skip


def _are_identical(first: Target, other: Target) -> bool:
    """Return whether both targets are GPUs of the same backend with the same name."""
    a, b = first.device, other.device
    return a.kind == b.kind == "gpu" and DEVICE_GROUP != a.backend == b.backend and a.name == b.name


def _left_out_of_search(device: Device) -> RunWarning:
    return RunWarning(
        code="budget", severity="info",
        message=f"{device.id} is another {device.name}: left out of the search for sizes",
        hint=f"name it with --devices {device.id}, or give --sizes",
    )  # fmt: skip


def records(listings: Sequence[Listing]) -> list[dict[str, Any]]:
    """Return the facts that the backends know about their GPUs, one dict for each, for detection to merge.
    Devices without an identity, composed devices, device groups and hidden backends are left out."""
    return [
        _record(device, device.identity)
        for listing in listings
        if listing.backend not in SEVERAL and not backends.is_hidden(listing.backend)
        for device in listing.devices
        if device.identity is not None
    ]


def _record(device: Device, identity: Identity) -> dict[str, Any]:
    index = device.id.rpartition(":")[2]
    return {
        # Each source lists a GPU once.
        "source": device.api if device.backend == "cupy" else f"{device.backend}:{device.api}",
        "ordinal": int(index) if index.isdecimal() else index,  # of another package it may be a name
        "name": device.name,
        "vendor": device.name if device.api == "metal" else None,  # Metal tells no ids
        "memory_bytes": device.memory_bytes,
        "adapter_type": "cpu" if device.kind == "software" else "other",
        "uuid": f"GPU-{identity.uuid}" if identity.uuid else None,
        "bdf": identity.pci,
        "vendor_id": _hexadecimal(identity.vendor_id),
        "device_id": _hexadecimal(identity.device_id),
        "driver": identity.driver,
    }


def _hexadecimal(number: int | None) -> str | None:
    return None if number is None else f"{number:04x}"


def with_gpu_memory(devices: Sequence[Device], usable_bytes: Mapping[str, int | None]) -> list[Device]:
    """Return the devices with the bytes that each device's worker may use. `usable_bytes` is the usable memory
    of each GPU, by its id in the machine; None if it is unknown. Devices on one GPU share its memory, since
    their workers may hold a workload at the same time."""
    sharing = Counter(device.gpu_id for device in devices if device.gpu_id)
    devices_there = []
    for device in devices:
        limits = [x for x in (device.usable_bytes, usable_bytes.get(device.gpu_id or "")) if x is not None]
        if device.gpu_id and limits:
            device = replace(device, usable_bytes=min(limits) // sharing[device.gpu_id])
        devices_there.append(device)
    return devices_there


def _is_asked_for(device: Device, listing: Listing, request: DeviceRequest) -> bool:
    """Return whether the request includes the device."""
    if device.id in request.devices:
        return True
    # The name of a backend stands for its default devices, if no ids were given.
    by_backend = listing.backend in (*request.required, *request.optional)
    if listing.default_devices is not None:
        return by_backend and not request.devices and device.id.partition(":")[2] in listing.default_devices
    if backends.is_hidden(device.id):
        return False
    if request.devices and not by_backend:
        return False
    return device.kind != "software" or request.allow_software or listing.backend in request.required


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
        if listing.backend not in SEVERAL
        for device in listing.devices
        if device.kind == "software" and device.id not in taken
    ]


def _absence(listing: Listing) -> RunWarning:
    return RunWarning(
        code="unavailable", severity="info", message=f"{listing.backend} was left out: {listing.detail}",
        hint=listing.hint, data={"backend": listing.backend, "reason": listing.reason or ""},
    )  # fmt: skip


def _unavailable(message: str, listing: Listing) -> RequiredUnavailable:
    there = truncate([device.id for device in listing.devices if not backends.is_hidden(device.id)], 8)
    why = listing.detail or (
        f"{listing.backend} has {there}" if there else f"{listing.backend} has no device of that name"
    )
    return RequiredUnavailable("unavailable", message, why=why, hint=listing.hint or None)
