"""The analysis of splits and pipelines (docs/hybrid.md): whether it pays to split an op over the CPU and a GPU,
or to overlap copies, and if not, why.

Splits: t(f) = max(f t_gpu, (1 - f) t_cpu). Here t_gpu and t_cpu are the times of each side alone, and f is the
GPU's share. Some sessions timed several shares, and the best share f was chosen. The gain comes from the other
sessions, paired with the faster side alone.

Pipelines: a row of calls takes at least as long as the slowest stage (upload, kernel or download) takes for all
calls. Each stage was also timed alone in such a row, on the same page-locked memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec
from msgspec import UNSET

from gpubench.analysis.analyse import Analysis, derive_once
from gpubench.analysis.estimate import CaseResult, series_fields
from gpubench.analysis.samples import main_blocks, stage_medians, wall_samples
from gpubench.analysis.speedup import EQUAL, fastest, pair_ratio
from gpubench.base import group_by
from gpubench.base.plugins import wings
from gpubench.curves import stats
from gpubench.curves.stats import Interval, median
from gpubench.result.case import QUEUED, RESIDENT, STREAMED
from gpubench.result.run import PIPELINE_STAGES, Block, Measurement, OnePiece, PipelineStage, Run


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """The fastest pipeline of an op at one size on one device, compared with the fastest waited call that
    copies. The gain is null if no session measured both. If the stages were not timed, `stages_s` is empty
    and the other fields about them are null."""

    # fields that are left out of the JSON rows
    aside: ClassVar = ("case", "copied", "interval", "pays")
    id: str  # the id of the case
    copied_id: str | None  # the id of the copying call; None: it was not measured
    gain: float | None  # the time of the copying call / the time of a call in the pipeline
    lo: float | None  # the low end of the interval of the gain
    hi: float | None  # the high end of the interval of the gain
    sets: int | None  # the number of sets of buffers, one for each call in flight
    stages_s: dict[str, float]  # seconds per call of each stage, timed alone in a row
    bound: PipelineStage | None  # the slowest stage; None: the stages were not timed
    bound_s: float | None  # the seconds per call of the slowest stage
    reached: float | None  # `bound_s` / seconds of a call in the pipeline
    # the seconds of all stages / the seconds of a call in the pipeline; the rest of the gain comes from
    # page-locked memory
    overlap: float | None
    case: CaseResult  # the case of the pipeline
    copied: CaseResult | None  # the case of the copying call
    interval: Interval | None  # the gain with its interval

    @property
    def pays(self) -> bool:
        """Whether the gain surely exceeds EQUAL, the factor up to which two times count as about equal."""
        return self.interval is not None and self.interval.low > EQUAL


@derive_once
def pipelines(analysis: Analysis) -> tuple[Pipeline, ...]:
    """Return a row for each workload and device that has a timed pipeline, in the order of the cases."""
    rows = []
    for results in group_by(
        analysis.cases, lambda result: (result.case.workload, result.case.device_id)
    ).values():
        streamed = fastest(result for result in results if result.case.regime == STREAMED)
        if streamed is None:
            continue
        copied = fastest(result for result in results if result.case.regime == "transfer-always")
        rows.append(_pipeline(analysis, streamed, copied))
    return tuple(rows)


def _pipeline(analysis: Analysis, streamed: CaseResult, copied: CaseResult | None) -> Pipeline:
    assert streamed.time is not None
    outcome = analysis.outcomes[streamed.id]
    gain = pair_ratio(copied, streamed) if copied else None
    stages = stage_medians(analysis.run, outcome)
    bound = max(
        (name for name in PIPELINE_STAGES if name in stages), key=lambda name: stages[name], default=None
    )
    bound_s = bound and stages[bound]
    return Pipeline(
        id=streamed.id, copied_id=copied.id if copied else None, gain=gain and gain.estimate,
        lo=gain and gain.low, hi=gain and gain.high, sets=outcome.sets or None, stages_s=stages,
        bound=bound, bound_s=bound_s,
        reached=None if bound_s is None else bound_s / streamed.time.estimate,
        overlap=sum(stages.values()) / streamed.time.estimate if stages else None,
        case=streamed, copied=copied, interval=gain,
    )  # fmt: skip


HybridReason = Literal[
    "gpu-dominates", "cpu-dominates", "transfer-bound", "overhead-bound", "shared-bandwidth", "cpu-starved", "noise",
    "selected-in-sample", "throttled", "software",
]  # fmt: skip
Side = Literal["cpu", "gpu"]
SIDES: tuple[Side, ...] = ("cpu", "gpu")
# A shared call is recommended only if its gain surely exceeds the first factor. Below the second, a predicted
# gain is too small to be worth a split.
LEAST_GAIN, LEAST_IDEAL = 1.05, 1.10


class SharedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that a CPU and a GPU compute together."""

    # fields that are left out of the JSON rows
    aside: ClassVar[tuple[str, ...]] = ("case", "interval", "baseline_device")
    id: str  # the id of the case
    op: str  # the op or network
    n: int  # the size n of the op
    params: dict[str, int]  # the params other than the size
    dtype: str  # the dtype of the elements
    regime: str  # the id of the regime
    device_id: str  # `hybrid:` and the id of the GPU
    gain: float  # the time of the faster side alone / the time of both together
    lo: float  # the low end of the interval of the gain
    hi: float  # the high end of the interval of the gain
    recommended: bool  # whether nothing speaks against the shared call
    reason: str | None  # the reason against the shared call; null if it is recommended
    # whether the gain comes from the sessions that chose the share, so that it may be too high
    selected_in_sample: bool
    case: CaseResult  # the case of the shared call
    interval: Interval  # the gain with its interval
    # the id of the device that is the faster one alone; None: a CPU without a case of its own
    baseline_device: str | None

    @property
    def seconds(self) -> float:
        """The time of the shared call, in seconds."""
        assert self.case.time is not None, "only timed cases are judged"
        return self.case.time.estimate

    @property
    def gpu_share(self) -> float | None:
        """The GPU's share of a split op, from 0 to 1, or None for other shared calls."""
        return None

    @property
    def assignment(self) -> str | None:
        """The side of each stage of a network, as letters c and g, or None for a split."""
        return None

    @property
    def on_gpu(self) -> tuple[str, ...]:
        """The stages that the GPU runs, all or some of their repeats. A split has none."""
        return ()


