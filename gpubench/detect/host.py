"""The host without its devices, and its operating system, hypervisor and container: what files alone tell, then what
only a live system tells (affinity, uname, psutil)."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec

from gpubench.detect import cgroup, cpuinfo
from gpubench.detect.cards import (
    CARDS,
    Card,
    TreeGpus,
    by_address,
    read_cards,
    read_display_state,
    read_tree_gpus,
)
from gpubench.detect.cpu import read_cpu
from gpubench.detect.cpuinfo import CpuInfo
from gpubench.detect.kfd import KFD_NODES, read_kfd
from gpubench.detect.libraries import read_psutil
from gpubench.detect.links import with_pci_paths
from gpubench.detect.memory import read_memory, read_numa
from gpubench.detect.pci import PCI_DEVICES, Function, read_functions
from gpubench.detect.records import DeviceRecord, derived, known, lost, missing
from gpubench.detect.root import FileText, Root, parse_name
from gpubench.detect.topology import CpuSet
from gpubench.detect.vendors import (
    NVIDIA_FOLDER,
    amd_facts,
    find_soc,
    intel_facts,
    numa_nodes,
    nvidia_facts,
    read_gpus,
)
from gpubench.result.identity import compare
from gpubench.result.machine import (
    NOT_PROBED,
    Alternative,
    Cpu,
    Fact,
    Gpu,
    Machine,
    MachineWarning,
    Memory,
    Numa,
    Platform,
)

AMD, INTEL, NVIDIA = 0x1002, 0x8086, 0x10DE


class Files(NamedTuple):
    """`gpu_folders` names the folders that could list GPUs: none means that their number is unknown.

    `doubtful`: a card may be a GPU, and nothing tells.
    """

    platform: Platform
    cpu: Cpu
    memory: Memory
    numa: Numa
    warnings: list[MachineWarning]
    records: list[DeviceRecord]
    gpu_folders: list[str]
    soc: Fact[str]
    doubtful: bool = False


def read_files(root: Root, affinity: Fact[CpuSet]) -> Files:
    """Read the machine below `root`; `affinity` is the caller's, because no file tells it."""
    info = root.read("/proc/cpuinfo")
    blocks = info.fact(cpuinfo.parse)
    platform = read_platform(root, blocks)
    groups = cgroup.read_groups(root)
    nvidia = read_gpus(root)
    nodes = numa_nodes(nvidia)
    numa, warnings = read_numa(root, groups, nodes)
    soc = find_soc(root, platform)
    pci, drm, kfd = read_functions(root), read_cards(root), read_kfd(root)
    folders = [path for path, found in (
        (PCI_DEVICES, pci), (CARDS, drm), (f"{NVIDIA_FOLDER}/gpus", nvidia), (KFD_NODES, kfd),
    ) if found is not None]  # fmt: skip
    tree = read_tree_gpus(root, drm or [])
    firmware = Firmware(platform.hypervisor, soc)
    devices = _devices(root, with_pci_paths(root, pci or []), drm or [], tree, firmware)
    return Files(
        platform, read_cpu(root, blocks, platform.hypervisor, groups, affinity),
        read_memory(root, groups, nodes), numa, warnings, devices + (nvidia or []) + (kfd or []), folders, soc,
        tree.doubtful,
    )  # fmt: skip


class Firmware(NamedTuple):
    """Facts of the machine on which a GPU's kind may rest."""

    hypervisor: Fact[str]
    soc: Fact[str]  # a chip whose GPU shares the CPU's memory


def _devices(
    root: Root, pci: list[Function], drm: list[Card], tree: TreeGpus, firmware: Firmware
) -> list[DeviceRecord]:
    cards = by_address(drm)
    records = []
    for function in pci:
        card = cards.get(function.bdf) if function.bdf is not None else None
        records.append(_enriched(root, function, card, firmware))
    listed = {bdf for function in pci for bdf in (function.bdf, *function.record.virtual)}
    for card in cards.values():
        if card.function.bdf not in listed:
            records.append(_enriched(root, card.function, card, firmware))
    for record, card in tree.records:
        if card is not None and record.vendor_id in (AMD, INTEL):
            record = _enriched(root, card.function._replace(record=record), card, firmware)
        records.append(record)
    return records


