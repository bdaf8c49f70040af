"""The claims section: expected speedups beside measured ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.claims import ClaimResult, ClaimVerdict, claims
from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.speedup import Speedup
from gpubench.analysis.thresholds import threshold_text
from gpubench.base.escaping import printable, shortened
from gpubench.base.plugins.sections import Rows, section
from gpubench.base.table import Cell, Table, Tone, cells, heads, number
from gpubench.report.layout import RenderOptions, Section
from gpubench.report.wording import (
    ALWAYS,
    GainStyle,
    data_text,
    gain_text,
    legend,
    mark,
    percent_ratio_text,
    ratio_text,
    seconds_text,
    short_ratio_text,
    time_interval_text,
    time_text,
    where_legend,
)
from gpubench.result.case import RESIDENT, Case, parse_case_id

_ORDER: tuple[ClaimVerdict, ...] = ("confirmed", "refuted", "undecided", "not measured")
_TONES: dict[str, Tone] = {"confirmed": "good", "refuted": "bad"}
# The longest name of a claim, how a factor is written and what that means: for a narrow terminal first.
_FORMS: tuple[tuple[int, GainStyle, str], ...] = (
    (12, short_ratio_text, "intervals: in a wider terminal or --format markdown"),
    (16, percent_ratio_text, "+-: the farther end"), (26, percent_ratio_text, "+-: the farther end"),
    (28, ratio_text, ""),
)  # fmt: skip


@section("claims", order=160, help="Expectations of --claims beside what was measured", usual="end")
def claims_section(analysis: Analysis, options: RenderOptions) -> Section | None:
    """Draw a row per claim; a narrow terminal leaves the times out. None where no claims were given."""
    rows = claims(analysis)
    if not rows:
        return None
    counts = Counter(row.verdict for row in rows)
    title = "Claims: " + ", ".join(f"{counts[word]} {word}" for word in _ORDER if counts[word])
    shares = {row.tolerance for row in rows}
    lines = [printable(analysis.baseline)] if any(row.measured for row in rows) else []
    lines.append(
        "The kindest of the measured cases answers a claim; it is confirmed if the whole interval reaches it"
        + (f" less {min(shares) * 100:.3g} %" if len(shares) == 1 else " less its tolerance")
        + ", refuted if none of the interval does."
    )
    return Section(
        title=title, lines=tuple(lines), tables=(_table(rows, options.time_unit, full=options.full),)
    )


_MIXED = "mixed"


def _table(rows: tuple[ClaimResult, ...], unit: str, *, full: bool) -> Table:
    columns = heads(
        "claim", number("claimed"), number("measured"), "verdict",
        number("copied", 1), number("CPU claimed", 3),
        number("CPU", 2), number("GPU claimed", 3),
        number("GPU", 2), full and "case",
    )  # fmt: skip
    labels = {
        side.label for row in rows for side in (row.measured, row.with_copies, row.also) if side is not None
    }
    notes = ["copied: the same work, copied at every call", where_legend(_answering(rows)), legend(labels)]
    if any(_data(*row.ids).strip() == _MIXED for row in rows):
        notes.insert(2, f"{_MIXED}: parts of a sum in several of these")
    table: Table | None = None
    for length, style, how in _FORMS:
        body = []
        for row in rows:
            body.append(cells(*_cells(row, unit, length, style), full and _case(row)))
            if row.also is not None:
                body.append(cells(*_beside_cells(row.also, unit), full and row.also.id))
        table = Table(columns, tuple(body), legend="; ".join(filter(None, [*notes, how])), narrower=table)
    assert table is not None
    return table


def _cells(row: ClaimResult, unit: str, length: int, style: GainStyle) -> list[str | Cell]:
    copied, found = row.with_copies, row.measured
    base, case = (found.baseline, found.case) if found else (None, None)
    return [
        shortened(row.claim, length), _claimed_text(row, unit), _measured_text(row, unit, style),
        Cell(row.verdict, _tone(row)), gain_text(copied) + mark(copied.label) if copied else "-",
        seconds_text(row.claimed_cpu_s, unit), _time_text(base, unit),
        seconds_text(row.claimed_gpu_s, unit), _time_text(case, unit),
    ]  # fmt: skip


def _beside_cells(row: Speedup, unit: str) -> list[str | Cell]:
    """What stands beside the claim above it, and decides nothing."""
    name = f"  {row.case.case.op} n={row.case.case.params['n']}"
    gain = gain_text(row) + mark(row.label) + _data(row.case.id)
    return [name, "", gain, "", "", "", _time_text(row.baseline, unit), "", _time_text(row.case, unit)]


def _time_text(row: CaseResult | None, unit: str) -> str:
    return time_text(row.time if row else None, unit)


def _claimed_text(row: ClaimResult, unit: str) -> str:
    if row.claimed_time_s is not None:
        first, last = (seconds_text(end, unit) for end in row.claimed_time_s)
        return f"{first.removesuffix(last[last.index(' ') :])}-{last}"
    if row.claimed_break_even is not None:
        low, high = row.claimed_break_even
        unit, scale = ("million", 1e6) if high >= 1e6 else ("thousand", 1e3)  # decimal, as their source says it
        ends = dict.fromkeys(f"{end / scale:g}" for end in (low, high))
        return f"{'-'.join(ends)} {unit}"
    if row.claimed_speedup is None:
        return seconds_text(row.claimed_cpu_s if row.claimed_gpu_s is None else row.claimed_gpu_s, unit)
    return f"{row.claimed_speedup:.3g}x"


def _measured_text(row: ClaimResult, unit: str, style: GainStyle) -> str:
    """With the situation of the kindest case: `GPU 54x [48, 62] queued`."""
    where = _data(*row.ids)
    if row.measured is not None:
        return gain_text(row.measured, style) + mark(row.measured.label) + where
    if row.timed is not None and row.timed.time is not None:
        interval = f" {time_interval_text(row.timed.time, unit)}" if style is ratio_text else ""
        return f"{time_text(row.timed.time, unit)}{interval}{where}"
    return threshold_text(row.threshold) + where if row.threshold is not None else "-"


def _data(*ids: str) -> str:
    """` waited`, ` queued`, ` copied`: where the data of these cases lies, ` mixed` where that differs; nothing of the
    CPU's, which is at home."""
    names = {data_text(case) for case in map(parse_case_id, ids) if case.regime != RESIDENT}
    return f" {_MIXED}" if len(names) > 1 else "".join(f" {name}" for name in names)


def _answering(rows: Sequence[ClaimResult]) -> list[Case]:
    """The cases of the table's numbers, but for those of the CPU, and for copies, which have words of their own."""
    ids = [case_id for row in rows for case_id in (*row.ids, *row.also_ids)]
    return [case for case in map(parse_case_id, ids) if case.regime not in (RESIDENT, ALWAYS)]


def _tone(row: ClaimResult) -> Tone:
    return _TONES.get(row.verdict, "muted")


def _case(row: ClaimResult) -> str:
    return " + ".join(row.ids) or row.reason or ""


ROWS = (Rows("claims", ClaimResult, claims, order=180),)
