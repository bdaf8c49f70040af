"""The map and the charts as picture files. Each picture names the two sides, the machine and the date, because
people look at it without the report. The library vl_convert draws them. It runs in a child process, because it
is native code, where a fault ends the process."""

from __future__ import annotations

import base64
import functools
import importlib.util
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpubench.base import disk, processes
from gpubench.base.child_main import Messages
from gpubench.base.errors import GpubenchError, InputError, UsageError
from gpubench.base.plugins import sections
from gpubench.base.streams import fill
from gpubench.report.charts import (
    ENDS,
    MARKS,
    ROWS,
    Chart,
    ChartRow,
    ChartSet,
    chart_cases,
    devices,
    regimes,
    theme,
)
from gpubench.report.layout import RenderOptions
from gpubench.report.wording import series_name
from gpubench.result.store.cache import user_cache

if TYPE_CHECKING:
    from gpubench.analysis.analyse import Analysis


def can_draw() -> bool:
    """Return whether the drawing library is installed."""
    return importlib.util.find_spec("vl_convert") is not None


Call = tuple[str, Sequence[Any], dict[str, Any]]  # a vl_convert function and its arguments
START_S, PICTURE_S = 60.0, 10.0  # deadlines for the start and for each picture, which takes 50 ms
MOST_BYTES = 256 << 20  # the most bytes of all pictures in base64


def results(calls: Sequence[Call]) -> list[bytes]:
    """Make the calls of vl_convert in a child process and return their results, with texts as UTF-8. Raises
    GpubenchError if the library fails, ends its process or hangs."""
    limit_s = START_S + PICTURE_S * len(calls)
    try:
        ended = processes.run(
            processes.python("gpubench.report.plots"), limit_s,
            stdin=json.dumps(calls).encode(), most_output=MOST_BYTES,
        )  # fmt: skip
    except OSError as error:
        raise drawing_error(f"no process can be started for vl_convert: {disk.reason(error)}") from error
    if ended.status is None:
        raise drawing_error(f"vl_convert did not answer within {limit_s:.0f} s")
    words = (ended.errors.splitlines() or [""])[-1][:300]
    if ended.status:
        raise drawing_error(f"vl_convert {processes.ending(ended.status)}" + (f": {words}" if words else ""))
    try:
        return [base64.b64decode(text) for text in json.loads(ended.message)]
    except (ValueError, TypeError):
        raise drawing_error(
            "vl_convert gave no picture" + (f": {ended.noise}" if ended.noise else "")
        ) from None


@functools.cache
def page_script() -> str:
    """Return the JavaScript that draws charts in a page, as bundled by vl_convert or kept in the user's cache.
    Raises GpubenchError if the library cannot draw."""
    cache, name = user_cache(), _script_name()
    content = name and cache.read(name, "the script of the charts")
    if content:
        return content.decode()
    script = results([("javascript_bundle", [], {})])[0]
    if name:
        cache.write(name, script)
    return script.decode()


def _script_name() -> str:
    """Return the script's file name in the cache, or an empty text if the version of vl_convert is unknown."""
    from importlib import metadata

    try:
        return f"vega-{metadata.version('vl-convert-python')}.js"
    except metadata.PackageNotFoundError:
        return ""


def drawing_error(why: str) -> GpubenchError:
    """Return the error that the library cannot draw, with the reason `why`."""
    return GpubenchError("cannot-draw", why=why)


def main() -> None:
    """Read the calls as JSON from standard input, make them, and write all results as JSON in base64."""
    messages = Messages()
    import vl_convert

    made = (
        getattr(vl_convert, name)(*arguments, **options) for name, arguments, options in json.load(sys.stdin)
    )
    texts = [picture if isinstance(picture, bytes) else picture.encode() for picture in made]
    messages.write(json.dumps([base64.b64encode(content).decode() for content in texts]).encode())


# If the reader prefers dark colours, the lightness of a map is inverted, but not its hues.
_FOLLOWS_READER = "<style>@media(prefers-color-scheme:dark){svg{filter:invert(.92) hue-rotate(180deg)}}</style>"
_PATH, _DIGITS = re.compile(r' d="[^"]*"'), re.compile(r"(\.\d\d)\d+")  # two decimals are enough for a path
_NOT_IN_NAMES = re.compile(r"[^\w=.]+")


def require_library(option: str) -> None:
    """Raise UsageError if the drawing library, which `option` needs, is not installed."""
    from gpubench.base.installation import install_command

    if not can_draw():
        raise UsageError(
            "no-plots", f"{option}: charts cannot be drawn here",
            why="what draws is not installed: no vl_convert", hint=install_command(),
        )  # fmt: skip


def plots(analyses: Sequence[Analysis], format: str, options: RenderOptions) -> dict[str, bytes]:
    """Return pictures of the map and of each chart of each series, by file name, as `svg` or `png`. The same
    files give the same bytes. From the second run on, file names begin with the number of the run. Several
    machines have one more picture, with all their maps. Raises GpubenchError if the library cannot draw."""
    maps: dict[str, ChartRow] = {}
    specs: dict[str, ChartRow] = {}
    for i, analysis in enumerate(analyses):
        before = f"{i + 1}-" if i else ""
        maps |= {f"{before}map.{format}": spec for spec in _map(analysis, options)}
        for chart in chart_set(analysis, options).charts:
            for name in chart.rows:
                file = _NOT_IN_NAMES.sub("-", f"{before}{chart.id}-{name}")
                specs[f"{file}.{format}"] = draw_spec(chart, name, origin(analysis))
    maps |= {f"machines.{format}": spec for spec in _overlay(analyses, options)}
    specs = maps | specs
    if format == "png":
        pictures = results([("vegalite_to_png", [spec], {"scale": SCALE}) for spec in specs.values()])
        return dict(zip(specs, pictures, strict=True))
    return {
        name: (text.replace(">", f">{_FOLLOWS_READER}", 1) if name in maps else text).encode()
        for name, text in zip(specs, svgs(specs.values()), strict=True)
    }


