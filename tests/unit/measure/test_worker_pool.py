"""All devices open at once, their overheads are measured one by one, and whatever happens no worker is left."""

import queue
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from gpubench.detect.facts import make_fact
from gpubench.measure import protocol, worker_pool
from gpubench.measure.budget import ENDLESS, LAST_S, Budget
from gpubench.measure.worker_pool import DeviceGone, WorkerGone, WorkerPool
from gpubench.result.case import FUNCTIONS
from gpubench.result.machine import Cache, Cpu, CpuKind, Machine, Memory, Numa, NumaNode
from gpubench.result.run import Settings, WorkerRecord
from tests.raising import raised
from tests.unit.measure.builders import case, device

COSTS = {"Open": 5.0, "Load": 2.0, "Build": 3.0, "Choose": 1.0, "Close": 1.0}  # seconds of work of one request


class Script:
    """Devices that work side by side on a scripted clock, and what goes wrong: `fate(device, request)` raises or passes."""

    def __init__(self):
        self.workers, self.fate, self.now = [], lambda device, request: None, 0.0
        self.undecided = set()  # devices whose kernels are still to be chosen
        self.work = []  # device, kind of request, begin and end
        self.slow = {}  # seconds more that a device takes to open
        self.replies = {}  # other replies, by kind of request

    def reported(self, kind):
        return sorted(device for device, done, _, _ in self.work if done == kind.__name__)

    def alone(self, kind):
        """Whether nothing else was done while requests of this kind were carried out."""
        return not any(
            one is not other and one[1] == kind.__name__ and one[2] < other[3] and other[2] < one[3]
            for one in self.work for other in self.work
        )  # fmt: skip


class ScriptedWorker:
    """A child that answers at once, on a script."""

    script: Script

    def __init__(self, threads=None):
        self.device, self.number, self.alive, self.threads = "", 0, True, threads
        self.free, self.ends = 0.0, {}  # when it has nothing to do any more, and when each request ends
        self.script.workers.append(self)

    @property
    def next_id(self):
        self.number += 1
        return self.number

    def send(self, request):
        if isinstance(request, protocol.Open):
            self.device, self.opening = request.device_id, request
        kind = type(request).__name__
        begin = max(self.script.now, self.free)
        self.free = begin + COSTS.get(kind, 0.5) + (kind == "Open") * self.script.slow.get(self.device, 0.0)
        self.ends[request.id] = self.free
        self.script.work.append((self.device, kind, begin, self.free))

    def wait(self, request, deadline_s):
        self.script.now = max(self.script.now, self.ends[request.id])
        try:
            self.script.fate(self.device, request)
        except WorkerGone:
            self.kill()
            raise
        if type(request) in self.script.replies:
            return self.script.replies[type(request)]
        if isinstance(request, protocol.Open):
            record = WorkerRecord(device_id=self.device, threads=1, env={}, open_s=1.0)
            return protocol.Opened(id=request.id, device=device(self.device), record=record)
        if isinstance(request, protocol.MeasureOverhead):
            clock = {"clock_step_s": 1e-9, "clock_cost_s": 1e-9}
            return protocol.MeasuredOverhead(id=request.id, overhead_s=[1e-6], **clock)
        if isinstance(request, protocol.Choose):
            self.script.undecided.discard(self.device)
        if isinstance(request, protocol.Build) and self.device in self.script.undecided:
            return protocol.Undecided(id=request.id)
        return protocol.Done(id=request.id)

    def ask(self, request, deadline_s):
        self.send(request)
        return self.wait(request, deadline_s)

    def ask_to_close(self):
        self.closing = protocol.Close(id=self.next_id)
        self.send(self.closing)

    def kill(self):
        self.alive = False

    closing = SimpleNamespace(id=0)

    def close(self):
        self.script.now = max(self.script.now, self.ends.get(self.closing.id, 0.0))
        self.kill()


@pytest.fixture
def script(monkeypatch):
    made = Script()
    monkeypatch.setattr(worker_pool, "Worker", type("Worker", (ScriptedWorker,), {"script": made}))
    return made


def test_a_worker_that_says_what_cannot_be_read_is_ended(monkeypatch):
    babbling = SimpleNamespace(
        alive=True, lines=queue.Queue(), write=lambda line: None, kill=lambda after_s: None, noise=str,
        stderr_tail=lambda: "its last words",
    )  # fmt: skip
    babbling.lines.put(b"junk")
    monkeypatch.setattr(worker_pool.processes, "Child", lambda *_: babbling)
    gone = raised(WorkerGone, worker_pool.Worker().ask, protocol.Close(id=1), 0.1)
    assert "cannot be read" in str(gone)
    assert (gone.reason, gone.stderr_tail) == ("worker-crashed", "its last words")


