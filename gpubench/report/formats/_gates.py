"""The gates of a report or a comparison: what was asked for, and which cases breached it."""

from __future__ import annotations

from typing import Protocol

from gpubench.report.analysis.types import Analysis
from gpubench.report.formats._document import Section, printable
from gpubench.report.listing import first_few

MOST_IDS = 5


class Told(Protocol):
    """What is told of a gate, whether a report has it or a comparison."""

    @property
    def name(self) -> str:
        """As --fail-on takes it, or `min-speedup`."""

    @property
    def selector(self) -> str | None:
        """The cases that it asks, as they were typed; None: all."""

    @property
    def least(self) -> float | None:
        """The speedup that it asks for."""

    @property
    def passed(self) -> bool:
        """Whether nothing breached it."""

    @property
    def reason(self) -> str | None:
        """Why it failed as a whole."""

    @property
    def low(self) -> tuple[str, ...]:
        """The cases that breach it."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Selected cases without a number: a breach too."""

    @property
    def near(self) -> tuple[str, ...]:
        """The cases whose interval contains what is asked for: no breach."""


def gates_section(analysis: Analysis) -> Section:
    """One line for each gate; no lines where none was asked for."""
    return Section(key="gates", title="Gates", lines=tuple(gate_text(gate) for gate in analysis.gates))


def gate_text(gate: Told) -> str:
    """`min-speedup matmul=5x: FAILED: below 5x: matmul/n=64/...`, `slower: FAILED: matmul/n=64/...`."""
    name = gate_name(gate)
    least = "" if gate.least is None else f"{gate.least:g}x"
    below = f"below {least}: " if least else ""
    found = (gate.reason or "", _cases(below, gate.low), _cases("no number: ", gate.missing))
    parts = [part for part in found if part]
    near = _cases(f"{least} lies inside the interval of ", gate.near)
    if not gate.passed:
        return f"{name}: FAILED: {'; '.join([*parts, *([near] if near else [])])}"
    return f"{name}: passed, but {near}" if near else f"{name}: passed"


def gate_name(gate: Told) -> str:
    """As it was asked for: `min-speedup matmul=5`, `noisy`."""
    return printable(f"{gate.name} {gate.selector}" if gate.selector else gate.name)


def _cases(what: str, ids: tuple[str, ...]) -> str:
    return printable(what + first_few(ids, MOST_IDS)) if ids else ""
