"""Calls whose copies overlap: what a pipeline gains over calls that wait, and the stage that bounds it.

A row of calls takes at least what the slowest of upload, kernel and download takes for all of them. Each was timed in
such a row by itself, on the same page-locked memory.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from gpubench.analysis.analyse import Analysis, derive_once
from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.samples import stage_medians
from gpubench.analysis.speedup import EQUAL, fastest, pair_ratio
from gpubench.base.groups import group_by
from gpubench.curves.stats import Interval
from gpubench.result.case import STREAMED
from gpubench.result.run import Measurement

PipelineStage = Literal["upload", "kernel", "download"]
STAGES: tuple[PipelineStage, ...] = ("upload", "kernel", "download")


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """The fastest pipeline of an op, size and device, beside its fastest call that copies."""

    aside: ClassVar = ("case", "copied", "interval", "pays")
    id: str  # of the case
    copied_id: str | None  # the call that waits; None: it was not measured
    gain: float | None  # time of that call / time of a call in the pipeline
    lo: float | None  # low end of the interval
    hi: float | None  # high end of the interval
    sets: int | None  # of buffers in flight
    stages_s: dict[str, float]  # seconds per call of each stage in a row by itself
    bound: PipelineStage | None  # the slowest stage; None: they were not timed
    bound_s: float | None  # its seconds
    reached: float | None  # bound_s / seconds of a call in the pipeline
    # seconds of all stages / of a call in the pipeline: the rest of the gain is page-locked memory
    overlap: float | None
    case: CaseResult  # the pipeline
    copied: CaseResult | None  # the call that waits
    interval: Interval | None  # of the gain

    @property
    def pays(self) -> bool:
        """Whether the gain is more than a difference that is about equal."""
        return self.interval is not None and self.interval.low > EQUAL


@derive_once
def pipelines(analysis: Analysis) -> tuple[Pipeline, ...]:
    """Return a row for each workload and device that has a pipeline with a time, in the order of the cases."""
    outcomes = {outcome.id: outcome for outcome in analysis.run.outcomes}
    rows = []
    for results in group_by(
        analysis.cases, lambda result: (result.case.workload, result.case.device_id)
    ).values():
        streamed = fastest(result for result in results if result.case.regime == STREAMED)
        if streamed is None:
            continue
        copied = fastest(result for result in results if result.case.regime == "transfer-always")
        outcome = outcomes[streamed.id]
        assert isinstance(outcome, Measurement)
        rows.append(_pipeline(analysis, outcome, streamed, copied))
    return tuple(rows)


def _pipeline(
    analysis: Analysis, outcome: Measurement, streamed: CaseResult, copied: CaseResult | None
) -> Pipeline:
    assert streamed.time is not None
    gain = None if copied is None else pair_ratio(copied, streamed)
    stages = stage_medians(analysis.run, outcome)
    bound = max((name for name in STAGES if name in stages), key=lambda name: stages[name], default=None)
    bound_s = None if bound is None else stages[bound]
    return Pipeline(
        id=streamed.id, copied_id=None if copied is None else copied.id, gain=gain.estimate if gain else None,
        lo=gain.low if gain else None, hi=gain.high if gain else None, sets=outcome.sets or None, stages_s=stages,
        bound=bound, bound_s=bound_s,
        reached=None if bound_s is None else bound_s / streamed.time.estimate,
        overlap=sum(stages.values()) / streamed.time.estimate if stages else None,
        case=streamed, copied=copied, interval=gain,
    )  # fmt: skip
