"""Text of quantities: parsing what users type, formatting what they read (docs/cli.md, "Sizes")."""

from gpubench.units.formatting import (
    earned_digits,
    format_bytes,
    format_rate,
    format_ratio,
    format_seconds,
    format_size,
)
from gpubench.units.quantities import parse_duration, parse_percent
from gpubench.units.sizes import MAX_SIZE, MAX_SIZES, parse_sizes

__all__ = [
    "MAX_SIZE",
    "MAX_SIZES",
    "earned_digits",
    "format_bytes",
    "format_rate",
    "format_ratio",
    "format_seconds",
    "format_size",
    "parse_duration",
    "parse_percent",
    "parse_sizes",
]
