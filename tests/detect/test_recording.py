"""Recordings give the same document again; one spoiled file costs its own facts alone (docs/detection.md)."""

import os
import re
import tarfile
from collections import defaultdict
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench import detect
from gpubench.base.errors import InputError
from gpubench.detect import recording
from gpubench.detect.facts import TouchedFiles
from gpubench.detect.proc import Numbers, mask
from tests.detect import recorded, trees
from tests.detect.trees import DRM, GIB, HOST, KFD, NODE, V2, under
from tests.raising import raised


@pytest.fixture
def tree(plant):
    card = trees.pci("0000:03:00.0", "1002", "744c", "amdgpu", mem_info_vram_total=str(8 << 30),
                     unique_id="12ab")  # fmt: skip
    return plant(trees.HOST | card | {
        "/sys/devices/real/class": "0x030000", "/sys/devices/real/vendor": "0x8086", "/sys/devices/real/device": "0x5917",
        "/sys/bus/pci/devices/0000:00:02.0": "-> ../../../devices/real", "/sys/devices/real/driver": "-> ../../x/i915",
        "/proc/self/cgroup": "0::/a", "/proc/self/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0",
        "/sys/fs/cgroup/a/cpu.max": "150000 100000", "/sys/class/kfd/kfd/topology/nodes": None,
        "/secret": "not read"})  # fmt: skip


def test_a_packed_recording_gives_the_same_document(tree, tmp_path, plain):
    detect.save_recording(tmp_path / "copy.tar.gz", tree)
    target = recorded.unpack(tmp_path / "copy.tar.gz", tmp_path / "unpacked")
    assert plain(detect.inspect(sysroot=target)) == plain(detect.inspect(sysroot=tree))
    assert not (target / "secret").exists()
    for taken in (target, tmp_path / "copy.tar.gz"):
        raised(InputError, detect.save_recording, taken, tree)


def test_names_and_serial_numbers_are_left_out():
    def clean(path, text):
        return recording.clean_text(path, text, Numbers())

    assert clean("/proc/version", "Linux version 6.1 (me@myhost) (gcc) #1") == "Linux version 6.1"
    assert "dead" not in clean("/proc/cpuinfo", "processor : 0\nSerial : 0000dead")
    machine = "processor 0: version = FF, identification = 0DA1E8, machine = 3906"
    assert "0DA1E8" not in clean("/proc/cpuinfo", machine)
    mounts = "/dev/sda1 /home/me/cgroup ext4 rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0"
    assert clean("/proc/self/mounts", mounts) == mounts.splitlines()[1]
    assert clean("/proc/mounts", "garbage") != ""


PRIVATE = [
    "/user.slice/user-4711.slice/user@4711.service/app.slice/app-org.alice.Editor-99.scope", "/alice/myhost",
    "/system.slice/docker-4f0c9a11223344556677889900aabbccddeeff00112233445566778899aabbcc.scope",
    "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod8e5c4711_1f2e.slice/cri-containerd-4711abc.scope",
    "/lxc.payload.myhost", "/slurm_myhost/uid_4711/job_15389/step_0"]  # fmt: skip


@pytest.mark.parametrize("group", PRIVATE)
def test_users_hosts_and_containers_are_in_no_document_and_no_recording(look, tmp_path, group):
    tree = trees.HOST | trees.group(f"0::{group}", [trees.mountinfo("/", "/sys/fs/cgroup", "rw,myhost", "cgroup2")], {
        "cpu.max": "150000 100000", "memory.max": 1 << 30, "cpuset.cpus": "0-1"}, f"/sys/fs/cgroup{group}")  # fmt: skip
    machine = look(tree)
    assert (machine.cpu.quota_cpus.value, machine.memory.limit_bytes.value) == (1.5, 1 << 30)
    (copy,) = tmp_path.glob("recording-*")
    written = [str(path.relative_to(copy)) for path in copy.rglob("*")]
    written += [path.read_text() for path in copy.rglob("*") if path.is_file()]
    for secret in ("4711", "alice", "myhost", "4f0c9a", "15389"):
        assert not [text for text in written if secret in text]
        assert secret not in detect.to_json(machine)


