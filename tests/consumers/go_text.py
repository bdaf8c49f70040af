"""A strict reader of Go's benchmark text, after the design document of golang/go issue 14313.

benchstat itself is a Go program and no package of Debian, so this reader stands in for it: it takes the lines that
the design calls configuration and result lines, refuses everything else, and filters as benchstat's keys do: terms
`KEY:VALUE` or `KEY:(VALUE OR VALUE)` that all have to hold, where KEY is `.name` or `/` and a part of the name.
"""

import re
from typing import NamedTuple

# The key begins with a lower-case letter and holds neither space nor upper case; the colon stands right behind it.
_CONFIGURATION = re.compile(r"(?P<key>[a-z][^\sA-Z:]*):(?:[ \t]+(?P<value>[^\n]*))?")
_NAME = re.compile(r"Benchmark(?:[^a-z\s]\S*)?")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?")


class Result(NamedTuple):
    """One result line under the configuration in force; `values` by unit."""

    name: str
    parts: dict[str, str]
    iterations: int
    values: dict[str, float]
    configuration: dict[str, str]


def read(text: str) -> list[Result]:
    """All result lines. Raises ValueError for a line that a benchmark reader would not take."""
    assert text.endswith("\n")
    configuration: dict[str, str] = {}
    found = []
    for line in text.removesuffix("\n").split("\n"):
        if not line:
            continue
        if line.startswith("Benchmark"):
            found.append(_result(line, dict(configuration)))
            continue
        match = _CONFIGURATION.fullmatch(line)
        if not match:
            raise ValueError(f"neither a configuration nor a result line: {line!r}")
        configuration[match["key"]] = match["value"] or ""
    return found


def _result(line: str, configuration: dict[str, str]) -> Result:
    name, iterations, *rest = line.split()
    if not _NAME.fullmatch(name):
        raise ValueError(f"not a benchmark's name: {name!r}")
    if re.search(r"-\d+$", name):
        raise ValueError(f"the end of {name!r} would be taken for GOMAXPROCS")
    if int(iterations) <= 0 or not rest or len(rest) % 2:
        raise ValueError(f"iterations and pairs of value and unit expected: {line!r}")
    values: dict[str, float] = {}
    for value, unit in zip(rest[::2], rest[1::2], strict=True):
        if not _NUMBER.fullmatch(value) or unit in values:
            raise ValueError(f"bad value or unit in {line!r}")
        values[unit] = float(value)
    parts = dict(part.split("=", 1) for part in name.split("/")[1:])
    return Result(name, parts, int(iterations), values, configuration)
