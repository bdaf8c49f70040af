"""Geometric means of the speedups: a row per regime, a column per device."""

from __future__ import annotations

from gpubench.report.analysis.types import Analysis, Mean
from gpubench.report.formats._document import Column, Section, Table, cells
from gpubench.report.formats._numbers import ratio_text, short_ratio_text
from gpubench.report.listing import first_few

TITLE = "Mean speedup: geometric, of what every regime has"
_NOT_ALIKE = "*: some of the same cases are missing, so it compares with no other mean"
_MOST = 12  # of the missing cases of one mean; JSON names all


def means_section(analysis: Analysis, *, full: bool) -> Section:
    """Empty where there is nothing to average. `full`: with the cases that are missing, by name."""
    rows = analysis.means
    if not any(row.count > 1 for row in rows):
        return Section(key="speedup", title=TITLE)
    devices = list(dict.fromkeys(row.device_id for row in rows))
    families: dict[tuple[str, str], dict[str, Mean]] = {}
    for row in rows:
        families.setdefault((row.regime, row.dtype), {})[row.device_id] = row
    columns = (Column("data"), Column("dtype", rank=1), *(Column(name, right=True) for name in devices))
    wide, narrow = (
        tuple(
            cells(regime, dtype, *(_text(ours[name], full=full) if name in ours else "-" for name in devices))
            for (regime, dtype), ours in families.items()
        )
        for full in (True, False)
    )
    legend = _NOT_ALIKE if any(row.missing for row in rows) else ""
    table = Table(columns, wide, legend=legend, narrower=Table(columns, narrow, legend=legend))
    lines = tuple(_missing(row) for row in rows if row.missing) if full else ()
    return Section(key="speedup", title=TITLE, lines=lines, tables=(table,), folded=True)


def _missing(row: Mean) -> str:
    """`cupy:0, resident, float32 lacks matmul/n=4096/float32`."""
    return f"{row.device_id}, {row.regime}, {row.dtype} lacks {first_few(row.missing, _MOST)}"


def _text(row: Mean, *, full: bool) -> str:
    """`5.1x [4.8, 5.3] of 12`, marked where cases are missing."""
    ratio = ratio_text(row.ratio) if full else short_ratio_text(row.ratio)
    return f"{ratio} of {row.count}{'*' if row.missing else ''}"
