"""What a probe is asked, and what it answers."""

from __future__ import annotations

from typing import Any, NamedTuple

from gpubench.detect._record import Record
from gpubench.model.machine import Provider


class Request(NamedTuple):
    """A probe to run: its name, its options and how long it may take, in seconds."""

    name: str
    limit_s: float
    options: dict[str, Any] = {}
    command: tuple[str, ...] = ()  # for tests: another program in its place


class Answer(NamedTuple):
    """What a probe said; `extra` holds the rest of its JSON object."""

    provider: Provider
    records: list[Record]
    extra: dict[str, Any]
