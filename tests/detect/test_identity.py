"""Is a result of this machine? What both sides know decides; what one side does not know says nothing."""

import json

import pytest
from msgspec.structs import replace

from gpubench.analysis.policy import Policy
from gpubench.base.errors import InputError
from gpubench.cli.detect import read_result
from gpubench.detect import differences, host, recommend
from gpubench.detect.facts import ABSENT, make_fact, missing
from gpubench.result import store
from gpubench.result.identity import compare, measured_gpus, uuid_digest
from gpubench.result.machine import Compute, Cpu, CpuKind, Driver, Gpu, GpuMemory, Machine, Memory, Platform
from gpubench.result.store import save
from tests.detect.test_mode_by_results import GPU_WINS
from tests.raising import raised
from tests.unit.report.builders import CPU, GPU, run_of

GIB = 2**30


def fact(value, source="files"):
    return make_fact(value, source) if value is not None else ABSENT


def cpu(model="AMD Ryzen 7 5800X", cores=8, logical=16, available=16, part=None, source="/proc/cpuinfo"):
    kind = CpuKind(rank=0, cores=cores, logical=logical, cpus="0-15", part=part)
    return Cpu(model=fact(model, source), cores=fact(cores), logical=fact(logical), available=fact(available),
               kinds=make_fact([kind], "files"))  # fmt: skip


def gpu(ids=("1002", "7480", "1eae", "7601"), *, uuid=None, name="Navi 33", version=None, gib=8, bdf="0000:0d:00.0", **more):  # fmt: skip
    vendor, device, subvendor, subdevice = (*ids, None, None, None, None)[:4]
    return Gpu(
        id=uuid or more.pop("id", f"pci:{bdf}"), uuid=fact(uuid), bdf=fact(bdf), name=fact(name), vendor_id=fact(vendor),
        device_id=fact(device), subvendor_id=fact(subvendor), subdevice_id=fact(subdevice),
        driver=Driver(name=fact("amdgpu"), version=fact(version)), usable=make_fact(True, "t"),
        memory=GpuMemory(dedicated_bytes=fact(gib and gib * GIB), usable_bytes=fact(16 * GIB), unified=make_fact(False, "t")),
        kind=make_fact("discrete", "t"), **more)  # fmt: skip


def machine(*gpus, **more):
    more = {"cpu": cpu(), "memory": Memory(total_bytes=make_fact(64 * GIB, "t")), **more}
    return Machine(gpus=list(gpus), gpu_count=make_fact(len(gpus), "t"), platform=Platform(arch=fact("x86_64")),
                   **more)  # fmt: skip


UUID, SECOND = "GPU-0123456789abcdef", "GPU-fedcba9876543210"
ARM = cpu(None, 20, 20, 20, part="0xd85")
APPLE = cpu("Apple M2 Max", 12, 12, 12, source="cpuinfo")
HERE = machine(gpu())


def apple(units, name="api:metal:0"):
    return machine(gpu((), gib=None, bdf=None, id=name, compute=Compute(units=fact(units))), cpu=APPLE)


