"""Who competes for a call of one op, and who wins it at a size: the decision without its evidence, in microseconds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gpubench.model.case import REGIMES
from gpubench.model.op import Form
from gpubench.model.result import DeviceKind, Run
from gpubench.report.analysis.cost_curves import Basis, Curve, call_time, curve, regime_of
from gpubench.report.analysis.estimate import case_results
from gpubench.report.analysis.overheads import GROUP
from gpubench.report.analysis.types import CaseResult, Hybrid

# A size at which a device gave up for lack of room: all larger ones are none of its business either.
NO_ROOM = "out-of-memory"


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


class Family(NamedTuple):
    """The cases of one key, and of its splits those that the report recommends."""

    rows: tuple[CaseResult, ...]
    splits: tuple[Hybrid, ...]


class Split(NamedTuple):
    """A recommended split of one call, and the time of that call."""

    row: Hybrid
    seconds: float


class Field(NamedTuple):
    """Who competes for one kind of call. `gone_from`: the size from which no device of that side takes part
    (0: it never did; infinity: it always does, measured or not). `splits`, by size and the fastest first, hold nothing
    between the sizes: what a split gains there nobody knows. Both sides may be known at the sizes `shared`, one that
    has no other side at those `spanned`; outside, `choose` knows nothing and need not be asked."""

    run: Run
    rows: tuple[CaseResult, ...]
    cpu: tuple[Contender, ...]
    others: tuple[Contender, ...]
    cpu_gone_from: float
    others_gone_from: float
    splits: Mapping[int, tuple[Split, ...]]
    shared: tuple[float, float]
    spanned: tuple[float, float]

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


def families(run: Run) -> dict[Key, Family]:
    """The cases that can advise, by op, dtype and params; without variants, overheads and adapters."""
    rows = [row for row in case_results(run) if row.case.variant is None and row.case.group != GROUP]
    found: dict[Key, list[CaseResult]] = {}
    for row in rows:
        if row.case.shared_with is None and row.device_kind != "software":
            found.setdefault(_key(row), []).append(row)
    splits: dict[Key, list[Hybrid]] = {}
    for split in _recommended(run, rows):
        splits.setdefault(_key(split.case), []).append(split)
    return {
        key: Family(tuple(ours), tuple(splits.get(key, ())))
        for key, ours in found.items()
        if any(timed(row) for row in ours)
    }


def _key(row: CaseResult) -> Key:
    return Key(*row.case.series)


def _recommended(run: Run, rows: Sequence[CaseResult]) -> Iterable[Hybrid]:
    if not any(row.case.shared_with for row in rows):
        return ()
    from gpubench.report.analysis.hybrid import hybrids  # few files hold splits, and start-up is measured

    return (split for split in hybrids(run, rows) if split.recommended)


def field(run: Run, family: Family, calls: int | None) -> Field:
    """Who competes for a call whose data is resident (None), copied every time (1) or once for `calls` calls."""
    rows = family.rows
    contenders = [*_contenders(rows, calls)]
    cpu = tuple(one for one in contenders if one.kind == "cpu")
    others = tuple(one for one in contenders if one.kind != "cpu")
    cpu_gone = _gone_from([row for row in rows if row.device_kind == "cpu"])
    others_gone = _gone_from([row for row in rows if row.device_kind != "cpu"], calls)
    ends = [_ends(cpu), _ends(others)]
    return Field(
        run, rows, cpu, others, cpu_gone, others_gone, _splits_by_size(family.splits, regime_of(calls)),
        shared=(max(low for low, _ in ends), min(high for _, high in ends)),
        spanned=(max(min(low for low, _ in ends), min(cpu_gone, others_gone)), max(high for _, high in ends)),
    )  # fmt: skip


def _ends(side: Sequence[Contender]) -> tuple[float, float]:
    """The smallest and the largest size of one side; none lies between those of nobody."""
    return (
        min((one.curve.sizes[0] for one in side), default=math.inf),
        max((one.curve.sizes[-1] for one in side), default=-math.inf),
    )


def _splits_by_size(splits: Sequence[Hybrid], regime_id: str) -> dict[int, tuple[Split, ...]]:
    found: dict[int, list[Split]] = {}
    for row in splits:
        if row.case.case.regime_id == regime_id and row.case.time is not None:
            found.setdefault(row.case.case.params["n"], []).append(Split(row, row.case.time.estimate))
    return {
        n: tuple(sorted(ours, key=lambda split: (split.seconds, split.row.device_id)))
        for n, ours in found.items()
    }


def choose(field: Field, n: int) -> Choice:
    """The fastest at n. A side without a time at n makes the answer unknown, unless it takes no part there."""
    cpu, cpu_s = fastest(field.cpu, n)
    other, other_s = fastest(field.others, n)
    if cpu is not None and other is not None:
        return Choice(other, other_s, cpu, cpu_s) if other_s < cpu_s else Choice(cpu, cpu_s, other, other_s)
    if cpu is not None and n >= field.others_gone_from:
        return Choice(cpu, cpu_s, None, math.inf)
    if other is not None and n >= field.cpu_gone_from:
        return Choice(other, other_s, None, math.inf)
    return Choice(None, math.inf, None, math.inf)


def may_know(field: Field, n: int, *, two_sides: bool) -> bool:
    """False: `choose` is sure to know nothing at n, or, if `two_sides` are wanted, no second side."""
    if field.shared[0] <= n <= field.shared[1]:
        return True
    return not two_sides and field.spanned[0] <= n <= field.spanned[1]


def split_of(field: Field, n: int, choice: Choice) -> Split | None:
    """The fastest split that beats `choice`, the fastest at n alone; None where no such split of this very call is
    recommended.

    A split is recommended over its own two sides: where a third device is faster than both, nothing was compared
    with it.
    """
    best = choice.best
    if best is None:
        return None
    for split in field.splits.get(n, ()):
        if split.seconds >= choice.seconds:
            break
        if best.kind == "cpu" or best.device_id == split.row.case.case.shared_with:
            return split
    return None


def basis(choice: Choice, n: int) -> Basis:
    """As `Advice.basis`, without its evidence: measured if both sides were timed in the very call."""
    if choice.best is None:
        return "unknown"
    exact = choice.best.curve.measured(n) and (choice.against is None or choice.against.curve.measured(n))
    return "measured" if exact else "interpolated"


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


def timed(row: CaseResult) -> bool:
    """Whether a case has a time that counts."""
    return row.time is not None


def _contenders(rows: Sequence[CaseResult], calls: int | None) -> Iterable[Contender]:
    by_form: dict[tuple[str, Form, DeviceKind], dict[int, dict[str, CaseResult]]] = {}
    for row in filter(timed, rows):
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
    if not any(timed(row) for row in rows):
        return 0
    regime = REGIMES[0] if calls is None else REGIMES[2] if calls == 1 else REGIMES[1]
    full = [row.case.params["n"] for row in rows if row.reason == NO_ROOM and row.case.regime == regime]
    return min(
        (n for n in full if not any(timed(r) and r.case.params["n"] >= n for r in rows)), default=math.inf
    )


def fastest(contenders: Sequence[Contender], n: int) -> tuple[Contender | None, float]:
    """The contender with the least expected time at n, and that time; None and infinity if none has one."""
    best, least = None, math.inf
    for one in contenders:
        seconds = one.curve.seconds(n)
        if seconds is not None and seconds < least:
            best, least = one, seconds
    return best, least
