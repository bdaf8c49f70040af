"""Repeat counts and the facts of a clock, on a clock that the test moves."""

import gc
import itertools
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpubench import backends, kernels
from gpubench.backends.shared.blocks import Flush
from gpubench.measure import protocol
from gpubench.measure.worker import timer
from gpubench.measure.worker.workspace import Workspace, gate
from gpubench.result.case import Case
from tests.rows import rows

PLACE = {"session": 0, "round": 0, "position": 0}
FOUR_SAMPLES = protocol.Sample(id=1, case_id="relu", samples=4, warmup_s=0.0, limit_s=9.0, **PLACE)


class Stub:
    """A timer whose launches take `launch_s` each after `fixed_s` once a sample."""

    def __init__(self, fixed_s, launch_s, calls=None):
        self.fixed_s, self.launch_s, self.asked = fixed_s, launch_s, []
        self.case, self.launch, self.repeat = SimpleNamespace(calls=calls, regime="resident"), None, 1
        self.session = SimpleNamespace(time=lambda launch, repeat, cold: launch_s * repeat)

    def sample_s(self, repeat):
        return self.fixed_s + self.launch_s * repeat * (self.case.calls or 1)

    def seconds(self, repeat):
        self.asked.append(repeat)
        return self.sample_s(repeat) / (repeat * (self.case.calls or 1))


def timer_of(implementation, regime, **session):
    """The timer of a case on a session of which nothing else is asked."""
    own = {"transfers": lambda implementation: None, "ready_buffers": lambda *asked: None, **session}
    case = Case("relu", "activation", {"n": 8}, "float32", implementation, regime, "gpu:0")
    return timer.Timer(SimpleNamespace(session=SimpleNamespace(**own), op=kernels.load("relu")), case, None)


times = st.floats(1e-9, 1e-1)
TARGET = 2e-3
GPU = {"device": SimpleNamespace(kind="gpu", clock="its own"), "core_hz": lambda: None}


@pytest.mark.parametrize(("regime", "steps"), [
    ("resident-waited", ["launch 1", "wait"] * 3), ("resident-queued", ["launch 3", "wait"]),
    ("resident", ["launch 3", "wait"]),
])  # fmt: skip
def test_one_call_is_waited_for_and_queued_ones_together(regime, steps):
    seen = []
    timed = timer_of(
        "library", regime, clock=lambda: float(len(seen)), sync=lambda: seen.append("wait"),
        run=lambda launch, repeat=1: seen.append(f"launch {repeat}"),
    )  # fmt: skip
    assert timed.seconds(3) == len(steps) / 3
    assert seen == steps


@given(st.floats(0, 1e-3), st.floats(1e-9, 1e-2), st.floats(0, 1e-6), st.floats(0, 1e-7))
def test_a_sample_is_long_for_its_clock_and_its_overhead(overhead_s, least_s, step_s, cost_s):
    target = timer.sample_target_s(least_s, overhead_s, step_s, cost_s)
    assert target == max(least_s, 10 * overhead_s, 1000 * step_s, 10_000 * cost_s)


@given(st.floats(0, 1e-3), times, st.one_of(st.none(), st.integers(2, 20)), st.floats(1e-3, 1e-2))
def test_a_sample_is_long_enough_and_not_much_longer(fixed_s, launch_s, calls, target):
    stub = Stub(fixed_s, launch_s, calls)
    repeat = timer.calibrate(stub, target)
    assert 1 <= repeat <= 1 << 20
    long_enough = stub.sample_s(repeat) >= 0.495 * target
    assert long_enough or repeat == 1 << 20 or fixed_s > 0.1 * target
    assert repeat == 1 or stub.sample_s(repeat - 1) <= 1.001 * target
    assert len(stub.asked) <= (12 if fixed_s or repeat == 1 << 20 else 4)


