"""Windows' registry describes the adapters that a library lists, and adds none."""

import pytest

from gpubench import detect
from gpubench.detect.probes import libraries

RADEON = {"source": "wgpu:dx12", "vendor_id": "1002", "device_id": "73bf", "name": "AMD Radeon RX 6800 XT",
          "adapter_type": "discrete"}  # fmt: skip
ENTRY = {
    "MatchingDeviceId": "PCI\\VEN_1002&DEV_73BF&SUBSYS_0E3A1002", "DriverVersion": "32.0.12019.1028",
    "HardwareInformation.qwMemorySize": 16 << 30,
}  # fmt: skip


def described(monkeypatch, *entries):
    """Return the facts that a Radeon gets."""
    monkeypatch.setattr(libraries, "_adapters", lambda: iter(entries))
    facts = libraries.read_registry().get((0x1002, 0x73BF), {})
    return {path: fact["value"] for path, fact in facts.items()}


def test_a_card_gets_its_memory_which_makes_the_mode_gpu_and_the_version_of_its_driver(monkeypatch):
    assert described(monkeypatch, ENTRY) == {
        "memory.dedicated_bytes": 16 << 30,
        "driver.version": "32.0.12019.1028",
    }
    size = {"memory.dedicated_bytes": {"value": 16 << 30, "status": "ok", "source": "registry"}}
    machine = detect.inspect(records=[RADEON | size])
    assert (machine.gpus[0].memory.usable_bytes.value, machine.recommendation.mode) == (16 << 30, "gpu")


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        *(({"HardwareInformation.qwMemorySize": size}, known) for size, known in (
            ((16 << 30).to_bytes(8, "little"), 16 << 30), (0, None), ("16 GB", None))),
        *(({"MatchingDeviceId": id}, known) for id, known in (
            ("pci\\ven_1002&dev_73bf", 16 << 30), ("PCI\\VEN_1002&DEV_744C", None), ("ROOT\\BasicDisplay", None), (None, None))),
    ],
)  # fmt: skip
def test_entries_of_other_forms(changes, size, monkeypatch):
    assert described(monkeypatch, ENTRY | changes).get("memory.dedicated_bytes") == size


def test_two_entries_of_a_model_that_differ_tell_nothing(monkeypatch):
    other = ENTRY | {"HardwareInformation.qwMemorySize": 8 << 30}
    assert described(monkeypatch, ENTRY, other) == {"driver.version": "32.0.12019.1028"}
    assert described(monkeypatch, ENTRY, other, ENTRY).get("memory.dedicated_bytes") is None
