"""The result file `gpubench-result`, version 4: raw samples and conditions, never an estimate.

A field's name contains its unit (`_s`, `_bytes`, `_hz`, `_w`, `_c`, `_share` from 0 to 1). A quantity that was not
measured is None with a reason beside it, never 0. Other unknown values are None. Readers ignore unknown fields.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from gpubench.base import BUSY_SHARE, hash_text
from gpubench.base.messages import WARNINGS, Reason, WarningCode
from gpubench.kernels.contract.op import Dtype
from gpubench.result.case import COMPOSED, IMPLEMENTATIONS, QUEUED, REGIMES, RESIDENT, Case, RegimeKind
from gpubench.result.machine import Machine


class Record(msgspec.Struct, frozen=True):
    """The base of the parts of a result, which are immutable."""


class EnergyWindow(Record, frozen=True, kw_only=True):
    """Some seconds in which a device ran only calls of one case, and the power by an energy counter."""

    session: int  # the index of the session
    source: str  # the counter: "nvml" or "hwmon" of the GPU's board, "rapl" of the CPU packages
    window_s: float = 0.0  # the seconds that the calls took
    calls: int = 0  # the number of calls in the window
    power_w: float | None = None  # the mean power between the first and the last step of the counter
    steps: int = 0  # the number of steps (changes) of the counter in the window, after its first one
    idle_w: list[float] = []  # the power of the device without calls, before and after the window
    sensor_w: float | None = None  # the mean reading of the power sensor in the window; None: no sensor
    reason: str | None = None  # the reason why `power_w` is None

    @property
    def joules(self) -> float | None:
        """The energy of one call in joules, including the idle power of the device. None if it is unknown."""
        return None if self.power_w is None or not self.calls else self.power_w * self.window_s / self.calls


class Blas(Record, frozen=True, kw_only=True):
    """The BLAS that NumPy calls, as threadpoolctl names it."""

    library: str  # the name: openblas, mkl, ...
    version: str | None = None  # the version; None: unknown
    kernel: str | None = None  # the CPU architecture for which it computes


class WorkerRecord(Record, frozen=True, kw_only=True):
    """One worker process, with the costs of its clock and of launches that compute nothing."""

    device_id: str  # the id of the device
    threads: int | None = None  # the number of CPU threads that compute; None: no CPU takes part
    blas: Blas | None = None  # the BLAS that NumPy calls; None: none is known
    env: dict[str, str] = {}  # the environment variables that set numbers of threads
    clock_step_s: float = 0.0  # the resolution of the host's clock; 0: not measured
    clock_cost_s: float = 0.0  # the time of one reading of the clock; 0: not measured
    open_s: float | None = None  # the time to open the device
    overhead_s: list[float] = []  # the times of an empty launch and its wait; empty: not measured


class Peak(Record, frozen=True, kw_only=True):
    """The peak rates of one device in one session. A rate is None if it was not measured."""

    device_id: str  # the id of the device
    dtype: str | None = None  # the dtype of the arithmetic; None: the peak holds for all dtypes
    bytes_per_s: float | None = None  # the rate of the memory
    flops_per_s: float | None = None  # the rate of arithmetic
    upload_bytes_per_s: float | None = None  # the rate of the link from page-locked memory
    download_bytes_per_s: float | None = None  # the rate of the link to page-locked memory
    own: bool = False  # whether it limits this backend alone; others may reach more on it, with tensor cores
    reason: str | None = None  # the reason why there is no peak


class Telemetry(Record, frozen=True, kw_only=True):
    """Clocks, temperature, power and link of one device, read beside the blocks. Each list has one value for
    each time in `t_s` (None: unknown), but the lists of the link are empty in older files."""

    device_id: str  # the id of the device
    t_s: list[float] = []  # the times of the readings, from the start of the session
    clock_hz: list[float | None] = []  # the clock of the cores
    memory_clock_hz: list[float | None] = []  # the clock of the memory
    temperature_c: list[float | None] = []  # the temperature of the chip
    power_w: list[float | None] = []  # the power of the board
    throttle: list[list[str]] = []  # the reasons for a lowered clock; empty: it is not lowered
    pcie_generation: list[int | None] = []  # the present generation of the link
    pcie_width: list[int | None] = []  # the present number of lanes


class SessionRecord(Record, frozen=True, kw_only=True):
    """One session: a set of fresh worker processes."""

    index: int  # the index of the session, from 0 on
    started_at: str  # the time of its start, in UTC
    superseded: bool = False  # whether reports ignore it: a quieter repetition counts, or nothing is left of it
    repeats: int | None = None  # the index of the disturbed session that this one repeats, if any
    foreign_cpu_share: float | None = None  # the share of the CPUs' time that other processes took
    steal_share: float | None = None  # the share of the CPU time asked for that the hypervisor took
    workers: list[WorkerRecord] = []  # one record for each device
    peaks: list[Peak] = []  # the measured peaks
    telemetry: list[Telemetry] = []  # clocks and temperatures, sampled beside the blocks

    @property
    def planned_index(self) -> int:
        """The session's index in the plan: its own, or that of the session which it repeats."""
        return self.index if self.repeats is None else self.repeats

    @property
    def disturbance(self) -> float:
        """The larger of `foreign_cpu_share` and `steal_share`, where an unknown share counts as 0."""
        return max(self.foreign_cpu_share or 0.0, self.steal_share or 0.0)

    @property
    def contended(self) -> bool:
        """Whether `disturbance` exceeds BUSY_SHARE, so that the times may be too long."""
        return self.disturbance > BUSY_SHARE


