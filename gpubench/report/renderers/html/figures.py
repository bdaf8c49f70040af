"""The figures of a page: the map of a run with its switch, the history of a machine, the charts with their controls."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element

import msgspec

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.ratio_map import RatioMap, ratio_map
from gpubench.base.table import line_text
from gpubench.report.charts import LIGHT, Chart, ChartRow, ChartSet
from gpubench.report.markup import element
from gpubench.report.sections.history_chart import HistoryChart
from gpubench.report.sections.map import MEANING, TITLE, MapView, device_names, map_view
from gpubench.report.sections.map import drawn as drawn_in_characters
from gpubench.report.sections.map_chart import map_specs
from gpubench.report.wording import situation_text

_LETTERS = 110  # of a line of the map in characters, which stands where no script draws it


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What a figure may show: its title, and a Vega-Lite spec for each panel."""

    title: str
    specs: list[ChartRow]


class Drawing(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of a page, and the views that the page's script draws in it, `0-0` first; without views it stays as it
    is."""

    element: Element
    views: dict[str, View]
    id: str


def page_map(analysis: Analysis, prefix: str, *, draws: bool) -> Drawing | None:
    """The map of one run; None where no GPU was timed beside a CPU. `draws`: there is a library."""
    found = ratio_map(analysis)
    if not found.lanes:
        return None
    devices = device_choices(found)
    situations = situation_choices(found)
    views = {
        f"{i}-{j}": map_view(analysis, found, gpus, regimes)
        for (i, gpus), (j, regimes) in itertools.product(enumerate(devices), enumerate(situations))
    }
    if not draws:
        return map_figure({"0-0": views["0-0"]}, prefix, draws=False)
    names = dict(zip(found.devices, device_names(found.devices), strict=True))
    choices = (
        ("devices", "GPU", [" and ".join(names[gpu] for gpu in gpus) for gpus in devices]),
        ("situations", "Situation", ["; ".join(map(situation_text, regimes)) for regimes in situations]),
    )
    fields = [
        _field(f"{prefix}map-{name}", label, [(str(i), text) for i, text in enumerate(texts)], "0", {})
        for name, label, texts in choices
        if len(texts) > 1
    ]
    label = f"What the map of {analysis.run.started_at} shows"
    form = element("form", {"class": "switch", "hidden": "hidden", "aria-label": label}, *fields)
    return map_figure(views, prefix, form if fields else None)


def device_choices(found: RatioMap) -> list[tuple[str, ...]]:
    """The GPUs to begin with, each alone, and as many together as a lane has room for."""
    together = found.devices[: len(found.devices) if len(found.devices) <= 3 else 0]
    choices = [found.shown, *((device,) for device in found.devices), together]
    return [choice for choice in dict.fromkeys(choices) if choice]


def situation_choices(found: RatioMap) -> list[tuple[str, ...]]:
    """The two situations to begin with, then the others, two at a time."""
    others = found.others
    return [found.situations, *(others[i : i + 2] for i in range(0, len(others), 2))]


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


def map_figure(
    views: Mapping[str, MapView], prefix: str, choice: Element | None = None, *, draws: bool = True
) -> Drawing:
    """The map in characters, in whose place the script draws it, with its title and what its marks mean."""
    first = views["0-0"]
    letters = element("pre", {})
    letters.text = "\n".join(map(line_text, drawn_in_characters(first, _LETTERS, ascii_only=False)))
    origin = [element("p", {"class": "quiet"}, line) for line in first.origin]
    drawings = {key: View(title=view.title, specs=map_specs(view)) for key, view in views.items() if draws}
    head = (element("div", {}, _title(first.title), *origin), choice)
    return _drawing(f"{prefix}map", "map", (TITLE, MEANING), (*head, letters), drawings)


def history_figure(found: HistoryChart, name: str, *, draws: bool) -> Drawing:
    """The history of a machine; the table below it has the numbers."""
    views = {"0-0": View(title=found.title, specs=[found.spec])} if draws else {}
    content = (_title(found.title), None, None)
    return _drawing(name, "history", ("Time over the runs", found.caption), content, views)


def _title(text: str) -> Element:
    return element("p", {"class": "map-title"}, text)


def _drawing(
    name: str, kind: str, words: tuple[str, str], content: tuple[Element | None, ...], views: dict[str, View]
) -> Drawing:
    """To a screen reader the drawing is one image, which the table below explains. `words`: its name and its caption;
    `content`: its title, its choice and what stands where nothing draws it."""
    (label, caption), (title, choice, instead) = words, content
    head = element("div", {"class": "map-head"}, title, choice)
    panels = element("div", {"class": "panels", "aria-hidden": "true"}, instead)
    picture = element(
        "div", {"role": "img", "aria-label": label, "aria-describedby": f"{name}-caption"}, panels
    )
    drawn = {"data-drawing": name} if views else {}
    whole = element(
        "figure", {"class": kind, "id": name, **drawn}, head, picture,
        element("figcaption", {"id": f"{name}-caption"}, caption),
    )  # fmt: skip
    return Drawing(element=whole, views=views, id=name)


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
