"""The `gpubench-detect` document, version 2: what a machine is made of, and what to run on it.

A `Fact` holds a value with its source, or None with the reason. Other fields are plain values. Sizes are bytes,
frequencies hertz, powers watts. CPU sets are strings in list form ("0-3,8"). Every field has a default, so a part that
was not probed says `not_probed`, never 0.
"""

from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

T = TypeVar("T")

Status = Literal[
    "ok", "conflict",
    "absent", "unsupported", "permission", "mismatch", "invalid", "timeout", "crashed", "not_probed",
]  # fmt: skip


class Alternative(msgspec.Struct, frozen=True):
    """The value of another source for the same thing."""

    value: bool | int | float | str | list[int] | None  # what that source says
    source: str  # who says it


class Fact(msgspec.Struct, Generic[T], frozen=True):
    """A value with its source. Unknown is None with a status, never 0 and never a default."""

    value: T | None  # None unless `status` is "ok" or "conflict"
    status: Status  # how the value came about, or why there is none
    source: str | None  # who told it; a value always has one
    note: str | msgspec.UnsetType = msgspec.UNSET  # what else is to be said of it
    alternatives: list[Alternative] | msgspec.UnsetType = msgspec.UNSET  # what other sources say


SCHEMA_VERSION = 2
Mode = Literal["cpu", "gpu", "hybrid"]
Confidence = Literal["provisional", "verified", "measured"]

BoolFact = Fact[bool]
IntFact = Fact[int]
FloatFact = Fact[float]
StrFact = Fact[str]
IntsFact = Fact[list[int]]
StrsFact = Fact[list[str]]

NOT_PROBED: Fact[Any] = Fact(None, "not_probed", None)


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """One source that was asked."""

    name: str  # the source
    status: Status  # "ok", or why its facts are missing
    version: str | None = None  # of the library or tool
    took_s: float = 0.0  # time of the answer
    error_code: str | None = None  # the source's own code
    hint: str | None = None  # what to do about it


class MachineWarning(msgspec.Struct, frozen=True, kw_only=True):
    """Something odd about the machine."""

    code: str  # for programs
    text: str  # one sentence
    refs: list[str] = []  # the GPUs or files that it is about


class Platform(msgspec.Struct, frozen=True, kw_only=True):
    """Operating system and firmware."""

    os: StrFact = NOT_PROBED  # its name
    kernel: StrFact = NOT_PROBED  # its release
    arch: StrFact = NOT_PROBED  # of the processor
    hypervisor: StrFact = NOT_PROBED  # "none" only where x86 says so
    container: StrFact = NOT_PROBED  # which kind this process is in
    wsl: BoolFact = NOT_PROBED  # Windows Subsystem for Linux
    dmi_vendor: StrFact = NOT_PROBED  # the maker of the machine
    dmi_product: StrFact = NOT_PROBED  # the maker's name of the machine


class CpuKind(msgspec.Struct, frozen=True, kw_only=True):
    """CPUs that are alike. Counts are of online CPUs."""

    rank: int  # 0 is the fastest kind
    cores: int | None  # of this kind; None: not told
    logical: int  # hardware threads
    cpus: str  # their numbers, as "0-3,8"
    max_hz: int | None = None  # the highest clock
    base_hz: int | None = None  # the guaranteed clock
    capacity: int | None = None  # the kernel's figure for its speed
    part: str | None = None  # the maker's number of the core


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    """All caches of one level, type and size."""

    level: int  # 1 is nearest to the core
    type: Literal["data", "instruction", "unified"]  # what it holds
    size_bytes: int  # of one of them
    instances: int  # distinct ones


class CpuBlas(msgspec.Struct, frozen=True, kw_only=True):
    """A BLAS library that NumPy loads, and the threads it starts by default."""

    library: str  # openblas, mkl, ...
    version: str | None = None  # None: not told
    threads: int | None = None  # that it starts by default
    kernel: str | None = None  # the architecture that it takes the CPU for


