"""The `gpubench-detect` document, version 1: the parts of a machine, and a recommendation where to compute on
it.

A `Fact` holds a value with its source, or None with the reason why there is no value. Other fields are plain
values, or None if they are unknown or do not apply.

Sizes are in bytes, frequencies in hertz, powers in watts. Sets of CPUs are strings in list form
("0-3,8"). Every field has a default, so that a part that was not probed has the status `not_probed`, never the
value 0.
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
    """The value that another source gives for the same fact."""

    value: bool | int | float | str | list[int] | None  # the other value
    source: str  # the other source


class Fact(msgspec.Struct, Generic[T], frozen=True):
    """A value with its source. An unknown value is None with a status. It is never 0 or another default."""

    value: T | None  # the value; None unless `status` is "ok" or "conflict"
    status: Status  # "ok", "conflict" (sources differ), or the reason why there is no value
    source: str | None  # the source of the value
    note: str | UnsetType = UNSET  # a remark on the value
    alternatives: list[Alternative] | UnsetType = UNSET  # the different values of other sources


SCHEMA_VERSION = 1
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
    """A source of facts, such as files or a library, that was asked, and how it answered."""

    name: str  # the name of the source
    status: Status  # "ok", or why its facts are missing
    version: str | None = None  # the version of the library or tool
    took_s: float = 0.0  # the seconds until the answer
    error_code: str | None = None  # the error code that the source returned
    hint: str | None = None  # the remedy


class MachineWarning(msgspec.Struct, frozen=True, kw_only=True):
    """A warning about the machine."""

    code: str  # the code, for programs
    text: str  # the warning in one sentence
    refs: list[str] = []  # the GPUs, libraries or files with the problem


class Platform(msgspec.Struct, frozen=True, kw_only=True):
    """The operating system and the firmware."""

    os: StrFact = NOT_PROBED  # the name of the operating system
    kernel: StrFact = NOT_PROBED  # the release of the kernel
    arch: StrFact = NOT_PROBED  # the architecture of the processor
    hypervisor: StrFact = NOT_PROBED  # the hypervisor; "none" only if x86 reports that there is none
    container: StrFact = NOT_PROBED  # the kind of container in which this process runs
    wsl: BoolFact = NOT_PROBED  # whether this is the Windows Subsystem for Linux
    dmi_vendor: StrFact = NOT_PROBED  # the manufacturer of the machine
    dmi_product: StrFact = NOT_PROBED  # the manufacturer's name of the machine


class CpuKind(msgspec.Struct, frozen=True, kw_only=True):
    """A set of CPUs that are alike. Only online CPUs are counted."""

    rank: int  # the place by speed; 0 is the fastest kind
    cores: int | None  # the number of cores of this kind; None: unknown
    logical: int  # the number of hardware threads
    cpus: str  # the numbers of the CPUs, such as "0-3,8"
    max_hz: int | None = None  # the highest clock
    base_hz: int | None = None  # the guaranteed clock
    capacity: int | None = None  # the kernel's measure of the speed of a CPU, at most 1024
    part: str | None = None  # the manufacturer's part number of the core


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    """All caches of one level, type and size."""

    level: int  # the level; 1 is nearest to the core
    type: Literal["data", "instruction", "unified"]  # the content of the cache
    size_bytes: int  # the size of one cache
    instances: int  # the number of caches


class CpuBlas(msgspec.Struct, frozen=True, kw_only=True):
    """A BLAS library that NumPy loads."""

    library: str  # its name: openblas, mkl, ...
    version: str | None = None  # the version of the BLAS; None: unknown
    threads: int | None = None  # the number of threads that the BLAS starts by default
    kernel: str | None = None  # the CPU architecture that the BLAS chose


class Cpu(msgspec.Struct, frozen=True, kw_only=True):
    """The processors of the host, and the CPUs that this process may use."""

    model: StrFact = NOT_PROBED  # the name of the model
    vendor: StrFact = NOT_PROBED  # the manufacturer
    packages: IntFact = NOT_PROBED  # the number of sockets
    cores: IntFact = NOT_PROBED  # the number of physical cores
    logical: IntFact = NOT_PROBED  # the number of hardware threads
    online_cpus: StrFact = NOT_PROBED  # the numbers of the CPUs that are online
    possible: IntFact = NOT_PROBED  # the number of CPUs that the kernel could ever bring online
    present: IntFact = NOT_PROBED  # the number of CPUs that are plugged in
    offline: IntFact = NOT_PROBED  # the number of CPUs that are switched off
    smt: StrFact = NOT_PROBED  # simultaneous multithreading: on, off, or hidden by a hypervisor
    kinds: Fact[list[CpuKind]] = NOT_PROBED  # groups of CPUs that are alike
    available: IntFact = NOT_PROBED  # the number of CPUs that this process can keep busy
    affinity: StrFact = NOT_PROBED  # the numbers of the CPUs to which the process is bound
    cpuset: StrFact = NOT_PROBED  # the numbers of the CPUs that its control group allows
    quota_cpus: FloatFact = NOT_PROBED  # the CPU time that its control group allows, as a number of CPUs
    limited_by: StrFact = NOT_PROBED  # the tightest limit on `available`: online, affinity, cpuset or quota
    caches: Fact[list[Cache]] = NOT_PROBED  # the caches, by level, type and size
    isa: StrsFact = NOT_PROBED  # the extensions of the instruction set
    governor: StrFact = NOT_PROBED  # the kernel's policy that chooses the clock
    now_hz: IntFact = NOT_PROBED  # the highest present clock of any CPU
    base_hz: IntFact = NOT_PROBED  # the guaranteed clock
    max_hz: IntFact = NOT_PROBED  # the highest possible clock of any CPU
    blas: Fact[list[CpuBlas]] = NOT_PROBED  # the BLAS libraries that NumPy loads


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of the host."""

    total_bytes: IntFact = NOT_PROBED  # `os_total_bytes` without the GPU memory in it
    os_total_bytes: IntFact = NOT_PROBED  # the memory that the kernel counts as RAM
    gpu_numa_bytes: IntFact = NOT_PROBED  # the GPU memory that the kernel counts as RAM
    available_bytes: IntFact = NOT_PROBED  # the memory that is free or can be freed on demand
    limit_bytes: IntFact = NOT_PROBED  # the limit of the control group
    usable_bytes: IntFact = NOT_PROBED  # the memory that this process can expect to get
    limited_by: StrFact = NOT_PROBED  # the tightest limit on `usable_bytes`: host or cgroup
    swap_total_bytes: IntFact = NOT_PROBED  # the swap space on disk


