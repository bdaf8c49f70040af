"""The mathematics against other ways to compute it, and what it says of some runs, to the last digit that counts.

The runs have what decides somewhere: steps, relatives, outliers, sessions, gaps, contenders of one side. Whoever changes
what they give changes what gpubench prints; `python -m tests.unit.curves.test_numbers` writes tests/golden/curves.json anew.
"""

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest

from gpubench.curves import Margin, TimeCurve, TimedSizes, compare, doubt, fit, interval
from gpubench.curves import threshold as threshold_room
from gpubench.curves.relatives import traffic_of
from gpubench.curves.threshold import expected_loss, fastest_at, normal, threshold_of, unsure
from gpubench.curves.time_curve import Conditioned, Deviating, Height, LaunchTime, Point, Walk, Warp, points
from tests.unit.curves.simulated import LADDER, apart, cpu, exact, gpu, queued

CLOSE = [200_000, 260_000, 300_000, 400_000, 520_000]
FINE = [n * 2**i for n in (1024, 1300, 1600) for i in range(14)]


def of(kind, seconds, seed, sizes=(*LADDER, *CLOSE), *, count=1, sessions=1):
    """Several sessions of some blocks, which scatter by 8 % and sizes by 5 %; every ninth block took three times as long."""
    rng, blocks = random.Random(seed), {}
    for n in sorted(sizes):
        rows = [
            [seconds(n) * math.exp(rng.gauss(0, math.hypot(0.08, 0.05))) for _ in range(count)]
            for _ in range(sessions)
        ]
        blocks[n] = [[value * (3 if rng.random() < 1 / 9 else 1) for value in row] for row in rows]
    return TimedSizes(kind, blocks)


def sides(case, other, **more):
    """The threshold of one GPU contender over one of the CPU, or of several beside it."""
    fitted = fit({"gpu": case, "cpu": other, **more})
    return compare([fitted["gpu"]], [curve for name, curve in fitted.items() if name != "gpu"])


def near_relatives(kind, seconds, apart, own=1.0):
    """The curve of an op with three sizes beside five relatives, whose times lie `apart`, at one place."""
    sizes = [1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 24]
    series = {
        f"r{i}": TimedSizes(kind, exact(lambda n, i=i: seconds(n) * (1 + apart * (i - 2)), sizes), "f", 12.0)
        for i in range(5)
    }
    few = exact(lambda n: own * seconds(n), [1 << 10, 1 << 13, 1 << 24])
    return fit({**series, "own": TimedSizes(kind, few, "f", 12.0)}, lambda name: name == "own")["own"]


GOLDEN = Path(__file__).parents[2] / "golden" / "curves.json"
KINDS = ("cpu", "waited", "queued", "copied")
RELATIVES = {
    f"{kind}, {name}": (kind, spread, own) for kind in KINDS
    for name, spread, own in (("near", 0.005, 1.01), ("far", 0.08, 1.25), ("apart", 0.01, 2.5))
}  # fmt: skip


def heights(curve):
    """Mean and standard deviation at four places."""
    found = [curve.at(math.log(n)) for n in (2000, 30_000, 400_000, 6_000_000)]
    return [float(f"{value:.6g}") for height in found for value in (height.mean, math.sqrt(height.variance))]


def stepped(step, at):
    return lambda n: cpu(n, crossing=300_000, step=step, at=at)


