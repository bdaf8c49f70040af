"""The elements of a page. Foreign text enters as text nodes and attribute values only, escaped on the way out."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Sequence
from xml.etree.ElementTree import Element, tostring

import msgspec

from gpubench.base.streams import visible
from gpubench.base.table import Cell, Column, Table, line_text
from gpubench.report.charts import Chart, ChartRow, ChartSet
from gpubench.report.layout import Section
from gpubench.report.sections.machines import HistoryChart
from gpubench.report.sections.map import MEANING, TITLE, MapView, draw_map, map_specs


def element(tag: str, *content: Element | str | None, **attributes: str | None) -> Element:
    """Return an element with its content in order; None is left out. Of text only what shows is kept.

    `tag`: with classes behind dots, as in `p.note`. In the names of attributes `_` stands for `-`.
    """
    name, *classes = tag.split(".")
    made = Element(name, {"class": " ".join(classes)} if classes else {})
    for key, value in attributes.items():
        if value is not None:
            made.set(key.rstrip("_").replace("_", "-"), visible(value))
    for part in content:
        if isinstance(part, Element):
            made.append(part)
        elif part is not None and len(made):
            made[-1].tail = (made[-1].tail or "") + visible(part)
        elif part is not None:
            made.text = (made.text or "") + visible(part)
    return made


def verbatim(tag: str, text: str, **attributes: str) -> Element:
    """Return a script or a style, whose text no browser unescapes. Raises ValueError if it could end its own
    element."""
    if f"</{tag}" in text.lower() or "<!--" in text:
        raise ValueError(f"the text would end or change its {tag} element")
    made = element(tag, **attributes)
    made.text = text
    return made


def block(name: str, data: bytes) -> Element:
    """Return a script element that no browser runs; the page's script reads it by its id."""
    packed = base64.b64encode(gzip.compress(data, mtime=0)).decode()  # without a time: the same bytes again
    return verbatim("script", packed, type="text/plain", id=name)


def page_text(root: Element) -> str:
    """Return the document as HTML."""
    text: str = tostring(root, encoding="unicode", method="html")
    return f"<!DOCTYPE html>\n{text}\n"


# ---------------------------------------------------------------- sections and tables

WHOLE, ID = 32, 80  # characters of a cell, and of a single word in it, up to which it is not broken


def section(part: Section, name: str, *, folded: bool = False) -> Element:
    """Return one section with its heading, of the id `name`; what is folded opens on demand."""
    heading = element("h2", part.title)
    letters = [element("pre.scroll", tabindex="0")] if part.picture else []
    for drawing in letters:
        drawing.text = "\n".join(map(line_text, part.picture))
    body = [*lines(part.lines), *letters, *(table(item, part.title) for item in part.tables)]
    if part.folded or folded:
        return element("section", element("details", element("summary", heading), *body), id=name)
    return element("section", heading, *body, id=name)


def lines(texts: Sequence[str]) -> list[Element]:
    """Return one line as a paragraph, several as a list."""
    if len(texts) == 1:
        return [element("p", texts[0])]
    return [element("ul.lines", *(element("li", line) for line in texts))] if texts else []


def table(content: Table, name: str) -> Element:
    """Return a table in a box of its own that scrolls, with the mouse and by keyboard, instead of the page."""
    title, columns = content.title or name, content.columns
    heads = []
    if groups := content.groups():
        above = [element("td") for _ in range(groups[0][1])]
        above += [
            element("th.group", label, colspan=str(end - start), scope="colgroup")
            for label, start, end in groups
        ]
        heads.append(element("tr", *above))
    if any(column.name for column in columns):
        heads.append(element("tr", *map(_heading, columns)))
    rows = [element("tr", *(_cell(cell, columns[i], i) for i, cell in enumerate(row))) for row in content.rows]
    caption = element(
        "caption", element("span.title" if content.title else "span.unseen", title),
        element("span.note", content.note) if content.note else None,
    )  # fmt: skip
    whole = element("table", caption, element("thead", *heads), element("tbody", *rows))
    return element(
        "div.table", element("div.scroll", whole, role="group", aria_label=title, tabindex="0"),
        element("p.legend", content.legend) if content.legend else None,
    )  # fmt: skip


def _heading(column: Column) -> Element:
    kind = ".n" if column.right else ""
    return element(f"th{kind}", column.name, scope="col") if column.name else element(f"td{kind}")