DEVICES = ["a:0", "b:0", "c:0"]
REFUSED = protocol.Refused(id=1, reason="unavailable", detail="it is in use", hint="end it")


def opened(gone=None, devices=(), **more):
    pool = WorkerPool(Settings(), Path(), {} if gone is None else gone, (), Machine(), **more)
    pool.open_all(devices)
    return pool


def dies(*devices, kind, times=99, how=lambda: WorkerGone("worker-crashed", "it died", "open", "")):
    left = dict.fromkeys(devices, times)

    def fate(device, request):
        if isinstance(request, kind) and left.get(device, 0) > 0:
            left[device] -= 1
            raise how()

    return fate


def test_all_devices_open_at_once_and_overheads_are_measured_after_that(script):
    pool = opened(devices=DEVICES)
    assert script.now == COSTS["Open"] + 0.5 * len(DEVICES)
    assert script.alone(protocol.MeasureOverhead)
    assert sorted(pool.workers) == [record.device_id for record in pool.records] == DEVICES
    assert all(record.overhead_s for record in pool.records)


@pytest.mark.parametrize(("changes", "flushed"), [({}, None), ({"page_locked": True, "cache": "cold"}, 1600)])
def test_each_worker_knows_its_share_of_the_host_and_the_settings(script, changes, flushed):
    """More busy threads than the quota's two CPUs would be stopped for a part of each period."""
    caches = [Cache(level=1, type="data", size_bytes=size, instances=2) for size in (99, 400)]
    kinds = [CpuKind(rank=0, cores=1, logical=2, cpus="0-1")]
    machine = Machine(
        cpu=Cpu(**{name: make_fact(fact, "t") for name, fact in {"logical": 16, "available": 2, "caches": caches, "kinds": kinds}.items()}),
        memory=Memory(usable_bytes=make_fact(900, "t")), numa=Numa(nodes=[NumaNode(id=0), NumaNode(id=1, cpus=make_fact("2-3", "t"))]),
    )  # fmt: skip
    devices = [device(name, "cpu") for name in DEVICES]
    WorkerPool(Settings(threads=2, **changes), Path(), {}, devices, machine).open_all(DEVICES[:1])
    (worker,) = script.workers
    told = worker.opening
    assert (worker.threads, told.threads, told.cpus, told.host_bytes) == (2, 2, 2, 300)
    assert told.alike == ["0-1", "2-3"]
    assert (told.page_locked, told.flush_bytes) == ("page_locked" in changes, flushed)


@pytest.mark.parametrize("kind", [protocol.Open, protocol.MeasureOverhead])
def test_a_device_that_keeps_dying_is_gone_and_the_others_stay(script, kind):
    script.fate = dies("b:0", kind=kind)
    gone = {}
    pool = opened(gone, DEVICES)
    assert (sorted(pool.workers), gone["b:0"].reason) == (["a:0", "c:0"], "device-lost")
    assert script.reported(protocol.Open).count("b:0") == 2
    with pytest.raises(DeviceGone):
        pool.worker("b:0")
    assert script.reported(protocol.Open).count("b:0") == 2, "it is not asked again"
    assert not [worker for worker in script.workers if worker.device == "b:0" and worker.alive]


@pytest.mark.parametrize(("before", "reason"), [(False, "unavailable"), (True, "device-lost")])
def test_a_device_that_refuses_is_gone_with_its_reason_and_one_without_overheads_is_there(
    script, before, reason
):
    gone = {}
    pool = opened(gone, DEVICES if before else ())
    script.replies = {protocol.Open: REFUSED, protocol.MeasureOverhead: REFUSED}
    pool.drop("b:0")
    refused = raised(DeviceGone, pool.worker, "b:0")
    assert (refused.reason, refused.detail, refused.hint) == (reason, "it is in use", "end it")
    assert (gone, script.workers[-1].alive) == ({"b:0": refused}, False)
    del script.replies[protocol.Open]
    pool.drop("c:0")
    assert (pool.worker("c:0").alive, pool.records[-1].overhead_s or None) == (True, None)


@pytest.mark.parametrize("kind", [protocol.Open, protocol.MeasureOverhead])
@pytest.mark.parametrize("device", DEVICES)
def test_an_interrupt_while_devices_open_leaves_no_process(script, kind, device):
    script.fate = dies(device, kind=kind, how=KeyboardInterrupt)
    pool = opened()
    with pytest.raises(KeyboardInterrupt):
        pool.open_all(DEVICES)
    pool.kill()
    assert len(script.workers) == len(DEVICES)
    assert not [worker.device for worker in script.workers if worker.alive]


