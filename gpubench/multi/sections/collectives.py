"""Collectives on gangs: a table for each op and gang, from small to large; of a pair its declared path, too."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from gpubench.analysis.analyse import Analysis
from gpubench.base.escaping import printable
from gpubench.base.plugins.sections import Rows, section
from gpubench.base.table import Cell, Table, cells, heads, number
from gpubench.base.units import format_bytes, format_rate
from gpubench.multi.analysis.collectives import CollectiveResult, collectives, declared_path, slow_pairs
from gpubench.report.layout import RenderOptions, Section
from gpubench.report.wording import device_text, legend, mark, time_text
from gpubench.result.machine import LinkPath

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
