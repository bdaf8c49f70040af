"""The hybrid section: where splitting an op over CPU and GPU pays, where it loses and why."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.model.case import Case
from gpubench.report.analysis.types import Analysis, Hybrid, HybridReason
from gpubench.report.formats._document import Cell, Column, Section, Table, cells, printable
from gpubench.report.formats._names import data_text, devices_text, regime_order, size_text
from gpubench.report.formats._numbers import mark, ratio_text, share_text, time_text

TITLE = "Hybrid: one op split over CPU and GPU"
_MEANING = (
    "gain: time of the better of the two alone / time of the split; ideal: what the model promises, both rates added "
    "up; of model: modelled time / measured time at this share."
)
_IN_SAMPLE = (
    "* from the session that chose the share, which flatters; with more --sessions others estimate the gain."
)
REASONS: dict[HybridReason, str] = {
    "gpu-dominates": "the CPU is too slow to help",
    "cpu-dominates": "the GPU is too slow to help",
    "transfer-bound": "the GPU's share of the data takes too long to travel",
    "overhead-bound": "splitting and waiting cost more than they save",
    "shared-bandwidth": "both sides wait for the same memory",
    "cpu-starved": "driving the GPU takes the CPU's cores",
    "noise": "the times differ too much",
    "selected-in-sample": "one session only",
    "throttled": "the device was throttled",
    "software": "the adapter is the CPU itself",
}


def hybrid_section(analysis: Analysis, unit: str, *, full: bool) -> Section:
    """A table per dtype and device; `full`: with the time of the split, and the ideal gain."""
    groups: dict[tuple[str, str], list[Hybrid]] = {}
    for row in analysis.hybrid:
        groups.setdefault((row.case.case.dtype, row.device_id), []).append(row)
    if not groups:
        return Section(key="hybrid", title=TITLE)
    known = {data_text(row.case.case): row.case.case for row in sorted(analysis.hybrid, key=_regime)}
    lines = [f"{'; '.join(_where(case) for case in known.values())}.", _MEANING]
    lines += [_IN_SAMPLE] if any(row.in_sample for row in analysis.hybrid) else []
    tables = [
        _table(analysis, dtype, device_id, rows, unit, full=full) for (dtype, device_id), rows in groups.items()
    ]
    return Section(key="hybrid", title=TITLE, lines=tuple(lines), tables=tuple(tables))


def _table(
    analysis: Analysis, dtype: str, device_id: str, rows: Sequence[Hybrid], unit: str, *, full: bool
) -> Table:
    columns = (
        Column("op"), Column("n", right=True), Column("data"), Column("on GPU", right=True),
        *([Column("time", right=True)] if full else []), Column("gain", right=True),
        Column("ideal", right=True, rank=2), Column("of model", right=True, rank=1), Column("verdict"),
    )  # fmt: skip
    body = []
    before: tuple[str, str] = ("", "")
    for row in rows:
        head = (row.case.case.op, size_text(row.case))
        shown = head if full else (head[0] if head[0] != before[0] else "", head[1] if head != before else "")
        before = head
        body.append(
            cells(
                *shown, data_text(row.case.case), share_text(row.fraction),
                *([time_text(row.case.time, unit) + mark(row.case.label)] if full else []),
                ratio_text(row.gain) + ("*" if row.in_sample else ""), f"{row.ideal:.2f}x",
                share_text(row.efficiency), _verdict(row),
            )
        )  # fmt: skip
    told = {row.reason: REASONS[row.reason] for row in rows if row.reason is not None}
    legend = "; ".join(f"{code}: {words}" for code, words in told.items())
    title = printable(f"{dtype} on {devices_text(analysis, [device_id])}")
    return Table(columns, tuple(body), title=title, legend=legend)


def _regime(row: Hybrid) -> tuple[int, int]:
    return regime_order(row.case.case)


def _where(case: Case) -> str:
    if case.regime == "resident":
        return "resident: each side has its part of the data"
    return f"{data_text(case)}: the GPU's part of the data is copied " + (
        "both ways by every call" if case.regime == "transfer-always" else f"once for {case.calls} calls"
    )


def _verdict(row: Hybrid) -> Cell:
    if row.reason is None:
        return Cell("pays", "good")
    return Cell(row.reason, "muted" if row.reason in ("noise", "selected-in-sample", "software") else "bad")
