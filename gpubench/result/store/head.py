"""The head of a result file: everything before its sessions, read without the rest.

A folder holds tens of results of many machines, some of them of megabytes, and what a file is of stands in its first
pages.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator
from pathlib import Path

from gpubench.base.disk import open_regular
from gpubench.base.errors import GpubenchError
from gpubench.result.run import SCHEMA_VERSION, Run
from gpubench.result.store.document import RESULT_NAME, loads_as
from gpubench.result.store.files import load

# With this the head ends: no text inside a JSON document holds it, as quotes in texts have a backslash.
_END = b',"sessions":['
_PIECE, _MOST = 1 << 15, 1 << 20
_GZIP = b"\x1f\x8b"


def load_head(path: Path) -> Run | None:
    """Return the run in `path` without its sessions and outcomes, or all of it where they do not stand at the end.

    Returns None for what is no result. Such a head is not checked as `load` checks a run.
    """
    try:
        data = _beginning(path)
        if data is not None:
            return loads_as(Run, data, str(path), name=RESULT_NAME, newest=SCHEMA_VERSION)
    except (OSError, zlib.error, GpubenchError):
        pass  # of another form, or no result at all: `load` tells
    try:
        return load(path)
    except GpubenchError:  # somebody else's JSON beside our results
        return None


def _beginning(path: Path) -> bytes | None:
    """Return the document up to its sessions, closed; None where it has another form."""
    data = b""
    with open_regular(path) as file:
        for piece in _unpack(iter(lambda: file.read(_PIECE), b"")):
            start = max(0, len(data) - len(_END))
            data += piece
            end = data.find(_END, start)
            if end >= 0:
                return data[:end] + b"}"
            if len(data) > _MOST:
                return None
    return None


def _unpack(pieces: Iterator[bytes]) -> Iterator[bytes]:
    first = next(pieces, b"")
    inflate = zlib.decompressobj(zlib.MAX_WBITS | 16) if first.startswith(_GZIP) else None
    for piece in itertools.chain((first,), pieces):
        while inflate is not None and piece:
            yield inflate.decompress(piece, _PIECE)
            piece = inflate.unconsumed_tail
        yield piece
