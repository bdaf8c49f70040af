"""What is asked of identical GPUs beside the plan, and what their failures cost, with workers that are scripted."""

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from gpubench import kernels
from gpubench.base.errors import RequiredUnavailable
from gpubench.measure import protocol
from gpubench.measure.plan import Constraints, Series, Target
from gpubench.measure.worker_pool import DeviceGone, Loss, WorkerGone
from gpubench.multi import identical_gpus as beside
from gpubench.result.case import Case
from gpubench.result.run import Block, IdenticalGpuTimes, Selection, TogetherTimes
from tests.raising import raised
from tests.unit.multi.samples import GPUS, GROUP

TARGETS = [Target(device, ("library", "tuned")) for device in GPUS[:3]]
COPY = Case("copy", "vector", {"n": 4}, "float32", "tuned", "resident-queued", "")
CASES = [(device, replace(COPY, device_id=device.id)) for device in GPUS[:3]]
GONE = WorkerGone("worker-crashed", "it died", None, "")


class Pool:
    """Workers that note what they are asked; `replies` has what a device answers to a kind of message, or raises."""

    def __init__(self, replies=None, losses=None):
        self.replies, self.losses, self.asked, self.notes = replies or {}, losses or {}, [], []
        self.workers = {"cupy:0": None}
        self.monitor = SimpleNamespace(
            watch=lambda *ids: self.notes.append(ids), rest=lambda: self.notes.append("rest"),
            seconds=lambda moment: moment - 100.0,
        )  # fmt: skip

    def load(self, groups):
        noted = [{id: [case.id for case in cases] for id, cases in group.items()} for group in groups]
        self.notes.append(noted)

    def take_losses(self, ids):
        return {id: loss for id, loss in self.losses.items() if id in ids}

    def open_all(self, ids):
        self.notes.append(("open", *ids))

    def drop(self, id):
        self.notes.append(("drop", id))

    def worker(self, id):
        if isinstance(gone := self.replies.get((id, "open")), DeviceGone):
            raise gone
        return SimpleNamespace(
            next_id=7, send=lambda message: self.send(id, message),
            wait=lambda message, within_s: self.wait(id, message, within_s),
        )  # fmt: skip

    def send(self, id, message):
        assert message.id == 7
        self.asked.append((id, message))
        if (gone := self.replies.get((id, "send"))) is not None:
            raise gone

    def wait(self, id, message, within_s):
        self.notes.append(within_s)
        reply = self.replies.get((id, type(message)), REPLIES.get(type(message), protocol.Reply(id=7)))
        if isinstance(reply, WorkerGone):
            raise reply
        return reply


BLOCK = Block(session=0, round=0, position=0, repeat=1, warmup=1, wall_s=[9.0, 1.0, 2.0, 3.0])
REPLIES = {
    protocol.Work: protocol.Worked(2, 0.25, [1.0, 2.0], id=7), protocol.Sample: protocol.Sampled(BLOCK, id=7)
}  # fmt: skip


def asked(pool, kind):
    return [(id, message) for id, message in pool.asked if isinstance(message, kind)]


@pytest.fixture
def cases(monkeypatch):
    """The cases of any op on any group, and what was asked for."""
    wanted = []

    def cases_of(series, n, group, constraints, implementation="tuned"):
        wanted.append((n, implementation))
        return CASES[: len(group)]

    monkeypatch.setattr(beside, "cases_of", cases_of)
    return wanted


def test_inputs_are_loaded_at_once_and_cases_prepared_one_by_one():
    gpus = beside.IdenticalGpus(pool := Pool(losses={"cupy:1": Loss(GONE, None), "numpy:0": Loss(GONE, None)}))
    gpus.prepare(CASES, 5)
    assert pool.notes[0] == [{device.id: [case.id] for device, case in CASES}]
    assert gpus.failed == {"cupy:1": "it died"}
    prepared = protocol.Prepare(id=7, case=CASES[0][1], session=5, part_samples=0, device_clock=False)
    assert asked(pool, protocol.Prepare) == [(id, replace(prepared, case=case)) for id, case in (
        ("cupy:0", CASES[0][1]), ("cupy:2", CASES[2][1]))]  # fmt: skip
    gpus = beside.IdenticalGpus(pool := Pool())
    gpus.prepare([(device, replace(case, group="overhead")) for device, case in CASES[:1]], 5)
    assert pool.notes == [30.0], "a transfer has no inputs; within so many seconds an answer comes"


