"""The plan: turn a selection and devices into workloads, with cases to measure and skips with their reasons."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from gpubench import functions
from gpubench.base.messages import REASONS, Reason
from gpubench.base.units import format_bytes
from gpubench.kernels.contract.op import ITEMSIZE, Defect, Dtype, Ladder, Op
from gpubench.measure.protocol import PeakRequest
from gpubench.result.case import (
    ASSIGNED_REGIMES,
    DEVICE_GROUP,
    IMPLEMENTATIONS,
    REGIMES,
    RESIDENT,
    SEVERAL,
    STREAMED,
    TF32,
    UNIFIED_REGIMES,
    Case,
    beside_size,
    calls_behind,
    copies,
    group_ranks,
    inner_device,
    workload_key,
)
from gpubench.result.machine import Machine, cpu_cache_bytes
from gpubench.result.run import LINK_BYTES, UNKNOWN_CACHE_BYTES, Device, Selection, Settings, Skip

# A plan may fill this share of the memory that is free; the rest is for the system and for temporaries.
MEMORY_SHARE = 0.8
# Bytes that a slow machine moves in a second.
SLOW_BYTES = 4e9
# Launches of one case in one session beside its samples: calibration, warm-up, checks, parts.
EXTRA_LAUNCHES = 12


class Target(msgspec.Struct, frozen=True):
    """A device to measure."""

    device: Device  # the device from its backend's list
    implementations: tuple[str, ...]  # the implementations of its backend


class Workload(msgspec.Struct, frozen=True):
    """An op, a size and a dtype, with the cases on all devices. The cases are measured interleaved."""

    op: Op  # the op to compute
    params: dict[str, int]  # the size `n` and the other params
    dtype: Dtype  # the dtype of the operands
    cases: tuple[Case, ...]  # the cases to measure
    skips: tuple[Skip, ...] = ()  # the cases that cannot be measured, with reasons
    explained: bool = True  # whether the parts of calls, and launches on the device's clock, are timed

    @property
    def key(self) -> str:
        """The id of the workload, such as `matmul/n=1024/float32`."""
        return workload_key(self.op.name, self.params, self.dtype)

    @property
    def n(self) -> int:
        return self.params["n"]

    @property
    def series(self) -> Series:
        """The series (op, dtype and other params) to which this size belongs."""
        return Series(self.op, self.dtype, dict(beside_size(self.params)))

    @property
    def call_s(self) -> float:
        """The seconds of a launch that the op declares, or 0 if it declares none."""
        return self.op.seconds(self.params)

    @property
    def slow_s(self) -> float:
        """The estimated seconds of a launch on a slow machine."""
        return self.series.work(self.n) / SLOW_BYTES

    def is_taken_apart(self, case: Case) -> bool:
        """Return whether the parts of the case's calls are timed. They are never timed for calls in place. They
        are timed for cases that copy at each call, are streamed or split. If a device has no case that copies
        at each call, they are timed for all its other cases."""
        if case.memory:
            return False
        if case.regime in ("transfer-always", STREAMED) or inner_device(case.device_id) is not None:
            return True
        return all(x.regime != "transfer-always" for x in self.cases if x.device_id == case.device_id)


class Series(msgspec.Struct, frozen=True):
    """An op, a dtype and the params other than the size: one curve over the sizes for each contender."""

    op: Op  # the op to compute
    dtype: Dtype  # the dtype of the operands
    shape: dict[str, int] = {}  # the params other than the size

    @property
    def key(self) -> str:
        """The id of the series, such as `matmul,k=64/float32`."""
        if not self.shape:  # asked for again and again
            return f"{self.op.name}/{self.dtype}"
        shape = "".join(f",{name}={value}" for name, value in sorted(self.shape.items()))
        return f"{self.op.name}{shape}/{self.dtype}"

    def params(self, n: int) -> dict[str, int]:
        return {"n": n, **self.shape}

    @property
    def ladder(self) -> Ladder:
        """The op's ladder. If the shape forbids one of its sizes, a ladder of common multiples of the shape's
        params instead, if there is one."""
        usual = self.op.sizes
        if all(self.op.fits(self.params(n)) is None for n in usual.rungs()):
            return usual
        granule = math.lcm(usual.granule, *self.shape.values())
        low, high = -(-usual.low // granule) * granule, usual.high // granule * granule
        # If the shape forbids this one, too, the sizes of the op give the reasons.
        fitting = low <= high and self.op.fits(self.params(low)) is None
        return Ladder(low, high, usual.factor, granule) if fitting else usual

    def has(self, case: Case) -> bool:
        """Return whether the case belongs to this series."""
        return case.series == (self.op.name, self.dtype, beside_size(self.shape))

    def work(self, n: int) -> int:
        """Return the work of a launch: the larger of its FLOPs and its bytes, or 0 if the op does not allow the
        size. If the op declares its seconds, the bytes that a slow machine moves in that time count, too."""
        params = self.params(n)
        if self.op.fits(params) is not None:
            return 0
        timed = round(SLOW_BYTES * self.op.seconds(params))
        return max(self.op.flops(params), self.op.bytes(params, self.dtype), timed)


class Constraints(msgspec.Struct, frozen=True):
    """The devices, the selection and the limits from which a plan is made."""

    targets: tuple[Target, ...]  # the devices with their implementations
    selection: Selection  # ops, sizes, dtypes, implementations and regimes
    host_bytes: int | None  # the free memory of the host; None if it is unknown
    keep: Callable[[Case], bool] | None = None  # returns False for a case to leave out; None keeps all
    settings: Settings = Settings()  # the settings of the measurement
    # whether the user chose the implementations. A case whose backend lacks one of them is then a Skip,
    # otherwise it is left out.
    named_implementations: bool = False
    named_regimes: bool = False  # whether the user chose the regimes, which then also apply to unified memory


def workload(series: Series, n: int, constraints: Constraints) -> Workload:
    """Return the workload of a series at a size. A case that cannot be measured becomes a Skip. Cases for which
    `constraints.keep` returns False are left out."""
    params = series.params(n)
    cases: list[Case] = []
    skips: list[Skip] = []
    for target in constraints.targets:
        for case in filter(constraints.keep, _cases(series, params, target, constraints)):  # None keeps all
            refusal = _refusal(series.op, case, target, constraints)
            if refusal is None:
                cases.append(case)
            else:
                skips.append(refusal)
    return Workload(series.op, params, series.dtype, tuple(cases), tuple(skips))


def only(item: Workload, chosen: Callable[[Case], bool]) -> list[Workload]:
    """Return, in a list, the workload with only the chosen cases, without skips and with `explained` False. The
    list is empty if no case is chosen."""
    cases = tuple(filter(chosen, item.cases))
    return [replace(item, cases=cases, skips=(), explained=False)] if cases else []


def _cases(series: Series, params: dict[str, int], target: Target, constraints: Constraints) -> list[Case]:
    device, selection, op = target.device, constraints.selection, series.op
    on_device = device.kind != "cpu" and op.overhead is None
    best = None if constraints.named_implementations else op.kernel(device.backend, series.dtype)
    cases = []
    for implementation, variant in _kernels(series, target, constraints):
        for regime in _regimes(op, device, constraints) if on_device else [RESIDENT]:
            plain = (implementation, variant) == ("tuned", None)
            if plain and best is not None and best.repeats_library(regime):
                continue  # measured once, as library
            fields = {
                "op": op.name, "group": op.group, "params": params, "dtype": series.dtype,
                "implementation": implementation, "regime": regime, "device_id": device.id, "variant": variant,
                "calls": calls_behind(regime, selection.calls),
            }  # fmt: skip
            cases.append(msgspec.convert(fields, Case))
    return cases


def _regimes(op: Op, device: Device, constraints: Constraints) -> Sequence[str]:
    """Return the regimes in which the op runs on a GPU."""
    regimes = constraints.selection.regimes
    if device.composed and op.stages:  # on two sides each call returns its result to the host
        return [regime for regime in regimes if regime in ASSIGNED_REGIMES]
    # A GPU that shares the host's memory computes in place instead of copying.
    usual = not constraints.named_regimes and regimes == list(REGIMES)
    return UNIFIED_REGIMES if usual and device.unified and not stays_off_host(op, device) else regimes


def _kernels(series: Series, target: Target, constraints: Constraints) -> list[tuple[str, str | None]]:
    """Return pairs (implementation, variant), with the variant None for an implementation itself."""
    op, backend = series.op, target.device.backend
    if op.collective is not None:
        measured = _joins(series, target, constraints)
    elif op.overhead is not None:  # the costs of several devices are those of each
        measured = backend not in SEVERAL
    else:
        measured = backend != DEVICE_GROUP or constraints.settings.scales("strong")
    kernels: list[tuple[str, str | None]] = []
    for implementation in IMPLEMENTATIONS if measured else ():
        if implementation in constraints.selection.implementations and (
            implementation in _implementations(op, target) or constraints.named_implementations
        ):
            kernels.append((implementation, None))
        kernels += [
            (implementation, variant)
            for variant in constraints.selection.variants
            if _concerns(series, backend, implementation, variant)
        ]
    return kernels


def _joins(series: Series, target: Target, constraints: Constraints) -> bool:
    """Return whether the device group runs the collective of this series."""
    exchange, ranks = series.op.collective, len(group_ranks(target.device.id))
    if exchange is None or ranks == 0 or series.shape.get("ranks") != ranks:
        return False
    # Of the groups with equally many ranks, the first stands for the others, unless the collective is pairwise.
    same = (t.device.id for t in constraints.targets if len(group_ranks(t.device.id)) == ranks)
    return exchange.pairwise or target.device.id == next(same)


def with_ranks(selection: Selection, ops: Mapping[str, Op], devices: Sequence[Device]) -> Selection:
    """Return the selection with shapes for the collectives, except those whose shapes the user gave. Each
    collective is measured with every number of ranks that a device group has, or with 2 if it is pairwise."""
    counts = sorted({len(ranks) for device in devices if (ranks := group_ranks(device.id))})
    shapes = {
        name: [{"ranks": count} for count in counts if count == 2 or not op.collective.pairwise]
        for name, op in ops.items()
        if op.collective is not None and name not in selection.params
    }
    return replace(selection, params={**selection.params, **shapes}) if shapes else selection


def _implementations(op: Op, target: Target) -> tuple[str, ...]:
    if op.digest and target.device.backend not in op.tuned:  # a function of the user's, as it is written
        return tuple(implementation for implementation in target.implementations if implementation == "library")
    return target.implementations if op.overhead is None else op.overhead.implementations


def _concerns(series: Series, backend: str, implementation: str, variant: str) -> bool:
    """Return whether a variant exists for this op on this backend."""
    if backend in SEVERAL:
        return False
    if variant == TF32:
        return implementation == "library" and backend in series.op.tf32 and series.dtype == "float32"
    return implementation == "tuned" and variant in variants(series.op)


def variants(op: Op) -> set[str]:
    """Return the names of the op's kernels on all backends, without `default`."""
    return {kernel.variant for kernels in op.tuned.values() for kernel in kernels} - {"default"}


