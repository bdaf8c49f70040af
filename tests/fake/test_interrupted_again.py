"""A run that is interrupted, taken up, and interrupted again: in the end each case has the sessions of the plan."""

import msgspec
import pytest

from gpubench import kernels
from gpubench.cli.exit import Terminated
from gpubench.kernels.contract.op import Ladder
from gpubench.measure import runner, schedule
from gpubench.measure.recorder import CaseDone, CaseStarted
from gpubench.result.run import Measurement
from tests.fake.plans import carry_out, plan

pytestmark = pytest.mark.usefixtures("forked_children")
SESSIONS = 3
SIZES = [1024, 4096, 16384]
# The ladder's: as many sizes as let it be interrupted twice, none that is large.
OP = msgspec.structs.replace(kernels.load("add"), sizes=Ladder(low=256, high=256 << 12))


def measured(request, cases, *, in_the_midst):
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
    run = measured(first, stops[0], in_the_midst=in_the_midst)
    for stop in (*stops[1:], None):
        assert not run.complete
        known, more = schedule.resume_plan(run, first.ops, first.constraints, None)
        assert not more.search or not sizes
        again = msgspec.structs.replace(first, run=msgspec.structs.replace(known, complete=False), resume=more)
        run = measured(again, stop, in_the_midst=in_the_midst)
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
    def interrupt(*_):
        raise ending

    monkeypatch.setattr(runner, "hold_signals", lambda: None)
    monkeypatch.setattr("gpubench.measure.runner.Runner._open_all", interrupt)
    run = carry_out(plan(["fake:cpu"], SIZES, op=OP))
    assert ([session.index for session in run.sessions], run.complete, run.exit_code) == ([0], False, code)
