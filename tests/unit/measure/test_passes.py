"""Passes inside their budget on simulated devices: what a run knows of its ops, which sizes it chooses, and what those take."""

import functools
import itertools
import json
import math
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpubench import curves, kernels
from gpubench.kernels.contract.op import Ladder
from gpubench.measure import points
from gpubench.measure.passes import Passes, keep_own_code
from gpubench.measure.plan import Series
from gpubench.measure.points import LAUNCHES, REFERENCE_LAUNCHES, CostModel, Pace
from gpubench.result.case import FUNCTIONS
from tests.examples import examples
from tests.unit.measure.builders import block, case, measured
from tests.unit.measure.simulated import CASE_S, CPU, CROSSINGS, GPU, TORCH, Simulation, cpu_s

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
    before, sizes = passes.points.fit(add), len(passes.points.rows(add))
    assert {name[0] for name in before} == {CPU, GPU}
    assert passes.points.fit(add) is before
    for _, step in zip(range(4), passes.steps(), strict=False):
        simulation.measure(step)
    assert len(passes.points.rows(add)) > sizes
    assert passes.points.fit(add) is not before
    assert set(passes.points.times(add)[BASE]) == set(passes.points.rows(add))


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


def test_a_function_of_the_user_competes_as_it_is_written():
    """Neither compiled nor by PyTorch's CPU, unless a side would have no other curve."""
    simulation = Simulation(["add"], devices=(CPU, TORCH, GPU), implementations=("library", "tuned")).run(
        most=3
    )
    (add,), races = simulation.series, []
    for series in (add, msgspec.structs.replace(add, op=msgspec.structs.replace(add.op, group=FUNCTIONS))):
        passes = Passes([series], simulation.constraints, simulation.recorder, lambda: 1.0)
        races.append(
            [{name for side in race.values() for name in side.fitted} for race in passes.races_of(series)]
        )
    (every,), (written, both) = races
    assert ({name[:2] for name in written}, both) == ({(CPU, "library"), (GPU, "library")}, every)
    lacking = {name: None for name in every if name[:2] != (CPU, "library")}
    assert keep_own_code(lacking, {CPU, TORCH}) is lacking


queued = functools.partial(case, device_id=GPU, regime="resident-queued")


def pace(times):
    noted = Pace()
    for n, seconds in times.items():
        noted.note(queued(n), seconds)
    return noted


THREE = {100: 1e-3, 400: 4e-3, 1600: 6.4e-2}


@pytest.mark.parametrize(("times", "n", "seconds"), [
    # Below all rather more than less, between two their line, beyond all it grows with the size or faster, with an end.
    (THREE, 50, 1e-3), (THREE, 100, 1e-3), (THREE, 200, 2e-3), (THREE, 400, 4e-3), (THREE, 800, 1.6e-2), (THREE, 1600, 6.4e-2),
    (THREE, 3200, 0.256), ({100: 1e-3}, 300, 3e-3),
    *(({100: 1e-3, 200: last_s}, 800, last_s * 4**power) for last_s, power in ((1e-3, 1), (1.5e-3, 1), (4e-3, 2), (0.1, 3))),
])  # fmt: skip
def test_what_a_size_will_take_follows_from_those_around_it(times, n, seconds):
    assert pace(times).expected_s(queued(n)) == pytest.approx(seconds)


@pytest.mark.parametrize(("last_s", "n", "seconds"), [
    (1e-2, 50, 5e-4), (1e-2, 150, 1.5e-3), (1e-2, 500, 5e-3), (1e-2, 4000, 4e-2), (2e-2, 300, 3e-3), (2e-2, 330, 6.6e-3),
])  # fmt: skip
def test_the_least_is_in_proportion_to_the_size_that_is_nearest_by_ratio(last_s, n, seconds):
    assert pace({100: 1e-3, 1000: last_s}).least_s(queued(n)) == pytest.approx(seconds)


@pytest.mark.parametrize("other", [{"implementation": "tuned"}, {"op": "mul"}, {"regime": "transfer-always"}])
def test_each_contender_has_its_own_times(other):
    known, asked = pace({100: 1e-3}), replace(queued(100), **other)
    known.note(asked, 0.0)
    assert (known.expected_s(asked), known.least_s(asked)) == (None, 0)


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


class OwnFunction(Simulation):
    """A user's function, whose compiled code is four times as fast on the CPU: it crosses at six times the size."""

    def __init__(self, op, **more):
        super().__init__([op], implementations=("library", "tuned"), **more)
        self.series = [Series(replace(kernels.load(op), group=FUNCTIONS), "float32")]
        self.resume()

    def seconds(self, case):
        return super().seconds(case) / (4 if (case.device_id, case.implementation) == (CPU, "tuned") else 1)


