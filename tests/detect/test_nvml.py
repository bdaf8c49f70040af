"""A scripted NVML whose answers follow what `nvidia-smi -q` shows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpubench import detect
from gpubench.detect.probes import ProbeFailure, nvml
from tests.detect.recorded import last_answer
from tests.nvml import Nvml

H200 = "GPU-00000000-1111-2222-3333-444444444444"
GIB = 1 << 30


def library(**answers):
    """What `nvidia-smi -q` shows of an H200; a number is an error, where no number is the answer."""
    numbers = ("nvmlDeviceGetCount", "nvmlSystemGetCudaDriverVersion_v2")
    answers = {
        "nvmlSystemGetCudaDriverVersion_v2": 13000, "nvmlDeviceGetUUID": H200, "nvmlDeviceGetName": "NVIDIA H200",
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=100 * GIB, free=90 * GIB, reserved=GIB, used=9 * GIB),
    } | answers  # fmt: skip
    return Nvml(**{
        name: Nvml.NVMLError(answer) if isinstance(answer, int) and name not in numbers else answer
        for name, answer in answers.items()
    })  # fmt: skip


def gpu(**answers):
    found = detect.inspect(records=last_answer(nvml.probe_nvml, library(**answers))["records"])
    assert len(found.gpus) == 1
    return found.gpus[0]


@pytest.mark.parametrize(("number", "version"), [(13000, "13.0"), (12040, "12.4"), (11080, "11.8")])
def test_the_driver_tells_the_newest_cuda_that_it_serves(number, version):
    cuda = gpu(nvmlSystemGetCudaDriverVersion_v2=number).driver.cuda
    assert (cuda.value, cuda.source) == (version, "nvml")


def test_every_field_has_its_own_try():
    found = gpu(
        nvmlDeviceGetCudaComputeCapability=(9, 0), nvmlDeviceGetMaxClockInfo=lambda _h, _c: 1980, nvmlDeviceGetEccMode=(1, 1),
        nvmlDeviceGetComputeMode=lambda _h: 2, nvmlDeviceGetPowerManagementLimit=lambda _h: 700000,
        nvmlDeviceGetMaxPcieLinkGeneration=lambda _h: 5, nvmlDeviceGetCurrentClocksEventReasons=lambda _h: 0x24,
        nvmlDeviceGetName=4,
    )  # fmt: skip
    assert (found.compute.arch.value, found.compute.max_hz.value) == ("sm_90", 1_980_000_000)
    assert found.compute.ecc.value is True
    assert (found.usable.value, found.why_not) == (False, ["COMPUTE_PROHIBITED"])
    assert (found.power.limit_w.value, found.power.throttle) == (700.0, ["sw_power_cap", "sw_thermal_slowdown"])
    assert (found.link.gen_max.value, found.link.width_max.status) == (5, "unsupported")
    assert found.name_precision == "family"  # the driver's name is none


def test_old_library_without_the_v2_call():
    def memory(_handle, version=None):
        if version is not None:
            raise Nvml.NVMLError(13)
        return SimpleNamespace(total=16 * GIB, free=GIB, used=15 * GIB)

    found = gpu(nvmlDeviceGetMemoryInfo=memory).memory
    assert (found.dedicated_bytes.value, found.reserved_bytes.status) == (16 * GIB, "unsupported")


@pytest.mark.parametrize("answer", [3, SimpleNamespace(total=0, free=0, reserved=0)])
def test_a_discrete_card_that_refuses_its_size_gets_none(answer):
    memory = gpu(nvmlDeviceGetMemoryInfo=answer).memory
    assert memory.dedicated_bytes.status == memory.usable_bytes.status == "unsupported"
    assert memory.unified.value is None


def test_vgpu_is_no_discrete_card():
    assert gpu(nvmlDeviceGetVirtualizationMode=lambda _h: 2).kind.value == "vgpu"


def test_mig_in_a_container_has_memory_from_its_instances():
    def memory(handle, _version=None):
        if handle == 0:
            raise Nvml.NVMLError(4)
        return SimpleNamespace(total=20 * GIB, free=20 * GIB, reserved=0)

    def instance(_handle, index):
        if index > 1:
            raise Nvml.NVMLError(6)
        return f"mig{index}"

    found = gpu(
        nvmlDeviceGetMemoryInfo=memory, nvmlDeviceGetMigMode=(1, 1), nvmlDeviceGetMigDeviceHandleByIndex=instance,
        nvmlDeviceGetMaxMigDeviceCount=lambda _h: 7,
        nvmlDeviceGetUUID=lambda handle: H200 if handle == 0 else f"MIG-{'1' * 8}-0000-0000-0000-00000000000{handle[-1]}",
        nvmlDeviceGetAttributes=SimpleNamespace(multiprocessorCount=60),
    )  # fmt: skip
    assert found.memory.dedicated_bytes.status == "permission"
    assert found.memory.usable_bytes.value == 20 * GIB
    assert [p.units.value for p in found.compute.partitions] == [60, 60]


@pytest.mark.parametrize(
    ("code", "status"), [(18, "mismatch"), (9, "absent"), (12, "absent"), (4, "permission"), (999, "invalid")]
)
def test_nvml_that_cannot_start_says_why(code, status):
    with pytest.raises(ProbeFailure) as failure:
        last_answer(nvml.probe_nvml, library(nvmlInit=code))
    assert failure.value.status == status
    assert failure.value.hint
