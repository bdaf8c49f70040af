"""The figures of a page: the map of a run with its switch, the history of a machine, the charts with their controls.

The lanes of a map stand in a grid that follows the page's width.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element

import msgspec

from gpubench.analysis.analyse import Analysis, MachineRuns, histories
from gpubench.analysis.ratio_map import RatioMap, ratio_map
from gpubench.base import units
from gpubench.base.escaping import printable
from gpubench.curves.stats import geometric_mean
from gpubench.report.charts import LIGHT, Chart, ChartSet
from gpubench.report.markup import element, fragment
from gpubench.report.sections.map import MEANING, TITLE, MapPanel, MapView, axis_text, device_names, map_view
from gpubench.report.sections.map_svg import axis_svg, gains, lane_svg, scale_svg, strip_height
from gpubench.report.wording import situation_text

ATTRIBUTE = "data-map"


# ---------------------------------------------------------------- the map


class PageMap(msgspec.Struct, frozen=True, kw_only=True):
    """A figure for the page, and the views that the page's script puts in place of the first one: each with its title
    and its panels as text, by the number of the devices and of the situations. None where there is nothing to choose.
    """

    figure: Element
    views: dict[str, dict[str, str]] | None


def page_map(analysis: Analysis, prefix: str) -> PageMap | None:
    """The map of one run; None where no GPU was timed beside a CPU."""
    found = ratio_map(analysis)
    if not found.lanes:
        return None
    devices = device_choices(found)
    situations = situation_choices(found)
    views = {
        f"{i}-{j}": map_view(analysis, found, ours, theirs)
        for (i, ours), (j, theirs) in itertools.product(enumerate(devices), enumerate(situations))
    }
    names = dict(zip(found.devices, device_names(found.devices), strict=True))
    fields = [
        _view_choice(
            f"{prefix}map-devices", "GPU", [" and ".join(names[one] for one in ours) for ours in devices]
        ),
        _view_choice(f"{prefix}map-situations", "Situation", [_situations_text(one) for one in situations]),
    ]
    label = f"What the map of {analysis.run.started_at} shows"
    choice = element(
        "form", {"class": "switch", "hidden": "hidden", "aria-label": label},
        *(field for field in fields if field is not None),
    )  # fmt: skip
    several = len(views) > 1
    figure = map_figure(views["0-0"], prefix, choice if several else None)
    slots = {
        key: {
            "title": view.title,
            "panels": "".join(fragment(part) for part in _panels(view, f"{prefix}m{key}-")),
        }
        for key, view in views.items()
    }
    return PageMap(figure=figure, views=slots if several else None)


def device_choices(found: RatioMap) -> list[tuple[str, ...]]:
    """The GPUs to begin with, each alone, and as many together as a lane has room for."""
    together = found.devices[: len(found.devices) if len(found.devices) <= 3 else 0]
    choices = [found.shown, *((device,) for device in found.devices), together]
    return [choice for choice in dict.fromkeys(choices) if choice]


def situation_choices(found: RatioMap) -> list[tuple[str, ...]]:
    """The two situations to begin with, then the others, two at a time."""
    others = found.others
    return [found.situations, *(others[i : i + 2] for i in range(0, len(others), 2))]


def _situations_text(situations: Sequence[str]) -> str:
    return "; ".join(situation_text(one) for one in situations)


def _view_choice(name: str, label: str, texts: Sequence[str]) -> Element | None:
    return (
        _field(name, label, [(str(i), text) for i, text in enumerate(texts)], "0", {})
        if len(texts) > 1
        else None
    )


def _field(
    name: str, label: str, options: Sequence[tuple[str, str]], chosen: str, attributes: Mapping[str, str]
) -> Element:
    """A choice among options, which are pairs of a value and its text."""
    made = [
        element("option", {"value": value} | ({"selected": "selected"} if value == chosen else {}), text)
        for value, text in options
    ]
    return element(
        "div", {"class": "field"}, element("label", {"for": name}, label),
        element("select", {"id": name, **attributes, "autocomplete": "off"}, *made),
    )  # fmt: skip


def map_figure(view: MapView, prefix: str, choice: Element | None = None) -> Element:
    """The picture with its title and its legend. To a screen reader it is one image; the table below says the
    rest."""
    name = f"{prefix}map"
    title = element("p", {"class": "map-title"}, view.title)
    origin = [element("p", {"class": "quiet"}, line) for line in view.origin]
    head = element("div", {"class": "map-head"}, element("div", {}, title, *origin), choice)
    panels = element("div", {"class": "panels", "aria-hidden": "true"}, *_panels(view, f"{name}-"))
    picture = element(
        "div", {"role": "img", "aria-label": TITLE, "aria-describedby": f"{name}-caption"}, panels
    )
    key = element("div", {"class": "map-key", "aria-hidden": "true"}, scale_svg(f"{name}-scale"))
    caption = element("figcaption", {"id": f"{name}-caption"}, MEANING)
    return element(
        "figure",
        {"class": "map", "id": name, ATTRIBUTE: prefix},
        head,
        picture,
        element("div", {"class": "map-foot"}, key, caption),
    )


def _panels(view: MapView, name: str) -> list[Element]:
    return [_panel(panel, view.found, f"{name}{i}") for i, panel in enumerate(view.panels)]


def _panel(panel: MapPanel, found: RatioMap, name: str) -> Element:
    rows: list[Element] = []
    for i, lane in enumerate(panel.lanes):
        tall = "tall" if strip_height(len(lane.strips)) > 20 else "low"
        rows.append(element("span", {"class": "op"}, lane.label))
        rows.append(lane_svg(lane, found, f"{name}l{i}"))
        texts = [element("span", {}, text) for text in gains(lane)]
        rows.append(element("span", {"class": f"gains {tall}"}, *texts))
    rows += [element("span", {"class": "op"}), axis_svg(found), element("span", {})]
    return element(
        "div", {"class": "panel"}, element("p", {"class": "situation"}, panel.situation),
        element("div", {"class": "lanes"}, *rows), element("p", {"class": "axis quiet"}, axis_text(panel.lanes)),
    )  # fmt: skip


# ---------------------------------------------------------------- the history

_HISTORY_HEIGHT, _HISTORY_FOOT = 180.0, 24.0
_LEAST_SPAN = 1.1  # of the axis: a change of 2 % is no mountain
_MOST_NAMED = 2  # the cases that changed most are named
_HISTORY_CAPTION = (
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
    times = [time for text in dates if (time := units.parse_time(text)) is not None]
    if len(times) < len(dates):
        return even
    seconds = [time.timestamp() for time in times]
    span = seconds[-1] - seconds[0]
    return tuple((one - seconds[0]) / span for one in seconds) if span > 0 else even


def history_figure(found: HistoryLine, name: str) -> Element:
    """The lines with their axis; the table below has the numbers."""
    top = max(_LEAST_SPAN, *(f for case in found.cases.values() for f in case if f is not None)) * 1.02
    low = min(1 / _LEAST_SPAN, *(f for case in found.cases.values() for f in case if f is not None)) / 1.02

    def height(factor: float) -> float:
        return _HISTORY_HEIGHT * (1 - math.log(factor / low) / math.log(top / low))

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
        where = {
            "x": f"{place * 100:g}%",
            "y": f"{_HISTORY_HEIGHT + 18:g}",
            "text-anchor": anchor,
            "class": "m-quiet",
        }
        parts.append(element("text", where, text[:10]))
    picture = element(
        "svg",
        {"width": "100%", "height": f"{_HISTORY_HEIGHT + _HISTORY_FOOT:g}", "overflow": "visible"},
        *parts,
    )
    changed = sorted(found.cases.items(), key=lambda item: -abs(math.log(_last(item[1]))))[:_MOST_NAMED]
    most = "; ".join(f"{printable(case_id)} {_last(factors):.2f}x" for case_id, factors in changed)
    return element(
        "figure", {"class": "history", "id": name},
        element("p", {"class": "map-title"}, f"Time over the runs of {found.title}"),
        element(
            "div", {"role": "img", "aria-label": "Time over the runs", "aria-describedby": f"{name}-caption"},
            element("div", {"aria-hidden": "true", "class": "lines-over-time"}, picture),
        ),
        element("figcaption", {"id": f"{name}-caption"}, f"{_HISTORY_CAPTION} Changed most: {most}."),
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


# ---------------------------------------------------------------- the charts

_WORDS = {"hybrid": "split"}
NO_SCRIPT = "The charts need JavaScript. The tables below hold the same numbers."


def charts_section(found: ChartSet, prefix: str, gone: Sequence[str], started_at: str) -> Element:
    """Controls above the figures, hidden until the script runs; `gone` says what had to be left out, `started_at` tells
    the run."""
    live = element(
        "div", {"class": "live", "hidden": "hidden"}, *(element("p", {"class": "note"}, text) for text in gone),
        _form(found, prefix, started_at),
        element("div", {"class": "figures"}, *(_figure(chart, prefix) for chart in found.charts)),
    )  # fmt: skip
    return element(
        "section", {"id": f"{prefix}charts", "data-charts": prefix}, element("h2", {}, "Charts over size"),
        element("noscript", {}, element("p", {"class": "note"}, NO_SCRIPT)),
        element("p", {"class": "quiet", "role": "status", "id": f"{prefix}status"}), live,
    )  # fmt: skip


def _form(found: ChartSet, prefix: str, started_at: str) -> Element:
    """The op, the devices, the regimes, the form and the size; a choice of one is no choice."""
    chosen = next(one for one in found.series if one.name == found.chosen)
    # Until one is picked the tables show all of them, and a chart has to begin with one.
    series = [("", f"all (charts: {found.chosen})"), *((one.name, one.name) for one in found.series)]
    parts = [_select("series", "Operation", prefix, series, "")]
    if any(chart.one_size for chart in found.charts):
        sizes = [(str(n), str(n)) for n in chosen.sizes]
        where = ", ".join(_WORDS.get(chart.id, chart.id) for chart in found.charts if chart.one_size)
        parts.append(_select("size", f"Size ({where})", prefix, sizes, str(chosen.size)))
    if len(found.forms) > 1:
        forms = [("", "fastest"), *((name, name) for name in found.forms)]
        parts.append(_select("form", "Form", prefix, forms, ""))
    swatches = {name: str(i % len(LIGHT)) for i, (name, _) in enumerate(found.devices)}
    parts.append(_boxes("device", "Devices", prefix, found.devices, swatches))
    if len(found.regimes) > 1:
        parts.append(_boxes("regime", "Where the data is", prefix, found.regimes, {}))
    return element(
        "form", {"class": "controls", "aria-label": f"What charts and tables of {started_at} show"}, *parts
    )


def _select(name: str, label: str, prefix: str, options: Sequence[tuple[str, str]], chosen: str) -> Element:
    return _field(f"{prefix}{name}", label, options, chosen, {"name": name})


def _boxes(
    name: str, label: str, prefix: str, choices: Sequence[tuple[str, str]], swatches: dict[str, str]
) -> Element:
    boxes = []
    for value, meaning in choices:
        box = element(
            "input",
            {"type": "checkbox", "name": name, "value": value, "checked": "checked", "autocomplete": "off"},
        )
        swatch = (
            element("span", {"class": f"swatch s{swatches[value]}", "aria-hidden": "true"})
            if swatches
            else None
        )
        quiet = element("span", {"class": "quiet"}, meaning)
        boxes.append(element("label", {}, box, swatch, element("span", {}, value), " ", quiet))
    return element("fieldset", {"id": f"{prefix}{name}s"}, element("legend", {}, label), *boxes)


def _figure(chart: Chart, prefix: str) -> Element:
    """A chart, what it shows, and its numbers. The picture is one image to a screen reader, whatever draws in it."""
    name = f"{prefix}chart-{chart.id}"
    place = element(
        "div", {"role": "img", "aria-label": chart.title, "aria-describedby": f"{name}-caption"},
        element("div", {"aria-hidden": "true"}, element("div", {"class": "chart", "id": name})),
    )  # fmt: skip
    data = element(
        "details", {"class": "data"}, element("summary", {}, "Data table"),
        element(
            "div", {"class": "scroll", "role": "group", "aria-label": f"Data: {chart.title}", "tabindex": "0"},
            element("table", {"id": f"{name}-table"}, element("caption", {}, chart.title)),
        ),
    )  # fmt: skip
    return element(
        "figure", {"id": f"{name}-figure"}, element("h3", {}, chart.title), place,
        element("figcaption", {"id": f"{name}-caption"}, chart.caption), data,
    )  # fmt: skip
