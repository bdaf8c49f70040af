"""HTML: the whole report as one file that asks nothing of any network. The map and the tables need no script; charts
need altair and vl_convert."""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
from collections.abc import Sequence
from functools import partial
from importlib import resources
from xml.etree.ElementTree import Element

import msgspec

from gpubench import __version__
from gpubench.analysis.analyse import Analysis, machine_runs
from gpubench.base.errors import GpubenchError
from gpubench.base.installation import install_command
from gpubench.report.charts import DARK, LIGHT, ChartSet, theme
from gpubench.report.contents import chart_set, document
from gpubench.report.layout import RenderOptions
from gpubench.report.markup import element, markup, verbatim
from gpubench.report.renderers.html.article import MANY, Filling, article, sections_of, together
from gpubench.report.renderers.html.figures import Drawing, history_figure, map_figure, page_map
from gpubench.report.sections.history_chart import history_chart
from gpubench.report.sections.machines import HISTORY, MACHINES, letter, names
from gpubench.report.sections.map import KEY as MAP
from gpubench.report.sections.map import overlay_view
from gpubench.report.vega import missing_libraries, page_script
from gpubench.result import store

MAX_BYTES = 2_000_000
MOST_SAMPLES = 500_000
# What is left out first where a page would grow beyond that; the answer, the maps and the charts always stay.
FILLINGS = (
    Filling(), Filling(samples=False), Filling(samples=False, results=False),
    Filling(samples=False, results=False, details=False),
)  # fmt: skip


