"""What the charts share: axes, the accent of a device, the dash of a regime, tooltips. Altair's objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpubench.report.formats._charts.types import ROWS

HEIGHT = 300
DASHES = ([1, 0], [7, 4], [2, 3], [10, 3, 2, 3], [4, 2])
SI = "format(datum.value, '~s')"
PLAIN = "format(datum.value, '~g')"
SECONDS = f"{SI} + 's'"
# 4096 and below plainly, then in units of 1024: a tick is a power of two.
_SIZE = (
    "datum.value >= 1073741824 ? format(datum.value / 1073741824, '~r') + 'Gi' : "
    "datum.value >= 1048576 ? format(datum.value / 1048576, '~r') + 'Mi' : "
    "datum.value >= 16384 ? format(datum.value / 1024, '~r') + 'Ki' : format(datum.value, '~r')"
)


def named(name: str = ROWS) -> Any:
    """The data set of this name; it is filled when the chart is drawn."""
    import altair

    return altair.NamedData(name)


def size_axis() -> Any:
    """n on a logarithmic axis; its ticks are the param `ticks` of the spec."""
    import altair

    return altair.X(
        "n:Q", title="size n", scale=altair.Scale(type="log", base=2, nice=False, padding=12),
        axis=altair.Axis(labelExpr=_SIZE, labelOverlap="greedy", values=altair.ExprRef("ticks"), grid=False),
    )  # fmt: skip


def log_axis(field: str, title: str, label: str = SI, *, x: bool = False) -> Any:
    """A logarithmic axis with a line at every decade; `label` is an expression of a tick's text.

    Between the decades stand labels only where the axis spans few of them.
    """
    import altair

    scale = "x" if x else "y"
    power = "log(datum.value) / LN10"
    lead = f"round(datum.value / pow(10, floor({power} + 1e-9)))"
    few = f"domain('{scale}')[1] / domain('{scale}')[0] < 200"
    told = f"{lead} == 1 || ({few} && ({lead} == 2 || {lead} == 5))"
    axis = altair.Axis(
        labelExpr=f"{told} ? {label} : ''", labelOverlap="greedy", tickCount=6, ticks=False,
        gridOpacity=altair.condition(f"abs({power} - round({power})) < 1e-6", altair.value(1), altair.value(0.3)),
    )  # fmt: skip
    kind = altair.X if x else altair.Y
    return kind(f"{field}:Q", title=title, scale=altair.Scale(type="log", nice=False, padding=8), axis=axis)


def accent(devices: Sequence[str], *, fill: bool = False) -> Any:
    """One colour for each device, the same in all charts: the place in `devices` chooses it from the theme."""
    import altair

    scale = altair.Scale(domain=list(devices))
    if fill:
        return altair.Fill("device:N", scale=scale, legend=altair.Legend(title="device"))
    return altair.Color("device:N", scale=scale, legend=altair.Legend(title="device"))


def dash(regimes: Sequence[str]) -> Any:
    """One dash for each regime, so that lines are told apart without their colour."""
    import altair

    scale = altair.Scale(domain=list(regimes), range=[DASHES[i % len(DASHES)] for i in range(len(regimes))])
    return altair.StrokeDash("regime:N", scale=scale, legend=altair.Legend(title="data"))


def hollow() -> Any:
    """The fill of a point: none where its case has a label such as noisy."""
    import altair

    return altair.condition(altair.datum.label == "ok", altair.value(1), altair.value(0))


def curves(
    base: Any, devices: Sequence[str], regimes: Sequence[str], columns: Sequence[tuple[str, str]]
) -> list[Any]:
    """Lines with their points: a device has its colour, a regime its dash, and every point a tooltip."""
    line = base.mark_line().encode(strokeDash=dash(regimes)) if regimes else base.mark_line()
    points = base.mark_point(size=40).encode(
        fill=accent(devices, fill=True), fillOpacity=hollow(), tooltip=tooltip(columns)
    )
    return [line, points]


def tooltip(columns: Sequence[tuple[str, str]]) -> list[Any]:
    """The columns of the chart's table, at the pointer."""
    import altair

    return [altair.Tooltip(f"{field}:N", title=title) for field, title in columns]


def finished(chart: Any, description: str) -> dict[str, Any]:
    """The spec as data, as wide as what holds it; without a theme, which is chosen where the chart is drawn."""
    made = chart.properties(width="container", height=HEIGHT, description=description)
    return {name: part for name, part in made.to_dict().items() if name != "config"}
