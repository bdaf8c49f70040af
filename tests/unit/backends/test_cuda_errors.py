"""What CUDA and its libraries raise becomes ours, by stand-ins for CuPy's exceptions: no memory is always a skip."""

import sys
from types import SimpleNamespace

import pytest

from gpubench.backends import cupy as backend
from gpubench.base.errors import BackendError, DeviceLost, DeviceOutOfMemory


class OutOfMemoryError(MemoryError):
    pass


class RuntimeApiError(RuntimeError):
    pass


class DriverApiError(RuntimeError):
    pass


class CublasError(RuntimeError):
    pass


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    cuda = SimpleNamespace(
        memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        runtime=SimpleNamespace(CUDARuntimeError=RuntimeApiError),
        driver=SimpleNamespace(CUDADriverError=DriverApiError),
        cublas=SimpleNamespace(CUBLASError=CublasError),
    )
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))


@pytest.mark.parametrize(
    ("raised", "ours"),
    [
        (OutOfMemoryError("Out of memory allocating 8 bytes"), DeviceOutOfMemory),
        (RuntimeApiError("cudaErrorMemoryAllocation: out of memory"), DeviceOutOfMemory),
        (RuntimeApiError("cudaErrorIllegalAddress: an illegal memory access"), DeviceLost),
        (DriverApiError("CUDA_ERROR_OUT_OF_MEMORY: out of memory"), DeviceOutOfMemory),
        (DriverApiError("CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure"), DeviceLost),
        (CublasError("CUBLAS_STATUS_ALLOC_FAILED"), DeviceOutOfMemory),
        (CublasError("CUBLAS_STATUS_NOT_SUPPORTED"), BackendError),
    ],
    ids=str,
)
def test_each_error_becomes_ours(raised, ours):
    with pytest.raises(BackendError, match=str(raised)[:20]) as found, backend.vendor_errors():
        raise raised
    assert type(found.value) is ours


def test_what_is_not_the_vendors_passes():
    with pytest.raises(ZeroDivisionError), backend.vendor_errors():
        raise ZeroDivisionError
