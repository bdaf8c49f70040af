"""The cases themselves: all numbers of each, the chart of their times; and where they ran."""

from __future__ import annotations

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.estimate import CaseResult
from gpubench.base.plugins.sections import Rows, chart, section
from gpubench.base.streams import printable, shorten
from gpubench.base.table import Column, Table, cells, heads, number
from gpubench.base.units import format_bytes
from gpubench.report.charts import (
    SECONDS,
    Chart,
    banded_curves,
    by_series,
    case_fields,
    chart_cases,
    make_spec,
    short,
)
from gpubench.report.layout import RenderOptions, Section
from gpubench.report.wording import (
    mark,
    rate_text,
    seconds_text,
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
        f"{'arrays page-locked, ' if run.page_locked else ''}"
        f"seed {settings.seed}"
    )
    lines += [printable(f"{name}={value}") for name, value in sorted(run.environment.variables.items())]
    columns = heads(
        "device", "kind", "name", Column("api", rank=1), number("memory"),
        Column("driver", rank=2),
    )  # fmt: skip
    rows = [
        cells(
            device.id, device.kind, shorten(device.name, 30), device.api,
            format_bytes(device.memory_bytes) if device.memory_bytes else "-", shorten(device.driver or "-", 20),
        )
        for device in run.devices
    ]  # fmt: skip
    tables = (Table(columns, tuple(rows)),) if rows else ()
    return Section(title="Environment", lines=tuple(lines), tables=tables, folded=True)


@section("raw", order=200, usual=False, help="Every case with its id")
def raw_section(analysis: Analysis, options: RenderOptions) -> Section:
    """Draw every case with its interval, and the kernel that its device took where it had a choice."""
    unit = options.time_unit
    chosen = any(result.kernel for result in analysis.cases)
    columns = heads(
        number("wall"), number("95 % interval"), number("device cold", 2),
        number("rate", 3), number("sessions x samples", 1), "case",
        chosen and Column("kernel", rank=4),
    )  # fmt: skip
    rows = [
        cells(
            time_text(result.time, unit) + mark(result.label), time_interval_text(result.time, unit),
            seconds_text(result.device_cold_s, unit), _rate(result), f"{len(result.sessions)} x {_samples(result)}",
            result.id,
            chosen and printable(result.kernel or "-"),
        )
        for result in analysis.cases
        if result.time is not None
    ]  # fmt: skip
    rate = "rate: by the device's cold clock where it has one; bytes: each input read once, the output written once"
    tables = (Table(columns, tuple(rows), legend=rate),) if rows else ()
    return Section(title="All cases", tables=tables, folded=True)


def _rate(result: CaseResult) -> str:
    compute = (
        result.rates is not None and result.rates.flops_per_s is not None and result.flops > 4 * result.bytes
    )
    return rate_text(result.rates, flops=compute)


def _samples(result: CaseResult) -> int:
    return min(len(samples) for samples in result.sessions.values())


COLUMNS = (
    ("who", "device"), ("regime", "data"), ("implementation", "implementation"), ("size", "n"), ("time", "wall time"),
    ("interval", "95 % interval"), ("label", "label"),
)  # fmt: skip
CAPTION = (
    "Wall time of one call against size, both axes logarithmic. The band is the 95 % interval; a hollow point has a "
    "label such as noisy. Where a curve of the GPU falls below that of the CPU, the GPU wins."
)


@chart("speedup", order=10)
def time_chart(analysis: Analysis, options: RenderOptions) -> Chart:
    """Draw one line for each device and regime."""
    import altair

    unit = options.time_unit
    rows = by_series(
        (
            result.case,
            case_fields(result)
            | {
                "value": short(result.time.estimate), "low": short(result.time.low), "high": short(result.time.high),
                "time": time_text(result.time, unit), "interval": time_interval_text(result.time, unit),
            },
        )
        for result in chart_cases(analysis)
        if result.time is not None
    )  # fmt: skip
    curves = banded_curves(analysis, "wall time of one call", SECONDS, COLUMNS)
    spec = make_spec(altair.layer(*curves), CAPTION)
    return Chart(id="time", title="Time against size", caption=CAPTION, rows=rows, spec=spec)


ROWS = (Rows("cases", CaseResult, lambda analysis: analysis.cases, order=10),)
