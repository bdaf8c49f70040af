"""What a device costs beside its kernels: opening, launching, waiting, memory, transfers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from gpubench.analysis.analyse import Analysis, derive_once
from gpubench.analysis.estimate import OVERHEAD, CaseResult
from gpubench.analysis.labels import workers
from gpubench.curves.stats import median
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
    """What a device costs beside its kernels; such cases have no CPU side and take no part in any comparison.

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
    rows = [row for row in analysis.cases if row.case.group == OVERHEAD and row.time is not None]
    devices = sorted({row.case.device_id for row in rows})
    pools = [pool for device_id in devices if (pool := _pool(analysis.everything, device_id)) is not None]
    everywhere = sorted({row.case.device_id for row in analysis.cases})
    empty = {name: seconds for name in everywhere if (seconds := _empty(analysis.run, name)) is not None}
    return Overheads(rows=tuple(sorted(rows, key=_order)), pools=tuple(pools), empty=empty)


def _empty(run: Run, device_id: str) -> float | None:
    """The typical one of a worker, the middle one of the workers; None where none took any time."""
    found = [median(worker.overhead_s) for worker in workers(run, device_id) if worker.overhead_s]
    return median(found) or None if found else None


def _order(row: CaseResult) -> tuple[object, ...]:
    case = row.case
    rank = _ORDER.index(case.op) if case.op in _ORDER else len(_ORDER)
    return (case.device_id, rank, case.op, case.params.get("n", 0), case.form_id)


def _pool(cases: Sequence[CaseResult], device_id: str) -> PoolOverhead | None:
    """Memory for the output of 1 Mi elements of float32, or the size next to it that was measured."""
    ours = [row for row in cases if row.case.device_id == device_id and row.time is not None]
    pooled = [row for row in ours if row.case.op == "allocate" and row.case.form_id == "tuned"]
    ops = [row for row in ours if _is_elementwise(row)]
    if not pooled or not ops:
        return None
    allocate = min(pooled, key=lambda row: abs(math.log(row.case.params["n"] / OUTPUT_BYTES)))
    op = min(ops, key=lambda row: (row.case.op != _FIRST, row.case.op, _wall(row)))
    return PoolOverhead(
        id=allocate.id, op_id=op.id, allocate=allocate, op=op, share=_wall(allocate) / _wall(op),
        single_share=None if op.single_s is None else _wall(allocate) / op.single_s,
    )  # fmt: skip


def _is_elementwise(row: CaseResult) -> bool:
    case = row.case
    plain = case.queued and case.variant is None and case.dtype == "float32"
    return plain and case.group in _ELEMENTWISE and case.params == {"n": ELEMENTS}


def _wall(row: CaseResult) -> float:
    assert row.time is not None
    return row.time.estimate
