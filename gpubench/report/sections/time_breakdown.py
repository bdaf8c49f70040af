"""The section about calls that copy both ways: the parts of their time, their gain as a pipeline, and
overheads. Terminals show the largest sizes, and a full report shows all sizes."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.estimate import CaseResult, TimeBreakdown
from gpubench.analysis.hybrid import Pipeline, pipelines
from gpubench.analysis.roofline import PoolOverhead, overheads
from gpubench.base import at_largest
from gpubench.base.plugins.sections import Rows, section
from gpubench.base.streams import printable
from gpubench.base.table import Cell, Table, cells, heads, mark_repeats, number
from gpubench.base.units import format_bytes, format_rate
from gpubench.report.layout import RenderOptions, Section
from gpubench.report.wording import (
    devices_text,
    join_texts,
    legend,
    mark,
    ratio_text,
    seconds_text,
    share_text,
    shared_text,
    size_text,
    time_interval_text,
    time_text,
)
from gpubench.result.case import STREAMED_CALLS
from gpubench.result.run import PIPELINE_STAGES

_PARTS = {
    "alloc": "alloc", "upload": "up", "launch": "launch", "kernel": "kernel", "sync": "sync", "download": "down"
}  # fmt: skip
_RANKS = {"sync": 3, "alloc": 2, "launch": 1}
_MEANING = (
    "Shares of the wall time of one call that copies both ways; the clock is read between its steps. A rest "
    "below 0 means that parts overlap, because an earlier version timed each of them alone."
)
_DERIVED = "* derived: single launch - launch - sync, without a device clock"
_LARGEST = "The largest size of each op; all sizes: --sections breakdown or --format markdown."
_FIRST = "first result: opening the device, building the kernel, its first launch, memory and both copies, once"


@section("breakdown", order=110, help="Where the time of a call goes")
def breakdown_section(analysis: Analysis, options: RenderOptions) -> Section:
    """Return the section with up to three tables: time breakdowns of the fastest implementations, pipelines,
    and overheads. Unless the options ask for every size, the tables show only some sizes."""
    unit = options.time_unit
    everything = [
        result.case
        for result in analysis.speedups
        if result.kind == "headline" and result.case.time_breakdown is not None
    ]
    rows = everything if options.every_size else at_largest(
        everything, lambda result: (result.case.op, result.case.dtype, result.case.device_id),
        lambda result: result.case.n,
    )  # fmt: skip
    lines = [_MEANING] if rows else []
    lines += [_LARGEST] if len(rows) < len(everything) else []
    tables = [_table(analysis, rows, options)] if rows else []
    tables += [_pipelines_table(analysis, options)] if pipelines(analysis) else []
    lines += _pipeline_advice(analysis)
    costs = overheads_table(analysis, options)
    return Section(
        title="Where the time goes",
        lines=(*lines, *_empty_text(analysis, unit), *map(_pool_text, overheads(analysis).pools)),
        tables=(*tables, *([costs] if costs else [])), folded=True,
    )  # fmt: skip


def _table(analysis: Analysis, rows: Sequence[CaseResult], options: RenderOptions) -> Table:
    """Return the table of time breakdowns, with a row for each case."""
    unit = options.time_unit
    dtypes, devices, title = shared_text(analysis, [result.case for result in rows])
    pairs = [(result, result.time_breakdown) for result in rows if result.time_breakdown is not None]
    first = options.every_size and any(parts.first_result_s is not None for _, parts in pairs)
    columns = heads(
        "op", dtypes and "dtype", devices and "device", number("n"), number("whole"),
        *(number(text, _RANKS.get(name, 0)) for name, text in _PARTS.items()), number("rest"),
        first and number("first result", 4),
    )  # fmt: skip
    body = []
    for result, parts in pairs:
        shares = {name: share_text(getattr(parts, f"{name}_s") / parts.whole_s) for name in _PARTS}
        shares["kernel"] += "*" if parts.kernel_derived else ""
        body.append(
            cells(
                result.case.op, dtypes and result.case.dtype, devices and result.case.device_id,
                size_text(result), seconds_text(parts.whole_s, unit), *shares.values(),
                Cell(rest_text(parts), "bad" if parts.mismatch else "plain"),
                first and seconds_text(parts.first_result_s, unit),
            )
        )  # fmt: skip
    words = join_texts(
        _FIRST if first else "", _DERIVED if any(parts.kernel_derived for _, parts in pairs) else ""
    )
    return Table(
        columns, mark_repeats(body, 1 + dtypes + devices), title=title,
        legend=words,
    )  # fmt: skip


_ROW = (
    f"streamed: a call of {STREAMED_CALLS} in a row, with page-locked arrays, a set of buffers and a queue for each "
    "call in flight, and one wait; overlap: upload + kernel + download, each alone in such a row, / streamed: the "
    "rest of the gain is page-locked memory; bound: the slowest stage; of bound: its time / streamed"
)


def _pipelines_table(analysis: Analysis, options: RenderOptions) -> Table:
    """Return a table with a row for each pipeline."""
    unit, rows = options.time_unit, list(pipelines(analysis))
    if not options.every_size:
        rows = at_largest(
            rows,
            lambda pipe: (*pipe.case.case.series, pipe.case.case.device_id),
            lambda pipe: pipe.case.n,
        )
    dtypes, devices, title = shared_text(analysis, [pipe.case.case for pipe in rows])
    columns = heads(
        "op", dtypes and "dtype", devices and "device", number("n"), number("copied"), number("streamed"),
        number("gain"), number("overlap"), *(number(stage, 2) for stage in PIPELINE_STAGES), "bound",
        number("of bound"), number("sets", 1),
    )  # fmt: skip
    body = [
        cells(
            pipe.case.case.op, dtypes and pipe.case.case.dtype, devices and pipe.case.case.device_id,
            size_text(pipe.case),
            time_text(pipe.copied.time if pipe.copied else None, unit),
            time_text(pipe.case.time, unit) + mark(pipe.case.label),
            Cell("-" if pipe.interval is None else ratio_text(pipe.interval), "good" if pipe.pays else "plain"),
            "-" if pipe.overlap is None else f"{pipe.overlap:.2g}x",
            *(seconds_text(pipe.stages_s.get(stage), unit) for stage in PIPELINE_STAGES),
            pipe.bound or "-", "-" if pipe.reached is None else share_text(pipe.reached), str(pipe.sets or "-"),
        )
        for pipe in rows
    ]  # fmt: skip
    title = f"Pipelines, {title}" if title else "Pipelines"
    return Table(
        columns,
        mark_repeats(body, 1 + dtypes + devices),
        title=title,
        legend=join_texts(_ROW, legend({pipe.case.label for pipe in rows})),
    )


def _pipeline_advice(analysis: Analysis) -> list[str]:
    """Return advice from the pipeline with the largest gain, or a sentence that no pipeline gains. The list is
    empty if no pipeline was compared."""
    rows = [pipe for pipe in pipelines(analysis) if pipe.interval is not None]
    best = max((pipe for pipe in rows if pipe.pays), key=attrgetter("gain"), default=None)
    if best is None or best.gain is None:
        return ["No pipeline gains over calls that copy and wait: leave them as they are."] if rows else []
    case = best.case.case
    size = f"{case.op} {case.dtype} n = {size_text(best.case)} on {printable(case.device_id)}"
    how = f"page-locked arrays, a stream for each of {best.sets or 2} sets of buffers, and one wait at the end"
    return [f"{size} takes 1/{best.gain:.2g} of the time as a pipeline: write independent calls with {how}."]


def rest_text(parts: TimeBreakdown) -> str:
    """Return the residual in percent of the whole time, with its sign."""
    text = share_text(parts.residual_share)
    return f"+{text}" if parts.residual_share > 0 and text != "0%" else text


_MOVES = ("upload", "download")
_SIZED = ("allocate", *_MOVES)
# The names of the two implementations of a copy on known backends. On other backends they keep their names.
_WAYS = {
    ("cupy", "library"): "pageable", ("cupy", "tuned"): "pinned",
    ("wgpu", "library"): "plain call", ("wgpu", "tuned"): "staging",
}  # fmt: skip
_MEMORY = {"library": "fresh", "tuned": "pool"}
_SHOWN_BYTES = 2**20  # a terminal shows the smallest size, the largest, and the one nearest to this
_SOME = "The smallest, the largest and a middle size; all sizes: --sections breakdown or --format markdown"


def _empty_text(analysis: Analysis, unit: str) -> list[str]:
    """Return a sentence with the cost of an empty launch on each device. Without a GPU, the list is empty."""
    kinds = {device.id: device.kind for device in analysis.run.devices}
    empty = overheads(analysis).empty
    if all(kinds.get(name) == "cpu" for name in empty):
        return []
    calls = ", ".join(f"{printable(name)} {seconds_text(seconds, unit)}" for name, seconds in empty.items())
    return [f"An empty launch and its wait: {calls}. It is part of every wall time, and nothing is subtracted."]


def overheads_table(analysis: Analysis, options: RenderOptions) -> Table | None:
    """Return a table of the overheads with a row for each device, call, size and implementation, or None
    without overheads. Unless the options ask for every size, it has at most three sizes of each call."""
    everything, unit = overheads(analysis).rows, options.time_unit
    if not everything:
        return None
    sizes = _shown_sizes(everything)
    rows = [
        result
        for result in everything
        if options.every_size or result.case.params["n"] in sizes[result.case.op, result.case.device_id]
    ]
    columns = heads(
        "device", "what", number("size"), number("time"),
        number("95 % interval", 1), number("rate"),
    )  # fmt: skip
    body = [
        cells(
            result.case.device_id, what(result),
            format_bytes(result.case.params["n"]) if result.case.op in _SIZED else "-",
            time_text(result.time, unit) + mark(result.label),
            time_interval_text(result.time, unit) if result.time else "-", rate(result),
        )
        for result in rows
    ]  # fmt: skip
    devices = list(dict.fromkeys(result.case.device_id for result in rows))
    return Table(
        columns, tuple(body), title="Overheads", note=printable(devices_text(analysis, devices)),
        legend=join_texts(
            _SOME if len(rows) < len(everything) else "", legend({result.label for result in rows})
        ),
    )  # fmt: skip


def what(result: CaseResult) -> str:
    """Return the name of an overhead, such as `upload, pinned`, `allocate, pool` or `sync`."""
    case = result.case
    if case.op == "allocate":
        return f"allocate, {_MEMORY[case.implementation]}"
    if case.op in _MOVES:
        return f"{case.op}, {_WAYS.get((case.backend, case.implementation), case.implementation)}"
    return case.op if case.implementation == "library" else f"{case.op}, {case.implementation}"


def rate(result: CaseResult) -> str:
    """Return the rate of a transfer in bytes per second as text, or `-` for a call that moves no data."""
    if result.case.op not in _MOVES or result.time is None:
        return "-"
    return format_rate(result.case.params["n"] / result.time.estimate, "B/s")


def pool_share(pool: PoolOverhead) -> str:
    """Return the time of a pool allocation as a share of the op's time, such as `3.0%` or `less than 0.1%`. If
    single calls were timed, too, their share comes first: `1.2% (3.0% of launches in a row)`."""
    share = _share(pool.share)
    return share if pool.single_share is None else f"{_share(pool.single_share)} ({share} of launches in a row)"


def _share(share: float) -> str:
    return share_text(share) if share >= 1e-3 else "less than 0.1%"


def _shown_sizes(everything: Sequence[CaseResult]) -> dict[tuple[str, str], set[int]]:
    """Return the smallest size, the largest, and the one nearest to _SHOWN_BYTES, by op and device."""
    sizes: dict[tuple[str, str], list[int]] = {}
    for result in everything:
        sizes.setdefault((result.case.op, result.case.device_id), []).append(result.case.params["n"])
    return {
        key: {min(measured), min(measured, key=lambda n: (abs(n - _SHOWN_BYTES), n)), max(measured)}
        for key, measured in sizes.items()
    }


def _pool_text(pool: PoolOverhead) -> str:
    memory = format_bytes(pool.allocate.case.params["n"])
    op = pool.op.case
    return (
        f"Pool overhead on {op.device_id}: {pool_share(pool)} of {op.op} at 1 Mi elements "
        f"({memory} from the pool against one call)."
    )


ROWS = (
    Rows("pool_overhead", PoolOverhead, lambda analysis: overheads(analysis).pools, order=60),
    Rows("pipelines", Pipeline, pipelines, order=65),
)
