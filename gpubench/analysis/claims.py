"""Claims about the performance of a GPU, judged by the measurements of a run, and the file that states them
(docs/claims.md)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from gpubench.analysis.analyse import Analysis, derive_once
from gpubench.analysis.estimate import HOST_STAGE, CaseResult, CaseTime
from gpubench.analysis.samples import gravest
from gpubench.analysis.speedup import BreakEven, Speedup, fastest, pair
from gpubench.base import disk
from gpubench.base.errors import InputError, UsageError
from gpubench.base.messages import ERRORS
from gpubench.base.units import parse_duration
from gpubench.curves import stats
from gpubench.curves.stats import IntervalLike
from gpubench.result.case import Case, selector
from gpubench.result.run import DeviceKind
from gpubench.result.store import document

ClaimVerdict = Literal["confirmed", "refuted", "undecided", "not measured"]
Range = tuple[float, float]


class Seconds(float):
    """A time in seconds. A claims file writes it with a unit or as a plain number."""


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A claim about a speedup, about the times of one or both sides, or about a range of times or of
    break-evens. The fields of the other kinds are None."""

    claim: str  # the claim in one sentence
    document: str | None = None  # the document that makes the claim; None: not told
    case: str | None = None  # a file may write a single selector here instead of in `cases`
    cases: tuple[str, ...] = ()  # selectors; the times of several add up; empty: gpubench has no such op
    also: str | None = None  # the selector of a case that is shown beside the result and decides nothing
    device: DeviceKind | None = None  # the kind of device that is judged; None: GPUs, and splits that are named
    # the baseline of the speedup: the fastest CPU implementation (`cpu`), the fastest GPU implementation
    # (`gpu`, for a split over both), or a selector of cases on the same device
    against: str = "cpu"
    speedup: float | None = None  # the claimed speedup
    cpu_s: Seconds | None = msgspec.field(default=None, name="cpu")  # the claimed time of the CPU
    gpu_s: Seconds | None = msgspec.field(default=None, name="gpu")  # the claimed time of the GPU
    # the claimed range of the time
    time_s: tuple[Seconds, Seconds] | None = msgspec.field(default=None, name="time")
    break_even: Range | None = None  # the claimed range of the break-even, as sizes
    # the tolerance, as a share of the claimed value; None: that of the file, else TOLERANCE
    tolerance: float | None = None

    @property
    def expected(self) -> float | None:
        """The claimed speedup, or the ratio of the claimed times of both sides, or None without either."""
        if self.speedup is None and self.cpu_s is not None and self.gpu_s is not None:
            return self.cpu_s / self.gpu_s
        return self.speedup

    @property
    def allowed(self) -> float:
        """The tolerance of the claim, or TOLERANCE if it has none."""
        return TOLERANCE if self.tolerance is None else self.tolerance


TOLERANCE = 0.1


class ClaimResult(msgspec.Struct, frozen=True, kw_only=True):
    """A claim with the measured case that favours it most. Values that were not claimed or not measured
    are null."""

    # fields that are left out of the JSON rows
    aside: ClassVar = ("measured", "timed", "threshold", "with_copies", "also")
    claim: str  # the claim in one sentence
    document: str | None  # the document that makes the claim
    cases: tuple[str, ...]  # the selectors of the claim
    verdict: ClaimVerdict  # the verdict on the claim
    reason: str | None  # the reason if the verdict is neither confirmed nor refuted
    against: str  # the baseline of the claimed speedup
    tolerance: float  # the tolerance, as a share of the claimed value
    claimed_speedup: float | None  # the claimed speedup
    claimed_cpu_s: float | None  # the claimed time of the CPU, in seconds
    claimed_gpu_s: float | None  # the claimed time of the GPU, in seconds
    # the claimed range of the time, in seconds
    claimed_time_s: Range | None
    claimed_break_even: Range | None  # the claimed range of the break-even, as sizes
    ids: tuple[str, ...] = ()  # the ids of the judged cases; the times of several add up
    baseline_ids: tuple[str, ...] = ()  # the ids of the baseline's cases
    ratio: float | None = None  # the measured speedup
    lo: float | None = None  # the low end of its interval
    hi: float | None = None  # the high end of its interval
    cpu_s: float | None = None  # the measured time of the CPU, in seconds
    gpu_s: float | None = None  # the measured time of the GPU, in seconds
    ratio_with_copies: float | None = None  # the speedup of the same work if every call copies both ways
    break_even: tuple[int | None, int | None] | None = None  # the ends of the measured break-even's interval
    also_ids: tuple[str, ...] = ()  # the ids of the cases shown beside the result
    also_ratio: float | None = None  # the speedup of the cases in `also_ids`
    measured: Speedup | None = None  # the speedup behind `ratio`
    timed: CaseResult | None = None  # the case behind a time
    threshold: BreakEven | None = None  # the break-even behind `break_even`
    with_copies: Speedup | None = None  # the speedup behind `ratio_with_copies`
    also: Speedup | None = None  # the speedup behind `also_ratio`


