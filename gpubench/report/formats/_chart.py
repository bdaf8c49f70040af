"""Speedup against size, both axes logarithmic, drawn in characters: a chart per op, dtype and device."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpubench.report.analysis.types import Analysis, Speedup
from gpubench.report.formats._document import Cell, Picture, Section, Tone, printable
from gpubench.report.formats._names import data_text, device_text, regimes, series_name, where_legend
from gpubench.units import format_size

TITLE = "Speedup against size"
HEIGHT = 14  # rows of one chart with its axis: two of them fit a terminal of 40 lines
FEW = 2  # more charts than this are drawn only for who asks for them
_NARROWEST = 40
_MOST_LABELS = 8
_MARKERS = {"resident": "r", "once": "o", "always": "a"}
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
        found[data_text(row.case.case)][row.case.case.params["n"]] = row.ratio.estimate
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
    return _MARKERS[name.partition("-")[0].partition(":")[0]]


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
