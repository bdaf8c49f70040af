"""Which devices are measured: auto takes what is usable, a name is a promise, software only when asked for."""

from __future__ import annotations

import pytest

from gpubench.errors import ExitCode, RequiredUnavailable
from gpubench.measure import targets
from gpubench.measure.devices import Listing
from gpubench.measure.targets import Wish, choose, with_gpu_memory
from gpubench.model.result import Device, Identity


def device(device_id, kind="gpu", api="vulkan", identity=None):
    return Device(
        id=device_id, backend=device_id.partition(":")[0], kind=kind, name=device_id, api=api, identity=identity
    )


LISTINGS = {
    "numpy": Listing("numpy", (device("numpy:0", "cpu", "host"),), ("library", "tuned"), "2.0"),
    "cupy": Listing("cupy", reason="unavailable", detail="CuPy cannot be imported", hint="install it"),
    "wgpu": Listing("wgpu", (device("wgpu:0"), device("wgpu:1", "software")), ("tuned",), "0.32"),
    "fake": Listing("fake", tuple(device(f"fake:{w}") for w in ("cpu", "gpu", "crash")), ("library",)),
}


@pytest.fixture(autouse=True)
def listed(monkeypatch):
    asked = []

    def list_devices(names, deadline_s=0.0):
        asked.append(tuple(names))
        return [LISTINGS[name] for name in names]

    monkeypatch.setattr(targets, "list_devices", list_devices)
    return asked


def ids(wish):
    return [target.device.id for target in choose(wish).targets]


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        (Wish(), ["numpy:0", "wgpu:0"]),
        (Wish(allow_software=True), ["numpy:0", "wgpu:0", "wgpu:1"]),
        (Wish(required=("numpy",)), ["numpy:0"]),
        (Wish(required=("numpy", "wgpu")), ["numpy:0", "wgpu:0", "wgpu:1"]),
        (Wish(optional=("cupy", "numpy")), ["numpy:0"]),
        (Wish(devices=("wgpu:1",)), ["wgpu:1"]),
        (Wish(devices=("numpy:0", "wgpu:1")), ["numpy:0", "wgpu:1"]),
        (Wish(required=("numpy",), devices=("wgpu:1",)), ["numpy:0", "wgpu:1"]),
        (Wish(required=("fake",)), ["fake:cpu", "fake:gpu"]),
        (Wish(devices=("fake:crash",)), ["fake:crash"]),
    ],
)
def test_choice(wish, expected):
    assert ids(wish) == expected


def test_only_the_backends_that_matter_are_asked(listed):
    choose(Wish(required=("numpy",), devices=("numpy:0", "wgpu:0")))
    choose(Wish())
    assert listed == [("numpy", "wgpu"), ("numpy", "cupy", "wgpu")]


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        (Wish(required=("cupy",)), "the backend cupy is not available"),
        (Wish(devices=("cupy:0",)), "there is no device cupy:0"),
        (Wish(devices=("numpy:3",)), "there is no device numpy:3"),
        (Wish(devices=("numpy:0", "wgpu:7")), "there is no device wgpu:7"),
    ],
)
def test_what_was_named_and_is_not_there(wish, told):
    with pytest.raises(RequiredUnavailable) as refused:
        choose(wish)
    assert refused.value.exit_code == ExitCode.UNAVAILABLE
    assert refused.value.message == told
    assert refused.value.why
    assert refused.value.hint


def test_what_is_left_out_is_told():
    choice = choose(Wish())
    assert [(w.code, w.severity) for w in choice.warnings] == [
        ("unavailable", "info"),
        ("software-device", "info"),
    ]
    assert "CuPy cannot be imported" in choice.warnings[0].message
    assert choice.warnings[0].hint == "install it"
    assert choice.versions == {"numpy": "2.0", "wgpu": "0.32"}
    assert choose(Wish(required=("numpy",))).warnings == ()


def test_records_for_detection_carry_ids_in_its_spelling(monkeypatch):
    known = Identity(uuid="abc", pci="0000:09:00.0", vendor_id=0x10DE, device_id=0x2335)
    monkeypatch.setitem(
        LISTINGS, "cupy", Listing("cupy", (device("cupy:1", api="cuda", identity=known),), ("library",), "14")
    )
    (record,) = targets.records(choose(Wish(required=("numpy", "cupy"))))
    assert record["source"] == "cuda"
    assert record["ordinal"] == 1
    assert (record["uuid"], record["bdf"]) == ("GPU-abc", "0000:09:00.0")
    assert (record["vendor_id"], record["device_id"]) == ("10de", "2335")


def test_backends_on_one_gpu_share_its_memory():
    card = {"gpu_id": "GPU-1", "kind": "gpu", "name": "X"}
    cuda = Device(id="cupy:0", backend="cupy", api="cuda", usable_bytes=100, **card)
    vulkan = Device(id="wgpu:0", backend="wgpu", api="vulkan", **card)
    alone = Device(
        id="cupy:1", backend="cupy", api="cuda", usable_bytes=70, gpu_id="GPU-2", kind="gpu", name="X"
    )
    cpu = Device(id="numpy:0", backend="numpy", api="host", kind="cpu", name="CPU")
    found = with_gpu_memory([cuda, vulkan, alone, cpu], {"GPU-1": 90, "GPU-2": None})
    assert [device.usable_bytes for device in found] == [45, 45, 70, None]