NO_OP = "no op stands for it"
NO_CASE = "no such case in this run"
NO_SESSION = "no session measured all of its cases"
SOFTWARE = "a software adapter is no GPU"


@derive_once
def claims(analysis: Analysis) -> tuple[ClaimResult, ...]:
    """Judge each claim by the measured case that favours it most (docs/claims.md). The results have the order
    of the claims. Raises UsageError if a case of a claim is not a valid selector."""
    seen = _Measured(analysis)
    return tuple(seen.judge(claim) for claim in analysis.asked_claims)


class _Measured:
    """The measured cases, speedups and break-evens by which claims are judged."""

    def __init__(self, analysis: Analysis) -> None:
        self.cases, self.break_even = analysis.cases, analysis.break_even
        self.everything = analysis.everything
        self.headlines = [ratio for ratio in analysis.speedups if ratio.kind == "headline"]
        if any(claim.break_even and claim.device == "software" for claim in analysis.asked_claims):
            # Curves of software adapters are fitted only if a claim asks for them.
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
            matching = self._kindest(claim, text)
            if isinstance(matching, str):
                of = f": {text}" if len(claim.cases) > 1 else ""
                return _result(claim, "not measured", matching + of)
            terms.append(matching)
        whole = _total(terms)
        if whole is None:
            return _result(claim, "not measured", NO_SESSION)
        copied = [self._copy_both_ways(claim, ratio) for ratio in terms]
        with_copies = None if None in copied else _total([ratio for ratio in copied if ratio is not None])
        also = self._kindest(claim, claim.also) if claim.also else NO_CASE
        verdict, reason = _verdict(claim, whole)
        return _result(
            claim, verdict, reason, ids=tuple(ratio.id for ratio in terms),
            baseline_ids=tuple(ratio.baseline_id for ratio in terms), measured=whole, with_copies=with_copies,
            also=None if isinstance(also, str) else also,
        )  # fmt: skip

    def _kindest(self, claim: Claim, text: str) -> Speedup | str:
        """Return the largest speedup of the cases that the selector `text` selects, or why there is none."""
        matches = selector(text, option="--claims")
        if claim.against not in ("cpu", "gpu"):
            return self._against_cases(matches, selector(claim.against, option="--claims"))
        matching = [ratio for ratio in self.headlines if matches(ratio.case.case)]
        kinds = _answers(claim, text)
        real = [ratio for ratio in matching if ratio.case.device_kind in kinds]
        if real:
            # speedups that may be headlines come first
            best = max(real, key=lambda ratio: (ratio.headline, ratio.ratio))
            return best if claim.against == "cpu" else self._against_gpu(best) or NO_CASE
        if host := self._on_host(matches):
            return host
        return SOFTWARE if any(ratio.case.device_kind == "software" for ratio in matching) else NO_CASE

    def _on_host(self, matches: Callable[[Case], bool]) -> Speedup | None:
        """Return the speedup 1 of a stage that no GPU can run, or None for other stages."""
        matching = [case for case in self.cases if matches(case.case)]
        if not any(case.reason == HOST_STAGE for case in matching):
            return None
        timed = [case for case in matching if case.time is not None and case.device_kind == "cpu"]
        best = fastest(timed)
        # the CPU's time on both sides
        return pair("headline", best, best, headline=True)

    def _against_gpu(self, ratio: Speedup) -> Speedup | None:
        """Return the speedup of the case of `ratio` over the fastest GPU implementation of the same work, or
        None if there is none."""
        beside = fastest(other.case for other in self._same_work(ratio, ratio.case.case.regime_id, "gpu"))
        return pair("headline", beside, ratio.case, headline=ratio.headline)

    def _same_work(self, ratio: Speedup, regime: str, kind: DeviceKind) -> list[Speedup]:
        """Return the headline speedups for the workload of `ratio` in this regime (by id) on this kind of
        device."""
        key = ratio.case.case.workload, regime, kind
        return [
            other for other in self.headlines
            if (other.case.case.workload, other.case.case.regime_id, other.case.device_kind) == key
        ]  # fmt: skip

    def _against_cases(self, matches: Callable[[Case], bool], divides: Callable[[Case], bool]) -> Speedup | str:
        """Return the largest speedup of a GPU case over the fastest comparable case that `divides` selects, or
        why there is none."""
        bases = [case for case in self.everything if divides(case.case)]
        ratios = [
            pair("headline", fastest(base for base in bases if _comparable(base.case, case.case)), case)
            for case in self.everything
            if case.device_kind == "gpu" and matches(case.case)
        ]
        return max((ratio for ratio in ratios if ratio), key=lambda ratio: ratio.ratio, default=NO_CASE)

    def _copy_both_ways(self, claim: Claim, ratio: Speedup) -> Speedup | None:
        """Return the largest speedup of the same work if every call copies both ways, or None. A CPU copies
        nothing, so its speedup is `ratio` itself."""
        if ratio.case.device_kind == "cpu":
            return ratio
        same = self._same_work(ratio, "transfer-always", ratio.case.device_kind)
        best = max(same, key=lambda other: other.ratio, default=None)
        if best is None or claim.against == "cpu":
            return best
        return self._against_gpu(best) if claim.against == "gpu" else None

    def _time(self, claim: Claim) -> ClaimResult:
        """Judge a claimed time by the fastest selected case."""
        matches = selector(claim.cases[0], option="--claims")
        kinds = _answers(claim, claim.cases[0]) if claim.time_s is not None else ("cpu",)
        matching = [case for case in self.cases if matches(case.case) and case.device_kind in kinds]
        case = fastest(matching)
        if case is None or case.time is None:
            return _result(claim, "not measured", NO_CASE)
        if case.label == "throttled":
            return _result(claim, "undecided", case.label, ids=(case.id,), timed=case)
        if claim.time_s is not None:
            verdict = _inside(case.time.low, case.time.high, claim.time_s, claim.allowed)
        else:
            assert claim.cpu_s is not None, "a claim expects a speedup, a time or a break-even"
            verdict = _side(case.time, claim.cpu_s * (1 + claim.allowed), larger=False)
        return _result(claim, verdict, "", ids=(case.id,), timed=case)

    def _threshold(self, claim: Claim, claimed: Range) -> ClaimResult:
        """Judge a claimed break-even by the selected break-even whose interval has the smallest upper end."""
        matches = selector(claim.cases[0], option="--claims")
        kinds = _answers(claim, claim.cases[0])
        matching = [
            curve
            for curve in self.break_even
            if matches(curve.case) and curve.points[-1].case.device_kind in kinds
        ]
        curve = min(matching, key=lambda curve: _ends(curve)[::-1], default=None)
        if curve is None:
            return _result(claim, "not measured", NO_CASE)
        verdict = _inside(*_ends(curve), claimed, claim.allowed)
        reason = (curve.reason or "") if verdict == "undecided" else ""
        return _result(claim, verdict, reason, ids=(curve.points[-1].id,), threshold=curve)


