"""The control groups of this process, v1, v2 and mixed: quota, CPU set, memory limit over the whole ancestry.

A name such as `user-1000.slice` or `docker-4f0c...9a.scope` is made of public words (user, slice, docker, scope)
and of parts that belong to somebody. In the document such a part is `*`, as in a shell pattern; in a recording
it is a number, the same one wherever it stands, so that the recording still is a machine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

import msgspec

from gpubench.detect.records import known, lost, missing
from gpubench.detect.root import FileText, Root, parse_list, size
from gpubench.result.machine import Fact

# What v1 shows for "no limit" is the largest int64 that is whole pages, and pages have up to 64 KiB (POWER, Arm).
NO_LIMIT = 2**63 - (1 << 16)
# v2, v1, and v1 mounted without prefixes; the effective set before the one that was asked for.
_CPUS, _MEMS = (
    (f"cpuset.{kind}.effective", f"cpuset.effective_{kind}", f"effective_{kind}", f"cpuset.{kind}", kind)
    for kind in ("cpus", "mems")
)
CONTROLLERS = ("cpu", "cpuset", "memory")
MOST_MOUNTS = 64
# The kernel's bound of a path, and more groups within each other than anybody has: a longer path is spoiled.
LONGEST_PATH, DEEPEST_PATH = 4096, 128
# Of places and controllers; systemd's units and groups; runtimes, orchestrators, batch systems; files of a group.
_PUBLIC = """
    sys fs cgroup cgroups cgroup2 unified dev run proc mnt cpu cpuacct cpuset memory blkio io pids devices freezer
    hugetlb net cls prio perf event rdma misc systemd
    slice scope service user system machine init session app background root
    docker buildkit lxc payload monitor podman libpod conmon containerd cri crio kubepods burstable besteffort
    guaranteed kubelet kubelite k8s ecs batch slurm slurmstepd uid job step task garden nomad actions runner
    container pod
    max high current stat quota period us limit usage in bytes cpus mems effective cfs
