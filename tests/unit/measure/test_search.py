"""The search inside its budget, on simulated devices and a simulated clock: every top first, then the crossings."""

from __future__ import annotations

import math
import random
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench import kernels
from gpubench.measure import curves, search
from gpubench.measure.plan import Constraints, Series, Target
from gpubench.measure.recorder import Recorder
from gpubench.measure.search import ANSWERED, BreakEvenSearch, first_sizes
from gpubench.model.machine import Machine
from gpubench.model.result import (
    Block,
    Check,
    Device,
    Failure,
    Fingerprint,
    Fingerprints,
    Measurement,
    Run,
    Selection,
    Settings,
)
from tests.examples import examples

CPU, GPU = "numpy:0", "cupy:0"
CURVE = (GPU, "resident-queued")
DEVICES = [
    Device(id=CPU, backend="numpy", kind="cpu", name="c", api="host"),
    Device(id=GPU, backend="cupy", kind="gpu", name="g", api="cuda", usable_bytes=2**34),
]
CROSSINGS = {"add": 30_000.0, "relu": 700_000.0, "mul": 3_000_000.0}  # sizes at which both sides take 10 us
CASE_S = 0.03  # what a case takes beside its launches
LAUNCHES = 12  # of each case: blocks, checks


def gpu_s(n, crossing):
    """Seconds of a launch; it wins above the crossing."""
    return 1e-5 * (0.9 + 0.1 * n / crossing)


def cpu_s(n, crossing):
    return 1e-5 * n / crossing


class Simulation:
    """Steps are measured in no time; the clock moves by what they would have taken.

    `slow` multiplies all times of an op, `fails(case)` says which cases break.
    """

    def __init__(
        self, ops=tuple(CROSSINGS), *, budget_s=60.0, noise=0.0, refine="auto", given=(), slow=(), host_bytes=2**36,
        fails=lambda case: False, gpu=gpu_s, cpu=cpu_s, regimes=("resident-queued",), copy_s=lambda n: 0.0,
    ):  # fmt: skip
        chosen = Settings(budget_s=budget_s, refine=refine, min_samples=4, max_samples=8, warmup_s=0.0)
        targets = tuple(Target(device, ("library",)) for device in DEVICES)
        self.constraints = Constraints(
            targets, Selection(ops=list(ops), regimes=list(regimes)), host_bytes, settings=chosen
        )
        empty = Fingerprint(hash="0", fields={})
        run = Run(
            id="0", started_at="t", selection=self.constraints.selection, settings=chosen, machine=Machine(),
            fingerprint=Fingerprints(machine=empty, device=empty, software=empty),
        )  # fmt: skip
        self.recorder = Recorder(run, lambda run: None)
        self.series = [Series(kernels.load(op), "float32", given=given) for op in ops]
        self.now, self.steps, self.slow, self.fails, self.gpu_s, self.cpu_s = (
            0.0,
            [],
            dict(slow),
            fails,
            gpu,
            cpu,
        )
        self.copy_s = copy_s
        self._draw, self._noise = random.Random(1), noise
        self.budget_s = math.inf if budget_s is None else budget_s
        self.resume()

    def resume(self):
        """A search that knows no more than the file."""
        self.search = BreakEvenSearch(
            self.series, self.constraints, self.recorder, lambda: self.budget_s - self.now
        )

    def measure(self, step):
        began = self.now
        for item in step.workloads:
            for case in item.cases:
                crossing = CROSSINGS.get(case.op)
                seconds = (self.cpu_s if case.device_id == CPU else self.gpu_s)(item.n, crossing)
                seconds += 0.0 if case.resident else self.copy_s(item.n)
                self._enter(case, seconds * self.slow.get(case.op, 1), step.purpose.blocks or 4)
        self.search.took(step, self.now - began)
        self.steps.append(step)

    def _enter(self, case, seconds, blocks):
        self.now += CASE_S + LAUNCHES * seconds
        if self.fails(case):
            self.recorder.put(Failure(id=case.id, case=case, reason="timeout", detail=""))
            return
        if self.recorder.outcome(case.id) is None:
            check = Check(ok=True, max_error=0, limit=1, scale="value")
            self.recorder.put(Measurement(id=case.id, case=case, flops=1, bytes=1, op_hash="0", check=check))
        for number in range(blocks):
            middle = seconds * self._draw.lognormvariate(0, self._noise)
            self.recorder.add_block(
                case.id, Block(session=0, round=number, position=0, repeat=1, wall_s=[middle] * 2)
            )

    def run(self, most=1000):
        for _, step in zip(range(most), self.search.steps(), strict=False):
            self.measure(step)
        return self

    def sizes(self, op, steps=None):
        """By step the sizes at which the op was measured."""
        found = self.steps if steps is None else steps
        return [w.n for step in found for w in step.workloads if w.op.name == op and w.cases]

    def state(self, op):
        """What is known of the op's curve."""
        (one,) = (one for one in self.series if one.op.name == op)
        self.resume()
        return curves.state_of(self.search.known(one), CURVE, {CPU}, {})


