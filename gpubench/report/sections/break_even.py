"""The break-even table: a row per op, dtype and device, a column per regime."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.break_even import BreakEven, bracketed, interval_text, size_text
from gpubench.analysis.reuse import Reuse
from gpubench.foreign_text import printable
from gpubench.report.layout import Cell, Column, Section, Table, Tone, cells
from gpubench.report.wording import (
    FORMS,
    data_text,
    device_text,
    legend,
    mark,
    regimes,
    seconds_text,
    short_ratio_text,
    time_text,
    where_legend,
)
from gpubench.units import format_size

TITLE = "Break-even: the size n from which the GPU wins"
_WORDS = {
    "all-sizes": "< n: wins at every size measured, of which n is the smallest",
    "no-size": "> n: loses at every size measured, of which n is the largest",
    "undecided": "?: undecided, with what is known",
}  # fmt: skip
_RISING = "rising: its ratio still grows with size"
_MIXED = "mixed: it wins and loses by turns below"
_PERCENT = "-4% +25%: the ends of the interval"
_NO_INTERVAL = "intervals: in a wider terminal or --format markdown"
BreakEvenStyle = Callable[[BreakEven], str]
Family = dict[str, BreakEven]  # one op, dtype and device, by regime


def break_even_section(analysis: Analysis, *, full: bool) -> Section:
    """`full`: with every column, whatever its width."""
    if not analysis.break_even:
        return Section(key="breakeven", title=TITLE)
    line, rows = printable(analysis.baseline), analysis.break_even
    if full:
        tables = [_table(analysis, rows, _with_interval, None, full=True)]
    else:
        tables = []
        for dtype in dict.fromkeys(row.dtype for row in rows):
            ours = [row for row in rows if row.dtype == dtype]
            table = _table(analysis, ours, _bare, None, full=False)
            for style in (_with_percent, _with_interval):
                table = _table(analysis, ours, style, table, full=False)
            tables.append(table)
    return Section(key="breakeven", title=TITLE, lines=(line,), tables=tuple(tables))


def _table(
    analysis: Analysis, rows: Sequence[BreakEven], text: BreakEvenStyle, narrower: Table | None, *, full: bool
) -> Table:
    """What is the same in all rows (dtype, device) stands in the title instead of a column, unless `full`."""
    data = regimes(row.case for row in rows)
    devices = {row.device_id for row in rows}
    by_device = full or len(devices) > 1
    columns = [Column("op")]
    columns += [Column("dtype")] if full else []
    columns += [Column("device")] if by_device else []
    columns += [Column(name) for name in data]
    columns += [Column("speedup and time at the largest n")] if full else []
    body = []
    for device, family in _families(rows, merge=not full):
        first = next(iter(family.values()))
        row: list[str | Cell] = [first.op + "".join(f" {name}={value}" for name, value in first.params.items())]
        row += [first.dtype] if full else []
        row += [device] if by_device else []
        row += [Cell(text(family[name]), _tone(family[name])) if name in family else "" for name in data]
        last = max(one.last for one in family.values())
        row += (
            [" / ".join(_gain(family[name], last) if name in family else "-" for name in data)] if full else []
        )
        body.append(cells(*row, _measured(list(family.values()))))
    title = "" if full else rows[0].dtype
    title += "" if by_device else f" on {device_text(analysis, min(devices))}"
    return Table(
        (*columns, Column("measured n", rank=1)), tuple(body), title=printable(title),
        legend=_legend(rows, text, full=full), narrower=narrower,
    )  # fmt: skip


def _families(rows: Sequence[BreakEven], *, merge: bool) -> list[tuple[str, Family]]:
    """The rows of each op and device by regime, with the device's name.

    `merge`: devices of one op share a row where none of them has a verdict, for the same reason.
    """
    ops: dict[tuple[object, ...], dict[str, Family]] = {}
    for row in rows:
        by_device = ops.setdefault((row.op, tuple(row.params.items()), row.dtype), {})
        by_device.setdefault(row.device_id, {})[data_text(row.case)] = row
    found: list[tuple[str, Family]] = []
    for by_device in ops.values():
        said = {tuple((name, _said(row)) for name, row in family.items()) for family in by_device.values()}
        undecided = all(row.verdict == "undecided" for family in by_device.values() for row in family.values())
        if merge and undecided and len(said) == 1 and len(by_device) > 1:
            found.append((f"all {len(by_device)}", next(iter(by_device.values()))))
        else:
            found += by_device.items()
    return found


def _with_interval(row: BreakEven) -> str:
    if row.verdict != "at":
        return _said(row)
    low, high = (None if n is None else format_size(n, table=True) for n in (row.lo, row.hi))
    if low is None or high is None:
        return size_text(row) + interval_text(row) + _mixed(row)
    return f"{size_text(row)} [{low}, {high}]{_mixed(row)}"


def _with_percent(row: BreakEven) -> str:
    if row.verdict != "at" or row.n is None or row.lo is None or row.hi is None:
        return _said(row)
    shown = int(size_text(row))
    # Outwards: the percents never say less than the interval.
    down, up = math.ceil((1 - row.lo / shown) * 100 - 1e-9), math.ceil((row.hi / shown - 1) * 100 - 1e-9)
    return f"{shown} -{max(0, down)}% +{max(0, up)}%{_mixed(row)}"


def _bare(row: BreakEven) -> str:
    """In as few signs as there can be: sizes from 2^20 on may take ten and more."""
    if row.verdict == "at":
        return size_text(row) + _mixed(row)
    return "? crosses" if bracketed(row) else _said(row)


def _said(row: BreakEven) -> str:
    """What a cell says that has no threshold."""
    if row.verdict == "all-sizes":
        return f"< {format_size(row.first, table=True)}"
    if row.verdict == "no-size":
        return f"> {format_size(row.last, table=True)}" + (" rising" if row.reason == "rising" else "")
    return f"? {row.lo}..{row.hi}" if bracketed(row) else f"? {row.reason}"


def _mixed(row: BreakEven) -> str:
    return ", mixed" if row.mixed else ""


def _legend(rows: Sequence[BreakEven], text: BreakEvenStyle, *, full: bool) -> str:
    parts = [where_legend(row.case for row in rows)]
    if any(row.verdict == "at" for row in rows):
        parts += [_PERCENT] if text is _with_percent else []
        parts += [_NO_INTERVAL] if text is _bare else []
    parts += [words for name, words in _WORDS.items() if any(row.verdict == name for row in rows)]
    parts += [_RISING] if any(row.reason == "rising" for row in rows) else []
    parts += [_MIXED] if any(row.mixed for row in rows) else []
    if any(bracketed(row) for row in rows):
        name, where = ("? crosses", "one size") if text is _bare else ("? a..b", "a")
        other = "another" if text is _bare else "b"
        parts.append(f"{name}: loses at {where}, wins at {other}, too far apart to say more")
    marks = legend({row.at_last.label for row in rows}) if full else ""
    return "; ".join([*parts, *([marks] if marks else [])])


def _gain(row: BreakEven, last: int) -> str:
    """`54x 2.85 ms`; with its size where the others of the row have a larger one."""
    at = "" if row.last == last else f" at {format_size(row.last, table=True)}"
    ratio = short_ratio_text(row.at_last.interval) + mark(row.at_last.label)
    return f"{ratio} {time_text(row.at_last.case.time)}{at}"


def _measured(rows: Sequence[BreakEven]) -> str:
    ends = {min(row.first for row in rows), max(row.last for row in rows)}
    return "..".join(format_size(n, table=True) for n in sorted(ends))


def _tone(row: BreakEven) -> Tone:
    if row.verdict in ("all-sizes", "at"):
        return "good"
    return "bad" if row.verdict == "no-size" else "muted"


REUSE_TITLE = "Re-use: calls per transfer from which the GPU pays"
_MEANING = "Every call uses the same data, which is copied in before the first and out after the last."
_LEFT_OUT = "Only sizes at which the number of calls decides; all: --sections reuse or --format markdown."
_REUSE_WORDS = {
    "1": "1: pays at every call", "never": "never: not even without copies",
    "? noise": "? noise: the times differ too much",
    "? parts": "? parts: copies that are timed singly cost more than 10% more or less",
    "? no parts": "? no parts: copies were not timed singly",
}  # fmt: skip
_REASONS = {"noise": "? noise", "parts-differ": "? parts", "no-parts": "? no parts"}
_TONES: dict[str, Tone] = {"already": "good", "at": "good", "never": "bad"}


def reuse_section(analysis: Analysis, unit: str, *, full: bool, every_size: bool) -> Section:
    """`full`: a row for each device with what a transfer, a call and the CPU cost. `every_size`: none is left out."""
    groups = _by_size(analysis.reuse)
    shown = {
        key: rows for key, rows in groups.items() if every_size or any(row.verdict == "at" for row in rows)
    }
    if not shown:
        return Section(key="reuse", title=REUSE_TITLE)
    rows = [row for ours in shown.values() for row in ours]
    lines = [_MEANING, *([_LEFT_OUT] if len(shown) < len(groups) else [])]
    table = _full_table(rows, unit) if full else _reuse_table(analysis, list(shown.values()))
    return Section(key="reuse", title=REUSE_TITLE, lines=tuple(lines), tables=(table,), folded=full)


def _by_size(rows: Sequence[Reuse]) -> dict[tuple[str, str, str], list[Reuse]]:
    groups: dict[tuple[str, str, str], list[Reuse]] = {}
    for row in rows:
        groups.setdefault((row.op, row.dtype, _size(row)), []).append(row)
    return groups


def _reuse_table(analysis: Analysis, groups: Sequence[Sequence[Reuse]]) -> Table:
    rows = [row for ours in groups for row in ours]
    devices, dtypes = (
        list(dict.fromkeys(getattr(row, name) for row in rows)) for name in ("device_id", "dtype")
    )
    several = len(dtypes) > 1
    columns = [Column("op"), *([Column("dtype")] if several else []), Column("n", right=True)]
    body = []
    for ours in groups:
        by_device = {row.device_id: row for row in ours}
        first = ours[0]
        body.append(
            cells(
                first.op, *([first.dtype] if several else []), _size(first),
                *(_cell(by_device[name]) if name in by_device else "-" for name in devices),
            )
        )  # fmt: skip
    names = ", ".join(device_text(analysis, name) for name in devices)
    title = printable(names if several else f"{dtypes[0]} on {names}")
    return Table((*columns, *map(Column, devices)), tuple(body), title=title, legend=_reuse_legend(rows))


def _full_table(rows: Sequence[Reuse], unit: str) -> Table:
    columns = (
        Column("op"), Column("dtype"), Column("n", right=True), Column("device"), Column("form"), Column("calls"),
        Column("a transfer", right=True), Column("a call", right=True), Column("a call on the CPU", right=True),
    )  # fmt: skip
    body = tuple(
        cells(
            row.op, row.dtype, _size(row), row.device_id, FORMS[row.form], _cell(row),
            seconds_text(row.transfer_s, unit), seconds_text(row.launch_s, unit), seconds_text(row.cpu_s, unit),
        )
        for row in rows
    )  # fmt: skip
    return Table(columns, body, legend=_reuse_legend(rows))


def _size(row: Reuse) -> str:
    return format_size(row.n, table=True) + "".join(f" {name}={value}" for name, value in row.params.items())


def _cell(row: Reuse) -> Cell:
    return Cell(calls_text(row), _TONES.get(row.verdict, "muted"))


def calls_text(row: Reuse) -> str:
    """`3 [2, 4]`, `1`, `12 [9, ..]` with an open end, `never`, or why there is no answer."""
    if row.reason is not None:
        return _REASONS[row.reason]
    if row.verdict == "never":
        return "never"
    if row.lo == row.hi:
        return str(row.calls)
    return f"{row.calls} [{row.lo}, {'..' if row.hi is None else row.hi}]"


def _reuse_legend(rows: Sequence[Reuse]) -> str:
    texts = [calls_text(row) for row in rows]
    parts = [
        words for text, words in _REUSE_WORDS.items() if any(found.split(" [")[0] == text for found in texts)
    ]
    return "; ".join([*parts, *(["..: no end seen"] if any("..]" in text for text in texts) else [])])
