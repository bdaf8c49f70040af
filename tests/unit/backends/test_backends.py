"""Names, adapters told apart, NumPy's blocks, and the clock of the scripted backend."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench import backends, kernels
from gpubench.backends import wgpu as wgpu_backend
from gpubench.backends.shared.blocks import BlockThreads
from gpubench.base.errors import BackendUnavailable, DeviceOutOfMemory
from gpubench.base.plugins import wings
from gpubench.result.case import Case
from gpubench.result.run import Device


def test_the_baseline_comes_first_and_the_actor_is_hidden():
    folder = Path(backends.__file__).parent
    files = {path.stem for path in folder.iterdir() if not path.name.startswith("_")} - {
        "contract", "hidden", "shared",
    }  # fmt: skip
    files |= wings.brought("backends").keys()
    assert set(backends.names()) == files
    assert backends.names()[0] == "numpy"
    # A split multiplies the time, and a device group starts NCCL: both wait to be asked.
    assert set(backends.usual()) == {*files, *backends.foreign()} - {*backends.COMPOSED, "group"}
    assert "fake" in backends.hidden_names()
    assert "fake" not in backends.names()
    assert backends.load("fake").name == "fake"
    with pytest.raises(KeyError):
        backends.load("nonsense")


@pytest.mark.parametrize("name", backends.built_in())
def test_what_is_known_of_a_backend_is_what_it_declares(name, monkeypatch):
    known = backends.facts(name)
    with contextlib.suppress(BackendUnavailable):
        assert {device.kind for device in backends.load(name).devices()} <= {*known.kinds, "software"}
    monkeypatch.setattr(backends, "KNOWN", {})
    assert backends.facts(name) == known, "of one that is not in the table its module tells the same"


@pytest.mark.parametrize(("op", "imported"), [("add", True), ("matmul", False)])
def test_the_compiler_is_imported_while_devices_open_if_the_ops_need_it(op, imported):
    code = (
        "import sys; from gpubench import backends, kernels\n"
        "session = backends.load('numpy').open('numpy:0')\n"
        f"session.foresee([kernels.load({op!r})], ['float32'])\n"
        "print('numba' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown == f"{imported}\n"


def test_only_a_worker_runs_a_backend_of_another_package(monkeypatch):
    monkeypatch.setattr(backends, "load", lambda name: pytest.fail("it was loaded"))
    assert backends.facts("of-a-package") is None
    assert backends.may_drive_cpu("of-a-package")


def test_a_backend_is_named_like_its_file_and_loads_without_its_library():
    code = (
        "import sys; from gpubench import backends; names = [*backends.names(), *backends.hidden_names()]\n"
        "assert [backends.load(name).name for name in names] == names\n"
        "assert not {'numpy', 'cupy', 'torch', 'wgpu'} & sys.modules.keys(), sorted(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("device_id", "names", "inner"), [
    ("torch:cuda:0", ("torch",), None), ("hybrid:cupy:0", ("hybrid", "cupy"), "cupy:0"),
    ("hybrid:torch:cuda:0", ("hybrid", "torch"), "torch:cuda:0"), ("hybrid:fake:gpu", ("hybrid", "fake"), "fake:gpu"),
])  # fmt: skip
def test_a_composed_device_is_known_by_its_backend(device_id, names, inner):
    assert backends.names_of(device_id) == names
    case = Case("add", "vector", {"n": 8}, "float32", "tuned", "resident-queued", device_id)
    assert case.shared_with == inner
    device = Device(id=device_id, backend=names[0], kind="gpu", name="", api="cuda")
    assert device.composed == (inner is not None)


# ------------------------------------------------------------------- wgpu's adapters


def adapter(name, api="Vulkan", kind="DiscreteGPU", vendor=0x10DE):
    info = {
        "device": name,
        "backend_type": api,
        "adapter_type": kind,
        "vendor_id": vendor,
        "vendor": "",
        "description": "",
    }
    return SimpleNamespace(info=info, features={"timestamp-query"})


LLVMPIPE = adapter("llvmpipe (LLVM 15.0.6, 256 bits)", kind="CPU", vendor=0x10005)
CARD, ARC = adapter("NVIDIA H200"), adapter("Intel Arc", kind="IntegratedGPU", vendor=0x8086)
SOFTWARE = [
    LLVMPIPE, adapter("SwiftShader Device (LLVM 10.0.0)", kind="Other", vendor=0x1AE0),
    adapter("Microsoft Basic Render Driver", api="D3D12", kind="Unknown", vendor=0x1414),
    adapter("a name nobody knows", kind="CPU", vendor=1),
]  # fmt: skip


@pytest.fixture
def listed(monkeypatch):
    def devices(*adapters):
        import wgpu

        monkeypatch.setattr(wgpu.gpu, "enumerate_adapters_sync", lambda: list(adapters))
        return [(d.id, d.kind, d.name) for d in wgpu_backend.BACKEND.devices()]

    return devices


@pytest.mark.parametrize(("adapters", "expected"), [
    # GPUs come first and software last, whatever the order; OpenGL lists the same GPUs again and is left out.
    ([LLVMPIPE, CARD, ARC], [(CARD, "gpu"), (ARC, "gpu"), (LLVMPIPE, "software")]),
    ([CARD, LLVMPIPE, ARC], [(CARD, "gpu"), (ARC, "gpu"), (LLVMPIPE, "software")]),
    ([CARD, adapter("NVIDIA H200/PCIe", api="OpenGL")], [(CARD, "gpu")]),
    *(([software], [(software, "software")]) for software in SOFTWARE),
])  # fmt: skip
def test_adapters_are_listed_once_and_software_is_never_a_gpu(listed, adapters, expected):
    assert listed(*adapters) == [
        (f"wgpu:{number}", kind, one.info["device"]) for number, (one, kind) in enumerate(expected)
    ]


def test_no_adapter_names_the_remedy(listed):
    for adapters in ((), (adapter("x", api="OpenGL"),)):
        with pytest.raises(BackendUnavailable) as refused:
            listed(*adapters)
        assert "install" in refused.value.hint


def test_a_loader_that_raises_is_an_absence(monkeypatch):
    import wgpu

    def fail():
        raise RuntimeError("no loader\nand a long story")

    monkeypatch.setattr(wgpu.gpu, "enumerate_adapters_sync", fail)
    with pytest.raises(BackendUnavailable) as refused:
        wgpu_backend.BACKEND.devices()
    assert refused.value.detail == "wgpu cannot list adapters: no loader"


def test_another_version_of_wgpu_is_an_absence_with_the_remedy(listed, monkeypatch):
    import wgpu

    monkeypatch.setattr(wgpu, "version_info", (0, 33, 1))
    monkeypatch.setattr(wgpu, "__version__", "0.33.1")
    with pytest.raises(BackendUnavailable) as refused:
        listed(adapter("card"))
    assert refused.value.detail.startswith("wgpu 0.33.1 is installed")
    assert "pip install" in refused.value.hint


# ------------------------------------------------------------------- NumPy


@given(st.integers(0, 1000), st.integers(1, 300), st.sampled_from([1, 3]))
def test_blocks_cover_every_element_once(length, grain, threads):
    team = BlockThreads(threads)
    seen = np.zeros(length, np.int64)

    def count(start, stop):
        assert stop - start <= grain
        seen[start:stop] += 1

    team.run(count, length, grain)
    team.close()
    assert (seen == 1).all()


def test_threads_are_what_was_asked_for_and_lifted_at_the_end():
    from threadpoolctl import threadpool_info

    before = [(pool["filepath"], pool["num_threads"]) for pool in threadpool_info()]
    session = backends.load("numpy").open("numpy:0", 1)
    assert session.threads == 1
    assert {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"} <= {1}
    session.close()
    assert [(pool["filepath"], pool["num_threads"]) for pool in threadpool_info()] == before


def test_invalid_values_are_results_and_not_warnings(recwarn):
    session = backends.load("numpy").open("numpy:0", 1)
    op = kernels.load("div")
    case = Case("div", "vector", {"n": 3}, "float32", "library", "resident", "numpy:0")
    zeros = [np.zeros(3, np.float32), np.zeros(3, np.float32)]
    launch = session.compile(op, case, zeros, None)
    session.run(launch)
    assert np.isnan(launch.output).all()
    assert not recwarn.list


# ------------------------------------------------------------------- the actor


def opened(word):
    return backends.load("fake").open(f"fake:{word}")


def launch_of(session, n=1000):
    op = kernels.load("add")
    case = Case("add", "vector", {"n": n}, "float32", "library", "resident", session.device.id)
    buffers = [session.allocate((n,), "float32") for _ in op.inputs]
    return session.compile(op, case, buffers, None)


@given(st.integers(1, 500))
def test_scripted_time_is_the_same_in_every_process(repeat):
    seconds = []
    for _ in range(2):
        session = opened("gpu")
        launch = launch_of(session)
        start = session.clock()
        session.run(launch, repeat)
        session.sync()
        seconds.append(session.clock() - start)
    assert seconds[0] == seconds[1]
    assert seconds[0] >= repeat * launch.cost_s


def test_device_time_is_the_model_of_the_kernel():
    session = opened("gpu")
    launch = launch_of(session)
    assert session.time(launch, 10) == pytest.approx(10 * launch.cost_s)
    assert opened("no-clock").time(launch_of(opened("no-clock"))) is None


def test_noise_is_seeded_and_outliers_are_a_share_of_the_costs(monkeypatch):
    def times(word, number):
        session = opened(word)
        launch = launch_of(session)
        return [session.time(launch, 10) / (10 * launch.cost_s) for _ in range(number)]

    noise = times("noisy", 3)
    assert (len(set(noise)), times("noisy", 3)) == (3, noise)
    monkeypatch.setenv("GPUBENCH_FAKE_SEED", "2")
    assert times("noisy", 3) != noise
    monkeypatch.setenv("GPUBENCH_FAKE_OUTLIERS", "0.1")
    slow = [ratio for ratio in times("gpu", 500) if ratio != pytest.approx(1)]
    assert (30 <= len(slow) <= 70, min(slow) >= 1.5, max(slow) <= 5) == (True, True, True)


def test_the_actor_has_as_much_memory_as_it_says():
    session = opened("gpu")
    with pytest.raises(DeviceOutOfMemory):
        session.allocate((session.device.memory_bytes,), "float32")
    assert session.allocate((10,), "float32")


def test_idle_threads_hold_no_array_of_the_last_launch():
    class Held:
        """What a closure holds."""

    team, held = BlockThreads(4), Held()
    alive = weakref.ref(held)

    def block(start: int, stop: int, held: Held = held) -> None:
        time.sleep(0.001)

    team.run(block, 64, 1)
    del block, held
    for _ in range(500):  # each lets go when it has reported that it is done
        if alive() is None:
            break
        time.sleep(0.01)
    assert alive() is None
    team.close()
