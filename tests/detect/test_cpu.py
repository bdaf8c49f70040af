from __future__ import annotations

import pytest

CPU = "/sys/devices/system/cpu"


def test_two_threads_of_one_core(look, host):
    cpu = look(host).cpu
    assert (cpu.logical.value, cpu.cores.value, cpu.smt.value, cpu.available.value) == (2, 1, "on", 2)
    assert cpu.isa.value == ["avx", "avx2", "fma"]  # what both have
    assert cpu.affinity.status == "not_probed"


def test_siblings_are_cut_to_the_online_cpus(look, host):
    host[f"{CPU}/online"] = "1"
    cpu = look(host).cpu
    assert (cpu.logical.value, cpu.cores.value, cpu.smt.value, cpu.offline.value) == (1, 1, "off", 1)


def test_sparse_ids_and_hidden_smt(look, host):
    tree = {path: text for path, text in host.items() if not path.startswith(CPU)}
    tree["/proc/cpuinfo"] = "processor : 8\nflags : lm hypervisor\n\nprocessor : 88\nflags : lm hypervisor"
    tree[f"{CPU}/online"] = "8,88"
    for number in (8, 88):
        tree[f"{CPU}/cpu{number}/topology/core_cpus"] = (
            f"{1 << number:x}" if number < 32 else "1000000,00000000,00000000"
        )
    cpu = look(tree).cpu
    assert (cpu.cores.value, cpu.smt.value, cpu.online_cpus.value) == (2, "hidden", "8,88")


@pytest.mark.parametrize("spoiled", ["0-", "5", "", b"\xff\xfe"])
def test_spoiled_siblings_fall_back_to_the_next_source(look, host, spoiled):
    for number in (0, 1):
        host[f"{CPU}/cpu{number}/topology/core_cpus_list"] = spoiled
    assert look(host).cpu.cores.value == 1


def test_overlapping_siblings_are_invalid(look, host):
    host[f"{CPU}/cpu1/topology/thread_siblings_list"] = "1"
    cpu = look(host).cpu
    assert cpu.cores.status == "invalid"
    assert cpu.smt.status == "invalid"
    assert cpu.logical.value == 2


def test_arm_kinds_by_midr_and_rank_by_capacity(look):
    tree = {
        f"{CPU}/online": "0-3",
        f"{CPU}/present": "0-3",
        "/proc/cpuinfo": "processor : 0\nCPU architecture: 8",
    }
    for number, (part, capacity) in enumerate([("d05", 400), ("d05", 390), ("d0b", 1024), ("d0b", 1000)]):
        tree[f"{CPU}/cpu{number}/topology/core_cpus_list"] = str(number)
        tree[f"{CPU}/cpu{number}/regs/identification/midr_el1"] = f"0x00000000410f{part}0"
        tree[f"{CPU}/cpu{number}/cpu_capacity"] = str(capacity)
    machine = look(tree)
    kinds = machine.cpu.kinds.value
    assert [(k.rank, k.part, k.cpus) for k in kinds] == [(0, "0xd0b", "2-3"), (1, "0xd05", "0-1")]
    assert machine.platform.arch.value == "aarch64"


def test_turbo_favoured_cores_are_one_kind(look, host):
    for number, clock in ((0, 5_200_000), (1, 5_000_000)):
        host[f"{CPU}/cpu{number}/cpufreq/cpuinfo_max_freq"] = str(clock)
        host[f"{CPU}/cpu{number}/cpufreq/scaling_governor"] = ("powersave", "performance")[number]
    cpu = look(host).cpu
    assert len(cpu.kinds.value) == 1
    assert cpu.max_hz.value == 5_200_000_000
    assert cpu.governor.value == "mixed"


def test_caches_count_sharing_sets(look, host):
    for number in (0, 1):
        for index, (level, kind, size, shared) in enumerate(
            [(1, "Data", "48K", "0-1"), (3, "Unified", "32M", "0-1")]
        ):
            folder = f"{CPU}/cpu{number}/cache/index{index}"
            host |= {f"{folder}/level": str(level), f"{folder}/type": kind, f"{folder}/size": size,
                     f"{folder}/shared_cpu_list": shared}  # fmt: skip
    caches = look(host).cpu.caches.value
    assert [(c.level, c.type, c.size_bytes, c.instances) for c in caches] == [
        (1, "data", 48 << 10, 1), (3, "unified", 32 << 20, 1),
    ]  # fmt: skip
    host[f"{CPU}/cpu0/cache/index1/size"] = "much"
    assert look(host).cpu.caches.value is not None  # the second CPU of the set still tells


@pytest.mark.parametrize(
    ("text", "arch"),
    [
        ("vendor_id : IBM/S390\nprocessor 0: version = FF, identification = 1, machine = 8561", "s390x"),
        ("processor : 0\ncpu : POWER9, altivec supported", "ppc64"),
        ("processor : 0\nisa : rv64imafdc", "riscv64"),
        ("processor : 0\nflags : fpu", "i686"),
    ],
)
def test_architecture_from_the_form_of_cpuinfo(look, text, arch):
    assert look({"/proc/cpuinfo": text}).platform.arch.value == arch
