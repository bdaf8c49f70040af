"""NumPy and the scripted backend keep the contract; the suites on wgpu and CuPy are in vulkan/ and cuda/."""

import subprocess
import sys

import pytest

from gpubench import backends, kernels
from gpubench.base.errors import BackendUnavailable
from gpubench.measure import conformance

OPS = {name: kernels.load(name) for name in kernels.usual()}


def few(op):
    """One element, an odd number, and more than a tile."""
    return (1, 17, 130) if op.group == "matrix" else (1, 255, 1025)


def cases(report):
    """(op, dtype, implementation) of everything that was checked."""
    return {(text.split("/")[0], text.split("/")[2], text.split("/")[3]) for text in report.checked}


# NumPy and the scripted backend have no bfloat16.
HOST_DTYPES = ("float64", "float32", "float16")


def of_its_own(op, dtype):
    """Whether NumPy's tuned implementation in that dtype is more than the library call."""
    kernel = op.kernel("numpy", dtype)
    return kernel is not None and not kernel.library


@pytest.fixture(autouse=True)
def no_large_transfers(monkeypatch):
    """None of them has staging buffers, which a large transfer would have to take turns in."""
    monkeypatch.setattr(conformance, "LARGE_BYTES", (1 << 20) + 12)


def test_numpy_in_every_op_dtype_and_implementation():
    checks = conformance.Checks(sizes=few, seeds=(1,), exhaust=True)
    report = conformance.suite(backends.load("numpy"), "numpy:0", checks=checks)
    assert report.findings == []
    assert cases(report) == {
        (op.name, dtype, implementation)
        for op in OPS.values()
        for dtype in HOST_DTYPES
        for implementation in ("library", "tuned")
        if implementation == "library" or of_its_own(op, dtype)
    }
    assert set(report.refused.values()) <= {"no-dtype", "no-implementation"}


def test_the_scripted_gpu_in_every_op_and_dtype():
    checks = conformance.Checks(sizes=few, seeds=(1,), exhaust=True)
    report = conformance.suite(backends.load("fake"), "fake:gpu", checks=checks)
    assert report.findings == []
    assert cases(report) == {(op.name, dtype, "library") for op in OPS.values() for dtype in HOST_DTYPES}


@pytest.mark.parametrize(("name", "fix"), [("matmull", "did you mean 'matmul'?"), ("", "take one of these for NAME")])  # fmt: skip
def test_the_authors_command_refuses_a_name_that_nothing_has(name, fix):
    done = subprocess.run(
        [sys.executable, "-m", "gpubench.measure.conformance", *name.split()],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: NAME: there is no {name!r}\n")
    assert done.stderr.endswith(f"  fix: {fix}\n")


@pytest.mark.parametrize("device", ["fake:nope", "wgpu:999", "cupy:999"])
def test_a_device_that_is_not_there(device):
    with pytest.raises(BackendUnavailable):
        conformance.suite(backends.load(device.split(":")[0]), device)
