"""What the runner tells whoever shows progress. Drawing happens between blocks only, never while timing."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gpubench.model.result import Failure, Outcome, RunWarning, SessionFailure, failures_of


class RunStarted(msgspec.Struct, frozen=True):
    """`cases` is what the plan holds so far; a search may add more. `sessions` is how many the file will have."""

    cases: int
    sessions: int
    budget_s: float | None


class CaseStarted(msgspec.Struct, frozen=True):
    """A case is being prepared."""

    id: str
    number: int
    cases: int
    session: int
    sessions: int
    remaining_s: float | None


class BlockDone(msgspec.Struct, frozen=True):
    """The estimate so far: median seconds per launch, its relative half-width, the samples behind it."""

    id: str
    number: int
    cases: int
    session: int
    sessions: int
    estimate_s: float
    precision: float | None
    samples: int
    remaining_s: float | None


class CaseDone(msgspec.Struct, frozen=True):
    """A case has its outcome in this session; `estimate_s` is None without a number."""

    outcome: Outcome
    number: int
    cases: int
    session: int
    estimate_s: float | None
    precision: float | None
    remaining_s: float | None

    @property
    def failure(self) -> Failure | SessionFailure | None:
        """What broke the case in this session."""
        here = [failure for failure in failures_of(self.outcome) if failure.session == self.session]
        if here:
            return here[-1]
        return self.outcome if isinstance(self.outcome, Failure) else None


class Warned(msgspec.Struct, frozen=True):
    """Something the user should know now."""

    warning: RunWarning


class SessionAgain(msgspec.Struct, frozen=True):
    """Others took `share` of the CPUs during a session, so that it is measured once more."""

    share: float


class RunDone(msgspec.Struct, frozen=True):
    """The run is over and saved."""

    exit_code: int
    exit_reason: str


Event = RunStarted | CaseStarted | BlockDone | CaseDone | Warned | SessionAgain | RunDone
Sink = Callable[[Event], None]
