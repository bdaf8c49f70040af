"""When sampling of a case ends, and which samples count."""

from collections import defaultdict
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpubench import kernels
from gpubench.base.messages import REASONS
from gpubench.measure import budget, case_run, protocol, runner
from gpubench.measure.budget import Budget, stop_reason
from gpubench.measure.case_run import CaseRun, Runtime
from gpubench.measure.plan import MAIN, Purpose, Step, Workload
from gpubench.measure.recorder import CaseDone, CaseStarted, Progress, Recorder, settled_block
from gpubench.measure.worker_pool import DeviceGone, Loss, WorkerGone
from gpubench.result.case import FUNCTIONS
from gpubench.result.run import Failure, Measurement, Parts, SessionFailure, Settings, Skip
from tests.unit.measure.builders import RIGHT, block, case, empty_run, measured, stage_times

settings = st.builds(
    lambda low, more, **limits: Settings(min_samples=low, max_samples=low + more, **limits),
    st.integers(2, 20), st.integers(0, 20), precision=st.floats(0.001, 0.5), max_time_s=st.floats(0.01, 10),
)  # fmt: skip

CASE, ON_CPU = case(64, "fake:gpu", "resident-queued"), case(64, "fake:cpu")


def counted(phase, repeat, hot_repeat=None):
    return block(phase=phase, repeat=repeat, hot_repeat=hot_repeat)


@pytest.mark.parametrize(("blocks", "kept"), [
    ([], None),
    ([counted("sweep", 9)], None),
    ([counted("sweep", 9), counted("main", 3, 7), counted("main", 3, 7), counted("sweep", 9)], (3, 7)),
    ([counted("main", 1, 7), counted("main", 38, 38)], (38, 7)),
])  # fmt: skip
def test_a_case_keeps_its_counts_but_for_one_that_was_far_too_small(blocks, kept):
    found = settled_block(measured(CASE, *blocks))
    assert (found and (found.repeat, found.hot_repeat)) == kept


@pytest.mark.parametrize(("runs", "seconds"), [
    ([], 0.0),
    ([(64, "fake:gpu", "resident-queued", 0.5), (64, "fake:gpu", "resident-waited", 0.5)], 0.5),
    ([(128, "fake:gpu", "resident-queued", 1.0), (64, "fake:gpu", "resident-queued", 0.5)], 1.5),
    ([(64, "fake:gpu", "transfer-always", 0.5), (64, "fake:gpu", "resident-queued", 0.5)], 1.0),
    ([(64, "fake:gpu", "resident-queued", 0.5), (64, "fake:cpu", "resident", 2.0)], 2.0),
])  # fmt: skip
def test_the_last_checks_take_those_of_the_slowest_device(runs, seconds):
    started = [SimpleNamespace(case=case(*where), check_s=check_s) for *where, check_s in runs]
    assert runner.last_checks_s(started) == seconds


blocks = st.lists(st.lists(st.floats(1e-9, 10), min_size=1, max_size=5), max_size=12)


def count(kept):
    return sum(map(len, kept))


@given(blocks, st.floats(0, 20), st.floats(-5, 60), settings)
def test_a_reason_to_stop_is_true(kept, sampling_s, left_s, wanted):
    reason = stop_reason(kept, sampling_s, left_s, wanted)
    if left_s <= 0:
        assert reason == "timeout"
    elif count(kept) < wanted.min_samples:
        assert reason is None, "never before the minimum"
    elif reason == "max-samples":
        assert count(kept) >= wanted.max_samples
    elif reason == "precision":
        assert len(kept) >= 4, "fewer blocks do not tell how far they lie apart"
    elif reason == "max-time":
        assert sampling_s >= wanted.max_time_s
    else:
        assert count(kept) < wanted.max_samples
        assert sampling_s < wanted.max_time_s


