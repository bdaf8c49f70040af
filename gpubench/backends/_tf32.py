"""TF32 on CUDA: float32 inputs rounded to 10 bits of mantissa for the tensor cores. Off unless a case asks for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from gpubench.errors import Unsupported
from gpubench.model.case import TF32, Case
from gpubench.model.op import Op

# Tensor cores take TF32 since the Ampere generation (CUDA C++ programming guide, compute capability 8.x).
FIRST_MAJOR = 8
# cublasMath_t: CUBLAS_TF32_TENSOR_OP_MATH, which CuPy has no name for.
_MATH_TF32 = 3


def pin_off() -> None:
    """Float32 stays float32, whatever the user's environment says: CuPy and cuBLAS read it once they are loaded."""
    os.environ["CUPY_TF32"] = "0"
    os.environ.pop("NVIDIA_TF32_OVERRIDE", None)


def no_tf32(op: Op, case: Case, major: int, minor: int) -> Unsupported | None:
    """Why this case cannot run in TF32 on a device of that compute capability; None if it can or does not ask."""
    if case.form != "library" or case.variant is None:
        return None
    if case.variant != TF32 or "cupy" not in op.tf32 or case.dtype != "float32":
        return Unsupported(f"cupy has no {case.variant} {op.name} in {case.dtype}", reason="no-implementation")
    if major < FIRST_MAJOR:
        return Unsupported(
            f"TF32 needs compute capability {FIRST_MAJOR}.0; this device has {major}.{minor}", reason="no-tf32"
        )
    return None


def with_tf32(cupy: Any, call: Callable[[], Any]) -> Callable[[], Any]:
    """The same call with cuBLAS allowed to round float32 inputs to TF32; the handle's mode is put back after it."""
    cublas, handle = cupy.cuda.cublas, cupy.cuda.device.get_cublas_handle()

    def launch() -> Any:
        cublas.setMathMode(handle, _MATH_TF32)
        try:
            return call()
        finally:
            cublas.setMathMode(handle, cublas.CUBLAS_DEFAULT_MATH)

    return launch
