"""CSV: one row per case with fixed columns, and below it one for each of its stages; empty is null. Times in seconds,
rates per second."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.collectives import CollectiveResult
from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.placement import Placement
from gpubench.analysis.roofline import RoofShare
from gpubench.analysis.scaling import Strong
from gpubench.analysis.speedup import Speedup
from gpubench.analysis.stages import Stages
from gpubench.report.exporters import speedup_of
from gpubench.report.layout import CsvValue, RenderOptions, csv_text

COLUMNS = (
    "run_id", "case_id", "op", "n", "dtype", "form", "regime", "calls", "device", "device_name", "outcome", "reason",
    "time_s", "lo_s", "hi_s", "ci_kind", "min_s", "q1_s", "q3_s", "mad_s", "sessions", "samples",
    "flops_per_s", "bytes_per_s", "device_cold_s", "device_hot_s",
    "speedup", "speedup_lo", "speedup_hi", "baseline_id", "label", "warnings",
    "percent_of_roof", "stage", "stage_alone_s", "placed_on", "predicted_s", "algbw", "busbw",
    "efficiency", "efficiency_lo", "efficiency_hi", "balance",
)  # fmt: skip


def render(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """A heading and the cases of all runs. Of the options only `columns` changes it: other programs read it."""
    text = io.StringIO()
    writer = csv.DictWriter(
        text, options.columns or COLUMNS, lineterminator="\n", restval="", extrasaction="ignore"
    )
    writer.writeheader()
    for analysis in analyses:
        names = {device.id: device.name for device in analysis.run.devices}
        roofs = {row.id: row for row in analysis.roofline.rows}
        ratios = speedup_of(analysis)
        stages = {row.id: row for row in analysis.stages}
        placed = {row.id: row for row in analysis.placements}
        gangs = {row.id: row for row in analysis.scaling.strong}
        exchanges = {row.id: row for row in analysis.collectives}
        for row in analysis.cases:
            values = _identity(analysis, row, names) | _numbers(row) | _ratio(ratios.get(row.id))
            values |= _of_roof(roofs.get(row.id)) | _placed(placed.get(row.id))
            values |= _exchanged(exchanges.get(row.id)) | _shared(gangs.get(row.id))
            writer.writerow({name: csv_text(value) for name, value in values.items()})
            for of_stage in (*_stages(stages.get(row.id)), *_placed_stages(placed.get(row.id))):
                of_stage = _identity(analysis, row, names) | of_stage
                writer.writerow({name: csv_text(value) for name, value in of_stage.items()})
    return text.getvalue()


def _identity(analysis: Analysis, row: CaseResult, names: dict[str, str]) -> dict[str, CsvValue]:
    case = row.case
    return {
        "run_id": analysis.run.id, "case_id": row.id, "op": case.op, "n": case.params.get("n"), "dtype": case.dtype,
        "form": case.form_id, "regime": case.regime, "calls": case.calls, "device": case.device_id,
        "device_name": names.get(case.device_id, ""), "outcome": row.outcome, "reason": row.reason,
        "label": row.label, "warnings": row.findings,
    }  # fmt: skip


def _numbers(row: CaseResult) -> dict[str, CsvValue]:
    if row.time is None or row.rates is None:
        return {}
    return {
        "time_s": row.time.estimate, "lo_s": row.time.low, "hi_s": row.time.high, "ci_kind": row.time.kind,
        "min_s": row.min_s, "q1_s": row.q1_s, "q3_s": row.q3_s, "mad_s": row.mad_s,
        "sessions": len(row.sessions), "samples": row.sample_count,
        "flops_per_s": row.rates.flops_per_s, "bytes_per_s": row.rates.bytes_per_s,
        "device_cold_s": row.device_cold_s, "device_hot_s": row.device_hot_s,
    }  # fmt: skip


def _ratio(row: Speedup | None) -> dict[str, CsvValue]:
    if row is None:
        return {}
    return {"speedup": row.ratio, "speedup_lo": row.lo, "speedup_hi": row.hi, "baseline_id": row.baseline_id}


def _of_roof(row: RoofShare | None) -> dict[str, CsvValue]:
    return {} if row is None or row.share is None else {"percent_of_roof": row.percent_of_roof}


def _exchanged(row: CollectiveResult | None) -> dict[str, CsvValue]:
    return {} if row is None else {"algbw": row.algbw, "busbw": row.busbw}


def _shared(row: Strong | None) -> dict[str, CsvValue]:
    """Of a gang: the speedup is over the best single GPU."""
    if row is None:
        return {}
    return {
        "speedup": row.speedup, "speedup_lo": row.lo, "speedup_hi": row.hi, "baseline_id": row.baseline_id,
        "efficiency": row.efficiency, "efficiency_lo": row.efficiency_lo, "efficiency_hi": row.efficiency_hi,
        "balance": row.balance,
    }  # fmt: skip


def _stages(row: Stages | None) -> list[dict[str, CsvValue]]:
    """The stages of a workload's case; `time_s` is that in the chain."""
    return [
        {"stage": one.stage, "time_s": one.chain_s, "stage_alone_s": one.alone_s}
        for one in (row.stages if row is not None else ())
    ]


def _placed(row: Placement | None) -> dict[str, CsvValue]:
    if row is None:
        return {}
    return {"placed_on": row.placement, "predicted_s": row.predicted_s}


def _placed_stages(row: Placement | None) -> list[dict[str, CsvValue]]:
    """The stages of a placed workload; `predicted_s` is what each was predicted to take."""
    if row is None or row.predicted_s is None:
        return []
    return [
        {"stage": one.stage, "placed_on": one.placed_on, "predicted_s": one.share * row.predicted_s}
        for one in row.stages
    ]
