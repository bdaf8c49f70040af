"""The section of splits: whether splitting an op over CPU and GPU pays, and if not, why."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.answer import AnswerRow
from gpubench.analysis.hybrid import Hybrid, HybridReason, SharedCall, hybrids
from gpubench.analysis.thresholds import size_unit_of
from gpubench.base import at_largest, group_by
from gpubench.base.plugins.sections import Rows, chart, section
from gpubench.base.streams import printable
from gpubench.base.table import Cell, Column, Table, cells, heads, mark_repeats, number
from gpubench.report import charts
from gpubench.report.charts import Chart, ChartRow, short
from gpubench.report.layout import RenderOptions, Section
from gpubench.report.sections.answer_text import named_size_text
from gpubench.report.wording import (
    data_text,
    devices_text,
    mark,
    ratio_text,
    regime_order,
    seconds_text,
    series_name,
    share_text,
    situation_text,
    size_text,
    time_text,
)
from gpubench.result.case import Case

TITLE = "Hybrid: one op split over CPU and GPU"
_MEANING = (
    "gain: time of the better of the two alone / time of the split; ideal: what the model promises, both rates added "
    "up; of model: modelled time / measured time at this share."
)
_IN_SAMPLE = (
    "* from the session that chose the share, which flatters; with more --sessions others estimate the gain."
)
_PIECES = (
    "pieces: the GPU's part moves in so many, whose copies overlap with the kernels of others; the GPU alone is timed "
    "in pieces, too, and the faster way counts."
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


@section("hybrid", order=90, help="Where splitting an op, or assigning stages, on both sides pays")
def hybrid_section(analysis: Analysis, options: RenderOptions) -> Section | None:
    """Return the section with a row for each split: its time, its gain and the ideal gain. Returns None if no
    split was measured."""
    rows, unit = hybrids(analysis), options.time_unit
    if not rows:
        return None
    examples = {
        data_text(split.case.case): split.case.case
        for split in sorted(rows, key=lambda split: regime_order(split.case.case))
    }
    lines = [f"{'; '.join(_where(case) for case in examples.values())}.", _MEANING]
    lines += ["The caller's arrays are page-locked."] if analysis.run.settings.page_locked is True else []
    in_pieces = any(split.gpu_pieces > 1 for split in rows)
    lines += [_PIECES] if in_pieces else []
    lines += [_IN_SAMPLE] if any(split.selected_in_sample for split in rows) else []
    devices = list(dict.fromkeys(split.device_id for split in rows))
    several = len(devices) > 1
    columns = heads(
        "op", Column("dtype", rank=3), number("n"), several and "device", "data", number("on GPU"),
        in_pieces and number("pieces", 2), number("time", 4),
        number("gain"), number("ideal", 2), number("of model", 1), "verdict",
    )  # fmt: skip
    body = [
        cells(
            split.case.case.op, split.dtype, size_text(split.case), several and split.device_id,
            data_text(split.case.case),
            share_text(split.gpu_share), in_pieces and str(split.gpu_pieces),
            time_text(split.case.time, unit) + mark(split.case.label),
            ratio_text(split.interval) + ("*" if split.selected_in_sample else ""), f"{split.ideal_gain:.2f}x",
            share_text(split.efficiency), _verdict(split),
        )
        for split in rows
    ]  # fmt: skip
    reasons = {split.reason: REASONS[split.reason] for split in rows if split.reason is not None}
    table = Table(
        columns, mark_repeats(body, 3 + several),
        legend="; ".join(f"{code}: {words}" for code, words in reasons.items()),
        note=printable(devices_text(analysis, devices)),
    )  # fmt: skip
    return Section(title=TITLE, lines=tuple(lines), tables=(table,))


def _where(case: Case) -> str:
    if case.resident:
        return f"{data_text(case)}: each side has its part of the data"
    return f"{data_text(case)}: the GPU's part of the data is copied " + (
        "both ways by every call" if case.regime == "transfer-always" else f"once for {case.calls} calls"
    )


def _verdict(split: Hybrid) -> Cell:
    if split.reason is None:
        return Cell("pays", "good")
    return Cell(split.reason, "muted" if split.reason in ("noise", "selected-in-sample", "software") else "bad")


def shared_sentences(calls: Sequence[SharedCall]) -> tuple[str, ...]:
    """Return a sentence for each op and dtype: its recommended split or stage assignment with the largest gain.
    Ops without a recommended one are left out."""
    groups = group_by((call for call in calls if call.recommended), lambda call: (call.op, call.dtype))
    return tuple(_sentence(max(calls, key=lambda call: call.gain)) for calls in groups.values())


def shared_clause(calls: Sequence[SharedCall], entries: Sequence[AnswerRow], regimes: Sequence[str]) -> str:
    """Return the end of the answer's first sentence: the recommended split or stage assignment with the largest
    gain. Returns an empty text if none is recommended. The sentence already names the op of `entries` and the
    situation of `regimes`, so the end does not repeat them."""
    best = max((call for call in calls if call.recommended), key=lambda call: call.gain, default=None)
    if best is None:
        return ""
    sizes = {gain.n for entry in entries for cell in entry.cells.values() for gain in cell.gains}
    size = "" if sizes == {best.n} else f" at {named_size_text(best.n, size_unit_of(best.case.case))}"
    data = "" if [best.regime] == list(regimes) else f", {situation_text(best.regime)},"
    op = "it" if [entry.op for entry in entries] == [best.op] else best.op
    return f"{_how(best)}{size}{data} {op} is {best.gain:.2f}x as fast as the better of the two"


def _how(call: SharedCall) -> str:
    return "split over CPU and GPU" if call.assignment is None else "with its stages on CPU and GPU"


def _sentence(call: SharedCall) -> str:
    case = call.case.case
    data = situation_text(case.regime_id)
    part = share_text(call.gpu_share) if call.gpu_share is not None else ", ".join(call.on_gpu) or "some stages"
    if call.assignment is not None:
        data = "input on both, result on the host" if case.resident else data
    return (
        f"{call.op} {call.dtype}: {_how(call)} it is {call.gain:.2f}x as fast as on the better of the two "
        f"(n = {call.n}, {data}, {part} on {case.shared_with})."
    )


COLUMNS = (
    ("device", "device"), ("regime", "data"), ("implementation", "implementation"), ("size", "n"),
    ("share", "on the GPU"), ("time", "wall time"), ("gain", "gain over the better side alone"),
)  # fmt: skip
CAPTION = (
    "Wall time of one call against the share of the work on the GPU, at the largest size: 0 % is the CPU alone, "
    "100 % the GPU alone. The diamond is the share that was chosen; the dashed line is the better of the two alone."
)


@chart("hybrid", order=50)
def hybrid_chart(analysis: Analysis, options: RenderOptions) -> Chart:
    """Return the chart of the time over the GPU's share at the largest size, with a line for each device and
    regime."""
    sweeps = [split for split in hybrids(analysis) if split.curve]
    shown = at_largest(sweeps, lambda split: series_name(split.case.case), lambda split: split.case.case.n)
    rows = charts.by_series(
        (split.case.case, _point(split, share, seconds, options.time_unit))
        for split in shown
        for share, seconds in split.curve
    )
    marks = charts.by_series(
        (split.case.case, _mark(split, time.estimate)) for split in shown if (time := split.case.time)
    )
    share = charts.quantity(
        "x", title="share of the work on the GPU", scale={"domain": [0, 1]},
        axis={"format": "%", "tickCount": 5, "grid": False},
    )  # fmt: skip
    title = "wall time of one call"
    base = {"x": share, "y": charts.log_axis("value", title, charts.SECONDS)}
    places = {
        "color": charts.accent(analysis),
        "tooltip": charts.tooltip((("device", "device"), ("regime", "data"), ("text", "split"))),
    }
    level = places | {"y": charts.log_axis("better", title, charts.SECONDS)}
    better = charts.layer("rule", level, charts.MARKS, strokeDash=[6, 4], strokeWidth=1.5)
    diamond = charts.layer("point", places | base, charts.MARKS, **charts.DIAMOND)
    curves = charts.curves(analysis, base, COLUMNS)
    return Chart(
        id="hybrid", title="Split over CPU and GPU", caption=CAPTION, rows=rows, marks=marks,
        spec=charts.make_spec(CAPTION, better, *curves, diamond),
    )  # fmt: skip


def _point(split: Hybrid, share: float, seconds: float, unit: str) -> ChartRow:
    chosen = abs(share - split.gpu_share) < 1e-9
    return charts.case_fields(split.case) | {
        "x": short(share), "value": short(seconds), "share": share_text(share),
        "time": seconds_text(seconds, unit), "gain": ratio_text(split.interval) if chosen else "",
    }  # fmt: skip


def _mark(split: Hybrid, seconds: float) -> ChartRow:
    """Return the chart's data row for the chosen share, at which the split takes `seconds`."""
    why = "worth it" if split.reason is None else f"not recommended: {split.reason}"
    return charts.case_fields(split.case) | {
        "device": printable(split.device_id), "x": short(split.gpu_share), "value": short(seconds),
        "better": short(seconds * split.gain),  # the time of the better side alone
        "text": f"{share_text(split.gpu_share)} on the GPU: {ratio_text(split.interval)}, {why}",
    }  # fmt: skip


ROWS = (Rows("hybrid", Hybrid, hybrids, order=130),)