def cases():
    return {name: [case(8, name, implementation="tuned")] for name in DEVICES}


def test_all_sizes_have_their_inputs_before_anything_is_built(script):
    """The devices wait for each other twice, however many sizes a step has."""
    pool = opened(devices=DEVICES)
    references = Counter()

    def count(device, request):
        if isinstance(request, protocol.Load):
            references[device] += request.reference

    script.fate, since = count, script.now
    pool.load([cases(), cases(), {"b:0": cases()["b:0"]}])
    assert script.now - since == 3 * COSTS["Load"] + 3 * COSTS["Build"], "as long as the busiest device works"
    loaded = max(end for _, kind, _, end in script.work if kind == "Load")
    assert loaded <= min(begin for _, kind, begin, _ in script.work if kind == "Build")
    assert references == {"a:0": 2, "b:0": 1, "c:0": 0}, "each size has one that makes its reference"


def test_the_named_workers_place_memory_anew_and_one_that_dies_is_told(script):
    pool = opened(devices=DEVICES)
    script.fate = dies("b:0", kind=protocol.Reallocate)
    pool.reallocate({"a:0", "b:0", "gone:0"}, ENDLESS)
    assert (list(pool.losses), sorted(pool.workers)) == (["b:0"], ["a:0", "c:0"])
    assert script.reported(protocol.Reallocate) == ["a:0", "b:0"]


@pytest.mark.parametrize("kind", [protocol.Load, protocol.Build, protocol.Choose])
def test_a_worker_that_dies_over_its_inputs_or_its_trials_is_replaced_when_it_is_needed(script, kind):
    """Which case is to blame shows when it is prepared."""
    pool = opened(devices=DEVICES)
    script.undecided, script.fate = {"a:0", "b:0"}, dies("b:0", kind=kind)
    pool.load([cases()])
    assert (list(pool.losses), sorted(pool.workers)) == (["b:0"], ["a:0", "c:0"])
    assert pool.worker("b:0").alive


@pytest.mark.parametrize("left_s", [60.0, -1.0])
def test_devices_choose_in_turns_and_build_side_by_side_then(script, left_s):
    """Without time for trials they are left to the cases that are prepared."""
    pool = opened(devices=DEVICES)
    script.undecided, since = {"a:0", "c:0"}, script.now
    pool.load([cases()], Budget(left_s, time.monotonic()))
    again = ["a:0", "c:0"] if left_s > 0 else []
    assert script.reported(protocol.Choose) == again
    assert script.alone(protocol.Choose)
    assert script.reported(protocol.Build) == sorted([*DEVICES, *again])
    once_s, more_s = COSTS["Load"] + COSTS["Build"], 2 * COSTS["Choose"] + COSTS["Build"]
    assert script.now - since == once_s + bool(again) * more_s


LATE = [*DEVICES, "torch:cpu"]


def test_what_comes_first_is_built_before_a_library_that_stands_beside_others_is_imported(script):
    script.undecided, script.slow = {"a:0"}, {"torch:cpu": 60.0}
    pool = opened()
    pool.open_all(LATE, first=[cases()])
    assert script.reported(protocol.Build) == DEVICES
    assert script.now == COSTS["Open"] + 60.0 + 0.5 * len(LATE), "what is built takes no time of its own"
    assert not script.reported(protocol.Choose), "nothing is timed while others import"
    assert [record.device_id for record in pool.records] == sorted(pool.workers) == LATE


def test_a_worker_that_dies_over_what_is_built_ahead_is_replaced(script):
    script.fate = dies("b:0", kind=protocol.Build, times=1)
    pool = opened()
    pool.open_all(LATE, first=[cases()])
    assert [record.device_id for record in pool.records] == sorted(pool.workers) == LATE
    assert script.reported(protocol.Open).count("b:0") == 2
    loss = pool.take_losses(LATE)["b:0"]
    assert [loss.gone.reason, loss.case] == ["worker-crashed", *cases()["b:0"]], "it is told, and of which case"
    assert not pool.take_losses(LATE), "once"


@pytest.fixture
def deadlines(monkeypatch):
    """How long each answer may take, in order."""
    seconds, wait = [], ScriptedWorker.wait
    monkeypatch.setattr(ScriptedWorker, "wait", lambda *asked: (seconds.append(asked[2]), wait(*asked))[1])
    return seconds


