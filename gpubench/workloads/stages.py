"""The time breakdown of a workload: each stage alone and in the chain, and whether the stages add up to the
whole call.

On a terminal the section lists the stages at the largest size of each workload; the full report lists them at
all sizes.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import ClassVar

import msgspec

from gpubench.analysis.analyse import Analysis, derive_once
from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.samples import of_used_sessions
from gpubench.base import at_largest, group_by
from gpubench.base.errors import GpubenchError
from gpubench.base.plugins.sections import Rows, chart, section
from gpubench.base.table import Cell, Table, cells, heads, number
from gpubench.curves.stats import median
from gpubench.report import charts
from gpubench.report.charts import Chart, ChartRow
from gpubench.report.layout import CsvValue, RenderOptions, Section
from gpubench.report.wording import device_text, seconds_text, series_name, share_text, size_text
from gpubench.result.run import Measurement, Run, StageClock, StageTimes
from gpubench.workloads.assignment import fit_to_sum

# The sum of the stages misses the whole if they differ by more than this share, and by more than these seconds.
SHARE, LEAST_S = 0.10, 20e-6
# The clocks that time a stage without its launch.
_ON_DEVICE: tuple[StageClock, ...] = ("event", "pass-timestamp")


class StageRow(msgspec.Struct, frozen=True, kw_only=True):
    """The times of one stage, or of all stages with the same name added up."""

    stage: str  # name of the stage
    chain_s: float  # seconds of the stage in the chain
    alone_s: float  # seconds of the stage alone
    share: float  # the stage's share of the time of the whole call


class Stages(msgspec.Struct, frozen=True, kw_only=True):
    """The times of the stages of one case. The stages in the chain, the launch, the recording and the residual add up
    to the whole."""

    aside: ClassVar = ("case",)
    id: str  # id of the case
    op: str  # name of the op
    n: int  # size n of the op
    params: dict[str, int]  # all params, the size included
    dtype: str  # dtype of the elements
    device_id: str  # id of the device
    clock: StageClock  # clock that gave the times of the stages
    stages: tuple[StageRow, ...]  # stages in the order in which they run
    span_s: float  # seconds from the first stage's start to the last one's end, without clock readings
    launch_s: float  # seconds of an empty launch and its wait; 0 unless the clock is the device's
    stamping_s: float = 0.0  # seconds that clock readings added; they are already subtracted from the stages
    # seconds that the device waits while the host records its commands; 0 unless the clock is the device's
    recording_s: float = 0.0
    residual_s: float  # seconds of the whole call that none of the other parts explains
    whole_s: float  # seconds of one call of the chain without clock readings
    # whether the stages miss the span, or all parts the whole, by more than both 10 % and 20 us; with the clock
    # `waited`, only the span counts
    mismatch: bool
    tokens_per_s: dict[str, float] = {}  # tokens per second by part (`prefill`, `decode`), if the op has parts
    # number of written tokens that are not the best ones in float64; null if the op writes none
    tokens_differing: int | None = None
    case: CaseResult  # the case with its estimates


@derive_once
def stages(analysis: Analysis) -> tuple[Stages, ...]:
    """Return the `Stages` of each case that the report shows and whose stages were timed."""
    timed = (breakdown for breakdown in analysis.shown_of(analysis.compared) if breakdown.time is not None)
    rows = (_row(analysis.run, analysis.outcomes[breakdown.id], breakdown) for breakdown in timed)
    return tuple(breakdown for breakdown in rows if breakdown is not None)


def _row(run: Run, outcome: Measurement, case: CaseResult) -> Stages | None:
    timed = [times for times in of_used_sessions(run, outcome.stages) if times.wall_s]
    # Only sessions with the clock and the stages of the last one count.
    timed = [times for times in timed if (times.clock, times.stages) == (timed[-1].clock, timed[-1].stages)]
    if not timed:
        return None
    chain = _by_stage(timed, lambda times: times.chain_s)
    alone = _by_stage(timed, lambda times: times.alone_s)
    span_s, launch_s, wall_s = (
        _typical(values)
        for values in zip(*((times.span_s, times.empty_s, times.wall_s) for times in timed), strict=True)
    )
    # If the clock is the host's, the stages explain the calls in which they were timed.
    whole_s = span_s if timed[0].clock == "host" else wall_s
    if whole_s <= 0:
        return None
    waited, on_device = timed[0].clock == "waited", timed[0].clock in _ON_DEVICE
    counts, hosts = _declare_stages(case.case.op, timed[0].stages) if on_device else ({}, set())
    # A call on the CPU has no launch, and the times of stages that are waited for include one.
    launch_s = launch_s if on_device else 0.0
    stamped = [times.stamping_s for times in timed if times.stamping_s]
    stamping_s = 0.0
    if stamped and on_device:
        span_s -= _typical(stamped)
        plain = _without_readings(dict(zip(timed[0].stages, chain, strict=True)), counts, hosts, span_s)
        stamping_s = sum(chain) - sum(plain)
        alone = [max(0.0, own - (more - less)) for own, more, less in zip(alone, chain, plain, strict=True)]
        chain = plain
    total_s = sum(chain)
    recording_s = _recording_s(timed, chain, hosts, launch_s) if on_device else 0.0
    residual_s = whole_s - total_s - launch_s - recording_s
    return Stages(
        id=case.id, op=case.case.op, n=case.case.params["n"], params=dict(case.case.params),
        dtype=case.case.dtype, device_id=case.case.device_id, clock=timed[0].clock, case=case,
        stages=tuple(
            StageRow(stage=name, chain_s=in_chain, alone_s=by_itself, share=in_chain / whole_s)
            for name, in_chain, by_itself in zip(timed[0].stages, chain, alone, strict=True)
        ),
        span_s=span_s, launch_s=launch_s, stamping_s=stamping_s, recording_s=recording_s,
        residual_s=residual_s, whole_s=whole_s,
        mismatch=_misses(span_s - total_s, span_s) or (not waited and _misses(residual_s, whole_s)),
        tokens_per_s=_tokens_per_s(timed[-1], chain, whole_s), tokens_differing=outcome.check.differing,
    )  # fmt: skip


def _recording_s(
    timed: Sequence[StageTimes], chain_s: Sequence[float], hosts: Set[str], launch_s: float
) -> float:
    """Return the seconds for which the device waits because the host still records commands."""
    recorded = [times for times in timed if times.recording_s]
    if not recorded:
        return 0.0
    first_s = _typical(times.first_recording_s for times in recorded)
    later_s = _typical(times.recording_s for times in recorded) - first_s
    by_stage = zip(timed[0].stages, chain_s, strict=True)
    # Recording that overlaps with the device's work, or with the wait of an empty launch, does not count.
    device_s = sum(seconds for stage, seconds in by_stage if stage not in hosts)
    return first_s + max(0.0, later_s - device_s - launch_s)


def _without_readings(
    read: Mapping[str, float], counts: Mapping[str, int], hosts: Set[str], span_s: float
) -> list[float]:
    """Return the seconds of each stage without the cost of the clock readings between them."""
    readings = [each for each in read if each not in hosts for _ in range(counts[each])]
    left_s = span_s - sum(read[each] for each in hosts)
    shares = [read[each] / counts[each] for each in readings]
    # If the device's stages took longer than the plain chain, the time of a reading is subtracted for each launch.
    plain = dict.fromkeys(read, 0.0) | {each: read[each] for each in hosts}
    for each, seconds in zip(readings, fit_to_sum(shares, min(left_s, sum(shares))), strict=True):
        plain[each] += seconds
    return list(plain.values())


def _declare_stages(name: str, names: Sequence[str]) -> tuple[dict[str, int], set[str]]:
    """Return how often each of `names` occurs among the op's stages, and which ones the host runs."""
    from gpubench import kernels  # few files hold stages of a GPU, and reading one loads no op

    declared, hosts = Counter[str](), set[str]()
    with contextlib.suppress(KeyError, GpubenchError):  # the op of a package that is not here, or is broken
        stages = kernels.load(name).stages
        declared = Counter(stage.name for stage in stages)
        hosts = {s.name for s in stages if s.name in names and kernels.load(s.op).host is not None}
    counts, count = dict.fromkeys(names, 1), 1
    for each in reversed(names):
        # A stage that the op no longer has counts as often as the stage after it: files have norms that are now
        # one stage with the product after them.
        counts[each] = count = declared.get(each, count)
    return counts, hosts


