"""A chart with the rows of one series: the whole spec, and its picture."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from gpubench.report.formats._charts.theme import theme
from gpubench.report.formats._charts.types import MARKS, ROWS, Chart, Row, Series

PICTURE_WIDTH = 720
SCALE = 2  # pixels of a PNG to a point
_SIZE = re.compile(r'<svg[^>]* width="([0-9.]+)" height="([0-9.]+)"')
_NAMES = re.compile(r'(\bid="|url\(#|href="#)')


def drawn(chart: Chart, series: Series, *, dark: bool = False, title: str = "") -> Row:
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


def _chosen(rows: Sequence[Row], chart: Chart, series: Series) -> list[Row]:
    """What the page shows at first."""
    best = [row for row in rows if row.get("best", True)]
    return [row for row in best if row["n"] == series.size] if chart.one_size else best


def pictures(chart: Chart, series: Sequence[Series]) -> Iterator[tuple[str, Row]]:
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


def svg(spec: Row) -> str:
    """The picture as SVG."""
    import vl_convert

    text: str = vl_convert.vegalite_to_svg(spec)
    return text


def png(spec: Row) -> bytes:
    """The picture as PNG."""
    import vl_convert

    image: bytes = vl_convert.vegalite_to_png(spec, scale=SCALE)
    return image


def stacked(pictures: Sequence[str]) -> str:
    """SVGs below each other in one. Each calls its clips clip1, clip2, ...: their names get the picture's number."""
    widest, top, inner = 0.0, 0.0, []
    for i, picture in enumerate(pictures):
        found = _SIZE.search(picture)
        assert found is not None
        width, height = float(found[1]), float(found[2])
        named = _NAMES.sub(rf"\g<1>p{i}-", picture)
        inner.append(named.replace("<svg ", f'<svg x="0" y="{top:g}" ', 1))
        widest, top = max(widest, width), top + height
    start = (
        f'<svg xmlns="http://www.w3.org/2000/svg" version="1.1" width="{widest:g}" height="{top:g}"'
        f' viewBox="0 0 {widest:g} {top:g}"><rect width="100%" height="100%" fill="#ffffff"/>'
    )
    return "\n".join([start, *inner, "</svg>"]) + "\n"


def raster(picture: str) -> bytes:
    """An SVG as PNG."""
    import vl_convert

    image: bytes = vl_convert.svg_to_png(picture, scale=SCALE)
    return image
