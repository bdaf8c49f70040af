"""A machine as its files describe it: CPU, memory, platform and devices. The module also reads what only a live
system can tell: affinity, uname and psutil."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from gpubench.base import AMD, INTEL, NVIDIA, allowed_cpus, load_library
from gpubench.detect import proc
from gpubench.detect.cpu import CpuSet, read_cpu
from gpubench.detect.facts import (
    ABSENT,
    Address,
    DeviceRecord,
    Facts,
    FileText,
    Root,
    derive,
    first,
    list_form,
    lost,
    make_fact,
    matching,
    missing,
    parse_list,
    parse_mask,
    parse_name,
)
from gpubench.detect.merge import role_of_display
from gpubench.detect.pci import (
    CARDS,
    PCI_DEVICES,
    Card,
    Function,
    TreeGpus,
    read_cards,
    read_display_state,
    read_functions,
    read_tree_gpus,
    with_pci_paths,
    without_virtual,
)
from gpubench.detect.proc import CpuInfo, Groups
from gpubench.detect.vendors import (
    KFD_NODES,
    NVIDIA_FOLDER,
    NumaNodes,
    amd_facts,
    find_soc,
    intel_facts,
    numa_nodes,
    nvidia_facts,
    read_gpus,
    read_kfd,
)
from gpubench.result.identity import compare, is_placeholder
from gpubench.result.machine import (
    NOT_PROBED,
    Alternative,
    Cache,
    Cpu,
    Fact,
    Gpu,
    Machine,
    MachineWarning,
    Memory,
    Numa,
    NumaNode,
    Platform,
)


class Files(NamedTuple):
    """A machine as its files describe it."""

    platform: Platform  # the operating system, hypervisor and container
    cpu: Cpu  # the CPUs
    memory: Memory  # the memory of the host
    numa: Numa  # the NUMA nodes
    warnings: list[MachineWarning]  # warnings about the files
    records: list[DeviceRecord]  # the records of devices
    gpu_folders: list[str]  # the folders that can list GPUs; if there is none, the number of GPUs is unknown
    soc: Fact[str]  # the chip whose GPU shares the CPU's memory, from `find_soc`
    doubtful: bool  # whether a card may be a GPU, but no file says so


def read_files(root: Root, affinity: Fact[CpuSet]) -> Files:
    """Read the machine below `root`. `affinity` is the set of CPUs on which this process may run."""
    blocks = root.fact("/proc/cpuinfo", proc.parse)
    groups = proc.read_groups(root)
    pci, drm, nvidia, kfd = read_functions(root), read_cards(root), read_gpus(root), read_kfd(root)
    tree = read_tree_gpus(root, drm or [])
    listed = [*(function.record for function in pci or ()), *(record for record, _ in tree.records)]
    platform = read_platform(root, blocks, listed)
    # Off x86 (x86_64, i686) a GPU is often on no bus, so that an empty one tells nothing.
    if not root.names(PCI_DEVICES) and "86" not in f"{platform.arch.value}":
        pci = None
    listings = {PCI_DEVICES: pci, CARDS: drm, f"{NVIDIA_FOLDER}/gpus": nvidia, KFD_NODES: kfd}
    nodes = numa_nodes(nvidia)
    numa, warnings = read_numa(root, groups, nodes)
    soc = find_soc(root, platform, listed)
    devices = _devices(root, with_pci_paths(root, pci or []), drm or [], tree, platform.hypervisor, soc)
    return Files(
        platform, read_cpu(root, blocks, platform.hypervisor, groups, affinity), read_memory(root, groups, nodes),
        numa, warnings, [*devices, *(nvidia or ()), *(kfd or ())],
        [path for path, entries in listings.items() if entries is not None], soc, tree.doubtful,
    )  # fmt: skip


def _devices(
    root: Root, pci: list[Function], drm: list[Card], tree: TreeGpus, hypervisor: Fact[str], soc: Fact[str]
) -> list[DeviceRecord]:
    cards: dict[Address | None, Card] = {}  # the first one of each address
    for card in drm:
        if card.function.bdf is not None:
            cards.setdefault(card.function.bdf, card)
    listed = {bdf for function in pci for bdf in (function.bdf, *function.record.virtual)}
    functions = [(function, cards.get(function.bdf)) for function in pci]
    alone = {bdf: card.function for bdf, card in cards.items() if bdf and bdf not in listed}
    functions += [(function, cards[function.bdf]) for function in without_virtual(root, alone)]
    records = []
    for record, own in tree.records:
        if own is not None and record.vendor_id in (AMD, INTEL):
            functions.append((own.function._replace(record=record), own))
        else:
            records.append(record)
    return records + [_enrich(root, function, card, hypervisor, soc) for function, card in functions]


def _enrich(
    root: Root, function: Function, card: Card | None, hypervisor: Fact[str], soc: Fact[str]
) -> DeviceRecord:
    """Return the record of a PCI function with the facts of the vendor's driver and of the DRM card."""
    record, facts = function.record, {}
    if record.vendor_id == AMD:
        facts = amd_facts(root, function)
    elif record.vendor_id == INTEL:
        facts = intel_facts(root, function, card.folder if card else None, hypervisor)
    elif record.vendor_id == NVIDIA:
        facts = nvidia_facts(function, soc)
    if card is not None:
        facts["display_attached"] = read_display_state(root, card)
        record = replace(record, node=card.node)
    uuid = facts.get("uuid", NOT_PROBED).value
    return replace(record, facts=record.facts | facts, uuid=uuid)


