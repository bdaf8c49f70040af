from __future__ import annotations

import tarfile

import pytest

from gpubench import detect
from gpubench.detect import _recording
from gpubench.errors import InputError


@pytest.fixture
def tree(plant, host, pci):
    host |= pci("0000:03:00.0", "1002", "744c", "amdgpu", mem_info_vram_total=str(8 << 30), unique_id="12ab")
    host |= {
        "/sys/devices/real/class": "0x030000", "/sys/devices/real/vendor": "0x8086", "/sys/devices/real/device": "0x5917",
        "/sys/bus/pci/devices/0000:00:02.0": "-> ../../../devices/real", "/sys/devices/real/driver": "-> ../../x/i915",
        "/proc/self/cgroup": "0::/a", "/proc/self/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0",
        "/sys/fs/cgroup/a/cpu.max": "150000 100000", "/sys/class/kfd/kfd/topology/nodes": None,
        "/secret": "not read",
    }  # fmt: skip
    return plant(host)


@pytest.mark.parametrize("name", ["copy", "copy.tar.gz"])
def test_a_recording_gives_the_same_document(tree, tmp_path, plain, name):
    target = tmp_path / name
    detect.save_recording(target, tree)
    if name.endswith("gz"):
        with tarfile.open(target) as archive:
            # Python before 3.11.4, such as Debian 12's, has no filters.
            safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            archive.extractall(tmp_path / "unpacked", **safe)
        target = tmp_path / "unpacked"
    assert plain(detect.inspect(sysroot=target)) == plain(detect.inspect(sysroot=tree))
    assert not (target / "secret").exists()


def test_names_and_serial_numbers_are_left_out():
    assert _recording.cleaned("/proc/version", "Linux version 6.1 (me@myhost) (gcc) #1") == "Linux version 6.1"
    assert "Serial" not in _recording.cleaned("/proc/cpuinfo", "processor : 0\nSerial : 0000dead")
    mounts = "/dev/sda1 /home/me ext4 rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0"
    assert _recording.cleaned("/proc/self/mounts", mounts) == mounts.splitlines()[1]


def test_nothing_is_overwritten(tree, tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(InputError):
        detect.save_recording(tmp_path / "there", tree)
