"""`--sort`: the cases and speedups of an analysis in another order than that of the file."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gpubench.report.analysis.types import Analysis, CaseResult

KEYS = ("case", "op", "n", "device", "time", "speedup")


def ordered(analysis: Analysis, key: str) -> Analysis:
    """`analysis` with its rows by `key`, one of KEYS, smallest first; `-key`: largest first.

    Rows without such a number come last either way; equal rows keep the order of the file.
    """
    name, down = key.removeprefix("-"), key.startswith("-")
    ratios = {row.case.id: row.ratio.estimate for row in analysis.speedups if row.kind in ("headline", "case")}
    values: dict[str, Callable[[CaseResult], float | str | None]] = {
        "case": lambda row: row.id,
        "op": lambda row: row.case.op,
        "n": lambda row: row.case.params.get("n"),
        "device": lambda row: row.case.device_id,
        "time": lambda row: row.time.estimate if row.time else None,
        "speedup": lambda row: ratios.get(row.id),
    }
    value = values[name]

    def by(rows: list[CaseResult]) -> list[CaseResult]:
        has = [row for row in rows if value(row) is not None]
        has.sort(key=lambda row: value(row), reverse=down)  # type: ignore[arg-type, return-value]
        return has + [row for row in rows if value(row) is None]

    place = {row.id: i for i, row in enumerate(by([row.case for row in analysis.speedups]))}
    return msgspec.structs.replace(
        analysis,
        cases=tuple(by(list(analysis.cases))),
        speedups=tuple(sorted(analysis.speedups, key=lambda row: place[row.case.id])),
    )
