"""Where the time of a call goes that copies both ways: for a terminal at the largest sizes, in full at all."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.estimate import PARTS, Anatomy, CaseResult
from gpubench.analysis.overheads import PoolOverhead, overheads
from gpubench.base.escaping import printable
from gpubench.base.plugins.sections import Rows, chart, section
from gpubench.base.table import Cell, Column, Table, cells, heads, number
from gpubench.base.units import format_bytes, format_rate
from gpubench.report import charts
from gpubench.report.charts import Chart, ChartRow, ChartRows, charted, common, fastest, short
from gpubench.report.layout import RenderOptions, Section
from gpubench.report.wording import (
    device_text,
    devices_text,
    legend,
    mark,
    seconds_text,
    series_name,
    share_text,
    size_text,
    time_interval_text,
    time_text,
)

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
CaseAnatomy = tuple[CaseResult, Anatomy]


@section("anatomy", order=110, help="Where the time of a call goes")
def anatomy_section(analysis: Analysis, options: RenderOptions) -> Section:
    """Draw the faster form of each workload and device, and below it what a device costs beside its kernels."""
    unit, full = options.time_unit, options.full
    groups: dict[tuple[str, str, str], list[CaseAnatomy]] = {}
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
    overheads = overheads_table(analysis, unit, full=options.every_size)
    return Section(
        title="Where the time goes", lines=(*lines, *overhead_lines(analysis, unit)),
        tables=(*tables, *([overheads] if overheads else [])), folded=True,
    )  # fmt: skip


def _full_table(analysis: Analysis, rows: Sequence[CaseAnatomy], unit: str) -> Table:
    case = rows[0][0].case
    first = any(parts.first_result_s is not None for _, parts in rows)
    body = [
        (*_row((row, parts), unit), *(cells(seconds_text(parts.first_result_s, unit)) if first else ()))
        for row, parts in rows
    ]
    return Table(
        (*_columns(), *((number("first result", 4),) if first else ())), tuple(body),
        title=f"{case.op} {case.dtype} on {device_text(analysis, case.device_id)}",
        legend="; ".join(filter(None, [_FIRST if first else "", _legend(rows)])),
    )  # fmt: skip


def _table(analysis: Analysis, rows: Sequence[CaseAnatomy], unit: str) -> Table:
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
        number("n"), number("whole"),
        *(Column(text, right=True, rank=_RANKS.get(name, 0)) for name, text in _PARTS.items()),
        number("rest"),
    )  # fmt: skip


def _row(pair: CaseAnatomy, unit: str) -> tuple[Cell, ...]:
    row, parts = pair
    shares = {name: share_text(getattr(parts, f"{name}_s") / parts.whole_s) for name in _PARTS}
    shares["kernel"] += "*" if parts.kernel_derived else ""
    rest = Cell(rest_text(parts), "bad" if parts.mismatch else "plain")
    return cells(size_text(row), seconds_text(parts.whole_s, unit), *shares.values(), rest)


def rest_text(parts: Anatomy) -> str:
    """The residual in percent of the whole, with its sign."""
    text = share_text(parts.residual_share)
    return f"+{text}" if parts.residual_share > 0 and text != "0%" else text


def _legend(rows: Sequence[CaseAnatomy]) -> str:
    return _DERIVED if any(parts.kernel_derived for _, parts in rows) else ""


COLUMNS = (
    ("device", "device"), ("form", "form"), ("size", "n"), ("part", "part"), ("time", "time"), ("share", "share"),
    ("whole", "whole call"),
)  # fmt: skip
CAPTION = (
    "Shares of the wall time of one call that copies both ways. Each part is timed alone; in the call they overlap, so "
    "the rest may be negative and then stands to the left of 0. A pale bar is of parts that miss the whole by more "
    "than 10 %: it is cut off where it would stretch the axis."
)
NAMES = (*(part.removesuffix("_s") for part in PARTS), "rest")
# Copies are blue, the kernel is orange, what the host does besides is grey: light and dark backgrounds alike.
COLORS = ("#9aa3af", "#3d8fd1", "#c9b458", "#e07b39", "#8a6fb0", "#7cc0ea", "#6b7280")
ENDS = (-0.1, 1.1)  # of the axis: parts that add up miss the whole by no more
STEP = 20  # points of height for a bar


@chart("anatomy", order=60)
def anatomy_chart(analysis: Analysis, options: RenderOptions) -> Chart:
    """Parts of each `transfer-always` case that has them."""
    return Chart(
        id="anatomy", section="anatomy", title="Where the time goes", caption=CAPTION, columns=COLUMNS,
        rows=_rows(analysis, options.time_unit), spec=_spec(), bars="bar", step=STEP,
    )  # fmt: skip


def _rows(analysis: Analysis, unit: str) -> ChartRows:
    found: ChartRows = {}
    shown = charted(analysis)
    best = fastest(shown)
    for row in shown:
        parts = row.anatomy
        if parts is None:
            continue
        seconds = {name: getattr(parts, f"{name}_s") for name in NAMES[:-1]} | {"rest": parts.residual_s}
        found.setdefault(series_name(row.case), []).extend(
            common(row, best, regime=False)
            | {
                "bar": f"{row.case.params['n']} {row.case.device_id}", "part": name, "order": i,
                "value": short(value / parts.whole_s), "time": seconds_text(value, unit),
                "share": share_text(value / parts.whole_s), "whole": seconds_text(parts.whole_s, unit),
                "opacity": 0.35 if parts.mismatch else 1.0,
            }
            for i, (name, value) in enumerate(seconds.items())
        )  # fmt: skip
    return found


@functools.cache
def _spec() -> ChartRow:
    import altair

    parts = altair.Scale(domain=list(NAMES), range=list(COLORS))
    share = altair.X(
        "sum(value):Q", title="share of the whole call", stack="zero", axis=altair.Axis(format="%", tickCount=5),
        scale=altair.Scale(domain=list(ENDS), nice=False),
    )  # fmt: skip
    color = altair.Color("part:N", scale=parts, legend=altair.Legend(title=None, columns=4))
    bars = charts.stacked_bars(share, color, COLUMNS, height=STEP - 6, clip=True)
    return charts.finished(bars, CAPTION)


_MOVES = ("upload", "download")
_SIZED = ("allocate", *_MOVES)
# What the two forms of a call are, where the backend is known; elsewhere they keep their names.
_WAYS = {
    ("cupy", "library"): "pageable", ("cupy", "tuned"): "pinned",
    ("wgpu", "library"): "plain call", ("wgpu", "tuned"): "staging",
}  # fmt: skip
_MEMORY = {"library": "fresh", "tuned": "pool"}
_SHOWN_BYTES = 2**20  # on a terminal: the smallest size, the largest, and the one next to this
_SOME = "The smallest, the largest and a middle size; all sizes: --sections anatomy or --format markdown"


def overhead_lines(analysis: Analysis, unit: str) -> list[str]:
    """What an empty launch costs, and what the pool does, device by device."""
    return [*_empty_text(analysis, unit), *(_pool_text(pool) for pool in overheads(analysis).pools)]


def _empty_text(analysis: Analysis, unit: str) -> list[str]:
    """Of GPUs, and of the CPU beside them: by itself it has nobody to wait for."""
    kinds = {device.id: device.kind for device in analysis.run.devices}
    empty = overheads(analysis).empty
    if all(kinds.get(name) == "cpu" for name in empty):
        return []
    calls = ", ".join(f"{printable(name)} {seconds_text(seconds, unit)}" for name, seconds in empty.items())
    return [f"An empty launch and its wait: {calls}. It is part of every wall time, and nothing is subtracted."]


def overheads_table(analysis: Analysis, unit: str, *, full: bool) -> Table | None:
    """A row per device, call, size and form; None if none was measured."""
    everything = overheads(analysis).rows
    if not everything:
        return None
    sizes = _shown_sizes(everything)
    rows = [row for row in everything if full or row.case.params["n"] in sizes[row.case.op, row.case.device_id]]
    columns = heads(
        "device", "what", number("size"), number("time"),
        number("95 % interval", 1), number("rate"),
    )  # fmt: skip
    body = [
        cells(
            row.case.device_id, what(row), _size(row), time_text(row.time, unit) + mark(row.label),
            time_interval_text(row.time, unit) if row.time else "-", rate(row),
        )
        for row in rows
    ]  # fmt: skip
    marks = legend({row.label for row in rows})
    words = [_SOME] if len(rows) < len(everything) else []
    devices = list(dict.fromkeys(row.case.device_id for row in rows))
    return Table(
        columns, tuple(body), title="Overheads", note=printable(devices_text(analysis, devices)),
        legend="; ".join([*words, *([marks] if marks else [])]),
    )  # fmt: skip


def what(row: CaseResult) -> str:
    """`upload, pinned`, `allocate, pool`, `sync`."""
    case = row.case
    if case.op == "allocate":
        return f"allocate, {_MEMORY[case.form]}"
    if case.op in _MOVES:
        return f"{case.op}, {_WAYS.get((case.backend, case.form), case.form)}"
    return case.op if case.form == "library" else f"{case.op}, {case.form}"


def rate(row: CaseResult) -> str:
    """Bytes a second of a transfer, `-` for what moves none."""
    if row.case.op not in _MOVES or row.time is None:
        return "-"
    return format_rate(row.case.params["n"] / row.time.estimate, "B/s")


def pool_share(pool: PoolOverhead) -> str:
    """`3.0%`, and of a call that is waited for alone where that was timed; what rounds to nothing is said so."""
    share = _share(pool.share)
    return share if pool.single_share is None else f"{_share(pool.single_share)} ({share} of launches in a row)"


def _share(share: float) -> str:
    return share_text(share) if share >= 1e-3 else "less than 0.1%"


def _size(row: CaseResult) -> str:
    return format_bytes(row.case.params["n"]) if row.case.op in _SIZED else "-"


def _shown_sizes(everything: Sequence[CaseResult]) -> dict[tuple[str, str], set[int]]:
    """Of each op and device the smallest size, the largest, and one between them."""
    sizes: dict[tuple[str, str], list[int]] = {}
    for row in everything:
        sizes.setdefault((row.case.op, row.case.device_id), []).append(row.case.params["n"])
    return {
        key: {min(found), min(found, key=lambda n: (abs(n - _SHOWN_BYTES), n)), max(found)}
        for key, found in sizes.items()
    }


def _pool_text(pool: PoolOverhead) -> str:
    memory = format_bytes(pool.allocate.case.params["n"])
    op = pool.op.case
    return (
        f"Pool overhead on {op.device_id}: {pool_share(pool)} of {op.op} at 1 Mi elements "
        f"({memory} from the pool against one call)."
    )


ROWS = (Rows("pool_overhead", PoolOverhead, lambda analysis: overheads(analysis).pools, order=60),)
