"""Splits and pipelines: whether it pays to split an op over the CPU and a GPU or to overlap copies, and if not, why
(docs/hybrid.md).

Splits: t(f) = max(f t_gpu, (1 - f) t_cpu), where t_gpu and t_cpu are the times of each side alone. The sessions with a
sweep chose the share f. The gain comes from the other sessions, paired with the faster side alone.

Pipelines: a row of calls takes at least as long as the slowest stage (upload, kernel or download) takes for all calls.
Each stage was timed in such a row by itself, on the same page-locked memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec
from msgspec import UNSET

from gpubench.analysis.analyse import Analysis, derive_once
from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.samples import main_blocks, stage_medians, wall_samples
from gpubench.analysis.speedup import EQUAL, fastest, pair_ratio
from gpubench.base import group_by
from gpubench.base.plugins import wings
from gpubench.curves import stats
from gpubench.curves.stats import Interval, median
from gpubench.result.case import QUEUED, RESIDENT, STREAMED, beside_size
from gpubench.result.run import PIPELINE_STAGES, Block, Measurement, OnePiece, PipelineStage, Run


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
        """Whether the gain surely exceeds EQUAL, below which two times are about equal."""
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
    bound = max(
        (name for name in PIPELINE_STAGES if name in stages), key=lambda name: stages[name], default=None
    )
    bound_s = None if bound is None else stages[bound]
    return Pipeline(
        id=streamed.id, copied_id=None if copied is None else copied.id, gain=gain.estimate if gain else None,
        lo=gain.low if gain else None, hi=gain.high if gain else None, sets=outcome.sets or None, stages_s=stages,
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
# A call that may gain less than this is not worth its trouble; a model that promises less is not worth a look.
LEAST_GAIN, LEAST_IDEAL = 1.05, 1.10


class SharedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that a CPU and a GPU do together."""

    aside: ClassVar[tuple[str, ...]] = ("case", "interval")
    id: str  # of the case
    op: str  # the op or network
    n: int  # the size
    params: dict[str, int]  # beside the size
    dtype: str  # of the elements
    regime: str  # by id
    device_id: str  # `hybrid:` and the GPU
    gain: float  # time of the better side alone / time of both
    lo: float  # low end of the interval
    hi: float  # high end of the interval
    recommended: bool  # nothing speaks against it
    reason: str | None  # against it
    selected_in_sample: bool  # the session that chose what each side does tells the gain, too, so it flatters
    case: CaseResult  # the shared case
    interval: Interval  # of the gain

    @property
    def gpu_share(self) -> float | None:
        """The GPU's share of a split op. None for other shared calls."""
        return None

    @property
    def assignment(self) -> str | None:
        """The side of each stage of a network, as a letter: c or g. None for a split."""
        return None

    @property
    def baseline_device(self) -> str | None:
        """The device that is faster alone. None if no case of its own names the device."""
        return None

    @property
    def on_gpu(self) -> tuple[str, ...]:
        """The stages that the GPU runs, all or some of their repeats."""
        return ()


class Hybrid(SharedCall, frozen=True, kw_only=True):
    """One op split over CPU and GPU."""

    # the better side alone; null: it was timed within the split's own case, in pieces or by an end of the sweep
    baseline_id: str | None
    better: Side  # the side that is faster alone
    gpu_share: float  # the GPU's share of the work
    ideal_gain: float  # what the model promises
    gpu_pieces: int  # in which the GPU's part moves, and all of the work where that is faster alone
    one_piece: OnePiece | None  # why in one; null: in several, or nobody looked
    efficiency: float  # modelled / measured time
    reason: HybridReason | None  # against it
    curve: tuple[tuple[float, float], ...]  # median seconds of the sweep by share

    @property
    def baseline_device(self) -> str | None:
        if self.baseline_id is not None:
            return self.baseline_id.rpartition("@")[2]
        return self.case.case.shared_with if self.better == "gpu" else None


SessionBlocks = Mapping[int, tuple[float, ...]]  # session -> a value for each block


class SideAlone(NamedTuple):
    """One side alone, with the blocks of the sessions that count."""

    id: str | None  # of its case; None: it was timed within the shared call's
    sessions: SessionBlocks  # medians of blocks by session
    prior: stats.Prior  # of its noise

    @property
    def seconds(self) -> float:
        """The time of the side, computed like the time of a case."""
        return stats.run_value(self.sessions.values())


class Contest(NamedTuple):
    """A shared call and both sides alone, over the same sessions."""

    case: CaseResult  # the shared call
    shared: SideAlone  # the same, with its sessions
    sides: Mapping[Side, SideAlone]  # each by itself
    in_sample: bool  # no session is left beside those that chose

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

    def fields(self, *, recommended: bool) -> dict[str, Any]:
        """Return the fields of a `SharedCall`, except `params` and `reason`."""
        case, gain = self.case.case, self.gain
        return {
            "id": case.id, "op": case.op, "n": case.n, "dtype": case.dtype, "regime": case.regime_id,
            "device_id": case.device_id, "gain": gain.estimate, "lo": gain.low, "hi": gain.high,
            "recommended": recommended, "selected_in_sample": self.in_sample, "case": self.case, "interval": gain,
        }  # fmt: skip

    def objection(self) -> Literal["software", "throttled", "selected-in-sample", ""] | None:
        """Return the reason that forbids a verdict. Return None if the call surely gains, and an empty text if neither
        is so."""
        if self.case.device_kind == "software":
            return "software"
        if self.case.label == "throttled":
            return "throttled"
        if self.gain.low > LEAST_GAIN:
            return "selected-in-sample" if self.in_sample else None
        return ""


