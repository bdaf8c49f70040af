"""The monitor: whose clocks are read, which readings speak for which samples, and who else is on a GPU."""

import functools
import os
import queue
import subprocess
import sys
from types import SimpleNamespace

import msgspec
import pytest

from gpubench.detect.probes import nvml
from gpubench.measure import monitor, monitor_child
from gpubench.measure.monitor import Monitor, MonitorTarget, Pause, Paused, Reading, Ready, Users
from gpubench.result.machine import Fact, Gpu, Machine
from gpubench.result.run import Identity
from tests.nvml import Nvml
from tests.unit.measure import builders

FULL = 2e9


def block(entries, warmup):
    return builders.block([1.0] * entries, warmup=warmup)


def read(t_s, clock_hz=FULL, *throttle):
    return Reading("cupy:0", t_s, clock_hz, throttle=list(throttle))


TIMES = [0.0, 1.0, 2.0, 3.0, 4.0]  # warm-up until 2, two samples
HOT, SLOW = "hw_thermal_slowdown", "hw_slowdown"


@pytest.mark.parametrize(("counted", "readings", "discarded", "clock_hz", "throttle"), [
    (None, [read(1.5), read(2.5, FULL, SLOW), read(3.5)], {"2": "throttled"}, [FULL, FULL], [SLOW]),
    # The nearer one counts; heat in the warm-up alone; a device that does not tell its clock.
    (None, [read(1.9), read(4.05, FULL, HOT)], {"3": "throttled"}, [FULL, FULL], [HOT]),
    (None, [read(0.5, FULL, HOT), read(2.2), read(3.2)], {}, [FULL, FULL], [HOT]),
    ([1.9e9, 1.8e9], [read(2.5), read(3.5, FULL, SLOW)], {"3": "throttled"}, [1.9e9, 1.8e9], [SLOW]),
    (None, [read(2.5, None)], {}, None, []), (None, [], {}, None, []),
])  # fmt: skip
def test_a_sample_is_judged_by_the_readings_during_it(counted, readings, discarded, clock_hz, throttle):
    """A clock that the device counted itself stays, and heat is read all the same."""
    found = monitor.judge_block(msgspec.structs.replace(block(4, 2), clock_hz=counted), TIMES, readings, FULL)
    assert (found.discarded, found.clock_hz, found.throttle or []) == (discarded, clock_hz, throttle)


@pytest.mark.parametrize(("reading", "usual", "is_slow"), [
    *((read(0.0, FULL, reason), None, True) for reason in sorted(monitor.SLOWED)),
    *((read(0.0, FULL, reason), FULL, False)
      for reason in ("applications_clocks", "sync_boost", "display_clocks", "sw_power_cap")),
    (read(0.0, 0.91 * FULL), FULL, False), (read(0.0, 0.89 * FULL), FULL, True), (read(0.0, 0.1 * FULL), None, False),
    (read(0.0, 0.5 * FULL, "sw_power_cap"), FULL, False),  # which explains a low clock
], ids=str)  # fmt: skip
def test_heat_and_power_slow_and_a_clock_below_nine_tenths_of_the_usual_one(reading, usual, is_slow):
    assert monitor.is_slowed_down(reading, usual) == is_slow


def test_a_block_is_compared_with_the_clocks_of_the_blocks_before_it():
    monitored = Monitor([], {}, 0.0)
    shares = [1.0, 0.98, *[0.85] * 4, 0.97]  # however long it stays slow
    judgements = [monitored.judge("cupy:0", block(4, 2), TIMES, [read(2.5, share * FULL)]) for share in shares]
    assert [bool(found.discarded) for found in judgements] == [False, False, *[True] * 4, False]
    other = monitored.judge("wgpu:0", block(4, 2), TIMES, [read(2.5, 0.5 * FULL)])
    assert not other.discarded, "another device has a clock of its own"


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
    targets = [MonitorTarget(f"cupy:{number}", pci=f"0000:0{6 + number}:00.0") for number in (0, 1)]
    found = nvml.gpu_readers(targets, {}, cards())
    assert found["cupy:0"]() == {
        "clock_hz": 1.98e9, "memory_clock_hz": 2.619e9, "temperature_c": 41.0, "power_w": pytest.approx(123.456),
        "energy_j": None, "throttle": ["sw_power_cap", "hw_thermal_slowdown"], "pcie_generation": 5, "pcie_width": None,
    }  # fmt: skip
    other = found["cupy:1"]()
    assert (other["power_w"], other["temperature_c"]) == (None, 42.0)


