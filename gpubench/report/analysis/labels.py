"""Quality of one case: which findings hold, and the gravest of them as its label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpubench.model.result import (
    DeviceClock,
    DeviceKind,
    Measurement,
    Run,
    RunWarning,
)
from gpubench.model.session import WorkerRecord
from gpubench.report.analysis.ceilings import above_ceiling
from gpubench.report.analysis.samples import Blocks, device_samples, device_time, sample_seconds, used_sessions
from gpubench.report.analysis.types import Label
from gpubench.stats import Interval, first_sample_z, iqr_share, median, order_correlation

NOISY, UNSTABLE = 0.10, 0.25
TOO_SHORT_S = 1e-3
CLOCK_STEPS = 100
OTHER_USERS = "other-gpu-users"  # a warning of the run that names its devices
POWER_CAP = "sw_power_cap"  # in the words of nvidia-smi
FIRST_SLOW_Z, FIRST_SLOW_SHARE = 10.0, 1.01
DRIFT, DRIFT_SAMPLES = 0.5, 20
GRAVITY: tuple[Label, ...] = (
    "implausible", "software", "throttled", "unstable", "contended", "too-short", "noisy",
)  # fmt: skip


def gravest(findings: Sequence[str]) -> Label:
    """The label of a case: the first of GRAVITY that was found, else `ok`."""
    return next((label for label in GRAVITY if label in findings), "ok")


def noise_findings(sessions: Mapping[int, Sequence[float]]) -> list[str]:
    """Findings that the samples alone tell."""
    found = []
    noise = max((iqr_share(samples) for samples in sessions.values()), default=0.0)
    if noise > NOISY:
        found.append("unstable" if noise > UNSTABLE else "noisy")
    if any(_first_slow(samples) for samples in sessions.values()):
        found.append("first-slow")
    long_enough = [samples for samples in sessions.values() if len(samples) >= DRIFT_SAMPLES]
    if any(abs(order_correlation(samples)) > DRIFT for samples in long_enough):
        found.append("drift")
    return found


def _first_slow(samples: Sequence[float]) -> bool:
    """An outlier that matters: on a quiet device a deviation of 0.1 % would be many deviations too."""
    slow = len(samples) > 2 and samples[0] > FIRST_SLOW_SHARE * median(samples)
    return slow and first_sample_z(samples) > FIRST_SLOW_Z


def condition_findings(
    run: Run, outcome: Measurement, sessions: Mapping[int, Sequence[float]], blocks: Blocks
) -> list[str]:
    """Findings about the length of a sample, other load on the machine and the power limit."""
    found = []
    shortest = sample_seconds(blocks)
    if shortest is not None and shortest < max(TOO_SHORT_S, CLOCK_STEPS * _host_step(run, outcome)):
        found.append("too-short")
    if any(session.contended for session in run.sessions if session.index in sessions):
        found.append("contended")
    if any(POWER_CAP in block.throttle for ours in blocks.values() for block in ours):
        found.append("power-cap")
    if any(_concerns(warning, outcome.case.device_id) for warning in run.warnings):
        found.append(OTHER_USERS)
    return found


def implausible(run: Run, outcome: Measurement, kind: DeviceKind, wall: Interval, blocks: Blocks) -> str | None:
    """Why this case cannot be true, with both numbers; None if nothing speaks against it (section 7)."""
    sample_s, step_s = sample_seconds(blocks), _host_step(run, outcome)
    if sample_s is not None and sample_s < CLOCK_STEPS * step_s:
        return f"a sample takes {sample_s:.3g} s, less than {CLOCK_STEPS} steps of its clock ({step_s:.3g} s)"
    # The device is part of what the caller waits for. Both are noisy: only if every device sample exceeds the
    # whole interval of the wall time is there no doubt.
    clock = _device_clock(run, outcome)
    hot = [value for values in device_samples(blocks, "hot") for value in values] if clock else []
    if clock and hot and outcome.case.regime == "resident" and min(hot) > wall.high + clock.step_s:
        return f"device time {min(hot):.3g} s exceeds wall time {wall.high:.3g} s"
    overheads = [value for worker in workers(run, outcome.case.device_id) for value in worker.overhead_s]
    singles = [value for part in outcome.parts for value in part.single_s]
    # An empty launch is as noisy as a real one: only below the smallest of them is there no doubt.
    if overheads and singles and median(singles) < 0.9 * min(overheads):
        return f"one launch takes {median(singles):.3g} s, less than an empty one ({min(overheads):.3g} s)"
    times = (wall.estimate, device_time(blocks, "cold"), device_time(blocks, "hot") if clock else None)
    return above_ceiling(run, outcome, kind, min(value for value in times if value is not None))


def workers(run: Run, device_id: str) -> list[WorkerRecord]:
    """What the workers of one device told, of the sessions that count."""
    allowed = used_sessions(run) or frozenset()
    return [
        worker
        for session in run.sessions
        if session.index in allowed
        for worker in session.workers
        if worker.device_id == device_id
    ]


def _concerns(warning: RunWarning, device_id: str) -> bool:
    """Whether others computed on this device; who only draws, or is not seen, is told and marks nothing."""
    named = str(warning.data.get("devices", "")).split(", ")
    return warning.code == OTHER_USERS and warning.severity == "warning" and device_id in named


def _host_step(run: Run, outcome: Measurement) -> float:
    return max((worker.clock_step_s for worker in workers(run, outcome.case.device_id)), default=0.0)


def _device_clock(run: Run, outcome: Measurement) -> DeviceClock | None:
    """Of its own: what is derived from wall times cannot contradict them."""
    return next((device.own_clock for device in run.devices if device.id == outcome.case.device_id), None)
