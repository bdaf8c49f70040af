"""Everything that is derived from one run, and the function that derives it: the same answer for the same file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from gpubench.analysis.break_even import BreakEven, break_evens
from gpubench.analysis.claims import Claim, ClaimResult, judged
from gpubench.analysis.components import Components, components
from gpubench.analysis.estimate import CaseResult, case_results
from gpubench.analysis.evidence import evidence
from gpubench.analysis.findings import ReportWarning, findings
from gpubench.analysis.gates import Gates, ReportGate, gates
from gpubench.analysis.hybrid import Hybrid, hybrids
from gpubench.analysis.machine import experiment, machine_line
from gpubench.analysis.overheads import GROUP, Overheads, overheads
from gpubench.analysis.reuse import Reuse, reuses
from gpubench.analysis.roofline import Roofline, roofline
from gpubench.analysis.speedup import Mean, Speedup, baseline_line, means, speedups
from gpubench.model.case import Case
from gpubench.model.machine import Measured
from gpubench.model.result import Run


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is derived from one run, in the order in which it is printed."""

    run: Run
    machine: str
    baseline: str
    cases: tuple[CaseResult, ...]
    speedups: tuple[Speedup, ...]
    break_even: tuple[BreakEven, ...]
    findings: tuple[ReportWarning, ...]
    roofline: Roofline
    overheads: Overheads
    gates: tuple[ReportGate, ...] = ()
    claims: tuple[ClaimResult, ...] = ()
    reuse: tuple[Reuse, ...] = ()
    means: tuple[Mean, ...] = ()
    hybrid: tuple[Hybrid, ...] = ()
    noise: tuple[Components, ...] = ()
    measured: Measured | None = None


def failed(analyses: Iterable[Analysis]) -> bool:
    """Whether a gate of any of them failed."""
    return any(not gate.passed for analysis in analyses for gate in analysis.gates)


NO_GATES = Gates()


def analyse(
    run: Run,
    *,
    baseline: str | None = None,
    keep: Callable[[Case], bool] | None = None,
    demands: Gates = NO_GATES,
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
    found = _curves(run, compared, ratios)
    splits = hybrids(run, compared, keep)
    # Whatever is shown: a mode is chosen by all of the file, over the fastest CPU form.
    measured: Measured | None = None
    if not experiment(run):
        as_shown = keep is None and baseline is None
        measured = evidence(run, ratios, found, splits) if as_shown else _evidence(run, compared)
    return Analysis(
        run=run, machine=machine_line(run),
        baseline=baseline_line(run, [row for row in ratios if row.kind == "headline"]),
        cases=cases, speedups=ratios, break_even=found,
        findings=findings(run, cases),
        roofline=roofline(run, [row for row in everything if _alone(row)], [row for row in cases if _alone(row)]),
        overheads=overheads(run, everything, cases),
        gates=gates(run, cases, [row for row in cases if _compared(row)], ratios, demands),
        claims=judged(claims, ratios), means=means([row for row in cases if _compared(row)], ratios),
        reuse=reuses(run, compared, keep), hybrid=splits, noise=components(run),
        measured=measured,
    )  # fmt: skip


class Curves(msgspec.Struct, frozen=True):
    """What the answer needs of a run, a tenth of the work of all that is derived from it."""

    run: Run
    cases: tuple[CaseResult, ...]
    break_even: tuple[BreakEven, ...]


def curves(run: Run) -> Curves:
    """The times of `run`, and where one side overtakes the other."""
    cases = tuple(case_results(run))
    compared = [row for row in cases if _compared(row)]
    return Curves(run, cases, _curves(run, compared, speedups(compared)))


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


KEYS = ("case", "op", "n", "device", "time", "speedup")


def ordered(analysis: Analysis, key: str) -> Analysis:
    """`analysis` with its rows by `key`, one of KEYS, smallest first; `-key`: largest first.

    Rows without such a number come last either way; equal rows keep the order of the file.
    """
    name, down = key.removeprefix("-"), key.startswith("-")
    ratios = {row.case.id: row.ratio for row in analysis.speedups if row.kind in ("headline", "case")}
    values: dict[str, Callable[[CaseResult], float | str | None]] = {
        "case": lambda row: row.id,
        "op": lambda row: row.case.op,
        "n": lambda row: row.case.params.get("n"),
        "device": lambda row: row.case.device_id,
        "time": lambda row: row.time.estimate if row.time else None,
        "speedup": lambda row: ratios.get(row.id),
    }
    value = values[name]

    def by(rows: list[CaseResult]) -> list[CaseResult]:
        has = [row for row in rows if value(row) is not None]
        has.sort(key=lambda row: value(row), reverse=down)  # type: ignore[arg-type, return-value]
        return has + [row for row in rows if value(row) is None]

    place = {row.id: i for i, row in enumerate(by([row.case for row in analysis.speedups]))}
    return msgspec.structs.replace(
        analysis,
        cases=tuple(by(list(analysis.cases))),
        speedups=tuple(sorted(analysis.speedups, key=lambda row: place[row.case.id])),
    )
