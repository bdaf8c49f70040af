"""What a file that is gone on with still lacks, and what stays of the session that an interrupt or a budget cut short."""

import pytest

from gpubench import kernels
from gpubench.measure.plan import Constraints, Target
from gpubench.measure.schedule import repeat_plan, resume_plan
from gpubench.result import run as results
from gpubench.result.run import Planned, Selection, SessionRecord, Settings, Skip
from tests.unit.measure.builders import block, case, empty_run, measured
from tests.unit.measure.simulated import CPU, DEVICES, GPU, TORCH

SESSIONS, LEAST = 2, 5
OPS = {"add": kernels.load("add")}
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
    targets = tuple(Target(DEVICES[name], ("library",)) for name in (CPU, TORCH, GPU))
    return Constraints(targets, run.selection, None)


COMPLETE, CUT = {"complete": True, "exit_reason": "ok"}, {"complete": True, "exit_reason": "budget"}
# The states of the sizes, the run's fields, how many sessions are asked for; then the sessions to come, the sizes that
# are missing, whether the search goes on, and in which sessions each case has been measured.
ROWS = {
    "a complete file gets as many sessions as one call adds":
        ([(ONE, ONE)] * 2, COMPLETE, None, SESSIONS, [], False, ["0 0", "0 0"]),
    "or as are asked for": ([(ONE, ONE)], COMPLETE, 7, 7, [], False, ["0 0"]),
    "so does one whose budget lasted": ([(ONE, [LATE])], COMPLETE, None, SESSIONS, [], False, ["0 0"]),
    "a case without room is none that is missing":
        ([(ONE, "out-of-memory")], COMPLETE, None, SESSIONS, [], False, ["0 -"]),
    "between two sessions the others follow": ([(ONE, ONE)] * 2, {}, None, 1, [], False, ["0 0", "0 0"]),
    "as many as are asked for": ([(ONE, ONE)] * 2, {}, 3, 3, [], False, ["0 0", "0 0"]),
    "a size that was under way is measured again":
        ([(TWO, TWO), (ONE, [DONE, PART])], {"sessions": [0, 1]}, None, 1, [2], False, ["01 01", "0 0"]),
    "a neighbour of what was under way too":
        ([(TWO, TWO), (TWO, [DONE, PART])], {"sessions": [0, 1]}, None, 1, [2], False, ["01 01", "0 0"]),
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
    "what was never begun": ([(ONE, ONE), ("planned", ONE)], {}, None, 2, [2], False, ["0 0", "p 0"]),
    "nothing at all": ([("planned",), ("planned",)], {}, None, 2, [1, 2], False, ["p", "p"]),
    "what does not count is none of the sessions":
        ([(TWO, TWO)], {"sessions": [0, (None, True)]}, None, 1, [], False, ["01 01"]),
    "a repeat is the session that it repeats":
        ([([DONE] * 3, [DONE] * 3)], {"sessions": [0, (None, True), (1,)]}, None, 0, [], False, ["012 012"]),
    "a search goes on": ([(ONE, ONE)], {"named": False}, None, 2, [], True, ["0 0"]),
    "one that has measured nothing too": ([("planned",)], {"named": False}, None, 2, [1], True, ["p"]),
    "not behind its session": ([(TWO, ONE)], {"named": False, "sessions": [0, 1]}, None, 1, [], False, ["0 0"]),
    "but where each session found other sizes":
        ([(ONE,), ([(0, None), DONE],)], {"named": False, "sessions": [0, 1]}, None, 2, [], True, ["0", "1"]),
    "nor where one has measured nothing":
        ([(ONE, ONE)], {"named": False, "sessions": [0, 1]}, None, 1, [], False, ["0 0"]),
    "nor behind a repeat":
        ([(ONE, ONE)], {"named": False, "sessions": [0, (0, True)]}, None, 1, [], False, ["0 0"]),
    "nor where the run was complete":
        ([(ONE, ONE), ("planned",)], {"named": False, **CUT}, None, 2, [2], False, ["0 0", "p"]),
}  # fmt: skip


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


@pytest.mark.parametrize("name", ROWS)
def test_a_file_is_gone_on_with(name):
    states, fields, asked, count, missing, search, measured = ROWS[name]
    before = file(states, **fields)
    run, plan = resume_plan(before, OPS, scope(before), asked)
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
    plan = repeat_plan(run, OPS, scope(run), 3)
    assert [(item.n, [one.device_id for one in item.cases], item.explained) for item in plan.workloads] == [
        (1, [CPU, TORCH], False), (2, [CPU, GPU], True), (3, [GPU], True),
    ]  # fmt: skip
    repeats = {item.id: item.case.params["n"] for item in known[:4]}
    assert {name: one.repeat for name, one in plan.blocks.items()} == repeats
    assert (plan.sessions, plan.missing, plan.search) == (3, (), False)
    assert all(item.explained for item in repeat_plan(file([(ONE, ONE)]), OPS, scope(run), 3).workloads)
