"""Re-use: calls per transfer until the GPU pays; a row per op and size, a column per device."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.report.analysis.types import Analysis, Reuse
from gpubench.report.formats._document import Cell, Column, Section, Table, Tone, cells, printable
from gpubench.report.formats._names import FORMS, device_text
from gpubench.report.formats._numbers import seconds_text
from gpubench.units import format_size

TITLE = "Re-use: calls per transfer from which the GPU pays"
_MEANING = "Every call uses the same data, which is copied in before the first and out after the last."
_LEFT_OUT = "Only sizes at which the number of calls decides; all: --sections reuse or --format markdown."
_WORDS = {
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
        return Section(key="reuse", title=TITLE)
    rows = [row for ours in shown.values() for row in ours]
    lines = [_MEANING, *([_LEFT_OUT] if len(shown) < len(groups) else [])]
    table = _full_table(rows, unit) if full else _table(analysis, list(shown.values()))
    return Section(key="reuse", title=TITLE, lines=tuple(lines), tables=(table,), folded=full)


def _by_size(rows: Sequence[Reuse]) -> dict[tuple[str, str, str], list[Reuse]]:
    groups: dict[tuple[str, str, str], list[Reuse]] = {}
    for row in rows:
        groups.setdefault((row.op, row.dtype, _size(row)), []).append(row)
    return groups


def _table(analysis: Analysis, groups: Sequence[Sequence[Reuse]]) -> Table:
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
    return Table((*columns, *map(Column, devices)), tuple(body), title=title, legend=_legend(rows))


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
    return Table(columns, body, legend=_legend(rows))


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
    if row.low == row.high:
        return str(row.calls)
    return f"{row.calls} [{row.low}, {'..' if row.high is None else row.high}]"


def _legend(rows: Sequence[Reuse]) -> str:
    texts = [calls_text(row) for row in rows]
    parts = [words for text, words in _WORDS.items() if any(found.split(" [")[0] == text for found in texts)]
    return "; ".join([*parts, *(["..: no end seen"] if any("..]" in text for text in texts) else [])])
