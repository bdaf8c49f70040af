"""Epilogues of a product, applied to each element before it is written: a bias, an activation, a sum, a mask.

WGSL writes the formula in the type `V`, which is a few elements or one. CUDA applies it to what cuBLAS wrote, in a
second pass over C, or to few rows before they are written. The CPU applies it to rows that are in its cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from gpubench.kernels.contract.kernel import CudaPass
from gpubench.kernels.templates import ceil_div
from gpubench.kernels.templates.cuda import kernel_pass, lanes
from gpubench.kernels.templates.elementwise import gelu
from gpubench.kernels.templates.formula import Formula, trace

_THREADS = 256


class Epilogue(msgspec.Struct, frozen=True):
    """The work on each element of a product before it is written."""

    # by name, what is read beside the product: a vector "across" a row of C, or a matrix like "all" of C
    operands: Mapping[str, Literal["across", "all"]]
    formula: Callable[..., Any]  # of the product's element `v` and of the operands
    flops: int  # operations of an element

    @property
    def traced(self) -> Formula:
        """The steps of the formula."""
        return trace(self.formula, ["v", *self.operands])

    def finish(self) -> str:
        """The WGSL function `finish(v, ...)`."""
        return self.traced.wgsl("finish", "V", "V({})")

    def cuda_finish(self) -> str:
        """The CUDA function `finish(v, ...)`."""
        return self.traced.cuda("finish")

    def cuda_pass(self, rows: int, columns: int, dtype: str) -> CudaPass:
        """The formula over all of `out`, in place. Raises Unsupported beyond CUDA's largest grid."""
        width = lanes(dtype) if columns % lanes(dtype) == 0 else 1
        units = rows * columns // width
        arguments = ("out", *self.operands, units, columns // width)
        source, blocks = self._cuda_source(width), ceil_div(units, _THREADS)
        return kernel_pass("epilogue", dtype, source, blocks, _THREADS, arguments)

    def _cuda_source(self, width: int) -> str:
        arrays = "".join(f", const stored* __restrict__ {name}_" for name in self.operands)
        index = {"across": "i % across", "all": "i"}
        loads = "\n".join(
            f"  const Unit {name} = reinterpret_cast<const Unit*>({name}_)[{index[along]}];"
            for name, along in self.operands.items()
        )
        operands = "".join(f", wide({name}.lane[j])" for name in self.operands)
        return f"""const int WIDTH = {width};
struct alignas(WIDTH * sizeof(stored)) Unit {{ stored lane[WIDTH]; }};
{self.cuda_finish()}
extern "C" __global__ void __launch_bounds__({_THREADS})
gpubench_epilogue(stored* __restrict__ out_{arrays}, long long units, long long across) {{
  const long long i = (long long)blockIdx.x * {_THREADS} + threadIdx.x;
  if (i >= units) return;
  Unit out = reinterpret_cast<Unit*>(out_)[i];
{loads}
  #pragma unroll
  for (int j = 0; j < WIDTH; ++j) out.lane[j] = narrow(finish(wide(out.lane[j]){operands}));
  reinterpret_cast<Unit*>(out_)[i] = out;
}}
"""


GELU_SLOPE = 1.13  # the largest, at 1.4
GELU = Epilogue({"b": "across"}, lambda m, v, b: gelu(m, v + b), flops=10)
BIAS = Epilogue({"b": "across"}, lambda m, v, b: v + b, flops=1)
