"""One outcome of a run -> one row: estimate, interval, spread, rates, label; or the reason for none."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench import stats
from gpubench.model.case import beside_size
from gpubench.model.result import DeviceKind, Failure, Measurement, Outcome, Run, Skip
from gpubench.report.analysis.anatomy import Residents, anatomy, residents, single_s
from gpubench.report.analysis.labels import condition_findings, gravest, implausible, noise_findings
from gpubench.report.analysis.samples import (
    Phase,
    device_time,
    kept_samples,
    main_blocks,
    only_estimates,
    wall_samples,
)
from gpubench.report.analysis.types import CaseResult, Label, Rates

NO_SAMPLES = "no-samples"
CHECK_ONLY = "check-only"
IMPLAUSIBLE: Label = "implausible"


def case_results(run: Run) -> tuple[CaseResult, ...]:
    """One row for each outcome, ordered by op, dtype, params, regime, device and form: not by the file.

    A size that was measured for a break-even's estimate alone belongs to that curve and has no row.
    """
    kinds = {device.id: device.kind for device in run.devices}
    shown = [outcome for outcome in run.outcomes if not only_estimates(run, outcome)]

    def row(outcome: Outcome, beside: Residents) -> CaseResult:
        return case_result(run, outcome, device_kind(outcome.case.device_id, kinds), beside)

    rows = [row(outcome, {}) for outcome in shown if outcome.case.regime == "resident"]
    # No kernel of a doubtful time explains another one's.
    beside = residents(run, {found.id for found in rows if found.reason == IMPLAUSIBLE})
    rows += [row(outcome, beside) for outcome in shown if outcome.case.regime != "resident"]
    return tuple(sorted(rows, key=_order))


def device_kind(device_id: str, kinds: dict[str, DeviceKind]) -> DeviceKind:
    """The kind that the file states; a device that was never opened is judged by its backend."""
    if device_id in kinds:
        return kinds[device_id]
    backend = device_id.partition(":")[0]
    guessed: dict[str, DeviceKind] = {"numpy": "cpu", "hybrid": "hybrid", "fake": "fake"}
    return guessed.get(backend, "gpu")


def case_result(run: Run, outcome: Outcome, kind: DeviceKind, beside: Residents) -> CaseResult:
    """The row of one outcome on a device of this kind; `beside` are the run's resident cases."""
    if isinstance(outcome, Measurement):
        return _measured(run, outcome, kind, beside)
    if isinstance(outcome, Skip | Failure):
        return CaseResult(
            id=outcome.id, case=outcome.case, device_kind=kind,
            outcome="skip" if isinstance(outcome, Skip) else "failure",
            reason=outcome.reason, detail=outcome.detail, hint=outcome.hint,
        )  # fmt: skip
    return CaseResult(
        id=outcome.id, case=outcome.case, device_kind=kind, outcome="planned", reason="not-reached",
        detail="the run ended before this case was measured",
    )  # fmt: skip


def implausible_ids(run: Run, phases: Sequence[Phase] = ("main", "estimate")) -> frozenset[str]:
    """The cases whose times of one of these phases cannot be true. A size that was measured for a break-even's estimate
    alone has no row that would say so."""
    kinds = {device.id: device.kind for device in run.devices}
    found = set()
    for outcome in run.outcomes:
        if not isinstance(outcome, Measurement):
            continue
        for phase in phases:
            blocks = main_blocks(run, outcome, phase)
            samples = [ours for block in blocks.values() if (ours := wall_samples(block, discarded=True))]
            kind = device_kind(outcome.case.device_id, kinds)
            if samples and implausible(run, outcome, kind, stats.run_interval(samples), blocks):
                found.add(outcome.id)
    return frozenset(found)


