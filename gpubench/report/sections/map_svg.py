"""The map as SVG: each strip a picture of its own that stretches with its place, and all of them in one file.

Only classes say what has which colour: a page and a file bring the style that fits their paper.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from xml.etree.ElementTree import Element

import msgspec

from gpubench.analysis.ratio_map import FULL, MapLane, MapPoint, RatioMap, Stretch, Strip, tint
from gpubench.base.escaping import columns, cut
from gpubench.report.markup import element, fragment
from gpubench.report.sections.map import MEANING, LaneView, MapPanel, MapView, axis_text, ticks

STRIP, LEAST_STRIP = 26.0, 14.0  # points: a lane of one strip, and the strips of a lane that has several
FOOT = 5.0  # below a strip: the dots
_BLOCK = 6.0  # a measured size without neighbours
_HATCH = "hatch"


class Colours(msgspec.Struct, frozen=True, kw_only=True):
    """Of the sides, of what is equal, and of paper and ink."""

    gpu: str
    cpu: str
    even: str
    paper: str
    ink: str
    quiet: str
    line: str


LIGHT = Colours(
    gpu="#0072b2",
    cpu="#c2570c",
    even="#e9ebee",
    paper="#ffffff",
    ink="#1d2329",
    quiet="#5b6470",
    line="#c9cfd6",
)
DARK = Colours(
    gpu="#5cb3ea",
    cpu="#f2935c",
    even="#39414d",
    paper="#14181d",
    ink="#e6e9ee",
    quiet="#a9b1bd",
    line="#4b5563",
)


def style(found: Colours, within: str = "") -> str:
    """The rules for the classes of a map; `within` is a selector of what holds it."""
    rules = {
        ".m-gpu": f"stop-color:{found.gpu}", ".m-cpu": f"stop-color:{found.cpu}", ".m-even": f"fill:{found.even}",
        ".m-paper": f"fill:{found.paper}", ".m-pale": f"fill:{found.paper};fill-opacity:.35",
        ".m-ink": f"stroke:{found.ink}", ".m-halo": f"stroke:{found.paper}", ".m-dot": f"fill:{found.quiet}",
        ".m-line": f"stroke:{found.line}", ".m-text": f"fill:{found.ink}", ".m-quiet": f"fill:{found.quiet}",
    }  # fmt: skip
    return "".join(f"{within}{name}{{{rule}}}" for name, rule in rules.items())


def definitions() -> Element:
    """The hatch, which all strips of a document share."""
    line = element(
        "path", {"d": "M-2 2l4-4M0 8l8-8M6 10l4-4", "class": "m-line", "stroke-width": "1", "fill": "none"}
    )
    return element(
        "defs",
        {},
        element("pattern", {"id": _HATCH, "width": "8", "height": "8", "patternUnits": "userSpaceOnUse"}, line),
    )


def strip_height(count: int) -> float:
    """Of each of `count` strips that share a lane."""
    return max(STRIP / count, LEAST_STRIP) if count > 1 else STRIP


def lane_height(count: int) -> float:
    return strip_height(count) * count + FOOT


def lane_svg(view: LaneView, found: RatioMap, name: str, **place: str) -> Element:
    """The strips of a lane. Sizes are percents, so that it fills whatever width it gets; `name` begins its ids."""
    count = len(view.strips)
    height = strip_height(count)
    parts = [element("title", {}, view.text)]
    for i, strip in enumerate(view.strips):
        # A hair of paper between two sides.
        tall = height - (1.0 if count > 1 and i < count - 1 else 0.0)
        parts += _strip(strip.strip, view.lane, found, f"{name}-{i}", i * height, tall)
    for i, strip in enumerate(view.strips):
        # At its last strip the dots stand below the lane, at the others in the hair between two.
        bottom = (i + 1) * height + (2 if i == count - 1 else -0.5)
        parts += _dots(strip.strip, found, bottom)
    size = {"width": "100%", "height": _number(lane_height(count)), "overflow": "visible"}
    return element("svg", {**size, **place}, *parts)


def _strip(
    strip: Strip | None, lane: MapLane, found: RatioMap, name: str, top: float, tall: float
) -> Iterable[Element]:
    if strip is None:
        yield _rect(found, lane.start, lane.end, top, tall, fill=f"url(#{_HATCH})")
        return
    for part in strip.stretches:
        if not part.points:
            yield _rect(found, part.start, part.end, top, tall, fill=f"url(#{_HATCH})")
    runs = [
        list(run)
        for known, run in itertools.groupby(strip.stretches, key=lambda part: bool(part.points))
        if known
    ]
    for i, run in enumerate(_unbroken(runs)):
        yield from _run(run, found, f"{name}-{i}", top, tall)
    for point in strip.points:
        if not any(part.points and part.start <= point.size <= part.end for part in strip.stretches):
            yield from _block(found, point.size, point.ratio, f"{name}-at{point.size:g}", top, tall)
    yield from _threshold(strip, lane, found, top, tall)


def _dots(strip: Strip | None, found: RatioMap, bottom: float) -> Iterable[Element]:
    """The measured sizes."""
    for point in strip.points if strip is not None else ():
        place = _percent(found.position(point.size))
        yield element("circle", {"cx": place, "cy": _number(bottom), "r": "1.6", "class": "m-dot"})


def _unbroken(runs: Iterable[Sequence[Stretch]]) -> Iterable[list[Stretch]]:
    """Stretches that touch each other."""
    for run in runs:
        together: list[Stretch] = []
        for part in run:
            if together and together[-1].end != part.start:
                yield together
                together = []
            together.append(part)
        if together:
            yield together


def _run(run: Sequence[Stretch], found: RatioMap, name: str, top: float, tall: float) -> Iterable[Element]:
    """Draw the curves of both sides: the tints of the sides over grey."""
    start, end = run[0].start, run[-1].end
    low, high = found.position(start), found.position(end)
    stops = []
    for part in run:
        for point in part.tints():
            share = (found.position(point.size) - low) / (high - low) if high > low else 0.0
            stops.append(_stop(share, point.ratio))
    yield element("defs", {}, element("linearGradient", {"id": name}, *_thinned(stops)))
    yield _rect(found, start, end, top, tall, **{"class": "m-even"})
    yield _rect(found, start, end, top, tall, fill=f"url(#{name})")
    for part in run:
        if part.kind == "unsure":
            yield _rect(found, part.start, part.end, top, tall, **{"class": "m-pale"})


def _stop(share: float, strength: float) -> Element:
    """A tint, as the colour of its side that covers the grey below in part."""
    side = "m-gpu" if strength >= 0 else "m-cpu"
    return element("stop", {"offset": _percent(share), "class": side, "stop-opacity": f"{abs(strength):.3g}"})


def _thinned(stops: Sequence[Element]) -> list[Element]:
    """Without those that repeat the one before."""
    return [stop for i, stop in enumerate(stops) if not i or stop.attrib != stops[i - 1].attrib]


def _block(found: RatioMap, size: float, ratio: float, name: str, top: float, tall: float) -> Iterable[Element]:
    """One measured size alone, of which nothing can be interpolated."""
    strength = tint(ratio)
    stops = [_stop(share, strength) for share in (0.0, 1.0)]
    place = {
        "x": _percent(found.position(size)), "y": _number(top), "width": _number(_BLOCK), "height": _number(tall),
        "transform": f"translate({-_BLOCK / 2:g} 0)",
    }  # fmt: skip
    yield element("defs", {}, element("linearGradient", {"id": name}, *stops))
    yield element("rect", {**place, "class": "m-even"})
    yield element("rect", {**place, "fill": f"url(#{name})"})


def _threshold(strip: Strip, lane: MapLane, found: RatioMap, top: float, tall: float) -> Iterable[Element]:
    """A thick mark, a thin bar with ends for its interval; a bracket has the bar alone."""
    cell, row = strip.cell, lane.row
    if cell.kind not in ("at", "range"):
        return
    middle = top + tall / 2
    at = None if cell.n is None else found.position(row.elements(cell.n))
    if at is not None:
        yield _line(at, at, top, top + tall, "6", "m-halo")
    if cell.low is not None and cell.high is not None:
        ends = [found.position(min(max(row.elements(n), found.low), found.high)) for n in (cell.low, cell.high)]
        tick = min(5.0, tall / 3)
        for place in ends:
            yield _line(place, place, middle - tick, middle + tick, "1.4")
        yield _line(ends[0], ends[1], middle, middle, "1.4")
    if at is not None:
        yield _line(at, at, top - 1, top + tall + 1, "3")


def _line(x1: float, x2: float, y1: float, y2: float, width: str, name: str = "m-ink") -> Element:
    return element(
        "line",
        {
            "x1": _percent(x1),
            "x2": _percent(x2),
            "y1": _number(y1),
            "y2": _number(y2),
            "class": name,
            "stroke-width": width,
        },
    )


def _rect(found: RatioMap, start: float, end: float, top: float, tall: float, **look: str) -> Element:
    low, high = found.position(start), found.position(end)
    size = {"x": _percent(low), "y": _number(top), "width": _percent(high - low), "height": _number(tall)}
    return element("rect", {**size, **look})


def axis_svg(found: RatioMap, **place: str) -> Element:
    """The sizes below the lanes."""
    parts = []
    for share, text in ticks(found):
        anchor = "start" if share == 0 else "end" if share == 1 else "middle"
        parts.append(
            element(
                "line", {"x1": _percent(share), "x2": _percent(share), "y1": "0", "y2": "4", "class": "m-line"}
            )
        )
        parts.append(
            element("text", {"x": _percent(share), "y": "17", "text-anchor": anchor, "class": "m-quiet"}, text)
        )
    return element("svg", {"width": "100%", "height": "22", "overflow": "visible", **place}, *parts)


def scale_svg(name: str, **place: str) -> Element:
    """What the colours mean: the same tints as in the lanes, from the CPU's to the GPU's."""
    ends = (MapPoint(1 / FULL, 1 / FULL), MapPoint(FULL, FULL))
    whole = Stretch(kind="known", start=1 / FULL, end=FULL, points=ends)
    axis = RatioMap(low=1 / FULL, high=FULL)
    names = (
        (1 / FULL, f"CPU {FULL:.0f}x"),
        (1 / 6, "6x"),
        (1.0, "about equal"),
        (6.0, "6x"),
        (FULL, f"GPU {FULL:.0f}x"),
    )
    texts = []
    for ratio, text in names:
        share = axis.position(ratio)
        anchor = "start" if share <= 0 else "end" if share >= 1 else "middle"
        texts.append(
            element("text", {"x": _percent(share), "y": "28", "text-anchor": anchor, "class": "m-quiet"}, text)
        )
    return element(
        "svg", {"width": "100%", "height": "32", "overflow": "visible", **place},
        *_run([whole], axis, name, 0.0, 14.0), *texts,
    )  # fmt: skip


# ---------------------------------------------------------------- all of it in one file

WIDTH = 1280.0
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"
_LETTERING = (
    f".m-map text{{font:13px {_FONT}}}.m-map .big{{font-size:16px;font-weight:600}}"
    ".m-map .bold{font-size:15px;font-weight:600}"
)
_SIDE, _BETWEEN, _LETTER, _PITCH_GAP = 24.0, 28.0, 7.6, 5.0
_HEAD, _LINE, _TAIL = 86.0, 18.0, 110.0
_MOST_LETTERS = 170  # of a line across the whole picture


def map_svg(view: MapView, *, colours: Colours = LIGHT, dark: Colours | None = None) -> str:
    """The map as a file. `dark`: the colours where its reader prefers those."""
    label = _LETTER * max(columns(lane.label) for lane in view.panels[0].lanes) + 14
    gain = _LETTER * max(
        columns(text) for panel in view.panels for lane in panel.lanes for text in gains(lane)
    ) + 14  # fmt: skip
    count = len(view.panels)
    wide = (WIDTH - 2 * _SIDE - label - count * gain - (count - 1) * _BETWEEN) / count
    head = _HEAD + _LINE * len(view.origin)
    pitch = lane_height(len(view.panels[0].lanes[0].strips)) + _PITCH_GAP
    bottom = head + pitch * len(view.panels[0].lanes)
    height = bottom + _TAIL
    rules = style(colours) + _LETTERING
    rules += f"@media(prefers-color-scheme:dark){{{style(dark)}}}" if dark else ""
    sheet = element("style", {})
    sheet.text = rules
    parts = [
        sheet, definitions(), element("rect", {"width": "100%", "height": "100%", "class": "m-paper"}),
        _text(_SIDE, 34, cut(view.title, _MOST_LETTERS * 4 // 5), "m-text big"),
        *(_text(_SIDE, 56 + _LINE * i, cut(text, _MOST_LETTERS), "m-quiet") for i, text in enumerate(view.origin)),
    ]  # fmt: skip
    left = _SIDE + label
    for i, panel in enumerate(view.panels):
        parts += _panel(panel, view.found, f"p{i}", (left, head, wide, pitch), labels=not i)
        left += wide + gain + _BETWEEN
    parts += _legend(_SIDE + label, bottom + 60)
    size = {"width": _number(WIDTH), "height": _number(height), "viewBox": f"0 0 {WIDTH:g} {height:g}"}
    return (
        fragment(
            element(
                "svg",
                {"xmlns": "http://www.w3.org/2000/svg", "version": "1.1", "class": "m-map", **size},
                *parts,
            ),
            xml=True,
        )
        + "\n"
    )


def _panel(
    panel: MapPanel, found: RatioMap, name: str, place: tuple[float, float, float, float], *, labels: bool
) -> list[Element]:
    left, head, wide, pitch = place
    parts = [_text(left, head - 14, panel.situation, "m-text bold")]
    for i, lane in enumerate(panel.lanes):
        top = head + pitch * i
        tall = strip_height(len(lane.strips))
        if labels:
            parts.append(
                _text(left - 10, top + tall * len(lane.strips) / 2 + 5, lane.label, "m-text", anchor="end")
            )
        where = {"x": _number(left), "y": _number(top), "width": _number(wide)}
        parts.append(lane_svg(lane, found, f"{name}l{i}", **where))
        parts += [
            _text(left + wide + 10, top + tall * (j + 0.5) + 4.5, text, "m-text")
            for j, text in enumerate(gains(lane))
        ]
    below = head + pitch * len(panel.lanes)
    parts.append(axis_svg(found, x=_number(left), y=_number(below), width=_number(wide)))
    parts.append(_text(left + wide / 2, below + 36, axis_text(panel.lanes), "m-quiet", anchor="middle"))
    return parts


def gains(lane: LaneView) -> list[str]:
    """What stands at the right of each strip; with its name where a lane has several."""
    return [f"{strip.name} {strip.gain}".strip() for strip in lane.strips]


def _legend(left: float, top: float) -> list[Element]:
    scale = scale_svg("scale", x=_number(left), y=_number(top), width="420")
    half = len(MEANING) // 2
    cut = MEANING.index(" ", half)
    texts = (MEANING[:cut], MEANING[cut + 1 :])
    return [scale, *(_text(left + 452, top + 11 + 18 * i, text, "m-quiet") for i, text in enumerate(texts))]


def _text(x: float, y: float, text: str, name: str, *, anchor: str = "start") -> Element:
    return element("text", {"x": _number(x), "y": _number(y), "class": name, "text-anchor": anchor}, text)


def _percent(share: float) -> str:
    return f"{share * 100:.5g}%"


def _number(value: float) -> str:
    return f"{value:.6g}"
