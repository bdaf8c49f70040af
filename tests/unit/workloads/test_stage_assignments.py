"""The planner against a search through all stage assignments, with a cost of its own."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.workloads import assignment
from gpubench.workloads.assignment import NEAR, AssignmentCosts, StageCost, adding_up, nearest, predicted_s

SECONDS = st.integers(0, 40).map(lambda tenths: tenths / 10)


@st.composite
def chains(draw):
    """Chains of up to six stages, each of which reads some of the values before it; the first may be the host's."""
    known, steps = ["x", "w"], []
    for number in range(draw(st.integers(1, 6))):
        reads = tuple(draw(st.lists(st.sampled_from(known), min_size=1, max_size=3)))
        host = number == 0 and draw(st.booleans())
        # A state is written by several stages.
        written = (f"v{number}", *(("cache",) if draw(st.booleans()) else ()))
        steps.append(StageCost(draw(SECONDS), None if host else draw(SECONDS), reads, written))
        known += [name for name in written if name not in known]
    copies = {name: draw(SECONDS) for name in [*known, "cache"]}
    wanted = [steps[-1].writes[0], *(["v0"] if draw(st.booleans()) else [])]
    at_first = {"x": draw(st.sampled_from(["c", "cg"])), "w": "cg"}
    down = {name: draw(SECONDS) for name in copies}
    return AssignmentCosts(steps, copies, down, draw(SECONDS), at_first, list(dict.fromkeys(wanted)))


def seconds_of(costs, assignment):
    """By the words of the design: each stage, each entry to the GPU, each value that is not there."""
    there = {(name, side) for name, sides in costs.given.items() for side in sides}
    total, last = 0.0, "c"

    def need(name, side):
        nonlocal total
        other = "c" if side == "g" else "g"
        if (name, side) not in there and (name, other) in there:
            total += (costs.up_s if side == "g" else costs.down_s)[name]
            there.add((name, side))

    for step, side in zip(costs.steps, assignment, strict=True):
        for name in step.reads:
            need(name, side)
        total += step.cpu_s if side == "c" else step.gpu_s
        total += costs.enter_s if (last, side) == ("c", "g") else 0.0
        for name in step.writes:
            there -= {(name, "c"), (name, "g")}
            there.add((name, side))
        last = side
    for name in costs.wanted:
        need(name, "c")
    return total


def every(costs):
    sides = ["c" if step.gpu_s is None else "cg" for step in costs.steps]
    return {assignment: seconds_of(costs, assignment) for assignment in map("".join, itertools.product(*sides))}


@given(chains())
def test_the_best_are_those_of_a_search_through_all_as_far_as_they_are_near(costs):
    by_assignment = every(costs)
    seconds = sorted(by_assignment.values())
    best = nearest(costs)
    assert [near.seconds for near in best] == pytest.approx([s for s in seconds[:3] if s <= NEAR * seconds[0]])
    assert [by_assignment[near.assignment] for near in best] == pytest.approx([near.seconds for near in best])
    assert len({near.assignment for near in best}) == len(best)
    for letters, wanted in by_assignment.items():
        assert predicted_s(costs, letters) == pytest.approx(wanted)
    assert nearest(costs.without_copies())[0].seconds <= best[0].seconds + 1e-9


def test_a_long_chain_is_planned_in_time_and_exactly():
    """Alternating sides by cheap copies: 600 stages have 2^600 stage assignments."""
    steps = [StageCost(*((1.0, 3.0) if i % 2 else (3.0, 1.0)), (f"v{i}",), (f"v{i + 1}",)) for i in range(600)]
    copies = {f"v{i}": 0.1 for i in range(601)}
    found = nearest(AssignmentCosts(steps, copies, copies, 0.1, {"v0": "cg"}, ("v600",)))
    assert found[0].assignment == "gc" * 300


@given(st.lists(st.floats(1e-7, 1e-2), min_size=1, max_size=20), st.floats(1e-7, 1e-2))
def test_stages_add_up_to_the_whole_and_keep_their_order(steps_s, whole_s):
    found = adding_up(steps_s, whole_s)
    assert sum(found) == pytest.approx(whole_s)
    ranked = sorted(range(len(steps_s)), key=steps_s.__getitem__)
    assert [found[i] for i in ranked] == pytest.approx(sorted(found))
    assert adding_up([1.5, 3.5], 4.0) == pytest.approx([1.0, 3.0]), "a clock reading costs every stage the same"


def test_what_a_narrow_search_finds_bounds_the_exact_one(monkeypatch):
    draw, tried, walk = random.Random(1), [], assignment.StageChain.walk
    steps = [
        StageCost(1 + draw.random() / 5, 1 + draw.random() / 5, tuple(f"v{j}" for j in sorted({i, max(0, i - 3), max(0, i - 7)})), (f"v{i + 1}",))
        for i in range(18)
    ]  # fmt: skip
    copies = {f"v{i}": 0.01 + draw.random() / 50 for i in range(19)}
    monkeypatch.setattr(assignment.StageChain, "walk", lambda *given: (tried.append(given), walk(*given))[1])
    best = nearest(AssignmentCosts(steps, copies, copies, 0.02, {"v0": "cg"}, ("v18",)))
    assert best[0].assignment == "cggcgggccgcgcccccc"
    assert len(tried) < 2000, "without the bound twice as many stages are tried"