@given(st.lists(st.text(alphabet="abuser-_.@/01slice", max_size=20), max_size=5))
def test_any_group_is_masked_as_its_recording(paths):
    numbers = Numbers()
    renamed = [numbers.rename(path) for path in paths]
    assert [mask(path) for path in renamed] == [mask(path) for path in paths]
    assert len(set(renamed)) == len(set(paths))
    numbers = Numbers()  # equal parts keep equal names, and a second recording changes nothing
    assert numbers.rename("/docker/abc/docker-abc.scope") == "/docker/1/docker-1.scope"
    assert Numbers().rename("/docker/1/docker-1.scope") == "/docker/1/docker-1.scope"
    assert numbers.rename("/docker/1") == "/docker/2"


def test_groups_have_one_name_in_files_folders_and_refusals():
    mounts, group = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0", "/sys/fs/cgroup"
    files = {"/proc/self/mounts": mounts, f"{group}/alice/cpu.max": "max 1"}
    cleaned = recording.clean(TouchedFiles(files, {f"{group}/alice": []}, {}, {f"{group}/bob/cpu.max"}))
    assert cleaned.files == {"/proc/self/mounts": f"{mounts}\n", f"{group}/2/cpu.max": "max 1\n",
                             f"{group}/1/cpu.max": ""}  # fmt: skip
    assert (cleaned.folders, cleaned.refused) == ({f"{group}/2": []}, {f"{group}/1/cpu.max"})


def test_a_recording_can_be_read_but_for_what_was_refused(tmp_path):
    with open(tmp_path / "r.tar.gz", "w+b") as stream:
        recording.pack(stream, TouchedFiles({"/a": "x", "/d/b": ""}, {"/d": ["b"]}, {"/c": "a"}, {"/d/b"}))
    with tarfile.open(tmp_path / "r.tar.gz") as archive:
        entries = {entry.name: (entry.mode, entry.size, entry.linkname) for entry in archive}
    assert entries == {"d": (0o755, 0, ""), "a": (0o644, 1, ""), "d/b": (0, 0, ""), "c": (0o644, 0, "a")}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_refused_file_is_refused_in_the_recording_too(tree, tmp_path, plain):
    (tree / "proc/meminfo").chmod(0)
    detect.save_recording(tmp_path / "copy", tree)
    assert plain(detect.inspect(sysroot=tmp_path / "copy")) == plain(detect.inspect(sysroot=tree))


@pytest.mark.skipif(not recorded.ARCHIVES, reason=recorded.MISSING)
@pytest.mark.parametrize("archive", recorded.each(), ids=recorded.name)
def test_recorded_machines_survive_another_recording(archive, tmp_path, plain):
    unpacked, once, twice = (tmp_path / name for name in ("given", "once", "twice"))
    recorded.unpack(archive, unpacked)
    detect.save_recording(once, unpacked)
    detect.save_recording(twice, once)
    documents = [plain(detect.inspect(sysroot=root)) for root in (unpacked, once, twice)]
    assert documents[0] == documents[1] == documents[2]
    files = [{path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file() and not path.is_symlink()}
             for root in (once, twice)]  # fmt: skip
    assert files[0] == files[1]


