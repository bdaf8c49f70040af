"""The chart of speedup over size."""

from __future__ import annotations

import functools

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.answer import extent
from gpubench.base.escaping import printable
from gpubench.report import charts
from gpubench.report.charts import (
    MARKS,
    Chart,
    ChartRow,
    ChartRows,
    common,
    device_ids,
    regime_names,
    short,
    size_ticks,
)
from gpubench.report.sections.answer_text import size_text as threshold_size
from gpubench.report.sections.answer_text import threshold_text
from gpubench.report.wording import (
    FORMS,
    data_text,
    interval_text,
    series_name,
    short_ratio_text,
    time_text,
)

COLUMNS = (
    ("device", "device"), ("regime", "data"), ("form", "form"), ("size", "n"), ("baseline", "baseline"),
    ("time", "time"), ("speedup", "speedup"), ("interval", "95 % interval"), ("label", "label"),
)  # fmt: skip
MARK_COLUMNS = (("device", "device"), ("regime", "data"), ("text", "break-even n"))
AXIS_TITLE = "baseline time / device time"
CAPTION = (
    "Speedup against size: above the line at 1 the device is faster than the best form of the baseline. The band is "
    "the 95 % interval; a diamond on the line is a break-even, with its interval as a bar."
)


def speedup_chart(analysis: Analysis, unit: str) -> Chart:
    """One line for each device and regime; the baseline is the same for all forms."""
    return Chart(
        id="speedup", section="speedup", title="Speedup against size", caption=CAPTION, columns=COLUMNS,
        rows=_rows(analysis, unit), marks=_marks(analysis), spec=_spec(device_ids(analysis), regime_names(analysis)),
        params=size_ticks(analysis),
    )  # fmt: skip


def _rows(analysis: Analysis, unit: str) -> ChartRows:
    found: ChartRows = {}
    best = {row.case.id for row in analysis.speedups if row.kind == "headline"}
    for row in analysis.speedups:
        if row.kind == "library":  # its baseline is another one
            continue
        found.setdefault(series_name(row.case.case), []).append(
            common(row.case, best)
            | {
                "value": short(row.ratio), "low": short(row.lo), "high": short(row.hi),
                "baseline": f"{time_text(row.baseline.time, unit)} {FORMS[row.baseline.case.form]}",
                "time": time_text(row.case.time, unit), "speedup": short_ratio_text(row.interval),
                "interval": interval_text(row.interval), "label": row.label,
            }
        )  # fmt: skip
    return found


def _marks(analysis: Analysis) -> ChartRows:
    """The thresholds; an open end of an interval reaches to the end of what was measured."""
    found: ChartRows = {}
    for row in analysis.break_even:
        if row.verdict == "at" and row.n is not None:
            low, high = row.lo or row.first, row.hi or row.last
            found.setdefault(series_name(row.case), []).append(
                {
                    "n": row.n, "low": low, "high": high, "one": 1, "text": threshold_text(row),
                    "short": threshold_size(row.n, extent(row.case)),
                    "device": printable(row.device_id), "regime": data_text(row.case),
                }
            )  # fmt: skip
    return found


@functools.cache
def _spec(names: tuple[str, ...], data: tuple[str, ...]) -> ChartRow:
    import altair

    label = "format(datum.value, '~r') + '\\u00d7'"
    base = altair.Chart(charts.named()).encode(
        x=charts.size_axis(),
        y=charts.log_axis("value", AXIS_TITLE, label),
        color=charts.accent(names),
        detail="regime:N",
    )
    band = base.mark_area(opacity=0.2).encode(y=charts.log_axis("low", AXIS_TITLE, label), y2="high:Q")
    one = altair.Chart(charts.named()).mark_rule(strokeWidth=1.5).encode(y=altair.datum(1))
    marks = altair.Chart(charts.named(MARKS)).encode(
        y=charts.log_axis("one", AXIS_TITLE, label),
        color=charts.accent(names),
        tooltip=charts.tooltip(MARK_COLUMNS),
    )
    bar = marks.mark_rule(strokeWidth=7, opacity=0.4).encode(x=altair.X("low:Q"), x2="high:Q")
    diamond = marks.mark_point(shape="diamond", size=130, filled=True, opacity=1).encode(x="n:Q")
    return charts.finished(
        altair.layer(band, one, *charts.curves(base, names, data, COLUMNS), bar, diamond), CAPTION
    )