@pytest.mark.parametrize(("place", "answers", "told"), [
    ({"uuid": "00000000111122223333444444444441"}, {}, 42.0), ({"pci": "00000000:06:00.0"}, {}, 41.0),
    ({"uuid": "MIG-00000000-1111-2222-3333-999999999999", "pci": "0000:07:00.0"}, {}, 42.0),
    ({"pci": "0000:99:00.0"}, {}, "NVML lists no such GPU"),
    ({"pci": "0000:06:00.0"}, {"nvmlInit": Nvml.NVMLError("Driver Not Loaded")}, "NVML: Driver Not Loaded"),
])  # fmt: skip
def test_a_device_is_found_by_uuid_in_any_spelling_or_by_address_or_there_is_a_reason(place, answers, told):
    absent = {}
    found = nvml.gpu_readers([MonitorTarget("cupy:0", **place)], absent, cards(**answers))
    assert {name: read()["temperature_c"] for name, read in found.items()} | absent == {"cupy:0": told}


device = functools.partial(builders.device, api="vulkan")


class Begun:
    """Stands where the monitor's process would: what it is sent; it has said these lines, and then nothing."""

    lines_said: tuple[monitor.FromMonitor, ...] = ()
    latest = None

    def __init__(self, command, env=None):
        self.lines, self.sent = queue.Queue(), []
        Begun.latest = self
        for message in self.lines_said:
            self.lines.put(monitor.encode(message))

    def write(self, line):
        self.sent.append(monitor.decode_order(line))

    def kill(self, after_s):
        self.lines.put(None)


@pytest.fixture
def asked(monkeypatch):
    """The targets that the monitor is sent for some devices, and what is absent."""
    monkeypatch.setattr(monitor.processes, "Child", Begun)
    monkeypatch.setattr(Begun, "latest", None)
    machine = Machine(gpus=[Gpu(id="GPU-a", bdf=Fact("0000:06:00.0", "ok", "nvml"))])

    def ask(*devices):
        session = monitor.Monitor(*monitor.find_targets(devices, machine), 0.0)
        sent = Begun.latest.sent if Begun.latest else []
        return [target for order in sent for target in order.targets], session.absent()

    return ask


NVIDIA = Identity(vendor_id=0x10DE, device_id=0x2335)
OWN = Identity(uuid="abc", pci="0000:07:00.0", vendor_id=0x10DE)


@pytest.mark.parametrize(("devices", "targets"), [
    # By the address of the GPU that it is, or by its own identity; a split where its GPU is known.
    ([device("wgpu:0", gpu_id="GPU-a", identity=NVIDIA)], [("wgpu:0", None, "0000:06:00.0")]),
    ([device("cupy:0", identity=OWN)], [("cupy:0", "abc", "0000:07:00.0")]),
    ([device("hybrid:cupy:0", "hybrid", identity=OWN), device("hybrid:fake:gpu", "hybrid")],
     [("hybrid:cupy:0", "abc", "0000:07:00.0")]),
    ([device("numpy:0", "cpu"), device("wgpu:0", "software")], []),
])  # fmt: skip
def test_a_device_is_read_as_the_gpu_that_it_is(asked, devices, targets):
    assert asked(*devices) == ([MonitorTarget(*target) for target in targets], {})
    assert bool(Begun.latest) == bool(targets), "without a target nothing is started"


def test_another_vendor_and_an_unknown_gpu_are_reasons(asked):
    amd, unknown = Identity(vendor_id=0x1002), Identity()
    targets, absent = asked(device("wgpu:0", identity=amd), device("wgpu:1", identity=unknown))
    assert (targets, set(absent)) == ([], {"wgpu:0", "wgpu:1"})
    assert ("NVIDIA" in absent["wgpu:0"], "which GPU" in absent["wgpu:1"]) == (True, True)


