"""Who else is on a GPU: what NVML tells, and what is made of it, without false alarms."""

from types import SimpleNamespace

import pytest

from gpubench.detect.probes import nvml
from gpubench.measure import monitor, monitor_child
from gpubench.measure.monitor import IDLE_BYTES, MonitorTarget, Paused, Reading, Ready, Users
from tests.nvml import Nvml

CARD = [MonitorTarget("cupy:0", pci="0000:06:00.0")]
SMALL, LARGE = IDLE_BYTES, 2**31


def card(**answers):
    return Nvml(**{
        "nvmlDeviceGetUUID": "GPU-1", "nvmlDeviceGetComputeRunningProcesses": [],
        "nvmlDeviceGetGraphicsRunningProcesses": [], "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=SMALL),
        "nvmlDeviceGetMigMode": [0, 0], "nvmlDeviceGetAddressingMode": SimpleNamespace(value=1), **answers,
    })  # fmt: skip


def pids(*numbers):
    return [SimpleNamespace(pid=number, usedGpuMemory=None) for number in numbers]


def reported(**asked):
    return Users(**nvml.gpu_users(CARD, card(**asked))["cupy:0"])


@pytest.mark.parametrize(("computing", "drawing", "used", "users"), [
    (pids(7, 8), pids(8, 9), LARGE, Users(computing=2, drawing=1, used_bytes=LARGE)),  # each process once
    ([], [], SMALL, None), ([], [], 0, None), ([], [], LARGE, Users(used_bytes=LARGE)),  # of whom no process is listed
])  # fmt: skip
def test_who_is_on_a_card_is_counted(computing, drawing, used, users):
    found = reported(
        nvmlDeviceGetComputeRunningProcesses=computing, nvmlDeviceGetGraphicsRunningProcesses=drawing,
        nvmlDeviceGetMemoryInfo=SimpleNamespace(used=used),
    )  # fmt: skip
    assert found == users if users else not found
    assert found.unseen == (users is not None and not computing)


@pytest.mark.parametrize(
    "asked",
    [
        {"nvmlDeviceGetComputeRunningProcesses": Nvml.NVMLError("not supported")},
        {"nvmlDeviceGetComputeRunningProcesses": NameError("a binding of another version")},
        {"nvmlDeviceGetMemoryInfo": Nvml.NVMLError("no permission")},
        {"nvmlMemory_v2": None},  # what the driver reserves would count as somebody's
        {"nvmlDeviceGetAddressingMode": SimpleNamespace(value=2)},  # memory that holds the system's files too
    ],
)
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


def test_a_worker_on_its_way_out_is_nobody_else(monkeypatch):
    monkeypatch.setattr(monitor_child, "PAUSES_S", (0.0, 0.0))
    looks = [
        {"cupy:0": Users(computing=1)},
        {"cupy:0": Users(used_bytes=LARGE)},
        {"cupy:0": Users()},
        "one too many",
    ]
    assert monitor_child.who_stays(lambda: looks.pop(0)) == {"cupy:0": Users()}
    assert monitor_child.who_stays(lambda: {"cupy:0": Users(drawing=3)}) == {"cupy:0": Users(drawing=3)}


@pytest.mark.parametrize(("users", "severity", "words"), [
    (Users(1, 0, LARGE), "warning", "another process was computing on cupy:0, wgpu:0 before the session began"),
    (Users(2, 5, LARGE), "warning", "2 other processes were computing on"),
    (Users(0, 1, LARGE), "info", "another process was drawing on"),
    (Users(0, 0, LARGE), "info", "held by processes that cannot be seen"),
])  # fmt: skip
def test_devices_that_are_one_gpu_have_one_warning(users, severity, words):
    (found,) = monitor.warn_of_users({"wgpu:0": users, "cupy:0": users}, 3)
    assert (found.code, found.severity, found.session) == ("other-gpu-users", severity, 3)
    assert words in found.message
    assert found.data == {"devices": "cupy:0, wgpu:0", "used_bytes": LARGE}


def test_two_gpus_have_two():
    assert len(monitor.warn_of_users({"cupy:0": Users(computing=1), "cupy:1": Users(computing=2)}, 0)) == 2
    assert monitor.warn_of_users({}, 0) == []


class Begun:
    """Stands where the monitor would: it has said these lines, and then nothing."""

    lines_said: tuple[monitor.FromMonitor, ...] = ()

    def __init__(self, command, env=None):
        import queue

        self.lines = queue.Queue()
        Begun.latest = self
        for message in self.lines_said:
            self.lines.put(monitor.encode(message))

    def write(self, line):
        pass

    def kill(self, after_s):
        self.lines.put(None)


def begun(monkeypatch, *said, start_s=30.0):
    monkeypatch.setattr(monitor.processes, "Child", type("Begun", (Begun,), {"lines_said": said}))
    monkeypatch.setattr(monitor, "PATIENCE_S", 0.01)
    monkeypatch.setattr(monitor, "START_S", start_s)
    return monitor.Monitor(CARD, 0.0)


def test_only_devices_that_somebody_is_on_are_told(monkeypatch):
    session = begun(monkeypatch, Ready({"wgpu:0": "why"}, {"cupy:0": Users(computing=1), "cupy:1": Users()}))
    assert session.users() == {"cupy:0": Users(computing=1)}
    assert session.absent() == {"wgpu:0": "why"}


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


@pytest.mark.parametrize("said", [(), (Ready({}),)], ids=["never begun", "begun"])
def test_a_driver_that_hangs_is_given_up(monkeypatch, said):
    session = begun(monkeypatch, *said, start_s=0.0)
    session.users()
    session.watch("cupy:0")
    assert (session.rest(), set(session.absent())) == ([], {"cupy:0"})
