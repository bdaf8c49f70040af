"""Scaling: what several GPUs gain over one, and from which size on."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.analysis import thresholds
from gpubench.analysis.analyse import Analysis
from gpubench.analysis.thresholds import Extent, extent
from gpubench.base.escaping import printable
from gpubench.base.plugins.sections import Rows, section
from gpubench.base.table import Cell, Column, Table, cells, heads, number
from gpubench.base.units import format_size
from gpubench.curves.stats import Interval
from gpubench.multi.analysis.scaling import GangFrom, Strong, scaling
from gpubench.multi.analysis.together import Weak
from gpubench.multi.analysis.twins import TwinCheck, twin_checks
from gpubench.report.layout import RenderOptions, Section
from gpubench.report.wording import (
    ALWAYS,
    data_text,
    device_text,
    interval_text,
    legend,
    mark,
    ratio_text,
    seconds_text,
    series_name,
    size_text,
    time_text,
    where_legend,
    with_text,
)
from gpubench.result.case import WAITED

TITLE = "Scaling"
_WEAK = (
    "At once: the sum of what all GPUs do at the same time / of what each does alone, in the first and in the last "
    "3 s. The first tells what they share (links, host memory), the last also heat and power. keeps least: the GPU "
    "that keeps the least share of its own rate; its state: clock early and late, power, link, reasons for a lowered "
    "clock."
)
_STRONG = (
    "speedup = time of the best single GPU / time of the gang, on the same data; efficiency = speedup / GPUs. balance: "
    "the fastest rank's time for its share / the slowest's. host-limited: launching takes most of the time."
)


@section("scaling", order=130, help="What several GPUs gain over one")
def scaling_section(analysis: Analysis, options: RenderOptions) -> Section:
    unit, gains = options.time_unit, scaling(analysis)
    strong, weak = gains.strong, gains.weak
    gangs = dict.fromkeys(row.device_id for row in strong)
    tables = tuple(_strong(analysis, [row for row in strong if row.device_id == gang], unit) for gang in gangs)
    shown = [row for row in gains.pays_from if row.regime in (WAITED, ALWAYS)]
    cases = {row.op: row.row.case for row in strong}
    texts = [pays_text(row, extent(cases[row.op])) for row in shown or gains.pays_from]
    lines = (_STRONG, *texts) if strong else ()
    if weak:
        lines, tables = (_WEAK, *lines), (_weak(weak, unit), *tables)
    return Section(title=TITLE, lines=lines, tables=tables, folded=True)


def _weak(rows: Sequence[Weak], unit: str) -> Table:
    columns = heads(
        "op", number("n"), "form", number("GPUs"), number("alone"),
        number("first 3 s"), number("last 3 s"), "keeps least",
        Column("its state", rank=1),
    )  # fmt: skip
    missing = {id: None for row in rows for id in row.failed}
    return Table(
        columns, tuple(_weak_cells(row, unit) for row in rows), title="All GPUs at once",
        note=f"Without {', '.join(missing)}, which failed." if missing else "",
    )  # fmt: skip


def _weak_cells(row: Weak, unit: str) -> tuple[Cell, ...]:
    return cells(
        series_name(row.case), format_size(row.n, table=True), row.form, str(row.gpus), seconds_text(row.alone_s, unit),
        f"{row.early:.3f} {interval_text(row.early_interval)}", f"{row.late:.3f} {interval_text(row.late_interval)}",
        f"{row.least_id} {row.least_share:.3f}", _state_text(row),
    )  # fmt: skip


def _state_text(row: Weak) -> str:
    """`1.98 -> 1.76 GHz, 690 W, PCIe 5 x16, sw_power_cap`: of the GPU that keeps least, the clock early and late."""
    early, late = (
        next((one for one in row.conditions if (one.device_id, one.part) == (row.least_id, part)), None)
        for part in ("early", "late")
    )
    if late is None:
        return ""
    clocks = [f"{one.clock_hz / 1e9:.2f}" for one in (early, late) if one is not None and one.clock_hz]
    parts = [
        f"{' -> '.join(dict.fromkeys(clocks))} GHz" if clocks else "",
        f"{late.power_w:.0f} W" if late.power_w else "",
        f"PCIe {late.pcie_generation} x{late.pcie_width}" if late.pcie_generation else "",
        *late.throttle,
    ]
    return printable(", ".join(part for part in parts if part))


def pays_text(row: GangFrom, counted: Extent) -> str:
    """`matmul float32 with data on the GPU: 2 GPUs beat one from 700² (512-1024²), measured up to 4096²`."""
    what = " ".join((row.op, row.dtype, *(f"{name}={value}" for name, value in row.params.items())))
    last = thresholds.size_text(row.last, counted)
    between = thresholds.range_text(row.lo or 0, row.hi or 0, counted)
    how = {
        "at": f"beat one from {thresholds.size_text(round(row.n or 0), counted)} ({between}), measured up to {last}",
        "all-sizes": f"beat one at every size measured, from {thresholds.size_text(row.first, counted)} to {last}",
        "no-size": f"do not beat one at the largest size measured, {last}",
    }[row.verdict]
    return printable(f"{what} {with_text(row.regime)}: {row.ranks} GPUs {how} ({row.device_id})")


def _strong(analysis: Analysis, rows: Sequence[Strong], unit: str) -> Table:
    columns = heads(
        "op", number("n"), "data", number("one GPU"),
        number("gang"), number("speedup"), number("efficiency"),
        number("balance", 1), Column("note", rank=1),
    )  # fmt: skip
    shown = [row.row.case for row in rows]
    return Table(
        columns, tuple(_cells(row, unit) for row in rows), title=device_text(analysis, rows[0].device_id),
        note=where_legend(shown), legend=legend({row.row.label for row in rows}),
    )  # fmt: skip


def _cells(row: Strong, unit: str) -> tuple[Cell, ...]:
    share = Interval(row.efficiency_lo, row.efficiency, row.efficiency_hi, row.interval.kind)
    return cells(
        series_name(row.row.case), size_text(row.row), data_text(row.row.case), time_text(row.single.time, unit),
        time_text(row.row.time, unit) + mark(row.row.label), ratio_text(row.interval),
        f"{row.efficiency:.2f} {interval_text(share)}",
        "" if row.balance is None else f"{row.balance:.2f}", "host-limited" if row.host_limited else "",
    )  # fmt: skip


ROWS = (
    Rows("scaling.weak", Weak, lambda analysis: scaling(analysis).weak, order=80),
    # In CSV the speedup of a gang is over the best single GPU.
    Rows(
        "scaling.strong",
        Strong,
        lambda analysis: scaling(analysis).strong,
        order=90,
        csv={"speedup_lo": "lo", "speedup_hi": "hi"}
        | {
            name: name
            for name in ("speedup", "baseline_id", "efficiency", "efficiency_lo", "efficiency_hi", "balance")
        },
    ),
    Rows("scaling.pays_from", GangFrom, lambda analysis: scaling(analysis).pays_from, order=100),
    Rows("twins", TwinCheck, twin_checks, order=160),
)
