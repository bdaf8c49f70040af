"""Does it pay to split an op over the CPU and a GPU? And if not, why (docs/hybrid.md).

Model: t(f) = max(f t_gpu, (1 - f) t_cpu) with the times that each side takes alone. The share f was chosen in the
sessions that hold a sweep; the gain comes from the others, paired with the better of the two alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple

import msgspec

from gpubench.analysis.analyse import Analysis, derive_once
from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.samples import main_blocks, used_sessions, wall_samples
from gpubench.base.groups import group_by
from gpubench.base.plugins import wings
from gpubench.curves import stats
from gpubench.curves.stats import Interval
from gpubench.result.case import QUEUED, RESIDENT, beside_size
from gpubench.result.run import Measurement, Run

HybridReason = Literal[
    "gpu-dominates", "cpu-dominates", "transfer-bound", "overhead-bound", "shared-bandwidth", "cpu-starved", "noise",
    "selected-in-sample", "throttled", "software",
]  # fmt: skip


class SharedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that a CPU and a GPU do together: `gain` = time of the better side alone / time of both. Without a
    `reason` against it, it is `recommended`. `selected_in_sample`: the session that chose what each side does tells
    the gain, too, so it flatters."""

    aside: ClassVar[tuple[str, ...]] = ("case", "interval")
    id: str
    op: str
    n: int
    params: dict[str, int]
    dtype: str
    regime: str
    device_id: str
    gain: float
    lo: float
    hi: float
    recommended: bool
    reason: str | None
    selected_in_sample: bool
    case: CaseResult
    interval: Interval

    @property
    def fraction(self) -> float | None:
        """The GPU's share of an op that is split."""
        return None

    @property
    def placement(self) -> str | None:
        """A letter for each stage of a network: c or g, the side that runs it."""
        return None

    @property
    def baseline_device(self) -> str | None:
        """The better side alone. Returns None where only what was timed beside the call tells."""
        return None

    @property
    def on_gpu(self) -> tuple[str, ...]:
        """The stages that the GPU runs, or some of their repeats."""
        return ()


class Hybrid(SharedCall, frozen=True, kw_only=True):
    """One op split over CPU and GPU, at the GPU's share `fraction`. `baseline_id` is the better side alone (null: by
    the sweep's own ends), `efficiency` = modelled / measured time. `curve`: median seconds of the sweep by share."""

    baseline_id: str | None
    fraction: float
    ideal_gain: float
    efficiency: float
    reason: HybridReason | None
    curve: tuple[tuple[float, float], ...]

    @property
    def baseline_device(self) -> str | None:
        return None if self.baseline_id is None else self.baseline_id.rpartition("@")[2]


SessionBlocks = Mapping[int, tuple[float, ...]]  # session -> a value for each block


class SideAlone(NamedTuple):
    """One side alone, with the blocks of the sessions that count."""

    id: str | None
    sessions: SessionBlocks
    prior: stats.Prior

    @property
    def seconds(self) -> float:
        """The time of the side, like that of a case."""
        return stats.run_value(self.sessions.values())


@derive_once
def hybrids(analysis: Analysis) -> tuple[Hybrid, ...]:
    """Return a row for each split case that is shown and has a time."""
    alone = group_by(
        (row for row in analysis.compared if row.case.variant is None and row.time is not None),
        lambda row: row.case.workload,
    )
    found = []
    for row in analysis.shown_of(analysis.compared):
        if row.case.shared_with and row.time is not None:
            split = _judged(analysis.run, analysis.outcomes[row.id], row, alone.get(row.case.workload, []))
            found += [split] if split is not None else []
    return tuple(found)


def shared_calls(analysis: Analysis) -> list[SharedCall]:
    """Return the splits, and what wings have beside them: networks whose stages are placed."""
    makers = (hybrids, *wings.find_all(wings.brought("shared_calls")).values())
    return [call for make in makers for call in make(analysis)]


def _judged(run: Run, outcome: Measurement, row: CaseResult, alone: Sequence[CaseResult]) -> Hybrid | None:
    """The row; None where neither the run nor the sweep tells what each side takes alone. `alone` are the cases of its
    workload."""
    sweep, fraction = _sweep(run, outcome), _fraction(run, outcome)
    estimating = set(row.blocks) - set(sweep)
    in_sample = not estimating
    chosen = _within(row.blocks, estimating or set(row.blocks))
    cpu = fastest_alone([x for x in alone if is_cpu(x, row)], chosen) or _end(sweep, 0.0, chosen, row.prior)
    gpu = fastest_alone([x for x in alone if is_gpu(x, row)], chosen) or _end(sweep, 1.0, chosen, row.prior)
    if cpu is None or gpu is None or fraction is None:
        return None
    better = min(cpu, gpu, key=lambda side: side.seconds)
    gain = stats.ratio_interval(
        [(better.sessions[i], chosen[i]) for i in sorted(chosen)], (better.prior, row.prior)
    )
    model_s = max(fraction * gpu.seconds, (1 - fraction) * cpu.seconds)
    measured_s = SideAlone(row.id, chosen, row.prior).seconds
    sides, resident_s = _sides(run, outcome), _resident_s(alone, row)
    against = reason(Evidence(row, gain, cpu.seconds, gpu.seconds, in_sample, sides, resident_s))
    case = row.case
    return Hybrid(
        id=row.id, op=case.op, n=case.params["n"], params=dict(beside_size(case.params)), dtype=case.dtype,
        regime=case.regime_id, device_id=case.device_id, baseline_id=better.id, fraction=fraction,
        gain=gain.estimate, lo=gain.low, hi=gain.high, ideal_gain=1 + better.seconds / max(cpu.seconds, gpu.seconds),
        efficiency=model_s / measured_s, recommended=against is None, reason=against, selected_in_sample=in_sample,
        curve=_curve(sweep), case=row, interval=gain,
    )  # fmt: skip