def _cell(cell: Cell, column: Column, place: int) -> Element:
    text = cell.text
    short = len(text) <= WHOLE or (len(text) <= ID and " " not in text)
    tone = "again" if cell.again else cell.tone
    tag = "th" if not place and text else "td"
    classes = (
        f"{'.n' if column.right else ''}{'.whole' if short else ''}{'' if tone == 'plain' else f'.{tone}'}"
    )
    return element(tag + classes, text, scope="row" if tag == "th" else None)


# ---------------------------------------------------------------- the map and the history

_LETTERS = 110  # of a line of the map in characters, which stands where no script draws it


def map_figure(view: MapView, name: str, *, draws: bool, origin: bool = False) -> Element:
    """Return the map in characters, in whose place the script draws it. `origin`: with what it is made from."""
    letters = element("pre")
    letters.text = "\n".join(map(line_text, draw_map(view, _LETTERS, ascii_only=False)))
    title = [element("p.map-title", view.title)]
    title += [element("p.quiet", line) for line in view.origin if origin]
    specs = map_specs(view) if draws else []
    return _figure("map", name, (TITLE, MEANING), [*title, letters], specs)


def history_figure(chart: HistoryChart, name: str) -> Element:
    """Return the history of a machine; the table below it has the numbers."""
    title = [element("p.map-title", chart.title)]
    return _figure("history", name, ("Time over the runs", chart.caption), title, [chart.spec])


def _figure(
    kind: str, name: str, words: tuple[str, str], content: Sequence[Element], specs: Sequence[ChartRow]
) -> Element:
    """Return a drawing, which to a screen reader is one image. `words`: its name and its caption; `content`: its title
    and what stands in its place where nothing draws `specs`."""
    title = [part for part in content if part.tag != "pre"]
    panels = element("div.panels", *content[len(title) :], aria_hidden="true")
    return element(
        f"figure.{kind}", *title,
        element("div", panels, role="img", aria_label=words[0], aria_describedby=f"{name}-caption"),
        element("figcaption", words[1], id=f"{name}-caption"),
        block(f"{name}-data", msgspec.json.encode(specs)) if specs else None,
        id=name, data_drawing=name if specs else None,
    )  # fmt: skip


# ---------------------------------------------------------------- the charts

NO_SCRIPT = "The charts need JavaScript. The tables below hold the same numbers."


def charts_section(charts: ChartSet, prefix: str, started_at: str) -> Element:
    """Return controls above the figures, hidden until the script runs; `started_at` tells the run."""
    # Until one is picked the tables show all of them, and a chart has to begin with one.
    options = [element("option", f"all (charts: {charts.chosen})", value="", selected="selected")]
    options += [element("option", name, value=name) for name in charts.series]
    devices = [(device.id, device.name, str(device.color)) for device in charts.devices]
    regimes = [(name, meaning, "") for name, meaning in charts.regimes]
    form = element(
        "form.controls",
        element(
            "div.field", element("label", "Operation", for_=f"{prefix}series"),
            element("select", *options, id=f"{prefix}series", name="series", autocomplete="off"),
        ),
        _boxes("device", "Devices", devices), _boxes("regime", "Where the data is", regimes),
        aria_label=f"What charts and tables of {started_at} show",
    )  # fmt: skip
    figures = element("div.figures", *(_chart(chart, prefix) for chart in charts.charts))
    return element(
        "section", element("h2", "Charts over size"), element("noscript", element("p.note", NO_SCRIPT)),
        element("p.quiet", role="status", id=f"{prefix}status"), element("div.live", form, figures, hidden="hidden"),
        block(f"{prefix}charts-data", msgspec.json.encode(charts)),
        id=f"{prefix}charts", data_charts=prefix,
    )  # fmt: skip


def _boxes(name: str, label: str, choices: Sequence[tuple[str, str, str]]) -> Element:
    boxes = [
        element(
            "label",
            element("input", type="checkbox", name=name, value=value, checked="checked", autocomplete="off"),
            element(f"span.swatch.s{color}", aria_hidden="true") if color else None,
            element("span", value), " ", element("span.quiet", meaning),
        )
        for value, meaning, color in choices
    ]  # fmt: skip
    return element("fieldset", element("legend", label), *boxes)


def _chart(chart: Chart, prefix: str) -> Element:
    """Return a chart and what it shows. The picture is one image to a screen reader, whatever draws in it."""
    name = f"{prefix}chart-{chart.id}"
    place = element("div", element("div.chart", id=name), aria_hidden="true")
    return element(
        "figure", element("h3", chart.title),
        element("div", place, role="img", aria_label=chart.title, aria_describedby=f"{name}-caption"),
        element("figcaption", chart.caption, id=f"{name}-caption"), id=f"{name}-figure",
    )  # fmt: skip
