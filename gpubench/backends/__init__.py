"""Backends. A backend drives the devices of one library: it opens a session, allocates memory, launches kernels
and reads a clock. Each backend is a file or folder here with its name.

Only workers load a backend. The parent process asks this module for names. No backend imports another one.
`hidden` has backends that are not listed, and `shared` has code that backends have in common. Another package
brings a backend through an entry point.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpubench.backends.contract import Backend
from gpubench.base import plugins
from gpubench.base.errors import BackendError, BadPlugin
from gpubench.base.plugins import wings
from gpubench.kernels.contract.kernel import Kernel
from gpubench.kernels.contract.op import Implementation
from gpubench.result.case import COMPOSED as COMPOSED
from gpubench.result.case import DEVICE_GROUP, SEVERAL, inner_device
from gpubench.result.run import Device, DeviceKind


class Facts(NamedTuple):
    """The facts about a backend that the parent process knows without loading it. The fields are the attributes
    of `Backend` with the same names."""

    implementations: tuple[Implementation, ...]  # implementations that the backend has
    kinds: tuple[DeviceKind, ...]  # kinds of its devices
    yields_to: tuple[str, ...] = ()  # backends that are preferred on a GPU that both drive
    kernels: Mapping[str, tuple[Kernel, ...]] = {}  # kernels that the backend brings, by the name of the op


# The facts of built-in backends, in the order in which devices are listed and measured. A built-in backend that is
# missing here is imported for its facts.
KNOWN = {
    "numpy": Facts(("library", "tuned"), ("cpu",)),
    "cupy": Facts(("library", "tuned"), ("gpu",)),
    "wgpu": Facts(("tuned",), ("gpu",)),
    "torch": Facts(("library",), ("cpu", "gpu"), yields_to=("cupy",)),
}
_ORDER = (*KNOWN, *SEVERAL)


def names() -> tuple[str, ...]:
    """List the built-in backends and the backends of wings, `numpy` first, without importing any."""
    every = (_files(__path__[0]) - {"hidden", "shared", "contract"}) | wings.brought("backends").keys()
    return tuple(sorted(every, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)))


def hidden_names() -> tuple[str, ...]:
    """List the hidden backends, which are used only if the user names them, sorted by name."""
    return tuple(sorted(_files(f"{__path__[0]}/hidden")))


@functools.cache
def _files(folder: str) -> frozenset[str]:
    return frozenset(m.name for m in pkgutil.iter_modules([folder]) if not m.name.startswith("_"))


def built_in() -> tuple[str, ...]:
    """List the built-in backends, except the composed ones and device groups."""
    return tuple(name for name in names() if name not in SEVERAL)


def _ours() -> tuple[str, ...]:
    return (*names(), *hidden_names())


def foreign() -> tuple[str, ...]:
    """List the backends of installed packages, sorted by name, without importing their modules. A backend with
    the name of one of gpubench is left out (`find_namesakes` reports it)."""
    return tuple(name for name in plugins.names(plugins.BACKENDS) if name not in _ours())


def find_namesakes() -> dict[str, BadPlugin]:
    """Return an error for each backend of an installed package that cannot be used, because its name is taken.
    The keys are the names."""
    return plugins.find_namesakes(plugins.BACKENDS, _ours())


def usual() -> tuple[str, ...]:
    """List the backends that are tried if the user names none: all except hidden ones, composed ones and device
    groups."""
    return (*built_in(), *foreign())


def facts(name: str) -> Facts | None:
    """Return the facts of a backend that `built_in` lists, without importing its library. Returns None for any
    other backend."""
    if name in KNOWN or name not in built_in():
        return KNOWN.get(name)
    own = load(name)
    return Facts(own.implementations, own.kinds, own.yields_to, own.kernels)


def drivers(gpus: Iterable[Device]) -> dict[str, str]:
    """Map each model name in `gpus` to the backend of the first GPU with that name."""
    backends: dict[str, str] = {}
    for gpu in gpus:
        backends.setdefault(gpu.name, gpu.backend)
    return backends


def may_drive_cpu(name: str) -> bool:
    """Return whether the backend may drive a CPU. A backend without `facts` may."""
    facts_of = facts(name)
    return facts_of is None or "cpu" in facts_of.kinds


def is_hidden(device_id: str) -> bool:
    """Return whether the device, or a device inside it, belongs to a hidden backend."""
    return any(name in hidden_names() for name in names_of(device_id))


def names_of(device_id: str) -> tuple[str, ...]:
    """List the backends of a device: its own backend, then the backends of the devices inside it, if it is
    composed or a device group."""
    own, inner = device_id.partition(":")[0], inner_device(device_id)
    if own == DEVICE_GROUP:
        return (own, device_id.split(":")[1])
    return (own,) if inner is None else (own, *names_of(inner))


def has(name: str) -> bool:
    """Return whether `load` would find the backend, without loading any."""
    return name in _ours() or bool(plugins.entries(plugins.BACKENDS, name))


def load(name: str) -> Backend:
    """Load the backend of that name, from a file here or from an entry point of the group `gpubench.backends`.

    Raises KeyError if there is no such backend, and BackendError if it is broken.
    """
    if name in _ours():
        folder = __name__ if name in names() else f"{__name__}.hidden"
        try:
            backend: Backend = wings.find(wings.brought("backends").get(name, f"{folder}.{name}:BACKEND"))
        except BadPlugin as error:
            raise BackendError(f"{error.message}: {error.why}") from error
        return backend
    for entry in plugins.entries(plugins.BACKENDS, name):
        package = plugins.package(entry)
        try:
            loaded = plugins.load(entry)
            if not isinstance(loaded, Backend):
                raise plugins.PluginError(f"it is no Backend but of the type {type(loaded).__name__}")
            if loaded.name != name:
                raise plugins.PluginError(
                    f"its Backend calls itself {loaded.name!r}: both names have to be the same"
                )
        except plugins.PluginError as error:
            raise BackendError(
                f"the entry point {entry.name} = {entry.value} of the package {package}: {error}",
                hint=f"mend the package {package}, or uninstall it", reason="bad-plugin",
            ) from error  # fmt: skip
        return loaded
    raise KeyError(name)