def differences(
    there: Machine, here: Machine | None = None, measured: Collection[str] = ()
) -> Mapping[str, str]:
    """Return, by the name of the fact, the differences between the machines `there` and `here` (default: this
    one). `measured` holds the ids of the GPUs of `there` that count, and is empty if all do."""
    return compare(here or this_host(), there, measured).differences


@functools.cache
def this_host() -> Machine:
    """Return platform, CPU, memory and GPUs of this machine, from files only."""
    root = Root()
    files = read_this_host(root)
    gpus: list[Gpu] = []
    if files.records:
        # Here, as most callers' machines are asked for their CPU alone.
        from gpubench.detect.inspection import Gathered, assemble

        gpus = assemble(Gathered(files, root), live=True).gpus
    return Machine(platform=files.platform, cpu=files.cpu, memory=files.memory, gpus=gpus)


def read_this_host(root: Root | None = None) -> Files:
    """Read the files of this machine, and add the facts that uname reports. On systems other than Linux, psutil
    tells CPU and memory if no file does."""
    affinity = _affinity()
    files = read_files(root or Root(), affinity)
    facts = {key: make_fact(value, "uname") for key, value in _uname().items() if value}
    files = files._replace(platform=replace(files.platform, **facts))
    if files.memory.total_bytes.status == "absent" and sys.platform != "linux":
        cpu, memory = read_psutil(files.cpu, files.memory, affinity)
        files = files._replace(cpu=cpu, memory=memory)
    return files


def _affinity() -> Fact[CpuSet]:
    """Return the set of CPUs on which this process may run."""
    if allowed := allowed_cpus():
        return make_fact(frozenset(allowed), "sched_getaffinity")
    try:
        return make_fact(frozenset(load_library(_PSUTIL).Process().cpu_affinity()), _PSUTIL)
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


# ---------------------------------------------------------------- RAM, and what a control group leaves of it

MEMINFO = "/proc/meminfo"


def read_memory(root: Root, groups: Groups, gpu_nodes: NumaNodes) -> Memory:
    """Read the memory of the host, in bytes. `groups` are this process's control groups, which may limit it.
    `gpu_nodes` are the NUMA nodes of GPU memory, which does not count."""
    table = root.fact(MEMINFO, parse_meminfo)
    entries = table.value or {}
    if "MemAvailable" in entries:  # some containers show the host's beside their own MemTotal
        entries["MemAvailable"] = min(entries["MemAvailable"], entries["MemTotal"])

    def entry(key: str) -> Fact[int]:
        return derive(table, lambda entries: entries.get(key))

    os_total, available = entry("MemTotal"), entry("MemAvailable")
    if available.value is None and "MemFree" in entries:
        note = "MemFree + Buffers + Cached: the kernel is too old to say"
        available = make_fact(
            sum(entries.get(key, 0) for key in ("MemFree", "Buffers", "Cached")), MEMINFO, note
        )
    gpu_total, gpu_free = _gpu_memory(root, gpu_nodes)
    available = _less(available, gpu_free)
    bounds = proc.memory(root, groups)
    usable, bound = available, "host"
    if available.value is not None and bounds.room.status != "absent":
        if bounds.room.value is None:
            usable = lost(bounds.room)
        elif bounds.room.value < available.value:
            usable, bound = bounds.room, "cgroup"
    elif available.value is None:
        usable = lost(available)
    return Memory(
        total_bytes=_less(os_total, gpu_total), os_total_bytes=os_total, gpu_numa_bytes=gpu_total,
        available_bytes=available, limit_bytes=bounds.limit, usable_bytes=usable,
        limited_by=derive(usable, lambda _: bound), swap_total_bytes=entry("SwapTotal"),
    )  # fmt: skip


