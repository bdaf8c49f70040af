"""Formats: golden reports, names and texts of all kinds, widths, orders, columns, and what other programs read."""

import csv
import html
import io
import itertools
import json
import random
import re
import unicodedata
from collections import Counter
from types import SimpleNamespace

import jsonschema
import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from msgspec.structs import replace
from rich.cells import cell_len

from gpubench.analysis import claims as claims_room
from gpubench.analysis.advice import answer
from gpubench.analysis.contenders import Key
from gpubench.analysis.findings import Gates
from gpubench.base.errors import UsageError
from gpubench.base.plugins import sections
from gpubench.base.plugins.sections import PICTURES
from gpubench.base.streams import escape
from gpubench.cli.ci import messages, of_reports, outputs
from gpubench.cli.options import FORMAT_NAMES
from gpubench.compare.comparison import CompareOptions
from gpubench.compare.two_runs import compare
from gpubench.curves.stats import Interval
from gpubench.detect import picture
from gpubench.report import FORMATS, analyse_runs, draw_report, render
from gpubench.report.advice import render as render_advice
from gpubench.report.comparison import FORMATS as COMPARE_FORMATS
from gpubench.report.comparison import render as render_comparison
from gpubench.report.document import CaseComplete, EventLine
from gpubench.report.exporters import Rate, rate_of
from gpubench.report.layout import RenderOptions
from gpubench.report.wording import ratio_text, time_interval_text, time_text
from gpubench.result.machine import Fact
from gpubench.result.run import Measurement
from gpubench.result.store.document import schema
from tests import golden
from tests.examples import CHARACTERS, examples
from tests.unit.report.answer_runs import named_run, no_gpu_run, one_op_run, suite_run
from tests.unit.report.builders import case, failed, measured, planned, run_of, skipped
from tests.unit.report.hostile import NAMES, TEXTS, hostile_run
from tests.unit.report.samples import cpu_run, drawn, full_run, hybrid_run, interrupted_run, software_run
from tests.unit.report.sides import pair
from tests.unit.report.test_decisions import crossing


@pytest.mark.parametrize(("run", "name"), golden.CASES)
def test_golden(run, name):
    """If the difference is wanted: python -m tests.golden, and look at it."""
    assert golden.text(run, name) == golden.path(run, name).read_text(encoding="utf-8")


@pytest.mark.parametrize(("file", "name"), golden.SMALL)
def test_golden_of_small_runs(file, name):
    assert golden.COLLECTIONS[file][name]() == golden.stored(file)[name]


@pytest.mark.parametrize("file", golden.COLLECTIONS)
def test_no_text_of_a_small_run_is_left_over(file):
    assert list(golden.stored(file)) == [*golden.COLLECTIONS[file]]


@pytest.mark.parametrize("text", [
    "@name", "(@org/team)", "a@b.example.org", "#12", "org/repo#3", "!12", "GH-12", "org/repo@deadbeef",
    "https://example.org/x", "ftp://example.org", "www.example.org", "HTTP://A.B", "mailto:a@b.co", "-@name",
    "1#1",
])  # fmt: skip
def test_markdown_tells_nobody_and_links_nothing(text):
    shown = escape(f"a {text} b")
    assert not re.search(r"(?<![A-Za-z0-9])@\w|@[\w-]+\.|@[0-9a-f]{7}|[#!]\d|GH-\d|://|www\.", shown)
    assert html.unescape(shown).replace("\u200b", "").replace("\\", "") == f"a {text} b"


def test_colour_only_where_it_is_asked_for(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # the caller decides; the environment does not reach this layer
    plain, colored = drawn(full_run, format="table"), drawn(full_run, format="table", color=True)
    assert "\x1b" not in plain
    assert "\x1b[32m" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored).split() == plain.split()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("make", [full_run, lambda: run_of([])], ids=["full", "empty"])
