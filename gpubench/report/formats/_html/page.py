"""The page as a whole: policy, style, one article for each run, what is embedded, and the script."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from importlib import resources
from xml.etree.ElementTree import Element

import msgspec

from gpubench import __version__, store
from gpubench.report.analysis.types import Analysis
from gpubench.report.formats._charts import INSTALL, missing_libraries
from gpubench.report.formats._charts.charts import chart_set
from gpubench.report.formats._charts.theme import DARK, LIGHT, theme
from gpubench.report.formats._charts.types import ChartSet
from gpubench.report.formats._document import Document
from gpubench.report.formats._html.controls import charts_section
from gpubench.report.formats._html.elements import element, markup, verbatim
from gpubench.report.formats._html.embedded import block, digest
from gpubench.report.formats._html.tables import section, verdict
from gpubench.report.formats._machines import overview
from gpubench.report.formats._options import RenderOptions
from gpubench.report.formats._text import GATES, document

BEFORE_CHARTS = ("verdict", GATES, "breakeven", "reuse")  # short, and what a reader came for
_NO_PLOTS = f"There are no charts in this page because the extra plots is not installed: {INSTALL}"
_NO_SAMPLES = "The samples are not drawn: the page would have become too large. They are in the result file."
_NO_RESULT = (
    "The result is not in this page, which would be too large: it is the file that the page is made from."
)
_LIBRARIES = "Charts: Vega, Vega-Lite and Vega-Embed, which are in this file under their BSD-3-Clause license."


class Filling(msgspec.Struct, frozen=True):
    """What a page holds beside the report itself: the samples as a chart, and the result files."""

    samples: bool = True
    results: bool = True


def page(analyses: Sequence[Analysis], options: RenderOptions, filling: Filling) -> str:
    """The page as text."""
    sets = [_charts(analysis, options, filling) for analysis in analyses]
    library = _library() if any(one is not None and one.charts for one in sets) else ""
    script = _text("page.js")
    body = element(
        "body", {},
        element("a", {"class": "skip", "href": "#main"}, "Skip to the report"),
        element("header", {}, element("h1", {}, "gpubench report")),
        element("main", {"id": "main"}, *_together(analyses, options), *(
            _article(analysis, one, options, filling, f"r{i}-")
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


def _together(analyses: Sequence[Analysis], options: RenderOptions) -> list[Element]:
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


def _article(
    analysis: Analysis, charts: ChartSet | None, options: RenderOptions, filling: Filling, prefix: str
) -> Element:
    """One run: verdict first, break-even, charts, then everything else."""
    report = document(analysis, options, full=True)
    drawn = charts is not None and bool(charts.charts)
    parts: list[Element] = []
    chart_part = _chart_part(analysis, charts, prefix, filling)
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


def _ids(report: Document, prefix: str) -> list[str]:
    """An id for each section: its key, numbered where it has several."""
    seen: Counter[str] = Counter()
    found = []
    for part in report.sections:
        seen[part.key] += 1
        found.append(f"{prefix}{part.key}" + (f"-{seen[part.key]}" if seen[part.key] > 1 else ""))
    return found


def _notice(report: Document, prefix: str) -> Element | None:
    """That there are warnings, where nobody can miss it."""
    found = next((part for part in report.sections if part.key == "warnings"), None)
    count = len(found.tables[0].rows) if found is not None and found.tables else 0
    if not count:
        return None
    words = "1 warning limits" if count == 1 else f"{count} warnings limit"
    link = element("a", {"href": f"#{prefix}warnings"}, f"{words} what these numbers say")
    return element("p", {"class": "notice"}, link)


def _chart_part(analysis: Analysis, charts: ChartSet | None, prefix: str, filling: Filling) -> Element | None:
    if charts is None:
        return element("section", {}, element("p", {"class": "note"}, _NO_PLOTS))
    if not charts.charts:
        return None
    gone = [] if filling.samples else [_NO_SAMPLES]
    return charts_section(charts, prefix, gone, analysis.run.started_at)


def _download(analysis: Analysis, prefix: str, filling: Filling) -> Element:
    name = store.result_path("", analysis.run).name
    button = element(
        "button", {"type": "button", "data-download": f"{prefix}result", "data-name": name}, f"Save {name}"
    )
    content = button if filling.results else element("p", {"class": "note"}, _NO_RESULT)
    return element(
        "section", {"id": f"{prefix}file"}, element("h2", {}, "Result file"),
        element("p", {}, "All samples as JSON, as gpubench report and gpubench compare read them."), content,
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
