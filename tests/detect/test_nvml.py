"""A scripted NVML whose answers follow what `nvidia-smi -q` shows."""

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


def test_a_name_that_is_refused_costs_itself_and_reasons_have_a_newer_name():
    card = gpu(nvmlDeviceGetName=4, nvmlDeviceGetCurrentClocksEventReasons=lambda _h: 0x24)
    assert card.name_precision == "family"
    assert card.power.throttle == ["sw_power_cap", "sw_thermal_slowdown"]
    assert card.memory.dedicated_bytes.value == 100 * GIB


@pytest.mark.parametrize("answer", [3, SimpleNamespace(total=0, free=0, reserved=0)])
def test_a_discrete_card_that_refuses_its_size_gets_none(answer):
    memory = gpu(nvmlDeviceGetMemoryInfo=answer).memory
    assert memory.dedicated_bytes.status == memory.usable_bytes.status == "unsupported"
    assert memory.unified.value is None


@pytest.mark.parametrize(
    ("code", "status"), [(18, "mismatch"), (9, "absent"), (12, "absent"), (4, "permission"), (999, "invalid")]
)
def test_nvml_that_cannot_start_says_why(code, status):
    with pytest.raises(ProbeFailure) as failure:
        last_answer(nvml.probe_nvml, library(nvmlInit=code))
    assert failure.value.status == status
    assert failure.value.hint
