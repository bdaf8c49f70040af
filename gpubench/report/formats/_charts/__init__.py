"""Charts of one run: an analysis in, declarative specs with their rows out; pictures are drawn from the same specs.

Needs the extra `plots` (altair, vl-convert-python), which nothing imports before a chart is made.
"""

from __future__ import annotations

import importlib.util

INSTALL = "pip install 'gpubench[plots]'"


def missing_libraries() -> list[str]:
    """What of the extra `plots` is not installed."""
    return [name for name in ("altair", "vl_convert") if importlib.util.find_spec(name) is None]
