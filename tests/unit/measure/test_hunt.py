"""The search inside its budget, on simulated devices and a simulated clock: every verdict first, then fresh timings."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench import break_even, kernels
from gpubench.measure import curves, search
from gpubench.measure.plan import Constraints, Series, Target
from gpubench.measure.recorder import Recorder
from gpubench.measure.search import BreakEvenSearch
from gpubench.model.machine import Machine
from gpubench.model.result import (
    Block,
    Check,
    Device,
    Fingerprint,
    Fingerprints,
    Measurement,
    Run,
    Selection,
    Settings,
)

CPU, GPU = "numpy:0", "cupy:0"
DEVICES = [
    Device(id=CPU, backend="numpy", kind="cpu", name="c", api="host"),
    Device(id=GPU, backend="cupy", kind="gpu", name="g", api="cuda", usable_bytes=2**34),
]
CROSSINGS = {"add": 30_000.0, "relu": 700_000.0, "mul": 3_000_000.0}  # sizes at which both sides take 10 us


class Simulation:
    """Steps are measured in no time; the clock moves by what they would have taken."""

    def __init__(self, ops, *, budget_s, noise=0.0, timings=400, refine="auto", given=(), case_s=0.03):
        chosen = Settings(
            budget_s=budget_s,
            break_even_timings=timings,
            refine=refine,
            min_samples=5,
            max_samples=5,
            warmup_s=0.0,
        )
        self.constraints = Constraints(
            tuple(Target(device, ("library",)) for device in DEVICES), Selection(ops=list(ops), regimes=["resident-queued"]),
            2**36, settings=chosen,
        )  # fmt: skip
        empty = Fingerprint(hash="0", fields={})
        run = Run(
            id="0", started_at="t", selection=self.constraints.selection, settings=chosen, machine=Machine(),
            fingerprint=Fingerprints(machine=empty, device=empty, software=empty),
        )  # fmt: skip
        self.recorder = Recorder(run, lambda run: None)
        self.curves = [Series(kernels.load(op), "float32", given=given) for op in ops]
        self.now, self.case_s, self.steps = 0.0, case_s, []
        self._draw, self._noise = random.Random(1), noise
        self._budget_s = math.inf if budget_s is None else budget_s
        self.hunt = BreakEvenSearch(
            self.curves, self.constraints, self.recorder, lambda: self._budget_s - self.now
        )

    def measure(self, step):
        began = self.now
        for item in step.workloads:
            for case in item.cases:
                count = step.purpose.samples or 5
                fixed = 1e-5 * item.n / CROSSINGS[case.op] if case.device_id == CPU else 1e-5
                wall = [fixed * self._draw.lognormvariate(0, self._noise) for _ in range(count)]
                block = Block(session=0, round=0, position=0, repeat=1, phase=step.purpose.phase, wall_s=wall)
                if self.recorder.outcome(case.id) is None:
                    check = Check(ok=True, max_error=0, limit=1, scale="value")
                    self.recorder.put(
                        Measurement(id=case.id, case=case, flops=1, bytes=1, op_hash="0", check=check)
                    )
                self.recorder.add_block(case.id, block)
                self.now += self.case_s + 0.008 * count
        self.hunt.took(step, self.now - began)
        self.steps.append(step)

    def search(self):
        if self.curves[0].given:
            for curve in self.curves:
                for n in curve.given:
                    self.measure(self.hunt.whole(curve, n))
        for step in self.hunt.steps():
            self.measure(step)
        return self

    def estimated(self):
        found = search.windows_of(self.recorder.outcomes, {c.op.name: c.op for c in self.curves}, {CPU})
        return {window.series.op.name: window for window in found}

    def timings(self, op):
        """Timings of both sides that the break-even of one op took: of a size of the ladder five a side."""
        (curve,) = (curve for curve in self.curves if curve.op.name == op)
        grid = {*curve.ladder.sizes(), *curve.given}
        count = 0
        for outcome in self.recorder.outcomes:
            if outcome.case.op == op:
                for block in outcome.blocks:
                    plain = block.phase != "estimate" and outcome.case.params["n"] in grid
                    count += min(len(block.wall_s), curves.GRID_TIMINGS) if plain else len(block.wall_s)
        return count


@pytest.mark.parametrize("op", sorted(CROSSINGS))
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_one_curve_gets_all_its_timings_around_the_crossing(op, noise):
    simulation = Simulation([op], budget_s=60.0, noise=noise).search()
    window = simulation.estimated()[op]
    assert window.sizes[0] <= CROSSINGS[op] <= window.sizes[-1]
    assert window.sizes[-1] / window.sizes[0] <= 4.01
    assert 300 <= simulation.timings(op) <= 400
    assert simulation.now <= 60.0


@settings(deadline=None, max_examples=25)
@given(st.floats(0.5, 60.0), st.sampled_from([84, 200, 400]), st.floats(0, 0.1), st.floats(0.001, 0.3))
def test_whatever_the_budget_no_curve_goes_without_the_coarse_sizes_that_it_has_time_for(
    budget_s, timings, noise, case_s
):
    simulation = Simulation(CROSSINGS, budget_s=budget_s, noise=noise, timings=timings, case_s=case_s).search()
    # A step is begun if it is predicted to fit; what it then takes may be more, by one step.
    longest = max(
        sum(len(w.cases) for w in s.workloads) * (case_s + 0.008 * (s.purpose.samples or 5))
        for s in simulation.steps
    )
    assert simulation.now <= budget_s + longest
    first = next((i for i, step in enumerate(simulation.steps) if step.purpose.phase == "estimate"), None)
    if first is not None:
        coarse = {step.workloads[0].series.op.name for step in simulation.steps[:first]}
        assert coarse == set(CROSSINGS), "every curve is looked at before any is finished"
    for window in simulation.estimated().values():
        assert window.samples >= search.LEAST_SAMPLES
    for op in simulation.estimated():
        assert simulation.timings(op) <= timings + 2 * curves.BISECTION_TIMINGS


def test_where_the_time_does_not_do_for_all_the_cheaper_curves_are_finished():
    whole = Simulation(CROSSINGS, budget_s=60.0).search()
    assert set(whole.estimated()) == set(CROSSINGS)
    short = Simulation(CROSSINGS, budget_s=whole.now / 6).search()
    assert len(short.estimated()) < len(CROSSINGS)
    for curve in short.curves:
        ratios = search.middle_ratios(short.hunt.samples(curve), (GPU, "resident-queued"), {CPU})
        low, high = break_even.bracket(ratios)
        assert high <= low * curves.WIDE, "a bracket that still gives a verdict"


def test_noise_that_hides_the_side_is_met_with_fresh_timings_and_not_with_more_sizes():
    """Ties around a crossing keep the bracket of sure sizes wide, however many sizes are looked at."""
    simulation = Simulation(CROSSINGS, budget_s=30.0, noise=0.3).search()
    first = next(i for i, step in enumerate(simulation.steps) if step.purpose.phase == "estimate")
    looked = [step for step in simulation.steps[:first] if step.purpose.phase == "search"]
    assert len(looked) <= 3 * len(CROSSINGS)
    assert set(simulation.estimated()) == set(CROSSINGS)


def test_given_sizes_are_refined_between_them_and_without_a_budget():
    simulation = Simulation(["add"], budget_s=None, refine="on", given=(4096, 65536)).search()
    sizes = {w.n for step in simulation.steps for w in step.workloads}
    assert min(sizes) == 4096
    assert max(sizes) == 65536
    assert simulation.timings("add") <= 400
    assert simulation.estimated()["add"].samples >= 20


@pytest.mark.parametrize("done", [1, 4, 8, 14])
def test_a_search_that_was_interrupted_goes_on_where_it_was(done):
    simulation = Simulation(["add"], budget_s=60.0)
    for _, step in zip(range(done), simulation.hunt.steps(), strict=False):
        simulation.measure(step)
    left = 60.0 - simulation.now
    simulation.hunt = BreakEvenSearch(
        simulation.curves, simulation.constraints, simulation.recorder, lambda: left
    )
    simulation.search()
    plan = [w.n for step in simulation.steps if step.purpose.phase == "main" for w in step.workloads]
    assert len(plan) == len(set(plan)), "nothing is measured a second time"
    window = simulation.estimated()["add"]
    assert window.sizes[0] <= CROSSINGS["add"] <= window.sizes[-1]


def test_a_plain_list_is_measured_and_no_more():
    phases = {step.purpose.phase for step in Simulation(["add"], budget_s=60.0, refine="off").search().steps}
    assert phases == {"main"}


def test_a_curve_that_wins_and_loses_in_turn_gets_no_estimate(monkeypatch):
    """Its break-even is no single size: the report lists the crossings."""
    simulation = Simulation(["add"], budget_s=60.0)
    usual = simulation.measure

    def waves(step):
        for item in step.workloads:  # the GPU is slow between 100,000 and a million
            CROSSINGS["add"] = 30_000.0 if not 1e5 < item.n < 1e6 else 3e7
            usual(step)

    monkeypatch.setattr(simulation, "measure", waves)
    try:
        simulation.search()
    finally:
        CROSSINGS["add"] = 30_000.0
    assert simulation.estimated() == {}
