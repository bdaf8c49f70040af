"""Time against size, both logarithmic, with the interval as a band."""

from __future__ import annotations

import functools

from gpubench.report.analysis.types import Analysis
from gpubench.report.formats._charts import axes
from gpubench.report.formats._charts.rows import (
    charted,
    common,
    device_ids,
    fastest,
    regime_names,
    short,
    size_ticks,
)
from gpubench.report.formats._charts.types import Chart, Row, Rows
from gpubench.report.formats._names import series_name
from gpubench.report.formats._numbers import time_interval_text, time_text

COLUMNS = (
    ("device", "device"), ("regime", "data"), ("form", "form"), ("size", "n"), ("time", "wall time"),
    ("interval", "95 % interval"), ("label", "label"),
)  # fmt: skip
TITLE = "wall time of one call"
CAPTION = (
    "Wall time of one call against size, both axes logarithmic. The band is the 95 % interval; a hollow point has a "
    "label such as noisy. Where a curve of the GPU falls below that of the CPU, the GPU wins."
)


def time_chart(analysis: Analysis, unit: str) -> Chart:
    """One line for each device and regime."""
    return Chart(
        id="time", section="speedup", title="Time against size", caption=CAPTION, columns=COLUMNS,
        rows=_rows(analysis, unit), spec=_spec(device_ids(analysis), regime_names(analysis)),
        params=size_ticks(analysis),
    )  # fmt: skip


def _rows(analysis: Analysis, unit: str) -> Rows:
    found: Rows = {}
    shown = charted(analysis)
    best = fastest(shown)
    for row in shown:
        if row.time is not None:
            found.setdefault(series_name(row.case), []).append(
                common(row, best)
                | {
                    "value": short(row.time.estimate), "low": short(row.time.low), "high": short(row.time.high),
                    "time": time_text(row.time, unit), "interval": time_interval_text(row.time, unit),
                }
            )  # fmt: skip
    return found


@functools.cache
def _spec(names: tuple[str, ...], data: tuple[str, ...]) -> Row:
    import altair

    base = altair.Chart(axes.named()).encode(
        x=axes.size_axis(),
        y=axes.log_axis("value", TITLE, axes.SECONDS),
        color=axes.accent(names),
        detail="regime:N",
    )
    band = base.mark_area(opacity=0.2).encode(y=axes.log_axis("low", TITLE, axes.SECONDS), y2="high:Q")
    return axes.finished(altair.layer(band, *axes.curves(base, names, data, COLUMNS)), CAPTION)
