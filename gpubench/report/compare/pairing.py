"""Which cases of two runs belong together, and why the others do not."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from gpubench import stats
from gpubench.model.result import Measurement, Outcome, Run
from gpubench.report.analysis.estimate import case_results
from gpubench.report.analysis.samples import in_plan, main_blocks
from gpubench.report.analysis.turns import observations
from gpubench.report.analysis.types import CaseResult
from gpubench.report.compare.comparability import case_differences
from gpubench.report.compare.judge import Twin, fewest_samples, labels, low_ends
from gpubench.report.compare.options import CompareOptions
from gpubench.report.compare.types import AbsentCase, Difference, JudgedCase

NOT_COMPARABLE = ("op", "protocol")
BILLION = 1e9  # a case that became so many times faster or slower is a broken number, and no change


class Paired(msgspec.Struct, frozen=True, kw_only=True):
    """`twins` can be compared; `refused` have numbers that mean different things, or one in base that cannot be true;
    the rest has one number."""

    twins: tuple[Twin, ...]
    refused: tuple[JudgedCase, ...]
    missing: tuple[AbsentCase, ...]
    failed: tuple[AbsentCase, ...]
    added: tuple[AbsentCase, ...]
    differences: tuple[Difference, ...]


class Side(msgspec.Struct, frozen=True):
    """One run with the rows of its cases and its measurements, by case id."""

    run: Run
    rows: dict[str, CaseResult]
    measurements: dict[str, Measurement]


def side(run: Run) -> Side:
    """What a comparison needs of one run: the cases of its plan, which every session measures, and of each turn the
    session that stands for it."""
    measurements = {outcome.id: outcome for outcome in run.outcomes if isinstance(outcome, Measurement)}
    ours = {outcome.id for outcome in run.outcomes if is_compared(outcome)}
    rows = [_by_turn(run, row) for row in case_results(run) if row.id in ours]
    return Side(run, {row.id: row for row in rows}, measurements)


def is_compared(outcome: Outcome) -> bool:
    """Whether a comparison looks at it: at all but what only the search for a break-even has measured."""
    return not isinstance(outcome, Measurement) or not outcome.blocks or in_plan(outcome)


def _by_turn(run: Run, row: CaseResult) -> CaseResult:
    chosen = observations(run, row.sessions)
    return msgspec.structs.replace(row, sessions={session: row.sessions[session] for session in chosen})


def paired(
    base: Side, new: Side, index: int, options: CompareOptions, *, alike: bool, takes_turns: bool
) -> Paired:
    """The cases of `new`, number `index`, against `base`. `alike`: the protocol of the runs is the same."""
    ours, theirs = base.rows, new.rows
    twins, refused = [], []
    differences: list[Difference] = []
    missing: list[AbsentCase] = []
    failed: list[AbsentCase] = []
    for case_id, row in ours.items():
        if not row.sessions:
            continue
        other = theirs.get(case_id)
        muted = options.muted(row.case)
        if other is None or not other.sessions:
            if row.time is None:  # what base has no true number for cannot go missing
                refused.append(_refused(row, other, index, "implausible", muted))
                continue
            place = failed if other is not None and other.outcome == "failure" else missing
            place.append(_absent(case_id, other, index, muted))
            continue
        both = base.measurements[case_id], new.measurements[case_id]
        found = case_differences(base.run, new.run, *both, index)
        differences += found
        reasons = ["protocol"] if not alike else [row.scope for row in found if row.scope in NOT_COMPARABLE]
        reasons += ["implausible"] if _implausible(row, other) else []
        if reasons:
            refused.append(_refused(row, other, index, reasons[0], muted))
        else:
            twins.append(_twin(base, new, row, other, options.threshold(row.case, takes_turns), muted))
    added = [
        _absent(case_id, ours.get(case_id), index, options.muted(row.case))
        for case_id, row in theirs.items()
        if row.sessions and (case_id not in ours or not ours[case_id].sessions)
    ]
    return Paired(
        twins=tuple(twins), refused=tuple(refused), missing=tuple(missing), failed=tuple(failed),
        added=tuple(added), differences=tuple(differences),
    )  # fmt: skip


def _absent(case_id: str, row: CaseResult | None, index: int, muted: bool) -> AbsentCase:
    """Why the side whose row this is has no number."""
    if row is None:
        return AbsentCase(
            new=index, id=case_id, reason="absent", detail="the case is not in the file", muted=muted
        )
    return AbsentCase(new=index, id=case_id, reason=row.reason or "unknown", detail=row.detail, muted=muted)


def _implausible(row: CaseResult, other: CaseResult) -> bool:
    """Whether one of the two numbers cannot be true."""
    seconds = [value for side in (row, other) for samples in side.sessions.values() for value in samples]
    return "implausible" in (row.label, other.label) or min(seconds) * BILLION < max(seconds)


def _refused(row: CaseResult, other: CaseResult | None, index: int, reason: str, muted: bool) -> JudgedCase:
    return JudgedCase(
        new=index, id=row.id, verdict="not-comparable", reason=reason, base_s=_seconds(row),
        new_s=_seconds(other) if other else None, k_base=len(row.sessions), k_new=len(other.sessions) if other else 0,
        labels=labels(row, other) if other else labels(row), muted=muted,
    )  # fmt: skip


def _seconds(row: CaseResult) -> float | None:
    """Its time; None where that cannot be true."""
    return None if row.time is None else row.time.estimate


def _twin(base: Side, new: Side, row: CaseResult, other: CaseResult, threshold: float, muted: bool) -> Twin:
    first = fewest_samples(row, other)
    ours, theirs = low_ends(row, first), low_ends(other, first)
    our_cycles, their_cycles = low_cycles(base, row, ours), low_cycles(new, other, theirs)
    known = bool(our_cycles and their_cycles)
    return Twin(
        base=row, new=other, base_low=ours, new_low=theirs, threshold=threshold, muted=muted,
        base_cycles=tuple(our_cycles.values()) if known else (),
        new_cycles=tuple(their_cycles.values()) if known else (),
    )  # fmt: skip


def low_cycles(side: Side, row: CaseResult, low: dict[int, float]) -> dict[int, float]:
    """The low ends in cycles of the device's clock, by session; empty where one session does not know it."""
    clocks: dict[int, Sequence[float]] = {
        session: [hertz for block in blocks for hertz in block.clock_hz or () if 0 < hertz < math.inf]
        for session, blocks in main_blocks(side.run, side.measurements[row.id]).items()
    }
    if not all(clocks.get(session) for session in low):
        return {}
    return {session: seconds * stats.median(clocks[session]) for session, seconds in low.items()}
