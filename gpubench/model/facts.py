"""A fact: a value that knows where it came from, or why it is missing."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

import msgspec

T = TypeVar("T")

Status = Literal[
    "ok", "conflict",
    "absent", "unsupported", "permission", "mismatch", "invalid", "timeout", "crashed", "not_probed",
]  # fmt: skip


class Alternative(msgspec.Struct, frozen=True):
    """What another source said about the same thing."""

    value: bool | int | float | str | list[int] | None
    source: str


class Fact(msgspec.Struct, Generic[T], frozen=True):
    """`value` is not None exactly when `status` is "ok" or "conflict"; a value always has a `source`.

    Unknown is None with a status, never 0 and never a default.
    """

    value: T | None
    status: Status
    source: str | None
    note: str | msgspec.UnsetType = msgspec.UNSET
    alternatives: list[Alternative] | msgspec.UnsetType = msgspec.UNSET
