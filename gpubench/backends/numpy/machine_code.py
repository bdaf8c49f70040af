"""The machine code of compiled kernels in the cache: one file for each module of kernels.

numba's own cache executes whatever its files contain. It does not notice changes of the modules that a function
calls, or of the compiler's settings. Here the name of a file is a hash of all of these. A file has all functions
of its module for one processor.

Only workers import this module, because the import of numba takes long.
"""

from __future__ import annotations

import functools
import pickle
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numba
from numba.core import config
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

from gpubench.base import hash_text
from gpubench.result.store.cache import note, user_cache

FOLDER, WHAT = "kernels", "a compiled kernel"
_PAYLOADS = msgspec.msgpack.Decoder(dict[str, bytes])
# Settings of numba that do not change machine code. All others may.
_HARMLESS = re.compile("CACHE|THREAD|COLOR|HELP|WARN|TRACEBACK|CUDA")

_open: dict[str, ModuleCode] = {}


class ModuleCode:
    """The machine code of one module's functions. `used` says whether `load` has returned some."""

    def __init__(self, module: str) -> None:
        self._cache = user_cache()
        self._name = file_name(module)
        data = self._cache.read(self._name, WHAT)
        self._payloads: dict[str, bytes] = {} if data is None else _PAYLOADS.decode(data)
        self._grown = False
        self.used = False

    def load(self, function: str) -> Any:
        """Return the code that `keep` stored under `function` (the qualified name and the signature), or None."""
        payload = self._payloads.get(function)
        self.used |= payload is not None
        return None if payload is None else pickle.loads(payload)  # sealed, and written by this user

    def keep(self, function: str, parts: Any) -> None:
        """Store the parts of a compiled function, which numba can pickle, under `function` (the qualified name and
        the signature). `save` writes them to the file."""
        self._payloads[function] = dumps(parts)
        self._grown = True

    def save(self) -> None:
        """Write the file if `keep` was called."""
        if self._grown:
            self._cache.write(self._name, msgspec.msgpack.encode(self._payloads))

    def remove(self) -> None:
        """Remove the file, because its code does not work."""
        self._cache.remove(self._name)
        self._payloads = {}


class FunctionCode(NullCache):  # type: ignore[misc]
    """The object that numba asks for the machine code of one function. It uses the `ModuleCode` of the
    function's module."""

    def __init__(self, function: Any) -> None:
        self._module = _open.get(function.__module__)
        self._function = function.__qualname__

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        parts = self._module.load(f"{self._function} {sig}") if self._module else None
        # Loaded code calls numba's runtime. The usual `refresh` would import for half a second what only compiling
        # needs.
        rtsys.initialize(target_context)
        return None if parts is None else CompileResult._rebuild(target_context, *parts)

    def save_overload(self, sig: Any, cres: Any) -> None:
        if (
            self._module
            and not cres.library.has_dynamic_globals
            and all(loop.can_cache for loop in cres.lifted)
        ):
            self._module.keep(f"{self._function} {sig}", cres._reduce())


def define(module: str, run: Callable[[], object], *, hopeless: tuple[type[Exception], ...] = ()) -> None:
    """Call `run`, which defines the functions of `module`. They are loaded from the cache, or compiled and stored
    there. If `run` fails with code from the cache, compile everything anew, except after an error of a type in
    `hopeless`. Raises the errors of `run`."""
    code = _open[module] = ModuleCode(module)
    try:
        try:
            run()
        except hopeless:
            raise
        except Exception as error:
            if not code.used:
                raise
            code.remove()
            run()
            note("cache-damaged", f"{WHAT} in the cache is made anew: it raised {type(error).__name__}")
        code.save()
    finally:
        del _open[module]


def holds(module: str) -> bool:
    """Return whether the cache has a valid file of the module."""
    return user_cache().read(file_name(module), WHAT) is not None


def file_name(module: str) -> str:
    """Return the name of the module's file in the cache, for this processor and these settings."""
    digest = hash_text(f"{_surroundings()} {module}", 20)
    return f"{FOLDER}/{module.rpartition('.')[2]}-{digest}"


@functools.cache
def version() -> str:
    """Return a hash of numba, Python and `native.py`, on which all kernels depend."""
    text = Path(__file__).with_name("native.py").read_text(encoding="utf-8")
    return hash_text(f"{numba.__version__} {sys.version} {text}", 64)


@functools.cache
def _surroundings() -> str:
    """Return a text with `version`, the processor, and the settings of numba."""
    settings = {
        name: value
        for name, value in sorted(vars(config).items())
        if name.isupper() and isinstance(value, str | int | float | None) and not _HARMLESS.search(name)
    }
    return f"{version()} {cpu_target.target_context.codegen().magic_tuple()} {settings}"
