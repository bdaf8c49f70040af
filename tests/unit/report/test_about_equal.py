"""Cells without a threshold for a good reason: the sides are about equal at the largest size."""

from __future__ import annotations

import re

import pytest

from gpubench.analysis.analyse import analyse
from gpubench.analysis.speedup import EQUAL
from gpubench.report import render
from gpubench.report.document import report_document
from tests.unit.report.answer_runs import ALWAYS, VECTOR, WAITED, answer_run, op_rows, rising

FORMATS = ("table", "plain", "markdown", "html")


def tied_run(ratio=1.0, **more):
    """An op whose sides tie at the top, and beside it one that has a threshold."""
    rows = op_rows("add", {ALWAYS: {1024: 0.1, 131072: 0.6, 16777216: ratio}}, **more)
    return answer_run([*rows, *op_rows("gelu", {WAITED: rising(VECTOR, 30_000)})])


def curve(run):
    return next(row for row in analyse(run).break_even if row.op == "add")


@pytest.mark.parametrize(("ratio", "reason"), [(1.0, "about-equal"), (1 / EQUAL + 0.01, "about-equal")])
def test_sides_that_tie_at_the_top_are_about_equal(ratio, reason):
    assert curve(tied_run(ratio)).reason == reason


def words(page):
    """Without markup, and with single blanks."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page).replace("\u00a0", " "))


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_says_about_equal_and_claims_no_gain(format):
    said = words(render([tied_run()], format, sections=("answer",)))
    assert "about equal" in said
    assert "about equal about equal" not in said
    assert "GPU 1.0x" not in said


def test_the_document_has_the_reason_by_its_id():
    row = next(row for row in report_document([analyse(tied_run())]).break_even if row.op == "add")
    assert (row.verdict, row.reason) == ("undecided", "about-equal")