SCHEMA_VERSION = 4
DeviceKind = Literal["cpu", "gpu", "software", "hybrid"]
# In this order: precise enough, most samples, most time, the case's deadline, the run's budget.
StopReason = Literal["precision", "max-samples", "max-time", "timeout", "budget"]
# How data reaches the device. pageable: from ordinary memory, by the library's own call; pinned: through
# page-locked memory; mapped: through staging buffers that stay mapped; in-place: not at all, because the device
# computes in host memory.
Staging = Literal["pageable", "pinned", "mapped", "in-place"]
# Why the GPU's share of a split moves in one piece. no-gain: several pieces were not faster; no-streams: the
# device cannot copy while it computes; ordinary-arrays: the caller's arrays are not page-locked; uncut: a
# piece needs more than some rows of an operand; small: little is sent.
OnePiece = Literal["no-gain", "no-streams", "ordinary-arrays", "uncut", "small"]
# The steps of a copying call, in order.
PipelineStage = Literal["upload", "kernel", "download"]
PIPELINE_STAGES: tuple[PipelineStage, ...] = ("upload", "kernel", "download")
Severity = Literal["info", "warning", "error"]
# The assumed size of a last-level cache whose size is unknown. No GPU so far has a larger one.
UNKNOWN_CACHE_BYTES = 256 * 2**20
# Below this many bytes, the time of a transfer depends on the calls, not on the link.
LINK_BYTES = 1 << 20


class DeviceClock(Record, frozen=True, kw_only=True):
    """The clock of a device."""

    # derived: the device has no clock, and device times are differences of wall times
    kind: Literal["event", "pass-timestamp", "derived"]
    step_s: float  # the resolution of the clock


class Theoretical(Record, frozen=True, kw_only=True):
    """The peaks that the vendor states, if a trustworthy source knows them."""

    bytes_per_s: float | None = None  # the peak of the memory
    flops_per_s: dict[str, float] = {}  # the peak of arithmetic, by dtype
    source: str | None = None  # the source of the peaks


class Identity(Record, frozen=True, kw_only=True):
    """The facts by which detection recognises a device. Its name is not one, as drivers name it differently."""

    uuid: str | None = None  # the UUID as the driver reports it
    pci: str | None = None  # the PCI address, such as "0000:09:00.0"
    vendor_id: int | None = None  # the PCI id of the vendor
    device_id: int | None = None  # the PCI id of the device
    driver: str | None = None  # the driver that lists the device, if several drivers have the same interface