def _comparable(base: Case, case: Case) -> bool:
    """Tell whether both cases run on one device, as different ops or as different cases of the same call."""
    same_call = (base.workload, base.regime_id) == (case.workload, case.regime_id)
    return base.device_id == case.device_id and (base.op != case.op or (same_call and base.id != case.id))


def _ends(curve: BreakEven) -> tuple[float, float]:
    """Return the ends of the interval of a break-even, as sizes, with 0 and infinity for unknown ends."""
    if curve.verdict == "all-sizes":
        return 1.0, curve.first  # no size is smaller
    if curve.verdict == "no-size":
        return curve.last, math.inf
    return curve.lo or 0.0, curve.hi or math.inf


def _result(claim: Claim, verdict: ClaimVerdict, reason: str, **sides: Any) -> ClaimResult:
    """Return the result of a claim. `sides` are further fields of the result, from which its numbers are
    taken."""
    measured, timed, crossing = (sides.get(name) for name in ("measured", "timed", "threshold"))
    copied, also = sides.get("with_copies"), sides.get("also")
    if measured is not None:
        sides |= {"ratio": measured.ratio, "lo": measured.lo, "hi": measured.hi}
        sides |= {"cpu_s": _estimate_s(measured.baseline), "gpu_s": _estimate_s(measured.case)}
    if timed is not None:
        sides["cpu_s" if timed.device_kind == "cpu" else "gpu_s"] = _estimate_s(timed)
    if crossing is not None:
        sides["break_even"] = (crossing.lo, crossing.hi)
    if copied is not None:
        sides["ratio_with_copies"] = copied.ratio
    if also is not None:
        sides |= {"also_ids": (also.id,), "also_ratio": also.ratio}
    return ClaimResult(
        claim=claim.claim, document=claim.document, cases=claim.cases, verdict=verdict,
        reason=reason or None, against=claim.against, tolerance=claim.allowed, claimed_speedup=claim.expected,
        claimed_cpu_s=None if claim.cpu_s is None else float(claim.cpu_s),
        claimed_gpu_s=None if claim.gpu_s is None else float(claim.gpu_s),
        claimed_time_s=None if claim.time_s is None else (float(claim.time_s[0]), float(claim.time_s[1])),
        claimed_break_even=claim.break_even, **sides,
    )  # fmt: skip


