"""Does it pay to split an op over the CPU and a GPU? And if not, why (measurement.md, section 11).

Model: t(f) = max(f t_gpu, (1 - f) t_cpu) with the times that each side takes alone. The share f was chosen in the
sessions that hold a sweep; the gain comes from the others, paired with the better of the two alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from gpubench import stats
from gpubench.model.case import Case
from gpubench.model.result import Measurement, Run
from gpubench.report.analysis.hybrid_reason import Evidence, reason
from gpubench.report.analysis.samples import main_blocks, used_sessions, wall_samples
from gpubench.report.analysis.types import CaseResult, Hybrid

Sessions = Mapping[int, tuple[float, ...]]


class Side(NamedTuple):
    """One side alone, with the samples of the sessions that count."""

    id: str | None
    sessions: Sessions

    @property
    def seconds(self) -> float:
        """Median over the sessions of their medians."""
        return stats.median([stats.median(samples) for samples in self.sessions.values()])


def hybrids(
    run: Run, cases: Sequence[CaseResult], keep: Callable[[Case], bool] | None = None
) -> tuple[Hybrid, ...]:
    """One row for each split case with a time, in the order of `cases`; `keep` selects by that case."""
    outcomes = {outcome.id: outcome for outcome in run.outcomes if isinstance(outcome, Measurement)}
    found = []
    for row in cases:
        if row.case.shared_with and row.time is not None and (keep is None or keep(row.case)):
            split = _judged(run, outcomes[row.id], row, cases)
            found += [split] if split is not None else []
    return tuple(found)


def sentences(rows: Sequence[Hybrid]) -> tuple[str, ...]:
    """One for each op and dtype that is worth splitting: where the gain is largest."""
    best: dict[tuple[str, str], Hybrid] = {}
    for row in rows:
        key = (row.case.case.op, row.case.case.dtype)
        if row.recommended and (key not in best or row.gain.estimate > best[key].gain.estimate):
            best[key] = row
    return tuple(_sentence(row) for row in best.values())


def _sentence(row: Hybrid) -> str:
    case, gain = row.case.case, f"{row.gain.estimate:.2f}x"
    where = f"n = {case.params['n']}, {case.regime_id}, {row.fraction:.0%} on {case.shared_with}"
    return f"{case.op} {case.dtype}: split over CPU and GPU it is {gain} as fast as on the better of the two ({where})."


def _judged(run: Run, outcome: Measurement, row: CaseResult, cases: Sequence[CaseResult]) -> Hybrid | None:
    """The row; None where neither the run nor the sweep tells what each side takes alone."""
    sweep, fraction = _sweep(run, outcome), _fraction(run, outcome)
    estimating = set(row.sessions) - set(sweep)
    in_sample = not estimating
    chosen = _within(row.sessions, estimating or set(row.sessions))
    alone = [row for row in cases if row.case.variant is None and row.time is not None]
    cpu = _alone([x for x in alone if _is_cpu(x, row)], chosen) or _end(sweep, 0.0, chosen)
    gpu = _alone([x for x in alone if _is_gpu(x, row)], chosen) or _end(sweep, 1.0, chosen)
    if cpu is None or gpu is None or fraction is None:
        return None
    better = min(cpu, gpu, key=lambda side: side.seconds)
    gain = stats.ratio_interval([(better.sessions[i], chosen[i]) for i in sorted(chosen)])
    model_s = max(fraction * gpu.seconds, (1 - fraction) * cpu.seconds)
    measured_s = Side(row.id, chosen).seconds
    return Hybrid(
        case=row, device_id=row.case.device_id, fraction=fraction, baseline_id=better.id, gain=gain,
        ideal=1 + better.seconds / max(cpu.seconds, gpu.seconds), efficiency=model_s / measured_s,
        in_sample=in_sample, curve=_curve(sweep),
        reason=reason(
            Evidence(
                row, gain, cpu.seconds, gpu.seconds, in_sample, _sides(run, outcome), _resident_s(alone, row)
            )
        ),
    )  # fmt: skip


def _is_cpu(other: CaseResult, row: CaseResult) -> bool:
    """The CPU's data is at home: its resident case stands for all regimes."""
    same = other.case.workload == row.case.workload
    return same and other.device_kind == "cpu" and other.case.regime == "resident"


def _is_gpu(other: CaseResult, row: CaseResult, regime_id: str | None = None) -> bool:
    same = other.case.workload == row.case.workload and other.case.device_id == row.case.shared_with
    return same and other.case.regime_id == (regime_id or row.case.regime_id)


def _alone(rows: Sequence[CaseResult], chosen: Sessions) -> Side | None:
    """The form that is fastest over just these sessions; None if none was measured in all of them."""
    sides = [
        Side(row.id, _within(row.sessions, set(chosen))) for row in rows if chosen.keys() <= row.sessions.keys()
    ]
    return min(sides, key=lambda side: (side.seconds, side.id or ""), default=None)


def _end(sweep: Mapping[int, Mapping[float, tuple[float, ...]]], share: float, chosen: Sessions) -> Side | None:
    """An end of the sweep, where one side has all of the work: all there is of it if nobody measured it alone.

    It says something of its own session only.
    """
    found = {i: shares[share] for i, shares in sweep.items() if share in shares and i in chosen}
    return Side(None, found) if found and found.keys() == chosen.keys() else None


def _within(sessions: Sessions, indexes: set[int]) -> Sessions:
    return {i: samples for i, samples in sessions.items() if i in indexes}


def _sweep(run: Run, outcome: Measurement) -> dict[int, dict[float, tuple[float, ...]]]:
    """Samples by session and share."""
    found: dict[int, dict[float, tuple[float, ...]]] = {}
    for session, blocks in main_blocks(run, outcome, "sweep").items():
        shares: dict[float, tuple[float, ...]] = {}
        for block in blocks:
            if block.fraction is not None:
                shares[block.fraction] = (
                    *shares.get(block.fraction, ()),
                    *wall_samples([block], discarded=True),
                )
        found[session] = {share: samples for share, samples in shares.items() if samples}
    return found


def _fraction(run: Run, outcome: Measurement) -> float | None:
    shares = [block.fraction for blocks in main_blocks(run, outcome).values() for block in blocks]
    return next((share for share in shares if share is not None), None)


def _curve(sweep: Mapping[int, Mapping[float, tuple[float, ...]]]) -> tuple[tuple[float, float], ...]:
    """(share, median seconds), ascending."""
    samples: dict[float, list[float]] = {}
    for shares in sweep.values():
        for share, values in shares.items():
            samples.setdefault(share, []).extend(values)
    return tuple((share, stats.median(samples[share])) for share in sorted(samples))


def _sides(run: Run, outcome: Measurement) -> dict[str, float]:
    """What the sides of the split took alone and beside each other: medians over the used sessions."""
    allowed = used_sessions(run)
    found: dict[str, list[float]] = {}
    for parts in outcome.parts:
        if allowed is None or parts.session in allowed:
            for name, seconds in parts.stage_s.items():
                found.setdefault(name, []).extend(seconds[:1] and [stats.median(seconds)])
    return {name: stats.median(seconds) for name, seconds in found.items() if seconds}


def _resident_s(cases: Sequence[CaseResult], row: CaseResult) -> float | None:
    """The GPU's time without transfers, where it was measured."""
    times = [x.time.estimate for x in cases if x.time is not None and _is_gpu(x, row, "resident")]
    return min(times, default=None)
