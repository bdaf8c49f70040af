"""Collectives on gangs: how many bytes a second, as the caller sees it and as the busiest link does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from gpubench.analysis.analyse import Analysis, derive_once
from gpubench.analysis.estimate import COLLECTIVE, CaseResult, declaration
from gpubench.curves.stats import median
from gpubench.result.case import Case
from gpubench.result.machine import LinkPath
from gpubench.result.run import Run


class CollectiveResult(msgspec.Struct, frozen=True, kw_only=True):
    """One collective at n bytes on so many ranks. `algbw`: bytes / time; `busbw`: times what the busiest link carries
    of them, as nccl-tests count; `low` and `high` are its interval."""

    aside: ClassVar = ("row",)
    id: str
    op: str
    device_id: str
    ranks: int
    n: int
    by: str | None
    algbw: float
    busbw: float
    low: float
    high: float
    row: CaseResult


@derive_once
def collectives(analysis: Analysis) -> tuple[CollectiveResult, ...]:
    """Return the collectives shown: op by op, gang by gang, from small to large."""
    rows = (row for row in analysis.cases if row.case.group == COLLECTIVE)
    found = [rates for row in rows if (rates := _rates(row)) is not None]
    return tuple(sorted(found, key=lambda one: (one.op, one.ranks, one.device_id, one.n)))


def _rates(row: CaseResult) -> CollectiveResult | None:
    case, time = row.case, row.time
    factor = bus_factor(case)
    if time is None or factor is None:
        return None
    return CollectiveResult(
        id=row.id, op=case.op, device_id=case.device_id, ranks=case.params["ranks"], n=case.params["n"],
        by=row.kernel, algbw=row.bytes / time.estimate, busbw=factor * row.bytes / time.estimate,
        low=factor * row.bytes / time.high, high=factor * row.bytes / time.low, row=row,
    )  # fmt: skip


def bus_factor(case: Case) -> float | None:
    """What turns bytes a second of the case into those of the busiest link; None: no op of that name is there."""
    known, ranks = declaration(case.op), case.params.get("ranks", 0)
    return known.collective.bus(ranks) if known is not None and known.collective and ranks > 0 else None


def declared_path(run: Run, device_id: str) -> LinkPath | None:
    """How the first rank of a gang reaches the second, as detection tells."""
    members = next((device.gpu_ids for device in run.devices if device.id == device_id), [])
    gpu = next((gpu for gpu in run.machine.gpus if gpu.id == members[0]), None) if len(members) > 1 else None
    return None if gpu is None else next((path for path in gpu.link.paths if path.to == members[1]), None)


# Below this share of the others of its kind a pair is slow.
HALF = 0.5


def slow_pairs(run: Run, rows: Sequence[CollectiveResult]) -> list[tuple[CollectiveResult, float]]:
    """Copies between two ranks that carry less than half of the median of their peers, with that: pairs whose path is
    of the same kind, at the same size."""
    peers: dict[tuple[str, int, str | None], list[CollectiveResult]] = {}
    for row in rows:
        if row.op in ("p2p", "p2p_both"):
            path = declared_path(run, row.device_id)
            peers.setdefault((row.op, row.n, path.kind.value if path else None), []).append(row)
    found = []
    for ours in peers.values():
        middle = median([row.busbw for row in ours])
        found += [(row, middle) for row in ours if row.high < HALF * middle]
    return found
