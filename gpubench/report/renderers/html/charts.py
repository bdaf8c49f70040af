"""The charts of one run on a page: controls, which the tables below obey too, and a figure for each chart."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from gpubench.report.charts import LIGHT, Chart, ChartSet
from gpubench.report.markup import element

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
    made = [
        element("option", {"value": value} | ({"selected": "selected"} if value == chosen else {}), text)
        for value, text in options
    ]
    field = f"{prefix}{name}"
    return element(
        "div", {"class": "field"}, element("label", {"for": field}, label),
        element("select", {"id": field, "name": name, "autocomplete": "off"}, *made),
    )  # fmt: skip


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
