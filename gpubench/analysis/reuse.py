"""Calls per transfer until the GPU pays, at one size: the re-use break-even (docs/breakeven.md).

One call that copies costs T1 = transfer-always - alloc, N calls that share a copy cost TN = N x transfer-once-N. So a
launch costs b = (TN - T1) / (N - 1) and a transfer a = T1 - b; from a / (t_cpu - b) calls on, the GPU pays.

Up to N calls it lies between two times that were measured, and its interval knows their noise: it is reported as is.
Past N it is drawn out of them, and reported only where copies that are timed singly bear it out; where they do not, the
report still says that N calls are too few.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from gpubench.analysis.analyse import Analysis, derive_once
from gpubench.analysis.anatomy import Anatomy
from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.labels import NO_HEADLINE
from gpubench.analysis.speedup import Speedup
from gpubench.curves import stats
from gpubench.result.case import RESIDENT, WAITED, beside_size
from gpubench.result.run import Measurement, Run

ReuseVerdict = Literal["already", "at", "beyond", "never", "undecided"]


ReuseReason = Literal["noise", "no-parts", "parts-differ"]


class Reuse(msgspec.Struct, frozen=True, kw_only=True):
    """Calls per transfer from which the GPU pays at one size, or why that cannot be said.

    `calls` is set where `verdict` is already (1) or at; "beyond": more than `shared_by` calls, if any number. An open
    end of the interval is None. `transfer_s` is paid once, `launch_s` for each call, against `cpu_s`; they were read
    from calls that share a copy by `shared_by`.
    """

    op: str
    dtype: str
    params: dict[str, int]
    n: int
    device_id: str
    form: str
    baseline_id: str
    verdict: ReuseVerdict
    calls: int | None
    lo: int | None
    hi: int | None
    shared_by: int
    transfer_s: float
    launch_s: float
    cpu_s: float
    reason: ReuseReason | None


class WeightLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What it costs to bring an op's weights to a device, once, and the calls after which that is repaid: by what each
    waited call of the largest size gains over the CPU. `calls` is None where a call gains nothing."""

    op: str
    dtype: str
    params: dict[str, int]
    n: int
    device_id: str
    weight_bytes: int
    load_s: float
    gain_s: float
    calls: int | None


@derive_once
def weight_loads(analysis: Analysis) -> tuple[WeightLoad, ...]:
    """Return one row for each op with weights and each GPU that has a time for a call that is waited for."""
    largest: dict[tuple[object, ...], Speedup] = {}
    for row in analysis.speedups:
        case = row.case.case
        if row.kind == "headline" and row.case.device_kind == "gpu" and case.regime == WAITED:
            known = largest.get((*case.series, case.device_id))
            if known is None or known.case.case.params["n"] < case.params["n"]:
                largest[*case.series, case.device_id] = row
    found = (_weight_load(analysis.run, row) for row in largest.values())
    return tuple(load for load in found if load is not None)


def _weight_load(run: Run, row: Speedup) -> WeightLoad | None:
    """The middle session's load, of all cases of the op on the device: the first that needed the weights paid it."""
    case = row.case.case
    parts = [
        part
        for outcome in run.outcomes
        if isinstance(outcome, Measurement)
        and (outcome.case.series, outcome.case.device_id) == (case.series, case.device_id)
        for part in outcome.parts
    ]
    seconds = {part.session: part.weights_s for part in parts if part.weights_s is not None}
    sizes = [part.weights_bytes for part in parts if part.weights_bytes]
    if not seconds or not sizes or row.baseline.time is None or row.case.time is None:
        return None
    load_s, gain_s = stats.median(seconds.values()), row.baseline.time.estimate - row.case.time.estimate
    return WeightLoad(
        op=case.op, dtype=case.dtype, params=dict(beside_size(case.params)), n=case.params["n"],
        device_id=case.device_id, weight_bytes=max(sizes), load_s=load_s, gain_s=gain_s,
        calls=max(1, math.ceil(load_s / gain_s)) if row.lo > 1 else None,
    )  # fmt: skip