# What is one machine: (here, there), where each side knows something else.
SAME = {
    "another name of the GPU": (HERE, machine(gpu(name="AMD Radeon RX 7600 (RADV NAVI33)"))),
    "no model name, as on 64-bit Arm": (machine(gpu(), cpu=ARM), machine(gpu(), cpu=ARM)),
    "a model name there alone": (machine(gpu(), cpu=ARM), machine(gpu(), cpu=cpu("Cortex-X925", 20, 20, 20))),
    "a placeholder for a name": (HERE, machine(gpu(), cpu=cpu("unknown"))),
    "another spelling of the model": (HERE, machine(gpu(), cpu=cpu("AMD  Ryzen(TM) 7 5800X"))),
    "another source of the model": (HERE, machine(gpu(), cpu=cpu("AMD 5800X", source="cpuinfo"))),
    "a GPU that wgpu alone told of": (HERE, machine(gpu(("1002", "7480"), gib=None, bdf=None, id="api:wgpu-vulkan:0"))),
    "no subsystem here": (machine(gpu(("1002", "7480"))), HERE),
    "Apple without PCI ids": (apple(38), apple(38, "api:wgpu-metal:0")),
    "a uuid and its digest": (machine(gpu(uuid=UUID)), machine(gpu(uuid=uuid_digest(UUID)))),
    "one uuid in another slot": (machine(gpu(uuid=UUID, bdf="0000:01:00.0")), machine(gpu(uuid=UUID))),
    "a second GPU since": (machine(gpu(uuid=UUID), gpu(uuid=SECOND)), machine(gpu(uuid=UUID))),
    "a driver since": (machine(gpu(version="2")), machine(gpu(version="1"))),
    "the kernel's share of memory": (HERE, replace(HERE, memory=Memory(total_bytes=make_fact(63 * GIB, "t")))),
    "GPUs that nobody could list": (replace(machine(), gpu_count=missing("absent")), HERE)}  # fmt: skip
OTHER = {
    "another GPU": ("GPU", HERE, machine(gpu(("1002", "744c")))),
    "another card of that id": ("GPU", HERE, machine(gpu(("1002", "7480", "1043", "05e1")))),
    "twice the memory under one id": ("GPU", machine(gpu(("1002", "7480"))), machine(gpu(("1002", "7480"), gib=16))),
    "the same model with another uuid": ("GPU", machine(gpu(uuid=UUID)), machine(gpu(uuid=SECOND))),
    "another number of compute units": ("GPU", apple(38), apple(30)),
    "no GPU here": ("GPU", machine(), HERE),
    "two GPUs there": ("GPU", HERE, machine(gpu(), gpu(bdf="0000:0e:00.0"))),
    "the GPU in another machine": ("cores", machine(gpu(uuid=UUID)), machine(gpu(uuid=UUID), cpu=cpu(cores=16))),
    "another CPU": ("CPU", HERE, machine(gpu(), cpu=cpu("AMD Ryzen 9 5950X"))),
    "another kind of Arm core": ("CPU parts", machine(cpu=ARM), machine(cpu=cpu(None, 20, 20, 20, part="0xd4f"))),
    "SMT switched off": ("CPUs", HERE, machine(gpu(), cpu=cpu(logical=8))),
    "a container with fewer CPUs": ("usable CPUs", HERE, machine(gpu(), cpu=cpu(available=4))),
    "half the memory": ("memory", HERE, replace(HERE, memory=Memory(total_bytes=make_fact(32 * GIB, "t"))))}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_one_machine_is_one_machine_whoever_was_asked(name, tmp_path):
    here, there = SAME[name]
    assert compare(here, there).differences == {}
    assert compare(here, there).same
    if here.gpus and "driver" not in name:  # whatever the folder is called
        result(tmp_path, there)
        advice = advised(here, tmp_path)
        assert (advice.mode, advice.confidence, advice.device_ids) == ("gpu", "measured", [here.gpus[0].id])


@pytest.mark.parametrize("name", OTHER)
def test_another_machine_is_named_by_what_differs_and_its_results_are_left_out(name, tmp_path):
    what, here, there = OTHER[name]
    assert what in compare(here, there).differences
    assert not compare(here, there).same
    if there.gpus and here.gpus and "two" not in name:
        result(tmp_path, there)
        assert advised(here, tmp_path) == recommend.recommend(here)
        # A file that the user named is not passed over.
        told = advised(here, *tmp_path.glob("*/*.json")).reasons
        notes = [reason.text for reason in told if reason.code == "RESULT_OTHER_MACHINE"]
        assert [f"{what}: " in text for text in notes] == [True]


def test_what_differs_is_told_in_words():
    assert not compare(Machine(), Machine()).same
    other = machine(gpu(), cpu=cpu("Other", available=2), memory=Memory(total_bytes=make_fact(32 * GIB, "t")))
    assert differences(other, HERE) == {
        "CPU": "Other, here AMD Ryzen 7 5800X", "usable CPUs": "2, here 16", "memory": "32 GiB, here 64 GiB"}  # fmt: skip


