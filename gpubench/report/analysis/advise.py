"""Where one call should run: the expected times of every device that was measured, and the fastest of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from gpubench.model.case import REGIMES
from gpubench.model.op import Form
from gpubench.model.result import DeviceKind, Run
from gpubench.report.analysis.cost_curves import Basis, Curve, Expected, call_time, curve, weaker
from gpubench.report.analysis.estimate import case_results
from gpubench.report.analysis.overheads import GROUP
from gpubench.report.analysis.speedup import paired
from gpubench.report.analysis.types import NO_HEADLINE, CaseResult, Derived
from gpubench.stats import Interval

Confidence = Literal["clear", "close", "noisy", "alone", "none"]
# A size at which a device gave up for lack of room: all larger ones are none of its business either.
_NO_ROOM = "out-of-memory"


class Key(NamedTuple):
    """One family of curves; `params` are those beside the size, sorted by name."""

    op: str
    dtype: str
    params: tuple[tuple[str, int], ...] = ()


class Contender(NamedTuple):
    """One form on one device: its curve for the call in question."""

    device_id: str
    form: Form
    kind: DeviceKind
    curve: Curve


class Field(NamedTuple):
    """Who competes for one kind of call. `gone_from`: the size from which no device of that side takes part
    (0: it never did; infinity: it always does, measured or not)."""

    run: Run
    rows: tuple[CaseResult, ...]
    cpu: tuple[Contender, ...]
    others: tuple[Contender, ...]
    cpu_gone_from: float
    others_gone_from: float

    @property
    def two_sided(self) -> bool:
        """Whether a CPU and something else were measured."""
        return bool(self.cpu and self.others)


class Choice(NamedTuple):
    """The fastest contender at one size and the fastest of the other side; both None: unknown."""

    best: Contender | None
    seconds: float
    against: Contender | None
    against_s: float


class Candidate(Derived, frozen=True, kw_only=True):
    """A device that was looked at: its expected time, or why there is none."""

    device_id: str
    form: Form | None
    kind: DeviceKind
    expected: Expected | None
    reason: str = ""


class Advice(Derived, frozen=True, kw_only=True):
    """The answer. `gain` is the time of the best candidate of the other side over that of `best`; `calls` as in
    `call_time`. `candidates` are one a device, the fastest first."""

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


Families = dict[Key, tuple[CaseResult, ...]]


def families(run: Run) -> Families:
    """The cases that can advise, by op, dtype and params; without variants, overheads and software adapters."""
    found: dict[Key, list[CaseResult]] = {}
    for row in case_results(run):
        if row.case.variant is None and row.case.group != GROUP and row.device_kind != "software":
            params = tuple(sorted((name, value) for name, value in row.case.params.items() if name != "n"))
            found.setdefault(Key(row.case.op, row.case.dtype, params), []).append(row)
    return {key: tuple(rows) for key, rows in found.items() if any(_timed(row) for row in rows)}


def field(run: Run, rows: Sequence[CaseResult], calls: int | None) -> Field:
    """Who competes for a call whose data is resident (None), copied every time (1) or once for `calls` calls."""
    contenders = [*_contenders(rows, calls)]
    cpu = tuple(one for one in contenders if one.kind == "cpu")
    others = tuple(one for one in contenders if one.kind != "cpu")
    return Field(
        run, tuple(rows), cpu, others,
        _gone_from([row for row in rows if row.device_kind == "cpu"]),
        _gone_from([row for row in rows if row.device_kind != "cpu"], calls),
    )  # fmt: skip


def choose(field: Field, n: int) -> Choice:
    """The fastest at n. A side without a time at n makes the answer unknown, unless it takes no part there."""
    cpu, cpu_s = _fastest(field.cpu, n)
    other, other_s = _fastest(field.others, n)
    if cpu is not None and other is not None:
        return Choice(other, other_s, cpu, cpu_s) if other_s < cpu_s else Choice(cpu, cpu_s, other, other_s)
    if cpu is not None and n >= field.others_gone_from:
        return Choice(cpu, cpu_s, None, math.inf)
    if other is not None and n >= field.cpu_gone_from:
        return Choice(other, other_s, None, math.inf)
    return Choice(None, math.inf, None, math.inf)


def advise(key: Key, field: Field, n: int, calls: int | None) -> Advice:
    """The answer with its evidence."""
    choice = choose(field, n)
    candidates = sorted(_candidates(field, n, calls), key=_order)
    best, against = (_named(candidates, one, n) for one in (choice.best, choice.against))
    gain = _gain(best, against)
    return Advice(
        key=key, n=n, calls=calls, run=field.run, basis=_basis(best, against), best=best, against=against, gain=gain,
        confidence=_confidence(best, against, gain), candidates=tuple(candidates),
        reason="" if best else _why_unknown(field, n, candidates),
    )  # fmt: skip


def basis(choice: Choice, n: int) -> Basis:
    """As `Advice.basis`, without its evidence: measured if both sides were timed in the very call."""
    if choice.best is None:
        return "unknown"
    exact = choice.best.curve.measured(n) and (choice.against is None or choice.against.curve.measured(n))
    return "measured" if exact else "interpolated"


def _timed(row: CaseResult) -> bool:
    return row.time is not None and row.label != "implausible"


def _contenders(rows: Sequence[CaseResult], calls: int | None) -> Iterable[Contender]:
    by_form: dict[tuple[str, Form, DeviceKind], dict[int, dict[str, CaseResult]]] = {}
    for row in filter(_timed, rows):
        sizes = by_form.setdefault((row.case.device_id, row.case.form, row.device_kind), {})
        sizes.setdefault(row.case.params["n"], {})[row.case.regime_id] = row
    for (device_id, form, kind), sizes in sorted(by_form.items()):
        # A CPU's data is at home: its resident time is the time of every call.
        points = [call_time(regimes, None if kind == "cpu" else calls) for regimes in sizes.values()]
        found = [point for point in points if point is not None]
        if found:
            yield Contender(device_id, form, kind, curve(found))


def _gone_from(rows: Sequence[CaseResult], calls: int | None = None) -> float:
    devices: dict[str, list[CaseResult]] = {}
    for row in rows:
        devices.setdefault(row.case.device_id, []).append(row)
    return max((_device_gone_from(ours, calls) for ours in devices.values()), default=0)


def _device_gone_from(rows: Sequence[CaseResult], calls: int | None) -> float:
    """The size from which this device has no room; 0 if nothing ever ran on it; else infinity."""
    if not any(_timed(row) for row in rows):
        return 0
    regime = REGIMES[0] if calls is None else REGIMES[2] if calls == 1 else REGIMES[1]
    full = [row.case.params["n"] for row in rows if row.reason == _NO_ROOM and row.case.regime == regime]
    return min(
        (n for n in full if not any(_timed(r) and r.case.params["n"] >= n for r in rows)), default=math.inf
    )


def _fastest(contenders: Sequence[Contender], n: int) -> tuple[Contender | None, float]:
    best, least = None, math.inf
    for one in contenders:
        seconds = one.curve.seconds(n)
        if seconds is not None and seconds < least:
            best, least = one, seconds
    return best, least


def _candidates(field: Field, n: int, calls: int | None) -> Iterable[Candidate]:
    kinds = {row.case.device_id: row.device_kind for row in field.rows}
    for device_id, kind in kinds.items():
        ours = [one for one in (*field.cpu, *field.others) if one.device_id == device_id]
        best, _ = _fastest(ours, n)
        if best is not None:
            yield Candidate(device_id=device_id, form=best.form, kind=kind, expected=best.curve.expected(n))
        else:
            rows = [row for row in field.rows if row.case.device_id == device_id]
            reason = _why_no_time(ours, rows, n)
            yield Candidate(device_id=device_id, form=None, kind=kind, expected=None, reason=reason)


def _why_no_time(ours: Sequence[Contender], rows: Sequence[CaseResult], n: int) -> str:
    """Why a device has no expected time at n, in a few words."""
    refused = [row for row in rows if row.reason and row.case.params["n"] == n] or [
        row for row in rows if row.reason == _NO_ROOM and row.case.params["n"] <= n
    ]
    if refused:
        return f"{refused[0].outcome} at n = {refused[0].case.params['n']}: {refused[0].reason}"
    if ours:
        low, high = min(one.curve.sizes[0] for one in ours), max(one.curve.sizes[-1] for one in ours)
        return f"measured from n = {low} to {high}" if low < high else f"measured at n = {low} alone"
    if any(_timed(row) for row in rows):
        return "not measured with the data there"
    return next((f"{row.outcome}: {row.reason}" for row in rows if row.reason), "not measured")


def _order(candidate: Candidate) -> tuple[float, str]:
    return (candidate.expected.time.estimate if candidate.expected else math.inf, candidate.device_id)


def _named(candidates: Sequence[Candidate], chosen: Contender | None, n: int) -> Candidate | None:
    if chosen is None:
        return None
    return next(one for one in candidates if one.device_id == chosen.device_id and one.expected)


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


def first_to_know(fields: Iterable[Field], n: int) -> Field | None:
    """Of fields of several files, newest first: the first that compares two sides at n, else the first that knows
    anything there, else the newest; None of none. Looks no further than it has to."""
    best: tuple[int, Field] | None = None
    for one in fields:
        choice = choose(one, n)
        rank = (choice.best is not None) + (choice.against is not None)
        if best is None or rank > best[0]:
            best = (rank, one)
        if rank == 2:
            break
    return None if best is None else best[1]
