"""Break-even on curves whose right answer is known, one for each verdict and each reason."""

from __future__ import annotations

import math
import random
import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench.analysis.analyse import analyse
from gpubench.analysis.break_even import BreakEven, earliest
from gpubench.report import render
from gpubench.report.document import report_document
from gpubench.report.sections.answer import answer_sentences
from gpubench.report.sections.answer_text import threshold_text
from tests.examples import examples
from tests.unit.report.builders import CPU, GPU, QUIET, case, curve, failed, measured, run_of

WIDE = (0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 1.05, 1.1, 1.2, 1.3)


def verdict(ratios: dict[int, float], **kind: object) -> BreakEven:
    (found,) = analyse(run_of(curve(ratios, **kind))).break_even  # type: ignore[arg-type]
    return found


def test_at():
    found = verdict({64: 0.25, 256: 4.0, 1024: 30.0})
    assert (found.verdict, found.n, found.lo, found.hi) == ("at", 128, 64, 256)
    assert found.crossings == (128,)


def test_at_is_interpolated_on_log_axes():
    assert verdict({100: 0.5, 400: 8.0}).n == round(100 * 4 ** (1 / 4))


def test_a_tie_beside_the_crossing_widens_the_interval():
    found = verdict({64: 0.5, 100: 1.0, 128: 2.0})
    assert (found.verdict, found.lo, found.hi) == ("at", 64, 128)


def test_a_dip_that_contains_one_is_no_crossing():
    assert verdict({64: 0.25, 128: 3.0, 256: 1.0, 512: 8.0}).verdict == "at"


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


def test_no_rise_when_the_crossing_would_not_fit_into_memory():
    # The crossing lies near n = 2^20, where matmul needs 12 TiB of the 16 GiB.
    assert verdict({256: 0.10, 1024: 0.15, 4096: 0.22}).reason is None


def test_rising_when_it_would_fit():
    found = verdict({256: 0.08, 1024: 0.24, 4096: 0.72})
    assert (found.verdict, found.reason, found.last, found.n) == ("no-size", "rising", 4096, None)


@pytest.mark.parametrize(("share", "said"), [(0.79, "rising"), (0.81, None), (0.94, None)])
def test_a_crossing_fits_into_four_fifths_of_the_memory(share, said):
    """Of a ratio that trebles when n is four times as large, and is 0.72 at the last size."""
    lines = curve({256: 0.08, 1024: 0.24, 4096: 0.72})
    largest = max(one.bytes for one in lines)
    need = largest * (1 / 0.72) ** (2 * math.log(4) / math.log(3))  # matmul's operands grow with the square
    device = msgspec.structs.replace(GPU, usable_bytes=int(need / share))
    (found,) = analyse(run_of(lines, devices=(CPU, device))).break_even
    assert (found.verdict, found.reason) == ("no-size", said)


def test_rising_when_the_memory_is_unknown():
    device = msgspec.structs.replace(GPU, memory_bytes=None, usable_bytes=None)
    run = run_of(curve({256: 0.10, 1024: 0.15, 4096: 0.22}), devices=(CPU, device))
    assert analyse(run).break_even[0].reason == "rising"


def test_a_rise_within_the_noise_is_no_rise():
    """A line through it would cross 1 somewhere, and where nobody knows the memory nothing else says no."""
    device = msgspec.structs.replace(GPU, memory_bytes=None, usable_bytes=None)
    run = run_of(curve({256: 0.5, 1024: 0.501, 4096: 0.502}, sessions=3), devices=(CPU, device))
    assert analyse(run).break_even[0].reason is None


def test_several_crossings_are_listed_and_the_last_one_is_the_threshold():
    found = verdict({64: 0.25, 256: 4.0, 1024: 0.25, 4096: 4.0})
    assert (found.verdict, found.crossings, found.mixed) == ("at", (128, 512, 2048), True)
    assert (found.n, found.lo, found.hi) == (2048, 1024, 4096)
    assert threshold_text(found).endswith(", mixed")
    alternating = verdict({64: 4.0, 256: 0.25, 1024: 4.0})
    assert (alternating.verdict, alternating.crossings) == ("at", (128, 512)), "it wins at first, too"