@pytest.mark.parametrize(("code", "factor"), [({"library"}, 1), ({"library", "tuned"}, 6)])
def test_a_users_function_has_the_break_evens_as_it_is_written_and_of_its_fastest_code(code, factor):
    simulation = OwnFunction("add").run()
    sides = {CPU: [], GPU: []}
    for (device, implementation, _), curve in simulation.passes.points.fit(simulation.series[0]).items():
        sides[device] += [curve] if implementation in code else []
    found = curves.compare(sides[GPU], sides[CPU])
    assert found.low <= factor * CROSSINGS["add"] <= found.high <= 2.25 * found.low


@pytest.mark.parametrize("implementations", [("library",), ("library", "tuned")])
def test_of_a_cpu_alone_the_ladder_is_all(implementations):
    simulation = Simulation(["add"], devices=(CPU, TORCH), implementations=implementations, budget_s=19.0).run()
    assert sorted(simulation.sizes("add")) == kernels.load("add").sizes.rungs()
    top = {(case.device_id, case.implementation) for case in cases(simulation, "add", 2**24)}
    assert {implementation for device, implementation in top if device == CPU} == set(implementations)
    assert TORCH in {device for device, _ in top}
    named = Simulation(["add"], devices=(CPU,), whole=True, budget_s=5.0).run()
    assert named.now < 6, "a named budget ends, too"
    short = Simulation(devices=(CPU,), slow={"add": 148, "relu": 617, "mul": 158}, budget_s=10.0).run()
    assert short.recorder.run.warnings == [], "no time is kept for passes that never come"


@pytest.mark.parametrize("factor", [0.01, 100.0])
def test_what_does_not_cross_asks_for_nothing_but_a_check_and_its_top(factor):
    simulation = Simulation(["add"], gpu=lambda n, crossing: factor * 1e-5 * n / crossing).run()
    rungs = kernels.load("add").sizes.rungs()
    assert set(simulation.sizes("add")) - set(rungs) == {2**20 + 1}


# ---------------------------------------------------------------- passes


@pytest.mark.parametrize("where", [CPU, GPU])
def test_a_size_that_fails_is_not_asked_for_again_and_again(where):
    simulation = Simulation(["add"], fails=lambda case: case.device_id == where and case.params["n"] > 20_000)
    simulation.run()
    counts = Counter(simulation.sizes("add"))
    assert max(counts.values()) <= 3
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
    for whole, blocks in ((False, 2), (True, 4)):
        simulation = Simulation(["add"], noise=(0.05, 0.05), whole=whole, budget_s=10.0).run()
        assert {step.purpose.blocks for step in simulation.steps if not step.ends} == {blocks}


@pytest.mark.parametrize("done", [1, 2, 4, 7])
def test_passes_that_were_interrupted_go_on_where_they_were(done):
    simulation = Simulation(["add"], noise=(0.03, 0.03)).run(most=done)
    simulation.resume()
    simulation.run()
    assert {n for n, count in Counter(simulation.sizes("add")).items() if count > 1} <= {2**24}
    assert simulation.threshold("add").state == "at"


# ---------------------------------------------------------------------- which sizes a run chooses, and what they take: any change of the choosing changes them


FOUR = ("resident-waited", "resident-queued", "transfer-always", "transfer-once")


def cubic(by):
    return lambda n, _: 1e-5 + 1e-5 * (n / by) ** 3


RUNS = {
    "all situations": lambda: Simulation(
        ["add", "mul"], devices=(CPU, TORCH, GPU), implementations=("library", "tuned"), regimes=FOUR,
        copy_s=lambda n: n / 1e9, noise=(0.05, 0.05), budget_s=9.0,
    ),
    "a budget that is used up": lambda: Simulation(["add"], noise=(0.05, 0.05), budget_s=4.0, whole=True),
    "a slow op": lambda: Simulation(["add", "mul"], slow={"mul": 3e4}, noise=(0.05, 0.05), budget_s=20.0),
    "matrices": lambda: Simulation(
        ["matmul"], cpu=cubic(190), gpu=cubic(600), regimes=FOUR, copy_s=lambda n: n**2 / 1e9, noise=(0.03, 0.03),
    ),
    "little time": lambda: Simulation(budget_s=1.5, noise=(0.05, 0.05)),
    "a long run": lambda: Simulation(
        devices=(CPU, TORCH, GPU), implementations=("library", "tuned"), regimes=FOUR, copy_s=lambda n: n / 4e9, noise=(0.1, 0.1),
        budget_s=60.0, seed=7,
    ),
    "open at the top": lambda: Simulation(
        ["relu"], gpu=lambda n, _: 1e-5 + 1e-9 * n, cpu=lambda n, _: 1.02e-9 * n, noise=(0.1, 0.1),
    ),
    "two slow ops": lambda: Simulation(
        ["add", "mul"], implementations=("library", "tuned"), slow={"add": 3e4, "mul": 1e5}, noise=(0.05, 0.05), budget_s=400.0,
    ),
    "a user's function": lambda: OwnFunction("add", noise=(0.3, 0.3), budget_s=3.0),
    "slow moments": lambda: Simulation(
        ["matmul", "add"], cpu=lambda n, c: (cubic(190)(n, c) if c is None else cpu_s(n, c)) * (40 if n in (512, 1024) else 1),
        gpu=lambda n, c: cubic(600)(n, c) if c is None else 1e-5, budget_s=30.0,
    ),
}  # fmt: skip
GOLDEN = Path(__file__).with_name("passes.json")


