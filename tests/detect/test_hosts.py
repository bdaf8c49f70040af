"""A row a machine: files of its processors, memory, control groups and firmware in, facts out."""

import contextlib
import errno
import os
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.detect import cpu, facts, host, proc
from gpubench.detect.facts import (
    ABSENT,
    Root,
    integer,
    list_form,
    make_fact,
    parse_list,
    parse_mask,
    parse_name,
    positive,
    size,
)
from gpubench.detect.host import CpuinfoFacts, read_cpuinfo, read_files, read_psutil
from gpubench.result.machine import NOT_PROBED, Cache, Cpu, Memory
from tests.detect import trees
from tests.detect.trees import CPU, GIB, HOST, NODE, V2, check, cores, each_cpu, group, mountinfo, pci, under
from tests.examples import CHARACTERS
from tests.held import hold
from tests.raising import raised

UNLIMITED = {"memory.limit_bytes": "absent", "memory.usable_bytes": 6 * GIB}
INNER, POD = "/docker/aaa/docker/bbb", "/kubepods/burstable/pod1234/5678"
MIDR = {"/proc/cpuinfo": "processor : 0\nCPU architecture: 8"}
VIRTUAL_CPUS = "processor : 8\nflags : lm hypervisor\n\nprocessor : 88\nflags : lm hypervisor"
PROCESSORS = {
    "two threads of one core": (HOST, {"cpu.logical": 2, "cpu.cores": 1, "cpu.smt": "on", "cpu.available": 2, "cpu.affinity": "not_probed",
                                       "cpu.isa": ["avx", "avx2", "fma"]}),
    "siblings are cut to the online CPUs": (HOST | {f"{CPU}/online": "1"}, {"cpu.logical": 1, "cpu.cores": 1, "cpu.smt": "off", "cpu.offline": 1}),
    "sparse ids, SMT hidden": (
        {"/proc/cpuinfo": VIRTUAL_CPUS, f"{CPU}/online": "8,88", f"{CPU}/cpu8/topology/core_cpus": "100",
         f"{CPU}/cpu88/topology/core_cpus": "1000000,00000000,00000000"},
        {"cpu.cores": 2, "cpu.smt": "hidden", "cpu.online_cpus": "8,88"}),
    "siblings that overlap": (HOST | {f"{CPU}/cpu1/topology/thread_siblings_list": "1"}, {"cpu.cores": "invalid", "cpu.smt": "invalid", "cpu.logical": 2}),
    **{f"spoiled siblings {text!r}": (HOST | {f"{CPU}/cpu{n}/topology/core_cpus_list": text for n in (0, 1)}, {"cpu.cores": 1})
       for text in ("0-", "5", "", b"\xff\xfe")},
    "offline by each CPU's own switch": (
        {path: text for path, text in HOST.items() if path not in (f"{CPU}/online", f"{CPU}/present")}
        | {f"{CPU}/cpu1/online": "0", f"{CPU}/possible": "0-191"},
        {"cpu.logical": 1, "cpu.present": 2, "cpu.offline": 1, "cpu.possible": 192, "cpu.cores": 1, "cpu.available": 1}),
    "a virtual machine with a core a package": (
        HOST | each_cpu(2, {"topology/thread_siblings_list": range(2), "topology/physical_package_id": range(2)})
        | {"/proc/cpuinfo": HOST["/proc/cpuinfo"].replace("lm", "lm hypervisor"), "/sys/class/dmi/id/sys_vendor": "Amazon EC2"},
        {"cpu.cores": 2, "cpu.packages": 2, "cpu.smt": "hidden", "platform.hypervisor": "kvm"}),
    **{f"two kinds by {key!r}": (
        cores(4) | {"/proc/cpuinfo": "\n\n".join(f"processor : {n}\n{key} : X{n // 2}\n{more}" for n in range(4))}, {"cpu.kinds.*.cpus": ["0-1", "2-3"]})
       for key, more in (("model name", "flags : lm"), ("uarch", "isa : rv64imafdc"))},
    **{f"two isolated CPUs beside a cpuset of {cpuset!r}": (
        cores(4) | {f"{CPU}/isolated": "2-3"} | group("0::/", V2, {"cpuset.cpus.effective": cpuset}),
        {"cpu.available": 2, "cpu.limited_by": bound, "cpu.affinity": affinity})
       for cpuset, bound, affinity in (("0-3", "affinity", "0-1"), ("", "affinity", "0-1"), ("1-2", "cpuset", "not_probed"))},
    "SMT of eight, sparse nodes": (
        {"/proc/cpuinfo": "processor : 0\ncpu : POWER9 (raw), altivec supported",
         "/proc/version": "Linux version 4.18.0-80.el8.ppc64le (x@y)", f"{CPU}/online": "0-7,88-95", f"{CPU}/present": "0-7,88-95",
         f"{NODE}/online": "0,8,250", f"{NODE}/node0/cpulist": "0-7", f"{NODE}/node8/cpulist": "88-95", f"{NODE}/node250/cpulist": "",
         f"{NODE}/node250/meminfo": "Node 250 MemTotal: 1024 kB\nNode 250 MemFree: 1024 kB",
         **{f"{CPU}/cpu{n}/topology/{name}": text for first, node in ((0, 0), (88, 8)) for n in range(first, first + 8)
            for name, text in (("thread_siblings_list", f"{first}-{first + 7}"), ("physical_package_id", str(node)))}},
        {"cpu.cores": 2, "cpu.logical": 16, "cpu.packages": 2, "platform.arch": "ppc64le", "cpu.vendor": "IBM",
         "numa.ids": [0, 8, 250], "numa.nodes.*.id": [0, 8, 250], "numa.nodes.*.kind": ["dram", "dram", "absent"]}),
    "siblings that are others": (cores(2) | each_cpu(2, {"topology/core_cpus_list": "5"}), {"cpu.cores": "invalid"}),
    "a spoiled /proc/cpuinfo": (cores(2) | {"/proc/cpuinfo": "junk"}, {"cpu.cores": 2, "cpu.smt": "invalid", "platform.hypervisor": "invalid"}),
    "SME of x86 is no matrix unit": (HOST | {"/proc/cpuinfo": HOST["/proc/cpuinfo"].replace("avx2", "avx2 sme")}, {"cpu.isa": ["avx", "avx2", "fma"]}),
    "a file of 5 MiB": (
        HOST | {"/proc/cpuinfo": "\n\n".join(f"processor : {n}\nflags : {'x' * 2500} lm avx fma" for n in range(2000)), f"{CPU}/online": "0-1999"}, {"cpu.isa": ["avx", "fma"]}),
    "SME of Arm is one": (
        HOST | {"/proc/cpuinfo": "processor : 0\nFeatures : fp asimd sve sme\nCPU architecture: 8\n\n"
                "processor : 1\nFeatures : asimd sme\nCPU architecture: 8"}, {"cpu.isa": ["asimd", "sme"]}),
    "Arm kinds by MIDR, ranked by capacity": (
        cores(4, parts=("d05", "d05", "d0b", "d0b"), capacity=(400, 390, 1024, 1000)) | MIDR,
        {"cpu.kinds.*.rank": [0, 1], "cpu.kinds.*.part": ["0xd0b", "0xd05"], "cpu.kinds.*.cpus": ["2-3", "0-1"], "platform.arch": "aarch64"}),
    "a part with two clocks": (cores(4, parts=("d41", "d41", "d05", "d05"), mhz=(3000, 2400, 1800, 1800)), {"cpu.kinds.*.cpus": ["0", "1", "2-3"], "cpu.kinds.*.part": ["0xd41", "0xd41", "0xd05"]}),
    "three kinds by cpuinfo alone": (
        trees.big_little(["0xd05"] * 4 + ["0xd41"] * 3 + ["0xd44"], "0-7"),
        {"cpu.kinds.*.part": ["0xd05", "0xd41", "0xd44"], "cpu.kinds.*.cores": [4, 3, 1], "cpu.kinds.*.cpus": ["0-3", "4-6", "7"], "cpu.vendor": "Arm"}),
    "kinds count online CPUs": (trees.big_little(["0xd03"] * 4 + ["0xd08"] * 2, "0-3,5"), {"cpu.kinds.*.part": ["0xd03", "0xd08"], "cpu.kinds.*.logical": [4, 1], "cpu.offline": 1}),
    "capacity alone never splits": (trees.big_little(["0xd85"] * 4, "0-3", capacity=(718, 731, 997, 1017)), {"cpu.kinds.*.capacity": [1017], "cpu.kinds.*.cpus": ["0-3"]}),
    **{f"sizes of caches split last, where all CPUs are online: {online}": (
        cores(4, online=online) | each_cpu(4, {
            "cache/index0/level": 2, "cache/index0/type": "Unified", "cache/index0/size": ("2M", "2M", "512K", "512K"),
            "cache/index0/shared_cpu_list": range(4)}),
        {"cpu.kinds.*.cpus": kinds}) for online, kinds in (("0-3", ["0-1", "2-3"]), ("0-2", ["0-2"]))},
    "favoured cores are one kind": (
        HOST | each_cpu(2, {"cpufreq/cpuinfo_max_freq": (5_200_000, 5_000_000), "cpufreq/scaling_governor": ("powersave", "performance")}),
        {"cpu.kinds.*.cpus": ["0-1"], "cpu.max_hz": 5_200_000_000, "cpu.governor": "mixed"}),
    "caches count the sets that share them": (
        HOST | trees.caches((1, "Data", "48K", "0-1"), (3, "Unified", "32M", "0-1")) | {f"{CPU}/cpu0/cache/index1/size": "much"},
        {"cpu.caches.*.level": [1, 3], "cpu.caches.*.type": ["data", "unified"], "cpu.caches.*.size_bytes": [48 << 10, 32 << 20], "cpu.caches.*.instances": [1, 1]}),
    "a cache is one however often it is listed": (  # the second is told to be shared by nobody, which is the same
        HOST | trees.caches((1, "Data", "32K", None), (1, "Data", "32K", None), (1, "Instruction", "32K", None),
                      (2, "Unified", "32K", "0-1"), (2, "Unified", "32K", "0-1"))
        | each_cpu(2, {"cache/index1/shared_cpu_list": range(2)}),
        {"cpu.caches.*.type": ["data", "instruction", "unified"], "cpu.caches.*.instances": [2, 2, 1]}),
    "an index of a cache that is not there hides no other": (
        HOST | {f"{CPU}/cpu0/cache/index{n}/{name}": text for n in (0, 2) for name, text in
                {"level": str(n + 1), "type": "Data", "size": "32K", "shared_cpu_list": "0-1"}.items()}, {"cpu.caches.*.level": [1, 3]}),
    "the clock of a virtual machine": (
        HOST | {"/proc/cpuinfo": "processor : 0\ncpu MHz : 2499.998\nflags : lm hypervisor\n\nprocessor : 1\ncpu MHz : 800.0"}, {"cpu.now_hz": 2_499_998_000, "cpu.now_hz.source": "/proc/cpuinfo", "cpu.max_hz": "absent"}),
    **{f"cpufreq tells {text}": (HOST | MIDR | {f"{CPU}/cpu0/cpufreq/scaling_cur_freq": text}, {"cpu.now_hz": hertz})
       for text, hertz in (("1800000", 1_800_000_000), ("<unknown>", "absent"), ("much", "invalid"))},
    **{f"cpuinfo of {arch}": ({"/proc/cpuinfo": text}, {"platform.arch": arch}) for arch, text in {
        "riscv32": "isa : rv32ima", "i686": "processor : 0\nflags : fpu", "armv5tejl": "CPU architecture: 5TEJ", "armv5tel": "CPU architecture: 5TE", "armv4tl": "CPU architecture: 4T",
        "armv6l": "model name : ARMv6-compatible processor rev 7 (v6l)\nCPU architecture: 7"}.items()}}  # fmt: skip
