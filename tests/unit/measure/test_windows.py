"""Windows of fresh timings: where they lie, how many timings they take, and how a file tells them."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench import kernels
from gpubench.measure import plan, search
from gpubench.measure.plan import Constraints, Series, Target, Workload
from gpubench.model.result import Block, Check, Device, Measurement, Selection

BASE, OTHER, GPU = (
    ("numpy:0", "tuned", "resident"),
    ("numpy:0", "library", "resident"),
    ("cupy:0", "tuned", "resident-queued"),
)
CURVE, CPU = ("cupy:0", "resident-queued"), {"numpy:0"}
ADD = Series(kernels.load("add"), "float32")
DEVICES = [
    Device(id="numpy:0", backend="numpy", kind="cpu", name="c", api="host"),
    Device(id="cupy:0", backend="cupy", kind="gpu", name="g", api="cuda", usable_bytes=2**34),
]
SCOPE = Constraints(
    tuple(Target(d, ("library", "tuned")) for d in DEVICES),
    Selection(ops=["add"], regimes=["resident-queued"]),
    2**34,
)


def samples(crossing, sizes, noise=0.0, seed=0):
    draw = random.Random(seed)
    return {
        n: {
            BASE: [1e-6 * n / crossing * draw.lognormvariate(0, noise) for _ in range(5)],
            OTHER: [3e-6 * n / crossing] * 5,
            GPU: [1e-6 * draw.lognormvariate(0, noise) for _ in range(5)],
        }
        for n in sizes
    }


@given(st.floats(1100, 900_000), st.integers(42, 400), st.floats(0, 0.1))
def test_a_window_lies_around_the_bracket_of_the_fastest_forms(crossing, fresh, noise):
    seen = samples(crossing, (1024, 4096, 16384, 65536, 262144, 2**20), noise)
    window = search.around(ADD, seen, CURVE, CPU, fresh)
    assert window is not None
    assert window.slots == (BASE, GPU)
    assert 2 <= len(window.sizes) <= 7
    assert window.sizes[0] / 1.01 <= crossing * math.exp(3 * noise)
    assert crossing * math.exp(-3 * noise) <= window.sizes[-1] * 1.01
    assert len(window.sizes) * window.samples <= max(fresh, 21)


def test_without_a_loss_or_without_a_win_there_is_no_window():
    for crossing in (100, 10**9):
        assert search.around(ADD, samples(crossing, (1024, 4096)), CURVE, CPU, 100) is None
    assert search.around(ADD, {}, CURVE, CPU, 100) is None


def test_timings_of_the_plan_count_as_those_of_the_grid():
    seen = {
        1024: {BASE: [1.0] * 100, GPU: [1.0] * 30, OTHER: [1.0] * 9},
        2000: {BASE: [1.0] * 7, GPU: [1.0] * 7},
    }
    assert search.timings(seen, (BASE, GPU), {1024: 5}) == 5 + 5 + 7 + 7


def outcome(slot, n, phases):
    (case,) = (c for c in plan.workload(ADD, n, SCOPE).cases if search.slot(c) == slot)
    return Measurement(
        id=case.id, case=case, flops=n, bytes=n, op_hash="0", check=Check(ok=True, max_error=0, limit=1, scale="value"),
        blocks=[Block(session=s, round=0, position=0, repeat=1, warmup=1, phase=phase, wall_s=[1.0] * (count + 1))
                for s, phase, count in phases],
    )  # fmt: skip


def test_a_file_tells_its_windows():
    sizes = (1000, 1100, 1200)
    outcomes = [
        outcome(slot, n, [(0, "estimate", 5), (0, "estimate", 4), (1, "estimate", 9)])
        for slot in (BASE, GPU) for n in sizes
    ]  # fmt: skip
    outcomes += [outcome(BASE, 5000, [(0, "search", 7)]), outcome(GPU, 7000, [(0, "main", 7)])]
    (window,) = search.windows_of(outcomes, {"add": ADD.op}, CPU)
    assert (window.series.key, window.sizes, window.samples) == (ADD.key, sizes, 9)
    assert set(window.slots) == {BASE, GPU}
    measured = window.workloads(SCOPE)
    assert [w.n for w in measured] == list(sizes)
    assert {search.slot(case) for w in measured for case in w.cases} == {BASE, GPU}
    assert search.windows_of(outcomes[:3], {"add": ADD.op}, CPU) == (), "one side alone tells nothing"


def test_fresh_timings_take_no_part_in_the_search():
    outcomes = [
        outcome(BASE, 1000, [(0, "estimate", 5)]),
        outcome(BASE, 2000, [(0, "main", 2), (0, "estimate", 5)]),
    ]
    assert search.search_samples(outcomes, ADD) == {2000: {BASE: [1.0, 1.0]}}


@pytest.mark.parametrize(("host_bytes", "groups"), [(2**40, [3]), (2**24, [1, 1, 1])])
def test_what_memory_does_not_hold_side_by_side_is_measured_apart(host_bytes, groups):
    constraints = Constraints(SCOPE.targets, SCOPE.selection, host_bytes)
    items: list[Workload] = [plan.workload(ADD, n, SCOPE) for n in (200_000, 210_000, 220_000)]
    found = plan.together(items, constraints)
    assert [len(group) for group in found] == groups
    assert [item for group in found for item in group] == items
