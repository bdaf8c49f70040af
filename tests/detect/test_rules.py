"""Machines that nobody has recorded for us, one rule each."""

from __future__ import annotations

import pytest

from gpubench import detect

CPU = "/sys/devices/system/cpu"
NODE = "/sys/devices/system/node"
GIB = 1 << 30


def mountinfo(root, point, options, kind="cgroup"):
    return f"30 23 0:26 {root} {point} rw,nosuid - {kind} {kind} {options}"


# ---------------------------------------------------------------- control groups


def test_docker_in_docker_on_v1_heeds_every_level(look, host):
    outer, inner = "/docker/aaa", "/docker/aaa/docker/bbb"
    points = {name: f"/sys/fs/cgroup/{name}" for name in ("cpu,cpuacct", "memory", "cpuset")}
    host |= {
        "/proc/self/cgroup": f"5:cpu,cpuacct:{inner}\n4:memory:{inner}\n3:cpuset:{inner}\n1:name=systemd:{inner}",
        "/proc/self/mountinfo": "\n".join(
            mountinfo("/", point, f"rw,{name}") for name, point in points.items()
        ),
        f"{points['cpu,cpuacct']}{inner}/cpu.cfs_quota_us": "400000",
        f"{points['cpu,cpuacct']}{inner}/cpu.cfs_period_us": "100000",
        f"{points['cpu,cpuacct']}{outer}/cpu.cfs_quota_us": "150000",
        f"{points['cpu,cpuacct']}{outer}/cpu.cfs_period_us": "100000",
        f"{points['memory']}{inner}/memory.limit_in_bytes": str(4 * GIB),
        f"{points['memory']}{inner}/memory.usage_in_bytes": str(GIB),
        f"{points['memory']}{outer}/memory.limit_in_bytes": str(3 * GIB),
        f"{points['memory']}{outer}/memory.usage_in_bytes": str(2 * GIB),
        f"{points['memory']}{outer}/memory.stat": f"inactive_file 7\ntotal_inactive_file {GIB}",
        f"{points['cpuset']}{outer}/cpuset.cpus": "0-1",
    }
    machine = look(host)
    assert (machine.cpu.quota_cpus.value, machine.cpu.available.value) == (1.5, 2)
    assert machine.cpu.cpuset.value == "0-1"  # the inner group names none
    assert machine.memory.limit_bytes.value == 3 * GIB
    assert machine.memory.usable_bytes.value == 2 * GIB
    assert machine.platform.container.value == "docker"


def test_kubernetes_v1_sees_its_pod_only_through_the_mounted_root(look, host):
    pod = "/kubepods/burstable/pod1234/5678"
    host |= {
        "/proc/self/cgroup": f"4:memory:{pod}\n3:cpu,cpuacct:{pod}",
        "/proc/self/mountinfo": "\n".join(
            [
                mountinfo(pod, "/sys/fs/cgroup/memory", "rw,memory"),
                mountinfo(pod, "/sys/fs/cgroup/cpu,cpuacct", "rw,cpuacct,cpu"),
            ]
        ),
        "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000",
        "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": str(GIB),
    }
    machine = look(host)
    assert (machine.cpu.available.value, machine.cpu.limited_by.value) == (1, "quota")
    assert (machine.memory.usable_bytes.value, machine.memory.limited_by.value) == (GIB, "cgroup")
    assert machine.platform.container.value == "kubernetes"


def test_kubernetes_v2_in_a_namespace_reads_at_the_mount_point(look, host):
    host |= {
        "/proc/self/cgroup": "0::/",
        "/proc/self/mountinfo": mountinfo("/../../..", "/sys/fs/cgroup", "rw", "cgroup2"),
        "/sys/fs/cgroup/cpu.max": "100000 100000", "/sys/fs/cgroup/memory.max": "max",
        "/sys/fs/cgroup/memory.high": str(2 * GIB), "/sys/fs/cgroup/memory.current": str(3 * GIB),
    }  # fmt: skip
    machine = look(host)
    assert machine.cpu.quota_cpus.value == 1.0
    assert machine.memory.limit_bytes.value == 2 * GIB
    assert machine.memory.usable_bytes.value == 0  # over its limit already


