"""Where the time of a call goes that copies both ways: for a terminal at the largest sizes, in full at all."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.report.analysis.types import Analysis, Anatomy, CaseResult
from gpubench.report.formats._document import Cell, Column, Section, Table, cells
from gpubench.report.formats._names import device_text, size_text
from gpubench.report.formats._numbers import seconds_text, share_text
from gpubench.report.formats._overheads import overhead_lines, overheads_table

_PARTS = {
    "alloc": "alloc", "upload": "up", "launch": "launch", "kernel": "kernel", "sync": "sync", "download": "down"
}  # fmt: skip
_RANKS = {"sync": 3, "alloc": 2, "launch": 1}
_MEANING = (
    "Shares of the wall time of one call that copies both ways. Each part is timed alone; in the call they "
    "overlap (the kernel runs while the host still launches, the download contains its own wait), so the rest "
    "may be negative."
)
_DERIVED = "* derived: single launch - launch - sync, without a device clock"
_FIRST = "first result: opening the device, building the kernel, its first launch, memory and both copies, once"
Row = tuple[CaseResult, Anatomy]


def anatomy_section(analysis: Analysis, unit: str, *, full: bool, every_size: bool) -> Section:
    """The faster form of each workload and device, and below it what a device costs beside its kernels."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for speedup in analysis.speedups:
        row = speedup.case
        if speedup.kind == "headline" and row.anatomy is not None:
            key = (row.case.op, row.case.dtype, row.case.device_id)
            groups.setdefault(key, []).append((row, row.anatomy))
    lines = [_MEANING] if groups else []
    if full:
        tables = [_full_table(analysis, rows, unit) for rows in groups.values()]
    else:
        largest = [max(rows, key=lambda pair: pair[0].case.params.get("n", 0)) for rows in groups.values()]
        dtypes = dict.fromkeys(row.case.dtype for row, _ in largest)
        tables = [
            _table(analysis, [pair for pair in largest if pair[0].case.dtype == dtype], unit)
            for dtype in dtypes
        ]
        lines += ["The largest size of each op; all sizes: --format markdown."] if len(groups) else []
    overheads = overheads_table(analysis, unit, full=every_size)
    return Section(
        key="anatomy", title="Where the time goes", lines=(*lines, *overhead_lines(analysis, unit)),
        tables=(*tables, *([overheads] if overheads else [])), folded=True,
    )  # fmt: skip


def _full_table(analysis: Analysis, rows: Sequence[Row], unit: str) -> Table:
    case = rows[0][0].case
    first = any(parts.first_result_s is not None for _, parts in rows)
    body = [
        (*_row((row, parts), unit), *(cells(seconds_text(parts.first_result_s, unit)) if first else ()))
        for row, parts in rows
    ]
    return Table(
        (*_columns(), *((Column("first result", right=True, rank=4),) if first else ())), tuple(body),
        title=f"{case.op} {case.dtype} on {device_text(analysis, case.device_id)}",
        legend="; ".join(filter(None, [_FIRST if first else "", _legend(rows)])),
    )  # fmt: skip


def _table(analysis: Analysis, rows: Sequence[Row], unit: str) -> Table:
    """The rows of one dtype; a single device stands in the title instead of a column."""
    devices = {row.case.device_id for row, _ in rows}
    head = [Column("op"), *([Column("device")] if len(devices) > 1 else [])]
    body = []
    for row, parts in rows:
        names = [row.case.op, *([row.case.device_id] if len(devices) > 1 else [])]
        body.append((*cells(*names), *_row((row, parts), unit)))
    where = f" on {device_text(analysis, min(devices))}" if len(devices) == 1 else ""
    title = f"{rows[0][0].case.dtype}{where}"
    return Table((*head, *_columns()), tuple(body), title=title, legend=_legend(rows))


def _columns() -> tuple[Column, ...]:
    return (
        Column("n", right=True), Column("whole", right=True),
        *(Column(text, right=True, rank=_RANKS.get(name, 0)) for name, text in _PARTS.items()),
        Column("rest", right=True),
    )  # fmt: skip


def _row(pair: Row, unit: str) -> tuple[Cell, ...]:
    row, parts = pair
    shares = {name: share_text(getattr(parts, f"{name}_s") / parts.whole_s) for name in _PARTS}
    shares["kernel"] += "*" if parts.kernel_derived else ""
    rest = Cell(rest_text(parts), "bad" if parts.mismatch else "plain")
    return cells(size_text(row), seconds_text(parts.whole_s, unit), *shares.values(), rest)


def rest_text(parts: Anatomy) -> str:
    """The residual in percent of the whole, with its sign."""
    text = share_text(parts.residual_share)
    return f"+{text}" if parts.residual_share > 0 and text != "0%" else text


def _legend(rows: Sequence[Row]) -> str:
    return _DERIVED if any(parts.kernel_derived for _, parts in rows) else ""