class Cpu(msgspec.Struct, frozen=True, kw_only=True):
    """The processors of the host, and what of them this process may use."""

    model: StrFact = NOT_PROBED  # its name
    vendor: StrFact = NOT_PROBED  # its maker
    packages: IntFact = NOT_PROBED  # sockets
    cores: IntFact = NOT_PROBED  # physical ones
    logical: IntFact = NOT_PROBED  # hardware threads
    online_cpus: StrFact = NOT_PROBED  # numbers of those that run
    possible: IntFact = NOT_PROBED  # CPUs that the kernel is built for
    present: IntFact = NOT_PROBED  # CPUs that are plugged in
    offline: IntFact = NOT_PROBED  # CPUs that are switched off
    smt: StrFact = NOT_PROBED  # whether cores run several threads
    kinds: Fact[list[CpuKind]] = NOT_PROBED  # groups of CPUs that are alike
    available: IntFact = NOT_PROBED  # CPUs that this process may keep busy
    affinity: StrFact = NOT_PROBED  # numbers that the process is bound to
    cpuset: StrFact = NOT_PROBED  # numbers that its control group allows
    quota_cpus: FloatFact = NOT_PROBED  # CPUs' worth of time that its control group allows
    limited_by: StrFact = NOT_PROBED  # the tightest of these bounds
    caches: Fact[list[Cache]] = NOT_PROBED  # by level, type and size
    isa: StrsFact = NOT_PROBED  # extensions of the instruction set
    governor: StrFact = NOT_PROBED  # what chooses the clock
    now_hz: IntFact = NOT_PROBED  # the highest clock that a CPU has now
    base_hz: IntFact = NOT_PROBED  # the guaranteed clock
    max_hz: IntFact = NOT_PROBED  # the highest clock that a CPU can have
    blas: Fact[list[CpuBlas]] = NOT_PROBED  # libraries that NumPy loads


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Host memory."""

    total_bytes: IntFact = NOT_PROBED  # `os_total_bytes` without GPU memory that the kernel counts as RAM
    os_total_bytes: IntFact = NOT_PROBED  # what the kernel counts as RAM
    gpu_numa_bytes: IntFact = NOT_PROBED  # GPU memory among it
    available_bytes: IntFact = NOT_PROBED  # free, or freed when asked for
    limit_bytes: IntFact = NOT_PROBED  # of the control group
    usable_bytes: IntFact = NOT_PROBED  # what this process may hope for
    limited_by: StrFact = NOT_PROBED  # what bounds that
    swap_total_bytes: IntFact = NOT_PROBED  # on disk


class NumaNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node."""

    id: int  # the kernel's number
    cpus: StrFact = NOT_PROBED  # their numbers
    memory_bytes: IntFact = NOT_PROBED  # of the node
    kind: StrFact = NOT_PROBED  # dram, gpu, hbm, cxl or pmem, where a source tells


class Numa(msgspec.Struct, frozen=True, kw_only=True):
    """The NUMA nodes of the host."""

    ids: IntsFact = NOT_PROBED  # may be sparse
    allowed_ids: IntsFact = NOT_PROBED  # those that this process may take memory of
    nodes: list[NumaNode] = []  # each with its CPUs and memory