def _tokens_per_s(times: StageTimes, chain_s: Sequence[float], whole_s: float) -> dict[str, float]:
    rates = {}
    for part, count in times.tokens.items():
        by_stage = zip(times.stages, chain_s, strict=True)
        seconds = sum(stage_s for name, stage_s in by_stage if name.startswith(f"{part}."))
        if seconds > 0:
            rates[part] = count / (whole_s * seconds / sum(chain_s))
    return rates


def _misses(residual_s: float, whole_s: float) -> bool:
    return abs(residual_s) > SHARE * whole_s and abs(residual_s) > LEAST_S


def _by_stage(timed: Sequence[StageTimes], of: Callable[[StageTimes], list[list[float]]]) -> list[float]:
    return [_typical(sessions) for sessions in zip(*(of(times) for times in timed), strict=True)]


def _typical(sessions: Iterable[list[float]]) -> float:
    return median([median(values) for values in sessions])


def list_mismatches(analysis: Analysis) -> list[str]:
    """Return the ids of the cases whose stages do not add up to the whole (`Stages.mismatch`)."""
    return [breakdown.id for breakdown in stages(analysis) if breakdown.mismatch]


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
# The cost of clock readings is reported if it is more than this share of the whole.
SHOWN = 0.05
# The labels of the lines of a table that are not stages.
LAUNCH, RECORDING, REST, WHOLE = "launch, wait", "recording", "rest", "whole"