def test_a_gain_at_another_size_than_the_largest_of_its_row_says_it():
    """Waited calls were measured up to 4096, copied ones up to 1024."""
    ratios = {64: 0.25, 256: 0.5, 1024: 4.0, 4096: 9.0}
    copied = [
        measured(case(n=n, regime="transfer-always", device="cupy:0"), 1e-3 / ratio)
        for n, ratio in ratios.items()
        if n < 4096
    ]
    text = render([run_of([*curve(ratios), *copied])], "markdown", sections=("breakeven",))
    (row,) = re.findall(r"^\| matmul .*$", text, re.M)
    gains = row.split(" | ")[-2].split(" / ")
    assert [" at " in gain for gain in gains] == [False, True], "one cell never mixes two sizes unsaid"
    assert gains[1].endswith("at 1024²")
    assert all(re.search(r"x\S* [0-9.]+ [mun]?s", gain) for gain in gains), "GPU times stand beside the ratios"


def test_a_device_that_loses_again_has_no_threshold():
    found = verdict({64: 4.0, 256: 0.25})
    assert (found.verdict, found.reason, found.crossings) == ("undecided", "loses-again", (128,))
    assert threshold_text(found) == "? (wins and loses by turns)"


@pytest.mark.parametrize(
    ("ratios", "text"),
    [
        ({64: 0.25, 256: 4.0}, "128² (64-256²)"), ({64: 0.25, 256: 0.5}, "> 256²"), ({64: 2.0, 256: 4.0}, "< 64²"),
        ({64: 1.0, 256: 1.0}, "about equal"), ({64: 4.0, 256: 0.25}, "? (wins and loses by turns)"),
    ],
)  # fmt: skip
def test_the_document_says_it_as_tables_do(ratios, text):
    assert [row.text for row in report_document([analyse(run_of(curve(ratios)))]).break_even] == [text]


@pytest.mark.parametrize(
    ("ratios", "reason"),
    [
        ({64: 0.5, 1024: 4.0}, "few-sizes"),  # high / low is 16
        ({64: 1.0, 256: 1.0}, "about-equal"),
        ({64: 0.5, 256: 1.0}, "about-equal"),
        ({64: 1.0, 256: 4.0}, "noise"),
        ({64: 0.5, 256: 1.0, 1024: 4.0}, "noise"),
    ],
)
def test_undecided(ratios, reason):
    found = verdict(ratios)
    assert (found.verdict, found.reason, found.n) == ("undecided", reason, None)


def test_a_bracket_below_a_threshold_is_the_earlier_one():
    wide, late, none = (
        verdict({64: 0.5, 1024: 4.0}),
        verdict({1024: 0.5, 2048: 4.0}),
        verdict({64: 0.25, 256: 0.5}),
    )
    assert (wide.verdict, late.verdict, none.verdict) == ("undecided", "at", "no-size")
    assert earliest([none, late, wide]) is wide
    assert earliest([none, late]) is late


def test_a_wide_bracket_is_undecided_but_known():
    found = verdict({64: 0.5, 1024: 4.0})
    assert (found.lo, found.hi, threshold_text(found)) == (64, 1024, "64-1024²")
    across_a_tie = verdict({64: 0.5, 256: 1.0, 1024: 4.0})
    assert (across_a_tie.lo, across_a_tie.hi) == (64, 1024)
    assert verdict({64: 0.5}).lo is None


def test_undecided_by_failed_cases():
    run = run_of([*curve({16: 0.3, 256: 3.0}), failed(case(n=64, device="cupy:0"))])
    assert analyse(run).break_even[0].reason == "failed-cases"


