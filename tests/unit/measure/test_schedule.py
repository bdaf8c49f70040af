"""The order of a session's steps, the share of the budget that the search has, and what a file that is gone on with still lacks."""

import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from gpubench import kernels
from gpubench.base.errors import GpubenchError
from gpubench.measure import budget, runner
from gpubench.measure.plan import BLOCKS, MAIN, ONE_BLOCK, Constraints, Series, Target, workload
from gpubench.measure.recorder import Progress, Recorder, SessionAgain
from gpubench.measure.schedule import (
    RunSpec,
    Schedule,
    on_groups,
    plan_workloads,
    repeat_plan,
    resume_plan,
    worth_trying,
)
from gpubench.measure.worker_pool import DeviceGone
from gpubench.result import run as results
from gpubench.result.run import Planned, Selection, SessionRecord, Settings, Skip
from tests.rows import rows
from tests.unit.measure.builders import block, case, device, empty_run, measured, stage_times
from tests.unit.measure.simulated import CPU, DEVICES, GPU, TORCH

SPLIT = Target(device("hybrid:cupy:0", "hybrid"), ("tuned",))
ON_CPU, ON_TORCH, ON_GPU = (Target(DEVICES[name], ("library",)) for name in (CPU, TORCH, GPU))
SIZES = {"add": [64, 1024, 256, 4096, 512, 128]}


def spec(ops=("add",), sizes=SIZES, more=(), check_only=False, began=0.0, **settings):
    """The request for some ops on a CPU and a GPU."""
    selection = Selection(ops=[*ops], sizes=sizes, regimes=["resident-queued"])
    run = empty_run(selection=selection, settings=Settings(**settings))
    scope = Constraints((ON_CPU, ON_GPU, *more), selection, None, settings=run.settings)
    return RunSpec(
        run=run, ops={name: kernels.load(name) for name in ops}, constraints=scope, began=time.monotonic() - began,
        check_only=check_only,
    )  # fmt: skip


def schedule(asked):
    return Schedule(asked, Recorder(asked.run, lambda run: None), Progress(0, 1, lambda: None))


def steps(asked, index=0, again=False):
    """Op, size and purpose of each step of a session without a search."""
    session = schedule(asked).again if again else schedule(asked).first
    return [(item.op.name, item.n, step.purpose) for step in session(index, None) for item in step.workloads]


BOTH = {"ops": ("upload", "add"), "sizes": {**SIZES, "upload": [4096, 1024]}}


def test_sizes_come_in_an_order_of_each_session_or_as_they_were_named():
    drawn = [[n for _, n, _ in steps(spec(), index)] for index in range(3)]
    assert all(sorted(order) == sorted(SIZES["add"]) for order in drawn)
    assert len(set(map(tuple, drawn))) > 1
    assert steps(spec()) == steps(spec()) != steps(spec(seed=5))
    named = [("add", n, MAIN) for n in SIZES["add"]]
    assert steps(spec(order="sequential")) == steps(spec(check_only=True)) == named
    assert steps(spec(order="sequential"), again=True) == named


def test_a_check_tells_why_an_op_runs_at_no_size():
    asked = spec(("tokenise",), {}, check_only=True)
    selection = replace(asked.constraints.selection, dtypes=["bfloat16"])
    asked = replace(asked, constraints=replace(asked.constraints, selection=selection))
    items = [item for item in plan_workloads(asked) if not item.cases]
    skips = [{(skip.reason, "float32" in skip.detail) for skip in item.skips} for item in items]
    assert skips == [{("no-dtype", True)}] * 3
    assert len(schedule(asked).plan) == 3


def test_a_budget_goes_from_small_to_large_and_overheads_come_last():
    uploads = [("upload", n, MAIN) for n in (1024, 4096)]
    assert steps(spec(**BOTH, budget_s=9.0)) == [*(("add", n, BLOCKS) for n in sorted(SIZES["add"])), *uploads]
    assert steps(spec(**BOTH))[-2:] == uploads


