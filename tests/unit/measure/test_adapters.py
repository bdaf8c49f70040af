"""One adapter of each card: scripted listings of several drivers and interfaces, and a trial whose times are known."""

import itertools
from types import SimpleNamespace

import msgspec
import pytest

from gpubench import detect
from gpubench.backends import wgpu as wgpu_backend
from gpubench.measure import adapters, protocol, targets
from gpubench.measure.adapters import cards, try_adapter
from gpubench.measure.targets import DeviceRequest, Listing, choose
from gpubench.result.run import Device, Identity, WorkerRecord
from tests.unit.measure.builders import block, device

RADV, AMDVLK = "radv", "AMD open-source driver"
NAVI, ARC, H200 = (0x1002, 0x744C), (0x8086, 0x56A0), (0x10DE, 0x2335)


def adapter(ids=NAVI, driver=RADV, api="Vulkan", kind="DiscreteGPU", **more):
    vendor_id, device_id = ids
    info = {
        "device": f"GPU {device_id:04x}" + (" (RADV NAVI31)" if driver == RADV else ""), "backend_type": api,
        "adapter_type": kind, "vendor_id": vendor_id, "device_id": device_id, "vendor": driver, "description": "",
        **more,
    }  # fmt: skip
    return SimpleNamespace(info=info, features=frozenset())


LAVAPIPE = adapter((0x10005, 0), "llvmpipe", kind="CPU")
APPLE = adapter((0, 0), "", "Metal", "IntegratedGPU", device="Apple M2")
# A vendor without a PCI id, and one with two numbers.
ASAHI = adapter((0x10005, 0), "Honeykrisp", kind="IntegratedGPU", device="Apple M1 (G13G B1)")
ADRENO, ADRENO_DX = (
    adapter((vendor, 0x36334330), "Qualcomm", api, "IntegratedGPU") for vendor, api in ((0x5143, "Vulkan"), (0x4D4F4351, "D3D12"))
)  # fmt: skip


@pytest.fixture
def wgpu(monkeypatch):
    """Have wgpu list these adapters; returns its devices."""

    def lists(*listed):
        import wgpu

        monkeypatch.setattr(wgpu.gpu, "enumerate_adapters_sync", lambda: list(listed))
        return wgpu_backend.BACKEND.devices()

    return lists


MESA, OTHER, BY_DX = adapter(), adapter(driver=AMDVLK), adapter(driver="", api="D3D12")
# The same drivers for cards whose addresses are told.
MESA_3, MESA_A, OTHER_3, OTHER_A = (
    adapter(driver=driver, device_pci_bus_id=f"0000:{bus}:00.0") for driver in (RADV, AMDVLK) for bus in ("03", "0a")
)  # fmt: skip


@pytest.mark.parametrize(("listed", "expected"), [
    ([MESA, OTHER], ["01"]), ([BY_DX, MESA], ["01"]), ([MESA, MESA], ["0", "1"]),
    ([MESA, MESA, OTHER, OTHER], ["02", "13"]), ([MESA, OTHER, MESA, OTHER], ["01", "23"]),
    ([MESA, MESA, OTHER], ["02", "1"]), ([MESA, adapter(ARC, "Intel open-source Mesa driver")], ["0", "1"]),
    ([MESA, LAVAPIPE, OTHER], ["01"]), ([APPLE], ["0"]),
    ([MESA, BY_DX, BY_DX], ["012"]), ([BY_DX, BY_DX], ["0", "1"]), ([ADRENO, ADRENO_DX], ["01"]), ([ASAHI, LAVAPIPE], ["0"]), ([adapter((0, 0)), adapter((0, 0), AMDVLK)], ["0", "1"]),
    # Addresses outweigh the order of the listings.
    ([MESA_3, MESA_A, OTHER_A, OTHER_3], ["03", "12"]), ([MESA_3, OTHER_A], ["0", "1"]),
])  # fmt: skip
def test_adapters_of_one_card_are_found_and_equal_cards_stay_apart(wgpu, listed, expected):
    found = cards(device for device in wgpu(*listed) if device.kind == "gpu")
    assert [[device.id for device in card] for card in found] == [
        [f"wgpu:{number}" for number in card] for card in expected
    ]  # fmt: skip


