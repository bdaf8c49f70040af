"""Expected speedups beside measured ones: the file of claims (docs/claims.md), and what a run has to say about each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import resources
from typing import Literal

import msgspec

from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.speedup import Speedup
from gpubench.catalogue import ERRORS
from gpubench.errors import InputError, UsageError
from gpubench.model.case import Case
from gpubench.model.result import DeviceKind
from gpubench.selectors import selector
from gpubench.stats import Interval, IntervalLike
from gpubench.store import limits
from gpubench.units import parse_duration

ClaimVerdict = Literal["confirmed", "refuted", "undecided", "not measured"]


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody expects: a speedup, or the times of both sides, or the GPU's alone (seconds).

    `case` selects what it is about; None: gpubench has no op for it. `tolerance` is a share of the expectation.
    """

    claim: str
    case: str | None = None
    speedup: float | None = None
    cpu_s: float | None = None
    gpu_s: float | None = None
    tolerance: float = 0.1

    @property
    def expected(self) -> float | None:
        """The speedup that it names, else the ratio of its times."""
        if self.speedup is None and self.cpu_s is not None and self.gpu_s is not None:
            return self.cpu_s / self.gpu_s
        return self.speedup


class ClaimRow(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody claimed, and the kindest measured case: its speedup with interval, and the speedup of the same
    work when every call copies both ways. `ratio` and what follows it are null where nothing was measured."""

    source: int
    claim: str
    case: str | None
    verdict: ClaimVerdict
    reason: str | None
    tolerance: float
    claimed_speedup: float | None
    claimed_cpu_s: float | None
    claimed_gpu_s: float | None
    id: str | None
    baseline_id: str | None
    ratio: float | None
    lo: float | None
    hi: float | None
    cpu_s: float | None
    gpu_s: float | None
    ratio_with_copies: float | None


class ClaimResult(ClaimRow, frozen=True, kw_only=True):
    """A row with the speedups behind it."""

    measured: Speedup | None
    with_copies: Speedup | None


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
        return _result(claim, "not measured", NO_OP)
    matches: Callable[[Case], bool] = selector(claim.case, option="--claims")
    found = [row for row in headlines if matches(row.case.case)]
    real = [row for row in found if row.case.device_kind in _answers(claim.case)]
    if not real:
        software = any(row.case.device_kind == "software" for row in found)
        return _result(claim, "not measured", SOFTWARE if software else NO_CASE)
    row = max(real, key=lambda row: (row.headline, row.ratio))
    verdict, reason = _verdict(claim, row)
    return _result(claim, verdict, reason, row, _copied(row, headlines))


def _result(
    claim: Claim, verdict: ClaimVerdict, reason: str, row: Speedup | None = None, copied: Speedup | None = None
) -> ClaimResult:
    return ClaimResult(
        source=0, claim=claim.claim, case=claim.case, verdict=verdict, reason=reason or None,
        tolerance=claim.tolerance, claimed_speedup=claim.expected, claimed_cpu_s=claim.cpu_s,
        claimed_gpu_s=claim.gpu_s, id=row.id if row else None, baseline_id=row.baseline_id if row else None,
        ratio=row.ratio if row else None, lo=row.lo if row else None, hi=row.hi if row else None,
        cpu_s=_typical_s(row.baseline) if row else None, gpu_s=_typical_s(row.case) if row else None,
        ratio_with_copies=copied.ratio if copied else None, measured=row, with_copies=copied,
    )  # fmt: skip


def _typical_s(row: CaseResult) -> float | None:
    return row.time.estimate if row.time else None


def _answers(selector_text: str) -> tuple[DeviceKind, ...]:
    """A claim about a GPU is not answered by a CPU that helps it, unless it says so."""
    return ("gpu", "hybrid") if f"@{HYBRID}" in selector_text else ("gpu",)


def _verdict(claim: Claim, row: Speedup) -> tuple[ClaimVerdict, str]:
    if not row.headline and row.label != "unstable":
        return "undecided", row.label
    assert row.case.time is not None, "a speedup has two times"
    ratio: IntervalLike
    time: IntervalLike
    ratio, time = (row.interval, row.case.time) if row.headline else _extremes(row)
    if claim.expected is not None:
        verdict = _side(ratio, claim.expected * (1 - claim.tolerance), larger=True)
    else:
        assert claim.gpu_s is not None, "a claim expects a speedup or a time"
        verdict = _side(time, claim.gpu_s * (1 + claim.tolerance), larger=False)
    return verdict, row.label if verdict == "undecided" and not row.headline else ""


def _extremes(row: Speedup) -> tuple[IntervalLike, IntervalLike]:
    """The range of an unstable case: of all ratios that two of its samples can have, and of its times.

    Its interval deserves no trust; what not even its luckiest samples reach is out of reach all the same.
    """
    ours = [value for samples in row.case.sessions.values() for value in samples]
    base = [value for samples in row.baseline.sessions.values() for value in samples]
    low, high = min(base) / max(ours), max(base) / min(ours)
    return (
        Interval(low, row.ratio, high, row.ci_kind),
        Interval(min(ours), sum(ours) / len(ours), max(ours), row.ci_kind),
    )


def _side(interval: IntervalLike, bound: float, *, larger: bool) -> ClaimVerdict:
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
    return max(same, key=lambda other: other.ratio, default=None)


BUILTIN = "builtin"  # stands for the claims that come with gpubench
_HINT = ERRORS["bad-claims"].remedy


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """One claim as it is written: times with a unit, or plain seconds."""

    claim: str
    case: str | None = None
    speedup: float | None = None
    cpu: str | float | None = None
    gpu: str | float | None = None
    tolerance: float | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """The whole file. `tolerance` holds for the claims that name none."""

    claims: list[_Entry]
    name: str = "gpubench-claims"
    schema_version: int = 1
    source: str | None = None
    tolerance: float = 0.1


def load(name: str) -> tuple[Claim, ...]:
    """The claims in the file `name`, or gpubench's own for `builtin`. Raises InputError and UsageError."""
    try:
        data = _read(name)
    except FileNotFoundError:
        raise InputError(
            "unreadable", f"--claims: {name} cannot be read", why="there is no such file", hint=_HINT
        ) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError("unreadable", f"--claims: {name} cannot be read", why=why, hint=_HINT) from None
    return tuple(
        _claim(entry, found.tolerance, name) for found in [_parsed(data, name)] for entry in found.claims
    )


def _read(name: str) -> bytes:
    if name == BUILTIN:
        return (resources.files("gpubench.analysis") / "data" / "claims.toml").read_bytes()
    with open(name, "rb") as file:
        return file.read(limits.MAX_BYTES + 1)


def _parsed(data: bytes, name: str) -> _File:
    try:
        if name.lower().endswith(".json"):
            limits.require_json(data, f"--claims: {name}")
            found = msgspec.json.decode(data, type=_File)
        else:
            found = msgspec.convert(limits.toml(data), _File)
        limits.require_claims(len(found.claims), f"--claims: {name}")
    except (ValueError, RecursionError) as error:  # of msgspec and tomllib too
        raise InputError("bad-claims", f"--claims: {name} cannot be used", why=str(error)) from None
    if found.name != "gpubench-claims" or found.schema_version != 1:
        why = (
            f"it is {found.name} version {found.schema_version}; this gpubench reads gpubench-claims version 1"
        )
        raise InputError("bad-claims", f"--claims: {name} cannot be used", why=why)
    return found


def _claim(entry: _Entry, tolerance: float, name: str) -> Claim:
    def refuse(why: str) -> InputError:
        return InputError("bad-claims", f"--claims: {name}: the claim {entry.claim[:40]!r}", why=why)

    try:
        cpu_s, gpu_s = _seconds(entry.cpu), _seconds(entry.gpu)
        if entry.case is not None:
            selector(entry.case, option="--claims")
    except UsageError as error:
        raise refuse(f"{error.message}: {error.why}") from None
    claim = Claim(
        claim=entry.claim, case=entry.case, speedup=entry.speedup, cpu_s=cpu_s, gpu_s=gpu_s,
        tolerance=tolerance if entry.tolerance is None else entry.tolerance,
    )  # fmt: skip
    if claim.expected is None and gpu_s is None:
        raise refuse("it expects nothing: give speedup, or gpu, or cpu and gpu")
    if claim.expected is not None and not 0 < claim.expected < float("inf"):
        raise refuse("a speedup is a number above 0")
    if not 0 <= claim.tolerance < 1:
        raise refuse("a tolerance is a share from 0 to below 1")
    return claim


def _seconds(value: str | float | None) -> float | None:
    if value is None:
        return None
    return parse_duration(value if isinstance(value, str) else f"{value:.12f}", option="--claims")