def test_hybrid_has_controllers_on_v1_and_processes_on_v2(look, host):
    host |= {
        "/proc/self/cgroup": "9:memory:/system.slice/x.service\n0::/system.slice/x.service",
        "/proc/self/mountinfo": "\n".join(
            [
                mountinfo("/", "/sys/fs/cgroup/unified", "rw,nsdelegate", "cgroup2"),
                mountinfo("/", "/sys/fs/cgroup/memory", "rw,memory"),
            ]
        ),
        "/sys/fs/cgroup/memory/system.slice/memory.limit_in_bytes": str(GIB),
        "/sys/fs/cgroup/memory/system.slice/x.service/memory.limit_in_bytes": "9223372036854771712",
    }
    assert look(host).memory.limit_bytes.value == GIB


@pytest.mark.parametrize("unlimited", [2**63 - 4096, 2**63 - 65536, 2**63 - 1, 2**64 - 1])
def test_no_limit_is_a_number_of_whole_pages_of_any_size(look, host, unlimited):
    host |= {
        "/proc/self/cgroup": "1:memory:/",
        "/proc/self/mounts": "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": str(unlimited),
    }
    machine = look(host)
    assert machine.memory.limit_bytes.status == "absent"
    assert machine.memory.usable_bytes.value == 6 * GIB


@pytest.mark.parametrize("name", ["effective_cpus", "cpus", "cpuset.effective_cpus"])
def test_an_old_cpuset_mount_without_prefixes(look, host, name):
    host |= {"/proc/self/cpuset": "/batch/job", "/proc/mounts": "none /dev/cpuset cpuset rw 0 0", f"/dev/cpuset/batch/job/{name}": "1",
             "/dev/cpuset/batch/cpus": "0-1", "/dev/cpuset/batch/job/effective_mems": "0"}  # fmt: skip
    machine = look(host)
    assert (machine.cpu.cpuset.value, machine.cpu.available.value, machine.cpu.limited_by.value) == (
        "1",
        1,
        "cpuset",
    )
    assert machine.numa.allowed_ids.value == [0]


def test_a_cpuset_that_names_nodes_which_are_not_there_is_cut(look, host):
    host |= {"/proc/self/cgroup": "3:cpuset:/", "/proc/mounts": "cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0",
             "/sys/fs/cgroup/cpuset/cpuset.mems": "0-7", "/sys/fs/cgroup/cpuset/cpuset.cpus": "0-255"}  # fmt: skip
    machine = look(host)
    assert machine.numa.allowed_ids.value == [0]
    assert machine.cpu.cpuset.value == "0-1"


# ---------------------------------------------------------------- CPUs and memory


def test_the_name_sme_means_memory_encryption_on_x86_and_matrices_on_arm(look, host):
    x86 = host["/proc/cpuinfo"].replace("avx2", "avx2 sme")
    assert "sme" not in look(host | {"/proc/cpuinfo": x86}).cpu.isa.value
    arm = "processor : 0\nFeatures : fp asimd sve sme\nCPU architecture: 8\n\nprocessor : 1\nFeatures : asimd sme\nCPU architecture: 8"
    assert look(host | {"/proc/cpuinfo": arm}).cpu.isa.value == ["asimd", "sme"]


def test_offline_cpus_are_told_by_their_own_switch_where_no_list_is(look, host):
    tree = {path: text for path, text in host.items() if path not in (f"{CPU}/online", f"{CPU}/present")}
    tree |= {f"{CPU}/cpu1/online": "0", f"{CPU}/possible": "0-191"}
    cpu = look(tree).cpu
    assert (cpu.logical.value, cpu.present.value, cpu.offline.value, cpu.possible.value) == (1, 2, 1, 192)
    assert (cpu.cores.value, cpu.available.value) == (1, 1)


def big_little(parts, online):
    tree = {f"{CPU}/online": online, f"{CPU}/present": f"0-{len(parts) - 1}"}
    lines = []
    for number, part in enumerate(parts):
        tree[f"{CPU}/cpu{number}/topology/core_cpus_list"] = str(number)
        lines.append(f"processor\t: {number}\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: {part}")
    return tree | {"/proc/cpuinfo": "\n\n".join(lines)}


def test_three_kinds_of_arm_cores_from_cpuinfo_alone(look):
    cpu = look(big_little(["0xd05"] * 4 + ["0xd41"] * 3 + ["0xd44"], "0-7")).cpu
    assert sorted((k.part, k.cores, k.cpus) for k in cpu.kinds.value) == [
        ("0xd05", 4, "0-3"), ("0xd41", 3, "4-6"), ("0xd44", 1, "7"),
    ]  # fmt: skip
    assert cpu.vendor.value == "Arm"