@pytest.mark.parametrize(("place", "accident", "why", "dropped"), [
    ("open", DeviceGone("device-lost", "no driver"), "no driver", False), ("send", GONE, "it died", True),
    (protocol.Finish, GONE, "it died", True),
    (protocol.Finish, protocol.Refused("shape", "no room", id=7), "shape: no room", False),
    (protocol.Finish, protocol.Broke("device-lost", "gone", id=7), "device-lost: gone", False),
])  # fmt: skip
def test_a_gpu_that_fails_costs_the_others_nothing_and_is_asked_no_more(place, accident, why, dropped):
    gpus = beside.IdenticalGpus(pool := Pool({("cupy:1", place): accident}))
    requests = [(device, protocol.Finish(id=0, case_id=case.id)) for device, case in CASES]
    for _ in range(2):
        assert (list(gpus.ask_all(requests, 3.0)), gpus.failed) == (["cupy:0", "cupy:2"], {"cupy:1": why})
    assert [id for id, _ in pool.asked].count("cupy:1") == (place != "open")
    assert [note for note in pool.notes if isinstance(note, tuple)] == [("drop", "cupy:1")] * dropped
    assert (gpus.ask(*requests[1]), gpus.ask(*requests[0])) == (None, protocol.Reply(id=7))


@pytest.mark.parametrize(("session", "turns"), [(0, "0 1 01"), (1, "01 0 1"), (2, "0 1 01")])
def test_each_gpu_works_alone_and_with_the_others_and_turns_change(monkeypatch, cases, session, turns):
    monkeypatch.setattr(beside, "time", SimpleNamespace(perf_counter=lambda: 200.0))
    item = SimpleNamespace(series=None, n=4, op=SimpleNamespace(overhead=None))
    times = beside.weak(pool := Pool(), TARGETS[:2], item, None, session)
    assert cases == [(4, "tuned")]
    watched = [tuple(f"cupy:{gpu}" for gpu in turn) for turn in turns.split()]
    assert ([note for note in pool.notes if isinstance(note, tuple)], pool.notes.count("rest")) == (watched, 3)
    assert [note for note in pool.notes[1:] if isinstance(note, float)] == [
        *[30.0] * 2, *(within_s for turn in turns.split() for within_s in [34.5 if len(turn) == 1 else 41.5] * len(turn)),
        *[30.0] * 2,
    ]  # fmt: skip
    want = [
        (f"cupy:{gpu}", protocol.Work(CASES[int(gpu)][1].id, 201.5, 1.0, 3.0 if len(turn) == 1 else 10.0, id=7))
        for turn in turns.split() for gpu in turn
    ]  # fmt: skip
    assert asked(pool, protocol.Work) == want
    assert times == [
        TogetherTimes(
            session=session, case_id=work.case_id, device_id=id, gpu_id=id.replace("cupy:", "GPU-"),
            phase="alone" if work.work_s == 3.0 else "together", gpus=1 if work.work_s == 3.0 else 2, repeat=2,
            at_s=101.5, begin_s=0.25, ends_s=[1.0, 2.0],
        )
        for id, work in want
    ]  # fmt: skip
    assert [id for id, _ in asked(pool, protocol.Finish)] == ["cupy:0", "cupy:1"]


@pytest.mark.parametrize(("op", "implementation"), [("matmul", "library"), ("copy", "tuned")])
def test_gpus_work_on_the_best_implementation_whatever_the_user_named(op, implementation):
    named = Constraints(
        tuple(TARGETS), Selection(ops=[], implementations=["tuned"]), None, named_implementations=True
    )
    pairs = beside.cases_of(Series(kernels.load(op), "float32"), 64, TARGETS, named)
    assert [(device.id, case.device_id, case.implementation) for device, case in pairs] == [
        (f"cupy:{gpu}", f"cupy:{gpu}", implementation) for gpu in range(3)
    ]