@given(st.floats(1e-9, 10), settings, st.integers(0, 15))
@example(1.0, Settings(), 0)
@example(1.0, Settings(min_samples=2, max_samples=20), 4)
@example(1.0, Settings(min_samples=2, max_samples=20), 3)
@example(1.0, Settings(min_samples=2, max_samples=20, precision=0.0), 4)
def test_equal_blocks_are_precise_at_the_minimum(value, wanted, number):
    kept = [[value] * 2] * number
    reason = stop_reason(kept, 0.0, 60.0, wanted)
    assert number or budget.estimate([]) == (0.0, None), "heat may spoil all samples"
    enough = count(kept) >= wanted.min_samples and number >= 4
    assert (reason == "precision") == (enough and count(kept) < wanted.max_samples)


@given(blocks, settings, st.integers(1, 12), st.floats(0, 20))
def test_a_number_of_blocks_that_is_wanted_alone_decides(kept, chosen, wanted, sampling_s):
    reason = stop_reason(kept, sampling_s, 60.0, chosen, target=wanted)
    assert reason == ("max-samples" if len(kept) >= wanted else None)


class NoDevice:
    """A pool whose device is gone."""

    load = reallocate = lambda self, *_: None

    def take_losses(self, device_ids):
        return {}

    def worker(self, device_id):
        raise DeviceGone("device-lost", "the device fell off the bus", "plug it in")

    def holds(self, device_id, worker):
        return False


def runtime(pool, recorder=None, wanted=None, **more):
    """The parts of a session on this pool, whose devices are GPUs if nothing else is said."""
    recorder = recorder or Recorder(empty_run(), lambda run: None)
    usual = {"sink": lambda event: None, "session": 0, "budget": Budget(), "kinds": defaultdict(lambda: "gpu")}
    parts = {"settings": wanted or recorder.run.settings, "progress": Progress(1, 2, lambda: None)}
    return Runtime(pool=pool, recorder=recorder, **(usual | parts | more))


ADD = kernels.load("add")


def step_of(case, op=ADD, purpose=MAIN):
    return Step((Workload(op, {"n": 64}, "float32", (case,)),), purpose)


def measure(runtime, case):
    step = runner.StepRun(runtime, step_of(case))
    step.sample()
    assert step.finish()


@pytest.mark.parametrize("earlier", [0, 2])
def test_what_a_case_measured_before_the_budget_ended_its_worker_goes_unchecked_and_is_dropped(earlier):
    before = measured(CASE, *[counted("main", 1)] * earlier)
    recorder, events = Recorder(empty_run(before), lambda run: None), []
    parts = runtime(NoDevice(), recorder, sink=events.append, budget=Budget(1.0))
    (workload,) = step_of(CASE).workloads
    run = CaseRun(CASE, parts, workload, before=before if earlier else None)
    recorder.add(CASE.id, blocks=counted("main", 1))
    run.lose(WorkerGone("timeout", "no answer", "prepare", "", phase_s=0.5))
    assert ([type(event) for event in events], parts.progress.finished) == ([CaseDone], 1), (
        "each case that began ends"
    )
    outcome = recorder.outcome(CASE.id)
    assert outcome == before if earlier else (outcome.reason == "budget")


def test_a_device_that_is_gone_keeps_what_was_measured_in_an_earlier_session_and_skips_the_rest():
    known, unknown = measured(CASE, block([1e-6, 1e-6])), msgspec.structs.replace(CASE, params={"n": 65})
    recorder, events = Recorder(empty_run(known), lambda run: None), []
    for each, session in ((CASE, 1), (unknown, 0)):
        measure(runtime(NoDevice(), recorder, session=session, sink=events.append), each)
    assert [type(event) for event in events] == [CaseStarted, CaseDone] * 2
    kept, skip = recorder.outcome(CASE.id), recorder.outcome(unknown.id)
    assert kept.blocks == known.blocks
    assert [(failure.session, failure.reason) for failure in kept.failures] == [(1, "device-lost")]
    assert (type(skip), skip.reason) == (Skip, "device-lost")


