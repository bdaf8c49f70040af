"""The `gpubench-report` document, version 1: what other programs read. Seconds, plain ratios, sizes.

Every list is there even when it is empty; a field that does not apply is null. `source` is an index into
`sources`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gpubench.model.machine import Recommendation
from gpubench.model.result import Severity
from gpubench.report.analysis.types import (
    Bound,
    ClaimVerdict,
    HybridReason,
    Label,
    OutcomeType,
    ReuseReason,
    ReuseVerdict,
    SpeedupKind,
    UndecidedReason,
    VerdictKind,
)


class Row(msgspec.Struct, frozen=True):
    """Base of the document's parts: immutable."""


class Source(Row, frozen=True, kw_only=True):
    """One result file."""

    run_id: str
    label: str | None
    started_at: str
    complete: bool
    exit_reason: str
    machine: str
    tool: dict[str, str]


class TimeRow(Row, frozen=True, kw_only=True):
    """Run value and interval; k sessions, n used samples over all of them."""

    estimate_s: float
    lo_s: float
    hi_s: float
    ci_kind: Literal["bootstrap", "within-session"]
    k: int
    n: int


class RatesRow(Row, frozen=True, kw_only=True):
    """Declared work over the time of `clock`."""

    flops_per_s: float | None
    bytes_per_s: float | None
    clock: Literal["wall", "device_cold"]


class AnatomyRow(Row, frozen=True, kw_only=True):
    """The parts and the residual add up to `whole_s`; `residual_share` is signed.

    With a `mismatch` nothing is predicted from the parts: `first_result_s` is null.
    """

    alloc_s: float
    upload_s: float
    launch_s: float
    kernel_s: float
    sync_s: float
    download_s: float
    residual_s: float
    residual_share: float
    whole_s: float
    kernel_derived: bool
    mismatch: bool
    single_s: float | None
    compile_s: float | None
    first_launch_s: float | None
    first_result_s: float | None


class CaseRow(Row, frozen=True, kw_only=True):
    """One case; `time` is null when `reason` says why. `kernel`: what the device took of several candidates."""

    source: int
    id: str
    outcome: OutcomeType
    kernel: str | None
    label: Label | None
    time: TimeRow | None
    min_s: float | None
    q1_s: float | None
    q3_s: float | None
    mad_s: float | None
    device_cold_s: float | None
    device_hot_s: float | None
    single_s: float | None
    rates: RatesRow | None
    anatomy: AnatomyRow | None
    reason: str | None
    detail: str | None
    hint: str | None
    warnings: tuple[str, ...]


class SpeedupRow(Row, frozen=True, kw_only=True):
    """Baseline time / case time, both wall. `headline` is false where a label forbids one."""

    source: int
    id: str
    baseline_id: str
    kind: SpeedupKind
    ratio: float
    lo: float
    hi: float
    ci_kind: Literal["bootstrap", "within-session"]
    label: Label
    headline: bool


class BreakEvenRow(Row, frozen=True, kw_only=True):
    """The smallest size from which the device wins for all larger ones. `n`, `lo`, `hi` are sizes.

    `lo` and `hi` without `n`: undecided, but it loses at `lo` and wins at `hi`.
    """

    source: int
    op: str
    dtype: str
    params: dict[str, int]
    regime: str
    device_id: str
    baseline_id: str
    verdict: VerdictKind
    n: int | None
    lo: int | None
    hi: int | None
    crossings: tuple[int, ...]
    first: int
    last: int
    last_ratio: float
    reason: UndecidedReason | None
    text: str


class WarningRow(Row, frozen=True, kw_only=True):
    """A finding with its advice; no ids: it is about the whole run."""

    source: int
    code: str
    severity: Severity
    message: str
    hint: str
    ids: tuple[str, ...]


class RoofRow(Row, frozen=True, kw_only=True):
    """The measured roofs of one piece of hardware with one dtype; null: not measured.

    The cases are those that reached them. `cache_sized`: no copy was larger than a cache may be; `small_matmul`: no
    matmul occupied the device. `ridge` is in FLOP per byte.
    """

    source: int
    device_ids: tuple[str, ...]
    dtype: str
    bytes_per_s: float | None
    bytes_case: str | None
    cache_sized: bool
    flops_per_s: float | None
    flops_case: str | None
    small_matmul: bool
    ridge: float | None


class RoofCaseRow(Row, frozen=True, kw_only=True):
    """One case with resident data below its roof. `to_library`: device time of the vendor library / its own."""

    source: int
    id: str
    clock: Literal["device_hot", "derived", "wall"]
    time_s: float
    bytes_per_s: float
    flops_per_s: float
    bound: Bound | None
    percent_of_roof: float | None
    in_cache: bool
    to_library: float | None


