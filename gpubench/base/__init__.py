"""The ground of the package: messages, errors, units, tables, processes, files and plugins.

Every other package of gpubench may import it, and it imports none of them.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


def at_largest(items: Sequence[T], key: Callable[[T], Hashable], size: Callable[[T], int]) -> list[T]:
    """Return the items that have the largest `size` among the items with the same `key`. Keeps their order."""
    largest = {name: max(map(size, group)) for name, group in group_by(items, key).items()}
    return [item for item in items if size(item) == largest[key(item)]]


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Group the items by their key. Keys and the items of each key keep the order of `items`."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def allowed_cpus() -> set[int]:
    """Return the CPUs on which the calling thread may run, or an empty set if the system does not tell."""
    try:
        return os.sched_getaffinity(0)
    except (AttributeError, OSError):  # not Linux, or a sandbox that refuses the call
        return set()


def interpreter() -> str:
    """Return the program of this Python. If Python is embedded in another program, it may not know its own."""
    return sys.executable or os.path.join(sys.exec_prefix, "bin", "python3")


def hash_text(text: str | bytes, digits: int = 12) -> str:
    """Return the first hexadecimal digits of the SHA-256 digest of a text or of the bytes of a file."""
    import hashlib  # most commands need none

    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()[:digits]


def load_library(name: str) -> Any:
    """Import and return a module of another package. An error that is not an Exception, such as SystemExit,
    becomes ImportError, so that the library counts as absent. Ctrl-C is raised as it is."""
    try:
        return importlib.import_module(name)
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ImportError(f"{type(error).__name__}: {error}") from error


AMD, APPLE, INTEL, NVIDIA = 0x1002, 0x106B, 0x8086, 0x10DE
# The PCI ids of vendors, by other ids that an API reports. (D3D12 has the letters QCOM for Qualcomm.)
VENDOR_ALIASES: dict[int | None, int | None] = {0x4D4F4351: 0x5143}
# The names of renderers that run on the CPU, as a pattern.
SOFTWARE_NAMES = r"llvmpipe|lavapipe|swiftshader|\bwarp\b|basic render|softpipe|swrast|\bswr\b"


# Share of the CPUs' time that other programs may take before a measurement counts as disturbed
# (docs/measuring.md).
BUSY_SHARE = 0.05
