"""The files of /proc and /sys that describe the CPUs and the control groups of this process.

/proc/cpuinfo has many forms: x86, Arm, POWER, s390x, RISC-V, LoongArch, MIPS, Alpha, SPARC. A process is limited
by its own control group and by all groups above it: quota, CPU set and memory limit, in v1, v2 or both.

A name of a group, such as `docker-4f0c...9a.scope`, has public words (docker, scope) and private parts, which
identify a user or a container. In the document of `detect` each private part is replaced by `*`. In a recording
of these files (for --sysroot) it is replaced by a number, the same wherever that part occurs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple, cast

import msgspec

from gpubench.detect.facts import ABSENT, FileText, Root, derive, first, missing, parse_list, size
from gpubench.result.identity import is_placeholder
from gpubench.result.machine import Fact

_KEPT = (
    "avx avx2 fma f16c avx_vnni avx512f avx512bw avx512vl avx512_vnni avx512_bf16 avx512_fp16 amx_tile amx_int8 "
    "amx_bf16 asimd sve sve2 i8mm bf16 sme vx vxe vxe2 lsx lasx"
)
_X86_HOMONYMS = {"sme"}  # the flag of AMD's memory encryption has the name of Arm's matrix extension
_IBM = r"POWER|PPC970|Cell"
_POWER = rf"{_IBM}|PA6T|e[56]500"  # 64-bit POWER CPUs
_FLAG_KEYS = ("flags", "features")
# The keys of the CPU's name. `Processor` is used by old Arm kernels, and `cpu` on POWER ("POWER9, altivec
# supported"), SPARC and PA-RISC.
_MODEL_KEYS = ("model name", "cpu model", "uarch", "cpu type", "c-sky cpu model", "processor")
_ARM_MAKERS = {
    "0x41": "Arm", "0x42": "Broadcom", "0x43": "Cavium", "0x46": "Fujitsu", "0x48": "HiSilicon", "0x4e": "NVIDIA",
    "0x50": "APM", "0x51": "Qualcomm", "0x53": "Samsung", "0x56": "Marvell", "0x61": "Apple", "0x6d": "Microsoft",
    "0x70": "Phytium", "0xc0": "Ampere",
}  # fmt: skip
# The architecture is that of the first entry that fits: key, pattern of the value, name in uname, in which \1
# is the first group of the pattern.
_ARCHITECTURES = (
    ("vendor_id", r"IBM/S390", "s390x"), ("flags", r".*\blm\b", "x86_64"), ("flags", r"", "i686"),
    ("cpu architecture", r"8|AArch64", "aarch64"), ("model name", r"ARM(v6)", r"arm\1l"),  # which says 7, too
    ("cpu architecture", r"(7|6|5TEJ|5TE?|4T?)", r"armv\1l"), ("isa", r"rv(64|32)", r"riscv\1"),
    ("isa", r".*loongarch64", "loongarch64"), ("cpu family", r"Loongson-64bit", "loongarch64"),
    ("isa", r".*mips64", "mips64"), ("cpu model", r".*(Loongson|Octeon)", "mips64"),
    ("isa", r"mips", "mips"), ("cpu model", r"MIPS", "mips"), ("arch", r"IA-64", "ia64"),
    ("cpu", r"Alpha", "alpha"), ("type", r"sun4[uv]", "sparc64"), ("type", r"sun4", "sparc"),
    ("cpu family", r"PA-RISC 2", "parisc64"), ("cpu family", r"PA-RISC", "parisc"),
    ("cpu", _POWER, "ppc64"), ("revision", r".*\(pvr ", "ppc"),
)  # fmt: skip
# The keys of the present clock: x86 and LoongArch, s390x, POWER ("3425.000000MHz").
_CLOCK_KEYS = ("cpu mhz", "cpu mhz dynamic", "clock")


class CpuInfo(NamedTuple):
    """The lines of /proc/cpuinfo. The keys are in lower case, because kernels spell them differently."""

    cpus: dict[int, dict[str, str]]  # by the number of a CPU: the lines of its block, by key
    common: dict[str, str]  # all other lines, by key

    def any(self, key: str) -> str | None:
        """Return the value of `key` in the first block that has it, or None. Placeholders do not count."""
        return next(self.values(key), None)

    def values(self, key: str) -> Iterator[str]:
        """Yield the values of `key` in all blocks, without placeholders and damaged texts."""
        for block in (*self.cpus.values(), self.common):
            value = block.get(key) or "unknown"
            if value.isprintable() and len(value) <= LONGEST_PATH and not is_placeholder(value):
                yield value


def parse(text: str) -> CpuInfo:
    """Parse the text of /proc/cpuinfo. Raises ValueError if no line has the form `key : value`."""
    cpus: dict[int, dict[str, str]] = {}
    common: dict[str, str] = {}
    block = common
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        key, value = (" ".join(text.split()) for text in (key.lower(), value))
        s390, sparc = (re.fullmatch(form, key) for form in (r"processor (\d{1,5})", r"cpu(\d{1,5})"))
        if not line.strip():
            block = common
        elif not colon:
            continue
        elif key in ("processor", "cpu number") and value.isascii() and value.isdigit():
            block = cpus.setdefault(int(value), {})
        elif s390:
            machine = re.search(r"\bmachine\s*=\s*(\w+)", value)
            cpus.setdefault(int(s390[1]), {})["machine"] = machine[1] if machine else ""
        elif sparc and value == "online":
            cpus.setdefault(int(sparc[1]), {})
        else:
            block.setdefault(key, value)
    if not cpus and not common:
        raise ValueError("no line of the form `key : value`")
    return CpuInfo(cpus, common)


def arch(info: CpuInfo, version: str = "") -> str | None:
    """Return the architecture of the machine, inferred from the format of /proc/cpuinfo, or None. `version` is
    the text of /proc/version."""
    for key, form, name in _ARCHITECTURES:
        if (value := info.any(key)) and (match := re.match(form, value.lower(), re.I)):
            return "ppc64le" if name == "ppc64" and "ppc64le" in version else match.expand(name)
    return None


def model(info: CpuInfo) -> str | None:
    """Return the name of the CPU as the kernel reports it, or None."""
    for key in _MODEL_KEYS:
        if value := info.any(key):
            return value
    if cpu := (info.any("cpu") or "").partition(",")[0].strip():
        return cpu
    if info.any("vendor_id") == "IBM/S390" and (machine := info.any("machine")):
        return f"IBM {machine}"
    return None


def vendor(info: CpuInfo) -> str | None:
    """Return the CPU's manufacturer, or None if no key tells it. On Arm it is that of the implementer code, and an
    unknown code is returned as it is. On Loongson and IBM the model tells it."""
    if value := info.any("vendor_id") or info.any("vendor"):
        return value
    if code := info.any("cpu implementer"):
        return _ARM_MAKERS.get(code.lower(), code.lower())
    if any("Loongson" in (info.any(key) or "") for key in ("cpu family", "model name", "cpu model")):
        return "Loongson"
    return "IBM" if re.match(_IBM, info.any("cpu") or "") else None


def isa(info: CpuInfo, online: frozenset[int] | None = None) -> list[str] | None:
    """Return the flags that matter for speed and that all CPUs share, in a fixed order. Returns None if no
    flags are listed. Only CPUs in `online` count, if the file numbers them alike."""
    # Otherwise it is unknown which blocks are those of `online`.
    counted = online if online is not None and online <= info.cpus.keys() else info.cpus.keys()
    common: set[str] | None = None
    for block in (info.common, *(block for number, block in info.cpus.items() if number in counted)):
        for key in _FLAG_KEYS:
            if key in block:
                flags = set(block[key].split()) - (_X86_HOMONYMS if key == "flags" else set())
                common = flags if common is None else common & flags
    return None if common is None else keep_flags(common)


def keep_flags(flags: Iterable[str]) -> list[str]:
    """Return the flags that matter for speed, in a fixed order."""
    # the first AVX is `avx1.0` on macOS
    spelled = {"avx" if flag == "avx1.0" else flag for flag in flags}
    return [flag for flag in _KEPT.split() if flag in spelled]


def parts(info: CpuInfo, online: frozenset[int]) -> dict[int, str]:
    """Return Arm's `CPU part` of each online CPU, such as "0xd85", or none if a CPU lacks it."""
    table = {n: info.cpus.get(n, {}).get("cpu part", "").lower() for n in online}
    return table if all(re.fullmatch(r"0x[0-9a-f]{3}", part) for part in table.values()) else {}


