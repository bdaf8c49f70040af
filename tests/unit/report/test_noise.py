"""A/A: what unchanged work seems to change by, and the thresholds that follow."""

import itertools

import pytest
from msgspec.structs import replace

from gpubench.base.errors import InputError
from gpubench.compare.comparison import CompareOptions, Thresholds
from gpubench.compare.two_runs import MOST_HALVES, noise, permutations
from tests.unit.report.sides import CASES, compared, on_machine, pair

FIRST, SECOND, THIRD = (case.id for case in CASES[:3])


def pairs_of(k):
    return [(2 * i, 2 * i + 1) for i in range(k)]


@pytest.mark.parametrize("k", [1, 2, 5])
def test_one_session_of_each_pair_goes_to_each_side_in_every_way(k):
    half = list(permutations(pairs_of(k)))
    every = {ends for one in half for ends in ((one.base, one.new), (one.new, one.base))}
    assert (len(half), len(every)) == (2 ** (k - 1), 2**k)
    assert every == {
        tuple(tuple(p[c ^ side] for p, c in zip(pairs_of(k), chosen, strict=True)) for side in (0, 1))
        for chosen in itertools.product((0, 1), repeat=k)
    }
    many, again = (list(permutations(pairs_of(7 + k))) for _ in range(2))
    assert (len(many), many) == (min(2 ** (6 + k), MOST_HALVES), again), "a sample"
    assert k > 1 or len(set(many)) == MOST_HALVES


@pytest.mark.parametrize(("k", "superseded"), [(9, 0), (10, 2)])
def test_too_few_sessions_are_no_noise(k, superseded):
    run = pair(k=k)[0]
    records = [replace(record, superseded=record.index < superseded) for record in run.sessions]
    with pytest.raises(InputError, match="too few sessions") as refused:
        noise(replace(run, sessions=records))
    assert "10 quiet sessions" in refused.value.why


def measured_noise(run, **shares):
    shares = {CASES[int(place[1:])].id: share for place, share in shares.items()}
    return Thresholds(source="noise.json", fingerprint=run.fingerprint, shares=shares)


@pytest.mark.parametrize(("shares", "more", "thresholds", "verdicts"), [
    ({"c0": 0.01, "c1": 0.4}, {}, [0.05, 0.4, 0.05, 0.05], ["SAME", "SAME", "SLOWER", "SAME"]),  # raised, never lowered
    ({"c1": 0.4}, {"thresholds": ((None, 0.1),)}, [0.1] * 4, ["SAME", "SLOWER", "SLOWER", "SAME"]),  # what is typed outweighs it
])  # fmt: skip
def test_thresholds_of_a_file_of_noise(shares, more, thresholds, verdicts):
    base, new = pair({SECOND: 1.3, THIRD: 1.3})
    found = compared(base, new, CompareOptions(noise=measured_noise(base, **shares), **more)).cases
    assert ([row.threshold for row in found], [row.verdict for row in found]) == (thresholds, verdicts)


def test_cases_that_thresholds_do_not_know_are_told_and_those_of_others_are_refused():
    base, new = (on_machine(run, cpu="A") for run in pair())
    found = compared(base, new, CompareOptions(noise=measured_noise(base, c1=0.4)))
    reported = next(notice for notice in found.warnings if notice.code == "no-threshold")
    assert reported.message.startswith("3 of 4 cases")
    elsewhere = measured_noise(on_machine(base, cpu="B"), c1=0.4)
    with pytest.raises(InputError, match="different machines") as refused:
        compared(base, new, CompareOptions(noise=elsewhere))
    assert "cpu: A against B" in refused.value.why
    assert compared(base, new, CompareOptions(noise=elsewhere, allow_different_machine=True)).cases
    with pytest.raises(InputError, match="no case in common"):
        compared(base, new, CompareOptions(noise=measured_noise(base)))
