"""Time against the share of the work that the GPU takes, where one op is split over it and the CPU."""

from __future__ import annotations

import functools

from gpubench.report.analysis.types import Analysis, Hybrid
from gpubench.report.formats._charts import axes
from gpubench.report.formats._charts.rows import (
    charted,
    common,
    device_ids,
    fastest,
    regime_names,
    short,
)
from gpubench.report.formats._charts.types import MARKS, Chart, Row, Rows
from gpubench.report.formats._document import printable
from gpubench.report.formats._names import data_text, series_name
from gpubench.report.formats._numbers import ratio_text, seconds_text, share_text

COLUMNS = (
    ("device", "device"), ("regime", "data"), ("form", "form"), ("size", "n"), ("share", "on the GPU"),
    ("time", "wall time"), ("gain", "gain over the better side alone"),
)  # fmt: skip
CAPTION = (
    "Wall time of one call against the share of the work on the GPU, at the size chosen above: 0 % is the CPU alone, "
    "100 % the GPU alone. The diamond is the share that was chosen; the dashed line is the better of the two alone."
)
TITLE = "wall time of one call"


def hybrid_chart(analysis: Analysis, unit: str) -> Chart:
    """The sweep of the first session, one line for each device and regime."""
    return Chart(
        id="hybrid", section="hybrid", title="Split over CPU and GPU", caption=CAPTION, columns=COLUMNS,
        rows=_rows(analysis, unit), marks=_marks(analysis), one_size=True,
        spec=_spec(device_ids(analysis), regime_names(analysis)),
    )  # fmt: skip


def _rows(analysis: Analysis, unit: str) -> Rows:
    best = fastest(charted(analysis))
    found: Rows = {}
    for split in analysis.hybrid:
        for share, seconds in split.curve:
            chosen = abs(share - split.fraction) < 1e-9
            found.setdefault(series_name(split.case.case), []).append(
                common(split.case, best)
                | {
                    "x": short(share), "value": short(seconds), "share": share_text(share),
                    "time": seconds_text(seconds, unit), "gain": ratio_text(split.gain) if chosen else "",
                }
            )  # fmt: skip
    return found


def _marks(analysis: Analysis) -> Rows:
    """The chosen share with the time of the better side: run value x gain."""
    best = fastest(charted(analysis))
    found: Rows = {}
    for split in analysis.hybrid:
        if split.case.time is not None and split.curve:
            found.setdefault(series_name(split.case.case), []).append(_mark(split, best))
    return found


def _mark(split: Hybrid, best: frozenset[str]) -> Row:
    seconds = split.case.time.estimate if split.case.time is not None else 0.0
    why = "worth it" if split.reason is None else f"not recommended: {split.reason}"
    return common(split.case, best) | {
        "device": printable(split.device_id), "regime": data_text(split.case.case), "x": short(split.fraction),
        "value": short(seconds), "better": short(seconds * split.gain.estimate),
        "text": f"{share_text(split.fraction)} on the GPU: {ratio_text(split.gain)}, {why}",
    }  # fmt: skip


@functools.cache
def _spec(names: tuple[str, ...], data: tuple[str, ...]) -> Row:
    import altair

    share = altair.X(
        "x:Q", title="share of the work on the GPU", scale=altair.Scale(domain=[0, 1]),
        axis=altair.Axis(format="%", tickCount=5, grid=False),
    )  # fmt: skip
    value = axes.log_axis("value", TITLE, axes.SECONDS)
    base = altair.Chart(axes.named()).encode(x=share, y=value, color=axes.accent(names), detail="regime:N")
    marks = altair.Chart(axes.named(MARKS)).encode(
        color=axes.accent(names),
        tooltip=axes.tooltip((("device", "device"), ("regime", "data"), ("text", "split"))),
    )
    better = marks.mark_rule(strokeDash=[6, 4], strokeWidth=1.5).encode(
        y=axes.log_axis("better", TITLE, axes.SECONDS)
    )
    diamond = marks.mark_point(shape="diamond", size=130, filled=True, opacity=1).encode(x=share, y=value)
    return axes.finished(altair.layer(better, *axes.curves(base, names, data, COLUMNS), diamond), CAPTION)