class Hybrid(SharedCall, frozen=True, kw_only=True):
    """One op split over CPU and GPU."""

    # the id of the faster side's own case; null if that side was timed only with the split: beside its blocks, or
    # at an end of its sweep
    baseline_id: str | None
    better: Side  # the side that is faster alone
    gpu_share: float  # the GPU's share of the work, from 0 to 1
    ideal_gain: float  # the gain that the model predicts for the best share
    gpu_pieces: int  # the number of pieces in which the GPU's share is copied and computed
    # the reason why the GPU's share moves in one piece; null if it moves in several, or if the file does not tell
    one_piece: OnePiece | None
    efficiency: float  # the time of the model / the measured time
    reason: HybridReason | None  # the reason against the split; null if it is recommended
    curve: tuple[tuple[float, float], ...]  # pairs (share, median seconds) of the sweep


SessionBlocks = Mapping[int, tuple[float, ...]]  # session -> a value for each block


class SideAlone(NamedTuple):
    """The times of one side alone, or of the call that both share, in the sessions that count."""

    # the id of the side's own case; None: the side was timed only within the case of the shared call
    id: str | None
    sessions: SessionBlocks  # the medians of the blocks in seconds, by session
    prior: stats.Prior  # the prior of its noise

    @property
    def seconds(self) -> float:
        """The time of the side in seconds, computed like the time of a case."""
        return stats.run_value(self.sessions.values())


class Contest(NamedTuple):
    """A shared call and both sides alone, in the same sessions."""

    case: CaseResult  # the case of the shared call
    shared: SideAlone  # the times of the shared call
    sides: Mapping[Side, SideAlone]  # the times of each side alone
    in_sample: bool  # whether every session took part in choosing the share, so that none is left to judge it

    @property
    def better(self) -> Side:
        """The side that is faster alone."""
        return min(self.sides, key=lambda side: self.sides[side].seconds)

    @property
    def gain(self) -> Interval:
        """The time of the faster side alone divided by the time of the shared call."""
        better = self.sides[self.better]
        pairs = [(better.sessions[i], self.shared.sessions[i]) for i in sorted(self.shared.sessions)]
        return stats.ratio_interval(pairs, (better.prior, self.shared.prior))

    def fields(self, cases: Iterable[CaseResult], *, recommended: bool) -> dict[str, Any]:
        """Return the fields of a `SharedCall`, except `reason`. `cases` are all timed cases of the workload."""
        case, gain, baseline = self.case.case, self.gain, self.sides[self.better].id
        if baseline is None:  # that side was timed beside the shared call
            cpu = fastest(filter(is_cpu, cases))
            baseline = f"@{case.shared_with}" if self.better == "gpu" else cpu.id if cpu else None
        return {
            **series_fields(case), "id": case.id, "n": case.n, "regime": case.regime_id,
            "device_id": case.device_id, "gain": gain.estimate, "lo": gain.low, "hi": gain.high,
            "recommended": recommended, "selected_in_sample": self.in_sample, "case": self.case, "interval": gain,
            "baseline_device": baseline and baseline.rpartition("@")[2],
        }  # fmt: skip

    def objection(self) -> Literal["software", "throttled", "selected-in-sample", ""] | None:
        """Return None if the shared call surely gains, else the reason that forbids a verdict. An empty text
        means neither. A gain in the sessions that chose the share is not sure."""
        if self.case.device_kind == "software":
            return "software"
        if self.case.label == "throttled":
            return "throttled"
        if self.gain.low > LEAST_GAIN:
            return "selected-in-sample" if self.in_sample else None
        return ""