@settings(deadline=None, max_examples=examples(20))
@given(st.floats(2.0, 60.0), st.floats(0, 0.1))
def test_every_op_has_its_top_before_its_crossing_is_looked_for(budget_s, noise):
    simulation = Simulation(budget_s=budget_s, noise=noise).run()
    for one in simulation.series:
        sizes = simulation.sizes(one.op.name)
        ends = first_sizes(one.ladder)
        assert sorted(sizes[: len(ends)]) == ends
    # A step is begun if it is predicted to fit, so what it takes beyond that is little.
    assert simulation.now <= budget_s * 1.05 + CASE_S


@pytest.mark.parametrize("op", sorted(CROSSINGS))
@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_the_crossing_is_found(op, noise):
    state = Simulation([op], noise=noise).run().state(op)
    assert not state.open(ANSWERED)
    assert state.crossing.low <= CROSSINGS[op] * 1.02
    assert CROSSINGS[op] <= state.crossing.high * 1.02
    assert state.crossing.n == pytest.approx(CROSSINGS[op], rel=0.15), "a line stands for a bent curve"


def test_no_size_is_measured_twice():
    simulation = Simulation(noise=0.05).run()
    for op in CROSSINGS:
        assert max(Counter(simulation.sizes(op)).values()) == 1


def test_what_is_measured_is_of_the_plan():
    """Later sessions repeat it, and old engines' phases do not come back."""
    assert {step.purpose.phase for step in Simulation().run().steps} == {"main"}


def test_a_top_that_takes_too_long_is_halved_and_said():
    simulation = Simulation(slow={"mul": 2e5}).run()
    (one,) = (one for one in simulation.series if one.op.name == "mul")
    largest = max(simulation.sizes("mul"))
    (warning,) = simulation.recorder.run.warnings
    assert (warning.code, warning.data["op"]) == ("top-halved", "mul")
    assert f"n = {largest}, not {one.ladder.high}" in warning.message
    assert max(simulation.sizes("add")) == one.ladder.high, "the others keep theirs"
    assert simulation.now <= 60 * 1.5


def test_a_form_that_was_timed_at_the_smallest_size_alone_does_not_halve_the_top():
    """There its launch takes most of the time, which does not grow with the work."""
    simulation = Simulation(["add"], cpu=lambda n, crossing: 1e-3 + 1e-10 * n)
    targets = tuple(Target(device, ("library", "tuned")) for device in DEVICES)
    simulation.constraints = msgspec.structs.replace(simulation.constraints, targets=targets)
    simulation.resume()
    simulation.run()
    (one,) = simulation.series
    timed = {
        item.n
        for step in simulation.steps
        for item in step.workloads
        for case in item.cases
        if (case.device_id, case.form) == (CPU, "library")
    }
    assert min(timed) == first_sizes(one.ladder)[0]
    assert not timed & set(first_sizes(one.ladder)[1:-1]), "or this would show nothing"
    assert max(simulation.sizes("add")) == one.ladder.high
    assert simulation.recorder.run.warnings == []


