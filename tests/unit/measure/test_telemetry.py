"""Whose clocks are read: devices matched by uuid or address, and a reason for each that is not."""

from types import SimpleNamespace

import pytest

from gpubench.detect.probes import nvml
from gpubench.measure import monitor, monitor_child
from gpubench.measure.monitor import MonitorTarget, Reading
from gpubench.result.machine import Fact, Gpu, Machine
from gpubench.result.run import Device, Identity
from tests.nvml import Nvml

UUID = "GPU-00000000-1111-2222-3333-444444444444"


def cards(**answers):
    """Two cards; the power of the second one is a secret."""
    return Nvml(**{
        "nvmlDeviceGetCount": 2,
        "nvmlDeviceGetUUID": lambda card: UUID.replace("444444444444", f"44444444444{card}"),
        "nvmlDeviceGetPciInfo": lambda card: SimpleNamespace(busId=f"00000000:0{card + 6}:00.0".encode()),
        "nvmlDeviceGetClockInfo": lambda card, kind: 1980 if kind == Nvml.NVML_CLOCK_SM else 2619,
        "nvmlDeviceGetTemperature": lambda card, sensor: 41 + card,
        "nvmlDeviceGetPowerUsage": lambda card: 123456 if card == 0 else Nvml().nvmlDeviceGetPowerUsage(),
        "nvmlDeviceGetCurrPcieLinkGeneration": 5,
        "nvmlDeviceGetCurrentClocksEventReasons": 0x1 | 0x4 | 0x40,
    } | answers)  # fmt: skip


def test_a_reading_has_what_the_card_tells_and_none_for_the_rest():
    found = nvml.gpu_readers(
        [MonitorTarget("cupy:0", pci="0000:06:00.0"), MonitorTarget("cupy:1", pci="0000:07:00.0")], {}, cards()
    )
    assert found["cupy:0"]() == {
        "clock_hz": 1.98e9, "memory_clock_hz": 2.619e9, "temperature_c": 41.0, "power_w": pytest.approx(123.456),
        "energy_j": None,
        "throttle": ["sw_power_cap", "hw_thermal_slowdown"], "pcie_generation": 5, "pcie_width": None,
    }  # fmt: skip
    assert found["cupy:1"]()["power_w"] is None
    assert found["cupy:1"]()["temperature_c"] == 42.0


@pytest.mark.parametrize(("target", "temperature"), [
    (MonitorTarget("cupy:0", uuid="00000000111122223333444444444441"), 42.0),
    (MonitorTarget("cupy:0", uuid="MIG-00000000-1111-2222-3333-999999999999", pci="0000:07:00.0"), 42.0),
    (MonitorTarget("cupy:0", pci="00000000:06:00.0"), 41.0),
])  # fmt: skip
def test_a_device_is_found_by_uuid_in_any_spelling_or_by_address(target, temperature):
    absent = {}
    assert nvml.gpu_readers([target], absent, cards())["cupy:0"]()["temperature_c"] == temperature
    assert absent == {}


@pytest.mark.parametrize(("place", "answers", "why"), [
    ("0000:99:00.0", {}, "NVML lists no such GPU"),
    ("0000:06:00.0", {"nvmlInit": Nvml.NVMLError("Driver Not Loaded")}, "NVML: Driver Not Loaded"),
])  # fmt: skip
def test_a_driver_that_does_not_list_a_gpu_or_refuses_is_a_reason(place, answers, why):
    absent = {}
    assert nvml.gpu_readers([MonitorTarget("cupy:0", pci=place)], absent, cards(**answers)) == {}
    assert absent == {"cupy:0": why}


def device(name, kind="gpu", gpu_id=None, identity=None):
    backend = name.partition(":")[0]
    return Device(id=name, backend=backend, kind=kind, name="X", api="vulkan", gpu_id=gpu_id, identity=identity)


class Watching:
    """Stands where a child would: what it is sent, and nothing more."""

    sent: list = []

    def __init__(self, command, env=None):
        self.sent = Watching.sent = []

    def write(self, line):
        self.sent.append(monitor.decode_order(line))

    def kill(self, after_s):
        pass


@pytest.fixture
def asked(monkeypatch):
    """The targets that the monitor is sent for some devices, and what is absent."""
    monkeypatch.setattr(monitor.processes, "Child", Watching)
    machine = Machine(gpus=[Gpu(id="GPU-a", bdf=Fact("0000:06:00.0", "ok", "nvml"))])

    def ask(*devices):
        Watching.sent = []
        session = monitor.of_session(devices, machine, 0.0)
        return [t for order in Watching.sent for t in order.targets], session.absent()

    return ask


NVIDIA = Identity(vendor_id=0x10DE, device_id=0x2335)
OWN = Identity(uuid="abc", pci="0000:07:00.0", vendor_id=0x10DE)


@pytest.mark.parametrize(
    ("devices", "targets"),
    [
        # By the address of the GPU that it is, or by its own identity; a split where its GPU is known.
        ([device("wgpu:0", gpu_id="GPU-a", identity=NVIDIA)], [("wgpu:0", None, "0000:06:00.0")]),
        ([device("cupy:0", identity=OWN)], [("cupy:0", "abc", "0000:07:00.0")]),
        ([device("hybrid:cupy:0", "hybrid", identity=OWN), device("hybrid:fake:gpu", "hybrid")],
         [("hybrid:cupy:0", "abc", "0000:07:00.0")]),
        ([device("numpy:0", "cpu"), device("wgpu:0", "software")], []),
    ],
)  # fmt: skip
def test_a_device_is_read_as_the_gpu_that_it_is(asked, devices, targets):
    assert asked(*devices) == ([MonitorTarget(*target) for target in targets], {})
    assert bool(Watching.sent) == bool(targets), "without a target nothing is started"


def test_another_vendor_and_an_unknown_gpu_are_reasons(asked):
    other = asked(device("wgpu:0", identity=Identity(vendor_id=0x1002)), device("wgpu:1", identity=Identity()))
    assert other[0] == []
    assert set(other[1]) == {"wgpu:0", "wgpu:1"}
    assert "NVIDIA" in other[1]["wgpu:0"]
    assert "which GPU" in other[1]["wgpu:1"]


def test_a_gpu_that_no_driver_knows_is_read_by_its_backend_or_not_at_all(asked):
    assert asked(device("fake:gpu"), device("wgpu:0")) == (
        [MonitorTarget("fake:gpu"), MonitorTarget("wgpu:0")],
        {},
    )
    found, absent = monitor_child.sources([MonitorTarget("fake:gpu"), MonitorTarget("wgpu:0")])
    assert found.keys() == {"fake:gpu"}
    assert found["fake:gpu"]()["clock_hz"] > 0
    assert absent == {"wgpu:0": monitor.UNKNOWN_GPU}
    assert monitor_child.users([MonitorTarget("fake:shared")])["fake:shared"].computing == 1


def test_one_warning_for_all_of_them():
    assert monitor.warning({}) is None
    found = monitor.warning({"wgpu:0": "a", "cupy:0": "a", "wgpu:1": "b"})
    assert (found.code, found.severity) == ("no-telemetry", "info")
    assert "cupy:0, wgpu:0, wgpu:1 cannot be read: a; b" in found.message


def test_columns_count_time_from_the_session(asked):
    found = monitor.columns(
        "cupy:0", [Reading("cupy:0", 12.5, 1e9), Reading("cupy:0", 12.6, None, power_w=3.0)], 12.0
    )
    assert found.t_s == pytest.approx([0.5, 0.6])
    assert (found.clock_hz, found.power_w, found.throttle) == ([1e9, None], [None, 3.0], [[], []])
