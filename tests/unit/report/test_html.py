"""The HTML page as text: one file that asks for nothing, holds the result, and says hostile things harmlessly."""

import base64
import functools
import gzip
import hashlib
import json
import re
import sys
from html.parser import HTMLParser

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpubench.analysis.analyse import analyse
from gpubench.base.installation import install_command
from gpubench.base.plugins import sections
from gpubench.base.streams import printable
from gpubench.base.table import Cell, Column, Table
from gpubench.report import plots, render
from gpubench.report.charts import theme
from gpubench.report.layout import Section, TextDocument
from gpubench.report.renderers import html as html_page
from gpubench.report.renderers.html import verbatim
from tests.examples import examples
from tests.unit.report.answer_runs import VECTOR, WAITED, WEBGPU, answer_run, op_rows, rising, suite_run
from tests.unit.report.builders import CPU, GPU, curve, run_of
from tests.unit.report.hostile import NAMES, TEXTS, hostile_run
from tests.unit.report.samples import drawn, full_run

VOID = {"meta", "link", "input", "br", "wbr"}


class Page(HTMLParser):
    """Elements, attributes and texts; elements have to close in order."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.texts, self.open, self.blocks = [], [], [], {}
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        tag, attrs = self.open[-1] if self.open else ("", {})
        if tag in ("script", "style"):
            self.blocks[attrs.get("id") or tag] = self.blocks.get(attrs.get("id") or tag, "") + data
        else:
            self.texts.append(data)


def embedded(page, name):
    return gzip.decompress(base64.b64decode(page.blocks[name]))


def test_nothing_is_fetched_from_anywhere_and_the_license_of_what_draws_goes_with_it():
    page = Page(drawn(full_run, format="html"))
    for tag, attributes in page.elements:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            assert attributes.get(name, "#").startswith(("#", "data:,")), (tag, attributes)
    policy = next(a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy
    library = embedded(page, "library").decode()
    for script in (page.blocks["script"], library):
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy
    assert not re.search(r"url\(|@import", page.blocks["style"])
    assert json.loads(embedded(page, "themes")) == {"light": theme(), "dark": theme(dark=True)}
    assert library.startswith("/*\nVega, Vega-Lite")
    assert "Redistribution and use in source and binary forms" in library


def test_the_script_that_draws_is_put_together_once(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(plots, "results", lambda calls: (asked.append(calls), [b"draw()"])[1])
    made = plots.page_script.__wrapped__
    monkeypatch.setenv("GPUBENCH_CACHE_DIR", str(tmp_path / "not" / "yet"))
    assert (made(), made(), len(asked)) == ("draw()", "draw()", 1)
    (kept,) = (tmp_path / "not" / "yet").iterdir()
    kept.write_bytes(kept.read_bytes()[:-1])
    assert (made(), made(), len(asked)) == ("draw()", "draw()", 2), "a damaged one is made anew"


def test_without_the_libraries_there_are_the_map_tables_and_a_note(monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    page = Page(drawn(full_run, format="html"))
    assert any(install_command() in text for text in page.texts)
    assert any(attributes.get("id") == "r0-map" for _, attributes in page.elements)
    assert ("library" in page.blocks, bool(embedded(page, "r0-result"))) == (False, True)
    assert sum(tag == "table" for tag, _ in page.elements) > 5
    count = sum(case.sample_count for case in analyse(full_run()).cases)
    for most, expected in ((count, True), (count - 1, False)):
        monkeypatch.setattr(html_page, "MOST_SAMPLES", most)
        assert ("r0-result" in Page(drawn(full_run, format="html")).blocks) == expected


def two_backends():
    ratios = {WAITED: rising(VECTOR, 3e4)}
    rows = full_run().outcomes
    for op in ("add", "copy"):
        rows = [*rows, *op_rows(op, ratios), *op_rows(op, ratios, device="wgpu:0", cpu=False)]
    return answer_run(rows, devices=(CPU, GPU, WEBGPU))


def test_a_page_too_large_leaves_out_the_result_then_long_tables_then_other_backends(monkeypatch):
    monkeypatch.setattr(html_page, "MOST_ROWS", 3)
    whole, kept = [len(drawn(two_backends, format="html").encode())], []
    for step in range(4):
        monkeypatch.setattr(html_page, "MAX_BYTES", whole[-1] + (not step))
        text = drawn(two_backends, format="html")
        page = Page(text)
        whole.append(len(text.encode()))
        packed = [embedded(page, name).decode() for name in page.blocks if "table" in name]
        reported = " ".join([*page.texts, *packed])
        views = [attributes["data-gpu"] for _, attributes in page.elements if attributes.get("class") == "view"]
        options = [attributes.get("value") for tag, attributes in page.elements if tag == "option"]
        menu = [value for value in options if value in views]
        kept.append(("r0-result" in page.blocks, "of peak" in reported, views))
        assert ("result is not in this page" in reported) == (not kept[-1][0])
        assert ("too large: gpubench report --sections roofline" in reported) == (not kept[-1][1])
        assert menu == (views if len(views) > 1 else [])
    assert kept == [
        (True, True, ["cupy", "wgpu"]), (False, True, ["cupy", "wgpu"]), (False, False, ["cupy", "wgpu"]), (False, False, ["cupy"]),
    ]  # fmt: skip


@pytest.mark.slow
def test_sixteen_machines_stay_below_two_megabytes_and_one_below_one(monkeypatch):
    """The library is in a page once, so that the page of a run tells the size of that of many."""
    assert len(drawn(suite_run, format="html").encode()) < html_page.MAX_BYTES / 2 == 1_000_000
    monkeypatch.setattr(html_page, "MAX_BYTES", 1)
    least = drawn(suite_run, format="html")
    library = len(Page(least).blocks["library"])
    assert library + 16 * (len(least.encode()) - library) < 2_000_000
    count = len(analyse(full_run()).cases)
    for most in (count, count - 1):
        monkeypatch.setattr(html_page, "MOST_CASES", most)
        assert ("choose some with --filter" in drawn(full_run, format="html")) == (most < count)


@functools.cache
def tags_of_ours():
    run = replace(run_of(curve({64: 0.25, 256: 4.0}, sessions=1)), label="a label")
    return frozenset(tag for tag, _ in Page(render([run], "html")).elements)


@settings(max_examples=examples(5), deadline=None)
@example(list(NAMES))
@given(st.lists(TEXTS, min_size=1, max_size=12))
def test_any_text_stays_text(texts):
    """Every free text of a result file, device ids and case ids among them."""
    run = hostile_run(texts, ids=True)
    page = Page(render([run], "html", sections=sections.names()))
    assert {tag for tag, _ in page.elements} <= tags_of_ours() | {"pre", "wbr"}
    for _, attributes in page.elements:
        assert not [key for key in attributes if key.startswith("on") or key == "style"]
        assert attributes.get("href", "#").startswith(("#", "data:,"))
    assert all(letter.isprintable() or letter in "\n\u00a0" for text in page.texts for letter in text)
    assert printable(run.label) in " ".join(" ".join(page.texts).split())
    assert json.loads(embedded(page, "r0-result"))["label"] == run.label


@pytest.mark.parametrize("text", ["</script>", "a </SCRIPT >", "<!-- x", "1000\u00b2"])
def test_a_script_that_a_page_would_change_is_refused(text):
    with pytest.raises(ValueError, match="would not stay as it is"):
        verbatim("script", text)


def tables_of(*tables):
    return Page(html_page.draw([TextDocument((), (Section(key="k", title="t", tables=tables),))], "x"))


@pytest.mark.parametrize(
    ("text", "whole"), [("x " * 16, True), ("x " * 16 + "y", False), ("x" * 80, True), ("x" * 81, False)]
)
def test_a_short_cell_and_a_word_are_not_broken(text, whole):
    rows = ((Cell(text), Cell(text, "bad")), (Cell(""), Cell(text, again=True)))
    page = tables_of(Table((Column("a"), Column("b", right=True)), rows))
    kinds = [
        (tag, attributes["class"], attributes.get("scope"))
        for tag, attributes in page.elements
        if tag in ("th", "td") and "class" in attributes
    ]
    unbroken = "whole " * whole
    assert kinds == [
        ("th", "n", "col"), ("th", f"{unbroken}plain", "row"), ("td", f"n {unbroken}bad", None), ("td", "whole plain", None), ("td", f"n {unbroken}again", None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("legends", "tables", "joined"), [("abc", 3, None), ("abcc", 1, "a; b; c"), ("abcd", 1, "")]
)
def test_many_tables_of_a_section_are_one(legends, tables, joined):
    row, columns = (Cell("1"), Cell("2")), (Column("left"), Column("right", right=True))
    tables_made = [
        Table(columns[i % 2 :], (row[i % 2 :],), title=f"title {i}", note="of note", legend=text)
        for i, text in enumerate(legends)
    ]
    page = tables_of(*tables_made)
    said = " ".join(" ".join(page.texts).split())
    assert sum(tag == "table" for tag, _ in page.elements) == tables
    if joined is not None:
        assert said.count("a; b; c") == (joined != "")
        heads = [a.get("class") for tag, a in page.elements if tag == "th" and a.get("scope") == "col"]
        assert heads == [None, None, "n"]
        assert " title 0 of note 1 2 title 1 of note 2 title 2 of note 1 2 " in said
