"""One run as an article: verdict first, break-even, charts, then everything else; and several runs together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from xml.etree.ElementTree import Element

import msgspec

from gpubench import store
from gpubench.report.analysis.types import Analysis
from gpubench.report.formats._charts import INSTALL
from gpubench.report.formats._charts.types import ChartSet
from gpubench.report.formats._document import Document
from gpubench.report.formats._html.controls import charts_section
from gpubench.report.formats._html.elements import element
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
    name = store.result_name(analysis.run)
    button = element(
        "button", {"type": "button", "data-download": f"{prefix}result", "data-name": name}, f"Save {name}"
    )
    content = button if filling.results else element("p", {"class": "note"}, _NO_RESULT)
    return element(
        "section", {"id": f"{prefix}file"}, element("h2", {}, "Result file"),
        element("p", {}, "All samples as JSON, as gpubench report and gpubench compare read them."), content,
    )  # fmt: skip
