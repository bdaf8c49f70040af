"""CSV: one row per case with fixed columns, and below it one for each of its stages; empty is null. Times in seconds,
rates per second."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.speedup import Speedup
from gpubench.base.plugins.sections import all_rows
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


def columns(keys: Sequence[str] = ()) -> tuple[str, ...]:
    """Return all columns: ours, and behind them those of sections of packages among `keys`."""
    return tuple(dict.fromkeys((*COLUMNS, *(column for rows in all_rows(keys) for column in rows.csv))))


def render(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """A heading and the cases of all runs. Of the options only `columns` changes it: other programs read it."""
    text = io.StringIO()
    names = options.columns or columns(options.sections)
    writer = csv.DictWriter(text, names, lineterminator="\n", restval="", extrasaction="ignore")
    writer.writeheader()
    for analysis in analyses:
        devices = {device.id: device.name for device in analysis.run.devices}
        ratios, lines = speedup_of(analysis), _lines(analysis, options.sections)
        for result in analysis.cases:
            identity = _identity(analysis, result, devices)
            first, *parts = lines.get(result.id) or [{}]
            for values in (_numbers(result) | _ratio(ratios.get(result.id)) | first, *parts):
                writer.writerow({name: csv_text(value) for name, value in (identity | values).items()})
    return text.getvalue()


def _lines(analysis: Analysis, keys: Sequence[str]) -> dict[str, list[dict[str, CsvValue]]]:
    """Return what the rows of sections say of a case, by its id: what stands in its own line, then further lines."""
    lines: dict[str, list[dict[str, CsvValue]]] = {}
    for rows in all_rows(keys):
        if rows.csv or rows.parts:
            for result in rows.make(analysis):
                parts = lines.setdefault(result.id, [{}])
                values = {column: getattr(result, field) for column, field in rows.csv.items()}
                parts[0] |= {column: value for column, value in values.items() if value is not None}
                parts += [dict(part) for part in rows.parts(result)] if rows.parts else []
    return lines


def _identity(analysis: Analysis, result: CaseResult, names: dict[str, str]) -> dict[str, CsvValue]:
    case = result.case
    return {
        "run_id": analysis.run.id, "case_id": result.id, "op": case.op, "n": case.params.get("n"), "dtype": case.dtype,
        "form": case.form_id, "regime": case.regime, "calls": case.calls, "device": case.device_id,
        "device_name": names.get(case.device_id, ""), "outcome": result.outcome, "reason": result.reason,
        "label": result.label, "warnings": result.findings,
    }  # fmt: skip


def _numbers(result: CaseResult) -> dict[str, CsvValue]:
    if result.time is None or result.rates is None:
        return {}
    return {
        "time_s": result.time.estimate, "lo_s": result.time.low, "hi_s": result.time.high, "ci_kind": result.time.kind,
        "min_s": result.min_s, "q1_s": result.q1_s, "q3_s": result.q3_s, "mad_s": result.mad_s,
        "sessions": len(result.sessions), "samples": result.sample_count,
        "flops_per_s": result.rates.flops_per_s, "bytes_per_s": result.rates.bytes_per_s,
        "device_cold_s": result.device_cold_s, "device_hot_s": result.device_hot_s,
    }  # fmt: skip


def _ratio(result: Speedup | None) -> dict[str, CsvValue]:
    if result is None:
        return {}
    return {
        "speedup": result.ratio,
        "speedup_lo": result.lo,
        "speedup_hi": result.hi,
        "baseline_id": result.baseline_id,
    }
