"""The result file `gpubench-result`, version 4: raw samples and conditions, never an estimate.

Units stand in the names (`_s`, `_bytes`, `_hz`, `_w`, `_c`, `_share` from 0 to 1). A quantity that was not
measured is None with a reason beside it, never 0. Readers ignore unknown fields.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from gpubench.base import BUSY_SHARE
from gpubench.base.messages import WARNINGS, Reason, WarningCode
from gpubench.kernels.contract.op import Dtype
from gpubench.result.case import COMPOSED, IMPLEMENTATIONS, QUEUED, REGIMES, RESIDENT, Case, RegimeKind
from gpubench.result.machine import Machine


class EnergyWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Some seconds in which a device did nothing but calls of a case, beside its counter of energy."""

    session: int  # in which it was measured
    source: str  # what counts: "nvml" the GPU's board, "hwmon" an AMD GPU's, "rapl" the packages of the CPU
    window_s: float = 0.0  # how long the calls took
    calls: int = 0  # in the window
    power_w: float | None = None  # the mean between the counter's first and last step in the window
    steps: int = 0  # of the counter between these
    idle_w: list[float] = []  # the device's power without calls, before and after
    sensor_w: float | None = None  # the mean of what its power sensor told in the window
    reason: str | None = None  # why nothing is known

    @property
    def joules(self) -> float | None:
        """The energy of one call in joules, including the power that the device takes at rest. None if it is
        unknown."""
        return None if self.power_w is None or not self.calls else self.power_w * self.window_s / self.calls


class Record(msgspec.Struct, frozen=True):
    """Base of the parts of a result: immutable. (kw_only is not inherited, so each class says it.)"""


class Blas(Record, frozen=True, kw_only=True):
    """The BLAS that NumPy calls, as threadpoolctl names it."""

    library: str  # openblas, mkl, ...
    version: str | None = None  # None: not told
    kernel: str | None = None  # the architecture it takes the CPU for


class WorkerRecord(Record, frozen=True, kw_only=True):
    """One worker process, and what its device costs without any work."""

    device_id: str  # the id of the device
    threads: int | None = None  # of the CPU
    blas: Blas | None = None  # the one that NumPy calls
    env: dict[str, str] = {}  # variables that set threads
    clock_step_s: float = 0.0  # resolution of the host's clock
    clock_cost_s: float = 0.0  # of reading it
    open_s: float | None = None  # opening the device
    overhead_s: list[float] = []  # an empty launch and its wait


class Peak(Record, frozen=True, kw_only=True):
    """The peak of one device in one session, by a kernel that does nothing else."""

    device_id: str  # the id of the device
    dtype: str | None = None  # of the arithmetic; None: any
    bytes_per_s: float | None = None  # memory's rate
    flops_per_s: float | None = None  # of arithmetic
    upload_bytes_per_s: float | None = None  # its link, from page-locked memory
    download_bytes_per_s: float | None = None  # its link, to page-locked memory
    own: bool = False  # not of other backends, which reach tensor cores
    reason: str | None = None  # why there is none


class Telemetry(Record, frozen=True, kw_only=True):
    """Clocks, temperature, power and link of one device, sampled beside the blocks. Older files lack the link."""

    device_id: str  # the id of the device
    t_s: list[float] = []  # from the start of the session
    clock_hz: list[float | None] = []  # of the cores
    memory_clock_hz: list[float | None] = []  # of the memory
    temperature_c: list[float | None] = []  # of the chip
    power_w: list[float | None] = []  # of the board
    throttle: list[list[str]] = []  # reasons for a lowered clock
    pcie_generation: list[int | None] = []  # of the link now
    pcie_width: list[int | None] = []  # lanes now


class SessionRecord(Record, frozen=True, kw_only=True):
    """One set of fresh worker processes."""

    index: int  # from 0 on
    started_at: str  # the time of its start, in UTC
    superseded: bool = False  # kept, and not used
    repeats: int | None = None  # the session in whose place it was measured: others disturbed that one
    foreign_cpu_share: float | None = None  # what other processes took of the CPUs
    steal_share: float | None = None  # what the hypervisor took
    workers: list[WorkerRecord] = []  # one a device
    peaks: list[Peak] = []  # peaks of the devices
    telemetry: list[Telemetry] = []  # sampled beside the blocks

    @property
    def planned_index(self) -> int:
        """The index of the planned session: the repeated session's index for a repetition, else its own."""
        return self.index if self.repeats is None else self.repeats

    @property
    def disturbance(self) -> float:
        """The larger of the CPU shares taken by other processes and by the hypervisor. An unknown share counts as 0."""
        return max(self.foreign_cpu_share or 0.0, self.steal_share or 0.0)

    @property
    def contended(self) -> bool:
        """Whether others took so much CPU time that the session's figures may have suffered."""
        return self.disturbance > BUSY_SHARE


