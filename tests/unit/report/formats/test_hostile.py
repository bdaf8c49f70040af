"""No text of a result file breaks a format: one property for every format that there is."""

import csv
import io
import itertools
import json
import re
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from msgspec.structs import replace

from gpubench.analysis.advice import answer
from gpubench.analysis.contenders import Key
from gpubench.base.plugins import sections
from gpubench.cli.ci import messages, of_reports, outputs
from gpubench.compare.comparison import CompareOptions
from gpubench.compare.two_runs import compare
from gpubench.detect import picture
from gpubench.report import FORMATS, analyse_runs, draw_report
from gpubench.report.advice import render as render_advice
from gpubench.report.comparison import FORMATS as COMPARE_FORMATS
from gpubench.report.comparison import render as render_comparison
from gpubench.report.layout import RenderOptions
from tests.examples import examples
from tests.unit.report.formats.hostile import NAMES, TEXTS, hostile_run
from tests.unit.report.sides import pair

EVERY_NAME = list(NAMES)
JSON = {*"json jsonl gha-smaller gha-bigger bmf pytest-benchmark hyperfine google-benchmark".split()}
# Tags that our Markdown has of its own.
OURS = re.compile(r"</?(?:details|summary|sub)>|<br>|<!-- gpubench:[\w.-]* -->")
# Tags of a page without a script or a picture.
PAGE_TAGS = {*(
    "html head meta title link style body header h1 h2 main article section div p ul li details summary table caption thead tbody"
    " tr th td span footer a wbr").split()}  # fmt: skip


def shown_safely(text):
    """Nothing that moves the cursor, changes colours, reorders what follows or hides."""
    odd = {c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")}
    assert not odd, odd


def safe_markdown(text):
    """As a real parser sees it: tables keep their columns, and no tag, link or picture stems from a name."""
    shown_safely(text)
    for token in MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text):
        if token.type == "html_block":
            assert OURS.sub("", token.content).count("<") == 0, token.content
        assert token.type not in ("code_block", "blockquote_open", "ordered_list_open"), token.content
        assert token.level == 0 or token.type != "heading_open", token.map
        if token.type == "fence":  # the chart is drawn with characters
            assert not re.search(r"script|http|\$\(", token.content), token.content
        for child in token.children or []:
            assert child.type != "html_inline" or OURS.fullmatch(child.content), child
            assert child.type not in ("link_open", "image", "code_inline", "em_open", "s_open"), child


def safe_csv(text):
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert {len(row) for row in rows} == {len(rows[0])}
    for cell in itertools.chain(*rows[1:]):
        shown_safely(cell)
        assert not re.match(r"[=+@\t\r]", cell), cell
        assert not cell.startswith("-") or re.fullmatch(r"-[\d.]+(e[+-]?\d+)?", cell), cell


def safe(name, text):
    if name == "markdown":
        safe_markdown(text)
    elif name == "csv":
        safe_csv(text)
    elif name in ("table", "plain", "go", "html"):
        shown_safely(text)
        assert name != "html" or {*re.findall(r"<([a-z0-9]+)", text)} <= PAGE_TAGS
    else:
        assert name in JSON, f"a new format needs its own assertion: {name}"
        for part in text.splitlines() if name == "jsonl" else [text]:
            json.loads(part)


@settings(max_examples=examples(20))
@example(EVERY_NAME, False)
@given(st.lists(TEXTS, min_size=1, max_size=30), st.booleans())
def test_reports(texts, forged_ids):
    """All but the page, of which tests/unit/report/test_html.py asks more."""
    analyses = analyse_runs([hostile_run(texts, ids=forged_ids)])
    for name in FORMATS:
        if name != "html":
            safe(name, draw_report(analyses, name, RenderOptions(sections=sections.names())))


@pytest.mark.parametrize("name", COMPARE_FORMATS)
@settings(max_examples=examples(10))
@example(EVERY_NAME)
@given(st.lists(TEXTS, min_size=1, max_size=12))
def test_comparisons(name, texts):
    at = itertools.cycle(texts)
    base, new = (
        replace(
            run, label=next(at), tool={"numpy": next(at)},
            devices=[replace(device, name=next(at), driver=next(at)) for device in run.devices],
        )
        for run in pair({"matmul/n=64/float32/library/resident@numpy:0": 1.5})
    )  # fmt: skip
    found = compare((next(at), base), [(next(at), new)], CompareOptions())
    safe(name, render_comparison(found, name, RenderOptions()))


@settings(max_examples=examples(25))
@example(EVERY_NAME)
@given(st.lists(TEXTS, min_size=1, max_size=12))
def test_advice_and_detection(texts):
    run = hostile_run(texts)
    advice = answer([run], Key("matmul", "float32"), 128, "resident-queued")
    json.loads(render_advice(advice, "json"))
    variables = render_advice(advice, "env")
    assert all(re.match(r"[A-Z_]+=", line) for line in variables.splitlines())
    looks = (("table", False), ("table", True), ("env", False))
    pictures = [picture.render(run.machine, name, explain=explain) for name, explain in looks]
    for text in (render_advice(advice, "table"), variables, *pictures):
        shown_safely(text)
    safe_markdown(picture.render(run.machine, "markdown", explain=False))


@settings(max_examples=examples(25))
@example(EVERY_NAME)
@given(st.lists(TEXTS, min_size=1, max_size=12))
def test_what_a_ci_is_told(texts):
    analyses = analyse_runs([hostile_run(texts)])
    reported = of_reports(analyses, 1)
    lines = list(messages(reported))
    assert lines
    for line in lines:
        shown_safely(line)
        assert "\n" not in line
        assert re.match(r"::(error|warning) title=gpubench::", line)
    assert all(re.fullmatch(r"[a-z_-]+=.*", line) for line in outputs(reported, "r.json").splitlines())
