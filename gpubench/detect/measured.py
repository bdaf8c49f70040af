"""Measured results of this machine in place of the static rule."""

from __future__ import annotations

from pathlib import Path

from gpubench.model.machine import Machine, Recommendation


def apply(machine: Machine, advice: Recommendation, results: Path) -> Recommendation:
    """The recommendation from result files below `results`, or `advice` unchanged where none fits."""
    return advice
