"""The section of the claims: claimed numbers beside measured ones."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.claims import BUILTIN, NO_OP, ClaimResult, ClaimVerdict, claims, load
from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.speedup import Speedup
from gpubench.analysis.thresholds import threshold_text
from gpubench.base.plugins.sections import Rows, section
from gpubench.base.streams import printable, shorten
from gpubench.base.table import Cell, Column, Table, Tone, cells, heads, number
from gpubench.report.layout import RenderOptions, Section
from gpubench.report.sections.machines import letter
from gpubench.report.wording import (
    ALWAYS,
    data_text,
    gain_text,
    join_texts,
    legend,
    mark,
    ratio_text,
    seconds_text,
    situation_text,
    time_interval_text,
    time_text,
    where_legend,
)
from gpubench.result.case import RESIDENT, Case, parse_case_id

_ORDER: tuple[ClaimVerdict, ...] = ("confirmed", "refuted", "undecided", "not measured")
_TONES: dict[str, Tone] = {"confirmed": "good", "refuted": "bad"}


@section("claims", order=160, help="Expectations of --claims beside what was measured", usual="end")
def claims_section(analysis: Analysis, options: RenderOptions) -> Section | None:
    """Return the section with a row for each claim, or None without claims."""
    rows = claims(analysis)
    if not rows:
        return None
    lines = [printable(analysis.baseline)] if any(claim.measured for claim in rows) else []
    return _section([analysis], rows, lines, _table(rows, options.time_unit, full=options.full))


@section("claims", order=30, together=True)
def claims_of_files(analyses: Sequence[Analysis], options: RenderOptions) -> Section | None:
    """Return the section of all files with a row for each claim, or None without claims. The first file that
    measured a claim judges it."""
    answers = []
    for of_claim in zip(*map(claims, analyses), strict=True):
        measured = (i for i, claim in enumerate(of_claim) if claim.verdict != "not measured")
        file = next(measured, None)
        answers.append((of_claim[file or 0], "-" if file is None else letter(file)))
    if not answers:
        return None
    rows, files = zip(*answers, strict=True)
    lines = [
        f"{letter(i)}: {analysis.run.started_at}, {printable(analysis.machine)}"
        for i, analysis in enumerate(analyses)
    ]
    lines.append("The first file that measures a claim answers it.")
    return _section(analyses, rows, lines, _table(rows, options.time_unit, full=options.full, files=files))


def _section(
    analyses: Sequence[Analysis], rows: Sequence[ClaimResult], lines: Sequence[str], table: Table
) -> Section:
    counts = Counter(claim.verdict for claim in rows)
    shares = {claim.tolerance for claim in rows}
    rule = (
        "The kindest of the measured cases answers a claim; it is confirmed if the whole interval reaches it"
        + (f" less {min(shares) * 100:.3g} %" if len(shares) == 1 else " less its tolerance")
        + ", refuted if none of the interval does."
    )
    lines = [*lines, rule]
    if any(claim.verdict == "not measured" and claim.reason != NO_OP for claim in rows):
        gpu = any(device.kind == "gpu" for analysis in analyses for device in analysis.run.devices)
        where = "" if gpu else ", on a machine with a GPU"
        lines.append(f"To measure what is not measured{where}: {measuring_command(analyses[0])}")
    title = "Claims: " + ", ".join(f"{counts[word]} {word}" for word in _ORDER if counts[word])
    return Section(title=title, lines=tuple(lines), tables=(table,), asked=True)


def measuring_command(analysis: Analysis) -> str:
    """Return the command that measures all claims of the analysis, with FILE for a table of the user."""
    table = "" if tuple(analysis.asked_claims) == load(BUILTIN) else " --claims FILE"
    return f"gpubench run --ops claims{table}"


_MIXED = "mixed"
_MaybeCell = str | Cell | bool  # False: the table has no such column


def _table(rows: Sequence[ClaimResult], unit: str, *, full: bool, files: Sequence[str] = ()) -> Table:
    columns = heads(
        Column("claim", least=10), number("claimed"), number("measured"), "verdict", bool(files) and "file",
        number("copied", 1), number("CPU claimed", 3),
        number("CPU", 2), number("GPU claimed", 3),
        number("GPU", 2), full and "case",
    )  # fmt: skip
    labels = {
        side.label
        for claim in rows
        for side in (claim.measured, claim.with_copies, claim.also)
        if side is not None
    }
    notes = [
        f"copied means the same work, {situation_text(ALWAYS)}", where_legend(_answering(rows)), legend(labels)
    ]  # fmt: skip
    if any(_data(*claim.ids).strip() == _MIXED for claim in rows):
        notes.insert(2, f"{_MIXED}: parts of a sum in several of these")
    body = []
    for claim, file in itertools.zip_longest(rows, files):
        which = full and (" + ".join(claim.ids) or claim.reason or "")
        body.append(cells(*_cells(claim, unit, bool(files) and file), which))
        if claim.also is not None:
            body.append(cells(*_beside_cells(claim.also, unit, bool(files) and ""), full and claim.also.id))
    return Table(columns, tuple(body), legend=join_texts(*notes))


def _cells(claim: ClaimResult, unit: str, file: _MaybeCell) -> list[_MaybeCell]:
    copied, ratio = claim.with_copies, claim.measured
    base, case = (ratio.baseline, ratio.case) if ratio else (None, None)
    return [
        shorten(claim.claim, 28), _claimed_text(claim, unit), _measured_cell(claim, unit),
        Cell(claim.verdict, _TONES.get(claim.verdict, "muted")), file,
        gain_text(copied) + mark(copied.label) if copied else "-",
        seconds_text(claim.claimed_cpu_s, unit), _time_text(base, unit),
        seconds_text(claim.claimed_gpu_s, unit), _time_text(case, unit),
    ]  # fmt: skip


def _beside_cells(claim: Speedup, unit: str, file: _MaybeCell) -> list[_MaybeCell]:
    """Return the cells of a comparison that is shown below its claim and does not decide it."""
    name = f"  {claim.case.case.op} n={claim.case.case.params['n']}"
    gain = gain_text(claim) + mark(claim.label) + _data(claim.case.id)
    return [
        name, "", gain, "", file, "", "", _time_text(claim.baseline, unit), "", _time_text(claim.case, unit),
    ]  # fmt: skip


def _time_text(claim: CaseResult | None, unit: str) -> str:
    return time_text(claim.time if claim else None, unit)


def _claimed_text(claim: ClaimResult, unit: str) -> str:
    if claim.claimed_time_s is not None:
        first, last = (seconds_text(end, unit) for end in claim.claimed_time_s)
        return f"{first.removesuffix(last[last.index(' ') :])}-{last}"
    if claim.claimed_break_even is not None:
        low, high = claim.claimed_break_even
        words, scale = ("", 1.0) if high < 1e4 else (" thousand", 1e3) if high < 1e6 else (" million", 1e6)
        first, last = (f"{end / scale:g}" for end in (low, high))
        return f"up to {last}{words}" if low == 1 else f"{'-'.join(dict.fromkeys((first, last)))}{words}"
    if claim.claimed_speedup is None:
        return seconds_text(claim.claimed_cpu_s if claim.claimed_gpu_s is None else claim.claimed_gpu_s, unit)
    return f"{claim.claimed_speedup:.3g}x"


def _measured_cell(claim: ClaimResult, unit: str) -> Cell:
    """Return the measured value of a claim with its interval and situation, such as `GPU 54x [48, 62] queued`.
    The value is a gain, a time or a break-even."""
    where = _data(*claim.ids)
    if claim.measured is not None:
        where = mark(claim.measured.label) + where
        return Cell(gain_text(claim.measured, ratio_text) + where, brief=gain_text(claim.measured) + where)
    if claim.timed is not None and claim.timed.time is not None:
        text = time_text(claim.timed.time, unit)
        return Cell(f"{text} {time_interval_text(claim.timed.time, unit)}{where}", brief=text + where)
    return Cell("-" if claim.threshold is None else threshold_text(claim.threshold) + where)


def _data(*ids: str) -> str:
    """Return the situation of the cases `ids` after a blank: ` waited`, ` copied` or ` mixed`. CPU cases have no
    situation. If all cases are CPU cases, return an empty text."""
    names = {data_text(case) for case in map(parse_case_id, ids) if case.regime != RESIDENT}
    return f" {_MIXED}" if len(names) > 1 else "".join(f" {name}" for name in names)


def _answering(rows: Sequence[ClaimResult]) -> list[Case]:
    """Return the cases behind the numbers of the table, without CPU cases and copied calls: they have separate
    columns."""
    ids = [case_id for claim in rows for case_id in (*claim.ids, *claim.also_ids)]
    return [case for case in map(parse_case_id, ids) if case.regime not in (RESIDENT, ALWAYS)]


ROWS = (Rows("claims", ClaimResult, claims, order=180),)
