"""Sets of small numbers as the kernel writes them: lists ("0-3,8") and masks ("f,00000001")."""

from __future__ import annotations

from collections.abc import Iterable

LIMIT = 1 << 16  # more CPUs or nodes than any kernel supports: a larger number is a spoiled file


def parse_list(text: str) -> frozenset[int]:
    """Members of "0-3,8"; "" is the empty set. Raises ValueError for anything else."""
    members: set[int] = set()
    for item in text.split(",") if text else ():
        low, dash, high = item.strip().partition("-")
        first = _number(low)
        last = _number(high) if dash else first
        if not first <= last < LIMIT:
            raise ValueError(f"not a list of numbers: {text[:40]!r}")
        members.update(range(first, last + 1))
    return frozenset(members)


def parse_mask(text: str) -> frozenset[int]:
    """Members of a hexadecimal mask in groups of 32 bits, highest first. Raises ValueError."""
    words = text.split(",")
    if not all(word and len(word) <= 8 and word.isascii() and word.isalnum() for word in words[1:]):
        raise ValueError(f"not a mask: {text[:40]!r}")
    digits = words[0].removeprefix("0x") + "".join(word.rjust(8, "0") for word in words[1:])
    if not digits or not digits.isalnum() or len(digits) * 4 > LIMIT:
        raise ValueError(f"not a mask: {text[:40]!r}")
    value = int(digits, 16)
    return frozenset(n for n in range(value.bit_length()) if value >> n & 1)


def list_form(members: Iterable[int]) -> str:
    """The shortest list form, ascending: {0, 1, 2, 8} -> "0-2,8"."""
    runs: list[list[int]] = []
    for n in sorted(set(members)):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"not a number: {text[:20]!r}")
    return int(text)
