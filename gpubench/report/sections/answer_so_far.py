"""The answer while a run goes on: the table of its final screen, which fills as the run measures."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpubench.analysis.analyse import Analysis, analyse
from gpubench.analysis.answer import AnswerRow, MachineAnswer, answer
from gpubench.analysis.thresholds import ABOUT_EQUAL, AnswerCell
from gpubench.base.groups import group_by
from gpubench.base.streams import cut
from gpubench.base.table import line_text, table_lines
from gpubench.report.layout import RenderOptions, visible
from gpubench.report.sections.answer import answer_table, sides_line
from gpubench.result.run import Outcome, Run

_PENDING = AnswerCell(kind="pending")
# What more time does not change.
_SETTLED = (ABOUT_EQUAL, "loses-again", "no-cpu-time")


class AnswerSoFar:
    """The answer of a run that is being measured. Only ops with new outcomes are derived anew."""

    def __init__(self, options: RenderOptions) -> None:
        self._options = options
        self._known: dict[str, tuple[Sequence[Outcome], Analysis]] = {}

    def lines(self, run: Run, width: int) -> list[str]:
        """The two sides and the table, none wider than `width`; nothing before the first cell is known."""
        summary = answer(self._curves(run), by_device=self._options.by_device)
        compared = any(device.kind == "gpu" for device in run.devices)
        if not (summary.rows if compared else summary.implementations):
            return []
        if compared and not summary.named:
            summary = _fill(summary, run.selection.ops)
        table = visible(answer_table(summary), ascii_only=self._options.ascii_only)
        return [
            cut(sides_line(run, summary, width), width),
            *map(line_text, [] if table is None else table_lines(table, width)),
        ]

    def _curves(self, run: Run) -> Analysis:
        by_op = group_by(run.outcomes, lambda outcome: outcome.case.op)
        for op, outcomes in by_op.items():
            before = self._known.get(op, ((), None))[0]
            if len(before) != len(outcomes) or any(a is not b for a, b in zip(before, outcomes, strict=True)):
                self._known[op] = (outcomes, analyse(msgspec.structs.replace(run, outcomes=outcomes)))
        parts = [self._known[op][1] for op in by_op]
        return analyse(run).replace(
            cases=tuple(entry for part in parts for entry in part.cases),
            break_even=tuple(entry for part in parts for entry in part.break_even),
            best_code=tuple(entry for part in parts for entry in part.best_code),
        )


def _fill(summary: MachineAnswer, ops: Sequence[str]) -> MachineAnswer:
    """With a row for each op, and dots where the run has not decided yet."""
    rows = [
        msgspec.structs.replace(entry, cells={name: _open(cell) for name, cell in entry.cells.items()})
        for entry in summary.rows
    ]
    shown, first = {entry.op for entry in rows}, rows[0]
    rows += [
        AnswerRow(
            op=op, dtype=first.dtype, params={}, device_id=first.device_id, extent="elements",
            cells=dict.fromkeys(summary.regimes, _PENDING), count=first.count,
        )
        for op in ops if op not in shown
    ]  # fmt: skip
    rows.sort(key=lambda entry: (entry.op, entry.dtype))
    return msgspec.structs.replace(summary, rows=tuple(rows))


def _open(cell: AnswerCell) -> AnswerCell:
    waiting = cell.kind == "open" and cell.why not in _SETTLED
    return msgspec.structs.replace(cell, kind="pending") if waiting else cell