class SlowWorker:
    """Answers everything; a block of samples takes 25 s of a scripted clock, and each deadline is kept."""

    next_id = 1

    def __init__(self, clock, block_s=25.0, launch_s=None):
        self.clock, self.block_s, self.launch_s = clock, block_s, launch_s
        self.deadlines, self.asked, self.samples, self.warm_ups, self.limits = {}, [], [], [], []
        self.replies, self.requests = {}, []

    def send(self, request):
        pass

    def wait(self, request, deadline_s):
        self.deadlines[type(request)] = deadline_s
        self.asked.append(type(request))
        self.requests.append(request)
        if type(request) in self.replies:
            return self.replies[type(request)]
        match request:
            case protocol.Prepare():
                return protocol.Prepared(
                    id=1, check=RIGHT, op_hash="0", kernel_hash=None, flops=1, bytes=1, staging="pageable",
                    parts=Parts(session=0, first_launch_s=self.launch_s),
                )  # fmt: skip
            case protocol.Sample():
                self.clock[0] += self.block_s
                self.samples.append(request.samples)
                self.warm_ups.append((request.warm_up, request.warmup_s))
                self.limits.append(request.limit_s)
                # Each block is slower than the one before: equal ones would be precise.
                launch_s = (self.launch_s or 1.0) * len(self.samples)
                taken = [value * launch_s for value in (1.0, 2.0, 1.5, 4.0, 3.0)]
                return protocol.Sampled(id=1, block=block(taken[: request.samples]))
        return protocol.Done(id=1)


class OneWorker(NoDevice):
    """A pool of one."""

    replacement = None
    monitor = SimpleNamespace(watch=lambda device_id: None, rest=list, judge=lambda name, block, *read: block)

    def __init__(self, worker):
        self._worker, self.reallocated = worker, []

    def worker(self, device_id):
        return self.replacement or self._worker

    def holds(self, device_id, worker):
        return worker is self.worker(device_id)

    def reallocate(self, device_ids, budget):
        self.reallocated.append(device_ids)