def _estimate_s(case: CaseResult) -> float:
    return math.inf if case.time is None else case.time.estimate


def _answers(claim: Claim, text: str) -> tuple[DeviceKind, ...]:
    """Return the kinds of device whose cases decide about a claim."""
    if claim.device is not None:
        return (claim.device,)
    return ("gpu", "hybrid") if "@hybrid" in text else ("gpu",)


def _total(terms: Sequence[Speedup]) -> Speedup | None:
    """Return the speedup of all `terms` in a row, or None if no session measured all of them."""
    if len(terms) == 1:
        return terms[0]
    case = _one_after_the_other([ratio.case for ratio in terms])
    baseline = _one_after_the_other([ratio.baseline for ratio in terms])
    return pair("headline", baseline, case, headline=all(ratio.headline for ratio in terms))


def _one_after_the_other(rows: Sequence[CaseResult]) -> CaseResult | None:
    """Return one case whose blocks are the sums of the blocks of `rows`, or None if no session measured all of
    them."""
    common = sorted(set.intersection(*(set(case.blocks) for case in rows)))
    if not common:
        return None
    blocks = {i: tuple(map(math.fsum, zip(*(case.blocks[i] for case in rows), strict=False))) for i in common}
    prior = stats.Prior(max(case.prior.block for case in rows), max(case.prior.session for case in rows))
    time = stats.run_interval(list(blocks.values()), prior)
    # If some stages stay on the host, the sum counts as a case of the other device.
    longest = max(rows, key=lambda case: (case.device_kind != "cpu", _estimate_s(case)))
    return msgspec.structs.replace(
        longest, id=" + ".join(case.id for case in rows), blocks=blocks, prior=prior,
        label=gravest([case.label for case in rows if case.label is not None]),
        time=CaseTime(
            **time._asdict(), k=len(common), n=sum(case.sample_count for case in rows),
            median_s=math.fsum(case.time.median_s for case in rows if case.time is not None),
        ),
    )  # fmt: skip


def _verdict(claim: Claim, ratio: Speedup) -> tuple[ClaimVerdict, str]:
    # A claim about software adapters is judged, although their speedups are no headlines.
    about_it = claim.device == "software" == ratio.label
    if not (ratio.headline or about_it):
        return "undecided", ratio.label
    assert ratio.case.time is not None, "a speedup has two times"
    if claim.expected is not None:
        verdict = _side(ratio.interval, claim.expected * (1 - claim.allowed), larger=True)
    else:
        assert claim.gpu_s is not None, "a claim expects a speedup or a time"
        verdict = _side(ratio.case.time, claim.gpu_s * (1 + claim.allowed), larger=False)
    return verdict, ""


def _side(interval: IntervalLike, bound: float, *, larger: bool) -> ClaimVerdict:
    if interval.low >= bound:
        return "confirmed" if larger else "refuted"
    if interval.high < bound:
        return "refuted" if larger else "confirmed"
    return "undecided"


def _inside(low: float, high: float, claimed: Range, tolerance: float) -> ClaimVerdict:
    """Judge whether the interval from `low` to `high` lies in the claimed range, widened by the tolerance."""
    first, last = claimed[0] * (1 - tolerance), claimed[1] * (1 + tolerance)
    if first <= low and high <= last:
        return "confirmed"
    return "refuted" if high < first or low > last else "undecided"


# ---------------------------------------------------------------- the file

