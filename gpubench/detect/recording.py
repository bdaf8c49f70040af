"""Recordings: the files that detection reads, saved as a machine for `--sysroot`.

Serial numbers, names of hosts and users, and everything that detection does not read are left out.
"""

from __future__ import annotations

import io
import re
import tarfile
from pathlib import Path
from typing import IO, Any

from gpubench.base.errors import InputError
from gpubench.detect import proc
from gpubench.detect.facts import DeviceRecord, Root, TouchedFiles
from gpubench.detect.host import read_files
from gpubench.detect.pci import books, excerpt
from gpubench.detect.proc import CONTROLLERS, CPUSET, MOUNTINFO, MOUNTS, OWN, Numbers, parse_table
from gpubench.result.machine import NOT_PROBED

_COUNTED = re.compile(r"(cpu|node|index|tile|policy)\d+")
_NVIDIA_KEPT = ("Model", "GPU UUID", "Device Minor", "GPU Excluded", "Blacklisted")
_FIRST = (OWN, CPUSET, MOUNTINFO, *MOUNTS)
_SPOILED = "?"  # stands for a damaged line, so that reading it fails as before


def save_recording(target: Path, sysroot: Path | None) -> None:
    """Record this machine, or the machine below `sysroot`. `target` is a folder, or an archive if it ends in
    .tar.gz or .tgz. Raises InputError if `target` already exists or cannot be written."""
    trace = TouchedFiles({}, {}, {}, set())
    root = Root(str(sysroot or "/"), trace)
    files = read_files(root, NOT_PROBED)
    _record_names(root, trace, files.records)
    trace = clean(trace)
    try:
        if target.name.lower().endswith((".tar.gz", ".tgz")):
            with target.open("xb") as stream:
                pack(stream, trace)
        else:
            target.mkdir(parents=True)
            buffer = io.BytesIO()
            pack(buffer, trace)
            buffer.seek(0)
            # Python before 3.11.4, such as Debian 12's, has no filters.
            trusted: Any = {"filter": "fully_trusted"} if hasattr(tarfile, "data_filter") else {}
            with tarfile.open(fileobj=buffer) as archive:
                archive.extractall(target, **trusted)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise InputError("recording-failed", f"{target}: cannot write the recording", why=why) from error


def _record_names(root: Root, trace: TouchedFiles, records: list[DeviceRecord]) -> None:
    """Add the machine's own pci.ids files to the trace, shortened to the devices in `records`."""
    before = set(trace.files)
    books(root)
    devices = {
        (r.vendor_id, r.device_id) for r in records if r.vendor_id is not None and r.device_id is not None
    }
    for path in set(trace.files) - before:
        trace.files[path] = excerpt(trace.files[path], devices)


def folders(trace: TouchedFiles) -> list[str]:
    """Return the sorted paths that a recording holds as folders, without links."""
    paths = set(trace.folders)
    for folder, names in trace.folders.items():
        # detection counts these by name, such as cpu0 and node1
        paths |= {f"{folder}/{name}" for name in names if _COUNTED.fullmatch(name)}
    return sorted(path for path in paths - set(trace.links) if path)


def pack(stream: IO[bytes], trace: TouchedFiles) -> None:
    """Write the touched folders, files and links to `stream` as a compressed tar archive."""
    entries = [(path, tarfile.DIRTYPE, b"", "") for path in folders(trace)]
    entries += [(path, tarfile.REGTYPE, text.encode(), "") for path, text in sorted(trace.files.items())]
    entries += [(path, tarfile.SYMTYPE, b"", link) for path, link in sorted(trace.links.items())]
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for path, kind, data, link in entries:
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.type, entry.size, entry.linkname = kind, len(data), link
            if kind == tarfile.DIRTYPE:
                entry.mode = 0o755
            elif path in trace.refused:
                entry.mode = 0
            archive.addfile(entry, io.BytesIO(data))


def clean(trace: TouchedFiles) -> TouchedFiles:
    """Return the files with only the content that detection reads, and numbers in place of private names."""
    numbers = Numbers()
    # The first files determine the numbers.
    order = sorted(trace.files, key=lambda path: ((*_FIRST, path).index(path), path))
    texts = {path: clean_text(path, trace.files[path], numbers) for path in order}
    mounts = [mount for path in (MOUNTINFO, *MOUNTS) for mount in parse_table(path, trace.files.get(path, ""))]
    points = {mount.point.rstrip("/") for mount in mounts} - {""}

    def place(path: str) -> str:
        if not any(path == point or path.startswith(f"{point}/") for point in points):
            return path
        if path not in trace.files and path not in trace.refused:
            return numbers.rename(path)
        folder, slash, name = path.rpartition("/")
        return numbers.rename(folder) + slash + name

    refused = {place(path): "" for path in trace.refused}
    return TouchedFiles(
        {place(path): f"{text}\n" if text else "" for path, text in texts.items()} | refused,
        {place(path): names for path, names in trace.folders.items()},
        {place(path): numbers.rename(to) if place(path) != path else to for path, to in trace.links.items()},
        set(refused),
    )


def clean_text(path: str, text: str, numbers: Numbers) -> str:
    """Return those parts of a file's text that detection reads, with `numbers` in place of private names."""
    if path == "/proc/version":
        words = re.match(r"Linux version \S+", text)
        hints = [word for word in ("microsoft", "ppc64le") if word in text.lower()]
        return " ".join([words[0] if words else _SPOILED, *hints]) if text else ""
    if path == "/proc/cpuinfo":
        lines = [line for line in text.splitlines() if not re.match(r"\s*serial", line, re.I)]
        return re.sub(r"(identification = )\w+", r"\g<1>0", "\n".join(lines))
    if path == "/proc/sysinfo":
        return "\n".join(re.findall("^VM00 Control Program:.*", text, re.M))
    if path == OWN:
        return "\n".join(_own_line(line, numbers) for line in text.splitlines())
    if path == CPUSET:
        return numbers.rename(text)
    if path == MOUNTINFO or path in MOUNTS:
        return _table(path, text, numbers)
    if re.fullmatch(r"/proc/driver/nvidia/gpus/[^/]+/information", path):
        return "\n".join(line for line in text.splitlines() if line.partition(":")[0].strip() in _NVIDIA_KEPT)
    return text


def _own_line(line: str, numbers: Numbers) -> str:
    number, controllers, path = [*line.split(":", 2), "", ""][:3]
    if not path.startswith("/") or not proc.plausible(path) or not number.isdigit():
        return _SPOILED
    options = ",".join(name for name in controllers.split(",") if name in CONTROLLERS)
    return f"{number}:{options if options or not controllers else 'other'}:{numbers.rename(path)}"


def _table(path: str, text: str, numbers: Numbers) -> str:
    """Return a table of mounts with only the lines of control groups and the options that matter."""
    # a damaged table remains damaged
    lines = [] if proc.is_table(text) else [_SPOILED]
    for mount in parse_table(path, text):
        point, root = (_escape(numbers.rename(part)) for part in (mount.point, mount.root))
        options = ",".join(sorted(mount.controllers & set(CONTROLLERS))) or "rw"
        if path == MOUNTINFO:
            lines.append(f"1 0 0:1 {root} {point} rw - {mount.kind} {mount.kind} {options}")
        else:
            lines.append(f"{mount.kind} {point} {mount.kind} {options} 0 0")
    return "\n".join(lines)


def _escape(path: str) -> str:
    return "".join(f"\\{ord(c):03o}" if c in " \t\n\\" else c for c in path)
