"""Break-even and speedup tables."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.model.case import REGIMES
from gpubench.report.analysis.baseline import baseline_line, cpu_line
from gpubench.report.analysis.types import Analysis, BreakEven, CaseResult, Speedup
from gpubench.report.analysis.verdict import verdict_text
from gpubench.report.formats._document import Cell, Column, Section, Table, Tone, cells, printable, shortened
from gpubench.report.formats._numbers import legend, mark, rate_text, ratio_text, short_ratio_text, time_text
from gpubench.units import format_size

_DATA = {"resident": "resident", "transfer-always": "always"}
_FORMS = {"library": "lib", "tuned": "tuned"}
WHERE = (
    "data: resident = already on the device; once-N = N calls share one copy; "
    "always = every call copies both ways"
)


def break_even_section(analysis: Analysis) -> Section:
    """One row per curve: from which size on the device wins for all larger sizes."""
    columns = (
        Column("op"), Column("dtype", rank=1), Column("device"), Column("data"), Column("GPU wins"),
        Column("at largest", right=True, rank=2), Column("measured n", rank=3),
    )  # fmt: skip
    rows = [
        cells(
            _subject(row), row.dtype, row.device_id, _data(row.regime, row.calls),
            Cell(verdict_text(row), _verdict_tone(row)), short_ratio_text(row.last_ratio) + mark(row.last_label),
            _range(row),
        )
        for row in analysis.break_even
    ]  # fmt: skip
    marks = legend({row.last_label for row in analysis.break_even})
    text = f"{WHERE}; {marks}" if marks else WHERE
    tables = (Table(columns, tuple(rows), note=printable(analysis.baseline), legend=text),) if rows else ()
    return Section(key="breakeven", title="Break-even: the size from which the GPU wins", tables=tables)


def speedup_section(analysis: Analysis, unit: str) -> Section:
    """A table per device, op and dtype; software adapters after all devices; without a GPU, the CPU's forms."""
    headline = [row for row in analysis.speedups if row.kind == "headline"]
    real = [row for row in headline if row.case.device_kind != "software"]
    software = [row for row in headline if row.case.device_kind == "software"]
    tables = [_speedup_table(analysis, group, unit) for group in _by_table([*real, *software])]
    if not real and any(row.device_kind == "cpu" and row.time for row in analysis.cases):
        tables.insert(0, _cpu_table(analysis, unit))
    title = "Speedup: CPU time / GPU time" if real else "CPU: library and tuned form"
    title = (
        title if all(row.baseline.device_kind == "cpu" for row in headline) else "Speedup: baseline / device"
    )
    return Section(key="speedup", title=title, tables=tuple(tables))


def device_text(analysis: Analysis, device_id: str) -> str:
    """`cupy:0 (NVIDIA H200)`; a software adapter says that it is one."""
    device = next((device for device in analysis.run.devices if device.id == device_id), None)
    if device is None:
        return device_id
    software = "software adapter: no GPU, no headline; " if device.kind == "software" else ""
    return f"{device_id} ({software}{shortened(device.name)})"


def _by_table(rows: Sequence[Speedup]) -> list[list[Speedup]]:
    groups: dict[tuple[object, ...], list[Speedup]] = {}
    for row in rows:
        case = row.case.case
        groups.setdefault((case.op, case.dtype, case.device_id), []).append(row)
    # One regime after the other, sizes ascending: each is a curve, and a search measures other sizes for each.
    return [sorted(group, key=_regime_first) for group in groups.values()]


def _regime_first(row: Speedup) -> tuple[int, int]:
    return (REGIMES.index(row.case.case.regime), row.case.case.calls or 0)


