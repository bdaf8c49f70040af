"""The second gate: nothing that an earlier launch wrote passes for the answer of the last one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gpubench import backends, kernels
from gpubench.backends._host import calls_library, poison_for, random_inputs
from gpubench.measure.checking import Material, Wrong, gate
from gpubench.measure.sampling import Cycle
from gpubench.model.case import Case


@pytest.fixture
def session():
    opened = backends.load("numpy").open("numpy:0", 1)
    yield opened
    opened.close()


def cycle_of(session, folder, op, form, regime="resident", kind="random"):
    calls = 3 if regime == "transfer-once" else None
    case = Case(op, kernels.load(op).group, {"n": 1000}, "float32", form, regime, "numpy:0", calls)
    material = Material(session, kernels.load(op), case, 1, kind, folder)
    return Cycle(material, case, gate(material, case, lambda phase: None).launch)


@pytest.mark.parametrize("form", ["library", "tuned"])
@pytest.mark.parametrize("regime", ["resident", "transfer-once", "transfer-always"])
def test_a_launch_that_does_nothing_after_the_first_time_is_found(session, tmp_path, form, regime):
    cycle = cycle_of(session, tmp_path, "relu", form, regime)
    cycle.verify()
    session.run = lambda launch, repeat=1: None
    with pytest.raises(Exception, match=r"largest error|dtype|None"):  # wrong, or nothing there to download
        cycle.verify()


@pytest.mark.parametrize("form", ["library", "tuned"])
@pytest.mark.parametrize(
    "order", list(itertools.permutations(["resident", "transfer-once", "transfer-always"]))
)
def test_the_order_of_the_final_checks_does_not_matter(session, tmp_path, form, order):
    """The regimes of a form share their material: checking one leaves the answers of the others alone."""
    cases = {
        regime: Case(
            "relu",
            "activation",
            {"n": 1000},
            "float32",
            form,
            regime,
            "numpy:0",
            3 if "once" in regime else None,
        )
        for regime in order
    }
    material = Material(session, kernels.load("relu"), cases["resident"], 1, "random", tmp_path)
    launch = gate(material, cases["resident"], lambda phase: None).launch
    cycles = {regime: Cycle(material, case, launch) for regime, case in cases.items()}
    for cycle in cycles.values():
        cycle.seconds(2)
    for regime in order:
        cycles[regime].verify()


@pytest.mark.parametrize("form", ["library", "tuned"])
def test_what_the_last_sample_left_is_checked_before_anything_runs_again(session, tmp_path, form):
    """A kernel that was right at first and broke its output in the last launch would be right in the next one, too."""
    cycle = cycle_of(session, tmp_path, "relu", form)
    cycle.seconds(5)
    cycle.launch.output[17] += 1.0
    runs = []
    right = session.run
    session.run = lambda launch, repeat=1: runs.append(repeat) or right(launch, repeat)
    with pytest.raises(Wrong, match=r"largest error .* at \[17\]"):
        cycle.verify()
    assert runs == []
    cycle.seconds(1)
    cycle.verify()


def test_inputs_survive_the_poison(session, tmp_path):
    cycle = cycle_of(session, tmp_path, "saxpy", "tuned", "transfer-always")
    for _ in range(3):
        cycle.verify()
        cycle.seconds(2)
    expected = random_inputs(cycle.material.op, {"n": 1000}, "float32", 1)
    for got, want in zip(cycle.material.inputs, expected, strict=True):
        np.testing.assert_array_equal(got, want)


def test_an_answer_of_nan_is_not_poisoned_with_nan(session, tmp_path):
    """0 / 0 is NaN everywhere: NaN in an untouched output would pass for it."""
    assert np.isnan(poison_for(np.ones(3)))
    assert not np.isnan(poison_for(np.array([1.0, np.nan])))
    cycle = cycle_of(session, tmp_path, "div", "tuned", kind="zeros")
    cycle.verify()
    session.run = lambda launch, repeat=1: None
    with pytest.raises(Exception, match="largest error"):
        cycle.verify()


def test_a_session_that_tunes_does_so_with_the_inputs_before_anything_is_built_or_poisoned(session, tmp_path):
    case = Case("relu", "activation", {"n": 1000}, "float32", "tuned", "resident", "numpy:0")
    material = Material(session, kernels.load("relu"), case, 1, "random", tmp_path)
    seen, phases = [], []

    def tune(op, tuned, inputs):
        seen.append((op.name, tuned, [np.array(x) for x in inputs], dict(material.outputs)))

    session.tune = tune
    assert gate(material, case, phases.append).check.ok
    assert phases == ["upload", "autotune", "compile", "first launch", "check"]
    ((name, tuned, inputs, outputs),) = seen
    assert (name, tuned, outputs) == ("relu", case, {})
    np.testing.assert_array_equal(inputs[0], material.inputs[0])


def test_the_time_of_tuning_is_not_that_of_building(session, tmp_path):
    case = Case("relu", "activation", {"n": 1000}, "float32", "tuned", "resident", "numpy:0")
    material = Material(session, kernels.load("relu"), case, 1, "random", tmp_path)
    now = [0.0]

    def tune(op, case, inputs):
        now[0] += 100.0

    session.clock, session.tune = lambda: now[0], tune
    gated = gate(material, case, lambda phase: None)
    assert (gated.tune_s, gated.compile_s, gated.first_launch_s) == (100.0, 0.0, 0.0)


def test_a_session_without_candidates_has_no_such_phase(session, tmp_path):
    case = Case("relu", "activation", {"n": 1000}, "float32", "tuned", "resident", "numpy:0")
    phases = []
    gate(Material(session, kernels.load("relu"), case, 1, "random", tmp_path), case, phases.append)
    assert "autotune" not in phases


@pytest.mark.parametrize(
    ("op", "device", "form", "own"),
    [
        ("matmul", "cupy:0", "tuned", True), ("matmul", "cupy:0", "library", True), ("matmul", "wgpu:0", "tuned", False),
        ("add", "cupy:0", "tuned", False), ("add", "numpy:0", "library", True), ("matmul", "hybrid:cupy:0", "tuned", False),
    ],
)  # fmt: skip
def test_a_case_that_calls_the_library_makes_its_own_output(op, device, form, own):
    """No buffer is taken for it, and what an earlier launch left is let go before a check."""
    declared = kernels.load(op)
    one = Case(op, declared.group, {"n": 64}, "float32", form, "transfer-always", device)
    assert calls_library(declared, one) == own