SCHEMA_VERSION = 4
DeviceKind = Literal["cpu", "gpu", "software", "hybrid"]
StopReason = Literal["precision", "max-samples", "max-time", "timeout", "budget"]
# How data reaches the device: from ordinary memory by the library's own call, through page-locked memory, or through
# staging buffers that stay mapped; or not at all, as the device computes in host memory.
Staging = Literal["pageable", "pinned", "mapped", "in-place"]
# Why the GPU's part of a split moves in one piece: no trial of several was faster; the device copies nothing while it
# computes; the caller's arrays are ordinary ones; a piece needs more than some rows of each operand; little is sent.
OnePiece = Literal["no-gain", "no-streams", "ordinary-arrays", "uncut", "small"]
# What a copying call does, in order.
PipelineStage = Literal["upload", "kernel", "download"]
PIPELINE_STAGES: tuple[PipelineStage, ...] = ("upload", "kernel", "download")
Severity = Literal["info", "warning", "error"]
# Stands in for a GPU's last-level cache that nothing reported: more than any so far.
UNKNOWN_CACHE_BYTES = 256 * 2**20
# Below so many bytes a transfer takes its time from calls, not from the link.
LINK_BYTES = 1 << 20


class DeviceClock(Record, frozen=True, kw_only=True):
    """The device's own clock."""

    # derived: it has none, `device_hot` is a difference of wall times
    kind: Literal["event", "pass-timestamp", "derived"]
    step_s: float  # its resolution


class Theoretical(Record, frozen=True, kw_only=True):
    """The vendor's peaks, where a trustworthy source tells them."""

    bytes_per_s: float | None = None  # of its memory
    flops_per_s: dict[str, float] = {}  # by dtype
    source: str | None = None  # who says so


class Identity(Record, frozen=True, kw_only=True):
    """How detection recognises a device; never by its name."""

    uuid: str | None = None  # as the driver writes it
    pci: str | None = None  # "0000:09:00.0"
    vendor_id: int | None = None  # PCI number
    device_id: int | None = None  # PCI number
    driver: str | None = None  # which of several drivers of the same interface lists the device


class Device(Record, frozen=True, kw_only=True):
    """One device as one backend sees it."""

    id: str  # `cupy:0`
    backend: str  # its name
    kind: DeviceKind  # what it is
    name: str  # as its driver says
    api: str  # host, cuda, hip, rocm, vulkan, metal, dx12, or a word of the backend's own
    driver: str | None = None  # its version
    gpu_id: str | None = None  # points into `machine.gpus`
    memory_bytes: int | None = None  # in all
    usable_bytes: int | None = None  # free when it was opened
    clock: DeviceClock | None = None  # None: it tells no time
    theoretical: Theoretical = Theoretical()  # the vendor's peaks
    # its memory is the host's, and it computes there: an integrated GPU, an APU, a Grace, a GPU of Apple by WebGPU
    unified: bool = False
    cache_bytes: int | None = None  # its last level of cache, where the backend tells
    identity: Identity | None = None  # from the worker to detection; cleared before the file is written
    gpu_ids: list[str] = []  # of a device group, rank by rank
    identities: list[Identity] = []  # of a device group, rank by rank

    @property
    def own_clock(self) -> DeviceClock | None:
        """The device's clock; None if there is none or if it is derived from the host's clock."""
        return None if self.clock is None or self.clock.kind == "derived" else self.clock

    @property
    def resident_regime(self) -> RegimeKind:
        """The regime for data that stays on the device: `resident` for a CPU, else `resident-queued`."""
        return RESIDENT if self.kind == "cpu" else QUEUED

    @property
    def composed(self) -> bool:
        """Whether the device combines another backend's device with the CPU: `hybrid:cupy:0`."""
        return self.backend in COMPOSED


