"""Save exactly the files that detection reads, cleaned, as a recorded machine for `--sysroot`."""

from __future__ import annotations

import io
import re
import tarfile
from pathlib import Path

from gpubench.detect import _cleaning, _files, _names
from gpubench.detect._fact import NOT_PROBED
from gpubench.detect._record import Record
from gpubench.detect._root import Root, Trace
from gpubench.errors import InputError

_COUNTED = re.compile(r"(cpu|node|index|tile)\d+")


def save_recording(target: Path, sysroot: Path | None) -> None:
    """Record this machine, or the one under `sysroot`, as a folder or as `target` ending in .tar.gz.

    Raises InputError if `target` exists already or cannot be written.
    """
    trace = Trace({}, {}, {}, set())
    root = Root(str(sysroot or "/"), trace)
    found = _files.acquire(root, NOT_PROBED)
    _record_names(root, trace, found.records)
    trace = _cleaning.cleaned(trace)
    try:
        if target.name.endswith((".tar.gz", ".tgz")):
            with target.open("xb") as stream:
                _pack(stream, trace)
        else:
            target.mkdir(parents=True)
            _unfold(target, trace)
    except OSError as error:
        why = error.strerror or type(error).__name__
        hint = "name a new folder or a new file ending in .tar.gz"
        raise InputError(
            "recording-failed", f"{target}: cannot write the recording", why=why, hint=hint
        ) from error


def _record_names(root: Root, trace: Trace, records: list[Record]) -> None:
    """The names of the devices that are there, where the machine has a newer pci.ids than ours."""
    before = set(trace.files)
    _names.books(root)
    wanted = {
        (r.vendor_id, r.device_id) for r in records if r.vendor_id is not None and r.device_id is not None
    }
    for path in set(trace.files) - before:
        trace.files[path] = _names.excerpt(trace.files[path], wanted)


def folders(trace: Trace) -> list[str]:
    """Folders that were listed, and those of their entries that are counted by name."""
    found = set(trace.folders)
    for folder, names in trace.folders.items():
        found |= {f"{folder}/{name}" for name in names if _COUNTED.fullmatch(name)}
    return sorted(path for path in found - set(trace.links) if path)


def _unfold(target: Path, trace: Trace) -> None:
    for path in folders(trace):
        (target / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
    for path, text in trace.files.items():
        file = target / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        file.chmod(0 if path in trace.refused else 0o644)
    for path, link in trace.links.items():
        place = target / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(link)


def _pack(stream: io.BufferedWriter, trace: Trace) -> None:
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for path in folders(trace):
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for path, text in sorted(trace.files.items()):
            data = text.encode()
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size, entry.mode = len(data), 0 if path in trace.refused else 0o644
            archive.addfile(entry, io.BytesIO(data))
        for path, link in sorted(trace.links.items()):
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.type, entry.linkname = tarfile.SYMTYPE, link
            archive.addfile(entry)