def _refusal(op: Op, case: Case, target: Target, constraints: Constraints) -> Skip | None:
    unfit = op.fits(case.params)
    if isinstance(unfit, Defect):
        return skip(case, "bad-plugin", f"{op.name}: {unfit}", hint=REASONS["bad-plugin"].remedy)
    if unfit is not None:
        return skip(case, "shape", unfit, hint=REASONS["shape"].remedy)
    if case.dtype not in op.dtypes:
        return skip(case, "no-dtype", f"{op.name} is declared for {', '.join(op.dtypes)}")
    if op.only and case.backend not in op.only:
        return skip(case, "no-implementation", f"{op.name} is declared for {', '.join(op.only)} alone")
    if case.memory and (why := stays_off_host(op, target.device)):
        return skip(case, "not-in-place", why, hint=REASONS["not-in-place"].remedy)
    return (
        _no_kernel(op, case, target)
        or _too_slow(op, case, constraints.settings)
        or _no_room(op, case, target.device, constraints.host_bytes)
    )


def _no_kernel(op: Op, case: Case, target: Target) -> Skip | None:
    if op.overhead is not None:
        why = "the CPU has no launch, no transfer and no memory of its own"
        return skip(case, "no-implementation", why) if target.device.kind == "cpu" else None
    if op.host is not None and target.device.kind != "cpu":
        return skip(case, "host-stage", f"{op.name} runs on the host, not on {case.device_id}")
    if case.regime == STREAMED and op.stages:
        return skip(
            case, "no-streams", f"the stages of {op.name} share memory: its calls run one after the other"
        )
    if case.implementation not in target.implementations:
        return skip(case, "no-implementation", f"{case.backend} has no {case.implementation} implementation")
    if case.backend in SEVERAL:
        if case.regime == STREAMED:
            return skip(case, "no-streams", f"{case.device_id} is several devices, each with calls of its own")
        return _no_split(op, case)
    if case.implementation == "library":
        return None
    kernel = op.kernel(case.backend, case.dtype, case.variant)
    if kernel is None:
        name = case.variant or "tuned"
        return skip(
            case, "no-implementation", f"{op.name} has no {name} kernel for {case.dtype} on {case.backend}"
        )
    if kernel.repeats_library(case.regime):
        return skip(case, "no-implementation", f"the best {op.name} on {case.backend} is the library call")
    return None


