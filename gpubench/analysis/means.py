"""Geometric means of speedups: one for each situation, dtype and device."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpubench.analysis.analyse import Analysis, derive_once
from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.speedup import Speedup
from gpubench.curves import stats
from gpubench.curves.stats import Interval
from gpubench.kernels.contract.op import Dtype


class Mean(msgspec.Struct, frozen=True, kw_only=True):
    """Geometric mean of one device's headline speedups over `count` workloads; `missing` are those that it lacks of the
    fixed set. Means of different sets are not comparable."""

    regime: str
    dtype: str
    device_id: str
    ratio: float
    lo: float
    hi: float
    count: int
    missing: tuple[str, ...]

    @property
    def interval(self) -> Interval:
        """The mean between its ends, which are the means of the ends of its ratios."""
        return Interval(self.lo, self.ratio, self.hi, "prior")


MeanKey = tuple[str, Dtype]  # regime and dtype


@derive_once
def means(analysis: Analysis) -> tuple[Mean, ...]:
    """Return a row per regime, dtype and device that has headline speedups.

    The set of a dtype is what was attempted in every regime, on whatever device: so all devices and regimes are asked
    for the same, and sizes that a search for one break-even added take no part. The interval is the mean of the ends:
    as wide as if all cases erred alike.
    """
    everything = _fixed(analysis.shown_of(analysis.compared))
    found: dict[MeanKey, dict[str, dict[str, Speedup]]] = {}
    for row in analysis.speedups:
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


def _mean(family: MeanKey, device_id: str, ours: dict[str, Speedup], everything: Sequence[str]) -> Mean:
    lo, ratio, hi = (
        stats.geometric_mean([getattr(row, end) for row in ours.values()]) for end in ("lo", "ratio", "hi")
    )
    return Mean(
        regime=family[0], dtype=family[1], device_id=device_id, ratio=ratio, lo=lo, hi=hi, count=len(ours),
        missing=tuple(name for name in everything if name not in ours),
    )  # fmt: skip