def parse_meminfo(text: str) -> dict[str, int]:
    """Parse the file meminfo of the machine or of a NUMA node. Return its entries in bytes, by name. Raises
    ValueError if MemTotal is missing, or is 0 for the machine."""
    lines = re.findall(r"^(Node \d+ )?(\w+):\s+(\d{1,15}) kB$", text, re.M)
    table = {key: int(amount) * 1024 for _, key, amount in lines}
    # a node may have no memory
    if not (table.get("MemTotal") or any(node and key == "MemTotal" for node, key, _ in lines)):
        raise ValueError("no MemTotal")
    return table


def _gpu_memory(root: Root, gpu_nodes: NumaNodes) -> tuple[Fact[int], Fact[int]]:
    """Return the total and the free bytes of the GPU memory that the kernel counts as RAM."""
    memories = [read_node_memory(root, node) for node in sorted(gpu_nodes.known)]
    spoiled = gpu_nodes.unread or next((total for total, _ in memories if total.value is None), None)
    if spoiled:
        return missing("invalid", spoiled.source), missing("invalid", spoiled.source)
    if not memories:
        return ABSENT, ABSENT
    total, free = (sum(fact.value or 0 for fact in facts) for facts in zip(*memories, strict=True))
    source = f"{NUMA_NODES}/node*/meminfo"
    return make_fact(total, source), make_fact(free, source)


def _less(whole: Fact[int], part: Fact[int]) -> Fact[int]:
    """Return `whole` minus `part`, or an invalid fact if `part` is unreadable or larger."""
    # an absent part is no part
    if whole.value is None or part.status == "absent":
        return whole
    if part.value is None:
        return missing("invalid", part.source, "memory of a GPU is counted as RAM, and its size cannot be read")
    rest = whole.value - part.value
    return make_fact(rest, whole.source) if rest >= 0 else missing("invalid", part.source)


NUMA_NODES = "/sys/devices/system/node"


def read_node_memory(root: Root, node: int) -> tuple[Fact[int], Fact[int]]:
    """Read the total and the free bytes of one NUMA node."""
    table = root.fact(f"{NUMA_NODES}/node{node}/meminfo", parse_meminfo)
    return derive(table, lambda entries: entries["MemTotal"]), derive(
        table, lambda entries: entries.get("MemFree")
    )


def read_numa(root: Root, groups: Groups, gpu_nodes: NumaNodes) -> tuple[Numa, list[MachineWarning]]:
    """Read all NUMA nodes, and return them with warnings. If nodes share CPUs, there is a warning and no node.
    `gpu_nodes` are the nodes of GPU memory."""
    listed: Fact[list[int]] = root.fact(f"{NUMA_NODES}/online", lambda text: sorted(parse_list(text)) or None)
    folders = sorted(int(name[4:]) for name in root.names_like(NUMA_NODES, r"node\d{1,5}"))
    ids = first(listed, make_fact(folders or None, NUMA_NODES))
    allowed = proc.nodes(root, groups)
    if allowed.value is not None and ids.value is not None:  # an older cpuset may name nodes that are not there
        inside = allowed.value & frozenset(ids.value)
        allowed = make_fact(inside, allowed.source) if inside else missing("invalid", allowed.source)
    allowed_ids = derive(allowed, sorted)
    cpus = {node: _cpus(root, node) for node in ids.value or ()}
    sets = [fact.value for fact in cpus.values() if fact.value]
    if sum(map(len, sets)) != len(frozenset().union(*sets)):
        text = "NUMA nodes share CPUs, because of numa=fake or of the firmware: no nodes are reported."
        none = Numa(ids=missing("invalid", f"{NUMA_NODES}/node*/cpulist"), allowed_ids=allowed_ids)
        return none, [MachineWarning(code="NUMA_OVERLAP", text=text, refs=[NUMA_NODES])]
    nodes = [
        NumaNode(
            id=node, cpus=derive(own, list_form), memory_bytes=read_node_memory(root, node)[0],
            kind=_kind(node, own, gpu_nodes),
        ) for node, own in cpus.items()
    ]  # fmt: skip
    return Numa(ids=ids, allowed_ids=allowed_ids, nodes=nodes), []


