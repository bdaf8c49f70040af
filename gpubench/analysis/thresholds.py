"""The size from which a GPU pays, and the number of calls per transfer from which it pays (docs/breakeven.md).
The module has the cells of the answer, the texts of these cells, and the break-even that Python's interface
returns.

One call that copies costs T1 = transfer-always - alloc, where alloc is the time of its allocation. N calls that
share a copy cost TN = N x transfer-once-N. So a launch costs b = (TN - T1) / (N - 1), and a transfer costs a =
T1 - b. The GPU pays from `a / (t_cpu - b)` calls on.

A result of at most N calls lies between two measured times, and its interval includes their noise, so it is
reported as it is. A result above N is extrapolated: it is reported only if the copies that were timed singly
confirm it. If they do not, the report still says that N calls are too few.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from gpubench.analysis.analyse import Analysis, analyse, derive_once
from gpubench.analysis.contenders import situation_regime
from gpubench.analysis.estimate import CaseResult, OfSeries, declaration, series_fields
from gpubench.analysis.samples import NO_HEADLINE, of_used_sessions
from gpubench.analysis.speedup import (
    WIDEST_INTERVAL,
    BreakEven,
    Speedup,
    VerdictKind,
    about_equal,
    earliest,
    fastest,
)
from gpubench.base import group_by
from gpubench.base.errors import UsageError, suggest
from gpubench.base.units import scale_size
from gpubench.curves import stats
from gpubench.kernels.contract.op import Ladder
from gpubench.result.case import LONG_DTYPES, RESIDENT, WAITED, Case, beside_size
from gpubench.result.run import Run

ALWAYS = "transfer-always"
# A break-even is shown as a plain number if the ends of its interval differ by at most the factor SHARP (1.5
# either way), as `~number` up to ROUGHLY, else as a range.
SHARP, ROUGHLY = 2.25, WIDEST_INTERVAL
ABOUT_EQUAL = "about-equal"  # the reason of a cell whose sides are about equal at the largest size

# `at`: one size. `range`: the break-even lies in it. `all-sizes`, `no-size`: the GPU wins, or loses, at every
# size. `below`, `above`: the same, but the ends of the ladder were not measured. `open`: no verdict, for the
# code `reason`. `wrong`, `failed`: the GPU's cases gave wrong results or failed. `pending`: the run goes on.
CellKind = Literal[
    "at", "range", "all-sizes", "below", "no-size", "above", "open", "wrong", "failed", "pending"
]
Winner = Literal["gpu", "cpu", "equal", "noisy"]
# The unit of a size: the elements of one array, the side of a square matrix, or `plain`: rows, tokens or images
# of a network, or a size of an op with other params.
SizeUnit = Literal["elements", "side", "plain"]


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """The times of both sides at one size, and the speedup of the GPU."""

    n: int  # the size n of the op
    ratio: float  # the speedup; above 1 the GPU is faster
    low: float  # the low end of the interval of `ratio`
    high: float  # the high end of the interval of `ratio`
    winner: Winner  # the side that is surely faster, `equal` or `noisy`
    cpu_s: float  # the time of the CPU, in seconds
    gpu_s: float  # the time of the GPU, in seconds
    top: bool  # whether `n` is the largest size that the op declares

    @property
    def about_equal(self) -> bool:
        """Whether the estimate is within 15 % of 1. `winner` says whether that is sure."""
        return about_equal(self.ratio)

    @property
    def within(self) -> float:
        """The largest error of the ratio, as a share of the ratio."""
        return largest_error(self.low, self.ratio, self.high)


def largest_error(low: float, estimate: float, high: float) -> float:
    """Return how far the farther end of an interval lies from the estimate, as a share of the estimate."""
    return max(high / estimate - 1, 1 - low / estimate)


class AnswerCell(msgspec.Struct, frozen=True, kw_only=True):
    """The size from which the GPU pays in one situation, for one op."""

    kind: CellKind  # the kind of result
    n: int | None = None  # the break-even; None: unknown
    low: int | None = None  # the low end of the interval; for `above` the largest measured size; None: unknown
    # the high end of the interval; for `below` the smallest measured size; None: unknown
    high: int | None = None
    mixed: bool = False  # whether both sides win by turns below the break-even
    reason: str = ""  # the code of the reason why the cell is open; empty for other kinds
    gains: tuple[Gain, ...] = ()  # the gain at each size, ascending

    @property
    def sharp(self) -> bool:
        """Whether the interval of the break-even is narrow enough to show it as a plain number."""
        return self.low is not None and self.high is not None and self.high <= self.low * SHARP

    @property
    def tied(self) -> bool:
        """Whether there is no break-even because both sides are about equal at the largest size."""
        return self.kind == "open" and self.reason == ABOUT_EQUAL

    @property
    def gain(self) -> Gain | None:
        """The gain at the largest size, or None if no size has a gain."""
        return self.gains[-1] if self.gains else None


def size_unit_of(case: Case) -> SizeUnit:
    """Return the unit of this case's size n."""
    if case.group in ("network", "layers"):
        return "plain"
    if case.group != "matrix":
        return "elements"
    return "plain" if beside_size(case.params) else "side"


