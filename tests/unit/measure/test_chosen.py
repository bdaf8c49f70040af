"""Which sizes a run chooses, step by step, on simulated devices: what any change of the choosing changes.

`python -m tests.unit.measure.test_chosen` prints them anew.
"""

import itertools
import textwrap

import msgspec
import pytest

from gpubench.measure.plan import Series
from gpubench.measure.points import LAUNCHES, REFERENCE_LAUNCHES, CostModel
from tests.unit.measure.simulated import CPU, GPU, TORCH, Simulation

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
}  # fmt: skip
EXPECTED = {
    "all situations": (
        "mul 1048576x7 1024x5. add 1048576x7 1024x5. add 262144x1 65536x4 8192x3, mul 262144x1 65536x4 8192x3. mul "
        "16777216x9 4194304x1. add 16777216x9 4194304x1. add 1048577x5 35734x5 27554x5 21247x5, mul 8388609x5 "
        "2388213x4; add 55109x4 46341x4; add 110218x4 50535x4 42495x4; mul 16777216x3, add 16777216x3; mul "
        "16777216x3, add 16777216x3;"
    ),
    "a budget that is used up": (
        "add 1048576x2 1024x2. add 262144x1 65536x2 8192x1. add 16777216x2 4194304x1. add 1048577x2 38968x2 27554x2 "
        "21247x2; add 25268x2 23170x2; add 16777216x1; add 16777216x1; add 16777216x2 4194304x1 1048576x2 262144x1 "
        "65536x2 8192x1 1024x2; add 16777216x2 4194304x1 1048576x2 262144x1 65536x2 8192x1 1024x2; add 16777216x2 "
        "4194304x1 1048576x2 262144x1 65536x2 8192x1 1024x2; add 16777216x2 4194304x1 1048576x2 262144x1 65536x2 "
        "8192x1 1024x2;"
    ),
    "a slow op": (
        "mul 1048576x2 1024x2. add 1048576x2 1024x2. add 262144x1 65536x2 8192x1, mul 262144x1 65536x2 8192x1. mul "
        "4194304x2. add 16777216x2 4194304x1. add 1048577x2 27554x2 21247x2; mul 2840080x1 2190001x1 1048577x2; add "
        "16777216x1; add 16777216x1, mul 2388213x1;"
    ),
    "matrices": (
        "matmul 512x5 32x5. matmul 128x1. matmul 4096x5 2048x1 1024x5. matmul 1032x3 104x2 56x4 40x4; matmul 216x1; "
        "matmul 664x1 608x1 80x4; matmul 152x3 96x4; matmul 728x1 64x3; matmul 560x1 432x1 48x3; matmul 792x1 472x1; "
        "matmul 4096x1; matmul 4096x1;"
    ),
    "little time": (
        "relu 1048576x2 1024x2. mul 1048576x2 1024x2, add 1048576x2 1024x2. add 262144x1 65536x2 8192x1, relu "
        "262144x1 65536x2 8192x1, mul 262144x1 65536x2 8192x1. relu 16777216x2 4194304x1. add 4194304x2, mul "
        "4194304x2. add 1048577x2 21247x2, mul 2881390x2 2221855x2 1048577x2; mul 2422950x2; mul 4194304x1; mul "
        "4194304x1;"
    ),
    "a long run": (
        "mul 1048576x7 1024x5. add 1048576x7 1024x5, relu 1048576x7 1024x5. mul 262144x1 65536x4 8192x3, add 262144x1 "
        "65536x4 8192x3, relu 262144x1 65536x4 8192x3. relu 16777216x9 4194304x1, mul 16777216x9 4194304x1. add "
        "16777216x9 4194304x1. add 1048577x5 84990x4; add 2965821x4 285870x4 30048x6, relu 2097153x4 641757x3 "
        "381591x4, mul 2422950x4 1048577x5; add 524288x4 142935x4 60097x4; add 16777216x4 5931642x4 1763488x4, mul "
        "3426569x4, relu 588493x3 453790x4; add 741455x4 202141x4 38968x4; add 370728x4 110218x4, mul 4074900x4 "
        "2642246x4; relu 763181x4, add 32768x4, mul 16777216x3; add 25268x5 21247x5; relu 16777216x3, mul 16777216x3; "
        "relu 16777216x3, add 16777216x3;"
    ),
    "open at the top": (
        "relu 1048576x2 1024x2. relu 262144x1 65536x2 8192x1. relu 16777216x2 4194304x1. relu 2097152x1 1048577x2 "
        "131072x1 30048x1; relu 7053950x1 524288x1 185364x1; relu 4573921x2 404281x2 202141x2; relu 16777216x1; relu "
        "16777216x1;"
    ),
}  # fmt: skip
# Sizes below, between and beyond those that were measured; device, implementation and regime; blocks. Then seconds.
COSTS = [
    0.0, 0.0, 0.024001, 0.024027, 0.024029, 0.024163, 0.024, 0.024008, 0.024004, 0.024032, 0.024074, 0.024178,
    0.024, 0.024008, 0.039252, 0.025755, 0.082575, 0.069321, 0.024, 0.040704, 0.02408, 0.042434, 0.0036666,
    7.2917e-09, 0.058179, 0.058238, 0.058244, 0.058555, 0.058177, 0.058195, 0.058429, 0.058495, 0.058592, 0.058831,
    0.05842, 0.058438, 1.1142, 1.0829, 1.2146, 1.1839, 1.0788, 1.1175, 0.21766, 0.27114, 16.599, 4e-09, 50.037,
    50.037, 50.037, 50.039, 50.037, 50.037, 50.037, 50.038, 50.038, 50.039, 50.037, 50.038, 52.605, 52.47, 53.039,
    52.906, 52.453, 52.62, 137.77, 206.59,
]  # fmt: skip