class Driver(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel driver that is bound to a device."""

    name: StrFact = NOT_PROBED  # as the kernel calls it
    version: StrFact = NOT_PROBED  # as it says itself
    cuda: StrFact = NOT_PROBED  # the newest CUDA that it serves, as 13.0


class GpuMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of a GPU."""

    dedicated_bytes: IntFact = NOT_PROBED  # on the card
    reserved_bytes: IntFact = NOT_PROBED  # kept by driver and firmware
    free_bytes: IntFact = NOT_PROBED  # now
    visible_bytes: IntFact = NOT_PROBED  # that the CPU can map
    shared_limit_bytes: IntFact = NOT_PROBED  # a window on RAM (GTT)
    usable_bytes: IntFact = NOT_PROBED  # what one process may hope for
    unified: BoolFact = NOT_PROBED  # it is the host's memory
    numa_node: IntFact = NOT_PROBED  # on which the CPU sees it


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """A slice of a GPU that programs see as a device (MIG instance, compute partition)."""

    id: str  # of the instance
    units: IntFact = NOT_PROBED  # as `Compute.units`
    memory_bytes: IntFact = NOT_PROBED  # of the instance


class Compute(msgspec.Struct, frozen=True, kw_only=True):
    """The units, clock and partitions of a GPU."""

    arch: StrFact = NOT_PROBED  # as gfx90a or sm_90
    units: IntFact = NOT_PROBED  # multiprocessors, compute units or Xe cores
    now_hz: IntFact = NOT_PROBED  # the clock now
    max_hz: IntFact = NOT_PROBED  # the highest clock
    ecc: BoolFact = NOT_PROBED  # memory is checked for errors
    mode: StrFact = NOT_PROBED  # who may use it at a time
    partitions: list[Partition] = []  # empty where it is not partitioned


class LinkPath(msgspec.Struct, frozen=True, kw_only=True):
    """How one GPU reaches another."""

    to: str  # the id of the other
    kind: StrFact = NOT_PROBED  # nvlink, xgmi, pcie (below one host bridge) or host (through the processors)
    lanes: IntFact = NOT_PROBED  # active links
    version: IntFact = NOT_PROBED  # of the link
    via: StrFact = NOT_PROBED  # direct or switch
    common: StrFact = NOT_PROBED  # the deepest part that both share: switch, host-bridge, numa-node or system
    read: BoolFact = NOT_PROBED  # the driver lets one read the other's memory
    write: BoolFact = NOT_PROBED  # the driver lets one write to the other's memory
    atomics: BoolFact = NOT_PROBED  # the driver lets one use atomics on the other's memory
    max_bytes_per_s: IntFact = NOT_PROBED  # of all lanes together


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """The PCIe link of a GPU, and its ways to other GPUs. Generation and width fall while it is idle."""

    gen_max: IntFact = NOT_PROBED  # generation, at most
    width_max: IntFact = NOT_PROBED  # lanes, at most
    gen_now: IntFact = NOT_PROBED  # generation now
    width_now: IntFact = NOT_PROBED  # lanes now
    peers: list[str] = []  # ids of linked GPUs
    # how each other GPU is reached; none for a GPU that is divided into MIG instances
    paths: list[LinkPath] = []


class Power(msgspec.Struct, frozen=True, kw_only=True):
    """The power state of a GPU."""

    state: StrFact = NOT_PROBED  # the kernel's word: active, suspended, ...
    limit_w: FloatFact = NOT_PROBED  # in force
    default_limit_w: FloatFact = NOT_PROBED  # of the maker
    throttle: list[str] = []  # why clocks are held down now


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """Whether this process can open the device."""

    device_node: StrFact = NOT_PROBED  # the file that is opened, and whether this process may
    hidden_by_env: StrFact = NOT_PROBED  # the variable that hides the device


class Api(msgspec.Struct, frozen=True, kw_only=True):
    """How one API lists the device."""

    ordinal: int | str | None = None  # the index in its list
    version: str | None = None  # of the API on this device


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One physical GPU."""

    id: str  # its uuid if unique, else `pci:BDF`, else `api:SOURCE:N`
    kind: StrFact = NOT_PROBED  # discrete, integrated, virtual, ...
    vendor: StrFact = NOT_PROBED  # its maker
    name: StrFact = NOT_PROBED  # the driver's, or that of the PCI id
    # whether the name is of this model, or of several alike
    name_precision: Literal["exact", "family"] | None = None
    uuid: StrFact = NOT_PROBED  # as the driver writes it
    bdf: StrFact = NOT_PROBED  # its address on the bus
    vendor_id: StrFact = NOT_PROBED  # PCI number
    device_id: StrFact = NOT_PROBED  # PCI number
    subvendor_id: StrFact = NOT_PROBED  # PCI number of the card
    subdevice_id: StrFact = NOT_PROBED  # PCI number of the card
    revision: StrFact = NOT_PROBED  # PCI number
    pci_class: StrFact = NOT_PROBED  # PCI number
    numa_node: IntFact = NOT_PROBED  # that it is attached to
    local_cpus: StrFact = NOT_PROBED  # the numbers of the CPUs that are near
    display_attached: BoolFact = NOT_PROBED  # a screen shows its picture
    usable: BoolFact = NOT_PROBED  # a backend can compute on it from here
    why_not: list[str] = []  # codes, where it is not usable
    driver: Driver = Driver()  # of the kernel
    memory: GpuMemory = GpuMemory()  # its own, and what it takes of the host's
    compute: Compute = Compute()  # its units, clock and partitions
    link: Link = Link()  # to the host and to other GPUs
    power: Power = Power()  # state and limits
    access: Access = Access()  # whether this process can open it
    apis: dict[str, Api] = {}  # how each API lists it
    records: list[dict[str, Any]] | UnsetType = UNSET  # what each source told; with --debug alone


class Accelerator(msgspec.Struct, frozen=True, kw_only=True):
    """A processing accelerator that is no GPU."""

    id: str  # `pci:BDF`
    bdf: StrFact = NOT_PROBED  # its address on the bus
    vendor_id: StrFact = NOT_PROBED  # PCI number
    device_id: StrFact = NOT_PROBED  # PCI number
    pci_class: StrFact = NOT_PROBED  # PCI number
    driver: Driver = Driver()  # of the kernel


class DisplayAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """A device that only draws."""

    id: str  # `pci:BDF`
    bdf: StrFact = NOT_PROBED  # its address on the bus
    vendor_id: StrFact = NOT_PROBED  # PCI number
    device_id: StrFact = NOT_PROBED  # PCI number
    pci_class: StrFact = NOT_PROBED  # PCI number
    role: StrFact = NOT_PROBED  # bmc, virtual or other
    driver: Driver = Driver()  # of the kernel


class SoftwareRenderer(msgspec.Struct, frozen=True, kw_only=True):
    """A program that draws on the CPU; never a GPU."""

    name: str  # as the API calls it
    apis: list[str] = []  # that list it


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a mode was chosen or a device was not."""

    code: str  # for programs
    device_id: str | None = None  # that it is about
    text: str = ""  # one sentence, with the remedy where there is one


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU that is no candidate for a mode."""

    device_id: str  # the id of the GPU
    mode: Mode  # the mode
    code: str  # why not


class MeasuredBreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest size from which the GPU wins on this machine. The seconds are of a measured size: the first at or
    above `size`, else the largest."""

    op: str  # the name of the op
    params: str = ""  # the op's parameters beside the size: "kernel=3"
    dtype: str  # the dtype of the elements
    regime: str  # the situation's id
    backend: str  # that drives the GPU
    size: int | None  # None: there is none to name, and `note` says why
    gpu_s: float | None = None  # of the GPU
    cpu_s: float | None = None  # of the CPU
    note: str | None = None  # why there is no size


class MeasuredSituation(msgspec.Struct, frozen=True, kw_only=True):
    """Which side is faster in one regime: each op counts at its largest size, over all GPUs."""

    regime: str  # the situation's id
    # mixed: each side wins some ops and neither wins by the mean; equal: the sides are within 15 %
    winner: Literal["gpu", "cpu", "equal", "mixed"] | None = None
    ratio: float | None = None  # CPU time / GPU time, geometric mean of the ops whose winner is sure
    gpu: int = 0  # ops that the GPU surely wins
    cpu: int = 0  # ops that the CPU surely wins
    equal: int = 0  # ops whose sides are within 15 %
    unsure: int = 0  # ops that are too noisy, or whose sizes are too small to tell
    exceptions: list[str] = []  # ops that the other side wins: "matmul from 930 x 930"
    note: str | None = None  # why there is no winner


class MeasuredSplit(msgspec.Struct, frozen=True, kw_only=True):
    """One call that is shared by the CPU and a GPU."""

    op: str  # the name of the op
    params: str = ""  # the op's parameters beside the size
    dtype: str  # the dtype of the elements
    regime: str  # the situation's id
    n: int  # the size
    device_id: str  # the composed device: `hybrid:cupy:0`
    gpu_share: float | None = None  # the GPU's share of a split
    assignment: str | None = None  # the side of each stage of a workload: c or g
    gain: float  # over the better of the two sides alone
    lo: float  # the low end of its interval
    hi: float  # the high end of its interval
    reason: str | None = None  # why the split is not recommended; null: it is


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence from a result file of this machine."""

    file: str | None = None  # null where whoever holds this names its sources
    date: str  # of the run
    # CPU rate over GPU rate where each call is waited for on data that is there; null: nothing was compared so
    s: float | None = None
    gpu_share: float | None = None  # of the split that gains most, where the mode is hybrid
    situations: list[MeasuredSituation] = []  # which side is faster in each
    break_even: list[MeasuredBreakEven] = []  # from which size on the GPU wins
    splits: list[MeasuredSplit] = []  # calls that both sides share


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """Which mode to use, with codes that say why."""

    mode: Mode = "cpu"  # the sides to compute on
    confidence: Confidence = "provisional"  # what it rests on
    device_ids: list[str] = []  # the GPUs to use
    cpu_threads: int | None = None  # the threads to use
    reasons: list[Reason] = []  # for it
    rejected: list[Rejected] = []  # GPUs that are no candidates
    overrides: list[str] = []  # choices of the user that it follows
    measured: Measured | None = None  # results of this machine that decided it


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of one machine."""

    name: Literal["gpubench-detect"] = "gpubench-detect"  # the name of the document's format
    schema_version: int = SCHEMA_VERSION  # the version of the document's format
    sysroot: str | None = None  # the folder of a recorded machine
    live: bool = True  # false for recorded input
    took_s: float = 0.0  # detection's own time
    providers: list[Provider] = []  # the sources that were asked
    warnings: list[MachineWarning] = []  # what is odd
    platform: Platform = Platform()  # operating system and firmware
    cpu: Cpu = Cpu()  # the processors
    memory: Memory = Memory()  # of the host
    numa: Numa = Numa()  # its nodes
    gpu_count: IntFact = NOT_PROBED  # physical GPUs
    gpus: list[Gpu] = []  # each with what is known of it
    accelerators: list[Accelerator] = []  # processors that are no GPU
    display_adapters: list[DisplayAdapter] = []  # devices that only draw
    software_renderers: list[SoftwareRenderer] = []  # programs that draw on the CPU
    recommendation: Recommendation = Recommendation()  # the mode to use


# A CPU reads each line that it is about to write: a copy moves half as much again as its payload.
WRITE_ALLOCATE = 1.5


def cpu_cache_bytes(machine: Machine) -> int | None:
    """Return the size of the CPU's largest cache level, all instances together. Returns None if detection found no
    cache."""
    return max((cache.size_bytes * cache.instances for cache in machine.cpu.caches.value or []), default=None)
