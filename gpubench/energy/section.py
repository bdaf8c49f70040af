"""The energy section of a report, with the joules of a call on both sides, and the advice for the device with the
least energy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from operator import attrgetter

import msgspec
from msgspec.structs import replace

from gpubench.analysis.advice import Advice, source_of
from gpubench.analysis.analyse import Analysis, derive_once
from gpubench.analysis.thresholds import size_text, size_unit_of
from gpubench.base import group_by
from gpubench.base.plugins.sections import Rows, section
from gpubench.base.streams import printable
from gpubench.base.table import Cell, Table, Tone, cells, heads, number
from gpubench.base.units import format_joules, format_number, format_watts, list_words
from gpubench.report.layout import RenderOptions, Section
from gpubench.report.wording import data_text, device_text, regime_order
from gpubench.result.case import RESIDENT, Case
from gpubench.result.run import EnergyWindow, Run


class EnergyResult(msgspec.Struct, frozen=True, kw_only=True):
    """The energy of a call of a case."""

    id: str  # id of the case
    device_id: str  # id of the device that ran the case
    kind: str  # kind of that device
    joules: float | None  # energy of one call; null if it is unknown
    power_w: float | None  # mean power in watts during the case, from the counter; null if it is unknown
    idle_w: list[float]  # watts of the idle device before the case and after it, as far as they are known
    # mean power in watts during the case, from the device's sensor; null if there is none
    sensor_w: float | None
    window_s: float  # seconds for which the case ran
    steps: int  # number of changes of the counter in that time, after the first change
    counter: str  # kind of counter: "nvml", "hwmon" or "rapl"; "" if the device has none
    reason: str | None  # reason why the energy is unknown; null if it is known


@derive_once
def energies(analysis: Analysis) -> tuple[EnergyResult, ...]:
    """Return the energy of each case of the analysis that has a window, by the newest one."""
    shown = {case.id: case for case in analysis.cases}
    results = []
    for outcome in analysis.run.measurements:
        if outcome.id in shown and (window := outcome.newest_energy):
            results.append(
                EnergyResult(
                    id=outcome.id, device_id=outcome.case.device_id, kind=shown[outcome.id].device_kind,
                    joules=window.joules, power_w=window.power_w, idle_w=window.idle_w, sensor_w=window.sensor_w,
                    window_s=window.window_s, steps=window.steps, counter=window.source, reason=window.reason,
                )
            )  # fmt: skip
    return tuple(results)


TITLE = "Energy"
_MEANING = (
    "Joules of one call: the mean power while calls follow each other for seconds, times the time of one. A GPU counts "
    "with its board and a CPU with its packages, including their power at rest, and without the other side's. Each "
    "side has its best implementation."
)


@section("energy", order=130, help="Joules of a call, where --energy counted them", usual="end")
def energy_section(analysis: Analysis, options: RenderOptions) -> Section | None:
    """Return the section with a line for each op, size, dtype and situation, or None if the run has no windows."""
    results = energies(analysis)
    if not results:
        return None
    unknown = group_by((result for result in results if result.reason), lambda result: result.reason)
    reasons = [
        printable(
            f"Unknown for {list_words(sorted({device_text(analysis, energy.device_id) for energy in some}))}: {reason}."
        )
        for reason, some in unknown.items()
    ]
    counted = [energy for energy in results if energy.joules is not None]
    return Section(
        title=TITLE, lines=(_MEANING, *reasons), tables=(_table(analysis, results),) if counted else ()
    )


def _table(analysis: Analysis, results: Iterable[EnergyResult]) -> Table:
    """Return a table of the least energy on each side, with a line for each op, size, dtype and situation."""
    # A variant, such as a product in TF32, is no implementation to choose. A software adapter is on neither side.
    cases = {case.id: case.case for case in analysis.cases if case.case.variant is None}
    results = [energy for energy in results if energy.id in cases and energy.kind in ("cpu", "gpu")]
    rows = []
    for same in group_by(results, lambda energy: cases[energy.id].workload).values():
        cpu = _least(energy for energy in same if energy.kind == "cpu")
        on_gpu = sorted(
            (energy for energy in same if energy.kind == "gpu"),
            key=lambda energy: regime_order(cases[energy.id]),
        )
        situations = group_by(on_gpu, lambda energy: data_text(cases[energy.id])) or {"": []}
        rows += [
            cells(*_cells(cases[same[0].id], situation, cpu, _least(energies)))
            for situation, energies in situations.items()
        ]
    columns = heads(
        "op", number("size"), "situation", number("CPU"), number("GPU"), "less", number("CPU power", 1),
        number("GPU power", 1), number("GPU at rest", 2),
    )  # fmt: skip
    return Table(
        columns, tuple(rows), legend="less: the side where a call takes less energy, and how many times less"
    )


def _cells(case: Case, situation: str, cpu: EnergyResult | None, gpu: EnergyResult | None) -> list[str | Cell]:
    return [
        printable(case.op), size_text(case.params["n"], size_unit_of(case)), situation,
        _joules_text(cpu), _joules_text(gpu), _ratio_text(cpu, gpu),
        _watts_text(cpu.power_w if cpu else None), _watts_text(gpu.power_w if gpu else None),
        _watts_text(min(gpu.idle_w, default=None) if gpu else None),
    ]  # fmt: skip


def _least(results: Iterable[EnergyResult]) -> EnergyResult | None:
    counted = [energy for energy in results if energy.joules is not None]
    return min(counted, key=attrgetter("joules"), default=None)


def _joules_text(energy: EnergyResult | None) -> str:
    return "unknown" if energy is None or energy.joules is None else format_joules(energy.joules)


def _ratio_text(cpu: EnergyResult | None, gpu: EnergyResult | None) -> str | Cell:
    if cpu is None or gpu is None or cpu.joules is None or gpu.joules is None:
        return "-"
    ratio = cpu.joules / gpu.joules
    side: Tone = "gpu" if ratio >= 1 else "cpu"
    return Cell(f"{side.upper()} {format_number(max(ratio, 1 / ratio))}x", side)


def _watts_text(watts: float | None) -> str:
    return "-" if watts is None else format_watts(watts)


ROWS = (Rows("energy", EnergyResult, energies, order=135),)

# ---------------------------------------------------------------- advice

# Two energies are about equal if their ratio is below this.
CLOSE = 1.05


def by_energy(advice: Advice, runs: Iterable[Run]) -> Advice:
    """Return the advice for the device with the least energy, by the first of `runs` that measured the energy of this
    call. Its device is None if the energy of fewer than two devices is known, or if a side (CPU or GPU) was measured
    without a result."""
    run, windows = next(((run, devices) for run in runs if (devices := _windows(run, advice))), (None, {}))
    best = {name: min(pairs, key=lambda pair: pair[1].joules or math.inf) for name, pairs in windows.items()}
    joules = {name: window.joules or window.reason or "unknown" for name, (_, window) in best.items()}
    ranking = sorted((value, name) for name, value in joules.items() if not isinstance(value, str))
    kinds = {device.id: device.kind for device in run.devices} if run is not None else {}
    lacking = {kinds.get(name) for name in joules} & {"cpu", "gpu"} - {kinds.get(name) for _, name in ranking}
    advice = replace(
        advice, goal="energy", joules=joules, source=source_of(run) if run is not None else advice.source,
        time=None, gain=None, split=None,
    )  # fmt: skip
    if len(ranking) < 2 or lacking:
        why = "; ".join(f"{name}: {value}" for name, value in joules.items() if isinstance(value, str))
        return replace(
            advice, device_id=None, backend=None, implementation=None, confidence="none",
            reason=why or f"no run has counted energy at n = {advice.n}",
            # Another run would not change the reason, such as a missing counter.
            command=None if why else f"gpubench run --ops {advice.op} --sizes {advice.n} --energy",
        )  # fmt: skip
    (least_j, device_id), (next_j, _) = ranking[:2]
    return replace(
        advice, device_id=device_id, backend=device_id.partition(":")[0],
        implementation=best[device_id][0].implementation, command=None, basis="measured",
        confidence="clear" if next_j > CLOSE * least_j else "close", reason=None,
    )  # fmt: skip


def _windows(run: Run, advice: Advice) -> dict[str, list[tuple[Case, EnergyWindow]]]:
    """Return, by device id, the pairs (case, energy window) for the call that `advice` is about."""
    params = {"n": advice.n, **advice.params}
    fitting = (
        (outcome.case, window)
        for outcome in run.measurements
        if (window := outcome.newest_energy)
        if (outcome.case.op, outcome.case.dtype, outcome.case.params) == (advice.op, advice.dtype, params)
        # RESIDENT is the regime of a CPU, whose data is in host memory in every situation.
        and outcome.case.regime_id in (RESIDENT, advice.regime)
        and outcome.case.variant is None
    )
    return group_by(fitting, lambda pair: pair[0].device_id)
