"""The gate `--min-speedup` of a comparison: how many times faster a case has to be than it was in base."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpubench.model.case import Case
from gpubench.report.analysis.gates import MinSpeedup
from gpubench.report.compare.types import AbsentCase, Gate, JudgedCase


def min_speedup_gates(
    demands: Sequence[MinSpeedup],
    cases: Sequence[JudgedCase],
    absent: Sequence[AbsentCase],
    known: Mapping[str, Case],
) -> tuple[Gate, ...]:
    """One gate for each demand on base / new: it fails where the whole interval lies below, or there is no ratio.

    `absent` have a number in base alone, `known` are the cases of base by id. Ignored cases are not looked at.
    """
    heard = [row for row in cases if not row.muted]
    lost = [row.id for row in absent if not row.muted]
    return tuple(_gate(demand, heard, lost, known) for demand in demands)


def _gate(
    demand: MinSpeedup, cases: Sequence[JudgedCase], lost: Sequence[str], known: Mapping[str, Case]
) -> Gate:
    chosen = [row for row in cases if demand.selects(known[row.id])]
    # The fastest that a case may be is base / the low end of new / base.
    spans = [(row.id, 1 / row.hi, 1 / row.lo) for row in chosen if row.lo is not None and row.hi is not None]
    low = _once(case_id for case_id, _, most in spans if most < demand.least)
    missing = _once(
        [
            *(row.id for row in chosen if row.lo is None),
            *(case_id for case_id in lost if demand.selects(known[case_id])),
        ]
    )
    return Gate(
        name="min-speedup", selector=demand.text, least=demand.least, passed=not low and not missing, ids=low,
        missing=missing, near=_once(case_id for case_id, least, most in spans if least < demand.least <= most),
    )  # fmt: skip


def _once(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(ids))
