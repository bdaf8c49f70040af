"""The cases themselves: all numbers of each, the chart of their times, the chart of all samples; and where they ran."""

from __future__ import annotations

import functools

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.estimate import CaseResult
from gpubench.base.escaping import printable, shortened
from gpubench.base.plugins.sections import Rows, chart, section
from gpubench.base.table import Column, Table, cells, heads, number
from gpubench.base.units import format_bytes, format_seconds
from gpubench.report import charts
from gpubench.report.charts import (
    Chart,
    ChartRow,
    ChartRows,
    charted,
    common,
    device_ids,
    fastest,
    regime_names,
    short,
    size_ticks,
)
from gpubench.report.layout import RenderOptions, Section
from gpubench.report.wording import (
    data_text,
    mark,
    rate_text,
    seconds_text,
    series_name,
    share_text,
    time_interval_text,
    time_text,
)


@section("environment", order=190, help="Versions, devices and settings")
def environment_section(analysis: Analysis, options: RenderOptions) -> Section:
    """Draw what was measured with: versions, devices, settings, recorded variables."""
    run = analysis.run
    tools = ", ".join(f"{name} {version}" for name, version in sorted(run.tool.items()))
    settings = run.settings
    lines = [f"Software: {printable(tools)}"] if tools else []
    lines.append(
        f"Protocol: {settings.min_samples} to {settings.max_samples} samples a session, precision "
        f"{share_text(settings.precision)}, order {settings.order}, inputs {settings.inputs}, "
        f"{'caches cold, ' if settings.cache == 'cold' else ''}"
        f"seed {settings.seed}"
    )
    lines += [printable(f"{name}={value}") for name, value in sorted(run.environment.variables.items())]
    columns = heads(
        "device", "kind", "name", Column("api", rank=1), number("memory"),
        Column("driver", rank=2),
    )  # fmt: skip
    rows = [
        cells(
            device.id, device.kind, shortened(device.name, 30), device.api,
            format_bytes(device.memory_bytes) if device.memory_bytes else "-", shortened(device.driver or "-", 20),
        )
        for device in run.devices
    ]  # fmt: skip
    tables = (Table(columns, tuple(rows)),) if rows else ()
    return Section(title="Environment", lines=tuple(lines), tables=tables, folded=True)


@section("raw", order=200, usual=False, help="Every case with its id")
def raw_section(analysis: Analysis, options: RenderOptions) -> Section:
    """Draw every case with its interval, and the kernel that its device took where it had a choice."""
    unit = options.time_unit
    chosen = any(row.kernel for row in analysis.cases)
    columns = heads(
        number("wall"), number("95 % interval"), number("device cold", 2),
        number("rate", 3), number("sessions x samples", 1), "case",
        chosen and Column("kernel", rank=4),
    )  # fmt: skip
    rows = [
        cells(
            time_text(row.time, unit) + mark(row.label), time_interval_text(row.time, unit),
            seconds_text(row.device_cold_s, unit), _rate(row), f"{len(row.sessions)} x {_samples(row)}", row.id,
            chosen and printable(row.kernel or "-"),
        )
        for row in analysis.cases
        if row.time is not None
    ]  # fmt: skip
    rate = "rate: by the device's cold clock where it has one; bytes: each input read once, the output written once"
    tables = (Table(columns, tuple(rows), legend=rate),) if rows else ()
    return Section(title="All cases", tables=tables, folded=True)


def _rate(row: CaseResult) -> str:
    compute = row.rates is not None and row.rates.flops_per_s is not None and row.flops > 4 * row.bytes
    return rate_text(row.rates, flops=compute)


def _samples(row: CaseResult) -> int:
    return min(len(samples) for samples in row.sessions.values())


TIME_COLUMNS = (
    ("device", "device"), ("regime", "data"), ("form", "form"), ("size", "n"), ("time", "wall time"),
    ("interval", "95 % interval"), ("label", "label"),
)  # fmt: skip
TIME_TITLE = "wall time of one call"
TIME_CAPTION = (
    "Wall time of one call against size, both axes logarithmic. The band is the 95 % interval; a hollow point has a "
    "label such as noisy. Where a curve of the GPU falls below that of the CPU, the GPU wins."
)


@chart("speedup", order=10)
def time_chart(analysis: Analysis, options: RenderOptions) -> Chart:
    """One line for each device and regime."""
    return Chart(
        id="time", section="speedup", title="Time against size", caption=TIME_CAPTION, columns=TIME_COLUMNS,
        rows=_time_rows(analysis, options.time_unit), spec=_time_spec(device_ids(analysis), regime_names(analysis)),
        params=size_ticks(analysis),
    )  # fmt: skip


