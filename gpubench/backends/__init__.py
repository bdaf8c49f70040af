"""Backends by name: one file each. `fake` is hidden: it answers to its name and is never listed."""

from __future__ import annotations

import importlib
import pkgutil

from gpubench.model.backend import Backend

HIDDEN = ("fake",)
# Made of devices of the others: measured when asked for, because each size then takes a sweep of its own.
COMPOSED = ("hybrid",)
# The order in which devices are listed and measured: the baseline first.
_ORDER = ("numpy", "cupy", "wgpu", "hybrid")


def names() -> tuple[str, ...]:
    """Built-in backends by file name, the baseline first, without importing any."""
    found = {m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")} - set(HIDDEN)
    return tuple(sorted(found, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)))


def usual() -> tuple[str, ...]:
    """What `auto` tries: all but the composed ones."""
    return tuple(name for name in names() if name not in COMPOSED)


def hidden(device_id: str) -> bool:
    """True for devices that answer to their id alone: the actors, and what is composed with one."""
    return any(part in HIDDEN for part in device_id.split(":"))


def known(name: str) -> bool:
    """True if `load` would find it; entry points are looked up, not loaded, and only for a foreign name."""
    if name in names() or name in HIDDEN:
        return True
    from importlib.metadata import entry_points

    return bool(entry_points(group="gpubench.backends", name=name))


def load(name: str) -> Backend:
    """The backend of that name: a file here, else an entry point of the group `gpubench.backends`.

    Raises KeyError if there is none. Entry points cost 30 to 60 ms, so only a foreign name looks them up.
    """
    if name in names() or name in HIDDEN:
        backend: Backend = importlib.import_module(f"gpubench.backends.{name}").BACKEND
        return backend
    from importlib.metadata import entry_points

    for entry in entry_points(group="gpubench.backends", name=name):
        foreign: Backend = entry.load()
        return foreign
    raise KeyError(name)
