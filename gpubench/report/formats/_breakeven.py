"""The break-even table: a row per op, dtype and device, a column per regime."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from gpubench.report.analysis.types import Analysis, BreakEven
from gpubench.report.analysis.verdict import bracketed, interval_text, seen, size_text
from gpubench.report.formats._document import Cell, Column, Section, Table, Tone, cells, printable
from gpubench.report.formats._names import data_text, device_text, regimes, where_legend
from gpubench.report.formats._numbers import legend, mark, short_ratio_text
from gpubench.units import format_size

TITLE = "Break-even: the size n from which the GPU wins"
_WORDS = {
    "always": "always in a row: at every measured size", "never": "never: at no size",
    "beyond-limit": "> n: not up to n, but closer with size", "unstable": "unstable: wins and loses in turn",
    "undecided": "?: undecided, with what is known",
}  # fmt: skip
_PERCENT = "-4% +25%: the ends of the interval"
_NO_INTERVAL = "intervals: in a wider terminal or --format markdown"
Style = Callable[[BreakEven], str]
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
    analysis: Analysis, rows: Sequence[BreakEven], text: Style, narrower: Table | None, *, full: bool
) -> Table:
    """What is the same in all rows (dtype, device) stands in the title instead of a column, unless `full`."""
    data = regimes(rows)
    devices = {row.device_id for row in rows}
    by_device = full or len(devices) > 1
    columns = [Column("op")]
    columns += [Column("dtype")] if full else []
    columns += [Column("device")] if by_device else []
    columns += [Column(name) for name in data]
    columns += [Column("gain at largest n")] if full else []
    body = []
    for device, family in _families(rows, merge=not full):
        first = next(iter(family.values()))
        row: list[str | Cell] = [first.op + "".join(f" {name}={value}" for name, value in first.params.items())]
        row += [first.dtype] if full else []
        row += [device] if by_device else []
        row += [Cell(text(family[name]), _tone(family[name])) if name in family else "" for name in data]
        row += [" / ".join(_gain(family[name]) if name in family else "-" for name in data)] if full else []
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
        by_device.setdefault(row.device_id, {})[data_text(row)] = row
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
    low, high = (None if n is None else format_size(n, table=True) for n in (row.low, row.high))
    if low is None or high is None:
        return size_text(row) + interval_text(row)
    return f"{size_text(row)} [{low}, {high}]"


def _with_percent(row: BreakEven) -> str:
    if row.verdict != "at" or row.n is None or row.low is None or row.high is None:
        return _said(row)
    shown = int(size_text(row))
    # Outwards: the percents never say less than the interval.
    down, up = math.ceil((1 - row.low / shown) * 100 - 1e-9), math.ceil((row.high / shown - 1) * 100 - 1e-9)
    return f"{shown} -{max(0, down)}% +{max(0, up)}%"


def _bare(row: BreakEven) -> str:
    """In as few signs as there can be: sizes from 2^20 on may take ten and more."""
    if row.verdict == "at":
        return size_text(row)
    if bracketed(row):
        return "? crosses"
    told = seen(row).split()
    return f"? {told[0]}" if row.verdict == "undecided" and told else _said(row)


def _said(row: BreakEven) -> str:
    """What a cell says that has no threshold."""
    if row.verdict == "beyond-limit":
        return f"> {format_size(row.last, table=True)}"
    if row.verdict == "undecided":
        if bracketed(row):
            return f"? {row.low}..{row.high}"
        word = seen(row).replace(" up", "")
        return f"? {word} {format_size(row.last, table=True)}" if word else f"? {row.reason}"
    return row.verdict


def _legend(rows: Sequence[BreakEven], text: Style, *, full: bool) -> str:
    parts = [where_legend(rows)]
    if any(row.verdict == "at" for row in rows):
        parts += [_PERCENT] if text is _with_percent else []
        parts += [_NO_INTERVAL] if text is _bare else []
    parts += [words for name, words in _WORDS.items() if any(row.verdict == name for row in rows)]
    if any(bracketed(row) for row in rows):
        name, where = ("? crosses", "one size") if text is _bare else ("? a..b", "a")
        other = "another" if text is _bare else "b"
        parts.append(f"{name}: loses at {where}, wins at {other}, too far apart to say more")
    marks = legend({row.last_label for row in rows}) if full else ""
    return "; ".join([*parts, *([marks] if marks else [])])


def _gain(row: BreakEven) -> str:
    return short_ratio_text(row.last_ratio) + mark(row.last_label)


def _measured(rows: Sequence[BreakEven]) -> str:
    ends = {min(row.first for row in rows), max(row.last for row in rows)}
    return "..".join(format_size(n, table=True) for n in sorted(ends))


def _tone(row: BreakEven) -> Tone:
    if row.verdict in ("always", "at"):
        return "good"
    return "bad" if row.verdict in ("never", "beyond-limit") else "muted"