# Kinds of cores by a coarse source, the lists of cpu_core and cpu_atom, and by finer ones.
KINDS = [
    ({"cpu_core": "0-1", "cpu_atom": "2-5"}, {"mhz": (4800, 4800, 3800, 3800, 2500, 2500)}, ["0-1", "2-3", "4-5"]),
    ({"cpu_core": "0-1", "cpu_atom": "2-3", "cpu_lowpower": "4-5"}, {"mhz": (4800,) * 6}, ["0-1", "2-3", "4-5"]),
    ({"cpu_core": "0-1", "cpu_atom": "2-3"}, {"mhz": (4800, 4800, 3800, 3800, 3700, 3700)}, ["0-1", "2-3", "4-5"]),
    ({"cpu_core": "0-1", "cpu_atom": "2-5"}, {"capacity": (1024, 1024, 700, 690, 420, 420)}, ["0-1", "2-3", "4-5"]),
    *(({}, {"mhz": (5000, 5000, mhz, mhz)}, kinds) for mhz, kinds in ((4400, ["0-3"]), (4399, ["0-1", "2-3"]))),  # 0.88 of the next is one kind
    ({}, {"mhz": (4700, 3300, 4400, 3700, 4100, 3500, 3900)}, ["0-6"]),  # AMD's driver ranked equal cores by their clocks
    ({"cpu_core": "0-2", "cpu_atom": "2-3"}, {"mhz": (4800,) * 4}, ["0-3"]),  # lists that overlap
]  # fmt: skip


