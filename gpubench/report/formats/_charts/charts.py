"""All charts of one run that have something to show."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpubench.report.analysis.types import Analysis
from gpubench.report.formats._charts import rows
from gpubench.report.formats._charts.anatomy import anatomy_chart
from gpubench.report.formats._charts.rates import rate_chart
from gpubench.report.formats._charts.roofs import roofline_chart
from gpubench.report.formats._charts.samples import sample_chart
from gpubench.report.formats._charts.speedups import speedup_chart
from gpubench.report.formats._charts.splits import hybrid_chart
from gpubench.report.formats._charts.times import time_chart
from gpubench.report.formats._charts.types import Chart, ChartSet, Series
from gpubench.report.formats._names import series_name


def chart_set(analysis: Analysis, sections: Sequence[str], unit: str) -> ChartSet:
    """The charts of `sections`. Needs the extra `plots`."""
    makers: tuple[tuple[str, Callable[[], Chart]], ...] = (
        ("speedup", lambda: time_chart(analysis, unit)),
        ("speedup", lambda: speedup_chart(analysis, unit)),
        ("roofline", lambda: rate_chart(analysis)),
        ("roofline", lambda: roofline_chart(analysis)),
        ("hybrid", lambda: hybrid_chart(analysis, unit)),
        ("anatomy", lambda: anatomy_chart(analysis, unit)),
        ("speedup", lambda: sample_chart(analysis, unit)),
    )
    series = rows.all_series(analysis)
    if not series:
        return ChartSet()
    charts = [make() for section, make in makers if section in sections]
    return ChartSet(
        series=series, chosen=_most_telling(analysis, series), devices=rows.devices(analysis),
        regimes=rows.regimes(analysis),
        forms=tuple(dict.fromkeys(row.case.form_id for row in rows.charted(analysis))),
        charts=tuple(chart for chart in charts if any(chart.rows.values())),
    )  # fmt: skip


def _most_telling(analysis: Analysis, series: Sequence[Series]) -> str:
    """The series with the most break-evens, then with the most sizes; of equal ones the first."""
    found = [series_name(row) for row in analysis.break_even if row.verdict == "at"]
    return max(series, key=lambda one: (found.count(one.name), len(one.sizes))).name