def test_undecided_by_budget():
    run = run_of(curve({64: 0.3, 1024: 3.0}), exit_reason="budget")
    assert analyse(run).break_even[0].reason == "budget"


def test_undecided_by_throttling():
    outcomes = curve({64: 0.9})
    outcomes += [
        measured(case(n=128), 1e-3),
        measured(case(n=128, device="cupy:0"), 9e-4, factors=WIDE, discarded={"1": "throttled"}),
    ]
    assert analyse(run_of(outcomes)).break_even[0].reason == "throttled"


def test_an_unstable_pair_counts_only_when_every_sample_agrees():
    wild = [0.6] * 5 + [1.4] * 5
    assert verdict({64: 0.1, 256: 10.0}, factors=wild).verdict == "at"
    assert verdict({64: 0.8, 256: 10.0}, factors=wild).verdict == "undecided"


def test_an_unstable_pair_is_not_settled_by_the_interval_of_its_medians():
    """Most samples of the GPU take twice as long as the CPU's; two of them say otherwise."""
    wild = [0.3, 0.8, 0.8, 0.8, 0.8, 1.2, 1.2, 1.2, 1.2, 3.0]
    found = verdict({64: 0.5, 256: 10.0}, factors=wild)
    assert (found.verdict, found.reason) == ("undecided", "noise")


@pytest.mark.parametrize(("timings", "ratio", "said"), [
    (3, 1.5, "all-sizes"), (2, 5.0, "all-sizes"), (2, 0.2, "no-size"), (2, 1.5, "undecided"), (2, 0.67, "undecided"),
    (1, 50.0, "undecided"),
])  # fmt: skip
def test_two_timings_tell_a_side_where_it_is_more_than_twice_as_fast(timings, ratio, said):
    """One of two may be a disturbed one, and a dear case has time for no more."""
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
    rows = [(row.at_last.interval, row.at_last.label, row.case.device_id) for row in analysis.break_even]
    return [report_document([analysis]).break_even, rows]


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


def fresh(ratio_at, sizes, *, phase="estimate", sessions=3, sigma=0.03, seed=1, samples=12, **kind):
    """Both sides of each size, measured for the estimate alone; `ratio_at(n)` is the speedup."""
    draw = random.Random(seed)
    found = []
    for n in sizes:
        for what, seconds in ((case(n=n), 1e-3), (case(n=n, device="cupy:0", **kind), 1e-3 / ratio_at(n))):
            noise = [draw.lognormvariate(0, sigma) for _ in range(samples)]
            made = measured(what, seconds, sessions=sessions, factors=noise)
            blocks = [msgspec.structs.replace(block, phase=phase) for block in made.blocks]
            found.append(msgspec.structs.replace(made, blocks=blocks))
    return found


WINDOW = (130, 136, 142, 148, 155, 162, 170)


def crosses_at_150(n):
    return (n / 150) ** 1.5


def test_fresh_timings_alone_tell_the_crossing():
    sparse = {64: 0.25, 256: 4.0}  # interpolated: 128
    found = analyse(run_of([*curve(sparse), *fresh(crosses_at_150, WINDOW)])).break_even[0]
    assert found.verdict == "at"
    assert found.n == pytest.approx(150, rel=0.02)
    assert 140 <= found.lo <= 150 <= found.hi <= 160  # type: ignore[operator]
    assert found.crossings == (found.n,)
    assert (found.first, found.last) == (64, 256)


def test_fresh_timings_settle_what_the_search_left_open():
    found = analyse(run_of([*curve({64: 0.5, 1024: 4.0}), *fresh(crosses_at_150, WINDOW)])).break_even[0]
    assert (found.verdict, found.reason) == ("at", None)
    assert found.n == pytest.approx(150, rel=0.02)