def told(simulation: Simulation) -> list[str]:
    """Each step: op, sizes, and at each the number of cases; a step of two blocks ends with `;`."""
    steps = []
    for step in simulation.run().steps:
        ops = itertools.groupby(step.workloads, key=lambda item: item.op.name)
        parts = [f"{op} {' '.join(f'{item.n}x{len(item.cases)}' for item in items)}" for op, items in ops]
        steps.append(f"{', '.join(parts)}{'.' if step.purpose.blocks == 1 else ';'}")
    return steps


@pytest.mark.parametrize("run", RUNS)
def test_a_run_chooses_these_sizes(run):
    """If the difference is wanted: python -m tests.golden, and look at it."""
    assert told(RUNS[run]()) == json.loads(GOLDEN.read_text())["runs"][run]


def cost_model(by):
    """Return a model that has seen a short run of two ops, whose steps took `by` times as long, and the series of both."""
    simulation = Simulation(
        ["add", "mul"], devices=(CPU, TORCH, GPU), regimes=FOUR, copy_s=lambda n: n / 1e9, budget_s=9.0, noise=(0.2, 0.2)
    )  # fmt: skip
    model = CostModel(simulation.passes.points, simulation.constraints)
    for i, step in enumerate(simulation.passes.steps()):
        simulation.measure(step)
        model.took(step, by * (0.2 + 0.1 * i))
    assert i > 10, "more steps than are remembered"
    return model, simulation.series


def costs():
    """Seconds of steps at sizes below, between and beyond those that were measured, by their cases and blocks."""
    slots = [(CPU, "library", "resident"), (GPU, "library", "resident-queued"), (GPU, "library", "transfer-always"),
             (GPU, "library", "transfer-once-10"), (GPU, "tuned", "resident-queued"), (TORCH, "tuned", "resident")]  # fmt: skip
    for by in (0.01, 1, 100):
        model, (add, mul) = cost_model(by)
        yield from (model.case_s, model.byte_s)
        yield from (model.of(add, {n: {name}}) for n in (100, 4096, 2**24) for name in slots)
        sizes = [({2**12: set(slots[:k]), 2**21: set(slots[:2])}, blocks) for k, blocks in ((2, 1), (4, 3))]
        yield from (model.of(mul, asked, blocks) for asked, blocks in sizes)


def test_what_steps_will_take_follows_from_those_before():
    assert [*costs()] == pytest.approx(json.loads(GOLDEN.read_text())["costs"], rel=1e-4)
    model, (add, _) = cost_model(-1)
    assert model.of(add, {4096: {(CPU, "library", "resident")}}) > 0


def test_an_op_without_a_time_takes_what_it_says():
    """A function that fails at each size has no times, and its top took the time of all others."""
    simulation = Simulation(["add"])
    add = simulation.series[0]
    slow = Series(msgspec.structs.replace(add.op, seconds=lambda _: 2.0, inputs_s=lambda _: 5.0), "float32")
    slots = {2**20: {(CPU, "library", "resident")}}
    model = CostModel(simulation.passes.points, simulation.constraints)
    assert (model.known, cost_model(1)[0].known) == (False, True)
    assert model.of(slow, slots) - model.of(add, slots) == pytest.approx(
        5.0 + (LAUNCHES + REFERENCE_LAUNCHES) * 2.0
    )


def write() -> None:
    """Write the sizes and the seconds anew."""
    chosen = {name: told(made()) for name, made in RUNS.items()}
    text = json.dumps({"runs": chosen, "costs": [float(f"{seconds:.5g}") for seconds in costs()]}, indent=1)
    GOLDEN.write_text(text + "\n", encoding="utf-8", newline="\n")