def _speedup_table(analysis: Analysis, rows: Sequence[Speedup], unit: str) -> Table:
    first = rows[0].case
    side = {"software": "adapter", "hybrid": "hybrid"}.get(first.device_kind, "GPU")
    against = "CPU" if rows[0].baseline.device_kind == "cpu" else "baseline"
    library = _library_rows(analysis, rows)
    columns = (
        Column("data"), Column("n", right=True), Column(against, right=True, rank=1), Column(side, right=True),
        Column("speedup", right=True), *([Column("lib/lib", right=True, rank=2)] if library else []),
    )  # fmt: skip
    body = []
    for row in rows:
        case = row.case.case
        beside = library.get((case.workload, case.regime_id))
        beside_text = short_ratio_text(beside.ratio) + mark(beside.label) if beside else "-"
        body.append(
            cells(
                _data(case.regime, case.calls), size_text(row.case), _timed(row.baseline, unit),
                _timed(row.case, unit), Cell(ratio_text(row.ratio) + mark(row.label), _tone(row)),
                *([beside_text] if library else []),
            )
        )  # fmt: skip
    return Table(
        columns, tuple(body),
        title=f"{first.case.op} {first.case.dtype} on {device_text(analysis, first.case.device_id)}",
        note=printable(baseline_line(analysis.run, rows)), legend=legend({row.label for row in rows}),
    )  # fmt: skip


def _library_rows(analysis: Analysis, rows: Sequence[Speedup]) -> dict[tuple[str, str], Speedup]:
    """The library-to-library ratios that belong to the rows of one table, by workload and regime.

    None where every headline is that ratio already: the column would say everything twice.
    """
    if all({row.baseline.case.form, row.case.case.form} == {"library"} for row in rows):
        return {}
    wanted = {(row.case.case.workload, row.case.case.device_id) for row in rows}
    return {
        (row.case.case.workload, row.case.case.regime_id): row
        for row in analysis.speedups
        if row.kind == "library" and (row.case.case.workload, row.case.case.device_id) in wanted
    }


def _cpu_table(analysis: Analysis, unit: str) -> Table:
    columns = (
        Column("op"), Column("dtype", rank=1), Column("n", right=True), Column("library", right=True),
        Column("tuned", right=True), Column("compute", right=True, rank=3), Column("payload", right=True, rank=2),
    )  # fmt: skip
    workloads: dict[tuple[str, str], dict[str, CaseResult]] = {}
    for row in analysis.cases:
        if row.device_kind == "cpu" and row.time is not None:
            workloads.setdefault((row.case.workload, row.case.device_id), {})[row.case.form] = row
    body = []
    for forms in workloads.values():
        best = min(forms.values(), key=lambda row: (row.time.estimate if row.time else 0.0, row.id))
        texts = [
            time_text(forms[form].time, unit) + mark(forms[form].label) if form in forms else "-"
            for form in ("library", "tuned")
        ]
        rates = [rate_text(best.rates, flops=flops) for flops in (True, False)]
        body.append(cells(best.case.op, best.case.dtype, size_text(best), *texts, *rates))
    labels = {row.label for forms in workloads.values() for row in forms.values()}
    note = f"{printable(cpu_line(analysis.run))}; wall time of one call, rates of the faster form"
    payload = "payload: each input read once and the output written once"
    return Table(columns, tuple(body), note=note, legend="; ".join(filter(None, [legend(labels), payload])))


def size_text(row: CaseResult) -> str:
    """n, and the other params where the op has some: `4096 batch=8`."""
    rest = "".join(f" {name}={value}" for name, value in sorted(row.case.params.items()) if name != "n")
    return format_size(row.case.params.get("n", 0), table=True) + rest


def _range(row: BreakEven) -> str:
    return f"{format_size(row.first, table=True)}..{format_size(row.last, table=True)}"


def _subject(row: BreakEven) -> str:
    return row.op + "".join(f" {name}={value}" for name, value in row.params.items())


def _data(regime: str, calls: int | None) -> str:
    return f"once-{calls}" if regime == "transfer-once" else _DATA[regime]


def _timed(row: CaseResult, unit: str) -> str:
    return f"{time_text(row.time, unit)} {_FORMS[row.case.form]}"


def _tone(row: Speedup) -> Tone:
    if not row.headline:
        return "muted"
    return "good" if row.ratio.low > 1 else "bad" if row.ratio.high < 1 else "plain"


def _verdict_tone(row: BreakEven) -> Tone:
    if row.verdict in ("always", "at"):
        return "good"
    return "bad" if row.verdict in ("never", "beyond-limit") else "muted"
