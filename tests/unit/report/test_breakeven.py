"""Break-even on curves whose right answer is known, one for each verdict and each reason."""

import pytest

from gpubench.analysis.analyse import analyse
from gpubench.analysis.speedup import earliest
from gpubench.analysis.thresholds import threshold_text
from gpubench.report.document import report_document
from tests.unit.report.builders import case, curve, failed, measured, run_of

WIDE = (0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 1.05, 1.1, 1.2, 1.3)
BEATEN = measured(case(n=128, device="cupy:0"), 9e-4, factors=WIDE, discarded={"1": "throttled"})


def verdict(ratios, **kind):
    (found,) = analyse(run_of(curve(ratios, **kind))).break_even
    return found


@pytest.mark.parametrize(
    ("ratios", "n", "mixed"),
    [
        ({64: 0.25, 256: 4.0, 1024: 30.0}, 128, False), ({100: 0.5, 400: 8.0}, 100 * 4 ** (1 / 4), False),  # a power of the size
        # Of several crossings the last one counts; the last curve wins at first, too.
        ({64: 0.25, 256: 4.0, 1024: 0.25, 4096: 4.0}, 2048, True), ({64: 4.0, 256: 0.25, 1024: 4.0}, 529, True),
    ],
)  # fmt: skip
def test_a_threshold_lies_where_the_curves_cross(ratios, n, mixed):
    found, sizes = verdict(ratios), sorted(ratios)
    assert (found.verdict, found.mixed) == ("at", mixed)
    assert found.n == pytest.approx(n, rel=0.03)
    assert sizes[0] < found.lo < found.n < found.hi < sizes[-1]
    assert threshold_text(found).endswith(", mixed") == mixed


@pytest.mark.parametrize(
    ("ratios", "text"),
    [
        ({64: 0.25, 128: 0.98, 256: 4.0}, "129² (113-148²)"), ({64: 0.25, 256: 0.5}, "> 256²"), ({64: 2.0, 256: 4.0}, "< 64²"),
        ({64: 1.0, 256: 1.0}, "about equal"), ({64: 4.0, 256: 0.25}, "? (wins and loses by turns)"),
    ],
)  # fmt: skip
def test_the_document_says_it_as_tables_do(ratios, text):
    assert [row.text for row in report_document([analyse(run_of(curve(ratios)))]).break_even] == [text]


@pytest.mark.parametrize(
    ("outcomes", "reason", "more"),
    [
        *((curve(ratios), reason, {}) for ratios, reason in (
            ({64: 0.5, 16384: 4.0}, "few-sizes"), ({64: 1.0, 256: 1.0}, "about-equal"), ({64: 0.5, 256: 1.0}, "about-equal"), ({64: 1.0, 256: 4.0}, "noise"),
            ({64: 4.0, 256: 0.25}, "loses-again"))),
        ([*curve({16: 0.8, 4096: 1.3}), failed(case(n=64, device="cupy:0"))], "failed-cases", {}),
        (curve({64: 0.8, 16384: 1.3}), "budget", {"exit_reason": "budget"}),
        ([*curve({64: 0.9}), measured(case(n=128), 1e-3), BEATEN], "throttled", {}),
    ],
)  # fmt: skip
def test_undecided(outcomes, reason, more):
    (found,) = analyse(run_of(outcomes, **more)).break_even
    assert (found.verdict, found.reason) == ("undecided", reason)


def test_a_bracket_below_a_threshold_is_the_earlier_one():
    wide, late, none = (
        verdict(by) for by in ({64: 0.5, 16384: 4.0}, {4096: 0.5, 8192: 4.0}, {64: 0.25, 256: 0.5})
    )
    assert (wide.verdict, late.verdict, none.verdict) == ("undecided", "at", "no-size")
    assert earliest([none, late, wide]) is wide
    assert earliest([none, late]) is late
    assert earliest([verdict({64: 1.0, 256: 4.0}), late]) is late, "where it lies is known"
