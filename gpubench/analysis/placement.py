"""Does it pay to place the stages of a workload on both sides? And if not, which side wins, and why (docs/hybrid.md).

The placement was chosen in the sessions that hold a sweep; the gain comes from the others. Each side alone was timed
beside every block, in the same process, so that the gain is paired; a case of one side that does the same and is faster
counts instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

import msgspec
from msgspec import UNSET

from gpubench.analysis.analyse import Analysis, derive_once
from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.hybrid import (
    LEAST_GAIN,
    LEAST_IDEAL,
    SessionBlocks,
    SideAlone,
    fastest_alone,
    is_cpu,
    is_gpu,
)
from gpubench.analysis.samples import main_blocks
from gpubench.analysis.steps import stage_seconds
from gpubench.curves import stats
from gpubench.curves.stats import Interval, median
from gpubench.result.run import Block, Measurement, Placing, Run

Side = Literal["cpu", "gpu"]
SIDES: tuple[Side, ...] = ("cpu", "gpu")
PlacedOn = Literal["cpu", "gpu", "host", "both"]
PlacementReason = Literal[
    "one-side-dominates", "transfer-bound", "overhead-bound", "noise", "selected-in-sample", "throttled", "software",
]  # fmt: skip
# A prediction may miss by so much.
SHARE = 0.25


class PlacedStage(msgspec.Struct, frozen=True, kw_only=True):
    """One stage, those of the same name added up: its seconds in the chain of each side (null: the host does it), where
    it was placed, and its share of the predicted time."""

    stage: str
    cpu_s: float
    gpu_s: float | None
    placed_on: PlacedOn
    share: float


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """A workload with a side for each stage, a letter each in `placement`. `gain` = time of `better`, the faster side
    alone / time of the placement. `predicted_s` is the stages on their sides, `copies_s` (copies and launches)
    included; null where this file does not hold what was predicted. `mismatch`: the measured time misses it by more
    than 25 %.
    `tried`: placement, predicted and measured seconds of what the first session tried."""

    aside: ClassVar = ("case", "interval", "baseline_device")
    id: str
    op: str
    n: int
    params: dict[str, int]
    dtype: str
    regime: str
    device_id: str
    placement: str
    stages: tuple[PlacedStage, ...]
    copies_s: float | None
    cpu_only_s: float
    gpu_only_s: float
    predicted_s: float | None
    measured_s: float
    better: Side
    gain: float
    lo: float
    hi: float
    recommended: bool
    reason: PlacementReason | None
    selected_in_sample: bool
    mismatch: bool
    tried: tuple[tuple[str, float, float | None], ...]
    case: CaseResult
    interval: Interval
    baseline_device: str | None


@derive_once
def placements(analysis: Analysis) -> tuple[Placement, ...]:
    """Return a row for each placed case that is shown and has a time."""
    timed = [case for case in analysis.compared if case.time is not None]
    found = []
    for row in analysis.shown_of(timed):
        if row.case.shared_with:
            alone = [case for case in timed if case.case.workload == row.case.workload]
            made = _judged(analysis.run, analysis.outcomes[row.id], row, alone)
            found += [made] if made is not None else []
    return tuple(found)


def _judged(run: Run, outcome: Measurement, row: CaseResult, cases: Sequence[CaseResult]) -> Placement | None:
    """The row; None for a split, and where no session has both sides alone. `cases` are those of its workload."""
    main = main_blocks(run, outcome)
    placement = next(
        (b.placement for blocks in main.values() for b in blocks if b.placement is not UNSET), None
    )
    choosing = set(main_blocks(run, outcome, "sweep"))
    alone = {
        session: {side: [beside[side] for block in blocks if (beside := _beside(block))] for side in SIDES}
        for session, blocks in main.items()
        if session in row.blocks
    }
    alone = {session: sides for session, sides in alone.items() if all(sides.values())}
    estimating = {session: sides for session, sides in alone.items() if session not in choosing}
    sessions = estimating or alone
    if placement is None or not sessions:
        return None
    chosen = {i: row.blocks[i] for i in sessions}
    singles = {
        side: _single(row, cases, chosen, side, {i: tuple(sides[side]) for i, sides in sessions.items()})
        for side in SIDES
    }
    better: Side = "cpu" if singles["cpu"].seconds < singles["gpu"].seconds else "gpu"
    gain = stats.ratio_interval(
        [(singles[better].sessions[i], chosen[i]) for i in sorted(chosen)], (singles[better].prior, row.prior)
    )
    measured_s = SideAlone(row.id, chosen, row.prior).seconds
    placing = outcome.placings[-1] if outcome.placings else None
    predicted_s = placing.predicted_s.get(placement) if placing is not None else None
    stages = _stages(placing, placement, predicted_s) if placing is not None and predicted_s else ()
    against = reason(Promise(row, gain, placing, not estimating))
    case = row.case
    return Placement(
        id=row.id, op=case.op, n=case.params["n"], params=dict(case.params), dtype=case.dtype,
        regime=case.regime_id, device_id=case.device_id, placement=placement, stages=stages,
        copies_s=_copies_s(stages, predicted_s) if predicted_s and stages else None,
        cpu_only_s=singles["cpu"].seconds, gpu_only_s=singles["gpu"].seconds, predicted_s=predicted_s,
        measured_s=measured_s, better=better,
        gain=gain.estimate, lo=gain.low, hi=gain.high, recommended=against is None, reason=against,
        selected_in_sample=not estimating,
        mismatch=abs(measured_s / predicted_s - 1) > SHARE if predicted_s else False,
        tried=_tried(run, outcome, placing), case=row, interval=gain,
        baseline_device=_device(row, cases, better, singles[better]),
    )  # fmt: skip


def _beside(block: Block) -> dict[str, float]:
    """Return the time of each side alone beside the block; nothing unless both can divide others."""
    known = {} if block.beside_s is UNSET else block.beside_s
    return known if all(known.get(side, 0.0) > 0 for side in SIDES) else {}


def _device(row: CaseResult, cases: Sequence[CaseResult], side: Side, alone: SideAlone) -> str | None:
    """Where that side alone ran: of the faster case, of the GPU of the two, or of the fastest CPU beside it."""
    if alone.id is not None:
        return alone.id.rpartition("@")[2]
    if side == "gpu":
        return row.case.shared_with
    cpus = [
        (one.time.estimate, one.case.device_id) for one in cases if one.time is not None and is_cpu(one, row)
    ]
    return min(cpus)[1] if cpus else None


def _single(
    row: CaseResult, cases: Sequence[CaseResult], chosen: SessionBlocks, side: Side, beside: SessionBlocks
) -> SideAlone:
    """One side alone: the placement, or a faster case that has its result on the host, too."""
    same = is_cpu if side == "cpu" else is_gpu
    comparable = side == "cpu" or not row.case.resident
    others = [one for one in cases if comparable and one.case.variant is None and same(one, row)]
    placed = SideAlone(None, beside, row.prior)
    known = fastest_alone(others, chosen)
    return placed if known is None or placed.seconds <= known.seconds else known


def _stages(placing: Placing, placement: str, predicted_s: float) -> tuple[PlacedStage, ...]:
    if len(placement) != len(placing.stages):
        return ()
    rows: dict[str, list[tuple[float, float | None, str]]] = {}
    for name, cpu_s, gpu_s, letter in zip(placing.stages, *stage_seconds(placing), placement, strict=True):
        rows.setdefault(name, []).append((cpu_s, gpu_s, letter))
    found = []
    for name, parts in rows.items():
        letters = {letter for *_, letter in parts}
        on_gpu = [gpu_s for _, gpu_s, _ in parts if gpu_s is not None]
        where: PlacedOn = "both" if len(letters) > 1 else "gpu" if letters == {"g"} else "cpu"
        spent_s = sum(gpu_s if letter == "g" and gpu_s is not None else cpu_s for cpu_s, gpu_s, letter in parts)
        found.append(
            PlacedStage(
                stage=name, cpu_s=sum(cpu_s for cpu_s, *_ in parts), gpu_s=sum(on_gpu) if on_gpu else None,
                placed_on=where if on_gpu else "host", share=spent_s / predicted_s,
            )
        )  # fmt: skip
    return tuple(found)


def _copies_s(stages: Sequence[PlacedStage], predicted_s: float) -> float:
    """What the stages leave of a prediction; nothing where only rounding is left."""
    left = 1 - sum(one.share for one in stages)
    return predicted_s * left if left > 1e-9 else 0.0


def _tried(
    run: Run, outcome: Measurement, placing: Placing | None
) -> tuple[tuple[str, float, float | None], ...]:
    if placing is None:
        return ()
    times: dict[str, list[float]] = {}
    for blocks in main_blocks(run, outcome, "sweep").values():
        for block in blocks:
            if block.placement is not UNSET:
                times.setdefault(block.placement, []).extend(block.wall_s[block.warmup :])
    return tuple(
        (placement, seconds, median(times[placement]) if times.get(placement) else None)
        for placement, seconds in placing.predicted_s.items()
    )


class Promise(NamedTuple):
    """The gain, by what it was promised, and whether the session that chose is the only one."""

    row: CaseResult
    gain: Interval
    placing: Placing | None
    in_sample: bool


def reason(found: Promise) -> PlacementReason | None:
    """The first that holds: what forbids a verdict, what the prediction says, then what came of it."""
    row, gain = found.row, found.gain
    if row.device_kind == "software":
        return "software"
    if row.label == "throttled":
        return "throttled"
    if gain.low > LEAST_GAIN:
        return "selected-in-sample" if found.in_sample else None
    if found.placing is not None:
        predicted = [*found.placing.predicted_s.values()]
        single_s = min(predicted[:2], default=0.0)  # the sides alone come first
        if single_s < LEAST_IDEAL * found.placing.free_s:
            return "one-side-dominates"
        if single_s < LEAST_GAIN * min(predicted, default=0.0):
            return "transfer-bound"
    return "noise" if gain.high > LEAST_GAIN else "overhead-bound"
