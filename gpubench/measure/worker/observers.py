"""Child side: quantities that are read beside the samples of a block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from gpubench.backends.contract import Session
from gpubench.backends.contract.protocols import CoreClock


class Observer(Protocol):
    """A reader of one quantity, never called while something is timed."""

    def begin(self) -> None:
        """Start anew: a block begins."""

    def read(self) -> None:
        """Read once: a sample that counts has ended."""

    def end(self) -> Mapping[str, object]:
        """Return the fields of the block that is over."""


class CoreClockObserver:
    """Cycles of the cores per second, once behind each sample."""

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


def observe_core_clock(session: Session) -> Observer | None:
    """Make the observer of a device that counts cycles."""
    return CoreClockObserver(session) if isinstance(session, CoreClock) else None


# Each makes the observer of a quantity, or returns None for a device that has nothing to read.
MAKERS: list[Callable[[Session], Observer | None]] = [observe_core_clock]


def observers_of(session: Session) -> list[Observer]:
    """Return the observers of what a device has to read."""
    return [observer for make in MAKERS if (observer := make(session)) is not None]
