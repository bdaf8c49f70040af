"""The base room: messages, errors, units, tables, processes, files, plugins.

Every room may import it; it imports no other room.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


def at_largest(items: Sequence[T], key: Callable[[T], Hashable], size: Callable[[T], int]) -> list[T]:
    """Return, for each key, the items whose size is the largest of that key."""
    largest = {name: max(map(size, group)) for name, group in group_by(items, key).items()}
    return [item for item in items if size(item) == largest[key(item)]]


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Group the items by their key. Keys, and the items of each key, keep their order."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


AMD, APPLE, INTEL, NVIDIA, MESA = 0x1002, 0x106B, 0x8086, 0x10DE, 0x10005


# The part of the CPUs' time that others may take without disturbing (docs/measuring.md).
BUSY_SHARE = 0.05
