"""A recording without serial numbers, names of hosts and users, and whatever else is not read."""

from __future__ import annotations

import re

from gpubench.detect import _cgroup
from gpubench.detect._cgroup import Mount
from gpubench.detect._private import Numbers
from gpubench.detect._root import Trace

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


def cleaned(trace: Trace) -> Trace:
    """The same machine, with numbers in place of names of users, pods and containers."""
    numbers = Numbers()
    first = [
        path for path in (_OWN, _CPUSET, _MOUNTINFO, *_MOUNTS) if path in trace.files
    ]  # they fix the numbers
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
    return Trace(
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
        return _cgroup.parse_mountinfo(text)
    return _cgroup.parse_mounts(text) if path in _MOUNTS else []


def _own_line(line: str, numbers: Numbers) -> str:
    number, controllers, path = [*line.split(":", 2), "", ""][:3]
    if not path.startswith("/") or not number.isdigit():
        return _SPOILED
    kept = ",".join(name for name in controllers.split(",") if _OPTION.fullmatch(name))
    return f"{number}:{kept if kept or not controllers else 'other'}:{numbers.rename(path)}"


def _table(path: str, text: str, numbers: Numbers) -> str:
    """The control groups' lines, with the options that count; a spoiled table stays one."""
    lines = [] if _cgroup.is_table(text) else [_SPOILED]
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
