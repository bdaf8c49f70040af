"""A scripted NVML for machines as people show them with `nvidia-smi -q`: figures in, document out."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpubench import detect
from gpubench.detect.probes import nvml
from tests.detect.recorded import last_answer
from tests.detect.trees import HOST, check, pci
from tests.nvml import Nvml

MACHINES = json.loads((Path(__file__).parent / "nvidia-smi.json").read_text())["machines"]
MIB = 1 << 20
NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 3, 4, 6
MODES = {"Default": 0, "Prohibited": 2, "Exclusive_Process": 3}
REASONS = {"idle": 0x1, "applications_clocks": 0x2, "sw_power_cap": 0x4, "hw_slowdown": 0x8, "sw_thermal_slowdown": 0x20,
           "hw_thermal_slowdown": 0x40, "hw_power_brake": 0x80}  # fmt: skip
VIRTUAL = {"None": 0, "Pass-Through": 1, "VGPU": 2, "Host VGPU": 3}


def library(machine):
    """Answers as the library would; a handle is a GPU or an instance of the file."""

    def memory(handle, version=None):
        sizes = {key: value * MIB for key, value in said(handle["memory"]).items() if value is not None}
        if version is None and machine["memory_v2"]:  # the older call counts what is reserved as used
            sizes["used"] += sizes.pop("reserved")
        return SimpleNamespace(**sizes)

    def instance(handle, index):
        if index >= len(handle["instances"]):
            raise Nvml.NVMLError(NOT_FOUND)
        return handle["instances"][index]

    def pcie(field):
        return lambda handle: said(handle["pcie"])[field]

    def field(name):
        return lambda handle: handle[name]

    gpus = machine["gpus"]
    answers = {
        "nvmlSystemGetDriverVersion": machine["driver"], "nvmlSystemGetCudaDriverVersion_v2": machine["cuda"], "nvmlDeviceGetCount": len(gpus),
        "nvmlDeviceGetHandleByIndex": gpus.__getitem__, "nvmlDeviceGetUUID": field("uuid"), "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetName": lambda handle: handle["name"].encode(), "nvmlDeviceGetMigDeviceHandleByIndex": instance,
        "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(busId=handle["bus_id"].encode(), pciDeviceId=int(handle["pci_id"], 16)),
        "nvmlDeviceGetEccMode": lambda handle: [int(said(handle["ecc"]))] * 2,
        "nvmlDeviceGetMigMode": lambda handle: [int(said(handle["mig"]) == "Enabled")] * 2,
        "nvmlDeviceGetMaxMigDeviceCount": lambda handle: 7 if handle["mig"] else 0,
        "nvmlDeviceGetAttributes": lambda handle: SimpleNamespace(multiprocessorCount=handle["units"]),
        "nvmlDeviceGetCudaComputeCapability": field("compute_capability"),
        "nvmlDeviceGetMaxClockInfo": lambda handle, clock: {Nvml.NVML_CLOCK_SM: handle["max_sm"]}[clock],
        "nvmlDeviceGetMaxPcieLinkGeneration": pcie("gen_max"), "nvmlDeviceGetCurrPcieLinkGeneration": pcie("gen_now"),
        "nvmlDeviceGetMaxPcieLinkWidth": pcie("width_max"), "nvmlDeviceGetCurrPcieLinkWidth": pcie("width_now"),
        "nvmlDeviceGetPowerManagementLimit": lambda handle: int(said(handle["limit"]) * 1000),
        "nvmlDeviceGetPowerManagementDefaultLimit": lambda handle: int(said(handle["default_limit"]) * 1000),
        "nvmlDeviceGetComputeMode": lambda handle: MODES[handle["compute_mode"]],
        "nvmlDeviceGetDisplayActive": lambda handle: int(handle["display_active"]),
        "nvmlDeviceGetVirtualizationMode": lambda handle: VIRTUAL[handle["virtualization"]],
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: sum(REASONS[name] for name in said(handle["reasons"]))}  # fmt: skip
    made = Nvml(**answers)
    if not machine["memory_v2"]:
        made.nvmlMemory_v2 = None
    return made


def said(value):
    """What the file has; N/A and a refusal as NVML words them."""
    if value is None:
        raise Nvml.NVMLError(NOT_SUPPORTED)
    if value == "permission":
        raise Nvml.NVMLError(NO_PERMISSION)
    return value


def machine_of(name):
    return detect.inspect(records=last_answer(nvml.probe_nvml, library(MACHINES[name]))["records"])


@pytest.mark.parametrize("name", MACHINES)
def test_the_document_tells_what_nvidia_smi_tells(name):
    wanted, machine = MACHINES[name], machine_of(name)
    (gpu,) = machine.gpus
    given = wanted["gpus"][0]
    own = {"id": given["uuid"], "name": given["name"], "driver.version": wanted["driver"]}
    check(gpu, own | wanted["reported"])
    parts = [[part.units.value, part.memory_bytes.value] for part in gpu.compute.partitions]
    assert (parts, gpu.power.throttle) == (wanted.get("partitions", []), wanted.get("throttle", []))
    assert machine.recommendation.mode == wanted["mode"]
    assert set(wanted.get("notes", [])) <= {reason.code for reason in machine.recommendation.reasons}


@pytest.mark.parametrize(("number", "version"), [(13000, "13.0"), (12040, "12.4")])
def test_the_driver_tells_the_newest_cuda_that_it_serves(number, version):
    records = last_answer(nvml.probe_nvml, library({**MACHINES["h100"], "cuda": number}))["records"]
    check(detect.inspect(records=records).gpus[0], {"driver.cuda": version, "driver.cuda.source": "nvml"})


def test_unified_memory_needs_cudas_word_or_a_refused_size_and_the_chip():
    """NotSupported alone may be a discrete card; the chip's id alone may be a card that tells its size."""
    card = {**MACHINES["h100"], "gpus": [{**MACHINES["h100"]["gpus"][0], "memory": None}]}
    (gpu,) = detect.inspect(records=last_answer(nvml.probe_nvml, library(card))["records"]).gpus
    assert (gpu.memory.unified.value, gpu.memory.usable_bytes.status) == (None, "unsupported")
    assert machine_of("gb10").gpus[0].memory.unified.value is True
    (listed,) = last_answer(nvml.probe_nvml, library(MACHINES["gb10"]))["records"]
    cuda = {"source": "cuda", "uuid": listed["uuid"], "adapter_type": "integrated", "memory_bytes": 128 << 30,
            "memory.unified": {"value": True, "status": "ok"}}  # fmt: skip
    (gpu,) = detect.inspect(records=[listed | {"device_id": "ffff"}, cuda]).gpus
    check(gpu, {"memory.unified": True, "kind": "integrated", "memory.dedicated_bytes.value": None})


def test_a_unified_gpu_may_use_the_usable_ram(plant):
    """The whole way on a machine: firmware names the chip, NVML refuses, usable is the usable RAM."""
    tree = HOST | {"/sys/class/dmi/id/product_name": "NVIDIA DGX Spark"}
    tree |= pci("000f:01:00.0", "10de", "2e12", "nvidia", pci_class="0302")
    records = last_answer(nvml.probe_nvml, library(MACHINES["gb10"]))["records"]
    machine = detect.inspect(sysroot=plant(tree), extra_records=records)
    (gpu,) = machine.gpus
    assert gpu.memory.usable_bytes.value == machine.memory.usable_bytes.value == 6 << 30
    assert (gpu.memory.dedicated_bytes.value, gpu.kind.value) == (None, "integrated")
