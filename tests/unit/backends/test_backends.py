"""Names, adapters told apart, and NumPy's blocks."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench import backends, kernels
from gpubench.backends import wgpu as wgpu_backend
from gpubench.backends.shared.blocks import BlockThreads
from gpubench.base.errors import BackendUnavailable
from gpubench.base.plugins import wings
from gpubench.result.case import Case
from tests.raising import raised


def test_the_baseline_comes_first_and_the_actor_is_hidden():
    folder = Path(backends.__file__).parent
    files = {path.stem for path in folder.iterdir() if not path.name.startswith("_")} - {
        "contract", "hidden", "shared",
    }  # fmt: skip
    files |= wings.brought("backends").keys()
    assert (set(backends.names()), backends.names()[0]) == (files, "numpy")
    # A split multiplies the time, and a device group starts NCCL: both wait to be asked.
    assert set(backends.usual()) == {*files, *backends.foreign()} - {*backends.COMPOSED, "group"}
    assert ("fake" in backends.hidden_names(), "fake" in backends.names()) == (True, False)
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


def test_a_backend_is_named_like_its_file_and_imports_no_library_before_it_is_needed():
    code = (
        "import sys; from gpubench import backends, kernels; names = [*backends.names(), *backends.hidden_names()]\n"
        "assert [backends.load(name).name for name in names] == names\n"
        "assert not {'numpy', 'cupy', 'torch', 'wgpu'} & sys.modules.keys(), sorted(sys.modules)\n"
        "backends.load('numpy').open('numpy:0').foresee([kernels.load('matmul')], ['float32'])\n"
        "assert 'numba' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("device_id", "names"), [
    ("torch:cuda:0", ("torch",)), ("hybrid:torch:cuda:0", ("hybrid", "torch")), ("hybrid:fake:gpu", ("hybrid", "fake")),
])  # fmt: skip
def test_a_composed_device_is_known_by_the_backends_of_its_parts(device_id, names):
    assert (backends.names_of(device_id), backends.is_hidden(device_id)) == (names, "fake" in names)


# ------------------------------------------------------------------- wgpu's adapters


def adapter(name, api="Vulkan", kind="DiscreteGPU", vendor=0x10DE):
    info = {"device": name, "backend_type": api, "adapter_type": kind, "vendor_id": vendor}
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
    named = [(f"wgpu:{i}", kind, one.info["device"]) for i, (one, kind) in enumerate(expected)]
    assert listed(*adapters) == named


def test_what_no_adapter_a_loader_and_another_version_lack_has_a_remedy(listed, monkeypatch):
    import wgpu

    def refusal(*adapters):
        refused = raised(BackendUnavailable, listed, *adapters)
        assert "install" in refused.hint
        return refused.detail

    nothing = "no Vulkan, Metal or DX12 adapter is present"
    assert (refusal(), refusal(adapter("x", api="OpenGL"))) == (nothing, nothing)
    monkeypatch.setattr(wgpu, "version_info", (0, 33, 1))
    monkeypatch.setattr(wgpu, "__version__", "0.33.1")
    assert refusal(adapter("card")).startswith("wgpu 0.33.1 is installed")
    monkeypatch.setattr(
        wgpu.gpu, "enumerate_adapters_sync", Mock(side_effect=RuntimeError("no loader\nand a long story"))
    )
    refused = raised(BackendUnavailable, wgpu_backend.BACKEND.devices)
    assert refused.detail == "wgpu cannot list adapters: no loader"


# ------------------------------------------------------------------- NumPy


@given(st.integers(0, 1000), st.integers(1, 300), st.sampled_from([1, 3]))
def test_blocks_cover_every_element_once(length, grain, threads):
    team, before = BlockThreads(threads), threading.active_count()
    seen = np.zeros(length, np.int64)

    def count(start, stop):
        assert stop - start <= grain
        seen[start:stop] += 1

    team.run(count, length, grain)
    team.close()
    assert (seen == 1).all()
    assert threading.active_count() == before


def test_the_beginning_of_an_array_is_in_its_memory_and_only_to_be_read():
    whole = np.arange(8.0)
    part = backends.load("numpy").open("numpy:0", 1).beginning(whole, (2, 3))
    assert (part.tolist(), part.base is whole, part.flags.writeable) == ([[0, 1, 2], [3, 4, 5]], True, False)


def test_invalid_values_are_results_and_not_warnings(recwarn):
    session = backends.load("numpy").open("numpy:0", 1)
    op = kernels.load("div")
    case = Case("div", "vector", {"n": 3}, "float32", "library", "resident", "numpy:0")
    zeros = [np.zeros(3, np.float32), np.zeros(3, np.float32)]
    launch = session.compile(op, case, zeros, None)
    session.run(launch)
    assert np.isnan(launch.output).all()
    assert not recwarn.list


def test_threads_work_at_once_and_hold_no_array_of_the_last_launch_while_idle():
    class Held:
        """What a closure holds."""

    team, held, meeting = BlockThreads(4), Held(), threading.Barrier(4, timeout=10)
    team.run(lambda start, stop: meeting.wait(), 4, 1)
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
