"""Save exactly the files that detection reads, cleaned, as a recorded machine for `--sysroot`."""

from __future__ import annotations

import io
import re
import tarfile
from pathlib import Path

from gpubench.detect import _files, _names
from gpubench.detect._fact import NOT_PROBED
from gpubench.detect._record import Record
from gpubench.detect._root import Root, Trace
from gpubench.errors import InputError

_COUNTED = re.compile(r"(cpu|node|index|tile)\d+")
_MOUNT_TABLES = ("/proc/self/mountinfo", "/proc/self/mounts", "/proc/mounts")
_NVIDIA_KEPT = ("Model", "GPU UUID", "Device Minor")


def save_recording(target: Path, sysroot: Path | None) -> None:
    """Record this machine, or the one under `sysroot`, as a folder or as `target` ending in .tar.gz.

    Raises InputError if `target` exists already or cannot be written.
    """
    trace = Trace({}, {}, {})
    root = Root(str(sysroot or "/"), trace)
    found = _files.acquire(root, NOT_PROBED)
    _record_names(root, trace, found.records)
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


def cleaned(path: str, text: str) -> str:
    """A file's text without serial numbers, names of hosts and users, and unrelated mounts."""
    if path == "/proc/version":
        words = re.match(r"Linux version \S+", text)
        hints = [word for word in ("microsoft", "ppc64le") if word in text.lower()]
        return " ".join([words[0], *hints]) if words else text
    if path in _MOUNT_TABLES:
        return "\n".join(line for line in text.splitlines() if re.search(r"\b(cgroup2?|cpuset)\b", line))
    if path == "/proc/cpuinfo":
        return "\n".join(line for line in text.splitlines() if not line.startswith("Serial"))
    if re.fullmatch(r"/proc/driver/nvidia/gpus/[^/]+/information", path):
        return "\n".join(line for line in text.splitlines() if line.partition(":")[0].strip() in _NVIDIA_KEPT)
    return text


def _unfold(target: Path, trace: Trace) -> None:
    for path in folders(trace):
        (target / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
    for path, text in trace.files.items():
        file = target / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_line(path, text), encoding="utf-8")
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
            data = _line(path, text).encode()
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
        for path, link in sorted(trace.links.items()):
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.type, entry.linkname = tarfile.SYMTYPE, link
            archive.addfile(entry)


def _line(path: str, text: str) -> str:
    kept = cleaned(path, text)
    return f"{kept}\n" if kept else ""
