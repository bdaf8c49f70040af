"""JSON lines: the events of each run, one object a line."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.report.analysis.types import Analysis
from gpubench.report.formats._events import events
from gpubench.report.formats._json import json_line
from gpubench.report.formats._options import RenderOptions


def render(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """The events of all runs, one run after the other. No option changes them: other programs read it."""
    return "".join(json_line(event) for analysis in analyses for event in events(analysis))
