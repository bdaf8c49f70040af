"""Throughput against size below the measured roof that limits the op."""

from __future__ import annotations

import functools

from gpubench.report.analysis.types import Analysis, Roof, RoofShare
from gpubench.report.formats._charts import axes
from gpubench.report.formats._charts.rows import (
    charted,
    common,
    device_ids,
    fastest,
    short,
    size_ticks,
)
from gpubench.report.formats._charts.types import MARKS, Chart, Row, Rows
from gpubench.report.formats._document import printable
from gpubench.report.formats._names import series_name
from gpubench.report.formats._numbers import share_text
from gpubench.units import format_rate

COLUMNS = (
    ("device", "device"), ("form", "form"), ("size", "n"), ("rate", "rate"), ("clock", "clock"),
    ("share", "of roof"), ("label", "label"),
)  # fmt: skip
CAPTION = (
    "Work over time with resident data, on the device's own clock where it has one: floating-point operations where "
    "computing limits the op, else the bytes it has to move. Dashed: the roof measured in the same run. Above a memory "
    "roof lies what fits into a cache."
)


def rate_chart(analysis: Analysis) -> Chart:
    """One line for each device; the unit is that of the roof which limits the largest size."""
    ticks = size_ticks(analysis)
    return Chart(
        id="throughput", section="roofline", title="Throughput against size", caption=CAPTION, columns=COLUMNS,
        rows=_rows(analysis), marks=_marks(analysis), spec=_spec(device_ids(analysis)),
        params={name: ticks[name] | {"unit": unit_of(rows)} for name, rows in by_series(analysis).items()},
    )  # fmt: skip


def unit_of(rows: list[RoofShare]) -> str:
    """The unit in which a series is told."""
    return "FLOP/s" if computes(rows) else "B/s"


def computes(rows: list[RoofShare]) -> bool:
    """Whether a series is told in FLOP/s: by what limits its largest size."""
    last = max(rows, key=lambda row: (row.case.case.params["n"], row.case.id))
    return last.bound == "compute" or (last.bound is None and last.case.flops > 4 * last.case.bytes)


def by_series(analysis: Analysis) -> dict[str, list[RoofShare]]:
    """The cases with resident data of each series."""
    found: dict[str, list[RoofShare]] = {}
    for row in analysis.roofline.rows:
        found.setdefault(series_name(row.case.case), []).append(row)
    return found


def _rows(analysis: Analysis) -> Rows:
    best = fastest(charted(analysis))
    found: Rows = {}
    for name, rows in by_series(analysis).items():
        found[name] = [_row(row, best, unit_of(rows)) for row in rows]
    return found


def _row(row: RoofShare, best: frozenset[str], unit: str) -> Row:
    rate = (row.case.flops if unit == "FLOP/s" else row.case.bytes) / row.seconds
    return common(row.case, best, regime=False) | {
        "value": short(rate), "rate": format_rate(rate, unit),
        "clock": "device" if row.clock == "device_hot" else row.clock,
        "share": "-" if row.share is None else share_text(row.share) + (" (in cache)" if row.in_cache else ""),
    }  # fmt: skip


def _marks(analysis: Analysis) -> Rows:
    found: Rows = {}
    for name, rows in by_series(analysis).items():
        compute, dtype = computes(rows), rows[0].case.case.dtype
        roofs = [roof for roof in analysis.roofline.roofs if roof.dtype == dtype]
        found[name] = [
            {
                "value": short(rate), "device": printable(names[0]), "devices": [printable(name) for name in names],
                "text": f"{'compute' if compute else 'memory'} roof {format_rate(rate, unit_of(rows))}",
            }
            for roof in roofs
            for rate, names in _levels(roof, compute=compute)
        ]  # fmt: skip
    return found


def _levels(roof: Roof, *, compute: bool) -> list[tuple[float, tuple[str, ...]]]:
    """The height of a roof with the names of its hardware; a roof of small sizes alone is none yet."""
    rate = roof.flops_per_s if compute else roof.bytes_per_s
    weak = roof.small_matmul if compute else roof.cache_sized
    return [] if rate is None or weak else [(rate, roof.device_ids)]


@functools.cache
def _spec(names: tuple[str, ...]) -> Row:
    import altair

    title, label = "work per second", f"{axes.SI} + unit"
    base = altair.Chart(axes.named()).encode(
        x=axes.size_axis(), y=axes.log_axis("value", title, label), color=axes.accent(names)
    )
    roofs = altair.Chart(axes.named(MARKS)).encode(
        y=axes.log_axis("value", title, label), color=axes.accent(names),
        tooltip=axes.tooltip((("device", "device"), ("text", "roof"))),
    )  # fmt: skip
    level = roofs.mark_rule(strokeDash=[6, 4], strokeWidth=1.5)
    words = roofs.mark_text(align="right", dx=-4, dy=-8).encode(x=altair.value("width"), text="text:N")
    return axes.finished(altair.layer(level, words, *axes.curves(base, names, [], COLUMNS)), CAPTION)
