"""The `gpubench-fleet` document, version 1: one node per machine."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpubench.model.result import Run

NAME, VERSION = "gpubench-fleet", 1


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One machine: its result, or why there is none. `key` names it by its fingerprint and the uuids of its GPUs."""

    key: str
    status: Literal["ok", "failed"]
    error: str | None = None
    result: Run | None = None


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes of a fleet. `complete`: as many as were expected have brought a result."""

    name: Literal["gpubench-fleet"] = "gpubench-fleet"
    schema_version: int = VERSION
    nodes_expected: int
    nodes_collected: int
    complete: bool
    nodes: list[Node]