def test_a_gpu_that_no_driver_knows_is_read_by_its_backend_or_not_at_all(asked):
    both = [MonitorTarget("fake:gpu"), MonitorTarget("wgpu:0")]
    assert asked(device("fake:gpu"), device("wgpu:0")) == (both, {})
    found, absent = monitor_child.sources(both)
    assert (found.keys(), absent) == ({"fake:gpu"}, {"wgpu:0": monitor.UNKNOWN_GPU})
    assert found["fake:gpu"]()["clock_hz"] > 0
    assert monitor_child.users([MonitorTarget("fake:shared")])["fake:shared"].computing == 1


def test_one_warning_for_all_of_them_and_columns_count_time_from_the_session():
    assert monitor.warn_of_absent({}) is None
    found = monitor.warn_of_absent({"wgpu:0": "a", "cupy:0": "a", "wgpu:1": "b"})
    assert (found.code, found.severity) == ("no-telemetry", "info")
    assert "cupy:0, wgpu:0, wgpu:1 cannot be read: a; b" in found.message
    readings = [Reading("cupy:0", 12.5, 1e9), Reading("cupy:0", 12.6, None, power_w=3.0)]
    found = monitor.columns("cupy:0", readings, 12.0)
    assert found.t_s == pytest.approx([0.5, 0.6])
    assert (found.clock_hz, found.power_w, found.throttle) == ([1e9, None], [None, 3.0], [[], []])


CARD = [MonitorTarget("cupy:0", pci="0000:06:00.0")]
SMALL, LARGE = monitor.IDLE_BYTES, 2**31


def card(**answers):
    return Nvml(**{
        "nvmlDeviceGetUUID": "GPU-1", "nvmlDeviceGetComputeRunningProcesses": [],
        "nvmlDeviceGetGraphicsRunningProcesses": [], "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=SMALL),
        "nvmlDeviceGetMigMode": [0, 0], "nvmlDeviceGetAddressingMode": SimpleNamespace(value=1), **answers,
    })  # fmt: skip


def pids(*numbers):
    return [SimpleNamespace(pid=number, usedGpuMemory=None) for number in numbers]


@pytest.mark.parametrize(("computing", "drawing", "used", "users"), [
    (pids(7, 8), pids(8, 9), LARGE, Users(computing=2, drawing=1, used_bytes=LARGE)),  # each process once
    ([], [], SMALL, None), ([], [], 0, None), ([], [], LARGE, Users(used_bytes=LARGE)),  # of whom no process is listed
])  # fmt: skip
def test_who_is_on_a_card_is_counted(computing, drawing, used, users):
    driver = card(
        nvmlDeviceGetComputeRunningProcesses=computing, nvmlDeviceGetGraphicsRunningProcesses=drawing,
        nvmlDeviceGetMemoryInfo=SimpleNamespace(used=used),
    )  # fmt: skip
    found = Users(**nvml.gpu_users(CARD, driver)["cupy:0"])
    assert found == users if users else not found
    assert found.unseen == (users is not None and not computing)


@pytest.mark.parametrize("asked", [
    {"nvmlDeviceGetComputeRunningProcesses": Nvml.NVMLError("not supported")},
    {"nvmlDeviceGetComputeRunningProcesses": NameError("a binding of another version")},
    {"nvmlDeviceGetMemoryInfo": Nvml.NVMLError("no permission")},
    {"nvmlMemory_v2": None},  # what the driver reserves would count as somebody's
    {"nvmlDeviceGetAddressingMode": SimpleNamespace(value=2)},  # memory that holds the system's files too
])  # fmt: skip
def test_what_cannot_be_told_is_no_user(asked):
    version = asked.pop("nvmlMemory_v2", 2)
    memory = {} if "nvmlDeviceGetComputeRunningProcesses" in asked else {
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=LARGE)
    }  # fmt: skip
    driver = card(**(memory | asked))
    driver.nvmlMemory_v2 = version
    assert not Users(**nvml.gpu_users(CARD, driver)["cupy:0"])


