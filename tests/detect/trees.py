"""Builders of the trees that tests look at, and facts of a document by their path."""

from pathlib import Path
from typing import Any

from gpubench.result.machine import Fact

GIB = 1 << 30
CPU, NODE, DRM = "/sys/devices/system/cpu", "/sys/devices/system/node", "/sys/class/drm"
KFD = "/sys/class/kfd/kfd/topology/nodes"
Tree = dict[str, str | bytes | None]  # text, bytes, None for a folder, "-> target" for a link
CPUINFO = "\n\n".join(
    f"processor\t: {n}\nvendor_id\t: GenuineIntel\nmodel name\t: Test CPU\nflags\t\t: fpu lm avx avx2 fma{more}"
    for n, more in enumerate(("", " avx512f"))
)
V2 = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0"


def plant(root: Path, tree: Tree) -> Path:
    """Write a tree: text, bytes, None for a folder, "-> target" for a link."""
    root.mkdir(exist_ok=True)
    for path, content in tree.items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            place.mkdir(exist_ok=True)
        elif isinstance(content, bytes):
            place.write_bytes(content)
        elif content.startswith("-> "):
            place.unlink(missing_ok=True)
            place.symlink_to(content[3:])
        else:
            place.write_text(content + "\n")
    return root


def under(folder: str, files: dict[str, Any]) -> Tree:
    """Return files below a folder."""
    return {f"{folder}/{name}": str(text) for name, text in files.items()}


def each_cpu(count: int, files: dict[str, Any]) -> Tree:
    """Return files of each CPU: a text for all of them, or a sequence with one for each."""
    return {f"{CPU}/cpu{n}/{name}": str(text[n] if isinstance(text, tuple | range) else text)
            for name, text in files.items() for n in range(count)}  # fmt: skip


# Two online CPUs on one core, 8 GiB of RAM.
HOST: Tree = {
    "/proc/cpuinfo": CPUINFO, "/proc/version": "Linux version 6.1.0-test (someone@somewhere) #1 SMP",
    "/proc/meminfo": "MemTotal: 8388608 kB\nMemFree: 4194304 kB\nMemAvailable: 6291456 kB\nSwapTotal: 0 kB",
    f"{CPU}/online": "0-1", f"{CPU}/present": "0-1", f"{NODE}/node0/cpulist": "0-1",
    f"{NODE}/node0/meminfo": "Node 0 MemTotal: 8388608 kB\nNode 0 MemFree: 4194304 kB", "/sys/bus/pci/devices": None,
    **each_cpu(2, {"topology/thread_siblings_list": "0-1", "topology/physical_package_id": "0"})}  # fmt: skip


def cores(count: int, *, online: str = "", parts: Any = (), mhz: Any = (), capacity: Any = ()) -> Tree:
    """Return so many cores of a CPU each, with what the files tell of them: parts of Arm as `midr_el1` has them."""
    tree: Tree = {f"{CPU}/online": online or f"0-{count - 1}", f"{CPU}/present": f"0-{count - 1}"}
    files: dict[str, Any] = {"topology/core_cpus_list": range(count)}
    if parts:
        files["regs/identification/midr_el1"] = tuple(f"0x00000000410f{part}0" for part in parts)
    if mhz:
        files["cpufreq/cpuinfo_max_freq"] = tuple(1000 * value for value in mhz)
    if capacity:
        files["cpu_capacity"] = capacity
    return tree | each_cpu(count, files)


def big_little(parts: list[str], online: str, **more: Any) -> Tree:
    """Return Arm cores of these parts, as /proc/cpuinfo alone tells them."""
    text = "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t:"
    blocks = [f"processor\t: {n}\n{text} {part}" for n, part in enumerate(parts)]
    return cores(len(parts), online=online, **more) | {"/proc/cpuinfo": "\n\n".join(blocks)}


def caches(*listed: tuple[int, str, str, str | None]) -> Tree:
    """Return level, type, size and CPUs of the caches that each of two CPUs lists."""
    tree: Tree = {}
    for index, (level, kind, size, shared) in enumerate(listed):
        files = {"level": level, "type": kind, "size": size} | ({"shared_cpu_list": shared} if shared else {})
        tree |= each_cpu(2, {f"cache/index{index}/{name}": text for name, text in files.items()})
    return tree


def mountinfo(root: str, point: str, options: str, kind: str = "cgroup") -> str:
    """Return a line of /proc/self/mountinfo."""
    return f"30 23 0:26 {root} {point} rw,nosuid - {kind} {kind} {options}"


def group(cgroup: str, mounts: str | list[str], files: dict[str, Any], folder: str = "/sys/fs/cgroup") -> Tree:
    """Return a control group: lines of /proc/self/cgroup, mounts in either of their forms, files below a folder."""
    table = ("mountinfo", "\n".join(mounts)) if isinstance(mounts, list) else ("mounts", mounts)
    return {"/proc/self/cgroup": cgroup, f"/proc/self/{table[0]}": table[1]} | under(folder, files)


def pci(
    bdf: str, vendor: str, device: str, driver: str | None = None, *, pci_class: str = "0300", **more: str
) -> Tree:
    """Return the files of one PCI function; `__` in a name stands for a slash."""
    files = {"class": f"0x{pci_class}00", "vendor": f"0x{vendor}", "device": f"0x{device}"}
    if driver:
        files["driver"] = f"-> ../../../bus/pci/drivers/{driver}"
    files |= {name.replace("__", "/"): value for name, value in more.items()}
    return under(f"/sys/bus/pci/devices/{bdf}", files)


def amdgpu(vram: int, gtt: int, **more: str) -> dict[str, str]:
    """Return the files of amdgpu that tell its memory."""
    sizes = {"vram_total": vram, "vis_vram_total": min(vram, 256 << 20), "gtt_total": gtt, "vram_used": 0}
    return {f"mem_info_{name}": str(size) for name, size in sizes.items()} | more


def kfd_node(number: int, **table: int) -> Tree:
    """Return a node of AMD's kernel driver: an MI300 partition, but for what `table` says."""
    base = {"cpu_cores_count": 0, "simd_count": 152, "simd_per_cu": 4, "vendor_id": 4098, "device_id": 29857,
            "location_id": 0x0500, "domain": 1, "gfx_target_version": 90402}  # fmt: skip
    return {f"{KFD}/{number}/properties": "\n".join(f"{key} {value}" for key, value in (base | table).items())}


def bank(node: int, size: int, number: int = 0) -> Tree:
    """Return memory of a node of AMD's kernel driver."""
    return {f"{KFD}/{node}/mem_banks/{number}/properties": f"heap_type 1\nsize_in_bytes {size}"}


def at(node: Any, path: str) -> Any:
    """Return what a document holds at a path (`gpus.*.bdf`); the value of a fact, or the status of one without."""
    head, _, rest = path.partition(".")
    if isinstance(node, Fact) and head not in Fact.__struct_fields__:
        node = node.value
    if head == "*":
        return [at(item, rest) if rest else item for item in node]
    node = node[int(head)] if head.isdigit() else node[head] if isinstance(node, dict) else getattr(node, head)
    if rest:
        return at(node, rest)
    return (node.status if node.value is None else node.value) if isinstance(node, Fact) else node


def check(document: Any, expected: dict[str, Any]) -> None:
    """Assert what a document holds at each path; of a note, what it has to contain."""
    told = {path: at(document, path) for path in expected}
    for path, value in expected.items():
        if path.endswith(".note"):
            assert value in told.pop(path)
    assert told == {path: value for path, value in expected.items() if path in told}
