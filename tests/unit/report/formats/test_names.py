"""Names of formats: what --help lists, what a suffix means, and what is said of a wrong one."""

from __future__ import annotations

import re

import pytest

from gpubench.base.errors import UsageError
from gpubench.cli.options import FORMAT_NAMES
from gpubench.cli.rendering import chosen_format
from gpubench.report import FORMATS, PICTURES, render
from tests.unit.report.samples import full_run, tool_run

ONE_RUN = ["gha-smaller", "gha-bigger", "bmf", "pytest-benchmark", "hyperfine", "google-benchmark"]


def test_help_lists_every_format():
    assert set(re.findall(r"[a-z-]+", FORMAT_NAMES)) - {"for", "other", "tools"} == {*FORMATS, *PICTURES}


@pytest.mark.parametrize(
    ("file", "name"),
    [("r.md", "markdown"), ("r.json", "json"), ("r.jsonl", "jsonl"), ("r.CSV", "csv"), ("r.html", "html"), ("r.txt", "plain"), ("r.svg", "svg"), ("r.png", "png")],
)  # fmt: skip
def test_a_suffix_chooses_a_format_unless_one_is_named(file, name):
    assert chosen_format(None, file, to_terminal=False) == name
    assert chosen_format("go", file, to_terminal=False) == "go"


@pytest.mark.parametrize("file", ["r.xml", "r", "r.json.gz", ".md"])
def test_an_unknown_suffix_is_refused(file):
    with pytest.raises(UsageError, match="suffix") as caught:
        chosen_format(None, file, to_terminal=False)
    assert ".jsonl" in caught.value.why


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("gha-small", "gha-smaller"),
        ("pytest_benchmark", "pytest-benchmark"),
        ("JSONL", "jsonl"),
        ("hyperfin", "hyperfine"),
    ],
)
def test_a_mistyped_format_gets_a_suggestion(typed, meant):
    with pytest.raises(UsageError) as caught:
        render([full_run()], typed)
    assert caught.value.hint == f"did you mean {meant!r}?"


@pytest.mark.parametrize("name", ONE_RUN)
def test_formats_that_name_entries_by_case_take_one_file(name):
    with pytest.raises(UsageError, match="takes one result file, not 2"):
        render([full_run(), tool_run()], name)