def _no_split(op: Op, case: Case) -> Skip | None:
    """Return a Skip if the op cannot be divided for this case, otherwise None."""
    # Stages are assigned to two sides, and a training is averaged over a group: neither is divided.
    why = None if op.stages and (case.backend != DEVICE_GROUP or op.averaged) else op.whole(case.params)
    return None if why is None else skip(case, "no-split", why)


def _too_slow(op: Op, case: Case, settings: Settings) -> Skip | None:
    """Return a Skip if a library call without fast code exceeds the case's time limit, otherwise None."""
    rate = op.slow.get((case.backend, case.dtype)) if case.implementation == "library" else None
    if rate is None:
        return None
    launches = settings.min_samples + EXTRA_LAUNCHES
    seconds = op.flops(case.params) / rate
    if seconds * launches <= settings.case_timeout_s:
        return None
    detail = (
        f"{case.backend} has no fast {op.name} in {case.dtype}: one launch takes {seconds:.1f} s or more,"
        f" {launches} do not fit {settings.case_timeout_s:g} s"
    )
    return skip(case, "too-slow", detail, hint=REASONS["too-slow"].remedy)


def _no_room(op: Op, case: Case, device: Device, host_bytes: int | None) -> Skip | None:
    if op.collective is not None:
        # What a rank sends and gets; ranks of software share the host's memory.
        held = 2 * case.n
        ranks = case.params["ranks"] if device.kind == "software" else 1
        return _fits(op, case, ranks * held, held, device, host_bytes)
    if op.overhead is not None:
        # What is sent and where it lands, held by both implementations on two devices side by side.
        return _fits(op, case, 8 * case.n, 2 * case.n, device, host_bytes)
    on_host, on_device = needs(op, case.params, case.dtype)
    if case.regime == STREAMED:
        more = LEAST_SETS * op.held_bytes(case.params, case.dtype)
        on_host, on_device = on_host + HOST_COPIES * more, on_device + more
    on_host += op.held_bytes(case.params, case.dtype) if case.memory else 0
    return _fits(op, case, on_host, on_device, device, host_bytes)


