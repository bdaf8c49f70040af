"""Break-even on curves whose right answer is known, one for each verdict and each reason."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench.analysis.analyse import analyse
from gpubench.analysis.speedup import earliest
from gpubench.analysis.thresholds import threshold_text
from gpubench.report.document import report_document
from tests.examples import examples
from tests.unit.report.builders import QUIET, case, curve, failed, measured, run_of

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


def test_every_size_of_a_side_counts():
    """The CPU was timed where the GPU was not, and its step there is where the sides change."""
    step = {64: 1e-4, 128: 1e-4, 181: 1.1e-4, 200: 9e-4, 256: 1e-3, 512: 1e-3}
    outcomes = [measured(case(n=n), seconds) for n, seconds in step.items()]
    outcomes += [measured(case(n=n, device="cupy:0"), 3e-4) for n in (64, 512)]
    (found,) = analyse(run_of(outcomes)).break_even
    assert found.verdict == "at"
    assert 165 <= found.lo <= found.hi <= 220
    assert [point.n for point in found.points] == [64, 512]


def test_a_dip_that_contains_one_is_no_crossing():
    found = verdict({64: 0.25, 128: 3.0, 256: 1.0, 512: 8.0})
    assert (found.mixed, found.lo is not None and found.lo < 128) == (False, True)


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


@pytest.mark.parametrize(
    ("ratio", "said"), [(5.0, "all-sizes"), (0.2, "no-size"), (1.2, "undecided"), (0.85, "undecided")]
)
@pytest.mark.parametrize("timings", [1, 2, 3])
def test_few_timings_tell_a_side_that_is_far_ahead(timings, ratio, said):
    """How far a block may be off is known before anything is measured: 20 %, not five times."""
    assert verdict({256: ratio}, sessions=1, factors=(1.0, 1.001, 0.999)[:timings]).verdict == said


def test_each_regime_and_device_has_its_own_verdict():
    outcomes = [*curve({64: 0.25, 256: 4.0}), *curve({64: 0.1, 256: 0.2}, regime="transfer-always")]
    found = analyse(run_of([*{outcome.id: outcome for outcome in outcomes}.values()])).break_even
    assert [(row.regime, row.verdict) for row in found] == [
        ("resident-queued", "at"),
        ("transfer-always", "no-size"),
    ]


@settings(max_examples=examples(40))
@given(st.dictionaries(st.integers(1, 2**20), st.floats(0.01, 100), min_size=1, max_size=6))
def test_intervals_contain_the_estimate_and_lie_inside_the_measured_sizes(ratios):
    found = verdict(ratios, sessions=1, factors=QUIET[:3])
    if found.verdict == "at":
        assert found.first * 0.98 - 1 <= found.lo <= found.n <= found.hi <= found.last * 1.02 + 1