def slowly_measured(monkeypatch, wanted, block_s=25.0, launch_s=None, kind="cpu", steps=1, left=None):
    """The worker and the outcome of one case whose blocks take so long, in so many steps."""
    clock = [0.0]
    monkeypatch.setattr(case_run, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    worker = SlowWorker(clock, block_s, launch_s)
    parts = runtime(OneWorker(worker), wanted=wanted, budget=left or Budget(), kinds={"fake:cpu": kind})
    for _ in range(steps):
        measure(parts, ON_CPU)
    worker.reallocated = parts.pool.reallocated
    return worker, parts.recorder.outcome(ON_CPU.id)


def open_end(least, most, **more):
    """Settings under which samples are neither precise nor out of time."""
    return Settings(min_samples=least, max_samples=most, precision=1e-9, max_time_s=1000.0, **more)


class CheckingWorker(SlowWorker):
    """Its last check is wrong, or right."""

    def __init__(self, right):
        super().__init__([0.0], block_s=0.0)
        self.right, self.sent = right, []

    def send(self, request):
        self.sent.append(type(request))

    def wait(self, request, deadline_s):
        reply = super().wait(request, deadline_s)
        if isinstance(request, protocol.Finish) and not self.right:
            return protocol.Broke(id=1, reason="wrong-result", detail="it is wrong")
        return reply


@pytest.mark.parametrize("right", [True, False])
def test_the_last_checks_are_asked_for_before_they_are_waited_for(right):
    """What comes next is chosen meanwhile, and anew where a check fails."""
    worker = CheckingWorker(right)
    parts = runtime(OneWorker(worker), wanted=Settings(min_samples=2, max_samples=2))
    run = runner.StepRun(parts, step_of(ON_CPU, purpose=Purpose(blocks=1)))
    run.sample()
    assert (worker.sent[-1], protocol.Finish in worker.asked) == (protocol.Finish, False)
    assert isinstance(parts.recorder.outcome(ON_CPU.id), Measurement)
    assert (run.finish(), worker.asked[-1]) == (right, protocol.Finish)
    assert isinstance(parts.recorder.outcome(ON_CPU.id), Measurement if right else Failure)


@pytest.mark.parametrize("ready", [True, False])
def test_a_case_whose_worker_was_replaced_is_prepared_again_before_its_last_check(ready):
    parts = runtime(OneWorker(CheckingWorker(True)), wanted=Settings(min_samples=2, max_samples=2))
    run = runner.StepRun(parts, step_of(ON_CPU, purpose=Purpose(blocks=1)))
    run.sample()
    parts.pool.replacement = CheckingWorker(True)
    if not ready:
        parts.pool.replacement.wait = lambda *_: protocol.Broke(
            id=1, reason="wrong-result", detail="it is wrong"
        )
    assert run.finish() == ready
    assert parts.pool.replacement.sent == [protocol.Prepare, protocol.Finish][: 1 + ready]


@pytest.mark.parametrize(("kind", "again"), [("cpu", {"fake:cpu"}), ("gpu", set())])
def test_a_size_that_comes_again_on_a_cpu_lies_in_other_memory(monkeypatch, kind, again):
    worker, _ = slowly_measured(monkeypatch, open_end(2, 2, case_timeout_s=600.0), kind=kind, steps=3)
    assert worker.reallocated == [set(), again, again]


# A third block had 10 s left for its 25.
@pytest.mark.parametrize(("timeout_s", "blocks"), [(20.0, 1), (60.0, 2)])
def test_a_case_that_is_late_with_enough_samples_gets_its_last_check_alone(monkeypatch, timeout_s, blocks):
    worker, found = slowly_measured(monkeypatch, open_end(2, 90, case_timeout_s=timeout_s))
    assert (type(found), [stop.reason for stop in found.stops]) == (Measurement, ["timeout"])
    assert (worker.asked.count(protocol.Sample), worker.deadlines[protocol.Finish]) == (blocks, timeout_s)


@pytest.mark.parametrize(("least", "most", "blocks_of"), [
    (5, 7, [2, 2, 2, 1]), (5, 5, [2, 2, 1]), (7, 13, [2] * 6 + [1]), (2, 9, [2, 2, 2, 2, 1]), (2, 3, [2, 1]),
])  # fmt: skip
def test_no_case_has_more_samples_than_it_may_have(monkeypatch, least, most, blocks_of):
    worker, found = slowly_measured(monkeypatch, open_end(least, most), 0.1, launch_s=1e-6)
    assert (worker.samples, [stop.reason for stop in found.stops]) == (blocks_of, ["max-samples"])


def test_a_case_that_is_late_with_too_few_samples_has_failed(monkeypatch):
    _, found = slowly_measured(monkeypatch, open_end(3, 90, case_timeout_s=20.0))
    assert (type(found), found.reason, found.detail) == (
        Failure, "timeout", "2 of 3 samples within the case's time limit")  # fmt: skip
    assert (found.hint, found.phase) == (REASONS["timeout"].remedy, "sample")


STAGES, SIDES = stage_times(4)


@pytest.mark.parametrize(("reply", "stages", "sides"), [
    (protocol.TimedStages(id=1, times=STAGES, assignment_times=SIDES), [STAGES], SIDES),
    (protocol.TimedStages(id=1), None, None), (protocol.Done(id=1), None, None)])  # fmt: skip
def test_stages_are_timed_once_the_case_is_measured(reply, stages, sides):
    worker = SlowWorker([0.0])
    parts = runtime(OneWorker(worker), session=4, wanted=Settings(case_timeout_s=9.0))
    run = CaseRun(ON_CPU, parts, *step_of(ON_CPU).workloads)
    run.time_stages(2.0)
    assert worker.asked == [], "there is nothing to time"
    run.prepare(first=True)
    run.left_s, worker.replies = -1.0, {protocol.TimeStages: reply}
    run.time_stages(2.0)
    assert (worker.deadlines[protocol.TimeStages], run.assign_stages(3.0)) == (9.0, sides)
    outcome = parts.recorder.outcome(ON_CPU.id)
    assert (outcome.stages or None, outcome.assignment_times or None) == (stages, sides and [sides])
    asked = [
        (asked.case_id, asked.session, asked.limit_s, asked.assignment_times) for asked in worker.requests[1:]
    ]
    assert asked == [(ON_CPU.id, 4, 2.0, False), (ON_CPU.id, 4, 3.0, True)]


@pytest.mark.parametrize("works", [True, False])
def test_all_workers_begin_their_work_at_one_moment(works):
    worker = SlowWorker([0.0])
    reply = protocol.Worked(id=1, repeat=2, begin_s=0.0, ends_s=[1.0]) if works else protocol.Done(id=1)
    worker.replies = {protocol.Work: reply}
    parts = runtime(OneWorker(worker), wanted=Settings(case_timeout_s=9.0))
    run = CaseRun(ON_CPU, parts, *step_of(ON_CPU).workloads)
    run.left_s = -1.0
    assert run.work(5.0, 0.5, 2.0) == (reply if works else None)
    assert worker.asked == [protocol.Prepare, protocol.Work]
    assert worker.deadlines[protocol.Work] == pytest.approx(9.0, abs=1.0)
    asked = worker.requests[1]
    assert (asked.case_id, asked.start_at, asked.warmup_s, asked.work_s) == (ON_CPU.id, 5.0, 0.5, 2.0)


@pytest.mark.parametrize(("medians", "more", "wanted"), [
    ([], {}, 3), ([1.0], {}, 2), ([1.0, 1.0], {}, 2), ([1.0, 9.0], {}, 3), ([1.0, 9.0, 20.0], {}, 4), ([1.0, 9.0, 20.0, 50.0], {}, 4),
    ([1.0, 9.0], {"kind": "gpu"}, 2), ([1.0, 9.0], {"launch_s": 0.005}, 2), ([1.0, 9.0], {"launch_s": 0.0049}, 3),
    ([1.0, 9.0], {"purpose": Purpose("sweep", blocks=2)}, 2), ([1.0, 9.0], {"purpose": MAIN}, None)])  # fmt: skip
def test_a_cpu_takes_more_blocks_until_two_agree_and_four_at_most(medians, more, wanted):
    parts = runtime(NoDevice(), kinds={"fake:cpu": more.get("kind", "cpu")}, wanted=open_end(1, 9))
    run = CaseRun(ON_CPU, parts, *step_of(ON_CPU).workloads, purpose=more.get("purpose", Purpose(blocks=2)))
    vars(run)["_launch_s"] = more.get("launch_s", 0.0)
    for value in medians:
        run.add(block([value]))
    assert run.wanted == (2 if not medians else wanted)


@pytest.mark.parametrize(("phase", "group", "phase_s", "reason"), [
    ("compile", "vector", 1e9, "budget"), ("inputs", "vector", 1e9, "budget"), ("first launch", FUNCTIONS, 1e9, "budget"),
    ("first launch", "vector", 1e9, "timeout"), ("sample", FUNCTIONS, 1e9, "timeout"), ("sample", "vector", 2.9, "budget"), ("sample", "vector", 3.1, "timeout")])  # fmt: skip
def test_a_budget_that_ends_a_worker_is_no_failure_unless_a_launch_hung(phase, group, phase_s, reason):
    case = msgspec.structs.replace(ON_CPU, group=group)
    for gone, left, told in (
        ("timeout", Budget(1.0), reason),
        ("timeout", Budget(), "timeout"),
        ("worker-crashed", Budget(1.0), "worker-crashed"),
    ):
        parts = runtime(NoDevice(), budget=left)
        CaseRun(case, parts, *step_of(case).workloads).lose(
            WorkerGone(gone, "no answer", phase, "", phase_s=phase_s)
        )
        assert parts.recorder.outcome(case.id).reason == told


def test_a_case_knows_whether_it_failed_here_and_whether_its_split_is_open():
    for sessions, here in (((3,), True), ((2, 3), True), ((2,), False), ((), False)):
        failures = [SessionFailure(session=session, reason="timeout", detail="") for session in sessions]
        recorder = Recorder(empty_run(measured(ON_CPU, failures=failures)), lambda run: None)
        run = CaseRun(ON_CPU, runtime(NoDevice(), recorder, session=3), *step_of(ON_CPU).workloads)
        assert run.failed is here
    settled = []
    for prepared, split in ((None, None), (None, 0.5), (0.5, None), (0.5, 0.5)):
        run.prepared, run.split = prepared and SimpleNamespace(split=prepared), split
        settled.append(run.unsettled)
    assert settled == [False, False, True, False]
    for calls, launch_s, seconds in (
        (None, 0.25, (0.25, 0.25)),
        (10, 0.25, (2.5, 0.5)),
        (10, 0.24, (0.0, 0.0)),
    ):
        vars(run).update(case=msgspec.structs.replace(ON_CPU, calls=calls), _launch_s=launch_s)
        assert (run.sample_s, run.check_s) == seconds


def test_devices_are_asked_to_prepare_before_any_is_waited_for_and_parts_are_timed_where_calls_copy():
    worker, events = CheckingWorker(True), []
    parts = runtime(OneWorker(worker), wanted=Settings(min_samples=2, max_samples=2), sink=events.append)
    worker.wait = lambda request, deadline_s, wait=worker.wait: (
        worker.sent.append("wait"),
        wait(request, deadline_s),
    )[1]
    parts.pool.workers = {"fake:cpu": worker}
    (workload,) = step_of(ON_CPU).workloads
    cases = tuple(msgspec.structs.replace(ON_CPU, implementation=name) for name in ("library", "tuned"))
    plain = msgspec.structs.replace(workload, cases=cases, explained=False)
    runner.StepRun(parts, Step((plain,), Purpose(blocks=1))).sample()
    assert worker.sent[:4] == [protocol.Prepare, protocol.Prepare, "wait", "wait"]
    assert [event.number for event in events if isinstance(event, CaseStarted)] == [1, 2]
    copies = case(64, "fake:gpu", "transfer-always")
    for own, explained, asked in ((copies, True, protocol.PART_SAMPLES), (copies, False, 0), (CASE, True, 0)):
        worker = CheckingWorker(True)
        item = msgspec.structs.replace(workload, cases=(copies, CASE), explained=explained)
        CaseRun(own, runtime(OneWorker(worker)), item).prepare(first=True)
        assert (worker.requests[0].part_samples, worker.requests[0].device_clock) == (asked, explained)


@pytest.mark.parametrize(
    ("lost", "code", "reason"), [(None, "worker-restarted", None), (ON_CPU, None, "worker-crashed")]
)
def test_a_worker_that_ended_early_is_told_or_fails_the_case_that_it_was_at(lost, code, reason):
    gone = WorkerGone("worker-crashed", "it died", "inputs", "its last words")
    pool = NoDevice()
    pool.losses, pool.take_losses = {"fake:cpu": 0}, lambda names: {name: Loss(gone, lost) for name in names}
    parts = runtime(pool, session=3)
    whole = SimpleNamespace(recorder=parts.recorder, spec=SimpleNamespace(ops={"add": ADD}), first_session=0)
    runner.Runner.judge_losses(whole, parts)
    warnings = [(warning.code, warning.session, warning.message) for warning in parts.recorder.run.warnings]
    assert warnings == [("worker-restarted", 3, "fake:cpu: it died; a fresh worker goes on")] * (
        code is not None
    )
    outcome = parts.recorder.outcome(ON_CPU.id)
    assert (outcome and (outcome.reason, outcome.phase, outcome.stderr_tail)) == (
        (reason, "inputs", "its last words") if reason else None)  # fmt: skip


@pytest.mark.parametrize(
    ("least", "pauses_s", "kept"), [(2, (), [2, 3]), (3, (), [1, 2, 3]), (3, (9,), [2, 3])]
)
def test_throttled_samples_count_if_too_few_others_are_left_after_the_last_pause(least, pauses_s, kept):
    run = CaseRun(ON_CPU, runtime(NoDevice(), wanted=open_end(least, 9)), *step_of(ON_CPU).workloads)
    run.pauses_s = pauses_s
    run.add(block([9.0, 1.0, 2.0, 3.0], warmup=1, discarded={"1": "throttled"}))
    assert run.kept == kept


@pytest.mark.parametrize(("launch_s", "samples", "warm"), [
    (2 * case_run.ONCE_S, [1] * 6, []), (0.26, [1] * 6, []), (0.24, [2, 1, 1, 1, 1], [0]),
    (2 * case_run.LONG_S, [2, 1, 1, 1, 1], [0, 1, 2, 3, 4]),
])  # fmt: skip
def test_a_long_launch_makes_a_block_of_its_own(monkeypatch, launch_s, samples, warm):
    """Without a warm-up once it is known to take a quarter of a second, as from the second block of 0.24 s on."""
    worker, _ = slowly_measured(monkeypatch, open_end(2, 6), 0.1, launch_s=launch_s)
    assert worker.samples == samples
    assert [place for place, (warms, _) in enumerate(worker.warm_ups) if warms] == warm


@pytest.mark.parametrize(("launch_s", "loops"), [(2 * case_run.ONCE_S, False), (2 * case_run.LONG_S, True)])
@pytest.mark.parametrize("device", ["hybrid:fake:gpu", "fake:cpu"])
def test_all_sides_are_timed_as_in_a_loop_beside_a_call_of_both(monkeypatch, device, launch_s, loops):
    """Their cores were asleep while others were timed, which a GPU alone does not notice."""
    cases = [msgspec.structs.replace(ON_CPU, device_id=name) for name in ("hybrid:fake:gpu", "fake:cpu")]
    worker = SlowWorker([0.0], 0.1, launch_s)
    parts = runtime(OneWorker(worker), kinds={case.device_id: "cpu" for case in cases})
    (workload,) = step_of(cases[0]).workloads
    (own,) = (case for case in cases if case.device_id == device)
    run = CaseRun(own, parts, msgspec.structs.replace(workload, cases=tuple(cases)))
    run.prepare(first=True)
    for number in range(3):
        run.sample(number, 0)
    assert {worker.warm_ups[-1]} == {(loops, case_run.LOOP_S if loops else 0.0)}


@pytest.mark.parametrize(("budget_s", "sampled"), [(14.0, 0), (15.5, 5), (60.0, 9)])
def test_a_budget_keeps_the_time_for_the_last_check_of_long_launches(monkeypatch, budget_s, sampled):
    """The budget is exceeded by no more than one launch of 3 s, which nothing interrupts."""
    clock = [0.0]
    for module in (case_run, budget):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    class Checking(SlowWorker):
        def wait(self, request, deadline_s):
            clock[0] += 3.0 if isinstance(request, protocol.Finish) else 0.0
            return super().wait(request, deadline_s)

    worker = Checking(clock, block_s=3.0)
    parts = runtime(OneWorker(worker), wanted=Settings(min_samples=1), budget=Budget(budget_s))
    op = msgspec.structs.replace(ADD, seconds=lambda params: 3.0)
    run = runner.StepRun(parts, step_of(ON_CPU, op, Purpose(blocks=9)))
    run.sample()
    run.finish()
    assert worker.asked.count(protocol.Sample) == sampled
    outcome = parts.recorder.outcome(ON_CPU.id)
    assert isinstance(outcome, Measurement if sampled else Skip), "what does not fit is said"
    assert worker.asked.count(protocol.Finish) == (sampled > 0), "without a sample nothing is checked again"
    assert clock[0] <= budget_s + 3.0


def test_a_block_that_hangs_is_not_waited_for_long_after_the_budget(monkeypatch):
    wanted = Settings(min_samples=2, max_samples=2, case_timeout_s=600.0)
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: 7.5))
    worker, _ = slowly_measured(monkeypatch, wanted, block_s=0.0, launch_s=1e-6, left=Budget(8.0))
    assert worker.deadlines[protocol.Prepare] == 0.5 + budget.LAST_S
    assert worker.deadlines[protocol.Sample] <= 0.5 + 2 * case_run.HANG_S + budget.LAST_S + 1e-3
    assert {*worker.limits} == {0.5}, "and ends with it"
    assert worker.deadlines[protocol.Finish] == pytest.approx(worker.deadlines[protocol.Sample], abs=1e-3)