@pytest.fixture
def listed(monkeypatch, wgpu):
    """Have the backends list NumPy's CPU, a CuPy device if asked for, and these adapters of wgpu."""

    def lists(*found, cupy=()):
        listings = {
            "numpy": Listing("numpy", (Device(id="numpy:0", backend="numpy", kind="cpu", name="CPU", api="host"),)),
            "cupy": Listing("cupy", tuple(cupy)),
            "wgpu": Listing("wgpu", tuple(wgpu(*found)), ("tuned",)),
        }  # fmt: skip
        monkeypatch.setattr(targets, "list_devices", lambda names, **_: [listings[name] for name in names])
        monkeypatch.setattr(targets.backends, "usual", lambda: tuple(listings))
        return listings

    return lists


def timed(*seconds):
    """A trial of the adapters in their order, which remembers whom it was asked for."""

    def trial(device_id):
        trial.asked.append(device_id)
        return seconds[int(device_id[-1])]

    trial.asked = []
    return trial


def chosen(request=None, trial=None, **more):
    found = choose(request or DeviceRequest(), trial=trial, **more)
    messages = [warning.message for warning in found.warnings if warning.code == "listed-twice"]
    return [t.device.id for t in found.targets if t.device.kind != "cpu"], messages


@pytest.mark.parametrize(("other", "seconds", "taken", "why"), [
    (OTHER, (1.3e-3, 1e-3), "wgpu:1", "wgpu lists this GPU 2 times (Vulkan by RADV, Vulkan by AMDVLK); Vulkan by AMDVLK was measured, 1.3x faster in a trial; others: --devices wgpu:0"),
    (BY_DX, (1e-3, 2e-3), "wgpu:0", "(Vulkan by RADV, DX12); Vulkan by RADV was measured, 2x faster in a trial"),
    (OTHER, (1.02e-3, 1e-3), "wgpu:0", "as none is clearly faster"),
    (OTHER, (None, 1e-3), "wgpu:1", "as the trial of Vulkan by RADV failed"),
    (OTHER, (1e-3, None), "wgpu:0", "as the trial of Vulkan by AMDVLK failed"),
    (OTHER, (None, None), "wgpu:0", "the first, as no trial succeeded"),
])  # fmt: skip
def test_the_faster_driver_of_a_card_is_measured_and_the_other_is_named(listed, other, seconds, taken, why):
    listed(MESA, other)
    ids, (message,) = chosen(trial=timed(*seconds))
    assert (ids, why in message) == ([taken], True)


def test_equal_cards_take_the_same_driver_after_one_trial(listed):
    """Four adapters, two cards: choosing card by card could take both adapters of one card."""
    listed(MESA, MESA, OTHER, OTHER)
    trial = timed(2e-3, None, 1e-3)
    ids, (message, *_) = chosen(trial=trial)
    assert (ids, trial.asked) == (["wgpu:2", "wgpu:3"], ["wgpu:0", "wgpu:2"])
    assert "each of 2 identical GPUs 2 times" in message
    assert "others: --devices wgpu:0,wgpu:1" in message


@pytest.mark.parametrize(("words", "expected"), [
    ({"devices": ("wgpu:1",)}, ["wgpu:1"]), ({"devices": ("wgpu:0", "wgpu:1")}, ["wgpu:0", "wgpu:1"]),
    ({"devices": ("wgpu:*",)}, ["wgpu:0", "wgpu:1"]), ({"required": ("wgpu",), "devices": ("wgpu:1",)}, ["wgpu:1"]),
])  # fmt: skip
def test_what_is_named_is_measured_without_a_trial(listed, words, expected):
    listed(MESA, OTHER)
    assert chosen(DeviceRequest(**words), trial=timed()) == (expected, [])
    ids, (message,) = chosen()
    assert (ids, "the first, as no trial was made" in message) == (["wgpu:0"], True)


def test_a_split_uses_the_adapter_that_is_taken(listed):
    listings = listed(MESA, OTHER)
    split, gpus = {"backend": "hybrid", "kind": "hybrid"}, listings["wgpu"].devices
    splits = tuple(msgspec.structs.replace(gpu, id=f"hybrid:{gpu.id}", **split) for gpu in gpus)
    listings["hybrid"], trial = Listing("hybrid", splits), timed(2e-3, 1e-3)
    ids, messages = chosen(DeviceRequest(required=("numpy", "wgpu", "hybrid")), trial=trial)
    assert (ids, len(messages), trial.asked) == (["wgpu:1", "hybrid:wgpu:1"], 1, ["wgpu:0", "wgpu:1"])


