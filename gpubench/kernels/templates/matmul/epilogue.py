"""What is done to each element of a product before it is written: a bias, an activation, a sum, a mask.

One scalar formula a language, in `v`, the element of the product, and the names of the operands. WGSL writes it in the
type `V`, which is a few elements or one. CUDA applies it to what cuBLAS wrote, in a second pass over C, or to few rows
before they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.kernel import CudaPass
from gpubench.kernels.contract.op import Array
from gpubench.kernels.templates import ceil_div
from gpubench.kernels.templates.cuda import MOST_BLOCKS, lanes, options, prelude
from gpubench.kernels.templates.elementwise import GELU_CUBIC as CUBIC
from gpubench.kernels.templates.elementwise import GELU_SCALE as C

_THREADS = 256


class Epilogue(msgspec.Struct, frozen=True):
    """`operands`: by name, what is read beside the product: a vector "across" a row of C, or a matrix like "all" of C.

    `flops` are those of an element. `cpu(np, out, room, *operands)` changes `out` in place; `room(out)` gives it an
    array to work in.
    `wgsl_functions` and `cuda_functions` are text that the formulas call; `exponential`: they call `exp`.
    """

    operands: Mapping[str, Literal["across", "all"]]
    cpu: Callable[..., None]
    wgsl: str
    cuda: str
    flops: int
    wgsl_functions: str = ""
    cuda_functions: str = ""
    exponential: bool = False

    def finish(self) -> str:
        """The WGSL function `finish(v, ...)`."""
        given = ", ".join(f"{name}: V" for name in ("v", *self.operands))
        return f"{self.wgsl_functions}\nfn finish({given}) -> V {{ return {self.wgsl}; }}"

    def cuda_finish(self) -> str:
        """The CUDA function `finish(v, ...)`."""
        reals = "".join(f", real {name}" for name in self.operands)
        formula = f"__device__ __forceinline__ real finish(real v{reals}) {{ return {self.cuda}; }}"
        return f"{self.cuda_functions}\n{formula}"

    def cuda_pass(self, rows: int, columns: int, dtype: str) -> CudaPass:
        """The formula over all of `out`, in place. Raises Unsupported beyond CUDA's largest grid."""
        width = lanes(dtype) if columns % lanes(dtype) == 0 else 1
        units = rows * columns // width
        blocks = ceil_div(units, _THREADS)
        if blocks > MOST_BLOCKS:
            raise Unsupported(f"{units} units take {blocks} blocks; a CUDA grid has {MOST_BLOCKS}")
        return CudaPass(
            self._cuda_source(width, dtype), "gpubench_epilogue", (blocks, 1, 1), (_THREADS, 1, 1),
            ("out", *self.operands, units, columns // width), options=options(dtype),
        )  # fmt: skip

    def _cuda_source(self, width: int, dtype: str) -> str:
        arrays = "".join(f", const stored* __restrict__ {name}_" for name in self.operands)
        index = {"across": "i % across", "all": "i"}
        loads = "\n".join(
            f"  const Unit {name} = reinterpret_cast<const Unit*>({name}_)[{index[along]}];"
            for name, along in self.operands.items()
        )
        given = "".join(f", wide({name}.lane[j])" for name in self.operands)
        return f"""{prelude(dtype)}
const int WIDTH = {width};
struct alignas(WIDTH * sizeof(stored)) Unit {{ stored lane[WIDTH]; }};
{self.cuda_finish()}
extern "C" __global__ void __launch_bounds__({_THREADS})
gpubench_epilogue(stored* __restrict__ out_{arrays}, long long units, long long across) {{
  const long long i = (long long)blockIdx.x * {_THREADS} + threadIdx.x;
  if (i >= units) return;
  Unit out = reinterpret_cast<Unit*>(out_)[i];
{loads}
  #pragma unroll
  for (int j = 0; j < WIDTH; ++j) out.lane[j] = narrow(finish(wide(out.lane[j]){given}));
  reinterpret_cast<Unit*>(out_)[i] = out;
}}
"""


# ---------------------------------------------------------------- those of several ops

GELU_SLOPE = 1.13  # the largest, at 1.4


def _gelu_cpu(np: Any, out: Array, room: Any, b: Array) -> None:
    """z / (1 + exp(-2 c (z + 0.044715 z^3))), step by step in place."""
    kind = out.dtype.type
    power = room(out)
    np.add(out, b, out=out)
    np.multiply(out, out, out=power)
    np.multiply(power, kind(-2 * C * CUBIC), out=power)
    np.subtract(power, kind(2 * C), out=power)
    np.multiply(power, out, out=power)
    np.exp(power, out=power)
    np.add(power, kind(1), out=power)
    np.divide(out, power, out=out)


BIAS = Epilogue(
    {"b": "across"},
    cpu=lambda np, out, room, b: np.add(out, b, out=out),
    wgsl="v + b",
    cuda="v + b",
    flops=1,
)
GELU = Epilogue(
    {"b": "across"},
    cpu=_gelu_cpu,
    wgsl="gelu(v + b)",
    wgsl_functions=f"""fn gelu(x: V) -> V {{
  return x / (V(1.0) + exp(V({-2 * C!r}) * fma(V({CUBIC}) * x * x, x, x)));
}}""",
    exponential=True,
    cuda="gelu(v + b)",
    flops=10,
    cuda_functions=f"""__device__ __forceinline__ real gelu(real x) {{
  return x / (real(1) + exp(real({-2 * C!r}) * fma(real({CUBIC}) * x * x, x, x)));
}}""",
)
