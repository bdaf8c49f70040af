"""From which size on the GPU is faster, as a program asks: by op and situation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from gpubench.analysis.analyse import analyse
from gpubench.analysis.break_even import BreakEven, VerdictKind, earliest
from gpubench.base import units
from gpubench.base.errors import UsageError, require_choice, suggest
from gpubench.result.case import QUEUED, RESIDENT, WAITED
from gpubench.result.run import Run

# Situations of a call by the words of the report.
SITUATIONS = {
    "waited": WAITED,
    "queued": QUEUED,
    "ten calls a copy": "transfer-once-10",
    "copied": "transfer-always",
}


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
    """The regime of a situation, named by a word of the report or by its id. Raises UsageError."""
    regime = SITUATIONS.get(situation, situation)
    if regime == RESIDENT:
        return WAITED
    if regime in SITUATIONS.values() or regime.startswith("transfer-once-"):
        return regime
    require_choice(situation, [*SITUATIONS, *SITUATIONS.values()], "situation")
    return regime


def resolve_op(op: str | None, names: Iterable[str]) -> str:
    """The op of that name; `pairwise` names `options.pairwise`, and None the only op. Raises UsageError."""
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
    runs: Sequence[Run], op: str | None, situation: str, backend: str | None = None, dtype: str | None = None
) -> GpuThreshold:
    """The threshold of the newest run that compares both sides. Raises UsageError for an op that none has measured."""
    regime = situation_regime(situation)
    measured = [outcome.case.op for run in runs for outcome in run.outcomes]
    name = resolve_op(op, measured)
    for run in runs:
        candidates = [
            curve
            for curve in analyse(run, keep=lambda case: case.op == name).break_even
            if curve.regime == regime and dtype in (None, curve.dtype)
            and backend in (None, curve.case.backend, curve.device_id)
        ]  # fmt: skip
        curve = earliest(candidates) or next(iter(candidates), None)
        if curve is not None:
            return _threshold(curve, situation)
    text = "unknown: no GPU was compared with the CPU"
    return GpuThreshold("undecided", None, None, None, text, None, name, situation)


def _threshold(curve: BreakEven, situation: str) -> GpuThreshold:
    n = curve.size
    first, last = (_size(size) for size in (curve.first, curve.last))
    if curve.verdict == "no-size":
        text = f"no size up to {last}"
    elif curve.verdict == "all-sizes":
        text = f"every size from {first} to {last}"
    elif curve.lo is not None and curve.hi is not None and n is not None:
        text = f"from about {_size(round(n))} ({_size(curve.lo)} to {_size(curve.hi)})"
    else:
        text = f"unknown: {(curve.reason or 'undecided').replace('-', ' ')}"
    measured = (curve.first, curve.last)
    return GpuThreshold(
        curve.verdict, n, curve.lo, curve.hi, text, measured, curve.op, situation, curve.device_id
    )


def _size(n: int) -> str:
    """`23 K`, where K is 1024."""
    return " ".join(units.scale_size(n)).strip()
