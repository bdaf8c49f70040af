"""The doubt of a choice among curves, the interval of a call, and launches that hide behind each other's work."""

import math
import random

import pytest

from gpubench.curves import TimedSizes, doubt, fit, interval

SIZES = [4**i for i in range(5, 13)]


def curve(seconds, power=0.0, kind="waited", sizes=SIZES):
    """A contender that takes `seconds` at the first size and more by a power of n."""
    blocks = {n: [[seconds * (n / sizes[0]) ** power] * 4] for n in sizes}
    return fit({"one": TimedSizes(kind, blocks)})["one"]


@pytest.mark.parametrize("ratio", [1.01, 1.2, 2.0, 10.0])
def test_the_nearer_a_rival_the_greater_the_doubt(ratio):
    x = math.log(100_000)
    near, far = (doubt(curve(1e-5), [curve(1e-5 * times)], x) for times in (ratio, ratio * 1.5))
    assert 0 <= far.wrong <= near.wrong < 0.5
    assert 0 <= far.cost <= near.cost < 0.1


def test_a_rival_that_is_surely_faster_makes_the_choice_wrong_and_tells_its_cost():
    found = doubt(curve(4e-5), [curve(1e-5)], math.log(100_000))
    assert found.wrong > 0.99
    assert found.cost == pytest.approx(3.0, rel=0.1)


def test_a_choice_without_a_rival_has_no_doubt_and_more_rivals_never_lessen_it():
    x, choice, rivals = math.log(100_000), curve(1e-5), [curve(1.1e-5), curve(1.3e-5, kind="cpu")]
    assert doubt(choice, [], x) == (0.0, 0.0)
    both = doubt(choice, rivals, x)
    for rival in rivals:
        alone = doubt(choice, [rival], x)
        assert both.wrong >= alone.wrong
        assert both.cost >= alone.cost


def test_a_step_that_may_lie_on_either_side_is_a_doubt_and_lies_in_the_interval():
    stepped = fit({"cpu": TimedSizes("cpu", {n: [[1e-5 if n < 2**15 else 1e-3] * 4] for n in SIZES})})["cpu"]
    other, inside, beyond = curve(1e-4), math.log(2**15), math.log(2**22)
    low, _, high = interval(stepped, inside)
    assert low < 2e-5
    assert high > 5e-4
    assert doubt(other, [stepped], inside).wrong > 10 * doubt(other, [stepped], beyond).wrong


@pytest.mark.parametrize(("kind", "hidden"), [("queued", True), ("waited", False)])
def test_launches_in_a_row_hide_behind_the_work_and_single_ones_do_not(kind, hidden):
    """The launch costs 6 us and the work as much at 1 M elements, which were not timed."""
    draw = random.Random(1)

    def seconds(n):
        launch, work = 6e-6, 6e-12 * n
        return (max(launch, work) if hidden else launch + work) * math.exp(draw.gauss(0, 0.02))

    sizes = [2**10, 2**14, 2**17, 2**22, 2**24]
    found = fit({"one": TimedSizes(kind, {n: [[seconds(n)]] for n in sizes})})["one"]
    assert math.exp(found.mean(math.log(10**6))) == pytest.approx(6e-6 if hidden else 12e-6, rel=0.3)


def test_some_of_the_curves_are_what_they_are_among_all():
    """Relatives that are not asked for still tell what they share."""
    draw = random.Random(2)
    series = {
        name: TimedSizes(
            "waited", {n: [[(1e-5 + 1e-12 * n) * math.exp(draw.gauss(0, 0.05))]] for n in SIZES[start::3]},
            relation="gpu", traffic=8.0,
        )
        for start, name in enumerate(("add", "mul", "sub"))
    }  # fmt: skip
    whole, some = fit(series), fit(series, lambda name: name == "mul")
    assert (list(some), some["mul"].at(math.log(10_000))) == (["mul"], whole["mul"].at(math.log(10_000)))
    assert fit({"mul": series["mul"]})["mul"].at(math.log(10_000)) != whole["mul"].at(math.log(10_000))
