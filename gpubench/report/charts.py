"""What a chart is: a Vega-Lite spec without data, and the rows of every series that it can show.

What the charts share, too: axes, the accent of a device, the dash of a regime, tooltips. Those are Altair's objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.estimate import CALLS, CaseResult
from gpubench.base.escaping import printable, shortened
from gpubench.report.wording import (
    data_text,
    regime_order,
    series_name,
    situation_text,
    size_text,
    where_legend,
)

ChartRow = dict[str, Any]  # numbers for the marks, ready text for tooltips and tables
ChartRows = dict[str, list[ChartRow]]  # by series, "matmul float32"
ROWS, MARKS = "rows", "marks"  # the names of a spec's two data sets


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One curve family: op, dtype and the params beside the size. `name` is the key of every chart's rows.

    `size` is where a chart of a single size begins: the largest at which the most devices and regimes were measured.
    """

    name: str
    dtype: str
    sizes: tuple[int, ...]
    size: int


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """`spec` reads the data sets `rows` (what the table below it lists) and `marks` (what stands beside).

    `columns` are pairs of a field and its heading. Of the filters, a row without the field passes: `device`
    (or any of `devices`), `regime`, `form` with `best`, and `n` where `one_size` says that the chart shows one size.
    """

    id: str
    section: str
    title: str
    caption: str
    spec: ChartRow
    columns: tuple[tuple[str, str], ...]
    rows: ChartRows
    marks: ChartRows = {}
    params: dict[str, ChartRow] = {}  # of the spec, by series
    one_size: bool = False
    by_dtype: bool = False  # all series of a dtype share one picture, which a page marks the chosen one in
    bars: str = ""  # the field whose values have a bar each; the height then is `step` points for each
    step: int = 0


class ChartSet(msgspec.Struct, frozen=True, kw_only=True):
    """The charts of one run with what a reader may choose from. `chosen` is the series to begin with."""

    series: tuple[Line, ...] = ()
    chosen: str = ""
    devices: tuple[tuple[str, str], ...] = ()  # id and name, the CPU first
    regimes: tuple[tuple[str, str], ...] = ()  # short name and meaning
    headings: dict[str, str] = {}  # what a table may call a regime -> its short name
    forms: tuple[str, ...] = ()
    charts: tuple[Chart, ...] = ()


FEWEST_TICKS = 3


def charted(analysis: Analysis) -> list[CaseResult]:
    """The cases that a chart may show: with an estimate, and no overhead."""
    return [row for row in analysis.cases if row.time is not None and row.case.group not in CALLS]


def all_series(analysis: Analysis) -> tuple[Line, ...]:
    """Every series with a case to show, in the order of the report."""
    found: dict[str, tuple[str, Counter[int]]] = {}
    for row in charted(analysis):
        found.setdefault(series_name(row.case), (row.case.dtype, Counter()))[1][row.case.params["n"]] += 1
    return tuple(
        Line(
            name=name, dtype=dtype, sizes=tuple(sorted(counts)),
            size=max(counts, key=lambda n: (counts[n], n)),
        )
        for name, (dtype, counts) in found.items()
    )  # fmt: skip


def devices(analysis: Analysis) -> tuple[tuple[str, str], ...]:
    """Id and name of every device with a case to show, the CPU first: the place decides the accent."""
    names = {device.id: shortened(device.name) for device in analysis.run.devices}
    kinds = {row.case.device_id: row.device_kind for row in charted(analysis)}
    ordered = sorted(kinds, key=lambda name: (kinds[name] != "cpu", kinds[name] == "software", name))
    return tuple((printable(name), names.get(name, "")) for name in ordered)


def regimes(analysis: Analysis) -> tuple[tuple[str, str], ...]:
    """Short name and meaning of the regimes on devices other than the CPU, whose data is at home in all of them."""
    rows = sorted((row.case for row in charted(analysis)), key=regime_order)
    texts = {data_text(case): where_legend([case]).partition(": ")[2] for case in rows}
    return tuple(texts.items())


def headings(analysis: Analysis) -> dict[str, str]:
    """What a table may call each of `regimes`, with its short name."""
    regimes = {row.case.regime_id: data_text(row.case) for row in charted(analysis)}
    return {
        situation_text(regime, beside_queued=beside): text
        for regime, text in regimes.items()
        for beside in (True, False)
    }


