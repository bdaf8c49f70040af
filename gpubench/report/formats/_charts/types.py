"""What a chart is: a Vega-Lite spec without data, and the rows of every series that it can show."""

from __future__ import annotations

from typing import Any

import msgspec

Row = dict[str, Any]  # numbers for the marks, ready text for tooltips and tables
Rows = dict[str, list[Row]]  # by series, "matmul float32"
ROWS, MARKS = "rows", "marks"  # the names of a spec's two data sets


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One curve family: op, dtype and the params beside the size. `name` is the key of every chart's rows.

    `size` is where a chart of a single size begins: the largest at which the most devices and regimes were measured.
    """

    name: str
    dtype: str
    sizes: tuple[int, ...]
    size: int


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """`spec` reads the data sets `rows` (what the table below it lists) and `marks` (what stands beside).

    `columns` are pairs of a field and its heading. Of the filters, a row without the field passes: `device`
    (or any of `devices`), `regime`, `form` with `best`, and `n` where `one_size` says that the chart shows one size.
    """

    id: str
    section: str
    title: str
    caption: str
    spec: Row
    columns: tuple[tuple[str, str], ...]
    rows: Rows
    marks: Rows = {}
    params: dict[str, Row] = {}  # of the spec, by series
    one_size: bool = False
    by_dtype: bool = False  # all series of a dtype share one picture, which a page marks the chosen one in
    bars: str = ""  # the field whose values have a bar each; the height then is `step` points for each
    step: int = 0


class ChartSet(msgspec.Struct, frozen=True, kw_only=True):
    """The charts of one run with what a reader may choose from. `chosen` is the series to begin with."""

    series: tuple[Series, ...] = ()
    chosen: str = ""
    devices: tuple[tuple[str, str], ...] = ()  # id and name, the CPU first
    regimes: tuple[tuple[str, str], ...] = ()  # short name and meaning
    forms: tuple[str, ...] = ()
    charts: tuple[Chart, ...] = ()
