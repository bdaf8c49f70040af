"""Quantities as text: times with a unit that fits, binary memory, SI rates, and only earned digits."""

from __future__ import annotations

import math

_TIME_UNITS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))
_MEMORY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_RATE_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
MAX_DIGITS = 4


def earned_digits(value: float, low: float, high: float) -> int:
    """Significant digits of `value` that its interval allows: none beyond the second uncertain one.

    Between 1 and MAX_DIGITS; MAX_DIGITS when the interval has no width.
    """
    width = abs(high - low)
    if not (math.isfinite(value) and math.isfinite(width)) or value == 0 or width == 0:
        return MAX_DIGITS
    digits = _exponent(value) - _exponent(width) + 2
    return max(1, min(MAX_DIGITS, digits))


def format_seconds(seconds: float, *, digits: int = 3, unit: str = "auto") -> str:
    """`1.23 ms`: `digits` significant digits in the unit (s, ms, us, ns) in which 1 <= value < 1000."""
    if not math.isfinite(seconds):
        return str(seconds)
    rounded = _round(seconds, digits)
    for name, scale in _TIME_UNITS:
        # The factor spares 1e-3 / 1e-3 from landing just below 1.
        if unit == name or (unit == "auto" and (abs(rounded) >= scale * (1 - 1e-12) or name == "ns")):
            return f"{_significant(seconds / scale, digits)} {name}" if rounded else f"0 {name}"
    raise ValueError(f"not a unit of time: {unit!r}")


def format_bytes(count: float, *, digits: int = 3) -> str:
    """Memory in binary units: `512 B`, `1.5 KiB`, `139 GiB`."""
    index, value = 0, float(count)
    while index < len(_MEMORY_UNITS) - 1 and abs(_round(value, max(digits, 4))) >= 1024:
        value /= 1024
        index += 1
    digits = max(digits, 4) if abs(value) >= 1000 else digits
    text = _significant(value, digits)
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return f"{text} {_MEMORY_UNITS[index]}"


def format_rate(per_second: float, unit: str, *, digits: int = 3) -> str:
    """A rate in SI units: `format_rate(4.22e12, "B/s")` is `4.22 TB/s`; also `FLOP/s`."""
    index, value = 0, float(per_second)
    while index < len(_RATE_PREFIXES) - 1 and abs(_round(value, digits)) >= 1000:
        value /= 1000
        index += 1
    return f"{_significant(value, digits)} {_RATE_PREFIXES[index]}{unit}"


def format_ratio(ratio: float, *, digits: int = 3) -> str:
    """A speedup: `38.2x`."""
    return f"{_significant(ratio, digits)}x"


def format_size(n: int, *, table: bool = False) -> str:
    """A size as a plain integer; in tables, whole multiples from 2^20 up as `16Mi`, `2Gi`."""
    if table:
        for suffix, scale in (("Gi", 2**30), ("Mi", 2**20)):
            if n >= scale and n % scale == 0:
                return f"{n // scale}{suffix}"
    return str(n)


def _exponent(value: float) -> int:
    return math.floor(math.log10(abs(value)))


def _round(value: float, digits: int) -> float:
    return float(f"{value:.{digits - 1}e}") if math.isfinite(value) else value


def _significant(value: float, digits: int) -> str:
    """`value` with `digits` significant digits and no exponent: 1234.5 with 3 is `1230`."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    rounded = _round(value, digits)
    return f"{rounded:.{max(0, digits - 1 - _exponent(rounded))}f}"
