"""Numbers with units as text: the sizes, durations and percentages that users type, and the times, bytes,
rates and sizes that reports show. Options, reports and messages use these functions.

The grammar of sizes, such as `1k,4k`, `1k:64M:x4`, `256:1024:+256`, `2^20`, `1e6`, `1_000`, `1.5k`:

    list   = item { "," item }              item  = number | range
    range  = number ":" number [ ":x" factor | ":+" number ]        default step x2
    number = digits [ "." digits ] [ " " ] [ k | M | G ] [ "i" ] | base "^" exponent | digits "e" exponent

`k`, `M` and `G` are powers of 1024, with or without `i`, in upper or lower case. A number with a suffix is
rounded to a whole number; any other has to be whole. The caller handles the item "auto".
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from gpubench.base.errors import UsageError
from gpubench.base.streams import cut

if TYPE_CHECKING:
    from fractions import Fraction

MAX_SIZE = 2**40
# Most sizes of a list. Every size takes seconds to measure, so a longer list is a typing error.
MAX_SIZES = 1000
# Most characters of a number, more than any sensible way to write 2^40. It bounds the work on hostile text.
_MAX_NUMBER_LENGTH = 32

_DIGITS = r"[0-9]+(?:_[0-9]+)*"
_NUMBER = re.compile(
    rf"(?P<base>{_DIGITS})\^(?P<power>{_DIGITS})|(?P<digits>{_DIGITS})[eE](?P<exponent>{_DIGITS})"
    rf"|(?P<plain>{_DIGITS}(?:\.{_DIGITS})?)(?: ?(?P<suffix>[kKmMgG])[iI]?)?"
)
SIZE_UNITS = (("G", 2**30), ("M", 2**20), ("K", 2**10))  # as `parse_sizes` reads them
_SUFFIXES = {suffix.lower(): scale for suffix, scale in SIZE_UNITS}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(?P<number>[0-9]{1,12}(?:\.[0-9]{0,12})?)\s*(?P<unit>ns|us|ms|s|min|m|h)?")
_PERCENT = re.compile(r"(?P<number>[0-9]{1,12}(?:\.[0-9]{0,12})?)\s*%?")
MAX_DURATION_S = 30 * 86400.0
_MEMORY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_RATE_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
MAX_DIGITS = 4


class _Part(NamedTuple):
    """A part of a typed list of sizes, with its position in the list for errors."""

    text: str  # characters of the part
    start: int  # index of its first character in the whole text
    whole: str  # whole text
    option: str  # name of the option

    def fail(self, why: str, hint: str | None = None) -> NoReturn:
        """Raise a UsageError about this part, with the reason `why` and the remedy `hint`."""
        where = f"{cut(self.text, 60)!r} at position {self.start + 1} of {cut(self.whole, 60)!r}"
        raise UsageError("bad-size", f"{self.option}: {where} is not usable", why=why, hint=hint)

    def split(self, mark: str) -> list[_Part]:
        """Return the parts between the occurrences of `mark`, a single character."""
        parts, start = [], self.start
        for text in self.text.split(mark):
            parts.append(self._replace(text=text, start=start))
            start += len(text) + 1
        return parts

    def trim(self, first: int = 0) -> _Part:
        """Return the part without surrounding blanks and without the first `first` characters after them."""
        start = self.start + len(self.text) - len(self.text.lstrip())
        return self._replace(text=self.text.strip()[first:], start=start + first)

    def number(self) -> int:
        """Return the value of this part, a whole number from 1 to 2^40. Raises UsageError for any other text."""
        part = self.trim()
        if not part.text:
            part.fail("a number is missing here")
        if len(part.text) > _MAX_NUMBER_LENGTH:
            part.fail("this number is too long; the largest size is 2^40")
        match = _NUMBER.fullmatch(part.text)
        if not match:
            words = re.findall(r"[^\s;]+", part.text)
            if len(words) > 1:
                part.fail("a comma separates sizes", f"write {','.join(words)}")
            if re.fullmatch(r"\d+([x*]\d+)+", part.text):
                part.fail(
                    "a size is one number",
                    "give the rows of a square matrix; other shapes: --params, `gpubench ops`",
                )
            part.fail("a number is 1000, 1_000, 4k, 1.5M, 2^20 or 1e6")
        value = _value(match)
        if match["suffix"]:
            value = type(value)(round(value))  # a report rounds a size, and may call it 1.1 K
        if value < 1:
            part.fail("a size is at least 1")
        if value > MAX_SIZE:
            part.fail(f"a size is at most 2^40 = {MAX_SIZE}")
        if value.denominator != 1:
            part.fail("a size is a whole number of elements, and this is not whole")
        return int(value)

    def sizes(self) -> list[int]:
        """Return the sizes of one item of the list, ascending."""
        first, *rest = self.split(":")
        if len(rest) > 2:
            self.fail("a range has two or three parts: first:last:step")
        low = first.number()
        if not rest:
            return [low]
        high = rest[0].number()
        if low > high:
            self.fail("a range ascends", f"write it as {rest[0].text.strip()}:{first.text.strip()}")
        return rest[1].steps(low, high) if len(rest) == 2 else _geometric(low, high, 2)

    def steps(self, low: int, high: int) -> list[int]:
        """Return the sizes from `low` to `high` by the step in this part, `xF` or `+N`."""
        number, mark = self.trim(first=1), self.text.strip()[:1]
        if mark in ("x", "X"):
            factor = number.number()
            if factor < 2:
                self.fail("the factor of a range is at least 2")
            return _geometric(low, high, factor)
        if mark != "+":
            self.fail("the step of a range is xFACTOR or +NUMBER")
        distance = number.number()
        if (high - low) // distance >= MAX_SIZES:
            self.fail(f"this range has more than {MAX_SIZES} sizes", "take a larger step, or x2")
        return list(range(low, high + 1, distance))


def parse_time(text: str) -> datetime | None:
    """Parse an ISO 8601 time and return it in UTC. A time without an offset counts as UTC. Return None for any
    other text."""
    try:
        time = datetime.fromisoformat(text)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):  # the offset may lead out of the years 1 to 9999
        return None


def parse_sizes(text: str, *, option: str = "--sizes") -> list[int]:
    """Return the sizes that `text` lists, ascending and without duplicates. Raises UsageError for a size that
    is not from 1 to 2^40, and for more than MAX_SIZES sizes. The error names `option` and the position."""
    sizes: set[int] = set()
    for part in _Part(text, 0, text, option).split(","):
        sizes.update(part.sizes())
        if len(sizes) > MAX_SIZES:
            part.fail(f"the list has more than {MAX_SIZES} sizes", "list fewer sizes")
    return sorted(sizes)


def _geometric(low: int, high: int, factor: int) -> list[int]:
    sizes = []
    while low <= high:
        sizes.append(low)
        low *= factor
    return sizes


def _value(match: re.Match[str]) -> Fraction:
    """Return the exact value of a matched number. An exponent above 41 counts as 41."""
    from fractions import Fraction  # commands without sizes do not need it

    if match["plain"] is not None:
        scale = _SUFFIXES[match["suffix"].lower()] if match["suffix"] else 1
        return Fraction(match["plain"].replace("_", "")) * scale
    if match["base"] is not None:
        return Fraction(_bounded_power(int(match["base"]), int(match["power"])))
    return Fraction(int(match["digits"]) * _bounded_power(10, int(match["exponent"])))


def _bounded_power(base: int, exponent: int) -> int:
    # 9^99 is never computed: any power from 2^41 on is above MAX_SIZE.
    return int(base ** min(exponent, 41))


def parse_duration(text: str, *, option: str) -> float:
    """Return the seconds of a duration such as `500ms`, `2s`, `5m` or `1h`. A number without a unit means
    seconds. Raises UsageError, which names `option`, for any other text, for 0 and for more than 30 days."""
    match = _DURATION.fullmatch(text.strip())
    seconds = float(match["number"]) * _SECONDS[match["unit"] or "s"] if match else math.nan
    if not 0 < seconds <= MAX_DURATION_S:
        raise UsageError(
            "bad-duration", f"{option}: {text[:40]!r} is not a duration",
            why="a duration is a number of seconds, or one with a unit; it is more than 0 and at most 30 days",
        )  # fmt: skip
    return seconds


def parse_percent(text: str, *, option: str) -> float:
    """Return a percentage as a share, such as 0.02 for `2` and for `2%`. Raises UsageError, which names
    `option`, for any other text, for 0 and for more than 100 %."""
    match = _PERCENT.fullmatch(text.strip())
    percent = float(match["number"]) if match else math.nan
    if not 0 < percent <= 100:
        raise UsageError(
            "bad-percent", f"{option}: {text[:40]!r} is not a percentage",
            why="a percentage is a number more than 0 and at most 100",
        )  # fmt: skip
    return percent / 100


def earned_digits(value: float, low: float, high: float) -> int:
    """Return how many significant digits of `value` to show, given its interval [low, high], so that at most two
    of them are uncertain. The number is from 1 to MAX_DIGITS. It is MAX_DIGITS for a value of 0, for an
    interval without width, and for infinity or NaN."""
    width = abs(high - low)
    if not (math.isfinite(value) and math.isfinite(width)) or value == 0 or width == 0:
        return MAX_DIGITS
    return max(1, min(MAX_DIGITS, _exponent(value) - _exponent(width) + 2))


def format_seconds(seconds: float, *, digits: int = 3, unit: str = "auto") -> str:
    """Return a time with `digits` significant digits, such as `1.23 ms`. `unit` is s, ms, us, ns or "auto".
    "auto" takes the largest unit in which the number is at least 1, otherwise ns. Raises ValueError for another
    unit."""
    if not math.isfinite(seconds):
        return str(seconds)
    rounded = _round(seconds, digits)
    for name in ("s", "ms", "us", "ns"):
        scale = _SECONDS[name]
        # The factor spares 1e-3 / 1e-3 from landing just below 1.
        if unit == name or (unit == "auto" and (abs(rounded) >= scale * (1 - 1e-12) or name == "ns")):
            return f"{format_number(seconds / scale, digits)} {name}" if rounded else f"0 {name}"
    raise ValueError(f"not a unit of time: {unit!r}")


def format_joules(joules: float) -> str:
    """Return an energy with three significant digits, such as `1.23 mJ`: in J, mJ, uJ or nJ."""
    return f"{format_seconds(joules)[:-1]}J"


def format_watts(watts: float) -> str:
    """Return a power, such as `700 W`, `14.3 W` or `1.23 mW`."""
    return f"{format_seconds(watts)[:-1]}W".replace(".0 ", " ")


def format_bytes(count: float) -> str:
    """Return a number of bytes in binary units, such as `512 B`, `1.5 KiB` or `139 GiB`, with up to three
    significant digits, or four for 1000 to 1023."""
    value, unit = _scale(count, 1024, 4, _MEMORY_UNITS)
    return f"{_short(format_number(value, 4 if abs(value) >= 1000 else 3))} {unit}"


def _short(text: str) -> str:
    """Return a number without zeros at the end of its decimals."""
    return text.rstrip("0").rstrip(".") if "." in text else text


def _scale(value: float, step: int, digits: int, units: Sequence[str]) -> tuple[float, str]:
    """Return a value, divided by `step` until it is smaller when rounded to `digits` digits, and its unit."""
    unit, *larger = units
    if larger and abs(_round(value, digits)) >= step:
        return _scale(value / step, step, digits, larger)
    return value, unit


def format_rate(per_second: float, unit: str) -> str:
    """Return a rate in SI units, with three significant digits: `format_rate(4.22e12, "B/s")` is `4.22 TB/s`."""
    value, prefix = _scale(per_second, 1000, 3, _RATE_PREFIXES)
    return f"{format_number(value)} {prefix}{unit}"


def format_size(n: int) -> str:
    """Return the exact size as text. From 16 K on, multiples of 1024, 1024^2 or 1024^3 become `64 K`, `16 M` or
    `2 G`."""
    if n >= 2**14:
        for suffix, scale in SIZE_UNITS:
            if n >= scale and n % scale == 0:
                return f"{n // scale} {suffix}"
    return str(n)


def scale_size(n: int) -> tuple[str, str]:
    """Return a rounded size and its unit, such as ("23", "K") or ("1.5", "M"). Sizes below 0.95 K are exact and
    have the unit ""."""
    for unit, scale in SIZE_UNITS:
        value = n / scale
        # K has no decimals from 10 on, M and G have none from 100 on.
        decimals = int(value < (10 if unit == "K" else 100))
        if round(value, decimals) >= 1:
            return _short(f"{value:.{decimals}f}"), unit
    return str(n), ""


def _exponent(value: float) -> int:
    return math.floor(math.log10(abs(value)))


def _round(value: float, digits: int) -> float:
    return float(f"{value:.{digits - 1}e}") if math.isfinite(value) else value


def format_number(value: float, digits: int = 3) -> str:
    """Return `value` with `digits` significant digits and without an exponent: 1234.5 with 3 digits is
    `1230`."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    rounded = _round(value, digits)
    return f"{rounded:.{max(0, digits - 1 - _exponent(rounded))}f}"


def count_noun(count: int, noun: str) -> str:
    """Return the number and the noun, in the plural if needed: `1 case`, `2 cases`."""
    return f"{count} {noun}{'s' if count != 1 else ''}"


def list_words(texts: Sequence[str]) -> str:
    """Return the texts joined as `a, b and c`. Return "" for no texts."""
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def split_words(text: str | None) -> list[str]:
    """Return the words of a comma-separated list, without blanks around them and without empty words. None has
    no words."""
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def truncate(texts: Sequence[str], most: int, *, between: str = ", ") -> str:
    """Return the first `most` texts, joined by `between`, and how many others there are: `a, b and 3 more`."""
    rest = len(texts) - most
    return between.join(texts[:most]) + f" and {rest} more" * (rest > 0)
