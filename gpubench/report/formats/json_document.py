"""JSON: the `gpubench-report` document, indented, six significant digits."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpubench.errors import ExitCode
from gpubench.model.case import beside_size, regime_name
from gpubench.model.machine import Recommendation
from gpubench.report.analysis.across import sides
from gpubench.report.analysis.gates import failed
from gpubench.report.analysis.recommendation import recommended
from gpubench.report.analysis.types import (
    Analysis,
    Anatomy,
    BreakEven,
    CaseResult,
    ClaimResult,
    Gate,
    Hybrid,
    Mean,
    Reuse,
    Roof,
    RoofShare,
    Speedup,
)
from gpubench.report.analysis.verdict import verdict_text
from gpubench.report.formats import _report_types as types
from gpubench.report.formats._json import json_text
from gpubench.report.formats._options import RenderOptions


def render(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """One document for all runs. Of the options only `ascii_only` changes it, and no value in it."""
    return json_text(report_document(analyses), options)


def report_document(analyses: Sequence[Analysis]) -> types.ReportDocument:
    """The document of the runs, in the order in which they were given."""
    numbered = list(enumerate(analyses))
    return types.ReportDocument(
        sources=tuple(_source(analysis) for analysis in analyses),
        baseline="; ".join(dict.fromkeys(analysis.baseline for analysis in analyses)),
        verdicts=tuple(sentence for analysis in analyses for sentence in analysis.verdicts),
        cases=tuple(_case(i, row) for i, analysis in numbered for row in analysis.cases),
        speedups=tuple(
            _speedup(i, row) for i, analysis in numbered for row in analysis.speedups if row.kind != "case"
        ),
        break_even=tuple(_break_even(i, row) for i, analysis in numbered for row in analysis.break_even),
        roofline=_roofline(numbered),
        pool_overhead=tuple(
            types.PoolRow(
                source=i, id=pool.allocate.id, op_id=pool.op.id, share=pool.share, single_share=pool.single_share
            )
            for i, analysis in numbered
            for pool in analysis.overheads.pools
        ),
        reuse=tuple(_reuse(i, row) for i, analysis in numbered for row in analysis.reuse),
        hybrid=tuple(_hybrid(i, row) for i, analysis in numbered for row in analysis.hybrid),
        means=tuple(_mean(i, row) for i, analysis in numbered for row in analysis.means),
        claims=tuple(_claim(i, row) for i, analysis in numbered for row in analysis.claims),
        recommendation=_recommendation(analyses),
        gates=tuple(_gate(i, gate) for i, analysis in numbered for gate in analysis.gates),
        exit_code=ExitCode.GATE if failed(analyses) else ExitCode.OK,
        exit_reason="gate" if failed(analyses) else "ok",
        warnings=tuple(
            types.WarningRow(
                source=i, code=finding.code, severity=finding.severity, message=finding.message,
                hint=finding.hint, ids=finding.ids,
            )
            for i, analysis in numbered
            for finding in analysis.findings
        ),
    )  # fmt: skip


def _recommendation(analyses: Sequence[Analysis]) -> Recommendation | None:
    """The newest that rests on measurements, else the newest, of one machine."""
    if len(sides(analyses)) > 1:
        return None
    newest = sorted(analyses, key=lambda one: (one.run.started_at, one.run.id), reverse=True)
    told = next((one for one in newest if one.measured is not None), newest[0])
    return recommended(told.run, told.measured)


def _source(analysis: Analysis) -> types.Source:
    run = analysis.run
    return types.Source(
        run_id=run.id, label=run.label, started_at=run.started_at, complete=run.complete,
        exit_reason=run.exit_reason, machine=analysis.machine, tool=dict(sorted(run.tool.items())),
    )  # fmt: skip


def _case(source: int, row: CaseResult) -> types.CaseRow:
    spread = row.spread
    return types.CaseRow(
        source=source, id=row.id, outcome=row.outcome, kernel=row.kernel,
        label=row.label if row.sessions else None, time=_time(row),
        min_s=spread.minimum if spread else None, q1_s=spread.q1 if spread else None,
        q3_s=spread.q3 if spread else None, mad_s=spread.mad if spread else None,
        device_cold_s=row.device_cold_s, device_hot_s=row.device_hot_s, single_s=row.single_s,
        rates=types.RatesRow(**msgspec.structs.asdict(row.rates)) if row.rates else None,
        anatomy=_anatomy(row.anatomy) if row.anatomy else None,
        reason=row.reason, detail=row.detail or None, hint=row.hint, warnings=row.findings,
    )  # fmt: skip


def _time(row: CaseResult) -> types.TimeRow | None:
    if row.time is None:
        return None
    return types.TimeRow(
        estimate_s=row.time.estimate, lo_s=row.time.low, hi_s=row.time.high, ci_kind=row.time.kind,
        k=len(row.sessions), n=row.sample_count,
    )  # fmt: skip


def _anatomy(parts: Anatomy) -> types.AnatomyRow:
    return types.AnatomyRow(
        **msgspec.structs.asdict(parts), residual_share=parts.residual_share, mismatch=parts.mismatch
    )


def _speedup(source: int, row: Speedup) -> types.SpeedupRow:
    return types.SpeedupRow(
        source=source, id=row.case.id, baseline_id=row.baseline.id, kind=row.kind, ratio=row.ratio.estimate,
        lo=row.ratio.low, hi=row.ratio.high, ci_kind=row.ratio.kind, label=row.label, headline=row.headline,
    )  # fmt: skip


def _break_even(source: int, row: BreakEven) -> types.BreakEvenRow:
    return types.BreakEvenRow(
        source=source, op=row.op, dtype=row.dtype, params=row.params, regime=regime_name(row.regime, row.calls),
        device_id=row.device_id,
        baseline_id=row.baseline_id, verdict=row.verdict, n=row.n, lo=row.low, hi=row.high,
        crossings=row.crossings, first=row.first, last=row.last,
        last_ratio=row.last_ratio.estimate, reason=row.reason, text=verdict_text(row),
    )  # fmt: skip


def _reuse(source: int, row: Reuse) -> types.ReuseRow:
    fields = msgspec.structs.asdict(row)
    return types.ReuseRow(source=source, lo=fields.pop("low"), hi=fields.pop("high"), **fields)


def _hybrid(source: int, row: Hybrid) -> types.HybridRow:
    case = row.case.case
    return types.HybridRow(
        source=source, id=row.case.id, op=case.op, n=case.params["n"], params=dict(beside_size(case.params)),
        dtype=case.dtype, regime=case.regime_id, device_id=row.device_id, baseline_id=row.baseline_id,
        fraction=row.fraction, gain=row.gain.estimate, lo=row.gain.low, hi=row.gain.high, ideal_gain=row.ideal,
        efficiency=row.efficiency, recommended=row.recommended, reason=row.reason, selected_in_sample=row.in_sample,
        curve=row.curve,
    )  # fmt: skip


def _mean(source: int, row: Mean) -> types.MeanRow:
    return types.MeanRow(
        source=source, regime=row.regime, dtype=row.dtype, device_id=row.device_id, ratio=row.ratio.estimate,
        lo=row.ratio.low, hi=row.ratio.high, count=row.count, missing=row.missing,
    )  # fmt: skip


def _claim(source: int, row: ClaimResult) -> types.ClaimRow:
    claim, found, copied = row.claim, row.measured, row.with_copies
    return types.ClaimRow(
        source=source, claim=claim.claim, case=claim.case, verdict=row.verdict, reason=row.reason or None,
        tolerance=claim.tolerance, claimed_speedup=claim.expected, claimed_cpu_s=claim.cpu_s,
        claimed_gpu_s=claim.gpu_s, id=found.case.id if found else None,
        baseline_id=found.baseline.id if found else None, ratio=found.ratio.estimate if found else None,
        lo=found.ratio.low if found else None, hi=found.ratio.high if found else None,
        cpu_s=found.baseline.time.estimate if found and found.baseline.time else None,
        gpu_s=found.case.time.estimate if found and found.case.time else None,
        ratio_with_copies=copied.ratio.estimate if copied else None,
    )  # fmt: skip


def _gate(source: int, gate: Gate) -> types.GateRow:
    return types.GateRow(source=source, **msgspec.structs.asdict(gate), passed=gate.passed)


def _roofline(numbered: Sequence[tuple[int, Analysis]]) -> types.RooflineRow:
    return types.RooflineRow(
        roofs=tuple(_roof(i, roof) for i, analysis in numbered for roof in analysis.roofline.roofs),
        cases=tuple(_roof_case(i, row) for i, analysis in numbered for row in analysis.roofline.rows),
    )


def _roof(source: int, roof: Roof) -> types.RoofRow:
    return types.RoofRow(
        source=source, device_ids=roof.device_ids, dtype=roof.dtype, bytes_per_s=roof.bytes_per_s,
        bytes_case=roof.copy.id if roof.copy else None, cache_sized=roof.cache_sized,
        flops_per_s=roof.flops_per_s, flops_case=roof.matmul.id if roof.matmul else None,
        small_matmul=roof.small_matmul, ridge=roof.ridge,
    )  # fmt: skip


def _roof_case(source: int, row: RoofShare) -> types.RoofCaseRow:
    return types.RoofCaseRow(
        source=source, id=row.case.id, clock=row.clock, time_s=row.seconds,
        bytes_per_s=row.case.bytes / row.seconds, flops_per_s=row.case.flops / row.seconds, bound=row.bound,
        percent_of_roof=None if row.share is None else row.share * 100, in_cache=row.in_cache,
        to_library=row.to_library,
    )  # fmt: skip
