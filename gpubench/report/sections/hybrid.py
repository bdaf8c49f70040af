"""The hybrid section: where splitting an op over CPU and GPU pays, where it loses and why."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.hybrid import Hybrid, HybridReason, SharedCall, hybrids
from gpubench.base.escaping import printable
from gpubench.base.groups import group_by
from gpubench.base.plugins.sections import Rows, chart, section
from gpubench.base.table import Cell, Table, cells, heads, number
from gpubench.report import charts
from gpubench.report.charts import (
    MARKS,
    Chart,
    ChartRow,
    ChartRows,
    charted,
    common,
    device_ids,
    fastest,
    regime_names,
    short,
)
from gpubench.report.layout import RenderOptions, Section
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


@section("hybrid", order=90, help="Where splitting an op, or placing stages, on both sides pays")
def hybrid_section(analysis: Analysis, options: RenderOptions) -> Section | None:
    """Draw a table per dtype and device; in full with the time of the split, and the ideal gain."""
    groups = group_by(hybrids(analysis), lambda row: (row.dtype, row.device_id))
    if not groups:
        return None
    known = {data_text(row.case.case): row.case.case for row in sorted(hybrids(analysis), key=_regime)}
    lines = [f"{'; '.join(_where(case) for case in known.values())}.", _MEANING]
    lines += [_IN_SAMPLE] if any(row.selected_in_sample for row in hybrids(analysis)) else []
    tables = [
        _table(analysis, dtype, device_id, rows, options.time_unit, full=options.full)
        for (dtype, device_id), rows in groups.items()
    ]
    return Section(title=TITLE, lines=tuple(lines), tables=tuple(tables))


def shared_sentences(calls: Sequence[SharedCall]) -> tuple[str, ...]:
    """Return a sentence for each op and dtype that is worth splitting or placing: where the gain is largest."""
    best: dict[tuple[str, str], SharedCall] = {}
    for call in calls:
        key = (call.op, call.dtype)
        if call.recommended and (key not in best or call.gain > best[key].gain):
            best[key] = call
    return tuple(_sentence(call) for call in best.values())


def _sentence(call: SharedCall) -> str:
    case = call.case.case
    how, data = "split over CPU and GPU", situation_text(case.regime_id)
    part = share_text(call.fraction) if call.fraction is not None else ", ".join(call.on_gpu) or "some stages"
    if call.placement is not None:
        how = "with its stages on CPU and GPU"
        data = "input on both, result on the host" if case.resident else data
    return (
        f"{call.op} {call.dtype}: {how} it is {call.gain:.2f}x as fast as on the better of the two "
        f"(n = {call.n}, {data}, {part} on {case.shared_with})."
    )


def _table(
    analysis: Analysis, dtype: str, device_id: str, rows: Sequence[Hybrid], unit: str, *, full: bool
) -> Table:
    columns = heads(
        "op", number("n"), "data", number("on GPU"),
        full and number("time"), number("gain"),
        number("ideal", 2), number("of model", 1), "verdict",
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
                full and time_text(row.case.time, unit) + mark(row.case.label),
                ratio_text(row.interval) + ("*" if row.selected_in_sample else ""), f"{row.ideal_gain:.2f}x",
                share_text(row.efficiency), _verdict(row),
            )
        )  # fmt: skip
    reasons = {row.reason: REASONS[row.reason] for row in rows if row.reason is not None}
    legend = "; ".join(f"{code}: {words}" for code, words in reasons.items())
    title = printable(f"{dtype} on {devices_text(analysis, [device_id])}")
    return Table(columns, tuple(body), title=title, legend=legend)


def _regime(row: Hybrid) -> tuple[int, int]:
    return regime_order(row.case.case)


def _where(case: Case) -> str:
    if case.resident:
        return f"{data_text(case)}: each side has its part of the data"
    return f"{data_text(case)}: the GPU's part of the data is copied " + (
        "both ways by every call" if case.regime == "transfer-always" else f"once for {case.calls} calls"
    )


def _verdict(row: Hybrid) -> Cell:
    if row.reason is None:
        return Cell("pays", "good")
    return Cell(row.reason, "muted" if row.reason in ("noise", "selected-in-sample", "software") else "bad")


COLUMNS = (
    ("device", "device"), ("regime", "data"), ("form", "form"), ("size", "n"), ("share", "on the GPU"),
    ("time", "wall time"), ("gain", "gain over the better side alone"),
)  # fmt: skip
CAPTION = (
    "Wall time of one call against the share of the work on the GPU, at the size chosen above: 0 % is the CPU alone, "
    "100 % the GPU alone. The diamond is the share that was chosen; the dashed line is the better of the two alone."
)
AXIS_TITLE = "wall time of one call"


@chart("hybrid", order=50)
def hybrid_chart(analysis: Analysis, options: RenderOptions) -> Chart:
    """The sweep of the first session, one line for each device and regime."""
    return Chart(
        id="hybrid", section="hybrid", title="Split over CPU and GPU", caption=CAPTION, columns=COLUMNS,
        rows=_rows(analysis, options.time_unit), marks=_marks(analysis), one_size=True,
        spec=_spec(device_ids(analysis), regime_names(analysis)),
    )  # fmt: skip


def _rows(analysis: Analysis, unit: str) -> ChartRows:
    best = fastest(charted(analysis))
    found: ChartRows = {}
    for split in hybrids(analysis):
        for share, seconds in split.curve:
            chosen = abs(share - split.fraction) < 1e-9
            found.setdefault(series_name(split.case.case), []).append(
                common(split.case, best)
                | {
                    "x": short(share), "value": short(seconds), "share": share_text(share),
                    "time": seconds_text(seconds, unit), "gain": ratio_text(split.interval) if chosen else "",
                }
            )  # fmt: skip
    return found


def _marks(analysis: Analysis) -> ChartRows:
    """The chosen share with the time of the better side: run value x gain."""
    best = fastest(charted(analysis))
    found: ChartRows = {}
    for split in hybrids(analysis):
        if split.case.time is not None and split.curve:
            found.setdefault(series_name(split.case.case), []).append(_mark(split, best))
    return found


def _mark(split: Hybrid, best: frozenset[str]) -> ChartRow:
    seconds = split.case.time.estimate if split.case.time is not None else 0.0
    why = "worth it" if split.reason is None else f"not recommended: {split.reason}"
    return common(split.case, best) | {
        "device": printable(split.device_id), "regime": data_text(split.case.case), "x": short(split.fraction),
        "value": short(seconds), "better": short(seconds * split.gain),
        "text": f"{share_text(split.fraction)} on the GPU: {ratio_text(split.interval)}, {why}",
    }  # fmt: skip


@functools.cache
def _spec(names: tuple[str, ...], data: tuple[str, ...]) -> ChartRow:
    import altair

    share = altair.X(
        "x:Q", title="share of the work on the GPU", scale=altair.Scale(domain=[0, 1]),
        axis=altair.Axis(format="%", tickCount=5, grid=False),
    )  # fmt: skip
    value = charts.log_axis("value", AXIS_TITLE, charts.SECONDS)
    base = altair.Chart(charts.named()).encode(x=share, y=value, color=charts.accent(names), detail="regime:N")
    marks = altair.Chart(charts.named(MARKS)).encode(
        color=charts.accent(names),
        tooltip=charts.tooltip((("device", "device"), ("regime", "data"), ("text", "split"))),
    )
    better = marks.mark_rule(strokeDash=[6, 4], strokeWidth=1.5).encode(
        y=charts.log_axis("better", AXIS_TITLE, charts.SECONDS)
    )
    diamond = marks.mark_point(shape="diamond", size=130, filled=True, opacity=1).encode(x=share, y=value)
    return charts.finished(altair.layer(better, *charts.curves(base, names, data, COLUMNS), diamond), CAPTION)


ROWS = (Rows("hybrid", Hybrid, hybrids, order=130),)