def result(folder, there, name="20260101T000000Z-00000001.json", place="some-folder", **words):
    """A result whose GPU wins, measured on the machine `there`."""
    run = run_of(GPU_WINS, **words)
    devices = [replace(each, gpu_id=there.gpus[0].id) if each.kind == "gpu" else each for each in run.devices]
    run = replace(run, machine=there, devices=devices, settings=replace(run.settings, threads=None))
    (folder / place).mkdir(exist_ok=True)
    save(run, folder / place / name)
    return run


def advised(here, results):
    return recommend.apply_results(here, recommend.recommend(here), results, read_result)


def test_another_driver_is_said(tmp_path):
    here, there = SAME["a driver since"]
    result(tmp_path, there)
    advice = advised(here, tmp_path)
    assert advice.confidence == "provisional"
    (note,) = [reason for reason in advice.reasons if reason.code == "RESULT_OTHER_DRIVER"]
    assert "driver 1, here 2" in note.text
    result(tmp_path, here, "20250101T000000Z-00000002.json")
    assert advised(here, tmp_path).confidence == "measured", "an older file of this driver"
    assert advised(HERE, tmp_path).confidence == "measured", "what one side does not know says nothing"


def test_the_gpu_that_was_measured_is_named_by_its_id_here_and_another_may_be_gone(tmp_path):
    """A result holds digests; of two equal cards it measured the second."""
    first, second = gpu(uuid="GPU-0000000000000001"), gpu(uuid="GPU-0000000000000002", bdf="0000:0e:00.0")
    digests = [gpu(uuid=uuid_digest(card.id), bdf=card.bdf.value) for card in (second, first)]
    result(tmp_path, machine(*digests))
    assert advised(machine(first, second), tmp_path).device_ids == [second.id]
    assert advised(machine(second), tmp_path).confidence == "measured"
    assert advised(machine(first), tmp_path).confidence == "provisional"


def test_files_that_cannot_tell_are_not_read_to_their_end(tmp_path, monkeypatch):
    """Their heads tell; this machine's result stands behind ten of another and one of the CPU alone."""
    result(tmp_path, HERE, "20260202T000000Z-00000001.json.gz", devices=(CPU,))
    other = machine(gpu(("10de", "2330")))
    for number in range(10):
        result(tmp_path, other, f"20260201T0000{number:02d}Z-000000{number:02d}.json.gz")
    result(tmp_path, HERE)
    whole, load = [], store.load
    monkeypatch.setattr(store, "load", lambda path: whole.append(path.name) or load(path))
    assert advised(HERE, tmp_path).confidence == "measured"
    assert whole == ["20260101T000000Z-00000001.json"]


def test_a_result_of_another_layout_is_found_too(tmp_path):
    """A tool that writes JSON anew may sort its keys."""
    result(tmp_path, HERE)
    (path,) = tmp_path.glob("*/*.json")
    path.write_text(json.dumps(json.loads(path.read_text()), indent=1, sort_keys=True))
    assert advised(HERE, tmp_path).confidence == "measured"


def test_a_policy_takes_no_results_of_another_gpu(tmp_path, monkeypatch):
    result(tmp_path, HERE, devices=(replace(GPU, id="numpy:0", kind="cpu"), GPU))
    monkeypatch.setattr(host, "this_host", lambda: replace(HERE, gpu_count=missing("absent")))
    assert Policy.load(tmp_path).ops
    monkeypatch.setattr(host, "this_host", lambda: machine(gpu(("10de", "2330"))))
    assert "GPU: Navi 33 (1002:7480)" in raised(InputError, Policy.load, tmp_path).why


def test_the_gpus_of_a_device_group_are_measured_too():
    group = replace(GPU, id="group:cupy:0+1", gpu_id=None, gpu_ids=["a", "b"])
    assert measured_gpus([CPU, replace(GPU, gpu_id="a"), group]) == ["a", "b"]
