"""Documents that commands write and nothing reads back: the list of ops, and a plan."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class OpList(msgspec.Struct, kw_only=True):
    """A document of `gpubench ops --json`."""

    name: Literal["gpubench-ops"] = "gpubench-ops"  # of the document
    schema_version: Literal[2] = 2  # of the document
    ops: list[dict[str, Any]]  # in the order of `gpubench ops`
    broken: list[dict[str, str]]  # what other packages bring and cannot be listed: name, reason, detail


class SkippedCases(msgspec.Struct):
    """Cases that are left out for one reason."""

    count: int  # how many
    reason: str  # of the list of messages
    detail: str  # one sentence


class Plan(msgspec.Struct, kw_only=True):
    """A document of `gpubench run --dry-run --json`."""

    name: Literal["gpubench-plan"] = "gpubench-plan"  # of the document
    cases: list[str]  # by id
    skips: list[SkippedCases]  # by reason
    sessions: int  # sets of fresh workers
    has_budget: bool  # the run is bounded by time
    searches: bool  # a search adds sizes while time is left
    seconds: float  # the budget, or without one the longest time that the samples take
