"""HTML: the whole report as one file that asks nothing of any network. Charts need the extra `plots`."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.report.analysis.types import Analysis
from gpubench.report.formats._html.article import Filling
from gpubench.report.formats._html.page import page
from gpubench.report.formats._options import RenderOptions

MAX_BYTES = 2_000_000
# What is left out first where a page would grow beyond that; the numbers of the report always stay.
FILLINGS = (Filling(), Filling(samples=False), Filling(samples=False, results=False))


def render(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """One page for all runs; the same bytes for the same files and the same installed extras."""
    for filling in FILLINGS:
        text = page(analyses, options, filling)
        if len(text.encode()) < MAX_BYTES:
            break
    return text.encode("ascii", "xmlcharrefreplace").decode() if options.ascii_only else text
