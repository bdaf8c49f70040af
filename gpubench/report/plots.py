"""The map and the charts as picture files: what the HTML report draws, each with the sides, the machine and the date,
since it travels without its report. Needs altair and vl_convert."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gpubench.base.errors import InputError, UsageError
from gpubench.base.escaping import filled
from gpubench.base.plugins.sections import usual
from gpubench.report.charts import MARKS, ROWS, Chart, ChartRow, Line, theme
from gpubench.report.layout import RenderOptions
from gpubench.report.vega import results

if TYPE_CHECKING:
    from gpubench.analysis.analyse import Analysis

# A map is dark where its reader prefers that: lightness turns, hues stay.
_FOLLOWS_READER = "<style>@media(prefers-color-scheme:dark){svg{filter:invert(.92) hue-rotate(180deg)}}</style>"
_PATH, _DIGITS = re.compile(r' d="[^"]*"'), re.compile(r"(\.\d\d)\d+")  # a path needs no more than two decimals
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_=.]+")


def require_library(option: str) -> None:
    """Raises UsageError where a library that `option` needs is not installed."""
    from gpubench.base.installation import install_command
    from gpubench.report.vega import missing_libraries

    missing = missing_libraries()
    if missing:
        raise UsageError(
            "no-plots", f"{option}: charts cannot be drawn here",
            why=f"what draws is not installed: no {' and no '.join(missing)}", hint=install_command(),
        )  # fmt: skip


def plots(
    analyses: Sequence[Analysis], format: str, *, sections: Sequence[str] | None = None, time_unit: str = "auto"
) -> Iterator[tuple[str, bytes]]:
    """File name and content of the map and of every chart of every series; the same bytes for the same files.

    `format` is one of `report.PICTURES`. Of several runs all but the first have their number in front, and their maps
    over each other are one more. Raises GpubenchError if the library does not draw.
    """
    from gpubench.report.contents import chart_set

    specs: dict[str, ChartRow] = {}
    maps: dict[str, ChartRow] = {}
    for i, analysis in enumerate(analyses):
        before = f"{i + 1}-" if i else ""
        drawn_map = _map(analysis, sections)
        maps |= {} if drawn_map is None else {f"{before}map.{format}": drawn_map}
        found = chart_set(analysis, _look(sections, time_unit))
        for chart in found.charts:
            for name, spec in pictures(chart, found.series, origin(analysis)):
                specs[_NOT_IN_NAMES.sub("-", f"{before}{chart.id}-{name}") + f".{format}"] = spec
    overlay = _overlay(analyses, sections)
    maps |= {} if overlay is None else {f"machines.{format}": overlay}
    specs = maps | specs
    wanted = list(specs.values())
    if format == "png":
        yield from zip(specs, pngs(wanted), strict=True)
        return
    for name, text in zip(specs, svgs(wanted), strict=True):
        yield name, (text.replace(">", f">{_FOLLOWS_READER}", 1) if name in maps else text).encode()


def picture(
    analyses: Sequence[Analysis], format: str, *, sections: Sequence[str] | None = None, time_unit: str = "auto"
) -> bytes:
    """One picture: of each run the map, and below it the charts of the series that tells most; the same bytes for the
    same files. `format` is one of `report.PICTURES`. Raises InputError if there is nothing to draw."""
    from gpubench.report.contents import chart_set

    found: list[ChartRow] = []
    for analysis in analyses:
        drawn_map = _map(analysis, sections)
        found += [] if drawn_map is None else [drawn_map]
        charts = chart_set(analysis, _look(sections, time_unit))
        chosen = [series for series in charts.series if series.name == charts.chosen]
        # Below a map, which names them, they need not say it again.
        lines = origin(analysis) if drawn_map is None else ()
        specs = [spec for chart in charts.charts for _, spec in pictures(chart, chosen, lines)]
        found += [spec | {"width": HALF_WIDTH} for spec in specs]
    if not found:
        raise InputError("no-charts", why="no case with a number belongs to these sections")
    whole = stacked(svgs(found))
    return results([("svg_to_png", [whole], {"scale": SCALE})])[0] if format == "png" else whole.encode()


def _wants_map(sections: Sequence[str] | None) -> bool:
    return sections is None or tuple(sections) == usual() or "map" in sections


def _look(sections: Sequence[str] | None, time_unit: str) -> RenderOptions:
    return RenderOptions(sections=sections or usual(), time_unit=time_unit)


def _map(analysis: Analysis, sections: Sequence[str] | None) -> ChartRow | None:
    """The spec of the map; None where nobody asked for it, or where no GPU was timed."""
    if not _wants_map(sections):
        return None
    from gpubench.analysis.ratio_map import ratio_map
    from gpubench.report.sections.map import map_view
    from gpubench.report.sections.map_chart import map_picture

    found = ratio_map(analysis)
    return _alone(map_picture(map_view(analysis, found))) if found.lanes else None


def _alone(spec: ChartRow) -> ChartRow:
    return spec | {"padding": PADDING, "config": theme() | {"background": "#ffffff"}}


def _overlay(analyses: Sequence[Analysis], sections: Sequence[str] | None) -> ChartRow | None:
    """The maps of several machines in one."""
    if not _wants_map(sections) or len(analyses) < 2:
        return None
    from gpubench.analysis.analyse import machine_runs
    from gpubench.report.sections.machines import names
    from gpubench.report.sections.map import overlay_view
    from gpubench.report.sections.map_chart import map_picture

    sides = machine_runs(analyses)
    view = overlay_view([side.newest for side in sides], names(sides))
    return None if view is None else _alone(map_picture(view))


def origin(analysis: Analysis) -> list[str]:
    """The sides, and whence the numbers are, in lines as wide as a chart."""
    from gpubench.report.sections.map import origin_text, sides_text

    gpus = [row.case.device_id for row in analysis.cases if row.time is not None and row.device_kind != "cpu"]
    texts = (sides_text(analysis, sorted(dict.fromkeys(gpus))), origin_text(analysis))
    return [line for text in texts for line in filled(text, _LETTERS, "")]


def write(
    analyses: Sequence[Analysis], folder: Path, format: str, *, sections: Sequence[str] | None = None,
    time_unit: str = "auto",
) -> int:  # fmt: skip
    """Write the charts into `folder`, which is made; how many there are. Raises OSError and GpubenchError."""
    drawn = dict(plots(analyses, format, sections=sections, time_unit=time_unit))
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in drawn.items():
        (folder / name).write_bytes(content)
    return len(drawn)


PICTURE_WIDTH, PADDING = 720, 16
_LETTERS = 100  # of a line above a chart
HALF_WIDTH, MOST_WIDTH = 500, 1280  # in one picture two charts stand side by side below the map
SCALE = 2  # pixels of a PNG to a point
_SIZE = re.compile(r'<svg[^>]* width="([0-9.]+)" height="([0-9.]+)"')
_SERIES_NAMES = re.compile(r'(\bid="|url\(#|href="#)')


def drawn(chart: Chart, series: Line, *, title: str = "", origin: Sequence[str] = ()) -> ChartRow:
    """The spec as it is drawn without a page: all devices and regimes, the fastest forms, one size. `origin`: lines
    below the title."""
    rows, marks = (_chosen(found.get(series.name, []), chart, series) for found in (chart.rows, chart.marks))
    height = {"height": chart.step * len({row[chart.bars] for row in rows})} if chart.bars else {}
    data = {ROWS: rows, MARKS: marks}
    params = [{"name": name, "value": value} for name, value in chart.params.get(series.name, {}).items()]
    return _alone(chart.spec) | height | {
        "datasets": data, "params": params, "width": PICTURE_WIDTH,
        "title": {"text": chart.title, "subtitle": [title or series.name, *origin], "anchor": "start"},
    }  # fmt: skip


def _chosen(rows: Sequence[ChartRow], chart: Chart, series: Line) -> list[ChartRow]:
    """What the page shows at first."""
    best = [row for row in rows if row.get("best", True)]
    return [row for row in best if row["n"] == series.size] if chart.one_size else best


def pictures(
    chart: Chart, series: Sequence[Line], origin: Sequence[str] = ()
) -> Iterator[tuple[str, ChartRow]]:
    """Name and spec of each picture of a chart: one for each series, or for each dtype where those share it."""
    seen: set[str] = set()
    for one in series:
        name = one.dtype if chart.by_dtype else one.name
        if name in seen or not chart.rows.get(one.name):
            continue
        seen.add(name)
        rows = (
            [row | {"chosen": True} for row in chart.rows[one.name]] if chart.by_dtype else chart.rows[one.name]
        )
        spec = drawn(msgspec.structs.replace(chart, rows={one.name: rows}), one, title=name, origin=origin)
        if spec["datasets"][ROWS]:
            yield name, spec


def svgs(specs: Sequence[ChartRow]) -> list[str]:
    """The pictures as SVG. Raises GpubenchError."""
    texts = results([("vegalite_to_svg", [spec], {}) for spec in specs])
    return [_PATH.sub(lambda path: _DIGITS.sub(r"\1", path[0]), text.decode()) for text in texts]


def pngs(specs: Sequence[ChartRow]) -> list[bytes]:
    """The pictures as PNG. Raises GpubenchError."""
    return results([("vegalite_to_png", [spec], {"scale": SCALE}) for spec in specs])


def stacked(pictures: Sequence[str]) -> str:
    """SVGs in one: side by side where they fit, else below each other. Each calls its clips clip1, clip2, ...: their
    names get the picture's number."""
    left, top, tall, widest, inner = 0.0, 0.0, 0.0, 0.0, []
    for i, picture in enumerate(pictures):
        found = _SIZE.search(picture)
        assert found is not None
        width, height = float(found[1]), float(found[2])
        if left and left + width > MOST_WIDTH:
            left, top, tall = 0.0, top + tall, 0.0
        named = _SERIES_NAMES.sub(rf"\g<1>p{i}-", picture)
        inner.append(named.replace("<svg ", f'<svg x="{left:g}" y="{top:g}" ', 1))
        left, tall = left + width, max(tall, height)
        widest = max(widest, left)
    height = top + tall
    start = (
        f'<svg xmlns="http://www.w3.org/2000/svg" version="1.1" width="{widest:g}" height="{height:g}"'
        f' viewBox="0 0 {widest:g} {height:g}"><rect width="100%" height="100%" fill="#ffffff"/>'
    )
    return "\n".join([start, *inner, "</svg>"]) + "\n"
