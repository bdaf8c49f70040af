"""A container may see its CPUs counted from 0, while the kernel keeps its own numbers: the two are never intersected."""

import pytest

from gpubench.detect.facts import Root, make_fact, parse_list
from gpubench.detect.host import read_files
from gpubench.result.machine import NOT_PROBED
from tests.detect.trees import check

CPU = "/sys/devices/system/cpu"
CPUINFO = "\n\n".join(f"processor : {n}\nmodel name : Test CPU\nflags : lm avx avx2" for n in range(4))


def container(online: str, cpuset: str | None = None, *, count: int = 32, name: str = "cpuset.cpus.effective"):
    """A machine of `count` CPUs, two on a core, whose list of online CPUs says `online`."""
    tree = {"/proc/cpuinfo": CPUINFO, f"{CPU}/online": online, f"{CPU}/present": f"0-{count - 1}"}
    for cpu in range(count):
        folder, core = f"{CPU}/cpu{cpu}", cpu - cpu % 2
        tree |= {f"{folder}/topology/core_cpus_list": f"{core}-{core + 1}", f"{folder}/online": "1"}
        tree |= {f"{folder}/cache/index0/{file}": text for file, text in
                 (("level", "1"), ("type", "Data"), ("size", "32K"), ("shared_cpu_list", f"{core}-{core + 1}"))}  # fmt: skip
        tree[f"{folder}/cpufreq/cpuinfo_max_freq"] = "3000000" if cpu < 16 else "2000000"
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
