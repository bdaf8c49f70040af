"""Messages between the parent and a worker: one JSON object a line, tagged, requests numbered.

A worker answers each request with exactly one reply that carries its number; before each step it may
announce the phase it is in, so that a crash or a hang can be blamed on that phase.
"""

from __future__ import annotations

import msgspec

from gpubench.model.case import Case
from gpubench.model.op import Dtype
from gpubench.model.result import (
    Block,
    Check,
    Device,
    Parts,
    Staging,
)
from gpubench.model.session import Ceiling, WorkerRecord

PART_SAMPLES = 5


class Message(msgspec.Struct, frozen=True, tag_field="kind"):
    """Base of all messages."""


class ListDevices(Message, frozen=True, kw_only=True, tag="devices"):
    """Which devices does this backend have? Nothing is opened."""

    id: int
    backend: str


class Open(Message, frozen=True, kw_only=True, tag="open"):
    """Open the device; `scratch` is the folder of shared references, `since` the session's monotonic start.

    `flush_bytes`: what the host overwrites before every sample, twice its caches; None: they stay warm.
    """

    id: int
    device_id: str
    threads: int | None
    seed: int
    inputs: str
    scratch: str
    since: float
    autotune: bool = True
    flush_bytes: int | None = None


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Ceilings of one device: of memory, and of arithmetic in some dtypes, each in at most about `limit_s` seconds.

    `cache_bytes` is its last level of cache, `memory_bytes` what the arrays may take.
    """

    memory: bool
    compute: list[Dtype]
    cache_bytes: int
    memory_bytes: int
    limit_s: float


class MeasureCeilings(Message, frozen=True, kw_only=True, tag="ceilings"):
    """How fast is this device at best?"""

    id: int
    wanted: Wanted


class Prepare(Message, frozen=True, kw_only=True, tag="prepare"):
    """Inputs, buffers, build, correctness gate, parts; calibrate unless the counts are given.

    `repeat` counts launches per sample, as a Block stores it. `part_samples` is how often each part is
    timed; 0 leaves the parts out. Without `device_clock` only the wall clock is read. `fraction`: the GPU's share of
    a case that is split; None: whatever it has now.
    """

    id: int
    case: Case
    session: int
    repeat: int | None = None
    hot_repeat: int | None = None
    part_samples: int = PART_SAMPLES
    time_it: bool = True
    device_clock: bool = True
    fraction: float | None = None


class Sample(Message, frozen=True, kw_only=True, tag="sample"):
    """One block of a prepared case: warm up, then `samples` samples within `limit_s` seconds."""

    id: int
    case_id: str
    session: int
    round: int
    position: int
    samples: int
    warmup_s: float
    limit_s: float


class Finish(Message, frozen=True, kw_only=True, tag="finish"):
    """Check the output that the last launch left behind."""

    id: int
    case_id: str


class Release(Message, frozen=True, kw_only=True, tag="release"):
    """Free everything that belongs to the workload."""

    id: int
    workload: str


class Close(Message, frozen=True, kw_only=True, tag="close"):
    """Close the device and end."""

    id: int


class Phase(Message, frozen=True, kw_only=True, tag="phase"):
    """What the worker is about to do; no reply."""

    name: str


class Devices(Message, frozen=True, kw_only=True, tag="devices-reply"):
    """The devices of a backend."""

    id: int
    devices: list[Device]
    forms: list[str] = []
    library_version: str | None = None


class Opened(Message, frozen=True, kw_only=True, tag="opened"):
    """The device is open."""

    id: int
    device: Device
    record: WorkerRecord


class Ceilings(Message, frozen=True, kw_only=True, tag="ceilings-reply"):
    """What was asked for, each with a rate or with the reason for none."""

    id: int
    ceilings: list[Ceiling]


class Prepared(Message, frozen=True, kw_only=True, tag="prepared"):
    """The case is right and ready. `fraction`: of a case that is split the GPU's share, in whole units."""

    id: int
    check: Check
    op_hash: str
    kernel_hash: str | None
    kernel: str | None = None
    tune_s: float = 0.0
    flops: int
    bytes: int
    parts: Parts
    repeat: int
    hot_repeat: int | None
    staging: Staging
    fraction: float | None = None


class Sampled(Message, frozen=True, kw_only=True, tag="sampled"):
    """One block. `times_s`: the monotonic times at which it began and at which each entry of `wall_s` ended;
    `parts`: those of the calls that were taken apart between its samples."""

    id: int
    block: Block
    times_s: list[float] = []
    parts: dict[str, list[float]] = {}


class Done(Message, frozen=True, kw_only=True, tag="done"):
    """The request was carried out and has nothing to say."""

    id: int


class Refused(Message, frozen=True, kw_only=True, tag="refused"):
    """The case was not attempted, or the device is not to be had."""

    id: int
    reason: str
    detail: str
    hint: str = ""


class Broke(Message, frozen=True, kw_only=True, tag="broke"):
    """The case was attempted and failed; `fatal` means that only a fresh worker can go on."""

    id: int
    reason: str
    detail: str
    hint: str = ""
    phase: str | None = None
    check: Check | None = None
    fatal: bool = False


Request = ListDevices | Open | MeasureCeilings | Prepare | Sample | Finish | Release | Close
Reply = Devices | Opened | Ceilings | Prepared | Sampled | Done | Refused | Broke
FromWorker = Phase | Reply

_encoder = msgspec.json.Encoder()
_request_decoder = msgspec.json.Decoder(Request)
_reply_decoder = msgspec.json.Decoder(FromWorker)


def encode(message: Request | FromWorker) -> bytes:
    """One line."""
    return _encoder.encode(message) + b"\n"


def decode_request(line: bytes) -> Request:
    """Raises msgspec.DecodeError or ValidationError."""
    request: Request = _request_decoder.decode(line)
    return request


def decode_reply(line: bytes) -> FromWorker:
    """Raises msgspec.DecodeError or ValidationError."""
    message: FromWorker = _reply_decoder.decode(line)
    return message
