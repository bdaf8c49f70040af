"""Child side: quantities that are read beside the samples of a block, one file each.

A file defines OBSERVER, which makes an observer of a session, or returns None for a device that has nothing to read. A
new quantity is such a file, and the field of `Block` that it fills.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Protocol

from gpubench.backends.contract import Session


class Observer(Protocol):
    """A reader of one quantity, never called while something is timed."""

    def begin(self) -> None:
        """Start anew: a block begins."""

    def read(self) -> None:
        """Read once: a sample that counts has ended."""

    def end(self) -> Mapping[str, object]:
        """Return the fields of the block that is over."""


@functools.cache
def makers() -> tuple[Callable[[Session], Observer | None], ...]:
    """Return what makes an observer of each quantity, by the files of this folder."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return tuple(importlib.import_module(f"{__name__}.{name}").OBSERVER for name in names)


class Observers:
    """The observers of what a device has to read, as one. Without a session there are none."""

    def __init__(self, session: Session | None = None) -> None:
        made = [make(session) for make in makers()] if session is not None else []
        self._all = [observer for observer in made if observer is not None]

    def begin(self) -> None:
        for observer in self._all:
            observer.begin()

    def read(self) -> None:
        for observer in self._all:
            observer.read()

    def end(self) -> dict[str, object]:
        """Return the fields of the block that all of them fill."""
        return {name: value for observer in self._all for name, value in observer.end().items()}