def test_sizes_of_the_estimate_have_no_rows_of_their_own():
    analysis = analyse(run_of([*curve({64: 0.25, 256: 4.0}), *fresh(crosses_at_150, WINDOW)]))
    assert {row.case.params["n"] for row in analysis.cases} == {64, 256}
    assert {row.case.case.params["n"] for row in analysis.speedups} == {64, 256}


@pytest.mark.parametrize(
    "useless",
    [
        fresh(lambda n: (150 / n) ** 1.5, WINDOW),  # falls
        fresh(lambda n: 1.0, WINDOW, sigma=0.3),  # open ends
        fresh(lambda n: (n / 600) ** 1.5, WINDOW),  # beyond the measured sizes
        fresh(crosses_at_150, WINDOW, samples=2),
        fresh(crosses_at_150, WINDOW[:1]),
        fresh(crosses_at_150, WINDOW, regime="transfer-always"),
    ],
)
def test_fresh_timings_that_tell_nothing_change_nothing(useless):
    outcomes = curve({64: 0.25, 256: 4.0})
    assert analyse(run_of([*outcomes, *useless])).break_even == analyse(run_of(outcomes)).break_even


def test_what_a_search_took_of_a_size_counts_as_measured_and_not_as_fresh():
    searched = fresh(crosses_at_150, WINDOW, phase="search")
    found = analyse(run_of([*curve({64: 0.25, 256: 4.0}), *searched]))
    assert {row.case.params["n"] for row in found.cases} == {64, 256, *WINDOW}
    (row,) = found.break_even
    assert {row.lo, row.hi} <= {*WINDOW, 256}, "a bracket of measured sizes, no interval of a fit"


@pytest.mark.parametrize(
    "ratios", [{64: 0.25, 256: 0.2, 1024: 0.15}, {64: 4.0, 256: 8.0}, {64: 4.0, 256: 0.25}]
)
def test_fresh_timings_do_not_overrule_sizes_that_are_sure(ratios):
    outcomes = curve(ratios)
    both = analyse(run_of([*outcomes, *fresh(crosses_at_150, WINDOW)]))
    assert both.break_even == analyse(run_of(outcomes)).break_even


def test_a_crossing_beyond_the_measured_sizes_is_not_told():
    """No size says otherwise: they all lose, and rise towards it."""
    outcomes = curve({16: 0.03, 32: 0.1, 64: 0.28})
    plain, both = (
        analyse(run_of(found)).break_even for found in (outcomes, [*outcomes, *fresh(crosses_at_150, WINDOW)])
    )
    assert plain == both
    assert (both[0].verdict, both[0].reason, both[0].n) == ("no-size", "rising", None)


def test_a_superseded_session_takes_no_part_in_the_estimate():
    good = fresh(crosses_at_150, WINDOW, sessions=2)
    bad = fresh(lambda n: (n / 80) ** 1.5, WINDOW, sessions=1)
    outcomes = []
    for ours, theirs in zip(good, bad, strict=True):
        third = [msgspec.structs.replace(block, session=2) for block in theirs.blocks]
        outcomes.append(msgspec.structs.replace(ours, blocks=[*ours.blocks, *third]))
    run = run_of([*curve({64: 0.25, 256: 4.0}), *outcomes])
    sessions = [msgspec.structs.replace(one, superseded=one.index == 2) for one in run.sessions]
    found = analyse(msgspec.structs.replace(run, sessions=sessions)).break_even[0]
    assert found.n == pytest.approx(150, rel=0.03)


def test_the_form_with_the_most_fresh_timings_takes_part():
    few = fresh(lambda n: (n / 90) ** 1.5, WINDOW[:3], seed=2, form="tuned")
    one_side = [outcome for outcome in few if outcome.case.form == "tuned"]
    outcomes = [*curve({64: 0.25, 256: 4.0}), *one_side, *fresh(crosses_at_150, WINDOW)]
    for order in (outcomes, outcomes[::-1]):
        assert analyse(run_of(order)).break_even[0].n == pytest.approx(150, rel=0.02)
