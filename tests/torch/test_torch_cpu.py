"""PyTorch on the CPU: every op in every dtype, memory shared with NumPy, ops of other packages, threads and BLAS."""

import os
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock, call

import msgspec
import numpy as np
import pytest

from gpubench import backends, kernels
from gpubench.backends import torch as torch_backend
from gpubench.backends.shared.host import host_dtype
from gpubench.backends.shared.reference import sentinel_of
from gpubench.base.errors import DeviceOutOfMemory, Unsupported
from gpubench.kernels.contract.op import Op
from gpubench.measure import conformance
from gpubench.result.case import DTYPES, Case
from gpubench.result.run import Device, DeviceClock
from tests.in_place import verify_in_place
from tests.raising import raised

pytestmark = pytest.mark.torch

OPS = {name: kernels.load(name) for name in kernels.usual()}


@pytest.fixture
def session():
    opened = backends.load("torch").open("torch:cpu", threads=1)
    yield opened
    opened.close()


def case(op: Op, n: int = 64, dtype: str = "float32") -> Case:
    fields = {"op": op.name, "group": op.group, "params": {"n": n}, "dtype": dtype, "implementation": "library"}
    return msgspec.convert({**fields, "regime": "resident", "device_id": "torch:cpu"}, Case)


def test_every_op_in_every_dtype(monkeypatch) -> None:
    """At two sizes: what others depend on is PyTorch's own, as a large transfer is NumPy's."""
    monkeypatch.setattr(conformance, "LARGE_BYTES", (1 << 20) + 12)
    checks = conformance.Checks(sizes=lambda op: conformance.usual_sizes(op)[:4:3], seeds=(1,), exhaust=True)
    report = conformance.suite(backends.load("torch"), "torch:cpu", checks=checks)
    assert report.findings == []
    checked = {(text.split("/")[0], text.split("/")[2], text.split("/")[3]) for text in report.checked}
    assert checked == {(op.name, dtype, "library") for op in OPS.values() for dtype in op.dtypes}


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_is_the_memory_of_the_array(session, dtype) -> None:
    array = np.zeros(8, host_dtype(dtype))
    session.fill(session.view(array), (8,), dtype, 3)
    assert (array == 3).all()


def test_a_launch_writes_into_one_output(session) -> None:
    op = OPS["add"]
    inputs = [session.allocate((64,), "float32").fill_(1) for _ in op.inputs]
    launch = session.compile(op, case(op), inputs, None)
    session.run(launch)
    output = launch.output
    session.run(launch, 3)
    assert launch.output is output
    launch.output = None
    launch.call = lambda: None
    session.run(launch)
    assert launch.output.isnan().all()  # the old answer does not pass for a new one
    launch.into, launch.output = session.allocate((4,), "int32"), None
    session.run(launch)
    assert (launch.output == sentinel_of("int32")).all()


def test_an_op_of_another_package_runs_through_its_expression(session) -> None:
    op = msgspec.structs.replace(
        OPS["softmax"], name="clipped", library={}, expr=lambda xp,
        x: xp.minimum(xp.ascontiguousarray(x), xp.maximum(x - xp.max(x, axis=-1, keepdims=True), -1.0)) + xp.where(x > 0, x, 0),
    )  # fmt: skip
    one = case(op, n=2048)
    assert session.supports(op, one) is None
    x = np.linspace(-3, 3, 2048, dtype=np.float32).reshape(op.inputs[0].shape(one.params))
    launch = session.compile(op, one, [session.view(x)], None)
    session.run(launch)
    np.testing.assert_allclose(launch.output.numpy(), op.expr(np, x), rtol=1e-6)


@pytest.mark.parametrize(("expr", "why"), [
    (lambda xp, x, y: xp.lib.stride_tricks(x), "has no attribute 'lib'"),
    (lambda xp, x, y: x[:1], "makes torch.float32 of the shape (1,) of it"),
])  # fmt: skip
def test_an_expression_that_pytorch_does_not_know_is_refused(session, expr, why) -> None:
    op = msgspec.structs.replace(OPS["add"], name=why, library={}, expr=expr)
    refusal = session.supports(op, case(op))
    assert (refusal.reason, why in refusal.detail) == ("no-implementation", True), refusal.detail
    full = msgspec.structs.replace(
        op, name=f"full {why}", expr=MagicMock(side_effect=RuntimeError("out of memory"))
    )
    raised(DeviceOutOfMemory, session.supports, full, case(full))