def test_a_card_in_partitions_and_one_that_is_not_listed_tell_nothing():
    assert nvml.gpu_users(CARD, card(nvmlDeviceGetMigMode=[1, 1])) == {}
    assert nvml.gpu_users([MonitorTarget("cupy:0", pci="0000:99:00.0")], card()) == {}
    assert nvml.gpu_users(CARD, card(nvmlInit=Nvml.NVMLError("Driver Not Loaded"))) == {}


def test_a_worker_that_waits_for_its_device_is_nobody_else(monkeypatch):
    monkeypatch.setattr(os, "getppid", os.getpid)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as worker:
        library = card(nvmlDeviceGetGraphicsRunningProcesses=pids(worker.pid, 1))
        monkeypatch.setattr(nvml, "gpu_users", functools.partial(nvml.gpu_users, nvml=library))
        assert monitor_child.users(CARD) == {"cupy:0": Users(drawing=1, used_bytes=SMALL)}
    monkeypatch.setattr(monitor_child, "PAUSES_S", (0.0, 0.0))
    looks = [Users(computing=1), Users(used_bytes=LARGE), Users(), "one too many"]
    assert monitor_child.who_stays(lambda: {"cupy:0": looks.pop(0)}) == {"cupy:0": Users()}
    assert monitor_child.who_stays(lambda: {"cupy:0": Users(drawing=3)}) == {"cupy:0": Users(drawing=3)}


def served(*orders):
    """What the monitor's process says until the last of these orders is answered."""
    asked, said = queue.SimpleQueue(), []
    for order in orders:
        asked.put(monitor.encode(order))

    def send(message):
        said.append(message)
        if message == Paused(orders[-1].number):
            raise EOFError

    with pytest.raises(EOFError):
        monitor_child.serve(asked, send, monitor.Begin([]))
    return said


def test_a_backend_that_breaks_at_a_reading_costs_no_other_device_its_readings(monkeypatch):
    readers = {"broken:0": lambda: {}["clock_hz"], "fake:gpu": lambda: {"clock_hz": 1e9}}
    monkeypatch.setattr(monitor_child, "sources", lambda targets: (readers, {}))
    begin, broken, *rest, _ = served(monitor.Watch([*readers], 9.0), Pause(1))
    assert (begin.absent, broken.absent) == ({}, {"broken:0": "KeyError: 'clock_hz'"})
    assert [reading.device_id for reading in rest] == ["fake:gpu"]


@pytest.mark.parametrize(("fresh_s", "count"), [(9.0, 1), (0.0, 2)])  # a short block waits for one
def test_devices_are_read_between_two_orders_and_no_others(monkeypatch, fresh_s, count):
    monkeypatch.setattr(monitor_child, "FRESH_S", fresh_s)
    read = {"a": lambda: {"clock_hz": 1e9}}
    monkeypatch.setattr(monitor_child, "sources", lambda targets: (read, {"b": "why"}))
    monkeypatch.setattr(monitor_child, "users", lambda targets: {})
    said = served(Pause(1), monitor.Watch(["a", "b"], 60.0), Pause(2), Pause(3))
    kinds = [(each.device_id, each.clock_hz) if isinstance(each, Reading) else each for each in said]
    assert kinds == [Ready({"b": "why"}), Paused(1), *[("a", 1e9)] * count, Paused(2), Paused(3)]


def test_the_driver_and_backends_tell_of_their_own_devices(monkeypatch):
    known, own = MonitorTarget("cupy:0", pci="0000:06:00.0"), MonitorTarget("fake:shared")

    def of_each(told):
        return lambda targets, *_, **_more: {target.device_id: told for target in targets}

    monkeypatch.setattr(nvml, "gpu_users", of_each({"drawing": 2}))
    monkeypatch.setattr(nvml, "gpu_readers", of_each(dict))
    counts = monitor_child.users([known, own])
    told = {name: (users.computing, users.drawing) for name, users in counts.items()}
    assert told == {"cupy:0": (0, 2), "fake:shared": (1, 0)}
    readers, absent = monitor_child.sources([known, own])
    assert (readers.keys(), absent) == ({"cupy:0", "fake:shared"}, {})


