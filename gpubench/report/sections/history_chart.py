"""The history of a machine as a chart: each case against its oldest time, and their mean."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from gpubench.analysis.analyse import MachineRuns, histories
from gpubench.base import units
from gpubench.base.escaping import printable
from gpubench.curves.stats import geometric_mean
from gpubench.report.charts import ChartRow, short

_LEAST_SPAN = 1.1  # of the axis: a change of 2 % is no mountain
_MOST_NAMED = 2  # the cases that changed most are named
_CAPTION = (
    "Time of each case against its oldest one, on a log axis: up is slower. The thick line is the geometric mean of "
    "the cases that every run has. A line that ends early is of a case that later runs lack. Changed most: {}."
)
_FACTORS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_NEAR_ONE = (0.8, 0.9, 1.1, 1.25)  # named where the axis spans less than WIDE
_WIDE = 4


class HistoryChart(msgspec.Struct, frozen=True, kw_only=True):
    """The lines of one machine, with their words."""

    title: str
    caption: str
    spec: ChartRow


def history_chart(side: MachineRuns, name: str) -> HistoryChart | None:
    """Return None for a single run, and where no case has two times."""
    rows = histories(side) if len(side.runs) > 1 else ()
    if not rows:
        return None
    cases = {row.id: _factors(row.times) for row in rows}
    whole = [factors for factors in cases.values() if None not in factors]
    mean = (
        [geometric_mean([factors[i] or 1.0 for factors in whole]) for i in range(len(side.runs))]
        if whole
        else []
    )
    dates = [run.run.started_at for run in side.runs]
    last = {case_id: [f for f in factors if f is not None][-1] for case_id, factors in cases.items()}
    most = sorted(last, key=lambda case_id: -abs(math.log(last[case_id])))[:_MOST_NAMED]
    return HistoryChart(
        title=f"Time over the runs of {name}: {printable(side.newest.machine)}, {len(side.runs)} runs",
        caption=_CAPTION.format("; ".join(f"{printable(case_id)} {last[case_id]:.2f}x" for case_id in most)),
        spec=_spec(cases, mean, dates),
    )


def _factors(times: Sequence[float | None]) -> list[float | None]:
    first = next(time for time in times if time is not None)
    return [None if time is None else time / first for time in times]


def _places(dates: Sequence[str]) -> list[float]:
    """From 0, the oldest, to 1, by time; evenly where the times cannot be read or are one."""
    seconds = [time.timestamp() for text in dates if (time := units.parse_time(text)) is not None]
    if len(seconds) < len(dates) or seconds[-1] <= seconds[0]:
        return [i / (len(dates) - 1) for i in range(len(dates))]
    return [(time - seconds[0]) / (seconds[-1] - seconds[0]) for time in seconds]


def _spec(cases: dict[str, list[float | None]], mean: Sequence[float], dates: Sequence[str]) -> ChartRow:
    known = [f for factors in cases.values() for f in factors if f is not None]
    low, high = min(1 / _LEAST_SPAN, *known) / 1.02, max(_LEAST_SPAN, *known) * 1.02
    named = (*_FACTORS, *(_NEAR_ONE if high / low < _WIDE else ()))
    ends = f"datum.value > 0 ? '{dates[-1][:10]}' : '{dates[0][:10]}'"
    x = {
        "field": "place", "type": "quantitative", "scale": {"domain": [0, 1], "padding": 8},
        "axis": {"title": None, "values": [0, 1], "labelExpr": ends, "grid": False, "domain": False, "ticks": False},
    }  # fmt: skip
    y = {
        "field": "factor", "type": "quantitative", "scale": {"type": "log", "domain": [low, high], "nice": False},
        "axis": {
            "title": None, "values": [factor for factor in named if low <= factor <= high],
            "labelExpr": "format(datum.value, '~g') + 'x'", "domain": False, "ticks": False,
        },
    }  # fmt: skip
    places = [short(place) for place in _places(dates)]
    lines = {printable(case_id): factors for case_id, factors in cases.items()}

    def rows(lines: dict[str, Sequence[float | None]]) -> list[ChartRow]:
        return [
            {"case": name, "place": place, "factor": short(factor)}
            for name, factors in lines.items()
            for place, factor in zip(places, factors, strict=False)
            if factor is not None
        ]

    thin = {"type": "line", "style": "quiet", "strokeWidth": 1, "strokeOpacity": 0.5}
    thick = {"type": "line", "style": "accent", "strokeWidth": 3}
    tooltip = {"field": "case", "type": "nominal"}
    return {
        "width": "container", "height": 180, "encoding": {"x": x, "y": y, "detail": tooltip, "tooltip": tooltip},
        "layer": [
            {"data": {"values": rows(dict(lines))}, "mark": thin | {"point": {"style": "quiet", "size": 12}}},
            {
                "data": {"values": rows({"geometric mean": mean})},
                "mark": thick | {"point": {"style": "accent", "size": 40}},
            },
        ],
    }  # fmt: skip