# Sets of inputs and outputs of a pipeline: one for each of its stages, or two if memory holds no more. The host
# has three copies of each set: page-locked arrays, the arrays that were drawn, and staging memory.
MOST_SETS, LEAST_SETS, HOST_COPIES = 3, 2, 3


def count_sets(op: Op, case: Case, device: Device, host_bytes: int | None) -> int:
    """Return how many sets of a pipeline's buffers fit into memory, from LEAST_SETS to MOST_SETS. Memory whose
    size is None does not limit them."""
    on_host, on_device = needs(op, case.params, case.dtype)
    held = max(1, op.held_bytes(case.params, case.dtype))
    rooms = ((host_bytes, on_host, HOST_COPIES), (device.usable_bytes, on_device, 1))
    counts = [
        int(MEMORY_SHARE * room - used) // (held * each) for room, used, each in rooms if room is not None
    ]
    return max(LEAST_SETS, min([MOST_SETS, *counts]))


def stays_off_host(op: Op, device: Device) -> str:
    """Return why the op cannot compute in the host's memory on this device, or an empty text if it can."""
    if device.backend in SEVERAL:
        return f"{device.id} has its data on several sides"
    if op.stages:
        return f"{op.name} is a workload, whose stages hand their data on where they run"
    if op.digest or op.host is not None:
        return f"{op.name} takes arrays of its own library"
    return ""


