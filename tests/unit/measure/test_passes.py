"""Passes inside their budget: every op has its ladder first, then the sizes that narrow its thresholds."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench import kernels
from gpubench.measure import points
from gpubench.measure.passes import ASSIGNMENTS
from tests.examples import examples
from tests.unit.measure.simulated import CASE_S, CPU, CROSSINGS, GPU, TORCH, Simulation, cpu_s


def cases(simulation, op, n):
    items = (item for step in simulation.steps for item in step.workloads)
    return [case for item in items if (item.op.name, item.n) == (op, n) for case in item.cases]


# ---------------------------------------------------------------- the ladder


@settings(deadline=None, max_examples=examples(5))
@given(st.floats(1.0, 45.0), st.floats(0, 0.1))
def test_no_op_has_its_third_size_before_all_have_an_answer(budget_s, noise):
    simulation = Simulation(budget_s=budget_s, noise=(noise, 0.0)).run()
    seen = Counter()
    for step in simulation.steps:
        for item in step.workloads:
            seen[item.op.name] += 1
        if max(seen.values()) > 2:
            assert len(seen) == len(CROSSINGS)
    # A step is begun if it is predicted to fit, so what it takes beyond that is little.
    assert simulation.now <= budget_s * 1.1 + 6 * CASE_S


def test_tops_that_take_too_long_fall_and_it_is_said():
    simulation = Simulation(slow={"mul": 2e5}).run()
    largest, ladder = max(simulation.sizes("mul")), kernels.load("mul").sizes
    (warning,) = simulation.recorder.run.warnings
    assert (warning.code, warning.data["op"]) == ("top-halved", "mul")
    assert largest in ladder.rungs()
    assert f"n = {largest}, not {ladder.high}" in warning.message
    assert max(simulation.sizes("add")) == ladder.high, "the others keep theirs"
    assert simulation.now <= 45 * 1.5


def test_the_first_turn_compares_both_sides_at_two_sizes(monkeypatch):
    """Later ones may never come: a top that falls to a size of the CPU alone is no answer."""
    monkeypatch.setattr(points, "CHEAP_S", 1e-4)
    simulation = Simulation(["mul"], slow={"mul": 1e6}, budget_s=90.0).run()
    sizes = {n: {case.device_id for case in cases(simulation, "mul", n)} for n in simulation.sizes("mul")}
    assert sizes == {2**10: {CPU, GPU}, 2**13: {CPU, GPU}}


def test_a_top_that_fell_for_a_slow_moment_is_reached_after_all():
    def cpu(n, _):
        return 1e-5 * (n / 190) ** 3 * (40 if n == 512 else 1)

    simulation = Simulation(["matmul"], cpu=cpu, gpu=lambda n, _: 1e-5 + 1e-5 * (n / 600) ** 3, budget_s=20.0)
    simulation.run()
    assert max(simulation.sizes("matmul")) == 4096
    assert simulation.recorder.run.warnings == []


@pytest.mark.parametrize("high", [5_000, 100_000, 3_000_000])
def test_a_rung_that_memory_does_not_hold_is_skipped(high):
    needed = 12 * high + 3 * 12 * high * 2  # operands, and their float64 copies while checking
    simulation = Simulation(["add"], host_bytes=needed / 0.8).run()
    rungs = kernels.load("add").sizes.rungs()
    assert max(simulation.sizes("add")) == max(n for n in rungs if n <= high)
    skips = {skip.reason for step in simulation.steps for w in step.workloads for skip in w.skips}
    assert skips == {"out-of-memory"}


def test_sides_without_a_common_size_have_no_threshold_to_narrow():
    def fails(case):
        return (case.device_id == CPU) == (case.params["n"] > 100_000)

    assert Simulation(["add"], fails=fails).run().threshold("add") is None


@pytest.mark.parametrize("keeps", [lambda n: 4096 <= n < 2**21, lambda n: not 2**13 < n < 2**20])
def test_sizes_that_a_filter_leaves_out_leave_a_ladder_between_them_and_the_search_ends(keeps):
    simulation = Simulation(["add"], keep=lambda case: keeps(case.params["n"]), noise=(0.03, 0.03)).run()
    assert all(keeps(n) for n in simulation.sizes("add"))
    assert (simulation.now < 5, simulation.threshold("add").state) == (True, "at")


@pytest.mark.parametrize("implementations", [("library",), ("library", "tuned")])
def test_of_a_cpu_alone_the_ladder_is_all(implementations):
    simulation = Simulation(["add"], devices=(CPU, TORCH), implementations=implementations, budget_s=19.0).run()
    assert sorted(simulation.sizes("add")) == kernels.load("add").sizes.rungs()
    top = {(case.device_id, case.implementation) for case in cases(simulation, "add", 2**24)}
    assert {implementation for device, implementation in top if device == CPU} == set(implementations)
    assert TORCH in {device for device, _ in top}
    named = Simulation(["add"], devices=(CPU,), whole=True, budget_s=5.0).run()
    assert named.now < 6, "a named budget ends, too"


# ---------------------------------------------------------------- passes


@pytest.mark.parametrize("factor", [0.01, 100.0])
def test_what_does_not_cross_asks_for_nothing_but_a_check_and_its_top(factor):
    simulation = Simulation(["add"], gpu=lambda n, crossing: factor * 1e-5 * n / crossing).run()
    rungs = kernels.load("add").sizes.rungs()
    assert set(simulation.sizes("add")) - set(rungs) == {2**20 + 1}


@pytest.mark.parametrize("where", [CPU, GPU])
def test_a_size_that_fails_is_not_asked_for_again_and_again(where):
    simulation = Simulation(["add"], fails=lambda case: case.device_id == where and case.params["n"] > 20_000)
    simulation.run()
    counts = Counter(simulation.sizes("add"))
    assert max(counts.values()) <= ASSIGNMENTS
    assert len(counts) < 20


@pytest.mark.parametrize("late", [1, 10])
def test_what_took_longer_than_a_larger_size_is_measured_once_more(late):
    """Its threads may have waited for each other: a size that always takes so long is not asked for again and again."""
    calls = Counter()

    def cpu(n, crossing):
        calls[n] += 1
        return cpu_s(n, crossing) * (300 if n == 2**13 and calls[n] <= late else 1)

    simulation = Simulation(["add"], cpu=cpu).run()
    on_cpu = [n for n in simulation.sizes("add") if CPU in {c.device_id for c in cases(simulation, "add", n)}]
    sizes = Counter(on_cpu)
    assert sizes[2**13] == max(count for n, count in sizes.items() if n != 2**24) == 2


def test_new_sizes_do_not_wait_for_a_doubt_that_there_is_no_time_for():
    def cpu(n, crossing):
        return 3.0 if n == 2**13 else cpu_s(n, crossing)

    sizes = Simulation(["add"], cpu=cpu, noise=(0.03, 0.03)).run().sizes("add")
    assert sizes.count(2**13) == 1
    assert sizes[: sizes.index(2**20 + 1)].count(2**24) == 1, "they come before the top again"


def test_a_new_size_has_two_blocks_and_in_a_named_budget_four():
    for whole, blocks in ((False, 2), (True, 4)):
        simulation = Simulation(["add"], noise=(0.05, 0.05), whole=whole, budget_s=10.0).run()
        assert {step.purpose.blocks for step in simulation.steps if not step.ends} == {blocks}


@pytest.mark.parametrize("done", [1, 2, 4, 7])
def test_passes_that_were_interrupted_go_on_where_they_were(done):
    simulation = Simulation(["add"], noise=(0.03, 0.03)).run(most=done)
    simulation.resume()
    simulation.run()
    counts = Counter(simulation.sizes("add"))
    assert {n for n, count in counts.items() if count > 1} <= {2**24}
    assert simulation.threshold("add").state == "at"
