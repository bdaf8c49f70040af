"""The size grammar: `1k,4k`, `1k:64M:x4`, `256:1024:+256`, `2^20`, `1e6`, `1_000`, `1.5k`.

    list   = item { "," item }              item  = number | range
    range  = number ":" number [ ":x" factor | ":+" number ]        default step x2
    number = digits [ "." digits ] [ k | M | G ] [ "i" ] | base "^" exponent | digits "e" exponent

Suffixes are powers of 1024, with or without `i`, in any case. The item "auto" belongs to the caller,
who knows the ladder of the op.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NoReturn

from gpubench.errors import UsageError

MAX_SIZE = 2**40
# A list is meant to be measured; every size costs seconds, so a longer one is a slip of the keyboard.
MAX_SIZES = 1000
# Longer than any way to write 2^40 with sense: bounds the work on hostile text.
_MAX_NUMBER_LENGTH = 32

_DIGITS = r"[0-9]+(?:_[0-9]+)*"
_NUMBER = re.compile(
    rf"(?P<base>{_DIGITS})\^(?P<power>{_DIGITS})"
    rf"|(?P<digits>{_DIGITS})[eE](?P<exponent>{_DIGITS})"
    rf"|(?P<plain>{_DIGITS}(?:\.{_DIGITS})?)(?:(?P<suffix>[kKmMgG])[iI]?)?"
)
_SUFFIXES = {"k": 2**10, "m": 2**20, "g": 2**30}
_EXAMPLES = "write sizes as 1k,4k or 1000 or 2^20, ranges as 1k:64M:x4 or 256:1024:+256 (1k is 1024)"


class _SizeText:
    """The whole text under way, so that an error can show the position of the part it is about."""

    def __init__(self, text: str, option: str) -> None:
        self.text = text
        self.option = option

    def fail(self, part: str, start: int, why: str, hint: str = _EXAMPLES) -> NoReturn:
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
