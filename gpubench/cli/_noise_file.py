"""The `gpubench-noise` document on disk."""

from __future__ import annotations

from gpubench import store
from gpubench.cli._run_output import RESULT_SUFFIXES
from gpubench.cli._writing import write
from gpubench.errors import UsageError
from gpubench.report.noise.types import NAME, VERSION, Noise


def check(path: str) -> None:
    """Raises UsageError, before anything is measured, where the document could not be saved as `path`."""
    if path != "-" and not path.endswith(RESULT_SUFFIXES):
        raise UsageError(
            "unknown-suffix", f"--output: {path!r} is no name for thresholds", why="they are written as JSON",
            hint="end it in .json or .json.gz; --format is about the table on standard output",
        )  # fmt: skip
    store.check_writable(path)


def save(found: Noise, path: str) -> None:
    """Replace `path` by the document, or write it to standard output for -. Raises GpubenchError."""
    if path == "-":
        write(store.dumps(found), None)
    else:
        store.replace(path, store.dumps(found))


def load(path: str) -> Noise:
    """The document in `path`, - for standard input. Raises InputError."""
    return store.loads_as(Noise, *store.read(path), name=NAME, newest=VERSION)