class Block(Record, frozen=True, kw_only=True):
    """Samples of one case in one round; each value is seconds per launch."""

    session: int  # its index
    round: int  # in the session
    position: int  # in the round
    phase: Literal["main", "sweep"] = "main"  # sweep: shares or stage assignments are tried
    gpu_share: float | None = None  # the GPU's share of a split
    # pieces in which that share moves, and all of the work of the GPU alone in `beside_s`
    gpu_pieces: int | UnsetType = UNSET
    assignment: str | UnsetType = UNSET  # a letter for each stage of an assigned workload
    repeat: int  # launches make a sample (transfer-once: transfer rounds times calls)
    hot_repeat: int | None = None  # launches make a sample of `device_hot_s`
    warmup: int = 0  # so many first entries of `wall_s` are warm-up
    t_s: float = 0.0  # the block's start from that of the session
    wall_s: list[float]  # by the host's clock
    device_cold_s: list[float] | None = None  # by the device's, caches flushed
    device_hot_s: list[float] | None = None  # by the device's, in a row
    clock_hz: list[float] | None = None  # the device's clock at each sample after the warm-up
    # a call with all of the work on the `cpu`, and on the `gpu`, after the samples
    beside_s: dict[str, float] | UnsetType = UNSET
    throttle: list[str] = []  # reasons for a lowered clock, from start to end
    discarded: dict[str, str] = {}  # index of `wall_s` -> reason

    @property
    def split(self) -> float | str | None:
        """How two sides share the case: the GPU's share, or the stage assignment. None if one side does all the
        work."""
        return self.gpu_share if self.assignment is UNSET else self.assignment


class Parts(Record, frozen=True, kw_only=True):
    """The time breakdown of one case in one session, in seconds.

    With `result_s` the parts are steps of the timed calls. With `download_s` each part is a sample of its own, with a
    wait before and after it.
    """

    session: int  # its index
    compile_s: float | None = None  # paid once
    first_launch_s: float | None = None  # paid once
    weights_s: float | None = None  # paid once by all sizes together, to bring the weights to the device
    weights_bytes: int | None = None  # of the weights
    alloc_s: list[float] = []  # memory
    upload_s: list[float] = []  # the inputs
    launch_s: list[float] = []  # until the call returns
    sync_s: list[float] = []  # an empty wait
    single_s: list[float] = []  # a launch and its wait
    download_s: list[float] = []  # the outputs
    result_s: list[float] = []  # the output, as soon as the kernel is done
    stage_s: dict[str, list[float]] = {}  # by the name of a side, or of a stage of a pipeline


# What reads the times of a workload's stages: the host's clock around calls that end when they return, events of a
# stream, stamps of passes; or the host's clock with a submit and a wait for each stage, where a device has no stamps.
StageClock = Literal["host", "event", "pass-timestamp", "waited"]


class StageTimes(Record, frozen=True, kw_only=True):
    """The time breakdown of a workload in one session, in seconds. Lists have a value for each round."""

    session: int  # its index
    clock: StageClock  # what reads the times of its stages
    stages: list[str]  # names in order, each once
    alone_s: list[list[float]]  # by stage, each by itself
    chain_s: list[list[float]]  # by stage as it runs between the others, with the clock read around each
    span_s: list[float]  # from the begin of the first stage to the end of the last
    wall_s: list[float]  # one call of the plain chain, without any reading, and its wait
    empty_s: list[float]  # an empty launch and its wait
    # what readings between the stages cost, by the device's clock; empty where that is the host's
    stamping_s: list[float] = []
    # what the host records before the device has its first commands, less that of an empty launch
    first_recording_s: list[float] = []
    # all that the host records for a call, less that of an empty launch; empty where it records nothing
    recording_s: list[float] = []
    # read or written by a call, by the name that the stages of that part begin with
    tokens: dict[str, int] = {}


class AssignmentTimes(Record, frozen=True, kw_only=True):
    """The times by which one session chose where the stages of a workload run, in seconds. Lists have a value for each
    round."""

    session: int  # its index
    clock: StageClock  # what reads the times of its stages
    stages: list[str]  # names, one for each letter of a stage assignment
    cpu_s: list[list[float]]  # by stage, in the chain of the CPU alone
    gpu_s: list[list[float]]  # by stage, in the chain of the GPU alone; empty where the host does it
    cpu_whole_s: list[float]  # the CPU's chain without clock readings, with its wait
    gpu_whole_s: list[float]  # the GPU's chain without clock readings, with its wait
    up_s: dict[str, list[float]]  # one copy to the GPU, by value
    down_s: dict[str, list[float]]  # one copy to the host, by value
    enter_s: list[float]  # an empty launch and its wait
    predicted_s: dict[str, float]  # of both sides alone and of the stage assignments that were then tried
    free_s: float  # the least prediction where copies take no time


