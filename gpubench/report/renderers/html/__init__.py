"""The report as one HTML file that needs no network. The answer and the tables need no script. The charts need
vl_convert."""

from __future__ import annotations

import base64
import contextlib
import functools
import gzip
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup, escape

from gpubench import __version__
from gpubench.analysis.analyse import Analysis, machine_runs
from gpubench.analysis.winners import FULL
from gpubench.base.errors import GpubenchError
from gpubench.base.installation import install_command
from gpubench.base.plugins.sections import usual
from gpubench.base.streams import visible
from gpubench.base.table import Cell, Column, Line, Table, line_text
from gpubench.report.charts import ChartSet, page_colors, theme
from gpubench.report.contents import document, overview
from gpubench.report.layout import RenderOptions, Section, TextDocument, in_ascii
from gpubench.report.plots import can_draw, chart_set, page_script, svgs
from gpubench.report.renderers.html.answer import Content, views
from gpubench.report.sections.answer import KEY as ANSWER
from gpubench.report.sections.answer import brief_answer
from gpubench.report.sections.machines import (
    HISTORY,
    MACHINES,
    history_chart,
    letter,
    names,
    overview_sentences,
)
from gpubench.report.sections.map import KEY as MAP
from gpubench.report.sections.map import MEANING, TITLE, MapView, draw_map, map_specs, origin_text, overlay_view
from gpubench.result import store

MAX_BYTES = 2_000_000
MOST_SAMPLES = 500_000  # the most samples in a page; packing more takes half a minute
MOST_CASES = 3_000  # the most cases for which charts are drawn; for more, the page would take half a minute
LANE = 240  # the width of a map's lanes in a notebook, in points
_NOTEBOOK = (
    ":scope { background: var(--paper); color: var(--ink); padding: 12px; }"
    f" .lanes {{ width: auto; }} .lanes tbody .lane {{ width: {LANE + 14}px; min-width: {LANE + 14}px; }}"
    " .lane svg text { fill: var(--quiet); }"
)
MANY = 3  # from this number of runs on, each run of a page is folded
MOST_ROWS = 60  # the most rows of a table that needs no script; longer tables are packed
FEW_TABLES = 3  # the most tables of a section; more tables are joined into one
_WHOLE, _ID = 32, 80  # the most characters of a cell, and of a cell with a single word, that is not broken
_LETTERS = 110  # the width of a map in characters
_NO_TABLES = "These tables are not in this page, which would be too large: gpubench report --sections {}"
_UNIT = re.compile(r"(?<=\d) (?=[KMG]\b)|(?<=within) (?=\d)")  # the blanks at which no line may end
# The headings of the details, each with the keys of its sections. Sections with other keys are under the last
# heading.
_GROUPS = {
    "Break-evens": ("breakeven", "amortization"), "Gains": ("speedup", "hybrid"),
    "Where the time goes": ("breakdown", "stages", "collectives", "scaling"), "Roofline": ("roofline",),
    "Problems": ("warnings", "skipped"), "Environment": ("environment", "raw"), "More": (),
}  # fmt: skip