def test_kinds_count_online_cpus_only(look):
    cpu = look(big_little(["0xd03"] * 4 + ["0xd08"] * 2, "0-3,5")).cpu
    assert sorted((k.part, k.logical) for k in cpu.kinds.value) == [("0xd03", 4), ("0xd08", 1)]
    assert cpu.offline.value == 1


def test_capacity_alone_never_splits(look):
    tree = big_little(["0xd85"] * 4, "0-3")
    tree |= {
        f"{CPU}/cpu{number}/cpu_capacity": str(value) for number, value in enumerate((718, 731, 997, 1017))
    }
    (kind,) = look(tree).cpu.kinds.value
    assert (kind.capacity, kind.cpus) == (1017, "0-3")


def test_power_with_sparse_nodes_and_smt8(look):
    tree = {"/proc/cpuinfo": "processor : 0\ncpu : POWER9 (raw), altivec supported", "/proc/version": "Linux version 4.18.0-80.el8.ppc64le (x@y)",
            f"{CPU}/online": "0-7,88-95", f"{CPU}/present": "0-7,88-95", f"{NODE}/online": "0,8,250"}  # fmt: skip
    for first, node in ((0, 0), (88, 8)):
        tree[f"{NODE}/node{node}/cpulist"] = f"{first}-{first + 7}"
        for number in range(first, first + 8):
            tree[f"{CPU}/cpu{number}/topology/thread_siblings_list"] = f"{first}-{first + 7}"
            tree[f"{CPU}/cpu{number}/topology/physical_package_id"] = str(node)
    tree |= {
        f"{NODE}/node250/cpulist": "",
        f"{NODE}/node250/meminfo": "Node 250 MemTotal: 1024 kB\nNode 250 MemFree: 1024 kB",
    }
    machine = look(tree)
    assert (machine.cpu.cores.value, machine.cpu.logical.value, machine.cpu.packages.value) == (2, 16, 2)
    assert (machine.platform.arch.value, machine.cpu.vendor.value) == ("ppc64le", "IBM")
    assert machine.numa.ids.value == [0, 8, 250]
    assert [(n.id, n.kind.value) for n in machine.numa.nodes] == [(0, "dram"), (8, "dram"), (250, None)]


def test_a_virtual_machine_with_one_core_a_package(look, host):
    host["/proc/cpuinfo"] = host["/proc/cpuinfo"].replace("lm", "lm hypervisor")
    host |= {f"{CPU}/cpu1/topology/physical_package_id": "1", "/sys/class/dmi/id/sys_vendor": "Amazon EC2"}
    for number in (0, 1):
        host[f"{CPU}/cpu{number}/topology/thread_siblings_list"] = str(number)
    machine = look(host)
    assert (machine.cpu.cores.value, machine.cpu.packages.value, machine.cpu.smt.value) == (2, 2, "hidden")
    assert machine.platform.hypervisor.value == "kvm"


def test_xen_is_told_by_its_own_file(look, host):
    assert look(host | {"/sys/hypervisor/type": "xen"}).platform.hypervisor.value == "xen"


# ---------------------------------------------------------------- GPUs


def test_wsl2_has_the_gpu_of_nvml_and_not_the_hyper_v_device(plant, host, pci):
    host["/proc/version"] = "Linux version 5.15.153.1-microsoft-standard-WSL2 (root@x) #1 SMP"
    host |= pci("5582:00:00.0", "1414", "008e", "dxgkrnl", pci_class="0302")
    nvml = {"source": "nvml", "ordinal": 0, "bdf": "00000000:01:00.0", "uuid": "GPU-00000000-0000-0000-0000-000000000001",
            "vendor_id": "10de", "device_id": "2684", "name": "NVIDIA GeForce RTX 4090", "memory_bytes": 24 * GIB}  # fmt: skip
    machine = detect.inspect(sysroot=plant(host), extra_records=[nvml])
    (gpu,) = machine.gpus
    assert (gpu.bdf.value, gpu.kind.value, gpu.memory.usable_bytes.value) == (
        "0000:01:00.0",
        "discrete",
        24 * GIB,
    )
    assert [adapter.role.value for adapter in machine.display_adapters] == ["virtual"]
    assert (machine.platform.wsl.value, machine.recommendation.mode) == (True, "gpu")


def test_a_sleeping_intel_card_keeps_its_size_to_itself(look, host, pci):
    tiles = {"tile0__physical_vram_size_bytes": str(8 * GIB)}
    machine = look(host | pci("0000:03:00.0", "8086", "56a0", "xe", power__runtime_status="suspended", **tiles))
    (gpu,) = machine.gpus
    assert (gpu.kind.value, gpu.memory.dedicated_bytes.status, gpu.link.gen_max.status) == (
        "discrete",
        "not_probed",
        "not_probed",
    )
    assert [r.code for r in machine.recommendation.rejected] == ["GPU_ASLEEP"]


