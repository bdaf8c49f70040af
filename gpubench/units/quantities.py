"""Durations and percentages as users type them: `500ms`, `2s`, `5m`; `2`, `2%`."""

from __future__ import annotations

import math
import re

from gpubench.errors import UsageError

_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(?P<number>[0-9]{1,12}(?:\.[0-9]{0,12})?)\s*(?P<unit>ns|us|ms|s|min|m|h)?")
_PERCENT = re.compile(r"(?P<number>[0-9]{1,12}(?:\.[0-9]{0,12})?)\s*%?")
MAX_DURATION_S = 30 * 86400.0


def parse_duration(text: str, *, option: str = "--max-time") -> float:
    """Seconds: `500ms`, `2s`, `5m`, `1h`; a plain number is seconds. More than 0, at most 30 days.

    Raises UsageError.
    """
    found = _DURATION.fullmatch(text.strip())
    seconds = float(found["number"]) * _SECONDS[found["unit"] or "s"] if found else math.nan
    if not 0 < seconds <= MAX_DURATION_S:
        raise UsageError(
            "bad-duration",
            f"{option}: {text[:40]!r} is not a duration",
            why="a duration is a number with a unit, more than 0 and at most 30 days",
            hint="write it as 500ms, 2s or 5m",
        )
    return seconds


def parse_percent(text: str, *, option: str = "--precision") -> float:
    """A share: `2` and `2%` are 0.02. More than 0 %, at most 100 %. Raises UsageError."""
    found = _PERCENT.fullmatch(text.strip())
    percent = float(found["number"]) if found else math.nan
    if not 0 < percent <= 100:
        raise UsageError(
            "bad-percent",
            f"{option}: {text[:40]!r} is not a percentage",
            why="a percentage is a number more than 0 and at most 100",
            hint="write it as 2 or 2%",
        )
    return percent / 100
