"""Cases without a number, grouped by reason, and warnings with their advice."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from gpubench.report.analysis.estimate import CHECK_ONLY, IMPLAUSIBLE
from gpubench.report.analysis.types import Analysis, CaseResult, Finding
from gpubench.report.formats._document import Cell, Column, Section, Table, Tone, cells, printable, shortened
from gpubench.report.listing import first_few

SHOWN = 3
DETAIL_LENGTH = 160
_ORDER = {"failure": 0, "measurement": 1, "skip": 2, "planned": 3}
_WORDS = {"failure": "failed", "skip": "skipped", "planned": "not reached", "measurement": "no estimate"}
_TONES: dict[str, Tone] = {"error": "bad"}
_SIZE = re.compile(r"/n=(\d+)")


def skipped_section(analysis: Analysis, *, full: bool) -> Section:
    """Failures first, then what has no estimate, skips and cases that were not reached."""
    groups: dict[tuple[str, ...], list[CaseResult]] = {}
    for row in analysis.cases:
        if row.time is None and row.reason != CHECK_ONLY:
            # A failure is told with its own words; skips share a reason that is the same for many sizes and ops.
            detail = "" if row.outcome == "skip" else row.detail
            where = row.case.device_id if detail else row.case.device_id.partition(":")[0]
            groups.setdefault((row.outcome, row.reason or "", where, detail), []).append(row)
    ordered = sorted(groups.items(), key=lambda item: (_ORDER[item[0][0]], item[0]))
    lines = tuple(_group_text(rows, SHOWN if full else 1) for _, rows in ordered)
    return Section(key="skipped", title="Skipped and failed cases", lines=lines, folded=True)


def warnings_section(analysis: Analysis, *, full: bool) -> Section:
    """Warnings with the cases they concern and an advice; `full`: as a table with more of the ids."""
    found = _merged(analysis.findings)
    if full:
        columns = (Column("warning"), Column("meaning and advice"))
        rows = tuple(
            cells(Cell(row.code, _TONES.get(row.severity, "plain")), _warning_text(row)) for row in found
        )
        return Section(key="warnings", title="Warnings", tables=(Table(columns, rows),) if rows else ())
    lines = [line for row in found for line in _warning_lines(row)]
    return Section(key="warnings", title="Warnings", lines=tuple(lines))


def _merged(findings: Sequence[Finding]) -> list[Finding]:
    """What a file tells of many cases one by one, told once."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for row in findings:
        groups.setdefault((row.code, row.message, row.hint), []).append(row)
    return [
        msgspec.structs.replace(rows[0], ids=tuple(case_id for row in rows for case_id in row.ids))
        for rows in groups.values()
    ]


def ids_text(ids: Sequence[str], shown: int = SHOWN) -> str:
    """The first `shown` ids, those that differ in size alone as one (`n=64..4096`), and how many more there are."""
    sizes: dict[str, list[int]] = {}
    for case_id in ids:
        found = _SIZE.search(case_id)
        name = _SIZE.sub("/n={}", case_id, count=1)
        sizes.setdefault(name, []).extend([int(found[1])] if found else [])
    texts = [name.replace("{}", _range(found)) for name, found in sizes.items()]
    return first_few(texts, shown)


def _range(sizes: Sequence[int]) -> str:
    if not sizes:
        return ""
    return str(sizes[0]) if len(sizes) == 1 else f"{min(sizes)}..{max(sizes)}"


def _group_text(rows: Sequence[CaseResult], shown: int) -> str:
    first = rows[0]
    what = "excluded" if first.reason == IMPLAUSIBLE else _WORDS[first.outcome]
    detail = f": {shortened(first.detail, DETAIL_LENGTH)}" if first.detail else ""
    others = len({row.detail for row in rows}) - 1
    detail += f" (and {others} similar)" if others else ""
    hint = f" ({shortened(first.hint, DETAIL_LENGTH)})" if first.hint else ""
    count = f"{len(rows)} cases" if len(rows) > 1 else "1 case"
    where = ids_text([row.id for row in rows], shown)
    reason = "" if first.outcome == "planned" else f", {first.reason}"
    devices = ", ".join(sorted({row.case.device_id for row in rows}))
    return f"{what}{reason}{detail}{hint}; {count} on {devices}: {where}"


def _warning_text(finding: Finding) -> str:
    where = f" ({_count(finding.ids)}: {ids_text(finding.ids)})"
    advice = f". Advice: {printable(finding.hint)}" if finding.hint else ""
    return printable(finding.message).rstrip(".") + (where if finding.ids else "") + advice


def _warning_lines(finding: Finding) -> list[str]:
    """What holds and what to do; in a second line one of the cases."""
    count = f" ({_count(finding.ids)})" if finding.ids else ""
    advice = f". Advice: {printable(finding.hint)}" if finding.hint else "."
    lines = [f"{finding.code}{count}: {printable(finding.message).rstrip('.')}{advice}"]
    return lines + ([f"  {ids_text(finding.ids, 1)}"] if finding.ids else [])


def _count(ids: Sequence[str]) -> str:
    return f"{len(ids)} case{'s' if len(ids) != 1 else ''}"
