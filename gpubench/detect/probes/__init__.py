"""Probes that load native libraries. Each runs in a child process of its own: they have hung whole machines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpubench.result.machine import Status


class ProbeFailure(Exception):
    """The library is missing or refuses; `status` and `error_code` go into the provider's entry."""

    def __init__(self, status: Status, error_code: str, hint: str) -> None:
        super().__init__(hint)
        self.status: Status = status
        self.error_code = error_code
        self.hint = hint


def last(answers: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the last answer of a probe that tells what it knows after each device."""
    *_, answer = answers
    return answer
