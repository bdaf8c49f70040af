"""The map in words and in characters: which panels it has, what stands in their margins, how a terminal draws it.

And what a picture names, since it travels without its report: the two sides, the machine, the dtypes, the date.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from gpubench import __version__
from gpubench.analysis.analyse import Analysis
from gpubench.analysis.answer import held_against
from gpubench.analysis.ratio_map import MapLane, RatioMap, Strip, ratio_map
from gpubench.analysis.speedup import EQUAL, cpu_codes
from gpubench.analysis.thresholds import cell_text, size_text
from gpubench.base.escaping import columns, cut, padded, printable, shortened
from gpubench.base.groups import group_by
from gpubench.base.plugins.sections import section
from gpubench.base.table import Cell, Line, Tone, line_text, trimmed
from gpubench.report.layout import Picture, RenderOptions, Section
from gpubench.report.sections.answer_text import backend_text, gain_text, series_text
from gpubench.report.sections.baseline import cpu_names, threads_text
from gpubench.report.wording import situation_text
from gpubench.result.case import beside_size, own_names

KEY, TITLE = "map", "Map: who wins at which size"
_ELEMENTS, _PLAIN = "elements of one array (of a matrix: side²)", "the op's size: rows, tokens or images"
MEANING = (
    "Thick mark: the GPU pays from here. Thin bar: where that may lie. Dots: sizes measured. Dotted line: not "
    "measured, or no true number. Paler: either side may win. At the right: the gain at the largest size measured. "
    "K is 1024, M is 1024 K."
)


class StripView(msgspec.Struct, frozen=True, kw_only=True):
    """One strip with the words beside it. `name`: which of several sides it is. `strip` is None where that side has
    nothing of this op."""

    strip: Strip | None
    name: str = ""
    gain: str = ""


class LaneView(msgspec.Struct, frozen=True, kw_only=True):
    """One op: its strips from top to bottom. `text` says the same in words."""

    lane: MapLane
    label: str
    strips: tuple[StripView, ...]
    text: str


class MapPanel(msgspec.Struct, frozen=True, kw_only=True):
    """One situation of all lanes."""

    situation: str
    lanes: tuple[LaneView, ...]


class MapView(msgspec.Struct, frozen=True, kw_only=True):
    """What is drawn: panels side by side over one axis. `names`: what the strips of a lane are, where they are
    several."""

    title: str
    origin: tuple[str, ...]
    panels: tuple[MapPanel, ...]
    found: RatioMap
    names: tuple[str, ...] = ()


def map_view(
    analysis: Analysis, found: RatioMap, devices: Sequence[str] = (), situations: Sequence[str] = ()
) -> MapView:
    """The panels of `situations` with a strip for each of `devices`; by default those that the map begins with."""
    chosen = tuple(devices) or found.shown
    names = device_names(chosen)
    several = len(chosen) > 1
    sides = [(name if several else "", device) for name, device in zip(names, chosen, strict=True)]
    panels = _panels(found.lanes, tuple(situations) or found.situations, sides)
    dtypes = sorted({lane.row.dtype for lane in found.lanes})
    return MapView(
        title=sides_text(analysis, chosen), origin=(origin_text(analysis, dtypes),), panels=panels, found=found,
        names=tuple(names) if several else (),
    )  # fmt: skip


def device_names(devices: Sequence[str]) -> list[str]:
    """`CuPy`; with its number where a backend has several."""
    backends = [backend_text(device) for device in devices]
    return [
        f"{name} {device.partition(':')[2]}" if backends.count(name) > 1 else name
        for name, device in zip(backends, devices, strict=True)
    ]


def _panels(
    lanes: Sequence[MapLane], regimes: Iterable[str], sides: Sequence[tuple[str, str]]
) -> tuple[MapPanel, ...]:
    """A panel for each regime. `sides`: names beside the strips, and what the lanes know them by."""
    names = own_names(lane.row.op for lane in lanes)
    labels = [
        printable(series_text(msgspec.structs.replace(lane.row, op=names[lane.row.op])))
        + (f" {lane.row.dtype}" if len({lane.row.dtype for lane in lanes}) > 1 else "")
        for lane in lanes
    ]
    return tuple(
        MapPanel(
            situation=situation_text(regime),
            lanes=tuple(_lane(lane, label, regime, sides) for lane, label in zip(lanes, labels, strict=True)),
        )
        for regime in regimes
    )


def _lane(lane: MapLane, label: str, regime: str, sides: Sequence[tuple[str, str]]) -> LaneView:
    """One lane and, for who points at it, its words."""
    found = [(name, lane.strips.get((side, regime))) for name, side in sides]
    strips = tuple(StripView(strip=strip, name=name, gain=_gain_text(strip)) for name, strip in found)
    text = printable(
        f"{label}, {situation_text(regime)}: {'; '.join(_strip_text(lane, view) for view in strips)}"
    )
    return LaneView(lane=lane, label=label, strips=strips, text=text)


def _gain_text(strip: Strip | None) -> str:
    if strip is None:
        return "-"
    if strip.cell.kind in ("wrong", "failed"):
        return strip.cell.kind
    return "-" if strip.cell.gain is None else gain_text(strip.cell.gain)


def _strip_text(lane: MapLane, view: StripView) -> str:
    before = f"{view.name} " if view.name else ""
    if view.strip is None:
        return f"{before}not measured"
    extent, gain = lane.row.extent, view.strip.cell.gain
    at = "" if gain is None else f", {view.gain} at {size_text(gain.n, extent)}"
    return f"{before}pays from: {cell_text(view.strip.cell, extent)}{at}"


def overlay_view(analyses: Sequence[Analysis], names: Sequence[str]) -> MapView | None:
    """The maps of several machines in one: a strip for each machine in every lane. `names`: a letter, a colon, and what
    it stands for. None where fewer than two have a map."""
    maps = [ratio_map(analysis) for analysis in analyses]
    letters = [name.partition(":")[0] for name in names]
    drawn = [(letter, found) for letter, found in zip(letters, maps, strict=True) if found.lanes]
    if len(drawn) < 2:
        return None
    lanes = group_by(
        ((name, found.shown[0], lane) for name, found in drawn for lane in found.lanes),
        lambda side: (side[2].row.op, side[2].row.dtype, beside_size(side[2].row.params)),
    )
    whole = RatioMap(
        lanes=tuple(map(_joined, lanes.values())), low=min(found.low for _, found in drawn),
        high=max(found.high for _, found in drawn),
    )  # fmt: skip
    situations = list(dict.fromkeys(regime for _, found in drawn for regime in found.situations))[:2]
    sides = tuple(name for name, _ in drawn)
    return MapView(
        title=f"{len(drawn)} machines over each other", origin=tuple(names), found=whole, names=sides,
        panels=_panels(whole.lanes, situations, [(name, name) for name in sides]),
    )  # fmt: skip


def _joined(sides: Sequence[tuple[str, str, MapLane]]) -> MapLane:
    """The lanes of an op on several machines as one. `sides`: the machine's name, the device that counts there, and its
    lane."""
    return MapLane(
        row=sides[0][2].row, start=min(lane.start for _, _, lane in sides), end=max(lane.end for _, _, lane in sides),
        strips={
            (name, regime): strip
            for name, device, lane in sides
            for (other, regime), strip in lane.strips.items()
            if other == device
        },
    )  # fmt: skip


# ---------------------------------------------------------------- the axis, in words


def ticks(found: RatioMap, room: float = 0.15) -> list[tuple[float, str]]:
    """Position and text of what the axis names: its ends, and the powers of eight that leave them `room`. The name of
    the last end lies before it, so it takes more."""
    low, high = found.low, found.high
    named = [(0.0, size_text(round(low), "elements"))]
    if high <= low:
        return [(0.5, named[0][1])]
    for power in range(math.ceil(math.log2(low) / 3), math.floor(math.log2(high) / 3) + 1):
        place = found.position(8.0**power)
        if place - named[-1][0] >= room and 1 - place >= room * 1.7:
            named.append((place, size_text(8**power, "elements")))
    return [*named, (1.0, size_text(round(high), "elements"))]


# ---------------------------------------------------------------- in characters

_CPU, _EQUAL, _FAILED = "·", "=", "x"
_STEPS = ((30.0, "█"), (10.0, "▆"), (3.0, "▄"), (EQUAL, "▂"))
_ASCII = str.maketrans({"·": ".", "▂": "-", "▄": "+", "▆": "*", "█": "#", "²": "2"})
_GAP = "  "
_FEWEST_CELLS, _LONGEST_LABEL = 12, 16
_WORDS = (
    f"{_CPU} CPU wins  {_EQUAL} about equal  GPU by ▂ {EQUAL}x ▄ 3x ▆ 10x █ 30x  blank: not measured  K = 1024"
)


def axis_text(lanes: Iterable[LaneView]) -> str:
    """What the axis counts; of ops of all kinds each has a size of its own."""
    plain = [view.lane.row.extent == "plain" for view in lanes]
    return _PLAIN if all(plain) else _ELEMENTS if not any(plain) else f"{_ELEMENTS}; else {_PLAIN}"


@section("map", order=40, usual=False, help="Who wins at which size, as a picture")
def map_section(analysis: Analysis, options: RenderOptions) -> Section | None:
    """Draw the map, in full as a picture with its title; None without a GPU."""
    found = ratio_map(analysis)
    if not found.lanes:
        return None
    view = map_view(analysis, found)
    lines = drawn(view, options.width, ascii_only=options.ascii_only)
    if options.full:
        texts = tuple(Cell(line_text(line)) for line in lines)
        return Section(title=TITLE, lines=(" · ".join((view.title, *view.origin)),), pictures=(Picture(texts),))
    wide = columns(view.title) > options.width
    sides = sides_text(analysis, found.shown, short=True) if wide else view.title
    heads: list[Line] = [(Cell(cut(text, options.width)),) for text in (sides, *view.origin)]
    heads = [_in_ascii(line) for line in heads] if options.ascii_only else heads
    return Section(title=TITLE, screen=(*heads, *lines))


def drawn(view: MapView, width: int, *, ascii_only: bool) -> list[Line]:
    """The panels side by side, or below each other where that leaves too few cells for a lane."""
    labels = [_label(lane, strip) for lane in view.panels[0].lanes for strip in lane.strips]
    margin = min(max(map(columns, labels)), _LONGEST_LABEL) + len(_GAP)
    count = len(view.panels)
    cells = (width - margin - len(_GAP) * (count - 1)) // count
    groups = [view.panels] if cells >= _FEWEST_CELLS * 2 else [(panel,) for panel in view.panels]
    lines: list[Line] = []
    for panels in groups:
        cells = max(_FEWEST_CELLS, (width - margin - len(_GAP) * (len(panels) - 1)) // len(panels))
        lines += _head(view, panels, margin, cells)
        for i, lane in enumerate(panels[0].lanes):
            for j, strip in enumerate(lane.strips):
                line = [Cell(padded(cut(_label(lane, strip), margin - len(_GAP)), margin))]
                for k, panel in enumerate(panels):
                    line += [Cell(_GAP)] if k else []
                    line += _strip_cells(panel.lanes[i].strips[j].strip, view.found, cells)
                lines.append(trimmed(line))
    failed = any(cell.text.strip() == _FAILED for line in lines for cell in line[1:])
    words = _WORDS + (f"  {_FAILED} no true number" if failed else "")
    lines += [(Cell(text, "muted"),) for text in _wrapped(words, width)]
    return [_in_ascii(line) for line in lines] if ascii_only else lines


def _label(lane: LaneView, strip: StripView) -> str:
    return f"{lane.label} {strip.name}".strip()


def _head(view: MapView, panels: Sequence[MapPanel], margin: int, cells: int) -> list[Line]:
    names = _GAP.join(padded(cut(panel.situation, cells), cells) for panel in panels)
    axis = [" "] * cells
    taken = cells
    for place, text in reversed(ticks(view.found, room=0.0)):
        start = max(0, min(round(place * cells), cells - len(text)))
        if start + len(text) < taken or taken == cells:
            axis[start : start + len(text)] = text
            taken = start
    axes = _GAP.join("".join(axis) for _ in panels)
    return [(Cell(" " * margin + text.rstrip(), "muted"),) for text in (names, axes)]


def _strip_cells(strip: Strip | None, found: RatioMap, count: int) -> list[Cell]:
    """A character for each part of the axis, those of one side together."""
    span = math.log(found.high / found.low) / count if found.high > found.low else 0.0
    made: list[tuple[str, Tone]] = []
    for i in range(count):
        low, high = found.low * math.exp(span * i), found.low * math.exp(span * (i + 1))
        # The last part holds the end of the axis too.
        made.append(_sign(strip, low, high * 2 if i == count - 1 else high, math.sqrt(low * high)))
    found_cells: list[Cell] = []
    for sign, tone in made:
        if found_cells and found_cells[-1].tone == tone:
            found_cells[-1] = Cell(found_cells[-1].text + sign, tone)
        else:
            found_cells.append(Cell(sign, tone))
    return found_cells


def _sign(strip: Strip | None, low: float, high: float, middle: float) -> tuple[str, Tone]:
    ratio = None if strip is None else strip.ratio_between(low, high)
    if ratio is None:
        failed = strip is not None and any(
            part.kind == "failed" and part.start <= middle <= part.end for part in strip.stretches
        )
        return (_FAILED, "bad") if failed else (" ", "plain")
    if ratio < 1 / EQUAL:
        return _CPU, "cpu"
    return next(((sign, "gpu") for least, sign in _STEPS if ratio >= least), (_EQUAL, "muted"))


def _wrapped(text: str, width: int) -> list[str]:
    """Its groups, which stand two blanks apart, in as many lines as they need."""
    lines = [""]
    for group in text.replace("   ", "  ").split("  "):
        longer = f"{lines[-1]}  {group}" if lines[-1] else group
        if columns(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(group)
    return lines


def _in_ascii(line: Line) -> Line:
    return tuple(Cell(cell.text.translate(_ASCII), cell.tone) for cell in line)


def sides_text(analysis: Analysis, device_ids: Sequence[str], *, short: bool = False) -> str:
    """`NVIDIA H200 (CuPy) against 16 CPU threads (numba, OpenBLAS 0.3.34)`; without devices the CPU alone. `short`:
    without versions."""
    cpu = _cpu_text(analysis, device_ids, short=short)
    names = {device.id: shortened(device.name) for device in analysis.run.devices}
    backends = group_by(device_ids, lambda device_id: names.get(device_id, device_id))
    gpus = []
    for name, ids in backends.items():
        counts = Counter(backend_text(device_id) for device_id in ids)
        many = max(counts.values())
        gpus.append(f"{f'{many} x ' if many > 1 else ''}{name} ({', '.join(counts)})")
    text = f"{', '.join(gpus)} against {cpu}" if gpus else cpu
    return printable(text[:1].upper() + text[1:])


def _cpu_text(analysis: Analysis, device_ids: Sequence[str], *, short: bool) -> str:
    rows = held_against(analysis, device_ids) or [row for row in analysis.cases if row.time is not None]
    names = cpu_names(cpu_codes(analysis.run, rows), short=short, versions=not short)
    return f"{threads_text(analysis.run)} ({', '.join(names)})" if names else threads_text(analysis.run)


def origin_text(analysis: Analysis, dtypes: Iterable[str] = ()) -> str:
    """`float32 · 2026-11-20 · gpubench 0.1.0 · AMD EPYC 7763, 16 CPUs, 126 GiB RAM`."""
    run = analysis.run
    host = analysis.machine.partition("; ")[0]
    label = [shortened(run.label, 30)] if run.label else []
    version = run.tool.get("gpubench", __version__)
    parts = [*dict.fromkeys(dtypes), run.started_at[:10], f"gpubench {version}", *label, host]
    return printable(" · ".join(parts))
