"""Lines that a wing adds to the answer of a run."""

from __future__ import annotations

from typing import NamedTuple

from gpubench.analysis.analyse import Analysis
from gpubench.base.plugins import wings
from gpubench.base.table import Table


class AnswerPart(NamedTuple):
    """Lines of a wing; where no GPU was held against a CPU, `sentences`, `context` and `table` are the answer."""

    needed: tuple[str, ...] = ()  # lines that are never left out
    sentences: tuple[str, ...] = ()
    context: str = ""
    table: Table | None = None
    times_below: bool = False  # a section that follows has the times of one GPU too


def answer_part(analysis: Analysis, *, alone: bool) -> AnswerPart:
    """Return what all wings add. `alone`: no GPU was held against a CPU."""
    makers = wings.find_all(wings.brought("answers")).values()
    parts: list[AnswerPart] = [make(analysis, alone=alone) for make in makers]
    return AnswerPart(
        needed=tuple(line for part in parts for line in part.needed),
        sentences=next((part.sentences for part in parts if part.sentences), ()),
        context=next((part.context for part in parts if part.context), ""),
        table=next((part.table for part in parts if part.table is not None), None),
        times_below=any(part.times_below for part in parts),
    )