def told(simulation: Simulation) -> str:
    """Each step: op, sizes, and at each the number of cases; a step of two blocks ends with `;`."""
    steps = []
    for step in simulation.run().steps:
        ops = itertools.groupby(step.workloads, key=lambda item: item.op.name)
        parts = [f"{op} {' '.join(f'{item.n}x{len(item.cases)}' for item in items)}" for op, items in ops]
        steps.append(f"{', '.join(parts)}{'.' if step.purpose.blocks == 1 else ';'}")
    return " ".join(steps)


@pytest.mark.parametrize("run", RUNS)
def test_a_run_chooses_these_sizes(run):
    assert told(RUNS[run]()).split("; ") == EXPECTED[run].split("; ")


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
    slots = [(CPU, "library", "resident"), (GPU, "library", "resident-queued"), (GPU, "library", "transfer-always"),
             (GPU, "library", "transfer-once-10"), (GPU, "tuned", "resident-queued"), (TORCH, "tuned", "resident")]  # fmt: skip
    for by in (0.01, 1, 100):
        model, (add, mul) = cost_model(by)
        yield from (model.case_s, model.byte_s)
        yield from (model.of(add, {n: {name}}) for n in (100, 4096, 2**24) for name in slots)
        sizes = [({2**12: set(slots[:k]), 2**21: set(slots[:2])}, blocks) for k, blocks in ((2, 1), (4, 3))]
        yield from (model.of(mul, asked, blocks) for asked, blocks in sizes)


def test_what_steps_will_take_follows_from_those_before():
    assert [*costs()] == pytest.approx(COSTS, rel=1e-4)


def test_a_step_whose_devices_chose_kernels_at_the_same_time_teaches_too():
    model, (add, _) = cost_model(-1)
    assert model.of(add, {4096: {(CPU, "library", "resident")}}) > 0


def test_an_op_without_a_time_takes_what_it_says():
    """A function that fails at each size has no times, and its top took the time of all others."""
    simulation = Simulation(["add"])
    add = simulation.series[0]
    slow = Series(msgspec.structs.replace(add.op, seconds=lambda params: 2.0), "float32")
    slots = {2**20: {(CPU, "library", "resident")}}
    model = CostModel(simulation.passes.points, simulation.constraints)
    assert (model.known, cost_model(1)[0].known) == (False, True)
    assert model.of(slow, slots) - model.of(add, slots) == pytest.approx((LAUNCHES + REFERENCE_LAUNCHES) * 2.0)


if __name__ == "__main__":
    print([float(f"{seconds:.5g}") for seconds in costs()])
    for name, made in RUNS.items():
        lines = textwrap.wrap(told(made()), 108)
        print(f'    "{name}": (')
        print("\n".join(f'        "{line}{" " if i < len(lines) - 1 else ""}"' for i, line in enumerate(lines)))
        print("    ),")
