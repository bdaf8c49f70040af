"""A scripted NVML for machines as people show them with `nvidia-smi -q`: figures in, document out."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpubench import detect
from gpubench.detect.facts import DeviceRecord
from gpubench.detect.inspection import read_access
from gpubench.detect.merge import MergedDevice
from gpubench.detect.probes import nvml
from gpubench.result.machine import Provider
from tests.detect.recorded import last_answer

MACHINES = json.loads((Path(__file__).parent / "nvidia-smi.json").read_text())["machines"]
MIB = 1 << 20
NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 3, 4, 6
MODES = {"Default": 0, "Prohibited": 2, "Exclusive_Process": 3}
REASONS = {"idle": 0x1, "applications_clocks": 0x2, "sw_power_cap": 0x4, "hw_slowdown": 0x8, "sw_thermal_slowdown": 0x20,
           "hw_thermal_slowdown": 0x40, "hw_power_brake": 0x80}  # fmt: skip
VIRTUAL = {"None": 0, "Pass-Through": 1, "VGPU": 2, "Host VGPU": 3}


class NvmlError(Exception):
    def __init__(self, value):
        super().__init__(f"NVML error {value}")
        self.value = value


class Nvml:
    """Answers as the library would; a handle is a GPU or an instance of the file."""

    NVMLError = NvmlError
    NVML_CLOCK_SM = 1

    def __init__(self, machine):
        self.machine = machine
        if machine["memory_v2"]:
            self.nvmlMemory_v2 = 2

    def nvmlInit(self):
        pass

    def nvmlSystemGetDriverVersion(self):
        return self.machine["driver"]

    def nvmlSystemGetCudaDriverVersion_v2(self):
        return self.machine["cuda"]

    def nvmlDeviceGetCount(self):
        return len(self.machine["gpus"])

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.machine["gpus"][index]

    def nvmlDeviceGetUUID(self, handle):
        return handle["uuid"]

    def nvmlDeviceGetName(self, handle):
        return handle["name"].encode()

    def nvmlDeviceGetPciInfo(self, handle):
        return SimpleNamespace(busId=handle["bus_id"].encode(), pciDeviceId=int(handle["pci_id"], 16))

    def nvmlDeviceGetMemoryInfo(self, handle, version=None):
        table = said(handle["memory"])
        sizes = {key: value * MIB for key, value in table.items() if value is not None}
        if version is None and self.machine["memory_v2"]:  # the older call counts what is reserved as used
            sizes["used"] += sizes.pop("reserved")
        return SimpleNamespace(**sizes)

    def nvmlDeviceGetEccMode(self, handle):
        return [int(said(handle["ecc"]))] * 2

    def nvmlDeviceGetMigMode(self, handle):
        return [int(said(handle["mig"]) == "Enabled")] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        return 7 if handle["mig"] else 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):
        if index >= len(handle["instances"]):
            raise NvmlError(NOT_FOUND)
        return handle["instances"][index]

    def nvmlDeviceGetAttributes(self, handle):
        return SimpleNamespace(multiprocessorCount=handle["units"])

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        return handle["compute_capability"]

    def nvmlDeviceGetMaxClockInfo(self, handle, clock):
        assert clock == self.NVML_CLOCK_SM
        return handle["max_sm"]

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle):
        return said(handle["pcie"])["gen_max"]

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle):
        return said(handle["pcie"])["gen_now"]

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle):
        return said(handle["pcie"])["width_max"]

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle):
        return said(handle["pcie"])["width_now"]

    def nvmlDeviceGetPowerManagementLimit(self, handle):
        return int(said(handle["limit"]) * 1000)

    def nvmlDeviceGetPowerManagementDefaultLimit(self, handle):
        return int(said(handle["default_limit"]) * 1000)

    def nvmlDeviceGetComputeMode(self, handle):
        return MODES[handle["compute_mode"]]

    def nvmlDeviceGetDisplayActive(self, handle):
        return int(handle["display_active"])

    def nvmlDeviceGetVirtualizationMode(self, handle):
        return VIRTUAL[handle["virtualization"]]

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        return sum(REASONS[name] for name in said(handle["reasons"]))


def said(value):
    """What the file has; N/A and a refusal as NVML words them."""
    if value is None:
        raise NvmlError(NOT_SUPPORTED)
    if value == "permission":
        raise NvmlError(NO_PERMISSION)
    return value


def machine_of(name):
    return detect.inspect(records=last_answer(nvml.probe_nvml, Nvml(MACHINES[name]))["records"])


def fact(gpu, path):
    for part in path.split("."):
        gpu = getattr(gpu, part)
    return gpu


@pytest.mark.parametrize("name", MACHINES)
def test_the_document_tells_what_nvidia_smi_tells(name):
    wanted, machine = MACHINES[name], machine_of(name)
    (gpu,) = machine.gpus
    given = wanted["gpus"][0]
    assert (gpu.id, gpu.name.value, gpu.driver.version.value) == (
        given["uuid"],
        given["name"],
        wanted["driver"],
    )
    found = {path: fact(gpu, path) for path in wanted["reported"]}
    assert {path: f.status if f.value is None else f.value for path, f in found.items()} == wanted["reported"]
    assert [[p.units.value, p.memory_bytes.value] for p in gpu.compute.partitions] == wanted.get(
        "partitions", []
    )
    assert gpu.power.throttle == wanted.get("throttle", [])
    assert machine.recommendation.mode == wanted["mode"]
    assert set(wanted.get("notes", [])) <= {reason.code for reason in machine.recommendation.reasons}


def test_unified_memory_by_the_second_proof_needs_both_halves():
    """NotSupported alone may be a discrete card; the chip's id alone may be a card that tells its size."""
    card = {**MACHINES["h100"], "gpus": [{**MACHINES["h100"]["gpus"][0], "memory": None}]}
    (gpu,) = detect.inspect(records=last_answer(nvml.probe_nvml, Nvml(card))["records"]).gpus
    assert (gpu.memory.unified.value, gpu.memory.usable_bytes.status) == (None, "unsupported")
    assert machine_of("gb10").gpus[0].memory.unified.value is True


