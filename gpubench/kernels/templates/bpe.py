"""Byte-pair encoding: the vocabulary, the text, and twenty lines that encode as `tiktoken` does, which judge it.

A word is a run of letters, digits or other signs with the blank before it, or a run of white space. Of neighbours in a
word those are joined first whose joined bytes have the lowest rank (Sennrich and others, arXiv 1508.07909). The frozen
files are those of scripts/train_vocabulary.py; a rank stands beside its bytes in base64, as in tiktoken's files.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

TEXT = Path(__file__).parents[1] / "data" / "text.txt"
RANKS = Path(__file__).parents[1] / "data" / "ranks.txt"
ENTRIES = 2048
PATTERN = r" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+"
_WORD = re.compile(PATTERN.encode())


def words(text: bytes) -> list[bytes]:
    """The text cut into words; together they are the text."""
    return _WORD.findall(text)


@cache
def ranks() -> dict[bytes, int]:
    """The number of each entry of the vocabulary."""
    lines = RANKS.read_text(encoding="ascii").splitlines()
    return {base64.b64decode(entry): int(rank) for entry, rank in (line.split() for line in lines)}


def merged(parts: Sequence[bytes], pair: tuple[bytes, bytes]) -> list[bytes]:
    """The parts with each such pair joined, from the left."""
    found: list[bytes] = []
    i = 0
    while i < len(parts):
        width = 2 if tuple(parts[i : i + 2]) == pair else 1
        found.append(b"".join(parts[i : i + width]))
        i += width
    return found


@cache
def _ids(word: bytes) -> tuple[int, ...]:
    known = ranks()
    parts = [bytes([value]) for value in word]
    while len(parts) > 1:
        pair = min(pairwise(parts), key=lambda pair: known.get(pair[0] + pair[1], ENTRIES))
        if pair[0] + pair[1] not in known:
            break
        parts = merged(parts, pair)
    return tuple(known[part] for part in parts)


def encode(text: bytes) -> list[int]:
    """The ids of the text's tokens."""
    return [number for word in words(text) for number in _ids(word)]


def decode(ids: Sequence[int]) -> bytes:
    """The text of the ids: the inverse of `encode`."""
    entries = list(ranks())
    return b"".join(entries[number] for number in ids)


@cache
def _text() -> bytes:
    return TEXT.read_bytes()


class Beginning(NamedTuple):
    """The shortest beginning of the text, repeated, that ends with a word and has so many tokens: its length, and that
    of the tokens it has beside."""

    size: int
    beside: int


@cache
def beginning(count: int) -> Beginning:
    """Return the beginning of `count` tokens."""
    text = _text()
    times, left = 0, count
    if count * max(map(len, ranks())) > len(text):  # only then may it take the text more than once
        times, left = divmod(count, _tokens())
    size, beside = times * len(text), 0
    for found in _WORD.finditer(text):
        if left <= 0:
            break
        word = found[0]
        ids = _ids(word)
        if left < len(ids):
            beside = len(decode(ids[left:]))
        left -= len(ids)
        size += len(word)
    return Beginning(size, beside)


def text_bytes(count: int) -> int:
    """The length of that beginning."""
    return beginning(count).size


@cache
def _tokens() -> int:
    """How many tokens the whole text has."""
    return sum(len(_ids(word)) for word in words(_text()))


def text_of(count: int) -> bytes:
    """The beginning of the text, repeated where it is short, that has `count` tokens."""
    text, size = _text(), text_bytes(count)
    return (text * -(-size // len(text)))[:size]


def ids_of(count: int) -> list[int]:
    """The first ids of that beginning."""
    return encode(text_of(count))[:count]


@cache
def encoder() -> Any:
    """tiktoken's encoder of this vocabulary: its named ones would be downloaded."""
    import tiktoken

    return tiktoken.Encoding("gpubench", pat_str=PATTERN, mergeable_ranks=ranks(), special_tokens={})
