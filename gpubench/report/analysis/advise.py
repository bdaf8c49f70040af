"""Where one call should run: the expected times of every device that was measured, and the fastest of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from gpubench.model.op import Form
from gpubench.model.result import DeviceKind, Run
from gpubench.report.analysis.contest import NO_ROOM, Contender, Field, Key, choose, fastest, split_of, timed
from gpubench.report.analysis.cost_curves import Basis, Expected, weaker
from gpubench.report.analysis.speedup import paired
from gpubench.report.analysis.types import NO_HEADLINE, CaseResult, Derived, Hybrid
from gpubench.stats import Interval

Confidence = Literal["clear", "close", "noisy", "alone", "none"]


class Candidate(Derived, frozen=True, kw_only=True):
    """A device that was looked at: its expected time, or why there is none."""

    device_id: str
    form: Form | None
    kind: DeviceKind
    expected: Expected | None
    reason: str = ""


class Advice(Derived, frozen=True, kw_only=True):
    """The answer. `gain` is the time of the best candidate of the other side over that of `best`; `calls` as in
    `call_time`. `candidates` are one a device, the fastest first. `split`: the answer is to work on it with both sides
    at once, which was measured at this very size; then `gain` is over the better of the two alone."""

    key: Key
    n: int
    calls: int | None
    run: Run
    basis: Basis
    best: Candidate | None
    against: Candidate | None
    gain: Interval | None
    confidence: Confidence
    candidates: tuple[Candidate, ...]
    reason: str = ""
    split: Hybrid | None = None


def advise(key: Key, field: Field, n: int, calls: int | None) -> Advice:
    """The answer with its evidence."""
    choice = choose(field, n)
    split = split_of(field, n, choice)
    candidates = sorted([*_candidates(field, n, calls), *_splitting(split and split.row)], key=_order)
    best, against = (_named(candidates, one and one.device_id) for one in (choice.best, choice.against))
    gain = _gain(best, against)
    if split is not None:
        best, against = _named(candidates, split.row.device_id), _named(candidates, split.row.baseline_device)
        gain = split.row.gain
    return Advice(
        key=key, n=n, calls=calls, run=field.run, basis=_basis(best, against), best=best, against=against, gain=gain,
        confidence=_confidence(best, against, gain), candidates=tuple(candidates),
        reason="" if best else _why_unknown(field, n, candidates), split=split and split.row,
    )  # fmt: skip


def _splitting(row: Hybrid | None) -> Iterable[Candidate]:
    """The CPU and a GPU together as one more candidate."""
    if row is None or row.case.time is None:
        return
    n, case = row.case.case.params["n"], row.case.case
    expected = Expected(time=row.case.time, basis="measured", between=(n, n), rows=(row.case,))
    yield Candidate(device_id=row.device_id, form=case.form, kind=row.case.device_kind, expected=expected)


def _candidates(field: Field, n: int, calls: int | None) -> Iterable[Candidate]:
    kinds = {row.case.device_id: row.device_kind for row in field.rows}
    for device_id, kind in kinds.items():
        ours = [one for one in (*field.cpu, *field.others) if one.device_id == device_id]
        best, _ = fastest(ours, n)
        if best is not None:
            yield Candidate(device_id=device_id, form=best.form, kind=kind, expected=best.curve.expected(n))
        else:
            rows = [row for row in field.rows if row.case.device_id == device_id]
            reason = _why_no_time(ours, rows, n)
            yield Candidate(device_id=device_id, form=None, kind=kind, expected=None, reason=reason)


def _why_no_time(ours: Sequence[Contender], rows: Sequence[CaseResult], n: int) -> str:
    """Why a device has no expected time at n, in a few words."""
    refused = [row for row in rows if row.reason and row.case.params["n"] == n] or [
        row for row in rows if row.reason == NO_ROOM and row.case.params["n"] <= n
    ]
    if refused:
        return f"{refused[0].outcome} at n = {refused[0].case.params['n']}: {refused[0].reason}"
    if ours:
        low, high = min(one.curve.sizes[0] for one in ours), max(one.curve.sizes[-1] for one in ours)
        return f"measured from n = {low} to {high}" if low < high else f"measured at n = {low} alone"
    if any(timed(row) for row in rows):
        return "not measured with the data there"
    return next((f"{row.outcome}: {row.reason}" for row in rows if row.reason), "not measured")


def _order(candidate: Candidate) -> tuple[float, str]:
    return (candidate.expected.time.estimate if candidate.expected else math.inf, candidate.device_id)


def _named(candidates: Sequence[Candidate], device_id: str | None) -> Candidate | None:
    return next((one for one in candidates if one.device_id == device_id and one.expected), None)


def _basis(best: Candidate | None, against: Candidate | None) -> Basis:
    if best is None:
        return "unknown"
    both = [one.expected.basis for one in (best, against) if one is not None and one.expected is not None]
    return "measured" if set(both) == {"measured"} else "interpolated"


def _gain(best: Candidate | None, against: Candidate | None) -> Interval | None:
    if best is None or against is None or best.expected is None or against.expected is None:
        return None
    ours, theirs = best.expected, against.expected
    if ours.basis == theirs.basis == "measured":
        ratio = paired(theirs.rows[0], ours.rows[0])
        if ratio is not None:
            return ratio
    a, b = theirs.time, ours.time
    return Interval(a.low / b.high, a.estimate / b.estimate, a.high / b.low, weaker(a.kind, b.kind))


def _confidence(best: Candidate | None, against: Candidate | None, gain: Interval | None) -> Confidence:
    if best is None:
        return "none"
    if gain is None or against is None:
        return "alone"
    both: Iterable[Expected] = [one.expected for one in (best, against) if one.expected is not None]
    if any(expected.labels & NO_HEADLINE for expected in both):
        return "noisy"
    return "clear" if gain.low > 1 else "close"


def _why_unknown(field: Field, n: int, candidates: Sequence[Candidate]) -> str:
    missing = [f"{one.device_id} {one.reason}" for one in candidates if one.expected is None]
    return "; ".join(missing) or f"nothing was measured around n = {n}"