def declared_sizes(op: str, params: Mapping[str, int]) -> Ladder | None:
    """Return the sizes that the op declares. Returns None if this installation does not know the op, or if
    `params` has others than the size."""
    declared = None if params else declaration(op)
    return declared.sizes if declared else None


def threshold(curve: BreakEven | None, cases: Sequence[CaseResult] = ()) -> AnswerCell:
    """Return the cell of the answer for the break-even `curve` (None: there is none). `cases` are all cases of
    the cell, with and without a time."""
    timed = () if curve is None else {point.n for point in curve.points}
    if any(case.reason == "wrong-result" and case.case.n not in timed for case in cases):
        return AnswerCell(kind="wrong")
    if curve is None:
        return _without_numbers(cases)
    ladder = declared_sizes(curve.op, curve.params)
    gains = tuple(_gain(point, ladder) for point in curve.points)
    whole = ladder is not None and curve.first <= ladder.sizes()[0] and curve.last >= ladder.high
    if curve.verdict == "all-sizes":
        return AnswerCell(kind="all-sizes" if whole else "below", high=curve.first, gains=gains)
    if curve.verdict == "no-size":
        return AnswerCell(kind="no-size" if whole else "above", low=curve.last, gains=gains)
    kind: CellKind = "open"
    if curve.reason != ABOUT_EQUAL and curve.lo is not None and curve.hi is not None:
        kind = "at" if curve.n is not None and curve.hi <= curve.lo * ROUGHLY else "range"
    return AnswerCell(
        kind=kind, n=curve.n, low=curve.lo, high=curve.hi, gains=gains, mixed=curve.mixed and kind != "open",
        reason=curve.reason or "few-sizes" if kind == "open" else "",
    )  # fmt: skip


def _without_numbers(cases: Sequence[CaseResult]) -> AnswerCell:
    if any(case.time is not None for case in cases):
        return AnswerCell(kind="open", reason="no-cpu-time")
    if any(case.outcome == "failure" for case in cases):
        return AnswerCell(kind="failed")
    reasons = (case.reason for case in cases if case.reason)
    return AnswerCell(kind="open", reason=next(reasons, "no-samples"))


def _gain(point: Speedup, ladder: Ladder | None) -> Gain:
    assert point.baseline.time is not None  # a speedup has both
    assert point.case.time is not None
    winners: dict[str, Winner] = {"win": "gpu", "loss": "cpu"}
    winner: Winner = "equal" if point.about_equal else "noisy"
    if not about_equal(point.ratio):
        winner = winners.get(point.state, "noisy")
    return Gain(
        n=point.n, ratio=point.ratio, low=point.lo, high=point.hi, winner=winner,
        cpu_s=point.baseline.time.estimate, gpu_s=point.case.time.estimate,
        top=ladder is not None and point.n >= ladder.high,
    )  # fmt: skip


# ---------------------------------------------------------------- words

_WHY = {
    "noise": "too noisy", "few-sizes": "too few sizes", "throttled": "the device was throttled",
    "failed-cases": "cases failed", "budget": "the time budget ended first",
    "loses-again": "wins and loses by turns", "no-cpu-time": "the CPU has no time",
    "no-samples": "too few samples", "not-reached": "not reached", "out-of-memory": "too little memory",
    ABOUT_EQUAL: "about equal at the largest size",
}  # fmt: skip


def why_text(why: str) -> str:
    """Return the reason of an open cell in words. `why` is its code."""
    return _WHY.get(why, why.replace("-", " "))


