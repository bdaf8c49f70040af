"""This machine, with everything that only a live system tells."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.detect._record import Record
from gpubench.model.machine import Machine


def inspect(given: Sequence[Record], *, deep: bool, wake: bool, debug: bool) -> Machine:
    """Files, then the probes that the evidence allows."""
    return Machine()
