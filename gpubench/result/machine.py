"""The `gpubench-detect` document, version 1: what a machine is made of, and what to run on it.

A fact is a `Fact`: a value with its source, or None with the reason. Everything else is plain.
Sizes are bytes, frequencies hertz, powers watts. CPU sets are strings in list form ("0-3,8").
Every field has a default, so a part that nobody asked about says `not_probed`, never 0.
"""

from __future__ import annotations

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

    value: bool | int | float | str | list[int] | None
    source: str


class Fact(msgspec.Struct, Generic[T], frozen=True):
    """`value` is not None exactly when `status` is "ok" or "conflict"; a value always has a `source`.

    Unknown is None with a status, never 0 and never a default.
    """

    value: T | None
    status: Status
    source: str | None
    note: str | msgspec.UnsetType = msgspec.UNSET
    alternatives: list[Alternative] | msgspec.UnsetType = msgspec.UNSET


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
    """One source that was asked. `status` is "ok" or the reason why its facts are missing."""

    name: str
    status: Status
    version: str | None = None
    took_s: float = 0.0
    error_code: str | None = None
    hint: str | None = None


class MachineWarning(msgspec.Struct, frozen=True, kw_only=True):
    """Something odd about the machine. `refs` name the GPUs or files that it is about."""

    code: str
    text: str
    refs: list[str] = []


class Platform(msgspec.Struct, frozen=True, kw_only=True):
    """Operating system and firmware. `hypervisor` is "none" only where x86 says so."""

    os: StrFact = NOT_PROBED
    kernel: StrFact = NOT_PROBED
    arch: StrFact = NOT_PROBED
    hypervisor: StrFact = NOT_PROBED
    container: StrFact = NOT_PROBED
    wsl: BoolFact = NOT_PROBED
    dmi_vendor: StrFact = NOT_PROBED
    dmi_product: StrFact = NOT_PROBED


class CpuKind(msgspec.Struct, frozen=True, kw_only=True):
    """CPUs that are alike; rank 0 is the fastest kind. Counts are of online CPUs."""

    rank: int
    cores: int | None
    logical: int
    cpus: str
    max_hz: int | None = None
    base_hz: int | None = None
    capacity: int | None = None
    part: str | None = None


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    """All caches of one level, type and size; `instances` counts the distinct ones."""

    level: int
    type: Literal["data", "instruction", "unified"]
    size_bytes: int
    instances: int


class CpuBlas(msgspec.Struct, frozen=True, kw_only=True):
    """A BLAS library that NumPy loads, and the threads it starts by default."""

    library: str
    version: str | None = None
    threads: int | None = None
    kernel: str | None = None


class Cpu(msgspec.Struct, frozen=True, kw_only=True):
    """`available` is how many CPUs this process may keep busy; `limited_by` names the tightest bound. `now_hz` is the
    highest clock that a CPU has now."""

    model: StrFact = NOT_PROBED
    vendor: StrFact = NOT_PROBED
    packages: IntFact = NOT_PROBED
    cores: IntFact = NOT_PROBED
    logical: IntFact = NOT_PROBED
    online_cpus: StrFact = NOT_PROBED
    possible: IntFact = NOT_PROBED
    present: IntFact = NOT_PROBED
    offline: IntFact = NOT_PROBED
    smt: StrFact = NOT_PROBED
    kinds: Fact[list[CpuKind]] = NOT_PROBED
    available: IntFact = NOT_PROBED
    affinity: StrFact = NOT_PROBED
    cpuset: StrFact = NOT_PROBED
    quota_cpus: FloatFact = NOT_PROBED
    limited_by: StrFact = NOT_PROBED
    caches: Fact[list[Cache]] = NOT_PROBED
    isa: StrsFact = NOT_PROBED
    governor: StrFact = NOT_PROBED
    now_hz: IntFact = NOT_PROBED
    base_hz: IntFact = NOT_PROBED
    max_hz: IntFact = NOT_PROBED
    blas: Fact[list[CpuBlas]] = NOT_PROBED


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Host memory. `total_bytes` is `os_total_bytes` without the GPU memory that the kernel counts as RAM."""

    total_bytes: IntFact = NOT_PROBED
    os_total_bytes: IntFact = NOT_PROBED
    gpu_numa_bytes: IntFact = NOT_PROBED
    available_bytes: IntFact = NOT_PROBED
    limit_bytes: IntFact = NOT_PROBED
    usable_bytes: IntFact = NOT_PROBED
    limited_by: StrFact = NOT_PROBED
    swap_total_bytes: IntFact = NOT_PROBED


class NumaNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node; `kind` is dram, gpu, hbm, cxl or pmem where a source tells."""

    id: int
    cpus: StrFact = NOT_PROBED
    memory_bytes: IntFact = NOT_PROBED
    kind: StrFact = NOT_PROBED


