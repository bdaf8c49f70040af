"""CuPy built for ROCm, scripted: AMD's GPUs through HIP, its library alone, no kernel of CUDA's language."""

import sys
from types import ModuleType, SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from gpubench import backends, detect, kernels
from gpubench.base import AMD
from gpubench.base.errors import BackendUnavailable, Unsupported
from gpubench.detect.probes.libraries import probe_cuda as probe
from gpubench.result.case import Case
from tests.detect.recorded import last_answer
from tests.raising import raised

PROPERTIES = {
    "name": b"AMD Instinct MI300X", "totalGlobalMem": 192 << 30, "pciDomainID": 0, "pciBusID": 9, "pciDeviceID": 0,
    "major": 9, "minor": 4, "multiProcessorCount": 304, "sharedMemPerBlock": 65536, "maxThreadsPerBlock": 1024,
    "l2CacheSize": 4 << 20, "integrated": 0, "gcnArchName": b"gfx942:sramecc+:xnack-", "uuid": b"a1b2c3d4e5f60718",
}  # fmt: skip


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
    module.RawModule, module.ElementwiseKernel = refuse, lambda *words: None
    module.get_default_memory_pool = module.get_default_pinned_memory_pool = lambda: pool
    module.cuda = SimpleNamespace(
        runtime=runtime, Event=Mock, get_current_stream=lambda: stream, nvrtc=SimpleNamespace(getSupportedArchs=refuse),
        Device=lambda _: SimpleNamespace(use=lambda: None), compiler=SimpleNamespace(compile_using_nvrtc=refuse, CompileException=OSError),
        cublas=SimpleNamespace(getVersion=refuse, CUBLASError=type("CUBLASError", (Exception,), {})),
        driver=SimpleNamespace(CUDADriverError=type("CUDADriverError", (Exception,), {})),
        memory=SimpleNamespace(OutOfMemoryError=MemoryError),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


def case(op="add", implementation="library", variant=None, n=8):
    return Case(op, "vector", {"n": n}, "float32", implementation, "resident-queued", "cupy:0", variant=variant)


@pytest.mark.parametrize(("chip", "mode", "units"), [("gfx942", "", 304), ("gfx1151", "", 608), ("gfx1151", "0", 304)])  # fmt: skip
def test_the_probe_of_detection_calls_it_hip(rocm, monkeypatch, chip, mode, units):
    monkeypatch.setitem(PROPERTIES, "gcnArchName", f"{chip}:xnack-".encode())
    monkeypatch.setenv("GPU_ENABLE_WGP_MODE", mode)
    (record,) = last_answer(probe, rocm)["records"]
    facts = {"source": "hip", "vendor_id": AMD, "compute.arch": chip, "compute.units": units}
    assert record.items() >= facts.items()
    assert "uuid" not in record
    (gpu,) = detect.inspect(records=[record]).gpus
    assert (gpu.vendor.value, gpu.name.value) == ("amd", "AMD Instinct MI300X")


@pytest.fixture
def session(rocm):
    return backends.load("cupy").open("cupy:0")


def test_the_library_implementation_remains_and_kernels_and_tf32_do_not(session):
    add, matmul = kernels.load("add"), kernels.load("matmul")
    assert session.supports(add, case()) is None
    refusal = session.supports(add, case("add", "tuned"))
    assert (refusal.reason, refusal.detail) == ("no-implementation", "no CUDA kernel: CuPy runs on ROCm")
    assert session.supports(matmul, case("matmul", variant="tf32")).reason == "no-tf32"


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
    rocm.cuda.runtime.getDeviceCount = Mock(side_effect=RuntimeError("hipErrorNoDevice"))
    refused = raised(BackendUnavailable, backends.load("cupy").devices)
    assert "HIP found no usable device" in refused.detail
    assert ("AMD driver" in refused.hint, "NVIDIA" in refused.hint) == (True, False)


def test_a_cupy_that_does_not_load_or_lacks_a_library_says_what_to_install(rocm, monkeypatch, tmp_path):
    rocm.cuda.runtime.is_hip, rocm.cuda.runtime.deviceGetAttribute = False, lambda *_: 0
    handle = Mock(side_effect=RuntimeError("CuPy failed to load libcublas.so.13"))
    rocm.cuda.device = SimpleNamespace(get_cublas_handle=handle)
    refused = raised(BackendUnavailable, backends.load("cupy").open, "cupy:0")
    assert ("libcublas.so.13" in refused.detail, "cuda13" in refused.hint) == (True, True)
    for status, words in {1: "", 2: "nvidia-smi", 46: "compute mode", 222: "update"}.items():
        handle.side_effect = rocm.cuda.runtime.CUDARuntimeError("the GPU refuses")
        handle.side_effect.status = status
        hint = raised(BackendUnavailable, backends.load("cupy").open, "cupy:0").hint
        assert (words in hint, bool(hint)) == (True, bool(words)), status
    (tmp_path / "cupy.py").write_text("raise ImportError('advice') from AttributeError('no attribute core')")
    monkeypatch.delitem(sys.modules, "cupy")
    monkeypatch.syspath_prepend(tmp_path)
    refused = raised(BackendUnavailable, backends.load("cupy").devices)
    assert (refused.detail, "cuda13" in refused.hint) == ("CuPy cannot be imported: no attribute core", True)


@pytest.mark.parametrize(("hip", "version", "driver", "api", "vendor"), [
    (True, 60443484, "HIP 6.4", "hip", 0x1002), (False, 13000, "CUDA 13.0", "cuda", 0x10DE)])  # fmt: skip
def test_what_its_devices_are(rocm, hip, version, driver, api, vendor):
    rocm.cuda.runtime.is_hip, rocm.cuda.runtime.driverGetVersion = hip, lambda: version
    rocm.cuda.runtime.deviceGetAttribute = refuse if hip else lambda *_: 0
    (device,) = backends.load("cupy").devices()
    assert (device.api, device.driver, device.name) == (api, driver, "AMD Instinct MI300X")
    assert (device.identity.vendor_id, device.identity.pci) == (vendor, "0000:09:00.0")
    assert (device.identity.uuid is None, device.clock is None) == (hip, hip), "HIP's uuid is another number"
    assert device.theoretical.bytes_per_s is None


def test_a_gpu_without_an_engine_that_copies_has_no_pipelines(rocm):
    rocm.cuda.runtime.getDeviceProperties = lambda _: {**PROPERTIES, "asyncEngineCount": 0}
    refused = raised(Unsupported, backends.load("cupy").open("cupy:0").stream)
    assert ("no engine that copies" in refused.detail, refused.reason) == (True, "no-streams")