class Check(Record, frozen=True, kw_only=True):
    """Verdict of the correctness gate: it passes when `max_error` <= `limit` (= units * u)."""

    ok: bool  # passed
    max_error: float | None  # max |got - want| / scale
    limit: float  # in the same unit
    scale: Literal["value", "terms"]  # what errors are held against
    index: list[int] = []  # where the largest error is
    differing: int | None = None  # choices (tokens, ...) that are not the best in float64; None: there are none


class Stop(Record, frozen=True, kw_only=True):
    """Why sampling of one case ended in one session."""

    session: int  # its index
    reason: StopReason  # why


class SessionFailure(Record, frozen=True, kw_only=True):
    """The failure of a case in one session. Sessions in which it ran and was right keep their blocks."""

    session: int  # its index
    reason: Reason  # of the list of messages
    detail: str  # one sentence
    hint: str | None = None  # what to do
    phase: str | None = None  # what was done then
    stderr_tail: str | None = None  # the last words of the worker


class Measurement(Record, frozen=True, kw_only=True, tag_field="type", tag="measurement"):
    """A case that ran and was right."""

    id: str  # the id of the case
    case: Case  # what was measured
    flops: int  # of one launch
    bytes: int  # compulsory traffic of one launch
    output_bytes: int | None = None  # downloaded where data travels; None: not told
    input_bytes: int | None = None  # uploaded; None: the rest of `bytes`
    op_hash: str  # of the declaration
    kernel_hash: str | None = None  # of the text that ran
    kernel: str | None = None  # the candidate that a device took
    blas: bool | None = None  # the backend's BLAS does most of the work; None: not told
    check: Check  # of the outputs
    answer: list[float] | UnsetType = UNSET  # elements of what a user's function returns in float64
    staging: Staging = "pageable"  # how data reaches the device
    sets: int | UnsetType = UNSET  # of buffers in flight in a pipeline
    one_piece: OnePiece | UnsetType = UNSET  # why the GPU's part of a split moves in one piece
    blocks: list[Block] = []  # the samples
    parts: list[Parts] = []  # where the time goes
    stages: list[StageTimes] = []  # of a network
    assignment_times: list[AssignmentTimes] = []  # of an assigned network
    energy: list[EnergyWindow] | UnsetType = UNSET  # with --energy
    stops: list[Stop] = []  # why sampling ended
    failures: list[SessionFailure] | UnsetType = UNSET  # sessions in which it broke

    @property
    def newest_energy(self) -> EnergyWindow | None:
        """The newest energy window. None if none was measured."""
        return self.energy[-1] if self.energy else None

    @property
    def moved(self) -> tuple[int | None, int | None]:
        """Bytes that a copying call moves (up, down). Both are None if the file does not tell the directions apart."""
        if self.output_bytes is None:
            return None, None
        up = self.bytes - self.output_bytes if self.input_bytes is None else self.input_bytes
        return up, self.output_bytes


class Skip(Record, frozen=True, kw_only=True, tag_field="type", tag="skip"):
    """A case that was not attempted, and why."""

    id: str  # the id of the case
    case: Case  # what was left out
    reason: Reason  # of the list of messages
    detail: str  # one sentence
    hint: str | None = None  # what to do


class Failure(Record, frozen=True, kw_only=True, tag_field="type", tag="failure"):
    """A case that was wrong, or broke in each session that tried it. It has no number; its fields tell the last try."""

    id: str  # the id of the case
    case: Case  # what broke
    reason: Reason  # of the list of messages
    detail: str  # one sentence
    hint: str | None = None  # what to do
    phase: str | None = None  # what was done then
    stderr_tail: str | None = None  # the last words of the worker
    check: Check | None = None  # of the outputs, if they were compared
    failures: list[SessionFailure] | UnsetType = UNSET  # each session in which it broke


class Planned(Record, frozen=True, kw_only=True, tag_field="type", tag="planned"):
    """A case that the run had not reached when it was interrupted."""

    id: str  # the id of the case
    case: Case  # what was to be measured


