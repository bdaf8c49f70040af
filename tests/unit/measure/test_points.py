"""What a run knows of its ops: times by size, ratios of the fastest, and the grid and the ladder of sizes."""

import functools
import math

import pytest
from msgspec.structs import replace

from gpubench import kernels
from gpubench.kernels.contract.op import Ladder
from gpubench.measure import points
from gpubench.measure.plan import Series
from gpubench.measure.points import Pace
from tests.unit.measure.builders import block, case, measured
from tests.unit.measure.simulated import CPU, GPU, TORCH, Simulation

BASE, OTHER = (CPU, "library", "resident"), (CPU, "tuned", "resident")
FAST, SLOW = (GPU, "tuned", "resident-queued"), (GPU, "library", "resident-queued")
CELL = (GPU, "resident-queued")


def row(cpu_s, gpu_s):
    """Two implementations a side; one of each competes."""
    return {BASE: {0: [cpu_s]}, OTHER: {0: [1.7 * cpu_s]}, FAST: {0: [gpu_s]}, SLOW: {0: [1.3 * gpu_s]}}


def test_ratios_are_of_the_fastest_where_both_sides_were_measured():
    known = {64: row(1.0, 2.0), 256: row(4.0, 2.0), 1024: {FAST: {0: [1.0]}}, 4096: {BASE: {0: [1.0]}}}
    assert points.cells(known, {CPU}) == [CELL]
    assert points.ratios(known, CELL, {CPU}) == {64: 0.5, 256: 2.0}
    assert points.cells(known, {CPU}, without={GPU}) == []


def test_warm_up_and_what_heat_spoilt_are_no_times():
    known = measured(case(64, CPU), block([9.0, 1.0, 5.0], warmup=1, discarded={"2": "throttled"}))
    assert points.rows([known], Series(kernels.load("add"), "float32")) == {64: {BASE: {0: [1.0]}}}


def test_the_beginning_is_the_first_step_of_all_ops():
    simulation = Simulation(["add", "mul"], devices=(CPU, TORCH, GPU), implementations=("library", "tuned"))
    begun = {case.id for item in simulation.passes.beginning() for case in item.cases}
    first = [item for step in simulation.run(most=2).steps for item in step.workloads]
    assert begun == {case.id for item in first for case in item.cases}


def test_curves_follow_what_was_measured_since():
    simulation = Simulation(["add", "relu"]).run(most=2)
    passes, add = simulation.passes, simulation.series[0]
    before, sizes = passes.points.fit(add), len(passes.rows(add))
    assert {name[0] for name in before} == {CPU, GPU}
    assert passes.points.fit(add) is before
    for _, step in zip(range(4), passes.steps(), strict=False):
        simulation.measure(step)
    assert len(passes.rows(add)) > sizes
    assert passes.points.fit(add) is not before
    assert set(passes.points.times(add)[BASE]) == set(passes.rows(add))


def test_sizes_of_the_grid_are_a_quarter_of_an_octave_apart_and_whole_granules():
    for ladder in (Ladder(1000, 1 << 24), Ladder(64, 4096, granule=8), Ladder(512, 1 << 20, granule=64)):
        for n in (ladder.low * 2 ** (i / 7) for i in range(80)):
            size = ladder.snap(n)
            assert (1 <= size <= ladder.high, size % ladder.granule) == (True, 0)
            if n <= ladder.high and size > 8 * ladder.granule:
                assert abs(math.log2(size / n)) <= 1 / 8 + 0.1
    assert [Ladder(1000, 1 << 24).snap(n) for n in (1024, 1200, 4096)] == [1117, 1117, 4467]


def test_the_sizes_of_an_op_have_a_shape_and_larger_ones_are_more_work():
    for op in map(kernels.load, kernels.names()):
        sizes = {*op.sizes.sizes(), *op.sizes.rungs()}
        assert [op.fits({"n": n}) for n in sizes] == [None] * len(sizes), op.name
        work = [Series(op, "float32").work(n) for n in op.sizes.rungs()]
        assert work == sorted(work), op.name
        assert work[0] > 0 or op.overhead is not None, op.name


queued = functools.partial(case, device_id=GPU, regime="resident-queued")


def pace(times):
    noted = Pace()
    for n, seconds in times.items():
        noted.note(queued(n), seconds)
    return noted


@pytest.mark.parametrize(("n", "seconds"), [
    (50, 1e-3), (100, 1e-3), (200, 2e-3), (400, 4e-3), (800, 1.6e-2), (1600, 6.4e-2), (3200, 0.256),
])  # fmt: skip
def test_between_sizes_it_is_the_line_beyond_them_that_of_the_last_two(n, seconds):
    assert pace({100: 1e-3, 400: 4e-3, 1600: 6.4e-2}).expected_s(queued(n)) == pytest.approx(seconds)


@pytest.mark.parametrize(("last_s", "power"), [(1e-3, 1.0), (1.5e-3, 1.0), (4e-3, 2.0), (0.1, 3.0)])
def test_beyond_all_sizes_it_grows_with_the_size_or_faster_but_not_without_end(last_s, power):
    known = pace({100: 1e-3, 200: last_s})
    assert known.expected_s(queued(800)) == pytest.approx(last_s * 4**power)
    assert known.expected_s(queued(50)) == 1e-3, "rather more than less"


def test_one_size_grows_with_the_size():
    assert pace({100: 1e-3}).expected_s(queued(300)) == pytest.approx(3e-3)


@pytest.mark.parametrize(("n", "seconds"), [(50, 5e-4), (150, 1.5e-3), (300, 3e-3), (500, 5e-3), (4000, 4e-2)])
def test_the_least_is_in_proportion_to_the_nearest_size(n, seconds):
    assert pace({100: 1e-3, 1000: 1e-2}).least_s(queued(n)) == pytest.approx(seconds)
    assert pace({100: 1e-3, 1000: 2e-2}).least_s(queued(300)) == pytest.approx(3e-3), "100 is nearer by ratio"
    assert pace({100: 1e-3, 1000: 2e-2}).least_s(queued(330)) == pytest.approx(6.6e-3)


@pytest.mark.parametrize("other", [{"implementation": "tuned"}, {"op": "mul"}, {"regime": "transfer-always"}])
def test_each_contender_has_its_own_times(other):
    known, asked = pace({100: 1e-3}), replace(queued(100), **other)
    known.note(asked, 0.0)
    assert (known.expected_s(asked), known.least_s(asked)) == (None, 0)
