"""HTML: the whole report as one file that asks nothing of any network. The map and the tables need no script; charts
need altair and vl_convert."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from importlib import resources
from xml.etree.ElementTree import Element

import msgspec

from gpubench import __version__
from gpubench.analysis.analyse import Analysis, machine_runs
from gpubench.base.errors import GpubenchError
from gpubench.base.installation import install_command
from gpubench.base.plugins.sections import usual
from gpubench.report.charts import COLORS, theme
from gpubench.report.contents import chart_set, document, overview
from gpubench.report.layout import RenderOptions, Section, TextDocument
from gpubench.report.renderers.html.elements import (
    block,
    charts_section,
    element,
    history_figure,
    lines,
    map_figure,
    page_text,
    section,
    table,
    verbatim,
)
from gpubench.report.sections.answer import KEY as ANSWER
from gpubench.report.sections.answer import answer_sentences
from gpubench.report.sections.machines import HISTORY, MACHINES, history_chart, letter, names
from gpubench.report.sections.map import KEY as MAP
from gpubench.report.sections.map import map_view, overlay_view
from gpubench.report.vega import missing_libraries, page_script
from gpubench.result import store

MAX_BYTES = 2_000_000
MOST_SAMPLES = 500_000  # in a page: to pack more would take half a minute, and they could not fit
MOST_CASES = 3_000  # with charts; of more the page would take half a minute
MANY = 3  # runs on one page: each of them unfolds on demand
LONG = 40  # rows of a section that is left out where the page would be too large
_LIBRARIES = "Charts: Vega, Vega-Lite and Vega-Embed, which are in this file under their BSD-3-Clause license."
_NO_PLOTS = "There are no charts in this page because {}"
_NO_RESULT = (
    "The result is not in this page, which would be too large: it is the file that the page is made from."
)
_NO_DETAILS = "These tables are not in this page, which would be too large: gpubench report --sections {}"
_UNIT = re.compile(r"(\d) ([KMG])\b")  # a line does not end between a number and its unit


def render(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """Return one page for all runs; the same bytes for the same files and the same installed extras."""
    if tuple(options.sections) == usual():
        options = msgspec.structs.replace(
            options, sections=tuple(dict.fromkeys((ANSWER, MAP, *options.sections)))
        )
    page = Page(analyses, msgspec.structs.replace(options, full=True))
    text = page.text()
    for spare in (page.results, page.details):
        if len(text.encode()) >= MAX_BYTES:
            for part, note in spare:
                del part[1:]  # the heading stays
                part.append(element("p.note", note))
            text = page.text()
    return text.encode("ascii", "xmlcharrefreplace").decode() if options.ascii_only else text


def draw(documents: Sequence[TextDocument], title: str) -> str:
    """Return any documents as a page of text and tables, below `title`. It runs no script."""
    articles = []
    for i, report in enumerate(documents):
        parts = [section(*pair) for pair in zip(report.sections, _ids(report, f"d{i}-"), strict=True)]
        head = element("div.run", *(element("p", line) for line in report.headings))
        articles.append(element("article", parts[0], head, *parts[1:], aria_label=report.headings[0]))
    body = element(
        "body",
        element("header", element("h1", title)),
        element("main", *articles, id="main"),
        element("footer", element("p", f"Written by gpubench {__version__}.")),
    )
    return page_text(element("html", _head(title, "'none'"), body, lang="en"))


class Page:
    """The page of some runs. `results`, then `details` may be left out where it would be too large: elements, each with
    what is said in its place. The answer, the maps and the charts always stay."""

    def __init__(self, analyses: Sequence[Analysis], options: RenderOptions) -> None:
        self.analyses, self.options = analyses, options
        self.results: list[tuple[Element, str]] = []
        self.details: list[tuple[Element, str]] = []
        self.without = self.library = ""
        missing = missing_libraries()
        if missing:
            self.without = f"what draws is not installed: {install_command()}"
        elif sum(len(analysis.cases) for analysis in analyses) > MOST_CASES:
            self.without = f"they would show more than {MOST_CASES} cases: choose some with --filter"
        try:
            self.library = "" if missing else _library()
        except GpubenchError as error:  # a page without charts is better than none
            self.without = f"{error.why}. To have them, install gpubench anew"
        self.main = element("main", *self._together(), *map(self._article, range(len(analyses))), id="main")

    def text(self) -> str:
        """Return the page as it is now."""
        drawn = any("data-drawing" in part.attrib or "data-charts" in part.attrib for part in self.main.iter())
        library = self.library if drawn else ""
        embedded = [block("themes", msgspec.json.encode({"light": theme(), "dark": theme(dark=True)}))]
        script = _text("page.js")
        body = element(
            "body",
            element("a.skip", "Skip to the report", href="#main"),
            element("header", element("h1", "gpubench report")),
            self.main,
            element(
                "footer", element("p", f"Written by gpubench {__version__}. {_LIBRARIES if library else ''}")
            ),
            *([*embedded, _library_block()] if library else []),
            verbatim("script", script),
        )
        scripts = " ".join(map(digest, filter(None, (script, library))))
        machines = "; ".join(dict.fromkeys(analysis.machine for analysis in self.analyses))
        return page_text(element("html", _head(f"gpubench report: {machines}", scripts), body, lang="en"))

    def _together(self) -> list[Element]:
        """Return what several files say together: machines over each other, and each machine over time."""
        if len(self.analyses) < 2:
            return []
        sides = machine_runs(self.analyses)
        figures = []
        if MACHINES in self.options.sections and len(sides) > 1:
            view = overlay_view([side.newest for side in sides], names(sides))
            figures += [map_figure(view, "all-map", draws=bool(self.library), origin=True)] if view else []
        if HISTORY in self.options.sections and self.library:
            charts = [history_chart(side, letter(i)) for i, side in enumerate(sides)]
            figures += [history_figure(chart, f"all-history{i}") for i, chart in enumerate(charts) if chart]
        report = overview(self.analyses, self.options)
        parts = [section(part, name) for part, name in zip(report.sections, _ids(report, "all-"), strict=True)]
        head = element("div.run", *(element("p", line) for line in report.headings))
        return [element("article", head, *figures, *parts, aria_label=report.headings[0])]

    def _article(self, place: int) -> Element:
        """Return one run: the sentence, the map and the table below it; then charts, and folded whatever else."""
        analysis, prefix = self.analyses[place], f"r{place}-"
        report = document(analysis, self.options)
        view = map_view(analysis) if MAP in self.options.sections else None
        figure = [map_figure(view, f"{prefix}map", draws=bool(self.library))] if view else []
        lead: list[Element] = []
        asked: list[Element] = []
        rest: list[Element] = []
        for part, name in zip(report.sections, _ids(report, prefix), strict=True):
            if part.key == ANSWER:
                lead = _answer(analysis, part, name, figure)
            elif part.key == MAP:
                lead = lead or figure
            elif part.asked:
                asked.append(section(part, name))
            else:
                rest.append(section(part, name, folded=True))
                if sum(len(table.rows) for table in part.tables) > LONG:
                    self.details.append((rest[-1][0], _NO_DETAILS.format(part.key)))
        head = element("div.run", *(element("p", line) for line in report.headings))
        parts = [
            *lead, _notice(report, prefix), *asked, self._charts(analysis, prefix),
            element("div.details", *rest) if rest else None, self._result(analysis, prefix),
        ]  # fmt: skip
        if len(self.analyses) >= MANY:
            content: list[Element | None] = [element("details.one", element("summary", head), *parts)]
        else:
            content = [head, *parts]
        return element("article", *content, aria_label=report.headings[0])

    def _charts(self, analysis: Analysis, prefix: str) -> Element | None:
        if not self.without:
            try:
                charts = chart_set(analysis, self.options)
                return charts_section(charts, prefix, analysis.run.started_at) if charts.charts else None
            except GpubenchError as error:
                self.without = f"{error.why}. To have them, install gpubench anew"
        return element("section", element("p.note", _NO_PLOTS.format(self.without)))

    def _result(self, analysis: Analysis, prefix: str) -> Element:
        name = store.result_name(analysis.run)
        part = element("section", element("h2", "Result file"), id=f"{prefix}file")
        if sum(row.sample_count for one in self.analyses for row in one.cases) > MOST_SAMPLES:
            part.append(element("p.note", _NO_RESULT))
            return part
        part.append(element("p", "All samples as JSON, as gpubench report and gpubench compare read them."))
        data = {"data_download": f"{prefix}result", "data_name": name}
        part.append(element("button", f"Save {name}", type="button", hidden="hidden", **data))
        part.append(block(f"{prefix}result", store.dumps(analysis.run)))
        self.results.append((part, _NO_RESULT))
        return part


def _answer(analysis: Analysis, part: Section, name: str, figure: Sequence[Element]) -> list[Element]:
    """Return the sentence in large words, the map, the table right below it, and what limits them."""
    sentences = answer_sentences(analysis)
    large = [element("p.sentence", _UNIT.sub("\\1\u00a0\\2", text)) for text in part.lines if text in sentences]
    below = [text for text in part.lines if text not in sentences]
    # The title of the map says what the first of these lines would.
    below = below[1:] if figure else below
    tables = [table(item, part.title) for item in part.tables]
    return [
        element("section.answer", *large, id=name), *figure, element("section.thresholds", *tables, *lines(below)),
    ]  # fmt: skip


def _head(title: str, scripts: str) -> Element:
    """Return the head of a page whose policy allows these `scripts`."""
    # Styles may stand in attributes: the chart library writes them. Nothing can be fetched that they could name.
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    metas = {
        "viewport": "width=device-width, initial-scale=1", "color-scheme": "light dark", "referrer": "no-referrer",
    }  # fmt: skip
    swatches = "".join(f".s{i}{{background:{color}}}" for i, color in enumerate(COLORS))
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        *(element("meta", name=name, content=content) for name, content in metas.items()),
        element("title", title),
        element("link", rel="icon", href="data:,"),
        verbatim("style", _text("page.css") + swatches),
    )


def _ids(report: TextDocument, prefix: str) -> list[str]:
    """Return an id for each section: its key, numbered where it has several."""
    seen: Counter[str] = Counter()
    ids = []
    for part in report.sections:
        seen[part.key] += 1
        ids.append(f"{prefix}{part.key}" + (f"-{seen[part.key]}" if seen[part.key] > 1 else ""))
    return ids


def _notice(report: TextDocument, prefix: str) -> Element | None:
    """Return that there are warnings, where nobody can miss it."""
    count = sum(len(table.rows) for part in report.sections if part.key == "warnings" for table in part.tables)
    if not count:
        return None
    words = "1 warning limits" if count == 1 else f"{count} warnings limit"
    return element("p.notice", element("a", f"{words} what these numbers say", href=f"#{prefix}warnings"))


@functools.cache
def _library() -> str:
    """Return the script that draws, and its license. Raises GpubenchError."""
    return f"/*\n{_text('vega.LICENSE')}*/\n{page_script()}"


@functools.cache
def _library_block() -> Element:
    """Return what is the same in each page of a process: to pack it takes as long as all the rest."""
    return block("library", _library().encode())


def _text(name: str) -> str:
    return (resources.files("gpubench.report.renderers.html") / name).read_text(encoding="utf-8")


def digest(text: str) -> str:
    """Return a source for the page's policy: the one script text that it allows."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