RESAMPLES = 400
# The transfers seen from outside (a) and timed singly must agree this closely, or there is no answer.
LARGEST_DIFFERENCE = 0.10
# A transfer that is shared by more calls than this is no transfer: data that stays on the device has regime resident.
MOST_CALLS = 1e6
NO_CALLS_SUFFICE = 1e9  # stands for infinity, of which no median can be taken


class Costs(NamedTuple):
    """Seconds: one call that copies (without allocation), `calls` calls that share one copy, one call on the CPU."""

    one: float
    many: float
    cpu: float

    def launch_s(self, calls: int) -> float:
        """b: what one more call costs. At least 0: below that is noise."""
        return max(0.0, (self.many - self.one) / (calls - 1))

    def transfer_s(self, calls: int) -> float:
        """a: what is paid once."""
        return self.one - self.launch_s(calls)

    def pays_from(self, calls: int) -> float:
        """Calls per transfer at which both sides cost the same, at most NO_CALLS_SUFFICE."""
        margin, transfer = self.cpu - self.launch_s(calls), max(0.0, self.transfer_s(calls))
        return transfer / margin if margin * NO_CALLS_SUFFICE > transfer else NO_CALLS_SUFFICE


class Trio(NamedTuple):
    """The three cases that one answer rests on."""

    always: CaseResult
    once: CaseResult
    cpu: CaseResult


@derive_once
def reuses(analysis: Analysis) -> tuple[Reuse, ...]:
    """Return a row per workload and GPU that has both transfer regimes beside a CPU time, and whose case that shares a
    copy is shown."""
    trios = _trios([row for row in analysis.compared if row.time is not None])
    rows = (_judged(analysis.run, trio) for trio in trios if analysis.shows(trio.once.case))
    return tuple(row for row in rows if row is not None)


def _trios(cases: Sequence[CaseResult]) -> Iterable[Trio]:
    """The fastest CPU form, and of each GPU the form that is fastest with a shared copy."""
    cpu: dict[str, list[CaseResult]] = {}
    always: dict[tuple[str, str, str], CaseResult] = {}
    once: dict[tuple[str, str], list[CaseResult]] = {}
    for row in cases:
        if row.device_kind == "cpu" and row.case.regime == RESIDENT:
            cpu.setdefault(row.case.workload, []).append(row)
        elif row.device_kind == "gpu" and row.case.regime == "transfer-always":
            always[row.case.workload, row.case.device_id, row.case.form] = row
    for row in cases:
        key = (row.case.workload, row.case.device_id, row.case.form)
        if row.device_kind == "gpu" and row.case.regime == "transfer-once" and key in always:
            once.setdefault(key[:2], []).append(row)
    for (workload, device_id), rows in once.items():
        if workload in cpu:
            best = min(rows, key=_seconds)
            yield Trio(always[workload, device_id, best.case.form], best, min(cpu[workload], key=_seconds))


def _seconds(row: CaseResult) -> tuple[float, str]:
    return (row.time.estimate if row.time else math.inf, row.id)