def picture(analyses: Sequence[Analysis], format: str, options: RenderOptions) -> bytes:
    """Return one picture of all runs: the map of each and, below it, the charts of the series with the most
    break-evens. `format` is `svg` or `png`. Raises InputError if there is nothing to draw, and GpubenchError if
    the library cannot draw."""
    specs: list[ChartRow] = []
    for analysis in analyses:
        maps, charts = _map(analysis, options), chart_set(analysis, options)
        # A map already names the sides.
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


def _wants_map(options: RenderOptions) -> bool:
    return tuple(options.sections) == sections.usual() or "map" in options.sections


def _map(analysis: Analysis, options: RenderOptions) -> list[ChartRow]:
    """Return a list with the spec of the map. The list is empty if there is no map or it was not requested."""
    from gpubench.report.sections.map import map_picture, map_view

    view = map_view(analysis) if _wants_map(options) else None
    return [] if view is None else [_alone(map_picture(view))]


def _alone(spec: ChartRow) -> ChartRow:
    return spec | {"padding": PADDING, "config": theme() | {"background": "#ffffff"}}


def _overlay(analyses: Sequence[Analysis], options: RenderOptions) -> list[ChartRow]:
    """Return a list with the spec of the map of all machines. The list is empty if fewer than two machines have
    a map or if it was not requested."""
    from gpubench.analysis.analyse import machine_runs
    from gpubench.report.sections.machines import names
    from gpubench.report.sections.map import map_picture, overlay_view

    if not _wants_map(options) or len(analyses) < 2:
        return []
    sides = machine_runs(analyses)
    view = overlay_view([side.newest for side in sides], names(sides))
    return [] if view is None else [_alone(map_picture(view))]


def origin(analysis: Analysis) -> list[str]:
    """Return lines of text, at most as wide as a chart, that name the GPUs and the CPU, the machine and
    the date."""
    from gpubench.report.sections.map import origin_text, sides_text

    gpus = [
        result.case.device_id
        for result in analysis.cases
        if result.time is not None and result.device_kind != "cpu"
    ]
    texts = (sides_text(analysis, sorted(dict.fromkeys(gpus))), origin_text(analysis))
    return [line for text in texts for line in fill(text, _LETTERS, "")]


def write(analyses: Sequence[Analysis], folder: Path, format: str, options: RenderOptions) -> int:
    """Write the pictures of `plots` into `folder` and return their number. Create the folder if needed. Raises
    OSError if a picture cannot be written, and GpubenchError if the library cannot draw."""
    pictures = plots(analyses, format, options)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in pictures.items():
        disk.write_whole(folder / name, content)
    return len(pictures)


PICTURE_WIDTH, PADDING = 720, 16
_LETTERS = 100  # the most characters of a line above a chart
HALF_WIDTH, MOST_WIDTH = 500, 1280  # widths in one picture, with two charts side by side
SCALE = 2  # the pixels of a PNG for each point
_SIZE = re.compile(r'<svg[^>]* width="([0-9.]+)" height="([0-9.]+)"')
_SERIES_NAMES = re.compile(r'(\bid="|url\(#|href="#)')


def draw_spec(chart: Chart, name: str, origin: Sequence[str] = ()) -> ChartRow:
    """Return the spec of one picture of a chart, with all devices and regimes, for use outside a page. `name` is
    the series or dtype of the picture. `origin` holds the lines below the title."""
    return _alone(chart.spec) | {
        "datasets": {ROWS: chart.rows[name], MARKS: chart.marks.get(name, []), ENDS: []}, "width": PICTURE_WIDTH,
        "title": {"text": chart.title, "subtitle": [name, *origin], "anchor": "start"},
    }  # fmt: skip


def svgs(specs: Iterable[ChartRow]) -> list[str]:
    """Draw the specs and return them as SVG texts. Raises GpubenchError if the library cannot draw."""
    texts = results([("vegalite_to_svg", [spec], {}) for spec in specs])
    return [_PATH.sub(lambda path: _DIGITS.sub(r"\1", path[0]), text.decode()) for text in texts]


def stack(pictures: Sequence[str]) -> str:
    """Combine SVGs into one: side by side as long as they fit, the others below."""
    place, top, tall, widest, inner = 0.0, 0.0, 0.0, 0.0, []
    for i, picture in enumerate(pictures):
        size = _SIZE.search(picture)
        assert size is not None
        width, height = float(size[1]), float(size[2])
        if place and place + width > MOST_WIDTH:
            place, top, tall = 0.0, top + tall, 0.0
        # Several pictures have the same ids, such as clip1.
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


def chart_set(analysis: Analysis, options: RenderOptions) -> ChartSet:
    """Return the charts of `options.sections` that have rows. The set is empty if no case was measured."""
    cases = Counter(series_name(entry.case) for entry in chart_cases(analysis))
    if not cases:
        return ChartSet()
    charts = [maker.make(analysis, options) for maker in sections.charts(options.sections)]
    # The page first shows the series with the most break-evens. Among equals, the one with the most times counts.
    thresholds = Counter(series_name(entry.case) for entry in analysis.break_even if entry.verdict == "at")
    return ChartSet(
        series=tuple(cases), chosen=max(cases, key=lambda name: (thresholds[name], cases[name])),
        devices=devices(analysis), regimes=regimes(analysis),
        charts=tuple(chart for chart in charts if chart.rows),
    )  # fmt: skip


if __name__ == "__main__":
    main()
