"""The roofline: rate against FLOP per byte, below what memory and arithmetic were measured to do."""

from __future__ import annotations

import functools
from math import inf

from gpubench.report.analysis.types import Analysis, Roof
from gpubench.report.formats._charts import axes
from gpubench.report.formats._charts.rows import (
    all_series,
    charted,
    common,
    device_ids,
    fastest,
    short,
)
from gpubench.report.formats._charts.types import MARKS, Chart, Row, Rows
from gpubench.report.formats._document import printable
from gpubench.report.formats._names import series_name
from gpubench.report.formats._numbers import share_text
from gpubench.report.formats._roofline import largest, roof_texts
from gpubench.units import format_rate

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


def roofline_chart(analysis: Analysis) -> Chart:
    """A point for each op, device and form."""
    return Chart(
        id="roofline", section="roofline", title="Roofline", caption=CAPTION, columns=COLUMNS,
        rows=_rows(analysis), marks=_marks(analysis), spec=_spec(device_ids(analysis)), by_dtype=True,
    )  # fmt: skip


def _rows(analysis: Analysis) -> Rows:
    best = fastest(charted(analysis))
    cases = [
        (row, row.case.flops / row.case.bytes) for row in largest(analysis.roofline.rows) if row.case.flops > 0
    ]
    found: Rows = {}
    for series in all_series(analysis):
        found[series.name] = [
            common(row.case, best, regime=False)
            | {
                "op": row.case.case.op, "x": short(intensity), "value": short(row.case.flops / row.seconds),
                "intensity_text": f"{intensity:.3g}", "rate": format_rate(row.case.flops / row.seconds, "FLOP/s"),
                "share": "-" if row.share is None else share_text(row.share), "bound": row.bound or "-",
                "chosen": series_name(row.case.case) == series.name,
            }
            for row, intensity in cases
            if row.case.case.dtype == series.dtype
        ]  # fmt: skip
    return found


def _marks(analysis: Analysis) -> Rows:
    lines: dict[str, list[Row]] = {}
    for roof in analysis.roofline.roofs:
        points = [
            row.case.flops / row.case.bytes
            for row in largest(analysis.roofline.rows)
            if row.case.flops > 0 and row.case.case.dtype == roof.dtype
        ]
        if points:
            lines.setdefault(roof.dtype, []).extend(_line(roof, min(points) / SPAN, max(points) * SPAN))
    return {series.name: lines.get(series.dtype, []) for series in all_series(analysis)}


def _line(roof: Roof, first: float, last: float) -> list[Row]:
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
def _spec(names: tuple[str, ...]) -> Row:
    import altair

    x = axes.log_axis("x", X_TITLE, axes.PLAIN, x=True)
    line = (
        altair.Chart(axes.named(MARKS))
        .mark_line(strokeWidth=1.5)
        .encode(
            x=x,
            y=axes.log_axis("value", Y_TITLE),
            color=axes.accent(names),
            order="order:Q",
            strokeDash=altair.StrokeDash(
                "strength:N",
                legend=None,
                scale=altair.Scale(
                    domain=["measured", "of small sizes: none yet"],
                    range=[[1, 0], [6, 4]],
                ),
            ),
            tooltip=axes.tooltip(ROOF_COLUMNS),
        )
    )
    points = (
        altair.Chart(axes.named())
        .mark_point(size=60)
        .encode(
            x=x, y=axes.log_axis("value", Y_TITLE), color=axes.accent(names), fill=axes.accent(names, fill=True),
            fillOpacity=altair.condition("datum.chosen", altair.value(1), altair.value(0.1)),
            tooltip=axes.tooltip(COLUMNS),
        )
    )  # fmt: skip
    return axes.finished(altair.layer(line, points), CAPTION)
