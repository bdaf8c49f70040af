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
from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.labels import NO_HEADLINE
from gpubench.analysis.speedup import Speedup, fastest
from gpubench.base.groups import group_by
from gpubench.curves import stats
from gpubench.result.case import RESIDENT, WAITED, beside_size
from gpubench.result.run import Measurement, Run

ReuseVerdict = Literal["already", "at", "beyond", "never", "undecided"]


ReuseReason = Literal["noise", "no-parts", "parts-differ"]


class Reuse(msgspec.Struct, frozen=True, kw_only=True):
    """Calls per transfer from which the GPU pays at one size, or why that cannot be said.

    An open end of the interval is None.
    """

    op: str
    dtype: str
    params: dict[str, int]
    n: int
    device_id: str
    form: str
    baseline_id: str
    verdict: ReuseVerdict  # "beyond": more than `shared_by` calls, if any number
    calls: int | None  # set where the verdict is "already" (1) or "at"
    lo: int | None
    hi: int | None
    shared_by: int  # the calls that share a copy, from which the times were read
    transfer_s: float  # paid once
    launch_s: float  # for each call
    cpu_s: float
    reason: ReuseReason | None


class WeightLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The cost to bring an op's weights to a device, once, and the calls after which that is repaid: by what each
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
    waited = (
        ratio
        for ratio in analysis.speedups
        if ratio.kind == "headline" and ratio.case.device_kind == "gpu" and ratio.case.case.regime == WAITED
    )
    by_cell = group_by(waited, lambda ratio: ratio.case.case.cell)
    loads = (_weight_load(analysis.run, max(same, key=lambda ratio: ratio.n)) for same in by_cell.values())
    return tuple(load for load in loads if load is not None)