_MOST_PLAIN = 9999


def size_text(n: int, size_unit: SizeUnit) -> str:
    """Return the size as text: `23 K` or `16 M` for elements, `182²` for a square matrix. Rows, tokens and
    images are written in full up to 9999."""
    if size_unit == "elements" or (size_unit == "plain" and n > _MOST_PLAIN):
        return " ".join(scale_size(n)).strip()
    return f"{n}{_square(size_unit)}"


def range_text(low: int, high: int, size_unit: SizeUnit) -> str:
    """Return a range of sizes, such as `16-46 K`, `131 K-1 M` or `128-512²`."""
    if low == high:
        return size_text(low, size_unit)
    if size_unit == "side" or (size_unit == "plain" and high <= _MOST_PLAIN):
        return f"{low}-{high}{_square(size_unit)}"
    (first, unit), (last, other) = scale_size(low), scale_size(high)
    if (first, unit) == (last, other):
        return size_text(low, size_unit)
    begin = first if unit == other else f"{first} {unit}".strip()
    return f"{begin}-{last} {other}".strip()


def _square(size_unit: SizeUnit) -> str:
    return "" if size_unit == "plain" else "²"


def cell_text(cell: AnswerCell | None, size_unit: SizeUnit) -> str:
    """Return the text of the column `pays from`, such as `23 K`, `> 16 M` or `about equal`. An unknown
    break-even is `?`, and so is a cell that is None."""
    if cell is None:
        return "?"
    n, low, high = ("" if n is None else size_text(n, size_unit) for n in (cell.n, cell.low, cell.high))
    match cell.kind:
        case "at":
            text = n if cell.sharp else f"~{n}"
        case "range":
            text = range_text(cell.low or 0, cell.high or 0, size_unit)
        case "below":
            text = "1" if cell.high == 1 else f"< {high}"  # there is no smaller size than 1
        case "above":
            text = f"> {low}"
        case "open":
            text = "about equal" if cell.tied else f"> {low}" if low else "?"
        case "pending":
            text = "..."
        case kind:
            text = kind.replace("-", " ")
    return f"{text}, mixed" if cell.mixed else text


def both_text(cell: AnswerCell, size_unit: SizeUnit) -> str:
    """Return the break-even with its interval, such as `23 K (16-46 K)`. Without an interval it is the text of
    `cell_text`."""
    if cell.kind not in ("at", "range") or cell.n is None or cell.low is None or cell.high is None:
        return cell_text(cell, size_unit)
    size = ("" if cell.sharp else "~") + size_text(cell.n, size_unit)
    return f"{size} ({range_text(cell.low, cell.high, size_unit)}){', mixed' if cell.mixed else ''}"


def threshold_text(curve: BreakEven) -> str:
    """Return the text for a break-even in a report: the size with its interval, or `?` with the reason."""
    cell = threshold(curve)
    text = both_text(cell, size_unit_of(curve.case))
    return f"? ({why_text(cell.reason)})" if text == "?" else text


# ---------------------------------------------------------------- as a program asks


class GpuThreshold(msgspec.Struct, frozen=True):
    """The size from which the GPU is faster, for programs."""

    verdict: VerdictKind  # the kind of result
    # the size; infinity: the GPU wins at no measured size; the smallest measured size: it wins at all of them;
    # the geometric middle of `lo` and `hi` if the verdict is `undecided` and has both; None: unknown
    n: float | None
    lo: float | None  # the low end of its 95 % interval; None: unknown
    hi: float | None  # the high end of its 95 % interval; None: unknown
    text: str  # the break-even as tables show it
    measured: tuple[int, int] | None  # the smallest and the largest measured size; None: no GPU was compared
    op: str  # the name of the op
    situation: str  # the situation as the caller gave it
    device_id: str | None = None  # the id of the GPU; None: no GPU was compared
    dtype: str | None = None  # the dtype of the elements; None: no GPU was compared
    params: dict[str, int] = {}  # the params other than the size

    def __str__(self) -> str:
        return self.text


