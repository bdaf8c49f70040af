"""gang: several devices of one backend, driven by one worker as one (`gang:cupy:0+1`, `gang:cupy:0-7`).

A collective is what it is measured with: the backend inside brings the links that join its devices (`Backend.links`).
`gang:numpy:4` is four buffers in host memory, which shows that the program is right and says nothing of hardware.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NoReturn

import msgspec

from gpubench import backends
from gpubench.errors import BackendError, BackendUnavailable, Unsupported
from gpubench.model.backend import Backend, Buffer, Launch, Session, override
from gpubench.model.case import GANG, Case, gang_id, gang_ranks
from gpubench.model.kernel import Limits
from gpubench.model.links import Links
from gpubench.model.op import Array, Form, Op, Shape, Stored
from gpubench.model.result import Device, Identity

# The backends whose devices make gangs, those of tests apart.
JOINED = ("cupy",)
# Host memory as so many ranks.
_SOFTWARE = ("2", "3", "4", "8")


class GangSession(Session):
    """The links of a gang. It computes nothing, and so it has no buffers and no kernels."""

    limits = Limits(max_buffer_bytes=1 << 40, max_binding_bytes=1 << 40)

    def __init__(self, device: Device, links: Links) -> None:
        self.device = device
        self._links = links

    @override
    def links(self) -> Links:
        return self._links

    def supports(self, op: Op, case: Case) -> BackendError | None:
        """Collectives for as many ranks as there are."""
        if op.collective is None:
            return Unsupported(f"{op.name} runs on one device", reason="no-implementation")
        if case.params.get("ranks") != self._links.ranks:
            return Unsupported(f"{self.device.id} has {self._links.ranks} ranks", reason="shape")
        return None

    def run(self, launch: Launch, repeat: int = 1) -> None:
        """Nothing: the launch is the empty one."""

    def sync(self) -> None:
        self._links.sync()

    def empty_launch(self) -> Launch:
        return Launch()

    @override
    def clock(self) -> float:
        return self._links.clock()

    @override
    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._links.close()

    def host_array(self, shape: Shape, dtype: Stored, form: Form) -> Array:
        self._refuse()

    def allocate(self, shape: Shape, dtype: Stored) -> Buffer:
        self._refuse()

    def upload(self, buffer: Buffer, host: Array) -> None:
        self._refuse()

    def download(self, buffer: Buffer, host: Array) -> None:
        self._refuse()

    def compile(self, op: Op, case: Case, inputs: Sequence[Buffer], output: Buffer) -> Launch:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise Unsupported(f"{self.device.id} runs collectives alone", reason="no-implementation")


class GangBackend(Backend):
    """Gangs of the devices of other backends. Its name alone stands for those of GPUs."""

    name = GANG
    forms: tuple[Form, ...] = ("library",)

    def __init__(self) -> None:
        self.default_devices: tuple[str, ...] = ()

    def devices(self) -> list[Device]:
        """Of GPUs each pair, then the first 4, 8, ... and all of them; and those that answer to their id alone."""
        found = [gang for name in JOINED for gang in _gangs(_members(name))]
        self.default_devices = tuple(gang.id.removeprefix(f"{GANG}:") for gang in found)
        found += _gangs([d for d in _members("fake") if d.id.removeprefix("fake:gpu").isdecimal()])
        found += [_named(word) for word in backends.load("fake").gangs]
        return found + [_software(count) for count in _SOFTWARE]

    def open(self, device_id: str, threads: int | None = None, *, autotune: bool = True) -> GangSession:
        """Join the devices that the id names. Raises BackendUnavailable."""
        device = next((gang for gang in self.devices() if gang.id == device_id), None)
        if device is None:
            raise BackendUnavailable(f"there is no device {device_id}")
        _, inner, word = device_id.split(":")
        named = "" if word[0].isdecimal() else word
        return GangSession(device, backends.load(inner).links(gang_ranks(device_id), named))


def sizes(count: int) -> list[int]:
    """4, 8, ... and all: the gangs beside the pairs of so many GPUs."""
    doubled = [1 << power for power in range(2, count.bit_length()) if 1 << power <= count]
    return [*doubled, *([count] if count > 2 and count not in doubled else [])]


def _members(backend: str) -> list[Device]:
    try:
        return [device for device in backends.load(backend).devices() if device.kind == "gpu"]
    except BackendUnavailable:
        return []


def _gangs(members: Sequence[Device]) -> list[Device]:
    count = len(members)
    chosen = [(i, j) for i in range(count) for j in range(count) if i != j]
    chosen.sort(key=lambda pair: (pair[0] > pair[1], pair))
    return [_gang(members, ranks) for ranks in (*chosen, *(tuple(range(size)) for size in sizes(count)))]


def _gang(members: Sequence[Device], ranks: Sequence[int]) -> Device:
    ours = [members[rank] for rank in ranks]
    names = dict.fromkeys(device.name for device in ours)
    room = [device.usable_bytes for device in ours if device.usable_bytes is not None]
    return Device(
        id=gang_id(ours[0].backend, ranks), backend=GANG, kind=ours[0].kind, api=ours[0].api,
        name=f"{len(ours)} x {' and '.join(names)}", driver=ours[0].driver, usable_bytes=min(room, default=None),
        identities=[device.identity or Identity() for device in ours],
    )  # fmt: skip


def _named(word: str) -> Device:
    """A gang that acts out one failure."""
    return Device(id=f"{GANG}:fake:{word}", backend=GANG, kind="gpu", api="fake", name=f"Scripted {word}")


def _software(count: str) -> Device:
    return msgspec.structs.replace(
        _named(""), id=f"{GANG}:numpy:{count}", kind="software", api="host", name=f"{count} x host memory"
    )


BACKEND = GangBackend()
