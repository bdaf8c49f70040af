"""One outcome of a run -> one row: estimate, interval, spread, rates, label; or the reason for none."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec

from gpubench.analysis.anatomy import Anatomy, Residents, anatomy, residents, single_s
from gpubench.analysis.labels import Label, Mark, condition_findings, gravest, implausible, noise_findings
from gpubench.analysis.samples import (
    block_values,
    device_time,
    empty_launch_s,
    kept_samples,
    main_blocks,
)
from gpubench.base.errors import BadPlugin
from gpubench.base.messages import NoNumber, Reason
from gpubench.curves import stats
from gpubench.curves.stats import IntervalKind
from gpubench.kernels.contract.op import Op
from gpubench.result.case import GANG, REGIMES, RESIDENT, Case, beside_size
from gpubench.result.run import DeviceKind, Failure, Measurement, Outcome, Run, Skip

OutcomeType = Literal["measurement", "skip", "failure", "planned"]


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Declared work / time of one launch. `clock` names the clock that gave the time."""

    flops_per_s: float | None
    bytes_per_s: float | None
    clock: Literal["wall", "device_cold"]


class Estimate(
    msgspec.Struct,
    frozen=True,
    rename={"estimate": "estimate_s", "low": "lo_s", "high": "hi_s", "kind": "ci_kind"},
):
    """A time with its interval."""

    estimate: float
    low: float
    high: float
    kind: IntervalKind


class CaseTime(Estimate, frozen=True):
    """The time of a case with its interval: exp of the mean of ln(block)."""

    k: int  # sessions
    n: int  # used samples of all sessions
    median_s: float  # the median over sessions of the medians of their blocks


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """One case; `time` is null when `reason` says why. What is implausible has samples, and no estimate.

    `kernel`: what the device took of several candidates. `label` is the gravest of `findings`, None without samples.
    `single_s`: one launch that is waited for, with resident data. Aside: `sessions` holds the kept samples of each used
    session, by index, `blocks` the medians of its blocks; `prior`: what was known of its noise before.
    """

    aside: ClassVar = (
        "case",
        "device_kind",
        "blas",
        "sessions",
        "blocks",
        "prior",
        "outliers",
        "flops",
        "bytes",
        "written_bytes",
    )
    id: str
    outcome: OutcomeType
    kernel: str | None
    label: Label | None
    time: CaseTime | None
    min_s: float | None
    q1_s: float | None
    q3_s: float | None
    mad_s: float | None
    device_cold_s: float | None
    device_hot_s: float | None
    single_s: float | None
    rates: Rates | None
    anatomy: Anatomy | None
    reason: Reason | NoNumber | None
    detail: str | None
    hint: str | None
    findings: tuple[Mark, ...] = msgspec.field(name="warnings")
    case: Case
    device_kind: DeviceKind
    blas: bool | None = None
    sessions: dict[int, tuple[float, ...]] = {}
    blocks: dict[int, tuple[float, ...]] = {}
    prior: stats.Prior = stats.USUAL
    outliers: int = 0
    flops: int = 0
    bytes: int = 0
    written_bytes: int = 0  # those of outputs that travel

    @property
    def n(self) -> int:
        """The size."""
        return self.case.n

    @property
    def sample_count(self) -> int:
        """Used samples over all used sessions."""
        return sum(len(samples) for samples in self.sessions.values())


# Groups of ops that compute nothing: they have no CPU side, and take no part in any comparison.
OVERHEAD, COLLECTIVE = "overhead", "collective"
CALLS = (OVERHEAD, COLLECTIVE)
NO_SAMPLES: NoNumber = "no-samples"
# The reason of a case that runs on the host whatever the device.
HOST_STAGE: Reason = "host-stage"
CHECK_ONLY: NoNumber = "check-only"
IMPLAUSIBLE: Literal["implausible"] = "implausible"


def case_results(run: Run) -> tuple[CaseResult, ...]:
    """Return one row for each outcome, ordered by op, dtype, params, regime, device and form: not by the file."""
    kinds = {device.id: device.kind for device in run.devices}

    def row(outcome: Outcome, beside: Residents) -> CaseResult:
        return case_result(run, outcome, device_kind(outcome.case.device_id, kinds), beside)

    rows = [row(outcome, {}) for outcome in run.outcomes if outcome.case.resident]
    # No kernel of a doubtful time explains another one's.
    beside = residents(run, {found.id for found in rows if found.reason == IMPLAUSIBLE})
    rows += [row(outcome, beside) for outcome in run.outcomes if not outcome.case.resident]
    return tuple(sorted(rows, key=_order))


def device_kind(device_id: str, kinds: dict[str, DeviceKind]) -> DeviceKind:
    """The kind that the file states; a device that was never opened is judged by its backend."""
    if device_id in kinds:
        return kinds[device_id]
    backend = device_id.partition(":")[0]
    guessed: dict[str, DeviceKind] = {"numpy": "cpu", "hybrid": "hybrid"}
    return "cpu" if device_id.endswith(":cpu") else guessed.get(backend, "gpu")


def case_result(run: Run, outcome: Outcome, kind: DeviceKind, beside: Residents) -> CaseResult:
    if isinstance(outcome, Measurement):
        return _measured(run, outcome, kind, beside)
    if isinstance(outcome, Skip | Failure):
        row = _without_time(outcome, kind, outcome.reason, outcome.detail)
        return msgspec.structs.replace(
            row, outcome="skip" if isinstance(outcome, Skip) else "failure", hint=outcome.hint
        )
    row = _without_time(outcome, kind, "not-reached", "the run ended before this case was measured")
    return msgspec.structs.replace(row, outcome="planned")


