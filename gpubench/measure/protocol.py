"""Messages between the parent and a worker: one JSON object a line, tagged, requests numbered.

A worker answers each request with exactly one reply that carries its number; before each step it may
announce the phase it is in, so that a crash or a hang can be blamed on that phase.
"""

from __future__ import annotations

import operator
from functools import reduce
from operator import or_
from typing import SupportsFloat, SupportsIndex

import msgspec

from gpubench.base.messages import Reason
from gpubench.kernels.contract.kernel import Kernel
from gpubench.kernels.contract.op import Dtype
from gpubench.result.case import Case
from gpubench.result.run import (
    Block,
    Ceiling,
    Check,
    Device,
    Parts,
    Placing,
    RunWarning,
    StageTimes,
    Staging,
    WorkerRecord,
)

PART_SAMPLES = 5


class Message(msgspec.Struct, frozen=True, tag_field="kind", tag=str.lower):
    """Base of all messages."""


class WorkerRequest(Message, frozen=True, kw_only=True):
    """Base of what a worker is asked for."""

    id: int


class Reply(Message, frozen=True, kw_only=True):
    """Base of the answers, each with the number of its request."""

    id: int


class ListDevices(WorkerRequest, frozen=True):
    """Which devices does this backend have? Nothing is opened. `host_only`: its CPUs do, where they are told sooner."""

    backend: str
    host_only: bool = False


class Preload(WorkerRequest, frozen=True):
    """Import what opening a device of this backend needs. Nobody waits for the reply."""

    backend: str


class Open(WorkerRequest, frozen=True, kw_only=True):
    """Open the device; `scratch` is the folder of shared references, `since` the session's monotonic start.

    `flush_bytes`: what the host overwrites before every sample, twice its caches; None: they stay warm.
    `host_bytes`: what the worker may use of the host's memory, where that is known.
    `cpus`: how many a worker may keep busy, where the parent knows it; `alike` lists those with the same cores, and
    those beside the same memory. `sample_s`: what a sample lasts at least. `ops`: whose tuned forms are to
    come, in these `dtypes`.
    """

    device_id: str
    threads: int | None
    seed: int
    inputs: str
    scratch: str
    since: float
    autotune: bool = True
    flush_bytes: int | None = None
    host_bytes: int | None = None
    cpus: int | None = None
    alike: list[str] = []
    sample_s: float = 5e-3
    ops: list[str] = []
    dtypes: list[Dtype] = []


class MeasureOverhead(WorkerRequest, frozen=True):
    """How long do an empty launch and its wait take, and how fine is the clock? Apart from `Open`, because devices are
    opened side by side, and measured one after the other."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Ceilings of one device: of memory, of arithmetic in some dtypes, and of its link to the host, each in at most
    about `limit_s` seconds.

    `cache_bytes` is its last level of cache, `memory_bytes` what the arrays may take.
    """

    memory: bool
    compute: list[Dtype]
    link: bool = False
    cache_bytes: int
    memory_bytes: int
    limit_s: float


class MeasureCeilings(WorkerRequest, frozen=True):
    """How fast is this device at best?"""

    wanted: Wanted


class Load(WorkerRequest, frozen=True):
    """Make the inputs of a case, with `reference` also its float64 answer. Workers may do so side by side: nothing is
    timed meanwhile."""

    case: Case
    reference: bool


class Build(WorkerRequest, frozen=True):
    """Build the launch of a case and check its output, beside other workers. Whatever goes wrong is left to
    `Prepare`."""

    case: Case


class Choose(WorkerRequest, frozen=True):
    """Choose the kernel of a case by trials, while no other worker does anything. Whatever goes wrong is left to
    `Prepare`, which tells the time of these trials, too."""

    case: Case


class Prepare(WorkerRequest, frozen=True):
    """Inputs, buffers, build, correctness gate, parts.

    `repeat` counts launches per sample, as a Block stores it. `part_samples` is how often each part is
    timed; 0 leaves the parts out. Without `device_clock` only the wall clock is read. `cut`: the GPU's share of a case
    that is split, or where the stages of a workload run; None: whatever it has now. `expected_s`: what a
    launch is expected to take, by other sizes: the first block begins with that count, and corrects it.
    """

    case: Case
    session: int
    repeat: int | None = None
    hot_repeat: int | None = None
    part_samples: int = PART_SAMPLES
    time_it: bool = True
    device_clock: bool = True
    cut: float | str | None = None
    expected_s: float | None = None


class Sample(WorkerRequest, frozen=True):
    """One block of a prepared case: warm up, then `samples` samples within `limit_s` seconds. Without `warm_up` the
    first sample counts: of launches so long that what goes before them is forgotten soon."""

    case_id: str
    session: int
    round: int
    position: int
    samples: int
    warmup_s: float
    limit_s: float
    warm_up: bool = True


class Work(WorkerRequest, frozen=True):
    """Warm up a prepared case, wait until the monotonic time `start_at`, then work for so long: other workers begin at
    the same moment."""

    case_id: str
    start_at: float
    warmup_s: float
    work_s: float


class TimeStages(WorkerRequest, frozen=True):
    """Time the stages of a prepared workload, or tell where they could run (`placing`), in at most about `limit_s`
    seconds."""

    case_id: str
    session: int
    limit_s: float
    placing: bool = False


