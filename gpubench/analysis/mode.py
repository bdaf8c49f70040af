"""The evidence for a mode in one run: who wins where the data stays and where each call copies, and which splits pay.

Who wins is the answer's judgement of each op (`analysis.answer`). The mode is decided in one place
(gpubench/detect/recommend.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from gpubench.analysis.analyse import Analysis, derive_once
from gpubench.analysis.answer import AnswerRow, answer_rows
from gpubench.analysis.break_even import BreakEven, earliest
from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.hybrid import SharedCall, shared_calls
from gpubench.analysis.labels import workers
from gpubench.analysis.machine import experiment
from gpubench.analysis.speedup import EQUAL, Speedup
from gpubench.analysis.thresholds import ALWAYS, AnswerCell, Gain, extent, size_text, threshold_text
from gpubench.base.groups import group_by
from gpubench.curves import stats
from gpubench.result.case import QUEUED, WAITED, Case, SeriesKey, beside_size
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
    row: AnswerRow
    cell: AnswerCell
    gain: Gain
    small: bool = False  # the GPU lost where it had no work to do


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
    rows = [ratio for ratio in whole.speedups if ratio.kind == "headline" and ratio.case.device_kind == "gpu"]
    judged = situations(run, compared, curves)
    shared = [_measured_split(call, compared) for call in shared_calls(whole)]
    if not judged and not shared:
        return None
    waited = next((situation.ratio for situation in judged if situation.regime == WAITED), None)
    return Measured(
        date=run.started_at, s=round(1 / waited, 6) if waited else None, situations=judged,
        break_even=[*_break_evens(curves, rows)], splits=shared,
    )  # fmt: skip


def why_silent(run: Run) -> str:
    """Say why a run of which there is no evidence tells no mode."""
    odd = ", ".join(f"{name} {value}" for name, value in experiment(run).items())
    return f"it is an experiment ({odd})" if odd else "it compares no GPU with a CPU"


def recommended(analysis: Analysis) -> Recommendation | None:
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
    by_series: dict[str, dict[SeriesKey, OpOutcome]] = {}
    for device_id in dict.fromkeys(curve.device_id for curve in curves):
        for answer in answer_rows(curves, compared, device_id):
            for regime, cell in answer.cells.items():
                if cell.gain is None or cell.kind in ("wrong", "failed"):
                    continue
                outcome = _outcome(run, answer, cell, cell.gain)
                best = by_series.setdefault(regime, {})
                key = (answer.op, answer.dtype, tuple(sorted(answer.params.items())))
                best[key] = min(best.get(key, outcome), outcome, key=_rank)
    dtypes = {key[1] for best in by_series.values() for key in best}
    return [
        _situation(regime, list(by_series[regime].values()), dtypes_shown=len(dtypes) > 1)
        for regime in SITUATIONS
        if regime in by_series
    ]


def _outcome(run: Run, answer: AnswerRow, cell: AnswerCell, gain: Gain) -> OpOutcome:
    if gain.winner == "cpu" and not gain.top and _hardly_works(run, answer.device_id, gain.gpu_s):
        return OpOutcome("unsure", answer, cell, gain, small=True)
    return OpOutcome("unsure" if gain.winner == "noisy" else gain.winner, answer, cell, gain)


def _hardly_works(run: Run, device_id: str, gpu_s: float) -> bool:
    empty = [value for worker in workers(run, device_id) for value in worker.overhead_s]
    return bool(empty) and gpu_s < FEWEST_LAUNCHES * stats.median(empty)


def _rank(outcome: OpOutcome) -> tuple[int, float]:
    return _BEST_FIRST.index(outcome.winner), -outcome.gain.ratio


def _situation(regime: str, outcomes: Sequence[OpOutcome], *, dtypes_shown: bool) -> MeasuredSituation:
    """Judge outcome situation by the mean of the ops whose winner is sure: at least half of all."""
    count = Counter(outcome.winner for outcome in outcomes)
    sure = [outcome for outcome in outcomes if outcome.winner != "unsure"]
    if len(sure) < count["unsure"] or not sure:
        small = any(outcome.small for outcome in outcomes)
        note = "the sizes are too small to tell" if small else "the times are too noisy to tell"
        return MeasuredSituation(regime=regime, unsure=count["unsure"], note=note, gpu=count["gpu"], cpu=count["cpu"],
                                 equal=count["equal"])  # fmt: skip
    ratio = stats.geometric_mean([outcome.gain.ratio for outcome in sure])
    winner: Literal["gpu", "cpu", "equal", "mixed"] = "mixed" if count["gpu"] and count["cpu"] else "equal"
    if not 1 / EQUAL <= ratio <= EQUAL:
        winner = "gpu" if ratio > 1 else "cpu"
    other = "cpu" if winner == "gpu" else "gpu"
    return MeasuredSituation(
        regime=regime, winner=winner, ratio=float(f"{ratio:.6g}"), gpu=count["gpu"], cpu=count["cpu"],
        equal=count["equal"], unsure=count["unsure"],
        exceptions=sorted(_exception(outcome, dtypes_shown) for outcome in outcomes if outcome.winner == other),
    )  # fmt: skip


def _exception(outcome: OpOutcome, dtypes_shown: bool) -> str:
    """`matmul from 930 x 930`; without a size where the side wins at all that were measured."""
    answer, cell = outcome.row, outcome.cell
    params = [f"{key}={value}" for key, value in sorted(answer.params.items())]
    name = " ".join([answer.op, *params, *([answer.dtype] if dtypes_shown else [])])
    # No size below the upper end of a range is known to win.
    n = cell.n if cell.kind == "at" else cell.high if cell.kind == "range" else None
    if outcome.winner != "gpu" or n is None:
        return name
    size = {"side": f"{n} x {n}", "plain": f"n = {n}"}.get(
        answer.extent, f"{size_text(n, 'elements')} elements"
    )
    return f"{name} from {size}" + ("" if cell.kind == "at" else " at the latest")


# ---------------------------------------------------------------- splits


def _measured_split(call: SharedCall, compared: Sequence[CaseResult]) -> MeasuredSplit:
    return MeasuredSplit(
        op=call.op, params=_words(dict(beside_size(call.params))), dtype=call.dtype, regime=call.regime, n=call.n,
        device_id=call.device_id, fraction=None if call.fraction is None else round(call.fraction, 6),
        placement=call.placement, gain=round(call.gain, 6), lo=round(call.lo, 6), hi=round(call.hi, 6),
        reason=call.reason or _beaten(call.case, compared),
    )  # fmt: skip


def _beaten(shared: CaseResult, compared: Sequence[CaseResult]) -> str | None:
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
    return ",".join(f"{name}={value}" for name, value in params.items())


# ---------------------------------------------------------------- break-evens, quoted


def _break_evens(curves: Sequence[BreakEven], rows: Sequence[Speedup]) -> Iterable[MeasuredBreakEven]:
    """Return for each op, other params, dtype and regime the earliest break-even of all GPUs."""
    families = group_by(
        curves, lambda curve: (curve.op, tuple(curve.params.items()), curve.dtype, curve.regime)
    )
    on_series = group_by(rows, lambda ratio: ratio.case.case.series)
    for family in families.values():
        best = earliest(family)
        if best is not None:
            series = (best.op, best.dtype, tuple(sorted(best.params.items())))
            yield _break_even(best, on_series.get(series, ()))


def _break_even(curve: BreakEven, rows: Sequence[Speedup]) -> MeasuredBreakEven:
    size = curve.first if curve.verdict == "all-sizes" else curve.n
    at = _shown_at(curve, size, rows)
    return MeasuredBreakEven(
        op=curve.op, params=_words(curve.params), dtype=curve.dtype, regime=curve.regime,
        backend=curve.device_id.partition(":")[0], size=size, note=_note(curve),
        gpu_s=at.case.time.estimate if at and at.case.time else None,
        cpu_s=at.baseline.time.estimate if at and at.baseline.time else None,
    )  # fmt: skip


def _shown_at(curve: BreakEven, size: int | None, rows: Sequence[Speedup]) -> Speedup | None:
    """Return the ratio of the first measured size at or above the break-even, else of the largest."""
    sizes = sorted(
        (ratio for ratio in rows if _on_curve(ratio.case.case, curve)),
        key=lambda ratio: ratio.case.case.params["n"],
    )
    above = (ratio for ratio in sizes if size is not None and ratio.case.case.params["n"] >= size)
    return next(above, sizes[-1] if sizes else None)


def _on_curve(case: Case, curve: BreakEven) -> bool:
    return (case.device_id, case.regime_id) == (curve.device_id, curve.regime)


def _note(curve: BreakEven) -> str:
    """Say what else to know of a size, or why there is none."""
    last = size_text(curve.last, "elements" if extent(curve.case) == "elements" else "plain")
    if curve.verdict == "at":
        return f"measured up to n = {last}{', mixed below' if curve.mixed else ''}"
    if curve.verdict == "all-sizes":
        return f"the smallest size measured, up to n = {last}"
    return f"no size up to n = {last}" if curve.verdict == "no-size" else threshold_text(curve)
