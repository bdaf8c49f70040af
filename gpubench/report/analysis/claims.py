"""Expected speedups beside measured ones: what somebody claimed, and what this run has to say about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpubench.model.case import Case
from gpubench.report.analysis.types import Claim, ClaimResult, ClaimVerdict, Speedup
from gpubench.selectors import selector
from gpubench.stats import Interval

NO_OP = "no op stands for it"
NO_CASE = "no such case in this run"
SOFTWARE = "a software adapter is no GPU"


def judged(claims: Sequence[Claim], speedups: Sequence[Speedup]) -> tuple[ClaimResult, ...]:
    """Each claim with the measured speedup that is kindest to it, in the order of `claims`.

    A claim stands from `1 - tolerance` of its speedup on: confirmed if the whole interval reaches that, refuted if
    none of it does, else undecided. Raises UsageError for a claim whose case is no selector.
    """
    headlines = [row for row in speedups if row.kind == "headline"]
    return tuple(_judged(claim, headlines) for claim in claims)


def _judged(claim: Claim, headlines: Sequence[Speedup]) -> ClaimResult:
    if claim.case is None:
        return ClaimResult(claim=claim, verdict="not measured", reason=NO_OP)
    matches: Callable[[Case], bool] = selector(claim.case, option="--claims")
    found = [row for row in headlines if matches(row.case.case)]
    real = [row for row in found if row.case.device_kind != "software"]
    if not real:
        return ClaimResult(claim=claim, verdict="not measured", reason=SOFTWARE if found else NO_CASE)
    row = max(real, key=lambda row: (row.headline, row.ratio.estimate))
    verdict, reason = _verdict(claim, row)
    return ClaimResult(
        claim=claim, verdict=verdict, reason=reason, measured=row, with_copies=_copied(row, headlines)
    )


def _verdict(claim: Claim, row: Speedup) -> tuple[ClaimVerdict, str]:
    if not row.headline:
        return "undecided", row.label
    if claim.expected is not None:
        return _side(row.ratio, claim.expected * (1 - claim.tolerance), larger=True)
    assert claim.gpu_s is not None, "a claim expects a speedup or a time"
    assert row.case.time is not None, "a speedup has two times"
    return _side(row.case.time, claim.gpu_s * (1 + claim.tolerance), larger=False)


def _side(interval: Interval, bound: float, *, larger: bool) -> tuple[ClaimVerdict, str]:
    """On which side of `bound` the whole interval lies."""
    above, below = interval.low >= bound, interval.high < bound
    if above or below:
        return ("confirmed" if above == larger else "refuted"), ""
    return "undecided", "the interval contains it"


def _copied(row: Speedup, headlines: Sequence[Speedup]) -> Speedup | None:
    """The best speedup of the same work when every call copies both ways."""
    same = [
        other
        for other in headlines
        if other.case.case.workload == row.case.case.workload
        and other.case.case.regime == "transfer-always"
        and other.case.device_kind != "software"
    ]
    return max(same, key=lambda other: other.ratio.estimate, default=None)