def resolve_op(op: str | None, names: Iterable[str]) -> str:
    """Return the full name of a measured op. `op` may be a short name, such as `pairwise` for
    `options.pairwise`, or None if there is only one op. Raises UsageError if the op is unknown or ambiguous."""
    names = list(dict.fromkeys(names))
    if not names:
        raise UsageError("unknown-op", "no op was measured", why="the results are empty", hint="run it again")
    matches = names if op is None else [name for name in names if op in (name, name.rpartition(".")[2])]
    if op in matches:
        return op
    if len(matches) == 1:
        return matches[0]
    wrong, hint = "several ops were measured", "name one of them"
    if op is not None:
        wrong, hint = (
            f"there is no op {str(op)[:40]!r}",
            suggest(str(op), [*names, *(name.rpartition(".")[2] for name in names)]) or "name one of these",
        )
    raise UsageError("unknown-op", wrong, why=f"measured: {', '.join(names)}", hint=hint)


def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype, such as "float32". `dtype` is a name, a short name such as "f32", or an
    object with a name."""
    name = str(getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or dtype)
    name = name.rpartition(".")[2]  # torch.float32 has no name
    return LONG_DTYPES.get(name, name)


def find_threshold(
    runs: Iterable[Run], op: str | None, situation: str, backend: str | None = None, dtype: Any = None
) -> GpuThreshold:
    """Return the break-even of an op in a situation, from the first of `runs` (newest first) that compares both
    sides. `op` is as in `resolve_op`, and the rest as in `Policy.threshold`. Raises UsageError for an unknown
    situation or op."""
    runs, regime = list(runs), situation_regime(situation)
    dtype = None if dtype is None else dtype_name(dtype)
    name = resolve_op(op, [outcome.case.op for run in runs for outcome in run.outcomes])
    text = "unknown: no GPU was compared with the CPU"
    for run in runs:
        all_curves = analyse(run, keep=lambda case: case.op == name).break_even
        curve = earliest(
            curve
            for curve in all_curves
            if curve.regime == regime and backend in (None, curve.case.backend, curve.device_id)
            and dtype in (None, curve.dtype)
        )  # fmt: skip
        if curve is not None:
            return GpuThreshold(
                curve.verdict, curve.size, curve.lo, curve.hi, threshold_text(curve), (curve.first, curve.last),
                curve.op, situation, curve.device_id, curve.dtype, curve.params,
            )  # fmt: skip
        if all_curves:
            words = " ".join(filter(None, (dtype, situation)))
            text = f"unknown: no {backend or 'GPU'} was compared with the CPU for {words!r}"
    return GpuThreshold("undecided", None, None, None, text, None, name, situation)


# `already`: the GPU pays if every call copies. `at`: from `calls` calls on. `beyond`: if at all, from more than
# `shared_by` calls on. `never`: not even from MOST_CALLS on. `undecided`: not known, for the reason `reason`.
AmortizationVerdict = Literal["already", "at", "beyond", "never", "undecided"]
# `noise`: the times differ too much, or a label such as `throttled` forbids a verdict. `no-parts`: the copies were
# not timed singly. `parts-differ`: the copies that were timed singly do not agree with whole calls.
AmortizationReason = Literal["noise", "no-parts", "parts-differ"]


class Amortization(OfSeries, frozen=True, kw_only=True):
    """The number of calls per transfer from which the GPU pays at one size, or the reason why it is unknown."""

    n: int  # the size n of the op
    device_id: str  # the id of the GPU
    implementation: str  # the GPU's fastest implementation if calls share a copy
    baseline_id: str  # the id of the fastest CPU case
    verdict: AmortizationVerdict  # the kind of result
    calls: int | None  # the number of calls, if the verdict is `already` (1) or `at`; else None
    lo: int | None  # the low end of the interval; None: unbounded
    hi: int | None  # the high end of the interval; None: unbounded
    shared_by: int  # the number of calls that shared a copy when they were measured
    transfer_s: float  # the seconds of the copies, which the calls share
    launch_s: float  # the seconds that each call adds
    cpu_s: float  # the seconds of one call on the CPU
    reason: AmortizationReason | None  # the reason of the verdict `undecided`; None for the others


class WeightLoad(OfSeries, frozen=True, kw_only=True):
    """The cost of copying an op's weights to a device once, and the number of calls that repay it."""

    n: int  # the largest size
    device_id: str  # the id of the GPU
    weight_bytes: int  # the size of the weights
    load_s: float  # the seconds of the copy, paid once
    gain_s: float  # the seconds that each waited call gains over the CPU
    calls: int | None  # the number of calls; None: the GPU does not surely gain


