"""What a run knows of its ops: times by size, ratios of the fastest, and the grid and the ladder of sizes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench import kernels
from gpubench.kernels.contract.op import Ladder
from gpubench.measure import points
from gpubench.measure.plan import Series
from gpubench.result.case import Case
from gpubench.result.run import Block, Check, Measurement
from tests.unit.measure.simulated import CPU, GPU, Simulation

BASE, OTHER = (CPU, "library", "resident"), (CPU, "tuned", "resident")
FAST, SLOW = (GPU, "tuned", "resident-queued"), (GPU, "library", "resident-queued")
CELL = (GPU, "resident-queued")

ladders = st.builds(
    lambda low, octaves, factor, granule: Ladder(low * granule, low * granule << octaves, factor, granule),
    st.integers(1, 1000), st.integers(2, 14), st.sampled_from([2, 4]), st.sampled_from([1, 8, 64]),
)  # fmt: skip


def row(cpu_s, gpu_s):
    """Two implementations a side; one of each competes."""
    return {BASE: {0: [cpu_s]}, OTHER: {0: [1.7 * cpu_s]}, FAST: {0: [gpu_s]}, SLOW: {0: [1.3 * gpu_s]}}


def test_ratios_are_of_the_fastest_where_both_sides_were_measured():
    known = {64: row(1.0, 2.0), 256: row(4.0, 2.0), 1024: {FAST: {0: [1.0]}}, 4096: {BASE: {0: [1.0]}}}
    assert points.cells(known, {CPU}) == [CELL]
    assert points.ratios(known, CELL, {CPU}) == {64: 0.5, 256: 2.0}
    assert points.cells(known, {CPU}, without={GPU}) == []


def test_warm_up_and_what_heat_spoilt_are_no_times():
    case = Case("add", "vector", {"n": 64}, "float32", "library", "resident", CPU)
    blocks = [
        Block(
            session=0,
            round=0,
            position=0,
            repeat=1,
            warmup=1,
            wall_s=[9.0, 1.0, 5.0],
            discarded={"2": "throttled"},
        )
    ]
    check = Check(ok=True, max_error=0.0, limit=1.0, scale="value")
    known = Measurement(id=case.id, case=case, flops=1, bytes=1, op_hash="0", check=check, blocks=blocks)
    assert points.rows([known], Series(kernels.load("add"), "float32")) == {64: {BASE: {0: [1.0]}}}


def test_the_beginning_is_the_first_step_of_all_ops():
    simulation = Simulation(["add", "mul"])
    begun = {(item.op.name, item.n) for item in simulation.passes.beginning()}
    assert begun == {(item.op.name, item.n) for step in simulation.run(most=2).steps for item in step.workloads}


def test_curves_follow_what_was_measured_since():
    simulation = Simulation(["add", "relu"]).run(most=2)
    passes = simulation.passes
    add = simulation.series[0]
    before = passes.points.fit(add)
    assert {name[0] for name in before} == {CPU, GPU}
    assert passes.points.fit(add) is before
    sizes = len(passes.rows(add))
    for _, step in zip(range(4), passes.steps(), strict=False):
        simulation.measure(step)
    assert len(passes.rows(add)) > sizes
    assert passes.points.fit(add) is not before
    assert set(passes.points.times(add)[BASE]) == set(passes.rows(add))


@given(ladders, st.floats(1, 1e7))
def test_sizes_of_the_grid_are_whole_and_few(ladder, n):
    snapped = ladder.snap(n)
    assert 1 <= snapped <= ladder.high
    assert snapped % ladder.granule == 0
    if n <= ladder.high and snapped > 8 * ladder.granule:
        assert abs(math.log2(snapped / n)) <= 1 / 8 + 0.1


@given(ladders)
def test_ladders_rise_to_their_tops_and_rungs_are_seven_at_most_in_whole_granules(ladder):
    rungs = ladder.rungs()
    for sizes in (ladder.sizes(), rungs):
        assert sizes == sorted(set(sizes))
        assert sizes[-1] == ladder.high
        assert sizes[0] <= ladder.low * 1.2 + ladder.granule
    assert len(rungs) <= 7
    assert rungs[0] == ladder.low
    assert all(n % ladder.granule == 0 for n in rungs)


def test_the_rungs_of_the_default_ops():
    assert kernels.load("add").sizes.rungs() == [2**10, 2**13, 2**16, 2**18, 2**20, 2**22, 2**24]
    assert kernels.load("matmul").sizes.rungs() == [32, 128, 512, 1024, 2048, 4096]


@pytest.mark.parametrize("name", kernels.names())
def test_the_default_sizes_of_an_op_have_a_shape(name):
    op = kernels.load(name)
    sizes = {*op.sizes.sizes(), *op.sizes.rungs()}
    assert [op.fits({"n": n}) for n in sizes] == [None] * len(sizes)


@pytest.mark.parametrize("name", kernels.computing_ops())
def test_larger_sizes_are_more_work(name):
    op = kernels.load(name)
    work = [Series(op, "float32").work(n) for n in op.sizes.rungs()]
    assert work == sorted(work)
    assert work[0] > 0
