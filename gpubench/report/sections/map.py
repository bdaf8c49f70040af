"""The map: which side wins at which size, by op and situation, in characters and as Vega-Lite.

A picture names the two sides, the machine, the dtypes and the date, because it is read without its report.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from gpubench import __version__
from gpubench.analysis.analyse import Analysis
from gpubench.analysis.answer import held_against
from gpubench.analysis.speedup import EQUAL, about_equal, cpu_codes
from gpubench.analysis.thresholds import cell_text, size_text
from gpubench.analysis.winners import FULL, MapLane, RatioMap, Strip, fastest_map, ratio_map, tint
from gpubench.base import group_by
from gpubench.base.plugins.sections import section
from gpubench.base.streams import columns, cut, cut_middle, fill, pad, printable, shorten
from gpubench.base.table import Cell, Line, Tone, trim
from gpubench.report.charts import ChartRow, quantity, short, word
from gpubench.report.layout import RenderOptions, Section
from gpubench.report.sections.answer_text import gain_text
from gpubench.report.wording import cpu_names, cpu_text, device_names, gpus_text, situation_text, with_params
from gpubench.result.case import beside_size, own_names

KEY, TITLE = "map", "Map: who wins at which size"
_ELEMENTS, _PLAIN = "elements of one array (of a matrix: side²)", "the op's size: rows, tokens or images"
MEANING = (
    "Colour: who wins, and by how much. Thick mark: the GPU pays from here. Thin bar: where that may lie. Dots: sizes "
    "measured. Dotted line: not measured, or no true number. At the right: the gain at the largest size measured. K is "
    "1024, M is 1024 K."
)


class MapRow(msgspec.Struct, frozen=True, kw_only=True):
    """One strip of the map with its texts."""

    lane: MapLane  # the lane of the strip's op
    op: str  # the name of the op as shown
    side: str = ""  # the name of the GPU or machine, if there are several
    strip: Strip | None  # the strip; None if the side did not measure the op

    @property
    def gain(self) -> str:
        """The gain at the largest size as text, or `wrong`, `failed` or `-` if there is none."""
        cell = None if self.strip is None else self.strip.cell
        if cell is not None and cell.kind in ("wrong", "failed"):
            return cell.kind
        return "-" if cell is None or cell.gain is None else gain_text(cell.gain)

    @property
    def text(self) -> str:
        """The break-even and the gain as text, for the tooltip."""
        what = f"{self.op} {self.side}".strip()
        if self.strip is None:
            return f"{what}: not measured"
        counted, gain = self.lane.row.size_unit, self.strip.cell.gain
        at = "" if gain is None else f", {self.gain} at {size_text(gain.n, counted)}"
        return f"{what} pays from: {cell_text(self.strip.cell, counted)}{at}"


class MapView(msgspec.Struct, frozen=True, kw_only=True):
    """A map to draw: a panel for each situation, side by side, with a common axis."""

    title: str  # the compared devices
    origin: tuple[str, ...]  # the lines that name the run or the machines
    panels: dict[str, tuple[MapRow, ...]]  # the rows of each panel, by the name of the situation
    ends: RatioMap  # the map whose axis covers all sizes


def map_view(analysis: Analysis, backend: str | None = None) -> MapView | None:
    """Return the map of a run for `backend` (None: its fastest GPU backend), or None if no GPU was compared."""
    ratios = fastest_map(analysis) if backend is None else ratio_map(analysis, backend)
    if not ratios.lanes:
        return None
    names = device_names(ratios.shown)
    sides = [(name if len(names) > 1 else "", device) for device, name in names.items()]
    dtypes = sorted({lane.row.dtype for lane in ratios.lanes})
    return MapView(
        title=sides_text(analysis, ratios.shown), origin=(origin_text(analysis, dtypes),),
        panels=_panels(ratios.lanes, ratios.situations, sides), ends=ratios,
    )  # fmt: skip


def _panels(
    lanes: Sequence[MapLane], regimes: Sequence[str], sides: Sequence[tuple[str, str]]
) -> dict[str, tuple[MapRow, ...]]:
    """Return the rows of a panel for each of `regimes`, by the name of the situation. `sides` are pairs (name
    beside the strips, key of the strips). A lane has a row for each side that measured its op."""
    names = own_names(lane.row.op for lane in lanes)
    dtypes = len({lane.row.dtype for lane in lanes}) > 1
    labels = [
        with_params(names[lane.row.op], lane.row.params) + (f" {lane.row.dtype}" if dtypes else "")
        for lane in lanes
    ]
    return {
        situation_text(regime): tuple(
            MapRow(lane=lane, op=printable(label), side=name, strip=lane.strips.get((side, regime)))
            for lane, label in zip(lanes, labels, strict=True)
            for name, side in sides
            if any((side, other) in lane.strips for other in regimes)
        )
        for regime in regimes
    }


def overlay_view(analyses: Sequence[Analysis], names: Sequence[str]) -> MapView | None:
    """Return the maps of several machines as one map, in which every lane has a strip for each machine. `names`
    holds texts such as `A: AMD EPYC 7763`. Returns None if fewer than two machines have a map."""
    maps = [fastest_map(analysis) for analysis in analyses]
    letters = [name.partition(":")[0] for name in names]
    filled_maps = [(letter, ratios) for letter, ratios in zip(letters, maps, strict=True) if ratios.lanes]
    if len(filled_maps) < 2:
        return None
    lanes = group_by(
        ((name, ratios.shown[0], lane) for name, ratios in filled_maps for lane in ratios.lanes),
        lambda side: (side[2].row.op, side[2].row.dtype, beside_size(side[2].row.params)),
    )
    whole = RatioMap(
        lanes=tuple(map(_join, lanes.values())), low=min(ratios.low for _, ratios in filled_maps),
        high=max(ratios.high for _, ratios in filled_maps),
    )  # fmt: skip
    situations = list(dict.fromkeys(regime for _, ratios in filled_maps for regime in ratios.situations))[:2]
    sides = [(name, name) for name, _ in filled_maps]
    return MapView(
        title=f"{len(filled_maps)} machines over each other", ends=whole,
        origin=tuple(name for name, ratios in zip(names, maps, strict=True) if ratios.lanes),
        panels=_panels(whole.lanes, situations, sides),
    )  # fmt: skip


def _join(sides: Sequence[tuple[str, str, MapLane]]) -> MapLane:
    """Join the lanes of an op on several machines; `sides` are (machine name, id of the shown device, lane)."""
    return MapLane(
        row=sides[0][2].row, start=min(lane.start for _, _, lane in sides), end=max(lane.end for _, _, lane in sides),
        strips={
            (name, regime): strip
            for name, device, lane in sides
            for (other, regime), strip in lane.strips.items()
            if other == device
        },
    )  # fmt: skip


class MapPart(NamedTuple):
    """A part of a strip."""

    low: float  # the size at which the part begins
    high: float  # the size at which the part ends
    ratio: float | None  # CPU time / GPU time; None: unknown


def _parts(strip: Strip | None, ends: RatioMap, count: int) -> list[MapPart]:
    """Return the strip in `count` parts, which are equally long on the log axis `ends`. An axis of a single
    size has one part."""
    low, high = ends.low, ends.high
    if high <= low:
        low, high, count = low * 0.96, high * 1.04, 1
    step = (high / low) ** (1 / count)
    parts = []
    for i in range(count):
        start, end = low * step**i, low * step ** (i + 1)
        # The last part includes the end of the axis.
        ratio = None if strip is None else strip.ratio_between(start, end * 2 if i == count - 1 else end)
        parts.append(MapPart(start, end, ratio))
    return parts


# ---------------------------------------------------------------- the axis, in words


def ticks(ends: RatioMap, room: float = 0.15) -> list[tuple[float, str]]:
    """Return pairs (position, text) for the labels on the axis: both ends, and powers of eight between them.
    Labels lie at least `room` apart. Positions and `room` are shares of the axis. An axis of a single size has
    one label."""
    low, high = ends.low, ends.high
    named = [(0.0, size_text(round(low), "elements"))]
    if high <= low:
        return [(0.5, named[0][1])]
    for power in range(math.ceil(math.log2(low) / 3), math.floor(math.log2(high) / 3) + 1):
        place = ends.position(8.0**power)
        # The label of the high end lies to the left of this end, so it needs more room.
        if place - named[-1][0] >= room and 1 - place >= room * 1.7:
            named.append((place, size_text(8**power, "elements")))
    return [*named, (1.0, size_text(round(high), "elements"))]


def axis_text(rows: Iterable[MapRow]) -> str:
    """Return the unit of the sizes on the axis, or both units if ops count sizes differently."""
    plain = [entry.lane.row.size_unit == "plain" for entry in rows]
    return _PLAIN if all(plain) else _ELEMENTS if not any(plain) else f"{_ELEMENTS}; else {_PLAIN}"


# ---------------------------------------------------------------- in characters

_CPU, _EQUAL, _FAILED = "·", "=", "x"
_STEPS = ((30.0, "█"), (10.0, "▆"), (3.0, "▄"), (EQUAL, "▂"))
_ASCII = str.maketrans({"·": ".", "▂": "-", "▄": "+", "▆": "*", "█": "#", "²": "2"})
_GAP = "  "
_FEWEST_CELLS, _LONGEST_LABEL = 12, 16
_WORDS = (
    f"{_CPU} CPU wins  {_EQUAL} about equal  GPU by ▂ {EQUAL}x ▄ 3x ▆ 10x █ 30x  blank: not measured  K = 1024"
)


@section("map", order=40, usual=False, help="Who wins at which size, as a picture")
def map_section(analysis: Analysis, options: RenderOptions) -> Section | None:
    """Return the section of the map, or None if no GPU was compared with a CPU. In a full report the section
    has a title and a picture, else it is a screen."""
    view = map_view(analysis)
    if view is None:
        return None
    lines = draw_map(view, options.width, ascii_only=options.ascii_only)
    if options.full:
        return Section(title=TITLE, lines=(" · ".join((view.title, *view.origin)),), picture=tuple(lines))
    wide = columns(view.title) > options.width
    title = sides_text(analysis, view.ends.shown, short=True) if wide else view.title
    heads: list[Line] = [(Cell(cut(text, options.width)),) for text in (title, *view.origin)]
    heads = [_in_ascii(line) for line in heads] if options.ascii_only else heads
    return Section(title=TITLE, screen=(*heads, *lines))


def draw_map(view: MapView, width: int, *, ascii_only: bool) -> list[Line]:
    """Return the panels as lines of text of at most `width` columns. Panels are side by side, or below each
    other if lanes would be too short. `ascii_only` replaces the blocks by ASCII."""
    panels = [*view.panels.items()]
    labels = [f"{entry.op} {entry.side}".strip() for entry in panels[0][1]]
    margin = min(max(map(columns, labels)), _LONGEST_LABEL) + len(_GAP)
    room = width - margin + len(_GAP)
    beside = room // len(panels) - len(_GAP) >= _FEWEST_CELLS * 2
    lines: list[Line] = []
    for group in [panels] if beside else [[panel] for panel in panels]:
        cells = max(_FEWEST_CELLS, room // len(group) - len(_GAP))
        lines += _head(view.ends, [name for name, _ in group], margin, cells)
        for i, label in enumerate(labels):
            line = [Cell(pad(cut_middle(label, margin - len(_GAP)), margin))]
            for j, (_, rows) in enumerate(group):
                line += [*([Cell(_GAP)] if j else []), *strip_cells(rows[i].strip, view.ends, cells)]
            lines.append(trim(line))
    failed = any(cell.text.strip() == _FAILED for line in lines for cell in line[1:])
    words = _WORDS + (f"  {_FAILED} no true number" if failed else "")
    lines += [(Cell(text, "muted"),) for text in _wrap(words, width)]
    return [_in_ascii(line) for line in lines] if ascii_only else lines


def _head(ends: RatioMap, names: Sequence[str], margin: int, cells: int) -> list[Line]:
    titles = _GAP.join(pad(cut(name, cells), cells) for name in names)
    axis, taken = [" "] * cells, cells
    for place, text in reversed(ticks(ends, room=0.0)):
        start = max(0, min(round(place * cells), cells - len(text)))
        if start + len(text) < taken or taken == cells:
            axis[start : start + len(text)] = text
            taken = start
    axes = _GAP.join("".join(axis) for _ in names)
    return [(Cell(" " * margin + text.rstrip(), "muted"),) for text in (titles, axes)]


def strip_cells(strip: Strip | None, ends: RatioMap, count: int) -> list[Cell]:
    """Return a strip as `count` characters. Neighbouring characters of the same colour form one cell."""
    signs = [_sign(strip, part) for part in _parts(strip, ends, count)]
    runs = itertools.groupby(signs, key=lambda sign: sign[1])
    return [Cell("".join(sign for sign, _ in run), tone) for tone, run in runs]


def _sign(strip: Strip | None, piece: MapPart) -> tuple[str, Tone]:
    if piece.ratio is None:
        middle = math.sqrt(piece.low * piece.high)
        stretches = () if strip is None else strip.stretches
        failed = any(part.kind == "failed" and part.start <= middle <= part.end for part in stretches)
        return (_FAILED, "bad") if failed else (" ", "plain")
    if about_equal(piece.ratio):
        return _EQUAL, "muted"
    return next(((sign, "gpu") for least, sign in _STEPS if piece.ratio >= least), (_CPU, "cpu"))


def _wrap(text: str, width: int) -> list[str]:
    """Wrap the text at its double blanks, for lines of `width` columns."""
    lines = [""]
    for group in text.split("  "):
        longer = f"{lines[-1]}  {group}" if lines[-1] else group
        if columns(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(group)
    return lines


def _in_ascii(line: Line) -> Line:
    return tuple(Cell(cell.text.translate(_ASCII), cell.tone) for cell in line)


# ---------------------------------------------------------------- what a picture names


def sides_text(analysis: Analysis, device_ids: Sequence[str], *, short: bool = False) -> str:
    """Return a text such as `NVIDIA H200 (CuPy) against 16 CPU threads (numba, OpenBLAS 0.3.34)`. It names only
    one side if `device_ids` is empty or no CPU has a time. `short` leaves out versions."""
    rows = held_against(analysis.break_even, device_ids) or [
        case for case in analysis.cases if case.time is not None
    ]
    names = cpu_names(cpu_codes(analysis.run, rows), short=short, versions=not short)
    sides = (gpus_text(analysis.run, device_ids), cpu_text(analysis.run, names) if names else "")
    text = " against ".join(filter(None, sides))
    return printable(text[:1].upper() + text[1:])


def origin_text(analysis: Analysis, dtypes: Iterable[str] = ()) -> str:
    """Return a text with the dtypes, date, version, label and host of a picture. An example is `float32 ·
    2026-11-20 · gpubench 0.1.0 · AMD EPYC 7763, 16 CPUs, 126 GiB RAM`."""
    run = analysis.run
    host = analysis.machine.partition("; ")[0]
    label = [shorten(run.label, 30)] if run.label else []
    version = run.tool.get("gpubench", __version__)
    parts = [*dict.fromkeys(dtypes), run.started_at[:10], f"gpubench {version}", *label, host]
    return printable(" · ".join(parts))


# ---------------------------------------------------------------- as Vega-Lite

STEP, NARROW_STEP = 30, 17  # the height of a strip in points, for lanes with one strip and with several
PIECES, SHADE = 80, 0.025  # parts of the axis, and the step of a tint
_HALF, _WIDE, _LETTERS = 430, 900, 170  # the width of a panel in points, and the letters of a line of text
_LEGEND = 260  # the length of the colour legend in points; on a page, at most the length of the axis
_LONG: Any = {"expr": f"min({_LEGEND}, width)"}
_LABEL = "split(datum.label, '\\t')[{}]"  # the key of a lane consists of its number, its op and its gain


def map_specs(view: MapView, long: Any = _LONG) -> list[ChartRow]:
    """Return a Vega-Lite spec for each panel, as wide as its container. The first spec has the colour legend,
    whose length is `long`."""
    return [
        _panel(name, rows, view.ends, legend=None if i else long)
        for i, (name, rows) in enumerate(view.panels.items())
    ]


def lane_specs(view: MapView) -> list[ChartRow]:
    """Return a Vega-Lite spec for each panel, to be drawn inside a table whose rows have the names and gains."""
    return [_panel("", rows, view.ends, legend=None, step=STEP) for rows in view.panels.values()]


def map_picture(view: MapView) -> ChartRow:
    """Return the whole map with its texts as one Vega-Lite spec, for use outside a page."""
    specs = map_specs(view, _LEGEND)
    words = [*view.origin, *fill(MEANING, _LETTERS, "")]
    return {
        "title": {"text": view.title, "subtitle": words, "anchor": "start"},
        "hconcat": [spec | {"width": _WIDE if len(specs) == 1 else _HALF} for spec in specs],
    }  # fmt: skip


def _panel(
    situation: str, strips: Sequence[MapRow], ends: RatioMap, *, legend: Any, step: int | None = None
) -> ChartRow:
    """Return the spec of one panel, with a title, names and gains if `situation` is not empty."""
    step = step or (NARROW_STEP if any(entry.side for entry in strips) else STEP)
    rows: defaultdict[str, list[ChartRow]] = defaultdict(list)
    names = []
    for i, entry in enumerate(strips):
        first = not i or entry.lane is not strips[i - 1].lane
        name = f"{i}\t{entry.op if first else ''}\t{entry.side} {entry.gain}"
        names.append(name)
        rows["lanes"].append(
            {
                "lane": name,
                "x": ends.low,
                "x2": ends.high,
                "text": entry.text + (f" ({situation})" if situation else ""),
            }
        )
        for kind, part in _rows(entry, ends):
            rows[kind].append({"lane": name, **part})
    tall, low = round(step * 0.75), step * 0.45
    blur = {"color": _color(legend)}
    at = {"x": _size(ends, strips, titled=bool(situation))}
    span = at | {"x2": {"field": "x2"}}
    tips = [{"lane": entry["lane"], "x": entry[end]} for entry in rows["spans"] for end in ("x", "x2")]
    tick: dict[str, Any] = {"type": "tick", "orient": "vertical", "opacity": 1}
    ops_axis, gains_axis = (
        _lanes(names, _LABEL.format(i), side) if situation else {} for i, side in ((1, "left"), (2, "right"))
    )
    layers = [
        _layer(rows["lanes"], {"type": "rect", "opacity": 0}, ops_axis, span),
        _layer(rows["blank"], {"type": "rule", "style": "quiet", "strokeWidth": 1.5, "strokeDash": [1.5, 5]}, span),
        _layer(rows["tints"], {"type": "rect", "height": tall}, span, blur),
        _layer(rows["sizes"], {"type": "circle", "size": 8, "opacity": 1, "style": "quiet", "yOffset": low}, at),
        _layer(rows["marks"], tick | {"thickness": 6, "size": tall, "style": "paper"}, at),
        _layer(rows["spans"], {"type": "rule", "style": "ink", "strokeWidth": 1.4}, span),
        _layer(tips, tick | {"thickness": 1.4, "size": tall * 0.4, "style": "ink"}, at),
        _layer(rows["marks"], tick | {"thickness": 3, "size": tall + 2, "style": "ink"}, at),
        _layer(
            rows["lanes"], {"type": "rect", "opacity": 0}, gains_axis, span,
            {"tooltip": word("text")},
        ),
    ]  # fmt: skip
    title = {"title": {"text": situation, "anchor": "start", "frame": "group"}} if situation else {"padding": 0}
    return {
        **title,
        "width": "container", "height": step * len(names),
        "encoding": {"y": word("lane", scale={"domain": names}, axis=None)},
        "resolve": {"axis": {"y": "independent"}}, "layer": layers,
    }  # fmt: skip


def _layer(rows: Sequence[ChartRow], mark: ChartRow, *encodings: ChartRow) -> ChartRow:
    encoding = {channel: field for part in encodings for channel, field in part.items()}
    return {"data": {"values": rows}, "mark": mark, "encoding": encoding}


def _lanes(names: Sequence[str], label: str, orient: str) -> ChartRow:
    """Return the y encoding of the lanes `names`, with `label` as the Vega expression for their texts."""
    axis = {
        "title": None, "orient": orient, "domain": False, "ticks": False, "labelExpr": label, "labelLimit": 130,
        "labelPadding": 8,
    }  # fmt: skip
    return {"y": word("lane", scale={"domain": names}, axis=axis)}


def _size(ends: RatioMap, strips: Sequence[MapRow], *, titled: bool) -> ChartRow:
    """Return the encoding of the axis of sizes below the lanes."""
    alone = ends.high <= ends.low
    named = {round(ends.low * (ends.high / ends.low) ** share): text for share, text in ticks(ends)}
    text = " : ".join(f"datum.value == {size} ? '{text}'" for size, text in named.items())
    axis = {
        "title": axis_text(strips).split("; ") if titled else None,
        "values": list(named),
        "labelExpr": f"{text} : ''",
        "grid": False,
        "domain": False,
        "labelSeparation": 2,
    }
    domain = [ends.low / 2, ends.high * 2] if alone else [ends.low, ends.high]
    return quantity("x", axis=axis, scale={"type": "log", "domain": domain, "nice": False})


def _color(length: Any) -> ChartRow:
    """Return the encoding of the tint, from the CPU's to the GPU's colour. `length` is the length of its legend,
    or None for no legend."""
    look = {
        "title": None, "orient": "bottom", "direction": "horizontal", "gradientLength": length, "gradientThickness": 12,
        "gradientOpacity": 1, "values": [-1, 0, 1],
        "labelExpr": f"datum.value < 0 ? 'CPU {FULL:.0f}x' : datum.value > 0 ? 'GPU {FULL:.0f}x' : 'about equal'",
    }  # fmt: skip
    scale = {"domain": [-1, 0, 1], "range": "diverging", "interpolate": "rgb"}
    return quantity("tint", legend=look if length else None, scale=scale)


def _rows(entry: MapRow, ends: RatioMap) -> Iterator[tuple[str, ChartRow]]:
    """Yield the pieces of which the chart draws a strip, as pairs (name of a layer, row of data)."""
    parts = [
        part
        for part in _parts(entry.strip, ends, PIECES)
        if part.high > entry.lane.start and part.low < entry.lane.end
    ]
    runs = [(shade, list(run)) for shade, run in itertools.groupby(parts, key=_shade)]
    for (shade, run), following in itertools.zip_longest(runs, runs[1:]):
        low, high = run[0].low, run[-1].high
        if shade is None:
            yield "blank", {"x": short(low), "x2": short(high)}
            continue
        # Each tint reaches below the next one, so that no background shows between them.
        if following is not None and following[0] is not None:
            high = following[1][0].high
        yield "tints", {"x": short(low), "x2": short(high), "tint": shade}
    if entry.strip is None:
        return
    yield from (("sizes", {"x": point.size}) for point in entry.strip.points)
    # A thick mark for the break-even, if it is known, and a thin bar for its interval.
    cell, elements = entry.strip.cell, entry.lane.row.elements
    if cell.kind in ("at", "range"):
        if cell.n is not None:
            yield "marks", {"x": elements(cell.n)}
        if cell.low is not None and cell.high is not None:
            low, high = (min(max(elements(n), ends.low), ends.high) for n in (cell.low, cell.high))
            yield "spans", {"x": low, "x2": high}


def _shade(part: MapPart) -> float | None:
    return None if part.ratio is None else round(tint(part.ratio) / SHADE) * SHADE