# ---------------------------------------------------------------- one spoiled file costs its own facts
SPOILINGS = ("empty", "junk", "binary", "huge", "folder", "dangling", "refused")
# What a fact is computed from beside its own source, as docs/detection.md lists it: other facts, or files.
RESTS_ON = {
    "cpu.*": ["cpu.online_cpus"], "cpu.offline": ["cpu.present"],
    "cpu.smt": ["cpu.cores", "platform.hypervisor"],
    "cpu.kinds": ["cpu.cores", "cpu.caches", "cpu.base_hz", "cpu.max_hz", "cpu.present", "/sys/devices/system/cpu/cpu*/cpu_capacity"],
    "cpu.available": ["cpu.cpuset", "cpu.quota_cpus"], "cpu.limited_by": ["cpu.cpuset", "cpu.quota_cpus"],
    "cpu.cpuset": ["/proc/self/*", "/proc/mounts"], "cpu.quota_cpus": ["/proc/self/*", "/proc/mounts"],
    "numa.allowed_ids": ["/proc/self/*", "/proc/mounts", "numa.ids"],
    "numa.nodes.*": ["numa.ids"], "memory.limit_bytes": ["/proc/self/*", "/proc/mounts"],
    "memory.gpu_numa_bytes": ["gpus.*.memory.numa_node"],
    "memory.total_bytes": ["memory.os_total_bytes", "memory.gpu_numa_bytes"],
    "memory.available_bytes": ["memory.gpu_numa_bytes"],
    "memory.usable_bytes": ["memory.available_bytes", "memory.limit_bytes", "/**/memory.current",
        "/**/memory.usage_in_bytes", "/**/memory.stat"],
    "memory.limited_by": ["memory.usable_bytes"],
    "platform.hypervisor": ["platform.dmi_vendor", "platform.dmi_product"],
    "gpus.*.name": ["{gpu}.vendor_id", "{gpu}.device_id"], "gpus.*.vendor": ["{gpu}.vendor_id"],
    "gpus.*.kind": ["{gpu}.bdf", "{gpu}.device_id", "platform.hypervisor", "{gpu}.memory.dedicated_bytes", "{gpu}.memory.shared_limit_bytes", "platform.dmi_product"],
    "gpus.*.memory.unified": ["{gpu}.kind"], "gpus.*.memory.free_bytes": ["{gpu}.memory.dedicated_bytes"],
    "gpus.*.memory.dedicated_bytes": ["{gpu}.compute.partitions.*.memory_bytes", "{gpu}.kind"],
    "gpus.*.memory.usable_bytes": ["{gpu}.kind", "{gpu}.memory.*", "{gpu}.compute.partitions.*.memory_bytes",
        "memory.usable_bytes"],
    "display_adapters.*.role": ["{gpu}.vendor_id", "{gpu}.device_id"],
    "gpus.*.compute.units": ["{gpu}.compute.partitions.*.units"]}  # fmt: skip


class Reported(NamedTuple):
    """The facts of a document by their path, and its GPUs and other devices by id."""

    facts: dict[str, dict[str, Any]]
    devices: frozenset[str]


def reported(tree: Path, like: Reported | None = None) -> Reported:
    """The document of a tree; a GPU whose id is new takes the place of one of `like` that is gone."""
    document = msgspec.to_builtins(detect.inspect(sysroot=tree))
    ids = {f"{kind}.{device['id']}" for kind in ("gpus", "accelerators", "display_adapters")
           for device in document[kind]}  # fmt: skip
    gone = sorted(like.devices - ids) if like else []
    names = {}
    for one in sorted(ids - like.devices) if like else []:
        kind = one.partition(".")[0]
        names[one] = next((other for other in gone if other.startswith(kind)), one)
        gone = [other for other in gone if other != names[one]]
    return Reported(dict(walk(document, "", names)), frozenset(names.get(one, one) for one in ids))