class Device(Record, frozen=True, kw_only=True):
    """A device of a backend. A GPU that two backends drive is two devices."""

    id: str  # the id, such as `cupy:0`
    backend: str  # the name of the backend
    kind: DeviceKind  # the kind of device
    name: str  # the name that its driver reports
    api: str  # host, cuda, hip, rocm, vulkan, metal, dx12, or another word of the backend
    driver: str | None = None  # the version of its driver
    gpu_id: str | None = None  # the id of the GPU in `machine.gpus`
    memory_bytes: int | None = None  # the size of its memory
    usable_bytes: int | None = None  # the memory that its worker may use; None: unknown
    clock: DeviceClock | None = None  # the device's clock; None if there is none, and none is derived
    theoretical: Theoretical = Theoretical()  # the peaks that the vendor states
    unified: bool = False  # whether the device computes in the host's memory, like an integrated GPU or an APU
    cache_bytes: int | None = None  # the size of its last-level cache, if the backend knows it
    identity: Identity | None = None  # sent from the worker to detection; removed before the file is written
    gpu_ids: list[str] = []  # for a device group: `gpu_id` of each rank
    identities: list[Identity] = []  # for a device group: `identity` of each rank

    @property
    def own_clock(self) -> DeviceClock | None:
        """The clock of the device. None if it has none, or if it is derived from the host's clock."""
        return None if self.clock is None or self.clock.kind == "derived" else self.clock

    @property
    def resident_regime(self) -> RegimeKind:
        """The regime of queued calls on data on the device: `resident` for a CPU, else `resident-queued`."""
        return RESIDENT if self.kind == "cpu" else QUEUED

    @property
    def composed(self) -> bool:
        """Whether the device combines a device of another backend with the CPU, like `hybrid:cupy:0`."""
        return self.backend in COMPOSED


class Block(Record, frozen=True, kw_only=True):
    """The samples of one case in one round. Every time in them is in seconds per launch."""

    session: int  # the index of the session
    round: int  # the index of the round in the session
    position: int  # the place of the block in the round
    phase: Literal["main", "sweep"] = "main"  # sweep: one of the shares or stage assignments that are tried
    gpu_share: float | None = None  # the GPU's share of a split, from 0 to 1
    gpu_pieces: int | UnsetType = UNSET  # in how many pieces the GPU's work moves, also in `beside_s`
    assignment: str | UnsetType = UNSET  # the side of each stage of an assigned workload, as letters c and g
    repeat: int  # the number of launches in a sample; in transfer-once: copies times calls per copy
    hot_repeat: int | None = None  # the number of launches in a sample of `device_hot_s`
    warmup: int = 0  # the number of warm-up samples at the start of `wall_s`
    t_s: float = 0.0  # the start of the block, from the start of the session
    wall_s: list[float]  # the samples by the host's clock
    device_cold_s: list[float] | None = None  # the samples by the device's clock, with flushed caches
    device_hot_s: list[float] | None = None  # the samples by the device's clock, for launches in a row
    clock_hz: list[float] | None = None  # the clock rate of the device at each sample after the warm-up
    beside_s: dict[str, float] | UnsetType = UNSET  # by side, `cpu` or `gpu`: the time of a call on it alone
    throttle: list[str] = []  # the reasons for a lowered clock during the block
    discarded: dict[str, str] = {}  # by the index of a discarded sample in `wall_s`: the reason

    @property
    def split(self) -> float | str | None:
        """The GPU's share or the stage assignment of a case on two sides. None for other cases."""
        return self.gpu_share if self.assignment is UNSET else self.assignment


class Parts(Record, frozen=True, kw_only=True):
    """Seconds of a call's parts in one session: steps of timed calls (`result_s`), or timed alone (`download_s`)."""

    session: int  # the index of the session
    compile_s: float | None = None  # the compilation, paid once
    first_launch_s: float | None = None  # the first launch, paid once
    weights_s: float | None = None  # the copy of the weights to the device, paid once for all sizes
    weights_bytes: int | None = None  # the size of the weights
    alloc_s: list[float] = []  # the allocation of memory
    upload_s: list[float] = []  # the copy of the inputs to the device
    launch_s: list[float] = []  # the time until the call of the launch returns
    sync_s: list[float] = []  # a wait for an idle device
    single_s: list[float] = []  # one launch and its wait
    download_s: list[float] = []  # the copy of the outputs to the host
    result_s: list[float] = []  # the wait for the kernel and the copy of the outputs to the host
    stage_s: dict[str, list[float]] = {}  # the times of the sides, or of the stages of a pipeline, by name