def clock_hz(info: CpuInfo) -> int | None:
    """Return the highest present clock, in hertz, that the file shows for any CPU, or None."""
    for key in _CLOCK_KEYS:
        clocks = [
            round(float(match[1]) * 1e6)
            for value in info.values(key)
            if (match := re.fullmatch(r"(\d{1,6}(?:\.\d{1,9})?)(?: ?MHz)?", value))
        ]
        if any(clocks):
            return max(clocks)
    return None


# From this value on, a v1 limit means "no limit": the largest int64 in whole pages, which have up to 64 KiB
# (POWER, Arm).
NO_LIMIT = 2**63 - (1 << 16)
# Names of the files in v2, v1, and v1 mounted without prefixes. The effective set comes before the requested
# one.
_CPUS, _MEMS = (
    (f"cpuset.{kind}.effective", f"cpuset.effective_{kind}", f"effective_{kind}", f"cpuset.{kind}", kind)
    for kind in ("cpus", "mems")
)
MOUNTINFO, MOUNTS = "/proc/self/mountinfo", ("/proc/self/mounts", "/proc/mounts")
OWN, CPUSET = "/proc/self/cgroup", "/proc/self/cpuset"
CONTROLLERS = ("cpu", "cpuset", "memory")
MOST_MOUNTS = 64
# The kernel's limit of a path's length, and more nested groups than anybody has. A longer path is a damaged
# file.
LONGEST_PATH, DEEPEST_PATH = 4096, 128
# The public words: places and controllers; systemd's units and groups; runtimes, orchestrators and batch
# systems; the files of a group.
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
    """A mounted hierarchy of control groups."""

    point: str  # the folder at which the group is mounted
    root: str  # the path of the mounted group in its hierarchy; "/" is the topmost group
    kind: str  # cgroup, cgroup2 or cpuset
    controllers: frozenset[str]  # the controllers of a v1 hierarchy


