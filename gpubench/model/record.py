"""What the parts of a result file have in common."""

from __future__ import annotations

import msgspec


class Record(msgspec.Struct, frozen=True):
    """Base of the parts of a result: immutable. (kw_only is not inherited, so each class says it.)"""