class RooflineRow(Row, frozen=True, kw_only=True):
    """The roofs of all hardware, and every case with resident data."""

    roofs: tuple[RoofRow, ...]
    cases: tuple[RoofCaseRow, ...]


class PoolRow(Row, frozen=True, kw_only=True):
    """Wall time of memory from the pool / that of an elementwise op of 1 Mi elements on the same device.

    `share`: launches waited for together; `single_share`: one waited for alone, null where that was not timed.
    """

    source: int
    id: str
    op_id: str
    share: float
    single_share: float | None


class ReuseRow(Row, frozen=True, kw_only=True):
    """Calls per transfer from which the GPU pays at one size: `calls` with interval, 1 = at every call.

    An end that is null beside a number of `calls` is open. `transfer_s` is paid once, `launch_s` for each call, against
    `cpu_s`; they come from calls of which `shared_by` share a copy.
    """

    source: int
    op: str
    dtype: str
    params: dict[str, int]
    n: int
    device_id: str
    form: str
    baseline_id: str
    verdict: ReuseVerdict
    calls: int | None
    lo: int | None
    hi: int | None
    shared_by: int
    transfer_s: float
    launch_s: float
    cpu_s: float
    reason: ReuseReason | None


class MeanRow(Row, frozen=True, kw_only=True):
    """Geometric mean of one device's headline speedups over `count` workloads; `missing` are those that it lacks of the
    fixed set. Means of different sets are not comparable."""

    source: int
    regime: str
    dtype: str
    device_id: str
    ratio: float
    lo: float
    hi: float
    count: int
    missing: tuple[str, ...]


class GateRow(Row, frozen=True, kw_only=True):
    """One gate of one run. It fails by the cases in `low` (below `least`, or of the kind that is named) and by those in
    `missing` (selected, and without a number); `near` are cases whose interval contains `least`."""

    source: int
    name: str
    selector: str | None
    least: float | None
    passed: bool
    low: tuple[str, ...]
    missing: tuple[str, ...]
    near: tuple[str, ...]
    reason: str | None


class ClaimRow(Row, frozen=True, kw_only=True):
    """What somebody claimed, and the kindest measured case: its speedup with interval, and the speedup of the same
    work when every call copies both ways. `ratio` and what follows it are null where nothing was measured."""

    source: int
    claim: str
    case: str | None
    verdict: ClaimVerdict
    reason: str | None
    tolerance: float
    claimed_speedup: float | None
    claimed_cpu_s: float | None
    claimed_gpu_s: float | None
    id: str | None
    baseline_id: str | None
    ratio: float | None
    lo: float | None
    hi: float | None
    cpu_s: float | None
    gpu_s: float | None
    ratio_with_copies: float | None


class HybridRow(Row, frozen=True, kw_only=True):
    """One op split over CPU and GPU: `gain` = time of the better side alone (`baseline_id`; null: by the sweep's own
    ends) / time of the split, at the GPU's share `fraction`. `efficiency` = modelled / measured time. `curve`: median
    seconds of the sweep by share. `selected_in_sample`: of the session that chose the share, so it flatters."""

    source: int
    id: str
    op: str
    n: int
    params: dict[str, int]
    dtype: str
    regime: str
    device_id: str
    baseline_id: str | None
    fraction: float
    gain: float
    lo: float
    hi: float
    ideal_gain: float
    efficiency: float
    recommended: bool
    reason: HybridReason | None
    selected_in_sample: bool
    curve: tuple[tuple[float, float], ...]


class ReportDocument(Row, frozen=True, kw_only=True):
    """The document. `recommendation` is that of `gpubench-detect` by the newest source that measured it, with the
    evidence; null where the sources are of several machines, or say nothing."""

    name: Literal["gpubench-report"] = "gpubench-report"
    schema_version: int = 1
    sources: tuple[Source, ...]
    baseline: str
    verdicts: tuple[str, ...]
    cases: tuple[CaseRow, ...]
    speedups: tuple[SpeedupRow, ...]
    break_even: tuple[BreakEvenRow, ...]
    roofline: RooflineRow
    pool_overhead: tuple[PoolRow, ...]
    reuse: tuple[ReuseRow, ...] = ()
    hybrid: tuple[HybridRow, ...] = ()
    means: tuple[MeanRow, ...] = ()
    claims: tuple[ClaimRow, ...] = ()
    recommendation: Recommendation | None = None
    gates: tuple[GateRow, ...] = ()
    warnings: tuple[WarningRow, ...]
    exit_code: int = 0
    exit_reason: str = "ok"