def test_what_a_search_chose_is_repeated_side_by_side_behind_what_was_named():
    plan = schedule(spec(ops=("add", "mul", "upload"), sizes={"add": [64], "upload": [1024]}))
    plan.plan += schedule(spec(ops=("mul",), sizes={"mul": [64, 256]})).plan
    again = [[(item.op.name, item.n) for item in step.workloads] for step in plan.again(1, None)]
    assert sorted(again[:2]) == [[("add", 64)], [("upload", 1024)]]
    assert [sorted(step) for step in again[2:]] == [[("mul", 64), ("mul", 256)]]
    assert [step.purpose for step in plan.again(1, None)] == [MAIN, MAIN, ONE_BLOCK]


@pytest.fixture
def made():
    """What carries a request out, and nothing of it left."""
    runners = []

    def make(asked):
        runners.append(runner.Runner(asked, lambda event: None, lambda run: None))
        return runners[-1]

    yield make
    for each in runners:
        each.clean_up()


@pytest.mark.parametrize(("asked", "share"), [
    ({}, 0.9), ({"sessions": 3}, 0.3), ({"sessions": 2}, 0.45), (BOTH, 0.45), ({"more": (SPLIT,)}, 0.45),
    ({**BOTH, "sessions": 3}, 0.15),
])  # fmt: skip
def test_the_search_leaves_time_for_what_comes_behind_it(made, monkeypatch, asked, share):
    usual = {"sessions": 1, "budget_s": 1e5} | asked
    assert made(spec(**usual)).search_left_s() == pytest.approx(share * 1e5, abs=60)
    monkeypatch.setattr(runner, "companions", lambda *of: [Mock(share=0.1)])
    assert made(spec(**usual)).search_left_s() == pytest.approx((share - 0.1 / usual["sessions"]) * 1e5, abs=60)


@pytest.fixture
def carried_out(made, monkeypatch):
    """Carry out the sessions of a run, whose times and foreign shares of the CPUs are given, on a scripted clock."""

    def carry_out(took, shares=(), lacking=(), **asked):
        clock, events, done = [100.0], [], []
        for module in (runner, budget):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
        more = {name: asked.pop(name) for name in ("adds_sessions", "repeats") if name in asked}
        whole = made(replace(spec(**asked), began=100.0, **more))
        whole.sink = events.append
        monkeypatch.setattr(whole, "_schedule", SimpleNamespace(count=5, first="first", again="again"))
        whole.progress.cases = 5

        def session(steps, repeats=None):
            vars(whole)["_begun"] += 1
            clock[0] += took[len(done)]
            share = dict(enumerate(shares)).get(len(done), 0.0)
            done.append((steps, repeats))
            record = SessionRecord(
                index=len(done) - 1, started_at="t", foreign_cpu_share=share, repeats=repeats
            )
            whole.recorder.session(record)
            return record

        blocks = [block(session=number) for number in range(9) if number not in lacking]
        whole.recorder.put(measured(case(64, CPU), *blocks))
        monkeypatch.setattr(whole, "_one_session", session)
        whole.sessions()
        return whole, done, events

    return carry_out


FITS = "{} of {} sessions fit the budget"