class Level(NamedTuple):
    """One control group that limits the process: its own group, one above it, or the mount point."""

    folder: str  # the folder with the files of the group
    v2: bool  # whether the group has the files of v2


class Groups(NamedTuple):
    """The groups from the process's own group up to the mount point, by controller."""

    cpu: list[Level]  # the groups with the quota
    cpuset: list[Level]  # the groups with the sets of CPUs and NUMA nodes
    memory: list[Level]  # the groups with the memory limits
    unread: Mapping[str, str] = {}  # by controller: the damaged file that should name the process's groups


def read_groups(root: Root) -> Groups:
    """Return the control groups of this process in all hierarchies: its own group and all groups above it."""
    tables = {path: root.read(path) for path in (MOUNTINFO, *MOUNTS)}
    mounts = next(
        (parsed for path, reading in tables.items() if (parsed := parse_table(path, reading.text or ""))), []
    )
    groups, cpuset = root.read(OWN), root.read(CPUSET)
    own = parse_own(groups.text or "")
    ways = {name: list(_levels(mounts, own, cpuset.text, name)) for name in CONTROLLERS}
    spoiled = [
        path for path, reading in tables.items() if reading.status != "absent" and not is_table(reading.text)
    ]
    if spoiled and not any(is_table(reading.text) for reading in tables.values()):
        return Groups(**ways, unread=dict.fromkeys(CONTROLLERS, spoiled[0]))
    unread = {
        name: path for name in CONTROLLERS if (path := _damaged_group_file(mounts, own, groups, cpuset, name))
    }
    return Groups(**ways, unread=unread)


def parse_table(path: str, text: str) -> list[Mount]:
    """Return the mounts of control groups and cpusets in the table `text`, without damaged lines. `path` is
    its file, which decides the format. Only mountinfo says which group is mounted. In other tables the `root`
    is "/"."""
    mounts = []
    for line in text.splitlines():
        place, dash, right = line.partition(" - ")
        head, tail, words = place.split(), right.split(), line.split()
        if path == MOUNTINFO and dash and len(head) >= 6 and len(tail) >= 3:
            mounts += _mount(head[4], head[3], tail[0], tail[2])
        elif path != MOUNTINFO and len(words) >= 4:
            mounts += _mount(words[1], "/", words[2], words[3])
    return mounts


def parse_own(text: str) -> dict[str, str]:
    """Return the path of the process's own group by controller. The key "" is the v2 hierarchy."""
    own: dict[str, str] = {}
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3 and parts[2].startswith("/") and plausible(parts[2]):
            for name in parts[1].split(","):
                own.setdefault(name, parts[2])
    return own