def _cpus(root: Root, node: int) -> Fact[frozenset[int]]:
    folder = f"{NUMA_NODES}/node{node}"
    return first(root.fact(f"{folder}/cpulist", parse_list), root.fact(f"{folder}/cpumap", parse_mask))


def _kind(node: int, cpus: Fact[frozenset[int]], gpu_nodes: NumaNodes) -> Fact[str]:
    if node in gpu_nodes.known:
        return make_fact("gpu", "/proc/driver/nvidia/gpus/*/numa_status")
    if cpus.value:
        return make_fact("dram", cpus.source)
    return lost(gpu_nodes.unread) if gpu_nodes.unread else ABSENT  # it may be that GPU's


# ---------------------------------------------------------------- operating system, hypervisor, container

VERSION = "/proc/version"
_DMI = ("/sys/class/dmi/id", "/sys/devices/virtual/dmi/id")
_TREE, _SYSINFO = "/proc/device-tree", "/proc/sysinfo"  # the latter of s390x
# Virtual machines, by a pattern of a name in the DMI tables, of "vendor / product", of the CPU's name, of the
# device tree or of s390x. The name of a vendor that also makes hardware is not enough: Microsoft, Google, Amazon,
# Oracle, Apple, Nutanix.
_GUESTS = (
    (r"VMware|vmware", "vmware"), (r"innotek|VirtualBox", "virtualbox"), (r"Xen$|HVM domU|xen,", "xen"),
    (r"BHYVE", "bhyve"), (r"Parallels .*(Virtual|VM)", "parallels"), (r"OpenBSD.* / VMM", "vmm"),
    (r"Apple Virtualization", "apple"), (r"Microsoft.* / Virtual Machine", "hyperv"),
    (r"QEMU|KVM\b|Bochs|KubeVirt|OpenStack|oVirt|RHEV|CloudStack|Red Hat|crosvm|[Cc]loud[ -][Hh]ypervisor", "kvm"),
    (r".*emulated by qemu|Common .*KVM|linux,(kvm|dummy-virt)|(?s:.*)VM00 Control Program: +KVM", "kvm"),
    (r"(?s:.*)VM00 Control Program: +z/VM", "zvm"),
    (r"Standard PC \(|Google Compute Engine|Alibaba Cloud ECS|DigitalOcean|Droplet|vServer|AHV$", "kvm"),
    (r"Amazon EC2 / (?!.*metal)[a-z0-9-]+\.", "kvm"),
)  # fmt: skip
# Clouds whose virtual machines run on KVM. A cloud may also offer real machines, so the CPU's flag decides.
_CLOUDS = (
    r"Amazon EC2|Google|Alibaba|Hetzner|Nutanix|Vultr|Scaleway|UpCloud|Linode|Akamai|Tencent|Huawei|Exoscale"
)
VMBUS = "/sys/bus/vmbus"  # the bus of a guest of Hyper-V; WSL has no DMI tables
# Paths that only a container has.
_CONTAINER_PATHS = (
    ("/var/run/secrets/kubernetes.io", "kubernetes"), ("/.dockerenv", "docker"), ("/run/.containerenv", "podman"),
    ("/.singularity.d", "apptainer"),
)  # fmt: skip
_CONTAINERS = (
    (r"kubepods", "kubernetes"), (r"docker[-/]", "docker"), (r"libpod", "podman"), (r"/\.?lxc\b", "lxc"),
    (r"containerd", "containerd"), (r"/buildkit/", "buildkit"),
)  # fmt: skip


