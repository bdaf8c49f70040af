"""The map as Vega-Lite: for each panel a spec with its data."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from gpubench.analysis.ratio_map import FULL, RatioMap, Stretch, Strip, tint
from gpubench.base.escaping import filled
from gpubench.report.charts import ChartRow, short
from gpubench.report.sections.map import MEANING, LaneView, MapPanel, MapView, axis_text, ticks

STEP, NARROW_STEP = 30, 17  # points of height for a strip, where a lane has one and where it has several
PIECES, SHADE = 64, 0.025  # of the axis, and of a tint: inside one piece the colour stays
_BLOCK = 6  # points of width for a measured size without neighbours
_HALF, _WIDE, _LETTERS = 430, 900, 170  # points, and letters of a line, across a picture
_LABEL = "split(datum.label, '\\t')[{}]"  # a lane's key holds its number, its op and its gain


def map_specs(view: MapView) -> list[ChartRow]:
    """Return a spec for each panel, as wide as what holds it; the first has the legend of the colours."""
    return [_panel(panel, view.found, legend=not i) for i, panel in enumerate(view.panels)]


def map_picture(view: MapView) -> ChartRow:
    """Return the whole map as one spec, with its words, for where it travels without a page."""
    specs = map_specs(view)
    words = [*view.origin, *filled(MEANING, _LETTERS, "")]
    return {
        "title": {"text": view.title, "subtitle": words, "anchor": "start"},
        "hconcat": [spec | {"width": _WIDE if len(specs) == 1 else _HALF} for spec in specs],
    }  # fmt: skip


def _panel(panel: MapPanel, found: RatioMap, *, legend: bool) -> ChartRow:
    several = len(panel.lanes[0].strips) > 1
    step = NARROW_STEP if several else STEP
    keys = [
        (f"{i}.{j}\t{'' if j else lane.label}\t{strip.name} {strip.gain}", lane, strip.strip)
        for i, lane in enumerate(panel.lanes)
        for j, strip in enumerate(lane.strips)
    ]
    names = [name for name, _, _ in keys]
    rows: defaultdict[str, list[ChartRow]] = defaultdict(list)
    for name, lane, strip in keys:
        rows["lanes"].append({"lane": name, "x": found.low, "x2": found.high, "text": lane.text})
        for kind, row in _rows(lane, strip, found):
            rows[kind].append({"lane": name, **row})
    tall, low = round(step * 0.75), step * 0.45
    blur = {"color": _color(legend=legend)}
    span = {"x": _size("x", found, panel), "x2": {"field": "x2"}}
    at = {"x": _size("x", found, panel)}
    ends = [{"lane": row["lane"], "x": row[end]} for row in rows["spans"] for end in ("x", "x2")]
    tick: dict[str, Any] = {"type": "tick", "orient": "vertical", "opacity": 1}
    layers = [
        _layer(rows["lanes"], {"type": "rect", "opacity": 0}, _lanes(names, _LABEL.format(1), "left"), span),
        _layer(rows["blank"], {"type": "rule", "style": "quiet", "strokeWidth": 1.5, "strokeDash": [1.5, 5]}, span),
        _layer(rows["tints"], {"type": "rect", "height": tall}, span, blur),
        _layer(rows["blocks"], tick | {"thickness": _BLOCK, "size": tall}, at, blur),
        _layer(rows["unsure"], {"type": "rect", "height": tall, "style": "paper", "opacity": 0.35}, span),
        _layer(rows["sizes"], {"type": "circle", "size": 8, "opacity": 1, "style": "quiet", "yOffset": low}, at),
        _layer(rows["marks"], tick | {"thickness": 6, "size": tall, "style": "paper"}, at),
        _layer(rows["spans"], {"type": "rule", "style": "ink", "strokeWidth": 1.4}, span),
        _layer(ends, tick | {"thickness": 1.4, "size": tall * 0.4, "style": "ink"}, at),
        _layer(rows["marks"], tick | {"thickness": 3, "size": tall + 2, "style": "ink"}, at),
        _layer(
            rows["lanes"], {"type": "rect", "opacity": 0}, _lanes(names, _LABEL.format(2), "right"), span,
            {"tooltip": {"field": "text", "type": "nominal"}},
        ),
    ]  # fmt: skip
    return {
        "title": {"text": panel.situation, "anchor": "start", "frame": "group"},
        "width": "container", "height": step * len(names),
        "encoding": {"y": {"field": "lane", "type": "nominal", "scale": {"domain": names}, "axis": None}},
        "resolve": {"axis": {"y": "independent"}}, "layer": layers,
    }  # fmt: skip


def _layer(rows: Sequence[ChartRow], mark: ChartRow, *encodings: ChartRow) -> ChartRow:
    encoding = {channel: found for part in encodings for channel, found in part.items()}
    return {"data": {"values": rows}, "mark": mark, "encoding": encoding}


def _lanes(names: Sequence[str], label: str, orient: str) -> ChartRow:
    """The names of the ops, or the gains: labels of an axis without a line."""
    axis = {
        "title": None,
        "orient": orient,
        "domain": False,
        "ticks": False,
        "labelExpr": label,
        "labelLimit": 130,
        "labelPadding": 8,
    }
    return {"y": {"field": "lane", "type": "nominal", "scale": {"domain": names}, "axis": axis}}


def _size(field: str, found: RatioMap, panel: MapPanel) -> ChartRow:
    """The sizes below the lanes. A single one stands in the middle."""
    alone = found.high <= found.low
    named = {round(found.low * (found.high / found.low) ** share): text for share, text in ticks(found)}
    text = " : ".join(f"datum.value == {size} ? '{text}'" for size, text in named.items())
    axis = {
        "title": axis_text(panel.lanes),
        "values": list(named),
        "labelExpr": f"{text} : ''",
        "grid": False,
        "domain": False,
    }
    domain = [found.low / 2, found.high * 2] if alone else [found.low, found.high]
    return {
        "field": field,
        "type": "quantitative",
        "axis": axis,
        "scale": {"type": "log", "domain": domain, "nice": False},
    }


def _color(*, legend: bool) -> ChartRow:
    """From the CPU's colour to the GPU's; the theme says which they are."""
    look = {
        "title": None, "orient": "bottom", "direction": "horizontal", "gradientLength": 260, "gradientThickness": 12,
        "gradientOpacity": 1, "values": [-1, 0, 1],
        "labelExpr": f"datum.value < 0 ? 'CPU {FULL:.0f}x' : datum.value > 0 ? 'GPU {FULL:.0f}x' : 'about equal'",
    }  # fmt: skip
    return {
        "field": "tint", "type": "quantitative", "legend": look if legend else None,
        "scale": {"domain": [-1, 0, 1], "range": "diverging", "interpolate": "rgb"},
    }  # fmt: skip


def _rows(lane: LaneView, strip: Strip | None, found: RatioMap) -> Iterator[tuple[str, ChartRow]]:
    """Yield what is drawn of a strip, with the layer that draws it."""
    if strip is None:
        yield "blank", {"x": lane.lane.start, "x2": lane.lane.end}
        return
    for part, following in itertools.zip_longest(strip.stretches, strip.stretches[1:]):
        if not part.points:
            yield "blank", {"x": part.start, "x2": part.end}
            continue
        goes_on = following is not None and following.points and following.start == part.end
        end = following.end if goes_on else part.end
        yield from (("tints", row) for row in _pieces(part, end, math.log(found.high / found.low) / PIECES))
        if part.kind == "unsure":
            yield "unsure", {"x": part.start, "x2": part.end}
    for point in strip.points:
        yield "sizes", {"x": point.size}
        inside = (point.size * (1 - 1e-9), point.size * (1 + 1e-9))
        if not any(part.points and part.start < inside[1] and inside[0] < part.end for part in strip.stretches):
            yield "blocks", {"x": point.size, "tint": short(tint(point.ratio))}
    yield from _threshold(lane, strip, found)


def _pieces(part: Stretch, end: float, whole: float) -> Iterator[ChartRow]:
    """Yield pieces of one colour, `whole` wide at most. Each reaches below the next one, so that no paper shows between
    them; the last one to `end` at most."""
    for a, b in itertools.pairwise(part.tints()):
        count = max(1, math.ceil(min(math.log(b.size / a.size) / whole, abs(b.ratio - a.ratio) / SHADE)))
        for i in range(count if b.size > a.size else 0):
            low, high = (a.size * (b.size / a.size) ** (place / count) for place in (i, i + 1))
            tinted = a.ratio + (i + 0.5) / count * (b.ratio - a.ratio)
            yield {"x": short(low), "x2": short(min(high * math.exp(whole), end)), "tint": round(tinted, 2)}


def _threshold(lane: LaneView, strip: Strip, found: RatioMap) -> Iterator[tuple[str, ChartRow]]:
    """Yield a thick mark, and a thin bar for its interval; a bracket has the bar alone."""
    cell, row = strip.cell, lane.lane.row
    if cell.kind not in ("at", "range"):
        return
    if cell.n is not None:
        yield "marks", {"x": row.elements(cell.n)}
    if cell.low is not None and cell.high is not None:
        low, high = (min(max(row.elements(n), found.low), found.high) for n in (cell.low, cell.high))
        yield "spans", {"x": low, "x2": high}