"""
_PUBLIC_WORDS = frozenset(_PUBLIC.split())
_SEPARATOR = re.compile(r"([.,:@_\-])")


class Mount(NamedTuple):
    """A mounted hierarchy: `point` where, `root` the group that is mounted there, `controllers` of v1."""

    point: str
    root: str
    kind: str
    controllers: frozenset[str]


class Level(NamedTuple):
    """One group on the way up; `v2` tells which files to expect."""

    folder: str
    v2: bool


class Groups(NamedTuple):
    """The way from the own group up to the mount point, by controller."""

    cpu: list[Level]
    cpuset: list[Level]
    memory: list[Level]
    unread: Mapping[str, str] = {}  # by controller the file that should tell the way, and cannot be read


def read_groups(root: Root) -> Groups:
    """Find the own group in every hierarchy."""
    readings = [root.read("/proc/self/mountinfo"), root.read("/proc/self/mounts"), root.read("/proc/mounts")]
    mounts = parse_mountinfo(readings[0].text or "")
    for reading in readings[1:]:
        mounts = mounts or parse_mounts(reading.text or "")
    spoiled = [
        reading.path for reading in readings if reading.status != "absent" and not is_table(reading.text)
    ]
    intact = [reading.path for reading in readings if is_table(reading.text)]
    groups, cpuset = root.read("/proc/self/cgroup"), root.read("/proc/self/cpuset")
    own, fallback = parse_own(groups.text or ""), cpuset.text
    ways = {name: list(_levels(mounts, own, fallback, name)) for name in CONTROLLERS}
    if spoiled and not intact:
        return Groups(**ways, unread=dict.fromkeys(CONTROLLERS, spoiled[0]))
    lost = {name: path for name in CONTROLLERS if (path := _lost_way(mounts, own, groups, cpuset, name))}
    return Groups(**ways, unread=lost)


def parse_mountinfo(text: str) -> list[Mount]:
    """The cgroup and cpuset lines of /proc/self/mountinfo; others and spoiled ones are left out."""
    found = []
    for line in text.splitlines():
        left, dash, right = line.partition(" - ")
        head, tail = left.split(), right.split()
        if dash and len(head) >= 6 and len(tail) >= 3:
            found += _mount(head[4], head[3], tail[0], tail[2])
    return found


def parse_mounts(text: str) -> list[Mount]:
    """The cgroup and cpuset lines of /proc/mounts, which does not tell the mounted group."""
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 4:
            found += _mount(words[1], "/", words[2], words[3])
    return found


def parse_own(text: str) -> dict[str, str]:
    """Path of the own group by controller; "" is the v2 hierarchy."""
    own: dict[str, str] = {}
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3 and parts[2].startswith("/") and plausible(parts[2]):
            for name in parts[1].split(","):
                own.setdefault(name, parts[2])
    return own


def quota(root: Root, groups: Groups) -> Fact[float]:
    """CPUs that may be used on average: the smallest quota of the ancestry."""
    if "cpu" in groups.unread:
        return missing("invalid", groups.unread["cpu"])
    found, worst = [], None
    for level in groups.cpu:
        fact = (
            root.fact(f"{level.folder}/cpu.max", parse_cpu_max) if level.v2 else _quota_v1(root, level.folder)
        )
        if fact.value is not None:
            found.append(fact)
        elif fact.status != "absent":
            worst = fact
    return _public(worst or min(found, key=_value, default=missing("absent")))


def cpus(root: Root, groups: Groups) -> Fact[frozenset[int]]:
    return _public(_nearest(root, groups, _CPUS))


def nodes(root: Root, groups: Groups) -> Fact[frozenset[int]]:
    """NUMA nodes of the nearest group that names any."""
    return _public(_nearest(root, groups, _MEMS))


class MemoryBounds(NamedTuple):
    """`limit`: the smallest limit. `room`: the smallest of limit - (used - cache that can be dropped)."""

    limit: Fact[int]
    room: Fact[int]


def memory(root: Root, groups: Groups) -> MemoryBounds:
    """Memory limits over the ancestry, in bytes."""
    if "memory" in groups.unread:
        unread = missing("invalid", groups.unread["memory"])
        return MemoryBounds(unread, unread)
    limits, rooms = [], []
    for level in groups.memory:
        names = ("memory.max", "memory.high") if level.v2 else ("memory.limit_in_bytes",)
        own = [root.fact(f"{level.folder}/{name}", _limit) for name in names]
        spoiled = next((fact for fact in own if fact.value is None and fact.status != "absent"), None)
        if spoiled is not None:
            return MemoryBounds(_public(spoiled), _public(spoiled))
        values = [fact for fact in own if fact.value is not None]
        limits += values
        rooms += [_room(root, level, fact) for fact in values]
    worst = next((fact for fact in rooms if fact.value is None), None)
    none = missing("absent")
    room = worst or min(rooms, key=_value, default=none)
    return MemoryBounds(_public(min(limits, key=_value, default=none)), _public(room))


def _public(fact: Fact[Any]) -> Fact[Any]:
    """The fact without users and containers in its source: documents are passed on."""
    if not fact.source:
        return fact
    folder, slash, name = fact.source.rpartition("/")
    return msgspec.structs.replace(fact, source=masked(folder) + slash + name)


def parse_cpu_max(text: str) -> float | None:
    """CPUs of "150000 100000" (microseconds a period); None for "max". Raises ValueError."""
    amount, period = text.split()
    if amount == "max":
        size(period)
        return None
    return _microseconds(amount) / _microseconds(period)


def _quota_v1(root: Root, folder: str) -> Fact[float]:
    amount = root.fact(f"{folder}/cpu.cfs_quota_us", lambda text: None if text == "-1" else _microseconds(text))
    period = root.fact(f"{folder}/cpu.cfs_period_us", _microseconds)
    if amount.value is None:
        return lost(amount)
    if period.value is None:
        return missing("invalid", period.source)
    return known(amount.value / period.value, amount.source or "")


def _microseconds(text: str) -> int:
    if not (value := size(text)):
        raise ValueError("zero")
    return value


def _nearest(root: Root, groups: Groups, names: tuple[str, ...]) -> Fact[frozenset[int]]:
    if "cpuset" in groups.unread:
        return missing("invalid", groups.unread["cpuset"])
    for level in groups.cpuset:
        spoiled = None
        for name in names:
            fact = root.fact(f"{level.folder}/{name}", lambda text: parse_list(text) or None)
            if fact.value is not None:
                return fact
            if fact.status != "absent":
                spoiled = spoiled or fact
        if spoiled is not None:
            return spoiled
    return missing("absent")


def _limit(text: str) -> int | None:
    if text == "max":
        return None
    value = size(text)
    return None if value >= NO_LIMIT else value


def _room(root: Root, level: Level, limit: Fact[int]) -> Fact[int]:
    current, dropped = ("memory.current", "inactive_file") if level.v2 else (
        "memory.usage_in_bytes", "total_inactive_file")  # fmt: skip
    used = root.fact(f"{level.folder}/{current}", size)
    if used.value is None and used.status != "absent":
        return missing("invalid", used.source)
    cache = root.fact(f"{level.folder}/memory.stat", lambda text: _stat(text, dropped)).value or 0
    return known(max(0, _value(limit) - max(0, (used.value or 0) - cache)), limit.source or "")


def _stat(text: str, key: str) -> int | None:
    found = re.search(rf"^{key} (\d{{1,20}})$", text, re.M)
    return int(found[1]) if found else None


def _value(fact: Fact[Any]) -> Any:
    return fact.value if fact.value is not None else math.inf


def _mount(point: str, root: str, kind: str, options: str) -> list[Mount]:
    if kind not in ("cgroup", "cgroup2", "cpuset") or not plausible(point):
        return []
    controllers = frozenset({"cpuset"} if kind == "cpuset" else options.split(","))
    return [Mount(_unescape(point), _unescape(root), kind, controllers)]


def _unescape(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)


def is_table(text: str | None) -> bool:
    """Whether every line has the form of a mount; a table without lines is one too."""
    return text is not None and all(len(line.split()) >= 4 for line in text.splitlines())


def plausible(path: str) -> bool:
    """Whether a kernel may have written the path."""
    return len(path) <= LONGEST_PATH and path.count("/") <= DEEPEST_PATH


def _lost_way(
    mounts: list[Mount], own: dict[str, str], groups: FileText, cpuset: FileText, controller: str
) -> str | None:
    """The spoiled file for which the own group below a mount of `controller` is unknown; None if it is known."""
    for mount in mounts:
        v2 = mount.kind == "cgroup2"
        if not (v2 or controller in mount.controllers) or ("" if v2 else controller) in own:
            continue
        if groups.status != "absent" and not own:
            lost = groups.path
        elif cpuset.status != "absent" and (v2 or controller == "cpuset"):
            lost = cpuset.path
        else:
            continue
        if not ((v2 or controller == "cpuset") and (cpuset.text or "").startswith("/")):
            return lost
    return None


def _levels(mounts: list[Mount], own: dict[str, str], fallback: str | None, controller: str) -> Iterator[Level]:
    """Own group first, mount point last, for each hierarchy that carries `controller`."""
    for mount in mounts[:MOST_MOUNTS]:
        v2 = mount.kind == "cgroup2"
        if not v2 and controller not in mount.controllers:
            continue
        path = own.get("" if v2 else controller)
        if path is None and (controller == "cpuset" or v2):
            path = fallback
        inside = _below(path or "/", mount.root)
        while inside:
            yield Level(mount.point.rstrip("/") + inside, v2)
            inside = inside.rpartition("/")[0]
        yield Level(mount.point.rstrip("/") or "/", v2)


def _below(path: str, root: str) -> str:
    """`path` as seen from the mounted group; "" for the mount point itself, also when outside of it."""
    path, root = path.rstrip("/"), root.rstrip("/")
    if not plausible(path) or ".." in path.split("/") or not path.startswith("/"):
        return ""
    if root and path != root and not path.startswith(f"{root}/"):
        return ""
    return path[len(root) :]


class Numbers:
    """Private parts by order of appearance; equal parts get equal numbers."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def rename(self, path: str) -> str:
        """`path` with a number in place of each private part."""
        return _replaced(path, self._number)

    def _number(self, part: str) -> str:
        return str(self._numbers.setdefault(part, len(self._numbers) + 1))


def masked(path: str) -> str:
    """`path` with `*` in place of each private part."""
    return _replaced(path, lambda _part: "*")


def _replaced(path: str, change: Callable[[str], str]) -> str:
    """Within each name of the path, a run of parts that are no public words is replaced as a whole."""
    return "/".join(
        "".join(
            "".join(run) if public else _changed("".join(run), change)
            for public, run in groupby(_SEPARATOR.split(name), _PUBLIC_WORDS.__contains__)
        )
        for name in path.split("/")
    )


def _changed(run: str, change: Callable[[str], str]) -> str:
    """Separators at the ends of a run stay: they join it to public words."""
    core = run.strip("/.,:@_-")
    return run.replace(core, change(core), 1) if core else run
