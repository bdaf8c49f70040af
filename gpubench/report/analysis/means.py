"""Means over cases: geometric, over a fixed set, with what is missing from it (measurement.md, section 9)."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench import stats
from gpubench.model.op import Dtype
from gpubench.report.analysis.types import CaseResult, Mean, Speedup

Family = tuple[str, Dtype]  # regime and dtype


def means(cases: Sequence[CaseResult], rows: Sequence[Speedup]) -> tuple[Mean, ...]:
    """One row per regime, dtype and device that has headline speedups, in the order of `rows`.

    The set of a dtype is what was attempted in every regime, on whatever device: so all devices and regimes are asked
    for the same, and sizes that a search for one break-even added take no part. The interval is the mean of the ends:
    as wide as if all cases erred alike.
    """
    everything = _fixed(cases)
    found: dict[Family, dict[str, dict[str, Speedup]]] = {}
    for row in rows:
        case = row.case.case
        if row.headline and case.workload in everything.get(case.dtype, ()):
            devices = found.setdefault((case.regime_id, case.dtype), {})
            devices.setdefault(case.device_id, {})[case.workload] = row
    return tuple(
        _mean(family, device_id, ours, everything[family[1]])
        for family, devices in found.items()
        for device_id, ours in devices.items()
    )


def _fixed(cases: Sequence[CaseResult]) -> dict[str, list[str]]:
    """By dtype the workloads that a GPU has, measured or not, in all regimes that the run's GPUs have."""
    tried: dict[str, dict[str, set[str]]] = {}
    for row in cases:
        if row.device_kind != "cpu":
            by_workload = tried.setdefault(row.case.dtype, {})
            by_workload.setdefault(row.case.workload, set()).add(row.case.regime_id)
    return {
        dtype: [name for name, regimes in known.items() if regimes == set().union(*known.values())]
        for dtype, known in tried.items()
    }


def _mean(family: Family, device_id: str, ours: dict[str, Speedup], everything: Sequence[str]) -> Mean:
    ratios = [row.ratio for row in ours.values()]
    kinds = {ratio.kind for ratio in ratios}
    low, estimate, high = (
        stats.geometric_mean([getattr(ratio, end) for ratio in ratios]) for end in ("low", "estimate", "high")
    )
    return Mean(
        regime=family[0], dtype=family[1], device_id=device_id,
        ratio=stats.Interval(low, estimate, high, "within-session" if "within-session" in kinds else "bootstrap"),
        count=len(ratios), missing=tuple(name for name in everything if name not in ours),
    )  # fmt: skip
