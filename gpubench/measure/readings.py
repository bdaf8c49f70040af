"""Messages between the parent and the gauge, the child that reads clocks and temperatures: one JSON object a line."""

from __future__ import annotations

import msgspec

from gpubench.model.session import Telemetry

# What a driver may hold by itself is less, and what a process takes to begin with CUDA is more.
IDLE_BYTES = 256 * 2**20


class Message(msgspec.Struct, frozen=True, tag_field="kind"):
    """Base of all messages."""


class Target(msgspec.Struct, frozen=True):
    """A device that is to be read: its id in this run, and how the driver knows it (`pci`: "0000:09:00.0")."""

    device_id: str
    uuid: str | None = None
    pci: str | None = None


class Begin(Message, frozen=True, tag="begin"):
    """The devices of the session; the gauge answers Ready."""

    targets: list[Target]


class Watch(Message, frozen=True, tag="watch"):
    """Read this device now, and again and again until Rest."""

    device_id: str


class Rest(Message, frozen=True, tag="rest"):
    """Read once more, then be still; the gauge answers Rested with this number."""

    number: int


class Users(msgspec.Struct, frozen=True):
    """Who is on a GPU: processes that compute there, those that draw, and the memory that all of them hold, listed here
    or not."""

    computing: int = 0
    drawing: int = 0
    used_bytes: int = 0

    @property
    def unseen(self) -> bool:
        """Whether somebody holds memory and no process is listed, as in a container."""
        return not (self.computing or self.drawing) and self.used_bytes > IDLE_BYTES

    def __bool__(self) -> bool:
        return bool(self.computing or self.drawing) or self.unseen


class Ready(Message, frozen=True, tag="ready"):
    """Why a device cannot be read, by its id; all others can. `users` are those of the devices that tell."""

    absent: dict[str, str]
    users: dict[str, Users] = {}


class Reading(Message, frozen=True, tag="reading"):
    """One reading at a monotonic time, which all processes of a machine share. None: this device does not tell.

    `throttle` holds the reasons for a lowered clock in the words of nvidia-smi.
    """

    device_id: str
    t_s: float
    clock_hz: float | None = None
    memory_clock_hz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttle: list[str] = []


class Rested(Message, frozen=True, tag="rested"):
    """All readings up to the Rest of this number have been sent."""

    number: int


ToGauge = Begin | Watch | Rest
FromGauge = Ready | Reading | Rested

_encoder = msgspec.json.Encoder()
_to_gauge: msgspec.json.Decoder[ToGauge] = msgspec.json.Decoder(ToGauge)
_from_gauge: msgspec.json.Decoder[FromGauge] = msgspec.json.Decoder(FromGauge)


def encode(message: ToGauge | FromGauge) -> bytes:
    """One line."""
    return _encoder.encode(message) + b"\n"


def decode_order(line: bytes) -> ToGauge:
    """Raises msgspec.DecodeError or ValidationError."""
    return _to_gauge.decode(line)


def decode_answer(line: bytes) -> FromGauge:
    """Raises msgspec.DecodeError or ValidationError."""
    return _from_gauge.decode(line)


def columns(device_id: str, readings: list[Reading], since: float) -> Telemetry:
    """As the result file stores them: one list per quantity, times from the session's start."""
    return Telemetry(
        device_id=device_id, t_s=[reading.t_s - since for reading in readings],
        clock_hz=[reading.clock_hz for reading in readings],
        memory_clock_hz=[reading.memory_clock_hz for reading in readings],
        temperature_c=[reading.temperature_c for reading in readings],
        power_w=[reading.power_w for reading in readings],
        throttle=[list(reading.throttle) for reading in readings],
    )  # fmt: skip
