"""Selectors: a case id with `*` in any segment and trailing segments left out.

`matmul`, `matmul/n>=4096@cupy`, `*@wgpu:0`, `activation/*/float16`, `matmul/n=1k..4k`. The first segment is an op
or a group; the size segment also compares; `@cupy` is `@cupy:*`; `transfer-once` stands for any number of calls,
`resident` for `resident-waited` and `resident-queued` too;
`tuned` is the plain form alone, `tuned-naive` one variant and `tuned*` the form with all its variants.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import NoReturn

from gpubench.base.errors import UsageError
from gpubench.base.units import MAX_SIZE, parse_sizes
from gpubench.result.case import LONG_DTYPES, RESIDENT, Case

Selector = Callable[[Case], bool]
_SEGMENTS = ("op", "n=SIZE", "dtype", "form", "regime")
_SIZE = re.compile(r"n(?P<sign>>=|<=|=)(?P<first>[^,.]+(?:\.\d+[a-zA-Z]*)?)(?:\.\.(?P<last>[^,]+))?")


def selector(text: str, *, option: str = "--filter") -> Selector:
    """The test that `text` stands for. Raises UsageError, naming `option`, if it is no selector."""
    path, at, device = text.strip().rpartition("@") if "@" in text else (text.strip(), "", "")
    segments = path.split("/")
    if not path or len(segments) > len(_SEGMENTS) or "" in segments or (at and not device):
        _refuse(text, option, f"a selector is {'/'.join(_SEGMENTS)}@DEVICE, from the left, each part may be *")
    parts = [*segments, *["*"] * (len(_SEGMENTS) - len(segments))]
    size = _size_test(parts[1], text, option)
    dtype = LONG_DTYPES.get(parts[2], parts[2])
    pattern = device if not device or ":" in device or device == "*" else f"{device}:*"

    def matches(case: Case) -> bool:
        return (
            any(fnmatchcase(name, parts[0]) for name in (case.op, case.group))
            and size(case)
            and fnmatchcase(case.dtype, dtype)
            and fnmatchcase(case.form_id, parts[3])
            and any(fnmatchcase(name, parts[4]) for name in _regimes(case))
            and (not pattern or fnmatchcase(case.device_id, pattern))
        )

    return matches


def _regimes(case: Case) -> tuple[str, ...]:
    """The names under which its regime is selected."""
    return (case.regime_id, case.regime, *((RESIDENT,) if case.resident else ()))


def selection(keep: Sequence[str], skip: Sequence[str]) -> Selector | None:
    """Cases that one of `keep` selects (all, if there is none) and none of `skip`; None: every case."""
    if not keep and not skip:
        return None
    tests = [selector(text, option="--filter") for text in keep]
    unwanted = [selector(text, option="--skip") for text in skip]

    def selects(case: Case) -> bool:
        return (not tests or any(test(case) for test in tests)) and not any(test(case) for test in unwanted)

    return selects


def _size_test(text: str, whole: str, option: str) -> Selector:
    if text == "*":
        return lambda case: True
    first, *others = text.split(",")
    match = _SIZE.fullmatch(first)
    if not match or (match["last"] and match["sign"] != "="):
        _refuse(whole, option, f"{text!r} is no size: n=1024, n=1k..4k, n>=4096, n<=1M or *")
    bound = _one_size(match["first"], option)
    low, high = {
        "=": (bound, _one_size(match["last"], option) if match["last"] else bound),
        ">=": (bound, MAX_SIZE),
        "<=": (1, bound),
    }[match["sign"]]
    params = dict(_param(other, whole, option) for other in others)

    def matches(case: Case) -> bool:
        n = case.params.get("n", 0)
        return low <= n <= high and all(case.params.get(name) == value for name, value in params.items())

    return matches


def _param(text: str, whole: str, option: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    if not name or not value.isdecimal():
        _refuse(whole, option, f"{text!r} is no parameter of the form name=number")
    return name, int(value)


def _one_size(text: str, option: str) -> int:
    sizes = parse_sizes(text, option=option)
    if len(sizes) != 1:
        _refuse(text, option, "one size is wanted here, not several")
    return sizes[0]


def _refuse(text: str, option: str, why: str) -> NoReturn:
    raise UsageError("bad-selector", f"{option}: {text[:60]!r} is not a selector", why=why)