def _measured(run: Run, outcome: Measurement, kind: DeviceKind, beside: Residents) -> CaseResult:
    blocks = main_blocks(run, outcome)
    sessions, throttled = kept_samples(run, outcome, blocks)
    if not sessions:
        return _without_number(run, outcome, kind)
    time = stats.run_interval(list(sessions.values()))
    cold_s, hot_s = device_time(blocks, "cold"), device_time(blocks, "hot")
    findings = noise_findings(sessions) + condition_findings(run, outcome, sessions, blocks)
    findings += ["throttled"] if throttled else []
    findings += ["software"] if kind == "software" else []
    if kind == "gpu" and outcome.case.regime == "resident" and not _has_clock(run, outcome.case.device_id):
        findings.append("no-device-clock")
    parts = anatomy(run, outcome, time.estimate, cold_s, beside)
    if parts is not None and parts.mismatch:
        findings.append("transfer-mismatch")
    doubt = implausible(run, outcome, kind, time, blocks)
    if doubt:
        return CaseResult(
            id=outcome.id, case=outcome.case, device_kind=kind, outcome="measurement", kernel=outcome.kernel,
            label=IMPLAUSIBLE, findings=(*findings, IMPLAUSIBLE), sessions=sessions, flops=outcome.flops,
            bytes=outcome.bytes, reason=IMPLAUSIBLE, detail=doubt,
        )  # fmt: skip
    return CaseResult(
        id=outcome.id, case=outcome.case, device_kind=kind, outcome="measurement", kernel=outcome.kernel,
        label=gravest(findings), findings=tuple(findings), time=time,
        spread=stats.spread([value for samples in sessions.values() for value in samples]),
        sessions=sessions, flops=outcome.flops, bytes=outcome.bytes,
        device_cold_s=cold_s, device_hot_s=hot_s,
        single_s=single_s(run, outcome) if outcome.case.regime == "resident" else None,
        rates=_rates(outcome, time.estimate, cold_s), anatomy=parts,
    )  # fmt: skip


def _has_clock(run: Run, device_id: str) -> bool:
    return any(device.id == device_id and device.own_clock is not None for device in run.devices)


def _without_number(run: Run, outcome: Measurement, kind: DeviceKind) -> CaseResult:
    """A case that passed its check but has too few samples: no estimate, with the reason for it."""
    if _check_only(run, outcome):
        return CaseResult(
            id=outcome.id, case=outcome.case, device_kind=kind, outcome="measurement", kernel=outcome.kernel,
            reason=CHECK_ONLY, detail="checked and right; nothing was timed",
        )  # fmt: skip
    stopped = sorted({stop.reason for stop in outcome.stops} & {"timeout", "budget"})
    return CaseResult(
        id=outcome.id, case=outcome.case, device_kind=kind, outcome="measurement", kernel=outcome.kernel,
        reason=stopped[0] if stopped else NO_SAMPLES,
        detail=f"fewer than {run.settings.min_samples} samples in every session, so there is no estimate",
    )  # fmt: skip


def _check_only(run: Run, outcome: Measurement) -> bool:
    """Whether timing was never meant to begin. A run that was cut short looks the same, but for its options."""
    untouched = outcome.check.ok and not outcome.blocks and not outcome.stops
    return untouched and (run.complete or "--check-only" in run.argv)


def _rates(outcome: Measurement, wall_s: float, cold_s: float | None) -> Rates:
    """Resident kernels: the device's own clock where there is one; else, and with transfers, wall time."""
    on_device = cold_s is not None and outcome.case.regime == "resident"
    seconds = cold_s if on_device and cold_s is not None else wall_s
    return Rates(
        flops_per_s=outcome.flops / seconds if outcome.flops else None,
        bytes_per_s=outcome.bytes / seconds if outcome.bytes else None,
        clock="device_cold" if on_device else "wall",
    )


_REGIME_ORDER = {"resident": 0, "transfer-once": 1, "transfer-always": 2}


def _order(row: CaseResult) -> tuple[object, ...]:
    case = row.case
    rest = beside_size(case.params)
    return (
        case.op, case.dtype, case.params.get("n", 0), rest, _REGIME_ORDER[case.regime], case.calls or 0,
        row.device_kind != "cpu", case.device_id, case.form_id,
    )  # fmt: skip
