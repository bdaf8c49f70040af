"""Charts as picture files, from the specs that the HTML report draws. Needs the extra `plots`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpubench.errors import InputError, UsageError

if TYPE_CHECKING:
    from gpubench.report.analysis import Analysis

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_=.]+")


def require_library(option: str) -> None:
    """Raises UsageError where the extra `plots`, which `option` needs, is not installed."""
    from gpubench.report.formats._charts import INSTALL, missing_libraries

    missing = missing_libraries()
    if missing:
        raise UsageError(
            "no-plots", f"{option}: charts cannot be drawn here",
            why=f"the extra plots is not installed: no {' and no '.join(missing)}", hint=INSTALL,
        )  # fmt: skip


def plots(
    analyses: Sequence[Analysis], format: str, *, sections: Sequence[str] | None = None, time_unit: str = "auto"
) -> Iterator[tuple[str, bytes]]:
    """File name and content of every chart of every series; the same bytes for the same files.

    `format` is one of `report.PICTURES`. Of several runs all but the first have their number in front.
    """
    from gpubench.report.formats._charts import drawing
    from gpubench.report.formats._charts.charts import chart_set
    from gpubench.report.formats._options import DEFAULT_SECTIONS

    for i, analysis in enumerate(analyses):
        found = chart_set(analysis, sections or DEFAULT_SECTIONS, time_unit)
        for chart in found.charts:
            for name, spec in drawing.pictures(chart, found.series):
                file = _NOT_IN_NAMES.sub("-", f"{f'{i + 1}-' if i else ''}{chart.id}-{name}") + f".{format}"
                yield file, drawing.png(spec) if format == "png" else drawing.svg(spec).encode()


def picture(
    analyses: Sequence[Analysis], format: str, *, sections: Sequence[str] | None = None, time_unit: str = "auto"
) -> bytes:
    """One picture: of each run the charts of the series that tells most, below each other; the same bytes for the
    same files. `format` is one of `report.PICTURES`. Raises InputError if there is nothing to draw."""
    from gpubench.report.formats._charts import drawing
    from gpubench.report.formats._charts.charts import chart_set
    from gpubench.report.formats._options import DEFAULT_SECTIONS

    found = []
    for analysis in analyses:
        charts = chart_set(analysis, sections or DEFAULT_SECTIONS, time_unit)
        chosen = [series for series in charts.series if series.name == charts.chosen]
        found += [drawing.svg(spec) for chart in charts.charts for _, spec in drawing.pictures(chart, chosen)]
    if not found:
        raise InputError(
            "no-charts", "there is nothing to draw", why="no case with a number belongs to these sections",
            hint="choose other --sections, or a result with measured cases",
        )  # fmt: skip
    whole = drawing.stacked(found)
    return drawing.raster(whole) if format == "png" else whole.encode()


def write(
    analyses: Sequence[Analysis], folder: Path, format: str, *, sections: Sequence[str] | None = None,
    time_unit: str = "auto",
) -> int:  # fmt: skip
    """Write the charts into `folder`, which is made; how many there are. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for name, content in plots(analyses, format, sections=sections, time_unit=time_unit):
        (folder / name).write_bytes(content)
        count += 1
    return count