def is_cpu(other: CaseResult, case: CaseResult) -> bool:
    """Tell whether `other` is the CPU alone. A CPU's data is in host memory, so its resident case stands for all
    regimes."""
    return other.device_kind == "cpu" and other.case.regime == RESIDENT


def is_gpu(other: CaseResult, case: CaseResult, regime_id: str | None = None) -> bool:
    """Tell whether `other` is the GPU of the shared `case` alone, in `regime_id` (default: the regime of `case`)."""
    regime_id = regime_id or case.case.regime_id
    return other.case.device_id == case.case.shared_with and other.case.regime_id == regime_id


def fastest_alone(cases: Iterable[CaseResult], sessions: Iterable[int]) -> SideAlone | None:
    """Return the fastest implementation over exactly these sessions. Return None if no implementation was measured in
    all of them."""
    chosen = set(sessions)
    sides = [
        SideAlone(case.id, {i: case.blocks[i] for i in chosen}, case.prior)
        for case in cases
        if chosen <= case.blocks.keys()
    ]
    return min(sides, key=lambda side: (side.seconds, side.id or ""), default=None)


def shared_cases(analysis: Analysis) -> Iterable[tuple[Measurement, CaseResult, list[CaseResult]]]:
    """Yield each shared case that is shown and has a time, with the timed cases of its workload."""
    timed = [case for case in analysis.compared if case.time is not None]
    plain = (case for case in timed if case.case.variant is None)
    by_workload = group_by(plain, lambda case: case.case.workload)
    for case in analysis.shown_of(timed):
        if case.case.shared_with:
            yield analysis.outcomes[case.id], case, by_workload.get(case.case.workload, [])


def shared_calls(analysis: Analysis) -> list[SharedCall]:
    """Return the splits, and the shared calls of wings, such as networks with assigned stages."""
    if not any(case.case.shared_with for case in analysis.everything):
        return []  # most runs have none, and the wings take their time to be imported
    makers = (hybrids, *wings.find_all(wings.brought("shared_calls")).values())
    return [call for make in makers for call in make(analysis)]


# The CPU's part may take this much longer while the GPU works before the GPU's side is to blame.
SLOWED = 1.10
# Below so many operations per byte today's CPUs wait for memory: what slows them down is shared bandwidth. Above it
# they compute, and what slows them down took their cores.
COMPUTING = 10.0

Sweep = dict[int, dict[float, tuple[float, ...]]]  # medians of blocks by session and share


@derive_once
def hybrids(analysis: Analysis) -> tuple[Hybrid, ...]:
    """Return a row for each split case that is shown and has a time."""
    splits = (_split(analysis.run, *shared) for shared in shared_cases(analysis))
    return tuple(split for split in splits if split is not None)


def _split(run: Run, outcome: Measurement, case: CaseResult, cases: Sequence[CaseResult]) -> Hybrid | None:
    """Return the row of a split. Return None if neither the run nor the sweep has the time of each side alone."""
    sweep = _sweep(run, outcome)
    main = main_blocks(run, outcome)
    blocks = [block for blocks in main.values() for block in blocks if block.gpu_share is not None]
    estimating = case.blocks.keys() - sweep.keys()
    chosen = {i: blocks for i, blocks in case.blocks.items() if not estimating or i in estimating}
    cpu = fastest_alone((other for other in cases if is_cpu(other, case)), chosen)
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
        **contest.fields(recommended=reason is None), params=dict(beside_size(case.case.params)),
        baseline_id=better.id, better=contest.better, gpu_share=gpu_share, gpu_pieces=blocks[-1].gpu_pieces or 1,
        one_piece=outcome.one_piece or None,
        ideal_gain=1 + better.seconds / max(side.seconds for side in sides.values()),
        efficiency=model_s / contest.shared.seconds, reason=reason, curve=_curve(sweep),
    )  # fmt: skip


def times_beside(blocks: Iterable[Block], sides: Sequence[Side] = SIDES) -> dict[Side, tuple[float, ...]]:
    """Return the times of each side alone that were measured beside the blocks. Blocks without a positive time for
    every side are left out."""
    stored = [block.beside_s for block in blocks if block.beside_s is not UNSET]
    whole = [times for times in stored if all(times.get(side, 0.0) > 0 for side in sides)]
    return {side: tuple(times[side] for times in whole) for side in sides} if whole else {}


def _end(sweep: Sweep, share: float, chosen: SessionBlocks, prior: stats.Prior) -> SideAlone | None:
    """Return an end of the sweep, where one side has all the work. The end replaces a missing measurement of that side
    alone.

    Returns None unless every chosen session has this end: a sweep is valid only for its own session.
    """
    sessions = {i: shares[share] for i, shares in sweep.items() if share in shares and i in chosen}
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
    """Return pairs (share, median seconds), by ascending share."""
    blocks: dict[float, list[float]] = {}
    for shares in sweep.values():
        for share, values in shares.items():
            blocks.setdefault(share, []).extend(values)
    return tuple((share, median(blocks[share])) for share in sorted(blocks))


def _split_reason(
    contest: Contest, sides: Mapping[str, float], resident_s: float | None
) -> HybridReason | None:
    """Return the first reason against the split: an objection to any verdict, then the model's prediction, then where
    the time went. Return None if the split surely gains.

    `sides` are as in `samples.stage_medians`. `resident_s` is the GPU's time without transfers, if it was measured.
    """
    objection = contest.objection()
    if objection is None or objection:
        return objection
    cpu_s, gpu_s = (contest.sides[side].seconds for side in SIDES)
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
