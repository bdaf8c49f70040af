"""The `gpubench-report` document, version 4: what other programs read. Seconds, plain ratios, sizes.

Every list is there even when it is empty; a field that does not apply is null. `source` is an index into
`sources`. The rows are those of the analysis, without what it knows beside them.
Version history: 1 = first version. 2 = the regimes of result version 2; a break-even's verdict is `at`, `all-sizes`,
`no-size` or `undecided` (`always`, `never`, `beyond-limit` and `unstable` before), its `text` is the cell of a table;
`verdicts` are the sentence of the machine, one for each dtype, and those on splits (one for each op before). 3 =
`estimate_s` and `ratio` are of means of logarithms, `median_s` is what `estimate_s` was; `ci_kind` is `sessions`
(`bootstrap` before) or `prior`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Literal

import msgspec

from gpubench.analysis.analyse import Analysis, machine_runs
from gpubench.analysis.findings import has_failures
from gpubench.analysis.winners import evidence, recommend_mode
from gpubench.base.errors import ExitCode
from gpubench.base.plugins import sections
from gpubench.report.layout import RenderOptions, json_text
from gpubench.report.sections.answer import answer_sentences
from gpubench.result.machine import Recommendation


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """One result file."""

    run_id: str  # of the run
    label: str | None  # of the user
    started_at: str  # UTC
    complete: bool  # everything planned was tried
    exit_reason: str  # in one word
    machine: str  # its CPU and GPUs, in words
    tool: dict[str, str]  # versions


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the document above the rows of the sections."""

    name: Literal["gpubench-report"] = "gpubench-report"  # of the document
    schema_version: int = 4  # of the document
    sources: tuple[Source, ...]  # the files
    baseline: str  # what speedups divide
    verdicts: tuple[str, ...]  # one sentence each


# `recommendation` is that of `gpubench-detect` by the newest source that measured it, with the evidence; null where the
# sources are of several machines, or say nothing. It stands before the gates and the warnings.
_RECOMMENDATION = sections.Rows("recommendation", Recommendation, lambda analysis: (), order=200)
_TAIL: list[tuple[str, Any, Any]] = [("exit_code", int, 0), ("exit_reason", str, "ok")]


@functools.cache
def row_type(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Return the type of the JSON rows of a result: the number of its source, and its fields but those `aside`."""
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
    """Return the type of the document with the rows of every section, those of packages among `keys` too."""
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
    """Return the rows by the keys of the document, in its order."""
    rows = sorted([*sections.all_rows(keys), _RECOMMENDATION], key=lambda entry: entry.order)
    return [
        (name, list(group)) for name, group in groupby(rows, key=lambda entry: entry.name.partition(".")[0])
    ]


def render(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """Return one document for all runs. Of the options only `ascii_only` changes it, and no value in it; a section of a
    package that is named adds its rows."""
    return json_text(report_document(analyses, tuple(options.sections)), options)


def report_document(analyses: Sequence[Analysis], keys: tuple[str, ...] = ()) -> Any:
    """Return the document of the runs, in the order in which they were given."""
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
    """Return the newest that rests on measurements, else the newest, of one machine."""
    if len(machine_runs(analyses)) > 1:
        return None
    newest = sorted(analyses, key=lambda analysis: (analysis.run.started_at, analysis.run.id), reverse=True)
    return recommend_mode(next((analysis for analysis in newest if evidence(analysis) is not None), newest[0]))


def _source(analysis: Analysis) -> Source:
    run = analysis.run
    return Source(
        run_id=run.id, label=run.label, started_at=run.started_at, complete=run.complete,
        exit_reason=run.exit_reason, machine=analysis.machine, tool=dict(sorted(run.tool.items())),
    )  # fmt: skip


def __getattr__(name: str) -> Any:
    """Give the type of the document without sections of packages, for its JSON Schema."""
    if name == "ReportDocument":
        return document_type()
    raise AttributeError(name)