def _weight_load(run: Run, ratio: Speedup) -> WeightLoad | None:
    """Return the middle session's load, of all cases of the op on the device: the first that needed the weights paid
    it."""
    case = ratio.case.case
    parts = [
        part
        for outcome in run.outcomes
        if isinstance(outcome, Measurement) and outcome.case.cell[:2] == case.cell[:2]
        for part in outcome.parts
    ]
    seconds = {part.session: part.weights_s for part in parts if part.weights_s is not None}
    sizes = [part.weights_bytes for part in parts if part.weights_bytes]
    if not seconds or not sizes or ratio.baseline.time is None or ratio.case.time is None:
        return None
    load_s, gain_s = stats.median(seconds.values()), ratio.baseline.time.estimate - ratio.case.time.estimate
    return WeightLoad(
        op=case.op, dtype=case.dtype, params=dict(beside_size(case.params)), n=case.n,
        device_id=case.device_id, weight_bytes=max(sizes), load_s=load_s, gain_s=gain_s,
        calls=max(1, math.ceil(load_s / gain_s)) if ratio.lo > 1 else None,
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

    @property
    def doubtful(self) -> bool:
        """Whether a time is worse than noisy: an interval knows noise, and nothing else that is wrong with a time."""
        return bool({case.label for case in self} & NO_HEADLINE)


@derive_once
def reuses(analysis: Analysis) -> tuple[Reuse, ...]:
    """Return a row per workload and GPU that has both transfer regimes beside a CPU time, and whose case that shares a
    copy is shown."""
    trios = _trios([case for case in analysis.compared if case.time is not None])
    rows = (_judge(analysis.run, trio) for trio in trios if analysis.shows(trio.once.case))
    return tuple(item for item in rows if item is not None)


def _trios(cases: Sequence[CaseResult]) -> Iterable[Trio]:
    """Yield the fastest CPU form, and of each GPU the form that is fastest with a shared copy."""
    for same in group_by(cases, lambda case: case.case.workload).values():
        cpu = fastest(case for case in same if case.device_kind == "cpu" and case.case.regime == RESIDENT)
        gpu = [case for case in same if case.device_kind == "gpu"]
        always = {
            (case.case.device_id, case.case.form): case for case in gpu if case.case.regime == "transfer-always"
        }
        once = [
            case
            for case in gpu
            if case.case.regime == "transfer-once" and (case.case.device_id, case.case.form) in always
        ]
        for forms in group_by(once, lambda case: case.case.device_id).values():
            best = fastest(forms)
            if cpu is not None and best is not None:
                yield Trio(always[best.case.device_id, best.case.form], best, cpu)


def _judge(run: Run, trio: Trio) -> Reuse | None:
    """Return the row; None where no session measured all three, or `calls` says nothing of sharing."""
    calls, parts = trio.once.case.calls or 0, trio.always.anatomy
    common = trio.always.blocks.keys() & trio.once.blocks.keys() & trio.cpu.blocks.keys()
    if not common or calls < 2:
        return None
    alloc_s = parts.alloc_s if parts else 0.0
    times = [stats.run_interval([case.blocks[i] for i in sorted(common)], case.prior) for case in trio]
    costs = Costs(times[0].estimate - alloc_s, times[1].estimate * calls, times[2].estimate)
    estimate = costs.pays_from(calls)
    low, high = _interval(times, calls, alloc_s, random.Random(f"{run.settings.seed} {trio.once.id}"))
    low, high = min(low, estimate), max(high, estimate)
    # Where the interval ends before `calls` that share a copy, both they and one that copies were measured.
    between = high <= calls and not trio.doubtful
    reason = None if between else _doubt(trio, costs, calls)
    verdict = "undecided" if reason else _verdict(estimate, low)
    if verdict == "undecided" and low > calls and not trio.doubtful:
        verdict, reason = "beyond", None
    case, open_ended = trio.once.case, reason is not None or verdict == "never"
    return Reuse(
        op=case.op, dtype=case.dtype, n=case.n, params=dict(beside_size(case.params)), device_id=case.device_id,
        form=case.form, baseline_id=trio.cpu.id, shared_by=calls, transfer_s=costs.transfer_s(calls),
        launch_s=costs.launch_s(calls), cpu_s=costs.cpu, verdict=verdict,
        reason=reason or ("noise" if verdict == "undecided" else None),
        calls=_whole(estimate) if verdict in ("already", "at") else None,
        lo=None if open_ended else _whole(low), hi=None if open_ended else _whole(high),
    )  # fmt: skip


def _interval(
    times: Sequence[stats.Interval], calls: int, alloc_s: float, draw: random.Random
) -> tuple[float, float]:
    """Return the 95 % interval of the calls: each time is drawn from its own interval."""
    always, once, cpu = (
        [
            draw.lognormvariate(math.log(time.estimate), math.log(time.high / time.low) / (2 * stats.Z))
            for _ in range(RESAMPLES)
        ]
        for time in times
    )
    values = sorted(
        Costs(one_s - alloc_s, many_s * calls, cpu_s).pays_from(calls)
        for one_s, many_s, cpu_s in zip(always, once, cpu, strict=True)
    )
    tail = math.floor(RESAMPLES * stats.ALPHA / 2)
    return values[tail], values[-1 - tail]


def _doubt(trio: Trio, costs: Costs, calls: int) -> ReuseReason | None:
    """Return why the answer is withheld: noise, or transfers that cost something else when they are timed singly.

    What the parts leave open belongs to T1 and moves b by the (N - 1)th part of it: "never" stands if it holds even so.
    """
    parts = trio.always.anatomy
    if trio.doubtful or parts is None:
        return "noise" if trio.doubtful else "no-parts"
    launch_s = costs.launch_s(calls)
    # A call by itself pays for what of a launch and its kernel hides in a row: the shorter of the two at most.
    hidden_s = min(max(0.0, parts.launch_s + parts.kernel_s - launch_s), parts.launch_s, parts.kernel_s)
    timed_s = parts.upload_s + parts.sync_s + parts.download_s + hidden_s
    open_s = abs(costs.transfer_s(calls) - timed_s)
    agree = open_s <= LARGEST_DIFFERENCE * timed_s and not parts.mismatch
    return None if agree or launch_s - open_s / (calls - 1) >= costs.cpu else "parts-differ"


def _verdict(estimate: float, low: float) -> ReuseVerdict:
    if estimate <= MOST_CALLS:
        return "already" if estimate <= 1 else "at"
    return "never" if low > MOST_CALLS else "undecided"


def _whole(calls: float) -> int | None:
    """Return whole calls, at least one; None: no number suffices."""
    return max(1, math.ceil(calls)) if calls <= MOST_CALLS else None