@pytest.mark.parametrize(("device", "explained", "check_only", "quiet"), [
    ("fake:cpu", False, False, True), ("fake:cpu", True, False, False), ("hybrid:fake:gpu", False, False, False),
    ("hybrid:fake:gpu", True, True, True),
])  # fmt: skip
def test_devices_prepare_side_by_side_what_nothing_is_timed_of(device, explained, check_only, quiet):
    case = msgspec.structs.replace(ON_CPU, device_id=device)
    (workload,) = step_of(case).workloads
    parts = runtime(NoDevice(), check_only=check_only)
    workload = msgspec.structs.replace(workload, explained=explained)
    assert CaseRun(case, parts, workload).quiet is quiet


# ---------------------------------------------------------------------- the share of a split


@pytest.mark.parametrize(("cpu_s", "gpu_s", "shares"), [
    (1.0, 1.0, [0.5, 0.45, 0.55, 0.4, 0.6, 0.3, 0.7]), (1.0, 9.0, [0.1, 0.05, 0.15, 0.2, 0.3]),
])  # fmt: skip
def test_a_sweep_goes_outwards_from_where_both_sides_end_together(cpu_s, gpu_s, shares):
    assert runner.gpu_shares(cpu_s, gpu_s) == pytest.approx(shares), "no side is left without work"