# The clock that times the stages of a workload. host: the host's, around calls that end when they return; event:
# events of a stream; pass-timestamp: timestamps of passes; waited: the host's, with a submit and a wait for each
# stage, for a device without a clock.
StageClock = Literal["host", "event", "pass-timestamp", "waited"]


class StageTimes(Record, frozen=True, kw_only=True):
    """The time breakdown of a workload in one session, in seconds. Each list has one value for each round."""

    session: int  # the index of the session
    clock: StageClock  # the clock that times the stages
    stages: list[str]  # the names of the stages, in order
    alone_s: list[list[float]]  # for each stage: its time by itself
    chain_s: list[list[float]]  # for each stage: its time in the chain of all stages
    span_s: list[float]  # the time from the start of the first stage to the end of the last
    wall_s: list[float]  # one call of the chain without clock readings, and its wait
    empty_s: list[float]  # an empty launch and its wait
    stamping_s: list[float] = []  # what the clock readings cost; empty for the host's clock
    # the host's time to record the first commands of a call, less that of an empty launch
    first_recording_s: list[float] = []
    recording_s: list[float] = []  # the same for all commands of a call; empty: the device records none
    tokens: dict[str, int] = {}  # the tokens read or written, by the first word of the stages' names


class AssignmentTimes(Record, frozen=True, kw_only=True):
    """Seconds by which one session assigned a workload's stages to CPU and GPU, a value for each round."""

    session: int  # the index of the session
    clock: StageClock  # the clock that times the stages
    stages: list[str]  # the names of the stages, one for each letter of a stage assignment
    cpu_s: list[list[float]]  # for each stage: its time in the chain on the CPU
    gpu_s: list[list[float]]  # for each stage: its time in the chain on the GPU; empty for host stages
    cpu_whole_s: list[float]  # the CPU's chain without clock readings, with its wait
    gpu_whole_s: list[float]  # the GPU's chain without clock readings, with its wait
    up_s: dict[str, list[float]]  # one copy to the GPU, by the name of the copied value
    down_s: dict[str, list[float]]  # one copy to the host, by the name of the copied value
    enter_s: list[float]  # an empty launch on the GPU and its wait
    predicted_s: dict[str, float]  # the predicted time by assignment: each side alone, and those tried
    free_s: float  # the least predicted time if copies took no time


class Check(Record, frozen=True, kw_only=True):
    """The verdict of the correctness gate. It passes if `max_error` <= `limit`."""

    ok: bool  # whether the output passed
    max_error: float | None  # the largest |output - reference| / scale; None: it is not finite
    limit: float  # the largest allowed `max_error`
    scale: Literal["value", "terms"]  # the scale: |reference|, or the size of the terms that it sums up
    index: list[int] = []  # the index of the element with the largest error, along each axis
    # the choices (such as tokens) that differ from those of the reference; None: the op makes none
    differing: int | None = None


class Stop(Record, frozen=True, kw_only=True):
    """The reason why the sampling of one case ended in one session."""

    session: int  # the index of the session
    reason: StopReason  # the reason


class SessionFailure(Record, frozen=True, kw_only=True):
    """The failure of a case in one session. The sessions in which the case passed keep their blocks."""

    session: int  # the index of the session
    reason: Reason  # its code in the list of messages
    detail: str  # the reason in one sentence
    hint: str | None = None  # the remedy
    phase: str | None = None  # the step in which it failed
    stderr_tail: str | None = None  # the end of the worker's standard error


