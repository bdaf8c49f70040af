"""From which size on a GPU pays: one cell of the answer, its words, and the threshold that a program asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from gpubench.analysis.analyse import analyse
from gpubench.analysis.break_even import WIDEST_INTERVAL, BreakEven, VerdictKind, earliest
from gpubench.analysis.estimate import CaseResult, declaration
from gpubench.analysis.speedup import EQUAL, Speedup
from gpubench.base.errors import UsageError, require_choice, suggest
from gpubench.base.units import scale_size
from gpubench.kernels.contract.op import Ladder
from gpubench.result.case import QUEUED, RESIDENT, WAITED, Case, beside_size
from gpubench.result.run import Run

ALWAYS = "transfer-always"
# A threshold is a number where the ends of its interval lie no further apart (a factor of 1.5 either way), and about a
# number up to ROUGHLY, as far as a verdict is decided; else it is a range.
SHARP, ROUGHLY = 2.25, WIDEST_INTERVAL
ABOUT_EQUAL = "about-equal"  # the reason of a cell whose sides tie at the largest size

# `at`: one size. `range`: the threshold lies in it. `below`, `above`: one side wins at every size measured, but the
# ladder's ends were not. `open`: no verdict, `why` says the reason. `pending`: none yet, the run goes on.
CellKind = Literal[
    "at", "range", "all-sizes", "below", "no-size", "above", "open", "wrong", "failed", "pending"
]
Winner = Literal["gpu", "cpu", "equal", "noisy"]
# What a size counts: elements of one array, the side of a square matrix; `plain`: rows, tokens or images of a network,
# or a size beside other params.
Extent = Literal["elements", "side", "plain"]


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """The two sides at one size."""

    n: int
    ratio: float  # above 1: the GPU is faster
    low: float
    high: float
    winner: Winner
    cpu_s: float
    gpu_s: float
    top: bool  # the op's ladder has no larger size

    @property
    def about_equal(self) -> bool:
        """Whether the estimate is within 15 % of 1; `winner` tells how sure that is."""
        return 1 / EQUAL <= self.ratio <= EQUAL

    @property
    def within(self) -> float:
        """How far the ratio may be off, as a share of it."""
        return largest_error(self.low, self.ratio, self.high)


def largest_error(low: float, estimate: float, high: float) -> float:
    """Return how far an estimate may be off, as a share of it."""
    return max(high / estimate - 1, 1 - low / estimate)


class AnswerCell(msgspec.Struct, frozen=True, kw_only=True):
    """From which size on the GPU pays in one situation. `low` and `high` are the threshold's interval, or of `below`
    and `above` the smallest and the largest size measured. `gains`: one for each size, ascending."""

    kind: CellKind
    n: int | None = None
    low: int | None = None
    high: int | None = None
    mixed: bool = False
    why: str = ""
    gains: tuple[Gain, ...] = ()

    @property
    def sharp(self) -> bool:
        """Whether the interval of the threshold is narrow enough for a bare number."""
        return self.low is not None and self.high is not None and self.high <= self.low * SHARP

    @property
    def tied(self) -> bool:
        """Whether there is no threshold because the sides are about equal at the largest size."""
        return self.kind == "open" and self.why == ABOUT_EQUAL

    @property
    def gain(self) -> Gain | None:
        """The gain at the largest size."""
        return self.gains[-1] if self.gains else None


def extent(case: Case) -> Extent:
    """Return what the size of this case counts."""
    if case.group in ("network", "layers"):
        return "plain"
    if case.group != "matrix":
        return "elements"
    return "plain" if beside_size(case.params) else "side"


def declared_sizes(op: str, params: Mapping[str, int]) -> Ladder | None:
    """Return the sizes that the op declares; None where this installation does not know it, or where params beside the
    size shape it."""
    declared = None if params else declaration(op)
    return declared.sizes if declared is not None else None


def threshold(curve: BreakEven | None, cases: Sequence[CaseResult] = ()) -> AnswerCell:
    """Return the cell of a curve, which may be missing; `cases` are all that were tried there."""
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
        why=curve.reason or "few-sizes" if kind == "open" else "",
    )  # fmt: skip


def _without_numbers(cases: Sequence[CaseResult]) -> AnswerCell:
    if any(case.time is not None for case in cases):
        return AnswerCell(kind="open", why="no-cpu-time")
    if any(case.outcome == "failure" for case in cases):
        return AnswerCell(kind="failed")
    return AnswerCell(
        kind="open", why=next((case.reason for case in cases if case.reason), None) or "no-samples"
    )


def _gain(point: Speedup, ladder: Ladder | None) -> Gain:
    assert point.baseline.time is not None  # a speedup has both
    assert point.case.time is not None
    winners: dict[str, Winner] = {"win": "gpu", "loss": "cpu"}
    winner: Winner = "equal" if point.about_equal else "noisy"
    if not 1 / EQUAL <= point.ratio <= EQUAL:
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
    """Return the words for the reason of an open cell."""
    return _WHY.get(why, why.replace("-", " "))


def size_text(n: int, extent: Extent) -> str:
    """Return `23 K`, `16 M` for elements (K is 1024, M is 1024 K), `182²` for a square matrix."""
    if extent == "elements":
        return " ".join(scale_size(n)).strip()
    return f"{n}{_square(extent)}"


def range_text(low: int, high: int, extent: Extent) -> str:
    """Return `16-46 K`, `131 K-1 M`, `128-512²`."""
    if low == high:
        return size_text(low, extent)
    if extent != "elements":
        return f"{low}-{high}{_square(extent)}"
    (first, unit), (last, other) = scale_size(low), scale_size(high)
    if (first, unit) == (last, other):
        return size_text(low, extent)
    begin = first if unit == other else f"{first} {unit}".strip()
    return f"{begin}-{last} {other}".strip()


def _square(extent: Extent) -> str:
    return "" if extent == "plain" else "²"


def cell_text(cell: AnswerCell | None, extent: Extent) -> str:
    """Return what `pays from` says: the one grammar of all outputs."""
    if cell is None:
        return "?"
    n, low, high = ("" if n is None else size_text(n, extent) for n in (cell.n, cell.low, cell.high))
    match cell.kind:
        case "at":
            text = n if cell.sharp else f"~{n}"
        case "range":
            text = range_text(cell.low or 0, cell.high or 0, extent)
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


def both_text(cell: AnswerCell, extent: Extent) -> str:
    """Return the threshold with its interval, `23 K (16-46 K)`; a bracket alone has no number."""
    if cell.kind not in ("at", "range") or cell.n is None or cell.low is None or cell.high is None:
        return cell_text(cell, extent)
    size = ("" if cell.sharp else "~") + size_text(cell.n, extent)
    between = range_text(cell.low, cell.high, extent)
    return f"{size} ({between})" + (", mixed" if cell.mixed else "")


def threshold_text(curve: BreakEven) -> str:
    """Return what a report says of a curve: the cell with its interval, and of `?` the reason."""
    cell = threshold(curve)
    text = both_text(cell, extent(curve.case))
    return f"? ({why_text(cell.why)})" if text == "?" else text


# ---------------------------------------------------------------- as a program asks

# Situations of a call by the words of the report.
SITUATIONS = {"waited": WAITED, "queued": QUEUED, "10 calls a copy": "transfer-once-10", "copied": ALWAYS}


class GpuThreshold(msgspec.Struct, frozen=True):
    """The size from which the GPU is faster.

    `n` is inf where the GPU wins at no measured size, the smallest measured size where it wins at all of them, and None
    where the run does not tell. `lo` and `hi` hold it with 95 %. `measured`: the smallest and the largest size.
    """

    verdict: VerdictKind
    n: float | None
    lo: float | None
    hi: float | None
    text: str
    measured: tuple[int, int] | None
    op: str
    situation: str
    device_id: str | None = None

    def __str__(self) -> str:
        return self.text


def situation_regime(situation: str) -> str:
    """Return the regime of a situation, named by a word of the report or by its id. Raises UsageError."""
    regime = SITUATIONS.get(situation, situation)
    if regime == RESIDENT:
        return WAITED
    if not regime.startswith("transfer-once-"):
        require_choice(situation, [*SITUATIONS, *SITUATIONS.values()], "situation")
    return regime


def resolve_op(op: str | None, names: Iterable[str]) -> str:
    """Return the op of that name; `pairwise` names `options.pairwise`, and None the only op. Raises UsageError."""
    names = list(dict.fromkeys(names))
    matches = names if op is None else [name for name in names if op in (name, name.rpartition(".")[2])]
    if op in matches:
        return op
    if len(matches) == 1:
        return matches[0]
    short = {name.rpartition(".")[2]: name for name in names}
    raise UsageError(
        "unknown-op", "several ops were measured" if op is None else f"there is no op {op[:40]!r}",
        why="measured: " + ", ".join(names),
        hint="name one of them" if op is None else suggest(op, [*names, *short]) or "name one of these",
    )  # fmt: skip


def find_threshold(
    runs: Sequence[Run], op: str | None, situation: str, backend: str | None = None
) -> GpuThreshold:
    """Return the threshold of the newest run that compares both sides. Raises UsageError for an op that none has
    measured."""
    regime = situation_regime(situation)
    name = resolve_op(op, [outcome.case.op for run in runs for outcome in run.outcomes])
    for run in runs:
        curves = [
            curve
            for curve in analyse(run, keep=lambda case: case.op == name).break_even
            if curve.regime == regime and backend in (None, curve.case.backend, curve.device_id)
        ]
        curve = earliest(curves) or next(iter(curves), None)
        if curve is not None:
            return GpuThreshold(
                curve.verdict, curve.size, curve.lo, curve.hi, threshold_text(curve), (curve.first, curve.last),
                curve.op, situation, curve.device_id,
            )  # fmt: skip
    text = "unknown: no GPU was compared with the CPU"
    return GpuThreshold("undecided", None, None, None, text, None, name, situation)