def test_a_laptop_uses_neither_its_igpu_nor_wakes_its_card(look, host, pci):
    host |= pci("0000:00:02.0", "8086", "46a6", "i915") | pci(
        "0000:01:00.0",
        "10de",
        "2520",
        "nvidia",
        power__runtime_status="suspended",
        max_link_speed="16.0 GT/s PCIe",
    )
    machine = look(host)
    assert [(r.device_id, r.code) for r in machine.recommendation.rejected] == [
        ("pci:0000:00:02.0", "INTEGRATED_UNMEASURED"), ("pci:0000:01:00.0", "GPU_ASLEEP"),
    ]  # fmt: skip
    assert machine.recommendation.mode == "cpu"


def test_a_bmc_is_no_gpu_even_where_no_file_tells_its_class(look):
    card = {"/sys/class/drm/card0/device/uevent": "DRIVER=ast\nPCI_ID=1A03:2000\nPCI_SLOT_NAME=0000:04:00.0"}
    machine = look(card)
    assert machine.gpu_count.value == 0
    assert machine.display_adapters[0].role.value == "bmc"


def test_frame_buffers_of_the_firmware_are_no_gpus(look):
    drivers = ("simple-framebuffer", "virtio_gpu", "vkms", "bochs-drm", "hyperv_drm", "rockchip-drm")
    tree = {f"/sys/class/drm/card{n}/device/uevent": f"DRIVER={name}" for n, name in enumerate(drivers)}
    assert look(tree).gpu_count.value == 0


def test_two_dies_of_one_card_and_its_audio_are_two_gpus(look, host, pci):
    host |= pci("0000:84:00.0", "10de", "102d", "nvidia", pci_class="0302") | pci(
        "0000:85:00.0", "10de", "102d", "nvidia", pci_class="0302"
    )
    host |= pci("0000:84:00.1", "10de", "0fb0", "snd_hda_intel", pci_class="0403")
    assert [gpu.id for gpu in look(host).gpus] == ["pci:0000:84:00.0", "pci:0000:85:00.0"]


def test_gpu_in_a_pci_domain_of_eight_digits(look, host, pci):
    (gpu,) = look(host | pci("10000:e1:00.0", "10de", "2330", "nvidia", pci_class="0302")).gpus
    assert gpu.bdf.value == "10000:e1:00.0"


def test_npus_of_gpu_makers_are_accelerators(look, host, pci):
    host |= pci("0000:00:0b.0", "8086", "7d1d", "intel_vpu", pci_class="1200") | pci(
        "0000:c5:00.1", "1002", "17f0", "amdxdna", pci_class="1180"
    )
    machine = look(host)
    assert machine.gpu_count.value == 0
    assert [a.id for a in machine.accelerators] == ["pci:0000:00:0b.0"]


@pytest.mark.parametrize(
    ("text", "gen"),
    [("2.5 GT/s PCIe", 1), ("5 GT/s", 2), ("8.0 GT/s PCIe", 3), ("16 GT/s", 4), ("32.0 GT/s PCIe", 5), ("64.0 GT/s PCIe", 6),
     ("Unknown", None), ("Unknown speed", None)],
)  # fmt: skip
def test_link_generations(look, host, pci, text, gen):
    (gpu,) = look(
        host | pci("0000:01:00.0", "10de", "2330", "nvidia", max_link_speed=text, max_link_width="0")
    ).gpus
    assert gpu.link.gen_max.value == gen
    assert gpu.link.width_max.status == "absent"


def test_a_spoiled_class_hides_no_card_that_a_gpu_driver_holds(look, host, pci):
    host |= pci("0000:03:00.0", "1002", "744c", "amdgpu", mem_info_vram_total=str(8 * GIB)) | pci(
        "0000:04:00.0", "8086", "1533", "igb", pci_class="0200"
    )
    for bdf in ("0000:03:00.0", "0000:04:00.0"):
        host[f"/sys/bus/pci/devices/{bdf}/class"] = "?"
    (gpu,) = look(host).gpus
    assert (gpu.bdf.value, gpu.pci_class.status, gpu.memory.dedicated_bytes.value) == (
        "0000:03:00.0",
        "invalid",
        8 * GIB,
    )
