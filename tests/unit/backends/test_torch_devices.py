"""Without PyTorch: which devices its build has, how they are told apart, and its clock on a scripted GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from gpubench import backends, kernels
from gpubench.backends import torch as torch_backend
from gpubench.backends.shared.memory import InPlaceSession, PageLockedMemory
from gpubench.base.errors import BackendError, BackendUnavailable, DeviceLost, DeviceOutOfMemory, Unsupported
from gpubench.base.installation import install_command
from gpubench.result.case import Case
from tests.raising import raised
from tests.unit.backends.streams import Mark, Stream


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """A PyTorch whose file of versions holds these lines, and which may not be imported."""

    def install(*lines: str) -> None:
        (tmp_path / "version.py").write_text("\n".join(["__version__ = '2.13.0'", *lines]))
        found = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
        monkeypatch.setattr(torch_backend.importlib.util, "find_spec", lambda name: found)
        monkeypatch.setattr(torch_backend.sys, "platform", "linux")
        monkeypatch.setattr(torch_backend, "import_torch", lambda: pytest.fail("PyTorch was imported"))

    return install


def test_a_build_for_the_cpu_lists_it_alone_and_none_is_not_available(installed, monkeypatch) -> None:
    installed("cuda = None", "hip = None")
    devices = torch_backend.BACKEND.devices
    assert [(x.id, x.kind, x.driver) for x in devices()] == [("torch:cpu", "cpu", "2.13.0")]
    installed("def (")
    for _ in ("broken", "missing"):
        assert install_command("torch") in raised(BackendUnavailable, devices).hint
        monkeypatch.setattr(torch_backend.importlib.util, "find_spec", lambda name: None)


def gpu(**more) -> SimpleNamespace:
    return SimpleNamespace(name="GPU", total_memory=2**30, **more)


def driver(*found: SimpleNamespace) -> SimpleNamespace:
    return SimpleNamespace(
        is_available=lambda: bool(found), device_count=lambda: len(found), get_device_properties=found.__getitem__,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("version", "api", "driver_text"),
    [({"cuda": "13.0", "hip": None}, "cuda", "CUDA 13.0"), ({"cuda": None, "hip": "7.1"}, "rocm", "ROCm 7.1")],
)  # fmt: skip
def test_gpus_are_listed_with_what_tells_them_apart(installed, monkeypatch, version, api, driver_text) -> None:
    installed(f"cuda = {version['cuda']!r}", f"hip = {version['hip']!r}")
    properties = gpu(uuid="ab-cd", pci_domain_id=0, pci_bus_id=9, pci_device_id=0, L2_cache_size=50 << 20)
    torch = SimpleNamespace(
        __version__="2.13.0", version=SimpleNamespace(**version), cuda=driver(properties), xpu=driver(gpu()),
        backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: True)),
        mps=SimpleNamespace(recommended_max_memory=lambda: 4096),
    )  # fmt: skip
    monkeypatch.setattr(torch_backend, "import_torch", lambda: torch)
    cpu, card, intel, apple = backends.load("torch").devices()
    told = (apple.id, apple.kind, apple.api, apple.driver, apple.memory_bytes, apple.usable_bytes)
    assert told == ("torch:mps:0", "gpu", "metal", "torch 2.13.0", 4096, 4096)
    assert "torch:cuda:1" in raised(BackendUnavailable, backends.load("torch").open, "torch:cuda:1").detail
    assert [cpu.id, card.id, intel.id] == ["torch:cpu", "torch:cuda:0", "torch:xpu:0"]
    assert (card.api, card.driver, card.cache_bytes) == (api, driver_text, 50 << 20)
    assert (card.identity.pci, card.identity.uuid) == ("0000:09:00.0", "abcd" if api == "cuda" else None)
    assert intel.identity.pci is None
    assert not any(device.composed for device in (cpu, card, intel))


def test_a_gpu_that_does_not_answer_hides_no_other_device(installed, monkeypatch, capsys) -> None:
    installed("cuda = '13.0'")
    torch = SimpleNamespace(
        __version__="2.13.0", version=SimpleNamespace(cuda="13.0", hip=None), cuda=driver(SimpleNamespace(), gpu()),
        backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: False)),
    )  # fmt: skip
    monkeypatch.setattr(torch_backend, "import_torch", lambda: torch)
    assert [device.id for device in backends.load("torch").devices()] == ["torch:cpu", "torch:cuda:1"]
    assert capsys.readouterr().err.startswith("torch:cuda:0: ")


@pytest.mark.parametrize(("api", "memory"), [("metal", "mapped"), ("cuda", "managed"), ("xpu", "mapped")])
def test_it_says_why_it_does_not_compute_in_place(api, memory) -> None:
    device = SimpleNamespace(id=f"torch:{api}:0", api=api)
    with pytest.raises(Unsupported, match="PyTorch") as refused:
        torch_backend.TorchSession.in_place(SimpleNamespace(device=device), memory)
    assert refused.value.reason == "not-in-place"


@pytest.mark.parametrize("fills", [True, False])
def test_what_takes_no_output_is_refused_in_place(fills) -> None:
    """PyTorch puts such a result into the device's own memory."""
    op = kernels.load("add")
    op = op if fills else replace(op, library={"torch": lambda torch, a, b: a + b})
    case = Case("add", "vector", {"n": 8}, "float32", "library", "in-place-mapped", "torch:cuda:0")
    session: Any = SimpleNamespace(device=None, limits=None, threads=None, blas=None, supports=lambda *_: None)
    in_place = InPlaceSession(session, PageLockedMemory(session, lambda *_: None))
    assert (in_place.supports(op, case) is None) == fills