class Measurement(Record, frozen=True, kw_only=True, tag_field="type", tag="measurement"):
    """A case that ran and passed its checks."""

    id: str  # the id of the case
    case: Case  # the measured case
    flops: int  # the floating-point operations of one launch
    bytes: int  # the bytes that one launch has to move
    output_bytes: int | None = None  # the bytes that a copying call downloads; None: unknown
    input_bytes: int | None = None  # the bytes that a copying call uploads; None: the rest of `bytes`
    op_hash: str  # the hash of the op's declaration
    kernel_hash: str | None = None  # the hash of the kernel's source text
    kernel: str | None = None  # the kernel chosen among several, or the library of a user's program
    blas: bool | None = None  # whether the backend's BLAS does most of the work; None: unknown
    check: Check  # the check of the outputs
    answer: list[float] | UnsetType = UNSET  # some elements of the reference; for a user's function
    staging: Staging = "pageable"  # how data reaches the device
    sets: int | UnsetType = UNSET  # the number of sets of buffers in flight, for streamed calls
    one_piece: OnePiece | UnsetType = UNSET  # the reason why the GPU's share of a split moves in one piece
    blocks: list[Block] = []  # the samples
    parts: list[Parts] = []  # the time breakdown of each session
    stages: list[StageTimes] = []  # the stage times of a workload, by session
    assignment_times: list[AssignmentTimes] = []  # the times that chose the stage assignments, by session
    energy: list[EnergyWindow] | UnsetType = UNSET  # the energy windows, with --energy
    stops: list[Stop] = []  # why sampling ended, by session
    failures: list[SessionFailure] | UnsetType = UNSET  # the sessions in which the case failed

    @property
    def newest_energy(self) -> EnergyWindow | None:
        """The newest energy window. None if none was measured."""
        return self.energy[-1] if self.energy else None

    @property
    def moved(self) -> tuple[int | None, int | None]:
        """The bytes that a copying call moves, as (up, down). Both are None if the file does not state them."""
        if self.output_bytes is None:
            return None, None
        up = self.bytes - self.output_bytes if self.input_bytes is None else self.input_bytes
        return up, self.output_bytes


class Skip(Record, frozen=True, kw_only=True, tag_field="type", tag="skip"):
    """A case that was not attempted, with the reason."""

    id: str  # the id of the case
    case: Case  # the case
    reason: Reason  # its code in the list of messages
    detail: str  # the reason in one sentence
    hint: str | None = None  # the remedy


class Failure(Record, frozen=True, kw_only=True, tag_field="type", tag="failure"):
    """A case that was wrong, or that failed in every session. The fields describe its last attempt."""

    id: str  # the id of the case
    case: Case  # the case
    reason: Reason  # its code in the list of messages
    detail: str  # the reason in one sentence
    hint: str | None = None  # the remedy
    phase: str | None = None  # the step in which it failed
    stderr_tail: str | None = None  # the end of the worker's standard error
    check: Check | None = None  # the check of the outputs, if they were compared
    failures: list[SessionFailure] | UnsetType = UNSET  # the failure of each session


class Planned(Record, frozen=True, kw_only=True, tag_field="type", tag="planned"):
    """A case that the run had not reached when it was interrupted."""

    id: str  # the id of the case
    case: Case  # the case


Outcome = Measurement | Skip | Failure | Planned


def failures_of(outcome: Outcome | None) -> list[SessionFailure]:
    """Return the failures of a case in its sessions. The list is empty without failures or an outcome."""
    return getattr(outcome, "failures", None) or []


class RunWarning(Record, frozen=True, kw_only=True):
    """A warning about a run, one of its sessions or one of its cases."""

    code: WarningCode  # its code in the list of messages
    severity: Severity = "warning"  # its severity
    message: str  # the warning in one sentence
    hint: str = ""  # one sentence of advice
    id: str | None = None  # the id of the case that the warning is about
    session: int | None = None  # the index of the session that the warning is about
    data: dict[str, float | str] = {}  # the figures behind the warning, by name


def warning(code: WarningCode, message: str = "", hint: str = "", **fields: Any) -> RunWarning:
    """Return a warning with these `fields` of RunWarning. An empty `message` or `hint` is replaced by the
    standard text of the code."""
    sentence, remedy = WARNINGS[code]
    return RunWarning(code=code, message=message or sentence, hint=hint or remedy, **fields)


