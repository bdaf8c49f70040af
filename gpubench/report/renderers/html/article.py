"""Elements of a page. Foreign text enters as text nodes and attribute values only, and is escaped on the way out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element, tostring

import msgspec

from gpubench import store
from gpubench.analysis.analyse import Analysis
from gpubench.report.charts.chart import LIGHT, Chart, ChartSet
from gpubench.report.contents import GATES, document
from gpubench.report.layout import Cell, Column, Picture, RenderOptions, Section, Table, TextDocument, visible
from gpubench.report.sections.machines import overview

Content = Element | str | None


def element(tag: str, attributes: Mapping[str, str] | None = None, *content: Content) -> Element:
    """An element with its content in order; None is left out. Of text only what shows is kept."""
    made = Element(tag, {name: visible(value) for name, value in (attributes or {}).items()})
    for part in content:
        if isinstance(part, str):
            _append(made, visible(part))
        elif part is not None:
            made.append(part)
    return made


def verbatim(tag: str, attributes: Mapping[str, str], text: str) -> Element:
    """A script or a style, whose text no browser unescapes. Raises ValueError if it could end its own element."""
    if f"</{tag}" in text.lower() or "<!--" in text:
        raise ValueError(f"the text would end or change its {tag} element")
    made = Element(tag, dict(attributes))
    made.text = text
    return made


def markup(root: Element) -> str:
    """The document as HTML."""
    text: str = tostring(root, encoding="unicode", method="html")
    return "<!DOCTYPE html>\n" + text + "\n"


def _append(parent: Element, text: str) -> None:
    if len(parent):
        parent[-1].tail = (parent[-1].tail or "") + text
    else:
        parent.text = (parent.text or "") + text


WHOLE, ID = 32, 80  # characters of a cell, and of a single word in it, up to which it is not broken
_SIZE = re.compile(r"(n = \d+(?: \[[^\]]*\])?)")


def section(part: Section, name: str, *, folded: bool = False) -> Element:
    """One section with its heading, of the id `name`; what is folded opens on demand."""
    heading = element("h2", {}, part.title)
    tables = [table(item, part.title) for item in part.tables]
    body = [*_lines(part.lines), *(_picture(item) for item in part.pictures), *tables]
    if part.folded or folded:
        return element("section", {"id": name}, element("details", {}, element("summary", {}, heading), *body))
    return element("section", {"id": name}, heading, *body)


def verdict(part: Section, prefix: str) -> Element:
    """The verdict in large words: what a sentence is about stands out."""
    sentences = []
    for line in part.lines:
        subject, colon, rest = line.partition(": ")
        named = bool(colon) and len(subject) <= 60
        words: list[Content] = [element("strong", {}, subject + ":"), " "] if named else []
        sentences.append(element("li", {}, *words, *_sizes_whole(rest if named else line)))
    size = "few" if len(sentences) <= 4 else "many"
    return element(
        "section", {"id": f"{prefix}verdict", "class": "verdict"},
        element("h2", {}, part.title), element("ul", {"class": size}, *sentences),
    )  # fmt: skip


def _picture(found: Picture) -> Element:
    text = "\n".join(row.text for row in found.rows)
    drawing = element("pre", {"class": "scroll", "role": "img", "aria-label": found.title, "tabindex": "0"})
    drawing.text = "\n".join(visible(line) for line in text.split("\n"))
    return element("div", {"class": "table"}, element("p", {}, found.title), drawing)


def _sizes_whole(text: str) -> list[Content]:
    """`text` with its sizes kept on one line: no break in `n = 1408 [1312, 1504]`."""
    return [
        element("span", {"class": "whole"}, part) if i % 2 else part for i, part in enumerate(_SIZE.split(text))
    ]


def table(found: Table, name: str) -> Element:
    """A table in a box of its own that scrolls, with the mouse and by keyboard, instead of the page."""
    title = found.title or name
    head = element("tr", {}, *(_heading(column) for column in found.columns))
    body = [_row(row, found.columns) for row in found.rows]
    caption = element("caption", {}, element("span", {"class": "title" if found.title else "unseen"}, title))
    if found.note:
        caption.append(element("span", {"class": "note"}, found.note))
    whole = element("table", {}, caption, element("thead", {}, head), element("tbody", {}, *body))
    box = element("div", {"class": "scroll", "role": "group", "aria-label": title, "tabindex": "0"}, whole)
    legend = element("p", {"class": "legend"}, found.legend) if found.legend else None
    return element("div", {"class": "table"}, box, legend)


def _lines(lines: Sequence[str]) -> list[Element]:
    if len(lines) == 1:
        return [element("p", {}, lines[0])]
    return [element("ul", {"class": "lines"}, *(element("li", {}, line) for line in lines))] if lines else []


def _heading(column: Column) -> Element:
    return element("th", {"scope": "col", **_side(column)}, column.name)


def _row(row: Sequence[Cell], columns: Sequence[Column]) -> Element:
    return element("tr", {}, *(_cell(cell, columns[i], head=i == 0) for i, cell in enumerate(row)))


def _cell(cell: Cell, column: Column, *, head: bool) -> Element:
    classes = ["n"] if column.right else []
    classes += ["whole"] if len(cell.text) <= WHOLE or (len(cell.text) <= ID and " " not in cell.text) else []
    classes += [cell.tone] if cell.tone != "plain" else []
    head = head and bool(cell.text)  # a cell that repeats the one above heads nothing
    attributes = ({"class": " ".join(classes)} if classes else {}) | ({"scope": "row"} if head else {})
    return element("th" if head else "td", attributes, cell.text)


def _side(column: Column) -> dict[str, str]:
    return {"class": "n"} if column.right else {}


BEFORE_CHARTS = ("verdict", GATES, "breakeven", "reuse")  # short, and what a reader came for
_NO_PLOTS = "There are no charts in this page because {}"
_NO_SAMPLES = "The samples are not drawn: the page would have become too large. They are in the result file."
_NO_RESULT = (
    "The result is not in this page, which would be too large: it is the file that the page is made from."
)


class Filling(msgspec.Struct, frozen=True):
    """What a page holds beside the report itself: the samples as a chart, and the result files."""

    samples: bool = True
    results: bool = True


def together(analyses: Sequence[Analysis], options: RenderOptions) -> list[Element]:
    """What several files say together: machines side by side, one machine over time."""
    if len(analyses) < 2:
        return []
    report = overview(analyses, options)
    parts = [section(part, name) for part, name in zip(report.sections, _ids(report, "all-"), strict=True)]
    headings = [element("p", {}, line) for line in report.headings]
    return [
        element(
            "article", {"aria-label": report.headings[0]}, element("div", {"class": "run"}, *headings), *parts
        )
    ]


def article(
    analysis: Analysis,
    charts: ChartSet | None,
    options: RenderOptions,
    filling: Filling,
    prefix: str,
    without: str = "",
) -> Element:
    """One run: verdict first, break-even, charts, then everything else. `without`: why there are no charts."""
    report = document(analysis, options, full=True)
    drawn = charts is not None and bool(charts.charts)
    parts: list[Element] = []
    chart_part = _chart_part(analysis, charts, prefix, filling, without)
    for part, name in zip(report.sections, _ids(report, prefix), strict=True):
        if part.key == "verdict":
            parts.append(verdict(part, prefix))
            continue
        if chart_part is not None and part.key not in BEFORE_CHARTS:
            parts.append(chart_part)
            chart_part = None
        # Below charts with their own tables the long table of the same numbers can wait.
        parts.append(section(part, name, folded=drawn and part.key == "speedup"))
    parts += [chart_part] if chart_part is not None else []
    headings = [element("p", {}, line) for line in report.headings]
    return element(
        "article", {"aria-label": report.headings[0]}, element("div", {"class": "run"}, *headings),
        *parts[:1], _notice(report, prefix), *parts[1:], _download(analysis, prefix, filling),
    )  # fmt: skip


def _ids(report: TextDocument, prefix: str) -> list[str]:
    """An id for each section: its key, numbered where it has several."""
    seen: Counter[str] = Counter()
    found = []
    for part in report.sections:
        seen[part.key] += 1
        found.append(f"{prefix}{part.key}" + (f"-{seen[part.key]}" if seen[part.key] > 1 else ""))
    return found


def _notice(report: TextDocument, prefix: str) -> Element | None:
    """That there are warnings, where nobody can miss it."""
    found = next((part for part in report.sections if part.key == "warnings"), None)
    count = len(found.tables[0].rows) if found is not None and found.tables else 0
    if not count:
        return None
    words = "1 warning limits" if count == 1 else f"{count} warnings limit"
    link = element("a", {"href": f"#{prefix}warnings"}, f"{words} what these numbers say")
    return element("p", {"class": "notice"}, link)


def _chart_part(
    analysis: Analysis, charts: ChartSet | None, prefix: str, filling: Filling, without: str
) -> Element | None:
    if charts is None:
        return element("section", {}, element("p", {"class": "note"}, _NO_PLOTS.format(without)))
    if not charts.charts:
        return None
    gone = [] if filling.samples else [_NO_SAMPLES]
    return charts_section(charts, prefix, gone, analysis.run.started_at)


def _download(analysis: Analysis, prefix: str, filling: Filling) -> Element:
    name = store.result_name(analysis.run)
    button = element(
        "button", {"type": "button", "data-download": f"{prefix}result", "data-name": name}, f"Save {name}"
    )
    content = button if filling.results else element("p", {"class": "note"}, _NO_RESULT)
    return element(
        "section", {"id": f"{prefix}file"}, element("h2", {}, "Result file"),
        element("p", {}, "All samples as JSON, as gpubench report and gpubench compare read them."), content,
    )  # fmt: skip


_WORDS = {"hybrid": "split"}
NO_SCRIPT = "The charts need JavaScript. The tables below hold the same numbers."


def charts_section(found: ChartSet, prefix: str, gone: Sequence[str], started_at: str) -> Element:
    """Controls above the figures; `gone` says what had to be left out, `started_at` tells the run."""
    return element(
        "section",
        {"id": f"{prefix}charts", "data-charts": prefix},
        element("h2", {}, "Charts"),
        element("noscript", {}, element("p", {"class": "note"}, NO_SCRIPT)),
        *(element("p", {"class": "note"}, text) for text in gone),
        _form(found, prefix, started_at),
        element("p", {"class": "quiet", "role": "status", "id": f"{prefix}status"}),
        element("div", {"class": "figures"}, *(_figure(chart, prefix) for chart in found.charts)),
    )  # fmt: skip


def _form(found: ChartSet, prefix: str, started_at: str) -> Element:
    """The op, the devices, the regimes, the form and the size; a choice of one is no choice."""
    chosen = next(one for one in found.series if one.name == found.chosen)
    parts = [
        _select("series", "Operation", prefix, [(one.name, one.name) for one in found.series], found.chosen)
    ]
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
    return element("form", {"class": "controls", "aria-label": f"What the charts of {started_at} show"}, *parts)


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
