"""Expected speedups beside measured ones: what somebody claimed, and what this run has to say about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpubench.model.case import Case
from gpubench.model.result import GPUS, DeviceKind
from gpubench.report.analysis.types import Claim, ClaimResult, ClaimVerdict, Speedup
from gpubench.selectors import selector
from gpubench.stats import Interval

NO_OP = "no op stands for it"
NO_CASE = "no such case in this run"
SOFTWARE = "a software adapter is no GPU"
HYBRID = "hybrid"


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
    real = [row for row in found if row.case.device_kind in _answers(claim.case)]
    if not real:
        software = any(row.case.device_kind == "software" for row in found)
        return ClaimResult(claim=claim, verdict="not measured", reason=SOFTWARE if software else NO_CASE)
    row = max(real, key=lambda row: (row.headline, row.ratio.estimate))
    verdict, reason = _verdict(claim, row)
    return ClaimResult(
        claim=claim, verdict=verdict, reason=reason, measured=row, with_copies=_copied(row, headlines)
    )


def _answers(selector_text: str) -> tuple[DeviceKind, ...]:
    """A claim about a GPU is not answered by a CPU that helps it, unless it says so."""
    return (*GPUS, "hybrid") if f"@{HYBRID}" in selector_text else GPUS


def _verdict(claim: Claim, row: Speedup) -> tuple[ClaimVerdict, str]:
    if not row.headline and row.label != "unstable":
        return "undecided", row.label
    assert row.case.time is not None, "a speedup has two times"
    ratio, time = (row.ratio, row.case.time) if row.headline else _extremes(row)
    if claim.expected is not None:
        verdict = _side(ratio, claim.expected * (1 - claim.tolerance), larger=True)
    else:
        assert claim.gpu_s is not None, "a claim expects a speedup or a time"
        verdict = _side(time, claim.gpu_s * (1 + claim.tolerance), larger=False)
    return verdict, row.label if verdict == "undecided" and not row.headline else ""


def _extremes(row: Speedup) -> tuple[Interval, Interval]:
    """The range of an unstable case: of all ratios that two of its samples can have, and of its times.

    Its interval deserves no trust; what not even its luckiest samples reach is out of reach all the same.
    """
    ours = [value for samples in row.case.sessions.values() for value in samples]
    base = [value for samples in row.baseline.sessions.values() for value in samples]
    low, high = min(base) / max(ours), max(base) / min(ours)
    return (
        Interval(low, row.ratio.estimate, high, row.ratio.kind),
        Interval(min(ours), sum(ours) / len(ours), max(ours), row.ratio.kind),
    )


def _side(interval: Interval, bound: float, *, larger: bool) -> ClaimVerdict:
    """On which side of `bound` the whole interval lies."""
    if interval.low >= bound:
        return "confirmed" if larger else "refuted"
    if interval.high < bound:
        return "refuted" if larger else "confirmed"
    return "undecided"


def _copied(row: Speedup, headlines: Sequence[Speedup]) -> Speedup | None:
    """The best speedup of the same work when every call copies both ways."""
    same = [
        other
        for other in headlines
        if other.case.case.workload == row.case.case.workload
        and other.case.case.regime == "transfer-always"
        and other.case.device_kind == row.case.device_kind
    ]
    return max(same, key=lambda other: other.ratio.estimate, default=None)