def _enriched(root: Root, function: Function, card: Card | None, firmware: Firmware) -> DeviceRecord:
    """The PCI facts with those of the vendor's driver and of the card."""
    record, facts = function.record, {}
    if record.vendor_id == AMD:
        facts = amd_facts(root, function.folder, function.asleep)
    elif record.vendor_id == INTEL:
        facts = intel_facts(root, function, card.folder if card else None, firmware.hypervisor)
    elif record.vendor_id == NVIDIA:
        facts = nvidia_facts(function, firmware.soc)
    if card is not None:
        facts["display_attached"] = read_display_state(root, card)
        record = msgspec.structs.replace(record, renders=card.renders)
    uuid = facts["uuid"].value if "uuid" in facts else None
    return msgspec.structs.replace(record, facts=record.facts | facts, uuid=uuid)


def differences(
    there: Machine, here: Machine | None = None, measured: Collection[str] = ()
) -> Mapping[str, str]:
    """Return in what the machine `there` differs from `here` (None: this one), in words by name; empty for the same.

    `measured`: as for `compare`.
    """
    return compare(here or this_host(), there, measured).differences


@cache
def this_host() -> Machine:
    """CPU, memory and GPUs of this machine, from files alone: GPUs that no file lists are unknown."""
    root = Root()
    files = read_this_host(root)
    gpus: list[Gpu] = []
    if files.records:
        # Here, as most callers' machines are asked for their CPU alone.
        from gpubench.detect.inspection import gpus_of_files

        gpus = gpus_of_files(files, root)
    return Machine(platform=files.platform, cpu=files.cpu, memory=files.memory, gpus=gpus)


def read_this_host(root: Root) -> Files:
    """The files of this machine, with the facts of uname and, off Linux, of psutil."""
    affinity = _affinity()
    files = read_files(root, affinity)
    facts = {key: known(value, "uname") for key, value in _uname().items() if value}
    files = files._replace(platform=msgspec.structs.replace(files.platform, **facts))
    if files.memory.total_bytes.status == "absent" and sys.platform != "linux":
        cpu, memory = read_psutil(files.cpu, files.memory, affinity)
        files = files._replace(cpu=cpu, memory=memory)
    return files


