"""What a kernel that ran, or a compiler that declines, says about a device."""

from types import SimpleNamespace

import pytest

from gpubench import detect
from gpubench.detect.probes.libraries import probe_cuda as probe
from tests.detect.recorded import last_answer
from tests.detect.trees import HOST, check, pci

VENUS = {"source": "wgpu:vulkan", "ordinal": 0, "driver": "venus", "name": "Virtio-GPU Venus (Intel(R) Arc(tm) A770)",
         "vendor_id": "8086", "device_id": "56a0", "adapter_type": "virtual", "checked": True}  # fmt: skip


VIRTIO = HOST | pci("0000:00:03.0", "1af4", "1050", "virtio-pci")
TWO = VIRTIO | pci("0000:00:04.0", "1af4", "1050")
ARC = VENUS | {
    "driver": "Intel open-source Mesa driver",
    "name": "Intel(R) Arc(tm) A770",
    "adapter_type": "discrete",
}
DRAWS = {"gpus": [], "display_adapters.*.role": ["virtual"]}
ROWS = {
    "a virtio GPU that computed": (
        VIRTIO, [VENUS],
        {"gpus.*.bdf": ["0000:00:03.0"], "gpus.0.kind": "vgpu", "gpus.0.apis.wgpu:vulkan.ordinal": 0, "display_adapters": [], "warnings": [],
         "recommendation.rejected.*.code": ["VRAM_UNKNOWN"]}),
    **{f"without that proof: {change}": (VIRTIO, [VENUS | change], DRAWS) for change in (
        {"checked": False}, {"checked": None}, {"source": "wgpu:gl", "name": "virgl (AMD Radeon)", "driver": "virgl"},
        {"name": "Virtio-GPU Venus (llvmpipe (LLVM 17.0.6, 256 bits))"}, {"adapter_type": "cpu"})},
    "one proof for two": (TWO, [VENUS], {"gpu_count": 1, "display_adapters.*.role": ["virtual"]}),
    "two proofs for two": (TWO, [VENUS, VENUS | {"ordinal": 1}], {"gpu_count": 2, "display_adapters": []}),
    "a passed-through card beside virtio keeps its own adapter": (
        VIRTIO | pci("0000:00:05.0", "8086", "56a0", "i915"), [ARC, VENUS],
        {"gpus.*.bdf": ["0000:00:03.0", "0000:00:05.0"], "gpus.*.kind": ["vgpu", "discrete"], "gpus.0.name": VENUS["name"], "gpus.1.name": ARC["name"]}),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_what_computed_is_a_gpu(plant, name):
    tree, listed, expected = ROWS[name]
    check(detect.inspect(sysroot=plant(tree), extra_records=listed), expected)


class Cupy:
    __version__ = "14.0"

    def __init__(self, served, capability=(6, 1)):
        table = {"pciDomainID": 0, "pciBusID": 1, "pciDeviceID": 0, "name": b"NVIDIA GeForce GTX 1080", "integrated": 0,
                 "totalGlobalMem": 8 << 30, "multiProcessorCount": 20, "major": capability[0], "minor": capability[1]}  # fmt: skip
        runtime = SimpleNamespace(
            getDeviceCount=lambda: 1, getDeviceProperties=lambda _n: table, runtimeGetVersion=lambda: 13000,
            CUDARuntimeError=RuntimeError,
        )  # fmt: skip
        self.cuda = SimpleNamespace(runtime=runtime, nvrtc=SimpleNamespace(getSupportedArchs=served))
        self.ran = []
        self.cuda.Device = self.ran.append


def test_a_model_that_the_compiler_no_longer_serves_is_too_old():
    cupy = Cupy(lambda: [75, 80, 90, 100, 120])
    records = last_answer(probe, cupy)["records"]
    machine = detect.inspect(records=records)
    (gpu,) = machine.gpus
    assert (gpu.usable.value, gpu.why_not, cupy.ran) == (False, ["TOO_OLD"], [])
    assert machine.recommendation.rejected[0].code == "TOO_OLD"
    assert "extra cuda12" in machine.recommendation.reasons[0].text


def test_a_gpu_too_old_for_cuda_may_still_compute_through_vulkan():
    records = last_answer(probe, Cupy(lambda: [75]))["records"]
    vulkan = {"source": "wgpu:vulkan", "vendor_id": "10de", "adapter_type": "discrete", "checked": True}
    (gpu,) = detect.inspect(records=[*records, vulkan]).gpus
    assert gpu.why_not == []


def refuse():
    raise AttributeError("this CUDA has no such call")


@pytest.mark.parametrize("served", [lambda: [50, 60, 61], list, refuse])
def test_nothing_is_too_old_without_a_source_that_says_so(served):
    (record,) = last_answer(probe, Cupy(served), check=False)["records"]
    assert "why_not" not in record
