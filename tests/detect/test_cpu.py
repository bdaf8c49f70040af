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


def hybrid(groups, *, clocks=(), capacities=()):
    """CPUs in cpu_core, cpu_atom, ...; clocks in MHz and capacities by CPU."""
    count = len(clocks) or len(capacities)
    tree = {f"{CPU}/online": f"0-{count - 1}", f"{CPU}/present": f"0-{count - 1}"}
    tree |= {f"/sys/devices/{name}/cpus": cpus for name, cpus in groups.items()}
    for number in range(count):
        tree[f"{CPU}/cpu{number}/topology/core_cpus_list"] = str(number)
        for file, values, scale in (
            ("cpufreq/cpuinfo_max_freq", clocks, 1000),
            ("cpu_capacity", capacities, 1),
        ):
            if values:
                tree[f"{CPU}/cpu{number}/{file}"] = str(values[number] * scale)
    return tree


@pytest.mark.parametrize(
    ("tree", "kinds"),
    [
        (hybrid({"cpu_core": "0-1", "cpu_atom": "2-5"}, clocks=(4800, 4800, 3800, 3800, 2500, 2500)), ["0-1", "2-3", "4-5"]),
        (hybrid({"cpu_core": "0-1", "cpu_atom": "2-3", "cpu_lowpower": "4-5"}, clocks=(4800,) * 6), ["0-1", "2-3", "4-5"]),
        (hybrid({"cpu_core": "0-1", "cpu_atom": "2-3"}, clocks=(4800, 4800, 3800, 3800, 3700, 3700)), ["0-1", "2-3", "4-5"]),
        (hybrid({"cpu_core": "0-1", "cpu_atom": "2-5"}, capacities=(1024, 1024, 700, 690, 420, 420)), ["0-1", "2-3", "4-5"]),
        (hybrid({"cpu_core": "0-1", "cpu_atom": "2-3"}, clocks=(5200, 5000, 3900, 3900)), ["0-1", "2-3"]),  # favoured cores
        (hybrid({}, capacities=(1024, 1024, 700, 700)), ["0-3"]),  # capacity alone never splits
        (hybrid({"cpu_core": "0-2", "cpu_atom": "2-3"}, clocks=(4800,) * 4), ["0-3"]),  # lists that overlap
    ],
)  # fmt: skip
def test_a_coarse_source_hides_no_finer_one(look, tree, kinds):
    assert [kind.cpus for kind in look(tree).cpu.kinds.value] == kinds


def test_a_part_with_two_clocks_is_two_kinds(look):
    tree = hybrid({}, clocks=(3000, 2400, 1800, 1800))
    for number, part in enumerate(("d41", "d41", "d05", "d05")):
        tree[f"{CPU}/cpu{number}/regs/identification/midr_el1"] = f"0x00000000410f{part}0"
    kinds = look(tree).cpu.kinds.value
    assert [(kind.cpus, kind.part) for kind in kinds] == [("0", "0xd41"), ("1", "0xd41"), ("2-3", "0xd05")]


def test_a_cache_is_one_however_often_it_is_listed(look, host):
    listed = [
        (1, "Data", None),
        (1, "Data", None),
        (1, "Instruction", None),
        (2, "Unified", "0-1"),
        (2, "Unified", "0-1"),
    ]
    for number in (0, 1):
        for index, (level, kind, shared) in enumerate(listed):
            folder = f"{CPU}/cpu{number}/cache/index{index}"
            host |= {f"{folder}/level": str(level), f"{folder}/type": kind, f"{folder}/size": "32K"}
            if shared or index == 1:  # the first is told to be shared by nobody, which is the same
                host[f"{folder}/shared_cpu_list"] = shared or str(number)
    caches = look(host).cpu.caches.value
    assert [(c.level, c.type, c.instances) for c in caches] == [
        (1, "data", 2),
        (1, "instruction", 2),
        (2, "unified", 1),
    ]


def board(kernel, arch="8", ids=("0", "0", "1", "1"), **files):
    blocks = "\n\n".join(
        f"processor : {n}\nCPU architecture: {arch}\nCPU part : 0xd03" for n in range(len(ids))
    )
    tree = {
        "/proc/cpuinfo": blocks,
        "/proc/version": f"Linux version {kernel} (x@y)",
        f"{CPU}/online": f"0-{len(ids) - 1}",
    }
    tree |= {f"{CPU}/cpu{n}/topology/physical_package_id": text for n, text in enumerate(ids)}
    return tree | {f"/{name.replace('__', '/')}": text for name, text in files.items()}


TREE = {"proc__device-tree__model": "Some board"}
ACPI = {"sys__firmware__acpi__tables__DSDT": "", "sys__class__dmi__id__sys_vendor": "Maker"}


@pytest.mark.parametrize(
    ("tree", "packages"),
    [
        (board("5.10.0-odroid", **TREE), None),
        (board("4.9.140-tegra", ids=("0", "1", "2", "2"), **TREE), None),
        (board("5.15.0-android13", **{"proc__device-tree__compatible": "qcom,sm8550"}), None),
        (board("5.15.0"), None),  # a dump without its firmware
        (board("5.4.0", **ACPI), 2),  # ACPI tells sockets
        (board("5.4.0", **ACPI, **TREE), None),  # U-Boot writes DMI tables beside a device tree
        (board("6.1.0", **TREE), 2),
        (board("5.10.0", ids=("0", "0"), **TREE), 1),  # one cluster is one package
        (board("6.6.0", arch="7", **TREE), None),  # 32-bit Arm numbers clusters to this day
    ],
)
def test_clusters_of_cores_are_no_packages(look, tree, packages):
    fact = look(tree).cpu.packages
    assert (fact.value, fact.status) == (packages, "ok" if packages else "unsupported")


def test_the_current_clock_is_told_in_a_virtual_machine_too(look, host):
    host["/proc/cpuinfo"] = (
        "processor : 0\ncpu MHz : 2499.998\nflags : lm hypervisor\n\nprocessor : 1\ncpu MHz : 800.0"
    )
    cpu = look(host).cpu
    assert (cpu.now_hz.value, cpu.now_hz.source, cpu.max_hz.status) == (
        2_499_998_000,
        "/proc/cpuinfo",
        "absent",
    )


@pytest.mark.parametrize(("text", "hertz"), [("1800000", 1_800_000_000), ("<unknown>", None)])
def test_the_current_clock_comes_from_cpufreq_elsewhere(look, host, text, hertz):
    host["/proc/cpuinfo"] = "processor : 0\nCPU architecture: 8"
    host[f"{CPU}/cpu0/cpufreq/scaling_cur_freq"] = text
    now = look(host).cpu.now_hz
    assert (now.value, now.status) == (hertz, "ok" if hertz else "absent")
