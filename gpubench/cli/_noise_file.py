"""The `gpubench-noise` document on disk."""

from __future__ import annotations

from gpubench import store
from gpubench.report.noise.types import NAME, VERSION, Noise


def save(found: Noise, path: str) -> None:
    """Replace `path` by the document. Raises GpubenchError."""
    store.replace(path, store.dumps(found))


def load(path: str) -> Noise:
    """The document in `path`, - for standard input. Raises InputError."""
    return store.loads_as(Noise, *store.read(path), name=NAME, newest=VERSION)