BUILTIN = "builtin"  # stands for the claims that come with gpubench


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """A claims file, TOML or JSON."""

    claims: list[Claim]  # the claims, in order
    name: str = "gpubench-claims"  # the name of the document's format
    schema_version: int = 1  # the version of the document's format
    source: str | None = None  # the person or organization that makes the claims
    tolerance: float = TOLERANCE  # the tolerance of the claims that state none


def load(name: str) -> tuple[Claim, ...]:
    """Return the claims in the file `name`, or gpubench's own claims for `builtin`. Raises InputError if the
    file cannot be used."""
    try:
        data = _read(name)
    except (OSError, ValueError) as error:
        why = "there is no such file" if isinstance(error, FileNotFoundError) else disk.reason(error)
        hint = ERRORS["bad-claims"].remedy
        raise InputError("unreadable", f"--claims: {name} cannot be read", why=why, hint=hint) from None
    file = _parse(data, name)
    return tuple(_checked_claim(claim, file.tolerance, name) for claim in file.claims)


def _read(name: str) -> bytes:
    if name == BUILTIN:
        return (Path(__file__).parent / "data" / "claims.toml").read_bytes()
    return disk.read_text(name, document.MAX_BYTES)


def _parse(data: bytes, name: str) -> _File:
    try:
        if name.lower().endswith(".json"):
            document.require_json(data, f"--claims: {name}")
            file = msgspec.json.decode(data, type=_File, dec_hook=_decode)
        else:
            file = msgspec.convert(document.toml(data), _File, dec_hook=_decode)
        document.require(f"--claims: {name}", "claims", len(file.claims), document.MAX_CLAIMS)
        if file.name != "gpubench-claims" or file.schema_version != 1:
            own = "this gpubench reads gpubench-claims version 1"
            raise ValueError(f"it is {file.name} version {file.schema_version}; {own}")
    except (ValueError, RecursionError) as error:  # of msgspec and tomllib too
        raise InputError("bad-claims", f"--claims: {name} cannot be used", why=str(error)) from None
    return file


def _decode(kind: type, value: str | float) -> Any:
    """Return a time of type `kind`, from a number of seconds or a duration with a unit. Raises ValueError for
    any other text."""
    text = f"{value:.12f}" if type(value) in (float, int) else str(value)  # true is no second
    try:
        # msgspec can decode every other type of the file itself
        return kind(parse_duration(text, option="--claims"))
    except UsageError as error:
        raise ValueError(f"{error.message}: {error.why}") from None


def _checked_claim(claim: Claim, tolerance: float, name: str) -> Claim:
    tolerance = tolerance if claim.tolerance is None else claim.tolerance
    cases = claim.cases if claim.case is None else (claim.case,)
    whole = msgspec.structs.replace(claim, case=None, cases=cases, tolerance=tolerance)
    why = "give case or cases, not both" if claim.case is not None and claim.cases else _contradiction(whole)
    try:
        against = () if claim.against in ("cpu", "gpu") else (claim.against,)
        for text in (*cases, *([claim.also] if claim.also else ()), *against):
            selector(text, option="--claims")
    except UsageError as error:
        why = f"{error.message}: {error.why}"
    if why:
        raise InputError("bad-claims", f"--claims: {name}: the claim {claim.claim[:40]!r}", why=why)
    return whole


def _contradiction(claim: Claim) -> str | None:
    """Return what is contradictory or out of range in the claim, or None."""
    sides = [claim.speedup, claim.cpu_s, claim.gpu_s]
    ranges = [ends for ends in (claim.time_s, claim.break_even) if ends is not None]
    if not ranges and all(side is None for side in sides):
        return "it expects nothing: give speedup, cpu, gpu, time or break_even"
    if len(ranges) > 1 or (ranges and any(side is not None for side in sides)):
        return "it expects two things: give time or break_even alone"
    if any(not 0 < first <= last < math.inf for first, last in ranges):
        return "a range goes from a smaller number above 0 to a larger one"
    if claim.expected is not None and not 0 < claim.expected < math.inf:
        return "a speedup is a number above 0"
    if not 0 <= claim.allowed < 1:
        return "a tolerance is a share from 0 to below 1"
    if len(claim.cases) > 1 and claim.expected is None and claim.gpu_s is None:
        return "several cases add up for a speedup or a gpu time alone"
    if claim.against != "cpu" and claim.speedup is None:
        return "against needs the speedup over what it names"
    return None