def _without_time(
    outcome: Outcome, kind: DeviceKind, reason: Reason | NoNumber | None, detail: str
) -> CaseResult:
    """The row of a case that was measured, but has no number for this reason."""
    return CaseResult(
        id=outcome.id, case=outcome.case, device_kind=kind, outcome="measurement",
        kernel=outcome.kernel if isinstance(outcome, Measurement) else None,
        blas=outcome.blas if isinstance(outcome, Measurement) else None, label=None, findings=(), time=None,
        min_s=None, q1_s=None, q3_s=None, mad_s=None, device_cold_s=None, device_hot_s=None, single_s=None, rates=None,
        anatomy=None, reason=reason, detail=detail or None, hint=None,
    )  # fmt: skip


def _measured(run: Run, outcome: Measurement, kind: DeviceKind, beside: Residents) -> CaseResult:
    blocks = main_blocks(run, outcome)
    kept, throttled = kept_samples(run, outcome, blocks)
    if not kept:
        return _without_number(run, outcome, kind)
    sessions = {session: tuple(itertools.chain(*ours)) for session, ours in kept.items()}
    values = block_values(kept)
    prior = stats.prior_of(stats.run_value(values.values()), empty_launch_s(run, outcome.case.device_id))
    time = stats.run_interval(list(values.values()), prior)
    cold_s, hot_s = device_time(blocks, "cold"), device_time(blocks, "hot")
    findings = noise_findings(sessions, values) + condition_findings(run, outcome, sessions, blocks)
    findings += ["throttled"] if throttled else []
    findings += ["software"] if kind == "software" else []
    alone = outcome.case.backend != GANG  # a gang is timed by the host
    if kind == "gpu" and alone and outcome.case.queued and not _has_clock(run, outcome.case.device_id):
        findings.append("no-device-clock")
    parts = anatomy(run, outcome, time.estimate, cold_s, beside)
    if parts is not None and parts.mismatch:
        findings.append("transfer-mismatch")
    doubt = implausible(run, outcome, kind, time.estimate, blocks)
    row = msgspec.structs.replace(
        _without_time(outcome, kind, IMPLAUSIBLE if doubt else None, doubt or ""),
        label=IMPLAUSIBLE if doubt else gravest(findings), sessions=sessions, blocks=values, prior=prior,
        flops=outcome.flops, bytes=outcome.bytes, written_bytes=outcome.output_bytes or 0,
        findings=(*findings, IMPLAUSIBLE) if doubt else tuple(findings),
    )  # fmt: skip
    if doubt:
        return row
    samples = list(itertools.chain(*sessions.values()))
    spread = stats.spread(samples)
    return msgspec.structs.replace(
        row, time=CaseTime(**time._asdict(), k=len(sessions), n=len(samples), median_s=_middle(list(values.values()))),
        min_s=spread.minimum, q1_s=spread.q1, q3_s=spread.q3, mad_s=spread.mad,
        outliers=spread.outliers, device_cold_s=cold_s, device_hot_s=hot_s,
        single_s=single_s(run, outcome) if outcome.case.queued else None,
        rates=_rates(outcome, time.estimate, cold_s), anatomy=parts,
    )  # fmt: skip


def _middle(sessions: Sequence[Sequence[float]]) -> float:
    return stats.median([stats.median(values) for values in sessions])


def _has_clock(run: Run, device_id: str) -> bool:
    return any(device.id == device_id and device.own_clock is not None for device in run.devices)


def _without_number(run: Run, outcome: Measurement, kind: DeviceKind) -> CaseResult:
    """A case that passed its check but has too few samples: no estimate, with the reason for it."""
    if _check_only(run, outcome):
        return _without_time(outcome, kind, CHECK_ONLY, "checked and right; nothing was timed")
    ended = {stop.reason for stop in outcome.stops}
    reason: Reason | NoNumber = (
        "budget" if "budget" in ended else "timeout" if "timeout" in ended else NO_SAMPLES
    )
    short = f"fewer than {run.settings.min_samples} samples in every session, so there is no estimate"
    return _without_time(outcome, kind, reason, short)


def _check_only(run: Run, outcome: Measurement) -> bool:
    """Whether timing was never meant to begin. A run that was cut short looks the same, but for its options."""
    untouched = outcome.check.ok and not outcome.blocks and not outcome.stops
    return untouched and (run.complete or "--check-only" in run.argv)


def _rates(outcome: Measurement, wall_s: float, cold_s: float | None) -> Rates:
    """Resident kernels: the device's own clock where there is one; else, and with transfers, wall time."""
    on_device = cold_s is not None and outcome.case.queued
    seconds = cold_s if on_device and cold_s is not None else wall_s
    return Rates(
        flops_per_s=outcome.flops / seconds if outcome.flops else None,
        bytes_per_s=outcome.bytes / seconds if outcome.bytes else None,
        clock="device_cold" if on_device else "wall",
    )


_REGIME_ORDER = {regime: place for place, regime in enumerate((RESIDENT, *REGIMES))}


def _order(row: CaseResult) -> tuple[object, ...]:
    case = row.case
    rest = beside_size(case.params)
    return (
        case.op, case.dtype, case.params.get("n", 0), rest, _REGIME_ORDER[case.regime], case.calls or 0,
        row.device_kind != "cpu", case.device_id, case.form_id,
    )  # fmt: skip


def declaration(op: str) -> Op | None:
    """Return what this installation declares of an op of gpubench; None where it does not know the op."""
    # Here, as every report loads this module, and few need the declarations of ops.
    from gpubench import kernels

    with contextlib.suppress(BadPlugin):
        return kernels.load(op) if op in kernels.names() else None
    return None
