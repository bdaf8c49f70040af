"""The drivers of devices: open, memory, launch, clock; one file or folder for each library, found by its name.

Workers alone load a backend, the parent asks here for names; backends do not know each other. Those in `hidden` are not
listed, `shared` holds what they have in common, and another package brings its own by an entry point.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpubench.backends.contract import Backend
from gpubench.base.errors import BackendError, BadPlugin
from gpubench.base.plugins import wings
from gpubench.kernels.contract.kernel import Kernel
from gpubench.kernels.contract.op import Implementation
from gpubench.result.case import COMPOSED as COMPOSED
from gpubench.result.case import DEVICE_GROUP, inner_device
from gpubench.result.run import Device, DeviceKind


class Facts(NamedTuple):
    """A backend as the parent process knows it without a worker: what `Backend` says under these names."""

    implementations: tuple[Implementation, ...]  # that it has
    kinds: tuple[DeviceKind, ...]  # of its devices
    yields_to: tuple[str, ...] = ()  # backends whose devices are preferred
    kernels: Mapping[str, tuple[Kernel, ...]] = {}  # of ops, by the op's name


# In the order in which devices are listed and measured: the baseline first. The table spares the parent their modules;
# of a built-in one that is missing here the module tells the same.
KNOWN = {
    "numpy": Facts(("library", "tuned"), ("cpu",)),
    "cupy": Facts(("library", "tuned"), ("gpu",)),
    "wgpu": Facts(("tuned",), ("gpu",)),
    "torch": Facts(("library",), ("cpu", "gpu"), yields_to=("cupy",)),
}
_ORDER = (*KNOWN, *COMPOSED, DEVICE_GROUP)


def names() -> tuple[str, ...]:
    """Built-in backends by the name of their file or folder, the baseline first, without importing any."""
    every = (_files(__path__[0]) - {"hidden", "shared", "contract"}) | wings.brought("backends").keys()
    return tuple(sorted(every, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)))


def hidden_names() -> tuple[str, ...]:
    """Backends that answer to their name alone."""
    return tuple(sorted(_files(f"{__path__[0]}/hidden")))


@functools.cache
def _files(folder: str) -> frozenset[str]:
    return frozenset(m.name for m in pkgutil.iter_modules([folder]) if not m.name.startswith("_"))


def built_in() -> tuple[str, ...]:
    """The built-in ones, but for the composed and for device groups."""
    return tuple(name for name in names() if name not in (*COMPOSED, DEVICE_GROUP))


def _ours() -> tuple[str, ...]:
    return (*names(), *hidden_names())


def foreign() -> tuple[str, ...]:
    """The backends of installed packages, sorted; their modules are not imported. Costs 30 to 60 ms."""
    from gpubench.base import plugins

    return tuple(name for name in plugins.names(plugins.BACKENDS) if name not in _ours())


def find_namesakes() -> dict[str, BadPlugin]:
    """Return why a backend of an installed package is out of reach, by the name that somebody else has too."""
    from gpubench.base import plugins

    return plugins.find_namesakes(plugins.BACKENDS, _ours())


def usual() -> tuple[str, ...]:
    """List what `auto` tries: all but the composed ones."""
    return (*built_in(), *foreign())


def facts(name: str) -> Facts | None:
    """Return the facts of a built-in one, whose module imports no library. Returns None for another package's, which
    only a worker runs."""
    if name in KNOWN or name not in built_in():
        return KNOWN.get(name)
    own = load(name)
    return Facts(own.implementations, own.kinds, own.yields_to, own.kernels)


def drivers(gpus: Iterable[Device]) -> dict[str, str]:
    """Return, by the model of each GPU, the first backend that drives it: another one drives the same hardware."""
    backends: dict[str, str] = {}
    for gpu in gpus:
        backends.setdefault(gpu.name, gpu.backend)
    return backends


def may_drive_cpu(name: str) -> bool:
    """Return False for one that is known to have no CPU."""
    facts_of = facts(name)
    return facts_of is None or "cpu" in facts_of.kinds


def is_hidden(device_id: str) -> bool:
    """True for devices that answer to their id alone: those of a hidden backend, and what is composed with one."""
    return any(name in hidden_names() for name in names_of(device_id))


def names_of(device_id: str) -> tuple[str, ...]:
    """The backends that have a part in a device: its own, and of a composed one or a device group that of those
    inside."""
    own, inner = device_id.partition(":")[0], inner_device(device_id)
    if own == DEVICE_GROUP:
        return (own, device_id.split(":")[1])
    return (own,) if inner is None else (own, *names_of(inner))


def has(name: str) -> bool:
    """True if `load` would find it; entry points are looked up, not loaded, and only for a foreign name."""
    if name in _ours():
        return True
    from gpubench.base import plugins

    return bool(plugins.entries(plugins.BACKENDS, name))


def load(name: str) -> Backend:
    """The backend of that name: a file here, else an entry point of the group `gpubench.backends`.

    Raises KeyError if there is none, BackendError for one that is broken. Entry points cost 30 to 60 ms, so only a
    foreign name looks them up.
    """
    if name in _ours():
        folder = __name__ if name in names() else f"{__name__}.hidden"
        try:
            backend: Backend = wings.find(wings.brought("backends").get(name, f"{folder}.{name}:BACKEND"))
        except BadPlugin as error:
            raise BackendError(f"{error.message}: {error.why}") from error
        return backend
    from gpubench.base import plugins

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
