"""Text of quantities: parsing what users type, formatting what they read, with earned digits only.

The grammar of sizes, such as `1k,4k`, `1k:64M:x4`, `256:1024:+256`, `2^20`, `1e6`, `1_000`, `1.5k`:

    list   = item { "," item }              item  = number | range
    range  = number ":" number [ ":x" factor | ":+" number ]        default step x2
    number = digits [ "." digits ] [ " " ] [ k | M | G ] [ "i" ] | base "^" exponent | digits "e" exponent

Suffixes are powers of 1024, with or without `i`, in any case; what they give is rounded to whole elements. The
item "auto" belongs to the caller, who knows the ladder of the op.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from fractions import Fraction
from typing import NoReturn

from gpubench.base.errors import UsageError

MAX_SIZE = 2**40
# A list is meant to be measured; every size costs seconds, so a longer one is a slip of the keyboard.
MAX_SIZES = 1000
# Longer than any way to write 2^40 with sense: bounds the work on hostile text.
_MAX_NUMBER_LENGTH = 32

_DIGITS = r"[0-9]+(?:_[0-9]+)*"
_NUMBER = re.compile(
    rf"(?P<base>{_DIGITS})\^(?P<power>{_DIGITS})"
    rf"|(?P<digits>{_DIGITS})[eE](?P<exponent>{_DIGITS})"
    rf"|(?P<plain>{_DIGITS}(?:\.{_DIGITS})?)(?: ?(?P<suffix>[kKmMgG])[iI]?)?"
)
SIZE_UNITS = (("G", 2**30), ("M", 2**20), ("K", 2**10))  # as `parse_sizes` reads them
_SUFFIXES = {suffix.lower(): scale for suffix, scale in SIZE_UNITS}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(?P<number>[0-9]{1,12}(?:\.[0-9]{0,12})?)\s*(?P<unit>ns|us|ms|s|min|m|h)?")
_PERCENT = re.compile(r"(?P<number>[0-9]{1,12}(?:\.[0-9]{0,12})?)\s*%?")
MAX_DURATION_S = 30 * 86400.0
_TIME_UNITS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))
_MEMORY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_RATE_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
MAX_DIGITS = 4


class _SizeText:
    """The whole text under way, so that an error can show the position of the part it is about."""

    def __init__(self, text: str, option: str) -> None:
        self.text = text
        self.option = option

    def fail(self, part: str, start: int, why: str, hint: str | None = None) -> NoReturn:
        """Raise the UsageError for `part`, which begins at index `start`."""
        shown = _shorten(part)
        message = f"{self.option}: {shown!r} at position {start + 1} of {_shorten(self.text)!r} is not usable"
        raise UsageError("bad-size", message, why=why, hint=hint)

    def number(self, part: str, start: int) -> int:
        """The value of one number: whole, 1 to 2^40."""
        start += len(part) - len(part.lstrip())
        part = part.strip()
        if not part:
            self.fail(part, start, "a number is missing here")
        if len(part) > _MAX_NUMBER_LENGTH:
            self.fail(part, start, "this number is too long; the largest size is 2^40")
        found = _NUMBER.fullmatch(part)
        if not found:
            self.fail(part, start, "this is not a number of the size grammar")
        value = _value(found)
        if found["suffix"]:
            value = Fraction(round(value))  # 1.1K is what a report calls 1.1 K
        if value < 1:
            self.fail(part, start, "a size is at least 1")
        if value > MAX_SIZE:
            self.fail(part, start, f"a size is at most 2^40 = {MAX_SIZE}")
        if value.denominator != 1:
            self.fail(part, start, "a size is a whole number of elements, and this is not whole")
        return int(value)

    def item(self, part: str, start: int) -> list[int]:
        """The sizes of one item of the list, ascending."""
        pieces = part.split(":")
        if len(pieces) == 1:
            return [self.number(part, start)]
        if len(pieces) > 3:
            self.fail(part, start, "a range has two or three parts: first:last:step")
        low = self.number(pieces[0], start)
        high_start = start + len(pieces[0]) + 1
        high = self.number(pieces[1], high_start)
        if low > high:
            self.fail(part, start, "a range ascends", f"write it as {pieces[1].strip()}:{pieces[0].strip()}")
        if len(pieces) == 2:
            return _geometric(low, high, 2)
        return self._stepped(low, high, pieces[2], high_start + len(pieces[1]) + 1)

    def _stepped(self, low: int, high: int, step: str, start: int) -> list[int]:
        """A range with the step `xF` or `+N`, which begins at index `start`."""
        kind, text = step.strip()[:1].lower(), step.strip()[1:]
        offset = start + len(step) - len(step.lstrip())
        if kind == "x":
            factor = self.number(text, offset + 1)
            if factor < 2:
                self.fail(step, start, "the factor of a range is at least 2")
            return _geometric(low, high, factor)
        if kind != "+":
            self.fail(step, start, "the step of a range is xFACTOR or +NUMBER")
        distance = self.number(text, offset + 1)
        if (high - low) // distance >= MAX_SIZES:
            self.fail(step, start, f"this range has more than {MAX_SIZES} sizes", "take a larger step, or x2")
        return list(range(low, high + 1, distance))


def parse_time(text: str) -> datetime | None:
    """Return the time of a file in UTC, None if `text` is no ISO 8601 time. One without an offset is taken as UTC."""
    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):  # the offset may lead out of the years 1 to 9999
        return None


def parse_sizes(text: str, *, option: str = "--sizes") -> list[int]:
    """The sizes that `text` lists, ascending and unique, each from 1 to 2^40 and at most MAX_SIZES of them.

    `option` is named in the message. Raises UsageError with the position of the offending part.
    """
    whole = _SizeText(text, option)
    found: set[int] = set()
    start = 0
    for part in text.split(","):
        found.update(whole.item(part, start))
        if len(found) > MAX_SIZES:
            whole.fail(part, start, f"the list has more than {MAX_SIZES} sizes", "list fewer sizes")
        start += len(part) + 1
    return sorted(found)


def _geometric(low: int, high: int, factor: int) -> list[int]:
    found = []
    while low <= high:
        found.append(low)
        low *= factor
    return found


def _value(found: re.Match[str]) -> Fraction:
    """The exact value of a matched number, cut off above 2^41: 9^99 is never computed."""
    if found["plain"] is not None:
        scale = _SUFFIXES[found["suffix"].lower()] if found["suffix"] else 1
        return Fraction(found["plain"].replace("_", "")) * scale
    if found["base"] is not None:
        return Fraction(_bounded_power(int(found["base"]), int(found["power"])))
    return Fraction(int(found["digits"]) * _bounded_power(10, int(found["exponent"])))


def _bounded_power(base: int, exponent: int) -> int:
    power: int = base ** min(exponent, 41 if base >= 2 else 1)
    return power


def _shorten(text: str, width: int = 60) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def parse_duration(text: str, *, option: str = "--max-time") -> float:
    """Seconds: `500ms`, `2s`, `5m`, `1h`; a plain number is seconds. More than 0, at most 30 days.

    Raises UsageError.
    """
    found = _DURATION.fullmatch(text.strip())
    seconds = float(found["number"]) * _SECONDS[found["unit"] or "s"] if found else math.nan
    if not 0 < seconds <= MAX_DURATION_S:
        raise UsageError(
            "bad-duration", f"{option}: {text[:40]!r} is not a duration",
            why="a duration is a number with a unit, more than 0 and at most 30 days",
        )  # fmt: skip
    return seconds


def parse_percent(text: str, *, option: str = "--precision") -> float:
    """A share: `2` and `2%` are 0.02. More than 0 %, at most 100 %. Raises UsageError."""
    found = _PERCENT.fullmatch(text.strip())
    percent = float(found["number"]) if found else math.nan
    if not 0 < percent <= 100:
        raise UsageError(
            "bad-percent", f"{option}: {text[:40]!r} is not a percentage",
            why="a percentage is a number more than 0 and at most 100",
        )  # fmt: skip
    return percent / 100


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


def format_size(n: int, *, table: bool = False) -> str:
    """A size as a plain integer; in tables, whole multiples as `64 K`, `16 M`, `2 G`, from 16 K on: no matrix has a
    side that large."""
    if table and n >= 2**14:
        for suffix, scale in SIZE_UNITS:
            if n >= scale and n % scale == 0:
                return f"{n // scale} {suffix}"
    return str(n)


def scale_size(n: int) -> tuple[str, str]:
    """Return a size to two or three digits with its unit: ("23", "K"), ("1.5", "M"), ("512", "")."""
    for unit, scale in SIZE_UNITS:
        value = n / scale
        # 10.4 K is 10 K; a million more or less is more than people round away.
        decimals = 1 if value < (10 if unit == "K" else 100) else 0
        if round(value, decimals) >= 1:
            text = f"{value:.{decimals}f}"
            return (text.rstrip("0").rstrip(".") if "." in text else text), unit
    return str(n), ""


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


def listed(texts: Sequence[str]) -> str:
    """`a, b and c`; empty of none."""
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def truncate(texts: Sequence[str], most: int, *, between: str = ", ") -> str:
    """The first `most` texts, and how many there are besides: `a, b and 3 more`."""
    rest = len(texts) - most
    return between.join(texts[:most]) + (f" and {rest} more" if rest > 0 else "")
