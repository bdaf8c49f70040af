"""Save exactly the files that detection reads as a recorded machine for `--sysroot`.

Serial numbers, names of hosts and users, and whatever else is not read, are left out.
"""

from __future__ import annotations

import contextlib
import io
import re
import tarfile
from pathlib import Path

from gpubench.base.errors import InputError
from gpubench.detect import cgroup
from gpubench.detect.cgroup import Mount, Numbers
from gpubench.detect.host import read_files
from gpubench.detect.pci import books, excerpt
from gpubench.detect.records import DeviceRecord
from gpubench.detect.root import Root, TouchedFiles
from gpubench.result.machine import NOT_PROBED

_COUNTED = re.compile(r"(cpu|node|index|tile|policy)\d+")
_OWN = "/proc/self/cgroup"
_CPUSET = "/proc/self/cpuset"
_MOUNTINFO = "/proc/self/mountinfo"
_MOUNTS = ("/proc/self/mounts", "/proc/mounts")
_NVIDIA_KEPT = ("Model", "GPU UUID", "Device Minor")
_SPOILED = "?"  # stands for a line that is none: reading it must fail as before
_OPTION = re.compile(
    r"rw|ro|noprefix|clone_children|nsdelegate|xattr|memory_\w+|cpu|cpuacct|cpuset|memory|blkio|pids|devices|freezer"
    r"|net_cls|net_prio|perf_event|hugetlb|rdma|misc|name=systemd"
)


def save_recording(target: Path, sysroot: Path | None) -> None:
    """Record this machine, or the one under `sysroot`, as a folder or as `target` ending in .tar.gz.

    Raises InputError if `target` exists already or cannot be written.
    """
    trace = TouchedFiles({}, {}, {}, set())
    root = Root(str(sysroot or "/"), trace)
    found = read_files(root, NOT_PROBED)
    _record_names(root, trace, found.records)
    trace = cleaned(trace)
    try:
        if target.name.lower().endswith((".tar.gz", ".tgz")):
            with target.open("xb") as stream:
                _pack(stream, trace)
        else:
            target.mkdir(parents=True)
            _unfold(target, trace)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise InputError("recording-failed", f"{target}: cannot write the recording", why=why) from error


def _record_names(root: Root, trace: TouchedFiles, records: list[DeviceRecord]) -> None:
    """The names of the devices that are there, where the machine has a newer pci.ids than ours."""
    before = set(trace.files)
    books(root)
    wanted = {
        (r.vendor_id, r.device_id) for r in records if r.vendor_id is not None and r.device_id is not None
    }
    for path in set(trace.files) - before:
        trace.files[path] = excerpt(trace.files[path], wanted)


def folders(trace: TouchedFiles) -> list[str]:
    """Folders that were listed, and those of their entries that are counted by name."""
    found = set(trace.folders)
    for folder, names in trace.folders.items():
        found |= {f"{folder}/{name}" for name in names if _COUNTED.fullmatch(name)}
    return sorted(path for path in found - set(trace.links) if path)


def _unfold(target: Path, trace: TouchedFiles) -> None:
    def place(path: str) -> Path:
        found = target / path.lstrip("/")
        found.parent.mkdir(parents=True, exist_ok=True)
        return found

    for path in folders(trace):
        place(path).mkdir(exist_ok=True)
    for path, text in trace.files.items():
        place(path).write_text(text, encoding="utf-8")
        with contextlib.suppress(OSError):  # a file system without permissions; what is read stays right
            place(path).chmod(0 if path in trace.refused else 0o644)
    for path, link in trace.links.items():
        place(path).symlink_to(link)


def _pack(stream: io.BufferedWriter, trace: TouchedFiles) -> None:
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:

        def add(path: str, kind: bytes, *, mode: int = 0o644, data: bytes = b"", link: str = "") -> None:
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.type, entry.mode, entry.size, entry.linkname = kind, mode, len(data), link
            archive.addfile(entry, io.BytesIO(data))

        for path in folders(trace):
            add(path, tarfile.DIRTYPE, mode=0o755)
        for path, text in sorted(trace.files.items()):
            add(path, tarfile.REGTYPE, mode=0 if path in trace.refused else 0o644, data=text.encode())
        for path, link in sorted(trace.links.items()):
            add(path, tarfile.SYMTYPE, link=link)


