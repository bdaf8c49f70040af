"""Several devices of one source: the one that fails costs itself, and is named."""

import os
import sys
import time
from collections import namedtuple
from types import SimpleNamespace

import pytest

from gpubench import detect
from gpubench.detect import inspection
from gpubench.detect.inspection import ProbeRequest
from gpubench.detect.probes import libraries, nvml
from gpubench.measure import monitor_child
from gpubench.measure.monitor import MonitorTarget
from tests.detect.recorded import last_answer
from tests.nvml import Nvml

GIB = 1 << 30
COUNT, SICK = 3, 1
Pci = namedtuple("Pci", "busId pciDeviceId")


def driver(call, error):
    """Three GPUs, of which the second one raises the error in this function; `*`: in all but the one that finds it."""
    answers = {
        "nvmlDeviceGetCount": COUNT, "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-00000000-0000-0000-0000-00000000001{handle}",
        "nvmlDeviceGetPciInfo": lambda handle: Pci(f"00000000:{16 + handle:02X}:00.0", 0x233510DE),
        "nvmlDeviceGetMemoryInfo": lambda handle, *_: SimpleNamespace(total=8 * GIB, free=8 * GIB, used=0),
        "nvmlDeviceGetClockInfo": lambda handle, what: 1000, "nvmlDeviceGetMigMode": lambda handle: (0, 0),
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: [SimpleNamespace(pid=1)]}  # fmt: skip

    def spoiled(answer):
        def call(handle, *more):
            if handle == SICK:
                raise error
            return answer(handle, *more)

        return call

    for name in answers.keys() - {"nvmlDeviceGetCount"}:
        if name == call or (call == "*" and "ByIndex" not in name):
            answers[name] = spoiled(answers[name])
    return Nvml(**answers)


ERRORS = [*map(Nvml.NVMLError, (15, 4, 999)), OSError("a broken pipe"), NameError("a binding")]
CALLS = ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo", "nvmlDeviceGetMemoryInfo",
         "nvmlDeviceGetClockInfo", "nvmlDeviceGetMigMode", "nvmlDeviceGetComputeRunningProcesses", "*"]  # fmt: skip
TARGETS = [MonitorTarget(f"cupy:{n}", f"GPU-00000000-0000-0000-0000-00000000001{n}", f"0000:{16 + n:02x}:00.0")
           for n in range(COUNT)]  # fmt: skip


@pytest.mark.parametrize("error", ERRORS, ids=str)
@pytest.mark.parametrize("call", CALLS)
def test_one_gpu_that_fails_costs_the_others_nothing(call, error):
    library = driver(call, error)
    records = last_answer(nvml.probe_nvml, library, [target.pci for target in TARGETS])["records"]
    assert len(records) == COUNT, "it is listed itself"
    gpus = detect.inspect(records=records).gpus
    healthy = [gpu for gpu in gpus if gpu.uuid.value in (TARGETS[0].uuid, TARGETS[2].uuid)]
    assert [gpu.memory.usable_bytes.value for gpu in healthy] == [8 * GIB] * 2
    assert [gpu.why_not for gpu in healthy] == [[]] * 2
    absent = {}
    readers = nvml.gpu_readers(TARGETS, absent, library)
    assert [readers[name]()["clock_hz"] for name in ("cupy:0", "cupy:2")] == [1e9, 1e9]
    assert ("cupy:1" in absent) == ("cupy:1" not in readers)
    users = nvml.gpu_users(TARGETS, library)
    assert [users[name]["computing"] for name in ("cupy:0", "cupy:2")] == [1, 1]


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByIndex", "*"])
@pytest.mark.parametrize(("error", "code"), [
    (15, "GPU_LOST"), (16, "GPU_LOST"), (4, "NO_PERMISSION"), (8, "UNUSABLE"), (999, "UNUSABLE")])  # fmt: skip
def test_a_gpu_that_nvml_counts_and_cannot_reach_is_named(call, error, code):
    library = driver(call, Nvml.NVMLError(error))
    file = {"source": "pci-sysfs", "vendor_id": "10de", "device_id": "2335", "pci_class": "0302"}
    # A card that is given to a virtual machine is no GPU of the driver.
    files = [file | {"bdf": bdf} for bdf in (*(target.pci for target in TARGETS), "0000:05:00.0")]
    records = last_answer(nvml.probe_nvml, library, [target.pci for target in TARGETS])["records"]
    machine = detect.inspect(records=[*files, *records])
    assert [gpu.bdf.value for gpu in machine.gpus if gpu.why_not == [code]] == [TARGETS[SICK].pci]
    assert code in [rejected.code for rejected in machine.recommendation.rejected]
    assert (machine.recommendation.mode, len(machine.recommendation.device_ids)) == ("gpu", COUNT - 1)


