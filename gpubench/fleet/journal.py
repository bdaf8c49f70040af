"""The messages of nodes, kept as they arrive: events in `fleet.jsonl`, results in `fleet.d/`, one file a node.

Whoever kills the driver loses nothing that arrived: `gpubench merge fleet.d/*` makes the fleet of it. What nodes send
is foreign: it is bounded before it is written, and checked as every file before it is used.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import msgspec

from gpubench.base import disk
from gpubench.base.errors import InputError
from gpubench.result import store

MOST_BYTES = 64 << 20  # that a node may send of one file, compressed or not
_RESULTS = ".json.gz"
EARLIER = "earlier"  # of `fleet.d`: results of attempts that were repeated


class BadMessage(Exception):
    """A node sent what no node of ours sends, or more than a result may hold."""


class FleetLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of `fleet.jsonl`: what a node reported, or how its run ended."""

    at: str
    node: str
    event: msgspec.Raw | None = None
    ended: str | None = None
    error: str | None = None


def beside(output: str | Path, suffix: str) -> Path:
    """`fleet.d` or `fleet.jsonl` beside `fleet.json` or `fleet.json.gz`."""
    target = Path(output)
    return target.with_name(
        re.sub(r"(\.json)?(\.gz)?$", "", target.name, count=1, flags=re.IGNORECASE) + suffix
    )


def file_stem(label: str | None, key: str) -> str:
    """The name of a node's file: no two nodes share one, and none leaves its folder."""
    word = re.sub(r"[^A-Za-z0-9._-]+", "-", label or "node").strip(".-")[:60]
    return f"{word}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"


class FleetJournal:
    """The files of a fleet that is measured. `load` reads what a node sends as its result, or raises InputError."""

    def __init__(self, output: str | Path, load: Callable[[Path], msgspec.Struct] = store.load) -> None:
        """Raises GpubenchError if the files cannot be written."""
        self._load = load
        self.folder = beside(output, ".d")
        log = beside(output, ".jsonl")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._log: IO[bytes] = open(  # noqa: SIM115 - until the fleet ends
                log, "ab", opener=disk.open_descriptor
            )
        except OSError as error:
            raise store.cannot_save(log, error) from error

    def close(self) -> None:
        self._log.close()

    def note_event(self, node: str, text: bytes) -> str | None:
        """Keep an event and flush it. The event in a few words; None for what is no event."""
        try:
            event = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        if not isinstance(event, dict):
            return None
        self._write(FleetLine(at=_now(), node=node, event=msgspec.Raw(msgspec.json.encode(event))))
        return " ".join(str(event[name])[:200] for name in ("reason", "id") if name in event)

    def note_end(self, node: str, reason: str, error: str | None) -> None:
        self._write(FleetLine(at=_now(), node=node, ended=reason, error=error))

    def begin(self, node: str) -> None:
        """A new attempt of the node: what an earlier one left goes aside."""
        for path in (self.path(node), store.part_of(self.path(node))):
            if path.exists():
                aside = self.folder / EARLIER
                aside.mkdir(exist_ok=True)
                disk.replace(path, aside / f"{_now().replace(':', '')}-{path.name}")
        for path in (self._arriving(node), self._fresh(node)):
            path.unlink(missing_ok=True)

    def begin_part(self, node: str) -> None:
        """The node writes its `.part` anew; ours stands until more than its start is here."""
        self._fresh(node).write_bytes(b"")

    def add_part(self, node: str, piece: bytes) -> None:
        """Raises BadMessage."""
        fresh, part = self._fresh(node), store.part_of(self.path(node))
        if fresh.exists():
            _append(fresh, piece)
            disk.replace(fresh, part)
        else:
            _append(part, piece)

    def add_result(self, node: str, piece: bytes) -> None:
        """Raises BadMessage."""
        _append(self._arriving(node), piece)

    def finish(self, node: str) -> str | None:
        """Put the node's result, whole or as far as it came, into its own file. Why there is none; None: it is there.

        The file is replaced in one step, once what arrived is a result.
        """
        arriving, part, target = self._arriving(node), store.part_of(self.path(node)), self.path(node)
        why = "it sent no result"
        for source in (arriving, part):
            if not source.exists():
                continue
            try:
                found = self._load(source)
            except InputError as error:
                why = f"{error.message}: {error.why}"
                continue
            store.replace(target, store.dumps(found))
            for spent in (arriving, part, self._fresh(node)):
                spent.unlink(missing_ok=True)
            return None
        return why

    def path(self, node: str) -> Path:
        """The path of the node's result."""
        return self.folder / f"{file_stem(node, node)}{_RESULTS}"

    def _arriving(self, node: str) -> Path:
        return self.folder / f".{file_stem(node, node)}.arriving"

    def _fresh(self, node: str) -> Path:
        return self.folder / f".{file_stem(node, node)}.part-arriving"

    def _write(self, line: FleetLine) -> None:
        self._log.write(msgspec.json.encode(line) + b"\n")
        self._log.flush()


def _append(path: Path, piece: bytes) -> None:
    with open(path, "ab", opener=disk.open_descriptor) as file:
        if file.tell() + len(piece) > MOST_BYTES:
            raise BadMessage(f"more than {MOST_BYTES >> 20} MiB")
        file.write(piece)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
