"""What samples are taken for: the phase that their blocks carry in the file, and how many are enough."""

from __future__ import annotations

from typing import Literal

import msgspec

Phase = Literal["main", "search", "estimate", "sweep"]


class Aim(msgspec.Struct, frozen=True):
    """`samples` of each case in this session; None: as many as the precision and the limits of the settings ask for.

    Only the main phase explains a case: its parts and the device's own clock.
    """

    phase: Phase = "main"
    samples: int | None = None

    @property
    def explains(self) -> bool:
        """Whether parts and device times are taken beside the wall times."""
        return self.phase == "main"


MAIN = Aim()
