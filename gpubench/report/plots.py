"""Charts as picture files, from the specs that the HTML report draws. Needs the extra `plots`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gpubench.errors import InputError, UsageError
from gpubench.report.charts.chart import MARKS, ROWS, Chart, ChartRow, Line, theme
from gpubench.report.charts.vega import results

if TYPE_CHECKING:
    from gpubench.analysis.analyse import Analysis

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_=.]+")


def require_library(option: str) -> None:
    """Raises UsageError where the extra `plots`, which `option` needs, is not installed."""
    from gpubench.installation import install_command
    from gpubench.report.charts.vega import missing_libraries

    missing = missing_libraries()
    if missing:
        raise UsageError(
            "no-plots", f"{option}: charts cannot be drawn here",
            why=f"the extra plots is not installed: no {' and no '.join(missing)}", hint=install_command("plots"),
        )  # fmt: skip


def plots(
    analyses: Sequence[Analysis], format: str, *, sections: Sequence[str] | None = None, time_unit: str = "auto"
) -> Iterator[tuple[str, bytes]]:
    """File name and content of every chart of every series; the same bytes for the same files.

    `format` is one of `report.PICTURES`. Of several runs all but the first have their number in front. Raises
    GpubenchError if the library does not draw.
    """
    from gpubench.report.contents import chart_set
    from gpubench.report.layout import DEFAULT_SECTIONS

    specs = {}
    for i, analysis in enumerate(analyses):
        found = chart_set(analysis, sections or DEFAULT_SECTIONS, time_unit)
        for chart in found.charts:
            for name, spec in pictures(chart, found.series):
                file = _NOT_IN_NAMES.sub("-", f"{f'{i + 1}-' if i else ''}{chart.id}-{name}") + f".{format}"
                specs[file] = spec
    wanted = list(specs.values())
    drawn = pngs(wanted) if format == "png" else [one.encode() for one in svgs(wanted)]
    yield from zip(specs, drawn, strict=True)


def picture(
    analyses: Sequence[Analysis], format: str, *, sections: Sequence[str] | None = None, time_unit: str = "auto"
) -> bytes:
    """One picture: of each run the charts of the series that tells most, below each other; the same bytes for the
    same files. `format` is one of `report.PICTURES`. Raises InputError if there is nothing to draw."""
    from gpubench.report.contents import chart_set
    from gpubench.report.layout import DEFAULT_SECTIONS

    found = []
    for analysis in analyses:
        charts = chart_set(analysis, sections or DEFAULT_SECTIONS, time_unit)
        chosen = [series for series in charts.series if series.name == charts.chosen]
        found += [spec for chart in charts.charts for _, spec in pictures(chart, chosen)]
    if not found:
        raise InputError("no-charts", why="no case with a number belongs to these sections")
    whole = stacked(svgs(found))
    return raster(whole) if format == "png" else whole.encode()


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


PICTURE_WIDTH = 720
SCALE = 2  # pixels of a PNG to a point
_SIZE = re.compile(r'<svg[^>]* width="([0-9.]+)" height="([0-9.]+)"')
_SERIES_NAMES = re.compile(r'(\bid="|url\(#|href="#)')


def drawn(chart: Chart, series: Line, *, dark: bool = False, title: str = "") -> ChartRow:
    """The spec as it is drawn without a page: all devices and regimes, the fastest forms, one size."""
    rows, marks = (_chosen(found.get(series.name, []), chart, series) for found in (chart.rows, chart.marks))
    height = {"height": chart.step * len({row[chart.bars] for row in rows})} if chart.bars else {}
    data = {ROWS: rows, MARKS: marks}
    background = {"background": "#14181d"} if dark else {"background": "#ffffff"}
    params = [{"name": name, "value": value} for name, value in chart.params.get(series.name, {}).items()]
    return chart.spec | height | {
        "datasets": data, "params": params, "width": PICTURE_WIDTH, "config": theme(dark=dark) | background,
        "title": {"text": chart.title, "subtitle": title or series.name, "anchor": "start"},
    }  # fmt: skip


def _chosen(rows: Sequence[ChartRow], chart: Chart, series: Line) -> list[ChartRow]:
    """What the page shows at first."""
    best = [row for row in rows if row.get("best", True)]
    return [row for row in best if row["n"] == series.size] if chart.one_size else best


def pictures(chart: Chart, series: Sequence[Line]) -> Iterator[tuple[str, ChartRow]]:
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
        spec = drawn(msgspec.structs.replace(chart, rows={one.name: rows}), one, title=name)
        if spec["datasets"][ROWS]:
            yield name, spec


def svgs(specs: Sequence[ChartRow]) -> list[str]:
    """The pictures as SVG. Raises GpubenchError."""
    return [found.decode() for found in results([("vegalite_to_svg", [spec], {}) for spec in specs])]


def pngs(specs: Sequence[ChartRow]) -> list[bytes]:
    """The pictures as PNG. Raises GpubenchError."""
    return results([("vegalite_to_png", [spec], {"scale": SCALE}) for spec in specs])


def stacked(pictures: Sequence[str]) -> str:
    """SVGs below each other in one. Each calls its clips clip1, clip2, ...: their names get the picture's number."""
    widest, top, inner = 0.0, 0.0, []
    for i, picture in enumerate(pictures):
        found = _SIZE.search(picture)
        assert found is not None
        width, height = float(found[1]), float(found[2])
        named = _SERIES_NAMES.sub(rf"\g<1>p{i}-", picture)
        inner.append(named.replace("<svg ", f'<svg x="0" y="{top:g}" ', 1))
        widest, top = max(widest, width), top + height
    start = (
        f'<svg xmlns="http://www.w3.org/2000/svg" version="1.1" width="{widest:g}" height="{top:g}"'
        f' viewBox="0 0 {widest:g} {top:g}"><rect width="100%" height="100%" fill="#ffffff"/>'
    )
    return "\n".join([start, *inner, "</svg>"]) + "\n"


def raster(picture: str) -> bytes:
    """An SVG as PNG. Raises GpubenchError."""
    return results([("svg_to_png", [picture], {"scale": SCALE})])[0]
