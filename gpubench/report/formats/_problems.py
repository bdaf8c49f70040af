"""Cases without a number, grouped by reason, and warnings with their advice."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpubench.report.analysis.types import Analysis, CaseResult, Finding
from gpubench.report.formats._document import Cell, Column, Section, Table, cells, printable, shortened

SHOWN = 3
DETAIL_LENGTH = 160
_ORDER = {"failure": 0, "measurement": 1, "skip": 2, "planned": 3}
_WORDS = {"failure": "failed", "skip": "skipped", "planned": "not reached", "measurement": "no estimate"}
_SIZE = re.compile(r"/n=(\d+)")


def skipped_section(analysis: Analysis) -> Section:
    """Failures first, then what has no estimate, skips and cases that were not reached."""
    groups: dict[tuple[str, ...], list[CaseResult]] = {}
    for row in analysis.cases:
        if row.time is None or row.label == "implausible":
            # A failure is told with its own words; skips share a reason that is the same for many sizes and ops.
            detail = "" if row.outcome == "skip" else row.detail
            groups.setdefault((row.outcome, row.reason or row.label, row.case.device_id, detail), []).append(
                row
            )
    ordered = sorted(groups.items(), key=lambda item: (_ORDER[item[0][0]], item[0]))
    lines = tuple(_group_text(rows) for _, rows in ordered)
    return Section(key="skipped", title="Skipped and failed cases", lines=lines, folded=True)


def warnings_section(analysis: Analysis) -> Section:
    """A row per warning: code, then message, cases and advice."""
    columns = (Column("warning"), Column("meaning and advice"))
    rows = tuple(
        cells(Cell(finding.code, "bad" if finding.severity == "error" else "plain"), _warning_text(finding))
        for finding in analysis.findings
    )
    return Section(key="warnings", title="Warnings", tables=(Table(columns, rows),) if rows else ())


def ids_text(ids: Sequence[str]) -> str:
    """The first few ids, those that differ in size alone as one (`n=64..4096`), and how many more there are."""
    sizes: dict[str, list[int]] = {}
    for case_id in ids:
        found = _SIZE.search(case_id)
        name = _SIZE.sub("/n={}", case_id, count=1)
        sizes.setdefault(name, []).extend([int(found[1])] if found else [])
    texts = [name.replace("{}", _range(found)) for name, found in sizes.items()]
    return ", ".join(texts[:SHOWN]) + (f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else "")


def _range(sizes: Sequence[int]) -> str:
    if not sizes:
        return ""
    return str(sizes[0]) if len(sizes) == 1 else f"{min(sizes)}..{max(sizes)}"


def _group_text(rows: Sequence[CaseResult]) -> str:
    first = rows[0]
    what = "excluded" if first.label == "implausible" else _WORDS[first.outcome]
    detail = f": {shortened(first.detail, DETAIL_LENGTH)}" if first.detail else ""
    others = len({row.detail for row in rows}) - 1
    detail += f" (and {others} similar)" if others else ""
    hint = f" ({shortened(first.hint, DETAIL_LENGTH)})" if first.hint else ""
    count = f"{len(rows)} cases" if len(rows) > 1 else "1 case"
    where = ids_text([row.id for row in rows])
    reason = "" if first.outcome == "planned" else f", {first.reason or first.label}"
    return f"{what}{reason}{detail}{hint}; {count} on {first.case.device_id}: {where}"


def _warning_text(finding: Finding) -> str:
    where = f" ({len(finding.ids)} case{'s' if len(finding.ids) != 1 else ''}: {ids_text(finding.ids)})"
    advice = f". Advice: {printable(finding.hint)}" if finding.hint else ""
    return printable(finding.message).rstrip(".") + (where if finding.ids else "") + advice