@section("stages", order=140, help="Where the time of a network goes")
def stages_section(analysis: Analysis, options: RenderOptions) -> Section:
    """Return the section with a table for each workload, size and device other than a CPU, with the fastest CPU
    beside the device. If only CPUs were timed, a table shows the fastest CPU alone."""
    rows = shown = list(stages(analysis))
    if not options.every_size:
        shown = at_largest(
            rows, lambda breakdown: series_name(breakdown.case.case), lambda breakdown: breakdown.n
        )
    groups = group_by(shown, lambda breakdown: (series_name(breakdown.case.case), breakdown.n))
    tables = [table for same in groups.values() for table in _tables(analysis, same, options.time_unit)]
    lines = [_MEANING] if tables else []
    if len(shown) < len(rows):
        lines.append("The largest size of each workload; all sizes: --sections stages.")
    return Section(title=TITLE, lines=tuple(lines), tables=tuple(tables), folded=True)


def _tables(analysis: Analysis, rows: Sequence[Stages], unit: str) -> list[Table]:
    on_cpu = [breakdown for breakdown in rows if breakdown.case.device_kind == "cpu"]
    best = min(on_cpu, key=lambda breakdown: breakdown.whole_s, default=None)
    others = [breakdown for breakdown in rows if breakdown.case.device_kind != "cpu"]
    return [_table(analysis, breakdown, best, unit) for breakdown in others or ([best] if best else [])]


def _table(analysis: Analysis, breakdown: Stages, cpu: Stages | None, unit: str) -> Table:
    beside = cpu if cpu is not None and cpu.device_id != breakdown.device_id else None
    paired = beside is not None
    name = "CPU" if beside is None and cpu is not None else _short(breakdown)
    columns = heads(
        "stage", paired and number("CPU"), paired and number("of CPU", 2), number(name), number("alone", 1),
        number(f"of {name}"),
    )  # fmt: skip
    both = (breakdown, beside) if beside else (breakdown,)
    stages = dict.fromkeys(stage.stage for side in both for stage in side.stages)
    body = [
        (
            *cells(label),
            *(_cells(beside, label, unit, alone=False) if beside else ()),
            *_cells(breakdown, label, unit, alone=True),
        )
        for label in (*stages, LAUNCH, *([RECORDING] if breakdown.recording_s else []), REST, WHOLE)
    ]
    against = f" against {device_text(analysis, beside.device_id)}" if beside else ""
    legend = [_rates(breakdown, beside)] if breakdown.tokens_per_s else []
    if breakdown.tokens_differing:
        legend.append(f"{breakdown.tokens_differing} of its tokens differ from float64's")
    if breakdown.stamping_s > SHOWN * breakdown.whole_s:
        legend.append(f"{seconds_text(breakdown.stamping_s, unit)} of clock readings are taken off the stages")
    legend += [_RECORDING] if breakdown.recording_s else []
    legend += [_WAITED] if breakdown.clock == "waited" else []
    legend += [_MISMATCH] if breakdown.mismatch or (beside and beside.mismatch) else []
    return Table(
        columns, tuple(body), legend="; ".join(legend),
        title=f"{series_name(breakdown.case.case)}, n {size_text(breakdown.case).partition(' ')[0]}",
        note=f"{device_text(analysis, breakdown.device_id)}{against}",
    )  # fmt: skip


def _rates(breakdown: Stages, cpu: Stages | None) -> str:
    """Return a text such as `tokens/s: prefill 310,000 (CPU 66,000), decode 5,900 (CPU 3,100)`."""
    on_cpu = cpu.tokens_per_s if cpu is not None else {}
    parts = [
        f"{part} {_count(rate)}" + (f" (CPU {_count(on_cpu[part])})" if part in on_cpu else "")
        for part, rate in breakdown.tokens_per_s.items()
    ]
    return f"tokens/s: {', '.join(parts)}"


def _count(rate: float) -> str:
    """Return the rate as a text, rounded to three significant digits."""
    return f"{float(f'{rate:.2e}'):,.0f}"


