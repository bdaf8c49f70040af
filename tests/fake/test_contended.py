"""A session that others disturbed is repeated at the end: what counts then, and what is only kept."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from gpubench import detect, kernels
from gpubench.measure import runner
from gpubench.measure.document import new_run
from gpubench.measure.events import SessionAgain
from gpubench.measure.load import Reading
from gpubench.measure.plan import Scope, Target
from gpubench.measure.request import Request
from gpubench.model.result import Device, Run, Selection, Settings

QUIET, BUSY = 0.0, 0.5


def readings(shares: list[float]) -> Iterator[Reading]:
    """Before and after each session of a scripted machine with one CPU, of which others take these shares."""
    at = theirs = 0.0
    for share in shares:
        yield Reading(at, at, theirs, 0.0, 0.0)
        at, theirs = at + 10.0, theirs + 10.0 * share
        yield Reading(at, at, theirs, 0.0, 0.0)


def measured(shares: list[float], sessions: int = 1, budget_s: float | None = None) -> tuple[Run, int]:
    """A run on a machine with this load, session by session; and how many readings it did not need."""
    op = kernels.load("add")
    device = Device(id="fake:cpu", backend="fake", kind="cpu", name="Scripted cpu", api="fake")
    settings = Settings(
        sessions=sessions, min_samples=5, max_samples=5, max_time_s=0.05, warmup_s=0.0, budget_s=budget_s
    )
    selection = Selection(ops=["add"], sizes={"add": [1024]}, regimes=["resident"], devices=[device.id])
    run = new_run(
        argv=[], selection=selection, settings=settings, machine=detect.inspect(extra_records=[]),
        devices=[device], versions={}, label=None, tags=[], context={}, environ={},
    )  # fmt: skip
    told = readings(shares)
    request = Request(
        run=run, ops={"add": op}, scope=Scope((Target(device, ("library",)),), selection, None, settings=settings),
        began=time.monotonic(), load=lambda: next(told),
    )  # fmt: skip
    again: list[float] = []
    finished = runner.run(
        request,
        lambda event: again.append(event.share) if isinstance(event, SessionAgain) else None,
        lambda run: None,
    )
    assert len(again) == len(finished.sessions) - sessions, "each repeat is told"
    assert all(share == BUSY for share in again)
    return finished, len(list(told))


@pytest.mark.parametrize(
    ("shares", "sessions", "superseded"),
    [
        ([QUIET], 1, [False]),
        ([BUSY, QUIET], 1, [True, False]),
        ([BUSY, BUSY, QUIET], 1, [True, True, False]),
        ([BUSY, BUSY, BUSY], 1, [False, False, False]),
        ([QUIET, BUSY, QUIET, QUIET], 3, [False, True, False, False]),
        ([BUSY, BUSY, QUIET, BUSY, QUIET], 2, [True, True, False, True, False]),
    ],
)
def test_a_quiet_repeat_stands_in_for_what_was_disturbed(shares, sessions, superseded):
    run, unused = measured(shares, sessions)
    assert unused == 0, "at most two repeats of each, and none of a quiet one"
    assert [session.superseded for session in run.sessions] == superseded
    assert [session.foreign_cpu_share for session in run.sessions] == shares
    assert [session.index for session in run.sessions] == list(range(len(shares)))
    (outcome,) = run.outcomes
    assert {block.session for block in outcome.blocks} == set(range(len(shares))), "raw samples are all kept"


def test_a_repeat_has_to_fit_the_budget():
    run, unused = measured([BUSY, QUIET], budget_s=0.001)
    assert unused == 2
    assert len(run.sessions) == 1
