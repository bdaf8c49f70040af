"""What a failure costs, and when a case is tried again."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.measure.recorder import broken, to_be_tried
from gpubench.result.case import Case
from gpubench.result.run import Block, Check, Failure, Measurement, Planned, SessionFailure, Skip, Stop

CASE = Case("add", "vector", {"n": 64}, "float32", "library", "resident-queued", "fake:gpu")


def crash(session):
    return SessionFailure(session=session, reason="worker-crashed", detail="it crashed")


def measured(*sessions):
    return Measurement(
        id=CASE.id, case=CASE, flops=64, bytes=768, op_hash="0",
        check=Check(ok=True, max_error=0.0, limit=0.0, scale="value"),
        blocks=[Block(session=s, round=0, position=0, repeat=1, wall_s=[1e-6]) for s in sessions],
        stops=[Stop(session=s, reason="precision") for s in sessions],
    )  # fmt: skip


@given(st.lists(st.booleans(), max_size=12), st.integers(0, 4))
def test_no_session_is_lost_and_two_failures_in_a_row_end_it(fates, since):
    """`fates` says of each session whether the case would run; earlier calls had `since` of them."""
    outcome, tried = None, []
    for session, fine in enumerate(fates):
        first = 0 if session < since else since
        if not to_be_tried(outcome, session, first):
            tried.append(None)
            continue
        tried.append(fine)
        if not fine:
            outcome = broken(CASE, outcome, crash(session))
            assert not to_be_tried(outcome, session, first), "not twice in one session"
        else:
            failures = getattr(outcome, "failures", None) or []
            sessions = [b.session for b in outcome.blocks] if isinstance(outcome, Measurement) else []
            outcome = msgspec.structs.replace(measured(*sessions, session), failures=failures)
    ran = [session for session, fine in enumerate(tried) if fine]
    broke = [session for session, fine in enumerate(tried) if fine is False]
    if ran:
        assert [block.session for block in outcome.blocks] == ran
    elif broke:
        assert isinstance(outcome, Failure)
    if broke:
        assert [failure.session for failure in outcome.failures] == broke
    for call in (tried[:since], tried[since:]):
        ends = [i + 2 for i in range(len(call) - 1) if call[i] is False and call[i + 1] is False]
        if ends:
            assert call[ends[0] :] == [None] * len(call[ends[0] :]), "given up for the rest of this call"


@pytest.mark.parametrize(("outcome", "again"), [
    (None, True), (Planned(id=CASE.id, case=CASE), True), (measured(0), True),
    (Skip(id=CASE.id, case=CASE, reason="no-dtype", detail=""), False),
    (Skip(id=CASE.id, case=CASE, reason="device-lost", detail=""), True),
    (Failure(id=CASE.id, case=CASE, reason="wrong-result", detail=""), False),
    (Failure(id=CASE.id, case=CASE, reason="timeout", detail=""), True),
])  # fmt: skip
def test_what_is_tried_in_the_next_session(outcome, again):
    assert to_be_tried(outcome, 1, 0) is again


def test_a_failure_leaves_what_stood_before_and_nothing_else():
    before = measured(0, 1)
    after = broken(CASE, before, crash(2))
    assert (after.blocks, after.stops) == (before.blocks, before.stops)
    assert broken(CASE, measured(), crash(0)).reason == "worker-crashed", "samples are what a number needs"
