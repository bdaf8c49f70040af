"""The analysis of assigned networks: does it pay to run some stages on the CPU and others on the GPU, and if
not, why?

The sessions with a block of phase `sweep` choose the stage assignment, and the other sessions estimate the
gain. The CPU alone and the GPU alone are timed beside every block in the same process, so the times of a gain are
paired. If another case of one side computes the same result faster, its time is used as that of the side alone (see
docs/hybrid.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET

from gpubench.analysis.analyse import Analysis, derive_once
from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.hybrid import (
    LEAST_GAIN,
    LEAST_IDEAL,
    SIDES,
    Contest,
    SharedCall,
    Side,
    SideAlone,
    fastest_alone,
    is_cpu,
    is_gpu,
    shared_cases,
    times_beside,
)
from gpubench.analysis.samples import main_blocks
from gpubench.base import at_largest, group_by
from gpubench.base.plugins.sections import Rows, section
from gpubench.base.table import Cell, Table, cells, heads, number
from gpubench.curves.stats import median
from gpubench.report.layout import CsvValue, RenderOptions, Section
from gpubench.report.wording import (
    data_text,
    devices_text,
    ratio_text,
    seconds_text,
    series_name,
    share_text,
    size_text,
)
from gpubench.result.run import AssignmentTimes, Measurement, Run
from gpubench.workloads.assignment import stage_seconds

AssignmentReason = Literal[
    "one-side-dominates", "transfer-bound", "overhead-bound", "noise", "selected-in-sample", "throttled", "software",
]  # fmt: skip
# A prediction with a larger relative error than this is a mismatch.
SHARE = 0.25


class AssignedStage(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of an assigned network, or all stages with the same name added up."""

    stage: str  # name of the stage
    cpu_s: float  # seconds of the stage in the chain when the CPU runs every stage
    # seconds of the stage in the chain when the GPU runs it; null if only the host can run it
    gpu_s: float | None
    # where the stage runs; `both` if some stages of this name run on the CPU and others on the GPU
    runs_on: Literal["cpu", "gpu", "host", "both"]
    share: float  # the stage's share of the predicted time


class Assignment(SharedCall, frozen=True, kw_only=True):
    """A network with a stage assignment, compared with the CPU alone and the GPU alone."""

    assignment: str  # one letter for each stage: `c` is the CPU, `g` is the GPU
    stages: tuple[AssignedStage, ...]  # where each stage runs; empty without a prediction
    cpu_only_s: float  # seconds of one call with all stages on the CPU
    gpu_only_s: float  # seconds of one call with all stages on the GPU
    predicted_s: float | None  # predicted seconds; null if the file has no prediction
    copies_s: float | None  # part of `predicted_s` for copies and launches; null without a prediction
    measured_s: float  # measured seconds of one call with the stage assignment
    better: Side  # side that is faster alone
    reason: AssignmentReason | None  # reason why the stage assignment does not pay; null if it does
    mismatch: bool  # whether the measured time differs from the predicted one by more than 25 %
    # (assignment, predicted seconds, measured seconds) for each prediction; null if it was not measured
    tried: tuple[tuple[str, float, float | None], ...]

    @property
    def on_gpu(self) -> tuple[str, ...]:
        return tuple(stage.stage for stage in self.stages if stage.runs_on in ("gpu", "both"))


@derive_once
def assignments(analysis: Analysis) -> tuple[Assignment, ...]:
    """Return an `Assignment` for each case with a stage assignment and a time. A case is left out if a side was not
    timed alone beside it."""
    rows = (_judge(analysis.run, *shared) for shared in shared_cases(analysis))
    return tuple(assignment for assignment in rows if assignment is not None)


def list_mismatches(analysis: Analysis) -> list[str]:
    """Return the ids of the cases whose measured time differs from the predicted one by more than 25 %. Cases
    without a prediction are not among them."""
    return [call.id for call in assignments(analysis) if call.mismatch]


