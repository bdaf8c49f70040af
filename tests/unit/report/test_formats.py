"""Formats: golden reports, names of all kinds, widths, orders, columns, and what other programs read."""

import csv
import html
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.base.errors import UsageError
from gpubench.base.streams import escape
from gpubench.cli.options import FORMAT_NAMES
from gpubench.curves.stats import Interval
from gpubench.report import FORMATS, PICTURES, render
from gpubench.report.layout import csv_text
from gpubench.report.wording import ratio_text, time_interval_text, time_text
from tests import golden
from tests.unit.report.builders import run_of
from tests.unit.report.samples import drawn, full_run, tool_run


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


@pytest.mark.parametrize(("value", "text"), [
    (None, ""), (True, "true"), (1048576, "1048576"), (0.000123456789, "0.000123457"), (-1.5, "-1.5"),
    (("a", "b"), "a b"), ((), ""), ("=1+1", "'=1+1"), ("-x", "'-x"), ("a\n b", "a b"),
    ("NVIDIA H200", "NVIDIA H200"),
])  # fmt: skip
def test_a_value_as_text_of_a_cell(value, text):
    assert csv_text(value) == text


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


@pytest.mark.parametrize(("arguments", "hint"), [
    ({"format": "markdwn"}, "did you mean 'markdown'?"),
    ({"sections": ["speedups"]}, "did you mean 'speedup'?"),
    ({"time_unit": "min"}, "take one of these for --time-unit"),
    ({"columns": ["copid"]}, "did you mean 'copied'?"), ({"sort": "tme"}, "did you mean 'time'?"),
    ({"sort": "--n"}, "did you mean 'n'?"), ({"format": "csv", "columns": ["tim_s"]}, "did you mean 'time_s'?"),
    ({"format": "JSONL"}, "did you mean 'jsonl'?"),
])  # fmt: skip
def test_unknown_names_get_a_suggestion(arguments, hint):
    with pytest.raises(UsageError) as caught:
        drawn(full_run, **arguments)
    assert hint in caught.value.hint


def test_help_lists_every_format():
    assert set(re.findall(r"[a-z-]+", FORMAT_NAMES)) - {"for", "other", "tools"} == {*FORMATS, *PICTURES}


@pytest.mark.parametrize(
    "name", "gha-smaller gha-bigger bmf pytest-benchmark hyperfine google-benchmark".split()
)
def test_formats_that_name_entries_by_case_take_one_file(name):
    with pytest.raises(UsageError, match="takes one result file, not 2"):
        drawn(full_run, tool_run, format=name)


def test_rows_of_csv_and_columns_of_every_table_can_be_chosen():
    assert drawn(full_run, format="csv", sort="speedup") != drawn(full_run, format="csv")
    text = drawn(full_run, format="csv", columns=["case_id", "time_s"])
    assert all(list(row) == ["case_id", "time_s"] for row in csv.DictReader(io.StringIO(text)))
    assert drawn(full_run, sections=["environment"], columns=["name"]).count("numpy:0") == 0
    without_any = "| device | kind | name |"
    assert without_any in drawn(full_run, format="markdown", columns=["gain"])


def test_a_selection_that_keeps_nothing_is_an_error_and_a_filter_keeps_the_baseline():
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
