"""The gate `--min-speedup` of a comparison: how many times faster a case has to be than it was in base."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpubench.model.case import Case
from gpubench.report.analysis.gates import MinSpeedup
from gpubench.report.compare.types import Gate, JudgedCase


def min_speedup_gates(
    demands: Sequence[MinSpeedup], cases: Sequence[JudgedCase], asked: Mapping[str, Case], files: int
) -> tuple[Gate, ...]:
    """One gate for each demand on base / new: it fails where the whole interval lies below, or there is no ratio.

    `asked` are the cases of base and of the `files` new ones that no --ignore mutes, by id: each that a demand selects
    has to have a ratio in each new file, whichever side lacks its number. One that selects none of them is impossible.
    """
    return tuple(
        _gate(demand, cases, [name for name, case in asked.items() if demand.selects(case)], files)
        for demand in demands
    )


def _gate(demand: MinSpeedup, cases: Sequence[JudgedCase], chosen: Sequence[str], files: int) -> Gate:
    # The fastest that a case may be is base / the low end of new / base.
    spans = [
        (row.id, row.new, 1 / row.hi, 1 / row.lo)
        for row in cases
        if row.id in chosen and row.lo is not None and row.hi is not None
    ]
    told = {(name, new) for name, new, _, _ in spans}
    low = _once(name for name, _, _, most in spans if most < demand.least)
    missing = tuple(name for name in chosen if any((name, new) not in told for new in range(files)))
    return Gate(
        name="min-speedup", selector=demand.text, least=demand.least, ids=low, missing=missing,
        impossible=not chosen, passed=bool(chosen) and not low and not missing,
        near=_once(name for name, _, least, most in spans if least < demand.least <= most),
    )  # fmt: skip


def _once(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(ids))
