"""What a live detection asks, and what it makes of the answers, without any hardware."""

import pytest

from gpubench import detect
from gpubench.detect import inspection
from gpubench.detect.facts import ABSENT, Root, make_fact
from gpubench.detect.host import read_files
from gpubench.detect.inspection import Said
from gpubench.result.machine import NOT_PROBED, Driver, Gpu


@pytest.fixture
def plan(plant):
    def ask(tree, **options):
        found = read_files(Root(str(plant(tree))), NOT_PROBED)
        requests, skipped = inspection.plan(found, **({"deep": False, "wake": False} | options))
        return [request.name for request in requests], [provider.name for provider in skipped]

    return ask


def test_a_gpu_is_evidence_for_its_probes_and_a_sleeping_one_against_all_that_wake_it(plan, host, pci):
    amd = host | pci("0000:03:00.0", "1002", "744c", "amdgpu")
    awake, asleep = (host | pci("0000:01:00.0", "10de", "2684", "nvidia", power__runtime_status=state)
                     for state in ("active", "suspended"))  # fmt: skip
    nvidia = ["nvml", "cuda", "wgpu"]
    for tree, options, asked, skipped in (
        (host, {}, [], []), (amd, {}, [], []), (host, {"deep": True}, ["wgpu"], []), (awake, {}, ["nvml"], []),
        (awake, {"deep": True}, nvidia, []), (asleep, {}, [], ["nvml"]), (asleep, {"deep": True}, [], nvidia),
        (asleep, {"deep": True, "wake": True}, nvidia, []),
    ):  # fmt: skip
        assert plan(tree, **options) == (asked, skipped)


def test_render_nodes_are_asked_only_for_what_no_file_told(plant, host, pci):
    host |= pci("0000:03:00.0", "8086", "56a0", "i915") | pci("0000:00:02.0", "8086", "4680", "i915")
    host |= pci("0000:04:00.0", "1002", "744c", "amdgpu", board_info="x")
    host |= pci("0000:05:00.0", "1002", "15bf", "amdgpu")
    for number, bdf in enumerate(("0000:03:00.0", "0000:00:02.0", "0000:04:00.0", "0000:05:00.0"), start=128):
        host[f"/sys/class/drm/renderD{number}/device"] = f"-> ../../../bus/pci/devices/{bdf}"
    root = Root(str(plant(host)))
    nodes = inspection.render_nodes(root)
    (request,) = inspection.render_queries(read_files(root, NOT_PROBED).records, nodes, wake=False)
    assert [node["node"] for node in request.options["nodes"]] == ["renderD128", "renderD131"]


NODE = make_fact("present", "/dev/nvidia0")
GPU = Gpu(id="g", vendor=make_fact("nvidia", "t"), driver=Driver(name=make_fact("nvidia", "t")))


@pytest.mark.parametrize(
    ("said", "usable", "codes"),
    [
        (Said(NODE, ABSENT), True, []), (Said(make_fact("absent", "/dev/nvidiactl"), ABSENT), False, ["NOT_EXPOSED"]),
        (Said(make_fact("no_permission", "/dev/nvidia0"), ABSENT), False, ["NO_PERMISSION"]),
        (Said(NODE, ABSENT, ("DRIVER_MISMATCH",)), False, ["DRIVER_MISMATCH"]),
        (Said(NODE, make_fact("CUDA_VISIBLE_DEVICES", "x")), False, ["HIDDEN_BY_ENV"]), (Said(), None, []),
    ],
)  # fmt: skip
def test_usable_needs_every_door_open(said, usable, codes):
    gpu = inspection.judge_access(GPU, said, live=True)
    assert (gpu.usable.value, gpu.why_not) == (usable, codes)
    assert (gpu.usable.source is not None) == (usable is not None)


def test_this_machine_is_described_whatever_it_is():
    machine = detect.inspect()
    assert machine.live is True
    assert machine.cpu.available.value >= 1
    assert machine.memory.usable_bytes.value <= machine.memory.os_total_bytes.value
    assert machine.providers[0].name == "files"
    assert detect.machine_line(machine)


def test_extra_records_of_the_callers_workers_are_merged():
    software = {"source": "wgpu:vulkan", "name": "llvmpipe", "vendor_id": "10005", "adapter_type": "cpu"}
    names = [renderer.name for renderer in detect.inspect(extra_records=[software]).software_renderers]
    assert "llvmpipe" in names
