"""The section of the roofline: the peaks of each piece of hardware, and how near the cases with resident data
come to them."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.roofline import Peaks, PeakShare, lacks_flops, measures_peaks, roofline
from gpubench.base import at_largest, group_by
from gpubench.base.plugins.sections import Rows, chart, section
from gpubench.base.streams import printable
from gpubench.base.table import Cell, Column, Table, Tone, cells, heads, mark_repeats, number
from gpubench.base.units import format_bytes, format_number, format_rate, list_words
from gpubench.report import charts
from gpubench.report.charts import Chart, ChartRow, ChartRows, chart_cases, short
from gpubench.report.layout import RenderOptions, Section
from gpubench.report.wording import (
    IMPLEMENTATIONS,
    computes,
    devices_text,
    join_texts,
    mark,
    series_name,
    share_text,
    size_text,
)
from gpubench.report.wording import legend as marks_legend
from gpubench.result.case import beside_size
from gpubench.result.machine import WRITE_ALLOCATE

TITLE = "Roofline: share of what the hardware was measured to do"
HINT = "gpubench run --ops roofline"
_MEANING = (
    "Measured, in this run: memory by copy, computing by matmul. A case with i FLOP per byte can reach the lower of "
    "the two; GB/s or FLOP/s names the one that limits it. GB/s are payload: each input read once, the output written "
    "once."
)
_LARGEST = "The largest size of each op; all sizes: --sections roofline or --format markdown."
_WEAK = (
    "Left out: cases whose peak was measured only at small sizes (*), so the true one may be higher; --sections "
    f"roofline has them, and {HINT} measures the peaks."
)
_TRAFFIC = (
    "traffic: of that copy; a CPU reads each line before it writes it, so half as much again as the payload"
)
_SMALL = "* of small sizes: no copy left the caches, or no matmul had sides of 2048 (on a CPU 512)"
_CACHE = "c: in cache, as far as the size tells; memory is no limit then"
_WALL = "w: wall time, without the device's clock"
_DERIVED = "d: derived from wall times, the device has no clock"
_LIBRARY = "x lib: device time of the vendor library's case / of this one"
GOOD, BAD = 0.9, 0.5


@section("roofline", order=150, help="How near each case comes to its device at best")
def roofline_section(analysis: Analysis, options: RenderOptions) -> Section:
    """Return the section of the roofline. It has every size if the options ask for it or the run measured only
    peaks. Otherwise it has the largest sizes, without cases whose peak was measured only at small sizes."""
    peaks, rows = roofline(analysis).peaks, list(roofline(analysis).rows)
    untold = {point.case.op for point in analysis.cases if point.time is not None and lacks_flops(point)}
    lacking = (
        f"Not told: the FLOPs of {list_words(sorted(untold))}; say flops= to see them here." if untold else ""
    )
    measured = [peak for peak in peaks if peak.bytes_per_s is not None or peak.flops_per_s is not None]
    if not measured:
        hint = f"not measured: {HINT}" if rows else ""
        return Section(title=TITLE, lines=tuple(filter(None, (hint, lacking))), folded=True)
    shown, notes = rows, []
    if not (options.every_size or measures_peaks(analysis.run)):
        # If the user requested variants of an op, all its implementations stay, so that they can be compared.
        ladders = {_kind(point)[:3] for point in rows if point.case.case.variant is not None}
        tops = largest(rows)
        last = [point for point in tops if point.share is not None or _kind(point)[:3] in ladders]
        shown = [point for point in last if not point.weak_peak or _kind(point)[:3] in ladders]
        notes += [_WEAK] if len(shown) < len(last) else []
        notes += [_LARGEST] if shown and len(tops) < len(rows) else []
    notes += [lacking] if lacking else []
    tables = [_peaks_table(analysis, measured), *([_table(shown)] if shown else [])]
    return Section(
        title=TITLE, lines=(_MEANING, *_missing(peaks), *notes), tables=tuple(tables),
        folded=not measures_peaks(analysis.run),
    )  # fmt: skip


def largest(rows: Sequence[PeakShare]) -> list[PeakShare]:
    """Return the rows at the largest size of their op, dtype, device and implementation."""
    return at_largest(rows, _kind, lambda point: point.case.case.n)


def rate(point: PeakShare) -> str:
    """Return the rate of a case as text, in the unit of the peak that limits it, such as `4.05 TB/s`."""
    compute = point.bound == "compute" or (point.bound is None and computes(point.case))
    amount = point.case.flops if compute else point.case.bytes
    return format_rate(amount / point.time_s, "FLOP/s" if compute else "B/s")


def implementation_text(point: CaseResult) -> str:
    """Return `lib` or `tuned`, followed by the variant if there is one, such as `tuned naive`."""
    return IMPLEMENTATIONS[point.case.implementation] + (f" {point.case.variant}" if point.case.variant else "")


def peak_texts(peak: Peaks) -> tuple[str, str, str]:
    """Return the memory peak, the compute peak and the ridge as texts, with `-` for what was not measured."""
    memory = "-" if peak.bytes_per_s is None else format_rate(peak.bytes_per_s, "B/s")
    compute = "-" if peak.flops_per_s is None else format_rate(peak.flops_per_s, "FLOP/s")
    return memory, compute, "-" if peak.ridge is None else format_number(peak.ridge)


def _kind(point: PeakShare) -> tuple[str, ...]:
    case = point.case.case
    return (case.op, case.dtype, case.device_id, case.implementation_id)


def _missing(peaks: Sequence[Peaks]) -> list[str]:
    """Return lines that name the devices whose peaks were not measured, and the commands that measure them."""
    words = {(True, False): "memory peak", (False, True): "compute peak", (True, True): "peaks"}
    lacks = group_by(peaks, lambda peak: (peak.bytes_per_s is None, peak.flops_per_s is None))
    return [
        f"{words[lacking]} not measured on "
        + ", ".join(f"{'+'.join(peak.device_ids)} {peak.dtype}" for peak in same)
        + f": {HINT} --dtypes "
        + ",".join(dict.fromkeys(peak.dtype for peak in same))
        for lacking, same in lacks.items()
        if any(lacking)
    ]


def _peaks_table(analysis: Analysis, peaks: Sequence[Peaks]) -> Table:
    copied = any(peak.copy is not None for peak in peaks)
    columns = heads(
        "device", "dtype", number("memory"),
        copied and number("traffic", 2), number("compute"),
        number("ridge, FLOP/byte", 1), number("by copy of", 4),
        number("by matmul", 3),
    )  # fmt: skip
    body = []
    for peak in peaks:
        size = format_bytes(peak.copy.bytes) if peak.copy else "-"
        side = size_text(peak.matmul) if peak.matmul else "-"
        memory, compute, ridge = peak_texts(peak)
        memory += (mark(peak.copy.label) if peak.copy else "") + (" *" if peak.cache_sized else "")
        compute += (mark(peak.matmul.label) if peak.matmul else "") + (" *" if peak.small_matmul else "")
        traffic = [_traffic(peak)] if copied else []
        body.append(cells("+".join(peak.device_ids), peak.dtype, memory, *traffic, compute, ridge, size, side))
    devices = list(dict.fromkeys(device_id for peak in peaks for device_id in peak.device_ids))
    small = any(peak.cache_sized or peak.small_matmul for peak in peaks)
    labels = {point.label for peak in peaks for point in (peak.copy, peak.matmul) if point is not None}
    words = [
        "ridge: from so many FLOP per byte on, computing is the limit",
        _TRAFFIC if any(peak.copy is not None and peak.copy.device_kind == "cpu" for peak in peaks) else "",
        _SMALL if small else "",
        marks_legend(labels),
    ]
    legend = join_texts(*words)
    return Table(
        columns, tuple(body), title="Peaks", note=printable(devices_text(analysis, devices)), legend=legend
    )


def _traffic(peak: Peaks) -> str:
    """Return the memory traffic per second of the copy that reached the memory peak, as text."""
    if peak.copy is None or peak.bytes_per_s is None:
        return "-"
    # A CPU reads the cache lines that it is about to write.
    return format_rate(peak.bytes_per_s * (WRITE_ALLOCATE if peak.copy.device_kind == "cpu" else 1.0), "B/s")


def _table(rows: Sequence[PeakShare]) -> Table:
    library = any(point.to_library is not None for point in rows)
    dtypes = len({point.case.case.dtype for point in rows}) > 1
    columns = heads(
        dtypes and "dtype", "op", number("n"), "device", "impl.", number("rate"), number("of peak"),
        Column("bound", rank=2), library and number("x lib", 1),
    )  # fmt: skip
    body = [
        cells(
            dtypes and point.case.case.dtype, point.case.case.op, size_text(point.case), point.case.case.device_id,
            implementation_text(point.case), rate(point) + mark(point.case.label), _of_peak(point), point.bound or "-",
            library and ("-" if point.to_library is None else f"{point.to_library:.2f}"),
        )
        for point in sorted(rows, key=_order)
    ]  # fmt: skip
    return Table(columns, mark_repeats(body, 2 + dtypes), title="Cases", legend=_legend(rows, library=library))


def _order(point: PeakShare) -> tuple[object, ...]:
    case = point.case.case
    where = (point.case.device_kind != "cpu", case.device_id, case.implementation_id)
    return (case.dtype, case.op, case.params.get("n", 0), beside_size(case.params), where)


def _of_peak(point: PeakShare) -> Cell:
    if point.share is None:
        return Cell("-")
    marks = (" c" if point.in_cache else "") + (
        " w" if _by_wall(point) else " d" if point.clock == "derived" else ""
    )
    tone: Tone = (
        "muted"
        if point.in_cache
        else "good"
        if point.share >= GOOD
        else "bad"
        if point.share < BAD
        else "plain"
    )
    return Cell(share_text(point.share) + marks, tone)


def _by_wall(point: PeakShare) -> bool:
    return point.clock == "wall" and point.case.device_kind != "cpu"


def _legend(rows: Sequence[PeakShare], *, library: bool) -> str:
    points = [point for point in rows if point.share is not None]
    return join_texts(
        _CACHE if any(point.in_cache for point in rows) else "",
        _WALL if any(_by_wall(point) for point in points) else "",
        _DERIVED if any(point.clock == "derived" for point in points) else "",
        _LIBRARY if library else "",
        marks_legend({point.case.label for point in rows}),
    )


COLUMNS = (
    ("op", "op"), ("device", "device"), ("implementation", "implementation"), ("size", "n"),
    ("intensity", "FLOP per byte"), ("rate", "rate"), ("share", "of peak"), ("bound", "bound"), ("label", "label"),
)  # fmt: skip
PEAK_COLUMNS = (
    ("device", "device"), ("memory", "memory peak"), ("compute", "compute peak"), ("ridge", "ridge, FLOP per byte"),
    ("strength", "peak"),
)  # fmt: skip
CAPTION = (
    "The largest size of every op of this dtype, with resident data. The slope is the memory peak, the level the "
    "compute peak, both measured in this run; a case can reach the lower of the two. A dashed line was measured only "
    "at small sizes, so the true peak may be higher."
)
SPAN = 4.0  # the factor by which the lines of the peaks reach beyond the cases
_MEASURED, _WEAK_PEAK = "measured", "measured only at small sizes"


@chart("roofline", order=40)
def roofline_chart(analysis: Analysis, options: RenderOptions) -> Chart:
    """Return the chart of the roofline, with a picture for each dtype. In a picture, each op on each device is
    a point at its largest size. Ops without FLOPs have no point."""
    fastest = {point.id for point in chart_cases(analysis)}
    rows: ChartRows = {}
    marks: ChartRows = {}
    largest_points = [
        point for point in largest(roofline(analysis).rows) if point.case.flops and point.case.id in fastest
    ]
    for dtype, cases in group_by(largest_points, lambda point: point.case.case.dtype).items():
        ends = [end(point.case.flops / point.case.bytes for point in cases) for end in (min, max)]
        rows[dtype] = [_point(point) for point in cases]
        marks[dtype] = [
            corner
            for peak in roofline(analysis).peaks
            if peak.dtype == dtype
            for corner in _line(peak, ends[0] / SPAN, ends[1] * SPAN)
        ]
    base = {
        "x": charts.log_axis("x", "FLOP per byte moved", charts.PLAIN, x=True),
        "y": charts.log_axis("value", "FLOP per second"), "color": charts.accent(analysis),
    }  # fmt: skip
    strokes = {"domain": [_MEASURED, _WEAK_PEAK], "range": [[1, 0], [6, 4]]}
    peaks = base | {
        "order": charts.quantity("order"), "tooltip": charts.tooltip(PEAK_COLUMNS),
        "strokeDash": charts.word("strength", legend=None, scale=strokes),
    }  # fmt: skip
    line = charts.layer("line", peaks, charts.MARKS, strokeWidth=1.5)
    points = charts.layer("point", base | {"tooltip": charts.tooltip(COLUMNS)}, size=60, filled=True)
    return Chart(
        id="roofline", title="Roofline", caption=CAPTION, rows=rows, marks=marks,
        spec=charts.make_spec(CAPTION, line, points),
    )  # fmt: skip


def _point(point: PeakShare) -> ChartRow:
    intensity = point.case.flops / point.case.bytes
    return charts.case_fields(point.case, regime=False) | {
        "op": series_name(point.case.case), "x": short(intensity), "value": short(point.flops_per_s),
        "intensity": format_number(intensity), "rate": format_rate(point.flops_per_s, "FLOP/s"),
        "share": "-" if point.share is None else share_text(point.share), "bound": point.bound or "-",
    }  # fmt: skip


def _line(peak: Peaks, first: float, last: float) -> list[ChartRow]:
    """Return the corners of a device's line of peaks, from `first` to `last` FLOP per byte."""
    # A peak that was not measured sets no limit.
    memory, compute, ridge = peak.bytes_per_s or inf, peak.flops_per_s or inf, peak.ridge
    if memory == compute == inf:
        return []
    corners = [first, *([ridge] if ridge is not None and first < ridge < last else []), last]
    names = [printable(name) for name in peak.device_ids]
    memory_text, compute_text, ridge_text = peak_texts(peak)
    shared = {
        "device": names[0], "devices": names, "memory": memory_text, "compute": compute_text, "ridge": ridge_text,
        "strength": _WEAK_PEAK if peak.cache_sized or peak.small_matmul else _MEASURED,
    }  # fmt: skip
    return [
        shared | {"x": short(x), "value": short(min(x * memory, compute)), "order": i}
        for i, x in enumerate(corners)
    ]


ROWS = (
    Rows("roofline.peaks", Peaks, lambda analysis: roofline(analysis).peaks, order=40),
    Rows(
        "roofline.cases",
        PeakShare,
        lambda analysis: roofline(analysis).rows,
        order=50,
        csv={"percent_of_peak": "percent_of_peak"},
    ),
)
