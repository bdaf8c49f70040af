"""What somebody expects of a GPU, beside what a run measured (docs/claims.md)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

import msgspec

from gpubench.analysis.analyse import Analysis, derive_once
from gpubench.analysis.break_even import BreakEven
from gpubench.analysis.estimate import HOST_STAGE, CaseResult, CaseTime
from gpubench.analysis.labels import gravest
from gpubench.analysis.speedup import Speedup, paired
from gpubench.curves import stats
from gpubench.curves.stats import IntervalLike
from gpubench.result.case import Case
from gpubench.result.run import DeviceKind
from gpubench.result.selectors import selector

ClaimVerdict = Literal["confirmed", "refuted", "undecided", "not measured"]
# What a speedup divides by: the fastest CPU form, or the fastest GPU form (of a split over both).
Divisor = Literal["cpu", "gpu"]
Range = tuple[float, float]


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody expects: a speedup, or the times of both sides, or one side's alone (seconds), or a time between
    two, or a break-even between two sizes.

    `cases` are selectors; the times of several add up. None: gpubench has no op for it. `also` selects what stands
    beside it and decides nothing. `device` is the kind of device that answers: a GPU, or what the selectors name.
    `tolerance` is a share of the expectation.
    """

    claim: str
    document: str | None = None
    cases: tuple[str, ...] = ()
    also: str | None = None
    device: DeviceKind | None = None
    against: Divisor = "cpu"
    speedup: float | None = None
    cpu_s: float | None = None
    gpu_s: float | None = None
    time_s: Range | None = None
    break_even: Range | None = None
    tolerance: float = 0.1

    @property
    def expected(self) -> float | None:
        """The speedup that it names, else the ratio of its times."""
        if self.speedup is None and self.cpu_s is not None and self.gpu_s is not None:
            return self.cpu_s / self.gpu_s
        return self.speedup