@derive_once
def weight_loads(analysis: Analysis) -> tuple[WeightLoad, ...]:
    """Return a row for each op with weights and each GPU that has a speedup of waited calls. It is about the
    largest size."""
    waited = (
        ratio
        for ratio in analysis.speedups
        if ratio.kind == "headline" and ratio.case.device_kind == "gpu" and ratio.case.case.regime == WAITED
    )
    by_cell = group_by(waited, lambda ratio: ratio.case.case.cell)
    loads = (_weight_load(analysis.run, max(same, key=lambda ratio: ratio.n)) for same in by_cell.values())
    return tuple(load for load in loads if load is not None)


def _weight_load(run: Run, ratio: Speedup) -> WeightLoad | None:
    """Return how long the weights of an op take to load, and how many calls repay that, if both are known."""
    case = ratio.case.case
    # In a session, the first case that needs the weights loads them, so all cases of the op are searched.
    parts = [
        part
        for outcome in run.measurements
        if outcome.case.cell[:2] == case.cell[:2]
        for part in of_used_sessions(run, outcome.parts)
    ]
    seconds = {part.session: part.weights_s for part in parts if part.weights_s is not None}
    sizes = [part.weights_bytes for part in parts if part.weights_bytes]
    if not seconds or not sizes or ratio.baseline.time is None or ratio.case.time is None:
        return None
    load_s, gain_s = stats.median(seconds.values()), ratio.baseline.time.estimate - ratio.case.time.estimate
    return WeightLoad(
        **series_fields(case), n=case.n,
        device_id=case.device_id, weight_bytes=max(sizes), load_s=load_s, gain_s=gain_s,
        calls=max(1, math.ceil(load_s / gain_s)) if ratio.lo > 1 else None,
    )  # fmt: skip


RESAMPLES = 400
# The cost of the transfers is known from whole calls, and from transfers that were timed singly. If the two differ
# by more than this share, there is no result.
LARGEST_DIFFERENCE = 0.10
# If a transfer would have to be shared by more calls than this, the GPU never pays: such data stays on the
# device, and its regime is resident.
MOST_CALLS = 1e6


class Costs(NamedTuple):
    """The times of calls, in seconds."""

    one: float  # one call that copies, without the allocation
    many: float  # `calls` calls that share one copy
    cpu: float  # one call on the CPU

    def launch_s(self, calls: int) -> float:
        """Return the seconds of one more call that shares the copy with `calls` calls, at least 0."""
        return max(0.0, (self.many - self.one) / (calls - 1))

    def transfer_s(self, calls: int) -> float:
        """Return the seconds that `calls` calls with a shared copy pay once."""
        return self.one - self.launch_s(calls)

    def pays_from(self, calls: int) -> float:
        """Return the number of calls per transfer at which both sides cost the same, or infinity if a call on
        the GPU is not faster. `calls` is the number of calls in `many`."""
        margin = self.cpu - self.launch_s(calls)
        return max(0.0, self.transfer_s(calls)) / margin if margin > 0 else math.inf


class Trio(NamedTuple):
    """The three cases behind one amortization."""

    always: CaseResult  # the GPU's case in which each call copies
    once: CaseResult  # the GPU's case in which calls share a copy
    cpu: CaseResult  # the case on the CPU

    @property
    def doubtful(self) -> bool:
        """Whether one of the cases has a label that forbids headlines. No interval covers such a fault."""
        return bool({case.label for case in self} & NO_HEADLINE)


@derive_once
def amortizations(analysis: Analysis) -> tuple[Amortization, ...]:
    """Return a row for each workload and GPU that was timed with `transfer-always` and `transfer-once-N`, if a
    CPU was timed, too. Rows whose `transfer-once-N` case is not shown are left out."""
    trios = _trios([case for case in analysis.compared if case.time is not None])
    rows = (_judge(analysis.run, trio) for trio in trios if analysis.shows(trio.once.case))
    return tuple(item for item in rows if item is not None)


