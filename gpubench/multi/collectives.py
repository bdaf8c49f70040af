"""Collectives on gangs: how many bytes a second, as the caller sees it and as the busiest link does.

Collectives on gangs: a table for each op and gang, from small to large; of a pair its declared path, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import ClassVar

import msgspec

from gpubench.analysis.analyse import Analysis, derive_once
from gpubench.analysis.estimate import COLLECTIVE, CaseResult, declaration
from gpubench.base.escaping import printable
from gpubench.base.plugins.sections import Rows, section
from gpubench.base.table import Cell, Table, cells, heads, number
from gpubench.base.units import format_bytes, format_rate
from gpubench.curves.stats import median
from gpubench.report.layout import RenderOptions, Section
from gpubench.report.wording import device_text, legend, mark, time_text
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
    """Return the factor from bytes a second of the case to those of the busiest link. Returns None if there is no such
    op."""
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


TITLE = "Collectives"
_MEANING = (
    "S bytes is the largest buffer of a rank; a time is one exchange, waited for on all ranks. algbw is S / time; "
    "busbw is what the busiest link carries, as nccl-tests count it (times 2(k-1)/k for allreduce on k ranks, (k-1)/k "
    "for reducescatter, allgather and alltoall). Every element of every rank was compared."
)


@section("collectives", order=120, help="What links carry when GPUs exchange data")
def collectives_section(analysis: Analysis, options: RenderOptions) -> Section:
    rows = collectives(analysis)
    gangs = groupby(rows, key=lambda row: (row.op, row.ranks, row.device_id))
    tables = tuple(_table(analysis, list(ours), options.time_unit) for _, ours in gangs)
    lines = (_MEANING, *slow_links(analysis)) if rows else ()
    return Section(title=TITLE, lines=lines, tables=tables, folded=True)


def slow_links(analysis: Analysis) -> tuple[str, ...]:
    """A sentence for each pair that carries far less than its peers."""
    return tuple(
        printable(
            f"link-slow: {row.op} on {row.device_id} carries {format_rate(row.busbw, 'B/s')} at "
            f"{format_bytes(row.n)}, the median of its peers {format_rate(peers, 'B/s')}: look at the path between "
            "the two in `gpubench detect`."
        )
        for row, peers in slow_pairs(analysis.run, collectives(analysis))
    )


def _table(analysis: Analysis, rows: Sequence[CollectiveResult], unit: str) -> Table:
    columns = heads(
        number("S"), number("time"), number("algbw"), number("busbw"),
        number("95 % interval", 1),
    )  # fmt: skip
    first = rows[0]
    by = f" by {printable(first.by)}" if first.by else ""
    path = declared_path(analysis.run, first.device_id) if first.ranks == 2 else None
    return Table(
        columns, tuple(_cells(row, unit) for row in rows),
        title=f"{first.op}, {first.ranks} ranks{by} on {device_text(analysis, first.device_id)}",
        note=f"declared: {_path_text(path)}" if path else "", legend=legend({row.row.label for row in rows}),
    )  # fmt: skip


def _path_text(path: LinkPath) -> str:
    """`nvlink, 18 lanes via switch, 478 GB/s`."""
    lanes, rate = path.lanes.value, path.max_bytes_per_s.value
    via = f" via {path.via.value}" if path.via.value == "switch" else ""
    parts = (
        path.kind.value, f"{lanes} lanes{via}" if lanes else "", format_rate(rate, "B/s") if rate else "",
        f"common {path.common.value}" if path.common.value else "",
    )  # fmt: skip
    return printable(", ".join(part for part in parts if part) or "nothing is known")


def _cells(row: CollectiveResult, unit: str) -> tuple[Cell, ...]:
    interval = f"[{format_rate(row.low, 'B/s')}, {format_rate(row.high, 'B/s')}]"
    return cells(
        format_bytes(row.n), time_text(row.row.time, unit) + mark(row.row.label), format_rate(row.algbw, "B/s"),
        format_rate(row.busbw, "B/s"), interval,
    )  # fmt: skip


ROWS = (
    Rows(
        "collectives",
        CollectiveResult,
        collectives,
        order=70,
        csv={"algbw": "algbw", "busbw": "busbw"},
    ),
)