class ClaimResult(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody claimed, and the kindest measured case: its speedup with interval, and the speedup of the same
    work when every call copies both ways. `ids` are the cases whose times add up. What nothing measured is null."""

    aside: ClassVar = ("measured", "timed", "threshold", "with_copies", "also")
    claim: str
    document: str | None
    cases: tuple[str, ...]
    verdict: ClaimVerdict
    reason: str | None
    against: Divisor
    tolerance: float
    claimed_speedup: float | None
    claimed_cpu_s: float | None
    claimed_gpu_s: float | None
    claimed_time_s: Range | None
    claimed_break_even: Range | None
    ids: tuple[str, ...] = ()
    baseline_ids: tuple[str, ...] = ()
    ratio: float | None = None
    lo: float | None = None
    hi: float | None = None
    cpu_s: float | None = None
    gpu_s: float | None = None
    ratio_with_copies: float | None = None
    break_even: tuple[int | None, int | None] | None = None
    also_ids: tuple[str, ...] = ()
    also_ratio: float | None = None
    measured: Speedup | None = None
    timed: CaseResult | None = None
    threshold: BreakEven | None = None
    with_copies: Speedup | None = None
    also: Speedup | None = None


NO_OP = "no op stands for it"
NO_CASE = "no such case in this run"
NO_SESSION = "no session measured all of its cases"
SOFTWARE = "a software adapter is no GPU"
HYBRID = "hybrid"


@derive_once
def claims(analysis: Analysis) -> tuple[ClaimResult, ...]:
    """Return each claim with the measured case that is kindest to it, in their order.

    A claim stands from `1 - tolerance` of its speedup on: confirmed if the whole interval reaches that, refuted if
    none of it does, else undecided. A time stands up to `1 + tolerance` of it. A range is confirmed by an interval
    inside it, refuted by one outside. Raises UsageError for a claim whose case is no selector.
    """
    seen = _Measured(analysis)
    return tuple(seen.judge(claim) for claim in analysis.asked_claims)


class _Measured:
    """What a run has to say."""

    def __init__(self, analysis: Analysis) -> None:
        self.cases, self.break_even = analysis.cases, analysis.break_even
        self.headlines = [row for row in analysis.speedups if row.kind == "headline"]
        if any(claim.break_even and claim.device == "software" for claim in analysis.asked_claims):
            # The curves of software adapters are drawn for the claims that ask for them alone.
            self.break_even += analysis.curves_of("software")

    def judge(self, claim: Claim) -> ClaimResult:
        if not claim.cases:
            return _result(claim, "not measured", NO_OP)
        if claim.break_even is not None:
            return self._threshold(claim, claim.break_even)
        if claim.time_s is not None or (claim.expected is None and claim.gpu_s is None):
            return self._time(claim)
        return self._ratio(claim)

    def _ratio(self, claim: Claim) -> ClaimResult:
        terms: list[Speedup] = []
        for text in claim.cases:
            found = self._kindest(claim, text)
            if isinstance(found, str):
                of = f": {text}" if len(claim.cases) > 1 else ""
                return _result(claim, "not measured", found + of)
            terms.append(found)
        whole = _total(terms)
        if whole is None:
            return _result(claim, "not measured", NO_SESSION)
        copied = [self._copied(row) for row in terms]
        with_copies = None if None in copied else _total([row for row in copied if row is not None])
        also = self._kindest(claim, claim.also) if claim.also else NO_CASE
        verdict, reason = _verdict(claim, whole)
        return _result(
            claim, verdict, reason, ids=tuple(row.id for row in terms),
            baseline_ids=tuple(row.baseline_id for row in terms), measured=whole, with_copies=with_copies,
            also=None if isinstance(also, str) else also,
        )  # fmt: skip

    def _kindest(self, claim: Claim, text: str) -> Speedup | str:
        """The selected case with the largest speedup, or why there is none."""
        matches = selector(text, option="--claims")
        found = [row for row in self.headlines if matches(row.case.case)]
        kinds = _answers(claim, text)
        real = [row for row in found if row.case.device_kind in kinds]
        if real:
            best = max(real, key=lambda row: (row.headline, row.ratio))
            return best if claim.against == "cpu" else self._against_gpu(best)
        if host := self._on_host(matches):
            return host
        return SOFTWARE if any(row.case.device_kind == "software" for row in found) else NO_CASE

    def _on_host(self, matches: Callable[[Case], bool]) -> Speedup | None:
        """A stage that no GPU can take: its CPU time stands on both sides."""
        found = [row for row in self.cases if matches(row.case)]
        if not any(row.reason == HOST_STAGE for row in found):
            return None
        timed = [row for row in found if row.time is not None and row.device_kind == "cpu"]
        best = min(timed, key=_estimate_s, default=None)
        return None if best is None else _pair(best, best, headline=True)

    def _against_gpu(self, row: Speedup) -> Speedup | str:
        """The same case, against the GPU's fastest form of the same work."""
        beside = [
            other.case
            for other in self.headlines
            if other.case.device_kind == "gpu"
            and other.case.case.workload == row.case.case.workload
            and other.case.case.regime_id == row.case.case.regime_id
        ]
        best = min(beside, key=_estimate_s, default=None)
        found = None if best is None else _pair(best, row.case, headline=row.headline)
        return NO_CASE if found is None else found

    def _copied(self, row: Speedup) -> Speedup | None:
        """The best speedup of the same work when every call copies both ways."""
        if row.case.device_kind == "cpu":
            return row
        same = [
            other
            for other in self.headlines
            if other.case.case.workload == row.case.case.workload
            and other.case.case.regime == "transfer-always"
            and other.case.device_kind == row.case.device_kind
        ]
        return max(same, key=lambda other: other.ratio, default=None)

    def _time(self, claim: Claim) -> ClaimResult:
        """Of one side's time, the fastest selected case's."""
        matches = selector(claim.cases[0], option="--claims")
        kinds = _answers(claim, claim.cases[0]) if claim.time_s is not None else ("cpu",)
        found = [row for row in self.cases if matches(row.case) and row.device_kind in kinds]
        row = min((row for row in found if row.time is not None), key=_estimate_s, default=None)
        if row is None or row.time is None:
            return _result(claim, "not measured", NO_CASE)
        if claim.time_s is not None:
            verdict = _inside(row.time.low, row.time.high, claim.time_s, claim.tolerance)
        else:
            assert claim.cpu_s is not None, "a claim expects a speedup, a time or a break-even"
            verdict = _side(row.time, claim.cpu_s * (1 + claim.tolerance), larger=False)
        return _result(claim, verdict, "", ids=(row.id,), timed=row)

    def _threshold(self, claim: Claim, claimed: Range) -> ClaimResult:
        """The earliest break-even of the selected cases."""
        matches = selector(claim.cases[0], option="--claims")
        kinds = _answers(claim, claim.cases[0])
        found = [
            row for row in self.break_even if matches(row.case) and row.points[-1].case.device_kind in kinds
        ]
        row = min(found, key=lambda row: _ends(row), default=None)
        if row is None:
            return _result(claim, "not measured", NO_CASE)
        verdict = _inside(*_ends(row), claimed, claim.tolerance)
        reason = (row.reason or "") if verdict == "undecided" else ""
        return _result(claim, verdict, reason, ids=(row.points[-1].id,), threshold=row)


def _ends(row: BreakEven) -> tuple[float, float]:
    """Between which sizes the break-even lies, as far as was measured."""
    if row.verdict == "all-sizes":
        return 0.0, row.first
    if row.verdict == "no-size":
        return row.last, math.inf
    return row.lo or 0.0, row.hi or math.inf


def _result(claim: Claim, verdict: ClaimVerdict, reason: str, **found: object) -> ClaimResult:
    row = ClaimResult(
        claim=claim.claim, document=claim.document, cases=claim.cases, verdict=verdict,
        reason=reason or None, against=claim.against, tolerance=claim.tolerance, claimed_speedup=claim.expected,
        claimed_cpu_s=claim.cpu_s, claimed_gpu_s=claim.gpu_s, claimed_time_s=claim.time_s,
        claimed_break_even=claim.break_even, **found,  # type: ignore[arg-type]
    )  # fmt: skip
    ratio, timed, crossing, copied, also = row.measured, row.timed, row.threshold, row.with_copies, row.also
    on_cpu = timed is not None and timed.device_kind == "cpu"
    return msgspec.structs.replace(
        row, ratio=ratio.ratio if ratio else None, lo=ratio.lo if ratio else None, hi=ratio.hi if ratio else None,
        cpu_s=_estimate_s(ratio.baseline) if ratio else _estimate_s(timed) if timed and on_cpu else None,
        gpu_s=_estimate_s(ratio.case) if ratio else _estimate_s(timed) if timed and not on_cpu else None,
        ratio_with_copies=copied.ratio if copied else None, break_even=(crossing.lo, crossing.hi) if crossing else None,
        also_ids=(also.id,) if also else (), also_ratio=also.ratio if also else None,
    )  # fmt: skip


def _median_s(row: CaseResult) -> float:
    assert row.time is not None
    return row.time.median_s


def _estimate_s(row: CaseResult) -> float:
    return math.inf if row.time is None else row.time.estimate


def _answers(claim: Claim, text: str) -> tuple[DeviceKind, ...]:
    """A claim about a GPU is answered neither by a software adapter nor by a CPU that helps it, unless it says so."""
    if claim.device is not None:
        return (claim.device,)
    return ("gpu", "hybrid") if f"@{HYBRID}" in text else ("gpu",)


def _pair(baseline: CaseResult, case: CaseResult, *, headline: bool) -> Speedup | None:
    """The two sides as a speedup; None where no session measured both."""
    ratio = paired(baseline, case)
    if ratio is None:
        return None
    return Speedup(
        id=case.id, baseline_id=baseline.id, kind="headline", ratio=ratio.estimate, lo=ratio.low,
        hi=ratio.high, ci_kind=ratio.kind, headline=headline, case=case, baseline=baseline,
        label=gravest([row.label for row in (baseline, case) if row.label is not None]),
    )  # fmt: skip


def _total(terms: Sequence[Speedup]) -> Speedup | None:
    """The terms one after the other on either side; None where no session measured all of them."""
    if len(terms) == 1:
        return terms[0]
    case, baseline = (
        _one_after_the_other([row.case for row in terms]),
        _one_after_the_other([row.baseline for row in terms]),
    )
    if case is None or baseline is None:
        return None
    return _pair(baseline, case, headline=all(row.headline for row in terms))


def _one_after_the_other(rows: Sequence[CaseResult]) -> CaseResult | None:
    """The rows as one case: in each session the sums of its blocks and of its samples."""
    common = sorted(set.intersection(*(set(row.blocks) for row in rows)))
    if not common:
        return None
    blocks = {i: tuple(map(math.fsum, zip(*(row.blocks[i] for row in rows), strict=False))) for i in common}
    samples = {
        i: tuple(math.fsum(end(row.sessions[i]) for row in rows) for end in (min, stats.median, max))
        for i in common
    }
    prior = stats.Prior(max(row.prior.block for row in rows), max(row.prior.session for row in rows))
    time = stats.run_interval(list(blocks.values()), prior)
    # Beside a stage that stays on the host the whole is the other device's.
    longest = max(rows, key=lambda row: (row.device_kind != "cpu", _estimate_s(row)))
    return msgspec.structs.replace(
        longest, id=" + ".join(row.id for row in rows), blocks=blocks, sessions=samples, prior=prior,
        label=gravest([row.label for row in rows if row.label is not None]),
        time=CaseTime(
            **time._asdict(), k=len(common), n=sum(map(len, samples.values())),
            median_s=math.fsum(map(_median_s, rows)),
        ),
    )  # fmt: skip


def _verdict(claim: Claim, row: Speedup) -> tuple[ClaimVerdict, str]:
    if not row.headline:
        return "undecided", row.label
    assert row.case.time is not None, "a speedup has two times"
    if claim.expected is not None:
        verdict = _side(row.interval, claim.expected * (1 - claim.tolerance), larger=True)
    else:
        assert claim.gpu_s is not None, "a claim expects a speedup or a time"
        verdict = _side(row.case.time, claim.gpu_s * (1 + claim.tolerance), larger=False)
    return verdict, ""


def _side(interval: IntervalLike, bound: float, *, larger: bool) -> ClaimVerdict:
    if interval.low >= bound:
        return "confirmed" if larger else "refuted"
    if interval.high < bound:
        return "refuted" if larger else "confirmed"
    return "undecided"


def _inside(low: float, high: float, claimed: Range, tolerance: float) -> ClaimVerdict:
    """Whether an interval lies in a range that its tolerance widens."""
    first, last = claimed[0] * (1 - tolerance), claimed[1] * (1 + tolerance)
    if first <= low and high <= last:
        return "confirmed"
    return "refuted" if high < first or low > last else "undecided"