def needs(op: Op, params: Mapping[str, int], dtype: Dtype) -> tuple[int, int]:
    """Return the bytes that a workload needs on the host and on one device, with the buffers of the check."""
    operands = op.held_bytes(params, dtype)
    on_host_alone = sum(operand.bytes(params, dtype) for operand in op.inputs if operand.role == "host")
    # Inputs and outputs, and their float64 copies, the reference and its scale while checking.
    on_host = operands + on_host_alone + 3 * operands * 8 // ITEMSIZE[dtype]
    # In transfer-always the device has a second set of buffers, except of the operands that stay.
    staying = (operand for operand in op.inputs if not operand.travels and operand.role != "host")
    return on_host, 2 * operands - sum(operand.bytes(params, dtype) for operand in staying)


def _fits(
    op: Op, case: Case, on_host: int, on_device: int, device: Device, host_bytes: int | None
) -> Skip | None:
    share = functions.MEMORY_SHARE if op.digest else MEMORY_SHARE
    for needed, available, what in (
        (on_host, host_bytes, "host memory"), (on_device, device.usable_bytes, f"memory of {device.id}"),
    ):  # fmt: skip
        if available is not None and needed > share * available:
            limit = f"more than {share * 100:.0f} % of the {format_bytes(available)} of {what}"
            largest = max(op.operands, key=lambda operand: operand.bytes(case.params, case.dtype))
            sides = largest.shape(case.params)
            # That the size of a matrix is its side surprises those who meant elements.
            arrays = f"{'x'.join(map(str, sides))} arrays: " if len(sides) > 1 else ""
            detail = f"{arrays}needs about {format_bytes(needed)}, {limit}"
            return skip(case, "out-of-memory", detail, hint=REASONS["out-of-memory"].remedy)
    return None


def skip(case: Case, reason: Reason, detail: str, hint: str | None = None) -> Skip:
    return Skip(id=case.id, case=case, reason=reason, detail=detail, hint=hint)


def merge(workloads: Iterable[Workload]) -> list[Workload]:
    """Return one workload for each key, with the cases of all workloads with this key."""
    by_key: dict[str, Workload] = {}
    for item in workloads:
        before = by_key.get(item.key)
        if before is not None:
            cases = {case.id: case for case in (*before.cases, *item.cases)}
            item = replace(before, cases=tuple(cases.values()), explained=before.explained or item.explained)
        by_key[item.key] = item
    return list(by_key.values())


