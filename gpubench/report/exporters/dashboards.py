"""Series over commits: Bencher Metric Format, and github-action-benchmark's two lists (wall time; speedup and rate)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gpubench.analysis.analyse import Analysis
from gpubench.curves.stats import IntervalLike
from gpubench.report.exporters import Estimated, decimal, estimated_cases, half_width, only_run, rate_of
from gpubench.report.layout import RenderOptions, json_text

NS, MS = 1e9, 1e3


def render_bmf(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """Return latency in nanoseconds, throughput in calls per second and speedup by case id. Raises UsageError for
    several runs."""
    cases = estimated_cases(only_run(analyses, "bmf"))
    return json_text({case.id: _measures(case) for case in cases}, options)


def _measures(case: Estimated) -> dict[str, dict[str, float]]:
    time = case.time
    measures = {
        "latency": _metric(time.estimate * NS, time.low * NS, time.high * NS),
        "throughput": _metric(1 / time.estimate, 1 / time.high, 1 / time.low),
    }
    if case.speedup is not None:
        ratio = case.speedup.interval
        measures["speedup"] = _metric(ratio.estimate, ratio.low, ratio.high)
    return measures


def _metric(value: float, low: float, high: float) -> dict[str, float]:
    return {"value": value, "lower_value": low, "upper_value": high}


def render_smaller(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """Return wall times. Raises UsageError for several runs."""
    cases = estimated_cases(only_run(analyses, "gha-smaller"))
    return json_text(
        [
            _entry(
                case.id, case.time.estimate * MS, "ms", half_width(case.time) * MS, case,
                _interval_note("wall time of one launch", case.time, "ms", MS),
            )
            for case in cases
        ],
        options,
    )  # fmt: skip


def render_bigger(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """Return speedups and rates. Raises UsageError for several runs."""
    cases = estimated_cases(only_run(analyses, "gha-bigger"))
    return json_text([entry for case in cases for entry in _entries(case)], options)


def _entries(case: Estimated) -> Iterator[dict[str, Any]]:
    if case.speedup is not None:
        ratio = case.speedup.interval
        note = _interval_note(f"against {case.speedup.baseline.id}", ratio, "x")
        yield _entry(f"{case.id} speedup", ratio.estimate, "x", half_width(ratio), case, note)
    on_device = case.row.rates is not None and case.row.rates.clock == "device_cold"
    seconds = case.row.device_cold_s if on_device else None
    rate = rate_of(case.row, case.time.estimate if seconds is None else seconds)
    if rate is not None:
        # The device's clock has no interval of its own: that of the wall time, relative, stands in for it.
        half = rate.value * half_width(case.time) / case.time.estimate
        note = f"by the {'wall' if seconds is None else 'device'} clock"
        yield _entry(f"{case.id} rate", rate.value, rate.unit, half, case, note)


def _entry(name: str, value: float, unit: str, half: float, case: Estimated, note: str) -> dict[str, Any]:
    """Return one point of a chart, `value ± half`; `note` says what the number is, where the mouse rests on the
    point."""
    count = len(case.sessions)
    sessions = "1 session" if count == 1 else f"{count} sessions"
    label = "" if case.row.label == "ok" else f", {case.row.label}"
    extra = f"{note}\n{sessions}, {case.row.sample_count} samples{label}"
    return {"name": name, "value": value, "unit": unit, "range": f"± {decimal(half, 2)}", "extra": extra}


def _interval_note(what: str, interval: IntervalLike, unit: str, scale: float = 1.0) -> str:
    """Return `wall time of one launch, 95 % interval [1.5, 1.6] ms`."""
    return f"{what}, 95 % interval [{interval.low * scale:.4g}, {interval.high * scale:.4g}] {unit}"
