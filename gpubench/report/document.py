"""The `gpubench-report` document, version 4, which other programs read. Times are in seconds, and ratios and
sizes are plain numbers.

Every list is present even if it is empty. A field that does not apply is null. `source` is an index into
`sources`. The other fields of a row are the fields of a struct of the analysis, except its `aside` fields.

This module also defines the events of a run (one JSON object a line; its field `reason` is the kind of event)
and the JSON that `ops` and `run --dry-run` write. gpubench reads none of these documents back.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Literal

import msgspec

from gpubench.analysis.analyse import Analysis, machine_runs
from gpubench.analysis.estimate import CaseResult, OutcomeType
from gpubench.analysis.findings import ReportWarning, findings, has_failures
from gpubench.analysis.samples import Label
from gpubench.analysis.speedup import SpeedupKind, UndecidedReason, VerdictKind
from gpubench.analysis.winners import evidence, recommend_mode
from gpubench.base.errors import ExitCode
from gpubench.base.messages import NoNumber, Reason
from gpubench.base.plugins import sections
from gpubench.report.layout import RenderOptions, convert, json_line, json_text
from gpubench.report.sections.answer import answer_sentences
from gpubench.result.machine import Recommendation
from gpubench.result.run import Run


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """One result file."""

    run_id: str  # the id of the run
    label: str | None  # the label that the user gave the run; null if there is none
    started_at: str  # the time of its start, in UTC
    complete: bool  # whether the run reached its own end, even if that was the end of its budget
    exit_reason: str  # one word that explains the exit code
    machine: str  # a description of its CPU and GPUs
    tool: dict[str, str]  # the versions of gpubench, Python and libraries


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of the document above the rows of the sections."""

    name: Literal["gpubench-report"] = "gpubench-report"  # the name of the document's format
    schema_version: int = 4  # the version of the document's format
    sources: tuple[Source, ...]  # the result files
    baseline: str  # a description of the baseline of the speedups
    verdicts: tuple[str, ...]  # the answer, in sentences


# `recommendation` has the same fields as in `gpubench-detect`. It comes from the newest source with evidence, and
# is null if the sources are from several machines or recommend nothing. Gates and warnings follow it.
_RECOMMENDATION = sections.Rows("recommendation", Recommendation, lambda analysis: (), order=200)
_TAIL: list[tuple[str, Any, Any]] = [("exit_code", int, 0), ("exit_reason", str, "ok")]