def together(workloads: Sequence[Workload], constraints: Constraints) -> list[tuple[Workload, ...]]:
    """Group the workloads in their order, so that memory holds each group at once. A workload that exceeds
    memory is a group of its own."""
    rooms = [constraints.host_bytes], [target.device.usable_bytes for target in constraints.targets]
    limits = [
        MEMORY_SHARE * min((room for room in of_side if room is not None), default=math.inf)
        for of_side in rooms
    ]
    groups: list[list[Workload]] = []
    used = [0, 0]
    for item in workloads:
        needed = needs(item.op, item.params, item.dtype)
        used = [a + b for a, b in zip(used, needed, strict=True)]
        if not groups or any(a > limit for a, limit in zip(used, limits, strict=True)):
            groups.append([])
            used = list(needed)
        groups[-1].append(item)
    return [tuple(group) for group in groups]


def expand(ops: Mapping[str, Op], constraints: Constraints) -> list[Workload]:
    """Return the workloads whose sizes are known before measuring, op by op, from small to large."""
    return [
        workload(curve, n, constraints)
        for curve in series(ops, constraints.selection)
        for n in sizes(curve.op, constraints.selection)
    ]


def sizes(op: Op, selection: Selection) -> list[int]:
    """Return the sizes that the user gave for the op, or an empty list if its sizes are to be searched. An
    overhead without given sizes has the sizes of its ladder. An overhead whose ladder has one size has only
    that."""
    named = selection.sizes.get(op.name, [])
    if op.overhead is not None and (not named or op.sizes.low == op.sizes.high):
        return op.sizes.sizes()
    return named


def series(ops: Mapping[str, Op], selection: Selection) -> list[Series]:
    """Return each op in each selected dtype and shape, as series. An overhead has the dtypes that it declares.
    A user's function has the selected dtypes that it declares, or all selected dtypes if it declares none of
    them."""
    return [
        Series(op, dtype, dict(shape))
        for name, op in ops.items()
        for dtype in (selection.dtypes if op.overhead is None else op.dtypes)
        if not op.digest or dtype in op.dtypes or not {*op.dtypes} & {*selection.dtypes}
        for shape in selection.params.get(name) or [{}]
    ]


def open_series(ops: Mapping[str, Op], selection: Selection) -> list[Series]:
    """Return the series whose sizes are searched: those without given sizes that are not overheads."""
    return [
        curve
        for curve in series(ops, selection)
        if curve.op.overhead is None and curve.op.name not in selection.sizes
    ]


def estimate_seconds(workloads: Sequence[Workload], settings: Settings) -> float:
    """Return a rough upper bound of the seconds: in each session a case takes `max_time_s` and two warm-ups."""
    per_case = settings.max_time_s + 2 * settings.warmup_s
    return sum(len(w.cases) for w in workloads) * per_case * settings.sessions


Phase = Literal["main", "sweep"]


class Purpose(msgspec.Struct, frozen=True):
    """The number of samples or blocks that a step takes of each case. If neither is given, the precision and
    the limits of the settings decide."""

    phase: Phase = "main"  # stored with each block
    samples: int | None = None  # number of samples of each case; None: not limited by their number
    blocks: int | None = None  # number of blocks of each case in this session; None: not limited


MAIN = Purpose()
# BLOCKS: a size that the user named within a budget. ONE_BLOCK: a size that a search chose, for which more
# sizes tell more than more blocks.
BLOCKS, ONE_BLOCK = Purpose(blocks=4), Purpose(blocks=1)


class Step(NamedTuple):
    """The workloads to measure together."""

    workloads: tuple[Workload, ...]  # the workloads, which are measured interleaved
    purpose: Purpose  # the number of samples or blocks of each case
    # whether every run of these ops measures these sizes, so that a machine chooses their kernels only once
    ends: bool = False


