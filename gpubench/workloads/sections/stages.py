"""Where the time of a workload goes, stage by stage: for a terminal at the largest size of each, in full at all."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence

from gpubench.analysis.analyse import Analysis
from gpubench.base.groups import group_by
from gpubench.base.plugins.sections import Rows, chart, section
from gpubench.base.table import Cell, Table, cells, heads, number
from gpubench.report import charts
from gpubench.report.charts import Chart, ChartRow, ChartRows, common, short
from gpubench.report.layout import CsvValue, RenderOptions, Section
from gpubench.report.wording import device_text, seconds_text, series_name, share_text, size_text
from gpubench.workloads.stages import Stages, stages

TITLE = "Where the time of a workload goes"
_MEANING = (
    "Each stage as it runs in the chain; alone: by itself, with its operands on the device. The whole is a call of the "
    "plain chain, without a clock reading between its stages, and its wait. What the stages and an empty launch leave "
    "of it is the rest."
)
_RECORDING = "recording: the device waits until the host has written down what it is to do"
_WAITED = (
    "the device stamps no passes: each stage has a submit and a wait of its own, and they may exceed the whole"
)
_MISMATCH = "! the stages miss the whole by more than 10 % and more than 20 us"
# Share of the whole from which on what clock readings cost is said.
SHOWN = 0.05
# Beside the stages.
LAUNCH, RECORDING, REST, WHOLE = "launch, wait", "recording", "rest", "whole"


@section("stages", order=140, help="Where the time of a network goes")
def stages_section(analysis: Analysis, options: RenderOptions) -> Section:
    """Draw a table for each workload, size and device that is no CPU, with the CPU beside it; of the CPU alone without
    one."""
    groups = group_by(stages(analysis), lambda row: (series_name(row.case.case), row.n))
    if not options.every_size:
        largest = {name: max(n for other, n in groups if other == name) for name, _ in groups}
        groups = {key: rows for key, rows in groups.items() if largest[key[0]] == key[1]}
    tables = [table for rows in groups.values() for table in _tables(analysis, rows, options.time_unit)]
    lines = [_MEANING] if tables else []
    if len(groups) < len({(series_name(row.case.case), row.n) for row in stages(analysis)}):
        lines.append("The largest size of each workload; all sizes: --sections stages.")
    return Section(title=TITLE, lines=tuple(lines), tables=tuple(tables), folded=True)


def _tables(analysis: Analysis, rows: Sequence[Stages], unit: str) -> list[Table]:
    on_cpu = [row for row in rows if row.case.device_kind == "cpu"]
    best = min(on_cpu, key=lambda row: row.whole_s, default=None)
    others = [row for row in rows if row.case.device_kind != "cpu"]
    return [_table(analysis, row, best, unit) for row in others or ([best] if best else [])]


def _table(analysis: Analysis, row: Stages, cpu: Stages | None, unit: str) -> Table:
    beside = cpu if cpu is not None and cpu.device_id != row.device_id else None
    paired = beside is not None
    name = "CPU" if beside is None and cpu is not None else _short(row)
    columns = heads(
        "stage", paired and number("CPU"), paired and number("of CPU", 2), number(name), number("alone", 1),
        number(f"of {name}"),
    )  # fmt: skip
    stages = list(
        dict.fromkeys(one.stage for known in (row, *([beside] if beside else [])) for one in known.stages)
    )
    body = [
        (
            *cells(label),
            *(_cells(beside, label, unit, alone=False) if beside else ()),
            *_cells(row, label, unit, alone=True),
        )
        for label in (*stages, LAUNCH, *([RECORDING] if row.recording_s else []), REST, WHOLE)
    ]
    against = f" against {device_text(analysis, beside.device_id)}" if beside else ""
    legend = [_rates(row, beside)] if row.tokens_per_s else []
    legend += [f"{row.tokens_differing} of its tokens differ from float64's"] if row.tokens_differing else []
    legend += [_stamping(row, unit)] if row.stamping_s > SHOWN * row.whole_s else []
    legend += [_RECORDING] if row.recording_s else []
    legend += [_WAITED] if row.clock == "waited" else []
    legend += [_MISMATCH] if row.mismatch or (beside and beside.mismatch) else []
    return Table(
        columns, tuple(body), legend="; ".join(legend),
        title=f"{series_name(row.case.case)}, n {size_text(row.case).partition(' ')[0]}",
        note=f"{device_text(analysis, row.device_id)}{against}",
    )  # fmt: skip


def _stamping(row: Stages, unit: str) -> str:
    return f"{seconds_text(row.stamping_s, unit)} of clock readings are taken off the stages"


def _rates(row: Stages, cpu: Stages | None) -> str:
    """`tokens/s: prefill 310,000 (CPU 66,000), decode 5,900 (CPU 3,100)`."""
    on_cpu = cpu.tokens_per_s if cpu is not None else {}
    parts = [
        f"{part} {_count(rate)}" + (f" (CPU {_count(on_cpu[part])})" if part in on_cpu else "")
        for part, rate in row.tokens_per_s.items()
    ]
    return f"tokens/s: {', '.join(parts)}"


def _count(rate: float) -> str:
    """Three digits of it."""
    return f"{float(f'{rate:.2e}'):,.0f}"


def _short(row: Stages) -> str:
    return {"gpu": "GPU", "software": "adapter"}.get(row.case.device_kind, row.device_id)


def _cells(row: Stages, label: str, unit: str, *, alone: bool) -> tuple[Cell, ...]:
    """The time, where it is wanted the stage's alone, and the share of the whole."""
    seconds = seconds_of(row).get(label)
    seconds = None if label == LAUNCH and not seconds else seconds
    known = next((one for one in row.stages if one.stage == label), None)
    share = "-" if seconds is None else share_text(seconds / row.whole_s)
    tone = Cell(f"{share}!", "bad") if label == REST and row.mismatch else Cell(share)
    times = [seconds_text(seconds, unit)]
    times += [seconds_text(known.alone_s if known else None, unit)] if alone else []
    return cells(*times, tone)