Outcome = Measurement | Skip | Failure | Planned


def failures_of(outcome: Outcome | None) -> list[SessionFailure]:
    """Return the case's failures, session by session; an empty list if the file has none."""
    return (getattr(outcome, "failures", None) or []) if outcome is not None else []


class RunWarning(Record, frozen=True, kw_only=True):
    """A finding about the run."""

    code: WarningCode  # of the list of messages
    severity: Severity = "warning"  # how grave it is
    message: str  # one sentence
    hint: str = ""  # one sentence of advice
    id: str | None = None  # the case that it is about
    session: int | None = None  # its index
    data: dict[str, float | str] = {}  # figures behind it


def warning(
    code: WarningCode, message: str = "", hint: str = "", *, severity: Severity = "warning"
) -> RunWarning:
    """Return a warning about the whole run. Without `message` or `hint` it has the text of the list of messages."""
    sentence, remedy = WARNINGS[code]
    return RunWarning(code=code, severity=severity, message=message or sentence, hint=hint or remedy)


class Selection(Record, frozen=True, kw_only=True):
    """The choice of what is measured."""

    ops: list[str]  # by name
    sizes: dict[str, list[int]] = {}  # by op; an op that is absent takes its ladder
    dtypes: list[Dtype] = msgspec.field(default_factory=lambda: ["float32"])  # of the elements
    devices: list[str] = []  # by id
    implementations: list[str] = msgspec.field(default_factory=lambda: list(IMPLEMENTATIONS))  # library, tuned
    regimes: list[str] = msgspec.field(default_factory=lambda: list(REGIMES))  # situations, by id
    calls: int = 10  # that share one copy, of `transfer-once`
    # by op its shapes, each a set of params beside the size; absent: the plain shape alone
    params: dict[str, list[dict[str, int]]] = {}
    # kernels beside the default one; `tf32` allows the library to round inputs of float32 products to TF32
    variants: list[str] = []
    filter: list[str] = []  # selectors of cases, of which one has to hold; none given: all cases
    skip: list[str] = []  # selectors of cases, of which none may hold


Scaling = Literal["weak", "strong", "both"]


class Settings(Record, frozen=True, kw_only=True):
    """How to measure (docs/measuring.md)."""

    protocol: int = 3  # changes with what a time means: two never meet
    preset: Literal["quick", "default", "rigorous"] = "default"  # the defaults of the others
    sessions: int = 3  # sets of fresh workers
    min_samples: int = 10  # of a case in a session, at least
    max_samples: int = 100  # of a case in a session, at most
    max_time_s: float = 2.0  # of sampling a case in a session
    precision: float = 0.02  # half the width of an interval, as a share of the time, at which sampling ends
    warmup_s: float = 0.25  # before the samples of a block
    sample_s: float = 5e-3  # the least length of a sample
    case_timeout_s: float = 60.0  # after which a case is given up
    budget_s: float | None = None  # of the whole run; None: no limit
    order: Literal["interleave", "sequential"] = "interleave"  # whether the cases of a workload take turns
    inputs: Literal["random", "zeros", "ones"] = "random"  # what fills them
    cache: Literal["warm", "cold"] = "warm"  # of the CPU, before a sample
    threads: int | None = None  # of the CPU; None: all
    seed: int = 1  # of inputs and of the order
    autotune: bool = True  # a backend may try its kernels once per device
    scaling: Scaling | UnsetType = UNSET  # what several GPUs do at once
    ranks: list[int] | UnsetType = UNSET  # numbers of GPUs of a device group
    energy: bool | UnsetType = UNSET  # a case of each workload is measured beside a counter of energy
    page_locked: bool | UnsetType = UNSET  # the arrays of a GPU's caller are

    def scales(self, how: Scaling) -> bool:
        """Return whether this kind of scaling is measured."""
        return self.scaling in (how, "both")


class Git(Record, frozen=True, kw_only=True):
    """The state of the checkout in which the run was started."""

    commit: str  # its hash
    branch: str | None = None  # None: none is checked out
    dirty: bool | None = None  # files differ from the commit
    commit_time: str | None = None  # UTC


class Ci(Record, frozen=True, kw_only=True):
    """Which CI ran this, where its variables tell."""

    provider: str  # its name
    run_url: str | None = None  # of the job
    runner_name: str | None = None  # the machine's name there
    runner_image: str | None = None  # what the machine was made of