# A launch of less work takes about a microsecond on the fastest device, so it does not come near a peak.
LEAST_FLOPS = 10**8
# A working set this many times as large as the cache is limited by memory.
CACHES = 4
# Most seconds for one peak, the same with the preset `quick`, and the most as a share of the budget.
LIMIT_S, QUICK_LIMIT_S, BUDGET_SHARE = 1.0, 0.3, 1 / 150
# An array for a peak takes at most this part of the memory, which leaves room for the workloads.
PEAK_PARTS = 8
UNKNOWN_MEMORY_BYTES = 8 << 30


def plan_peaks(
    workloads: Sequence[Workload], devices: Sequence[Device], settings: Settings, machine: Machine
) -> dict[str, PeakRequest]:
    """Return, by device id, the peaks that a case of the plan could come near. Devices on the same hardware
    measure its memory once. Software adapters, splits and device groups have no peaks."""
    items = [item for item in workloads if item.op.overhead is None]
    by_device: dict[str, PeakRequest] = {}
    for device in devices:
        if device.kind not in ("cpu", "gpu") or device.backend == DEVICE_GROUP:
            continue  # a software adapter, a split and a device group stand for no hardware of their own
        cache_bytes = cache_of(device, devices, machine)
        chosen = [item for item in items if any(case.device_id == device.id for case in item.cases)]
        # The CPU is one, whatever library drives it, and so is a GPU.
        same = {
            d.id for d in devices if d.kind == device.kind == "cpu" or (d.gpu_id and d.gpu_id == device.gpu_id)
        }
        first = not any(w.memory for i, w in by_device.items() if i in same)
        memory = first and any(item.op.bytes(item.params, item.dtype) > CACHES * cache_bytes for item in chosen)
        compute: list[Dtype] = sorted(
            {item.dtype for item in chosen if item.op.flops(item.params) >= LEAST_FLOPS}
        )
        link = device.kind == "gpu" and any(_moves(item, device.id) for item in workloads)
        if memory or compute or link:
            rooms = [device.usable_bytes, machine.memory.usable_bytes.value]
            usable = [room for room in rooms if room is not None] or [UNKNOWN_MEMORY_BYTES]
            by_device[device.id] = PeakRequest(
                memory=memory, compute=compute, link=link, cache_bytes=cache_bytes, limit_s=limit_s(settings),
                memory_bytes=min(usable) // PEAK_PARTS,
            )  # fmt: skip
    return by_device


def _moves(item: Workload, device_id: str) -> bool:
    """Return whether a case on the device copies enough bytes to come near the rate of the link."""
    cases = [case for case in item.cases if case.device_id == device_id]
    over_link = any(copies(case.regime) or case.memory for case in cases)
    moves = item.op.overhead.moves if item.op.overhead else over_link
    return bool(cases) and moves and item.op.bytes(item.params, item.dtype) >= LINK_BYTES


def limit_s(settings: Settings) -> float:
    """Return the most seconds for one peak, which are fewer with the preset `quick` or a small budget."""
    most = QUICK_LIMIT_S if settings.preset == "quick" else LIMIT_S
    return most if settings.budget_s is None else min(most, BUDGET_SHARE * settings.budget_s)


def cache_of(device: Device, devices: Sequence[Device], machine: Machine) -> int:
    """Return the bytes of the device's last-level cache, or UNKNOWN_CACHE_BYTES."""
    if device.kind == "cpu":
        return cpu_cache_bytes(machine) or UNKNOWN_CACHE_BYTES
    # Another backend of the same GPU may know them.
    same = [other.cache_bytes for other in devices if other.gpu_id and other.gpu_id == device.gpu_id]
    return device.cache_bytes or next((size for size in same if size), UNKNOWN_CACHE_BYTES)
