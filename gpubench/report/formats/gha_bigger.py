"""github-action-benchmark, tool `customBiggerIsBetter`: the speedup and the rate of each case."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpubench.report.analysis.types import Analysis
from gpubench.report.formats import _gha as gha
from gpubench.report.formats._estimated import Estimated, half_width, only_run, rate_of
from gpubench.report.formats._estimated import estimated as cases_of
from gpubench.report.formats._options import RenderOptions


def render(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """The array of one run. Raises UsageError for several runs."""
    cases = cases_of(only_run(analyses, "gha-bigger"))
    return gha.text([entry for case in cases for entry in _entries(case)], options)


def _entries(case: Estimated) -> Iterator[gha.Entry]:
    if case.speedup is not None:
        ratio = case.speedup.ratio
        note = gha.interval_note(f"against {case.speedup.baseline.id}", ratio, "x")
        yield gha.entry(f"{case.id} speedup", ratio.estimate, "x", half_width(ratio), case, note)
    on_device = case.row.rates is not None and case.row.rates.clock == "device_cold"
    seconds = case.row.device_cold_s if on_device else None
    rate = rate_of(case.row, case.time.estimate if seconds is None else seconds)
    if rate is not None:
        # The device's clock has no interval of its own: that of the wall time, relative, stands in for it.
        half = rate.value * half_width(case.time) / case.time.estimate
        note = f"by the {'wall' if seconds is None else 'device'} clock"
        yield gha.entry(f"{case.id} rate", rate.value, rate.unit, half, case, note)
