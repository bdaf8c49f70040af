"""Cases without a number, grouped by reason, and warnings with their advice."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.report.analysis.types import Analysis, CaseResult, Finding
from gpubench.report.formats._document import Cell, Column, Section, Table, cells, printable

SHOWN_IDS = 3
DETAIL_LENGTH = 160


def skipped_section(analysis: Analysis) -> Section:
    """Failures first, then what has no estimate, skips and cases that were not reached."""
    order = {"failure": 0, "measurement": 1, "skip": 2, "planned": 3}
    groups: dict[tuple[str, str, str, str], list[CaseResult]] = {}
    for row in analysis.cases:
        if row.outcome != "measurement" or row.time is None or row.label == "implausible":
            reason = row.reason or row.label
            key = (row.outcome, reason, row.case.device_id, _detail(row))
            groups.setdefault(key, []).append(row)
    ordered = sorted(groups.items(), key=lambda item: (order[item[0][0]], item[0]))
    lines = tuple(_group_text(rows) for _, rows in ordered)
    return Section(key="skipped", title="Skipped and failed cases", lines=lines)


def warnings_section(analysis: Analysis) -> Section:
    """One line per warning: severity, code, message, where, advice."""
    columns = (Column("warning"), Column("meaning and advice"))
    rows = tuple(
        cells(Cell(finding.code, "bad" if finding.severity == "error" else "plain"), _warning_text(finding))
        for finding in analysis.findings
    )
    return Section(key="warnings", title="Warnings", tables=(Table(columns, rows),) if rows else ())


def ids_text(ids: Sequence[str]) -> str:
    """The first few ids, and how many more there are."""
    shown = ", ".join(ids[:SHOWN_IDS])
    return shown + (f" and {len(ids) - SHOWN_IDS} more" if len(ids) > SHOWN_IDS else "")


def _detail(row: CaseResult) -> str:
    text = printable(row.detail)
    return text if len(text) <= DETAIL_LENGTH else text[: DETAIL_LENGTH - 3] + "..."


def _group_text(rows: Sequence[CaseResult]) -> str:
    first = rows[0]
    word = {"failure": "failed", "skip": "skipped", "planned": "not reached", "measurement": "no estimate"}
    what = "excluded" if first.label == "implausible" else word[first.outcome]
    hint = f" ({printable(first.hint)})" if first.hint else ""
    count = f"{len(rows)} cases" if len(rows) > 1 else "1 case"
    detail = f": {_detail(first)}" if first.detail else ""
    where = ids_text([row.id for row in rows])
    return f"{what}, {first.reason or first.label}{detail}{hint}; {count} on {first.case.device_id}: {where}"


def _warning_text(finding: Finding) -> str:
    where = f" ({len(finding.ids)} case{'s' if len(finding.ids) != 1 else ''}: {ids_text(finding.ids)})"
    advice = f". Advice: {printable(finding.hint)}" if finding.hint else ""
    return printable(finding.message) + (where if finding.ids else "") + advice