def render(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """Return one page for all runs. The same files and the same installed extras give the same bytes. A page of
    MAX_BYTES or more is made again with less content, up to three times. The last one may still be larger."""
    if tuple(options.sections) == usual():
        options = msgspec.structs.replace(
            options, sections=tuple(dict.fromkeys((ANSWER, MAP, *options.sections)))
        )
    page, text = _Page(analyses, msgspec.structs.replace(options, full=True)), ""
    for lightness in range(4):
        text = page.text(lightness)
        if len(text.encode()) < MAX_BYTES:
            break
    return in_ascii(text, options)


def draw(documents: Sequence[TextDocument], title: str) -> str:
    """Return a page with `title` and the texts and tables of the documents. The page contains no script."""
    parts = [
        {"lines": report.headings, "sections": [*_sections(report, f"d{i}-")]}
        for i, report in enumerate(documents)
    ]
    return _fill(title=title, heading=title, documents=parts, digests=Markup("'none'"))


def notebook(analysis: Analysis) -> str:
    """Return the answer as HTML for a notebook, without effect on the notebook's style. The lanes of the map
    are SVG if the drawing libraries work."""
    (view, *_) = views(analysis, RenderOptions(full=True), "", draws=True, maps=True)
    panels = view["panels"]
    specs = [panel["spec"] | {"width": LANE, "config": theme()} for panel in panels]
    with contextlib.suppress(GpubenchError):
        for panel, svg in zip(panels, svgs(specs) if specs else (), strict=True):
            panel["picture"] = svg
    style = f"@scope (.gpubench) {{\n{_style().replace(':root', ':scope')}\n{_NOTEBOOK}}}"
    return _fill(notebook=view, style=verbatim("style", style), full=f"{FULL:.0f}", meaning=MEANING)


class _Page:
    """The page of some runs. It can be made with less content, so that it is not too large."""

    def __init__(self, analyses: Sequence[Analysis], options: RenderOptions) -> None:
        self.analyses, self.options = analyses, options
        self.without = self.library = ""
        if not can_draw():
            self.without = f"what draws is not installed: {install_command()}"
        elif sum(len(analysis.cases) for analysis in analyses) > MOST_CASES:
            self.without = f"they would show more than {MOST_CASES} cases: choose some with --filter"
        try:
            self.library = _library() if can_draw() else ""
        except GpubenchError as error:  # a page without charts is better than none
            self.without = f"{error.why}. To have them, install gpubench anew"
        self.together = self._together()
        self.articles = [self._article(place) for place in range(len(analyses))]

    def text(self, lightness: int) -> str:
        """Return the HTML of the page. From `lightness` 1 on it has no result files, from 2 on no long tables, and
        from 3 on only the fastest GPU backend."""
        articles = self.articles
        if lightness > 2:
            articles = [article | {"views": article["views"][:1]} for article in articles]
        views = (view for article in articles for view in article["views"])
        drawn = any(article["charts"].charts for article in articles) or any(view["panels"] for view in views)
        library = self.library if drawn or (self.together and self.together["figures"]) else ""
        script = verbatim("script", _file("page.js"))
        machines = "; ".join(dict.fromkeys(analysis.machine for analysis in self.analyses))
        return _fill(
            title=f"gpubench report: {machines}", heading="gpubench report", script=script, full=f"{FULL:.0f}",
            library=_pack_library() if library else "", together=self.together, articles=articles,
            digests=Markup(" ").join(map(_digest, filter(None, (script, library)))), meaning=MEANING,
            themes={"light": theme(), "dark": theme(dark=True)}, folded=len(articles) >= MANY, most_rows=MOST_ROWS,
            lightness=lightness,
        )  # fmt: skip

    def _together(self) -> Content | None:
        """Return the part about all files together, or None for a single file."""
        if len(self.analyses) < 2:
            return None
        sides = machine_runs(self.analyses)
        figures: list[Content] = []
        if MACHINES in self.options.sections and len(sides) > 1:
            view = overlay_view([side.newest for side in sides], names(sides))
            figures += [self._map_figure(view)] if view else []
        if HISTORY in self.options.sections and self.library:
            charts = [history_chart(side, letter(i)) for i, side in enumerate(sides)]
            figures += [
                {
                    "id": f"all-history{i}", "kind": "history", "title": chart.title, "name": "Time over the runs",
                    "lines": (), "letters": "", "caption": chart.caption, "specs": [chart.spec],
                }
                for i, chart in enumerate(charts) if chart
            ]  # fmt: skip
        report = overview(self.analyses, self.options)
        return {
            "heading": report.headings[0], "sentences": overview_sentences(sides), "figures": figures,
            "sections": [*_sections(report, "all-")],
        }  # fmt: skip

    def _map_figure(self, view: MapView) -> Content:
        return {
            "id": "all-map", "kind": "map", "title": view.title, "lines": view.origin, "name": TITLE,
            "caption": MEANING, "letters": _drawing(draw_map(view, _LETTERS, ascii_only=False)),
            "specs": map_specs(view) if self.library else [],
        }  # fmt: skip

    def _article(self, place: int) -> Content:
        """Return the part about the run with the index `place`."""
        analysis, prefix = self.analyses[place], f"r{place}-"
        report = document(analysis, self.options)
        sections = [*_sections(report, prefix)]
        shown = (
            views(analysis, self.options, prefix, draws=bool(self.library), maps=MAP in self.options.sections)
            if {ANSWER, MAP} & {*self.options.sections} else ()
        )  # fmt: skip
        details = [part for part in sections if part.key not in (ANSWER, MAP) and not part.asked]
        dtypes = sorted({entry.case.dtype for entry in analysis.cases})
        return {
            "prefix": prefix, "heading": report.headings[0], "views": shown,
            "started_at": analysis.run.started_at, "origin": origin_text(analysis, dtypes),
            "summary": f"{report.headings[0].removeprefix('Run: ')} · {analysis.machine}: {brief_answer(analysis)}",
            "warnings": _warnings_text(details), "asked": [part for part in sections if part.asked],
            "groups": [*_groups(details, prefix, report.headings)],
            "charts": ChartSet() if self.without else chart_set(analysis, self.options), "without": self.without,
            "file": store.result_name(analysis.run), "result": self._result(analysis),
        }  # fmt: skip

    def _result(self, analysis: Analysis) -> bytes | None:
        samples = sum(case.sample_count for other in self.analyses for case in other.cases)
        return None if samples > MOST_SAMPLES else store.dumps(analysis.run)


def _sections(report: TextDocument, prefix: str) -> Iterator[Section]:
    """Yield the sections of a report, each with its key after `prefix` as its id."""
    seen: Counter[str] = Counter()
    for part in report.sections:
        seen[part.key] += 1
        number = f"-{seen[part.key]}" if seen[part.key] > 1 else ""  # a key may occur several times
        yield msgspec.structs.replace(part, id=f"{prefix}{part.key}{number}", tables=_join(part))


def _join(part: Section) -> tuple[Table, ...]:
    """Return the tables of a section. More than FEW_TABLES tables become one table, if all of them have titles."""
    if len(part.tables) <= FEW_TABLES or not all(table.title for table in part.tables):
        return part.tables
    keys = dict.fromkeys(
        (column.group, column.name, column.right) for table in part.tables for column in table.columns
    )
    rows = []
    for table in part.tables:
        places = [(column.group, column.name, column.right) for column in table.columns]
        for line in table.rows:
            cells = dict(zip(places, line, strict=True))
            title = Cell(" ".join(filter(None, (table.title, table.note))))
            rows.append((title, *(cells.get(key, Cell("")) for key in keys)))
    columns = (Column("of"), *(Column(name, right, group=group) for group, name, right in keys))
    legends = dict.fromkeys(table.legend for table in part.tables if table.legend)
    return (Table(columns, tuple(rows), legend="; ".join(legends) if len(legends) <= FEW_TABLES else ""),)


def _groups(sections: Sequence[Section], prefix: str, headings: Sequence[str]) -> Iterator[Content]:
    """Yield the groups of details that have sections. The group Environment has the lines `headings`."""
    homes = {key: title for title, keys in _GROUPS.items() for key in keys}
    for title in _GROUPS:
        members = [part for part in sections if homes.get(part.key, "More") == title]
        if members:
            yield {
                "id": f"{prefix}group-{title.lower().replace(' ', '-')}", "title": title, "sections": members,
                "lines": headings if title == "Environment" else (),
            }  # fmt: skip


def _without_long_tables(part: Section) -> Section:
    if sum(len(table.rows) for table in part.tables) <= MOST_ROWS:
        return part
    return msgspec.structs.replace(part, tables=(), lines=(*part.lines, _NO_TABLES.format(part.key)))


def _warnings_text(sections: Sequence[Section]) -> str:
    """Return a sentence with the number of warnings, or an empty text without warnings."""
    count = sum(len(table.rows) for part in sections if part.key == "warnings" for table in part.tables)
    words = "1 warning limits" if count == 1 else f"{count} warnings limit"
    return f"{words} what these numbers say" if count else ""


# ---------------------------------------------------------------- the template


@functools.cache
def _template() -> jinja2.Template:
    """Return the template of the page. It escapes text from outside."""
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "packed": _pack, "json": msgspec.json.encode, "cells": _cells, "breakable": _breakable,
        "drawing": _drawing, "without_long_tables": _without_long_tables,
        "unbroken": lambda text: Markup(_UNIT.sub("\u00a0", str(escape(visible(text))))),
    }  # fmt: skip
    return environment.from_string(_file("page.html"))