def test_a_gpu_is_driven_by_its_own_module_of_pytorch(monkeypatch) -> None:
    import torch

    driver, place = MagicMock(), torch.device("cuda:0")
    monkeypatch.setattr(torch, "cuda", driver)
    clock = DeviceClock(kind="event", step_s=5e-7)
    device = Device(id="torch:cuda:0", backend="torch", kind="gpu", name="a GPU", api="cuda", clock=clock)
    session = torch_backend.TorchSession(device, None)
    array, found = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    buffer = session.view(np.zeros(8, np.float32))
    session.allocate = lambda shape, dtype: buffer
    driver.Event().elapsed_time.return_value = 2.5
    assert session.time(torch_backend.TorchLaunch(lambda: None), 3) == 2.5e-3
    driver.reset_mock()
    session.enter()
    session.sync()
    stream = session.stream()
    with stream.on():
        stream.upload(buffer, array)
        stream.run(torch_backend.TorchLaunch(lambda: buffer.add_(1)))
        stream.download(buffer, found)
    stream.wait()
    session.close()
    assert found.tolist() == (array + 1).tolist()
    own = driver.Stream()
    used = [call.set_device(place), call.synchronize(), call.Stream(), call.stream(own)]
    assert driver.mock_calls[:4] == used
    assert driver.mock_calls[6:8] == [call.Stream().synchronize(), call.empty_cache()]
    flag = torch.backends.cuda.matmul
    seen: list[bool] = []
    op = msgspec.structs.replace(OPS["add"], library={"torch": lambda torch, *x: seen.append(flag.allow_tf32)})
    session.run(
        session.compile(op, msgspec.structs.replace(case(op), variant="tf32"), [buffer, buffer], buffer)
    )
    assert (seen, flag.allow_tf32) == ([True], False)


def test_page_locked_memory_is_computed_in_where_it_lies(monkeypatch, tmp_path) -> None:
    """A build for the CPU locks no memory and has no second place for it: both are acted."""
    import torch

    empty = torch.empty
    monkeypatch.setattr(torch, "cuda", MagicMock(get_device_capability=lambda place: (8, 0)))
    monkeypatch.setattr(torch, "empty", lambda size, *, dtype, **place: empty(size, dtype=dtype))
    device = Device(id="torch:cuda:0", backend="torch", kind="gpu", name="a GPU", api="cuda")
    session = torch_backend.TorchSession(device, None)

    def as_tensor(memory, device):
        held = SimpleNamespace(__array_interface__=memory.__cuda_array_interface__, memory=memory)
        return torch.from_numpy(np.asarray(held))

    monkeypatch.setattr(torch, "as_tensor", as_tensor)
    verify_in_place(session, "mapped", "add", {"n": 64}, "library", tmp_path)
    monkeypatch.setattr(torch, "as_tensor", lambda memory, device: as_tensor(memory, device).clone())
    assert raised(Unsupported, session.in_place("mapped").allocate, (4,), "float32").reason == "not-in-place"


def test_a_tensor_of_another_shape_is_neither_lent_nor_copied_nor_compared(session) -> None:
    buffer = session.allocate((4,), "float32").zero_()
    for shape, fits in (((4,), True), ((2, 2), False)):
        copy = session.copy_of(buffer, shape, "float32")
        assert (copy is not None, session.memory(buffer, shape, "float32") is not None) == (fits, fits)
        assert session.begins(buffer.clone(), buffer, shape, "float32") == fits


def test_an_op_is_tried_at_a_small_size_with_its_own_switches(session) -> None:
    one = case(OPS["matmul"], n=2**24)
    assert session.supports(OPS["matmul"], msgspec.structs.replace(one, params={**one.params, "ta": 1})) is None
    assert session.supports(OPS["matmul"], msgspec.structs.replace(one, variant="tf32")).reason == "no-tf32"


def test_threads_and_blas_are_recorded(monkeypatch) -> None:
    import torch

    forbidden = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")
    for name in forbidden:
        monkeypatch.setenv(name, "1")
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    session = backends.load("torch").open("torch:cpu", threads=1)
    assert ("GOMP_SPINCOUNT" in os.environ, {*forbidden} & {*os.environ}) == (True, set())
    assert session.threads == torch.get_num_threads() == 1
    assert (torch.is_grad_enabled(), torch.backends.cudnn.allow_tf32) == (False, False)
    assert f"BLAS_INFO={session.blas.library}" in torch.__config__.show().replace("=open,", "=openblas,")
    assert session.blas.kernel


def test_the_cpu_is_listed_without_importing_a_build_for_the_cpu() -> None:
    program = (
        "import sys; from gpubench import backends; devices = backends.load('torch').devices();"
        "print(devices[0].id, len(devices) > 1 or 'torch' not in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["torch:cpu", "True"]


def test_a_run_takes_it_as_a_second_cpu(gpubench, tmp_path) -> None:
    ended = gpubench(*"run --quick --mode cpu --ops softmax --sizes 4096 --full -o r.json".split())
    assert ended.returncode == 0, ended.stderr
    assert "numpy, " in ended.stdout
    assert "torch, " in ended.stdout


def test_a_device_without_page_locked_memory_has_no_pipelines(session) -> None:
    assert raised(Unsupported, session.stream).reason == "no-streams"
