"""Windows' registry describes the adapters that a library lists, and adds none."""

from __future__ import annotations

from typing import Any

import pytest

from gpubench import detect
from gpubench.detect.probes import libraries

RADEON = {"source": "wgpu:dx12", "vendor_id": "1002", "device_id": "73bf", "name": "AMD Radeon RX 6800 XT",
          "adapter_type": "discrete"}  # fmt: skip
ENTRY = {
    "MatchingDeviceId": "PCI\\VEN_1002&DEV_73BF&SUBSYS_0E3A1002", "DriverVersion": "32.0.12019.1028",
    "HardwareInformation.qwMemorySize": 16 << 30,
}  # fmt: skip


def described(monkeypatch: pytest.MonkeyPatch, *entries: dict[str, Any]) -> dict[str, Any]:
    """Return the facts that a Radeon gets."""
    monkeypatch.setattr(libraries, "_adapters", lambda: iter(entries))
    facts = libraries.read_registry().get((0x1002, 0x73BF), {})
    return {path: fact["value"] for path, fact in facts.items()}


def test_a_card_gets_its_memory_and_the_version_of_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = described(monkeypatch, ENTRY)
    assert facts == {"memory.dedicated_bytes": 16 << 30, "driver.version": "32.0.12019.1028"}


def test_its_memory_makes_the_mode_gpu() -> None:
    size = {"memory.dedicated_bytes": {"value": 16 << 30, "status": "ok", "source": "registry"}}
    machine = detect.inspect(records=[RADEON | size])
    assert (machine.gpus[0].memory.usable_bytes.value, machine.recommendation.mode) == (16 << 30, "gpu")


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({"HardwareInformation.qwMemorySize": (16 << 30).to_bytes(8, "little")}, 16 << 30),
        ({"HardwareInformation.qwMemorySize": 0}, None),
        ({"HardwareInformation.qwMemorySize": "16 GB"}, None),
        ({"MatchingDeviceId": "pci\\ven_1002&dev_73bf"}, 16 << 30),
        ({"MatchingDeviceId": "PCI\\VEN_1002&DEV_744C"}, None),
        ({"MatchingDeviceId": "ROOT\\BasicDisplay"}, None),
        ({"MatchingDeviceId": None}, None),
    ],
)
def test_entries_of_other_forms(
    changes: dict[str, Any], size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert described(monkeypatch, ENTRY | changes).get("memory.dedicated_bytes") == size


def test_two_entries_of_a_model_that_differ_tell_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ENTRY | {"HardwareInformation.qwMemorySize": 8 << 30}
    assert described(monkeypatch, ENTRY, other) == {"driver.version": "32.0.12019.1028"}
    assert described(monkeypatch, ENTRY, other, ENTRY).get("memory.dedicated_bytes") is None
