from __future__ import annotations

import pytest

from gpubench.detect import cgroup
from gpubench.detect.facts import Root
from gpubench.measure import worker_pool
from gpubench.measure.worker_pool import Worker, WorkerGone
from gpubench.result.run import Settings

GIB = 1 << 30


def mountinfo(root: str, point: str, kind: str, options: str) -> str:
    return f"30 23 0:26 {root} {point} rw,nosuid - {kind} {kind} {options}"


def test_kubernetes_v2_the_tighter_parent_wins(look, host):
    group = "/sys/fs/cgroup/kubepods/pod1"
    host |= {
        "/proc/self/cgroup": "0::/kubepods/pod1/container",
        "/proc/self/mountinfo": mountinfo("/", "/sys/fs/cgroup", "cgroup2", "rw"),
        f"{group}/container/cpu.max": "max 100000",
        f"{group}/cpu.max": "50000 100000",
        f"{group}/container/memory.max": str(4 * GIB),
        f"{group}/container/memory.current": str(GIB),
        f"{group}/memory.max": str(2 * GIB),
        f"{group}/memory.current": str(GIB),
        f"{group}/memory.stat": f"anon 1\ninactive_file {GIB // 2}",
    }
    machine = look(host)
    assert machine.cpu.quota_cpus.value == 0.5
    assert (machine.cpu.available.value, machine.cpu.limited_by.value) == (1, "quota")
    assert machine.memory.limit_bytes.value == 2 * GIB
    assert machine.memory.usable_bytes.value == 2 * GIB - GIB // 2
    assert machine.memory.limited_by.value == "cgroup"
    assert machine.platform.container.value == "kubernetes"


def test_hybrid_takes_the_tightest_of_both(look, host):
    host |= {
        "/proc/self/cgroup": "2:cpu:/a\n0::/b",
        "/proc/self/mounts": "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0",
        "/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "-1",
        "/sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000",
        "/sys/fs/cgroup/unified/b/cpu.max": "25000 100000",
    }
    assert look(host).cpu.quota_cpus.value == 0.25


def test_a_spoiled_limit_is_invalid_and_not_ignored(look, host):
    host |= {
        "/proc/self/cgroup": "0::/",
        "/proc/self/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0",
        "/sys/fs/cgroup/memory.max": "much",
        "/sys/fs/cgroup/cpu.max": "fast",
    }
    machine = look(host)
    assert machine.memory.limit_bytes.status == machine.memory.usable_bytes.status == "invalid"
    assert machine.cpu.quota_cpus.status == "invalid"
    assert machine.cpu.available.value == 2
    assert "quota" in machine.cpu.available.note


@pytest.mark.parametrize("path", ["/../../elsewhere", "/other"])
def test_a_group_outside_of_the_mount_is_read_at_the_mount_point(plant, path):
    files = {
        "/proc/self/mountinfo": "30 23 0:26 /docker/abc /cg rw - cgroup2 cgroup2 rw",
        "/proc/self/cgroup": f"0::{path}",
    }
    assert [level.folder for level in cgroup.read_groups(Root(str(plant(files)))).cpu] == ["/cg"]


def test_escaped_mount_points_are_understood():
    mounts = cgroup.parse_table(
        "/proc/mounts", "cgroup2 /my\\040groups cgroup2 rw 0 0\nspoiled\nproc /proc proc rw 0 0"
    )
    assert [mount.point for mount in mounts] == ["/my groups"]


def test_a_table_without_cgroups_is_no_spoiled_file(look, host):
    machine = look(host | {"/proc/mounts": ""})
    assert machine.cpu.quota_cpus.status == machine.memory.limit_bytes.status == "absent"
    assert machine.memory.usable_bytes.value == 6 << 30


def test_a_spoiled_table_of_mounts_is_told(look, host):
    machine = look(host | {"/proc/mounts": "garbage"})
    assert machine.cpu.quota_cpus.status == machine.memory.usable_bytes.status == "invalid"
    assert machine.cpu.available.value == 2


@pytest.mark.parametrize("path", ["/a" * 100_000, "/" + "a" * 5000])
def test_a_path_that_no_kernel_writes_is_a_spoiled_file(look, host, path):
    machine = look(
        host | {"/proc/self/cgroup": f"0::{path}", "/proc/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0"}
    )
    assert machine.cpu.quota_cpus.status == machine.memory.limit_bytes.status == "invalid"


def test_a_quota_of_one_cpu_and_a_half_bounds_each_worker_to_two(look, host, monkeypatch, tmp_path):
    """Its processors are 16; more than two busy threads would be stopped for a part of each period."""
    cpu = "/sys/devices/system/cpu"
    host |= {
        "/proc/self/cgroup": "0::/",
        "/proc/self/mountinfo": mountinfo("/", "/sys/fs/cgroup", "cgroup2", "rw"),
        "/sys/fs/cgroup/cpu.max": "150000 100000",
        f"{cpu}/online": "0-15",
        f"{cpu}/present": "0-15",
    }
    machine = look(host)
    assert (machine.cpu.logical.value, machine.cpu.available.value) == (16, 2)
    asked = []

    class Recorded(Worker):
        def __init__(self, threads=None):
            asked.append(threads)

        next_id = 1

        def send(self, request):
            asked.append(request.cpus)

        def wait(self, request, deadline_s):
            raise WorkerGone("worker-crashed", "enough", None, "")

        def kill(self):
            pass

    monkeypatch.setattr(worker_pool, "Worker", Recorded)
    pool = worker_pool.WorkerPool(Settings(threads=machine.cpu.available.value), tmp_path, {}, (), machine)
    try:
        with pytest.raises(worker_pool.DeviceGone):
            pool.worker("numpy:0")
    finally:
        pool.close()
    assert asked == [2, 2] * worker_pool.FAILED_STARTS
