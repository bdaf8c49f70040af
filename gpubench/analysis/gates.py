"""Gates of a report: conditions on one run whose breach is exit 3 (docs/ci.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.speedup import Speedup, SpeedupKind
from gpubench.model.case import Case
from gpubench.model.result import Run

FailOn = Literal["noisy", "skipped", "incomplete"]


class ReportGate(msgspec.Struct, frozen=True, kw_only=True):
    """One gate and the cases that decide it.

    `low`: the whole interval lies below what was asked for, or the case is what `--fail-on` names. `missing`: a
    selected case without a number. Either fails the gate. `near`: the interval contains what was asked for, which
    is reported and fails nothing. `reason`: why a gate on the whole run failed. `source`: the run, as a document of
    several numbers it.
    """

    source: int
    name: str
    selector: str | None
    least: float | None
    passed: bool
    low: tuple[str, ...]
    missing: tuple[str, ...]
    near: tuple[str, ...]
    reason: str | None


FAIL_ON: tuple[FailOn, ...] = ("noisy", "skipped", "incomplete")
# Which of a case's ratios a gate looks at: the one that the tables show first.
_PREFERENCE: tuple[SpeedupKind, ...] = ("headline", "case", "library")


class MinSpeedup(msgspec.Struct, frozen=True, kw_only=True):
    """`--min-speedup SEL=X`: `text` as it was typed, the cases it selects, and the least speedup of each."""

    text: str
    selects: Callable[[Case], bool]
    least: float


class Gates(msgspec.Struct, frozen=True, kw_only=True):
    """Which gates are asked for."""

    min_speedups: tuple[MinSpeedup, ...] = ()
    fail_on: tuple[FailOn, ...] = ()


def gates(
    run: Run,
    cases: Sequence[CaseResult],
    compared: Sequence[CaseResult],
    speedups: Sequence[Speedup],
    demands: Gates,
) -> tuple[ReportGate, ...]:
    """The gates asked for, in that order. `compared` are the cases that a speedup may be asked of."""
    fast_enough = [_fast_enough(demand, compared, speedups) for demand in demands.min_speedups]
    return (*fast_enough, *(_on_run(name, run, cases) for name in demands.fail_on))


def competes(row: CaseResult) -> bool:
    """Whether the case is on the side that has a speedup: a CPU's case is what others are measured by."""
    return row.device_kind != "cpu"


def _fast_enough(demand: MinSpeedup, cases: Sequence[CaseResult], speedups: Sequence[Speedup]) -> ReportGate:
    baselines = {row.baseline.id for row in speedups}
    ratios = {
        row.case.id: row for row in sorted(speedups, key=lambda row: _PREFERENCE.index(row.kind), reverse=True)
    }
    chosen = [row.id for row in cases if competes(row) and row.id not in baselines and demand.selects(row.case)]
    known = [(case_id, ratios[case_id]) for case_id in chosen if case_id in ratios]
    low = tuple(case_id for case_id, ratio in known if ratio.hi < demand.least)
    missing = tuple(case_id for case_id in chosen if case_id not in ratios)
    return ReportGate(
        source=0, name="min-speedup", selector=demand.text, least=demand.least, passed=not low and not missing,
        low=low, missing=missing, reason=None,
        near=tuple(case_id for case_id, ratio in known if ratio.lo < demand.least <= ratio.hi),
    )  # fmt: skip


def _on_run(name: FailOn, run: Run, cases: Sequence[CaseResult]) -> ReportGate:
    breaches: dict[FailOn, Callable[[CaseResult], bool]] = {
        "noisy": lambda row: bool({"noisy", "unstable"} & {*row.findings}),
        "skipped": lambda row: row.outcome == "skip",
        "incomplete": lambda row: row.outcome == "planned",
    }
    low = tuple(row.id for row in cases if breaches[name](row))
    ended_early = name == "incomplete" and (not run.complete or run.exit_reason == "budget")
    return ReportGate(
        source=0, name=name, selector=None, least=None, passed=not low and not ended_early, low=low, missing=(),
        near=(), reason=f"the run ended early ({run.exit_reason})" if ended_early else None,
    )  # fmt: skip