def _style() -> Markup:
    return verbatim("style", _file("page.css").replace("/* colours */", page_colors()))


def _fill(**content: Any) -> str:
    absent = {
        "notebook": None, "together": None, "articles": (), "documents": (), "most_rows": 0, "library": "",
        "script": "",
    }  # fmt: skip
    page: str = _template().render({"style": _style(), "version": __version__} | absent | content)
    return page.strip() + "\n"


def _finalize(part: Any) -> Any:
    return visible(part) if isinstance(part, str) and not isinstance(part, Markup) else part


def _drawing(lines: Sequence[Line]) -> str:
    return "\n".join(map(line_text, lines))


def _cells(line: Sequence[Cell], columns: Sequence[Column] = ()) -> Markup:
    """Return the cells of a table row as HTML. With `columns`, the first cell is a heading, unless it is empty.
    Without `columns`, all cells are numbers."""
    parts = []
    for i, cell in enumerate(line):
        text = cell.text
        tag, scope = ("th", ' scope="row"') if columns and not i and text else ("td", "")
        kinds = ["n"] if not columns or columns[i].right else []
        kinds += ["whole"] if len(text) <= _WHOLE or (len(text) <= _ID and " " not in text) else []
        kinds.append("again" if cell.again else cell.tone)
        parts.append(f'<{tag}{scope} class="{" ".join(kinds)}">{_breakable(text)}</{tag}>')
    return Markup("".join(parts))