def is_cpu(other: CaseResult, row: CaseResult) -> bool:
    """The CPU's data is at home: its resident case stands for all regimes."""
    return other.device_kind == "cpu" and other.case.regime == RESIDENT


def is_gpu(other: CaseResult, row: CaseResult, regime_id: str | None = None) -> bool:
    regime_id = regime_id or row.case.regime_id
    return other.case.device_id == row.case.shared_with and other.case.regime_id == regime_id


def fastest_alone(rows: Sequence[CaseResult], chosen: SessionBlocks) -> SideAlone | None:
    """The form that is fastest over just these sessions; None if none was measured in all of them."""
    sides = [
        SideAlone(row.id, _within(row.blocks, set(chosen)), row.prior)
        for row in rows
        if chosen.keys() <= row.blocks.keys()
    ]
    return min(sides, key=lambda side: (side.seconds, side.id or ""), default=None)


def _end(
    sweep: Mapping[int, Mapping[float, tuple[float, ...]]],
    share: float,
    chosen: SessionBlocks,
    prior: stats.Prior,
) -> SideAlone | None:
    """An end of the sweep, where one side has all of the work: all there is of it if nobody measured it alone.

    It says something of its own session only.
    """
    found = {i: shares[share] for i, shares in sweep.items() if share in shares and i in chosen}
    return SideAlone(None, found, prior) if found and found.keys() == chosen.keys() else None


def _within(sessions: SessionBlocks, indexes: set[int]) -> SessionBlocks:
    return {i: blocks for i, blocks in sessions.items() if i in indexes}


def _sweep(run: Run, outcome: Measurement) -> dict[int, dict[float, tuple[float, ...]]]:
    """Medians of blocks by session and share."""
    found: dict[int, dict[float, tuple[float, ...]]] = {}
    for session, blocks in main_blocks(run, outcome, "sweep").items():
        shares: dict[float, tuple[float, ...]] = {}
        for block in blocks:
            samples = wall_samples([block], discarded=True)
            if block.fraction is not None and samples:
                shares[block.fraction] = (*shares.get(block.fraction, ()), stats.median(samples))
        found[session] = shares
    return found


def _fraction(run: Run, outcome: Measurement) -> float | None:
    shares = [block.fraction for blocks in main_blocks(run, outcome).values() for block in blocks]
    return next((share for share in shares if share is not None), None)


def _curve(sweep: Mapping[int, Mapping[float, tuple[float, ...]]]) -> tuple[tuple[float, float], ...]:
    """(share, median seconds), ascending."""
    blocks: dict[float, list[float]] = {}
    for shares in sweep.values():
        for share, values in shares.items():
            blocks.setdefault(share, []).extend(values)
    return tuple((share, stats.median(blocks[share])) for share in sorted(blocks))


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
    times = [x.time.estimate for x in cases if x.time is not None and is_gpu(x, row, QUEUED)]
    return min(times, default=None)


# A split that may gain less than this is not worth its trouble; a model that promises less is not worth a look.
LEAST_GAIN, LEAST_IDEAL = 1.05, 1.10
# The CPU's part may take this much longer while the GPU works before the GPU's side is to blame.
SLOWED = 1.10
# Below so many operations per byte today's CPUs wait for memory: what slows them down is shared bandwidth. Above it
# they compute, and what slows them down took their cores.
COMPUTING = 10.0


class Evidence(NamedTuple):
    """The gain, both sides' seconds alone, and what was timed beside: `sides` as in `Divides.sides`, `resident_s` the
    GPU's seconds without transfers."""

    row: CaseResult
    gain: Interval
    cpu_s: float
    gpu_s: float
    in_sample: bool
    sides: Mapping[str, float]
    resident_s: float | None


def reason(found: Evidence) -> HybridReason | None:
    """The first that holds: what forbids a verdict, what the model says, then where the time went."""
    row, gain = found.row, found.gain
    if row.device_kind == "software":
        return "software"
    if row.label == "throttled":
        return "throttled"
    if gain.low > LEAST_GAIN:
        return "selected-in-sample" if found.in_sample else None
    if 1 + min(found.cpu_s, found.gpu_s) / max(found.cpu_s, found.gpu_s) < LEAST_IDEAL:
        return "gpu-dominates" if found.gpu_s < found.cpu_s else "cpu-dominates"
    if gain.high > LEAST_GAIN:
        return "noise"
    return _loss(found)


def _loss(found: Evidence) -> HybridReason:
    """The model promised a gain that did not come."""
    row, sides = found.row, found.sides
    alone_s, beside_s = sides.get("cpu_alone_s"), sides.get("cpu_beside_s")
    if alone_s and beside_s and beside_s > SLOWED * alone_s:
        return "cpu-starved" if row.bytes and row.flops / row.bytes >= COMPUTING else "shared-bandwidth"
    if not row.case.resident and found.resident_s is not None and found.resident_s < found.gpu_s / 2:
        return "transfer-bound"
    return "overhead-bound"