class Environment(Record, frozen=True, kw_only=True):
    """Recorded variables and context; nothing here names a host, a user or a path."""

    variables: dict[str, str] = {}  # those that change times
    context: dict[str, str] = {}  # further facts by name
    git: Git | None = None  # of the working folder
    ci: Ci | None = None  # None: no CI


class Fingerprint(Record, frozen=True, kw_only=True):
    """A hash over named fields, so that a comparison can say *which* field differs."""

    hash: str  # of `fields`
    fields: dict[str, str]  # what it is made of, by name

    @property
    def known(self) -> dict[str, str]:
        """The fields with a known value. A field that one side does not know is no difference."""
        return {name: text for name, text in self.fields.items() if text != "None"}


class Fingerprints(Record, frozen=True, kw_only=True):
    """Machine, devices and software apart: only the first two must agree in a comparison."""

    machine: Fingerprint  # of the host
    device: Fingerprint  # of the devices
    software: Fingerprint  # of libraries and drivers


class IdenticalGpuTimes(Record, frozen=True, kw_only=True):
    """One case on one of several identical GPUs, of which a search measured the first."""

    case_id: str  # that of the case
    device_id: str  # the id of the device
    gpu_id: str | None = None  # points into `machine.gpus`
    blocks_s: list[float] = []  # the median of each block
    reason: str | None = None  # why there is none


class TogetherTimes(Record, frozen=True, kw_only=True):
    """One case on one of several identical GPUs that worked at the same time."""

    session: int  # its index
    case_id: str  # that of the case
    device_id: str  # the id of the device
    gpu_id: str | None = None  # points into `machine.gpus`
    phase: Literal["alone", "together"] = "alone"  # alone: on one of them
    gpus: int = 1  # how many
    repeat: int = 1  # launches make a sample
    at_s: float | None = None  # the moment at which all were to begin, from the session's start
    begin_s: float = 0.0  # of the first sample, from that moment
    ends_s: list[float] = []  # of each sample, from that moment
    reason: str | None = None  # why it failed


class Run(Record, frozen=True, kw_only=True):
    """One `gpubench run`: one file."""

    name: Literal["gpubench-result"] = "gpubench-result"  # the name of the document's format
    schema_version: int = SCHEMA_VERSION  # the version of the document's format
    id: str  # a UUID
    label: str | None = None  # of the user
    tags: list[str] = []  # of the user
    merged: list[str] = []  # ids of the runs whose sessions were joined in it
    tool: dict[str, str] = {}  # versions of gpubench, Python and libraries
    argv: list[str] = []  # the command line, without paths
    started_at: str  # the time of its start, in UTC
    finished_at: str | None = None  # UTC; None: it was interrupted
    # nothing ran: between the commands that added sessions, and between runs that were merged
    paused_s: float | UnsetType = UNSET
    complete: bool = False  # everything planned was tried
    exit_code: int = 0  # of the command
    exit_reason: str = "ok"  # in one word
    selection: Selection  # what is measured
    settings: Settings  # how it is measured
    machine: Machine  # what detection found
    environment: Environment = Environment()  # variables and context
    fingerprint: Fingerprints  # of machine, devices and software
    devices: list[Device] = []  # that were measured
    sessions: list[SessionRecord] = []  # in order of their begin
    outcomes: list[Outcome] = []  # of each case
    identical_gpus: list[IdenticalGpuTimes] | UnsetType = UNSET  # a look at GPUs that a search left out
    together: list[TogetherTimes] | UnsetType = UNSET  # with --scaling weak
    warnings: list[RunWarning] = []  # findings about the run

    @property
    def page_locked(self) -> bool:
        """Whether the arrays that GPUs copy are page-locked. Without a GPU they are not."""
        return self.settings.page_locked is True and any(device.kind != "cpu" for device in self.devices)

    @property
    def origins(self) -> list[str]:
        """The ids of the runs whose sessions this run holds."""
        return self.merged or [self.id]


def fingerprint(fields: Mapping[str, str]) -> Fingerprint:
    """Return the hash over named fields, whatever their order."""
    text = "\n".join(f"{name}={fields[name]}" for name in sorted(fields))
    import hashlib  # no reader needs it

    return Fingerprint(hash=hashlib.sha256(text.encode()).hexdigest()[:12], fields=dict(fields))