def _breakable(text: str) -> Markup:
    """Return the escaped text with places at which a long name may break."""
    return Markup(str(escape(visible(text))).replace("_", "_<wbr>"))


def _pack(part: str | bytes) -> Markup:
    """Return the content of a data block, compressed and in base64."""
    content = part if isinstance(part, bytes) else str(part).encode()
    return Markup(base64.b64encode(gzip.compress(content, mtime=0)).decode())


@functools.cache
def _library() -> str:
    """Return the script that draws charts, with its license, or raise GpubenchError."""
    return f"/*\n{_file('vega.LICENSE')}*/\n{page_script()}"


@functools.cache
def _pack_library() -> Markup:
    """Return the packed script that draws charts. It is cached, because packing takes as long as the rest of
    the page."""
    return _pack(_library())


def verbatim(tag: str, text: str) -> Markup:
    """Return `text` without escaping, for an HTML element `tag`: `script` or `style`, whose content browsers do
    not unescape. Raises ValueError if the text could end or change the element, or is not ASCII."""
    if f"</{tag}" in text.lower() or "<!--" in text or not text.isascii():
        raise ValueError(f"the text would not stay as it is in its {tag} element")
    return Markup(text)


def _file(name: str) -> str:
    return (resources.files("gpubench.report.renderers.html") / name).read_text(encoding="utf-8")


def _digest(text: str) -> Markup:
    """Return the digest by which the page's content security policy allows a script."""
    return Markup("'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'")
