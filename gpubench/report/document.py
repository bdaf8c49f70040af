"""The `gpubench-report` document, version 3: what other programs read. Seconds, plain ratios, sizes.

Every list is there even when it is empty; a field that does not apply is null. `source` is an index into
`sources`. The rows are those of the analysis, without what it knows beside them.
Version history: 1 = first version. 2 = the regimes of result version 2; a break-even's verdict is `at`, `all-sizes`,
`no-size` or `undecided` (`always`, `never`, `beyond-limit` and `unstable` before), its `text` is the cell of a table;
`verdicts` are the sentence of the machine, one for each dtype, and those on splits (one for each op before). 3 =
`estimate_s` and `ratio` are of means of logarithms, `median_s` is what `estimate_s` was; `ci_kind` is `sessions`
(`bootstrap` before) or `prior`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeVar

import msgspec

from gpubench.analysis.analyse import Analysis, failed, machine_runs, recommended
from gpubench.analysis.break_even import BreakEven, BreakEvenRow
from gpubench.analysis.claims import ClaimRow
from gpubench.analysis.collectives import CollectiveRow
from gpubench.analysis.estimate import CaseRow
from gpubench.analysis.findings import ReportGate, ReportWarning
from gpubench.analysis.hybrid import HybridRow
from gpubench.analysis.overheads import PoolRow
from gpubench.analysis.placement import PlacementRow
from gpubench.analysis.reuse import Reuse, WeightLoad
from gpubench.analysis.roofline import RoofCaseRow, RoofRow
from gpubench.analysis.samples import Components
from gpubench.analysis.scaling import GangFrom, StrongRow
from gpubench.analysis.speedup import Mean, SpeedupRow
from gpubench.analysis.stages import StagesRow
from gpubench.analysis.together import WeakRow
from gpubench.analysis.twins import TwinCheck
from gpubench.base.errors import ExitCode
from gpubench.report.layout import RenderOptions, json_text, narrowed
from gpubench.report.sections.answer import answer_sentences
from gpubench.report.sections.answer_text import threshold_text
from gpubench.result.machine import Recommendation

T = TypeVar("T", bound=msgspec.Struct)


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """One result file."""

    run_id: str
    label: str | None
    started_at: str
    complete: bool
    exit_reason: str
    machine: str
    tool: dict[str, str]


class RooflineRow(msgspec.Struct, frozen=True, kw_only=True):
    """The roofs of all hardware, and every case with resident data."""

    roofs: tuple[RoofRow, ...]
    cases: tuple[RoofCaseRow, ...]


class ScalingRow(msgspec.Struct, frozen=True, kw_only=True):
    """What several GPUs gain: at once against each alone; an op shared out, and from which size that wins."""

    weak: tuple[WeakRow, ...]
    strong: tuple[StrongRow, ...]
    pays_from: tuple[GangFrom, ...]


class ReportDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The document. `recommendation` is that of `gpubench-detect` by the newest source that measured it, with the
    evidence; null where the sources are of several machines, or say nothing."""

    name: Literal["gpubench-report"] = "gpubench-report"
    schema_version: int = 3
    sources: tuple[Source, ...]
    baseline: str
    verdicts: tuple[str, ...]
    cases: tuple[CaseRow, ...]
    speedups: tuple[SpeedupRow, ...]
    break_even: tuple[BreakEvenRow, ...]
    roofline: RooflineRow
    pool_overhead: tuple[PoolRow, ...]
    collectives: tuple[CollectiveRow, ...] = ()
    scaling: ScalingRow
    reuse: tuple[Reuse, ...] = ()
    weights: tuple[WeightLoad, ...] = ()
    hybrid: tuple[HybridRow, ...] = ()
    placements: tuple[PlacementRow, ...] = ()
    stages: tuple[StagesRow, ...] = ()
    twins: tuple[TwinCheck, ...] = ()
    means: tuple[Mean, ...] = ()
    claims: tuple[ClaimRow, ...] = ()
    noise: tuple[Components, ...] = ()
    recommendation: Recommendation | None = None
    gates: tuple[ReportGate, ...] = ()
    warnings: tuple[ReportWarning, ...]
    exit_code: int = 0
    exit_reason: str = "ok"


def render(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """One document for all runs. Of the options only `ascii_only` changes it, and no value in it."""
    return json_text(report_document(analyses), options)


def report_document(analyses: Sequence[Analysis]) -> ReportDocument:
    """The document of the runs, in the order in which they were given."""
    numbered = list(enumerate(analyses))

    def rows(kind: type[T], of: Callable[[Analysis], Iterable[T]]) -> tuple[T, ...]:
        return tuple(narrowed(row, kind, source=i) for i, analysis in numbered for row in of(analysis))

    ended = "gate" if failed(analyses) else "ok"
    return ReportDocument(
        sources=tuple(_source(analysis) for analysis in analyses),
        baseline="; ".join(dict.fromkeys(analysis.baseline for analysis in analyses)),
        verdicts=tuple(sentence for analysis in analyses for sentence in answer_sentences(analysis)),
        cases=rows(CaseRow, lambda one: one.cases),
        speedups=rows(SpeedupRow, lambda one: (row for row in one.speedups if row.kind != "case")),
        break_even=rows(BreakEvenRow, _break_evens),
        roofline=RooflineRow(
            roofs=rows(RoofRow, lambda one: one.roofline.roofs),
            cases=rows(RoofCaseRow, lambda one: one.roofline.rows),
        ),
        pool_overhead=rows(PoolRow, lambda one: one.overheads.pools),
        collectives=rows(CollectiveRow, lambda one: one.collectives),
        twins=rows(TwinCheck, lambda one: one.twins),
        scaling=ScalingRow(
            weak=rows(WeakRow, lambda one: one.scaling.weak),
            strong=rows(StrongRow, lambda one: one.scaling.strong),
            pays_from=rows(GangFrom, lambda one: one.scaling.pays_from),
        ),
        reuse=rows(Reuse, lambda one: one.reuse),
        weights=rows(WeightLoad, lambda one: one.weights),
        hybrid=rows(HybridRow, lambda one: one.hybrid),
        placements=rows(PlacementRow, lambda one: one.placements),
        stages=rows(StagesRow, lambda one: one.stages),
        means=rows(Mean, lambda one: one.means),
        claims=rows(ClaimRow, lambda one: one.claims),
        noise=rows(Components, lambda one: one.noise),
        recommendation=_recommendation(analyses),
        gates=rows(ReportGate, lambda one: one.gates),
        exit_code=ExitCode.GATE if ended == "gate" else ExitCode.OK,
        exit_reason=ended,
        warnings=rows(ReportWarning, lambda one: one.findings),
    )


def _break_evens(analysis: Analysis) -> Iterable[BreakEven]:
    return (msgspec.structs.replace(row, text=threshold_text(row)) for row in analysis.break_even)


def _recommendation(analyses: Sequence[Analysis]) -> Recommendation | None:
    """The newest that rests on measurements, else the newest, of one machine."""
    if len(machine_runs(analyses)) > 1:
        return None
    newest = sorted(analyses, key=lambda one: (one.run.started_at, one.run.id), reverse=True)
    source = next((one for one in newest if one.measured is not None), newest[0])
    return recommended(source.run, source.measured)


def _source(analysis: Analysis) -> Source:
    run = analysis.run
    return Source(
        run_id=run.id, label=run.label, started_at=run.started_at, complete=run.complete,
        exit_reason=run.exit_reason, machine=analysis.machine, tool=dict(sorted(run.tool.items())),
    )  # fmt: skip
