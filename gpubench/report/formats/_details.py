"""Environment and the table of all cases: details below the verdicts."""

from __future__ import annotations

from gpubench.report.analysis.types import Analysis, CaseResult
from gpubench.report.formats._document import Column, Section, Table, cells, printable, shortened
from gpubench.report.formats._numbers import (
    mark,
    rate_text,
    seconds_text,
    share_text,
    time_interval_text,
    time_text,
)
from gpubench.units import format_bytes


def environment_section(analysis: Analysis) -> Section:
    """What was measured with: versions, devices, settings, recorded variables."""
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
    columns = (
        Column("device"), Column("kind"), Column("name"), Column("api", rank=1), Column("memory", right=True),
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
    return Section(key="environment", title="Environment", lines=tuple(lines), tables=tables, folded=True)


def raw_section(analysis: Analysis, unit: str) -> Section:
    """Every case with its interval, and the kernel that its device took where it had a choice."""
    chosen = any(row.kernel for row in analysis.cases)
    columns = (
        Column("wall", right=True), Column("95 % interval", right=True), Column("device cold", right=True, rank=2),
        Column("rate", right=True, rank=3), Column("sessions x samples", right=True, rank=1), Column("case"),
        *([Column("kernel", rank=4)] if chosen else []),
    )  # fmt: skip
    rows = [
        cells(
            time_text(row.time, unit) + mark(row.label), time_interval_text(row.time, unit),
            seconds_text(row.device_cold_s, unit), _rate(row), f"{len(row.sessions)} x {_samples(row)}", row.id,
            *([printable(row.kernel or "-")] if chosen else []),
        )
        for row in analysis.cases
        if row.time is not None
    ]  # fmt: skip
    rate = "rate: by the device's cold clock where it has one; bytes: each input read once, the output written once"
    tables = (Table(columns, tuple(rows), legend=rate),) if rows else ()
    return Section(key="raw", title="All cases", tables=tables, folded=True)


def _rate(row: CaseResult) -> str:
    compute = row.rates is not None and row.rates.flops_per_s is not None and row.flops > 4 * row.bytes
    return rate_text(row.rates, flops=compute)


def _samples(row: CaseResult) -> int:
    return min(len(samples) for samples in row.sessions.values())