@given(times, st.integers(2, 30), st.integers(0, 12))
def test_one_interrupted_sample_does_not_shorten_all_that_follow(launch_s, factor, hit):
    stub = Stub(0.0, launch_s)

    def seconds(repeat):
        found = Stub.seconds(stub, repeat)
        return found * factor if len(stub.asked) == hit + 1 else found

    stub.seconds = seconds
    repeat = timer.calibrate(stub, TARGET)
    assert stub.sample_s(repeat) >= 0.495 * TARGET or repeat == 1 << 20


class Predicted(timer.Timer):
    """A timer whose launches take `launch_s` each, the first one longer, with a count that is only predicted."""

    def __init__(self, launch_s, repeat, *, first_s=0.0, hot_repeat=None, settled=False, flush=None):
        plain = timer_of("tuned", "resident-queued", **GPU)
        super().__init__(plain.workspace, plain.case, None)
        self.launch_s, self.first_s, self.asked = launch_s, first_s, []
        self.repeat, self.hot_repeat, self.settled = repeat, hot_repeat, settled
        self.flush = flush or self.flush
        self.session.time = lambda launch, repeat, cold=False: launch_s * repeat

    def seconds(self, repeat):
        self.asked.append(repeat)
        return self.launch_s + (self.first_s if len(self.asked) == 1 else 0.0)

    def block(self, **changes):
        return timer.sample_block(self, msgspec.structs.replace(FOUR_SAMPLES, **changes), 0.0, TARGET).block


def test_a_case_that_is_warmed_up_keeps_those_samples_apart():
    timed = Predicted(1e-4, repeat=20)
    for step_s, taken in ((1.0, 1), (0.2, 3)):
        timed.session.clock = itertools.count(7.0, step_s).__next__
        block = timed.block(warmup_s=0.5)
        assert (block.warmup, len(block.wall_s)) == (taken, taken + 4)


@rows("timed, changes, repeat, asked", {
    "four launches are thrown away": (Predicted(1e-4, 20), {}, 20, [1, 1, 1, 1, 20, 20, 20, 20]),
    "or as many as fill ten milliseconds": (Predicted(4e-3, 1), {}, 1, [1] * (3 + 4)),
    "of a long launch none is": (Predicted(1e-1, 1), {"warm_up": False, "samples": 1}, 1, [1]),
    "a count far too high is lowered by it": (Predicted(1e-4, 1 << 20), {}, timer.SLOW * TARGET / 1e-4, None),
    "a slow first launch leaves no short samples": (Predicted(1e-5, 200, first_s=1.0), {}, 200, [1, 1, 200, 200, 200, 200]),
    "a count that was found stays": (Predicted(1e-4, 1 << 10, settled=True), {}, 1 << 10, None),
    "but for a fifth of what it should be": (Predicted(1e-4, 3, settled=True), {}, 20, None),
    "which a quarter is not": (Predicted(1e-4, 5, settled=True), {}, 5, None),
    "one that is far too low is raised before a sample counts": (Predicted(1e-4, 2), {}, 20, [1, 1, 1, 1, 2, 20, 20, 20, 20]),
    "with that of the device's clock": (Predicted(1e-4, 1, hot_repeat=1), {}, 20, None),
    "after a flush it is one": (Predicted(1e-6, 1, flush=lambda: None), {}, 1, [1] * (1 + 4)),
})  # fmt: skip
def test_a_block_has_as_many_launches_as_make_a_sample(timed, changes, repeat, asked):
    block = timed.block(**changes)
    assert block.repeat == repeat
    assert (block.warmup, block.wall_s) == (0, [timed.launch_s] * changes.get("samples", 4))
    assert asked in (None, timed.asked)
    assert block.hot_repeat in (None, repeat)
    assert timed.settled == (timed.flush is None)
    assert timed.block().repeat == repeat, "and so it stays"


def test_a_quantity_of_ones_own_is_read_behind_each_sample_that_counts(monkeypatch):
    read = []
    counter = SimpleNamespace(
        begin=read.clear, read=lambda: read.append("once"), end=lambda: {"t_s": float(len(read))}
    )  # fmt: skip
    monkeypatch.setattr(timer, "observers_of", lambda session: [counter])
    assert Predicted(1e-4, 2).block().t_s == 4.0


