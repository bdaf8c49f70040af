"""The CUDA template of elementwise ops: one 128-bit load and store per thread, 256 threads a block.

On an H200 this reaches 1.01 of the device copy (four per thread 0.97); CuPy's own elementwise kernels stop
at 211 G elements/s, 0.40 to 0.60 of it. CUDA's grid has no short x dimension, so nothing is folded.
"""

from __future__ import annotations

import msgspec

from gpubench.errors import Unsupported
from gpubench.kernels import _types_cuda
from gpubench.kernels._limits import ceil_div, require_dtype
from gpubench.model.kernel import CudaPass, CudaProgram

BLOCK_THREADS = 256


class Body(msgspec.Struct, frozen=True):
    """A scalar CUDA C++ expression in `names`, each of type `real`, and the dtypes it is right in."""

    op: str
    names: tuple[str, ...]
    expression: str
    dtypes: tuple[str, ...]


def build(body: Body, n: int, dtype: str) -> CudaProgram:
    """One launch over n elements, none if n is 0. Raises Unsupported for a dtype that the op does not declare."""
    require_dtype(dtype, body.dtypes, "CUDA")
    if n == 0:
        return CudaProgram(())
    blocks = ceil_div(ceil_div(n, _types_cuda.lanes(dtype)), BLOCK_THREADS)
    if blocks > _types_cuda.MOST_BLOCKS:
        raise Unsupported(f"{n} elements take {blocks} blocks; a CUDA grid has {_types_cuda.MOST_BLOCKS}")
    step = CudaPass(
        source(body, dtype), f"gpubench_{body.op}", (blocks, 1, 1), (BLOCK_THREADS, 1, 1),
        (*body.names, "out", n), options=_options(body, dtype),
    )  # fmt: skip
    return CudaProgram((step,))


def source(body: Body, dtype: str) -> str:
    """The whole translation unit; the kernel's arguments are the inputs, `out` and n (64-bit)."""
    pointers = ", ".join(f"const stored* __restrict__ {name}_" for name in body.names)
    loads = "\n".join(
        f"    const Pack {name} = reinterpret_cast<const Pack*>({name}_)[i];" for name in body.names
    )
    lanes = ", ".join(f"{name}.lane[k]" for name in body.names)
    scalars = ", ".join(f"{name}_[k]" for name in body.names)
    return f"""{_types_cuda.prelude(dtype)}
{_element(body)}

extern "C" __global__ void gpubench_{body.op}({pointers}, stored* __restrict__ out_, long long n) {{
  const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  const long long whole = n / LANES;
  if (i < whole) {{
{loads}
    Pack result;
    #pragma unroll
    for (int k = 0; k < LANES; ++k) result.lane[k] = element({lanes});
    reinterpret_cast<Pack*>(out_)[i] = result;
  }} else if (i == whole) {{
    #pragma unroll 1
    for (long long k = whole * LANES; k < n; ++k) out_[k] = element({scalars});
  }}
}}
"""


def _options(body: Body, dtype: str) -> tuple[str, ...]:
    """A plain division stays correctly rounded; beside an exponential the short one is no worse."""
    return _types_cuda.options(dtype) if "exp(" in body.expression or "tanh(" in body.expression else ()


def _element(body: Body) -> str:
    """The function of one element. What only moves is not converted: every bit pattern arrives as it was."""
    if body.expression in body.names:
        arguments = ", ".join(f"stored {name}" for name in body.names)
        return f"__device__ __forceinline__ stored element({arguments}) {{ return {body.expression}; }}"
    names = ", ".join(f"stored {name}_" for name in body.names)
    widened = " ".join(f"const real {name} = wide({name}_);" for name in body.names)
    return f"""__device__ __forceinline__ stored element({names}) {{
  {widened}
  return narrow({body.expression});
}}"""
