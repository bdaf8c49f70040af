"""The mathematics of times over size: one curve for each contender, and the size where two curves cross.

A contender is one implementation on one device. A `TimedSizes` holds its times. `fit` turns the `TimedSizes` of
a run into `TimeCurve`s, and `compare` turns the curves of two sides into a `Threshold`. The package consists of
pure functions of numbers and does not know files, ops or devices.
"""

from gpubench.curves.relatives import TimedSizes, fit
from gpubench.curves.threshold import (
    HIGHEST_COST,
    TAIL,
    Margin,
    Side,
    Threshold,
    compare,
    doubt,
    fastest,
    interval,
    offset_apart,
    speedup_at,
    unsure,
)
from gpubench.curves.time_curve import Blocks, Kind, TimeCurve, kind_of

__all__ = [
    "HIGHEST_COST",
    "TAIL",
    "Blocks",
    "Kind",
    "Margin",
    "Side",
    "Threshold",
    "TimeCurve",
    "TimedSizes",
    "compare",
    "doubt",
    "fastest",
    "fit",
    "interval",
    "kind_of",
    "offset_apart",
    "speedup_at",
    "unsure",
]  # fmt: skip
