"""The roofline: the roofs of each piece of hardware, and how near every case with resident data comes to them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import inf

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.roofline import Roof, RoofShare, is_untold, measures_roofs, roofline
from gpubench.base.escaping import printable
from gpubench.base.groups import group_by
from gpubench.base.plugins.sections import Rows, chart, section
from gpubench.base.table import Cell, Column, Table, Tone, cells, heads, number
from gpubench.base.units import format_bytes, format_rate, listed
from gpubench.report import charts
from gpubench.report.charts import (
    MARKS,
    Chart,
    ChartRow,
    ChartRows,
    all_series,
    charted,
    common,
    device_ids,
    fastest,
    short,
    size_ticks,
)
from gpubench.report.layout import RenderOptions, Section
from gpubench.report.wording import FORMS, devices_text, mark, series_name, share_text, size_text
from gpubench.report.wording import legend as marks_legend
from gpubench.result.case import beside_size
from gpubench.result.machine import WRITE_ALLOCATE

TITLE = "Roofline: share of what the hardware was measured to do"
HINT = "gpubench run --ops roofline"
_MEANING = (
    "Measured, in this run: memory by copy, computing by matmul. A case with i FLOP per byte can reach the lower of "
    "the two; GB/s or FLOP/s names the one that limits it. GB/s are payload: each input read once, the output written "
    "once."
)
_LARGEST = "The largest size of each op; all sizes: --sections roofline or --format markdown."
_WEAK = (
    "Left out: cases below a roof of small sizes alone (*), which is none yet; --sections roofline has them, and "
    f"{HINT} measures the roofs."
)
_TRAFFIC = (
    "traffic: of that copy; a CPU reads each line before it writes it, so half as much again as the payload"
)
_SMALL = "* of small sizes: no copy left the caches, or no matmul had sides of 2048 (on a CPU 512)"
_CACHE = "c: in cache, as far as the size tells; memory is no limit then"
_WALL = "w: wall time, without the device's clock"
_DERIVED = "d: derived from wall times, the device has no clock"
_LIBRARY = "x lib: device time of the vendor library's case / of this one"
GOOD, BAD = 0.9, 0.5


@section("roofline", order=150, help="How near each case comes to its device at best")
def roofline_section(analysis: Analysis, options: RenderOptions) -> Section:
    """Draw every size where those are asked for; else the largest of each op, device and form."""
    found = roofline(analysis)
    measured = [roof for roof in found.roofs if roof.bytes_per_s is not None or roof.flops_per_s is not None]
    if not measured:
        hint = (f"not measured: {HINT}",) if found.rows else ()
        return Section(title=TITLE, lines=hint, folded=True)
    full = options.every_size or measures_roofs(analysis.run)
    ladders = _ladders(found.rows)
    rows = list(found.rows)
    if not full:
        rows = [row for row in largest(rows) if row.share is not None or _rung(row) in ladders]
    kept = [row for row in rows if full or not row.weak_roof or _rung(row) in ladders]
    weak = len(kept) < len(rows)
    rows = kept
    dtypes = dict.fromkeys(row.case.case.dtype for row in rows)
    tables = [_roofs_table(analysis, measured)]
    tables += [_table(dtype, [row for row in rows if row.case.case.dtype == dtype]) for dtype in dtypes]
    notes = [_WEAK] if weak else []
    notes += [_LARGEST] if rows and not full and len(largest(found.rows)) < len(found.rows) else []
    untold = sorted({row.case.op for row in analysis.cases if row.time is not None and is_untold(row)})
    notes += [f"Not told: the FLOPs of {listed(untold)}; say flops= to see them here."] if untold else []
    lines = (_MEANING, *_missing(found.roofs), *notes)
    return Section(title=TITLE, lines=lines, tables=tuple(tables), folded=True)


def largest(rows: Sequence[RoofShare]) -> list[RoofShare]:
    """Of each op, dtype, device and form the rows of its largest size."""
    most: dict[tuple[str, ...], int] = {}
    for row in rows:
        most[_kind(row)] = max(most.get(_kind(row), 0), row.case.case.params.get("n", 0))
    return [row for row in rows if row.case.case.params.get("n", 0) == most[_kind(row)]]


def _ladders(rows: Sequence[RoofShare]) -> set[tuple[str, ...]]:
    """Op, dtype and device of which named variants were measured. They were asked for and have no row elsewhere, and a
    rung says something beside the others only: all of them are shown, whatever the roof."""
    return {_rung(row) for row in rows if row.case.case.variant is not None}


def _rung(row: RoofShare) -> tuple[str, ...]:
    return _kind(row)[:3]


def rate(row: RoofShare) -> str:
    """`4.05 TB/s` or `51.2 TFLOP/s`: that of the roof which limits the case."""
    compute = row.bound == "compute" or (row.bound is None and row.case.flops > 4 * row.case.bytes)
    amount = row.case.flops if compute else row.case.bytes
    return format_rate(amount / row.time_s, "FLOP/s" if compute else "B/s")


def form_text(row: CaseResult) -> str:
    """`lib`, `tuned`, or with a variant `tuned naive`."""
    return FORMS[row.case.form] + (f" {row.case.variant}" if row.case.variant else "")


def roof_texts(roof: Roof) -> tuple[str, str, str]:
    """Memory roof, compute roof and ridge point; `-` for what was not measured."""
    memory = "-" if roof.bytes_per_s is None else format_rate(roof.bytes_per_s, "B/s")
    compute = "-" if roof.flops_per_s is None else format_rate(roof.flops_per_s, "FLOP/s")
    return memory, compute, "-" if roof.ridge is None else f"{roof.ridge:.3g}"


def _kind(row: RoofShare) -> tuple[str, ...]:
    case = row.case.case
    return (case.op, case.dtype, case.device_id, case.form_id)


def _missing(roofs: Sequence[Roof]) -> list[str]:
    """What has no roof, and the command that measures it."""
    words = {(True, False): "memory roof", (False, True): "compute roof", (True, True): "roofs"}
    lacks: dict[str, list[Roof]] = {}
    for roof in roofs:
        lacking = (roof.bytes_per_s is None, roof.flops_per_s is None)
        if any(lacking):
            lacks.setdefault(words[lacking], []).append(roof)
    return [
        f"{name} not measured on {', '.join(_place(roof) for roof in found)}: {HINT} --dtypes "
        + ",".join(dict.fromkeys(roof.dtype for roof in found))
        for name, found in lacks.items()
    ]


def _place(roof: Roof) -> str:
    return f"{'+'.join(roof.device_ids)} {roof.dtype}"


def _roofs_table(analysis: Analysis, roofs: Sequence[Roof]) -> Table:
    copied = any(roof.copy is not None for roof in roofs)
    columns = heads(
        "device", "dtype", number("memory"),
        copied and number("traffic", 2), number("compute"),
        number("ridge, FLOP/byte", 1), number("by copy of", 4),
        number("by matmul", 3),
    )  # fmt: skip
    body = []
    for roof in roofs:
        size = format_bytes(roof.copy.bytes) if roof.copy else "-"
        side = size_text(roof.matmul) if roof.matmul else "-"
        memory, compute, ridge = roof_texts(roof)
        memory += (mark(roof.copy.label) if roof.copy else "") + (" *" if roof.cache_sized else "")
        compute += (mark(roof.matmul.label) if roof.matmul else "") + (" *" if roof.small_matmul else "")
        traffic = [_traffic(roof)] if copied else []
        body.append(cells("+".join(roof.device_ids), roof.dtype, memory, *traffic, compute, ridge, size, side))
    devices = list(dict.fromkeys(device_id for roof in roofs for device_id in roof.device_ids))
    small = any(roof.cache_sized or roof.small_matmul for roof in roofs)
    labels = {row.label for roof in roofs for row in (roof.copy, roof.matmul) if row is not None}
    words = [
        "ridge: from so many FLOP per byte on, computing is the limit",
        _TRAFFIC if any(roof.copy is not None and roof.copy.device_kind == "cpu" for roof in roofs) else "",
        _SMALL if small else "",
        marks_legend(labels),
    ]
    legend = "; ".join(filter(None, words))
    return Table(
        columns, tuple(body), title="Roofs", note=printable(devices_text(analysis, devices)), legend=legend
    )


def _traffic(roof: Roof) -> str:
    """What the copy behind the memory roof moves with what its device reads besides."""
    if roof.copy is None or roof.bytes_per_s is None:
        return "-"
    return format_rate(roof.bytes_per_s * (WRITE_ALLOCATE if roof.copy.device_kind == "cpu" else 1.0), "B/s")


def _table(dtype: str, rows: Sequence[RoofShare]) -> Table:
    library = any(row.to_library is not None for row in rows)
    columns = heads(
        "op", number("n"), "device", "form", number("rate"),
        number("of roof"), Column("bound", rank=2),
        library and number("x lib", 1),
    )  # fmt: skip
    body = []
    before: tuple[str, str] = ("", "")
    for row in sorted(rows, key=_order):
        head = (row.case.case.op, size_text(row.case))
        shown = [head[0] if head[0] != before[0] else "", head[1] if head != before else ""]
        before = head
        ratio = "-" if row.to_library is None else f"{row.to_library:.2f}"
        body.append(
            cells(
                *shown, row.case.case.device_id, form_text(row.case), rate(row) + mark(row.case.label), _of_roof(row),
                row.bound or "-", library and ratio,
            )
        )  # fmt: skip
    return Table(columns, tuple(body), title=dtype, legend=_legend(rows, library=library))


def _order(row: RoofShare) -> tuple[object, ...]:
    case = row.case.case
    rest = beside_size(case.params)
    return (case.op, case.params.get("n", 0), rest, row.case.device_kind != "cpu", case.device_id, case.form_id)


def _of_roof(row: RoofShare) -> Cell:
    if row.share is None:
        return Cell("-")
    marks = (" c" if row.in_cache else "") + (" w" if _by_wall(row) else " d" if row.clock == "derived" else "")
    tone: Tone = (
        "muted" if row.in_cache else "good" if row.share >= GOOD else "bad" if row.share < BAD else "plain"
    )
    return Cell(share_text(row.share) + marks, tone)


def _by_wall(row: RoofShare) -> bool:
    return row.clock == "wall" and row.case.device_kind != "cpu"


def _legend(rows: Sequence[RoofShare], *, library: bool) -> str:
    parts = [_CACHE] if any(row.in_cache for row in rows) else []
    parts += [_WALL] if any(_by_wall(row) and row.share is not None for row in rows) else []
    parts += [_DERIVED] if any(row.clock == "derived" and row.share is not None for row in rows) else []
    parts += [_LIBRARY] if library else []
    marks = marks_legend({row.case.label for row in rows})
    return "; ".join([*parts, *([marks] if marks else [])])


COLUMNS = (
    ("op", "op"), ("device", "device"), ("form", "form"), ("size", "n"), ("intensity_text", "FLOP per byte"),
    ("rate", "rate"), ("share", "of roof"), ("bound", "bound"), ("label", "label"),
)  # fmt: skip
ROOF_COLUMNS = (
    ("device", "device"), ("memory", "memory roof"), ("compute", "compute roof"), ("ridge", "ridge, FLOP per byte"),
    ("strength", "roof"),
)  # fmt: skip
X_TITLE, Y_TITLE = "FLOP per byte moved", "FLOP per second"
CAPTION = (
    "The largest size of every op of this dtype, with resident data. The slope is the memory roof, the level the "
    "compute roof, both measured in this run; a case can reach the lower of the two. A dashed roof is of small sizes "
    "alone and none yet. Filled: the op chosen above."
)
SPAN = 4.0  # how far the roofs reach beyond the cases and the ridge
# Every series shows the cases of all others of its dtype: beyond so many points there is no such chart.
MOST_POINTS = 100_000


@chart("roofline", order=40)
def roofline_chart(analysis: Analysis, options: RenderOptions) -> Chart:
    """A point for each op, device and form."""
    return Chart(
        id="roofline", section="roofline", title="Roofline", caption=CAPTION, columns=COLUMNS,
        rows=_rows(analysis), marks=_marks(analysis), spec=_spec(device_ids(analysis)), by_dtype=True,
    )  # fmt: skip


def _rows(analysis: Analysis) -> ChartRows:
    best = fastest(charted(analysis))
    cases = [
        (row, row.case.flops / row.case.bytes) for row in largest(roofline(analysis).rows) if row.case.flops > 0
    ]
    found: ChartRows = {}
    shown = all_series(analysis)
    if len(shown) * len(cases) > MOST_POINTS:
        return found
    for series in shown:
        found[series.name] = [
            common(row.case, best, regime=False)
            | {
                "op": row.case.case.op, "x": short(intensity), "value": short(row.flops_per_s),
                "intensity_text": f"{intensity:.3g}", "rate": format_rate(row.flops_per_s, "FLOP/s"),
                "share": "-" if row.share is None else share_text(row.share), "bound": row.bound or "-",
                "chosen": series_name(row.case.case) == series.name,
            }
            for row, intensity in cases
            if row.case.case.dtype == series.dtype
        ]  # fmt: skip
    return found


def _marks(analysis: Analysis) -> ChartRows:
    lines: dict[str, list[ChartRow]] = {}
    intensities: dict[str, list[float]] = {}
    for row in largest(roofline(analysis).rows):
        if row.case.flops > 0:
            intensities.setdefault(row.case.case.dtype, []).append(row.case.flops / row.case.bytes)
    for roof in roofline(analysis).roofs:
        points = intensities.get(roof.dtype)
        if points:
            lines.setdefault(roof.dtype, []).extend(_line(roof, min(points) / SPAN, max(points) * SPAN))
    return {series.name: lines.get(series.dtype, []) for series in all_series(analysis)}


def _line(roof: Roof, first: float, last: float) -> list[ChartRow]:
    """The corners of one roof, from the lowest to the highest intensity; a rate that was not measured is no limit."""
    memory, compute, ridge = roof.bytes_per_s or inf, roof.flops_per_s or inf, roof.ridge
    if memory == compute == inf:
        return []
    corners = [first, *([ridge] if ridge is not None and first < ridge < last else []), last]
    heights = [min(x * memory, compute) for x in corners]
    names = [printable(name) for name in roof.device_ids]
    strength = "of small sizes: none yet" if roof.cache_sized or roof.small_matmul else "measured"
    memory_text, compute_text, ridge_text = roof_texts(roof)
    shared = {
        "device": names[0], "devices": names, "strength": strength, "memory": memory_text, "compute": compute_text,
        "ridge": ridge_text,
    }  # fmt: skip
    return [
        shared | {"x": short(x), "value": short(y), "order": i}
        for i, (x, y) in enumerate(zip(corners, heights, strict=True))
    ]


@functools.cache
def _spec(names: tuple[str, ...]) -> ChartRow:
    import altair

    x = charts.log_axis("x", X_TITLE, charts.PLAIN, x=True)
    line = (
        altair.Chart(charts.named(MARKS))
        .mark_line(strokeWidth=1.5)
        .encode(
            x=x,
            y=charts.log_axis("value", Y_TITLE),
            color=charts.accent(names),
            order="order:Q",
            strokeDash=altair.StrokeDash(
                "strength:N",
                legend=None,
                scale=altair.Scale(
                    domain=["measured", "of small sizes: none yet"],
                    range=[[1, 0], [6, 4]],
                ),
            ),
            tooltip=charts.tooltip(ROOF_COLUMNS),
        )
    )
    points = (
        altair.Chart(charts.named())
        .mark_point(size=60)
        .encode(
            x=x, y=charts.log_axis("value", Y_TITLE), color=charts.accent(names), fill=charts.accent(names, fill=True),
            fillOpacity=altair.condition("datum.chosen", altair.value(1), altair.value(0.1)),
            tooltip=charts.tooltip(COLUMNS),
        )
    )  # fmt: skip
    return charts.finished(altair.layer(line, points), CAPTION)


RATE_COLUMNS = (
    ("device", "device"), ("form", "form"), ("size", "n"), ("rate", "rate"), ("clock", "clock"),
    ("share", "of roof"), ("label", "label"),
)  # fmt: skip
RATE_CAPTION = (
    "Work over time with resident data, on the device's own clock where it has one: floating-point operations where "
    "computing limits the op, else the bytes it has to move. Dashed: the roof measured in the same run. Above a memory "
    "roof lies what fits into a cache."
)


@chart("roofline", order=30)
def rate_chart(analysis: Analysis, options: RenderOptions) -> Chart:
    """One line for each device; the unit is that of the roof which limits the largest size."""
    ticks = size_ticks(analysis)
    return Chart(
        id="throughput", section="roofline", title="Throughput against size", caption=RATE_CAPTION,
        columns=RATE_COLUMNS, rows=_rate_rows(analysis), marks=_rate_marks(analysis),
        spec=_rate_spec(device_ids(analysis)),
        params={name: ticks[name] | {"unit": unit_of(rows)} for name, rows in by_series(analysis).items()},
    )  # fmt: skip


def unit_of(rows: list[RoofShare]) -> str:
    return "FLOP/s" if computes(rows) else "B/s"


def computes(rows: list[RoofShare]) -> bool:
    """Whether a series is shown in FLOP/s: by what limits its largest size."""
    last = max(rows, key=lambda row: (row.case.case.params["n"], row.case.id))
    return last.bound == "compute" or (last.bound is None and last.case.flops > 4 * last.case.bytes)


def by_series(analysis: Analysis) -> dict[str, list[RoofShare]]:
    """The cases with resident data of each series."""
    return group_by(roofline(analysis).rows, lambda row: series_name(row.case.case))


def _rate_rows(analysis: Analysis) -> ChartRows:
    best = fastest(charted(analysis))
    found: ChartRows = {}
    for name, rows in by_series(analysis).items():
        unit = unit_of(rows)
        found[name] = [_rate_row(row, best, unit) for row in rows]
    return found


def _rate_row(row: RoofShare, best: frozenset[str], unit: str) -> ChartRow:
    rate = (row.case.flops if unit == "FLOP/s" else row.case.bytes) / row.time_s
    return common(row.case, best, regime=False) | {
        "value": short(rate), "rate": format_rate(rate, unit),
        "clock": "device" if row.clock == "device_hot" else row.clock,
        "share": "-" if row.share is None else share_text(row.share) + (" (in cache)" if row.in_cache else ""),
    }  # fmt: skip


def _rate_marks(analysis: Analysis) -> ChartRows:
    found: ChartRows = {}
    for name, rows in by_series(analysis).items():
        compute, dtype = computes(rows), rows[0].case.case.dtype
        roofs = [roof for roof in roofline(analysis).roofs if roof.dtype == dtype]
        found[name] = [
            {
                "value": short(rate), "device": printable(names[0]), "devices": [printable(name) for name in names],
                "text": f"{'compute' if compute else 'memory'} roof {format_rate(rate, unit_of(rows))}",
            }
            for roof in roofs
            for rate, names in _rate_levels(roof, compute=compute)
        ]  # fmt: skip
    return found


def _rate_levels(roof: Roof, *, compute: bool) -> list[tuple[float, tuple[str, ...]]]:
    """The height of a roof with the names of its hardware; a roof of small sizes alone is none yet."""
    rate = roof.flops_per_s if compute else roof.bytes_per_s
    weak = roof.small_matmul if compute else roof.cache_sized
    return [] if rate is None or weak else [(rate, roof.device_ids)]


@functools.cache
def _rate_spec(names: tuple[str, ...]) -> ChartRow:
    import altair

    title, label = "work per second", f"{charts.SI} + unit"
    base = altair.Chart(charts.named()).encode(
        x=charts.size_axis(), y=charts.log_axis("value", title, label), color=charts.accent(names)
    )
    roofs = altair.Chart(charts.named(MARKS)).encode(
        y=charts.log_axis("value", title, label), color=charts.accent(names),
        tooltip=charts.tooltip((("device", "device"), ("text", "roof"))),
    )  # fmt: skip
    level = roofs.mark_rule(strokeDash=[6, 4], strokeWidth=1.5)
    words = roofs.mark_text(align="right", dx=-4, dy=-8).encode(x=altair.value("width"), text="text:N")
    return charts.finished(
        altair.layer(level, words, *charts.curves(base, names, [], RATE_COLUMNS)), RATE_CAPTION
    )


ROWS = (
    Rows("roofline.roofs", Roof, lambda analysis: roofline(analysis).roofs, order=40),
    Rows(
        "roofline.cases",
        RoofShare,
        lambda analysis: roofline(analysis).rows,
        order=50,
        csv={"percent_of_roof": "percent_of_roof"},
    ),
)
