"""Every used sample of one size as a tick: what lies behind the medians."""

from __future__ import annotations

import functools

from gpubench.report.analysis.types import Analysis
from gpubench.report.formats._charts import axes
from gpubench.report.formats._charts.rows import charted, common, device_ids, fastest
from gpubench.report.formats._charts.types import Chart, Row, Rows
from gpubench.report.formats._names import data_text, series_name
from gpubench.report.formats._numbers import seconds_text, time_text
from gpubench.units import format_seconds

COLUMNS = (
    ("device", "device"), ("regime", "data"), ("form", "form"), ("size", "n"), ("counts", "sessions x samples"),
    ("minimum", "min"), ("q1", "lower quartile"), ("time", "run value"), ("q3", "upper quartile"),
    ("outliers", "outliers"), ("label", "label"),
)  # fmt: skip
CAPTION = (
    "Each tick is one sample at the size chosen above, wall time of one call; a strip for each device and regime. The "
    "tall tick is the run value. Outliers are kept."
)
STEP = 34


def sample_chart(analysis: Analysis, unit: str) -> Chart:
    """Strips of one size."""
    return Chart(
        id="samples", section="speedup", title="Samples", caption=CAPTION, columns=COLUMNS, one_size=True,
        rows=_rows(analysis, unit), spec=_spec(device_ids(analysis)), bars="strip", step=STEP,
    )  # fmt: skip


def _rows(analysis: Analysis, unit: str) -> Rows:
    found: Rows = {}
    shown = charted(analysis)
    best = fastest(shown)
    for row in shown:
        if row.time is None or row.spread is None:
            continue
        samples = [(index, value) for index, values in sorted(row.sessions.items()) for value in values]
        data = "at home" if row.device_kind == "cpu" else data_text(row.case)
        found.setdefault(series_name(row.case), []).append(
            common(row, best)
            | {
                "strip": f"{row.case.device_id} {data}", "median": float(f"{row.time.estimate:.4g}"),
                "session": [index for index, _ in samples], "value": [float(f"{value:.4g}") for _, value in samples],
                "counts": f"{len(row.sessions)} x {min(map(len, row.sessions.values()))}",
                "minimum": format_seconds(row.spread.minimum, unit=unit), "q1": seconds_text(row.spread.q1, unit),
                "time": time_text(row.time, unit), "q3": seconds_text(row.spread.q3, unit),
                "outliers": str(row.spread.mild_outliers + row.spread.far_outliers),
            }
        )  # fmt: skip
    return found


@functools.cache
def _spec(names: tuple[str, ...]) -> Row:
    import altair

    strip = altair.Y(
        "strip:N", title=None, sort=None, axis=altair.Axis(labelLimit=170, ticks=False, grid=True),
    )  # fmt: skip
    base = altair.Chart(axes.named()).encode(y=strip, color=axes.accent(names))
    ticks = (
        base.transform_flatten(["value", "session"])
        .mark_tick(opacity=0.45, size=16)
        .encode(
            x=axes.log_axis("value", "wall time of one call", axes.SECONDS, x=True),
            tooltip=[
                altair.Tooltip("strip:N", title="case"), altair.Tooltip("session:Q"),
                altair.Tooltip("value:Q", title="seconds", format=".4~s"),
            ],
        )
    )  # fmt: skip
    middle = base.mark_tick(size=28, thickness=3).encode(x="median:Q", tooltip=axes.tooltip(COLUMNS))
    return axes.finished(altair.layer(ticks, middle), CAPTION)