@functools.cache
def row_type(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Return the type of the JSON rows for a struct: `source` and the fields of `kind` that are not in `aside`.
    `source` is the index of the result file."""
    fields: list[tuple[str, Any, Any]] = [
        (field.name, field.type, msgspec.field(name=field.encode_name, default=field.default))
        for field in msgspec.structs.fields(kind)
        if field.name not in getattr(kind, "aside", ())
    ]
    text = {"__doc__": kind.__doc__}
    return msgspec.defstruct(
        kind.__name__, [("source", int), *fields], frozen=True, kw_only=True, namespace=text
    )


@functools.cache
def document_type(keys: tuple[str, ...] = ()) -> type[msgspec.Struct]:
    """Return the struct type of the document, with a field for the rows of each section. `keys` names the
    sections of other packages that are included."""
    fields: list[Any] = []
    for name, rows in _by_name(keys):
        inner = [(entry.name.rpartition(".")[2], tuple[row_type(entry.kind), ...], ()) for entry in rows]  # type: ignore[misc]
        if rows[0] is _RECOMMENDATION:
            fields.append((name, Recommendation | None, None))
        elif rows[0].name == name:
            fields.append((name, *inner[0][1:]))
        else:
            fields.append((name, msgspec.defstruct(name.title(), inner, frozen=True, kw_only=True)))
    return msgspec.defstruct("ReportDocument", [*fields, *_TAIL], bases=(Head,), frozen=True, kw_only=True)


def _by_name(keys: Sequence[str]) -> list[tuple[str, list[sections.Rows]]]:
    """Group the rows by the keys of the document, in the document's order."""
    rows = sorted([*sections.all_rows(keys), _RECOMMENDATION], key=lambda entry: entry.order)
    return [
        (name, list(group)) for name, group in groupby(rows, key=lambda entry: entry.name.partition(".")[0])
    ]


def render(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """Return one document for all runs, as JSON. `options.ascii_only` escapes the characters outside of ASCII.
    `options.sections` adds the rows of other packages' sections. No other option has an effect."""
    return json_text(report_document(analyses, tuple(options.sections)), options)


def report_document(analyses: Sequence[Analysis], keys: tuple[str, ...] = ()) -> Any:
    """Return the document of the runs, in the given order. `keys` names the sections of other packages that
    are included."""
    kind = document_type(tuple(key for key in keys if key not in sections.names()))
    types = {field.name: field.type for field in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {}
    for name, rows in _by_name(keys):
        filled = {entry.name.rpartition(".")[2]: _number_rows(entry, analyses) for entry in rows}
        values[name] = filled[name] if name in filled else types[name](**filled)
    ended = "gate" if has_failures(analyses) else "ok"
    return kind(
        sources=tuple(_source(analysis) for analysis in analyses),
        baseline="; ".join(dict.fromkeys(analysis.baseline for analysis in analyses)),
        verdicts=tuple(sentence for analysis in analyses for sentence in answer_sentences(analysis)),
        **values | {"recommendation": _recommendation(analyses)},
        exit_code=ExitCode.GATE if ended == "gate" else ExitCode.OK, exit_reason=ended,
    )  # fmt: skip


def _number_rows(rows: sections.Rows, analyses: Sequence[Analysis]) -> tuple[msgspec.Struct, ...]:
    kind = row_type(rows.kind)
    names = kind.__struct_fields__[1:]
    return tuple(
        kind(source=i, **{name: getattr(entry, name) for name in names})
        for i, analysis in enumerate(analyses)
        for entry in rows.make(analysis)
    )


def _recommendation(analyses: Sequence[Analysis]) -> Recommendation | None:
    """Return the recommendation of the newest run with evidence, else of the newest run. Returns None for
    several machines."""
    if len(machine_runs(analyses)) > 1:
        return None
    newest = sorted(analyses, key=lambda analysis: (analysis.run.started_at, analysis.run.id), reverse=True)
    return recommend_mode(next((analysis for analysis in newest if evidence(analysis) is not None), newest[0]))


def _source(analysis: Analysis) -> Source:
    run = analysis.run
    return convert(run, Source, run_id=run.id, machine=analysis.machine, tool=dict(sorted(run.tool.items())))


def __getattr__(name: str) -> Any:
    """Return the type of the document without sections of other packages, under the name ReportDocument, for
    its JSON Schema. Raises AttributeError for any other name."""
    if name == "ReportDocument":
        return document_type()
    raise AttributeError(name)


SCHEMA_VERSION = 1


class JsonEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="reason"):
    """The base of the events. Events are immutable, and their first field is `reason`, the kind of the
    event."""


class RunStart(JsonEvent, frozen=True, kw_only=True, tag="run-start"):
    """The first event of a run."""

    name: Literal["gpubench-events"] = "gpubench-events"  # the name of the format
    schema_version: int = SCHEMA_VERSION  # the version of the format
    run_id: str  # the id of the run
    label: str | None  # the label that the user gave the run; null if there is none
    started_at: str  # the time of its start, in UTC
    tool: dict[str, str]  # the versions of gpubench, Python and libraries


class CaseStart(JsonEvent, frozen=True, kw_only=True, tag="case-start"):
    """The preparation of a case in a session. A run that is under way gives one event for each session, and a
    finished run gives one in all."""

    id: str  # the id of the case
    session: int = 0  # the index of the session


class Typical(msgspec.Struct, frozen=True):
    """The wall time of one launch, in seconds."""

    estimate: float  # the mean
    lower_bound: float  # the low end of its 95 % interval
    upper_bound: float  # the high end of its 95 % interval
    unit: Literal["s"] = "s"  # the unit of the other fields


class CaseComplete(JsonEvent, frozen=True, kw_only=True, tag="case-complete"):
    """The outcome of a case. If there are several events with the same id, the last one is valid."""

    id: str  # the id of the case
    outcome: OutcomeType  # the kind of outcome
    typical: Typical | None  # the time; if it is null, `cause` says why
    label: Label | None  # the gravest finding about the time; null without samples
    sessions: int  # the number of sessions with used samples
    samples: int  # the number of used samples
    cause: Reason | NoNumber | None  # the code of the reason why there is no time; null if there is a time
    detail: str | None  # the reason in words; null if the code says all
    hint: str | None  # the remedy; null: none is known


class SpeedupFound(JsonEvent, frozen=True, kw_only=True, tag="speedup"):
    """The wall time of the baseline divided by the wall time of the case."""

    id: str  # the id of the case
    baseline_id: str  # the id of the baseline's case
    # headline: the fastest implementation of either side; library: `library` of both; case: any other against the
    # baseline of the headline
    kind: SpeedupKind
    ratio: float  # the speedup
    lo: float  # the low end of its interval
    hi: float  # the high end of its interval
    label: Label  # the graver of both sides' labels
    headline: bool  # whether it may stand for the device: neither a software adapter nor a doubtful time


class BreakEvenFound(JsonEvent, frozen=True, kw_only=True, tag="break-even"):
    """The smallest size from which a device wins at all larger measured sizes."""

    op: str  # the name of the op
    dtype: str  # the dtype of the elements
    params: dict[str, int]  # the params other than the size
    regime: str  # the id of the regime
    device_id: str  # the id of the device
    baseline_id: str  # the id of the device that is the baseline
    verdict: VerdictKind  # at, all-sizes, no-size or undecided
    n: int | None  # the break-even; null: unknown, or the verdict is `all-sizes` or `no-size`
    lo: int | None  # the low end of its interval; null: unknown
    hi: int | None  # the high end of its interval; null: unknown
    mixed: bool  # whether both sides win by turns below the break-even
    reason: UndecidedReason | None = msgspec.field(name="cause")  # the reason of an undecided verdict


class WarningFound(JsonEvent, ReportWarning, frozen=True, kw_only=True, tag="warning"):
    """A warning about a run or some of its cases."""


class RunComplete(JsonEvent, frozen=True, kw_only=True, tag="run-complete"):
    """The last event of a run."""

    exit_code: int  # the exit code of the command
    exit_reason: str  # one word that explains the exit code
    complete: bool  # false if the run was interrupted


EventLine = RunStart | CaseStart | CaseComplete | SpeedupFound | BreakEvenFound | WarningFound | RunComplete


def events(analysis: Analysis) -> Iterator[EventLine]:
    """Yield all events of a finished run."""
    yield run_start(analysis.run)
    for entry in analysis.cases:
        if entry.outcome in ("measurement", "failure"):
            yield CaseStart(id=entry.id)
        yield case_complete(entry)
    yield from conclusions(analysis)


def conclusions(analysis: Analysis) -> Iterator[EventLine]:
    """Yield the events that are known only at the end of a run: speedups, break-evens, warnings, and the end
    itself."""
    yield from (convert(entry, SpeedupFound) for entry in analysis.speedups)
    yield from (convert(entry, BreakEvenFound) for entry in analysis.break_even)
    yield from (convert(entry, WarningFound) for entry in findings(analysis))
    yield _run_complete(analysis)


def run_start(run: Run) -> RunStart:
    """Return the event for the start of a run."""
    return RunStart(
        run_id=run.id, label=run.label, started_at=run.started_at, tool=dict(sorted(run.tool.items()))
    )


def case_complete(entry: CaseResult) -> CaseComplete:
    """Return the event of a case with its time, or with the reason why it has no time."""
    time = entry.time
    return convert(
        entry, CaseComplete, typical=None if time is None else Typical(time.estimate, time.low, time.high),
        sessions=len(entry.sessions), samples=entry.sample_count, cause=entry.reason,
    )  # fmt: skip


def _run_complete(analysis: Analysis) -> RunComplete:
    """Return the event for the end of a run. A failed gate replaces the exit code 0, but no other code."""
    run = analysis.run
    code, reason = run.exit_code, run.exit_reason
    if code == ExitCode.OK and has_failures([analysis]):
        code, reason = ExitCode.GATE, "gate"
    return RunComplete(exit_code=int(code), exit_reason=reason, complete=run.complete)


def render_events(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """Return the events of all runs, one run after the other, as one JSON object a line. `options` has no
    effect."""
    return "".join(json_line(event) for analysis in analyses for event in events(analysis))


class OpList(msgspec.Struct, kw_only=True):
    """The document that `gpubench ops --json` writes."""

    name: Literal["gpubench-ops"] = "gpubench-ops"  # the name of the document's format
    schema_version: Literal[2] = 2  # the version of the document's format
    ops: list[dict[str, Any]]  # the ops, in the order of `gpubench ops`
    # ops of other packages that cannot be listed, each with name, reason and detail
    broken: list[dict[str, str]]


class SkippedCases(msgspec.Struct):
    """The cases that are skipped for one reason."""

    count: int  # the number of cases
    reason: str  # its code in the list of messages
    detail: str  # the reason in one sentence


class Plan(msgspec.Struct, kw_only=True):
    """The document that `gpubench run --dry-run --json` writes."""

    name: Literal["gpubench-plan"] = "gpubench-plan"  # the name of the document's format
    cases: list[str]  # the ids of the cases
    skips: list[SkippedCases]  # the skipped cases, by reason
    sessions: int  # the number of sessions
    has_budget: bool  # whether the run has a time budget
    searches: bool  # whether the run adds sizes of its own choice while time is left
    seconds: float  # the budget; without a budget, the longest time that the samples take
