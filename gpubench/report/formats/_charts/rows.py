"""The words and keys that the rows of all charts share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from gpubench.report.analysis.overheads import GROUP
from gpubench.report.analysis.types import Analysis, CaseResult
from gpubench.report.formats._charts.types import Row, Series
from gpubench.report.formats._document import printable, shortened
from gpubench.report.formats._names import data_text, regime_order, series_name, size_text, where_legend

FEWEST_TICKS = 3


def charted(analysis: Analysis) -> list[CaseResult]:
    """The cases that a chart may show: with an estimate, and no overhead."""
    return [row for row in analysis.cases if row.time is not None and row.case.group != GROUP]


def all_series(analysis: Analysis) -> tuple[Series, ...]:
    """Every series with a case to show, in the order of the report."""
    found: dict[str, tuple[str, Counter[int]]] = {}
    for row in charted(analysis):
        found.setdefault(series_name(row.case), (row.case.dtype, Counter()))[1][row.case.params["n"]] += 1
    return tuple(
        Series(
            name=name, dtype=dtype, sizes=tuple(sorted(counts)),
            size=max(counts, key=lambda n: (counts[n], n)),
        )
        for name, (dtype, counts) in found.items()
    )  # fmt: skip


def devices(analysis: Analysis) -> tuple[tuple[str, str], ...]:
    """Id and name of every device with a case to show, the CPU first: the place decides the accent."""
    names = {device.id: shortened(device.name) for device in analysis.run.devices}
    kinds = {row.case.device_id: row.device_kind for row in charted(analysis)}
    ordered = sorted(kinds, key=lambda name: (kinds[name] != "cpu", kinds[name] == "software", name))
    return tuple((printable(name), names.get(name, "")) for name in ordered)


def regimes(analysis: Analysis) -> tuple[tuple[str, str], ...]:
    """Short name and meaning of the regimes on devices other than the CPU, whose data is at home in all of them."""
    rows = sorted((row.case for row in charted(analysis)), key=regime_order)
    texts = {data_text(case): where_legend([case]).partition(": ")[2] for case in rows}
    return tuple(texts.items())


def size_ticks(analysis: Analysis) -> dict[str, Row]:
    """For each series where the axis of sizes has its ticks: at powers of two, or at the sizes if those are few."""
    found: dict[str, Row] = {}
    for series in all_series(analysis):
        first, last = series.sizes[0], series.sizes[-1]
        powers = [2**i for i in range(first.bit_length() - 1, last.bit_length()) if first <= 2**i <= last]
        found[series.name] = {"ticks": powers if len(powers) >= FEWEST_TICKS else list(series.sizes)}
    return found


def device_ids(analysis: Analysis) -> tuple[str, ...]:
    """The ids of `devices`."""
    return tuple(name for name, _ in devices(analysis))


def regime_names(analysis: Analysis) -> tuple[str, ...]:
    """The short names of `regimes`."""
    return tuple(name for name, _ in regimes(analysis))


def common(row: CaseResult, best: Collection[str], *, regime: bool = True) -> Row:
    """The fields of every case: its size, its device, what the filters ask for, and text for tables.

    `regime`: False where a chart shows one of them alone.
    """
    case = row.case
    return {
        "n": case.params["n"], "size": size_text(row), "device": printable(case.device_id),
        **({"home": True} if row.device_kind == "cpu" else {}),
        **({"regime": data_text(case)} if regime else {}),
        "form": case.form_id, "best": row.id in best, "label": row.label,
    }  # fmt: skip


def fastest(rows: Iterable[CaseResult]) -> frozenset[str]:
    """The ids of the fastest form of each workload, regime and device; a named variant stands beside its form."""
    found: dict[tuple[str, ...], tuple[float, str]] = {}
    for row in rows:
        if row.time is not None and row.case.variant is None:
            key = (row.case.workload, row.case.regime_id, row.case.device_id)
            found[key] = min(found.get(key, (row.time.estimate, row.id)), (row.time.estimate, row.id))
    return frozenset(case_id for _, case_id in found.values())


def short(value: float) -> float:
    """Five significant digits: more than a picture shows, and a smaller page."""
    return float(f"{value:.5g}")
