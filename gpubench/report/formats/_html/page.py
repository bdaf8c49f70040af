"""The page as a whole: its policy and style, an article for each run, what is embedded, and the script."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib import resources
from xml.etree.ElementTree import Element

import msgspec

from gpubench import __version__, store
from gpubench.report.analysis.types import Analysis
from gpubench.report.formats._charts import missing_libraries
from gpubench.report.formats._charts.charts import chart_set
from gpubench.report.formats._charts.theme import DARK, LIGHT, theme
from gpubench.report.formats._charts.types import ChartSet
from gpubench.report.formats._html.article import Filling, article, together
from gpubench.report.formats._html.elements import element, markup, verbatim
from gpubench.report.formats._html.embedded import block, digest
from gpubench.report.formats._options import RenderOptions

_LIBRARIES = "Charts: Vega, Vega-Lite and Vega-Embed, which are in this file under their BSD-3-Clause license."


def page(analyses: Sequence[Analysis], options: RenderOptions, filling: Filling) -> str:
    """The page as text."""
    sets = [_charts(analysis, options, filling) for analysis in analyses]
    library = _library() if any(one is not None and one.charts for one in sets) else ""
    script = _text("page.js")
    body = element(
        "body", {},
        element("a", {"class": "skip", "href": "#main"}, "Skip to the report"),
        element("header", {}, element("h1", {}, "gpubench report")),
        element("main", {"id": "main"}, *together(analyses, options), *(
            article(analysis, one, options, filling, f"r{i}-")
            for i, (analysis, one) in enumerate(zip(analyses, sets, strict=True))
        )),
        element(
            "footer", {}, element("p", {}, f"Written by gpubench {__version__}. {_LIBRARIES if library else ''}")
        ),
        *_embedded(analyses, sets, library, filling),
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
    analyses: Sequence[Analysis], sets: Sequence[ChartSet | None], library: str, filling: Filling
) -> list[Element]:
    found = []
    for i, (analysis, one) in enumerate(zip(analyses, sets, strict=True)):
        if filling.results:
            found.append(block(f"r{i}-result", store.dumps(analysis.run)))
        if one is not None and one.charts:
            found.append(block(f"r{i}-charts-data", msgspec.json.encode(one)))
    if library:
        themes = {"light": theme(), "dark": theme(dark=True)}
        found += [block("themes", msgspec.json.encode(themes)), block("library", library.encode())]
    return found


def _charts(analysis: Analysis, options: RenderOptions, filling: Filling) -> ChartSet | None:
    """None without the extra `plots`."""
    if missing_libraries():
        return None
    found = chart_set(analysis, options.sections, options.time_unit)
    if filling.samples:
        return found
    kept = tuple(chart for chart in found.charts if chart.id != "samples")
    return msgspec.structs.replace(found, charts=kept)


@functools.cache
def _library() -> str:
    """The script that draws, as the extra `plots` brings it; the license goes with it."""
    import vl_convert

    script: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub has no default
    return f"/*\n{_text('vega.LICENSE')}*/\n{script}"


def _text(name: str) -> str:
    return (resources.files("gpubench.report.formats._html") / name).read_text(encoding="utf-8")