def seconds_of(row: Stages) -> dict[str, float]:
    """Seconds of all that a table lists, in its order: stages, launch, recording if there is any, rest and the
    whole."""
    recording = {RECORDING: row.recording_s} if row.recording_s else {}
    stages = {one.stage: one.chain_s for one in row.stages}
    return stages | {LAUNCH: row.launch_s} | recording | {REST: row.residual_s, WHOLE: row.whole_s}


COLUMNS = (
    ("device", "device"), ("size", "n"), ("stage", "stage"), ("time", "time"), ("alone", "alone"), ("share", "share"),
    ("whole", "whole call"),
)  # fmt: skip
CAPTION = (
    "Where the time of a workload goes on each device. The stages are timed in the chain, the whole is a call of the "
    "plain chain; at times the rest stands left of 0. A pale bar is of stages that miss the whole by more than 10 %."
)
STEP = 24  # points of height for a bar


@chart("stages", order=70)
def stages_chart(analysis: Analysis, options: RenderOptions) -> Chart:
    """A stacked bar for each device and size. Stages of two parts that are called alike, as in `prefill.heads` and
    `decode.heads`, have one colour, and stand in the order in which they run."""
    return Chart(
        id="stages", section="stages", title=TITLE, caption=CAPTION, columns=COLUMNS,
        rows=_rows(analysis, options.time_unit), spec=_spec(), bars="bar", step=STEP,
    )  # fmt: skip


def _rows(analysis: Analysis, unit: str) -> ChartRows:
    found: ChartRows = {}
    shown = {row.case.id for row in stages(analysis)}
    for row in stages(analysis):
        alone = {one.stage: one.alone_s for one in row.stages}
        found.setdefault(series_name(row.case.case), []).extend(
            common(row.case, shown, regime=False)
            | {
                "bar": f"{row.n} {row.device_id}", "stage": name, "kind": name.rpartition(".")[2],
                "order": i, "value": short(seconds),
                "time": seconds_text(seconds, unit), "alone": seconds_text(alone.get(name), unit),
                "share": share_text(seconds / row.whole_s), "whole": seconds_text(row.whole_s, unit),
                "opacity": 0.35 if row.mismatch else 1.0,
            }
            for i, (name, seconds) in enumerate(seconds_of(row).items())
            if name != WHOLE
        )  # fmt: skip
    return found


@functools.cache
def _spec() -> ChartRow:
    import altair

    seconds = altair.X(
        "sum(value):Q", title="seconds of one call", stack="zero",
        axis=altair.Axis(labelExpr=charts.SECONDS, tickCount=5),
    )  # fmt: skip
    color = altair.Color(
        "kind:N", sort=altair.EncodingSortField("order", op="min"),
        scale=altair.Scale(scheme="tableau20"), legend=altair.Legend(title=None, columns=4),
    )  # fmt: skip
    bars = charts.stacked_bars(seconds, color, COLUMNS, height=STEP - 8)
    return charts.finished(bars, CAPTION)


def _csv_stages(row: Stages) -> Iterable[Mapping[str, CsvValue]]:
    """Yield the stages; `time_s` is that in the chain."""
    for stage in row.stages:
        yield {"stage": stage.stage, "time_s": stage.chain_s, "stage_alone_s": stage.alone_s}


ROWS = (Rows("stages", Stages, stages, order=150, parts=_csv_stages),)
