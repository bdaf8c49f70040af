"""HTML: the whole report as one file that asks nothing of any network. Charts need the extra `plots`."""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
from collections.abc import Sequence
from importlib import resources
from xml.etree.ElementTree import Element

import msgspec

from gpubench import __version__, store
from gpubench.analysis.analyse import Analysis
from gpubench.errors import GpubenchError
from gpubench.installation import install_command
from gpubench.report.charts.chart import DARK, LIGHT, ChartSet, theme
from gpubench.report.charts.vega import missing_libraries, results
from gpubench.report.contents import chart_set
from gpubench.report.layout import RenderOptions
from gpubench.report.renderers.html.article import Filling, article, element, markup, together, verbatim

MAX_BYTES = 2_000_000
MOST_SAMPLES = 500_000
# What is left out first where a page would grow beyond that; the numbers of the report always stay.
FILLINGS = (Filling(), Filling(samples=False), Filling(samples=False, results=False))


def render(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """One page for all runs; the same bytes for the same files and the same installed extras."""
    # Beyond so many samples neither of the two could fit, and packing them would take half a minute.
    samples = sum(row.sample_count for analysis in analyses for row in analysis.cases)
    for filling in FILLINGS if samples <= MOST_SAMPLES else FILLINGS[-1:]:
        text = page(analyses, options, filling)
        if len(text.encode()) < MAX_BYTES:
            break
    return text.encode("ascii", "xmlcharrefreplace").decode() if options.ascii_only else text


MOST_CASES = 3_000  # with charts; of more the page would take half a minute
_LIBRARIES = "Charts: Vega, Vega-Lite and Vega-Embed, which are in this file under their BSD-3-Clause license."


def page(analyses: Sequence[Analysis], options: RenderOptions, filling: Filling) -> str:
    """The page as text."""
    charts, library, without = _charts(analyses, options, filling)
    script = _text("page.js")
    body = element(
        "body", {},
        element("a", {"class": "skip", "href": "#main"}, "Skip to the report"),
        element("header", {}, element("h1", {}, "gpubench report")),
        element("main", {"id": "main"}, *together(analyses, options), *(
            article(analysis, one, options, filling, f"r{i}-", without)
            for i, (analysis, one) in enumerate(zip(analyses, charts, strict=True))
        )),
        element(
            "footer", {}, element("p", {}, f"Written by gpubench {__version__}. {_LIBRARIES if library else ''}")
        ),
        *_embedded(analyses, charts, library, filling),
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


def _embedded(
    analyses: Sequence[Analysis], charts: Sequence[ChartSet | None], library: str, filling: Filling
) -> list[Element]:
    found = []
    for i, (analysis, one) in enumerate(zip(analyses, charts, strict=True)):
        if filling.results:
            found.append(block(f"r{i}-result", store.dumps(analysis.run)))
        if one is not None and one.charts:
            found.append(block(f"r{i}-charts-data", msgspec.json.encode(one)))
    if library:
        themes = {"light": theme(), "dark": theme(dark=True)}
        found += [block("themes", msgspec.json.encode(themes)), block("library", library.encode())]
    return found


def _charts(
    analyses: Sequence[Analysis], options: RenderOptions, filling: Filling
) -> tuple[Sequence[ChartSet | None], str, str]:
    """The charts of each run, the script that draws them, and why there are none: then they are None."""
    if sum(len(analysis.cases) for analysis in analyses) > MOST_CASES:
        return (
            [None] * len(analyses),
            "",
            f"they would show more than {MOST_CASES} cases: choose some with --filter",
        )
    if missing_libraries():
        return [None] * len(analyses), "", f"the extra plots is not installed: {install_command('plots')}"
    try:
        found = [
            chart_set(analysis, options.sections, options.time_unit, samples=filling.samples)
            for analysis in analyses
        ]
        return found, _library() if any(one.charts for one in found) else "", ""
    except GpubenchError as error:  # a page without charts is better than none
        return [None] * len(analyses), "", f"{error.why}. To have them, install the extra plots anew"


@functools.cache
def _library() -> str:
    """The script that draws, as the extra `plots` brings it; the license goes with it. Raises GpubenchError."""
    script = results([("javascript_bundle", [], {})])[0].decode()
    return f"/*\n{_text('vega.LICENSE')}*/\n{script}"


def _text(name: str) -> str:
    return (resources.files("gpubench.report.renderers.html") / name).read_text(encoding="utf-8")


def block(name: str, data: bytes) -> Element:
    """A script element that no browser runs; the page's script reads it by its id."""
    packed = base64.b64encode(gzip.compress(data, mtime=0)).decode()  # without a time: the same bytes again
    return verbatim("script", {"type": "text/plain", "id": name}, packed)


def digest(text: str) -> str:
    """A source for the page's policy: the one script text that it allows."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