def is_cpu(other: CaseResult) -> bool:
    """Tell whether `other` is a case of the CPU alone."""
    return other.device_kind == "cpu" and other.case.regime == RESIDENT


def is_gpu(other: CaseResult, case: CaseResult, regime_id: str | None = None) -> bool:
    """Tell whether `other` is a case of the GPU of the shared `case` alone, in the regime `regime_id`. None
    means the regime of `case`."""
    regime_id = regime_id or case.case.regime_id
    return other.case.device_id == case.case.shared_with and other.case.regime_id == regime_id


def fastest_alone(cases: Iterable[CaseResult], sessions: Iterable[int]) -> SideAlone | None:
    """Return the fastest of the cases that were measured in all of these sessions, by their times in these
    sessions. Returns None if there is no such case."""
    chosen = set(sessions)
    sides = [
        SideAlone(case.id, {i: case.blocks[i] for i in chosen}, case.prior)
        for case in cases
        if chosen <= case.blocks.keys()
    ]
    return min(sides, key=lambda side: (side.seconds, side.id or ""), default=None)


def shared_cases(analysis: Analysis) -> Iterable[tuple[Measurement, CaseResult, list[CaseResult]]]:
    """Yield each shown and timed case that the CPU and a GPU compute together: its measurement, the case, and
    all timed cases of its workload."""
    timed = [case for case in analysis.compared if case.time is not None]
    by_workload = group_by(timed, lambda case: case.case.workload)
    for case in analysis.shown_of(timed):
        if case.case.shared_with:
            yield analysis.outcomes[case.id], case, by_workload[case.case.workload]


def shared_calls(analysis: Analysis) -> list[SharedCall]:
    """Return all calls that the CPU and a GPU share: splits, and those that wings add."""
    if not any(case.case.shared_with for case in analysis.everything):
        return []  # most runs have none, and the wings take their time to be imported
    makers = (hybrids, *wings.find_all(wings.brought("shared_calls")).values())
    return [call for make in makers for call in make(analysis)]


# If the CPU's part takes longer than this factor while the GPU works, the GPU's side is the cause.
SLOWED = 1.10
# Below this many operations per byte, CPUs wait for memory, so shared bandwidth slows them down. Above it they
# compute, so a loss of cores slows them down.
COMPUTING = 10.0

Sweep = dict[int, dict[float, tuple[float, ...]]]  # session -> GPU share -> medians of the blocks


@derive_once
def hybrids(analysis: Analysis) -> tuple[Hybrid, ...]:
    """Return a row for each split case that is shown and has a time."""
    splits = (_split(analysis.run, *shared) for shared in shared_cases(analysis))
    return tuple(split for split in splits if split is not None)