def test_every_run_renders_the_same_bytes_twice_and_touches_no_disk(name, make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = drawn(make, format=name)
    assert text == drawn(make, format=name)
    assert re.search(r"[^\n]\n\Z", text)
    assert list(tmp_path.iterdir()) == []
    assert name == "csv" or drawn(make, format=name, ascii_only=True).isascii()


def test_help_lists_every_format():
    assert set(re.findall(r"[a-z-]+", FORMAT_NAMES)) - {"for", "other", "tools"} == {*FORMATS, *PICTURES}


def test_rows_of_csv_and_columns_of_every_table_can_be_chosen():
    assert drawn(full_run, format="csv", sort="speedup") != drawn(full_run, format="csv")
    text = drawn(full_run, format="csv", columns=["case_id", "time_s"])
    assert all(list(row) == ["case_id", "time_s"] for row in csv.DictReader(io.StringIO(text)))
    assert drawn(full_run, sections=["environment"], columns=["name"]).count("numpy:0") == 0
    without_any = "| device | kind | name |"
    assert without_any in drawn(full_run, format="markdown", columns=["gain"])
    with pytest.raises(UsageError, match="leave no case"):
        render([full_run()], "plain", keep=lambda case: False)
    text = render([full_run()], "plain", keep=lambda case: case.device_id == "cupy:0", sections=["breakeven"])
    assert re.search(r"^matmul .*²", text, re.M)


@given(st.floats(1e-9, 1e3), st.floats(0, 0.9), st.floats(0, 3))
def test_any_time_has_the_unit_and_the_decimals_of_its_interval(estimate, below, above):
    found = Interval(estimate * (1 - below), estimate, estimate * (1 + above), "hull")
    number, unit = time_text(found).split(" ")
    ends, ends_unit = time_interval_text(found).rsplit(" ", 1)
    assert unit == ends_unit
    low, high = ends.strip("[]").split(", ")
    assert len({len(text.partition(".")[2]) for text in (low, high, number)}) == 1
    assert float(low) <= float(number) <= float(high)


def test_a_low_end_above_zero_is_not_printed_as_zero():
    assert ratio_text(Interval(0.0038, 1.0, 265.9, "hull")) == "1.0x [0.004, 265.9]"


@pytest.mark.parametrize(
    ("flops", "bytes", "rate"), [(5e9, 1e9, (5, "GFLOP/s")), (4e9, 1e9, (1, "GB/s")), (0, 0, None)]
)
def test_a_rate_is_of_operations_where_each_byte_has_more_than_four(flops, bytes, rate):
    assert rate_of(SimpleNamespace(flops=flops, bytes=bytes), 1.0) == (rate and Rate(*rate))


# ---------------------------------------------------------------- no line is longer than the terminal
MAKES = [full_run, cpu_run, software_run, interrupted_run, suite_run, one_op_run, named_run, no_gpu_run]
LONGEST = ["x" * 200, "Ünïcode " * 20, "日本語" * 30, "a-b-c" * 40]
LONG = st.text(CHARACTERS, min_size=1, max_size=200) | st.sampled_from(LONGEST)


def named(run, text):
    """`run` with everything that a user or a driver names called `text`."""
    devices = [replace(device, name=text, driver=text) for device in run.devices]
    gpus = [replace(gpu, name=Fact(text, "ok", "nvml")) for gpu in run.machine.gpus]
    machine = replace(run.machine, cpu=replace(run.machine.cpu, model=Fact(text, "ok", "proc")), gpus=gpus)
    return replace(
        run, devices=devices, label=text, environment=replace(run.environment, variables={"OMP_NUM_THREADS": text}),
        tool={"gpubench": text}, machine=machine,
        outcomes=[*run.outcomes, failed(case("add", 7), detail=text), skipped(case("add", 9), detail=text)],
    )  # fmt: skip


def analysed(run):
    return analyse_runs([run], claims=claims_room.load("builtin"))


def too_long(analyses, format, width, **more):
    text = draw_report(analyses, format, RenderOptions(width=width, **more))
    return [line for line in text.splitlines() if cell_len(line) > width]


@settings(max_examples=examples(8), deadline=None)
@given(st.sampled_from(MAKES), LONG, st.integers(40, 120), st.sampled_from(["table", "plain"]), st.booleans())
def test_no_line_is_longer_than_the_terminal(make, text, width, format, ascii_only):
    assert not too_long(analysed(named(make(), text)), format, width, ascii_only=ascii_only)


@pytest.fixture(scope="module")
def whole():
    return analysed(full_run())


@pytest.mark.parametrize("format", ["table", "plain"])
@pytest.mark.parametrize("section", sections.names())
def test_every_section_by_itself(whole, format, section):
    assert not [width for width in (40, 80, 119) if too_long(whole, format, width, sections=[section])]


# ---------------------------------------------------------------- JSON lines: one event a line
REASONS = ["run-start", "case-start", "case-complete", "speedup", "break-even", "warning", "run-complete"]
VALIDATOR = jsonschema.Draft202012Validator(schema("gpubench-events", EventLine))
OUTCOMES = {
    "measured": lambda what: measured(what, 1e-3), "no-samples": lambda what: measured(what, 1e-3, factors=()),
    "skipped": skipped, "failed": failed, "planned": planned,
}  # fmt: skip


def lines(*runs):
    text = render(list(runs), "jsonl")
    assert text.isascii()
    assert text.splitlines() == text.removesuffix("\n").split("\n")
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("make", [full_run, interrupted_run, lambda: run_of([])])
def test_every_line_is_an_event_of_the_schema(make):
    found = lines(make())
    for line in found:
        VALIDATOR.validate(line)
        msgspec.convert(line, EventLine)
        assert next(iter(line)) == "reason"
    assert [line["reason"] for line in (found[0], found[-1])] == ["run-start", "run-complete"]
    order = [REASONS.index(line["reason"]) for line in found if not line["reason"].startswith("case-")]
    assert order == sorted(order)


@settings(max_examples=examples(20))
@given(st.lists(st.sampled_from(sorted(OUTCOMES)), max_size=8), st.text(CHARACTERS, max_size=200))
def test_each_case_completes_once_and_says_what_is_known(kinds, detail):
    outcomes = [OUTCOMES[kind](case(n=64 * (i + 1), device="cupy:0")) for i, kind in enumerate(kinds)]
    outcomes = [replace(one, detail=detail) if hasattr(one, "detail") else one for one in outcomes]
    found = lines(run_of(outcomes))
    complete = [msgspec.convert(line, CaseComplete) for line in found if line["reason"] == "case-complete"]
    assert Counter(line.id for line in complete) == Counter(outcome.id for outcome in outcomes)
    assert all((line.typical is None) == (line.cause is not None) for line in complete)
    started = {line["id"] for line in found if line["reason"] == "case-start"}
    assert started == {line.id for line in complete if line.outcome in ("measurement", "failure")}


def test_a_failed_gate_is_the_end_of_a_run_that_ended_well():
    analyses = analyse_runs([full_run()], gates=Gates(fail_on=("noisy",)))
    end = json.loads(draw_report(analyses, "jsonl").splitlines()[-1])
    assert (end["exit_code"], end["exit_reason"], end["complete"]) == (3, "gate", True)


# ---------------------------------------------------------------- no text of a result file breaks a format
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
    reported = of_reports(analyse_runs([hostile_run(texts)]), 1)
    lines = list(messages(reported))
    assert lines
    for line in lines:
        shown_safely(line)
        assert "\n" not in line
        assert re.match(r"::(error|warning) title=gpubench::", line)
    assert all(re.fullmatch(r"[a-z_-]+=.*", line) for line in outputs(reported, "r.json").splitlines())


# ---------------------------------------------------------------- no order in the file matters
def rearranged(run, seed, *, renumbered=True):
    """The same measurements, with outcomes, blocks and sessions in another order and the sessions numbered anew."""
    draw = random.Random(seed)
    old = [record.index for record in run.sessions]
    numbers = dict(zip(old, draw.sample(old, len(old)) if renumbered else old, strict=True))
    outcomes = []
    for outcome in draw.sample(run.outcomes, len(run.outcomes)):
        if isinstance(outcome, Measurement):
            lists = {name: getattr(outcome, name) for name in ("blocks", "parts", "stops")}
            outcome = replace(outcome, **{
                name: [replace(x, session=numbers[x.session]) for x in draw.sample(kept, len(kept))] for name, kept in lists.items()
            })  # fmt: skip
        outcomes.append(outcome)
    records = [replace(x, index=numbers[x.index]) for x in run.sessions]
    return replace(run, outcomes=outcomes, sessions=draw.sample(records, len(records)))


def documents(*runs):
    return [json.loads(render([run], "json")) for run in runs]


@settings(max_examples=examples(5), deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 2**32))
def test_the_report_is_the_same(seed, order):
    run = crossing(seed % 100, sessions=3)
    before, after = documents(run, rearranged(run, order))
    for name in before:
        assert after[name] == before[name], name


@pytest.mark.parametrize("make", [full_run, hybrid_run])
def test_the_report_of_every_kind_of_case_is_the_same(make):
    """Of a split session 0 has chosen the share."""
    before, after = documents(make(), rearranged(make(), 3, renumbered=False))
    for name in before:
        assert after[name] == before[name], name
