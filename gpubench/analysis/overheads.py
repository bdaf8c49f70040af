"""The costs of a device beside its kernels: opening, launching, waiting, memory, transfers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from gpubench.analysis.analyse import Analysis, derive_once
from gpubench.analysis.estimate import OVERHEAD, CaseResult
from gpubench.analysis.labels import workers
from gpubench.curves.stats import median
from gpubench.result.case import Case
from gpubench.result.run import Run


class PoolOverhead(msgspec.Struct, frozen=True, kw_only=True):
    """Wall time of memory from the pool / that of an elementwise op of 1 Mi elements on the same device.

    `share`: launches waited for together; `single_share`: one waited for alone, null where that was not timed.
    """

    aside: ClassVar = ("allocate", "op")
    id: str
    op_id: str
    share: float
    single_share: float | None
    allocate: CaseResult
    op: CaseResult


class Overheads(msgspec.Struct, frozen=True, kw_only=True):
    """The costs of a device beside its kernels; such cases have no CPU side and take no part in any comparison.

    `empty`: by device id the seconds of an empty launch and its wait, as every session measures them.
    """

    rows: tuple[CaseResult, ...] = ()
    pools: tuple[PoolOverhead, ...] = ()
    empty: dict[str, float] = {}


ELEMENTS = 2**20  # the size of the op that the pool is held against
OUTPUT_BYTES = 4 * ELEMENTS
_ORDER = ("open", "launch", "roundtrip", "sync", "allocate", "upload", "download")
_ELEMENTWISE = ("vector", "activation")
_FIRST = "add"  # the op that is preferred, where several were measured


@derive_once
def overheads(analysis: Analysis) -> Overheads:
    """Return the overheads shown, device by device, and what the pool costs as far as the whole run tells."""
    cases = [case for case in analysis.cases if case.case.group == OVERHEAD and case.time is not None]
    pools = [
        _pool(analysis.everything, device_id) for device_id in sorted({case.case.device_id for case in cases})
    ]
    everywhere = sorted({case.case.device_id for case in analysis.cases})
    empty = {name: seconds for name in everywhere if (seconds := _empty(analysis.run, name))}
    return Overheads(rows=tuple(sorted(cases, key=_order)), pools=tuple(filter(None, pools)), empty=empty)


def _empty(run: Run, device_id: str) -> float | None:
    """Return the middle one of the workers' typical times; None where no worker has any."""
    medians = [median(worker.overhead_s) for worker in workers(run, device_id) if worker.overhead_s]
    return median(medians) if medians else None


def _order(item: CaseResult) -> tuple[object, ...]:
    case = item.case
    rank = _ORDER.index(case.op) if case.op in _ORDER else len(_ORDER)
    return (case.device_id, rank, case.op, case.params.get("n", 0), case.form_id)


def _pool(cases: Sequence[CaseResult], device_id: str) -> PoolOverhead | None:
    """Return what memory for the output of 1 Mi elements of float32 costs, or for the size next to it that was
    measured."""
    walls = [
        (case, case.time.estimate)
        for case in cases
        if case.case.device_id == device_id and case.time is not None and case.case.variant is None
    ]
    pooled = [pair for pair in walls if (pair[0].case.op, pair[0].case.form) == ("allocate", "tuned")]
    ops = [pair for pair in walls if _is_elementwise(pair[0].case)]
    if not pooled or not ops:
        return None
    allocate, allocate_s = min(pooled, key=lambda pair: abs(math.log(pair[0].n / OUTPUT_BYTES)))
    op, op_s = min(ops, key=lambda pair: (pair[0].case.op != _FIRST, pair[0].case.op, pair[1]))
    return PoolOverhead(
        id=allocate.id, op_id=op.id, allocate=allocate, op=op, share=allocate_s / op_s,
        single_share=None if op.single_s is None else allocate_s / op.single_s,
    )  # fmt: skip


def _is_elementwise(case: Case) -> bool:
    plain = case.queued and case.dtype == "float32" and case.group in _ELEMENTWISE
    return plain and case.params == {"n": ELEMENTS}
