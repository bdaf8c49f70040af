"""The order of a session's steps, and the share of the budget that the search has."""

import time

import pytest
from msgspec.structs import replace

from gpubench import kernels
from gpubench.measure import runner
from gpubench.measure.plan import BLOCKS, MAIN, ONE_BLOCK, Constraints, Target
from gpubench.measure.recorder import Progress, Recorder
from gpubench.measure.schedule import RunSpec, Schedule, plan_workloads
from gpubench.result.run import Selection, Settings
from tests.unit.measure.builders import device, empty_run
from tests.unit.measure.simulated import CPU, DEVICES, GPU

SPLIT = Target(device("hybrid:cupy:0", "hybrid"), ("tuned",))
SIZES = {"add": [64, 1024, 256, 4096, 512, 128]}


def spec(ops=("add",), sizes=SIZES, more=(), check_only=False, began=0.0, **settings):
    """The request for some ops on a CPU and a GPU."""
    selection = Selection(ops=[*ops], sizes=sizes, regimes=["resident-queued"])
    targets = (*(Target(DEVICES[name], ("library",)) for name in (CPU, GPU)), *more)
    run = empty_run(selection=selection, settings=Settings(**settings))
    scope = Constraints(targets, selection, None, settings=run.settings)
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
    reasons = [{skip.reason for skip in item.skips} for item in plan_workloads(asked) if not item.cases]
    assert reasons == [{"no-dtype"}] * 3
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
def test_the_search_leaves_time_for_what_comes_behind_it(made, asked, share):
    usual = {"sessions": 1, "budget_s": 1e5}
    assert made(spec(**usual | asked)).search_left_s() == pytest.approx(share * 1e5, abs=60)


def test_the_rest_is_told_by_the_budget_or_by_the_cases_so_far(made):
    assert made(spec(budget_s=1e5, began=5e4)).remaining_s() == pytest.approx(5e4, abs=60)
    assert made(spec(budget_s=1.0, began=5.0)).remaining_s() == 0.0
    open_end = made(spec(began=1e5))
    assert open_end.remaining_s() is None
    open_end.progress.finished, open_end.progress.cases = 4, 10
    assert open_end.remaining_s() == pytest.approx(1.5e5, abs=60)
    open_end.progress.finished = 12
    assert open_end.remaining_s() == 0.0