def test_the_fastest_split_is_kept_even_where_one_side_alone_is_faster():
    assert runner.fastest({0.0: 1.0, 1.0: 0.1, 0.9: 0.3, 0.8: 0.2}) == 0.8
    assert runner.fastest({0.0: 1.0, 1.0: 0.1}) is None


class Tries:
    """A budget that ends after so many tries."""

    def __init__(self, count):
        self.left = iter(range(count))

    over = property(lambda self: next(self.left, None) is None)


@pytest.mark.parametrize(("tries", "cpu_s", "gpu_s", "chosen"), [
    (99, 1.0, 1.0, 0.6), (3, 1.0, 1.0, 0.5), (2, 1.0, 3.0, 0.25), (1, 1.0, 3.0, None), (0, 1.0, 3.0, None),
    (99, "fails", 1.0, None), (99, None, None, None),  # every sample is throttled, and the time ends before any can be taken again
])  # fmt: skip
def test_a_sweep_settles_on_the_fastest_share_or_that_of_the_model(monkeypatch, tries, cpu_s, gpu_s, chosen):
    def prepare(trial, *, first):
        trial.prepared = SimpleNamespace(split=trial.split, tune_s=0.0)

    def take(trial, number, position):
        if cpu_s == "fails":
            trial.over = True
            return False
        seconds = {0.0: cpu_s, 1.0: gpu_s}.get(trial.split, abs(trial.split - 0.6))
        trial.clean = [] if cpu_s is None else [[seconds] * 9]
        return True

    monkeypatch.setattr(CaseRun, "prepare", prepare)
    monkeypatch.setattr(CaseRun, "take", take)
    recorder = SimpleNamespace(outcome=lambda case_id: None)
    runtime = SimpleNamespace(settings=Settings(), budget=Tries(tries), recorder=recorder)
    whole = case(8, "hybrid:cupy:0", "resident-queued", implementation="tuned")
    run = CaseRun(whole, runtime, Workload(ADD, {"n": 8}, "float32", (whole,)))
    run.left_s = 7.0
    runner.sweep(run)
    assert (run.over, run.split, run.left_s) == (cpu_s == "fails", chosen and pytest.approx(chosen), 7.0)
