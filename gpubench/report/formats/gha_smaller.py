"""github-action-benchmark, tool `customSmallerIsBetter`: the wall time of each case, always in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.report.analysis.types import Analysis
from gpubench.report.formats import _gha as gha
from gpubench.report.formats._estimated import estimated, half_width, only_run
from gpubench.report.formats._options import RenderOptions

MS = 1e3


def render(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """The array of one run. Raises UsageError for several runs."""
    cases = estimated(only_run(analyses, "gha-smaller"))
    return gha.text(
        [
            gha.entry(
                case.id, case.time.estimate * MS, "ms", half_width(case.time) * MS, case,
                gha.interval_note("wall time of one launch", case.time, "ms", MS),
            )
            for case in cases
        ],
        options,
    )  # fmt: skip
