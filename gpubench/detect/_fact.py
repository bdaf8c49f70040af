"""Makers of facts. A fact without a value carries the most telling reason that any source gave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import UNSET

from gpubench.model.facts import Fact, Status

T = TypeVar("T")

ABSENT: Fact[Any] = Fact(None, "absent", None)
NOT_PROBED: Fact[Any] = Fact(None, "not_probed", None)

# What a reader most wants to hear when nobody knows: a broken file before a missing one.
_TELLING: tuple[Status, ...] = (
    "invalid", "permission", "mismatch", "crashed", "timeout", "unsupported", "not_probed", "absent",
)  # fmt: skip


def known(value: T, source: str, note: str | None = None) -> Fact[T]:
    """A value and where it came from."""
    return Fact(value, "ok", source, UNSET if note is None else note)


def missing(status: Status, source: str | None = None, note: str | None = None) -> Fact[Any]:
    """No value, and why."""
    return Fact(None, status, source, UNSET if note is None else note)


def first(*facts: Fact[T]) -> Fact[T]:
    """The first fact with a value, else the one whose reason tells most."""
    for fact in facts:
        if fact.value is not None:
            return fact
    return min(facts, key=lambda fact: _TELLING.index(fact.status)) if facts else ABSENT


def derived(fact: Fact[Any], change: Callable[[Any], T]) -> Fact[T]:
    """A fact computed from another one; a missing one stays missing for the same reason."""
    if fact.value is None:
        return fact
    return known(change(fact.value), fact.source or "")


def lost(fact: Fact[Any]) -> Fact[Any]:
    """A fact that is missing because the one it rests on is missing."""
    return missing(fact.status, fact.source)
