"""The messages between the parent and a worker: one JSON object per line, with a tag and the number of the
request.

A worker answers each request with exactly one reply, which has the number of the request. Before each step it
may announce its phase, so that a crash or a hang can be traced to that phase.
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
from gpubench.base.streams import encode_json
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
# Most calls per copy that the last check makes in the regime `transfer-once`.
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
    """Request the devices of a backend, without opening one."""

    backend: str  # the name of the backend
    host_only: bool = False  # whether to list only CPUs, if they can be listed sooner


class Preload(WorkerRequest, frozen=True):
    """Import the modules that opening a device of the backend needs. The next request may be sent before the
    reply has come."""

    backend: str  # the backend of the device


class Open(WorkerRequest, frozen=True, kw_only=True):
    """Open a device."""

    device_id: str  # the device
    threads: int | None  # the number of CPU threads; None means all threads
    seed: int  # seed of the inputs
    inputs: str  # kind of inputs: how they are drawn
    scratch: bytes  # the folder for the references, which workers share, as the system spells it
    since: float  # time by `perf_counter` at which the session started
    autotune: bool = True  # whether kernels may be chosen by trials
    page_locked: bool = False  # whether the caller's arrays are kept in page-locked memory, if the GPU has it
    # Bytes of host memory to overwrite before every sample, which empties the CPU's caches. The device's caches
    # are emptied, too. None: all caches stay warm.
    flush_bytes: int | None = None
    host_bytes: int | None = None  # the host memory that the worker may use; None if it is unknown
    cpus: int | None = None  # the number of CPUs that the worker may keep busy; None if it is unknown
    alike: list[str] = []  # lists of CPUs (`0-7,16-23`) with the same cores or the same memory node
    sample_s: float = 5e-3  # least seconds of a sample
    ops: list[str] = []  # ops whose tuned implementations will be requested
    dtypes: list[Dtype] = []  # dtypes of these ops


class MeasureOverhead(WorkerRequest, frozen=True):
    """Request the time of an empty launch with its wait, and the step and the cost of the clock. This comes
    before any case is timed, since the worker may then lengthen its samples. `Open` does not include it:
    devices are opened at the same time but measured one after the other."""


class PeakRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The peaks to measure on one device."""

    memory: bool  # whether to measure the rate of memory
    compute: list[Dtype]  # the dtypes in which to measure the rate of arithmetic
    link: bool = False  # whether to measure the rates of the link to the host
    cache_bytes: int  # size of the last-level cache
    memory_bytes: int  # most bytes of all arrays together
    limit_s: float  # about the most seconds for each peak


class MeasurePeaks(WorkerRequest, frozen=True):
    """Request the peaks of the open device. This comes after the last case, as it frees all prepared
    workloads."""

    peaks: PeakRequest  # the peaks to measure


class Load(WorkerRequest, frozen=True):
    """Make the inputs of a case. Several workers may do this at the same time, since nothing is timed
    meanwhile."""

    case: Case  # the case
    reference: bool  # whether the float64 reference is computed, too


class Build(WorkerRequest, frozen=True):
    """Build the launch of a case and check its output, while other workers may do the same. The worker replies
    Undecided if trials must choose the kernel first. A split is not built, and errors of the case are reported
    by `Prepare`."""

    case: Case  # the case to build


class Choose(WorkerRequest, frozen=True):
    """Choose the kernel of a case by trials, while all other workers are idle. Errors and the time of the
    trials are reported by `Prepare`."""

    case: Case  # the case


class Prepare(WorkerRequest, frozen=True):
    """Prepare a case: inputs, buffers, build, correctness gate, launches per sample, times of the parts of a
    call."""

    case: Case  # the case to prepare
    session: int  # the index of the session
    repeat: int | None = None  # the launches per sample, as a Block stores them; None if they are not settled
    hot_repeat: int | None = None  # the launches per sample on the device's clock; None also if it is not read
    part_samples: int = PART_SAMPLES  # the number of times that each part of a call is timed
    time_it: bool = True  # whether samples will follow
    device_clock: bool = True  # whether the device's own clock is read, too
    # The GPU's share of a split case, or the stage assignment of a workload. None keeps the current one.
    split: float | str | None = None
    # Seconds of a launch, predicted from other sizes; None: not predicted. The first block takes its launches
    # per sample from this and corrects them.
    expected_s: float | None = None