@pytest.mark.parametrize(("users", "severity", "words"), [
    (Users(1, 0, LARGE), "warning", "another process was computing on cupy:0, wgpu:0 before the session began"),
    (Users(2, 5, LARGE), "warning", "2 other processes were computing on"),
    (Users(0, 1, LARGE), "info", "another process was drawing on"),
    (Users(0, 0, LARGE), "info", "held by processes that cannot be seen"),
])  # fmt: skip
def test_devices_that_are_one_gpu_have_one_warning_and_two_gpus_two(users, severity, words):
    (found,) = monitor.warn_of_users({"wgpu:0": users, "cupy:0": users}, 3)
    assert (found.code, found.severity, found.session) == ("other-gpu-users", severity, 3)
    assert words in found.message
    assert found.data == {"devices": "cupy:0, wgpu:0", "used_bytes": LARGE}
    assert len(monitor.warn_of_users({"cupy:0": Users(computing=1), "cupy:1": Users(computing=2)}, 0)) == 2


def begun(monkeypatch, *said, start_s=30.0):
    monkeypatch.setattr(monitor.processes, "Child", type("Begun", (Begun,), {"lines_said": said}))
    monkeypatch.setattr(monitor, "PATIENCE_S", 0.01)
    monkeypatch.setattr(monitor, "START_S", start_s)
    return monitor.Monitor(CARD, {}, 0.0)


@pytest.mark.parametrize(("absent", "watched"), [({}, ["cupy:0"]), ({"cupy:0": "why"}, None)])
def test_devices_that_can_be_read_are_watched_and_those_that_somebody_is_on_are_told(
    monkeypatch, absent, watched
):
    session = begun(monkeypatch, Ready(absent, {"cupy:0": Users(computing=1), "cupy:1": Users()}))
    assert (session.users(), session.absent()) == ({"cupy:0": Users(computing=1)}, absent)
    session.watch("cupy:0", "numpy:0", every_s=1.0)
    assert Begun.latest.sent[1:] == ([monitor.Watch(watched, 1.0)] if watched else [])


def test_a_driver_that_takes_its_time_to_begin_is_not_given_up(monkeypatch):
    session = begun(monkeypatch)
    assert (session.users(), session.absent()) == ({}, {})
    for number in (1, 2):
        session.watch("cupy:0")
        assert (session.rest(), session.absent()) == ([], {}), number
    for message in (Ready({}), Reading("cupy:0", 1.0), Paused(1), Reading("cupy:0", 2.0), Paused(3)):
        Begun.latest.lines.put(monitor.encode(message))
    session.watch("cupy:0")
    assert [reading.t_s for reading in session.rest()] == [1.0, 2.0]


@pytest.mark.parametrize(("method", "why"), [("__init__", "the monitor cannot be started: no"), ("write", "the monitor ended"),
                                             ("encode", "the monitor ended")])  # fmt: skip
def test_a_monitor_that_ends_leaves_its_devices_unread(monkeypatch, method, why):
    def fails(*_):
        if method == "encode":
            return b"junk"
        raise OSError("no")

    monkeypatch.setattr(*((monitor, "encode", fails) if method == "encode" else (Begun, method, fails)))
    monkeypatch.setattr(Begun, "write", fails if method == "write" else lambda *_: None)
    session = begun(monkeypatch, Ready({}))
    assert (session.users(), session.absent()) == ({}, {"cupy:0": why})


@pytest.mark.parametrize("said", [(), (Ready({}),)], ids=["never begun", "begun"])
def test_a_driver_that_hangs_is_given_up(monkeypatch, said):
    session = begun(monkeypatch, *said, start_s=0.0)
    session.users()
    session.watch("cupy:0")
    assert (session.rest(), set(session.absent())) == ([], {"cupy:0"})
