"""The curve of one contender, through its points and with what its relatives know; where two cross, and how sure that is."""

import itertools
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpubench.curves import TimedSizes, compare, doubt, fit, interval, speedup_at
from gpubench.curves.threshold import isotonic
from tests.unit.curves.simulated import LADDER, apart, cpu, exact, gpu, threshold


def spread(curve, n):
    """The standard deviation of ln(seconds) at n."""
    return math.sqrt(curve.at(math.log(n)).variance)


def seconds(curve, n):
    return math.exp(curve.at(math.log(n)).mean)


def test_a_session_in_which_something_else_had_its_threads_does_not_count():
    """All of its blocks at one size took a hundred times as long as those of two other sessions."""
    blocks = exact(cpu, [1 << 10, 1 << 13, 1 << 16, 1 << 20], sessions=3)
    late = {**blocks, 1 << 13: [[100 * value for value in blocks[1 << 13][0]], *blocks[1 << 13][1:]]}
    true, found = (fit({"it": TimedSizes("cpu", times)})["it"] for times in (blocks, late))
    assert seconds(found, 1 << 13) == pytest.approx(seconds(true, 1 << 13), rel=0.02)
    assert found.offset == pytest.approx(true.offset, rel=0.5)
    double = fit({"it": TimedSizes("cpu", apart(cpu, [1, 2]))})["it"]
    expected = pytest.approx(math.sqrt(2) * cpu(1 << 16), rel=0.02)
    assert seconds(double, 1 << 16) == expected, "twice is no accident"


def test_it_says_nothing_beyond_its_sizes():
    curve = fit({"it": TimedSizes("cpu", exact(cpu, [1 << 12, 1 << 20]))})["it"]
    for n in (1 << 11, 1 << 21):
        assert not curve.knows(math.log(n))
        with pytest.raises(ValueError, match="beyond"):
            curve.at(math.log(n))


def test_sizes_too_far_apart_leave_a_gap_in_which_it_is_no_rival():
    curve = fit({"it": TimedSizes("cpu", exact(cpu, [1 << 10, 1 << 20]))})["it"]
    assert curve.knows(math.log(1 << 10))
    assert curve.knows(math.log((1 << 10) * 1.55))
    assert not curve.knows(math.log((1 << 10) * 1.65))
    assert not curve.knows(math.log(1 << 15))
    for last, known in ((19_900, True), (20_100, False)):
        ends = fit({"it": TimedSizes("cpu", exact(cpu, [1000, last]))})["it"]
        assert ends.knows(math.log(4000)) == known


@pytest.mark.parametrize(("kind", "known"), [("waited", True), ("cpu", False)])
def test_relatives_tell_what_lies_in_a_wide_gap_of_a_gpu(kind, known):
    series = {f"r{i}": TimedSizes(kind, exact(gpu), "f", 8.0) for i in range(6)}
    ends = TimedSizes(kind, exact(gpu, [1 << 10, 1 << 24]), "f", 8.0)
    curve = fit({**series, "own": ends})["own"]
    assert curve.knows(math.log(1 << 17)) == known
    assert not fit({"own": ends})["own"].knows(math.log(1 << 17))


def test_the_mean_is_that_of_the_height_and_beyond_the_ends_that_of_the_end():
    curve = fit({"it": TimedSizes("cpu", exact(cpu, [1 << 12, 1 << 16, 1 << 20]))})["it"]
    for n in (1 << 12, 5000, 60_000, 70_000, 1_000_000, 1 << 20):
        assert curve.mean(math.log(n)) == pytest.approx(curve.at(math.log(n)).mean, rel=1e-12)
    assert [curve.mean(x) for x in (0.0, 30.0)] == [curve.mean(curve.first), curve.mean(curve.last)]


def test_a_contender_without_a_time_has_no_curve():
    assert fit({"none": TimedSizes("cpu", {}), "empty": TimedSizes("cpu", {64: [[]]})}) == {}


def test_sessions_that_lie_apart_shift_the_whole_curve():
    series = {factors: TimedSizes("cpu", apart(cpu, factors)) for factors in ((1, 1, 1), (1, 2, 0.5))}
    quiet, loud = (fit({"it": one})["it"] for one in series.values())
    assert loud.offset > 5 * quiet.offset
    same = pytest.approx(spread(quiet, 1 << 18), rel=0.5)
    assert spread(loud, 1 << 18) == same, "that is no scatter of a size"


@pytest.mark.parametrize("more", [{"traffic": 0.0}, {"relation": None}])
def test_without_relatives_or_a_constant_traffic_nothing_is_shared(more):
    stepped = exact(lambda n: cpu(n, step=3.0))
    series = {name: TimedSizes("cpu", stepped, "f", 12.0) for name in ("r0", "r1", "r2")}
    series["own"] = replace(series["r0"], blocks=exact(cpu, LADDER[::3]), **more)
    together, alone = fit(series)["own"], fit({"own": series["own"]})["own"]
    assert together.at(math.log(300_000)) == alone.at(math.log(300_000))