@example(0.3e-3)
@example(0.13e-3)
@given(times)
def test_a_device_sample_is_long_enough(launch_s):
    repeat = timer.calibrate_hot(Stub(0.0, launch_s))
    assert 1 <= repeat <= 2048
    assert launch_s * repeat >= 0.25e-3 or repeat == 2048
    assert launch_s >= 0.25e-3 if repeat == 1 else launch_s < 0.25e-3 and launch_s * repeat <= 1e-3


@pytest.fixture
def timed(tmp_path):
    """A timer of a case that NumPy computes."""
    session, op = backends.load("numpy").open("numpy:0", 1), kernels.load("relu")
    case = Case("relu", op.group, {"n": 100}, "float32", "library", "resident", "numpy:0")
    workspace = Workspace(session, op, case, 1, "random", tmp_path)
    launch = gate(workspace, case, lambda phase: None).launch
    yield lambda: timer.Timer(workspace, case, launch)
    session.close()


def test_caches_are_flushed_before_each_sample_and_not_inside_it(timed):
    stub, events = timed(), []
    session = stub.session
    run, clock = session.run, session.clock

    def noted_run(launch, repeat=1):
        events.append("gc" if gc.isenabled() else "run")
        return run(launch, repeat)

    session.run, session.clock = noted_run, lambda: events.append("clock") or clock()
    stub.flush = lambda: events.append("flush")
    block = timer.sample_block(stub, FOUR_SAMPLES, since=0.0).block
    times = len(block.wall_s)
    assert events.count("flush") == times + 1, "one launch is thrown away"
    assert " ".join(events).count("flush clock run clock") == times, "garbage is collected in none that counts"
    assert gc.isenabled()


CLOCKS = [1e9, 2e9, 3e9, 4e9]


@pytest.mark.parametrize(("reported", "kept"), [(CLOCKS, CLOCKS), ([1e9, None, 3e9, 4e9], None)])
def test_the_clock_is_counted_after_each_sample_and_never_inside_one(timed, reported, kept):
    session, events, answers = timed().session, [], iter(reported)
    clock = session.clock
    session.clock = lambda: events.append("clock") or clock()
    session.core_hz = lambda: events.append("count") or next(answers)
    block = timer.sample_block(timed(), FOUR_SAMPLES, since=0.0).block
    assert block.clock_hz == kept
    assert " ".join(events).endswith("count " + " ".join(["clock clock count"] * 3))
    assert events.count("count") == len(block.wall_s) - block.warmup == 4


@pytest.mark.parametrize(("launch_s", "read"), [(1e-3, ["hot", "cold"] * 4), (0.3, ["cold", "hot"] * 2)])
def test_a_long_launch_is_read_hot_and_cold_in_turn(launch_s, read):
    seen = []

    def time(launch, repeat, cold=False):
        seen.append("cold" if cold else "hot")
        return launch_s * repeat

    long = timer_of("tuned", "resident-queued", time=time, **GPU)
    long.seconds, long.hot_repeat = lambda repeat: launch_s, 2
    for turn in range(4):
        asked = msgspec.structs.replace(FOUR_SAMPLES, samples=1, round=turn, warm_up=False)
        block = timer.sample_block(long, asked, since=0.0).block
        assert {*(block.device_hot_s or ()), *(block.device_cold_s or ())} == {launch_s}
    assert seen == read


def test_the_steps_of_a_call_that_copies_add_up_and_are_read_where_they_are_wanted(tmp_path):
    session, op = backends.load("numpy").open("numpy:0", 1), kernels.load("relu")
    case = Case("relu", op.group, {"n": 100}, "float32", "tuned", "transfer-always", "numpy:0")
    workspace = Workspace(session, op, case, 1, "random", tmp_path)
    copying = timer.Timer(workspace, case, gate(workspace, case, lambda phase: None).launch)
    session.clock = itertools.count(7.0).__next__
    assert (copying.seconds(2), copying.steps) == (0.5, None)
    copying.steps = {}
    assert copying.seconds(2) == 13 / 2
    assert copying.steps == {"alloc_s": [2.0], "upload_s": [1.0], "launch_s": [1.0], "result_s": [1.0]}
    session.close()