def read_platform(root: Root, blocks: Fact[CpuInfo], listed: Iterable[DeviceRecord]) -> Platform:
    """Read the operating system and the firmware from /proc and the DMI tables."""
    version = root.read(VERSION)
    vendor, product = _dmi(root, "sys_vendor"), _dmi(root, "product_name")
    return Platform(
        os=version.fact(lambda text: "linux" if _kernel(text) else None), kernel=version.fact(_kernel),
        arch=_arch(blocks, version),
        hypervisor=hypervisor(root, blocks, vendor.value or "", listed),
        container=_container(root),
        wsl=version.fact(lambda text: "microsoft" in text.lower()), dmi_vendor=vendor, dmi_product=product,
    )  # fmt: skip


def hypervisor(root: Root, blocks: Fact[CpuInfo], vendor: str, listed: Iterable[DeviceRecord]) -> Fact[str]:
    """Return the name of the hypervisor, "unknown" if only its presence is known, or "none". `vendor` is the
    machine's in the DMI tables, and `listed` are the records of its displays. The status is "conflict" if the
    CPU denies what the firmware or a display shows. Only x86 has "none": on other CPUs the fact is absent if
    nothing shows a hypervisor."""
    file = root.read("/sys/hypervisor/type")
    if file.text:
        return make_fact(file.text.split()[0], file.path)
    flags = (blocks.value.any("flags") or "").split() if blocks.value else []
    shown = _virtual_machine(root, blocks.value)
    name, source = shown.value, shown.source
    if name is None and root.exists(VMBUS):
        name, source = "hyperv", VMBUS
    if "hypervisor" in flags:
        name = name or ("kvm" if re.match(_CLOUDS, vendor) else None)
        return make_fact(name or "unknown", source if name else "/proc/cpuinfo")
    # Amazon's adapter is in its real machines, too, and Cirrus made chips.
    if name is None and any(
        r.vendor_id not in (0x1D0F, 0x1013) and role_of_display(r.vendor_id, r.device_id) == "virtual"
        for r in listed
    ):
        name, source = "unknown", PCI_DEVICES
    if flags and name is None:
        return make_fact("none", "/proc/cpuinfo")
    if flags:
        note = "the CPU's flags deny a hypervisor: some virtual machines hide it from drivers"
        return Fact(name, "conflict", source, note, [Alternative("none", "/proc/cpuinfo")])
    # Off x86 there is no flag: a firmware table can show a hypervisor, its silence shows nothing.
    if name is None and blocks.status not in ("ok", "absent"):
        return lost(blocks)
    return make_fact(name, source if name else blocks.source)


def _virtual_machine(root: Root, info: CpuInfo | None) -> Fact[str]:
    """Return the name of the hypervisor that the DMI tables, the CPU's name or the device tree reveal."""
    # Who renames a virtual machine often leaves its board, its case and its firmware.
    vendor, product, *_ = firmware = [
        _dmi(root, name).value
        for name in ("sys_vendor", "product_name", "board_vendor", "chassis_vendor", "bios_vendor")
    ]
    tree = [root.read(f"{_TREE}/{name}").text for name in ("hypervisor/compatible", "compatible")]
    texts = {
        _DMI[0]: [f"{vendor} / {product}", *firmware],
        "/proc/cpuinfo": [proc.model(info), info.any("machine")] if info else [], _TREE: tree,
        _SYSINFO: [root.read(_SYSINFO).text],
    }  # fmt: skip
    return first(*(
        make_fact(name, source) for source, stated in texts.items() for form, name in _GUESTS
        if any(re.match(form, text or "") for text in stated)
    ))  # fmt: skip


def _arch(blocks: Fact[CpuInfo], version: FileText) -> Fact[str]:
    if blocks.value is None:
        return lost(blocks)
    value = proc.arch(blocks.value, version.text or "")
    if value and value.startswith("ppc64") and version.status != "absent":
        return derive(version.fact(_kernel), lambda _: value)  # the order of bytes stands there alone
    return make_fact(value, blocks.source)


_kernel = matching(r"Linux version (\S{1,128})(?s:.*)", lambda match: match[1])


def _dmi(root: Root, name: str) -> Fact[str]:
    return first(*(root.fact(f"{folder}/{name}", parse_name) for folder in _DMI))


