import os
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench import detect
from gpubench.base.errors import InputError
from gpubench.detect import recording
from gpubench.detect.facts import TouchedFiles
from gpubench.detect.proc import Numbers, mask
from tests.detect import recorded, trees


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


@pytest.mark.parametrize("name", ["copy", "copy.tar.gz"])
def test_a_recording_gives_the_same_document(tree, tmp_path, plain, name):
    target = tmp_path / name
    detect.save_recording(target, tree)
    if name.endswith("gz"):
        target = recorded.unpack(target, tmp_path / "unpacked")
    assert plain(detect.inspect(sysroot=target)) == plain(detect.inspect(sysroot=tree))
    assert not (target / "secret").exists()
    with pytest.raises(InputError):  # nothing is overwritten
        detect.save_recording(target, tree)


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


def test_a_folder_in_place_of_a_file_stays_one(look):
    assert look(trees.HOST | {"/proc/meminfo": None}).memory.total_bytes.status == "invalid"


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
