"""Speedup over size: drawn in characters for a terminal, and as a chart."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.answer import extent
from gpubench.analysis.speedup import Speedup
from gpubench.escaping import printable
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
from gpubench.report.layout import Cell, Picture, Section, Tone
from gpubench.report.sections.answer_text import size_text as threshold_size
from gpubench.report.sections.answer_text import threshold_text
from gpubench.report.wording import (
    FORMS,
    data_text,
    device_text,
    interval_text,
    regimes,
    series_name,
    short_ratio_text,
    time_text,
    where_legend,
)
from gpubench.units import format_size

TITLE = "Speedup against size"
HEIGHT = 14  # rows of one chart with its axis: two of them fit a terminal of 40 lines
FEW = 2  # more charts than this are drawn only for who asks for them
_NARROWEST = 40
_MOST_LABELS = 8
_MARKERS = {"waited": "w", "queued": "q", "copied": "c"}
_CALLS = "n"  # of N calls a copy
_PATH = "."
_LINES = "│┤┼┬└─┈"
_ASCII = str.maketrans(_LINES, "||+++--")
Curves = dict[str, dict[int, float]]  # short name of a regime -> size -> speedup


def chart_section(analysis: Analysis, width: int, *, ascii_only: bool, every: bool) -> Section:
    """The curves of all devices that are no software. `every`: however many there are, else only a few."""
    groups: dict[tuple[object, ...], list[Speedup]] = {}
    for row in analysis.speedups:
        if row.kind == "headline" and row.case.device_kind != "software":
            groups.setdefault((row.case.case.series, row.case.case.device_id), []).append(row)
    drawn = [rows for rows in groups.values() if any(len(curve) > 1 for curve in _curves(rows).values())]
    if not drawn or (len(drawn) > FEW and not every):
        return Section(key="chart", title=TITLE)
    pictures = tuple(_picture(analysis, rows, max(width, _NARROWEST), ascii_only) for rows in drawn)
    names = where_legend(row.case.case for rows in drawn for row in rows)
    how = "; ".join(f"{_marker(text)} {text}" for text in names.split("; "))
    return Section(
        key="chart",
        title=TITLE,
        lines=(f"{how}; above 1x the device is faster than the baseline",),
        pictures=pictures,
    )


def _curves(rows: Sequence[Speedup]) -> Curves:
    found: Curves = {name: {} for name in regimes(row.case.case for row in rows)}
    for row in sorted(rows, key=lambda row: row.case.case.params["n"]):
        found[data_text(row.case.case)][row.case.case.params["n"]] = row.ratio
    return found


def _picture(analysis: Analysis, rows: Sequence[Speedup], width: int, ascii_only: bool) -> Picture:
    case = rows[0].case.case
    title = f"{series_name(case)} on {device_text(analysis, case.device_id)}"
    lines = _plotted(_curves(rows), width)
    if ascii_only:
        lines = [line.translate(_ASCII) for line in lines]
    one = next((i for i, line in enumerate(lines) if line.lstrip().startswith("1x")), None)
    return Picture(
        tuple(Cell(line, _tone(i, one, len(lines) - 2)) for i, line in enumerate(lines)), title=printable(title)
    )


def _tone(row: int, one: int | None, axis: int) -> Tone:
    """Above the line of 1 the GPU is better, below it worse; the axis is neither."""
    if one is None or row == one or row >= axis:
        return "plain"
    return "good" if row < one else "bad"


def _plotted(curves: Curves, width: int) -> list[str]:
    """The chart as lines of at most `width` characters. The axes are drawn here as logarithms, because a library's
    own logarithmic axis chooses ticks that are no sizes anybody measured."""
    import plotext

    sizes = sorted({n for curve in curves.values() for n in curve})
    ratios = [ratio for curve in curves.values() for ratio in curve.values()]
    low, high = _decades(ratios)
    chart = plotext.figure
    chart.clear()
    chart.theme("colorless")
    chart.axes(False, axis="both", side=1)
    chart.plot_size(width, HEIGHT)
    chart.line(0.0, style="dotted")
    points = {
        name: ([math.log2(n) for n in curve], [math.log10(r) for r in curve.values()])
        for name, curve in curves.items()
    }
    for x, y in points.values():
        chart.draw(chart.signal(x, y, marker=_PATH).lines())
    for name, (x, y) in points.items():
        chart.draw(chart.signal(x, y, marker=_marker(name)))
    shown = _labelled(sizes)
    chart.ruler("x").ticks([math.log2(n) for n in shown], [format_size(n, table=True) for n in shown])
    chart.ruler("y").lim(low, high)
    chart.ruler("y").ticks(*_ratio_ticks(low, high))
    lines: list[str] = plotext.uncolorize(str(chart.build())).splitlines()
    return [line.rstrip() for line in lines]


def _marker(name: str) -> str:
    return _MARKERS.get(name.partition(":")[0], _CALLS)


def _decades(ratios: Sequence[float]) -> tuple[float, float]:
    """Whole powers of ten around the ratios, as exponents; the line of 1 never lies on the edge."""
    exponents = [math.log10(ratio) for ratio in ratios]
    return min(-1, math.floor(min(exponents))), max(1, math.ceil(max(exponents)))


def _ratio_ticks(low: float, high: float) -> tuple[list[float], list[str]]:
    exponents = range(round(low), round(high) + 1)
    return [float(one) for one in exponents], [f"{10.0**one:g}x" for one in exponents]


def _labelled(sizes: Sequence[int]) -> list[int]:
    """The sizes whose names stand below the axis: the ends and those of even distance between them."""
    span = math.log2(sizes[-1] / sizes[0]) or 1.0
    kept = [sizes[0]]
    for n in sizes[1:-1]:
        apart = min(math.log2(n / kept[-1]), math.log2(sizes[-1] / n))
        if apart >= span / _MOST_LABELS:
            kept.append(n)
    return [*kept, sizes[-1]] if len(sizes) > 1 else kept


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