def test_what_a_call_copies_grows_with_its_bytes():
    """A product grows with the cube of its side. Copies that were taken to do so too halved its top."""
    simulation = Simulation(
        ["matmul"], cpu=lambda n, _: 1e-5 * (n / 190) ** 3, gpu=lambda n, _: 1e-5 + 1e-5 * (n / 600) ** 3,
        regimes=["resident-waited", "transfer-always"], copy_s=lambda n: 12 * n**2 / 1e10, budget_s=1.8,
    )  # fmt: skip
    simulation.run()
    assert max(simulation.sizes("matmul")) == simulation.series[0].ladder.high
    assert simulation.recorder.run.warnings == []


def test_a_top_that_was_halved_for_a_slow_moment_is_reached_after_all():
    """The halved one is measured at another moment, and tells what the whole one takes."""
    op = kernels.load("matmul")
    *_, middle, high = first_sizes(op.sizes)

    def cpu(n, _):
        return 1e-5 * (n / 190) ** 3 * (4 if n == middle else 1)

    simulation = Simulation(["matmul"], cpu=cpu, gpu=lambda n, _: 1e-5 + 1e-5 * (n / 600) ** 3, budget_s=3.5)
    simulation.run()
    sizes = simulation.sizes("matmul")
    assert high / 2 in sizes, "or this would show nothing"
    assert high in sizes
    assert simulation.recorder.run.warnings == []


@pytest.mark.parametrize("slow", [1, 1e9])
def test_of_a_cpu_alone_plain_numpy_is_timed_at_the_largest_size(slow):
    """The answer compares with it there, also where the top takes too long."""
    simulation = Simulation(["add"], slow={"add": slow})
    targets = (Target(DEVICES[0], ("library", "tuned")),)
    simulation.constraints = msgspec.structs.replace(simulation.constraints, targets=targets)
    simulation.resume()
    simulation.run()
    cases = [case for step in simulation.steps for item in step.workloads for case in item.cases]
    largest = max(case.params["n"] for case in cases)
    assert {case.form for case in cases if case.params["n"] == largest} == {"library", "tuned"}
    (one,) = simulation.series
    assert (largest == one.ladder.high) is (slow == 1)


@pytest.mark.parametrize("where", [CPU, GPU])
def test_a_size_that_fails_is_not_asked_for_again_and_again(where):
    simulation = Simulation(["add"], fails=lambda case: case.device_id == where and case.params["n"] > 20_000)
    simulation.run()
    found = Counter(simulation.sizes("add"))
    assert max(found.values()) == 1
    assert len(found) < 20


@pytest.mark.parametrize("high", [5_000, 100_000, 3_000_000])
def test_a_top_that_memory_does_not_hold_is_skipped_and_a_smaller_one_measured(high):
    needed = 12 * high + 3 * 12 * high * 2  # operands, and their float64 copies while checking
    simulation = Simulation(["add"], host_bytes=needed / 0.8).run()
    assert high / 2.3 <= max(simulation.sizes("add")) <= high
    skips = {skip.reason for step in simulation.steps for w in step.workloads for skip in w.skips}
    assert skips == {"out-of-memory"}


def test_sizes_that_a_filter_leaves_out_leave_ends_between_them():
    simulation = Simulation(["add"])
    kept = msgspec.structs.replace(simulation.constraints, keep=lambda case: 4096 <= case.params["n"] < 2**21)
    simulation.constraints = kept
    simulation.resume()
    assert not simulation.run().state("add").open(ANSWERED)
    assert all(4096 <= n < 2**21 for n in simulation.sizes("add"))


