"""The `gpubench-detect` document, version 1 (placeholder while the detector is being written)."""

from __future__ import annotations

from typing import Literal

import msgspec


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What one machine is made of."""

    name: Literal["gpubench-detect"] = "gpubench-detect"
    schema_version: int = 1
