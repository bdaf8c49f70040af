"""Sessions that others disturbed or that were interrupted: what is repeated and what counts; in the end each case has the sessions of the plan."""

from unittest.mock import Mock

import msgspec
import pytest

from gpubench import kernels
from gpubench.analysis.samples import count_sessions
from gpubench.base.processes import CpuTimes
from gpubench.cli.exit import Terminated
from gpubench.kernels.contract.op import Ladder
from gpubench.measure import runner, schedule
from gpubench.measure.recorder import CaseDone, CaseStarted, SessionAgain
from gpubench.result.run import Measurement
from tests.fake.plans import carry_out, plan

pytestmark = pytest.mark.usefixtures("forked_children")
QUIET, BUSY = 0.0, 0.5


def readings(shares):
    """Before and after each session of a scripted machine with one CPU, of which others take these shares."""
    at = theirs = 0.0
    for share in shares:
        yield CpuTimes(at, at, theirs, 0.0, 0.0)
        at, theirs = at + 10.0, theirs + 10.0 * share
        yield CpuTimes(at, at, theirs, 0.0, 0.0)


def request(shares, sessions, budget_s):
    """One case on a machine with this load, session by session."""
    reported = readings(shares)
    settings = {"sessions": sessions, "budget_s": budget_s}
    return plan(["fake:cpu"], settings=settings, load=lambda: next(reported)), reported


def measured(shares, sessions=1, budget_s=None):
    """What such a run finds; and how many readings it did not need."""
    asked, reported = request(shares, sessions, budget_s)
    again = []
    run = carry_out(asked, lambda event: again.append(event.share) if isinstance(event, SessionAgain) else None)
    assert again == [BUSY] * (len(run.sessions) - sessions), "each repeat is reported"
    return run, len(list(reported))


@pytest.mark.parametrize(("shares", "sessions", "superseded", "turns"), [
    ([BUSY, QUIET], 1, [True, False], [0, 0]), ([QUIET, BUSY, QUIET, QUIET], 3, [False, True, False, False], [0, 1, 2, 1])])  # fmt: skip
def test_the_least_disturbed_repeat_stands_in_for_what_was_disturbed(shares, sessions, superseded, turns):
    run, unused = measured(shares, sessions)
    assert unused == 0, "at most two repeats of each, none of a quiet one, and none where all were disturbed"
    assert count_sessions(run) == sessions
    found = [(each.index, each.superseded, each.planned_index, each.foreign_cpu_share) for each in run.sessions]
    assert found == [*zip(range(len(shares)), superseded, turns, shares, strict=True)], "what each repeats"
    (outcome,) = run.outcomes
    assert {block.session for block in outcome.blocks} == set(range(len(shares))), "raw samples are all kept"


def test_a_repeat_that_an_interrupt_cuts_short_counts_for_nothing(monkeypatch):
    monkeypatch.setattr(runner, "hold_signals", lambda: None)  # they are the test's
    asked, _ = request([BUSY, BUSY], 1, None)

    def interrupt(event):
        if isinstance(event, CaseStarted) and event.session == 1:
            raise KeyboardInterrupt

    run = carry_out(asked, interrupt)
    assert (run.complete, [session.superseded for session in run.sessions]) == (False, [False, True])
    _, rest = schedule.resume_plan(run, asked.ops, asked.constraints, None)
    assert (rest.count, rest.missing, rest.search) == (0, (), False), "the file has all that it was to have"


# ---------------------------------------------------------------------- interrupted, taken up, and interrupted again


SESSIONS = 3
SIZES = [1024, 4096, 16384]
# The ladder's: as many sizes as let it be interrupted twice, none that is large.
OP = msgspec.structs.replace(kernels.load("add"), sizes=Ladder(low=256, high=256 << 12))


def measured_until(request, cases, *, in_the_midst):
    """The run up to an interrupt after so many cases, or while the next one is under way; None: up to its end."""
    done = 0

    def sink(event):
        nonlocal done
        done += isinstance(event, CaseDone)
        late = isinstance(event, CaseStarted) if in_the_midst else isinstance(event, CaseDone)
        if cases is not None and late and done >= cases:
            raise KeyboardInterrupt

    return carry_out(request, sink)


@pytest.mark.parametrize(("sizes", "stops", "in_the_midst"), [
    (SIZES, [4, 1, 1], True), (SIZES, [3, 0, 2], False), ([], [1, 2], False), ([], [5, 1], True),
])  # fmt: skip
def test_each_case_has_the_sessions_of_the_plan(monkeypatch, sizes, stops, in_the_midst):
    monkeypatch.setattr(runner, "hold_signals", lambda: None)  # they are the test's
    first = plan(["fake:cpu"], sizes, op=OP, settings={"sessions": SESSIONS})
    run = measured_until(first, stops[0], in_the_midst=in_the_midst)
    for stop in (*stops[1:], None):
        assert not run.complete
        known, more = schedule.resume_plan(run, first.ops, first.constraints, None)
        assert not more.search or not sizes
        again = msgspec.structs.replace(first, run=msgspec.structs.replace(known, complete=False), resume=more)
        run = measured_until(again, stop, in_the_midst=in_the_midst)
    assert (run.complete, run.exit_reason) == (True, "ok")
    used = {session.index for session in run.sessions if not session.superseded}
    assert used <= {block.session for outcome in run.outcomes for block in getattr(outcome, "blocks", ())}
    assert len(run.outcomes) == len(sizes or OP.sizes.rungs())
    for outcome in run.outcomes:
        assert isinstance(outcome, Measurement)
        finished = {stop.session for stop in outcome.stops} & used
        assert len(finished) == SESSIONS
        assert {block.session for block in outcome.blocks if block.session in used} == finished


@pytest.mark.parametrize(("ending", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
def test_a_session_whose_devices_are_still_being_opened_is_known(monkeypatch, ending, code):
    monkeypatch.setattr(runner, "hold_signals", held := Mock())
    monkeypatch.setattr("gpubench.measure.runner.Runner._open_all", Mock(side_effect=ending))
    run = carry_out(plan(["fake:cpu"], SIZES, op=OP))
    assert ([session.index for session in run.sessions], run.complete, run.exit_code) == ([0], False, code)
    held.assert_called_once_with()  # a second signal does not keep the file from being saved