def test_transfers_work_in_both_implementations_and_a_failure_is_a_row(cases):
    pool = Pool({("cupy:1", protocol.Work): protocol.Broke("device-lost", "gone", id=7)})
    item = SimpleNamespace(series=None, n=4, op=SimpleNamespace(overhead=object()))
    times = beside.weak(pool, TARGETS[:2], item, None, 0)
    assert cases == [(4, "library"), (4, "tuned")]
    lost = TogetherTimes(session=0, case_id=CASES[1][1].id, device_id="cupy:1", reason="device-lost: gone")
    assert [time for time in times if time.device_id == "cupy:1"] == [lost] * 2
    assert [time.device_id for time in times if time.reason is None] == ["cupy:0"] * 4


SPEC = SimpleNamespace(left_out=[TARGETS], equip=lambda op: op, constraints=None)


def test_gpus_that_a_search_leaves_out_are_sampled_in_turns(cases):
    times = beside.check(pool := Pool(), SPEC, 3, lambda: 100.0)
    assert ("open", "cupy:1", "cupy:2") in pool.notes
    assert [n for n, _ in cases] == [64 << 20, 16 << 20, 2048]
    samples = asked(pool, protocol.Sample)
    there = [(f"cupy:{gpu}", gpu) for gpu in range(3)]
    back = [(f"cupy:{2 - gpu}", gpu) for gpu in range(3)]
    assert [(id, sample.position) for id, sample in samples] == [*there, *back] * 4 * 3
    assert samples[4] == (
        "cupy:1", protocol.Sample(CASES[1][1].id, 3, 1, 1, samples=3, warmup_s=0.0, limit_s=1.0, id=7)
    )  # fmt: skip
    own = [{"case_id": case.id, "device_id": device.id, "gpu_id": device.gpu_id} for device, case in CASES]
    assert times == [IdenticalGpuTimes(**names, blocks_s=[2.0] * 8) for names in own] * 3
    assert len(asked(pool, protocol.Finish)) == 9
    refused = protocol.Refused("out-of-memory", "full", id=7)
    times = beside.check(Pool({("cupy:2", protocol.Finish): refused}), SPEC, 3, lambda: 100.0)
    told = [(time.blocks_s, time.reason) for time in times if time.device_id == "cupy:2"]
    assert told == [([], "out-of-memory: full")] * 3


@pytest.mark.parametrize(("left_s", "blocks"), [(0.6, [2]), (1.0, [2]), (1.6, [4])])
def test_samples_end_with_the_time_but_what_is_prepared_has_a_second(monkeypatch, cases, left_s, blocks):
    """A round of two GPUs takes half a second, here without the time of preparing."""
    now, pool, send = [0.0], Pool(), Pool.send

    def slow(self, id, message):
        now[0] += 0.25 * isinstance(message, protocol.Sample)
        send(self, id, message)

    monkeypatch.setattr(Pool, "send", slow)
    monkeypatch.setattr(beside, "time", SimpleNamespace(monotonic=lambda: now[0]))
    spec = SimpleNamespace(left_out=[TARGETS[:2]], equip=lambda op: op, constraints=None)
    times = beside.check(pool, spec, 0, lambda: left_s - now[0])
    assert [len(time.blocks_s) for time in times] == [count for count in blocks for _ in range(2)]


def companion(**settings):
    settings = {"budget_s": 300.0, "ranks": None, **settings}
    spec = SimpleNamespace(
        left_out=[TARGETS], constraints=None,
        settings=SimpleNamespace(**settings, scales=lambda how: how == "weak" and settings.get("weak", False)),
    )  # fmt: skip
    notes, run = [], SimpleNamespace(together=["earlier"])
    recorder = SimpleNamespace(run=run, replace=lambda **fields: notes.append(fields))
    return beside.IdenticalCompanion(spec, recorder), notes


def occasion(left_s, *, first=True):
    budget = SimpleNamespace(left_s=lambda: left_s)
    return SimpleNamespace(pool=None, index=1, first=first, plan=[], budget=budget)