def size_ticks(analysis: Analysis) -> dict[str, ChartRow]:
    """For each series where the axis of sizes has its ticks: at powers of two, or at the sizes if those are few."""
    found: dict[str, ChartRow] = {}
    for series in all_series(analysis):
        first, last = series.sizes[0], series.sizes[-1]
        powers = [2**i for i in range(first.bit_length() - 1, last.bit_length()) if first <= 2**i <= last]
        found[series.name] = {"ticks": powers if len(powers) >= FEWEST_TICKS else list(series.sizes)}
    return found


def device_ids(analysis: Analysis) -> tuple[str, ...]:
    return tuple(name for name, _ in devices(analysis))


def regime_names(analysis: Analysis) -> tuple[str, ...]:
    return tuple(name for name, _ in regimes(analysis))


def common(row: CaseResult, best: Collection[str], *, regime: bool = True) -> ChartRow:
    """The fields of every case: its size, its device, what the filters ask for, and text for tables.

    `regime`: False where a chart shows one of them alone.
    """
    case = row.case
    return {
        "n": case.params["n"], "size": size_text(row), "device": printable(case.device_id),
        **({"home": True} if row.device_kind == "cpu" else {}),
        **({"regime": data_text(case)} if regime else {}),
        "form": case.form_id, "best": row.id in best, "label": row.label,
    }  # fmt: skip


def fastest(rows: Iterable[CaseResult]) -> frozenset[str]:
    """The ids of the fastest form of each workload, regime and device; a named variant stands beside its form."""
    found: dict[tuple[str, ...], tuple[float, str]] = {}
    for row in rows:
        if row.time is not None and row.case.variant is None:
            key = (row.case.workload, row.case.regime_id, row.case.device_id)
            found[key] = min(found.get(key, (row.time.estimate, row.id)), (row.time.estimate, row.id))
    return frozenset(case_id for _, case_id in found.values())


def short(value: float) -> float:
    """Five significant digits: more than a picture shows, and a smaller page."""
    return float(f"{value:.5g}")


HEIGHT = 300
DASHES = ([1, 0], [7, 4], [2, 3], [10, 3, 2, 3], [4, 2])
SI = "format(datum.value, '~s')"
PLAIN = "format(datum.value, '~g')"
SECONDS = f"{SI} + 's'"
# 4096 and below plainly, then in units of 1024: a tick is a power of two.
_SIZE = (
    "datum.value >= 1073741824 ? format(datum.value / 1073741824, '~r') + ' G' : "
    "datum.value >= 1048576 ? format(datum.value / 1048576, '~r') + ' M' : "
    "datum.value >= 16384 ? format(datum.value / 1024, '~r') + ' K' : format(datum.value, '~r')"
)


def named(name: str = ROWS) -> Any:
    """The data set of this name; it is filled when the chart is drawn."""
    import altair

    return altair.NamedData(name)


def size_axis() -> Any:
    """n on a logarithmic axis; its ticks are the param `ticks` of the spec."""
    import altair

    return altair.X(
        "n:Q", title="size n", scale=altair.Scale(type="log", base=2, nice=False, padding=12),
        axis=altair.Axis(labelExpr=_SIZE, labelOverlap="greedy", values=altair.ExprRef("ticks"), grid=False),
    )  # fmt: skip


def log_axis(field: str, title: str, label: str = SI, *, x: bool = False) -> Any:
    """A logarithmic axis with a line at every decade; `label` is an expression of a tick's text.

    Between the decades stand labels only where the axis spans few of them.
    """
    import altair

    scale = "x" if x else "y"
    power = "log(datum.value) / LN10"
    lead = f"round(datum.value / pow(10, floor({power} + 1e-9)))"
    few = f"domain('{scale}')[1] / domain('{scale}')[0] < 200"
    labelled = f"{lead} == 1 || ({few} && ({lead} == 2 || {lead} == 5))"
    axis = altair.Axis(
        labelExpr=f"{labelled} ? {label} : ''", labelOverlap="greedy", tickCount=6, ticks=False,
        gridOpacity=altair.condition(f"abs({power} - round({power})) < 1e-6", altair.value(1), altair.value(0.3)),
    )  # fmt: skip
    kind = altair.X if x else altair.Y
    return kind(f"{field}:Q", title=title, scale=altair.Scale(type="log", nice=False, padding=8), axis=axis)


def accent(devices: Sequence[str], *, fill: bool = False) -> Any:
    """One colour for each device, the same in all charts: the place in `devices` chooses it from the theme."""
    import altair

    scale = altair.Scale(domain=list(devices))
    if fill:
        return altair.Fill("device:N", scale=scale, legend=altair.Legend(title="device"))
    return altair.Color("device:N", scale=scale, legend=altair.Legend(title="device"))


