"""The elements of one run on a page, and of what several runs say together: sections with their tables.

A narrow page keeps the first column of a table in sight, and below it the device.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from xml.etree.ElementTree import Element

import msgspec

from gpubench.analysis.analyse import Analysis
from gpubench.base.plugins.sections import usual
from gpubench.base.table import Cell, Column, Table
from gpubench.report.charts import ChartSet
from gpubench.report.contents import overview
from gpubench.report.layout import Picture, RenderOptions, Section, TextDocument, visible
from gpubench.report.markup import element
from gpubench.report.renderers.html.figures import Drawing, charts_section
from gpubench.report.sections.answer import KEY as ANSWER
from gpubench.report.sections.answer import answer_sentences
from gpubench.report.sections.map import KEY as MAP
from gpubench.result import store

_UNIT = re.compile(r"(\d) ([KMG])\b")  # a line does not end between a number and its unit
OPEN = ("gates", "claims")  # what a reader has to act on; the other sections unfold on demand
_NO_PLOTS = "There are no charts in this page because {}"
_NO_SAMPLES = "The samples are not drawn: the page would have become too large. They are in the result file."
_NO_RESULT = (
    "The result is not in this page, which would be too large: it is the file that the page is made from."
)
_NO_DETAILS = "These tables are not in this page, which would be too large: gpubench report --sections {}"
LONG = ("speedup", "reuse", "anatomy", "stages", "roofline")  # sections with a row for each case
MANY = 3  # runs on one page: each of them unfolds on demand


class Filling(msgspec.Struct, frozen=True):
    """What a page holds beside the answer: the samples as a chart, the result files, and the longest tables."""

    samples: bool = True
    results: bool = True
    details: bool = True


def sections_of(options: RenderOptions) -> RenderOptions:
    """A page begins with the answer and its map, unless its reader chose the sections."""
    if tuple(options.sections) != usual():
        return options
    return msgspec.structs.replace(options, sections=tuple(dict.fromkeys((ANSWER, MAP, *options.sections))))


def together(analyses: Sequence[Analysis], options: RenderOptions, figures: Sequence[Element]) -> list[Element]:
    """What several files say together: machines side by side, one machine over time. `figures` stand first."""
    if len(analyses) < 2:
        return []
    report = overview(analyses, options)
    parts = [section(part, name) for part, name in zip(report.sections, _ids(report, "all-"), strict=True)]
    headings = [element("p", {}, line) for line in report.headings]
    return [
        element(
            "article",
            {"aria-label": report.headings[0]},
            element("div", {"class": "run"}, *headings),
            *figures,
            *parts,
        )
    ]


def article(
    analysis: Analysis,
    report: TextDocument,
    charts: ChartSet | None,
    found: Drawing | None,
    filling: Filling,
    prefix: str,
    without: str = "",
    *,
    folded: bool = False,
) -> Element:
    """One run: the sentence, the map and the table below it; then charts, and folded whatever else there is.
    `without`: why there are no charts. `folded`: it is one of many."""
    lead: list[Element] = []
    opened: list[Element] = []
    rest: list[Element] = []
    for part, name in zip(report.sections, _ids(report, prefix), strict=True):
        if part.key == ANSWER:
            lead += _answer(analysis, part, name, found)
        elif part.key == MAP:
            lead += [] if found is None or lead else [found.element]
        elif part.key in OPEN:
            opened.append(section(part, name))
        elif part.key in LONG and part.tables and not filling.details:
            lines_left = (_NO_DETAILS.format(part.key),)
            rest.append(section(msgspec.structs.replace(part, lines=lines_left, tables=()), name, folded=True))
        else:
            rest.append(section(part, name, folded=True))
    chart_part = _chart_part(analysis, charts, prefix, filling, without)
    headings = [element("p", {}, line) for line in report.headings]
    run = element("div", {"class": "run"}, *headings)
    parts = [
        *lead, _notice(report, prefix), *opened, chart_part,
        element("div", {"class": "details"}, *rest) if rest else None, _download(analysis, prefix, filling),
    ]  # fmt: skip
    label = {"aria-label": report.headings[0]}
    if folded:
        return element(
            "article", label, element("details", {"class": "one"}, element("summary", {}, run), *parts)
        )
    return element("article", label, run, *parts)


def _answer(analysis: Analysis, part: Section, name: str, found: Drawing | None) -> list[Element]:
    """The sentence in large words, the map, the table right below it, and what limits them."""
    words = itertools.zip_longest(part.lines, answer_sentences(analysis))
    count = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], words))
    said, below = part.lines[:count], part.lines[count:]
    # The title of the map says what the next line would.
    below = below[1:] if found is not None else below
    large = [element("p", {"class": "sentence"}, _UNIT.sub("\\1\u00a0\\2", text)) for text in said]
    sentence = element("section", {"id": name, "class": "answer"}, *large)
    tables = [table(item, part.title) for item in part.tables]
    figures = [found.element] if found is not None else []
    return [sentence, *figures, element("section", {"class": "thresholds"}, *tables, *lines(below))]


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
        "button",
        {"type": "button", "hidden": "hidden", "data-download": f"{prefix}result", "data-name": name},
        f"Save {name}",
    )
    content = button if filling.results else element("p", {"class": "note"}, _NO_RESULT)
    return element(
        "section", {"id": f"{prefix}file"}, element("h2", {}, "Result file"),
        element("p", {}, "All samples as JSON, as gpubench report and gpubench compare read them."), content,
    )  # fmt: skip


# ---------------------------------------------------------------- sections and tables

WHOLE, ID = 32, 80  # characters of a cell, and of a single word in it, up to which it is not broken
# Who reads a narrow page sees these columns below the first one, which stays in sight.
NEAR = ("device", "GPU", "adapter", "hybrid", "machine")


def section(part: Section, name: str, *, folded: bool = False) -> Element:
    """One section with its heading, of the id `name`; what is folded opens on demand."""
    heading = element("h2", {}, part.title)
    tables = [table(item, part.title) for item in part.tables]
    body = [*lines(part.lines), *(_picture(item) for item in part.pictures), *tables]
    if part.folded or folded:
        return element("section", {"id": name}, element("details", {}, element("summary", {}, heading), *body))
    return element("section", {"id": name}, heading, *body)


def _picture(found: Picture) -> Element:
    text = "\n".join(row.text for row in found.rows)
    drawing = element("pre", {"class": "scroll", "role": "img", "aria-label": found.title, "tabindex": "0"})
    drawing.text = "\n".join(visible(line) for line in text.split("\n"))
    return element("div", {"class": "table"}, element("p", {}, found.title) if found.title else None, drawing)


def table(found: Table, name: str) -> Element:
    """A table in a box of its own that scrolls, with the mouse and by keyboard, instead of the page."""
    title = found.title or name
    near = _near(found.columns)
    body = _rows(found)
    caption = element("caption", {}, element("span", {"class": "title" if found.title else "unseen"}, title))
    if found.note:
        caption.append(element("span", {"class": "note"}, found.note))
    head = element("thead", {}, *_heads(found, near))
    whole = element("table", {}, caption, head, element("tbody", {}, *body))
    box = element("div", {"class": "scroll", "role": "group", "aria-label": title, "tabindex": "0"}, whole)
    legend = element("p", {"class": "legend"}, found.legend) if found.legend else None
    return element("div", {"class": "table"}, box, legend)


def lines(texts: Sequence[str]) -> list[Element]:
    """One as a paragraph, several as a list."""
    if len(texts) == 1:
        return [element("p", {}, texts[0])]
    return [element("ul", {"class": "lines"}, *(element("li", {}, line) for line in texts))] if texts else []


def _heads(found: Table, near: int | None) -> list[Element]:
    """The headings, below those of their groups."""
    heads = []
    if groups := found.groups():
        above = [element("td", {}) for _ in range(groups[0][1])]
        for label, start, end in groups:
            over = {"colspan": str(end - start), "scope": "colgroup", "class": "group"}
            above.append(element("th", over, label))
        heads.append(element("tr", {}, *above))
    if any(column.name for column in found.columns):
        names = [_heading(column, near=i == near) for i, column in enumerate(found.columns)]
        heads.append(element("tr", {}, *names))
    return heads


def _heading(column: Column, *, near: bool) -> Element:
    classes = " ".join([*(["n"] if column.right else []), *(["far"] if near else [])])
    look = {"class": classes} if classes else {}
    return element("th", {"scope": "col", **look}, column.name) if column.name else element("td", look)


def _near(columns: Sequence[Column]) -> int | None:
    """The place of the column that a narrow page shows below the first one."""
    return next((i for i, column in enumerate(columns) if i and column.name in NEAR), None)


def _rows(found: Table) -> list[Element]:
    near, above, made = _near(found.columns), "", []
    for row in found.rows:
        above = row[0].text or above
        cells = [_cell(cell, found.columns[i], head=not i, far=i == near) for i, cell in enumerate(row)]
        if not row[0].text and above:  # what the cell repeats, for where the one above is out of sight
            cells[0].append(element("span", {"class": "again"}, above))
        if near is not None and row[near].text:
            cells[0].append(element("span", {"class": "near"}, row[near].text))
        made.append(element("tr", {}, *cells))
    return made


def _cell(cell: Cell, column: Column, *, head: bool, far: bool) -> Element:
    classes = ["n"] if column.right else []
    classes += ["whole"] if len(cell.text) <= WHOLE or (len(cell.text) <= ID and " " not in cell.text) else []
    classes += [cell.tone] if cell.tone != "plain" else []
    classes += ["far"] if far else []
    head = head and bool(cell.text)  # a cell that repeats the one above heads nothing
    attributes = ({"class": " ".join(classes)} if classes else {}) | ({"scope": "row"} if head else {})
    return element("th" if head else "td", attributes, cell.text)