def test_a_search_keeps_a_share_of_its_budget_for_the_gpus_that_it_leaves_out(monkeypatch):
    left = []
    monkeypatch.setattr(beside, "time", SimpleNamespace(monotonic=lambda: 50.0))
    monkeypatch.setattr(beside, "check", lambda pool, spec, index, left_s: left.append(left_s()) or (index,))
    own, notes = companion()
    assert ([device.id for device in own.devices()], own.share) == (["cupy:1", "cupy:2"], 0.15)
    for left_s, first in ((100.0, True), (10.0, True), (10.0, False)):
        own.follow_session(occasion(left_s, first=first))
    assert (left, notes) == ([45.0, 10.0], [{"identical_gpus": [1]}] * 2)
    without, notes = companion(budget_s=None)
    without.follow_session(occasion(100.0))
    assert (without.devices(), without.share, notes) == ([], 0.0, [])


@pytest.mark.parametrize(("ranks", "overhead", "left_s", "counts"), [
    (None, None, 25.0, [3]), (None, None, 24.9, []), ([2, 3, 4], None, 100.0, [2, 3]), ([2, 3], None, 20.5, [2]),
    (None, "upload", 49.9, []), (None, "upload", 50.0, [3]),
])  # fmt: skip
def test_weak_scaling_is_measured_while_a_whole_case_fits(monkeypatch, ranks, overhead, left_s, counts):
    """What only moves data is measured in both implementations, which take twice as long."""
    item = SimpleNamespace(op=SimpleNamespace(overhead=overhead))
    monkeypatch.setattr(beside, "identical_groups", lambda spec: [TARGETS])
    monkeypatch.setattr(beside, "largest", lambda plan: [item])
    monkeypatch.setattr(beside, "weak", lambda pool, group, item, _, index: [(len(group), item, index)])
    own, notes = companion(ranks=ranks, weak=True)
    own.follow_session(occasion(left_s, first=False))
    assert notes == [{"together": ["earlier", (count, item, 1)]} for count in counts]


def test_of_each_curve_the_largest_size_that_moves_data_works_at_once():
    def planned(key, n, *, cases=(1,), collective=None, overhead=None):
        op = SimpleNamespace(collective=collective, overhead=overhead)
        return SimpleNamespace(series=SimpleNamespace(key=key), n=n, cases=cases, op=op)

    moves, idle = SimpleNamespace(moves=True), SimpleNamespace(moves=False)
    plan = [
        planned("a", 4), planned("b", 8, overhead=moves), planned("a", 16), planned("a", 64, cases=()),
        planned("b", 2, overhead=moves), planned("c", 1, collective=1), planned("d", 1, overhead=idle),
    ]  # fmt: skip
    assert beside.largest(plan) == [plan[2], plan[1]]


def test_device_groups_are_of_gpus_of_one_name_and_at_least_two():
    every = (replace(GROUP, id="group:cupy:0+1"),)
    listings = [protocol.Listing("cupy", tuple(GPUS), ("tuned",)), protocol.Listing("group", every, ("tuned",))]

    def joined(targets, ranks=(), *, pairs=False, required=False):
        groups = beside.join(targets, listings, ranks=ranks, pairs=pairs, required=required)
        assert {group.implementations for group in groups} <= {("tuned",)}
        return [group.device.id.rpartition(":")[2] for group in groups]

    cpu, odd = Target(replace(GPUS[0], id="numpy:0", kind="cpu"), ()), Target(replace(GPUS[3], name="B200"), ())
    assert joined([cpu, *TARGETS, odd]) == joined(TARGETS) == ["0+1", "0-2"]
    assert joined(TARGETS, pairs=True) == ["0+1", "0+2", "1+0", "1+2", "2+0", "2+1", "0-2"]
    assert (joined(TARGETS, [1, 3, 4]), joined(TARGETS[:1])) == (["0-2"], [])
    # The first GPU is of another model, and those of one model are no neighbours.
    mixed = [Target(replace(GPUS[i], name=name), ()) for i, name in enumerate("BABA")]
    assert joined([*mixed[1:], Target(replace(GPUS[0], id="cupy:5", name="A"), ())], [2, 3]) == ["1+3", "1+3+5"]
    assert joined(mixed) == ["0+2", "1+3"]
    assert joined([*TARGETS, Target(every[0], ())], required=True) == [], "they were named"
    for targets, count in (([cpu], "none"), ([cpu, *TARGETS[:1]], "1"), ([*TARGETS, odd], "3")):
        refused = raised(RequiredUnavailable, joined, targets, [8], required=True)
        assert refused.why == f"the devices chosen have {count}"