def board(kernel, arch="8", ids=("0", "0", "1", "1"), **files):
    blocks = (f"processor : {n}\nCPU architecture: {arch}\nCPU part : 0xd03" for n in range(len(ids)))
    tree = {"/proc/cpuinfo": "\n\n".join(blocks), "/proc/version": f"Linux version {kernel} (x@y)",
            f"{CPU}/online": f"0-{len(ids) - 1}"}  # fmt: skip
    tree |= each_cpu(len(ids), {"topology/physical_package_id": tuple(ids)})
    return tree | {f"/{name.replace('__', '/')}": text for name, text in files.items()}


TREE = {"proc__device-tree__model": "Some board"}
ACPI = {"sys__firmware__acpi__tables__DSDT": "", "sys__class__dmi__id__sys_vendor": "Maker"}
PACKAGES = [
    (board("5.10.0-odroid", **TREE), "unsupported"),
    (board("4.9.140-tegra", ids=("0", "1", "2", "2"), **TREE), "unsupported"),
    (board("5.15.0-android13", **{"proc__device-tree__compatible": "qcom,sm8550"}), "unsupported"),
    (board("5.15.0"), "unsupported"),  # a dump without its firmware
    (board("5.15.148", sys__class__dmi__id__sys_vendor="NVIDIA"), "unsupported"),  # in Docker
    (board("5.4.0", **ACPI), 2),  # ACPI tells sockets
    (board("5.4.0", **ACPI, **TREE), "unsupported"),  # U-Boot writes DMI tables beside a device tree
    (board("6.1.0", **TREE), 2),
    (board("5.10.0", ids=("0", "0"), **TREE), 1),  # one cluster is one package
    (board("6.6.0", arch="7", **TREE), "unsupported"),  # 32-bit Arm numbers clusters to this day
]
GPU_NODE = {"/proc/driver/nvidia/gpus/0004:04:00.0/numa_status": "Node: 255\nStatus: online\nSize: 40000000",
            f"{NODE}/node255/meminfo": "Node 255 MemTotal: 1048576 kB\nNode 255 MemFree: 1048576 kB", f"{NODE}/node255/cpulist": ""}  # fmt: skip
