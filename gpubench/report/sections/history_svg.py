"""The history of a machine as lines over time: each case against its oldest time, and the mean of all."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from datetime import datetime
from xml.etree.ElementTree import Element

import msgspec

from gpubench.analysis.history import MachineRuns, histories
from gpubench.foreign_text import printable
from gpubench.report.markup import element
from gpubench.stats import geometric_mean

_HEIGHT, _FOOT = 180.0, 24.0
_LEAST_SPAN = 1.1  # of the axis: a change of 2 % is no mountain
_NAMED = 2  # the cases that changed most are named
_CAPTION = (
    "Time of each case against its oldest one, on a log axis: up is slower. The thick line is the geometric mean of "
    "the cases that every run has. A line that ends early is of a case that later runs lack."
)


class HistoryLine(msgspec.Struct, frozen=True, kw_only=True):
    """Factors against the oldest time, at places from 0 (the oldest run) to 1; None where a run lacks the case."""

    title: str
    places: tuple[float, ...]
    dates: tuple[str, ...]
    cases: dict[str, tuple[float | None, ...]]
    mean: tuple[float, ...]


def history_line(side: MachineRuns, name: str) -> HistoryLine | None:
    """None of a single run, and where no case has two times."""
    rows = histories(side) if len(side.runs) > 1 else ()
    if not rows:
        return None
    cases = {}
    for row in rows:
        first = next(time for time in row.times if time is not None)
        cases[row.id] = tuple(None if time is None else time / first for time in row.times)
    whole = [factors for factors in cases.values() if None not in factors]
    mean = tuple(
        geometric_mean([factors[i] or 1.0 for factors in whole]) for i in range(len(side.runs))
    ) if whole else ()  # fmt: skip
    dates = tuple(run.run.started_at for run in side.runs)
    title = f"{name}: {printable(side.newest.machine)}, {len(side.runs)} runs"
    return HistoryLine(title=title, places=_places(dates), dates=dates, cases=cases, mean=mean)


def _places(dates: Sequence[str]) -> tuple[float, ...]:
    """By time; evenly where the times cannot be read or are one."""
    even = tuple(i / (len(dates) - 1) for i in range(len(dates)))
    try:
        seconds = [datetime.fromisoformat(text).timestamp() for text in dates]
    except ValueError:
        return even
    span = seconds[-1] - seconds[0]
    return tuple((one - seconds[0]) / span for one in seconds) if span > 0 else even


def history_figure(found: HistoryLine, name: str) -> Element:
    """The lines with their axis; the table below has the numbers."""
    top = max(_LEAST_SPAN, *(f for case in found.cases.values() for f in case if f is not None)) * 1.02
    low = min(1 / _LEAST_SPAN, *(f for case in found.cases.values() for f in case if f is not None)) / 1.02

    def height(factor: float) -> float:
        return _HEIGHT * (1 - math.log(factor / low) / math.log(top / low))

    parts: list[Element] = []
    for factor in _factors(low, top):
        y = f"{height(factor):.5g}"
        parts.append(element("line", {"x1": "0", "x2": "100%", "y1": y, "y2": y, "class": "m-line"}))
        parts.append(
            element(
                "text", {"x": "-8", "y": y, "dy": "4", "text-anchor": "end", "class": "m-quiet"}, f"{factor:g}x"
            )
        )
    for case_id, factors in found.cases.items():
        parts += _segments(found.places, [None if f is None else height(f) for f in factors], "case", case_id)
    parts += _segments(found.places, [height(factor) for factor in found.mean], "mean", "geometric mean")
    for place, anchor, text in ((0.0, "start", found.dates[0]), (1.0, "end", found.dates[-1])):
        where = {"x": f"{place * 100:g}%", "y": f"{_HEIGHT + 18:g}", "text-anchor": anchor, "class": "m-quiet"}
        parts.append(element("text", where, text[:10]))
    picture = element("svg", {"width": "100%", "height": f"{_HEIGHT + _FOOT:g}", "overflow": "visible"}, *parts)
    changed = sorted(found.cases.items(), key=lambda item: -abs(math.log(_last(item[1]))))[:_NAMED]
    most = "; ".join(f"{printable(case_id)} {_last(factors):.2f}x" for case_id, factors in changed)
    return element(
        "figure", {"class": "history", "id": name},
        element("p", {"class": "map-title"}, f"Time over the runs of {found.title}"),
        element(
            "div", {"role": "img", "aria-label": "Time over the runs", "aria-describedby": f"{name}-caption"},
            element("div", {"aria-hidden": "true", "class": "course"}, picture),
        ),
        element("figcaption", {"id": f"{name}-caption"}, f"{_CAPTION} Changed most: {most}."),
    )  # fmt: skip


def _last(factors: Sequence[float | None]) -> float:
    return next(factor for factor in reversed(factors) if factor is not None)


def _factors(low: float, high: float) -> list[float]:
    """What the axis names: 1, and round factors around it."""
    steps = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 1.0, 1.1, 1.25, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
    inside = [step for step in steps if low <= step <= high]
    wide = high / low > 4
    return [step for step in inside if not wide or step not in (0.8, 0.9, 1.1, 1.25)]


def _segments(places: Sequence[float], heights: Sequence[float | None], kind: str, title: str) -> list[Element]:
    """A line from each run to the next one that has the case, and a dot for each run."""
    known = [(place, y) for place, y in zip(places, heights, strict=False) if y is not None]
    found = [
        element(
            "line",
            {"x1": f"{a[0] * 100:.5g}%", "y1": f"{a[1]:.5g}", "x2": f"{b[0] * 100:.5g}%", "y2": f"{b[1]:.5g}"},
        )
        for a, b in itertools.pairwise(known)
    ]
    radius = "3" if kind == "mean" else "2"
    found += [
        element("circle", {"cx": f"{place * 100:.5g}%", "cy": f"{y:.5g}", "r": radius}) for place, y in known
    ]
    return [element("g", {"class": f"m-{kind}"}, element("title", {}, title), *found)]
