"""Messages between the parent and the monitor, the child that reads clocks and temperatures: one JSON object a line."""

from __future__ import annotations

import msgspec

from gpubench.model.result import Telemetry

# What a driver may hold by itself is less, and what a process takes to begin with CUDA is more.
IDLE_BYTES = 256 * 2**20


UNKNOWN_GPU = "it is not known which GPU this is"


class MonitorMessage(msgspec.Struct, frozen=True, tag_field="kind"):
    """Base of all messages."""


class MonitorTarget(msgspec.Struct, frozen=True):
    """A device that is to be read: its id in this run, and how the driver knows it (`pci`: "0000:09:00.0"). What the
    driver does not know is read by its backend, if at all."""

    device_id: str
    uuid: str | None = None
    pci: str | None = None

    @property
    def known(self) -> bool:
        """Whether the driver can tell which GPU this is."""
        return bool(self.uuid or self.pci)


class Begin(MonitorMessage, frozen=True, tag="begin"):
    """The devices of the session; the monitor answers Ready."""

    targets: list[MonitorTarget]


class Watch(MonitorMessage, frozen=True, tag="watch"):
    """Read this device now, and again and again until Rest."""

    device_id: str


class Rest(MonitorMessage, frozen=True, tag="rest"):
    """Read once more, then be still; the monitor answers Rested with this number."""

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


class Ready(MonitorMessage, frozen=True, tag="ready"):
    """Why a device cannot be read, by its id; all others can. `users` are those of the devices that tell."""

    absent: dict[str, str]
    users: dict[str, Users] = {}


class Reading(MonitorMessage, frozen=True, tag="reading"):
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


class Rested(MonitorMessage, frozen=True, tag="rested"):
    """All readings up to the Rest of this number have been sent."""

    number: int


ToMonitor = Begin | Watch | Rest
FromMonitor = Ready | Reading | Rested

_encoder = msgspec.json.Encoder()
_to_monitor: msgspec.json.Decoder[ToMonitor] = msgspec.json.Decoder(ToMonitor)
_from_monitor: msgspec.json.Decoder[FromMonitor] = msgspec.json.Decoder(FromMonitor)


def encode(message: ToMonitor | FromMonitor) -> bytes:
    """One line."""
    return _encoder.encode(message) + b"\n"


def decode_order(line: bytes) -> ToMonitor:
    """Raises msgspec.DecodeError or ValidationError."""
    return _to_monitor.decode(line)


def decode_answer(line: bytes) -> FromMonitor:
    """Raises msgspec.DecodeError or ValidationError."""
    return _from_monitor.decode(line)


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