# Seconds of the sessions, what is asked for, how many sessions there are then, how many cases, and what is warned of.
@rows("took, asked, count, cases, warned", {
    "as many as are asked for": ([1.0] * 3, {"sessions": 3}, 3, 15, None),
    "as many as the budget has time for": ([4.0] * 3, {"sessions": 3, "budget_s": 10.0}, 2, 15, FITS.format(2, 3)),
    "one that takes the very time that is left": ([5.0] * 2, {"sessions": 2, "budget_s": 10.0}, 2, 10, None),
    "one that uses it up": ([10.0], {"sessions": 2, "budget_s": 10.0}, 1, 10, "the first session used up the budget"),
    "one alone": ([6.0], {"sessions": 2, "budget_s": 10.0}, 1, 10, FITS.format(1, 2)),
    "the second one uses it up": ([4.0, 6.0], {"sessions": 3, "budget_s": 10.0}, 2, 15, FITS.format(2, 3)),
    "some are added to a search, which the first alone makes": ([3.0, 2.0, 2.0, 2.0], {"sessions": 2, "budget_s": 10.0, "sizes": {}, "adds_sessions": True}, 4, 20, None),
    "not without being asked": ([3.0, 2.0], {"sessions": 2, "budget_s": 10.0, "sizes": {}}, 2, 10, None),
    "nor beside one session": ([3.0], {"sessions": 1, "budget_s": 10.0, "sizes": {}, "adds_sessions": True}, 1, 5, None),
    "nor without a search": ([3.0, 2.0], {"sessions": 2, "budget_s": 10.0, "adds_sessions": True}, 2, 10, None),
    "a longer one counts": ([1.0, 1.0, 5.0], {"sessions": 2, "budget_s": 10.0, "sizes": {}, "adds_sessions": True}, 3, 15, None),
})  # fmt: skip
def test_there_are_as_many_sessions_as_the_budget_has_time_for(carried_out, took, asked, count, cases, warned):
    whole, done, (started, *warnings) = carried_out(took, **asked)
    assert done == [("first", None), *[("again", None)] * (count - 1)]
    assert (whole.progress.cases, whole.progress.sessions) == (cases, cases // 5)
    assert (started.cases, started.sessions) == (5 * asked["sessions"], asked["sessions"])
    assert [warning.warning.message for warning in warnings] == [warned] * (warned is not None)


# The share of the CPUs that others took in each session, what is asked for, what each further session repeats, and which count.
@rows("shares, asked, repeated, counts", {
    "a quiet one is not repeated": ([0.05], {}, [], [0]), "a disturbed one is, once if that is quiet": ([0.2, 0.01], {}, [0], [1]),
    "twice at most, and the least disturbed counts": ([0.2, 0.0, 0.3, 0.25, 0.2], {"sessions": 2}, [0, 0], [0, 1]),
    "the last one": ([0.2, 0.0, 0.3, 0.1, 0.2], {"sessions": 2}, [0, 0], [1, 3]),
    "not where all are": ([0.2, 0.3, 0.3], {"sessions": 2}, [], [0, 1]), "nor twice where that shows": ([0.2, 0.3], {}, [0], [0]),
    "where there is time": ([0.2, 0.01], {"budget_s": 2.5}, [0], [1]), "one that ends with it": ([0.2, 0.01], {"budget_s": 2.0}, [0], [0, 1]), "and not without": ([0.2, 0.01], {"budget_s": 1.9}, [], [0]),
    "nor where it was not asked for": ([0.2], {"repeats": False}, [], [0]), "nor of a check": ([0.2], {"check_only": True}, [], [0]),
    "one that lacks cases counts for nothing": ([0.2, 0.01], {"lacking": [1]}, [0], [0, 1]),
})  # fmt: skip
def test_a_disturbed_session_is_repeated_and_its_least_disturbed_try_counts(
    carried_out, shares, asked, repeated, counts
):
    asked = {"sessions": 1} | asked
    whole, done, events = carried_out([1.0] * 9, shares, **asked)
    assert [repeats for _, repeats in done[asked["sessions"] :]] == repeated
    assert [record.index for record in whole.recorder.run.sessions if not record.superseded] == counts
    again = [event for event in events if isinstance(event, SessionAgain)]
    firsts = [shares[0], *shares[asked["sessions"] :]]
    assert [(event.share, event.session, event.cases) for event in again] == [
        (firsts[i], 0, 5 * (asked["sessions"] + 1 + i)) for i in range(len(repeated))]  # fmt: skip


def test_a_check_says_what_it_left_out(carried_out):
    whole, _, _ = carried_out([1.0, 1.0], check_only=True, sessions=1)
    left = [case(n, CPU, op=op) for n, op in ((1, "add"), (2, "mul"), (3, "mul"))]
    whole.recorder.plan([Planned(id=each.id, case=each) for each in left])
    vars(whole)["_begun"] = 0
    whole.sessions()
    told = [f"{text} cases were not checked: add" for text in ("11 of 12", "14 of 15")]
    assert [warning.message for warning in whole.recorder.run.warnings] == [told[0], f"{told[1]} and mul"]


def test_sessions_are_numbered_behind_those_of_the_file_and_a_plan_without_cases_has_none(made):
    for before, ops, first, count in (([], ("add",), 0, 2), ([0, 3], ("add",), 4, 2), ([0, 3], (), 4, 0)):
        asked = spec(ops, SIZES if ops else {}, sessions=2)
        known = [SessionRecord(index=index, started_at="t") for index in before]
        whole = made(replace(asked, run=replace(asked.run, sessions=known)))
        assert (whole.first_session, whole.progress.sessions) == (first, first + count)


def test_a_disk_that_fails_is_told_and_the_run_goes_on(tmp_path):
    saved, events = [], []

    def save(run):
        saved.append(run)
        raise GpubenchError("no-scratch", "the disk", why="it is full", hint="free it")

    whole = runner.Runner(spec(), events.append, save)
    whole.recorder.save()
    whole.clean_up()
    message = "the disk: it is full; measuring goes on, and saving is tried again"
    told = [(event.warning.code, event.warning.message, event.warning.hint) for event in events]
    assert (saved[-1].selection.ops, told) == (["add"], [("cannot-save", message, "free it")] * len(saved))


def test_a_lost_device_is_tried_once_more_in_the_next_session(made):
    whole = made(spec())
    lost, absent = (DeviceGone(reason, "it is gone") for reason in ("device-lost", "unavailable"))
    for left in ({"wgpu:0": absent}, {"cupy:0": lost, "wgpu:0": absent}, {"cupy:0": lost, "wgpu:0": absent}):
        whole.gone |= {"cupy:0": lost, "wgpu:0": absent}
        whole.try_lost_devices_again()
        assert whole.gone == left


def test_the_rest_is_told_by_the_budget_or_by_the_cases_so_far(made):
    assert made(spec(budget_s=1e5, began=5e4)).remaining_s() == pytest.approx(5e4, abs=60)
    assert made(spec(budget_s=1.0, began=5.0)).remaining_s() == 0.0
    open_end = made(spec(began=1e5))
    assert open_end.remaining_s() is None
    open_end.progress.finished, open_end.progress.cases = 4, 10
    assert open_end.remaining_s() == pytest.approx(1.5e5, abs=60)
    open_end.progress.finished = 12
    assert open_end.remaining_s() == 0.0


# ---------------------------------------------------------------------- what is tried behind a search


def constraints(*targets):
    return Constraints(targets, Selection(ops=["add"], regimes=["resident-queued", "transfer-always"]), None)


ADD = Series(kernels.load("add"), "float32")


def test_after_a_search_the_largest_size_is_tried_at_which_both_sides_are_near():
    cpu, gpu = ("numpy:0", "library", "resident"), ("cupy:0", "library")

    def row(cpu_s, resident_s, always_s):
        sides = {cpu: cpu_s, (*gpu, "resident-queued"): resident_s, (*gpu, "transfer-always"): always_s}
        return {name: {0: [seconds]} for name, seconds in sides.items()}

    scope = constraints(ON_CPU, ON_GPU, SPLIT)
    times = {1024: row(1.0, 20.0, 50.0), 4096: row(4.0, 8.0, 20.0), 16384: row(16.0, 1.0, 30.0)}
    found = worth_trying(ADD, times, {CPU}, scope)
    assert [case.id for item in found for case in item.cases] == [
        "add/n=4096/float32/tuned/resident-queued@hybrid:cupy:0",
        "add/n=16384/float32/tuned/transfer-always@hybrid:cupy:0",
    ]
    assert worth_trying(ADD, times, {CPU}, constraints(ON_CPU, ON_GPU)) == []
    for cpu_s, near in ((10.0, True), (10.1, False), (0.1, True), (0.0999, False)):
        found = worth_trying(ADD, {1024: row(cpu_s, 1.0, 1e3)}, {CPU}, scope)
        assert [item.n for item in found] == [1024] * near


def test_after_a_search_device_groups_run_each_size_of_a_member_from_large_to_small():
    """A budget then cuts off the sizes at which several GPUs gain nothing."""
    scope = constraints(ON_CPU, ON_GPU, Target(device("group:cupy:0-1"), ("library",)))
    devices = {1024: "cupy:0", 4096: "cupy:1", 2048: "numpy:0", 8192: "wgpu:0"}
    times = {n: {(name, "library", "resident"): {0: [1.0]}} for n, name in devices.items()}
    found = on_groups(ADD, times, replace(scope, settings=Settings(scaling="strong")))
    assert [item.n for item in found] == [4096, 1024]
    assert {case.device_id for item in found for case in item.cases} == {"group:cupy:0-1"}


def test_a_plan_skips_by_name_what_cannot_be_cut_and_has_no_overheads_of_a_split():
    one = workload(ADD, 1, constraints(ON_CPU, SPLIT))
    assert [(skip.reason, skip.detail) for skip in one.skips] == [("no-split", "add has 1 unit to cut")] * 2
    launch = workload(Series(kernels.load("launch"), "float32"), 1, constraints(SPLIT))
    assert launch.cases == launch.skips == ()


# ---------------------------------------------------------------------- what a file lacks, and what stays of a session that was cut short


SESSIONS, LEAST = 2, 5
ADD_ALONE = {"add": kernels.load("add")}
# Of a case in one session: its samples, and why it stopped, if it did.
DONE, LOST, PART = (LEAST, "precision"), (0, "lost"), (LEAST - 1, None)
SHORT, LATE = (LEAST - 1, "budget"), (LEAST, "budget")
ONE, TWO = [DONE], [DONE, DONE]


def outcome(n, device, state):
    """The case as a file has it: planned, skipped for a reason, or measured in sessions from 0 on."""
    own = case(n, device)
    if state == "planned":
        return Planned(id=own.id, case=own)
    if isinstance(state, str):
        return Skip(id=own.id, case=own, reason=state, detail="")
    took = [(session, *times) for session, times in enumerate(state)]
    there = [session for session, samples, _ in took if samples]
    stages, sides = zip(*map(stage_times, there), strict=True) if there else ((), ())
    return measured(
        own,
        *(block([1.0] * (count + 1), warmup=1, session=i, repeat=i + 3) for i, count, _ in took if count),
        stops=[results.Stop(session=i, reason=why) for i, _, why in took if why not in (None, "lost")],
        failures=[results.SessionFailure(session=i, reason="worker-crashed", detail="") for i, _, why in took if why == "lost"],
        parts=[results.Parts(session=i) for i in there],
        stages=[*stages],
        assignment_times=[*sides],
    )  # fmt: skip


def file(states, named=True, sessions=(0,), outcomes=None, **fields):
    """A run of sizes 1, 2 ..., each with the states of its cases on two devices."""
    outcomes = outcomes or [
        outcome(n, place, state) for n, pair in enumerate(states, 1)
        for place, state in zip((CPU, TORCH), pair, strict=False)
    ]  # fmt: skip
    selection = Selection(ops=["add"], sizes={"add": list(range(1, len(states) + 1))} if named else {})
    repeats = enumerate(session if isinstance(session, tuple) else (None,) for session in sessions)
    records = [SessionRecord(index=i, started_at="t", repeats=of, superseded=any(x)) for i, (of, *x) in repeats]
    wanted = Settings(sessions=SESSIONS, min_samples=LEAST)
    return empty_run(*outcomes, selection=selection, settings=wanted, sessions=records, **fields)


def scope(run):
    """Of devices that a file may lack."""
    return Constraints((ON_CPU, ON_TORCH, ON_GPU), run.selection, None)


COMPLETE, CUT = {"complete": True, "exit_reason": "ok"}, {"complete": True, "exit_reason": "budget"}


def told(outcomes):
    """The sessions of each case, size by size; - without any, p: it is planned."""
    texts = {}
    for known in outcomes:
        text = "p" if isinstance(known, Planned) else "-"
        if blocks := getattr(known, "blocks", ()):
            sessions = [block.session for block in blocks]
            text = "".join(map(str, sessions))
            for name in ("parts", "stages", "assignment_times"):
                assert [times.session for times in getattr(known, name)] == sessions, name
            lost = {failure.session for failure in known.failures or ()}
            assert {stop.session for stop in known.stops} <= {*sessions} - lost
        texts.setdefault(known.case.params["n"], []).append(text)
    return [" ".join(size) for size in texts.values()]


# The states of the sizes, the run's fields, how many sessions are asked for; then the sessions to come, the sizes that
# are missing, whether the search goes on, and in which sessions each case has been measured.
@rows("states, fields, asked, count, missing, search, measured", {
    "a complete file gets as many sessions as one call adds":
        ([(ONE, ONE)] * 2, COMPLETE, None, SESSIONS, [], False, ["0 0", "0 0"]),
    "between two sessions the others follow": ([(ONE, ONE)] * 2, {}, None, 1, [], False, ["0 0", "0 0"]),
    "as many as are asked for": ([(ONE, ONE)] * 2, {}, 3, 3, [], False, ["0 0", "0 0"]),
    "a size that was under way is measured again":
        ([(TWO, TWO), (ONE, [DONE, PART])], {"sessions": [0, 1]}, None, 1, [2], False, ["01 01", "0 0"]),
    "beside a worker that was killed the blocks stay":
        ([(TWO, [DONE, LOST]), (ONE, ONE)], {"sessions": [0, 1]}, None, 1, [2], False, ["01 0", "0 0"]),
    "a case without room is no size that is missing":
        ([(ONE, "out-of-memory"), (ONE, "planned")], {}, None, 2, [2], False, ["0 -", "0 p"]),
    "samples of another session are none of the last one":
        ([(TWO, TWO), ([DONE, SHORT], TWO)], {"sessions": [0, 1], **CUT}, None, 1, [2], False, ["01 01", "0 0"]),
    "a budget that cut samples short": ([(ONE, ONE), ([SHORT], ONE)], CUT, None, 2, [2], False, ["0 0", "- -"]),
    "one that ended behind the least samples":
        ([(ONE, ONE), ([LATE], ONE)], CUT, None, 1, [], False, ["0 0", "0 0"]),
    "what a budget left out": ([(ONE, ONE), ("budget", "budget")], COMPLETE, None, 2, [2], False, ["0 0", "p p"]),
    "a repeat is the session that it repeats":
        ([([DONE] * 3, [DONE] * 3)], {"sessions": [0, (None, True), (1,)]}, None, 0, [], False, ["012 012"]),
    "a search goes on": ([(ONE, ONE)], {"named": False}, None, 2, [], True, ["0 0"]),
    "one that has measured nothing too": ([("planned",)], {"named": False}, None, 2, [1], True, ["p"]),
    "not behind its session": ([(TWO, ONE)], {"named": False, "sessions": [0, 1]}, None, 1, [], False, ["0 0"]),
    "but where each session found other sizes":
        ([(ONE,), ([(0, None), DONE],)], {"named": False, "sessions": [0, 1]}, None, 2, [], True, ["0", "1"]),
    "nor where one has measured nothing":
        ([(ONE, ONE)], {"named": False, "sessions": [0, 1]}, None, 1, [], False, ["0 0"]),
    "nor where the run was complete":
        ([(ONE, ONE), ("planned",)], {"named": False, **CUT}, None, 2, [2], False, ["0 0", "p"]),
})  # fmt: skip
def test_a_file_is_gone_on_with(states, fields, asked, count, missing, search, measured):
    before = file(states, **fields)
    run, plan = resume_plan(before, ADD_ALONE, scope(before), asked)
    assert (plan.count, [item.n for item in plan.missing], plan.search) == (count, missing, search)
    assert told(run.outcomes) == measured
    last = max(record.index for record in before.sessions if not record.superseded)
    gone = {last} if not any(str(last) in text for text in measured) else set()
    superseded = {record.index for record in before.sessions if record.superseded}
    assert {record.index for record in run.sessions if record.superseded} == superseded | gone
    assert {case.id for item in plan.workloads for case in item.cases} == {known.id for known in run.outcomes}


def test_a_plan_is_repeated_with_its_cases_its_counts_and_its_readings_of_the_device():
    """What a search tried as a split alone is none of it."""
    known = [
        measured(case(n, device, "resident-queued" if device == GPU else "resident"), block(phase="sweep", repeat=9), *(block(repeat=n, **more) for more in mains))
        for n, device, *mains in (
            (1, CPU, {}), (2, GPU, {"hot_repeat": 5}), (2, CPU, {}), (3, GPU, {"device_cold_s": [1.0]}), (4, CPU),
        )
    ]  # fmt: skip
    run = file([(), (), (), ()], outcomes=[*known, measured(case(1, TORCH))])
    plan = repeat_plan(run, ADD_ALONE, scope(run), 3)
    assert [(item.n, [one.device_id for one in item.cases], item.explained) for item in schedule(replace(spec(), resume=plan)).plan] == [
        (1, [CPU, TORCH], False), (2, [CPU, GPU], True), (3, [GPU], True),
    ]  # fmt: skip
    repeats = {item.id: item.case.params["n"] for item in known[:4]}
    assert {name: one.repeat for name, one in plan.blocks.items()} == repeats
    assert (plan.sessions, plan.missing, plan.search) == (3, (), False)
    assert all(item.explained for item in repeat_plan(file([(ONE, ONE)]), ADD_ALONE, scope(run), 3).workloads)
