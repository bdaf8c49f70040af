"""A/A: what unchanged work seems to change by, and the thresholds that follow."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench.base.errors import InputError
from gpubench.compare.comparison import CompareOptions, Thresholds
from gpubench.compare.noise import MOST_HALVES, noise, permutations, windows
from gpubench.compare.two_runs import compare
from gpubench.curves.stats import quantile
from tests.examples import examples
from tests.unit.report.builders import failed, measured
from tests.unit.report.sides import CASES, a_run, busy_turns, on_machine, pair, timed


def run_of_noise(k=10, sigma=0.01, seed=1, **kind):
    return pair(k=k, sigma=sigma, seed=seed, **kind)[0]


def mirrored(found):
    return [(one.new, one.base) for one in found]


@pytest.mark.parametrize("k", [1, 2, 5])
def test_one_session_of_each_pair_goes_to_each_side_in_every_way(k):
    pairs = [(2 * i, 2 * i + 1) for i in range(k)]
    half = list(permutations(pairs))
    every = {(one.base, one.new) for one in half} | set(mirrored(half))
    assert len(half) == 2 ** (k - 1)
    assert len(every) == 2**k
    assert every == {
        (tuple(p[c] for p, c in zip(pairs, chosen, strict=True)), tuple(p[1 - c] for p, c in zip(pairs, chosen, strict=True)))
        for chosen in itertools.product((0, 1), repeat=k)
    }  # fmt: skip


@given(st.integers(1, 12))
def test_no_side_has_more_than_two_sessions_in_a_row(k):
    for one in permutations([(2 * i, 2 * i + 1) for i in range(k)]):
        sides = [session in one.new for session in range(2 * k)]
        assert not any(len(set(sides[i : i + 3])) == 1 for i in range(len(sides) - 2))


def test_many_pairs_are_labelled_in_a_sample_that_is_always_the_same():
    pairs = [(2 * i, 2 * i + 1) for i in range(12)]
    assert len(list(permutations(pairs))) == MOST_HALVES
    assert list(permutations(pairs)) == list(permutations(pairs))


def test_a_session_and_its_repeats_are_one_of_the_sessions_that_noise_pairs():
    what = CASES[0]
    found = noise(busy_turns(what, [[9e-3, 9e-3, 1e-3]] * 10))
    assert (found.permutations, found.cases[0].spread) == (32, 0)
    with pytest.raises(InputError, match="too few sessions"):
        noise(busy_turns(what, [[9e-3, 9e-3, 1e-3]] * 9))


def test_longer_files_have_a_window_for_each_stretch_of_pairs():
    assert windows(range(5), 2) == [((0, 1), (2, 3))]
    assert windows(range(8), 2) == [((0, 1), (2, 3)), ((2, 3), (4, 5)), ((4, 5), (6, 7))]
    assert windows(range(3), 2) == []


def test_the_threshold_is_the_95th_percentile_of_all_permutations_by_the_verdicts_of_compare():
    """By hand: each of the 32 permutations compared as two files would be."""
    run = run_of_noise(sigma=0.06, seed=3)
    found = noise(run)
    ratios = {case.id: [] for case in CASES}
    alarms = 0
    pairs = [(2 * i, 2 * i + 1) for i in range(5)]
    for chosen in itertools.product((0, 1), repeat=5):
        base = {p[c] for p, c in zip(pairs, chosen, strict=True)}
        sides = [part(run, base), part(run, set(range(10)) - base)]
        result = compare(("a", sides[0]), [("b", sides[1])], CompareOptions())
        assert result.interleaved
        alarms += any(row.verdict == "SLOWER" for row in result.cases)
        for row in result.cases:
            ratios[row.id].append(abs(row.low_end_ratio - 1))
    assert found.permutations == 32
    assert found.false_alarm_share == alarms / 32
    for row in found.cases:
        assert row.spread == pytest.approx(quantile(sorted(ratios[row.id]), 0.95))
        assert row.threshold == pytest.approx(max(0.05, 1.2 * row.spread))


def part(run, sessions):
    outcomes = [
        msgspec.structs.replace(row, blocks=[block for block in row.blocks if block.session in sessions])
        for row in run.outcomes
    ]
    records = [record for record in run.sessions if record.index in sessions]
    return msgspec.structs.replace(run, outcomes=outcomes, sessions=records)


def test_a_quiet_machine_has_the_usual_threshold_and_no_alarm():
    found = noise(run_of_noise(sigma=0.002))
    assert (found.false_alarm_share, found.raised_alarm_share) == (0, 0)
    assert {row.threshold for row in found.cases} == {0.05}


@given(st.integers(0, 1000), st.floats(0.001, 0.3))
@settings(max_examples=examples(15))
def test_thresholds_of_the_same_sessions_never_add_an_alarm(seed, sigma):
    found = noise(run_of_noise(sigma=sigma, seed=seed))
    assert found.raised_alarm_share <= found.false_alarm_share <= 1
    assert all(row.threshold >= max(0.05, row.spread) for row in found.cases)


@given(st.randoms(), st.sampled_from([1e-3, 1e4]))
@settings(max_examples=examples(10))
def test_order_of_cases_and_scale_do_not_matter(chance, scale):
    run = run_of_noise(sigma=0.05)
    outcomes = [
        msgspec.structs.replace(
            row, blocks=[msgspec.structs.replace(b, wall_s=[x * scale for x in b.wall_s], repeat=1_000_000) for b in row.blocks]
        )
        for row in run.outcomes
    ]  # fmt: skip
    chance.shuffle(outcomes)
    plain, other = noise(run), noise(msgspec.structs.replace(run, outcomes=outcomes))
    assert plain.false_alarm_share == other.false_alarm_share
    assert [row.id for row in plain.cases] == [row.id for row in other.cases]
    assert [row.spread for row in plain.cases] == pytest.approx([row.spread for row in other.cases])


def test_sessions_are_paired_in_order_of_time():
    """Two groups of sessions, far apart: neighbours in time are alike, neighbours by index are not."""
    run = a_run([timed(CASES[0], [1e-3] * 5 + [2e-3] * 5)], 10)
    order = [0, 5, 1, 6, 2, 7, 3, 8, 4, 9]
    by_time = [
        msgspec.structs.replace(record, started_at=f"2026-01-02T03:{order.index(record.index):02}:00Z")
        for record in run.sessions
    ]
    apart = noise(msgspec.structs.replace(run, sessions=by_time))
    together = noise(run)
    assert together.cases[0].spread < 0.5 < apart.cases[0].spread


def test_cases_without_enough_sessions_are_left_out_and_named():
    run = run_of_noise()
    short = measured(CASES[0], 1e-3, sessions=4)
    found = noise(msgspec.structs.replace(run, outcomes=[short, *run.outcomes[1:-1], failed(CASES[-1])]))
    assert found.left_out == (CASES[0].id,)
    assert [row.id for row in found.cases] == [case.id for case in CASES[1:-1]]


def test_superseded_sessions_do_not_count():
    run = run_of_noise()
    records = [msgspec.structs.replace(record, superseded=record.index < 2) for record in run.sessions]
    with pytest.raises(InputError, match="too few sessions"):
        noise(msgspec.structs.replace(run, sessions=records))


@pytest.mark.parametrize("k", [9, 1])
def test_too_few_sessions_are_no_noise(k):
    with pytest.raises(InputError, match="too few sessions") as refused:
        noise(run_of_noise(k=k))
    assert "10 quiet sessions" in refused.value.why


class TestThresholds:
    """`compare --thresholds`."""

    def thresholds(self, run, **shares):
        by_place = {CASES[int(place[1:])].id: share for place, share in shares.items()}
        return Thresholds(source="noise.json", fingerprint=run.fingerprint, shares=by_place)

    def test_they_raise_and_never_lower(self):
        base, new = pair({CASES[1].id: 1.3, CASES[2].id: 1.3})
        options = CompareOptions(noise=self.thresholds(base, c0=0.01, c1=0.4))
        found = {row.id: row for row in compare(("a", base), [("b", new)], options).cases}
        assert [found[case.id].threshold for case in CASES] == [0.05, 0.4, 0.05, 0.05]
        assert [found[case.id].verdict for case in CASES] == ["SAME", "SAME", "SLOWER", "SAME"]

    def test_what_is_typed_outweighs_them(self):
        base, new = pair({CASES[1].id: 1.3})
        options = CompareOptions(noise=self.thresholds(base, c1=0.4), thresholds=((None, 0.1),))
        found = {row.id: row for row in compare(("a", base), [("b", new)], options).cases}
        assert (found[CASES[1].id].threshold, found[CASES[1].id].verdict) == (0.1, "SLOWER")

    def test_cases_that_they_do_not_know_are_told(self):
        base, new = pair()
        found = compare(("a", base), [("b", new)], CompareOptions(noise=self.thresholds(base, c1=0.4)))
        reported = next(notice for notice in found.warnings if notice.code == "no-threshold")
        assert reported.message.startswith("3 of 4 cases")

    def test_those_of_another_machine_or_of_other_cases_are_refused(self):
        base, new = (on_machine(run, cpu="A") for run in pair())
        elsewhere = self.thresholds(on_machine(base, cpu="B"), c1=0.4)
        with pytest.raises(InputError, match="different machines") as refused:
            compare(("a", base), [("b", new)], CompareOptions(noise=elsewhere))
        assert "cpu: 'A' against 'B'" in refused.value.why
        assert compare(
            ("a", base), [("b", new)], CompareOptions(noise=elsewhere, allow_different_machine=True)
        ).cases
        with pytest.raises(InputError, match="no case in common"):
            compare(("a", base), [("b", new)], CompareOptions(noise=self.thresholds(base)))
