"""The evidence for a mode in one run: who wins where the data stays and where each call copies, and which splits pay.

Who wins is the answer's judgement of each op (`analysis.answer`). The mode is decided in one place
(gpubench/detect/recommend.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from gpubench.analysis.analyse import Analysis, derive_once
from gpubench.analysis.answer import AnswerRow, answer_rows
from gpubench.analysis.break_even import BreakEven, earliest
from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.hybrid import SharedCall, shared_calls
from gpubench.analysis.machine import experiment
from gpubench.analysis.samples import empty_launch_s
from gpubench.analysis.speedup import EQUAL
from gpubench.analysis.thresholds import ALWAYS, AnswerCell, Gain, extent, size_text, threshold_text
from gpubench.base.groups import group_by
from gpubench.curves import stats
from gpubench.result.case import QUEUED, WAITED
from gpubench.result.machine import (
    Measured,
    MeasuredBreakEven,
    MeasuredSituation,
    MeasuredSplit,
    Recommendation,
)
from gpubench.result.run import Run

# The situations that tell the mode, and the one that does not: a program that queues its calls knows that it does.
SITUATIONS = (WAITED, ALWAYS, QUEUED)
# A GPU that loses a call of so few empty launches has had no work to do: a larger size may tell another story.
FEWEST_LAUNCHES = 10
ANOTHER_GPU = "another-gpu-faster"
Outcome = Literal["gpu", "equal", "unsure", "cpu"]
_BEST_FIRST: tuple[Outcome, ...] = ("gpu", "equal", "unsure", "cpu")


class OpOutcome(NamedTuple):
    """The winner of an op in one situation, at its largest size on the GPU that does best."""

    winner: Outcome
    op: AnswerRow
    cell: AnswerCell
    gain: Gain
    small: bool  # the GPU lost where it had no work to do


@derive_once
def evidence(analysis: Analysis) -> Measured | None:
    """Return what a mode can be chosen by; None of an experiment, and where no CPU and GPU were compared and nothing
    was split.

    A mode is chosen by all of the file, whatever is shown, over the fastest CPU form.
    """
    run, whole = analysis.run, analysis.whole
    if experiment(run):
        return None
    curves, compared = whole.break_even, whole.compared
    judged = situations(run, compared, curves)
    shared = [_shared_call(call, compared) for call in shared_calls(whole)]
    if not judged and not shared:
        return None
    waited = next((situation.ratio for situation in judged if situation.regime == WAITED), None)
    families = group_by(curves, lambda curve: (curve.op, _words(curve.params), curve.dtype, curve.regime))
    best = (earliest(family) for family in families.values())
    return Measured(
        date=run.started_at, s=round(1 / waited, 6) if waited else None, situations=judged,
        break_even=[_break_even(curve) for curve in best if curve], splits=shared,
    )  # fmt: skip


def why_silent(run: Run) -> str:
    """Say why a run of which there is no evidence tells no mode."""
    odd = ", ".join(f"{name} {value}" for name, value in experiment(run).items())
    return f"it is an experiment ({odd})" if odd else "it compares no GPU with a CPU"


def recommend_mode(analysis: Analysis) -> Recommendation | None:
    """Return the mode for the machine of the run: by the evidence, else what detection said at the run's start; None if
    neither says anything."""
    # Here, as `advise` loads this package too, and needs no detection.
    from gpubench.detect.recommend import decide

    run, measured = analysis.run, evidence(analysis)
    advice = run.machine.recommendation
    gpus = [device.gpu_id or device.id for device in run.devices if device.kind == "gpu"]
    decided = None if measured is None else decide(run.machine, advice, measured, list(dict.fromkeys(gpus)))
    return decided or (advice if advice.reasons else None)


def situations(
    run: Run, compared: Sequence[CaseResult], curves: Sequence[BreakEven]
) -> list[MeasuredSituation]:
    """Return which side wins in each situation in which a CPU and a GPU have times."""
    outcomes = [
        (regime, _outcome(run, op, cell, cell.gain))
        for device_id in dict.fromkeys(curve.device_id for curve in curves)
        for op in answer_rows(curves, compared, device_id)
        for regime, cell in op.cells.items()
        if cell.gain is not None and cell.kind not in ("wrong", "failed")
    ]
    by_op = group_by(
        outcomes, lambda pair: (pair[0], pair[1].op.op, pair[1].op.dtype, _words(pair[1].op.params))
    )
    best = [(key[0], min((outcome for _, outcome in same), key=_rank)) for key, same in by_op.items()]
    by_regime = group_by(best, lambda pair: pair[0])
    dtypes = {outcome.op.dtype for _, outcome in best}
    return [
        _situation(regime, [outcome for _, outcome in by_regime[regime]], dtypes_shown=len(dtypes) > 1)
        for regime in SITUATIONS
        if regime in by_regime
    ]


def _outcome(run: Run, op: AnswerRow, cell: AnswerCell, gain: Gain) -> OpOutcome:
    idle_s = FEWEST_LAUNCHES * empty_launch_s(run, op.device_id)
    small = gain.winner == "cpu" and not gain.top and gain.gpu_s < idle_s
    winner: Outcome = "unsure" if small or gain.winner == "noisy" else gain.winner
    return OpOutcome(winner, op, cell, gain, small)


def _rank(outcome: OpOutcome) -> tuple[int, float]:
    return _BEST_FIRST.index(outcome.winner), -outcome.gain.ratio


def _situation(regime: str, outcomes: Sequence[OpOutcome], *, dtypes_shown: bool) -> MeasuredSituation:
    """Judge a situation by the mean of the ops whose winner is sure: at least half of all."""
    count = Counter(outcome.winner for outcome in outcomes)
    sure = [outcome for outcome in outcomes if outcome.winner != "unsure"]
    judged = MeasuredSituation(
        regime=regime, gpu=count["gpu"], cpu=count["cpu"], equal=count["equal"], unsure=count["unsure"]
    )
    if len(sure) < count["unsure"] or not sure:
        small = any(outcome.small for outcome in outcomes)
        note = "the sizes are too small to tell" if small else "the times are too noisy to tell"
        return msgspec.structs.replace(judged, note=note)
    ratio = stats.geometric_mean([outcome.gain.ratio for outcome in sure])
    winner: Literal["gpu", "cpu", "equal", "mixed"] = "mixed" if count["gpu"] and count["cpu"] else "equal"
    if not 1 / EQUAL <= ratio <= EQUAL:
        winner = "gpu" if ratio > 1 else "cpu"
    other = "cpu" if winner == "gpu" else "gpu"
    exceptions = (_exception(outcome, dtypes_shown) for outcome in outcomes if outcome.winner == other)
    return msgspec.structs.replace(
        judged, winner=winner, ratio=float(f"{ratio:.6g}"), exceptions=sorted(exceptions)
    )


def _exception(outcome: OpOutcome, dtypes_shown: bool) -> str:
    """Return `matmul from 930 x 930`; without a size where the side wins at all that were measured."""
    op, cell = outcome.op, outcome.cell
    params = [f"{key}={value}" for key, value in sorted(op.params.items())]
    name = " ".join([op.op, *params, *([op.dtype] if dtypes_shown else [])])
    # No size below the upper end of a range is known to win.
    n = cell.n if cell.kind == "at" else cell.high if cell.kind == "range" else None
    if outcome.winner != "gpu" or n is None:
        return name
    size = {"side": f"{n} x {n}", "plain": f"n = {n}"}.get(op.extent, f"{size_text(n, 'elements')} elements")
    return f"{name} from {size}" + ("" if cell.kind == "at" else " at the latest")


def _shared_call(call: SharedCall, compared: Sequence[CaseResult]) -> MeasuredSplit:
    return MeasuredSplit(
        op=call.op, params=_words(call.params), dtype=call.dtype, regime=call.regime, n=call.n,
        device_id=call.device_id, fraction=None if call.fraction is None else round(call.fraction, 6),
        placement=call.placement, gain=round(call.gain, 6),
        lo=round(call.lo, 6), hi=round(call.hi, 6), reason=call.reason or _beaten_by(call.case, compared),
    )  # fmt: skip


def _beaten_by(shared: CaseResult, compared: Sequence[CaseResult]) -> str | None:
    """Return the reason against a shared call that a GPU beside its two sides does faster alone."""
    assert shared.time is not None, "what is judged has a time"
    faster = (
        other.device_kind == "gpu" and other.time is not None and other.time.estimate < shared.time.estimate
        and (other.case.workload, other.case.regime_id) == (shared.case.workload, shared.case.regime_id)
        for other in compared
        if other.case.device_id != shared.case.shared_with
    )  # fmt: skip
    return ANOTHER_GPU if any(faster) else None


def _words(params: Mapping[str, int]) -> str:
    """Return the params beside the size."""
    return ",".join(f"{name}={value}" for name, value in params.items() if name != "n")


def _break_even(curve: BreakEven) -> MeasuredBreakEven:
    """Quote the curve, with the times of the first measured size at or above its break-even, else of the largest."""
    size = curve.first if curve.verdict == "all-sizes" else curve.n
    at = next((point for point in curve.points if size is not None and point.n >= size), curve.points[-1])
    return MeasuredBreakEven(
        op=curve.op, params=_words(curve.params), dtype=curve.dtype, regime=curve.regime,
        backend=curve.device_id.partition(":")[0], size=size, note=_note(curve),
        gpu_s=at.case.time.estimate if at.case.time else None,
        cpu_s=at.baseline.time.estimate if at.baseline.time else None,
    )  # fmt: skip


def _note(curve: BreakEven) -> str:
    """Say what else to know of a size, or why there is none."""
    last = size_text(curve.last, "elements" if extent(curve.case) == "elements" else "plain")
    if curve.verdict == "at":
        return f"measured up to n = {last}{', mixed below' if curve.mixed else ''}"
    if curve.verdict == "all-sizes":
        return f"the smallest size measured, up to n = {last}"
    return f"no size up to n = {last}" if curve.verdict == "no-size" else threshold_text(curve)
