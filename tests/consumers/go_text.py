"""A strict reader of Go's benchmark text, after the design document of golang/go issue 14313.

benchstat itself is a Go program and no package of Debian, so this reader stands in for it: it takes the lines that
the design calls configuration and result lines, and refuses everything else.
"""

import re
from typing import NamedTuple

# The key begins with a lower-case letter and holds neither space nor upper case; the colon stands right behind it.
_CONFIGURATION = re.compile(r"([a-z][^\sA-Z:]*):(?:[ \t]+(.*))?")
# A name, whose end nobody takes for GOMAXPROCS; iterations; pairs of value and unit.
_NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?"
_RESULT = re.compile(rf"(?!\S*-\d+\s)(Benchmark(?:[^a-z\s]\S*)?)\s+[1-9]\d*((?:\s+{_NUMBER}\s+\S+)+)")


class Result(NamedTuple):
    """One result line under the configuration in force; `parts` of the name, `values` by unit."""

    name: str
    parts: dict[str, str]
    values: dict[str, float]
    configuration: dict[str, str]


def read(text: str) -> list[Result]:
    """All result lines. Raises ValueError for a line that a benchmark reader would not take."""
    assert text.endswith("\n")
    configuration, found = dict[str, str](), []
    for line in filter(None, text.split("\n")):
        if result := _RESULT.fullmatch(line):
            parts = dict(part.split("=", 1) for part in result[1].split("/")[1:])
            numbers, units = result[2].split()[::2], result[2].split()[1::2]
            assert len({*units}) == len(units), line
            values = dict(zip(units, map(float, numbers), strict=True))
            found.append(Result(result[1], parts, values, dict(configuration)))
        elif match := _CONFIGURATION.fullmatch(line):
            configuration[match[1]] = match[2] or ""
        else:
            raise ValueError(f"neither a configuration nor a result line: {line!r}")
    return found
