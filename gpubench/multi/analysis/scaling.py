"""Several GPUs at once: an op shared out among a gang against the best single GPU, and from which size that pays.

Strong scaling, at one size: speedup S = time of one / time of the gang, efficiency S / ranks. Weak scaling: `together`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import ClassVar, Literal

import msgspec

from gpubench.analysis.analyse import Analysis, derive_once
from gpubench.analysis.break_even import fit_cases
from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.samples import empty_launch_s, used_sessions
from gpubench.analysis.speedup import paired
from gpubench.base.groups import group_by
from gpubench.curves import compare
from gpubench.curves.stats import Interval, median
from gpubench.multi.analysis.together import Weak, weak
from gpubench.result.case import GANG, RESIDENT, beside_size, gang_ranks
from gpubench.result.run import Measurement, Run

# A gang that takes no longer than so many times what its launches cost the host shows the host.
HOST_LIMITED = 2.0
From = Literal["at", "all-sizes", "no-size"]


class Strong(msgspec.Struct, frozen=True, kw_only=True):
    """One op on the ranks of a gang. `speedup` over the best single GPU (`baseline_id`) and `efficiency`, speedup /
    ranks, with their intervals. `balance`: seconds of the fastest rank / of the slowest, each alone with its share.
    `host_limited`: the host's launches take most of the time."""

    aside: ClassVar = ("row", "single", "interval")
    id: str
    op: str
    n: int
    params: dict[str, int]
    dtype: str
    regime: str
    device_id: str
    ranks: int
    baseline_id: str
    speedup: float
    lo: float
    hi: float
    efficiency: float
    efficiency_lo: float
    efficiency_hi: float
    balance: float | None
    host_limited: bool
    row: CaseResult
    single: CaseResult
    interval: Interval


class GangFrom(msgspec.Struct, frozen=True, kw_only=True):
    """From which size on a gang beats one GPU: at `n`, with 95 % between `lo` and `hi`, and at every larger size up to
    `last`. `all-sizes`: from the smallest one, `first`; `no-size`: not surely at the largest."""

    op: str
    params: dict[str, int]
    dtype: str
    regime: str
    device_id: str
    ranks: int
    verdict: From
    n: float | None
    lo: int | None
    hi: int | None
    first: int
    last: int


class GangGains(msgspec.Struct, frozen=True, kw_only=True):
    """What several GPUs gain."""

    weak: tuple[Weak, ...] = ()
    strong: tuple[Strong, ...] = ()
    pays_from: tuple[GangFrom, ...] = ()


@derive_once
def scaling(analysis: Analysis) -> GangGains:
    """Return the gangs shown, op by op from small to large, beside their single GPUs."""
    run = analysis.run
    single = group_by(
        (
            row
            for row in analysis.everything
            if row.case.backend != GANG and row.case.variant is None and row.time is not None
        ),
        lambda row: row.case.workload,
    )
    outcomes = {outcome.id: outcome for outcome in run.outcomes if isinstance(outcome, Measurement)}
    gangs = [row for row in analysis.cases if row.case.backend == GANG and row.time is not None]
    found = [
        one
        for row in gangs
        if (one := _strong(run, outcomes[row.id], row, single.get(row.case.workload, ()))) is not None
    ]
    found.sort(key=lambda one: (*_curve(one), one.n))
    curves = tuple(_pays_from(list(ours)) for _, ours in groupby(found, key=_curve))
    return GangGains(weak=weak(run), strong=tuple(found), pays_from=curves)


def _strong(run: Run, outcome: Measurement, row: CaseResult, singles: Sequence[CaseResult]) -> Strong | None:
    """None where no single GPU of the gang's backend was measured in a session of the gang's."""
    inner, case = row.case.device_id.split(":")[1], row.case
    ranks = len(gang_ranks(case.device_id))
    # Ranks in host memory are the CPU's.
    side, regime = ("cpu", RESIDENT) if row.device_kind == "software" else (row.device_kind, case.regime_id)
    ours = [
        one
        for one in singles
        if (one.case.backend, one.device_kind, one.case.regime_id) == (inner, side, regime)
    ]
    best = min(ours, key=lambda one: (_seconds(one), one.id), default=None)
    gain = None if best is None else paired(best, row)
    if best is None or gain is None:
        return None
    launches_s = ranks * empty_launch_s(run, best.case.device_id)
    return Strong(
        id=row.id, op=case.op, n=case.params["n"], params=dict(beside_size(case.params)), dtype=case.dtype,
        regime=case.regime_id, device_id=case.device_id, ranks=ranks, baseline_id=best.id,
        speedup=gain.estimate, lo=gain.low, hi=gain.high, efficiency=gain.estimate / ranks,
        efficiency_lo=gain.low / ranks, efficiency_hi=gain.high / ranks, balance=_balance(run, outcome),
        host_limited=_seconds(row) < HOST_LIMITED * launches_s, row=row, single=best, interval=gain,
    )  # fmt: skip


def _seconds(row: CaseResult) -> float:
    return row.time.estimate if row.time is not None else math.inf


def _balance(run: Run, outcome: Measurement) -> float | None:
    """Seconds of the fastest rank / of the slowest; None where the ranks were not timed alone."""
    allowed = used_sessions(run)
    ranks: dict[str, list[float]] = {}
    for parts in outcome.parts:
        if allowed is None or parts.session in allowed:
            for name, seconds in parts.stage_s.items():
                ranks.setdefault(name, []).extend(seconds)
    times = [median(seconds) for seconds in ranks.values() if seconds]
    return min(times) / max(times) if len(times) > 1 and max(times) > 0 else None


def _curve(one: Strong) -> tuple[object, ...]:
    case = one.row.case
    return (one.op, one.dtype, beside_size(case.params), one.regime, one.ranks, one.device_id)


def _pays_from(rows: Sequence[Strong]) -> GangFrom:
    """Return from which size on the gang's curve is below that of the best single GPU."""
    first, last = rows[0], rows[-1]
    pays = GangFrom(
        op=first.op, params=first.params, dtype=first.dtype, regime=first.regime, device_id=first.device_id,
        ranks=first.ranks, verdict="all-sizes", n=first.n, lo=None, hi=None, first=first.n, last=last.n,
    )  # fmt: skip
    curves = fit_cases({case.id: case for row in rows for case in (row.row, row.single)}.values())
    gang = [curve for key, curve in curves.items() if key[1] == first.device_id]
    threshold = compare(gang, [curve for key, curve in curves.items() if key[1] != first.device_id])
    assert threshold is not None, "both sides of a speedup have its size"
    if threshold.state == "always":
        return pays
    if threshold.high == math.inf:
        return msgspec.structs.replace(pays, verdict="no-size", n=None)
    low, high = max(math.floor(threshold.low), first.n), math.ceil(threshold.high)
    return msgspec.structs.replace(pays, verdict="at", n=max(threshold.n, low), lo=low, hi=high)