def _container(root: Root) -> Fact[str]:
    for path, name in _CONTAINER_PATHS:
        if root.exists(path):
            return make_fact(name, path)
    stated = root.fact("/run/systemd/container", matching("(?!wsl$)[a-z-]{2,20}"))
    if stated.value is not None:
        return stated
    return root.fact(
        proc.OWN, lambda text: next((name for form, name in _CONTAINERS if re.search(form, text)), None)
    )


# ---------------------------------------------------------------- what Python packages tell where there are no files

_PSUTIL, _CPUINFO = "psutil", "cpuinfo"


def read_psutil(cpu: Cpu, memory: Memory, allowed: Fact[CpuSet]) -> tuple[Cpu, Memory]:
    """Return `cpu` and `memory` with the facts that psutil reports, or unchanged if psutil does not work.
    `allowed` is the set of CPUs on which the process may run, if that is known."""
    try:
        psutil = load_library(_PSUTIL)
        ram, logical, cores = psutil.virtual_memory(), psutil.cpu_count(), psutil.cpu_count(logical=False)
        total, free = make_fact(ram.total, _PSUTIL), make_fact(ram.available, _PSUTIL)
    except Exception:  # a psutil that is broken must not end detection
        return cpu, memory
    count = _count(logical)
    # Windows states an empty set for a process in several groups of 64 CPUs.
    usable = derive(allowed, len) if allowed.value else count
    bound = "affinity" if usable.value != count.value else "online"
    unsupported = missing("unsupported", _PSUTIL)
    clock, swap = None, unsupported
    with contextlib.suppress(Exception):  # some Macs tell none; Windows tells the nominal clock as the current
        clock = psutil.cpu_freq()
    with contextlib.suppress(Exception):
        swap = make_fact(psutil.swap_memory().total, _PSUTIL)
    cpu = replace(
        cpu, logical=count, cores=_count(cores), available=usable, limited_by=make_fact(bound, _PSUTIL),
        online_cpus=derive(count, lambda number: list_form(range(number))),
        now_hz=_count(_hertz(clock.current)) if clock else unsupported,
        max_hz=_count(_hertz(clock.max)) if clock else unsupported,
        smt=make_fact(("on" if logical > cores else "off") if logical and cores else None, _PSUTIL),
    )  # fmt: skip
    memory = replace(
        memory, total_bytes=total, os_total_bytes=total, available_bytes=free, usable_bytes=free,
        limited_by=make_fact("host", _PSUTIL),
        swap_total_bytes=swap,
    )  # fmt: skip
    return cpu, memory


def _hertz(megahertz: object) -> int | None:
    """Convert megahertz to hertz, or return None for an implausible clock."""
    # old versions of psutil give GHz or kHz on some Macs
    if not isinstance(megahertz, int | float) or not 100 <= megahertz <= 100_000:
        return None
    return round(megahertz * 1e6)


def _count(value: int | None) -> Fact[int]:
    return make_fact(value or None, _PSUTIL)


class CpuinfoFacts(msgspec.Struct):
    """The answer of the probe `cpuinfo`. Facts that it does not know are None or empty."""

    model: str | None = None  # the name of the product
    vendor: str | None = None  # the manufacturer
    flags: list[str] = []  # the flags of the instruction set
    base_hz: int | None = None  # the advertised clock, in hertz
    caches: list[Cache] = []  # the caches, by level


def read_cpuinfo(cpu: Cpu, answer: CpuinfoFacts) -> Cpu:
    """Return `cpu` with the facts that py-cpuinfo reports, where files and psutil gave none."""
    model, vendor = (
        " ".join(text.split()) if text and not is_placeholder(text) else None
        for text in (answer.model, answer.vendor)
    )
    isa = proc.keep_flags(answer.flags) if answer.flags else None
    values = {"model": model, "vendor": vendor, "isa": isa, "base_hz": answer.base_hz}
    facts: Facts = {name: make_fact(value, _CPUINFO) for name, value in values.items()}
    facts["caches"] = make_fact(answer.caches or None, _CPUINFO, "a size for each level, counted once")
    return replace(cpu, **{name: first(getattr(cpu, name), fact) for name, fact in facts.items()})