def quota(root: Root, groups: Groups) -> Fact[float]:
    """Return the smallest quota of the process's group and all groups above it, as a number of CPUs. The fact
    is absent without a quota, and has the status of a file that cannot be read."""
    if "cpu" in groups.unread:
        return missing("invalid", groups.unread["cpu"])
    facts = [
        root.fact(f"{level.folder}/cpu.max", parse_cpu_max) if level.v2 else _quota_v1(root, level.folder)
        for level in groups.cpu
    ]
    spoiled = [fact for fact in facts if fact.value is None and fact.status != "absent"]
    return _public(spoiled[-1] if spoiled else _least(facts))


def cpus(root: Root, groups: Groups) -> Fact[frozenset[int]]:
    """Return the CPUs that the process's control group allows, or else the nearest group above it that names
    any."""
    return _public(_nearest(root, groups, _CPUS))


def nodes(root: Root, groups: Groups) -> Fact[frozenset[int]]:
    """Return the NUMA nodes that the process's control group allows, or else the nearest group above it that
    names any."""
    return _public(_nearest(root, groups, _MEMS))


class MemoryBounds(NamedTuple):
    """The memory limits of a control group and all groups above it, in bytes."""

    limit: Fact[int]  # the smallest limit; absent: none
    room: Fact[int]  # the smallest rest: limit - (used memory - cache that can be dropped)


def memory(root: Root, groups: Groups) -> MemoryBounds:
    """Return the smallest limit and the smallest rest of this process's control group and all groups above it.
    Both are absent without a limit, and have no value if a limit cannot be read. The rest has none if the used
    memory cannot be read."""
    if "memory" in groups.unread:
        return MemoryBounds(*[missing("invalid", groups.unread["memory"])] * 2)
    limits, rooms = [], []
    for level in groups.memory:
        files = _LIMITS_V2 if level.v2 else _LIMITS_V1
        for limit in root.facts(level.folder, files).values():
            if limit.value is not None:
                limits.append(limit)
                rooms.append(_room(root, level, limit))
            elif limit.status != "absent":
                return MemoryBounds(*[_public(limit)] * 2)
    spoiled = next((fact for fact in rooms if fact.value is None), None)
    return MemoryBounds(_public(_least(limits)), _public(spoiled or _least(rooms)))


def _public(fact: Fact[Any]) -> Fact[Any]:
    """Return the fact with `*` in place of the names of users and containers in its source."""
    folder, slash, name = (fact.source or "").rpartition("/")
    # users pass documents on to others
    return msgspec.structs.replace(fact, source=mask(folder) + slash + name) if fact.source else fact


def _least(facts: Iterable[Fact[Any]]) -> Fact[Any]:
    """Return the fact with the smallest value, or an absent one if none has a value."""
    stated = [fact for fact in facts if fact.value is not None]
    return min(stated, key=lambda fact: cast("float", fact.value), default=ABSENT)


def parse_cpu_max(text: str) -> float | None:
    """Parse "150000 100000" (microseconds per period of microseconds) into a number of CPUs, here 1.5. Returns
    None for "max", no limit. Raises ValueError for a text of another form."""
    amount, period = text.split()
    if amount == "max":
        size(period)
        return None
    return _microseconds(amount) / _microseconds(period)


def _quota_v1(root: Root, folder: str) -> Fact[float]:
    amount = root.fact(f"{folder}/cpu.cfs_quota_us", lambda text: None if text == "-1" else _microseconds(text))
    period = root.fact(f"{folder}/cpu.cfs_period_us", _microseconds)
    if amount.value is not None and period.value is None:
        return missing("invalid", period.source)
    return derive(amount, lambda value: value / period.value)


def _microseconds(text: str) -> int:
    if not (value := size(text)):
        raise ValueError("zero")
    return value


def _nearest(root: Root, groups: Groups, names: tuple[str, ...]) -> Fact[frozenset[int]]:
    if "cpuset" in groups.unread:
        return missing("invalid", groups.unread["cpuset"])
    for level in groups.cpuset:
        files = [root.fact(f"{level.folder}/{name}", lambda text: parse_list(text) or None) for name in names]
        if (fact := first(*files)).status != "absent":
            return fact
    return ABSENT