RUNS = {
    "smooth": lambda: sides(of("waited", gpu, 1), of("cpu", cpu, 2)),
    "queued": lambda: sides(of("queued", queued, 3), of("cpu", cpu, 4)),
    "copied": lambda: sides(of("copied", lambda n: 3 * gpu(n), 5), of("cpu", lambda n: 2 * cpu(n), 6)),
    "long": lambda: sides(of("waited", lambda n: 400 * gpu(n), 7), of("cpu", lambda n: 400 * cpu(n), 8)),
    "blocks": lambda: sides(of("waited", gpu, 9, count=5), of("cpu", cpu, 10, count=5)),
    "sessions": lambda: sides(of("waited", gpu, 11, count=2, sessions=4), of("cpu", cpu, 12, count=2, sessions=4)),
    "sessions apart": lambda: sides(
        TimedSizes("waited", apart(gpu, [1, 1.3, 0.8])), TimedSizes("cpu", apart(cpu, [0.8, 1, 1.2]))
    ),
    "step in a wide gap": lambda: sides(of("waited", gpu, 13, sizes=LADDER), of("cpu", stepped(4, 3e5), 14, sizes=LADDER)),
    "step in a narrow gap": lambda: sides(of("waited", gpu, 15, sizes=FINE), of("cpu", stepped(1.9, 3e5), 16, sizes=FINE)),
    "step at the first gap": lambda: sides(of("waited", gpu, 17), of("cpu", stepped(6, 2000), 18)),
    "step at the last gap": lambda: sides(of("waited", gpu, 19), of("cpu", stepped(6, 5e6), 20)),
    "GPU that jumps": lambda: sides(of("waited", lambda n: gpu(n) * (2 if n > 3e5 else 1), 21), of("cpu", cpu, 22)),
    "a matrix": lambda: sides(of("waited", lambda n: 1e-5 + n**1.5 * 1e-14, 23), of("cpu", lambda n: n**1.5 * 1e-12, 24)),
    "two CPU contenders": lambda: sides(
        of("waited", gpu, 25), of("cpu", cpu, 26), second=of("cpu", lambda n: cpu(n, power=0.5), 27)
    ),
    "a second one at two sizes": lambda: sides(
        of("waited", gpu, 28), of("cpu", cpu, 29), second=of("cpu", cpu, 30, sizes=[1 << 14, 1 << 23])
    ),
}  # fmt: skip


