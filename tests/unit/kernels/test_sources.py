"""CUDA as text: any size gives a launch that the device accepts, or Unsupported."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench import kernels
from gpubench.errors import Unsupported
from gpubench.model.kernel import CudaProgram, Limits

NAMES = kernels.computed()
H200 = Limits(
    max_buffer_bytes=4292870144,
    max_binding_bytes=2147483644,
    max_workgroup_bytes=49152,
    max_workgroup_threads=1024,
    multiprocessors=132,
    float16=True,
)
CUDA = [
    (name, dtype) for name in NAMES for dtype in kernels.load(name).dtypes if "cupy" in kernels.load(name).tuned
]
ELEMENTWISE = [(name, dtype) for name, dtype in CUDA if name not in ("matmul", "softmax", "transpose")]


def check_cuda(program: CudaProgram, op, sizes: tuple[int, ...]) -> None:
    (step,) = program.passes
    assert all(1 <= extent <= most for extent, most in zip(step.grid, (2**31 - 1, 65535, 65535), strict=True))
    assert math.prod(step.block) <= 1024
    assert step.arguments == (*(x.name for x in op.inputs), op.output.name, *sizes)
    signature = re.search(rf"\b{step.entry}\(([^)]+)\)", step.source)
    assert signature
    assert signature[1].count(",") + 1 == len(step.arguments)
    assert signature[1].count("long long") == len(sizes)
    assert step.source.count("{") == step.source.count("}")


@pytest.mark.parametrize(("name", "dtype"), ELEMENTWISE)
@given(n=st.integers(1, 2**33))
def test_cuda_covers_every_element(name, dtype, n):
    op = kernels.load(name)
    program = op.tuned["cupy"][0].build({"n": n}, dtype, H200)
    check_cuda(program, op, (n,))
    (step,) = program.passes
    assert step.grid[0] * step.block[0] * 16 // {"float64": 8, "float32": 4, "float16": 2}[dtype] >= n


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(rows=st.integers(1, 5000), columns=st.integers(1, 100_000))
def test_cuda_softmax_covers_every_row(dtype, rows, columns):
    op = kernels.load("softmax")
    program = op.tuned["cupy"][0].build({"n": rows * columns, "columns": columns}, dtype, H200)
    check_cuda(program, op, (rows, columns))
    (step,) = program.passes
    lanes = re.search(r"THREADS = (\d+), ROW_THREADS = (\d+);", step.source)
    assert lanes
    assert int(lanes[1]) == step.block[0]
    assert step.block[0] % 32 == 0  # the shuffles name all 32 threads of a warp
    assert step.grid[0] * (step.block[0] // int(lanes[2])) >= rows


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@given(m=st.integers(1, 100_000), n=st.integers(1, 100_000))
def test_cuda_transpose_covers_every_tile(dtype, m, n):
    op = kernels.load("transpose")
    program = op.tuned["cupy"][0].build({"n": n, "m": m}, dtype, H200)
    check_cuda(program, op, (m, n))
    (step,) = program.passes
    side = re.search(r"SIDE = (\d+);", step.source)
    assert side
    assert step.grid[0] * int(side[1]) >= n
    assert step.grid[1] * int(side[1]) >= m


def test_a_transpose_taller_than_a_cuda_grid_is_refused():
    with pytest.raises(Unsupported, match="65535"):
        kernels.load("transpose").tuned["cupy"][0].build({"n": 4, "m": 2**23}, "float32", H200)


def test_cublas_is_its_own_tuned_form():
    (kernel,) = kernels.load("matmul").tuned["cupy"]
    assert kernel.library
    with pytest.raises(Unsupported, match="cuBLAS") as caught:
        kernel.build({"n": 64}, "float32", H200)
    assert caught.value.reason == "no-implementation"
