"""Speedup against size with the line at 1 and the break-even of each device and regime."""

from __future__ import annotations

import functools

from gpubench.report.analysis.types import Analysis
from gpubench.report.analysis.verdict import size_text as threshold_text
from gpubench.report.formats._charts import axes
from gpubench.report.formats._charts.rows import common, device_ids, regime_names, short, size_ticks
from gpubench.report.formats._charts.types import MARKS, Chart, Row, Rows
from gpubench.report.formats._document import printable
from gpubench.report.formats._names import FORMS, data_text, series_name
from gpubench.report.formats._numbers import interval_text, short_ratio_text, time_text
from gpubench.units import format_size

COLUMNS = (
    ("device", "device"), ("regime", "data"), ("form", "form"), ("size", "n"), ("baseline", "baseline"),
    ("time", "time"), ("speedup", "speedup"), ("interval", "95 % interval"), ("label", "label"),
)  # fmt: skip
MARK_COLUMNS = (("device", "device"), ("regime", "data"), ("text", "break-even n"))
TITLE = "baseline time / device time"
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


def _rows(analysis: Analysis, unit: str) -> Rows:
    found: Rows = {}
    best = {row.case.id for row in analysis.speedups if row.kind == "headline"}
    for row in analysis.speedups:
        if row.kind == "library":  # its baseline is another one
            continue
        found.setdefault(series_name(row.case.case), []).append(
            common(row.case, best)
            | {
                "value": short(row.ratio.estimate), "low": short(row.ratio.low), "high": short(row.ratio.high),
                "baseline": f"{time_text(row.baseline.time, unit)} {FORMS[row.baseline.case.form]}",
                "time": time_text(row.case.time, unit), "speedup": short_ratio_text(row.ratio),
                "interval": interval_text(row.ratio), "label": row.label,
            }
        )  # fmt: skip
    return found


def _marks(analysis: Analysis) -> Rows:
    """The thresholds; an open end of an interval reaches to the end of what was measured."""
    found: Rows = {}
    for row in analysis.break_even:
        if row.verdict == "at" and row.n is not None:
            low, high = row.low or row.first, row.high or row.last
            text = f"{threshold_text(row)} [{format_size(low, table=True)}, {format_size(high, table=True)}]"
            found.setdefault(series_name(row), []).append(
                {
                    "n": row.n, "low": low, "high": high, "one": 1, "text": text, "short": threshold_text(row),
                    "device": printable(row.device_id), "regime": data_text(row),
                }
            )  # fmt: skip
    return found


@functools.cache
def _spec(names: tuple[str, ...], data: tuple[str, ...]) -> Row:
    import altair

    label = "format(datum.value, '~r') + '\\u00d7'"
    base = altair.Chart(axes.named()).encode(
        x=axes.size_axis(), y=axes.log_axis("value", TITLE, label), color=axes.accent(names), detail="regime:N"
    )
    band = base.mark_area(opacity=0.2).encode(y=axes.log_axis("low", TITLE, label), y2="high:Q")
    one = altair.Chart(axes.named()).mark_rule(strokeWidth=1.5).encode(y=altair.datum(1))
    marks = altair.Chart(axes.named(MARKS)).encode(
        y=axes.log_axis("one", TITLE, label), color=axes.accent(names), tooltip=axes.tooltip(MARK_COLUMNS)
    )
    bar = marks.mark_rule(strokeWidth=7, opacity=0.4).encode(x=altair.X("low:Q"), x2="high:Q")
    diamond = marks.mark_point(shape="diamond", size=130, filled=True, opacity=1).encode(x="n:Q")
    return axes.finished(
        altair.layer(band, one, *axes.curves(base, names, data, COLUMNS), bar, diamond), CAPTION
    )
