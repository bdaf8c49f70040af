"""Placed workloads: where each stage runs, what that was predicted to take, and what it takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.placement import Placement, PlacementReason, placements
from gpubench.base.plugins.sections import Rows, section
from gpubench.base.table import Cell, Table, cells, heads, number
from gpubench.report.layout import CsvValue, RenderOptions, Section
from gpubench.report.wording import (
    data_text,
    devices_text,
    ratio_text,
    seconds_text,
    series_name,
    share_text,
    situation_text,
    size_text,
)

TITLE = "Hybrid: the stages of a workload on CPU and GPU"
_MEANING = (
    "Each stage as it runs in the chain of one side alone; share: of the predicted time. Gain: time of the better side "
    "alone / time of the placement, with the result on the host."
)
_IN_SAMPLE = (
    "* from the session that chose the placement, which flatters; with more --sessions others estimate it."
)
_MISMATCH = "! measured and predicted differ by more than 25 %"
REASONS: dict[PlacementReason, str] = {
    "one-side-dominates": "no mixture would win, even if copies took no time",
    "transfer-bound": "copies between the sides take what a mixture saves",
    "overhead-bound": "changing sides costs more than was predicted",
    "noise": "the times differ too much",
    "selected-in-sample": "one session only",
    "throttled": "the device was throttled",
    "software": "the adapter is the CPU itself",
}
COPIES, WHOLE = "copies, launches", "whole"


@section("hybrid", order=95)
def placement_section(analysis: Analysis, options: RenderOptions) -> Section:
    """Draw a table for each workload, size, regime and device: for a terminal at the largest size of each."""
    rows = list(placements(analysis))
    shown = rows
    if not options.every_size:
        largest: dict[str, int] = {}
        for row in rows:
            name = series_name(row.case.case)
            largest[name] = max(row.n, largest.get(name, 0))
        shown = [row for row in rows if largest[series_name(row.case.case)] == row.n]
    lines = [_MEANING] if rows else []
    lines += [_IN_SAMPLE] if any(row.selected_in_sample for row in shown) else []
    if len(shown) < len(rows):
        lines.append("The largest size of each workload; all sizes: --sections hybrid.")
    tables = tuple(_table(analysis, row, options.time_unit) for row in shown)
    return Section(title=TITLE, lines=tuple(lines), tables=tables)


def placement_sentences(rows: Sequence[Placement]) -> tuple[str, ...]:
    """One for each workload and dtype that is worth placing: where the gain is largest."""
    best: dict[tuple[str, str], Placement] = {}
    for row in rows:
        key = (row.op, row.dtype)
        if row.recommended and (key not in best or row.gain > best[key].gain):
            best[key] = row
    return tuple(_sentence(row) for row in best.values())


def _sentence(row: Placement) -> str:
    case = row.case.case
    on_gpu = [one.stage for one in row.stages if one.placed_on == "gpu"]
    what = ", ".join(on_gpu) or "some stages"
    data = "input on both, result on the host" if case.resident else situation_text(case.regime_id)
    where = f"n = {row.n}, {data}, {what} on {case.shared_with}"
    return (
        f"{row.op} {row.dtype}: with its stages on CPU and GPU it is {row.gain:.2f}x as fast as on the better of the "
        f"two ({where})."
    )


def _table(analysis: Analysis, row: Placement, unit: str) -> Table:
    columns = heads(
        "stage", number("CPU"), number("GPU"), "placed on",
        number("share"),
    )  # fmt: skip
    body = [
        cells(
            one.stage, seconds_text(one.cpu_s, unit), seconds_text(one.gpu_s, unit), one.placed_on,
            share_text(one.share),
        )
        for one in row.stages
    ]  # fmt: skip
    if row.copies_s is not None and row.predicted_s:
        body.append(
            cells(
                COPIES, "-", "-", seconds_text(row.copies_s, unit), share_text(row.copies_s / row.predicted_s)
            )
        )
    body.append(
        cells(
            WHOLE,
            seconds_text(row.cpu_only_s, unit),
            seconds_text(row.gpu_only_s, unit),
            _measured(row, unit),
            "",
        )
    )
    return Table(
        columns, tuple(body), legend=_legend(row, unit),
        title=f"{series_name(row.case.case)}, n {size_text(row.case).partition(' ')[0]}, {data_text(row.case.case)}",
        note=devices_text(analysis, [row.device_id]),
    )  # fmt: skip


def _measured(row: Placement, unit: str) -> Cell:
    text = seconds_text(row.measured_s, unit)
    return Cell(f"{text}!", "bad") if row.mismatch else Cell(text, "good" if row.recommended else "plain")


def _legend(row: Placement, unit: str) -> str:
    predicted = "" if row.predicted_s is None else f"predicted {seconds_text(row.predicted_s, unit)}, "
    flattered = "*" if row.selected_in_sample else ""
    found = (
        f"cpu-only {seconds_text(row.cpu_only_s, unit)}, gpu-only {seconds_text(row.gpu_only_s, unit)}, {predicted}"
        f"measured {seconds_text(row.measured_s, unit)}, gain {ratio_text(row.interval)}{flattered}: {verdict(row)}"
    )
    return f"{found}; {_MISMATCH}" if row.mismatch else found


def verdict(row: Placement) -> str:
    """`pays`, or which side wins and why."""
    if row.reason is None:
        return "the placement pays"
    words = f"{row.reason}, {REASONS[row.reason]}"
    # A gain that one session tells, or that noise hides, is no win of a side.
    wins = row.reason in ("one-side-dominates", "transfer-bound", "overhead-bound", "software") or row.gain < 1
    return f"{row.better}-only wins ({words})" if wins else words


def _csv_stages(row: Placement) -> Iterable[Mapping[str, CsvValue]]:
    """Yield the stages; `predicted_s` is what each was predicted to take."""
    for stage in row.stages if row.predicted_s is not None else ():
        share = {"predicted_s": stage.share * (row.predicted_s or 0.0)}
        yield {"stage": stage.stage, "placed_on": stage.placed_on, **share}


ROWS = (
    Rows(
        "placements",
        Placement,
        placements,
        order=140,
        parts=_csv_stages,
        csv={"placed_on": "placement", "predicted_s": "predicted_s"},
    ),
)