def cleaned(trace: TouchedFiles) -> TouchedFiles:
    """The same machine, with numbers in place of names of users, pods and containers."""
    numbers = Numbers()
    # They fix the numbers.
    first = [path for path in (_OWN, _CPUSET, _MOUNTINFO, *_MOUNTS) if path in trace.files]
    texts = {path: clean_text(path, trace.files[path], numbers) for path in first}
    points = {mount.point.rstrip("/") for path in first for mount in _mounts(path, trace.files[path])} - {""}

    def place(path: str) -> str:
        inside = any(path == point or path.startswith(f"{point}/") for point in points)
        if not inside or path not in trace.files | dict.fromkeys(trace.refused):
            return numbers.rename(path) if inside else path
        folder, slash, name = path.rpartition("/")
        return numbers.rename(folder) + slash + name

    for path in sorted(trace.files.keys() - texts.keys()):
        texts[path] = clean_text(path, trace.files[path], numbers)
    refused = {place(path): "" for path in trace.refused}
    return TouchedFiles(
        {place(path): f"{text}\n" if text else "" for path, text in texts.items()} | refused,
        {place(path): names for path, names in trace.folders.items()},
        {place(path): numbers.rename(to) if place(path) != path else to for path, to in trace.links.items()},
        set(refused),
    )


def clean_text(path: str, text: str, numbers: Numbers) -> str:
    """The part of a file that detection reads."""
    if path == "/proc/version":
        words = re.match(r"Linux version \S+", text)
        hints = [word for word in ("microsoft", "ppc64le") if word in text.lower()]
        return " ".join([words[0] if words else _SPOILED, *hints]) if text else ""
    if path == "/proc/cpuinfo":
        lines = [line for line in text.splitlines() if not re.match(r"\s*serial", line, re.I)]
        return re.sub(r"(identification = )\w+", r"\g<1>0", "\n".join(lines))
    if path == _OWN:
        return "\n".join(_own_line(line, numbers) for line in text.splitlines())
    if path == _CPUSET:
        return numbers.rename(text)
    if path == _MOUNTINFO or path in _MOUNTS:
        return _table(path, text, numbers)
    if re.fullmatch(r"/proc/driver/nvidia/gpus/[^/]+/information", path):
        return "\n".join(line for line in text.splitlines() if line.partition(":")[0].strip() in _NVIDIA_KEPT)
    return text


def _mounts(path: str, text: str) -> list[Mount]:
    if path == _MOUNTINFO:
        return cgroup.parse_mountinfo(text)
    return cgroup.parse_mounts(text) if path in _MOUNTS else []


def _own_line(line: str, numbers: Numbers) -> str:
    number, controllers, path = [*line.split(":", 2), "", ""][:3]
    if not path.startswith("/") or not cgroup.plausible(path) or not number.isdigit():
        return _SPOILED
    kept = ",".join(name for name in controllers.split(",") if _OPTION.fullmatch(name))
    return f"{number}:{kept if kept or not controllers else 'other'}:{numbers.rename(path)}"


def _table(path: str, text: str, numbers: Numbers) -> str:
    """The control groups' lines, with the options that count; a spoiled table stays one."""
    lines = [] if cgroup.is_table(text) else [_SPOILED]
    for mount in _mounts(path, text):
        point, root = (_escaped(numbers.rename(part)) for part in (mount.point, mount.root))
        options = ",".join(sorted(name for name in mount.controllers if _OPTION.fullmatch(name))) or "rw"
        if path == _MOUNTINFO:
            lines.append(f"1 0 0:1 {root} {point} rw - {mount.kind} {mount.kind} {options}")
        else:
            lines.append(f"{mount.kind} {point} {mount.kind} {options} 0 0")
    return "\n".join(lines)


def _escaped(path: str) -> str:
    return "".join(f"\\{ord(c):03o}" if c in " \t\n\\" else c for c in path)