def test_what_is_built_is_not_waited_for_when_the_budget_is_over(script, deadlines):
    pool = opened(devices=DEVICES)
    deadlines.clear()
    pool.load([cases()], Budget(8.0, time.monotonic() - 7.0))
    assert max(deadlines) <= 1.0 + LAST_S
    pool.load([cases()])
    assert deadlines[-1] == Settings().case_timeout_s


def test_a_users_function_may_compile_which_counts_for_nothing(script, deadlines, monkeypatch):
    pool = opened(devices=DEVICES[:1])
    own = {device: [replace(case, group=FUNCTIONS) for case in built] for device, built in cases().items()}
    doubles = {"a:0": [replace(case, dtype="float64") for case in own["a:0"]]}
    budget = Budget(8.0, time.monotonic() - 7.0, most_once_s=20.0)
    turns = [(own, "a:0", True), (own, "a:0", False), (own, "b:0", True), (doubles, "a:0", True)]
    for work, opens, first in turns:
        pool.worker(opens)
        deadlines.clear()
        before_s = budget.once_s
        pool.load([work], budget)
        assert (2 < max(deadlines) < 22, budget.once_s > before_s) == (True, first)
        assert first or min(deadlines) < 2, "inputs compile nothing"
    monkeypatch.setattr(worker_pool, "COMPILES_S", 0.0)  # each size takes longer
    before_s = budget.once_s
    pool.load([own], budget)
    assert budget.once_s > before_s
    dropped = pool.workers["a:0"]
    pool.drop("a:0")
    assert (pool.worker("a:0") is not dropped, dropped.alive) == (True, False)
    deadlines.clear()
    pool.load([own], budget)
    assert max(deadlines) > 2, "another worker compiles anew"
    slow, before_s = SimpleNamespace(inputs_s=lambda params: 1e9), budget.once_s
    monkeypatch.setattr(worker_pool.kernels, "own", lambda: dict.fromkeys([own["a:0"][0].op], slow))
    pool.drop("a:0")
    pool.worker("a:0")
    pool.load([own], budget)
    assert (budget.once_s, replace(budget, once_s=99.0).uncounted_s) == (before_s, 20.0), "inputs do not count"


def importing(script, *, sessions=1, cpus=8):
    spares = worker_pool.Spares()
    for backend in ("a", "unused"):
        spares.keep(backend, worker_pool.Worker())
    spares.keep_ahead(["a"], sessions, cpus, None)
    return spares


def test_workers_of_backends_that_nobody_opens_end_at_once_and_the_rest_with_the_run(script):
    spares = importing(script, sessions=2)
    waiting = list(script.workers)
    opened(devices=DEVICES, spares=spares)
    assert [worker.alive for worker in waiting] == [True, False, True]
    spares.end()
    assert [worker.alive for worker in waiting] == [True, False, False]
    assert (spares.take("a"), spares.take("unused")) == (None, None)
    spares = importing(script)
    script.fate = dies(*(worker.device for worker in script.workers), kind=protocol.Preload)
    spares.settle(9.0)
    assert spares.take("a") is None, "one that died is not kept"


@pytest.mark.parametrize(("left_s", "most_s"), [(3.0, 20.0), (30.0, 30.0), (300.0, 60.0)])
def test_imports_that_hang_are_waited_for_once_and_the_next_worker_knows(
    script, deadlines, tmp_path, left_s, most_s
):
    spares, hangs = importing(script, sessions=3), lambda: WorkerGone("timeout", "it hangs", "devices", "")
    script.fate = dies("a:0", kind=protocol.Preload, how=hangs)
    pool = WorkerPool(Settings(), tmp_path, {}, (), Machine(), spares=spares)
    pool.open_all(DEVICES[:1], budget=Budget(left_s, time.monotonic()))
    assert (most_s - 1 < deadlines[0] <= most_s, sorted(pool.workers)) == (True, DEVICES[:1])
    assert (tmp_path / "cache" / "loading-a-").read_text(), "as the backend marks what it loads"
    assert [worker.alive for worker in script.workers] == [False] * (len(script.workers) - 1) + [True]


@pytest.mark.parametrize(("sessions", "cpus", "most"), [(3, 1, 1), (3, 2, 2), (2, 8, 2), (100, 64, 5)])
def test_no_more_workers_import_than_there_are_cpus_and_sessions(script, deadlines, sessions, cpus, most):
    spares = importing(script, sessions=sessions, cpus=cpus)
    for _ in range(2):
        spares.settle(9.0)
    assert len(deadlines) == len(script.workers), "each is waited for once"
    assert len([*iter(lambda: spares.take("a"), None)]) == most
