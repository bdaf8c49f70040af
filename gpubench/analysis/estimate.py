"""The rows of a report, one for each outcome of a run. A row has the estimate with its interval, spread, rates,
label and, for a copying call, the time breakdown. Or it has the reason why there is no number."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar, Literal

import msgspec

from gpubench.analysis.samples import (
    Label,
    Mark,
    block_values,
    condition_findings,
    device_clock,
    device_time,
    empty_launch_s,
    gravest,
    implausible,
    kept_samples,
    main_blocks,
    noise_findings,
    of_used_sessions,
    workers,
)
from gpubench.base.errors import BadPlugin
from gpubench.base.messages import NoNumber, Reason
from gpubench.curves import stats
from gpubench.curves.stats import IntervalKind
from gpubench.kernels.contract.op import Op
from gpubench.result.case import DEVICE_GROUP, ORDERED, Case, beside_size
from gpubench.result.run import DeviceKind, Failure, Measurement, Outcome, Run, Skip

OutcomeType = Literal["measurement", "skip", "failure", "planned"]


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """The rates of one launch: the work that the op declares, divided by the time."""

    flops_per_s: float | None  # floating-point operations; None: the op declares none
    bytes_per_s: float | None  # bytes that the op has to move; None: the op declares none
    clock: Literal["wall", "device_cold"]  # the clock that gave the time


class Estimate(
    msgspec.Struct,
    frozen=True,
    rename={"estimate": "estimate_s", "low": "lo_s", "high": "hi_s", "kind": "ci_kind"},
):
    """A time with its interval."""

    estimate: float  # the mean, in seconds
    low: float  # the low end of the interval, in seconds
    high: float  # the high end of the interval, in seconds
    kind: IntervalKind  # the source of the interval: the scatter of the sessions, or a prior


class CaseTime(Estimate, frozen=True):
    """The time of a case with its interval. The estimate is a geometric mean: of the block medians of each
    session, then of the sessions."""

    k: int  # the number of sessions
    n: int  # the number of used samples in all sessions
    median_s: float  # the median over the sessions of the median of their blocks


class TimeBreakdown(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the wall time of one `transfer-always` launch, in seconds. The parts and `residual_s` add up
    to `whole_s`. The fields from `single_s` on are no parts, and None if they were not measured."""

    alloc_s: float  # the allocation of memory for inputs and outputs
    upload_s: float  # the copy of the inputs to the device
    launch_s: float  # the time until the call of the launch returns
    kernel_s: float  # the kernel itself
    sync_s: float  # the wait for an idle device
    download_s: float  # the copy of the outputs to the host
    residual_s: float  # `whole_s` minus all parts; negative if parts overlap
    residual_share: float  # `residual_s` / `whole_s`
    whole_s: float  # the wall time of the launch
    kernel_derived: bool  # whether the device has no clock, so that `kernel_s` is single - launch - sync
    # whether the residual exceeds both 10 % of the whole and 20 us; then nothing is predicted from the parts
    mismatch: bool
    single_s: float | None  # one launch and its wait, with the data on the device
    compile_s: float | None  # the compilation, once in a session
    first_launch_s: float | None  # the first launch of a session
    first_result_s: float | None  # from opening the device to the first result; None if `mismatch`


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """One case with its estimate, or the reason why it has none. Values that were not measured, or that do not
    apply to the case, are null."""

    # the fields that the JSON rows leave out
    aside: ClassVar = (
        "case",
        "device_kind",
        "blas",
        "sessions",
        "blocks",
        "prior",
        "flops",
        "bytes",
        "written_bytes",
    )
    id: str  # the id of the case
    outcome: OutcomeType  # the kind of outcome in the file
    kernel: str | None = None  # the kernel chosen among several, or the library of a user's program
    label: Label | None = None  # the gravest of `warnings`; null without samples
    time: CaseTime | None = None  # the estimate with its interval; if it is null, `reason` says why
    min_s: float | None = None  # the smallest used sample
    q1_s: float | None = None  # the first quartile of the used samples
    q3_s: float | None = None  # the third quartile of the used samples
    mad_s: float | None = None  # the median absolute deviation of the used samples
    device_cold_s: float | None = None  # seconds by the device's own clock, with flushed caches
    device_hot_s: float | None = None  # seconds by the device's own clock, for launches in a row
    single_s: float | None = None  # seconds of one launch and its wait, with the data on the device
    rates: Rates | None = None  # declared work per second
    time_breakdown: TimeBreakdown | None = None  # the parts of the time, for a call that copies
    reason: Reason | NoNumber | None = None  # the code of the reason why there is no number
    detail: str | None = None  # the reason as text
    hint: str | None = None  # the remedy
    findings: tuple[Mark, ...] = msgspec.field(default=(), name="warnings")  # all findings
    case: Case  # the measured case
    device_kind: DeviceKind  # the kind of its device
    blas: bool | None = None  # whether the backend's BLAS does most of the work
    sessions: dict[int, tuple[float, ...]] = {}  # the used samples in seconds, by session index
    blocks: dict[int, tuple[float, ...]] = {}  # the medians of the blocks in seconds, by session index
    prior: stats.Prior = stats.USUAL  # the prior of its noise
    flops: int = 0  # floating-point operations of one launch, as the op declares them
    bytes: int = 0  # bytes that one launch has to move
    written_bytes: int = 0  # bytes of the outputs, a part of `bytes`; 0 if the file does not state them

    @property
    def n(self) -> int:
        """The size."""
        return self.case.n

    @property
    def sample_count(self) -> int:
        """The number of used samples in all used sessions."""
        return sum(len(samples) for samples in self.sessions.values())