class Selection(Record, frozen=True, kw_only=True):
    """The choice of the cases that are measured."""

    ops: list[str]  # the names of the ops
    sizes: dict[str, list[int]] = {}  # the sizes of each op; an op that is missing gets its own ladder
    dtypes: list[Dtype] = msgspec.field(default_factory=lambda: ["float32"])  # the dtypes of the elements
    devices: list[str] = []  # the ids of the devices
    implementations: list[str] = msgspec.field(default_factory=lambda: list(IMPLEMENTATIONS))  # library, tuned
    regimes: list[str] = msgspec.field(default_factory=lambda: list(REGIMES))  # the regimes
    calls: int = 10  # the number of calls that share one copy in `transfer-once`
    params: dict[str, list[dict[str, int]]] = {}  # the params other than the size, by op; {}: no op has any
    variants: list[str] = []  # kernels beside the default; `tf32` allows products to round to TF32
    filter: list[str] = []  # selectors, at least one of which must select the case; empty: all cases
    skip: list[str] = []  # selectors, none of which may select the case


Scaling = Literal["weak", "strong", "both"]


class Settings(Record, frozen=True, kw_only=True):
    """The settings of the measurement (docs/measuring.md)."""

    protocol: int = 4  # the meaning of a time; results of different protocols are never compared
    preset: Literal["quick", "default", "rigorous"] = "default"  # the source of the other defaults
    sessions: int = 3  # the number of sessions
    min_samples: int = 10  # the least number of samples of a case in a session
    max_samples: int = 100  # the largest number of samples of a case in a session
    max_time_s: float = 2.0  # the longest time for the samples of a case in a session
    precision: float = 0.02  # sampling ends when the 95 % interval's half-width is this share of the time
    warmup_s: float = 0.25  # the warm-up before the samples of a block
    sample_s: float = 5e-3  # the least duration of a sample
    case_timeout_s: float = 60.0  # the time after which a case is given up
    budget_s: float | None = None  # the time for the whole run; None: no limit
    order: Literal["interleave", "sequential"] = "interleave"  # whether the cases of a workload take turns
    inputs: Literal["random", "zeros", "ones"] = "random"  # the values of the inputs
    cache: Literal["warm", "cold"] = "warm"  # cold: the caches of CPU and device are flushed before each sample
    threads: int | None = None  # the number of CPU threads; None: all
    seed: int = 1  # the seed of the inputs and of the order
    autotune: bool = True  # whether a backend may time its kernels once to choose among them
    scaling: Scaling | UnsetType = UNSET  # the kinds of scaling that are measured over several GPUs
    ranks: list[int] | UnsetType = UNSET  # the numbers of GPUs in the measured device groups
    energy: bool | UnsetType = UNSET  # whether the energy of a case of each workload is measured
    page_locked: bool | UnsetType = UNSET  # whether the arrays of a GPU's caller are page-locked

    def scales(self, how: Scaling) -> bool:
        """Return whether this kind of scaling is measured."""
        return self.scaling in (how, "both")


# The settings that change the meaning of a sample. The number of samples and the deadlines do not.
PROTOCOL = ("protocol", "inputs", "seed", "cache", "warmup_s", "order")


class Git(Record, frozen=True, kw_only=True):
    """The state of the Git checkout in which the run was started."""

    commit: str  # the hash of the commit
    branch: str | None = None  # the branch; None if none is checked out
    dirty: bool | None = None  # whether files differ from the commit
    commit_time: str | None = None  # the time of the commit, with its offset from UTC


class Ci(Record, frozen=True, kw_only=True):
    """The continuous integration that ran this, as its environment variables describe it."""

    provider: str  # the name of the provider
    run_url: str | None = None  # the address of the job
    runner_image: str | None = None  # the image of the machine


class Environment(Record, frozen=True, kw_only=True):
    """The recorded environment variables and context. They contain no name of a host, a user or a path."""

    variables: dict[str, str] = {}  # the variables that can change times
    context: dict[str, str] = {}  # further facts that the user gave, by name
    git: Git | None = None  # the Git checkout of the working folder
    ci: Ci | None = None  # the continuous integration; None outside of one


class Fingerprint(Record, frozen=True, kw_only=True):
    """A hash of named fields. The fields are kept, so that a comparison can tell which of them differs."""

    hash: str  # the hash of `fields`
    fields: dict[str, str]  # the fields, by name

    @property
    def known(self) -> dict[str, str]:
        """The fields with a known value. An unknown field is no difference."""
        return {name: text for name, text in self.fields.items() if text != "None"}