class Finish(WorkerRequest, frozen=True):
    """Check the output that the last launch left behind. A function is called with other values if that takes no longer
    than `limit_s` seconds. None means that it may take its time."""

    case_id: str
    limit_s: float | None = None


class Reallocate(WorkerRequest, frozen=True):
    """Free all that is prepared: what comes next lies in memory that is allocated anew."""


class Close(WorkerRequest, frozen=True):
    """Close the device and end."""


class Phase(Message, frozen=True):
    """Announcement of what the worker is about to do; no reply."""

    name: str


class KernelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel that a backend brings along, as far as a plan has to know it; its `build` stays in the worker."""

    language: str
    variant: str
    library: bool
    dtypes: tuple[str, ...] | None


def _in_worker(*_: object) -> None:
    raise NotImplementedError("a backend's own kernels are built in its worker")


class Listing(msgspec.Struct, frozen=True):
    """The devices of a backend, or why there are none, and what the backend declares."""

    backend: str
    devices: tuple[Device, ...] = ()
    forms: tuple[str, ...] = ()
    version: str | None = None  # of its library
    default_devices: tuple[str, ...] | None = None
    yields_to: tuple[str, ...] = ()
    scripted: tuple[str, ...] = ()  # devices whose sessions have a clock of their own
    kernels: dict[str, tuple[KernelFacts, ...]] = {}
    reason: Reason | None = None
    detail: str = ""
    hint: str = ""

    @property
    def brought(self) -> dict[str, tuple[Kernel, ...]]:
        """The kernels, as far as a plan needs them."""
        return {
            op: tuple(Kernel(x.language, _in_worker, x.variant, x.library, x.dtypes) for x in kernels)
            for op, kernels in self.kernels.items()
        }


class Devices(Reply, frozen=True):
    """The devices of a backend."""

    listing: Listing


class Opened(Reply, frozen=True):
    """The device is open. `once_s`: seconds of what the machine remembers from now on."""

    device: Device
    record: WorkerRecord
    once_s: float = 0.0


class MeasuredOverhead(Reply, frozen=True):
    """Seconds of each empty launch with its wait, and of the clock: its smallest step, and the cost of a reading."""

    overhead_s: list[float]
    clock_step_s: float
    clock_cost_s: float


class Ceilings(Reply, frozen=True):
    """The ceilings that were asked for, each with a rate or with the reason for none."""

    ceilings: list[Ceiling]


class Prepared(Reply, frozen=True, kw_only=True):
    """The case is right and ready. `cut`: of a case that is split the GPU's share, in whole units; of a workload on two
    sides where its stages run. `notes`: what the worker has found wrong with the cache."""

    check: Check
    answer: list[float] | None = None
    op_hash: str
    kernel_hash: str | None
    kernel: str | None = None
    tune_s: float = 0.0
    lacks: str | None = None
    notes: list[RunWarning] = []
    blas: bool = False
    flops: int
    bytes: int
    output_bytes: int | None = None
    input_bytes: int | None = None
    parts: Parts
    staging: Staging
    cut: float | str | None = None


class Sampled(Reply, frozen=True):
    """One block. `times_s`: the monotonic times at which it began and at which each entry of `wall_s` ended;
    `parts`: those of the calls that were taken apart between its samples."""

    block: Block
    times_s: list[float] = []
    parts: dict[str, list[float]] = {}


class Worked(Reply, frozen=True):
    """When the work really began, and when each sample of `repeat` launches ended, in seconds from `start_at`."""

    repeat: int
    begin_s: float
    ends_s: list[float]


class TimedStages(Reply, frozen=True):
    """The times of the stages, or those on both sides and what they promise; None where a device cannot tell them."""

    times: StageTimes | None = None
    placing: Placing | None = None


class Done(Reply, frozen=True):
    """The request was carried out."""

    notes: list[RunWarning] = []


class Undecided(Reply, frozen=True):
    """The case was not built: its kernel is still to be chosen by trials."""


class Refused(Reply, frozen=True):
    """The case was not attempted, or the device is not to be had."""

    reason: Reason
    detail: str
    hint: str = ""


class Broke(Reply, frozen=True):
    """The case was attempted and failed; `fatal` means that only a fresh worker can go on."""

    reason: Reason
    detail: str
    hint: str = ""
    phase: str | None = None
    check: Check | None = None
    fatal: bool = False


FromWorker = Phase | Reply


def _plain(value: object) -> str | int | float:
    """Text and numbers of types that a library made of the plain ones (torch's version, a number of NumPy)."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, SupportsIndex):
        return operator.index(value)
    if isinstance(value, SupportsFloat):
        return float(value)
    raise TypeError(f"no message can hold a {type(value).__name__}")


_encoder = msgspec.json.Encoder(enc_hook=_plain)
_request_decoder = msgspec.json.Decoder(reduce(or_, WorkerRequest.__subclasses__()))
_reply_decoder = msgspec.json.Decoder(reduce(or_, [Phase, *Reply.__subclasses__()]))


def encode(message: WorkerRequest | FromWorker) -> bytes:
    return _encoder.encode(message) + b"\n"


def decode_request(line: bytes) -> WorkerRequest:
    """Raises msgspec.DecodeError or ValidationError."""
    request: WorkerRequest = _request_decoder.decode(line)
    return request


def decode_reply(line: bytes) -> FromWorker:
    """Raises msgspec.DecodeError or ValidationError."""
    message: FromWorker = _reply_decoder.decode(line)
    return message