class OfSeries(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the results about one op, dtype and params."""

    op: str  # the name of the op
    dtype: str  # the dtype of the elements
    params: dict[str, int]  # the params other than the size


def series_fields(case: Case) -> dict[str, Any]:
    """Return the fields of `OfSeries` for the series of a case."""
    op, dtype, params = case.series
    return {"op": op, "dtype": dtype, "params": dict(params)}


# Groups of ops that compute nothing. They have no CPU side and are not compared.
OVERHEAD, COLLECTIVE = "overhead", "collective"
CALLS = (OVERHEAD, COLLECTIVE)
NO_SAMPLES: NoNumber = "no-samples"
# The reason of a GPU's case that has to run on the host.
HOST_STAGE: Reason = "host-stage"
CHECK_ONLY: NoNumber = "check-only"
IMPLAUSIBLE: Literal["implausible"] = "implausible"


def case_results(run: Run) -> tuple[CaseResult, ...]:
    """Return one row for each outcome, sorted by op, dtype, size, params, regime, device and implementation."""
    rows = [case_result(run, outcome, {}) for outcome in run.outcomes if outcome.case.resident]
    # A case whose time is implausible explains no other case.
    beside = residents(run, {result.id for result in rows if result.reason == IMPLAUSIBLE})
    rows += [case_result(run, outcome, beside) for outcome in run.outcomes if not outcome.case.resident]
    return tuple(sorted(rows, key=_order))


def _device_kind(run: Run, device_id: str) -> DeviceKind:
    """Return the kind of a device, or a guess by its id if it was never opened."""
    for device in run.devices:
        if device.id == device_id:
            return device.kind
    backend = device_id.partition(":")[0]
    guessed: dict[str, DeviceKind] = {"numpy": "cpu", "hybrid": "hybrid"}
    return "cpu" if device_id.endswith(":cpu") else guessed.get(backend, "gpu")


def case_result(run: Run, outcome: Outcome, beside: Residents) -> CaseResult:
    """Return the row of one outcome. `beside` holds the queued cases (`residents`)."""
    kind = _device_kind(run, outcome.case.device_id)
    if isinstance(outcome, Measurement):
        return _measure(run, outcome, kind, beside)
    if isinstance(outcome, Skip | Failure):
        return CaseResult(
            id=outcome.id, case=outcome.case, device_kind=kind, hint=outcome.hint, reason=outcome.reason,
            outcome="skip" if isinstance(outcome, Skip) else "failure", detail=outcome.detail or None,
        )  # fmt: skip
    detail = "the run ended before this case was measured"
    return CaseResult(
        id=outcome.id,
        case=outcome.case,
        device_kind=kind,
        outcome="planned",
        reason="not-reached",
        detail=detail,
    )


def _measure(run: Run, outcome: Measurement, kind: DeviceKind, beside: Residents) -> CaseResult:
    case = CaseResult(
        id=outcome.id, case=outcome.case, device_kind=kind, outcome="measurement", kernel=outcome.kernel,
        blas=outcome.blas,
    )  # fmt: skip
    blocks = main_blocks(run, outcome)
    cached, throttled = kept_samples(run, outcome, blocks)
    if not cached:
        reason, detail = _why_no_number(run, outcome)
        return msgspec.structs.replace(case, reason=reason, detail=detail)
    sessions = {session: tuple(itertools.chain(*samples)) for session, samples in cached.items()}
    values = block_values(cached)
    prior = stats.prior_of(stats.run_value(values.values()), empty_launch_s(run, outcome.case.device_id))
    time = stats.run_interval(list(values.values()), prior)
    cold_s, hot_s = device_time(blocks, "cold"), device_time(blocks, "hot")
    findings = noise_findings(sessions, values) + condition_findings(run, outcome, sessions, blocks)
    findings += ["throttled"] if throttled else []
    findings += ["software"] if kind == "software" else []
    alone = outcome.case.backend != DEVICE_GROUP  # a device group is timed by the host
    if kind == "gpu" and alone and outcome.case.queued and device_clock(run, outcome) is None:
        findings.append("no-device-clock")
    parts = time_breakdown(run, outcome, time.estimate, cold_s, beside)
    findings += ["transfer-mismatch"] if parts is not None and parts.mismatch else []
    doubt = implausible(run, outcome, kind, time.estimate, blocks)
    case = msgspec.structs.replace(
        case, sessions=sessions, blocks=values, prior=prior, flops=outcome.flops, bytes=outcome.bytes,
        written_bytes=outcome.output_bytes or 0,
    )  # fmt: skip
    if doubt:
        return msgspec.structs.replace(
            case, reason=IMPLAUSIBLE, detail=doubt, label=IMPLAUSIBLE, findings=(*findings, IMPLAUSIBLE)
        )
    samples = list(itertools.chain(*sessions.values()))
    spread = stats.spread(samples)
    middle_s = stats.median([stats.median(session) for session in values.values()])
    return msgspec.structs.replace(
        case, label=gravest(findings), findings=tuple(findings),
        time=CaseTime(**time._asdict(), k=len(sessions), n=len(samples), median_s=middle_s),
        min_s=spread.minimum, q1_s=spread.q1, q3_s=spread.q3, mad_s=spread.mad,
        device_cold_s=cold_s, device_hot_s=hot_s,
        single_s=single_s(run, outcome) if outcome.case.queued else None,
        rates=_rates(outcome, time.estimate, cold_s), time_breakdown=parts,
    )  # fmt: skip


def _why_no_number(run: Run, outcome: Measurement) -> tuple[Reason | NoNumber, str]:
    """Return a code and a text that say why a checked case has no estimate."""
    # Only the options tell a run that was meant to check alone from a run that was cut short.
    untouched = outcome.check.ok and not outcome.blocks and not outcome.stops
    if untouched and (run.complete or "--check-only" in run.argv):
        return CHECK_ONLY, "checked and right; nothing was timed"
    short = f"fewer than {run.settings.min_samples} samples in every session, so there is no estimate"
    ended = {stop.reason for stop in outcome.stops}
    return "budget" if "budget" in ended else "timeout" if "timeout" in ended else NO_SAMPLES, short


def _rates(outcome: Measurement, wall_s: float, cold_s: float | None) -> Rates:
    """Return the FLOP/s and bytes/s of a case. A queued case counts by `cold_s`, the device's clock, if it has
    one; all other cases count by `wall_s`."""
    device_s = cold_s if outcome.case.queued else None
    seconds = wall_s if device_s is None else device_s
    return Rates(
        flops_per_s=outcome.flops / seconds if outcome.flops else None,
        bytes_per_s=outcome.bytes / seconds if outcome.bytes else None,
        clock="wall" if device_s is None else "device_cold",
    )


_REGIME_ORDER = {regime: place for place, regime in enumerate(ORDERED)}


def _order(item: CaseResult) -> tuple[object, ...]:
    case = item.case
    rest = beside_size(case.params)
    return (
        case.op, case.dtype, case.params.get("n", 0), rest, _REGIME_ORDER[case.regime], case.calls or 0,
        item.device_kind != "cpu", case.device_id, case.implementation_id,
    )  # fmt: skip


def declaration(op: str) -> Op | None:
    """Return the declaration of a gpubench op, or None if this installation does not know the op."""
    # Here, as every report loads this module, and few need the declarations of ops.
    from gpubench import kernels

    with contextlib.suppress(BadPlugin):
        return kernels.load(op) if op in kernels.names() else None
    return None


# ---------------------------------------------------------------- where the time of a copying call goes

# The parts that are timed by themselves.
_LISTED = ("alloc_s", "upload_s", "launch_s", "sync_s", "download_s")
Residents = Mapping[tuple[str, str, str], Measurement]


def residents(run: Run, without: Collection[str]) -> Residents:
    """Return the queued cases, by workload, implementation and device. Cases whose ids are in `without` are
    left out."""
    return {
        _kernel_key(outcome): outcome
        for outcome in run.measurements
        if outcome.case.queued and outcome.id not in without
    }


def time_breakdown(
    run: Run, outcome: Measurement, wall_s: float, cold_s: float | None, beside: Residents
) -> TimeBreakdown | None:
    """Return the time breakdown of a `transfer-always` case, or None for other regimes and if a part is
    unknown. `wall_s` is the time of the call, `cold_s` the kernel's time by the device's clock. `beside` holds
    the queued cases, which run the same kernels."""
    if outcome.case.regime != "transfer-always":
        return None
    resident = beside.get(_kernel_key(outcome))
    parts = of_used_sessions(run, outcome.parts) or of_used_sessions(run, resident.parts if resident else [])
    times = {name: _typical(getattr(part, name) for part in parts) for name in (*_LISTED, "single_s")}
    result_s = _typical(part.result_s for part in parts)
    kernel_s = cold_s
    if kernel_s is None and resident is not None:
        kernel_s = device_time(main_blocks(run, resident), "cold")
    derived, single, launch, sync = kernel_s is None, times["single_s"], times["launch_s"], times["sync_s"]
    if kernel_s is None and single is not None and launch is not None and sync is not None:
        kernel_s = max(0.0, single - launch - sync)  # without a device clock
    if result_s is not None and kernel_s is not None:
        # `result_s` is a wait for the kernel and a download, so the kernel took no longer. Alone, on flushed caches,
        # it may take longer than in the call.
        kernel_s = min(kernel_s, result_s)
        times["download_s"] = max(0.0, result_s - kernel_s - (times["sync_s"] or 0.0))
    answer = {name: value for name in _LISTED if (value := times[name]) is not None}
    if kernel_s is None or len(answer) < len(_LISTED):
        return None
    open_s = _typical([worker.open_s] for worker in workers(run, outcome.case.device_id) if worker.open_s)
    compile_s = _typical([part.compile_s] for part in parts if part.compile_s is not None)
    first_s = _typical([part.first_launch_s] for part in parts if part.first_launch_s is not None)
    residual_s = wall_s - sum(answer.values()) - kernel_s
    mismatch = abs(residual_s / wall_s) > 0.10 and abs(residual_s) > 20e-6
    result_once_s = None
    if not (mismatch or open_s is None or compile_s is None or first_s is None):
        result_once_s = (
            open_s + compile_s + first_s + answer["alloc_s"] + answer["upload_s"] + answer["download_s"]
        )
    return TimeBreakdown(
        **answer, kernel_s=kernel_s, residual_s=residual_s, residual_share=residual_s / wall_s, whole_s=wall_s,
        kernel_derived=derived, mismatch=mismatch, single_s=times["single_s"], compile_s=compile_s,
        first_launch_s=first_s, first_result_s=result_once_s,
    )  # fmt: skip


def single_s(run: Run, outcome: Measurement) -> float | None:
    """Return the seconds of one launch and its wait: the median of the sessions' medians. Returns None if
    single launches were not timed."""
    return _typical(part.single_s for part in of_used_sessions(run, outcome.parts))


def _typical(samples_by_session: Iterable[list[float] | list[float | None]]) -> float | None:
    """Return the median of the sessions' medians, or None if no session has a sample."""
    sessions = ([value for value in samples if value is not None] for samples in samples_by_session)
    medians = [stats.median(values) for values in sessions if values]
    return stats.median(medians) if medians else None


def _kernel_key(outcome: Measurement) -> tuple[str, str, str]:
    case = outcome.case
    return (case.workload, case.implementation_id, case.device_id)
