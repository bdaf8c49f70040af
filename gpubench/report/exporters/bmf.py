"""Bencher Metric Format: latency in nanoseconds, throughput in calls per second, speedup; by case id."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.analysis.analyse import Analysis
from gpubench.report.exporters import Estimated, estimated, only_run
from gpubench.report.layout import RenderOptions, json_text

NS = 1e9


def render(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """The object of one run. Raises UsageError for several runs."""
    cases = estimated(only_run(analyses, "bmf"))
    return json_text({case.id: _measures(case) for case in cases}, options)


def _measures(case: Estimated) -> dict[str, dict[str, float]]:
    time = case.time
    found = {
        "latency": _metric(time.estimate * NS, time.low * NS, time.high * NS),
        "throughput": _metric(1 / time.estimate, 1 / time.high, 1 / time.low),
    }
    if case.speedup is not None:
        ratio = case.speedup.interval
        found["speedup"] = _metric(ratio.estimate, ratio.low, ratio.high)
    return found


def _metric(value: float, low: float, high: float) -> dict[str, float]:
    return {"value": value, "lower_value": low, "upper_value": high}