@pytest.mark.parametrize(("kind", "fewest"), [("cpu", 2), ("waited", 3)])
def test_relatives_share_nothing_before_their_own_sizes_tell_a_line_or_a_launch_and_its_bytes(kind, fewest):
    for count in (1, 2, 3):
        sizes = [1 << 10, 1 << 17, 1 << 24][:count]
        series = {f"r{i}": TimedSizes(kind, exact(gpu, sizes), "f", 12.0) for i in range(3)}
        own = TimedSizes(kind, exact(gpu, [1 << 10, 1 << 17, 1 << 24]), "f", 12.0)
        together, alone = fit({**series, "own": own})["own"], fit({"own": own})["own"]
        assert (spread(together, 1 << 12) < spread(alone, 1 << 12)) == (count >= fewest)


@pytest.mark.parametrize(("kind", "size_counts"), [("cpu", 1), ("waited", 2), ("queued", 2), ("copied", 2)])
def test_a_gpu_with_a_single_size_takes_nothing_from_its_relatives(kind, size_counts):
    series = {f"r{i}": TimedSizes(kind, exact(gpu), "f", 12.0) for i in range(3)}
    for count in (1, 2):
        own = TimedSizes(kind, exact(gpu, [1 << 17, 1 << 20][:count]), "f", 12.0)
        together, alone = fit({**series, "own": own})["own"], fit({"own": own})["own"]
        assert (together.at(math.log(1 << 17)) == alone.at(math.log(1 << 17))) == (count < size_counts)


def test_a_size_has_the_mean_of_the_logarithms_of_its_blocks():
    """And a block that took twice as long does not make it look surer; one that took thrice was interrupted."""
    even, uneven = ({4096: [values]} for values in ([1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 2.0]))
    points = [fit({"it": TimedSizes("cpu", blocks)})["it"].points[0] for blocks in (even, uneven)]
    assert points[1].y == pytest.approx(statistics.fmean(map(math.log, uneven[4096][0])))
    assert points[1].variance > points[0].variance
    interrupted = fit({"it": TimedSizes("cpu", {4096: [[1.0, 1.0, 3.0, 1.0, 1.0]]})})["it"].points[0]
    assert interrupted == points[0]


def test_it_is_known_between_two_sizes_whatever_lies_beyond_them():
    """The sizes lie 16 times apart; the next one is no nearer."""
    curve = fit({"it": TimedSizes("cpu", exact(cpu, [1 << 10, 1 << 14, 1 << 18, 1 << 22]))})["it"]
    assert all(curve.knows(math.log(n)) for n in (1 << 12, 1 << 16, 1 << 20))


def test_a_call_of_nearly_a_measured_size_takes_nearly_the_time_measured_there():
    """A single size that lies off the curve keeps its time: one element more does not double it."""
    near = {1000: 4e-5, 1080: 9e-5, 4000: 1e-4, 16000: 3e-4, 64000: 2e-3}
    curve = fit({"it": TimedSizes("cpu", {n: [[seconds] * 3] for n, seconds in near.items()})})["it"]

    def expected(n):
        return math.exp(curve.mean(math.log(n)) + curve.pull(math.log(n)))

    assert [expected(n) for n in near] == pytest.approx(list(near.values()))
    assert expected(1001) == pytest.approx(4e-5, rel=0.05)
    assert 4e-5 < expected(1040) < 9e-5, "between two near sizes it goes from the one to the other"
    assert curve.pull(math.log(8000)) == 0, "far from all sizes the curve tells"


def test_a_gap_is_too_wide_for_a_step():
    """Slopes of sizes that lie close say nothing of what a size 27 times as large takes: a fall by a factor of 300."""
    times = {8192: 8e-6, 38_000: 6e-5, 1_048_576: 4e-5, 2_400_000: 1.9e-4}
    curve = fit({"it": TimedSizes("cpu", {n: [[value]] for n, value in times.items()})})["it"]
    assert curve.at(math.log(200_000)).jump == 0


def test_some_of_the_curves_are_what_they_are_among_all():
    """Relatives that are not asked for still tell what they share."""
    sizes = {name: LADDER[start::2] for start, name in enumerate(("add", "mul", "sub"))}
    series = {name: TimedSizes("waited", exact(gpu, own), "gpu", 8.0) for name, own in sizes.items()}
    whole, some = fit(series), fit(series, lambda name: name == "mul")
    assert (list(some), some["mul"].at(math.log(10_000))) == (["mul"], whole["mul"].at(math.log(10_000)))
    assert fit({"mul": series["mul"]})["mul"].at(math.log(10_000)) != whole["mul"].at(math.log(10_000))


# ---------------------------------------------------------------------- where two curves cross


