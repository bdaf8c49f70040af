"""CuPy built for ROCm, scripted: AMD's GPUs through HIP, its library alone, no kernel of CUDA's language."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from gpubench import backends, detect, kernels
from gpubench.backends import cupy as cupy_backend
from gpubench.base.errors import BackendUnavailable, Unsupported
from gpubench.detect.probes.libraries import probe_cuda as probe
from gpubench.measure import targets
from gpubench.measure.targets import Listing
from gpubench.result.case import Case
from tests.detect.recorded import last_answer

PROPERTIES = {
    "name": b"AMD Instinct MI300X", "totalGlobalMem": 192 << 30, "pciDomainID": 0, "pciBusID": 9, "pciDeviceID": 0,
    "major": 9, "minor": 4, "multiProcessorCount": 304, "sharedMemPerBlock": 65536, "maxThreadsPerBlock": 1024,
    "l2CacheSize": 4 << 20, "integrated": 0, "gcnArchName": b"gfx942:sramecc+:xnack-", "uuid": b"a1b2c3d4e5f60718",
}  # fmt: skip


class Event:
    def __init__(self, **_):
        pass

    def record(self):
        pass

    def synchronize(self):
        pass


def refuse(*_, **__):
    pytest.fail("a text of CUDA was compiled, or a call of NVIDIA's made")


@pytest.fixture
def rocm(monkeypatch):
    """A CuPy whose arrays are NumPy's; what HIP has not fails the test."""
    runtime = SimpleNamespace(
        is_hip=True, getDeviceCount=lambda: 1, driverGetVersion=lambda: 60443484,
        runtimeGetVersion=lambda: 60443484, getDeviceProperties=lambda _: dict(PROPERTIES),
        deviceGetAttribute=refuse, CUDARuntimeError=type("CUDARuntimeError", (Exception,), {}),
    )  # fmt: skip
    stream = SimpleNamespace(synchronize=lambda: None)
    pool = SimpleNamespace(free_bytes=lambda: 0, free_all_blocks=lambda: None, used_bytes=lambda: 0)
    module = ModuleType("cupy")
    module.__dict__.update(
        {name: getattr(np, name) for name in ("empty", "zeros", "float32", "uint8", "uint64", "add", "copyto", "arange")}
    )  # fmt: skip
    module.__version__ = "14.0.0"
    module.RawModule = refuse
    module.get_default_memory_pool = module.get_default_pinned_memory_pool = lambda: pool
    module.cuda = SimpleNamespace(
        runtime=runtime, Event=Event, get_current_stream=lambda: stream, nvrtc=SimpleNamespace(getSupportedArchs=refuse),
        Device=lambda _: SimpleNamespace(use=lambda: None), compiler=SimpleNamespace(compile_using_nvrtc=refuse),
        cublas=SimpleNamespace(getVersion=refuse, CUBLASError=type("CUBLASError", (Exception,), {})),
        driver=SimpleNamespace(CUDADriverError=type("CUDADriverError", (Exception,), {})),
        memory=SimpleNamespace(OutOfMemoryError=MemoryError),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


def case(op="add", implementation="library", variant=None, n=8):
    return Case(op, "vector", {"n": n}, "float32", implementation, "resident-queued", "cupy:0", variant=variant)


def test_its_devices_are_amds(rocm):
    (device,) = backends.load("cupy").devices()
    assert (device.api, device.driver, device.name) == ("hip", "HIP 6.4", "AMD Instinct MI300X")
    assert (device.identity.vendor_id, device.identity.pci) == (0x1002, "0000:09:00.0")
    assert device.identity.uuid is None  # the driver's is another number
    assert device.clock is None
    assert device.theoretical.bytes_per_s is None


def test_detection_puts_it_to_the_card_that_the_bus_shows(rocm):
    listing = Listing("cupy", tuple(backends.load("cupy").devices()))
    card = {
        "source": "pci-sysfs", "bdf": "0000:09:00.0", "vendor_id": "1002", "device_id": "74a1", "pci_class": "0300",
    }  # fmt: skip
    torch = {"source": "torch:rocm", "bdf": "0000:09:00.0", "vendor_id": "1002"}
    machine = detect.inspect(records=[card, torch, *targets.records([listing])])
    (gpu,) = machine.gpus
    assert (gpu.vendor.value, sorted(gpu.apis)) == ("amd", ["hip", "torch:rocm"])
    assert detect.gpu_for(machine, listing.devices[0].identity, "hip") == gpu.id


def test_the_probe_of_detection_calls_it_hip(rocm):
    (record,) = last_answer(probe, rocm, check=False)["records"]
    assert (record["source"], record["vendor_id"]) == ("hip", "1002")
    assert record["compute.arch"] == "gfx942"
    assert "uuid" not in record
    (gpu,) = detect.inspect(records=[record]).gpus
    assert (gpu.vendor.value, gpu.name.value) == ("amd", "AMD Instinct MI300X")


@pytest.fixture
def session(rocm):
    return backends.load("cupy").open("cupy:0")


@pytest.mark.parametrize("op", ["add", "matmul", "softmax", "sum"])
def test_a_tuned_implementation_is_refused_with_the_reason(session, op):
    refusal = session.supports(kernels.load(op), case(op, "tuned"))
    assert (refusal.reason, refusal.detail) == ("no-implementation", "no CUDA kernel: CuPy runs on ROCm")


def test_the_library_implementation_remains_and_tf32_does_not(session):
    assert session.supports(kernels.load("add"), case()) is None
    assert session.supports(kernels.load("matmul"), case("matmul", variant="tf32")).reason == "no-tf32"


def test_the_library_computes_also_into_an_output_that_is_there(session):
    op, inputs = kernels.load("add"), [np.arange(8, dtype=np.float32), np.ones(8, np.float32)]
    fresh = session.compile(op, case(), inputs, None)
    session.run(fresh)
    output = np.zeros(8, np.float32)
    session.run(session.compile(op, case(), inputs, output))
    assert (fresh.output == output).all()
    assert output[-1] == 8


def test_without_nvidias_registers_there_is_no_device_clock(session):
    launch = session.compile(kernels.load("add"), case(), [np.ones(8), np.ones(8)], None)
    assert session.time(launch) is None
    assert session.core_hz() is None
    session.run(session.empty_launch())
    assert session.stage_times([(launch, np.zeros(8))]).clock == "waited"
    session.close()


def test_what_is_missing_is_amds_driver(rocm):
    def fail():
        raise RuntimeError("hipErrorNoDevice")

    rocm.cuda.runtime.getDeviceCount = fail
    with pytest.raises(BackendUnavailable) as refused:
        backends.load("cupy").devices()
    assert "HIP found no usable device" in refused.value.detail
    assert "AMD driver" in refused.value.hint
    assert "NVIDIA" not in refused.value.hint


def test_cuda_stays_cuda(rocm):
    rocm.cuda.runtime.is_hip = False
    rocm.cuda.runtime.driverGetVersion = lambda: 13000
    rocm.cuda.runtime.deviceGetAttribute = lambda *_: 0
    (device,) = backends.load("cupy").devices()
    assert (device.api, device.driver, device.identity.vendor_id) == ("cuda", "CUDA 13.0", 0x10DE)
    assert device.clock.kind == "event"
    assert not cupy_backend.is_hip(SimpleNamespace(cuda=SimpleNamespace(runtime=SimpleNamespace())))


def test_a_gpu_without_an_engine_that_copies_has_no_pipelines(rocm):
    rocm.cuda.runtime.getDeviceProperties = lambda _: {**PROPERTIES, "asyncEngineCount": 0}
    with pytest.raises(Unsupported, match="no engine that copies") as refused:
        backends.load("cupy").open("cupy:0").stream()
    assert refused.value.reason == "no-streams"
