"""From a result file to everything that a report says: pure functions, the same answer for the same file."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpubench.model.case import Case
from gpubench.model.machine import Measured
from gpubench.model.result import Run
from gpubench.report.analysis.baseline import baseline_line
from gpubench.report.analysis.breakeven import break_evens
from gpubench.report.analysis.claims import judged
from gpubench.report.analysis.estimate import case_results
from gpubench.report.analysis.experiment import experiment
from gpubench.report.analysis.findings import findings
from gpubench.report.analysis.gates import Demands, gates
from gpubench.report.analysis.hybrid import hybrids, sentences
from gpubench.report.analysis.machine import machine_line
from gpubench.report.analysis.means import means
from gpubench.report.analysis.overheads import GROUP, overheads
from gpubench.report.analysis.recommendation import evidence
from gpubench.report.analysis.reuse import reuses
from gpubench.report.analysis.roofline import roofline
from gpubench.report.analysis.speedup import speedups
from gpubench.report.analysis.types import Analysis, BreakEven, CaseResult, Claim, Gate, Speedup
from gpubench.report.analysis.verdict import verdicts

__all__ = ["Analysis", "Claim", "Demands", "Gate", "analyse", "machine_line", "measured"]

NOTHING_DEMANDED = Demands()


def analyse(
    run: Run,
    *,
    baseline: str | None = None,
    keep: Callable[[Case], bool] | None = None,
    demands: Demands = NOTHING_DEMANDED,
    claims: Sequence[Claim] = (),
) -> Analysis:
    """Everything derived from `run`. `baseline` is DEVICE, FORM or FORM@DEVICE (default: the fastest CPU form);
    `keep` selects cases, `demands` are the gates, `claims` what others expect. Raises InputError if the
    baseline was not measured."""
    everything = case_results(run)
    # The selection chooses what is shown; a baseline that is not shown is still the baseline.
    cases = tuple(row for row in everything if keep is None or keep(row.case))
    compared = [row for row in everything if _compared(row)]
    ratios = tuple(row for row in speedups(compared, baseline) if keep is None or keep(row.case.case))
    curves = _curves(run, compared, ratios)
    splits = hybrids(run, compared, keep)
    # Whatever is shown: a mode is chosen by all of the file, over the fastest CPU form.
    told: Measured | None = None
    if not experiment(run):
        as_shown = keep is None and baseline is None
        told = evidence(run, ratios, curves, splits) if as_shown else _evidence(run, compared)
    return Analysis(
        run=run, machine=machine_line(run),
        baseline=baseline_line(run, [row for row in ratios if row.kind == "headline"]),
        cases=cases, speedups=ratios, break_even=curves,
        verdicts=(*verdicts(run, cases, curves), *sentences(splits)), findings=findings(run, cases),
        roofline=roofline(run, [row for row in everything if _alone(row)], [row for row in cases if _alone(row)]),
        overheads=overheads(run, everything, cases),
        gates=gates(run, cases, [row for row in cases if _compared(row)], ratios, demands),
        claims=judged(claims, ratios), means=means([row for row in cases if _compared(row)], ratios),
        reuse=reuses(run, compared, keep), hybrid=splits,
        measured=told,
    )  # fmt: skip


def measured(run: Run) -> Measured | None:
    """By what the mode of the run's machine can be chosen; None of an experiment, or where the run does not tell."""
    return None if experiment(run) else _evidence(run, [row for row in case_results(run) if _compared(row)])


def _evidence(run: Run, compared: Sequence[CaseResult]) -> Measured | None:
    ratios = speedups(compared)
    return evidence(run, ratios, _curves(run, compared, ratios), hybrids(run, compared))


def _curves(run: Run, compared: Sequence[CaseResult], ratios: Sequence[Speedup]) -> tuple[BreakEven, ...]:
    return break_evens(
        run, [row for row in compared if _alone(row)], [row for row in ratios if _alone(row.case)]
    )


def _alone(row: CaseResult) -> bool:
    """A split is no device with roofs, or with a curve that crosses the CPU's: it has a section of its own."""
    return row.case.shared_with is None


def _compared(row: CaseResult) -> bool:
    """Overheads have no CPU side; a named variant stands beside the form that it is a variant of."""
    return row.case.variant is None and row.case.group != GROUP
