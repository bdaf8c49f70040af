"""Where the time of a call goes that copies both ways: stacked bars, a bar for each device and size."""

from __future__ import annotations

import functools

from gpubench.report.analysis.anatomy import PARTS
from gpubench.report.analysis.types import Analysis
from gpubench.report.formats._charts import axes
from gpubench.report.formats._charts.rows import charted, common, fastest, short
from gpubench.report.formats._charts.types import Chart, Row, Rows
from gpubench.report.formats._names import series_name
from gpubench.report.formats._numbers import seconds_text, share_text

COLUMNS = (
    ("device", "device"), ("form", "form"), ("size", "n"), ("part", "part"), ("time", "time"), ("share", "share"),
    ("whole", "whole call"),
)  # fmt: skip
CAPTION = (
    "Shares of the wall time of one call that copies both ways. Each part is timed alone; in the call they overlap, so "
    "the rest may be negative and then stands to the left of 0."
)
NAMES = (*(part.removesuffix("_s") for part in PARTS), "rest")
# Copies are blue, the kernel is orange, what the host does besides is grey: light and dark backgrounds alike.
COLORS = ("#9aa3af", "#3d8fd1", "#c9b458", "#e07b39", "#8a6fb0", "#7cc0ea", "#6b7280")
STEP = 20  # points of height for a bar


def anatomy_chart(analysis: Analysis, unit: str) -> Chart:
    """Parts of each `transfer-always` case that has them."""
    return Chart(
        id="anatomy", section="anatomy", title="Where the time goes", caption=CAPTION, columns=COLUMNS,
        rows=_rows(analysis, unit), spec=_spec(), bars="bar", step=STEP,
    )  # fmt: skip


def _rows(analysis: Analysis, unit: str) -> Rows:
    found: Rows = {}
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
            }
            for i, (name, value) in enumerate(seconds.items())
        )  # fmt: skip
    return found


@functools.cache
def _spec() -> Row:
    import altair

    parts = altair.Scale(domain=list(NAMES), range=list(COLORS))
    share = altair.X(
        "sum(value):Q", title="share of the whole call", stack="zero", axis=altair.Axis(format="%", tickCount=5)
    )
    bar = altair.Y(
        "bar:N", title=None, sort=altair.EncodingSortField("n", op="min"),
        axis=altair.Axis(labelLimit=120, ticks=False),
    )  # fmt: skip
    chart = (
        altair.Chart(axes.named())
        .mark_bar(height=STEP - 6)
        .encode(
            x=share, y=bar, order="order:Q", tooltip=axes.tooltip(COLUMNS),
            color=altair.Color("part:N", scale=parts, legend=altair.Legend(title=None, columns=4)),
        )
    )  # fmt: skip
    return axes.finished(chart, CAPTION)