def _short(breakdown: Stages) -> str:
    return {"gpu": "GPU", "software": "adapter"}.get(breakdown.case.device_kind, breakdown.device_id)


def _cells(breakdown: Stages, label: str, unit: str, *, alone: bool) -> tuple[Cell, ...]:
    """Return the cells of a line: the time in the chain, the time alone if `alone` is set, and the share."""
    seconds = seconds_of(breakdown).get(label)
    seconds = None if label == LAUNCH and not seconds else seconds
    entry = next((stage for stage in breakdown.stages if stage.stage == label), None)
    share = "-" if seconds is None else share_text(seconds / breakdown.whole_s)
    tone = Cell(f"{share}!", "bad") if label == REST and breakdown.mismatch else Cell(share)
    times = [seconds_text(seconds, unit)]
    times += [seconds_text(entry.alone_s if entry else None, unit)] if alone else []
    return cells(*times, tone)


def seconds_of(breakdown: Stages) -> dict[str, float]:
    """Return the seconds of every line of a table by its label, in the order of the lines: the stages, the launch, the
    recording if there is any, the rest, the whole."""
    recording = {RECORDING: breakdown.recording_s} if breakdown.recording_s else {}
    stages = {stage.stage: stage.chain_s for stage in breakdown.stages}
    return (
        stages
        | {LAUNCH: breakdown.launch_s}
        | recording
        | {REST: breakdown.residual_s, WHOLE: breakdown.whole_s}
    )


COLUMNS = (
    ("device", "device"), ("size", "n"), ("stage", "stage"), ("time", "time"), ("alone", "alone"), ("share", "share"),
    ("whole", "whole call"),
)  # fmt: skip
CAPTION = (
    "Where the time of a workload goes on each device. The stages are timed in the chain, the whole is a call of the "
    "plain chain; a rest below 0 is not drawn. A pale bar is of stages that miss the whole by more than 10 %."
)


@chart("stages", order=70)
def stages_chart(analysis: Analysis, options: RenderOptions) -> Chart:
    """Return a chart with a stacked bar for each device and size. The parts of a bar are the stages in order. Stages
    of the same name in two parts of an op, such as `prefill.heads` and `decode.heads`, have one colour."""
    encoding = {
        "x": charts.quantity(
            "value", aggregate="sum", title="time of one call", stack="zero",
            axis={"labelExpr": charts.SECONDS, "tickCount": 5},
        ),
        "y": charts.word(
            "bar", title=None, sort={"field": "n", "op": "min"}, axis={"labelLimit": 120, "ticks": False}
        ),
        "color": charts.word(
            "kind", sort={"field": "order", "op": "min"}, scale={"scheme": "tableau20"},
            legend={"title": None, "columns": 4},
        ),
        "opacity": charts.quantity("opacity", scale=None), "order": charts.quantity("order"),
        "tooltip": charts.tooltip(COLUMNS),
    }  # fmt: skip
    spec = charts.make_spec(CAPTION, charts.layer("bar", encoding, height=16))
    spec |= {"height": {"step": 24}, "autosize": {"type": "fit-x", "contains": "padding"}}
    rows = charts.by_series(
        (breakdown.case.case, part)
        for breakdown in stages(analysis)
        for part in _bar(breakdown, options.time_unit)
    )
    return Chart(id="stages", title=TITLE, caption=CAPTION, rows=rows, spec=spec)


def _bar(breakdown: Stages, unit: str) -> Iterator[ChartRow]:
    alone = {stage.stage: stage.alone_s for stage in breakdown.stages}
    for i, (name, seconds) in enumerate(seconds_of(breakdown).items()):
        if name != WHOLE and seconds > 0:
            yield charts.case_fields(breakdown.case, regime=False) | {
                "bar": f"{breakdown.n} {breakdown.device_id}", "stage": name, "kind": name.rpartition(".")[2],
                "order": i, "value": charts.short(seconds),
                "time": seconds_text(seconds, unit), "alone": seconds_text(alone.get(name), unit),
                "share": share_text(seconds / breakdown.whole_s), "whole": seconds_text(breakdown.whole_s, unit),
                "opacity": 0.35 if breakdown.mismatch else 1.0,
            }  # fmt: skip


def _csv_stages(breakdown: Stages) -> Iterable[Mapping[str, CsvValue]]:
    """Yield a CSV row for each stage. `time_s` is its time in the chain."""
    for stage in breakdown.stages:
        yield {"stage": stage.stage, "time_s": stage.chain_s, "stage_alone_s": stage.alone_s}


ROWS = (Rows("stages", Stages, stages, order=150, parts=_csv_stages),)