def _trios(cases: Sequence[CaseResult]) -> Iterable[Trio]:
    """Yield, for each workload and GPU, the fastest CPU case and the cases of the fastest
    GPU implementation."""
    for same in group_by(cases, lambda case: case.case.workload).values():
        cpu = fastest(case for case in same if case.device_kind == "cpu" and case.case.regime == RESIDENT)
        gpu = [case for case in same if case.device_kind == "gpu"]
        always = {
            (case.case.device_id, case.case.implementation): case
            for case in gpu
            if case.case.regime == "transfer-always"
        }
        once = [
            case
            for case in gpu
            if case.case.regime == "transfer-once" and (case.case.device_id, case.case.implementation) in always
        ]
        for implementations in group_by(once, lambda case: case.case.device_id).values():
            best = fastest(implementations)
            if cpu is not None and best is not None:
                yield Trio(always[best.case.device_id, best.case.implementation], best, cpu)


def _judge(run: Run, trio: Trio) -> Amortization | None:
    """Return the amortization of a trio, or None if no session measured all three cases."""
    calls, parts = trio.once.case.calls or 0, trio.always.time_breakdown
    common = trio.always.blocks.keys() & trio.once.blocks.keys() & trio.cpu.blocks.keys()
    if not common or calls < 2:
        return None
    alloc_s = parts.alloc_s if parts else 0.0
    times = [stats.run_interval([case.blocks[i] for i in sorted(common)], case.prior) for case in trio]
    costs = Costs(times[0].estimate - alloc_s, times[1].estimate * calls, times[2].estimate)
    estimate = costs.pays_from(calls)
    low, high = _interval(times, calls, alloc_s, f"{run.settings.seed} {trio.once.id}")
    low, high = min(low, estimate), max(high, estimate)
    # An interval that ends at `calls` or before lies between two measured times.
    between = high <= calls and not trio.doubtful
    reason = None if between else _doubt(trio, costs, calls)
    verdict = "undecided" if reason else _verdict(estimate, low)
    if verdict == "undecided" and low > calls and not trio.doubtful:
        verdict, reason = "beyond", None
    case, open_ended = trio.once.case, reason is not None or verdict == "never"
    return Amortization(
        **series_fields(case), n=case.n, device_id=case.device_id,
        implementation=case.implementation, baseline_id=trio.cpu.id, shared_by=calls,
        transfer_s=costs.transfer_s(calls),
        launch_s=costs.launch_s(calls), cpu_s=costs.cpu, verdict=verdict,
        reason=reason or ("noise" if verdict == "undecided" else None),
        calls=_whole(estimate) if verdict in ("already", "at") else None,
        lo=None if open_ended else _whole(low), hi=None if open_ended else _whole(high),
    )  # fmt: skip


def _interval(times: Sequence[stats.Interval], calls: int, alloc_s: float, seed: str) -> tuple[float, float]:
    """Return the 95 % interval of the number of calls from which the GPU pays, by RESAMPLES random draws."""
    import random  # few reports ask for it

    # each time from its own interval
    draw = random.Random(seed)
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


def _doubt(trio: Trio, costs: Costs, calls: int) -> AmortizationReason | None:
    """Return the reason why the result of a trio is in doubt, or None."""
    parts = trio.always.time_breakdown
    if trio.doubtful or parts is None:
        return "noise" if trio.doubtful else "no-parts"
    launch_s = costs.launch_s(calls)
    # A row of calls hides launches behind kernels. A single call pays for both: the shorter of the two at most.
    hidden_s = min(max(0.0, parts.launch_s + parts.kernel_s - launch_s), parts.launch_s, parts.kernel_s)
    timed_s = parts.upload_s + parts.sync_s + parts.download_s + hidden_s
    open_s = abs(costs.transfer_s(calls) - timed_s)
    agree = open_s <= LARGEST_DIFFERENCE * timed_s and not parts.mismatch
    # The seconds that the parts do not explain may belong to T1: then b is wrong by 1 / (N - 1) of them. No
    # doubt is left if the GPU never pays even with the smaller b.
    return None if agree or launch_s - open_s / (calls - 1) >= costs.cpu else "parts-differ"


def _verdict(estimate: float, low: float) -> AmortizationVerdict:
    if estimate <= MOST_CALLS:
        return "already" if estimate <= 1 else "at"
    return "never" if low > MOST_CALLS else "undecided"


def _whole(calls: float) -> int | None:
    """Round up to whole calls, at least one, or return None above MOST_CALLS."""
    return max(1, math.ceil(calls)) if calls <= MOST_CALLS else None
