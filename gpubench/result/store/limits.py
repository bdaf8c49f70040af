"""The bounds of a document. Every file that is read passes here, so that it is reported or refused within seconds.

The bounds lie above every real run and below what a report of 10 s and 1 GiB can be made of. Text is looked at before
it is decoded, because decoding alone may take all memory; a result once more after it.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from gpubench.base import disk
from gpubench.base.errors import InputError
from gpubench.result.run import Measurement, Run

MIB = 2**20
MAX_BYTES = 256 * MIB
# TOML is written by hand, and its decoder takes seconds for each MiB.
MAX_TOML_BYTES = MIB // 2
MAX_VALUES = 10_000_000
MAX_STRINGS = 2_000_000
MAX_CONTAINERS = 2_000_000
MAX_DEPTH = 50
MAX_STRING_BYTES = 256 * 2**10
MAX_TEXT_BYTES = 24 * MIB
MAX_INTEGER = 2**63 - 1
MAX_LARGE_INTEGERS = 100_000  # of as many digits: each of them is looked at
MAX_EXPONENT = 99  # numbers lie within 1e-99 to 1e99: what is made of two of them is still finite

MAX_SAMPLES = 2_200_000
MAX_BLOCKS = 100_000
MAX_CASES = 10_000
MAX_SESSIONS = 2_000
MAX_DEVICES = 128
MAX_WARNINGS = 10_000
MAX_CLAIMS = 200
# A report holds each case against every session, worker, peak, device and warning.
MAX_LOOKUPS = 5_000_000

# The shape of a text without strings: every digit as 0, whatever may stand before a number as a comma.
_SHAPE = bytes.maketrans(b"123456789E:[ \n\r\t+-", b"000000000e,,,,,,,,")
# A key of TOML with a dot for each table that it stands in: the decoder's time and memory grow with their square.
_DOTTED = re.compile(rb"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){%d}""" % MAX_DEPTH)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_EMPTY = re.compile(rb"\[\]|\{\}")
_EXPONENT = re.compile(rb"[eE][+-]?0*([1-9][0-9]{2,})")
_MOST_DIGITS = len(str(MAX_INTEGER))
_LONG_INTEGER = re.compile(rb",0{%d}" % _MOST_DIGITS)


@contextlib.contextmanager
def enough_memory(source: str) -> Iterator[None]:
    """Name the limit of memory as the reason where reading `source` meets it. Raises InputError."""
    try:
        yield
    except MemoryError:
        refused = OSError(errno.ENOMEM, "the memory that this process may take does not hold it")
        raise InputError(
            "unreadable", f"{source} cannot be read", why=disk.reason(refused),
            hint=disk.remedy(refused, "name a smaller file"),
        ) from None  # fmt: skip


def require_json(data: bytes, source: str) -> None:
    """Raises InputError if the JSON text `data` holds more than a document may."""
    require(source, "values", data.count(b",") + data.count(b"[") + data.count(b"{"), MAX_VALUES)
    if b"\\" in data:
        data = data.replace(rb"\\", b"__").replace(rb"\"", b"__")
    require(source, "texts", data.count(b'"') // 2, MAX_STRINGS)
    parts = data.split(b'"')
    require(source, "bytes in one text", max(map(len, parts[1::2]), default=0), MAX_STRING_BYTES)
    require(source, "bytes of text", sum(map(len, parts[1::2])), MAX_TEXT_BYTES)
    rest = b"".join(parts[::2])
    del parts, data
    _require_depth(rest.translate(None, _NO_BRACKETS), source)
    _require_numbers(rest, source)


def require_runs(runs: Iterable[Run], source: str) -> None:
    """Raises InputError if a report of all runs of one document would take too long."""
    runs = list(runs)
    blocks = [
        block
        for run in runs
        for outcome in run.outcomes
        if isinstance(outcome, Measurement)
        for block in outcome.blocks
    ]
    sessions = [session for run in runs for session in run.sessions]
    cases = sum(len(run.outcomes) for run in runs)
    devices = max((len(run.devices) for run in runs), default=0)
    warnings = sum(len(run.warnings) for run in runs)
    beside = len(sessions) + sum(len(session.workers) + len(session.peaks) for session in sessions) + warnings
    require(source, "cases", cases, MAX_CASES)
    require(source, "sessions", len(sessions), MAX_SESSIONS)
    require(source, "devices", devices, MAX_DEVICES)
    require(source, "warnings", warnings, MAX_WARNINGS)
    require(source, "blocks", len(blocks), MAX_BLOCKS)
    require(source, "samples", sum(len(block.wall_s) for block in blocks), MAX_SAMPLES)
    require(source, "pairs of a case with a session, worker, peak or warning", cases * beside, MAX_LOOKUPS)


def toml(data: bytes) -> dict[str, Any]:
    """The tables of a TOML text. Raises ValueError with the reason, also where it holds too much."""
    if len(data) > MAX_TOML_BYTES:
        raise ValueError(f"it holds {len(data):,} bytes, and at most {MAX_TOML_BYTES:,} are read")
    import tomllib

    if _DOTTED.search(data) is None:
        try:
            return tomllib.loads(data.decode())
        except RecursionError:
            pass
    raise ValueError(f"its tables and lists stand more than {MAX_DEPTH} deep inside each other")


def _require_depth(brackets: bytes, source: str) -> None:
    """`brackets` are those of a text alone: each turn takes the innermost ones away."""
    require(source, "lists and objects", len(brackets) // 2, MAX_CONTAINERS)
    for _ in range(MAX_DEPTH):
        if not brackets:
            return
        brackets = _EMPTY.sub(b"", brackets)
    if b"[]" in brackets or b"{}" in brackets:
        _refuse(source, f"its lists and objects stand more than {MAX_DEPTH} deep inside each other")


def _require_numbers(text: bytes, source: str) -> None:
    """`text` has no strings. Its regular numbers are passed over quickly: only what is suspicious is looked at."""
    shape = text.translate(_SHAPE)
    for i, match in enumerate(_LONG_INTEGER.finditer(shape)):
        require(source, f"integers of {_MOST_DIGITS} digits", i, MAX_LARGE_INTEGERS)
        digits = text[match.start() + 1 : match.end() + 1]  # one more than the largest has
        if digits.isdigit() or int(digits[:-1]) > MAX_INTEGER:
            _refuse(source, f"it holds a number above {MAX_INTEGER}, the largest integer")
    if b"e000" in shape or b"e,000" in shape:
        exponent = _EXPONENT.search(text)
        if exponent is not None:
            end = exponent[0][:20].decode()
            _refuse(
                source, f"it holds a number outside of 1e-{MAX_EXPONENT} to 1e{MAX_EXPONENT}: one ends in {end}"
            )
    if b"." + b"0" * MAX_EXPONENT in text:
        _refuse(source, f"it holds a number below 1e-{MAX_EXPONENT}")


def require(source: str, what: str, count: int, most: int) -> None:
    """Raises InputError if a file has more of something than is read."""
    if count > most:
        _refuse(source, f"it holds {count:,} {what}, and at most {most:,} are read")


def _refuse(source: str, why: str) -> NoReturn:
    raise InputError("too-large", f"{source} cannot be used", why=why)
