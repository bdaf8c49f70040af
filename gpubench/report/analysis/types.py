"""What the analysis of one run finds: frozen data that every format renders. Times are in seconds.

Nothing here is ever stored in a result file; all of it is derived from one, and gives the same values again.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gpubench.model.case import Case, RegimeKind
from gpubench.model.machine import Measured
from gpubench.model.op import Dtype, Form
from gpubench.model.result import DeviceKind, Run, Severity
from gpubench.stats import Interval, Spread

OutcomeType = Literal["measurement", "skip", "failure", "planned"]
Label = Literal[
    "ok", "noisy", "unstable", "too-short", "contended", "throttled", "implausible", "software",
]  # fmt: skip
VerdictKind = Literal["always", "at", "beyond-limit", "never", "unstable", "undecided"]
Bound = Literal["memory", "compute"]
RoofClock = Literal["device_hot", "derived", "wall"]
FailOn = Literal["noisy", "skipped", "incomplete"]
UndecidedReason = Literal["noise", "few-sizes", "throttled", "failed-cases", "budget"]
ReuseVerdict = Literal["already", "at", "never", "undecided"]
ReuseReason = Literal["noise", "no-parts", "parts-differ"]
ClaimVerdict = Literal["confirmed", "refuted", "undecided", "not measured"]
HybridReason = Literal[
    "gpu-dominates", "cpu-dominates", "transfer-bound", "overhead-bound", "shared-bandwidth", "cpu-starved", "noise",
    "selected-in-sample", "throttled", "software",
]  # fmt: skip
# "case": any other form against the same baseline as the headline; for tables of all cases alone.
SpeedupKind = Literal["headline", "library", "case"]
# Labels that keep a case out of headlines (measurement.md, section 6).
NO_HEADLINE: frozenset[Label] = frozenset({"unstable", "throttled", "implausible", "software"})


class Derived(msgspec.Struct, frozen=True):
    """Base of the derived types: immutable."""


class Rates(Derived, frozen=True, kw_only=True):
    """Declared work / time of one launch. `clock` names the clock that gave the time."""

    flops_per_s: float | None
    bytes_per_s: float | None
    clock: Literal["wall", "device_cold"]


class Anatomy(Derived, frozen=True, kw_only=True):
    """Where the wall time of one `transfer-always` launch goes.

    The parts and `residual_s` add up to `whole_s`; a negative residual is overlap. `kernel_derived` says that
    the device has no clock and the kernel's time is single - launch - sync.
    """

    alloc_s: float
    upload_s: float
    launch_s: float
    kernel_s: float
    sync_s: float
    download_s: float
    residual_s: float
    whole_s: float
    kernel_derived: bool
    single_s: float | None = None
    compile_s: float | None = None
    first_launch_s: float | None = None
    first_result_s: float | None = None

    @property
    def residual_share(self) -> float:
        """residual / whole, signed."""
        return self.residual_s / self.whole_s

    @property
    def mismatch(self) -> bool:
        """The parts miss the whole by more than 10 % and more than 20 us (measurement.md, section 8)."""
        return abs(self.residual_share) > 0.10 and abs(self.residual_s) > 20e-6


class CaseResult(Derived, frozen=True, kw_only=True):
    """One case: its estimate, or the reason why it has none. What is implausible has samples, and no estimate.

    `label` is the gravest of `findings`. `sessions` holds the kept samples of each used session, by index.
    `kernel` names what the device took where a kernel let it choose. `single_s`: one launch that is waited for, with
    resident data.
    """

    id: str
    case: Case
    device_kind: DeviceKind
    outcome: OutcomeType
    kernel: str | None = None
    label: Label = "ok"
    findings: tuple[str, ...] = ()
    time: Interval | None = None
    spread: Spread | None = None
    sessions: dict[int, tuple[float, ...]] = {}
    flops: int = 0
    bytes: int = 0
    device_cold_s: float | None = None
    device_hot_s: float | None = None
    single_s: float | None = None
    rates: Rates | None = None
    anatomy: Anatomy | None = None
    reason: str | None = None
    detail: str = ""
    hint: str | None = None

    @property
    def sample_count(self) -> int:
        """Used samples over all used sessions."""
        return sum(len(samples) for samples in self.sessions.values())


class Speedup(Derived, frozen=True, kw_only=True):
    """Wall time of the baseline / wall time of the case; above 1 the case is faster.

    `headline` is False when a label of either side forbids one; the row is shown and marked.
    """

    case: CaseResult
    baseline: CaseResult
    kind: SpeedupKind
    ratio: Interval
    label: Label
    headline: bool


class BreakEven(Derived, frozen=True, kw_only=True):
    """The smallest size from which the device wins for all larger sizes, or why none can be named.

    `n`, `low`, `high` are sizes; an open end is None. An undecided row without `n` may still have a bracket: it
    loses at `low` and wins at `high`. `first` and `last` are the ends of the measured sizes,
    `last_ratio` is the speedup at the largest.
    """

    op: str
    dtype: str
    params: dict[str, int]
    regime: RegimeKind
    calls: int | None
    device_id: str
    device_kind: DeviceKind
    baseline_id: str
    verdict: VerdictKind
    first: int
    last: int
    last_ratio: Interval
    last_label: Label
    n: int | None = None
    low: int | None = None
    high: int | None = None
    crossings: tuple[int, ...] = ()
    reason: UndecidedReason | None = None


class Reuse(Derived, frozen=True, kw_only=True):
    """Calls per transfer from which the GPU pays at one size, or why that cannot be said.

    `calls` is set where `verdict` is already (1) or at; an open end of the interval is None. `transfer_s` is paid once,
    `launch_s` for each call, against `cpu_s`; they were read from calls that share a copy by `shared_by`.
    """

    op: str
    dtype: str
    params: dict[str, int]
    n: int
    device_id: str
    form: Form
    baseline_id: str
    shared_by: int
    transfer_s: float
    launch_s: float
    cpu_s: float
    verdict: ReuseVerdict
    calls: int | None = None
    low: int | None = None
    high: int | None = None
    reason: ReuseReason | None = None


class Mean(Derived, frozen=True, kw_only=True):
    """The geometric mean of the speedups of one device over a fixed set of workloads, in one regime and dtype.

    The set is what was attempted in every regime, on whatever device; `missing` are those without a headline of this
    device, and `ratio` is the mean over the `count` others: two means compare only if neither misses any.
    """

    regime: str
    dtype: Dtype
    device_id: str
    ratio: Interval
    count: int
    missing: tuple[str, ...] = ()


class Finding(Derived, frozen=True, kw_only=True):
    """A warning with its advice; `ids` are the cases it concerns, none when it is about the whole run."""

    code: str
    severity: Severity
    message: str
    hint: str = ""
    ids: tuple[str, ...] = ()


class Roof(Derived, frozen=True, kw_only=True):
    """What one piece of hardware reached in this run with one dtype. Always measured, never from a data sheet.

    `device_ids` are the names under which the backends see it. A rate that was not measured is None. `copy` and
    `matmul` are the cases behind the two rates; `cache_sized`: no copy was larger than a cache may be;
    `small_matmul`: no matmul was large enough to occupy the device.
    """

    device_ids: tuple[str, ...]
    dtype: Dtype
    bytes_per_s: float | None = None
    copy: CaseResult | None = None
    cache_sized: bool = False
    flops_per_s: float | None = None
    matmul: CaseResult | None = None
    small_matmul: bool = False

    @property
    def ridge(self) -> float | None:
        """FLOP per byte from which on computing, not memory, is the limit."""
        if self.bytes_per_s is None or self.flops_per_s is None:
            return None
        return self.flops_per_s / self.bytes_per_s


class RoofShare(Derived, frozen=True, kw_only=True):
    """One case with resident data below its roof: `share` = the time that the roof allows / `seconds`.

    `seconds` is device time where `clock` says so, or derived from wall times of a device that has no clock. `share` is
    None without a roof, and is never clipped: `in_cache` says that memory does not limit a working set of this size;
    `weak_roof`, that the roof was measured at small sizes alone and is none yet. `to_library`: device time of the
    vendor library's case of the same work / device time of this one.
    """

    case: CaseResult
    seconds: float
    clock: RoofClock
    bound: Bound | None = None
    share: float | None = None
    in_cache: bool = False
    weak_roof: bool = False
    to_library: float | None = None


class Roofline(Derived, frozen=True, kw_only=True):
    """The roofs of all hardware of a run, and the cases below them."""

    roofs: tuple[Roof, ...] = ()
    rows: tuple[RoofShare, ...] = ()


class PoolOverhead(Derived, frozen=True, kw_only=True):
    """Memory from the pool against an elementwise op of 1 Mi elements on the same device, all by wall time.

    `share` is that of a launch among many that are waited for together, `single_share` that of one which is
    waited for alone; None: that was not timed.
    """

    allocate: CaseResult
    op: CaseResult
    share: float
    single_share: float | None = None


class Overheads(Derived, frozen=True, kw_only=True):
    """What a device costs beside its kernels; such cases have no CPU side and take no part in any comparison.

    `empty`: by device id the seconds of an empty launch and its wait, as every session measures them.
    """

    rows: tuple[CaseResult, ...] = ()
    pools: tuple[PoolOverhead, ...] = ()
    empty: dict[str, float] = {}


class Gate(Derived, frozen=True, kw_only=True):
    """One gate and the cases that decide it.

    `low`: the whole interval lies below what was asked for, or the case is what `--fail-on` names. `missing`: a
    selected case without a number. Either fails the gate. `near`: the interval contains what was asked for, which
    is told and fails nothing. `reason`: why a gate on the whole run failed.
    """

    name: Literal["min-speedup"] | FailOn
    selector: str | None = None
    least: float | None = None
    low: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    near: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def passed(self) -> bool:
        """Whether nothing breached it."""
        return not (self.low or self.missing or self.reason)


class Claim(Derived, frozen=True, kw_only=True):
    """What somebody expects: a speedup, or the times of both sides, or the GPU's alone (seconds).

    `case` selects what it is about; None: gpubench has no op for it. `tolerance` is a share of the expectation.
    """

    claim: str
    case: str | None = None
    speedup: float | None = None
    cpu_s: float | None = None
    gpu_s: float | None = None
    tolerance: float = 0.1

    @property
    def expected(self) -> float | None:
        """The speedup that it names, else the ratio of its times."""
        if self.speedup is None and self.cpu_s is not None and self.gpu_s is not None:
            return self.cpu_s / self.gpu_s
        return self.speedup


class ClaimResult(Derived, frozen=True, kw_only=True):
    """A claim beside what was measured. `with_copies`: the same work when every call copies both ways."""

    claim: Claim
    verdict: ClaimVerdict
    reason: str = ""
    measured: Speedup | None = None
    with_copies: Speedup | None = None


class Hybrid(Derived, frozen=True, kw_only=True):
    """One op split over a GPU and the CPU, against the better of the two alone; `gain` > 1: splitting is faster.

    `fraction` is the GPU's share, `curve` the median seconds of the sweep by share. `ideal` is the gain of the model,
    where the rates of both add up; `efficiency` = modelled / measured time at `fraction`. `in_sample`: the gain comes
    from the session that chose the share, so it flatters.
    """

    case: CaseResult
    device_id: str
    fraction: float
    baseline_id: str | None
    gain: Interval
    ideal: float
    efficiency: float
    in_sample: bool
    curve: tuple[tuple[float, float], ...] = ()
    reason: HybridReason | None = None

    @property
    def recommended(self) -> bool:
        """Whether nothing speaks against it."""
        return self.reason is None

    @property
    def baseline_device(self) -> str | None:
        """The better of the two alone; None where only the sweep's own ends tell."""
        return None if self.baseline_id is None else self.baseline_id.rpartition("@")[2]


class Analysis(Derived, frozen=True, kw_only=True):
    """Everything that is derived from one run, in the order in which it is printed."""

    run: Run
    machine: str
    baseline: str
    cases: tuple[CaseResult, ...]
    speedups: tuple[Speedup, ...]
    break_even: tuple[BreakEven, ...]
    verdicts: tuple[str, ...]
    findings: tuple[Finding, ...]
    roofline: Roofline
    overheads: Overheads
    gates: tuple[Gate, ...] = ()
    claims: tuple[ClaimResult, ...] = ()
    reuse: tuple[Reuse, ...] = ()
    means: tuple[Mean, ...] = ()
    hybrid: tuple[Hybrid, ...] = ()
    measured: Measured | None = None