def _split(run: Run, outcome: Measurement, case: CaseResult, cases: Sequence[CaseResult]) -> Hybrid | None:
    """Return the row of a split, or None if its share or the time of one side alone is unknown."""
    sweep = _sweep(run, outcome)
    main = main_blocks(run, outcome)
    blocks = [block for blocks in main.values() for block in blocks if block.gpu_share is not None]
    estimating = case.blocks.keys() - sweep.keys()
    chosen = {i: blocks for i, blocks in case.blocks.items() if not estimating or i in estimating}
    cpu = fastest_alone(filter(is_cpu, cases), chosen)
    gpu = fastest_alone((other for other in cases if is_gpu(other, case)), chosen)
    cpu, gpu = cpu or _end(sweep, 0.0, chosen, case.prior), gpu or _end(sweep, 1.0, chosen, case.prior)
    if cpu is None or gpu is None or not blocks:
        return None
    sides: dict[Side, SideAlone] = {"cpu": cpu, "gpu": gpu}
    for side, alone in sides.items():
        beside = {i: times[side] for i in chosen if (times := times_beside(main.get(i, ()), (side,)))}
        if beside.keys() == chosen.keys():
            sides[side] = min(alone, SideAlone(None, beside, case.prior), key=lambda each: each.seconds)
    gpu_share = blocks[0].gpu_share or 0.0
    contest = Contest(case, SideAlone(case.id, chosen, case.prior), sides, in_sample=not estimating)
    model_s = max(gpu_share * sides["gpu"].seconds, (1 - gpu_share) * sides["cpu"].seconds)
    better = contest.sides[contest.better]
    on_gpu = [other.time.estimate for other in cases if other.time is not None and is_gpu(other, case, QUEUED)]
    reason = _split_reason(contest, stage_medians(run, outcome), min(on_gpu, default=None))
    return Hybrid(
        **contest.fields(cases, recommended=reason is None),
        baseline_id=better.id, better=contest.better, gpu_share=gpu_share, gpu_pieces=blocks[-1].gpu_pieces or 1,
        one_piece=outcome.one_piece or None,
        ideal_gain=1 + better.seconds / max(side.seconds for side in sides.values()),
        efficiency=model_s / contest.shared.seconds, reason=reason, curve=_curve(sweep),
    )  # fmt: skip


def times_beside(blocks: Iterable[Block], sides: Sequence[Side] = SIDES) -> dict[Side, tuple[float, ...]]:
    """Return the times of each side alone that were measured beside the blocks, by side. Blocks that lack a
    positive time of one of `sides` are left out. The result is empty if no block is left."""
    stored = [block.beside_s for block in blocks if block.beside_s is not UNSET]
    whole = [times for times in stored if all(times.get(side, 0.0) > 0 for side in sides)]
    return {side: tuple(times[side] for times in whole) for side in sides} if whole else {}


def _end(sweep: Sweep, share: float, chosen: SessionBlocks, prior: stats.Prior) -> SideAlone | None:
    """Return the time of one side alone from an end of the sweep: share 0 is the CPU, 1 the GPU."""
    sessions = {i: shares[share] for i, shares in sweep.items() if share in shares and i in chosen}
    # times of a sweep are only compared with times of the same session
    return SideAlone(None, sessions, prior) if sessions and sessions.keys() == chosen.keys() else None


def _sweep(run: Run, outcome: Measurement) -> Sweep:
    sweep: Sweep = {}
    for session, blocks in main_blocks(run, outcome, "sweep").items():
        shares = sweep.setdefault(session, {})
        for block in blocks:
            samples = wall_samples([block], discarded=True)
            if block.gpu_share is not None and samples:
                shares[block.gpu_share] = (*shares.get(block.gpu_share, ()), median(samples))
    return sweep


def _curve(sweep: Sweep) -> tuple[tuple[float, float], ...]:
    """Return pairs (share, median seconds), sorted by share."""
    blocks: dict[float, list[float]] = {}
    for shares in sweep.values():
        for share, values in shares.items():
            blocks.setdefault(share, []).extend(values)
    return tuple((share, median(blocks[share])) for share in sorted(blocks))


def _split_reason(
    contest: Contest, sides: Mapping[str, float], resident_s: float | None
) -> HybridReason | None:
    """Return the first reason against the split, or None if it surely gains."""
    objection = contest.objection()
    if objection is None or objection:
        return objection
    cpu_s, gpu_s = (contest.sides[side].seconds for side in SIDES)
    # the prediction of the model, before what took the time
    if 1 + min(cpu_s, gpu_s) / max(cpu_s, gpu_s) < LEAST_IDEAL:
        return "gpu-dominates" if gpu_s < cpu_s else "cpu-dominates"
    if contest.gain.high > LEAST_GAIN:
        return "noise"
    # The model promised a gain that did not come.
    case = contest.case
    alone_s, beside_s = sides.get("cpu_alone_s"), sides.get("cpu_beside_s")
    if alone_s and beside_s and beside_s > SLOWED * alone_s:
        return "cpu-starved" if case.bytes and case.flops / case.bytes >= COMPUTING else "shared-bandwidth"
    if not case.case.resident and resident_s is not None and resident_s < gpu_s / 2:
        return "transfer-bound"
    return "overhead-bound"
