"""A run that chooses its sizes on scripted devices: what it leaves in the file, and when it ends."""

import json
import time
from collections import Counter

import msgspec
import pytest

from gpubench.measure import runner
from gpubench.measure.schedule import Resume
from gpubench.result.run import Measurement
from tests.fake.plans import carry_out, plan

pytestmark = pytest.mark.usefixtures("forked_children")
# Far above the threshold the ladder costs seconds of real arithmetic.
SEARCH = "--devices fake:cpu,fake:gpu --ops add --regimes resident-queued --skip add/n>=2M".split()
TRUE_N = 16_900  # 1e-6 + 12 n / 4e10 = 6e-6 + 12 n / 3e12
LADDER = [2**10, 2**13, 2**16, 2**18, 2**20]


def test_the_ladder_and_new_sizes_around_the_crossing_answer(run_well, in_process):
    ran = run_well(*SEARCH, env={"GPUBENCH_FAKE_NOISE": "0.03"})
    found = [(o["case"]["params"]["n"], block) for o in ran.outcomes.values() for block in o.get("blocks", [])]
    assert {block.get("phase", "main") for _, block in found} == {"main"}
    sizes = Counter(n for n, _ in found)
    assert set(LADDER) <= set(sizes)
    new = set(sizes) - set(LADDER)
    assert [n for n in new if TRUE_N / 3 < n < TRUE_N * 3]
    assert all(sizes[n] <= 4 for n in new), "two blocks a side"
    ended = in_process("report", str(ran.folder / "r.json"), "--format", "json")
    (row,) = json.loads(ended.stdout)["break_even"]
    assert (row["verdict"], row["n"]) == ("at", pytest.approx(TRUE_N, rel=0.15))
    assert row["lo"] <= TRUE_N <= row["hi"] < 2.25 * row["lo"]
    settings = ran.result["settings"]
    assert (settings["protocol"], settings["budget_s"]) == (4, 20)


def test_a_budget_that_ends_in_the_middle_leaves_verdicts_and_no_half_estimate(run):
    """Whatever is cut off, no size that a run chose makes it fail."""
    ran = run(*SEARCH, "--budget", "2s", env={"GPUBENCH_FAKE_NOISE": "0.03"})
    assert ran.result["exit_reason"] in ("ok", "budget", "nothing-measured")
    for outcome in ran.outcomes.values():
        assert outcome["type"] != "planned"
        phases = {block.get("phase", "main") for block in outcome.get("blocks", [])}
        # One that passed its check just before the end has no sample; its stop says why.
        stops = {stop["reason"] for stop in outcome.get("stops", [])}
        assert phases or outcome["type"] == "skip" or stops == {"budget"}


def spec(budget_s, host_bytes, devices=("fake:cpu", "fake:gpu"), **fields):
    """A search on small sizes: the fake computes."""
    settings = {"min_samples": 4, "max_samples": 4, "budget_s": budget_s}
    return plan(list(devices), (), host_bytes=host_bytes, settings=settings, **fields)


def measured(finished):
    return {o.case.params["n"] for o in finished.outcomes if isinstance(o, Measurement)}


@pytest.mark.parametrize("sessions", [1, 3])
def test_a_start_that_takes_longer_than_the_budget_leaves_an_answer(sessions):
    """Also where its first session alone would have no time left."""
    asked = spec(4.0, 2**22)
    settings = msgspec.structs.replace(asked.settings, sessions=sessions)
    run = msgspec.structs.replace(asked.run, settings=settings)
    assert len(measured(carry_out(msgspec.structs.replace(asked, run=run, began=asked.began - 100)))) > 1


def test_a_named_budget_is_used_up_by_further_sessions():
    asked = spec(8.0, 2**22, whole=True, adds_sessions=True)
    run = msgspec.structs.replace(asked.run, settings=msgspec.structs.replace(asked.settings, sessions=2))
    ended = carry_out(msgspec.structs.replace(asked, run=run))
    assert len(ended.sessions) > 2
    assert (ended.exit_code, ended.warnings) == (0, [])


def test_a_search_that_goes_on_and_finds_nothing_left_counts_for_nothing():
    asked = spec(8.0, 2**22, ["fake:cpu"])
    done = carry_out(asked)
    nothing = Resume(workloads=(), blocks={}, sessions=0, search=True)
    again = carry_out(msgspec.structs.replace(asked, run=done, resume=nothing, began=time.monotonic()))
    assert [session.superseded for session in again.sessions] == [False, True]
    assert measured(again) == measured(done)


def running_ahead(monkeypatch):
    """By how many seconds the clock of a run is ahead, in a list that a test changes."""
    ahead, clock = [0.0], time.monotonic
    monkeypatch.setattr(runner.time, "monotonic", lambda: clock() + ahead[0])
    return ahead


def test_what_a_start_chose_for_this_machine_is_granted_once(monkeypatch):
    """Half of the budget is left behind a start that took longer, whatever of it went to choosing."""
    ahead, left_s = running_ahead(monkeypatch), []

    class Foreseeing(runner.WorkerPool):
        def open_all(self, *command):
            super().open_all(*command)
            self.once_s = 40.0
            ahead[0] += 100.0

    class Noted(runner.StepRun):
        def sample(self):
            left_s.append(self._runtime.budget.left_s())
            super().sample()

    monkeypatch.setattr(runner, "WorkerPool", Foreseeing)
    monkeypatch.setattr(runner, "StepRun", Noted)
    carry_out(spec(8.0, 2**22, once_s=400.0))
    assert 2.0 < left_s[0] <= 4.0


@pytest.mark.parametrize("once_s", [0.0, 400.0])
def test_choosing_kernels_for_the_ladder_takes_nothing_from_the_first_run_on_a_machine(monkeypatch, once_s):
    """A clock that runs ahead by what the trials are said to take. Only a budget that nobody named grows with it."""
    trials_s, ahead, turns = 60.0, running_ahead(monkeypatch), []

    class Slow(runner.StepRun):
        extra_s = 0.0

        @property
        def tuning_s(self):
            return super().tuning_s + self.extra_s

        def sample(self):
            super().sample()
            if len(turns) < 2 and any(item.cases for item in self.step.workloads):
                turns.append([item.n for item in self.step.workloads])
                ahead[0] += trials_s
                self.extra_s = trials_s

    monkeypatch.setattr(runner, "StepRun", Slow)
    finished = carry_out(spec(60.0, 2**27, once_s=once_s))
    reported = [warning.data for warning in finished.warnings if warning.code == "chosen-once"]
    if once_s:
        assert len(measured(finished)) > 2
        assert reported == [{"seconds": 2 * trials_s}]
    else:
        assert measured(finished) == set(turns[0]), "the budget is used up"
        assert not reported
