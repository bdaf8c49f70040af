"""What a launch will take, by launches of other sizes."""

import pytest

from gpubench.measure.points import Pace
from gpubench.result.case import Case


def case(n, *, implementation="library", op="add", regime="resident-queued"):
    return Case(op, "vector", {"n": n}, "float32", implementation, regime, "cupy:0")


def pace(times):
    noted = Pace()
    for n, seconds in times.items():
        noted.note(case(n), seconds)
    return noted


@pytest.mark.parametrize(("n", "seconds"), [
    (50, 1e-3), (100, 1e-3), (200, 2e-3), (400, 4e-3), (800, 1.6e-2), (1600, 6.4e-2), (3200, 0.256),
])  # fmt: skip
def test_between_sizes_it_is_the_line_beyond_them_that_of_the_last_two(n, seconds):
    assert pace({100: 1e-3, 400: 4e-3, 1600: 6.4e-2}).expected_s(case(n)) == pytest.approx(seconds)


@pytest.mark.parametrize(("last_s", "power"), [(1e-3, 1.0), (1.5e-3, 1.0), (4e-3, 2.0), (0.1, 3.0)])
def test_beyond_all_sizes_it_grows_with_the_size_or_faster_but_not_without_end(last_s, power):
    known = pace({100: 1e-3, 200: last_s})
    assert known.expected_s(case(800)) == pytest.approx(last_s * 4**power)
    assert known.expected_s(case(50)) == 1e-3, "rather more than less"


def test_one_size_grows_with_the_size():
    assert pace({100: 1e-3}).expected_s(case(300)) == pytest.approx(3e-3)


@pytest.mark.parametrize(("n", "seconds"), [(50, 5e-4), (150, 1.5e-3), (300, 3e-3), (500, 5e-3), (4000, 4e-2)])
def test_the_least_is_in_proportion_to_the_nearest_size(n, seconds):
    assert pace({100: 1e-3, 1000: 1e-2}).least_s(case(n)) == pytest.approx(seconds)
    assert pace({100: 1e-3, 1000: 2e-2}).least_s(case(300)) == pytest.approx(3e-3), "100 is nearer by ratio"
    assert pace({100: 1e-3, 1000: 2e-2}).least_s(case(330)) == pytest.approx(6.6e-3)


@pytest.mark.parametrize(
    "other", [case(100, implementation="tuned"), case(100, op="mul"), case(100, regime="transfer-always")]
)
def test_each_contender_has_its_own_times(other):
    known = pace({100: 1e-3})
    known.note(other, 0.0)
    assert known.expected_s(other) is None
    assert known.least_s(other) == 0