class Numa(msgspec.Struct, frozen=True, kw_only=True):
    """NUMA nodes; ids may be sparse."""

    ids: IntsFact = NOT_PROBED
    allowed_ids: IntsFact = NOT_PROBED
    nodes: list[NumaNode] = []


class Driver(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel driver that is bound to a device. `cuda`: the newest CUDA that it serves, as 13.0."""

    name: StrFact = NOT_PROBED
    version: StrFact = NOT_PROBED
    cuda: StrFact = NOT_PROBED


class GpuMemory(msgspec.Struct, frozen=True, kw_only=True):
    """`usable_bytes` is what one process may hope for; `shared_limit_bytes` is a window on RAM (GTT)."""

    dedicated_bytes: IntFact = NOT_PROBED
    reserved_bytes: IntFact = NOT_PROBED
    free_bytes: IntFact = NOT_PROBED
    visible_bytes: IntFact = NOT_PROBED
    shared_limit_bytes: IntFact = NOT_PROBED
    usable_bytes: IntFact = NOT_PROBED
    unified: BoolFact = NOT_PROBED
    numa_node: IntFact = NOT_PROBED


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """A slice of a GPU that programs see as a device (MIG instance, compute partition)."""

    id: str
    units: IntFact = NOT_PROBED
    memory_bytes: IntFact = NOT_PROBED


class Compute(msgspec.Struct, frozen=True, kw_only=True):
    """`units`: multiprocessors, compute units or Xe cores. `partitions` is empty when not partitioned."""

    arch: StrFact = NOT_PROBED
    units: IntFact = NOT_PROBED
    now_hz: IntFact = NOT_PROBED
    max_hz: IntFact = NOT_PROBED
    ecc: BoolFact = NOT_PROBED
    mode: StrFact = NOT_PROBED
    partitions: list[Partition] = []


class LinkPath(msgspec.Struct, frozen=True, kw_only=True):
    """How one GPU reaches the GPU with the id `to`.

    `kind` is nvlink, xgmi, pcie (below one host bridge) or host (through the processors); `via` is direct or switch;
    `common` is the deepest part that both share: switch, host-bridge, numa-node or system. `lanes` counts the active
    links. `read`, `write` and `atomics`: whether the driver lets one GPU reach into the other's memory.
    """

    to: str
    kind: StrFact = NOT_PROBED
    lanes: IntFact = NOT_PROBED
    version: IntFact = NOT_PROBED
    via: StrFact = NOT_PROBED
    common: StrFact = NOT_PROBED
    read: BoolFact = NOT_PROBED
    write: BoolFact = NOT_PROBED
    atomics: BoolFact = NOT_PROBED
    max_bytes_per_s: IntFact = NOT_PROBED


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """PCIe generation and lanes, at most and now (they fall while idle). `peers`: ids of linked GPUs; `paths`: how each
    other GPU is reached. A GPU that is cut into MIG instances has no paths."""

    gen_max: IntFact = NOT_PROBED
    width_max: IntFact = NOT_PROBED
    gen_now: IntFact = NOT_PROBED
    width_now: IntFact = NOT_PROBED
    peers: list[str] = []
    paths: list[LinkPath] = []


class Power(msgspec.Struct, frozen=True, kw_only=True):
    """`state` is the kernel's word (active, suspended, ...); `throttle` lists why clocks are held down now."""

    state: StrFact = NOT_PROBED
    limit_w: FloatFact = NOT_PROBED
    default_limit_w: FloatFact = NOT_PROBED
    throttle: list[str] = []


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """Whether this process can open the device."""

    device_node: StrFact = NOT_PROBED
    hidden_by_env: StrFact = NOT_PROBED


class Api(msgspec.Struct, frozen=True, kw_only=True):
    """How one API lists the device."""

    ordinal: int | str | None = None
    version: str | None = None


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One physical GPU. `id` is its uuid if unique, else `pci:BDF`, else `api:SOURCE:N`.

    `why_not` holds codes when `usable` is false. `records` is set with --debug alone.
    """

    id: str
    kind: StrFact = NOT_PROBED
    vendor: StrFact = NOT_PROBED
    name: StrFact = NOT_PROBED
    name_precision: Literal["exact", "family"] | None = None
    uuid: StrFact = NOT_PROBED
    bdf: StrFact = NOT_PROBED
    vendor_id: StrFact = NOT_PROBED
    device_id: StrFact = NOT_PROBED
    subvendor_id: StrFact = NOT_PROBED
    subdevice_id: StrFact = NOT_PROBED
    revision: StrFact = NOT_PROBED
    pci_class: StrFact = NOT_PROBED
    numa_node: IntFact = NOT_PROBED
    local_cpus: StrFact = NOT_PROBED
    display_attached: BoolFact = NOT_PROBED
    usable: BoolFact = NOT_PROBED
    why_not: list[str] = []
    driver: Driver = Driver()
    memory: GpuMemory = GpuMemory()
    compute: Compute = Compute()
    link: Link = Link()
    power: Power = Power()
    access: Access = Access()
    apis: dict[str, Api] = {}
    records: list[dict[str, Any]] | UnsetType = UNSET


class Accelerator(msgspec.Struct, frozen=True, kw_only=True):
    """A processing accelerator that is no GPU."""

    id: str
    bdf: StrFact = NOT_PROBED
    vendor_id: StrFact = NOT_PROBED
    device_id: StrFact = NOT_PROBED
    pci_class: StrFact = NOT_PROBED
    driver: Driver = Driver()


class DisplayAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """A device that only draws: `role` is bmc, virtual or other."""

    id: str
    bdf: StrFact = NOT_PROBED
    vendor_id: StrFact = NOT_PROBED
    device_id: StrFact = NOT_PROBED
    pci_class: StrFact = NOT_PROBED
    role: StrFact = NOT_PROBED
    driver: Driver = Driver()


class SoftwareRenderer(msgspec.Struct, frozen=True, kw_only=True):
    """A program that draws on the CPU; never a GPU."""

    name: str
    apis: list[str] = []


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a mode was chosen or a device was not; `text` names the remedy where there is one."""

    code: str
    device_id: str | None = None
    text: str = ""


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU that is no candidate for `mode`."""

    device_id: str
    mode: Mode
    code: str


class MeasuredBreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest size from which the GPU wins on this machine; None: there is none to name, and `note` says why.

    `params` are the op's parameters beside the size ("kernel=3"). The seconds are of a measured size: the first
    at or above `size`, else the largest.
    """

    op: str
    params: str = ""
    dtype: str
    regime: str
    backend: str
    size: int | None
    gpu_s: float | None = None
    cpu_s: float | None = None
    note: str | None = None


class MeasuredSituation(msgspec.Struct, frozen=True, kw_only=True):
    """Which side is faster in one regime: each op counts at its largest size, over all GPUs.

    `mixed` means that each side wins some ops and neither wins by the mean; `equal` that the sides are within 15 %.
    """

    regime: str
    winner: Literal["gpu", "cpu", "equal", "mixed"] | None = None
    ratio: float | None = None  # CPU time / GPU time, geometric mean of the ops whose winner is sure
    gpu: int = 0  # ops that the GPU surely wins
    cpu: int = 0
    equal: int = 0
    unsure: int = 0  # ops that are too noisy, or whose sizes are too small to tell
    exceptions: list[str] = []  # ops that the other side wins: "matmul from 930 x 930"
    note: str | None = None  # why there is no winner


class MeasuredSplit(msgspec.Struct, frozen=True, kw_only=True):
    """One call that is shared by the CPU and a GPU: `gain` with its interval over the better of the two alone."""

    op: str
    params: str = ""
    dtype: str
    regime: str
    n: int
    device_id: str
    gpu_share: float | None = None  # the GPU's share of a split
    assignment: str | None = None  # the side of each stage of a workload: c or g
    gain: float
    lo: float
    hi: float
    reason: str | None = None  # why the split is not recommended; null: it is


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence from a result file of this machine.

    `s` is CPU rate over GPU rate where each call is waited for on data that is there; null: nothing was compared so.
    `split` is the GPU's share of the split that gains most, where the mode is hybrid. `file` is null where whoever
    holds this names its sources.
    """

    file: str | None = None
    date: str
    s: float | None = None
    split: float | None = None
    situations: list[MeasuredSituation] = []
    break_even: list[MeasuredBreakEven] = []
    splits: list[MeasuredSplit] = []


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """Which mode to use, with codes that say why. `overrides` echoes choices of the user."""

    mode: Mode = "cpu"
    confidence: Confidence = "provisional"
    device_ids: list[str] = []
    cpu_threads: int | None = None
    reasons: list[Reason] = []
    rejected: list[Rejected] = []
    overrides: list[str] = []
    measured: Measured | None = None


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of one machine. `live` is false for recorded input, `took_s` is detection's own time."""

    name: Literal["gpubench-detect"] = "gpubench-detect"
    schema_version: int = SCHEMA_VERSION
    sysroot: str | None = None
    live: bool = True
    took_s: float = 0.0
    providers: list[Provider] = []
    warnings: list[MachineWarning] = []
    platform: Platform = Platform()
    cpu: Cpu = Cpu()
    memory: Memory = Memory()
    numa: Numa = Numa()
    gpu_count: IntFact = NOT_PROBED
    gpus: list[Gpu] = []
    accelerators: list[Accelerator] = []
    display_adapters: list[DisplayAdapter] = []
    software_renderers: list[SoftwareRenderer] = []
    recommendation: Recommendation = Recommendation()


# A CPU reads each line that it is about to write: a copy moves half as much again as its payload.
WRITE_ALLOCATE = 1.5


def cpu_cache_bytes(machine: Machine) -> int | None:
    """The CPU's largest level of cache, all instances together; None if detection could not tell."""
    return max((cache.size_bytes * cache.instances for cache in machine.cpu.caches.value or []), default=None)
