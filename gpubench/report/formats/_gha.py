"""The entries of github-action-benchmark's custom tools: an array of name, value, unit, range and extra."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpubench.report.formats._estimated import Estimated, decimal
from gpubench.report.formats._json import json_text
from gpubench.report.formats._options import RenderOptions
from gpubench.stats import Interval


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a chart. `range` is `± half width` in `unit`; `extra` is shown when the mouse rests on a point."""

    name: str
    value: float
    unit: str
    range: str
    extra: str


def entry(name: str, value: float, unit: str, half: float, case: Estimated, note: str) -> Entry:
    """`value ± half`; `note` says what the number is."""
    count = len(case.sessions)
    sessions = "1 session" if count == 1 else f"{count} sessions"
    label = "" if case.row.label == "ok" else f", {case.row.label}"
    extra = f"{note}\n{sessions}, {case.row.sample_count} samples{label}"
    return Entry(name=name, value=value, unit=unit, range=f"± {decimal(half, 2)}", extra=extra)


def interval_note(what: str, interval: Interval, unit: str, scale: float = 1.0) -> str:
    """`wall time of one launch, 95 % interval [1.5, 1.6] ms`."""
    return f"{what}, 95 % interval [{interval.low * scale:.4g}, {interval.high * scale:.4g}] {unit}"


def text(entries: Sequence[Entry], options: RenderOptions) -> str:
    """The file that `output-file-path` of the action names."""
    return json_text(list(entries), options)