@pytest.mark.parametrize(("text", "error"), [
    ("CUDA out of memory. Tried to allocate 2 GiB", DeviceOutOfMemory), ("CUDA error: out of memory", DeviceOutOfMemory),
    ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", DeviceOutOfMemory),
    ("Native API returns: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", DeviceOutOfMemory),
    ("MPS backend out of memory", DeviceOutOfMemory), ("Invalid buffer size: 20.00 GiB", DeviceOutOfMemory),
    ("DefaultCPUAllocator: can't allocate memory: you tried to", DeviceOutOfMemory),
    ("CUDA error: an illegal memory access was encountered", DeviceLost), ("HIP error: invalid argument", DeviceLost),
    ("level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)", DeviceLost),
    ("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx(`", BackendError),
    ("expected scalar type Half but found Float", BackendError), (MemoryError("the host has no more"), DeviceOutOfMemory),
])  # fmt: skip
def test_what_pytorch_raises_by_its_text(text, error) -> None:
    with pytest.raises(BackendError) as caught, torch_backend.vendor_errors():
        raise text if isinstance(text, MemoryError) else RuntimeError(text)
    assert type(caught.value) is error


class ScriptedGpu(Stream):
    """As PyTorch shows it. A launch takes `launch_s` of the host and 5 us of the device, a write 2 and 20 us."""

    depth = 10**9

    def __init__(self, launch_s: float) -> None:
        super().__init__(host_s=2e-6)
        self.launch_s = launch_s

    def call(self) -> None:
        self.host += self.launch_s - self.host_s
        self.enqueue(5e-6)

    def Event(self, *, enable_timing: bool) -> ScriptedEvent:
        assert enable_timing
        return ScriptedEvent(self)

    def allocate(self, shape, dtype) -> SimpleNamespace:
        return SimpleNamespace(zero_=lambda: self.enqueue(20e-6))


class ScriptedEvent(Mark):
    def query(self) -> bool:
        return self.done

    def elapsed_time(self, end: ScriptedEvent) -> float:
        return self.stream.get_elapsed_time(self, end)


@pytest.mark.parametrize("launch_s", [3e-6, 50e-6, 400e-6])
@pytest.mark.parametrize("repeat", [1, 7, 100])
def test_the_clock_leaves_out_the_host(monkeypatch, launch_s, repeat) -> None:
    gpu = ScriptedGpu(launch_s)
    monkeypatch.setattr(torch_backend.time, "perf_counter", lambda: gpu.host)
    clock = torch_backend.TorchClock(SimpleNamespace(driver=gpu, allocate=gpu.allocate), 1 << 20)
    for _ in range(2):
        assert clock.time(gpu.call, repeat) == pytest.approx(repeat * 5e-6)