def test_backends_stay_contenders_of_one_gpu(listed):
    """CuPy and WebGPU on one NVIDIA GPU: both are measured, and both have its id."""
    cupy = Device(
        id="cupy:0", backend="cupy", kind="gpu", name="NVIDIA H200", api="cuda",
        identity=Identity(uuid="ab" * 16, pci="0000:09:00.0", vendor_id=0x10DE),
    )  # fmt: skip
    listings = listed(adapter(H200, "NVIDIA"), cupy=[cupy])
    assert chosen(trial=timed()) == (["cupy:0", "wgpu:0"], [])
    machine = machine_of(listings.values(), {"source": "nvml", "bdf": "0000:09:00.0", "vendor_id": "10de", "device_id": "2335"})  # fmt: skip
    assert len(machine.gpus) == 1
    assert len({gpu_id(machine, device) for device in (cupy, *listings["wgpu"].devices)}) == 1


# ------------------------------------------------------------------- what detection makes of the listings


def machine_of(listings, *more):
    return detect.inspect(records=[*targets.records(list(listings)), *more])


def gpu_id(machine, device):
    return detect.gpu_for(machine, device.identity, device.api)


def mps(name="Apple GPU"):
    return Device(id="torch:mps:0", backend="torch", kind="gpu", name=name, api="metal", identity=Identity())


@pytest.mark.parametrize("files", [[], [{"source": "drm", "vendor_id": "106b", "kind": "integrated"}]])
def test_mesas_driver_of_apples_gpu_drives_that_gpu(wgpu, files):
    devices = wgpu(ASAHI, LAVAPIPE)
    machine = machine_of([Listing("wgpu", tuple(devices))], *files)
    assert [gpu.vendor.value for gpu in machine.gpus] == ["apple"]
    assert gpu_id(machine, devices[0]) == machine.gpus[0].id


def test_wgpu_and_mps_on_apple_are_one_gpu(wgpu):
    device, listings = wgpu(APPLE)[0], [Listing("wgpu", tuple(wgpu(APPLE))), Listing("torch", (mps(),))]
    for order in itertools.permutations(listings):
        machine = machine_of(order)
        (gpu,) = machine.gpus
        assert (gpu.vendor.value, sorted(gpu.apis)) == ("apple", ["torch:metal", "wgpu:metal"])
        assert gpu_id(machine, device) == gpu_id(machine, mps()) == gpu.id


# ------------------------------------------------------------------- the trial itself


def test_a_trial_times_checked_launches_of_a_real_device():
    assert 0 < (try_adapter("fake:gpu") or 0) < 1e-2


@pytest.mark.parametrize(("answers", "seconds"), [
    ([[4e-3, 2e-3], [8e-3, 9e-3]], 4e-3), ([None, [8e-3]], 8e-3), ([None, None], None), ([[1e-3], "broke"], None),
])  # fmt: skip
def test_a_trial_takes_the_shortest_sample_by_the_first_implementation(monkeypatch, answers, seconds):
    """Tuned kernels are refused here, so the library's are timed; nothing else is: no parts, no clock, no trials."""
    asked, left = [], [place for answer in answers for place in ("tuned", answer)]

    class Scripted:
        next_id = 1

        def ask(self, request, deadline_s):
            asked.append(request)
            if isinstance(request, protocol.Open):
                record = WorkerRecord(device_id="wgpu:1", threads=1, env={})
                return protocol.Opened(id=1, device=device("wgpu:1"), record=record)
            if isinstance(request, protocol.Sample) and left[0] != "broke":
                return protocol.Sampled(id=1, block=block(left.pop(0)))
            if left[0] in ("tuned", None):
                left.pop(0)
                return protocol.Refused(id=1, reason="no-implementation", detail="")
            return protocol.Done(id=1)

        def close(self):
            pass

    monkeypatch.setattr(adapters, "Worker", Scripted)
    assert try_adapter("wgpu:1") == (seconds and pytest.approx(seconds))
    opening, *rest = asked
    assert (opening.device_id, opening.autotune, opening.threads) == ("wgpu:1", False, None)
    prepared = [request for request in rest if isinstance(request, protocol.Prepare)]
    names = [(request.case.op, request.case.params["n"], request.case.implementation) for request in prepared]
    assert names == [(op, n, kind) for op, _, n in adapters.TRIAL_CASES for kind in ("tuned", "library")]
    assert {(request.part_samples, request.device_clock) for request in prepared} == {(0, False)}


@pytest.mark.parametrize("word", ["wrong", "hang"])
def test_a_trial_that_breaks_or_hangs_has_no_time(monkeypatch, word):
    monkeypatch.setattr(adapters, "DEADLINE_S", 1.0)
    assert try_adapter(f"fake:{word}") is None
