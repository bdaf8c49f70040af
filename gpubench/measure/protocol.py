"""Messages between the parent and a worker: one JSON object per line, with a tag and a request number.

A worker answers each request with exactly one reply that has the request's number. Before each step it may announce its
phase, so that a crash or hang can be traced to that phase.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import SupportsFloat, SupportsIndex

import msgspec
from msgspec import UNSET, UnsetType

from gpubench.base.messages import Reason
from gpubench.kernels.contract.kernel import Kernel
from gpubench.kernels.contract.op import Dtype
from gpubench.result.case import Case
from gpubench.result.run import (
    AssignmentTimes,
    Block,
    Check,
    Device,
    OnePiece,
    Parts,
    Peak,
    RunWarning,
    StageTimes,
    Staging,
    WorkerRecord,
)

PART_SAMPLES = 5
# Calls of one copy that the last check makes at most.
MOST_CHECKED = 2


class Message(msgspec.Struct, frozen=True, tag_field="kind", tag=str.lower):
    """Base of all messages."""


class WorkerRequest(Message, frozen=True, kw_only=True):
    """Base of the requests to a worker."""

    id: int  # the number of the request


class Reply(Message, frozen=True, kw_only=True):
    """Base of a worker's replies."""

    id: int  # the number of the request


class ListDevices(WorkerRequest, frozen=True):
    """Request for the devices of a backend. No device is opened."""

    backend: str  # its name
    host_only: bool = False  # its CPUs do, where they are told sooner


class Preload(WorkerRequest, frozen=True):
    """Import what opening a device needs. Nobody waits for the reply."""

    backend: str  # of the device


class Open(WorkerRequest, frozen=True, kw_only=True):
    """Open the device."""

    device_id: str  # the device
    threads: int | None  # of a CPU; None: all
    seed: int  # of the inputs
    inputs: str  # how they are drawn
    scratch: str  # the folder of shared references
    since: float  # the monotonic start of the session
    autotune: bool = True  # kernels may be chosen by trials
    page_locked: bool = False  # the caller's arrays are, where a GPU has such memory
    # Of memory that the host overwrites before every sample; None: caches stay warm.
    flush_bytes: int | None = None
    host_bytes: int | None = None  # of the host's memory that the worker may use, if that is known
    cpus: int | None = None  # that the worker may keep busy, where the parent knows it
    alike: list[str] = []  # lists of CPUs with the same cores, and of those beside the same memory
    sample_s: float = 5e-3  # a sample lasts at least so long
    ops: list[str] = []  # whose tuned implementations are to come
    dtypes: list[Dtype] = []  # in which these ops come


class MeasureOverhead(WorkerRequest, frozen=True):
    """Request for the time of an empty launch and its wait, and for the step of the clock. It is separate from `Open`,
    because devices are opened side by side but measured one after the other."""


class PeakRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Peaks of one device."""

    memory: bool  # bytes a second
    compute: list[Dtype]  # FLOP a second in these dtypes
    link: bool = False  # bytes a second to the host and back
    cache_bytes: int  # of its last level of cache
    memory_bytes: int  # that the arrays may take
    limit_s: float  # about so long for each of them at most


class MeasurePeaks(WorkerRequest, frozen=True):
    """Request for the best rates of this device."""

    peaks: PeakRequest  # that are asked for


class Load(WorkerRequest, frozen=True):
    """Make the inputs of a case. Workers may do this side by side, since nothing is timed meanwhile."""

    case: Case  # whose inputs are made
    reference: bool  # its float64 answer is made, too


class Build(WorkerRequest, frozen=True):
    """Build the launch of a case and check its output, beside other workers. Errors are left to `Prepare`."""

    case: Case  # to build


class Choose(WorkerRequest, frozen=True):
    """Choose the kernel of a case by trials, while all other workers are idle. Errors are left to `Prepare`, which also
    reports the time of these trials."""

    case: Case  # whose kernel is chosen


class Prepare(WorkerRequest, frozen=True):
    """Prepare a case: inputs, buffers, build, correctness check, times of the parts."""

    case: Case  # to prepare
    session: int  # its index
    repeat: int | None = None  # launches per sample, as a Block stores it, if that is settled
    hot_repeat: int | None = None  # the same on the device's clock
    part_samples: int = PART_SAMPLES  # how often each part is timed; 0 leaves the parts out
    time_it: bool = True  # samples will follow
    device_clock: bool = True  # the device's own clock is read beside the wall clock
    # The GPU's share of a split case, or where the stages of a workload run; None: as it is now.
    split: float | str | None = None
    # What a launch takes by other sizes: the first block begins with that count, and corrects it.
    expected_s: float | None = None


class Sample(WorkerRequest, frozen=True):
    """Take one block of a prepared case."""

    case_id: str  # the case
    session: int  # its index
    round: int  # the number of the block
    position: int  # of the block in its round
    samples: int  # that are taken
    warmup_s: float  # of work before them
    limit_s: float  # for all of it
    # False: the first sample counts, of launches so long that what goes before them is forgotten soon.
    warm_up: bool = True


class Work(WorkerRequest, frozen=True):
    """Warm up a prepared case, wait, then work. All workers begin to work at the same moment."""

    case_id: str  # the case
    start_at: float  # the monotonic time at which work begins
    warmup_s: float  # of work before that
    work_s: float  # how long it works


class TimeStages(WorkerRequest, frozen=True):
    """Time the stages of a prepared workload, or find where they could run."""

    case_id: str  # the case
    session: int  # its index
    limit_s: float  # about so long at most
    assignment_times: bool = False  # tell where they could run


class Finish(WorkerRequest, frozen=True):
    """Check the output that the last launch left behind."""

    case_id: str  # the case
    # A function is called with other values if that takes no longer; None: it may take its time.
    limit_s: float | None = None


class Reallocate(WorkerRequest, frozen=True):
    """Free all that is prepared, so that later cases lie in newly allocated memory."""


class Close(WorkerRequest, frozen=True):
    """Close the device and end."""


class Phase(Message, frozen=True):
    """Announcement of the worker's next phase; it gets no reply."""

    name: str  # of the phase


class KernelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that a plan needs about a kernel of a backend; the `build` function stays in the worker."""

    language: str  # in which it is written
    variant: str  # its name among the kernels of the op
    library: bool  # it is a library call
    dtypes: tuple[str, ...] | None  # that it has; None: those of the op


def _in_worker(*_: object) -> None:
    raise NotImplementedError("a backend's own kernels are built in its worker")


class Listing(msgspec.Struct, frozen=True):
    """The devices of a backend and its declarations, or the reason why it has no devices."""

    backend: str  # its name
    devices: tuple[Device, ...] = ()  # that it has
    implementations: tuple[str, ...] = ()  # in which it computes
    version: str | None = None  # of its library
    default_devices: tuple[str, ...] | None = None  # the only ones that are measured unless a device is named
    yields_to: tuple[str, ...] = ()  # backends that drive the same GPUs, and come first
    scripted: tuple[str, ...] = ()  # devices whose sessions have a clock of their own
    kernels: dict[str, tuple[KernelFacts, ...]] = {}  # that it brings, by op
    reason: Reason | None = None  # why it has no devices
    detail: str = ""  # of that reason
    hint: str = ""  # what to do about it

    @property
    def brought(self) -> dict[str, tuple[Kernel, ...]]:
        """The kernels of the backend by op, without a usable `build`."""
        return {
            op: tuple(Kernel(x.language, _in_worker, x.variant, x.library, x.dtypes) for x in kernels)
            for op, kernels in self.kernels.items()
        }


class Devices(Reply, frozen=True):
    """The devices of a backend."""

    listing: Listing  # what it said


class Opened(Reply, frozen=True):
    """The device is open."""

    device: Device  # as it is known now
    record: WorkerRecord  # of this worker, for the file
    once_s: float = 0.0  # seconds of what the machine remembers from now on


class MeasuredOverhead(Reply, frozen=True):
    """The cost of an empty launch, and of the clock."""

    overhead_s: list[float]  # seconds of each empty launch with its wait
    clock_step_s: float  # the smallest step of the clock
    clock_cost_s: float  # of one reading


class MeasuredPeaks(Reply, frozen=True):
    """The answer to MeasurePeaks."""

    peaks: list[Peak]  # each with a rate or with the reason for none


class Prepared(Reply, frozen=True, kw_only=True):
    """The case is correct and ready."""

    check: Check  # that it passed
    answer: list[float] | None = None  # elements of the answer of a function
    op_hash: str  # changes when the op means something else
    kernel_hash: str | None  # of the code of the kernel
    kernel: str | None = None  # its name
    tune_s: float = 0.0  # seconds of choosing kernels
    lacks: str | None = None  # why this CPU is not at its best
    notes: list[RunWarning] = []  # what the worker has found wrong with the cache
    blas: bool = False  # a BLAS computes it
    flops: int  # of a launch
    bytes: int  # that a launch moves
    output_bytes: int | None = None  # that move to the host
    input_bytes: int | None = None  # that move to the device; None: all that is read
    parts: Parts  # seconds of building it, and of the parts of a call
    staging: Staging  # how bytes travel
    sets: int | UnsetType = UNSET  # of buffers in flight in a pipeline
    one_piece: OnePiece | UnsetType = UNSET  # why the GPU's part of a split moves in one piece
    # The GPU's share of a split case, in whole units; where the stages of a workload on two sides run.
    split: float | str | None = None


class Sampled(Reply, frozen=True):
    """One block."""

    block: Block  # for the file
    times_s: list[float] = []  # monotonic times at which it began and at which each entry of `wall_s` ended
    parts: dict[str, list[float]] = {}  # of the calls that were taken apart between its samples


class Worked(Reply, frozen=True):
    """Times at which the work began and ended, in seconds from `start_at`."""

    repeat: int  # launches of a sample
    begin_s: float  # of the first sample
    ends_s: list[float]  # of each sample


class TimedStages(Reply, frozen=True):
    """The stages of a workload; a field is None if the device cannot measure it."""

    times: StageTimes | None = None  # of the stages
    # their times on both sides and what stage assignments promise
    assignment_times: AssignmentTimes | None = None


class Done(Reply, frozen=True):
    """The request was carried out."""

    notes: list[RunWarning] = []  # warnings for the user


class Undecided(Reply, frozen=True):
    """The case was not built: its kernel is still to be chosen by trials."""


class Refused(Reply, frozen=True):
    """The case was not attempted, or the device is not available."""

    reason: Reason  # of the list of messages
    detail: str  # why
    hint: str = ""  # what to do


class Broke(Reply, frozen=True):
    """The case was attempted and failed."""

    reason: Reason  # of the list of messages
    detail: str  # why
    hint: str = ""  # what to do
    phase: str | None = None  # in which it broke
    check: Check | None = None  # that it failed
    fatal: bool = False  # only a fresh worker can go on


FromWorker = Phase | Reply


def _plain(value: object) -> str | int | float:
    """Convert a library's own text or number type to the plain Python type (torch's version, a NumPy number)."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, SupportsIndex):
        return operator.index(value)
    if isinstance(value, SupportsFloat):
        return float(value)
    raise TypeError(f"no message can hold a {type(value).__name__}")


_encoder = msgspec.json.Encoder(enc_hook=_plain)
# Both raise msgspec.DecodeError or ValidationError.
decode_request: Callable[[bytes], WorkerRequest] = msgspec.json.Decoder(
    reduce(or_, WorkerRequest.__subclasses__())
).decode
decode_reply: Callable[[bytes], FromWorker] = msgspec.json.Decoder(
    reduce(or_, [Phase, *Reply.__subclasses__()])
).decode


def encode(message: WorkerRequest | FromWorker) -> bytes:
    return _encoder.encode(message) + b"\n"