def _judge(
    run: Run, outcome: Measurement, result: CaseResult, cases: Sequence[CaseResult]
) -> Assignment | None:
    """Return the `Assignment` of a case. Returns None for a split, and if no session timed both sides alone."""
    main = main_blocks(run, outcome)
    assignment = next(
        (b.assignment for blocks in main.values() for b in blocks if b.assignment is not UNSET), None
    )
    choosing = main_blocks(run, outcome, "sweep")
    alone = {i: times for i, blocks in main.items() if i in result.blocks and (times := times_beside(blocks))}
    estimating = {i: times for i, times in alone.items() if i not in choosing}
    sessions = estimating or alone
    if assignment is None or not sessions:
        return None
    sides = {
        side: _single(
            result,
            cases,
            side,
            SideAlone(None, {i: times[side] for i, times in sessions.items()}, result.prior),
        )
        for side in SIDES
    }
    shared = SideAlone(result.id, {i: result.blocks[i] for i in sessions}, result.prior)
    contest = Contest(result, shared, sides, in_sample=not estimating)
    assignment_times = outcome.assignment_times[-1] if outcome.assignment_times else None
    predicted_s = assignment_times.predicted_s.get(assignment) if assignment_times is not None else None
    stages = (
        _stages(assignment_times, assignment, predicted_s)
        if assignment_times is not None and predicted_s
        else ()
    )
    reason = _reason_against(contest, assignment_times)
    return Assignment(
        **contest.fields(cases, recommended=reason is None),
        assignment=assignment,
        stages=stages,
        copies_s=_copies_s(stages, predicted_s) if predicted_s and stages else None, reason=reason,
        cpu_only_s=sides["cpu"].seconds, gpu_only_s=sides["gpu"].seconds, predicted_s=predicted_s,
        measured_s=shared.seconds, better=contest.better,
        mismatch=abs(shared.seconds / predicted_s - 1) > SHARE if predicted_s else False,
        tried=_trials(run, outcome, assignment_times) if assignment_times is not None else (),
    )  # fmt: skip


def _single(result: CaseResult, cases: Sequence[CaseResult], side: Side, beside: SideAlone) -> SideAlone:
    """Return the time of one side alone: `beside`, or that of a faster case on the same side."""
    on_gpu = not result.case.resident
    same = (case for case in cases if (is_cpu(case) if side == "cpu" else on_gpu and is_gpu(case, result)))
    single = fastest_alone(same, beside.sessions)
    return beside if single is None or beside.seconds <= single.seconds else single


def _stages(
    assignment_times: AssignmentTimes, assignment: str, predicted_s: float
) -> tuple[AssignedStage, ...]:
    if len(assignment) != len(assignment_times.stages):
        return ()
    steps = zip(assignment_times.stages, *stage_seconds(assignment_times), assignment, strict=True)
    stages = []
    for name, turns in group_by(steps, lambda step: step[0]).items():
        on_gpu = [gpu_s for _, _, gpu_s, _ in turns if gpu_s is not None]
        letters = "".join(sorted({letter for *_, letter in turns}))
        spent_s = sum(
            gpu_s if letter == "g" and gpu_s is not None else cpu_s for _, cpu_s, gpu_s, letter in turns
        )
        stages.append(
            AssignedStage(
                stage=name, cpu_s=sum(cpu_s for _, cpu_s, *_ in turns), gpu_s=sum(on_gpu) if on_gpu else None,
                runs_on=_PLACES[letters] if on_gpu else "host", share=spent_s / predicted_s,
            )
        )  # fmt: skip
    return tuple(stages)


_PLACES: dict[str, Literal["cpu", "gpu", "both"]] = {"c": "cpu", "g": "gpu", "cg": "both"}


def _copies_s(stages: Sequence[AssignedStage], predicted_s: float) -> float:
    """Return the seconds of a prediction that belong to no stage, such as those of copies."""
    rest = 1 - sum(stage.share for stage in stages)
    # a smaller rest is a rounding error
    return predicted_s * rest if rest > 1e-9 else 0.0


def _trials(
    run: Run, outcome: Measurement, assignment_times: AssignmentTimes
) -> tuple[tuple[str, float, float | None], ...]:
    blocks = [block for blocks in main_blocks(run, outcome, "sweep").values() for block in blocks]
    tried = []
    for assignment, predicted_s in assignment_times.predicted_s.items():
        times = [s for block in blocks if block.assignment == assignment for s in block.wall_s[block.warmup :]]
        tried.append((assignment, predicted_s, median(times) if times else None))
    return tuple(tried)


def _reason_against(contest: Contest, assignment_times: AssignmentTimes | None) -> AssignmentReason | None:
    """Return the first reason against the stage assignment, or None if it pays."""
    objection = contest.objection()
    if objection is None or objection:
        return objection
    if assignment_times is not None:
        predicted = [*assignment_times.predicted_s.values()]
        single_s = min(predicted[:2], default=0.0)  # the first two are the CPU alone and the GPU alone
        if single_s < LEAST_IDEAL * assignment_times.free_s:
            return "one-side-dominates"
        if single_s < LEAST_GAIN * min(predicted, default=0.0):
            return "transfer-bound"
    return "noise" if contest.gain.high > LEAST_GAIN else "overhead-bound"