CPU_V1, MEMORY_V1, SET_V1 = "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/cpuset"
MEMORY = {
    "memory of a GPU is taken out of RAM": (
        HOST | GPU_NODE, {"memory.os_total_bytes": 8 * GIB, "memory.gpu_numa_bytes": GIB, "memory.total_bytes": 7 * GIB,
         "memory.available_bytes": 5 * GIB, "numa.nodes.*.id": [0, 255], "numa.nodes.*.kind": ["dram", "gpu"],
         "gpus.0.memory.dedicated_bytes": GIB}),
    "a GPU's memory that is offline is no RAM": (
        HOST | GPU_NODE | {f"{NODE}/node255/meminfo": "Node 255 MemTotal: 0 kB\nNode 255 MemFree: 0 kB"},
        {"memory.total_bytes": 8 * GIB, "memory.available_bytes": 6 * GIB, "numa.nodes.*.memory_bytes": [8 * GIB, 0]}),
    **{f"a GPU that nobody uses, at {node} {status}": (
        HOST | GPU_NODE | {"/proc/driver/nvidia/gpus/0004:05:00.0/numa_status": f"Node: {node}\nStatus: {status}"},
        {"memory.gpu_numa_bytes": GIB, "gpus.*.memory.dedicated_bytes": [GIB, "not_probed"], "gpus.1.memory.numa_node": told})
       for node, status, told in ((254, "offline", "absent"), (-1, "offline", "absent"), (255, "online", 255))},
    "a GPU of 1 EiB": (HOST | {"/proc/driver/nvidia/gpus/0004:05:00.0/numa_status": f"Node: -1\nSize: {1 << 60:x}"}, {"gpus.0.memory.dedicated_bytes": "invalid"}),
    "a group that leaves as much as the host has": (HOST | group("0::/", V2, {"memory.max": 6 * GIB}), {"memory.usable_bytes": 6 * GIB, "memory.limited_by": "host"}),
    "a machine without memory is none": (HOST | {"/proc/meminfo": "MemTotal: 0 kB"}, {"memory.total_bytes": "invalid"}),
    "a host's MemAvailable beside a container's MemTotal": (HOST | {"/proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 10 kB"}, {"memory.usable_bytes": 9 << 10}),
    "a folder in place of a file": ({**HOST, "/proc/meminfo": None}, {"memory.total_bytes": "invalid"}),
    "a GPU's node that cannot be read costs the total": (
        HOST | GPU_NODE | {f"{NODE}/node255/meminfo": "nothing"},
        {"memory.total_bytes": "invalid", "memory.gpu_numa_bytes": "invalid", "memory.os_total_bytes": 8 * GIB}),
    **{f"an old kernel without MemAvailable that tells {text}": (
        HOST | {"/proc/meminfo": f"MemTotal: 100 kB\n{text}"}, {"memory.available_bytes": kib * 1024, "memory.available_bytes.note": "too old"})
       for text, kib in (("MemFree: 10 kB\r\nBuffers: 5 kB\r\nCached: 20 kB", 35), ("MemFree: 10 kB", 10))},
    **{f"the CPUs of a node by {files}": (
        HOST | {f"{NODE}/node0/cpulist": "0"} | under(f"{NODE}/node1", files), {"numa.nodes.*.cpus": ["0", cpus]})
       for files, cpus in (({"cpumap": "2"}, "1"), ({"cpulist": "?", "cpumap": "00000000,00000002"}, "1"), ({"cpulist": "?"}, "invalid"),
                           ({"cpumap": "?"}, "invalid"), ({"meminfo": "Node 1 MemTotal: 4 kB"}, "absent"), ({"cpulist": "1", "cpumap": "1"}, "1"))},
    "nodes that overlap": (HOST | {f"{NODE}/node1/cpulist": "1"}, {"numa.ids": "invalid", "numa.nodes": [], "warnings.*.code": ["NUMA_OVERLAP"]}),
    "Kubernetes on v2: the tighter parent wins": (
        HOST | group("0::/kubepods/pod1/container", [mountinfo("/", "/sys/fs/cgroup", "rw", "cgroup2")], {
            "container/cpu.max": "max 100000", "cpu.max": "50000 100000", "container/memory.max": 4 * GIB,
            "container/memory.current": GIB, "memory.max": 2 * GIB, "memory.current": GIB,
            "memory.stat": f"anon 1\ninactive_file {GIB // 4}\nactive_file {GIB // 8}\nslab_reclaimable {GIB // 8}"}, "/sys/fs/cgroup/kubepods/pod1"),
        {"cpu.quota_cpus": 0.5, "cpu.available": 1, "cpu.limited_by": "quota", "memory.limit_bytes": 2 * GIB,
         "memory.usable_bytes": 2 * GIB - GIB // 2, "memory.limited_by": "cgroup", "platform.container": "kubernetes"}),
    "Kubernetes on v2 in a namespace, over its limit": (
        HOST | group("0::/", [mountinfo("/../../..", "/sys/fs/cgroup", "rw", "cgroup2")], {
            "cpu.max": "100000 100000", "memory.max": "max", "memory.high": 2 * GIB, "memory.current": 3 * GIB}),
        {"cpu.quota_cpus": 1.0, "memory.limit_bytes": 2 * GIB, "memory.usable_bytes": 0}),
    "Kubernetes on v1 sees its pod through the mounted root": (
        HOST | group(f"4:memory:{POD}\n3:cpu,cpuacct:{POD}", [mountinfo(POD, MEMORY_V1, "rw,memory"), mountinfo(POD, CPU_V1, "rw,cpuacct,cpu")],
                     {"cpu,cpuacct/cpu.cfs_quota_us": 50000, "cpu,cpuacct/cpu.cfs_period_us": 100000,
                      "memory/memory.limit_in_bytes": 2**63 - 4096, "memory/memory.stat": f"cache 0\nhierarchical_memory_limit {GIB}"}),
        {"cpu.available": 1, "cpu.limited_by": "quota", "memory.usable_bytes": GIB, "memory.limited_by": "cgroup",
         "platform.container": "kubernetes"}),
    "Docker in Docker on v1 heeds every level": (
        HOST | group("\n".join(f"5:{name}:{INNER}" for name in ("cpu,cpuacct", "memory", "cpuset", "name=systemd")),
                     [mountinfo("/", f"/sys/fs/cgroup/{name}", f"rw,{name}") for name in ("cpu,cpuacct", "memory", "cpuset")], {})
        | under(CPU_V1 + INNER, {"cpu.cfs_quota_us": 400000, "cpu.cfs_period_us": 100000})
        | under(f"{CPU_V1}/docker/aaa", {"cpu.cfs_quota_us": 150000, "cpu.cfs_period_us": 100000})
        | under(MEMORY_V1 + INNER, {"memory.limit_in_bytes": 4 * GIB, "memory.usage_in_bytes": GIB})
        | under(f"{MEMORY_V1}/docker/aaa", {"memory.limit_in_bytes": 3 * GIB, "memory.usage_in_bytes": 2 * GIB,
                                            "memory.stat": f"inactive_file 7\ntotal_inactive_file {GIB // 2}\ntotal_active_file {GIB // 2}"})
        | {f"{SET_V1}/docker/aaa/cpuset.cpus": "0-1"},
        {"cpu.quota_cpus": 1.5, "cpu.available": 2, "cpu.cpuset": "0-1", "memory.limit_bytes": 3 * GIB,
         "memory.usable_bytes": 2 * GIB, "platform.container": "docker"}),
    "a table of mounts of four columns": (
        HOST | group("0::/", "cgroup2 /sys/fs/cgroup cgroup2 rw", {"cpu.max": "50000 100000"}), {"cpu.quota_cpus": 0.5}),
    "the tightest of v1 and v2": (
        HOST | group("2:cpu:/a\n0::/b", "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0",
                     {"cpu/a/cpu.cfs_quota_us": -1, "cpu/a/cpu.cfs_period_us": 100000, "unified/b/cpu.max": "25000 100000"})
        | {"/proc/self/cpuset": "garbage, which nothing needs"},
        {"cpu.quota_cpus": 0.25}),
    "controllers on v1 and processes on v2": (
        HOST | group("9:memory:/system.slice/x.service\n0::/system.slice/x.service",
                     [mountinfo("/", "/sys/fs/cgroup/unified", "rw,nsdelegate", "cgroup2"), mountinfo("/", MEMORY_V1, "rw,memory")],
                     {"memory.limit_in_bytes": GIB, "x.service/memory.limit_in_bytes": 9223372036854771712}, f"{MEMORY_V1}/system.slice"),
        {"memory.limit_bytes": GIB}),
    **{f"{unlimited} bytes are no limit": (
        HOST | group("1:memory:/", f"cgroup {MEMORY_V1} cgroup rw,memory 0 0", {"memory/memory.limit_in_bytes": unlimited}), UNLIMITED)
       for unlimited in (2**63 - 4096, 2**63 - 65536, 2**63 - 1, 2**64 - 1)},
    **{f"an old mount of cpusets with {name}": (
        HOST | {"/proc/self/cpuset": "/batch/job", "/proc/mounts": "none /dev/cpuset cpuset rw 0 0", f"/dev/cpuset/batch/job/{name}": "1",
                "/dev/cpuset/batch/cpus": "0-1", "/dev/cpuset/batch/job/effective_mems": "0"},
        {"cpu.cpuset": "1", "cpu.available": 1, "cpu.limited_by": "cpuset", "numa.allowed_ids": [0]})
       for name in ("effective_cpus", "cpus", "cpuset.effective_cpus")},
    "a cpuset of nodes that are not there": (
        HOST | {"/proc/self/cgroup": "3:cpuset:/", "/proc/mounts": f"cgroup {SET_V1} cgroup rw,cpuset 0 0",
                f"{SET_V1}/cpuset.mems": "0-7", f"{SET_V1}/cpuset.cpus": "0-255"}, {"numa.allowed_ids": [0], "cpu.cpuset": "0-1"}),
    "a spoiled limit is not ignored": (
        HOST | group("0::/", V2, {"memory.max": "much", "cpu.max": "fast"}),
        {"memory.limit_bytes": "invalid", "memory.usable_bytes": "invalid", "cpu.quota_cpus": "invalid", "cpu.available": 2,
         "cpu.available.note": "quota"}),
    **{f"a period {period} that is none": (HOST | tree, {"cpu.quota_cpus": "invalid"}) for period, tree in (("fast", group("0::/", V2, {"cpu.max": "max fast"})),
        *((zero, group("1:cpu:/a", "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0", {"cpu/a/cpu.cfs_quota_us": 50000, **period}))
          for zero, period in (("0", {"cpu/a/cpu.cfs_period_us": 0}), ("", {}))))},
    **{f"the group {path} outside of the mount": (
        HOST | group(f"0::{path}", ["30 23 0:26 /docker/abc /my\\040cg rw - cgroup2 cgroup2 rw"], {"cpu.max": "150000 100000"}, "/my cg"),
        {"cpu.quota_cpus": 1.5}) for path in ("/../../elsewhere", "/other")},
    "a spoiled own group": (HOST | group("garbage", V2, {"cpu.max": "50000 100000"}, "/sys/fs/cgroup/job"),
        {"cpu.quota_cpus": "invalid", "cpu.cpuset": "invalid", "memory.limit_bytes": "invalid"}),
    "a spoiled own group that the cpuset tells": (
        HOST | group("garbage", V2, {"cpu.max": "50000 100000"}, "/sys/fs/cgroup/job") | {"/proc/self/cpuset": "/job"},
        {"cpu.quota_cpus": 0.5, **UNLIMITED}),
    "a spoiled own group beside a mount of one controller": (
        HOST | {"/proc/self/cgroup": "garbage", "/proc/mounts": f"cgroup {MEMORY_V1} cgroup rw,memory 0 0"}, {"cpu.quota_cpus": "absent", "cpu.cpuset": "absent", "memory.limit_bytes": "invalid"}),
    "a spoiled cpuset": (
        HOST | {"/proc/self/cpuset": "garbage", "/proc/mounts": "none /dev/cpuset cpuset rw 0 0"},
        {"cpu.cpuset": "invalid", "cpu.quota_cpus": "absent"}),
    "no control groups": (HOST | {"/proc/mounts": ""}, {"cpu.quota_cpus": "absent", **UNLIMITED}), "a spoiled table of mounts": (
        HOST | {"/proc/mounts": "garbage"}, {"cpu.quota_cpus": "invalid", "memory.usable_bytes": "invalid", "cpu.available": 2}),
    **{f"a path of {len(path)} characters": (
        HOST | group(f"0::{path}", V2, {}), {"cpu.quota_cpus": "invalid", "memory.limit_bytes": "invalid"})
       for path in ("/a" * 100_000, "/" + "a" * 5000)}}  # fmt: skip
DMI = "/sys/class/dmi/id"


def firmware(flag, vendor="", product="", model="Test CPU", **dmi):
    flags = "lm hypervisor" if flag else "lm"
    blocks = "\n\n".join(f"processor : {n}\nmodel name : {model}\nflags : {flags}" for n in (0, 1))
    dmi = {"sys_vendor": vendor, "product_name": product} | dmi
    return (HOST | {"/proc/cpuinfo": blocks} | under(DMI, dmi)
            | each_cpu(2, {"topology/thread_siblings_list": range(2)}))  # fmt: skip


GUESTS = [
    ("QEMU", "Standard PC (Q35 + ICH9, 2009)", "kvm"), ("ASUS", "Standard PC (i440FX + PIIX, 1996)", "kvm"),
    ("innotek GmbH", "VirtualBox", "virtualbox"), ("Oracle Corporation", "VirtualBox", "virtualbox"),
    ("VMware, Inc.", "VMware7,1", "vmware"), ("Xen", "HVM domU", "xen"), ("Bochs", "Bochs", "kvm"),
    ("Microsoft Corporation", "Virtual Machine", "hyperv"), ("Google", "Google Compute Engine", "kvm"),
    ("Amazon EC2", "m5.large", "kvm"), ("Red Hat", "KVM", "kvm"), ("KubeVirt", "None", "kvm"),
    ("Parallels International GmbH.", "Parallels Virtual Platform", "parallels"), ("BHYVE", "BHYVE", "bhyve")]  # fmt: skip
REAL = [("Microsoft Corporation", "Surface Book 3"), ("Google", "Eve"), ("Amazon EC2", "c5.metal"),
        ("Nutanix", "NX-3060-G5"), ("Oracle Corporation", "ORACLE SERVER X8-2"),
        ("Apple Inc.", "MacBookPro16,1"), ("Xenon Systems", "Nitro G12"),
        ("To Be Filled By O.E.M.", "Default string"), ("", "")]  # fmt: skip
HYPERVISOR = "platform.hypervisor"
FIRMWARE = {
    # Firmware outweighs a flag that is hidden; a maker's name alone proves nothing.
    **{f"{vendor}, {product}, the flag hidden": (
        firmware(False, vendor, product),
        {HYPERVISOR: name, f"{HYPERVISOR}.status": "conflict", f"{HYPERVISOR}.alternatives.0.value": "none", "cpu.smt": "hidden"})
       for vendor, product, name in GUESTS},
    **{f"{vendor}, {product}, with the flag": (firmware(True, vendor, product), {HYPERVISOR: name, f"{HYPERVISOR}.status": "ok"})
       for vendor, product, name in [*GUESTS, ("Amazon EC2", "X", "kvm"), ("Hetzner", "X", "kvm"), ("ASUS", "X", "unknown")]},
    **{f"{vendor}, {product}, no guest": (
        firmware(False, vendor, product), {HYPERVISOR: "none", f"{HYPERVISOR}.status": "ok", "cpu.smt": "off"}) for vendor, product in REAL},
    **{f"Arm, {vendor}, {product}": (
        HOST | MIDR | under(DMI, {"sys_vendor": vendor, "product_name": product}), {HYPERVISOR: name}) for vendor, product, name in (
        ("QEMU", "KVM Virtual Machine", "kvm"), ("Amazon EC2", "c7g.large", "kvm"), ("Amazon EC2", "c7g.metal", "absent"), ("Google", "Kevin", "absent"))},
    **{f"a device tree with {text}": (HOST | MIDR | {f"/proc/device-tree/{path}": text}, {HYPERVISOR: name, f"{HYPERVISOR}.source": "/proc/device-tree"})
       for path, text, name in (("compatible", "linux,dummy-virt", "kvm"), ("hypervisor/compatible", "xen,xen-4.17\0xen,xen", "xen"))},
    "the chassis is a guest's": (firmware(False, "ASUS", "PRIME X570", chassis_vendor="QEMU"), {HYPERVISOR: "kvm"}),
    "the CPU is emulated": (firmware(False, model="QEMU Virtual CPU version 2.5+"), {f"{HYPERVISOR}.status": "conflict"}),
    **{f"a container by {path}": (HOST | {path: text}, {"platform.container": name}) for path, text, name in (
        ("/var/run/secrets/kubernetes.io/serviceaccount/namespace", "default", "kubernetes"), ("/.singularity.d/env", "", "apptainer"),
        ("/run/systemd/container", "systemd-nspawn", "systemd-nspawn"), ("/run/systemd/container", "wsl", "absent"),
        ("/proc/self/cgroup", "0::/.lxc", "lxc"), ("/proc/self/cgroup", "0::/system.slice/lxcfs.service", "absent"))},
    "a guest of Hyper-V without DMI tables": (HOST | {"/proc/cpuinfo": "processor : 0\nflags : lm hypervisor", "/sys/bus/vmbus/devices": None}, {HYPERVISOR: "hyperv"}),
    **{f"s390x by {program!r}": (
        {"/proc/cpuinfo": "vendor_id : IBM/S390\nprocessor 0: machine = 8561", "/proc/sysinfo": f"Sequence Code: 1\n{program}"}, {HYPERVISOR: name})
       for program, name in (("VM00 Control Program: KVM/Linux", "kvm"), ("VM00 Control Program: z/VM    6.1.0", "zvm"), ("LPAR Number: 3", "absent"))},
    # An emulated display betrays a guest, but Amazon's real machines have one, and Cirrus made chips.
    **{f"a display of {vendor}, {cpu}": (tree | pci("0000:00:02.0", vendor, device), {HYPERVISOR: name}) for vendor, device, cpu, tree, name in (
        ("1af4", "1050", "Arm", HOST | MIDR, "unknown"), *((vendor, device, "x86", firmware(False, "ASUS", "X"), name) for vendor, device, name in (
            ("1af4", "1050", "unknown"), ("15ad", "0405", "unknown"), ("1d0f", "1111", "none"), ("1013", "00b8", "none"), ("10de", "2684", "none"))),
        ("1af4", "1050", "in a cloud", firmware(True, "Linode", "X"), "kvm"))},
    "a model of 10,000 letters": (firmware(False, model="CPU " * 2500), {"cpu.model": "absent"}),
    "Xen by its own file": (HOST | {"/sys/hypervisor/type": "xen"}, {HYPERVISOR: "xen"}),
    **{f"{nothing!r} is no model": (
        HOST | {"/proc/cpuinfo": f"processor : 0\nvendor_id : {nothing}\nmodel name : {nothing}\nflags : lm{more}"},
        {"cpu.model": model, "cpu.vendor": "absent"})
       for nothing in ("unknown", "Unknown", "N/A", "unknown (00000000)", "0000", "-", "a\x1b[31m")
       for more, model in (("", "absent"), (f"\n\nprocessor : 1\nmodel name : Test CPU\nvendor_id : {nothing}\nflags : lm", "Test CPU"))},
    **{f"{nothing!r} is no name": (
        HOST | under(DMI, {"sys_vendor": nothing, "product_name": nothing}) | pci("0000:03:00.0", "1002", "744c", "amdgpu", product_name=nothing),
        {"platform.dmi_vendor": "absent", "platform.dmi_product": "absent", "gpus.0.name_precision": "family"})
       for nothing in ("To Be Filled By O.E.M.", "Default string", "Not Specified", "None", "System Product Name", "0000", "OEM", "x" * 8)}}  # fmt: skip


@pytest.mark.parametrize("name", [*PROCESSORS, *MEMORY, *FIRMWARE])
def test_files_of_a_host(look, host, name):
    tree, expected = (PROCESSORS | MEMORY | FIRMWARE)[name]
    machine = look(tree)
    check(machine, expected)
    hold(machine, host)


@pytest.mark.parametrize(("lists", "files", "kinds"), KINDS)
def test_a_coarse_source_hides_no_finer_one(look, host, lists, files, kinds):
    tree = cores(len(next(iter(files.values()))), **files) | {f"/sys/devices/{name}/cpus": cpus
                                                              for name, cpus in lists.items()}  # fmt: skip
    machine = look(tree)
    check(machine, {"cpu.kinds.*.cpus": kinds})
    hold(machine, host)


@pytest.mark.parametrize(("tree", "packages"), PACKAGES)
def test_clusters_of_cores_are_no_packages(look, tree, packages):
    check(look(tree), {"cpu.packages": packages})


@pytest.mark.parametrize(("allowed", "usable", "bound", "mhz", "hertz", "cores", "smt"), [
    (ABSENT, 8, "online", None, "unsupported", 4, "on"), (range(0), 8, "online", 100, 10**8, 8, "off"), (range(8), 8, "online", 99, "absent", None, "absent"),
    (range(2), 2, "affinity", 100_000, 10**11, 4, "on"), (ABSENT, 8, "online", 100_001, "absent", 4, "on"), (ABSENT, 8, "online", "?", "absent", 4, "on")])  # fmt: skip
def test_where_no_file_tells_psutil_does(monkeypatch, allowed, usable, bound, mhz, hertz, cores, smt):
    memory = SimpleNamespace(total=8 * GIB, available=4 * GIB)
    psutil = SimpleNamespace(
        virtual_memory=lambda: memory, cpu_count=lambda logical=True: 8 if logical else cores
    )
    if mhz is not None:
        psutil.cpu_freq, psutil.swap_memory = (
            lambda: SimpleNamespace(current=mhz, max=mhz),
            lambda: SimpleNamespace(total=GIB),
        )
    monkeypatch.setitem(sys.modules, "psutil", psutil)
    affinity = allowed if allowed is ABSENT else make_fact(frozenset(allowed), "os")
    cpu, ram = read_psutil(Cpu(), Memory(), affinity)
    check(cpu, {"available": usable, "limited_by": bound, "logical": 8, "cores": cores or "absent", "smt": smt, "now_hz": hertz, "max_hz": hertz,
                "online_cpus": "0-7"})  # fmt: skip
    check(ram, {"total_bytes": 8 * GIB, "os_total_bytes": 8 * GIB, "usable_bytes": 4 * GIB, "available_bytes": 4 * GIB, "limited_by": "host",
                "swap_total_bytes": GIB if mhz else "unsupported"})  # fmt: skip


@pytest.mark.parametrize(("platform", "tree", "source", "affinity"), [
    ("linux", {}, None, "not_probed"), ("darwin", {}, "psutil", "unsupported"), ("win32", {}, "psutil", "not_probed"), ("darwin", HOST, "/proc/meminfo", "unsupported")])  # fmt: skip
def test_psutil_is_asked_where_no_file_tells_off_linux(plant, monkeypatch, platform, tree, source, affinity):
    monkeypatch.setattr(host.sys, "platform", platform)
    monkeypatch.setattr(host, "allowed_cpus", lambda: None)
    psutil = SimpleNamespace(
        virtual_memory=lambda: SimpleNamespace(total=GIB, available=1), cpu_count=lambda logical=True: 8
    )
    monkeypatch.setitem(sys.modules, "psutil", psutil)
    root = Root(str(plant({"/proc/nothing": "", **tree} | pci("0000:03:00.0", "8086", "e20b", "xe"))))
    monkeypatch.setattr(host, "Root", lambda: root)
    machine = host.this_host.__wrapped__()
    assert (machine.memory.total_bytes.source if machine.memory.total_bytes.value else None) == source
    assert (machine.cpu.affinity.status, [gpu.usable.value for gpu in machine.gpus]) == (affinity, [None])
    del psutil.cpu_count
    assert host.this_host.__wrapped__().cpu.logical.source != "psutil", "it is broken"


def test_py_cpuinfo_tells_what_nobody_else_does():
    caches = [Cache(level=1, type="data", size_bytes=1 << 15, instances=1)]
    answer = CpuinfoFacts(
        model=" Apple  M2 ", vendor="unknown", flags=["x", "avx2", "avx1.0"], base_hz=5, caches=caches
    )
    told = {
        "model": "Apple M2",
        "vendor": "not_probed",
        "isa": ["avx", "avx2"],
        "base_hz": 5,
        "caches": caches,
        "caches.note": "counted once",
    }
    check(read_cpuinfo(Cpu(), answer), told)
    check(
        read_cpuinfo(Cpu(), CpuinfoFacts()),
        dict.fromkeys(("model", "vendor", "isa", "base_hz", "caches"), "not_probed"),
    )
    check(read_cpuinfo(Cpu(model=make_fact("own", "t")), answer), {"model": "own"})


# Keys of /proc/cpuinfo have spellings: text, model, architecture, vendor, MHz.
SPARC = "cpu : TI UltraSparc IIIi (Jalapeno)\ntype : sun4u\nState:\nCPU0: online\nCPU1: online"
SPELLINGS = [
    (("system type\t\t: generic-loongson-machine\n\nprocessor\t\t: 0\nCPU Family\t\t: Loongson-64bit\nModel Name\t\t: Loongson-3A5000-HV\n"
     "CPU MHz\t\t\t: 2500.00\nISA\t\t\t: loongarch32 loongarch64\nFeatures\t\t: cpucfg lam ual fpu lsx lasx"),
     "Loongson-3A5000-HV", "loongarch64", "Loongson", 2500),
    (("Processor\t: ARMv7 Processor rev 4 (v7l)\nprocessor\t: 0\nBogoMIPS\t: 38.40\n\nprocessor\t: 1\nBogoMIPS\t: 38.40\n\n"
     "Features\t: swp half thumb fastmult vfp\nCPU implementer\t: 0x41\nCPU architecture: 7"),
     "ARMv7 Processor rev 4 (v7l)", "armv7l", "Arm", 0),
    ("Processor\t: AArch64 Processor rev 3 (aarch64)\nprocessor\t: 0\n\nCPU architecture: 8\nFeatures : fp asimd",
     "AArch64 Processor rev 3 (aarch64)", "aarch64", None, 0),
    ("vendor_id : IBM/S390\nprocessor 0: version = FF, identification = 1, machine = 8561\n\ncpu number : 0\ncpu MHz dynamic : 5200",
     "IBM 8561", "s390x", "IBM/S390", 5200),
    ("processor : 0\ncpu : POWER9 (raw), altivec supported\nclock : 3425.000000MHz\nrevision : 2.2 (pvr 004e 1202)",
     "POWER9 (raw)", "ppc64", "IBM", 3425),
    ("processor : 0\ncpu : 7447A, altivec supported\nclock : 1416.666661MHz\nrevision : 0.5 (pvr 8003 0105)", "7447A", "ppc", None, 1417),
    ("processor : 0\nhart : 1\nisa : rv64imafdc\nmmu : sv39\nuarch : sifive,u74-mc", "sifive,u74-mc", "riscv64", None, 0),
    ("system type : ICT\nprocessor : 0\ncpu model : ICT Loongson-3 V0.2  FPU V0.1\nisa : mips1 mips64r1",
     "ICT Loongson-3 V0.2 FPU V0.1", "mips64", "Loongson", 0),
    ("cpu : Alpha\ncpu model : EV56\nsystem type : Miata", "EV56", "alpha", None, 0),
    (SPARC, "TI UltraSparc IIIi (Jalapeno)", "sparc64", None, 0),
    ("processor : 0\ncpu family : PA-RISC 2.0\ncpu : PA8700 (PCX-W2)\ncpu MHz : 650.000000", "PA8700 (PCX-W2)", "parisc64", None, 650),
    ("processor : 0\nvendor : GenuineIntel\narch : IA-64\nfamily : Itanium 2\nmodel name : Madison", "Madison", "ia64", "GenuineIntel", 0)]  # fmt: skip


@pytest.mark.parametrize(("text", "model", "arch", "vendor", "mhz"), SPELLINGS)
def test_each_kernel_spells_its_keys_in_its_own_way(text, model, arch, vendor, mhz):
    info = proc.parse(text)
    assert (proc.model(info), proc.arch(info), proc.vendor(info)) == (model, arch, vendor)
    assert round((proc.clock_hz(info) or 0) / 1e6) == mhz
    assert info.cpus.keys() == {0, 1} or text != SPARC, "where only their state is listed"


# ---------------------------------------------------------------- files below a root, and the lists and masks in them
def test_links_stay_inside_and_only_regular_files_are_read(plant, monkeypatch):
    base = plant({"/a/file": b" inside\n\0", "/b": "-> /a", "/c": "-> ../../../../../a/file", "/loop": "-> loop", "/folder": None,
                  "/big": b"x" * (17 << 20), "/l0": "text"} | {f"/l{n}": f"-> l{n - 1}" for n in range(1, 42)})  # fmt: skip
    os.mkfifo(base / "pipe")
    root = Root(str(base))
    for path, text, status in (("/b/file", "inside", "ok"), ("/c", "inside", "ok"), ("/loop", None, "absent"),
                               ("/nothing", None, "absent"), ("/b/../../../etc/passwd", None, "absent"),
                               ("/l40", "text", "ok"), ("/l41", None, "absent"), ("/pipe", None, "invalid"), ("/folder", None, "invalid"), ("/b\0", None, "absent")):  # fmt: skip
        reading = root.read(path)
        assert (reading.text, reading.status) == (text, status), path
    assert len(root.read("/big").text or "") == 16 << 20
    for number, path, status in (
        (errno.EACCES, "/big", "permission"),
        (errno.EPERM, "/l0", "permission"),
        (errno.EIO, "/big", "invalid"),
    ):
        monkeypatch.setattr(facts.disk, "read_regular", Mock(side_effect=OSError(number, "")))
        assert root.read(path).status == status
    assert root.trace.refused == {"/big", "/l0"}


@given(st.frozensets(st.integers(0, 2000)))
def test_lists_and_masks_are_read_back(members):
    assert parse_list(list_form(members)) == members
    runs = sum(1 for n in members if n - 1 not in members)
    assert len([item for item in list_form(members).split(",") if item]) == runs, "the shortest form"
    value = sum(1 << n for n in members)
    words = [f"{value >> 32 * n & 0xFFFFFFFF:08x}" for n in range(value.bit_length() // 32 + 1)]
    assert parse_mask(",".join(reversed(words))) == members


BAD = ValueError


@pytest.mark.parametrize(("parse", "text", "value"), [
    (integer, "9" * 20, 10**20 - 1), (integer, "9" * 21, BAD), (integer, "-5", -5), (integer, "+5", BAD), (integer, "1_0", BAD), (size, "0", 0),
    (size, "-1", BAD), (positive, "0", None), (positive, "7", 7), (parse_list, "65535", {65535}), (parse_list, "65536", BAD),
    (parse_list, "2-2,4", {2, 4}), (parse_list, "1,1", BAD), (parse_mask, "8" + "0" * 16383, {65535}), (parse_mask, "1" + "0" * 16384, BAD),
    (parse_mask, "0x3", {0, 1}), (parse_mask, "1,3", {0, 1, 32}), (parse_mask, "1,000000003", BAD), (parse_mask, "", BAD), (parse_mask, "1,,3", BAD),
    (parse_name, "ab" * 512, "ab" * 512), (parse_name, "ab" * 512 + "a", BAD), (parse_name, "a\nb\tc", "a\nb\tc"), (parse_name, "\ufffd", BAD),
    (parse_name, "\a", BAD), (parse_name, "", None), (parse_name, "unknown", None), (cpu.parse_kilohertz, "100000000", 10**11),
    (cpu.parse_kilohertz, "100000001", BAD), (cpu.parse_kilohertz, "0", None), (cpu.parse_kilohertz, "<unknown>", None), (cpu.cache_size, "0K", None),
    (cpu.cache_size, "3", 3), (cpu.cache_size, "3K", 3 << 10), (cpu.cache_size, "3M", 3 << 20), (cpu.cache_size, "3G", 3 << 30), (cpu.cache_size, "3T", BAD),
    *((parse_list, spoiled, BAD) for spoiled in ("3-1", "1,,2", "a", "-1", "0-99999999999", "1-", "²", "0x3")),
], ids=lambda value: str(value)[:20])  # fmt: skip
def test_what_a_number_a_list_or_a_name_may_be(parse, text, value):
    if value is BAD:
        raised(ValueError, parse, text)
    else:
        assert parse(text) == value


@given(st.text(CHARACTERS))
def test_parsers_raise_nothing_but_value_error(text):
    for parse in (parse_list, parse_mask):
        with contextlib.suppress(ValueError):
            parse(text)


# ---------------------------------------------------------------- numbers of CPUs are counted, never intersected
CPUINFO = "\n\n".join(f"processor : {n}\nmodel name : Test CPU\nflags : lm avx avx2" for n in range(4))


def container(online: str, cpuset: str | None = None, *, count: int = 32, name: str = "cpuset.cpus.effective"):
    """A machine of `count` CPUs, two on a core, whose list of online CPUs says `online`."""
    tree = {"/proc/cpuinfo": CPUINFO, f"{CPU}/online": online, f"{CPU}/present": f"0-{count - 1}"}
    for number in range(count):
        folder, core = f"{CPU}/cpu{number}", number - number % 2
        tree |= {f"{folder}/topology/core_cpus_list": f"{core}-{core + 1}", f"{folder}/online": "1"}
        tree |= {f"{folder}/cache/index0/{file}": text for file, text in
                 (("level", "1"), ("type", "Data"), ("size", "32K"), ("shared_cpu_list", f"{core}-{core + 1}"))}  # fmt: skip
        tree[f"{folder}/cpufreq/cpuinfo_max_freq"] = "3000000" if number < 16 else "2000000"
    if cpuset is not None:
        tree |= {"/proc/self/cgroup": "0::/", "/proc/self/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0",
                 f"/sys/fs/cgroup/{name}": cpuset}  # fmt: skip
    return tree


@pytest.fixture
def cpu_of(plant):
    def read(tree, affinity: str | None = None):
        allowed = NOT_PROBED if affinity is None else make_fact(parse_list(affinity), "sched_getaffinity")
        return read_files(Root(str(plant(tree))), allowed).cpu

    return read


@pytest.mark.parametrize(("online", "cpuset", "affinity", "available"), [
    ("0-3", "4,9,13,24", "4,9,13,24", 4), ("0-3", "4,9,13,24", None, 4),  # a recorded machine has no affinity
    ("0-3", None, "4,9,13,24", 4), ("2-3", None, "0-1", 2), ("0-3", "2-5", "2-5", 4), ("0-3", "2-5", None, 4),  # they overlap in part
    ("0-3", "4,9,13,24", "9", 1), ("0-3", "1-2,8-9", "1-2", 2),  # the process has some of them
    ("0-1", "0-31", "0-31", 2),  # a quota shown as fewer CPUs
    ("0-31", "4,9,13,24", "4,9,13,24", 4), ("0-31", None, "8-9", 2),  # numbered alike
])  # fmt: skip
def test_sets_are_counted_not_intersected(cpu_of, online, cpuset, affinity, available):
    cpu = cpu_of(container(online, cpuset), affinity)
    assert (cpu.available.value, cpu.cpuset.value) == (available, cpuset)


@pytest.mark.parametrize(("cpuset", "affinity"), [
    ("4,5,13,24", "4,5,13,24"), ("4,5,13,24", None), (None, "4,5,13,24")])  # fmt: skip
def test_what_is_told_of_cpus_is_told_of_ours(cpu_of, cpuset, affinity):
    cpu = cpu_of(container("0-3", cpuset), affinity)
    assert (cpu.online_cpus.value, cpu.online_cpus.status) == ("4-5,13,24", "conflict")
    assert cpu.online_cpus.alternatives[0].value == "0-3"
    assert (cpu.cores.value, cpu.smt.value, cpu.caches.value[0].instances) == (3, "on", 3)
    check(cpu, {"kinds.*.cpus": ["4-5,13", "24"], "kinds.*.max_hz": [3_000_000_000, 2_000_000_000]})
    assert "numbers otherwise" in cpu.online_cpus.note
    assert (cpu.offline.value, cpu.offline.status) == (None, "invalid")
    assert cpu.isa.value == ["avx", "avx2"]  # of blocks that are numbered from 0


OLDER = container("0-2", "0-3", count=4, name="cpuset.cpus") | {f"{CPU}/cpu3/online": "0"}


@pytest.mark.parametrize(("tree", "affinity", "expected"), [
    (container("0-31", "4,9"), "4,9", {"online_cpus.status": "ok", "logical": 32, "offline": 0, "cores": 16}),  # numbers that agree
    (container("0-31", "8-9"), "0-3", {"available": 4, "limited_by": "affinity", "cpuset": "invalid"}),  # a cpuset of others
    (OLDER, None, {"cpuset": "0-2", "available": 3, "online_cpus.status": "ok"}),  # an offline CPU stays in it
    (OLDER | {"/sys/fs/cgroup/cpuset.cpus": "3"}, None, {"cpuset": "invalid", "available": 3, "online_cpus.status": "ok"}),  # alone, too
    (container("0-7", count=8) | {f"{CPU}/present": "0-3"}, None, {"logical": 8, "offline": "invalid"}),  # not of one machine
])  # fmt: skip
def test_lists_that_agree_or_contradict_each_other(cpu_of, tree, affinity, expected):
    check(cpu_of(tree, affinity), expected)


def test_blocks_that_are_numbered_otherwise_tell_no_cpu_its_part(cpu_of):
    tree = {path: text for path, text in container("0-1", "4,9", count=16).items() if "cpufreq" not in path}
    tree["/proc/cpuinfo"] = "\n\n".join(f"processor : {n}\nCPU architecture: 8\nCPU part : {part}"
                                        for n, part in enumerate(("0xd05", "0xd0b")))  # fmt: skip
    kinds = cpu_of(tree).kinds
    assert (kinds.value, kinds.status) == (None, "invalid")
    tree["/proc/cpuinfo"] = tree["/proc/cpuinfo"].replace("0xd0b", "0xd05")
    assert len(cpu_of(tree).kinds.value) == 1
