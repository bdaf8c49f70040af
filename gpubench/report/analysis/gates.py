"""Gates of a report: conditions on one run whose breach is exit 3 (interface.md, section 7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from gpubench.model.case import Case
from gpubench.model.result import Run
from gpubench.report.analysis.types import Analysis, CaseResult, FailOn, Gate, Speedup, SpeedupKind

FAIL_ON: tuple[FailOn, ...] = ("noisy", "skipped", "incomplete")
# Which of a case's ratios a gate looks at: the one that the tables show first.
_PREFERENCE: tuple[SpeedupKind, ...] = ("headline", "case", "library")


class MinSpeedup(msgspec.Struct, frozen=True, kw_only=True):
    """`--min-speedup SEL=X`: `text` as it was typed, the cases it selects, and the least speedup of each."""

    text: str
    selects: Callable[[Case], bool]
    least: float


class Demands(msgspec.Struct, frozen=True, kw_only=True):
    """Which gates are asked for."""

    min_speedups: tuple[MinSpeedup, ...] = ()
    fail_on: tuple[FailOn, ...] = ()


def gates(
    run: Run,
    cases: Sequence[CaseResult],
    compared: Sequence[CaseResult],
    speedups: Sequence[Speedup],
    demands: Demands,
) -> tuple[Gate, ...]:
    """The gates asked for, in that order. `compared` are the cases that a speedup may be asked of."""
    fast_enough = [_fast_enough(demand, compared, speedups) for demand in demands.min_speedups]
    return (*fast_enough, *(_on_run(name, run, cases) for name in demands.fail_on))


def failed(analyses: Iterable[Analysis]) -> bool:
    """Whether a gate of any of them failed."""
    return any(not gate.passed for analysis in analyses for gate in analysis.gates)


def competes(row: CaseResult) -> bool:
    """Whether the case is on the side that a speedup is told of: a CPU's case is what others are measured by."""
    return row.device_kind != "cpu"


def _fast_enough(demand: MinSpeedup, cases: Sequence[CaseResult], speedups: Sequence[Speedup]) -> Gate:
    baselines = {row.baseline.id for row in speedups}
    ratios = {
        row.case.id: row.ratio
        for row in sorted(speedups, key=lambda row: _PREFERENCE.index(row.kind), reverse=True)
    }
    chosen = [row.id for row in cases if competes(row) and row.id not in baselines and demand.selects(row.case)]
    known = [(case_id, ratios[case_id]) for case_id in chosen if case_id in ratios]
    return Gate(
        name="min-speedup", selector=demand.text, least=demand.least,
        low=tuple(case_id for case_id, ratio in known if ratio.high < demand.least),
        near=tuple(case_id for case_id, ratio in known if ratio.low < demand.least <= ratio.high),
        missing=tuple(case_id for case_id in chosen if case_id not in ratios),
    )  # fmt: skip


def _on_run(name: FailOn, run: Run, cases: Sequence[CaseResult]) -> Gate:
    if name == "noisy":
        return Gate(name=name, low=tuple(row.id for row in cases if {"noisy", "unstable"} & {*row.findings}))
    if name == "skipped":
        return Gate(name=name, low=tuple(row.id for row in cases if row.outcome == "skip"))
    unreached = tuple(row.id for row in cases if row.outcome == "planned")
    reason = (
        None if run.complete and run.exit_reason != "budget" else f"the run ended early ({run.exit_reason})"
    )
    return Gate(name=name, low=unreached, reason=reason)
