"""The document for people."""

from __future__ import annotations

from gpubench.model.machine import Machine


def machine_line(machine: Machine) -> str:
    """One line."""
    return ""


def render(
    machine: Machine, format: str, *, color: str = "auto", ascii: bool = False, explain: bool = False
) -> str:
    """Text."""
    return ""