def _affinity() -> Fact[CpuSet]:
    """CPUs on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return known(frozenset(os.sched_getaffinity(0)), "sched_getaffinity")
    try:
        import psutil

        return known(frozenset(psutil.Process().cpu_affinity()), "psutil")
    except Exception:  # macOS has no affinity, and a broken psutil must not end detection
        return NOT_PROBED if sys.platform != "darwin" else missing("unsupported", "psutil")


def _uname() -> dict[str, Any]:
    if hasattr(os, "uname"):
        system = os.uname()
        return {"os": system.sysname.lower(), "kernel": system.release, "arch": system.machine.lower()}
    import platform

    arch = platform.machine().lower()
    arch = {"amd64": "x86_64", "arm64": "aarch64"}.get(arch, arch)
    return {"os": platform.system().lower(), "kernel": platform.release(), "arch": arch}


VERSION = "/proc/version"
_DMI = ("/sys/class/dmi/id", "/sys/devices/virtual/dmi/id")
# Machines that only a hypervisor makes, by the beginnings of vendor and product. A maker's name alone is no proof where
# it makes hardware too: Microsoft, Google, Amazon, Oracle, Apple, Nutanix.
_VIRTUAL = (
    (r"VMware", r"", "vmware"), (r"", r"VMware", "vmware"), (r"innotek", r"", "virtualbox"),
    (r"", r"VirtualBox", "virtualbox"), (r"Xen$", r"", "xen"), (r"", r"HVM domU", "xen"),
    (r"", r"Parallels .*(Virtual|VM)", "parallels"), (r"BHYVE", r"", "bhyve"), (r"", r"BHYVE", "bhyve"),
    (r"Microsoft", r"Virtual Machine", "hyperv"), (r"", r"Apple Virtualization", "apple"),
    (r"QEMU|Bochs|KubeVirt|OpenStack|oVirt|Red Hat|DigitalOcean|Cloud Hypervisor", r"", "kvm"),
    (r"", r"Standard PC \(|KVM\b|QEMU|Bochs|OpenStack|RHEV|oVirt|CloudStack|KubeVirt|crosvm|cloud-hypervisor", "kvm"),
    (r"", r"Google Compute Engine|Alibaba Cloud ECS|Droplet|vServer|AHV$", "kvm"),
    (r"Amazon EC2", r"(?!.*metal)[a-z0-9-]+\.", "kvm"),
)  # fmt: skip
# Clouds whose virtual machines run on KVM; a machine of theirs may be a bare one, so the CPU's flag decides.
_CLOUDS = (
    r"Amazon EC2|Google|Alibaba|Hetzner|Nutanix|Vultr|Scaleway|UpCloud|Linode|Akamai|Tencent|Huawei|Exoscale"
)
_CONTAINERS = (
    (r"kubepods", "kubernetes"), (r"docker[-/]", "docker"), (r"libpod", "podman"), (r"/lxc[/.]", "lxc"),
    (r"containerd", "containerd"), (r"/buildkit/", "buildkit"),
)  # fmt: skip


def read_platform(root: Root, blocks: Fact[CpuInfo]) -> Platform:
    """What the files under /proc and the DMI tables say."""
    version = root.read(VERSION)
    vendor, product = _dmi(root, "sys_vendor"), _dmi(root, "product_name")
    return Platform(
        os=version.fact(lambda text: "linux" if _kernel(text) else None), kernel=version.fact(_kernel),
        arch=_arch(blocks, version),
        hypervisor=hypervisor(root, blocks, vendor.value or "", product.value or ""), container=_container(root),
        wsl=version.fact(lambda text: "microsoft" in text.lower()), dmi_vendor=vendor, dmi_product=product,
    )  # fmt: skip


def hypervisor(root: Root, blocks: Fact[CpuInfo], vendor: str, product: str) -> Fact[str]:
    """The hypervisor's name, "unknown" if it has none, "none" only where x86 denies one and no firmware names one."""
    file = root.read("/sys/hypervisor/type")
    if file.text:
        return known(file.text.split()[0], file.path)
    flags = (blocks.value.any("flags") or "").split() if blocks.value else []
    name = _virtual_machine(root, vendor, product)
    source = _DMI[0]
    if name is None and blocks.value and re.match(r"QEMU\b|Common .*KVM", cpuinfo.model(blocks.value) or ""):
        name, source = "kvm", "/proc/cpuinfo"
    if flags and "hypervisor" not in flags:
        if name is None:
            return known("none", "/proc/cpuinfo")
        note = "the CPU's flags deny a hypervisor: some virtual machines hide it from drivers"
        return Fact(name, "conflict", source, note, [Alternative("none", "/proc/cpuinfo")])
    if flags:
        name = name or ("kvm" if re.match(_CLOUDS, vendor) else None)
        return known(name or "unknown", source if name else "/proc/cpuinfo")
    if blocks.value and "emulated by qemu" in (blocks.value.any("machine") or ""):
        return known("kvm", "/proc/cpuinfo")
    # Off x86 there is no flag: a firmware table can show a hypervisor, its silence shows nothing.
    if name is None and blocks.status not in ("ok", "absent"):
        return lost(blocks)
    return known(name, source) if name else missing("absent", blocks.source)


def _virtual_machine(root: Root, vendor: str, product: str) -> str | None:
    """The hypervisor that makes such a machine; None where it may be a real one."""
    # Who renames a virtual machine often leaves its board, its case and its firmware.
    others = [_dmi(root, name).value or "" for name in ("board_vendor", "chassis_vendor", "bios_vendor")]
    for makers, form, name in _VIRTUAL:
        vendors = (vendor,) if form else (vendor, *others)
        if re.match(form, product) and any(re.match(makers, maker) for maker in vendors):
            return name
    return None


def _arch(blocks: Fact[CpuInfo], version: FileText) -> Fact[str]:
    if blocks.value is None:
        return lost(blocks)
    value = cpuinfo.arch(blocks.value, version.text or "")
    if (
        value and value.startswith("ppc64") and version.status != "absent"
    ):  # the order of bytes stands there alone
        return derived(version.fact(_kernel), lambda _: value)
    return known(value, blocks.source or "") if value else missing("absent", blocks.source)


def _kernel(text: str) -> str:
    found = re.match(r"Linux version (\S{1,128})", text)
    if not found:
        raise ValueError("not a kernel version")
    return found[1]


def _dmi(root: Root, name: str) -> Fact[str]:
    fact: Fact[str] = missing("absent")
    for folder in _DMI:
        fact = root.fact(f"{folder}/{name}", parse_name)
        if fact.value is not None:
            break
    return fact


def _container(root: Root) -> Fact[str]:
    for path, name in (("/.dockerenv", "docker"), ("/run/.containerenv", "podman")):
        if root.exists(path):
            return known(name, path)
    path = "/proc/self/cgroup"
    text = root.read(path).text or ""
    manager = next((word for pattern, word in _CONTAINERS if re.search(pattern, text)), None)
    return known(manager, path) if manager else missing("absent")
