"""Cells without a threshold for a good reason: the ratio hardly depends on the size, or the sides are about equal."""

from __future__ import annotations

import re

import msgspec
import pytest

from gpubench.analysis.analyse import analyse
from gpubench.analysis.break_even import SEARCHED_PROTOCOL
from gpubench.analysis.speedup import EQUAL
from gpubench.break_even import FLAT
from gpubench.report import render
from gpubench.report.document import report_document
from tests.unit.report.answer_runs import ALWAYS, VECTOR, WAITED, answer_run, op_rows, rising

FORMATS = ("table", "plain", "markdown", "html")
# Blocks of one session lie this far apart.
NOISY = (0.75, 0.85, 0.95, 1.0, 1.05, 1.15, 1.25, 0.8, 1.2, 1.0)


def searched(ratios, **more):
    """A run of the engine that searches, with an op beside it that has a threshold."""
    run = answer_run([*op_rows("add", ratios, **more), *op_rows("gelu", {WAITED: rising(VECTOR, 30_000)})])
    return msgspec.structs.replace(
        run, settings=msgspec.structs.replace(run.settings, protocol=SEARCHED_PROTOCOL)
    )


def flat_run():
    return searched({WAITED: rising(VECTOR, 150_000, slope=FLAT / 3)}, factors=NOISY)


def tied_run(ratio=1.0, **more):
    return searched({ALWAYS: {1024: 0.1, 131072: 0.6, 16777216: ratio}}, **more)


def curve(run):
    return next(row for row in analyse(run).break_even if row.op == "add")


def test_a_ratio_that_hardly_depends_on_the_size_is_flat():
    found = curve(flat_run())
    assert (found.verdict, found.reason, found.n) == ("undecided", "flat", None)
    steep = searched({WAITED: rising(VECTOR, 150_000, slope=2 * FLAT)}, factors=NOISY)
    assert curve(steep).reason != "flat"


@pytest.mark.parametrize(("ratio", "reason"), [(1.0, "about-equal"), (1 / EQUAL + 0.01, "about-equal")])
def test_sides_that_tie_at_the_top_are_about_equal(ratio, reason):
    assert curve(tied_run(ratio)).reason == reason


def test_a_tie_of_unstable_times_is_noise():
    assert curve(tied_run(factors=tuple(0.2 + 0.2 * i for i in range(10)))).reason == "noise"


def words(page):
    """Without markup, and with single blanks."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page).replace("\u00a0", " "))


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_says_about_equal_and_claims_no_gain(format):
    said = words(render([tied_run()], format, sections=("answer",)))
    assert "about equal" in said
    assert "about equal about equal" not in said
    assert "GPU 1.0x" not in said


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_has_the_range_or_the_reason_of_a_flat_cell(format):
    run = flat_run()
    text = report_document([analyse(run)]).break_even[0].text
    said = words(render([run], format, sections=("answer",)))
    assert re.search(r"[0-9.]+ ?[KM]?-[0-9.]+ [KM]|hardly depends on the size", text)
    assert text in said or "hardly depends on the size" in said


def test_the_document_has_the_reasons_by_their_ids():
    for run, reason in ((tied_run(), "about-equal"), (flat_run(), "flat")):
        row = next(row for row in report_document([analyse(run)]).break_even if row.op == "add")
        assert (row.verdict, row.reason) == ("undecided", reason)


def test_a_range_lies_between_the_sure_sizes_and_inside_the_interval_of_the_line():
    """The line's interval is too wide for a threshold, and at its upper end narrower than the sure sizes."""
    ratios = {1024: 0.03, 120_000: 0.5, 240_387: 0.6, 339_959: 1.3, 679_917: 0.65, 808_563: 1.6, 2_097_153: 3.8}
    factors = (0.6, 0.7, 0.85, 1.0, 1.2, 1.5, 1.3, 0.75, 1.4, 0.9)
    row = curve(searched({WAITED: {**ratios, 16_777_216: 26}}, factors=factors))
    assert row.verdict == "undecided"
    assert max(point.n for point in row.points if point.state == "loss") == row.lo
    assert row.hi < min(point.n for point in row.points if point.state == "win")
