"""Bencher Metric Format: latency in nanoseconds, throughput in calls per second, speedup; by case id."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpubench.analysis.analyse import Analysis
from gpubench.report.exporters import Estimated, estimated, only_run
from gpubench.report.layout import RenderOptions, json_text
from gpubench.stats import Interval

NS = 1e9


class Metric(msgspec.Struct, frozen=True):
    """A value inside its 95 % interval."""

    value: float
    lower_value: float
    upper_value: float


def render(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """The object of one run. Raises UsageError for several runs."""
    cases = estimated(only_run(analyses, "bmf"))
    return json_text({case.id: _measures(case) for case in cases}, options)


def _measures(case: Estimated) -> dict[str, Metric]:
    time = case.time
    found = {
        "latency": Metric(time.estimate * NS, time.low * NS, time.high * NS),
        "throughput": Metric(1 / time.estimate, 1 / time.high, 1 / time.low),
    }
    return found | ({"speedup": _metric(case.speedup.interval)} if case.speedup is not None else {})


def _metric(interval: Interval) -> Metric:
    return Metric(interval.estimate, interval.low, interval.high)