def test_what_did_not_fit_the_share_of_an_op_is_asked_for_when_time_is_left():
    """A busy op may use up what the others leave: a size that was put off is no size that was measured."""
    whole = Simulation(["add", "mul"], noise=0.05).run()
    short = Simulation(["add", "mul"], noise=0.05, budget_s=whole.now / 3).run()
    assert short.now <= whole.now / 3 * 1.05 + CASE_S
    short.budget_s = 60.0
    short.run()
    assert all(not short.state(op).open(ANSWERED) for op in ("add", "mul"))


def test_an_op_that_found_no_time_comes_before_what_is_left_to_narrow_of_another():
    """A machine's first run: the ends of the first op take so long that those of all others seem to, too."""

    class FirstRun(Simulation):
        def measure(self, step):
            self.now += 0 if self.steps else 0.4 * self.budget_s
            super().measure(step)

    whole = Simulation(noise=0.05).run()
    simulation = FirstRun(noise=0.05, budget_s=whole.now).run()
    for one in simulation.series:
        narrowing = set(simulation.sizes(one.op.name)) - set(first_sizes(one.ladder))
        assert narrowing or not simulation.state(one.op.name).open(ANSWERED)


@pytest.mark.parametrize("factor", [0.01, 100.0])
def test_curves_that_do_not_cross_ask_for_nothing_beyond_their_ends(factor):
    simulation = Simulation(["add"], gpu=lambda n, crossing: factor * 1e-5 * n / crossing).run()
    assert sorted(simulation.sizes("add")) == first_sizes(simulation.series[0].ladder)


def test_a_curve_that_loses_again_past_a_power_of_two_is_seen():
    """Padded kernels do: a size just above the threshold is no promise for all larger ones."""

    def padded(n, crossing):
        return gpu_s(2 ** math.ceil(math.log2(n)) * 6 if n > 1e6 else n, crossing)

    simulation = Simulation(["add"], gpu=padded).run()
    above = [n for n in simulation.sizes("add") if (n - 1) & (n - 2) == 0]
    assert above, "sizes 2^j + 1"


def test_given_sizes_are_refined_between_them_and_without_a_budget():
    simulation = Simulation(["add"], budget_s=None, refine="on", given=(4096, 2**18))
    for n in (4096, 2**18):
        simulation.measure(simulation.search.whole(simulation.series[0], [n]))
    simulation.run()
    assert all(4096 <= n <= 2**18 for n in simulation.sizes("add"))
    assert not simulation.state("add").open(ANSWERED)


@pytest.mark.parametrize(("refine", "budget_s"), [("off", 60.0), ("auto", None)])
def test_without_a_search_the_ladder_is_measured_and_no_more(refine, budget_s):
    simulation = Simulation(["add"], refine=refine, budget_s=budget_s).run()
    assert simulation.sizes("add") == simulation.series[0].ladder.sizes()


@pytest.mark.parametrize("done", [1, 2, 4, 7])
def test_a_search_that_was_interrupted_goes_on_where_it_was(done):
    simulation = Simulation(["add"], noise=0.03).run(most=done)
    simulation.resume()
    simulation.run()
    assert max(Counter(simulation.sizes("add")).values()) == 1
    assert not simulation.state("add").open(ANSWERED)


def test_only_forms_that_compete_are_measured_around_the_crossing():
    constraints = Simulation(["add"]).constraints
    state = curves.CurveState({1000: 0.5, 4000: 2.0}, (1000, 4000), None)
    base, far = (CPU, "library", "resident"), (CPU, "tuned", "resident")
    fast, slow = (GPU, "tuned", CURVE[1]), (GPU, "library", CURVE[1])
    row = {base: {0: [1.0]}, far: {0: [1.0 * search.FAR_BEHIND + 0.1]}, fast: {0: [0.5]}, slow: {0: [0.6]}}
    hunted = BreakEvenSearch((), constraints, Simulation(["add"]).recorder, lambda: 60.0)
    assert hunted.contenders({1000: row, 4000: row}, CURVE, state, 2000) == {base, fast}