class NumaNode(msgspec.Struct, frozen=True, kw_only=True):
    """One NUMA node."""

    id: int  # the kernel's number of the node
    cpus: StrFact = NOT_PROBED  # the numbers of its CPUs
    memory_bytes: IntFact = NOT_PROBED  # its memory
    kind: StrFact = NOT_PROBED  # the kind of its memory: dram, gpu, hbm, cxl or pmem


class Numa(msgspec.Struct, frozen=True, kw_only=True):
    """The NUMA nodes of the host."""

    ids: IntsFact = NOT_PROBED  # the ids of the nodes, which may have gaps
    allowed_ids: IntsFact = NOT_PROBED  # the ids of the nodes whose memory this process may use
    nodes: list[NumaNode] = []  # the nodes


class Driver(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel driver that is bound to a device."""

    name: StrFact = NOT_PROBED  # the name of the driver in the kernel
    version: StrFact = NOT_PROBED  # the version that the driver reports
    cuda: StrFact = NOT_PROBED  # the newest CUDA version that the driver supports, such as 13.0


class GpuMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of a GPU."""

    dedicated_bytes: IntFact = NOT_PROBED  # the memory on the card
    reserved_bytes: IntFact = NOT_PROBED  # the memory that driver and firmware reserve
    free_bytes: IntFact = NOT_PROBED  # the memory that is free at present
    visible_bytes: IntFact = NOT_PROBED  # the part of the card's memory that the CPU can map
    shared_limit_bytes: IntFact = NOT_PROBED  # the host memory that the GPU can map (GTT)
    usable_bytes: IntFact = NOT_PROBED  # the memory that one process can expect to get
    unified: BoolFact = NOT_PROBED  # whether the GPU uses the host's memory as its own
    numa_node: IntFact = NOT_PROBED  # the NUMA node under which the CPU sees this memory


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a GPU that programs see as a device (MIG instance, compute partition)."""

    id: str  # the id of the partition
    units: IntFact = NOT_PROBED  # the number of its units, as in `Compute.units`
    memory_bytes: IntFact = NOT_PROBED  # its memory


class Compute(msgspec.Struct, frozen=True, kw_only=True):
    """The compute units, clock, sharing and partitions of a GPU."""

    arch: StrFact = NOT_PROBED  # the architecture, such as gfx90a or sm_90
    units: IntFact = NOT_PROBED  # the number of multiprocessors, compute units or Xe cores
    now_hz: IntFact = NOT_PROBED  # the present clock
    max_hz: IntFact = NOT_PROBED  # the highest possible clock
    ecc: BoolFact = NOT_PROBED  # whether memory errors are corrected (ECC)
    # how many processes may use the GPU at a time: default (any number), exclusive_process or exclusive_thread
    # (one), prohibited (none)
    mode: StrFact = NOT_PROBED
    partitions: list[Partition] = []  # the partitions; empty if the GPU is not partitioned


class LinkPath(msgspec.Struct, frozen=True, kw_only=True):
    """The path from one GPU to another."""

    to: str  # the id of the other GPU
    kind: StrFact = NOT_PROBED  # nvlink, xgmi, pcie (below one host bridge) or host (through the processors)
    lanes: IntFact = NOT_PROBED  # the number of active links
    version: IntFact = NOT_PROBED  # the version of the link
    via: StrFact = NOT_PROBED  # direct or switch
    common: StrFact = NOT_PROBED  # the nearest part above both: switch, host-bridge, numa-node or system
    read: BoolFact = NOT_PROBED  # whether the driver lets each GPU read the other's memory
    write: BoolFact = NOT_PROBED  # whether the driver lets each GPU write to the other's memory
    atomics: BoolFact = NOT_PROBED  # whether the driver lets each GPU use atomics on the other's memory
    max_bytes_per_s: IntFact = NOT_PROBED  # the highest rate of all links together, in one direction


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """The PCIe link of a GPU, and its paths to other GPUs. The present generation and width may be lower while
    the GPU is idle."""

    gen_max: IntFact = NOT_PROBED  # the highest PCIe generation
    width_max: IntFact = NOT_PROBED  # the largest number of lanes
    gen_now: IntFact = NOT_PROBED  # the present PCIe generation
    width_now: IntFact = NOT_PROBED  # the present number of lanes
    peers: list[str] = []  # the ids of the GPUs that are linked directly
    paths: list[LinkPath] = []  # the paths to other GPUs; empty for a GPU divided into MIG instances


class Power(msgspec.Struct, frozen=True, kw_only=True):
    """The power state of a GPU."""

    state: StrFact = NOT_PROBED  # the power state that the kernel reports: active, suspended, ...
    limit_w: FloatFact = NOT_PROBED  # the present limit of the power
    default_limit_w: FloatFact = NOT_PROBED  # the manufacturer's limit of the power
    throttle: list[str] = []  # the reasons why the clocks are lowered at present


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """Whether this process can open the device."""

    device_node: StrFact = NOT_PROBED  # the state of the device file: present, absent or no_permission
    hidden_by_env: StrFact = NOT_PROBED  # the environment variable that hides the device


class Api(msgspec.Struct, frozen=True, kw_only=True):
    """The entry of the device in the list of one API."""

    ordinal: int | str | None = None  # the index in that list, such as 0, or "0:1" for a MIG instance
    version: str | None = None  # the version of the API on this device


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU, whichever APIs list it."""

    id: str  # its uuid if unique, else `pci:BDF`, else `api:SOURCE:N`
    kind: StrFact = NOT_PROBED  # discrete, integrated or vgpu (a share of a GPU, in a virtual machine)
    vendor: StrFact = NOT_PROBED  # the manufacturer
    name: StrFact = NOT_PROBED  # the name that the driver reports, or that of the PCI id
    # `exact`: the name of this model; `family`: a name that several similar models share
    name_precision: Literal["exact", "family"] | None = None
    uuid: StrFact = NOT_PROBED  # the UUID as the driver reports it
    bdf: StrFact = NOT_PROBED  # the PCI address
    vendor_id: StrFact = NOT_PROBED  # the PCI id of the vendor
    device_id: StrFact = NOT_PROBED  # the PCI id of the device
    subvendor_id: StrFact = NOT_PROBED  # the PCI id of the card's vendor
    subdevice_id: StrFact = NOT_PROBED  # the PCI id of the card
    revision: StrFact = NOT_PROBED  # the PCI revision
    pci_class: StrFact = NOT_PROBED  # the PCI class
    numa_node: IntFact = NOT_PROBED  # the NUMA node of the GPU
    local_cpus: StrFact = NOT_PROBED  # the numbers of the CPUs nearest to the GPU
    display_attached: BoolFact = NOT_PROBED  # whether a screen is attached to the GPU
    usable: BoolFact = NOT_PROBED  # whether a backend can compute on it in this process
    why_not: list[str] = []  # the codes of the reasons why the GPU is not usable
    driver: Driver = Driver()  # the kernel driver
    memory: GpuMemory = GpuMemory()  # the GPU's own memory, and the host memory that it can use
    compute: Compute = Compute()  # its units, clock and partitions
    link: Link = Link()  # its links to the host and to other GPUs
    power: Power = Power()  # its power state and limits
    access: Access = Access()  # whether this process can open the GPU
    apis: dict[str, Api] = {}  # its entry in the list of each API
    records: list[dict[str, Any]] | UnsetType = UNSET  # the facts of each source; only with --debug


class PciDevice(msgspec.Struct, frozen=True, kw_only=True):
    """The PCI ids of a device that is not a GPU."""

    id: str  # `pci:BDF`
    bdf: StrFact = NOT_PROBED  # the PCI address
    vendor_id: StrFact = NOT_PROBED  # the PCI id of the vendor
    device_id: StrFact = NOT_PROBED  # the PCI id of the device
    pci_class: StrFact = NOT_PROBED  # the PCI class


class Accelerator(PciDevice, frozen=True, kw_only=True):
    """A PCI device of the class "processing accelerator" that is not a GPU."""

    driver: Driver = Driver()  # the kernel driver


class DisplayAdapter(PciDevice, frozen=True, kw_only=True):
    """A device that shows pictures and cannot compute."""

    role: StrFact = NOT_PROBED  # bmc, virtual or other
    driver: Driver = Driver()  # the kernel driver


class SoftwareRenderer(msgspec.Struct, frozen=True, kw_only=True):
    """A program that runs on the CPU although an API lists it as a graphics device. It never counts as a
    GPU."""

    name: str  # the name that the API reports
    apis: list[str] = []  # the APIs that list it


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """A reason for the recommended mode, or against a device."""

    code: str  # the code, for programs
    device_id: str | None = None  # the id of the device that the reason is about; None: no single device
    text: str = ""  # one sentence, with the remedy if there is one


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU that is not a candidate for a mode."""

    device_id: str  # the id of the GPU
    mode: Mode  # the mode
    code: str  # the code of the reason


class MeasuredBreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest size from which the GPU wins on this machine.

    The times are those at the first measured size at or above `size`, or at the largest measured size if there
    is none.
    """

    op: str  # the name of the op
    params: str = ""  # the params other than the size, such as "kernel=3"
    dtype: str  # the dtype of the elements
    regime: str  # the id of the regime
    backend: str  # the backend that drives the GPU
    size: int | None  # the break-even; None if there is none, for the reason in `note`
    gpu_s: float | None = None  # the time of the GPU, in seconds
    cpu_s: float | None = None  # the time of the CPU, in seconds
    note: str | None = None  # the measured sizes, or the reason why there is no break-even


class MeasuredSituation(msgspec.Struct, frozen=True, kw_only=True):
    """Which side is faster in one regime, over all GPUs. Each op counts at its largest size."""

    regime: str  # the id of the regime
    # mixed: each side wins some ops, but neither wins on average; equal: the sides are within 15 %; None:
    # unknown
    winner: Literal["gpu", "cpu", "equal", "mixed"] | None = None
    ratio: float | None = None  # CPU time / GPU time, the geometric mean over the ops with a sure winner
    gpu: int = 0  # the number of ops that the GPU surely wins
    cpu: int = 0  # the number of ops that the CPU surely wins
    equal: int = 0  # the number of ops whose sides are within 15 %
    unsure: int = 0  # the number of ops that are too noisy or were measured only at small sizes
    exceptions: list[str] = []  # the ops that the loser wins, such as "matmul from 930 x 930"
    note: str | None = None  # the reason why there is no winner


class MeasuredSplit(msgspec.Struct, frozen=True, kw_only=True):
    """One call that the CPU and a GPU compute together."""

    op: str  # the name of the op
    params: str = ""  # the params other than the size, such as "kernel=3"
    dtype: str  # the dtype of the elements
    regime: str  # the id of the regime
    n: int  # the size n of the op
    device_id: str  # the id of the composed device, such as `hybrid:cupy:0`
    # the GPU's share of a split op, from 0 to 1; null for a workload
    gpu_share: float | None = None
    # a letter for each stage of a workload: c is the CPU, g the GPU; null for a split op
    assignment: str | None = None
    gain: float  # the time of the faster side alone / the time of both together
    lo: float  # the low end of the interval of the gain
    hi: float  # the high end of the interval of the gain
    reason: str | None = None  # the reason against computing on both sides; null if it is recommended


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence of one result file of this machine for or against a mode."""

    file: str | None = None  # the name of the file; null if the document that contains this names it
    date: str  # the time of the run's start, in UTC
    # GPU time / CPU time, the geometric mean over the ops, for waited calls on data on the GPU; null: unknown
    s: float | None = None
    # the GPU's share of the split that decided for the mode hybrid; null if none did
    gpu_share: float | None = None
    situations: list[MeasuredSituation] = []  # the faster side in each situation
    break_even: list[MeasuredBreakEven] = []  # the size from which the GPU wins, by op
    splits: list[MeasuredSplit] = []  # the calls that both sides compute together


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """The recommended mode, with the reasons."""

    mode: Mode = "cpu"  # the sides on which to compute
    # provisional: by a rule alone; verified: a test kernel ran on each device; measured: by a result of this
    # machine
    confidence: Confidence = "provisional"
    device_ids: list[str] = []  # the ids of the recommended GPUs
    cpu_threads: int | None = None  # the number of CPUs that the process may use; null: unknown
    reasons: list[Reason] = []  # the reasons for the mode
    rejected: list[Rejected] = []  # the GPUs that are not candidates
    overrides: list[str] = []  # the user's settings that the recommendation follows
    measured: Measured | None = None  # the results of this machine that decided the recommendation


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine: its hardware and platform, and where to compute on it."""

    name: Literal["gpubench-detect"] = "gpubench-detect"  # the name of the document's format
    schema_version: int = SCHEMA_VERSION  # the version of the document's format
    sysroot: str | None = None  # the folder of a recorded machine
    live: bool = True  # whether this machine was examined; False for a recorded machine
    took_s: float = 0.0  # the time that the detection took, in seconds
    providers: list[Provider] = []  # the sources that were asked
    warnings: list[MachineWarning] = []  # warnings about the machine
    platform: Platform = Platform()  # the operating system and the firmware
    cpu: Cpu = Cpu()  # the processors
    memory: Memory = Memory()  # the memory of the host
    numa: Numa = Numa()  # the NUMA nodes of the host
    gpu_count: IntFact = NOT_PROBED  # the number of physical GPUs
    gpus: list[Gpu] = []  # the physical GPUs
    accelerators: list[Accelerator] = []  # the other processing accelerators
    display_adapters: list[DisplayAdapter] = []  # the devices that only show pictures
    software_renderers: list[SoftwareRenderer] = []  # the programs that an API lists as devices
    recommendation: Recommendation = Recommendation()  # the recommended mode


# A CPU reads each cache line before it writes to it, so a copy moves 1.5 times the bytes of its arrays.
WRITE_ALLOCATE = 1.5


def cpu_cache_bytes(machine: Machine) -> int | None:
    """Return the total bytes of the CPU's largest caches, which are those of its last level, or None if it is
    unknown."""
    return max((cache.size_bytes * cache.instances for cache in machine.cpu.caches.value or []), default=None)