def numbers(threshold):
    """Four numbers of a threshold, and of its margins at three places ratio, deviation and chance."""
    count = len(threshold.margins)
    places = [threshold.margins[i] for i in (0, count // 2, count * 2 // 3)]
    each = [value for margin in places for value in (margin.log_ratio, margin.deviation, margin.wins)]
    return [float(f"{value:.6g}") for value in (threshold.n, threshold.low, threshold.high, *each)]


EXPECTED = json.loads(GOLDEN.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", RUNS)
def test_what_a_run_gives(name):
    assert numbers(RUNS[name]()) == pytest.approx(EXPECTED[name], rel=2e-5, abs=1e-9)


@pytest.mark.parametrize("name", RELATIVES)
def test_what_relatives_tell(name):
    kind, apart, own = RELATIVES[name]
    curve = near_relatives(kind, queued if kind == "queued" else gpu, apart, own)
    assert heights(curve) == pytest.approx(EXPECTED[name], rel=2e-5)


# ---------------------------------------------------------------- by other ways


POINTS = [Point(1.0, -3.0, 0.01), Point(2.5, -2.2, 0.02), Point(4.0, -1.0, 0.015), Point(6.0, 0.3, 0.01)]


def walk():
    return Walk(1.0, -2.0, level=0.7, slope=0.4, warp=Warp.even(1.0, 0.05), bend=0.2)


@pytest.mark.parametrize("prior", [
    walk(), LaunchTime(0.05, 0.01, fixed=0.3, per_n=0.4, walk=walk()),
    LaunchTime(0.05, 0.01, fixed=0.3, per_n=0.4, walk=walk(), power=3.0), Deviating(walk(), walk()),
])  # fmt: skip
@pytest.mark.parametrize("x", [1.0, 1.7, 3.9, 6.0])
def test_a_belief_after_points_is_that_of_the_textbook(prior, x):
    """Mean and variance at x, misfit and likelihood by its formulas, in NumPy."""
    belief, here, places = (
        Conditioned(prior, POINTS),
        prior.place(x),
        [prior.place(point.x) for point in POINTS],
    )
    matrix = np.array([prior.covariances(place, places) for place in places])
    matrix += np.diag([point.variance for point in POINTS])
    rest = np.array([point.y - prior.mean(place) for point, place in zip(POINTS, places, strict=True)])
    cross = np.array(prior.covariances(here, places))
    weights = np.linalg.solve(matrix, cross)
    expected = prior.mean(here) + weights @ rest, prior.covariances(here, [here])[0] - weights @ cross
    assert belief.at(x) == pytest.approx(expected, rel=1e-9)
    misfit = rest @ np.linalg.solve(matrix, rest)
    assert belief.misfit == pytest.approx(misfit)
    assert belief.likelihood == pytest.approx(-misfit / 2 - np.linalg.slogdet(matrix)[1] / 2)


class Fixed(TimeCurve):
    """A curve of one height everywhere."""

    def __init__(self, mean, variance):
        super().__init__(None, [Point(0.0, mean, variance), Point(1.0, mean, variance)], 0.0, kind="waited")
        self._height = Height(mean, variance)

    def at(self, x):
        return self._height

    def mean(self, x):
        return self._height.mean


@pytest.mark.parametrize("others", [[(0.1, 0.04)], [(0.5, 0.01)], [(0.02, 0.09), (-0.1, 0.02)], [(-0.6, 0.01)]])
def test_the_fastest_of_several_is_that_of_many_draws(others):
    """Clark's formula is exact for two normal times, and near for three."""
    draw = np.random.default_rng(3)
    pairs = [(0.0, 0.02), *others]
    least = np.min([draw.normal(mean, math.sqrt(variance), 400_000) for mean, variance in pairs], axis=0)
    found = fastest_at([Fixed(*pair) for pair in pairs], 0.5)
    assert found.mean == pytest.approx(least.mean(), abs=2e-3)
    assert found.variance == pytest.approx(least.var(), rel=0.05)


def test_a_stretch_reaches_half_a_step_beyond_the_places_at_which_a_choice_costs_too_much(monkeypatch):
    """Steps of a third lie between 1 and e."""
    near, far = ([Fixed(0.0, variance) for _ in "ab"] for variance in (0.031, 0.034))
    ((low, high),) = unsure(far, 1.0, math.e)
    assert (math.log(low), math.log(high)) == pytest.approx((-1 / 6, 7 / 6))
    assert unsure(near, 1.0, math.e) == (), "a choice may cost a tenth of the time"
    monkeypatch.setattr(threshold_room, "HIGHEST_COST", doubt(far[0], far[1:], 0.0).cost)
    assert unsure(far, 1.0, math.e) == (), "the highest cost is none too high"


@pytest.mark.parametrize(("mean", "deviation"), [(-0.1, 0.05), (0.0, 0.3), (0.2, 0.5)])
def test_an_expected_loss_is_the_integral_over_a_normal_difference(mean, deviation):
    d = np.linspace(mean - 10 * deviation, mean + 10 * deviation, 100_001)
    density = np.exp(-(((d - mean) / deviation) ** 2) / 2)
    expected = np.sum(np.maximum(0, np.expm1(d)) * density) / np.sum(density)
    assert expected_loss(mean, deviation) == pytest.approx(expected, rel=1e-5)


def test_a_threshold_reads_its_probabilities_straight_between_two_places():
    wins = [0.01, 0.02, 0.03, 0.4, 0.6, 0.97, 0.99]
    found = threshold_of([Margin(float(i), 0.0, 1.0, share) for i, share in enumerate(wins)])
    assert (found.state, found.mixed) == ("at", False)
    places = [math.log(size) for size in (found.low, found.n, found.high)]
    assert places == pytest.approx([1.5, 3.5, 5.25])
    assert (math.log(found.first), math.log(found.last)) == (0.0, 6.0)


@pytest.mark.parametrize(("wins", "state", "mixed"), [
    ([0.975, 0.99], "unsure", False), ([0.976, 0.99], "always", False), ([0.001, 0.024], "never", False),
    ([0.001, 0.025], "unsure", False), ([0.03, 0.99], "unsure", False), ([0.025, 0.99], "at", False),
    ([0.01, 0.975], "at", False), ([0.01, 0.974], "unsure", False), ([0.99, 0.01, 0.99], "at", True),
    ([0.975, 0.01, 0.99], "unsure", False), ([0.99, 0.025, 0.99], "unsure", False), ([0.99, 0.01, 0.02], "never", True),
])  # fmt: skip
def test_two_and_a_half_percent_on_either_side_is_sure(wins, state, mixed):
    found = threshold_of([Margin(float(i), 0.0, 1.0, share) for i, share in enumerate(wins)])
    assert (found.state, found.mixed) == (state, mixed)
    ends = {"always": (0.0, 0.0), "never": (math.inf, math.inf)}
    assert (found.low, found.high) == ends.get(state, (found.low, found.high))


@pytest.mark.parametrize(("beside", "in_common"), [("queued", 0.3), ("cpu", 0.0)])
def test_a_doubt_counts_what_is_more_than_five_percent_faster(beside, in_common):
    """Both curves are known by 95 points; the expected share is that of two normal times, which those of GPUs have in
    common in part."""
    x = math.log(3000.0)
    times = (("a", "waited", 2e-5), ("b", beside, 2.08e-5))
    fitted = fit({name: TimedSizes(kind, exact(lambda n, s=s: s, FINE)) for name, kind, s in times})
    a, b = fitted["a"], fitted["b"]
    variances = [c.at(x).variance + c.offset + c.case_variance(x) for c in (a, b)]
    deviation = math.sqrt(sum(variances) - 2 * in_common * math.sqrt(math.prod(variances)))
    ahead = b.at(x).mean - a.at(x).mean
    assert doubt(a, [b], x).wrong == pytest.approx(normal((-math.log(1.05) - ahead) / deviation))
    far = fit({"far": TimedSizes("waited", exact(lambda n: 4e-4, FINE))})["far"]
    costs = [doubt(a, rivals, x).cost for rivals in ([b, far], [far, b], [b])]
    assert costs == [costs[0]] * 3, "of the nearest rival"
    low, middle, high = interval(a, x)
    reach = 1.96 * math.sqrt(a.at(x).variance + a.offset + a.case_variance(x))
    assert (math.log(low), math.log(high)) == pytest.approx((a.at(x).mean - reach, a.at(x).mean + reach))
    assert middle == pytest.approx(math.exp(a.at(x).mean))
    wide = fit({"it": TimedSizes("waited", exact(gpu, [1 << 10, 1 << 24]))})["it"]
    reach = 1.96 * math.sqrt(wide.at(x).variance + 0.03 + wide.offset + wide.case_variance(x))
    assert math.log(interval(wide, x)[2]) == pytest.approx(wide.at(x).mean + reach), "nothing was timed near it"


@pytest.mark.parametrize(("kind", "blocks", "own"), [
    ("cpu", (15, 20, 15), (11, 18, 11)), ("waited", (9, 9, 3), (5.5, 5.5, 3)), ("queued", (12, 5, 3), (7, 5, 2)),
    ("copied", (15, 9, 9), (13, 7.7, 7.7)),
])  # fmt: skip
def test_one_block_scatters_as_the_table_of_the_page_says(kind, blocks, own):
    for seconds, block, case in zip((2e-5, 2e-4, 2e-3), blocks, own, strict=True):
        (point,) = points(kind, {1000: [[seconds]]})
        assert 100 * math.sqrt(point.variance) == pytest.approx(math.hypot(block, case))


def test_who_writes_next_to_nothing_has_other_relatives():
    """A reduction takes launches of its own; beside its time others with the same bytes would be taken for slow."""

    def relation_of(moved, written):
        moves = {n: (moved * n, written(n)) for n in LADDER}
        return TimedSizes.of("gpu", ("float32", "gpu:0", "tuned", "resident-waited"), {}, moves).relation

    assert relation_of(8, lambda n: 4 * n) == relation_of(12, lambda n: 4 * n) != relation_of(8, lambda n: 4)
    assert relation_of(8, lambda n: 200) == relation_of(8, lambda n: 4 * n), "2.4 % at 1,024"
    least, more = (relation_of(1000, lambda n, by=by: by * n) for by in (19, 21))
    assert least == relation_of(8, lambda n: 4) != more
    assert traffic_of({10: 120, 1000: 12_000}) == 12.0
    assert traffic_of({100: 1220, 1000: 12_000}) == pytest.approx(12.1)
    assert traffic_of({100: 1224, 1000: 12_000}) == pytest.approx(12.12), "2 % more than the least"
    assert (traffic_of({100: 1300, 1000: 12_000}), traffic_of({}), traffic_of({10: 0})) == (0.0, 0.0, 0.0)


if __name__ == "__main__":
    made = {run: numbers(make()) for run, make in RUNS.items()} | {
        run: heights(near_relatives(kind, queued if kind == "queued" else gpu, apart, own))
        for run, (kind, apart, own) in RELATIVES.items()
    }
    lines = ",\n".join(f"  {json.dumps(run)}: {values}" for run, values in made.items())
    GOLDEN.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
