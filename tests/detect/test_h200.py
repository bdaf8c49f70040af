"""What the sources of one NVIDIA H200 said (its uuid replaced): six enumerations, one GPU."""

import json
from pathlib import Path

import pytest

from gpubench import detect
from gpubench.result.run import Identity
from tests.detect.trees import check

RECORDS = json.loads((Path(__file__).parent / "h200.records.json").read_text())["records"]
UUID = "GPU-00112233-4455-6677-8899-aabbccddeeff"


@pytest.fixture
def machine():
    return detect.inspect(records=RECORDS)


def test_six_enumerations_are_one_gpu_whose_memory_comes_from_nvml(machine):
    assert {r["source"] for r in RECORDS} == {
        "pci-sysfs",
        "proc-nvidia",
        "nvml",
        "cuda",
        "wgpu:vulkan",
        "wgpu:gl",
    }
    size = "gpus.0.memory.dedicated_bytes"
    expected = {
        "gpus.*.id": [UUID], "gpus.*.name": ["NVIDIA H200"], "gpus.*.bdf": ["0000:00:06.0"], size: 150754820096, f"{size}.source": "nvml",
        f"{size}.alternatives.*.source": ["cuda"], "gpus.0.memory.usable_bytes": 150754820096 - 644939776, "gpus.0.memory.unified": False,
    }  # fmt: skip
    check(machine, expected)
    assert set(machine.gpus[0].apis) == {"nvml", "cuda", "wgpu:vulkan", "wgpu:gl"}
    assert "NVIDIA H200 (140.4 GiB)" in detect.machine_line(machine)


@pytest.mark.parametrize(
    ("identity", "found"),
    [
        (Identity(uuid=UUID.upper()), UUID), (Identity(uuid="GPU-99999999-4455-6677-8899-aabbccddeeff", pci="0000:00:06.0"), UUID),
        (Identity(pci="00000000:00:06.0"), UUID), (Identity(vendor_id=0x10DE, device_id=0x2335), UUID),
        (Identity(vendor_id=0x10DE, device_id=0x2336), None), (Identity(pci="0000:07:00.0"), None), (Identity(), None),
    ],
)  # fmt: skip
def test_a_backends_device_finds_its_gpu(machine, identity, found):
    assert detect.gpu_for(machine, identity) == found


def test_two_cards_stay_two_and_know_their_link():
    text = (Path(__file__).parent / "two-h200.records.json").read_text()
    machine = detect.inspect(records=json.loads(text)["records"])
    first, second = machine.gpus
    assert first.id != second.id
    assert (first.link.peers, second.link.peers) == ([second.id], [first.id])
    assert [gpu.apis["cuda"].ordinal for gpu in machine.gpus] == [0, 1]
    assert machine.recommendation.device_ids == [first.id, second.id]