def _judged(run: Run, trio: Trio) -> Reuse | None:
    """The row; None where no session measured all three, or `calls` says nothing of sharing."""
    calls, parts = trio.once.case.calls or 0, trio.always.anatomy
    common = trio.always.blocks.keys() & trio.once.blocks.keys() & trio.cpu.blocks.keys()
    if not common or calls < 2:
        return None
    alloc_s = parts.alloc_s if parts else 0.0
    times = [stats.run_interval([row.blocks[i] for i in sorted(common)], row.prior) for row in trio]
    always, once, cpu = (time.estimate for time in times)
    costs = Costs(always - alloc_s, once * calls, cpu)
    estimate = costs.pays_from(calls)
    low, high = _interval(times, calls, alloc_s, random.Random(f"{run.settings.seed} {trio.once.id}"))
    low, high = min(low, estimate), max(high, estimate)
    reason = None if _between(trio, high, calls) else _doubt(trio, costs, calls)
    verdict = "undecided" if reason else _verdict(estimate, low)
    if verdict == "undecided" and low > calls and _steady(trio):
        verdict, reason = "beyond", None
    case = trio.once.case
    ends = (_whole(low), _whole(high)) if not reason and verdict != "never" else (None, None)
    return Reuse(
        op=case.op, dtype=case.dtype, n=case.params["n"],
        params=dict(beside_size(case.params)),
        device_id=case.device_id, form=case.form, baseline_id=trio.cpu.id, shared_by=calls,
        transfer_s=costs.transfer_s(calls), launch_s=costs.launch_s(calls), cpu_s=costs.cpu,
        verdict=verdict, reason=reason or ("noise" if verdict == "undecided" else None),
        calls=_whole(estimate) if verdict in ("already", "at") else None,
        lo=ends[0], hi=ends[1],
    )  # fmt: skip


def _interval(
    times: Sequence[stats.Interval], calls: int, alloc_s: float, draw: random.Random
) -> tuple[float, float]:
    """Return the 95 % interval of the calls: each time is drawn from its own interval."""
    sides = [[draw.lognormvariate(*_logs(time)) for _ in range(RESAMPLES)] for time in times]
    values = sorted(_calls(sides, calls, alloc_s))
    tail = math.floor(RESAMPLES * stats.ALPHA / 2)
    return values[tail], values[-1 - tail]


def _logs(time: stats.Interval) -> tuple[float, float]:
    """Mean and standard deviation of the logarithm of a time with this interval."""
    return math.log(time.estimate), math.log(time.high / time.low) / (2 * stats.Z)


def _calls(sides: Sequence[Sequence[float]], calls: int, alloc_s: float) -> list[float]:
    """`pays_from` of each draw of the three times."""
    return [
        Costs(always - alloc_s, once * calls, cpu).pays_from(calls)
        for always, once, cpu in zip(*sides, strict=True)
    ]


def _steady(trio: Trio) -> bool:
    """Whether no time is worse than noisy: an interval knows noise, and nothing else that is wrong with a time."""
    return not {row.label for row in trio} & NO_HEADLINE


def _between(trio: Trio, high: float, calls: int) -> bool:
    """Whether the interval ends before `calls` that share a copy: both they and one that copies were measured."""
    return high <= calls and _steady(trio)


def _doubt(trio: Trio, costs: Costs, calls: int) -> ReuseReason | None:
    """Why the answer is withheld: noise, or transfers that cost something else when they are timed singly.

    What the parts leave open belongs to T1 and moves b by the (N - 1)th part of it: "never" stands if it holds even so.
    """
    if {row.label for row in trio} & NO_HEADLINE:
        return "noise"
    parts = trio.always.anatomy
    if parts is None:
        return "no-parts"
    launch_s = costs.launch_s(calls)
    timed = parts.upload_s + parts.sync_s + parts.download_s + _once(parts, launch_s)
    open_s = abs(costs.transfer_s(calls) - timed)
    agree = open_s <= LARGEST_DIFFERENCE * timed and not parts.mismatch
    if agree or launch_s - open_s / (calls - 1) >= costs.cpu:
        return None
    return "parts-differ"


def _once(parts: Anatomy, launch_s: float) -> float:
    """What of a launch and its kernel a call by itself pays, and further calls do not: in a row they hide behind each
    other, and the shorter of the two is hidden at most."""
    return min(max(0.0, parts.launch_s + parts.kernel_s - launch_s), parts.launch_s, parts.kernel_s)


def _verdict(estimate: float, low: float) -> ReuseVerdict:
    if estimate <= MOST_CALLS:
        return "already" if estimate <= 1 else "at"
    return "never" if low > MOST_CALLS else "undecided"


def _whole(calls: float) -> int | None:
    """Whole calls, at least one; None: no number suffices."""
    return max(1, math.ceil(calls)) if calls <= MOST_CALLS else None