class Fingerprints(Record, frozen=True, kw_only=True):
    """The identity of machine, devices and software. Only machine and devices must agree in a comparison."""

    machine: Fingerprint  # the identity of the host
    device: Fingerprint  # the identity of the devices
    software: Fingerprint  # the versions of libraries and drivers


class IdenticalGpuTimes(Record, frozen=True, kw_only=True):
    """The times of one case on one of several identical GPUs. Only the first of them has all cases."""

    case_id: str  # the id of the case
    device_id: str  # the id of the device
    gpu_id: str | None = None  # the id of the GPU in `machine.gpus`
    blocks_s: list[float] = []  # the median of each block, in seconds
    reason: str | None = None  # the reason why there is no time


class TogetherTimes(Record, frozen=True, kw_only=True):
    """The times of one case on one of several identical GPUs, of which one works alone or all at once."""

    session: int  # the index of the session
    case_id: str  # the id of the case
    device_id: str  # the id of the device
    gpu_id: str | None = None  # the id of the GPU in `machine.gpus`
    phase: Literal["alone", "together"] = "alone"  # `alone`: only this GPU works
    gpus: int = 1  # the number of GPUs that work at once; 1 in the phase `alone`
    repeat: int = 1  # the number of launches in a sample
    at_s: float | None = None  # the moment at which all GPUs were to start, from the start of the session
    begin_s: float = 0.0  # the start of the first sample, from `at_s`
    ends_s: list[float] = []  # the end of each sample, from `at_s`
    reason: str | None = None  # the reason for a failure


class Run(Record, frozen=True, kw_only=True):
    """One run of `gpubench run`, which is one file."""

    name: Literal["gpubench-result"] = "gpubench-result"  # the name of the document's format
    schema_version: int = SCHEMA_VERSION  # the version of the document's format
    id: str  # the id of the run, a UUID
    label: str | None = None  # the label that the user gave the run
    tags: list[str] = []  # the tags that the user gave the run
    merged: list[str] = []  # the ids of the runs that were joined in this one
    tool: dict[str, str] = {}  # the versions of gpubench, Python and libraries
    argv: list[str] = []  # the command line, without paths
    started_at: str  # the time of its start, in UTC
    finished_at: str | None = None  # the time of its end, in UTC; None if the run was interrupted
    paused_s: float | UnsetType = UNSET  # the seconds in which nothing was measured, before sessions were added
    complete: bool = False  # whether the run reached its own end, even if that was the end of its budget
    exit_code: int = 0  # the exit code of the command
    exit_reason: str = "ok"  # one word that explains the exit code
    selection: Selection  # the choice of the measured cases
    settings: Settings  # the settings of the measurement
    machine: Machine  # the machine, as detection describes it
    environment: Environment = Environment()  # the environment variables and the context
    fingerprint: Fingerprints  # the identity of machine, devices and software
    devices: list[Device] = []  # the measured devices
    sessions: list[SessionRecord] = []  # the sessions, in the order of their start
    outcomes: list[Outcome] = []  # the outcome of each case
    identical_gpus: list[IdenticalGpuTimes] | UnsetType = UNSET  # times on GPUs that the cases leave out
    together: list[TogetherTimes] | UnsetType = UNSET  # times on several GPUs at once, with --scaling weak
    warnings: list[RunWarning] = []  # warnings about the run

    @property
    def page_locked(self) -> bool:
        """Whether `--page-locked` was asked for, and a GPU was measured."""
        return self.settings.page_locked is True and any(device.kind != "cpu" for device in self.devices)

    @property
    def measurements(self) -> list[Measurement]:
        """The outcomes of the cases that ran and passed their checks."""
        return [outcome for outcome in self.outcomes if isinstance(outcome, Measurement)]

    @property
    def counting(self) -> list[SessionRecord]:
        """The sessions that count: all that are not superseded."""
        return [session for session in self.sessions if not session.superseded]

    @property
    def origins(self) -> list[str]:
        """The ids of the runs whose sessions this run contains."""
        return self.merged or [self.id]


def fingerprint(fields: Mapping[str, str]) -> Fingerprint:
    """Return the fingerprint of named fields. Their order does not matter."""
    text = "\n".join(f"{name}={fields[name]}" for name in sorted(fields))
    return Fingerprint(hash=hash_text(text), fields=dict(fields))
