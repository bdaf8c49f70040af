"""Break-even on curves whose right answer is known, one for each verdict and each reason."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench.analysis.analyse import analyse
from gpubench.analysis.speedup import BreakEven, earliest
from gpubench.analysis.thresholds import threshold_text
from gpubench.report.document import report_document
from gpubench.report.sections.answer import answer_sentences
from gpubench.result.store.document import encode
from tests.examples import examples
from tests.unit.report.builders import QUIET, case, curve, failed, measured, run_of

WIDE = (0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 1.05, 1.1, 1.2, 1.3)


def verdict(ratios: dict[int, float], **kind: object) -> BreakEven:
    (found,) = analyse(run_of(curve(ratios, **kind))).break_even  # type: ignore[arg-type]
    return found


def test_at():
    found = verdict({64: 0.25, 256: 4.0, 1024: 30.0})
    assert (found.verdict, found.mixed) == ("at", False)
    assert found.n == pytest.approx(128, rel=0.03)
    assert 64 < found.lo < found.n < found.hi < 256  # type: ignore[operator]


def test_between_two_sizes_the_ratio_is_a_power_of_the_size():
    assert verdict({100: 0.5, 400: 8.0}).n == pytest.approx(100 * 4 ** (1 / 4), rel=0.03)


def test_every_size_of_a_side_counts():
    """The CPU was timed where the GPU was not, and its step there is where the sides change."""
    step = {64: 1e-4, 128: 1e-4, 181: 1.1e-4, 200: 9e-4, 256: 1e-3, 512: 1e-3}
    outcomes = [measured(case(n=n), seconds) for n, seconds in step.items()]
    outcomes += [measured(case(n=n, device="cupy:0"), 3e-4) for n in (64, 512)]
    (found,) = analyse(run_of(outcomes)).break_even
    assert found.verdict == "at"
    assert 165 <= found.lo <= found.hi <= 220  # type: ignore[operator]
    assert [point.n for point in found.points] == [64, 512]


def test_a_size_at_which_the_sides_tie_narrows_the_interval():
    wide, near = verdict({64: 0.5, 128: 2.0}), verdict({64: 0.5, 90: 1.0, 128: 2.0})
    assert near.verdict == "at"
    assert near.hi / near.lo <= wide.hi / wide.lo  # type: ignore[operator]


def test_a_dip_that_contains_one_is_no_crossing():
    found = verdict({64: 0.25, 128: 3.0, 256: 1.0, 512: 8.0})
    assert (found.mixed, found.lo is not None and found.lo < 128) == (False, True)


@pytest.mark.parametrize("ratios", [{256: 1.5, 1024: 4.0}, {256: 1.5}])
def test_all_sizes_that_were_measured(ratios):
    found = verdict(ratios)
    assert (found.verdict, found.first, found.last, found.n) == ("all-sizes", 256, max(ratios), None)


@pytest.mark.parametrize(
    "ratios",
    [{256: 0.3, 1024: 0.3, 4096: 0.3}, {256: 0.5, 1024: 0.4, 4096: 0.3}, {64: 0.3, 256: 0.5}, {64: 0.5}],
)
def test_no_size_that_was_measured(ratios):
    found = verdict(ratios)
    assert (found.verdict, found.reason, found.last, found.n) == ("no-size", None, max(ratios), None)


def test_of_several_crossings_the_last_one_is_the_threshold():
    found = verdict({64: 0.25, 256: 4.0, 1024: 0.25, 4096: 4.0})
    assert (found.verdict, found.mixed) == ("at", True)
    assert found.n == pytest.approx(2048, rel=0.03)
    assert threshold_text(found).endswith(", mixed")
    alternating = verdict({64: 4.0, 256: 0.25, 1024: 4.0})
    assert (alternating.verdict, alternating.mixed) == ("at", True), "it wins at first, too"


def test_a_device_that_loses_again_has_no_threshold():
    found = verdict({64: 4.0, 256: 0.25})
    assert (found.verdict, found.reason, found.n) == ("undecided", "loses-again", None)
    assert threshold_text(found) == "? (wins and loses by turns)"


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
    ("ratios", "reason"),
    [
        ({64: 0.5, 16384: 4.0}, "few-sizes"),
        ({64: 1.0, 256: 1.0}, "about-equal"),
        ({64: 0.5, 256: 1.0}, "about-equal"),
        ({64: 1.0, 256: 4.0}, "noise"),
    ],
)
def test_undecided(ratios, reason):
    found = verdict(ratios)
    assert (found.verdict, found.reason) == ("undecided", reason)


def test_an_undecided_threshold_says_what_is_known_of_it():
    wide = verdict({64: 0.5, 16384: 4.0})
    assert 64 <= wide.lo < wide.n < wide.hi <= 16384  # type: ignore[operator]
    assert threshold_text(wide).startswith(f"~{wide.n}² ({wide.lo}-")
    begins_equal = verdict({64: 1.0, 256: 4.0})
    assert (begins_equal.lo, begins_equal.hi is not None) == (None, True)
    assert verdict({64: 0.5}).lo is None


def test_a_bracket_below_a_threshold_is_the_earlier_one():
    wide, late, none = (
        verdict({64: 0.5, 16384: 4.0}),
        verdict({4096: 0.5, 8192: 4.0}),
        verdict({64: 0.25, 256: 0.5}),
    )
    assert (wide.verdict, late.verdict, none.verdict) == ("undecided", "at", "no-size")
    assert earliest([none, late, wide]) is wide
    assert earliest([none, late]) is late


def test_undecided_by_failed_cases():
    run = run_of([*curve({16: 0.8, 4096: 1.3}), failed(case(n=64, device="cupy:0"))])
    assert analyse(run).break_even[0].reason == "failed-cases"


def test_undecided_by_budget():
    run = run_of(curve({64: 0.8, 16384: 1.3}), exit_reason="budget")
    assert analyse(run).break_even[0].reason == "budget"


def test_undecided_by_throttling():
    outcomes = curve({64: 0.9})
    outcomes += [
        measured(case(n=128), 1e-3),
        measured(case(n=128, device="cupy:0"), 9e-4, factors=WIDE, discarded={"1": "throttled"}),
    ]
    assert analyse(run_of(outcomes)).break_even[0].reason == "throttled"


def test_labels_change_no_verdict():
    """Samples scatter inside each block, whose medians agree."""
    wild = [0.6] * 5 + [1.4] * 5
    ratios = {64: 0.5, 128: 0.9, 256: 2.0}
    quiet, loud = verdict(ratios, factors=QUIET), verdict(ratios, factors=wild)
    assert loud.points[-1].label in ("noisy", "unstable")
    assert (loud.verdict, loud.n) == (quiet.verdict, quiet.n)


@pytest.mark.parametrize(
    ("ratio", "said"), [(5.0, "all-sizes"), (0.2, "no-size"), (1.2, "undecided"), (0.85, "undecided")]
)
@pytest.mark.parametrize("timings", [1, 2, 3])
def test_few_timings_tell_a_side_that_is_far_ahead(timings, ratio, said):
    """How far a block may be off is known before anything is measured: 20 %, not five times."""
    assert verdict({256: ratio}, sessions=1, factors=(1.0, 1.001, 0.999)[:timings]).verdict == said


def test_each_regime_and_device_has_its_own_verdict():
    outcomes = [*curve({64: 0.25, 256: 4.0}), *curve({64: 0.1, 256: 0.2}, regime="transfer-always")]
    unique = {outcome.id: outcome for outcome in outcomes}
    found = analyse(run_of(list(unique.values()))).break_even
    assert [(row.regime, row.verdict) for row in found] == [
        ("resident-queued", "at"),
        ("transfer-always", "no-size"),
    ]


def rows_of(analysis):
    """What is reported of each curve; the times behind it are left out."""
    rows = [(row.points[-1].label, row.case.device_id) for row in analysis.break_even]
    return [[encode(row) for row in report_document([analysis]).break_even], rows]


@settings(max_examples=examples(40))
@given(
    st.lists(st.sampled_from([0.2, 0.5, 1.0, 2.0, 8.0]), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
    st.integers(-6, 6),
)
def test_verdicts_ignore_the_order_of_cases_and_the_unit_of_time(ratios, shuffle, power):
    sizes = {64 * 4**i: ratio for i, ratio in enumerate(ratios)}
    # Long enough that the prior, which knows a microsecond from a second, is one and the same.
    before = analyse(run_of(curve(sizes, sessions=1, cpu_s=1.0)))
    mixed = curve(sizes, sessions=1, cpu_s=2.0**power)
    shuffle.shuffle(mixed)
    after = analyse(run_of(mixed))
    assert rows_of(before) == rows_of(after)
    assert answer_sentences(before) == answer_sentences(after)


@settings(max_examples=examples(40))
@given(st.dictionaries(st.integers(1, 2**20), st.floats(0.01, 100), min_size=1, max_size=6))
def test_intervals_contain_the_estimate_and_lie_inside_the_measured_sizes(ratios):
    found = verdict(ratios, sessions=1, factors=QUIET[:3])
    if found.verdict == "at":
        assert found.n is not None
        assert found.lo is not None
        assert found.hi is not None
        assert found.lo <= found.n <= found.hi
        assert found.first * 0.98 - 1 <= found.lo
        assert found.hi <= found.last * 1.02 + 1


@pytest.mark.parametrize(("sigma", "sure"), [(0.02, 0.95), (0.10, 0.80)])
def test_the_interval_covers_the_truth_on_noisy_curves(sigma, sure):
    """First curve of docs/breakeven.md (transfer-always, crossing at 212), sizes by factor 2, 10 samples a side."""
    draw = random.Random(8)
    runs, hits, answers = 60, 0, 0
    for _ in range(runs):
        outcomes = []
        for n in (32, 64, 128, 256, 512, 1024):
            cpu_s = 3e-6 + 2 * n**3 / 8e11
            gpu_s = 12e-6 + 16 * n**2 / 5e10 + 2 * n**3 / 4.5e13
            for what, seconds in ((case(n=n), cpu_s), (case(n=n, device="cupy:0"), gpu_s)):
                noise = [draw.lognormvariate(0, sigma) * (1 + 2 * (draw.random() < 0.02)) for _ in range(10)]
                outcomes.append(measured(what, seconds, sessions=1, factors=noise))
        (found,) = analyse(run_of(outcomes, sessions=1)).break_even
        if found.verdict == "at":
            answers += 1
            hits += found.lo <= 212 <= found.hi  # type: ignore[operator]
    assert answers / runs >= sure
    assert hits >= 0.95 * answers
