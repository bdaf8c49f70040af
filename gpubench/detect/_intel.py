"""Intel: integrated or discrete by address, and the memory where the kernel publishes it."""

from __future__ import annotations

import re
from typing import Any

from gpubench.detect._fact import ABSENT, NOT_PROBED, first, known, missing
from gpubench.detect._record import Address
from gpubench.detect._root import Root, size
from gpubench.model.facts import Fact

INTEGRATED = Address(0, 0, 2, 0)


def driver_facts(
    root: Root, folder: str, bdf: Address | None, card: str | None, asleep: bool
) -> dict[str, Fact[Any]]:
    """Facts of one device folder; `card` is its /sys/class/drm/cardN, where i915 keeps the local memory."""
    if bdf is None:
        return {}
    integrated = bdf == INTEGRATED
    facts: dict[str, Fact[Any]] = {
        "kind": known("integrated" if integrated else "discrete", folder),
        "memory.unified": known(integrated, folder),
    }
    if integrated:
        return facts | {"memory.dedicated_bytes": ABSENT}
    if asleep:
        return facts | {"memory.dedicated_bytes": NOT_PROBED}
    local = root.fact(f"{card}/lmem_total_bytes", _positive) if card else ABSENT
    return facts | {"memory.dedicated_bytes": first(_tiles(root, folder), local)}


def _tiles(root: Root, folder: str) -> Fact[int]:
    """xe: the sum over the tiles, all or nothing."""
    tiles = [name for name in root.names(folder) or () if re.fullmatch(r"tile\d{1,2}", name)]
    facts = [root.fact(f"{folder}/{tile}/physical_vram_size_bytes", _positive) for tile in tiles]
    if not facts or all(fact.status == "absent" for fact in facts):
        return ABSENT
    lost = [fact for fact in facts if fact.value is None]
    source = f"{folder}/tile*/physical_vram_size_bytes"
    return missing(lost[0].status, lost[0].source) if lost else known(sum(f.value or 0 for f in facts), source)


def _positive(text: str) -> int | None:
    return size(text) or None