def dash(regimes: Sequence[str]) -> Any:
    """One dash for each regime, so that lines differ without their colour."""
    import altair

    scale = altair.Scale(domain=list(regimes), range=[DASHES[i % len(DASHES)] for i in range(len(regimes))])
    return altair.StrokeDash("regime:N", scale=scale, legend=altair.Legend(title="data"))


def hollow() -> Any:
    """The fill of a point: none where its case has a label such as noisy."""
    import altair

    return altair.condition(altair.datum.label == "ok", altair.value(1), altair.value(0))


def curves(
    base: Any, devices: Sequence[str], regimes: Sequence[str], columns: Sequence[tuple[str, str]]
) -> list[Any]:
    """Lines with their points: a device has its colour, a regime its dash, and every point a tooltip."""
    line = base.mark_line().encode(strokeDash=dash(regimes)) if regimes else base.mark_line()
    points = base.mark_point(size=40).encode(
        fill=accent(devices, fill=True), fillOpacity=hollow(), tooltip=tooltip(columns)
    )
    return [line, points]


def tooltip(columns: Sequence[tuple[str, str]]) -> list[Any]:
    """The columns of the chart's table, at the pointer."""
    import altair

    return [altair.Tooltip(f"{field}:N", title=title) for field, title in columns]


def stacked_bars(
    value: Any, color: Any, columns: Sequence[tuple[str, str]], *, height: int, clip: bool = False
) -> Any:
    """A bar of so many points in height for each `bar` of the rows, in the order of n: its parts lie side by side along
    the axis `value`, in the order of `order`, and are as opaque as `opacity` says."""
    import altair

    bar = altair.Y(
        "bar:N", title=None, sort=altair.EncodingSortField("n", op="min"),
        axis=altair.Axis(labelLimit=120, ticks=False),
    )  # fmt: skip
    return (
        altair.Chart(named())
        .mark_bar(height=height, clip=True if clip else altair.Undefined)
        .encode(
            x=value, y=bar, color=color, order="order:Q", tooltip=tooltip(columns),
            opacity=altair.Opacity("opacity:Q", scale=None),
        )
    )  # fmt: skip


def finished(chart: Any, description: str) -> dict[str, Any]:
    """The spec as data, as wide as what holds it; without a theme, which is chosen where the chart is drawn."""
    made = chart.properties(width="container", height=HEIGHT, description=description)
    return {name: part for name, part in made.to_dict(validate=False).items() if name != "config"}


FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
# The CPU is grey: what everything else is set against. On the map it has the third colour, the GPU the second.
LIGHT = ("#5f6773", "#0072b2", "#c2570c", "#00845f", "#a8438c", "#8a6d00")
DARK = ("#b6bec9", "#5cb3ea", "#f2935c", "#35c79d", "#e597cb", "#e3c04a")


def theme(*, dark: bool = False) -> dict[str, Any]:
    """Vega-Lite's `config` on a light or a dark background; the background itself is left to the page."""
    ink, quiet, line = ("#e6e9ee", "#a9b1bd", "#39414d") if dark else ("#1d2329", "#5b6470", "#dfe3e8")
    paper, even, colours = ("#14181d", "#39414d", DARK) if dark else ("#ffffff", "#e9ebee", LIGHT)
    styles = {"ink": ink, "paper": paper, "quiet": quiet, "accent": colours[1]}
    axis = {
        "labelColor": quiet, "titleColor": quiet, "gridColor": line, "domainColor": line, "tickColor": line,
        "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "titlePadding": 8,
    }  # fmt: skip
    return {
        "background": "transparent", "font": FONT, "aria": False,
        "view": {"stroke": None}, "axis": axis,
        "title": {"color": ink, "subtitleColor": quiet, "fontSize": 14, "subtitleFontSize": 12, "offset": 12},
        "legend": {
            "orient": "top", "labelColor": ink, "titleColor": quiet, "titleFontWeight": "normal",
            "labelFontSize": 12, "titleFontSize": 12, "symbolStrokeWidth": 2, "columns": 3,
            "offset": 6, "symbolOpacity": 1, "titleOrient": "left",
            "layout": {"top": {"direction": "vertical", "anchor": "start", "margin": 4}},
        },
        "range": {"category": list(colours), "diverging": [colours[2], even, colours[1]]},
        "style": {name: {"color": shade} for name, shade in styles.items()},
        "line": {"strokeWidth": 2}, "rule": {"color": quiet}, "text": {"color": ink, "fontSize": 12},
        "tick": {"thickness": 1.5},
    }  # fmt: skip