class Sample(WorkerRequest, frozen=True):
    """Take one block of a prepared case."""

    case_id: str  # the case
    session: int  # the index of the session
    round: int  # number of the round
    position: int  # place of the block in its round, from 0
    samples: int  # number of samples to take
    warmup_s: float  # seconds of work before the samples
    limit_s: float  # seconds after which no sample begins
    warm_up: bool = True  # whether the first sample needs a warm-up; False if launches are long enough


class Work(WorkerRequest, frozen=True):
    """Warm up a prepared case, wait until `start_at`, then take samples. All workers begin at that moment."""

    case_id: str  # the case
    start_at: float  # the time by `perf_counter` at which work begins
    warmup_s: float  # seconds of work before `start_at`
    work_s: float  # seconds of work that is sampled


class TimeStages(WorkerRequest, frozen=True):
    """Time the stages of a prepared workload where they run now, or on both sides."""

    case_id: str  # the case
    session: int  # the index of the session
    limit_s: float  # about the most seconds
    assignment_times: bool = False  # whether stages are timed on both sides, to predict stage assignments


class Finish(WorkerRequest, frozen=True):
    """Check a case after its last sample: the inputs, the last output, and the output of one more launch. If a
    case with the same launch passed since the last sample, only the inputs are checked."""

    case_id: str  # the case
    # The most seconds for checking a user's function with other values, too. None: no limit.
    limit_s: float | None = None


class Reallocate(WorkerRequest, frozen=True):
    """Free all prepared workloads, so that later cases lie in newly allocated memory."""


class Close(WorkerRequest, frozen=True):
    """Close the device and end the process."""


class Phase(Message, frozen=True):
    """Announces the next phase of the worker's work. It gets no reply."""

    name: str  # name of the phase


class KernelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a kernel that a backend brings. Its `build` function stays in the worker."""

    language: str  # the language of the kernel
    variant: str  # the name of the kernel among the kernels of the op
    library: bool  # whether the kernel is a library call
    dtypes: tuple[str, ...] | None  # the dtypes of the kernel; None means the dtypes of the op


def _in_worker(*_: object) -> None:
    raise NotImplementedError("a backend's own kernels are built in its worker")


class Listing(msgspec.Struct, frozen=True):
    """The devices of a backend and the properties that it declares, or the reason why it has no devices."""

    backend: str  # the name of the backend
    devices: tuple[Device, ...] = ()  # the devices of the backend
    implementations: tuple[str, ...] = ()  # the implementations of the backend
    version: str | None = None  # the version of the backend's library; None if it is unknown
    # The devices that the backend's name alone stands for (`Backend.default_devices`); None means all.
    default_devices: tuple[str, ...] | None = None
    yields_to: tuple[str, ...] = ()  # the backends that are preferred on GPUs that both drive
    scripted: tuple[str, ...] = ()  # devices with a scripted clock
    kernels: dict[str, tuple[KernelFacts, ...]] = {}  # the kernels that the backend brings, by op
    reason: Reason | None = None  # the reason why the backend has no devices; None if it has some
    detail: str = ""  # a sentence about that reason
    hint: str = ""  # the remedy for a missing device

    @property
    def brought(self) -> dict[str, tuple[Kernel, ...]]:
        """The kernels that the backend brings, by op. Their `build` raises NotImplementedError."""
        return {
            op: tuple(Kernel(x.language, _in_worker, x.variant, x.library, x.dtypes) for x in kernels)
            for op, kernels in self.kernels.items()
        }


class Devices(Reply, frozen=True):
    """Reply to ListDevices."""

    listing: Listing  # the devices of the backend


class Opened(Reply, frozen=True):
    """Reply to Open: the device is open."""

    device: Device  # the device, with facts that only an open device reports
    record: WorkerRecord  # the record of this worker for the file
    once_s: float = 0.0  # seconds of work that this machine does only once


class MeasuredOverhead(Reply, frozen=True):
    """Reply to MeasureOverhead."""

    overhead_s: list[float]  # seconds of each empty launch with its wait
    clock_step_s: float  # the smallest step of the clock
    clock_cost_s: float  # seconds of one reading of the clock


class MeasuredPeaks(Reply, frozen=True):
    """Reply to MeasurePeaks."""

    peaks: list[Peak]  # each with a rate or with the reason for none


class Prepared(Reply, frozen=True, kw_only=True):
    """Reply to Prepare: the case passed its check and can be sampled."""

    check: Check  # the passed check of the case
    answer: list[float] | None = None  # some elements of a user's function's result; None for other ops
    op_hash: str  # changes when the meaning of the op changes
    kernel_hash: str | None  # changes with the kernel's code; None if the backend gives no hash
    kernel: str | None = None  # name of the chosen candidate; None if there was no choice
    tune_s: float = 0.0  # seconds of choosing kernels
    lacks: str | None = None  # the reason why the CPU is slower than it could be; None if there is none
    notes: list[RunWarning] = []  # warnings about the cache
    blas: bool = False  # whether a BLAS computes the case
    flops: int  # operations of a launch
    bytes: int  # bytes that a launch moves
    output_bytes: int | None = None  # bytes that move to the host; None for an overhead
    input_bytes: int | None = None  # bytes that move to the device; None: `bytes` less `output_bytes`
    parts: Parts  # seconds of building the launch, and of the parts of a call
    staging: Staging  # the way in which bytes travel
    sets: int | UnsetType = UNSET  # number of sets of buffers of a pipeline; unset for other cases
    # the reason why the GPU's part of a split moves in one piece; unset for several pieces and for other cases
    one_piece: OnePiece | UnsetType = UNSET
    # The GPU's share of a split case in whole units, or the stage assignment of a workload. None for a case on
    # one side.
    split: float | str | None = None


class Sampled(Reply, frozen=True):
    """Reply to Sample: one block."""

    block: Block  # the block for the file
    # The time by `perf_counter` at which the block began, then the end of each entry of `wall_s`.
    times_s: list[float] = []
    parts: dict[str, list[float]] = {}  # by part of a call: the seconds of the part, timed between the samples


class Worked(Reply, frozen=True):
    """Reply to Work: when the samples began and ended, in seconds after `start_at`."""

    repeat: int  # launches in each sample
    begin_s: float  # begin of the first sample
    ends_s: list[float]  # end of each sample


class TimedStages(Reply, frozen=True):
    """Reply to TimeStages. A field is None if it was not requested or the device cannot measure it."""

    times: StageTimes | None = None  # the times of the stages
    # the times of the stages on both sides, and the predicted times of stage assignments
    assignment_times: AssignmentTimes | None = None


class Done(Reply, frozen=True):
    """Reply: the request was carried out."""

    notes: list[RunWarning] = []  # warnings for the user


class Undecided(Reply, frozen=True):
    """Reply to Build: the case was not built, because its kernel has to be chosen first (`Choose`)."""


class Refused(Reply, frozen=True):
    """Reply: the case cannot run here, memory did not suffice for it, or the device is not available."""

    reason: Reason  # a code of the list of messages
    detail: str  # the reason in one sentence
    hint: str = ""  # the remedy


class Broke(Reply, frozen=True):
    """Reply: the case or another request was attempted and failed, or its result was wrong."""

    reason: Reason  # a code of the list of messages
    detail: str  # the reason in one sentence
    hint: str = ""  # the remedy
    phase: str | None = None  # the phase in which it failed; None before the first one
    check: Check | None = None  # the failed check; None if the case broke otherwise
    fatal: bool = False  # whether a new worker is needed


FromWorker = Phase | Reply


def _plain(value: object) -> str | int | float:
    """Convert a library's own text or number, such as a NumPy scalar, to the plain Python type."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, SupportsIndex):
        return operator.index(value)
    if isinstance(value, SupportsFloat):
        return float(value)
    raise TypeError(f"no message can hold an object of type {type(value).__name__}")


# Both raise msgspec.DecodeError or ValidationError.
decode_request: Callable[[bytes], WorkerRequest] = msgspec.json.Decoder(
    reduce(or_, WorkerRequest.__subclasses__())
).decode
decode_reply: Callable[[bytes], FromWorker] = msgspec.json.Decoder(
    reduce(or_, [Phase, *Reply.__subclasses__()])
).decode


def encode(message: WorkerRequest | FromWorker) -> bytes:
    return encode_json(message, _plain) + b"\n"