def render(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """One page for all runs; the same bytes for the same files and the same installed extras."""
    # Beyond so many samples neither of the two could fit, and packing them would take half a minute.
    samples = sum(row.sample_count for analysis in analyses for row in analysis.cases)
    content = Content(analyses, sections_of(options))
    for filling in FILLINGS if samples <= MOST_SAMPLES else FILLINGS[2:]:
        text = page(content, filling)
        if len(text.encode()) < MAX_BYTES:
            break
    return text.encode("ascii", "xmlcharrefreplace").decode() if options.ascii_only else text


MOST_CASES = 3_000  # with charts; of more the page would take half a minute
_LIBRARIES = "Charts: Vega, Vega-Lite and Vega-Embed, which are in this file under their BSD-3-Clause license."


class Content:
    """What the pages of some runs have in common, however much of it has room: each part is made once."""

    def __init__(self, analyses: Sequence[Analysis], options: RenderOptions) -> None:
        self.analyses = analyses
        self.reports = [document(one, msgspec.structs.replace(options, full=True)) for one in analyses]
        self.missing = missing_libraries()
        overlays = _overlays(analyses, options, draws=not self.missing)
        self.together = together(analyses, options, [figure.element for figure in overlays])
        self.maps = [
            page_map(one, f"r{i}-", draws=not self.missing) if MAP in options.sections else None
            for i, one in enumerate(analyses)
        ]
        self.figures = [figure for figure in (*overlays, *self.maps) if figure is not None and figure.views]
        self.charts = functools.cache(partial(_charts, self, options))
        self.result = functools.cache(lambda i: block(f"r{i}-result", store.dumps(analyses[i].run)))


def page(content: Content, filling: Filling) -> str:
    analyses = content.analyses
    charts, library, without = content.charts(filling.samples)
    script = _text("page.js")
    runs = zip(analyses, content.reports, charts, content.maps, strict=True)
    body = element(
        "body", {},
        element("a", {"class": "skip", "href": "#main"}, "Skip to the report"),
        element("header", {}, element("h1", {}, "gpubench report")),
        element("main", {"id": "main"}, *content.together, *(
            article(analysis, report, one, found, filling, f"r{i}-", without, folded=len(analyses) >= MANY)
            for i, (analysis, report, one, found) in enumerate(runs)
        )),
        element(
            "footer", {}, element("p", {}, f"Written by gpubench {__version__}. {_LIBRARIES if library else ''}")
        ),
        *_embedded(content, charts, library, filling),
        verbatim("script", {}, script),
    )  # fmt: skip
    scripts = " ".join(digest(text) for text in (script, library) if text)
    return markup(element("html", {"lang": "en"}, _head(analyses, scripts), body))


def _head(analyses: Sequence[Analysis], scripts: str) -> Element:
    # Styles may stand in attributes: the chart library writes them. Nothing can be fetched that they could name.
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    machines = "; ".join(dict.fromkeys(analysis.machine for analysis in analyses))
    swatches = "".join(
        f".s{i}{{background:{light}}}@media(prefers-color-scheme:dark){{.s{i}{{background:{dark}}}}}"
        for i, (light, dark) in enumerate(zip(LIGHT, DARK, strict=True))
    )
    return element(
        "head", {},
        element("meta", {"charset": "utf-8"}),
        element("meta", {"http-equiv": "Content-Security-Policy", "content": policy}),
        element("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        element("meta", {"name": "color-scheme", "content": "light dark"}),
        element("meta", {"name": "referrer", "content": "no-referrer"}),
        element("title", {}, f"gpubench report: {machines}"),
        element("link", {"rel": "icon", "href": "data:,"}),
        verbatim("style", {}, _text("page.css") + swatches),
    )  # fmt: skip


def _overlays(analyses: Sequence[Analysis], options: RenderOptions, *, draws: bool) -> list[Drawing]:
    """Machines over each other, and each machine over time."""
    sides = machine_runs(analyses)
    figures = []
    if MACHINES in options.sections and len(sides) > 1:
        view = overlay_view([side.newest for side in sides], names(sides))
        figures += [map_figure({"0-0": view}, "all-", draws=draws)] if view is not None else []
    if HISTORY in options.sections:
        charts = [history_chart(side, letter(i)) for i, side in enumerate(sides)]
        figures += [
            history_figure(chart, f"all-history{i}", draws=draws)
            for i, chart in enumerate(charts)
            if chart is not None
        ]
    return figures


def _embedded(
    content: Content, charts: Sequence[ChartSet | None], library: str, filling: Filling
) -> list[Element]:
    found = []
    if library:
        found += [block(f"{figure.id}-data", msgspec.json.encode(figure.views)) for figure in content.figures]
    for i, one in enumerate(charts):
        if filling.results:
            found.append(content.result(i))
        if one is not None and one.charts:
            found.append(block(f"r{i}-charts-data", msgspec.json.encode(one)))
    if library:
        themes = {"light": theme(), "dark": theme(dark=True)}
        found += [block("themes", msgspec.json.encode(themes)), _library_block()]
    return found


def _charts(
    content: Content, options: RenderOptions, samples: bool
) -> tuple[Sequence[ChartSet | None], str, str]:
    """The charts of each run, the script that draws them and the maps, and why there are no charts: then they are
    None."""
    analyses, charts, without = content.analyses, [], ""
    if content.missing:
        without = f"what draws is not installed: {install_command()}"
    elif sum(len(analysis.cases) for analysis in analyses) > MOST_CASES:
        without = f"they would show more than {MOST_CASES} cases: choose some with --filter"
    none = [None] * len(analyses)
    try:
        if not without:
            charts = [chart_set(analysis, options, samples=samples) for analysis in analyses]
        library = _library() if content.figures or any(chart.charts for chart in charts) else ""
    except GpubenchError as error:  # a page without charts is better than none
        return none, "", f"{error.why}. To have them, install gpubench anew"
    return charts or none, library, without


@functools.cache
def _library() -> str:
    """The script that draws, and its license. Raises GpubenchError."""
    return f"/*\n{_text('vega.LICENSE')}*/\n{page_script()}"


@functools.cache
def _library_block() -> Element:
    """The same in each page of a process: to pack it takes as long as all the rest."""
    return block("library", _library().encode())


def _text(name: str) -> str:
    return (resources.files("gpubench.report.renderers.html") / name).read_text(encoding="utf-8")


def block(name: str, data: bytes) -> Element:
    """A script element that no browser runs; the page's script reads it by its id."""
    packed = base64.b64encode(gzip.compress(data, mtime=0)).decode()  # without a time: the same bytes again
    return verbatim("script", {"type": "text/plain", "id": name}, packed)


def digest(text: str) -> str:
    """A source for the page's policy: the one script text that it allows."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