def _time_rows(analysis: Analysis, unit: str) -> ChartRows:
    found: ChartRows = {}
    shown = charted(analysis)
    best = fastest(shown)
    for row in shown:
        if row.time is not None:
            found.setdefault(series_name(row.case), []).append(
                common(row, best)
                | {
                    "value": short(row.time.estimate), "low": short(row.time.low), "high": short(row.time.high),
                    "time": time_text(row.time, unit), "interval": time_interval_text(row.time, unit),
                }
            )  # fmt: skip
    return found


@functools.cache
def _time_spec(names: tuple[str, ...], data: tuple[str, ...]) -> ChartRow:
    import altair

    base = altair.Chart(charts.named()).encode(
        x=charts.size_axis(),
        y=charts.log_axis("value", TIME_TITLE, charts.SECONDS),
        color=charts.accent(names),
        detail="regime:N",
    )
    band = base.mark_area(opacity=0.2).encode(y=charts.log_axis("low", TIME_TITLE, charts.SECONDS), y2="high:Q")
    return charts.finished(altair.layer(band, *charts.curves(base, names, data, TIME_COLUMNS)), TIME_CAPTION)


SAMPLE_COLUMNS = (
    ("device", "device"), ("regime", "data"), ("form", "form"), ("size", "n"), ("counts", "sessions x samples"),
    ("minimum", "min"), ("q1", "lower quartile"), ("time", "run value"), ("q3", "upper quartile"),
    ("outliers", "outliers"), ("label", "label"),
)  # fmt: skip
SAMPLE_CAPTION = (
    "Each tick is one sample at the size chosen above, wall time of one call; a strip for each device and regime. The "
    "tall tick is the run value. Outliers are kept."
)
STEP = 34


@chart("speedup", order=80, samples=True)
def sample_chart(analysis: Analysis, options: RenderOptions) -> Chart:
    """Strips of one size."""
    return Chart(
        id="samples", section="speedup", title="Samples", caption=SAMPLE_CAPTION, columns=SAMPLE_COLUMNS, one_size=True,
        rows=_sample_rows(analysis, options.time_unit), spec=_sample_spec(device_ids(analysis)), bars="strip",
        step=STEP,
    )  # fmt: skip


def _sample_rows(analysis: Analysis, unit: str) -> ChartRows:
    found: ChartRows = {}
    shown = charted(analysis)
    best = fastest(shown)
    for row in shown:
        if row.time is None or row.min_s is None:
            continue
        samples = [(index, value) for index, values in sorted(row.sessions.items()) for value in values]
        data = "at home" if row.device_kind == "cpu" else data_text(row.case)
        found.setdefault(series_name(row.case), []).append(
            common(row, best)
            | {
                "strip": f"{row.case.device_id} {data}", "median": float(f"{row.time.estimate:.4g}"),
                "session": [index for index, _ in samples], "value": [float(f"{value:.4g}") for _, value in samples],
                "counts": f"{len(row.sessions)} x {min(map(len, row.sessions.values()))}",
                "minimum": format_seconds(row.min_s, unit=unit), "q1": seconds_text(row.q1_s, unit),
                "time": time_text(row.time, unit), "q3": seconds_text(row.q3_s, unit),
                "outliers": str(row.outliers),
            }
        )  # fmt: skip
    return found


@functools.cache
def _sample_spec(names: tuple[str, ...]) -> ChartRow:
    import altair

    strip = altair.Y(
        "strip:N", title=None, sort=None, axis=altair.Axis(labelLimit=170, ticks=False, grid=True),
    )  # fmt: skip
    base = altair.Chart(charts.named()).encode(y=strip, color=charts.accent(names))
    ticks = (
        base.transform_flatten(["value", "session"])
        .mark_tick(opacity=0.45, size=16)
        .encode(
            x=charts.log_axis("value", "wall time of one call", charts.SECONDS, x=True),
            tooltip=[
                altair.Tooltip("strip:N", title="case"), altair.Tooltip("session:Q"),
                altair.Tooltip("value:Q", title="seconds", format=".4~s"),
            ],
        )
    )  # fmt: skip
    middle = base.mark_tick(size=28, thickness=3).encode(x="median:Q", tooltip=charts.tooltip(SAMPLE_COLUMNS))
    return charts.finished(altair.layer(ticks, middle), SAMPLE_CAPTION)


ROWS = (Rows("cases", CaseResult, lambda analysis: analysis.cases, order=10),)