def _limit(text: str) -> int | None:
    return None if text == "max" or (value := size(text)) >= NO_LIMIT else value


def _limit_above(text: str) -> int | None:
    """Return the smallest limit of the group and all groups above it, by its memory.stat, or None."""
    # a container sees no files of the groups above its own
    line = re.search(r"^hierarchical_memory_limit (\d{1,20})$", text, re.M)
    return _limit(line[1]) if line else None


_LIMITS_V2 = {name: (name, _limit) for name in ("memory.max", "memory.high")}
_LIMITS_V1 = {"own": ("memory.limit_in_bytes", _limit), "above": ("memory.stat", _limit_above)}


def _room(root: Root, level: Level, limit: Fact[int]) -> Fact[int]:
    # The kernel takes these back when a process asks for memory; of a host MemAvailable counts them, too.
    current, dropped = ("memory.current", "(?:in)?active_file|slab_reclaimable") if level.v2 else (
        "memory.usage_in_bytes", "total_(?:in)?active_file")  # fmt: skip
    used = root.fact(f"{level.folder}/{current}", size)
    if used.value is None and used.status != "absent":
        return missing("invalid", used.source)
    text = root.read(f"{level.folder}/memory.stat").text or ""
    cache = sum(map(int, re.findall(rf"^(?:{dropped}) (\d{{1,20}})$", text, re.M)))
    return derive(limit, lambda value: max(0, value - max(0, (used.value or 0) - cache)))


def _mount(point: str, root: str, kind: str, options: str) -> list[Mount]:
    if kind not in ("cgroup", "cgroup2", "cpuset") or not plausible(point):
        return []
    controllers = frozenset({"cpuset"} if kind == "cpuset" else options.split(","))
    point, root = (re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), path) for path in (point, root))
    return [Mount(point, root, kind, controllers)]


def is_table(text: str | None) -> bool:
    """Tell whether all lines, if there are any, have the format of a mount."""
    return text is not None and all(len(line.split()) >= 4 for line in text.splitlines())


def plausible(path: str) -> bool:
    """Tell whether the path is short and flat enough to come from a kernel."""
    return len(path) <= LONGEST_PATH and path.count("/") <= DEEPEST_PATH


def _damaged_group_file(
    mounts: list[Mount], own: dict[str, str], groups: FileText, cpuset: FileText, controller: str
) -> str | None:
    """Return the path of the damaged file that hides the process's own group of `controller`, or None."""
    for mount in mounts:
        v2 = mount.kind == "cgroup2"
        if not (v2 or controller in mount.controllers) or ("" if v2 else controller) in own:
            continue
        by_cpuset = v2 or controller == "cpuset"
        if by_cpuset and (cpuset.text or "").startswith("/"):
            continue
        if groups.status != "absent" and not own:
            return groups.path
        if cpuset.status != "absent" and by_cpuset:
            return cpuset.path
    return None


def _levels(mounts: list[Mount], own: dict[str, str], fallback: str | None, controller: str) -> Iterator[Level]:
    """Yield the process's own group and all groups above it in each hierarchy with this controller."""
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
    """Return `path` relative to the mounted group `root`, with a leading slash, or "" if it is not below."""
    path, root = path.rstrip("/"), root.rstrip("/")
    inside = path.startswith("/") and f"{path}/".startswith(f"{root}/")
    return path[len(root) :] if inside and plausible(path) and ".." not in path.split("/") else ""


class Numbers(dict[str, int]):
    """A mapping from each private part of a path to the number that replaces it, in the order of appearance."""

    def rename(self, path: str) -> str:
        """Return `path` with a number for each private part."""
        return _replace_private(path, lambda part: str(self.setdefault(part, len(self) + 1)))


def mask(path: str) -> str:
    """Return `path` with `*` for each private part."""
    return _replace_private(path, lambda _part: "*")


def _replace_private(path: str, change: Callable[[str], str]) -> str:
    """Return `path` with `change` applied to each run of neighbouring private parts of a name."""

    def replace(public: bool, run: str) -> str:
        core = run.strip("/.,:@_-")  # separators at the ends of a run join it to public words
        return run if public or not core else run.replace(core, change(core), 1)

    return "/".join(
        "".join(
            replace(public, "".join(run))
            for public, run in groupby(_SEPARATOR.split(name), _PUBLIC_WORDS.__contains__)
        )
        for name in path.split("/")
    )