def test_a_lost_gpu_that_no_file_shows_is_listed_all_the_same():
    records = last_answer(nvml.probe_nvml, driver("nvmlDeviceGetHandleByIndex", Nvml.NVMLError(15)))["records"]
    machine = detect.inspect(records=records)
    assert ([gpu.why_not for gpu in machine.gpus].count(["GPU_LOST"]), len(machine.gpus)) == (1, COUNT)


class Cupy:
    """Three devices of which the second one does not answer."""

    __version__ = "14"

    def __init__(self):
        runtime = SimpleNamespace(CUDARuntimeError=RuntimeError, getDeviceCount=lambda: COUNT, runtimeGetVersion=lambda: 13000,
                                  getDeviceProperties=self.properties)  # fmt: skip
        self.cuda = SimpleNamespace(runtime=runtime, nvrtc=SimpleNamespace(getSupportedArchs=list))

    def properties(self, index):
        if index == SICK:
            raise RuntimeError("cudaErrorDevicesUnavailable")
        return {"pciDomainID": 0, "pciBusID": index, "pciDeviceID": 0, "name": b"NVIDIA",
                "totalGlobalMem": 8 * GIB, "multiProcessorCount": 4, "major": 9, "minor": 0}  # fmt: skip


def test_one_cuda_device_that_fails_costs_the_others_nothing():
    answer = last_answer(libraries.probe_cuda, Cupy())
    assert [record["ordinal"] for record in answer["records"]] == [0, 2]
    assert answer["hint"] == "cuda:1: cudaErrorDevicesUnavailable"


def test_render_nodes_are_asked_side_by_side(monkeypatch, tmp_path):
    """One hangs in its driver, one refuses, one answers nonsense, one is right."""

    def ask(ioctl, handle):
        kind = os.read(handle, 9).decode()
        if kind == "hang":
            time.sleep(60)
        if kind == "nonsense":
            raise IndexError("nonsense")
        return {"memory.dedicated_bytes": {"value": 8 * GIB, "status": "ok"}}

    for name in ("hang", "nonsense", "right"):
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(libraries, "ask_xe", ask)
    opened = os.open
    monkeypatch.setattr(os, "open", lambda path, flags: opened(tmp_path / os.path.basename(path), flags))
    names = ("hang", "missing", "nonsense", "right")
    nodes = [{"node": name, "bdf": f"0000:0{n}:00.0", "driver": "xe"} for n, name in enumerate(names)]
    answer = libraries.probe_drm(nodes, limit_s=2.0)
    assert [record["bdf"] for record in answer["records"]] == ["0000:03:00.0"]
    assert (answer["status"], answer["error_code"]) == ("timeout", "no answer in 2 s")
    assert "nonsense: nonsense; hang: no answer" in answer["hint"]
    assert "missing: " in answer["hint"]


STEP = (
    "from gpubench.base.child_main import Messages; import json, os, time\nmessages = Messages()\n"
    "def tell(partial): messages.write(json.dumps({{'records': [{{'source': 'nvml', 'ordinal': 0}}], 'partial': partial}})"
    ".encode())\n{}"
)


@pytest.mark.parametrize(("code", "status"), [
    ("tell(True); os.abort()", "crashed"), ("tell(True); time.sleep(60)", "timeout"),
    ("tell(True); tell(False); os.abort()", "ok"), ("tell(True); tell(False); time.sleep(60)", "ok"),
    ("tell(True)", "invalid")])  # fmt: skip
def test_what_a_probe_said_stands_however_it_ended(code, status):
    request = ProbeRequest("wgpu", 3.0, {}, (sys.executable, "-c", STEP.format(code)))
    (answer,) = inspection.run_probes([request])
    assert (answer.provider.status, [record.source for record in answer.records]) == (status, ["nvml"])


def test_a_backend_that_breaks_costs_its_own_devices_alone(monkeypatch):
    def broken(device_id):
        raise OSError("gone")

    loaded = {"bad": SimpleNamespace(telemetry=broken, users=broken),
              "good": SimpleNamespace(telemetry=lambda device_id: dict, users=lambda device_id: {"computing": 1})}  # fmt: skip
    monkeypatch.setattr(monitor_child.backends, "load", loaded.__getitem__)
    targets = [MonitorTarget("bad:0"), MonitorTarget("good:0")]
    sources, absent = monitor_child.sources(targets)
    assert (list(sources), absent) == (["good:0"], {"bad:0": "OSError: gone"})
    assert [users.computing for users in monitor_child.users(targets).values()] == [1]
