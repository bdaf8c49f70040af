"""The sections about the cases: all numbers of each case, the chart of times, the environment, cases without a
number by reason, warnings with advice, noise, and gates."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.estimate import CHECK_ONLY, IMPLAUSIBLE, CaseResult
from gpubench.analysis.findings import ReportGate, ReportWarning, findings, gates
from gpubench.analysis.samples import Components, components
from gpubench.base import group_by
from gpubench.base.plugins.sections import Rows, chart, section
from gpubench.base.streams import printable, shorten
from gpubench.base.table import Cell, Column, Table, Tone, cells, heads, number
from gpubench.base.units import count_noun, format_bytes, truncate
from gpubench.report.charts import (
    SECONDS,
    Chart,
    banded_curves,
    by_series,
    case_fields,
    chart_cases,
    make_spec,
    short,
)
from gpubench.report.layout import RenderOptions, Section
from gpubench.report.wording import (
    computes,
    mark,
    rate_text,
    seconds_text,
    share_text,
    time_interval_text,
    time_text,
)

if TYPE_CHECKING:
    from gpubench.compare.comparison import Gate  # a report does not load what compares


@section("environment", order=190, help="Versions, devices and settings")
def environment_section(analysis: Analysis, options: RenderOptions) -> Section:
    """Return the section about the environment of the run: versions, devices, settings and recorded
    variables."""
    run = analysis.run
    tools = ", ".join(f"{name} {version}" for name, version in sorted(run.tool.items()))
    settings = run.settings
    lines = [f"Software: {printable(tools)}"] if tools else []
    lines.append(
        f"Protocol: {settings.min_samples} to {settings.max_samples} samples a session, precision "
        f"{share_text(settings.precision)}, order {settings.order}, inputs {settings.inputs}, "
        f"{'caches cold, ' if settings.cache == 'cold' else ''}"
        f"{'arrays page-locked, ' if run.page_locked else ''}"
        f"seed {settings.seed}"
    )
    lines += [printable(f"{name}={value}") for name, value in sorted(run.environment.variables.items())]
    columns = heads(
        "device", "kind", "name", Column("api", rank=1), number("memory"),
        Column("driver", rank=2),
    )  # fmt: skip
    rows = [
        cells(
            device.id, device.kind, shorten(device.name, 30), device.api,
            format_bytes(device.memory_bytes) if device.memory_bytes else "-", shorten(device.driver or "-", 20),
        )
        for device in run.devices
    ]  # fmt: skip
    tables = (Table(columns, tuple(rows)),) if rows else ()
    return Section(title="Environment", lines=tuple(lines), tables=tables, folded=True)


@section("raw", order=200, usual=False, help="Every case with its id")
def raw_section(analysis: Analysis, options: RenderOptions) -> Section:
    """Return the section that lists every case that has a time, with its interval and id."""
    unit = options.time_unit
    chosen = any(result.kernel for result in analysis.cases)
    columns = heads(
        number("wall"), number("95 % interval"), number("device cold", 2),
        number("rate", 3), number("sessions x samples", 1), "case",
        chosen and Column("kernel", rank=4),
    )  # fmt: skip
    rows = [
        cells(
            time_text(result.time, unit) + mark(result.label), time_interval_text(result.time, unit),
            seconds_text(result.device_cold_s, unit), rate_text(result.rates, flops=computes(result)),
            f"{len(result.sessions)} x {min(map(len, result.sessions.values()))}",
            result.id,
            chosen and printable(result.kernel or "-"),
        )
        for result in analysis.cases
        if result.time is not None
    ]  # fmt: skip
    rate = "rate: each input read once and the output written once, by the device's cold clock where it has one"
    tables = (Table(columns, tuple(rows), legend=rate),) if rows else ()
    return Section(title="All cases", tables=tables, folded=True)


COLUMNS = (
    ("who", "device"), ("regime", "data"), ("implementation", "implementation"), ("size", "n"), ("time", "wall time"),
    ("interval", "95 % interval"), ("label", "label"),
)  # fmt: skip
CAPTION = (
    "Wall time of one call against size, both axes logarithmic. The band is the 95 % interval; a hollow point has a "
    "label such as noisy. Where a curve of the GPU falls below that of the CPU, the GPU wins."
)


@chart("speedup", order=10)
def time_chart(analysis: Analysis, options: RenderOptions) -> Chart:
    """Return the chart of the times, with one line for each device and regime."""
    unit = options.time_unit
    rows = by_series(
        (
            result.case,
            case_fields(result)
            | {
                "value": short(result.time.estimate), "low": short(result.time.low), "high": short(result.time.high),
                "time": time_text(result.time, unit), "interval": time_interval_text(result.time, unit),
            },
        )
        for result in chart_cases(analysis)
        if result.time is not None
    )  # fmt: skip
    curves = banded_curves(analysis, "wall time of one call", SECONDS, COLUMNS)
    spec = make_spec(CAPTION, *curves)
    return Chart(id="time", title="Time against size", caption=CAPTION, rows=rows, spec=spec)


SHOWN = 3
DETAIL_LENGTH = 160
_ORDER = {"failure": 0, "measurement": 1, "skip": 2, "planned": 3}
_WORDS = {"failure": "failed", "skip": "skipped", "planned": "not reached", "measurement": "no estimate"}
_TONES: dict[str, Tone] = {"error": "bad"}
_HALVED, _PLAIN = "top-halved", "not-compiled"  # codes of warnings about one op, or one file of functions
_SIZE = re.compile(r"/n=(\d+)")


@section("skipped", order=100, help="Cases without a number, with the reason")
def skipped_section(analysis: Analysis, options: RenderOptions) -> Section:
    """Return the section of the cases without a time, by reason, failures first. Cases of a run that only
    checks are left out."""
    groups = group_by(
        (entry for entry in analysis.cases if entry.time is None and entry.reason != CHECK_ONLY), _kind
    )
    ordered = sorted(groups.items(), key=lambda item: (_ORDER[item[0][0]], item[0]))
    lines = tuple(_group_text(rows, SHOWN if options.full else 1) for _, rows in ordered)
    return Section(title="Skipped and failed cases", lines=lines, folded=True)


def _kind(entry: CaseResult) -> tuple[str, ...]:
    """Return the key of the line that tells of a case. Skips share a line by backend, other cases with a
    message by device and message."""
    detail = "" if entry.outcome == "skip" else entry.detail or ""
    return (entry.outcome, entry.reason or "", entry.case.device_id if detail else entry.case.backend, detail)


@section("warnings", order=180, help="What limits the numbers, with advice")
def warnings_section(analysis: Analysis, options: RenderOptions) -> Section:
    """Return the section of the warnings with their cases and advice. A full report has them in a table."""
    warnings = merge_findings(findings(analysis))
    if options.full:
        columns = heads("warning", "meaning and advice")
        rows = tuple(
            cells(Cell(entry.code, _TONES.get(entry.severity, "plain")), _warning_text(entry))
            for entry in warnings
        )
        return Section(title="Warnings", tables=(Table(columns, rows),) if rows else ())
    lines = [line for entry in warnings for line in _warning_lines(entry)]
    return Section(title="Warnings", lines=tuple(lines))


def merge_findings(findings: Sequence[ReportWarning]) -> list[ReportWarning]:
    """Return the warnings. Those that differ only in their cases are merged into one, and so are those with the
    same advice that concern no cases."""
    groups = group_by(findings, lambda entry: (entry.code, entry.message if entry.ids else "", entry.hint))
    return [
        msgspec.structs.replace(
            rows[0], message=_joined_text(rows), ids=tuple(case_id for entry in rows for case_id in entry.ids)
        )
        for rows in groups.values()
    ]  # fmt: skip


def _joined_text(rows: Sequence[ReportWarning]) -> str:
    """Return the message of merged warnings, such as `14 ops are measured up to smaller sizes than ...`."""
    first = rows[0].message
    if rows[0].code == _PLAIN:
        before, colon, _ = first.partition(": ")
        return before + colon + ", ".join(entry.message.partition(": ")[2] for entry in rows)
    if len(rows) == 1 or rows[0].code != _HALVED:
        return "; ".join(dict.fromkeys(entry.message.rstrip(".") for entry in rows))
    sizes = [entry.message.partition(", not ")[0].replace(" is measured", "") for entry in rows]
    return (
        f"{len(rows)} ops are measured up to smaller sizes than the tops of their ladders, which would take too long "
        f"here: {', '.join(sizes)}"
    )


def ids_text(ids: Sequence[str], shown: int = SHOWN) -> str:
    """Return the first `shown` ids and the number of further ids as text. Ids that differ only in size count as
    one, such as `add/n=64..4096/float32/tuned/resident@numpy:0`."""
    sizes: dict[str, list[int]] = {}
    for case_id in ids:
        match = _SIZE.search(case_id)
        name = _SIZE.sub("/n={}", case_id, count=1)
        sizes.setdefault(name, []).extend([int(match[1])] if match else [])
    texts = [name.replace("{}", _range(numbers)) for name, numbers in sizes.items()]
    return truncate(texts, shown)


def _range(sizes: Sequence[int]) -> str:
    if not sizes:
        return ""
    return str(sizes[0]) if len(sizes) == 1 else f"{min(sizes)}..{max(sizes)}"


def _group_text(rows: Sequence[CaseResult], shown: int) -> str:
    first = rows[0]
    what = "excluded" if first.reason == IMPLAUSIBLE else _WORDS[first.outcome]
    detail = f": {shorten(first.detail, DETAIL_LENGTH)}" if first.detail else ""
    others = len({entry.detail for entry in rows}) - 1
    detail += f" (and {others} similar)" if others else ""
    hint = f" ({shorten(first.hint, DETAIL_LENGTH)})" if first.hint else ""
    count = count_noun(len(rows), "case")
    where = ids_text([entry.id for entry in rows], shown)
    reason = "" if first.outcome == "planned" else f", {first.reason}"
    devices = ", ".join(sorted({entry.case.device_id for entry in rows}))
    return f"{what}{reason}{detail}{hint}; {count} on {devices}: {where}"


def _warning_text(finding: ReportWarning) -> str:
    where = f" ({count_noun(len(finding.ids), 'case')}: {ids_text(finding.ids)})"
    advice = f". Advice: {printable(finding.hint)}" if finding.hint else ""
    return printable(finding.message).rstrip(".") + (where if finding.ids else "") + advice


def _warning_lines(finding: ReportWarning) -> list[str]:
    """Return a line with the warning and its advice, and a second line if it concerns cases."""
    count = f" ({count_noun(len(finding.ids), 'case')})" if finding.ids else ""
    advice = f". Advice: {printable(finding.hint)}" if finding.hint else "."
    lines = [f"{finding.code}{count}: {printable(finding.message).rstrip('.')}{advice}"]
    return lines + ([f"  {ids_text(finding.ids, 1)}"] if finding.ids else [])


_LENGTHS = {"short": "< 50 us", "middle": "50 us-1 ms", "long": ">= 1 ms"}


@section("noise", order=170, usual=False, help="How far times scatter")
def noise_section(analysis: Analysis, options: RenderOptions) -> Section:
    """Return the section on how much times scatter, with a row for each device and each length of a launch."""
    scatters = components(analysis.run)
    columns = heads(
        "device", "launches", number("cases", 1), number("in a block"),
        number("between blocks"), number("sessions"),
    )  # fmt: skip
    legend = (
        "standard deviations, each without those to its left; -: nothing was repeated; in brackets: repetitions"
    )
    body = [
        cells(entry.device_id, _LENGTHS[entry.launches], str(entry.cases), *_scatter(entry))
        for entry in scatters
    ]
    tables = (Table(columns, tuple(body), legend=legend),) if scatters else ()
    return Section(title="Noise", tables=tables, folded=True)


def _scatter(entry: Components) -> list[str]:
    scatters = (
        (entry.within, entry.within_degrees), (entry.blocks, entry.blocks_degrees),
        (entry.sessions, entry.sessions_degrees),
    )  # fmt: skip
    return ["-" if share is None else f"{share_text(share)} ({degrees})" for share, degrees in scatters]


MOST_IDS = 5


@section("gates", order=50, choice=False, help="How the gates ended")
def gates_section(analysis: Analysis, options: RenderOptions) -> Section:
    """Return the section of the gates, with one line for each, passed or failed."""
    return Section(title="Gates", lines=tuple(gate_text(gate) for gate in gates(analysis)), asked=True)


def gate_text(gate: ReportGate | Gate) -> str:
    """Return the outcome of a gate, such as `min-speedup matmul=5x: FAILED: below 5x: matmul/n=64/...` or
    `slower: FAILED: matmul/n=64/...`."""
    name = gate_name(gate)
    least = "" if gate.least is None else f"{gate.least:g}x"
    below = f"below {least}: " if least else ""
    reasons = (gate.reason or "", _cases(below, gate.low), _cases("no number: ", gate.missing))
    parts = [part for part in reasons if part]
    near = _cases(f"{least} lies inside the interval of ", gate.near)
    if not gate.passed:
        return f"{name}: FAILED: {'; '.join([*parts, *([near] if near else [])])}"
    return f"{name}: passed, but {near}" if near else f"{name}: passed"


def gate_name(gate: ReportGate | Gate) -> str:
    """Return the gate as the user wrote it, such as `min-speedup matmul=5` or `noisy`."""
    return printable(f"{gate.name} {gate.selector}" if gate.selector else gate.name)


def _cases(what: str, ids: tuple[str, ...]) -> str:
    return printable(what + truncate(ids, MOST_IDS)) if ids else ""


ROWS = (
    Rows("cases", CaseResult, lambda analysis: analysis.cases, order=10),
    Rows("noise", Components, lambda analysis: components(analysis.run), order=190),
    Rows("gates", ReportGate, gates, order=210),
    Rows("warnings", ReportWarning, findings, order=220),
)
