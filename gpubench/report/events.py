"""The events of a run, one JSON object a line, each named by its `reason`; a file's events from its analysis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.estimate import CaseResult, OutcomeType
from gpubench.analysis.findings import findings, gates
from gpubench.analysis.samples import Label
from gpubench.analysis.speedup import SpeedupKind, UndecidedReason, VerdictKind
from gpubench.base.errors import ExitCode
from gpubench.base.messages import NoNumber, Reason, WarningCode
from gpubench.report.layout import RenderOptions, convert, json_line
from gpubench.result.run import Run, Severity

SCHEMA_VERSION = 1


class JsonEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="reason"):
    """Base of the events: immutable; `reason` comes first."""


class RunStart(JsonEvent, frozen=True, kw_only=True, tag="run-start"):
    """The first event of a run."""

    name: Literal["gpubench-events"] = "gpubench-events"  # of the format
    schema_version: int = SCHEMA_VERSION  # of the format
    run_id: str  # of the run
    label: str | None  # of the user
    started_at: str  # UTC
    tool: dict[str, str]  # versions


class CaseStart(JsonEvent, frozen=True, kw_only=True, tag="case-start"):
    """A case is prepared in a session; while a run is under way, once for each session."""

    id: str  # of the case
    session: int = 0  # its index


class Typical(msgspec.Struct, frozen=True):
    """Wall time of one launch."""

    estimate: float  # the mean
    lower_bound: float  # of its 95 % interval
    upper_bound: float  # of its 95 % interval
    unit: Literal["s"] = "s"  # of all three


class CaseComplete(JsonEvent, frozen=True, kw_only=True, tag="case-complete"):
    """The outcome of a case. The last one of an id counts."""

    id: str  # of the case
    outcome: OutcomeType  # what became of it
    typical: Typical | None  # null where `cause` says why
    label: Label | None  # the gravest thing that is wrong with the number
    sessions: int  # that count
    samples: int  # that count
    cause: Reason | NoNumber | None  # why there is no number
    detail: str | None  # the cause in words
    hint: str | None  # what to do


class SpeedupFound(JsonEvent, frozen=True, kw_only=True, tag="speedup"):
    """Wall time of the baseline / wall time of the case."""

    id: str  # of the case
    baseline_id: str  # of the case that is divided
    kind: SpeedupKind  # what is compared
    ratio: float  # the speedup
    lo: float  # low end of its interval
    hi: float  # high end of its interval
    label: Label  # the gravest thing that is wrong with it
    headline: bool  # tables show it


class BreakEvenFound(JsonEvent, frozen=True, kw_only=True, tag="break-even"):
    """From which size on the device wins."""

    op: str  # its name
    dtype: str  # of the elements
    params: dict[str, int]  # beside the size
    regime: str  # the situation
    device_id: str  # the device
    baseline_id: str  # of the side that it wins over
    verdict: VerdictKind  # at, all-sizes, no-size or undecided
    n: int | None  # the size
    lo: int | None  # low end of its interval
    hi: int | None  # high end of its interval
    mixed: bool  # below it the device wins and loses by turns
    reason: UndecidedReason | None = msgspec.field(name="cause")  # why a verdict is undecided


class WarningFound(JsonEvent, frozen=True, kw_only=True, tag="warning"):
    """A warning."""

    code: WarningCode  # of the list of messages
    severity: Severity  # how grave it is
    message: str  # one sentence
    hint: str  # one sentence of advice
    ids: tuple[str, ...]  # the cases that it concerns


class RunComplete(JsonEvent, frozen=True, kw_only=True, tag="run-complete"):
    """The last event of a run."""

    exit_code: int  # of the command
    exit_reason: str  # in one word
    complete: bool  # false for one that was interrupted


EventLine = RunStart | CaseStart | CaseComplete | SpeedupFound | BreakEvenFound | WarningFound | RunComplete


def events(analysis: Analysis) -> Iterator[EventLine]:
    """All events of a run that is over."""
    yield run_start(analysis.run)
    for entry in analysis.cases:
        if entry.outcome in ("measurement", "failure"):
            yield CaseStart(id=entry.id)
        yield case_complete(entry)
    yield from conclusions(analysis)


def conclusions(analysis: Analysis) -> Iterator[EventLine]:
    """Yield what only the whole run tells, and its end."""
    yield from (convert(entry, SpeedupFound) for entry in analysis.speedups)
    yield from (convert(entry, BreakEvenFound) for entry in analysis.break_even)
    yield from (convert(entry, WarningFound) for entry in findings(analysis))
    yield _run_complete(analysis)


def run_start(run: Run) -> RunStart:
    return RunStart(
        run_id=run.id, label=run.label, started_at=run.started_at, tool=dict(sorted(run.tool.items()))
    )


def case_complete(entry: CaseResult) -> CaseComplete:
    """A case with its number, or with the reason for none."""
    time = entry.time
    return CaseComplete(
        id=entry.id, outcome=entry.outcome,
        typical=None if time is None else Typical(time.estimate, time.low, time.high),
        label=entry.label, sessions=len(entry.sessions), samples=entry.sample_count,
        cause=entry.reason, detail=entry.detail, hint=entry.hint,
    )  # fmt: skip


def _run_complete(analysis: Analysis) -> RunComplete:
    """The run's own end; a failed gate is reported only of a run that ended well."""
    run = analysis.run
    code, reason = run.exit_code, run.exit_reason
    if code == ExitCode.OK and any(not gate.passed for gate in gates(analysis)):
        code, reason = ExitCode.GATE, "gate"
    return RunComplete(exit_code=int(code), exit_reason=reason, complete=run.complete)


def render(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """The events of all runs, one run after the other. No option changes them: other programs read it."""
    return "".join(json_line(event) for analysis in analyses for event in events(analysis))
