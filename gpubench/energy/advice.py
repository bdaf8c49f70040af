"""The device on which a call takes the least energy, by the windows of the newest run that has some of this size."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gpubench.analysis.advice import Advice, source_of
from gpubench.base.groups import group_by
from gpubench.result.case import RESIDENT
from gpubench.result.energy import EnergyWindow
from gpubench.result.run import Measurement, Run

# Two calls whose energies are nearer to each other are about equal.
CLOSE = 1.05


def by_energy(advice: Advice, runs: Iterable[Run]) -> Advice:
    """Return the advice for the least energy: unknown where a side has no joules, or only one device has some."""
    run, windows = next(((run, rows) for run in runs if (rows := _windows(run, advice))), (None, {}))
    if run is not None:
        advice = msgspec.structs.replace(advice, source=source_of(run))
    joules: dict[str, float | str] = {}
    forms: dict[str, str] = {}
    for device_id, outcomes in windows.items():
        best = min(outcomes, key=lambda outcome: _joules(outcome) or float("inf"))
        joules[device_id] = _joules(best) or _window(best).reason or "unknown"
        forms[device_id] = best.case.form
    ranking = sorted((value, name) for name, value in joules.items() if not isinstance(value, str))
    kinds = {device.id: device.kind for device in run.devices} if run is not None else {}
    sides = {kinds.get(name) for name in joules}.intersection(("cpu", "gpu"))
    nothing = {"device_id": None, "backend": None, "form": None, "time": None, "gain": None, "split": None}
    advice = msgspec.structs.replace(advice, goal="energy", joules=joules, **nothing)
    if len(ranking) < 2 or sides - {kinds.get(name) for _, name in ranking}:
        why = "; ".join(f"{name}: {value}" for name, value in joules.items() if isinstance(value, str))
        reason = why or f"no run has counted energy at n = {advice.n}"
        command = f"gpubench run --ops {advice.op} --sizes {advice.n} --energy"
        return msgspec.structs.replace(advice, confidence="none", reason=reason, command=command)
    (least_j, device_id), (next_j, _) = ranking[:2]
    return msgspec.structs.replace(
        advice, device_id=device_id, backend=device_id.partition(":")[0], form=forms[device_id], command=None,
        basis="measured", confidence="clear" if next_j > CLOSE * least_j else "close", reason=None,
    )  # fmt: skip


def _windows(run: Run, advice: Advice) -> dict[str, list[Measurement]]:
    """Return what has a window of this call, by device; a CPU's data is at home in every situation."""
    measurements = (outcome for outcome in run.outcomes if isinstance(outcome, Measurement) and outcome.energy)
    params = {"n": advice.n, **advice.params}
    fitting = (
        measurement
        for measurement in measurements
        if (measurement.case.op, measurement.case.dtype, measurement.case.params)
        == (advice.op, advice.dtype, params)
        and measurement.case.regime_id in (RESIDENT, advice.regime)
    )
    return group_by(fitting, lambda measurement: measurement.case.device_id)


def _window(measurement: Measurement) -> EnergyWindow:
    assert measurement.energy, "only what has a window is asked"
    return measurement.energy[-1]


def _joules(measurement: Measurement) -> float | None:
    return _window(measurement).joules
