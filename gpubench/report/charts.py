"""Charts: Vega-Lite specs without data, and the rows of data for each picture that a spec can show.

This module also holds the parts that all charts share: layers, axes, device colours, regime dashes and tooltips.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from gpubench.analysis.analyse import Analysis, derive_once
from gpubench.analysis.estimate import CALLS, CaseResult
from gpubench.analysis.speedup import fastest
from gpubench.base import group_by
from gpubench.base.streams import printable, shorten
from gpubench.report.wording import (
    data_text,
    regime_order,
    series_name,
    size_text,
    where_legend,
)
from gpubench.result.case import Case

ChartRow = dict[str, Any]  # numbers for the marks, ready text for tooltips
ChartRows = dict[str, list[ChartRow]]  # by picture: a series ("matmul float32") or a dtype
# The names of the data sets of a spec. ENDS has the names at the ends of lines.
ROWS, MARKS, ENDS = "rows", "marks", "ends"


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """A chart. The page shows the rows and marks that fit the reader's choice of devices and regimes. A row
    without the field `device` (or `devices`) or `regime` fits any choice."""

    id: str  # the id of its HTML element
    title: str  # the title above the chart
    caption: str  # the text below the chart
    spec: ChartRow  # the Vega-Lite spec, which reads the data sets `rows` and `marks`
    rows: ChartRows  # the data
    marks: ChartRows = {}  # further data, drawn beside the rows


class ChartDevice(msgspec.Struct, frozen=True):
    """A device that has a case in the charts."""

    id: str  # the id of the device
    name: str  # the name of its model
    color: int  # an index into COLORS


class ChartSet(msgspec.Struct, frozen=True, kw_only=True):
    """The charts of one run, with the choices that the page offers."""

    series: tuple[str, ...] = ()  # the series, such as "matmul float32", in the order of the report
    chosen: str = ""  # the series that is shown at first; empty if there is none
    devices: tuple[ChartDevice, ...] = ()  # the devices, CPUs first
    regimes: tuple[tuple[str, str], ...] = ()  # the short name and the meaning of each regime
    charts: tuple[Chart, ...] = ()  # the charts, in order


@derive_once
def chart_cases(analysis: Analysis) -> list[CaseResult]:
    """Return the cases that a chart may show: the fastest implementation of each workload, regime and device.
    Overheads, collectives and variants are left out."""
    rows = [
        result
        for result in analysis.cases
        if result.time is not None and result.case.group not in CALLS and result.case.variant is None
    ]
    implementations = group_by(
        rows, lambda result: (result.case.workload, result.case.regime_id, result.case.device_id)
    )
    best = {result.id for group in implementations.values() if (result := fastest(group)) is not None}
    return [result for result in rows if result.id in best]


@derive_once
def devices(analysis: Analysis) -> tuple[ChartDevice, ...]:
    """Return the devices that have a case in the charts, CPUs first. CPUs have warm colours and GPUs cold
    ones."""
    names = {device.id: shorten(device.name) for device in analysis.run.devices}
    kinds = {result.case.device_id: result.device_kind for result in chart_cases(analysis)}
    ids = sorted(kinds, key=lambda name: (kinds[name] != "cpu", kinds[name] == "software", name))
    cpus = sum(kind == "cpu" for kind in kinds.values())
    colors = [i % WARM if i < cpus else WARM + (i - cpus) % (len(COLORS) - WARM) for i in range(len(ids))]
    return tuple(
        ChartDevice(printable(name), names.get(name, ""), color)
        for name, color in zip(ids, colors, strict=True)
    )


@derive_once
def regimes(analysis: Analysis) -> tuple[tuple[str, str], ...]:
    """Return the short name and the meaning of each regime in the charts."""
    rows = sorted((result.case for result in chart_cases(analysis)), key=regime_order)
    texts = {data_text(case): where_legend([case]).partition(": ")[2] for case in rows}
    return tuple(texts.items())


def case_fields(result: CaseResult, *, regime: bool = True) -> ChartRow:
    """Return the fields that every row of a chart has: size, device, values to filter by, and texts for
    tooltips. `regime` is False for a chart that shows a single regime."""
    case = result.case
    return {
        "n": case.params["n"], "size": size_text(result), "device": printable(case.device_id),
        "implementation": case.implementation_id,
        "label": result.label,
        **({"home": True} if result.device_kind == "cpu" else {}), **({"regime": data_text(case)} if regime else {}),
    }  # fmt: skip


def by_series(rows: Iterable[tuple[Case, ChartRow]]) -> ChartRows:
    """Return the rows of data, grouped by the names of the series of their cases."""
    groups = group_by(rows, lambda pair: series_name(pair[0]))
    return {name: [result for _, result in pairs] for name, pairs in groups.items()}


def short(value: float) -> float:
    """Return the value rounded to five significant digits, which keeps the page small."""
    return float(f"{value:.5g}")


HEIGHT = 300
# The dashes of a line, by the short name of the regime. Data that stays on the device has a solid line.
DASHES = {"resident": [1, 0], "waited": [1, 0], "queued": [2, 3], "copied": [9, 5], "in place": [5, 2],
          "managed": [5, 2, 1, 2]}  # fmt: skip
DIAMOND = {"shape": "diamond", "size": 130, "filled": True, "opacity": 1}
OTHER_DASH = [10, 3, 2, 3]
SI = "format(datum.value, '~s')"
PLAIN = "format(datum.value, '~g')"
SECONDS = f"{SI} + 's'"
# Numbers below 16384 are written in full, larger ones in units of 1024. Every tick is a power of two.
_SIZE = (
    "datum.value >= 1073741824 ? format(datum.value / 1073741824, '~r') + ' G' : "
    "datum.value >= 1048576 ? format(datum.value / 1048576, '~r') + ' M' : "
    "datum.value >= 16384 ? format(datum.value / 1024, '~r') + ' K' : format(datum.value, '~r')"
)


def layer(mark: str, encoding: ChartRow, data: str = ROWS, **look: Any) -> ChartRow:
    """Return a layer of marks with this encoding and look. It draws the data set named `data`."""
    return {"data": {"name": data}, "mark": {"type": mark, **look}, "encoding": encoding}


def quantity(field: str, **look: Any) -> ChartRow:
    """Return the encoding of a field that holds numbers."""
    return {"field": field, "type": "quantitative", **look}


def word(field: str, **look: Any) -> ChartRow:
    """Return the encoding of a field that holds texts."""
    return {"field": field, "type": "nominal", **look}


def size_axis() -> ChartRow:
    """Return a logarithmic axis of n with ticks at powers of two."""
    return quantity(
        "n", title="size n", scale={"type": "log", "base": 2, "nice": False, "padding": 12},
        axis={"labelExpr": _SIZE, "labelOverlap": "greedy", "labelSeparation": 6, "grid": False},
    )  # fmt: skip


def log_axis(field: str, title: str, label: str = SI, *, x: bool = False) -> ChartRow:
    """Return a logarithmic axis of `field` with a line at every decade. `label` is the Vega expression for the
    text of a tick. `x` is True for a horizontal axis."""
    scale = "x" if x else "y"
    power = "log(datum.value) / LN10"
    lead = f"round(datum.value / pow(10, floor({power} + 1e-9)))"
    # Ticks between the decades have labels only on a short axis.
    few = f"domain('{scale}')[1] / domain('{scale}')[0] < 200"
    labelled = f"{lead} == 1 || ({few} && ({lead} == 2 || {lead} == 5))"
    decade = {"test": f"abs({power} - round({power})) < 1e-6", "value": 1}
    axis = {
        "labelExpr": f"{labelled} ? {label} : ''", "labelOverlap": "greedy", "tickCount": 6, "ticks": False,
        "gridOpacity": {"condition": decade, "value": 0.3},
    }  # fmt: skip
    return quantity(field, title=title, scale={"type": "log", "nice": False, "padding": 8}, axis=axis)


def accent(analysis: Analysis) -> ChartRow:
    """Return the encoding that shows the device by colour. A device has the same colour in all charts."""
    sides = devices(analysis)
    scale = {"domain": [device.id for device in sides], "range": [COLORS[device.color] for device in sides]}
    return word("device", scale=scale, legend={"title": "device"})


def curves(analysis: Analysis, base: ChartRow, columns: Sequence[tuple[str, str]]) -> list[ChartRow]:
    """Return the layers of curves with the encoding `base`: lines, and a point at each size. The colour shows
    the device, and the dash the regime. `columns` are pairs (field, title) for the tooltips. A point is hollow
    if its case has a label such as noisy."""
    names, color = [name for name, _ in regimes(analysis)], accent(analysis)
    dashes = {"domain": names, "range": [DASHES.get(name, OTHER_DASH) for name in names]}
    dash = word("regime", scale=dashes, legend={"title": "data"})
    filled = {"condition": {"test": "datum.label === 'ok'", "value": 1}, "value": 0}
    base = base | {"color": color, "detail": word("regime")}
    return [
        layer("line", base | {"strokeDash": dash}),
        layer("point", base | {"fill": color, "fillOpacity": filled, "tooltip": tooltip(columns)}, size=40),
    ]


def banded_curves(
    analysis: Analysis, title: str, label: str, columns: Sequence[tuple[str, str]]
) -> list[ChartRow]:
    """Return layers that show the field `value` over the size: a curve for each device and regime, with a band
    from the field `low` to the field `high`. `title` and `label` belong to the vertical axis (see `log_axis`).
    `columns` are pairs (field, title) for the tooltips."""
    base = {"x": size_axis(), "y": log_axis("value", title, label)}
    shared = {"x": size_axis(), "color": accent(analysis)}
    band = shared | {"y": log_axis("low", title, label), "y2": {"field": "high"}, "detail": word("regime")}
    names = base | shared | {"text": word("text")}
    return [
        layer("area", band, opacity=0.2), *curves(analysis, base, columns),
        layer("text", names, ENDS, align="left", dx=8, dy={"expr": "datum.shift"}, fontWeight=600),
    ]  # fmt: skip


def tooltip(columns: Sequence[tuple[str, str]]) -> list[ChartRow]:
    """Return the tooltip of a point. `columns` holds pairs of a field and its title."""
    return [word(field, title=title) for field, title in columns]


def make_spec(description: str, *layers: ChartRow) -> ChartRow:
    """Return the Vega-Lite spec of a chart that is as wide as its container. The page adds its theme."""
    return {"height": HEIGHT, "width": "container", "description": description, "layer": [*layers]}


FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
# CPUs have colours near orange and GPUs colours near blue, everywhere. All colours are visible on a light and
# on a dark page.
COLORS = ("#c2570c", "#8a6d00", "#2f7fc4", "#00807a", "#7a6fd0", "#a8438c")
WARM = 2  # the number of warm colours, which come first
CPU_COLOR, GPU_COLOR = COLORS[0], COLORS[WARM]
# The colours of CPU and GPU for text, which needs more contrast, on a light and on a dark page.
WORD_COLORS = {"light": ("#a9480a", "#1f6aa8"), "dark": ("#f0914f", "#6cb2f0")}
_EVEN = {"light": "#e9ebee", "dark": "#39414d"}


def theme(*, dark: bool = False) -> dict[str, Any]:
    """Return Vega-Lite's `config` for a light or a dark background. The page itself draws the background."""
    ink, quiet, line = ("#e6e9ee", "#a9b1bd", "#39414d") if dark else ("#1d2329", "#5b6470", "#dfe3e8")
    paper, even = ("#14181d", _EVEN["dark"]) if dark else ("#ffffff", _EVEN["light"])
    styles = {"ink": ink, "paper": paper, "quiet": quiet, "accent": GPU_COLOR}
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
        "range": {"diverging": [CPU_COLOR, even, GPU_COLOR]},
        "style": {name: {"color": shade} for name, shade in styles.items()},
        "line": {"strokeWidth": 2}, "rule": {"color": quiet}, "text": {"color": ink, "fontSize": 12},
    }  # fmt: skip


def page_colors() -> str:
    """Return the colours of CPU and GPU as CSS variables."""
    rules = []
    for look, (cpu, gpu) in WORD_COLORS.items():
        rule = f":root{{--cpu:{cpu};--gpu:{gpu};--even:{_EVEN[look]};--cpu-fill:{CPU_COLOR};--gpu-fill:{GPU_COLOR}}}"
        rules.append(rule if look == "light" else f"@media screen and (prefers-color-scheme:dark){{{rule}}}")
    return "\n".join(rules)