# ---------------------------------------------------------------- the section

TITLE = "Hybrid: the stages of a workload on CPU and GPU"
_MEANING = (
    "Each stage as it runs in the chain of one side alone; share: of the predicted time. Gain: time of the better side "
    "alone / time of the stage assignment, with the result on the host."
)
_IN_SAMPLE = (
    "* from the session that chose the assignment, which flatters; with more --sessions others estimate it."
)
_MISMATCH = "! measured and predicted differ by more than 25 %"
REASONS: dict[AssignmentReason, str] = {
    "one-side-dominates": "no mixture would win, even if copies took no time",
    "transfer-bound": "copies between the sides take what a mixture saves",
    "overhead-bound": "changing sides costs more than was predicted",
    "noise": "the times differ too much",
    "selected-in-sample": "one session only",
    "throttled": "the device was throttled",
    "software": "the adapter is the CPU itself",
}


@section("hybrid", order=95)
def assignment_section(analysis: Analysis, options: RenderOptions) -> Section:
    """Return the section with a table for each workload, size, regime and device. Unless every size was requested,
    only the largest size of each workload has tables."""
    rows = shown = list(assignments(analysis))
    if not options.every_size:
        shown = at_largest(rows, lambda call: series_name(call.case.case), lambda call: call.n)
    lines = [_MEANING] if rows else []
    lines += [_IN_SAMPLE] if any(call.selected_in_sample for call in shown) else []
    if len(shown) < len(rows):
        lines.append("The largest size of each workload; all sizes: --sections hybrid.")
    tables = tuple(_table(analysis, call, options.time_unit) for call in shown)
    return Section(title=TITLE, lines=tuple(lines), tables=tables)


def _table(analysis: Analysis, call: Assignment, unit: str) -> Table:
    body: list[tuple[str, ...]] = [
        (stage.stage, seconds_text(stage.cpu_s, unit), seconds_text(stage.gpu_s, unit), stage.runs_on,
         share_text(stage.share))
        for stage in call.stages
    ]  # fmt: skip
    if call.copies_s is not None and call.predicted_s:
        share = share_text(call.copies_s / call.predicted_s)
        body.append(("copies, launches", "-", "-", seconds_text(call.copies_s, unit), share))
    measured = seconds_text(call.measured_s, unit)
    whole = (
        Cell(f"{measured}!", "bad")
        if call.mismatch
        else Cell(measured, "good" if call.recommended else "plain")
    )
    sides = (seconds_text(call.cpu_only_s, unit), seconds_text(call.gpu_only_s, unit))
    return Table(
        heads("stage", number("CPU"), number("GPU"), "runs on", number("share")),
        (*(cells(*line) for line in body), cells("whole", *sides, whole, "")), legend=_legend(call, unit),
        title=f"{series_name(call.case.case)}, n {size_text(call.case).partition(' ')[0]}, {data_text(call.case.case)}",
        note=devices_text(analysis, [call.device_id]),
    )  # fmt: skip


def _legend(call: Assignment, unit: str) -> str:
    times = {
        "cpu-only": call.cpu_only_s,
        "gpu-only": call.gpu_only_s,
        "predicted": call.predicted_s,
        "measured": call.measured_s,
    }
    parts = [f"{name} {seconds_text(seconds, unit)}" for name, seconds in times.items() if seconds is not None]
    gain = f"gain {ratio_text(call.interval)}{'*' if call.selected_in_sample else ''}: {_verdict(call)}"
    return "; ".join([", ".join([*parts, gain]), *([_MISMATCH] if call.mismatch else [])])


def _verdict(call: Assignment) -> str:
    if call.reason is None:
        return "the stage assignment pays"
    words = f"{call.reason}, {REASONS[call.reason]}"
    # With one session, or a gain within noise, neither side wins.
    wins = (
        call.reason in ("one-side-dominates", "transfer-bound", "overhead-bound", "software") or call.gain < 1
    )
    return f"{call.better}-only wins ({words})" if wins else words


def _csv_stages(call: Assignment) -> Iterable[Mapping[str, CsvValue]]:
    """Yield a CSV row for each stage. `predicted_s` is the stage's part of the predicted time."""
    for stage in call.stages if call.predicted_s is not None else ():
        share = {"predicted_s": stage.share * (call.predicted_s or 0.0)}
        yield {"stage": stage.stage, "runs_on": stage.runs_on, **share}


_CSV = {"runs_on": "assignment", "predicted_s": "predicted_s"}
ROWS = (Rows("assignments", Assignment, assignments, order=140, parts=_csv_stages, csv=_CSV),)
