"""The gates of a report: what was asked for, and which cases breached it."""

from __future__ import annotations

from gpubench.report.analysis.types import Analysis, Gate
from gpubench.report.formats._document import Section, printable

MOST_IDS = 5


def gates_section(analysis: Analysis) -> Section:
    """One line for each gate; no lines where none was asked for."""
    return Section(key="gates", title="Gates", lines=tuple(gate_text(gate) for gate in analysis.gates))


def gate_text(gate: Gate) -> str:
    """`min-speedup matmul=5x: FAILED: below 5x: matmul/n=64/...`."""
    name = gate_name(gate)
    least = "" if gate.least is None else f"{gate.least:g}x"
    below = f"below {least}: " if least else ""
    found = (gate.reason or "", _cases(below, gate.low), _cases("no number: ", gate.missing))
    parts = [part for part in found if part]
    near = _cases(f"{least} lies inside the interval of ", gate.near)
    if not gate.passed:
        return f"{name}: FAILED: {'; '.join([*parts, *([near] if near else [])])}"
    return f"{name}: passed, but {near}" if near else f"{name}: passed"


def gate_name(gate: Gate) -> str:
    """As it was asked for: `min-speedup matmul=5`, `noisy`."""
    return printable(f"{gate.name} {gate.selector}" if gate.selector else gate.name)


def _cases(what: str, ids: tuple[str, ...]) -> str:
    if not ids:
        return ""
    more = f" and {len(ids) - MOST_IDS} more" if len(ids) > MOST_IDS else ""
    return printable(f"{what}{', '.join(ids[:MOST_IDS])}{more}")