@pytest.mark.parametrize("offers", [True, False])
def test_a_split_flushes_its_gpu(offers):
    """What is uploaded to a split is only referred to: it would leave the GPU's caches as they were."""
    session, reported = backends.load("hybrid").open("hybrid:fake:gpu"), []
    if offers:
        session.gpu.flush = lambda: reported.append("flush")
    session.gpu.upload = lambda buffer, host: reported.append(host.nbytes)
    flush = Flush(session, 1000)
    flush()
    flush()
    flush.close()
    assert set(flush.written.tolist()) == {2}, "all of the host's part is written"
    assert reported == ["flush" if offers else 256 << 20] * 2
    session.close()


def test_the_step_of_a_coarse_clock_is_found():
    readings = itertools.count()
    assert timer.clock_facts(lambda: next(readings) // 4 * 3) == (3, pytest.approx(3 / 4, rel=0.01))
    assert timer.clock_facts(lambda: 5.0) == (0.0, 0.0), "a clock that stands still has no step"


# ------------------------------------------------------------------ the hot time of a device without a clock


@pytest.mark.parametrize(("kind", "clock", "so"), [
    ("gpu", None, True), ("gpu", "own", False), ("cpu", None, False), ("hybrid", None, False),
])  # fmt: skip
def test_only_a_gpu_without_a_clock_needs_it_and_its_count_follows_no_wall_clock(kind, clock, so):
    stub = Stub(0.0, 1e-4)
    stub.session.device = SimpleNamespace(kind=kind, clock=clock)
    assert timer.derives(stub.session) is so
    stub.repeat, stub.hot_repeat = 40, 5
    timer.keep_queue(stub)
    assert stub.hot_repeat == (5 if so else 40)


class CostlySession:
    """A sample costs `fixed_s` once and `launch_s` for each launch; `late` samples are interrupted for a second."""

    def __init__(self, fixed_s, launch_s, late=()):
        self.now, self.fixed_s, self.launch_s = 0.0, fixed_s, launch_s
        self.late, self.samples, self.launches = set(late), 0, 0

    def clock(self):
        return self.now

    def empty_launch(self):
        return None

    def run(self, launch, repeat=1):
        self.now += repeat * self.launch_s + (1.0 if self.samples in self.late else 0.0)
        self.samples, self.launches = self.samples + 1, self.launches + repeat

    def sync(self):
        self.now += self.fixed_s


@given(st.floats(0, 1e-2), st.floats(1e-7, 1e-1), st.integers(1, 1000))
def test_what_a_sample_costs_besides_is_not_inside(fixed_s, launch_s, repeat):
    session = CostlySession(fixed_s, launch_s)
    assert timer.derived_hot_s(session, None, repeat) == pytest.approx(launch_s, rel=1e-6, abs=1e-9)
    assert session.launches == 4 * repeat


def test_an_overhead_is_an_empty_launch_with_its_wait_behind_a_warm_up():
    session = CostlySession(2e-6, 3e-6, late=range(10))
    assert timer.measure_overhead(session) == pytest.approx([5e-6] * 100)
    assert session.launches == 110
    assert timer.derived_hot_s(CostlySession(0.0, 1e-3, late=[0]), None, 10) is None
    assert timer.derived_hot_s(CostlySession(0.0, 1e-3, late=[1]), None, 10) > 1e-3


@given(st.floats(0, 1e-2), st.floats(1e-7, 1.0))
def test_launches_last_long_enough_and_not_much_longer(fixed_s, launch_s):
    repeat = timer.launches(CostlySession(fixed_s, launch_s), None, 2048)
    assert 1 <= repeat <= 2048
    assert repeat * launch_s + fixed_s >= 2.5e-3 or repeat == 2048
    assert repeat == 1 or repeat * launch_s <= 2 * timer.SPAN_S