def walk(node: Any, path: str, names: dict[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, dict) and {"value", "status", "source"} <= set(node):
        yield path, node
    elif isinstance(node, dict):
        for key, child in node.items():
            yield from walk(child, f"{path}.{key}".lstrip("."), names)
    elif isinstance(node, list):
        for number, child in enumerate(node):
            own = f"{path}.{child.get('id', number)}" if isinstance(child, dict) else f"{path}.{number}"
            yield from walk(child, names.get(own, own), names)


class Tree:
    """A recorded machine that is whole, and which files its sources name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.whole = reported(root)
        self._files: dict[str, list[str]] = {}

    def names(self, source: str, file: Path) -> bool:
        """Whether the source names the file, a folder above it, or a pattern that fits it."""
        if not source.startswith("/"):
            return False
        if source not in self._files:
            self._files[source] = [os.path.realpath(path) for path in self.root.glob(source.lstrip("/"))]
        return any(str(file) == path or str(file).startswith(f"{path}/") for path in self._files[source])

    def files(self) -> list[Path]:
        return sorted(path for path in self.root.rglob("*") if path.is_file() and not path.is_symlink())

    def roles(self) -> dict[str, list[Path]]:
        """The files of each role."""
        found = defaultdict(list)
        for file in self.files():
            found[role(str(file.relative_to(self.root)))].append(file)
        return found

    def check(self, file: Path, spoiling: str) -> None:
        """Spoil the file, look, and mend it."""
        aside = file.with_name(f"{file.name}.aside")
        file.rename(aside)
        try:
            spoil(file, spoiling)
            found = reported(self.root, self.whole)
        finally:
            (file.rmdir if file.is_dir() and not file.is_symlink() else file.unlink)()
            aside.rename(file)
        place = f"{file.relative_to(self.root)} {spoiling}"
        assert found.devices == self.whole.devices, place
        paths = self.whole.facts.keys() | found.facts.keys()
        changed = {path for path in paths if self.whole.facts.get(path) != found.facts.get(path)}
        for path in sorted(changed):
            before, after = self.whole.facts.get(path), found.facts.get(path)
            own = any(fact and self.names(fact["source"] or "", file) for fact in (before, after))
            if not own and not self._rests(path, changed, file):
                pytest.fail(f"{place} changes {path}: {before} -> {after}")

    def _rests(self, path: str, changed: set[str], file: Path) -> bool:
        gpu = re.match(r"gpus\.[^.]+(?:\.\d+)?", path)
        own = next((d for d in self.whole.devices if path.startswith(f"{d}.")), gpu[0] if gpu else "")
        for pattern, sources in RESTS_ON.items():
            for source in sources if fnmatchcase(path, pattern) else ():
                if source.startswith("/") and self.names(source, file):
                    return True
                wanted = source.replace("{gpu}", own)
                if any(fnmatchcase(other, wanted) for other in changed if other != path):
                    return True
        return False


def spoil(file: Path, how: str) -> None:
    if how == "folder":
        file.mkdir()
    elif how == "dangling":
        file.symlink_to("nowhere/at/all")
    else:
        file.write_bytes({"empty": b"", "junk": b"?! junk of [words 1,2\n",
                          "binary": b"\xff\xfe\0\x80junk\0" * 9, "huge": b"9" * (5 << 20),
                          "refused": b"0"}[how])  # fmt: skip
        file.chmod(0 if how == "refused" else 0o644)


def spoilings(folder: Path) -> list[str]:
    """The ways that show here: root may read a file without rights."""
    probe = folder / "refused"
    spoil(probe, "refused")
    return [way for way in SPOILINGS if way != "refused" or not os.access(probe, os.R_OK)]


@pytest.fixture
def machine(plant):
    """A machine with something of everything: SMT, caches, clocks, limits, GPUs of three makers, memory as nodes."""
    tree = HOST | trees.group("0::/a/b", V2, {
        "cpu.max": "150000 100000", "memory.max": 4 * GIB, "memory.current": GIB, "memory.stat": f"inactive_file {GIB // 2}",
        "b/cpuset.cpus.effective": "0-1", "b/cpuset.mems.effective": "0"}, "/sys/fs/cgroup/a")  # fmt: skip
    tree |= under("/sys/class/dmi/id", {"sys_vendor": "Maker", "product_name": "Product"})
    tree |= trees.each_cpu(2, {"cpufreq/cpuinfo_max_freq": "3000000", "cpufreq/scaling_governor": "powersave"})
    tree |= trees.caches((1, "Data", "48K", "0-1"), (2, "Unified", "2M", "0-1"), (3, "Unified", "32M", "0-1"))
    tree |= trees.each_cpu(2, {f"cache/index{index}/shared_cpu_list": range(2) for index in (0, 1)})
    for number in (0, 1):  # two GPUs whose memory the kernel shows as nodes
        bdf, own = f"0004:0{number + 5}:00.0", 254 + number
        tree |= trees.pci(bdf, "10de", "1db1", "nvidia", pci_class="0302", numa_node="0", local_cpulist="0-1", revision="0xa1",
                    max_link_speed="8.0 GT/s PCIe", max_link_width="8", power__runtime_status="active")  # fmt: skip
        tree |= under(f"/proc/driver/nvidia/gpus/{bdf}", {
            "information": f"Model: \t\t Tesla V100\nGPU UUID: \t GPU-0000000{number}-0000-0000-0000-000000000001\nDevice Minor: \t {number}",
            "numa_status": f"Node: {own}\nStatus: online\nSize: 40000000"})  # fmt: skip
        meminfo = f"Node {own} MemTotal: 1048576 kB\nNode {own} MemFree: 1048576 kB"
        tree |= under(f"{NODE}/node{own}", {"cpulist": "", "meminfo": meminfo})
    # without a link to a driver only NVIDIA's own files tell what it is
    tree.pop("/sys/bus/pci/devices/0004:06:00.0/driver")
    tree["/proc/driver/nvidia/version"] = "NVRM version: NVIDIA UNIX Kernel Module  535.183.01  Release Build"
    tree |= trees.pci("0000:03:00.0", "1002", "744c", "amdgpu", **trees.amdgpu(
        16 * GIB, 4 * GIB, mem_info_vis_vram_total=str(16 * GIB), mem_info_vram_used=str(GIB), unique_id="12ab"))  # fmt: skip
    tree |= trees.pci("0000:0a:00.0", "8086", "56a0", "i915", drm__card2__lmem_total_bytes=str(16 * GIB))
    tree |= trees.pci("0000:0b:00.0", "8086", "e20b", "xe", tile0__physical_vram_size_bytes=str(12 * GIB))
    tree |= trees.pci("0000:0c:00.0", "1a03", "2000", "ast")
    tree |= trees.pci("0000:0d:00.0", "8086", "1533", "igb", pci_class="0200")
    tree[f"{DRM}/card1/device"] = "-> ../../../bus/pci/devices/0000:03:00.0"
    tree[f"{DRM}/card1-DP-1/status"] = "connected"
    tree[f"{KFD}/0/properties"] = "cpu_cores_count 96\nsimd_count 0"
    for number, place in enumerate((0x0500, 0x0501, 0x2700, 0x2701), 1):  # two GPUs in two partitions each
        tree |= trees.kfd_node(number, location_id=place, unique_id=77 + number // 3)
        tree |= trees.bank(number, 24 * GIB) | {f"{KFD}/{number}/gpu_id": str(1000 + number)}
    return Tree(plant(tree))


@pytest.mark.parametrize("spoiling", SPOILINGS)
def test_a_spoiled_file_costs_its_own_facts_and_nothing_else(machine, spoiling, tmp_path):
    if spoiling not in spoilings(tmp_path):
        pytest.skip("this user may read everything")
    # A third of the roles each: whatever a file is for, one function reads it.
    assert len(machine.whole.devices) == 8
    number = SPOILINGS.index(spoiling)
    for files in list(machine.roles().values())[number % 3 :: 3]:
        machine.check(files[number % len(files)], spoiling)


def role(file: str) -> str:
    """What the file says of which kind of thing: `cpu0/online` and `cpu1/online` are one, and so are PCI functions at
    whatever address."""
    functions = r"pci[0-9a-f]{4}:[0-9a-f]{2}/(?:[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]/)+"
    return re.sub(r"\d+", "N", re.sub(functions, "pci/", file))


@pytest.mark.fuzz  # minutes
@pytest.mark.skipif(not recorded.ARCHIVES, reason=recorded.MISSING)
@pytest.mark.parametrize("archive", recorded.ARCHIVES, ids=recorded.name)
def test_a_spoiled_file_of_a_recorded_machine_costs_its_own_facts_and_nothing_else(archive, tmp_path):
    """A file of each role, each role in another way on each machine."""
    tree = Tree(recorded.unpack(archive, tmp_path / "root").resolve())
    ways = spoilings(tmp_path)
    for number, files in enumerate(tree.roles().values(), recorded.ARCHIVES.index(archive)):
        tree.check(files[number % len(files)], ways[number % len(ways)])