def test_unified_memory_by_the_first_proof_is_what_cuda_says(look, host):
    """CUDA's INTEGRATED needs no name of a chip; the size it tells is the system's."""
    listed = last_answer(nvml.probe_nvml, Nvml(MACHINES["gb10"]))["records"]
    unnamed = [{**record, "device_id": "ffff"} for record in listed]
    cuda = {"source": "cuda", "uuid": listed[0]["uuid"], "adapter_type": "integrated", "memory_bytes": 128 << 30,
            "memory.unified": {"value": True, "status": "ok"}}  # fmt: skip
    (gpu,) = detect.inspect(records=[*unnamed, cuda]).gpus
    assert (gpu.memory.unified.value, gpu.kind.value) == (True, "integrated")
    assert gpu.memory.dedicated_bytes.value is None


def test_a_unified_gpu_may_use_the_usable_ram(plant, host, pci):
    """The whole way on a machine: firmware names the chip, NVML refuses, usable is the usable RAM."""
    host |= {"/sys/class/dmi/id/product_name": "NVIDIA DGX Spark"}
    host |= pci("000f:01:00.0", "10de", "2e12", "nvidia", pci_class="0302")
    records = last_answer(nvml.probe_nvml, Nvml(MACHINES["gb10"]))["records"]
    machine = detect.inspect(sysroot=plant(host), extra_records=records)
    (gpu,) = machine.gpus
    assert gpu.memory.usable_bytes.value == machine.memory.usable_bytes.value == 6 << 30
    assert (gpu.memory.dedicated_bytes.value, gpu.kind.value) == (None, "integrated")


@pytest.mark.parametrize(
    ("status", "codes"), [("mismatch", ("DRIVER_MISMATCH",)), ("ok", ()), ("timeout", ()), ("crashed", ())]
)
def test_driver_and_library_that_differ_make_a_listed_gpu_unusable(plant, host, pci, status, codes):
    machine = detect.inspect(sysroot=plant(host | pci("0000:01:00.0", "10de", "2330", "nvidia")))
    devices = [MergedDevice(DeviceRecord(source="pci-sysfs"))]
    (said_of,) = read_access([Provider(name="nvml", status=status)], {}, machine.gpus, devices, {}).values()
    assert said_of.codes == codes