def test_a_crossing_is_found_and_lies_in_its_interval():
    found = threshold(exact(gpu), exact(cpu))
    assert (found.state, found.mixed) == ("at", False)
    assert found.n == pytest.approx(300_000, rel=0.1)
    assert found.low < found.n < found.high
    assert (found.first, found.last) == pytest.approx((LADDER[0], LADDER[-1]))


@pytest.mark.parametrize(("factor", "state"), [(0.2, "always"), (5.0, "never")])
def test_one_side_wins_everywhere(factor, state):
    found = threshold(exact(lambda n: factor * 1e-5 * n**0.2), exact(lambda n: 1e-5 * n**0.2))
    assert found.state == state
    assert (found.low, found.high) == ((0.0, 0.0) if state == "always" else (math.inf, math.inf))


def test_wins_and_losses_by_turns_are_mixed_and_the_last_crossing_counts():
    ratios = {64: 0.25, 256: 4.0, 1024: 0.25, 4096: 4.0}
    gpu_s = {n: [[1e-3 / ratio]] * 5 for n, ratio in ratios.items()}
    found = threshold(gpu_s, exact(lambda n: 1e-3, ratios, sessions=5))
    assert (found.state, found.mixed) == ("at", True)
    assert 1024 < found.low < found.n < found.high < 4096
    again = {64: 0.25, 256: 4.0, 1024: 0.25}
    lost = threshold({n: [[1e-3 / r]] * 5 for n, r in again.items()}, exact(lambda n: 1e-3, again, sessions=5))
    assert (lost.state, lost.mixed) == ("never", True)


def test_one_size_tells_the_winner_there():
    assert threshold(exact(gpu, [1 << 24]), exact(cpu, [1 << 24])).state == "always"
    assert threshold(exact(gpu, [1 << 10]), exact(cpu, [1 << 10])).state == "never"


def test_without_a_common_size_there_is_none():
    few, later = TimedSizes("waited", exact(gpu, [64, 128])), TimedSizes("cpu", exact(cpu, [256, 512]))
    curves = fit({"gpu": few, "cpu": later})
    assert compare([curves["gpu"]], [curves["cpu"]]) is None
    assert compare([], [curves["cpu"]]) is None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_the_nearest_rising_sequence(values):
    rising = isotonic(values)
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(rising))
    assert (math.fsum(rising), isotonic(rising)) == (pytest.approx(math.fsum(values)), pytest.approx(rising))


def test_a_speedup_is_known_from_the_first_size_to_the_last():
    curves = fit({"gpu": TimedSizes("waited", exact(gpu)), "cpu": TimedSizes("cpu", exact(cpu))})
    both = compare([curves["gpu"]], [curves["cpu"]])
    for n in (LADDER[0], LADDER[0] + 30, 30_000, 2_000_000, LADDER[-1] - 1000, LADDER[-1]):
        ratio = math.exp(curves["cpu"].at(math.log(n)).mean - curves["gpu"].at(math.log(n)).mean)
        assert speedup_at(both, n) == pytest.approx(ratio, rel=0.02)
    assert [speedup_at(both, n) for n in (LADDER[0] - 1, LADDER[-1] + 100)] == [None, None]
    assert speedup_at(None, 1000) is None
    one = fit({"a": TimedSizes("waited", exact(gpu, [1000])), "b": TimedSizes("cpu", exact(cpu, [1000]))})
    assert speedup_at(compare([one["a"]], [one["b"]]), 1000) == pytest.approx(cpu(1000) / gpu(1000), rel=0.02)


def test_between_contenders_that_share_no_size_the_nearest_counts():
    halves = {"few": LADDER[:3], "many": LADDER[4:]}
    both = {name: TimedSizes("cpu", exact(cpu, sizes)) for name, sizes in halves.items()}
    curves = fit({"gpu": TimedSizes("waited", exact(gpu)), **both})
    assert compare([curves["gpu"]], [curves[name] for name in halves]) is not None


def curve_of(kind, seconds):
    """A contender that takes `seconds(n)`, in four blocks a size."""
    return fit({"it": TimedSizes(kind, {4**i: [[seconds(4**i)] * 4] for i in range(5, 13)})})["it"]


def test_a_step_that_may_lie_on_either_side_is_a_doubt_and_lies_in_the_interval():
    stepped, other = curve_of("cpu", lambda n: 1e-5 if n < 2**15 else 1e-3), curve_of("waited", lambda n: 1e-4)
    inside, beyond = math.log(2**15), math.log(2**22)
    low, _, high = interval(stepped, inside)
    assert low < 2e-5
    assert high > 5e-4
    assert doubt(other, [stepped], inside).wrong > 10 * doubt(other, [stepped], beyond).wrong
    assert doubt(other, [], inside) == (0.0, 0.0)
    rivals = [curve_of("waited", lambda n: 4e-4), other]
    assert doubt(other, rivals, inside).cost < 0.1, "the nearest counts"
