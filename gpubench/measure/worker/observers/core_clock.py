"""The clock of the cores behind each sample, where the device counts their cycles."""

from __future__ import annotations

from collections.abc import Mapping

from gpubench.backends.contract import Session
from gpubench.backends.contract.protocols import CoreClock


class CoreClockObserver:
    """Cycles per second, once behind each sample."""

    def __init__(self, device: CoreClock) -> None:
        self._device = device
        self._hertz: list[float | None] = []

    def begin(self) -> None:
        self._hertz = []

    def read(self) -> None:
        self._hertz.append(self._device.core_hz())

    def end(self) -> Mapping[str, object]:
        """Return the clocks if the device told all of them."""
        return {"clock_hz": self._hertz} if self._hertz and None not in self._hertz else {}


def OBSERVER(session: Session) -> CoreClockObserver | None:
    """Make the observer of a device that counts cycles."""
    return CoreClockObserver(session) if isinstance(session, CoreClock) else None
