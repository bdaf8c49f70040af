"""Anatomy, environment and the table of all cases: details below the verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.report.analysis.types import Analysis, Anatomy, CaseResult
from gpubench.report.formats._document import Cell, Column, Section, Table, cells, printable, shortened
from gpubench.report.formats._numbers import (
    mark,
    rate_text,
    seconds_text,
    share_text,
    time_interval_text,
    time_text,
)
from gpubench.report.formats._ratios import device_text, size_text
from gpubench.units import format_bytes

_PARTS = ("alloc", "upload", "launch", "kernel", "sync", "download")
_RANKS = {"alloc": 3, "launch": 2, "sync": 1}


def anatomy_section(analysis: Analysis, unit: str) -> Section:
    """Where the time of a call goes that copies both ways: the faster form of each workload and device."""
    groups: dict[tuple[str, str, str], list[tuple[CaseResult, Anatomy]]] = {}
    for speedup in analysis.speedups:
        row = speedup.case
        if speedup.kind == "headline" and row.anatomy is not None:
            key = (row.case.op, row.case.dtype, row.case.device_id)
            groups.setdefault(key, []).append((row, row.anatomy))
    tables = tuple(_anatomy_table(analysis, rows, unit) for rows in groups.values())
    lines = ("Shares of the wall time of one call that copies both ways; a negative rest is overlap.",)
    title = "Where the time goes"
    return Section(key="anatomy", title=title, lines=lines if tables else (), tables=tables, folded=True)


def _anatomy_table(analysis: Analysis, rows: Sequence[tuple[CaseResult, Anatomy]], unit: str) -> Table:
    first = rows[0][0]
    columns = (
        Column("n", right=True), Column("whole", right=True),
        *(Column(name, right=True, rank=_RANKS.get(name, 0)) for name in _PARTS), Column("rest", right=True),
    )  # fmt: skip
    body = []
    for row, parts in rows:
        shares = [share_text(getattr(parts, f"{name}_s") / parts.whole_s) for name in _PARTS]
        shares[_PARTS.index("kernel")] += "*" if parts.kernel_derived else ""
        rest = Cell(share_text(parts.residual_share), "bad" if parts.mismatch else "plain")
        body.append(cells(size_text(row), seconds_text(parts.whole_s, unit), *shares, rest))
    derived = any(parts.kernel_derived for _, parts in rows)
    return Table(
        columns, tuple(body),
        title=f"{first.case.op} {first.case.dtype} on {device_text(analysis, first.case.device_id)}",
        legend="* derived: single launch - launch - sync, the device has no clock" if derived else "",
    )  # fmt: skip


def environment_section(analysis: Analysis) -> Section:
    """What was measured with: versions, devices, settings, recorded variables."""
    run = analysis.run
    tools = ", ".join(f"{name} {version}" for name, version in sorted(run.tool.items()))
    settings = run.settings
    lines = [f"Software: {printable(tools)}"] if tools else []
    lines.append(
        f"Protocol: {settings.min_samples} to {settings.max_samples} samples a session, precision "
        f"{share_text(settings.precision)}, order {settings.order}, inputs {settings.inputs}, "
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
    """Every case with its interval."""
    columns = (
        Column("wall", right=True), Column("95 % interval", right=True), Column("device cold", right=True, rank=2),
        Column("rate", right=True, rank=3), Column("k x n", right=True, rank=1), Column("case"),
    )  # fmt: skip
    rows = [
        cells(
            time_text(row.time, unit) + mark(row.label), time_interval_text(row.time, unit),
            seconds_text(row.device_cold_s, unit), _rate(row), f"{len(row.sessions)} x {_samples(row)}", row.id,
        )
        for row in analysis.cases
        if row.time is not None
    ]  # fmt: skip
    tables = (Table(columns, tuple(rows)),) if rows else ()
    return Section(key="raw", title="All cases", tables=tables, folded=True)


def _rate(row: CaseResult) -> str:
    compute = row.rates is not None and row.rates.flops_per_s is not None and row.flops > 4 * row.bytes
    return rate_text(row.rates, flops=compute)


def _samples(row: CaseResult) -> int:
    return min(len(samples) for samples in row.sessions.values())
