"""The map and the charts as picture files: what the HTML report draws, each with the sides, the machine and the date,
since it travels without its report. Needs altair and vl_convert."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpubench.base.errors import InputError, UsageError
from gpubench.base.plugins.sections import usual
from gpubench.base.streams import fill
from gpubench.report.charts import ENDS, MARKS, ROWS, Chart, ChartRow, ChartSet, theme
from gpubench.report.layout import RenderOptions
from gpubench.report.vega import results

if TYPE_CHECKING:
    from gpubench.analysis.analyse import Analysis

# A map is dark where its reader prefers that: lightness turns, hues stay.
_FOLLOWS_READER = "<style>@media(prefers-color-scheme:dark){svg{filter:invert(.92) hue-rotate(180deg)}}</style>"
_PATH, _DIGITS = re.compile(r' d="[^"]*"'), re.compile(r"(\.\d\d)\d+")  # a path needs no more than two decimals
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_=.]+")


def require_library(option: str) -> None:
    """Raise UsageError where a library that `option` needs is not installed."""
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
) -> dict[str, bytes]:
    """Return file name and content of the map and of every chart of every series; the same bytes for the same files.

    `format` is one of `report.PICTURES`. Of several runs all but the first have their number in front, and their maps
    over each other are one more. Raises GpubenchError if the library does not draw.
    """
    maps: dict[str, ChartRow] = {}
    specs: dict[str, ChartRow] = {}
    for i, analysis in enumerate(analyses):
        before = f"{i + 1}-" if i else ""
        maps |= {f"{before}map.{format}": spec for spec in _map(analysis, sections)}
        for chart in _charts(analysis, sections, time_unit).charts:
            for name in chart.rows:
                file = _NOT_IN_NAMES.sub("-", f"{before}{chart.id}-{name}")
                specs[f"{file}.{format}"] = draw_spec(chart, name, origin(analysis))
    maps |= {f"machines.{format}": spec for spec in _overlay(analyses, sections)}
    specs = maps | specs
    if format == "png":
        pictures = results([("vegalite_to_png", [spec], {"scale": SCALE}) for spec in specs.values()])
        return dict(zip(specs, pictures, strict=True))
    return {
        name: (text.replace(">", f">{_FOLLOWS_READER}", 1) if name in maps else text).encode()
        for name, text in zip(specs, svgs(specs.values()), strict=True)
    }


def picture(
    analyses: Sequence[Analysis], format: str, *, sections: Sequence[str] | None = None, time_unit: str = "auto"
) -> bytes:
    """Return one picture: of each run the map, and below it the charts of the series that tells most; the same bytes
    for the same files. `format` is one of `report.PICTURES`. Raises InputError if there is nothing to draw."""
    specs: list[ChartRow] = []
    for analysis in analyses:
        maps, charts = _map(analysis, sections), _charts(analysis, sections, time_unit)
        # Below a map, which names the sides, they need not say it again.
        lines = () if maps else origin(analysis)
        names = (charts.chosen, charts.chosen.split(" ")[1] if charts.chosen else "")
        shown = [
            draw_spec(chart, name, lines) for chart in charts.charts for name in names if name in chart.rows
        ]
        specs += [*maps, *(spec | {"width": HALF_WIDTH} for spec in shown)]
    if not specs:
        raise InputError("no-charts", why="no case with a number belongs to these sections")
    whole = stack(svgs(specs))
    return results([("svg_to_png", [whole], {"scale": SCALE})])[0] if format == "png" else whole.encode()


def _wants_map(sections: Sequence[str] | None) -> bool:
    return sections is None or tuple(sections) == usual() or "map" in sections


def _charts(analysis: Analysis, sections: Sequence[str] | None, time_unit: str) -> ChartSet:
    from gpubench.report.contents import chart_set

    return chart_set(analysis, RenderOptions(sections=sections or usual(), time_unit=time_unit))


def _map(analysis: Analysis, sections: Sequence[str] | None) -> list[ChartRow]:
    """Return the spec of the map; nothing if nobody asked for it, or if no GPU was timed."""
    from gpubench.report.sections.map import map_picture, map_view

    view = map_view(analysis) if _wants_map(sections) else None
    return [] if view is None else [_alone(map_picture(view))]


def _alone(spec: ChartRow) -> ChartRow:
    return spec | {"padding": PADDING, "config": theme() | {"background": "#ffffff"}}


def _overlay(analyses: Sequence[Analysis], sections: Sequence[str] | None) -> list[ChartRow]:
    """Return the maps of several machines in one."""
    from gpubench.analysis.analyse import machine_runs
    from gpubench.report.sections.machines import names
    from gpubench.report.sections.map import map_picture, overlay_view

    if not _wants_map(sections) or len(analyses) < 2:
        return []
    sides = machine_runs(analyses)
    view = overlay_view([side.newest for side in sides], names(sides))
    return [] if view is None else [_alone(map_picture(view))]


def origin(analysis: Analysis) -> list[str]:
    """Return the sides, and whence the numbers are, in lines as wide as a chart."""
    from gpubench.report.sections.map import origin_text, sides_text

    gpus = [
        result.case.device_id
        for result in analysis.cases
        if result.time is not None and result.device_kind != "cpu"
    ]
    texts = (sides_text(analysis, sorted(dict.fromkeys(gpus))), origin_text(analysis))
    return [line for text in texts for line in fill(text, _LETTERS, "")]


def write(
    analyses: Sequence[Analysis], folder: Path, format: str, *, sections: Sequence[str] | None = None,
    time_unit: str = "auto",
) -> int:  # fmt: skip
    """Write the charts into `folder`, which is made; return how many there are. Raises OSError and GpubenchError."""
    pictures = plots(analyses, format, sections=sections, time_unit=time_unit)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in pictures.items():
        (folder / name).write_bytes(content)
    return len(pictures)


PICTURE_WIDTH, PADDING = 720, 16
_LETTERS = 100  # of a line above a chart
HALF_WIDTH, MOST_WIDTH = 500, 1280  # in one picture two charts stand side by side below the map
SCALE = 2  # pixels of a PNG to a point
_SIZE = re.compile(r'<svg[^>]* width="([0-9.]+)" height="([0-9.]+)"')
_SERIES_NAMES = re.compile(r'(\bid="|url\(#|href="#)')


def draw_spec(chart: Chart, name: str, origin: Sequence[str] = ()) -> ChartRow:
    """Return the spec of the picture `name` as it is drawn without a page: all devices and situations. `origin`: lines
    below the title."""
    return _alone(chart.spec) | {
        "datasets": {ROWS: chart.rows[name], MARKS: chart.marks.get(name, []), ENDS: []}, "width": PICTURE_WIDTH,
        "title": {"text": chart.title, "subtitle": [name, *origin], "anchor": "start"},
    }  # fmt: skip


def svgs(specs: Iterable[ChartRow]) -> list[str]:
    """Return the pictures as SVG. Raises GpubenchError."""
    texts = results([("vegalite_to_svg", [spec], {}) for spec in specs])
    return [_PATH.sub(lambda path: _DIGITS.sub(r"\1", path[0]), text.decode()) for text in texts]


def stack(pictures: Sequence[str]) -> str:
    """Return SVGs in one: side by side where they fit, else below each other. Each calls its clips clip1, clip2,
    ...: their names get the picture's number."""
    place, top, tall, widest, inner = 0.0, 0.0, 0.0, 0.0, []
    for i, picture in enumerate(pictures):
        size = _SIZE.search(picture)
        assert size is not None
        width, height = float(size[1]), float(size[2])
        if place and place + width > MOST_WIDTH:
            place, top, tall = 0.0, top + tall, 0.0
        named = _SERIES_NAMES.sub(rf"\g<1>p{i}-", picture)
        inner.append(named.replace("<svg ", f'<svg x="{place:g}" y="{top:g}" ', 1))
        place, tall = place + width, max(tall, height)
        widest = max(widest, place)
    height = top + tall
    start = (
        f'<svg xmlns="http://www.w3.org/2000/svg" version="1.1" width="{widest:g}" height="{height:g}"'
        f' viewBox="0 0 {widest:g} {height:g}"><rect width="100%" height="100%" fill="#ffffff"/>'
    )
    return "\n".join([start, *inner, "</svg>"]) + "\n"
