"""The order of a session's steps, the share of the budget that the search has, and what a file that is gone on with still lacks."""

import time
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from gpubench import kernels
from gpubench.measure import runner
from gpubench.measure.plan import BLOCKS, MAIN, ONE_BLOCK, Constraints, Series, Target, workload
from gpubench.measure.recorder import Progress, Recorder
from gpubench.measure.schedule import (
    RunSpec,
    Schedule,
    on_groups,
    plan_workloads,
    repeat_plan,
    resume_plan,
    worth_trying,
)
from gpubench.result import run as results
from gpubench.result.run import Planned, Selection, SessionRecord, Settings, Skip
from tests.rows import rows
from tests.unit.measure.builders import block, case, device, empty_run, measured
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
    stages = {"clock": "host", "stages": []}
    whole = {name: [] for name in ("alone_s", "chain_s", "span_s", "wall_s", "empty_s")}
    sides = {name: [] for name in ("cpu_s", "gpu_s", "cpu_whole_s", "gpu_whole_s", "enter_s")}
    ways = {name: {} for name in ("up_s", "down_s", "predicted_s")}
    return measured(
        own,
        *(block([1.0] * (count + 1), warmup=1, session=i, repeat=i + 3) for i, count, _ in took if count),
        stops=[results.Stop(session=i, reason=why) for i, _, why in took if why not in (None, "lost")],
        failures=[results.SessionFailure(session=i, reason="worker-crashed", detail="") for i, _, why in took if why == "lost"],
        parts=[results.Parts(session=i) for i in there],
        stages=[results.StageTimes(session=i, **stages, **whole) for i in there],
        assignment_times=[results.AssignmentTimes(session=i, free_s=0.0, **stages, **sides, **ways) for i in there],
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
