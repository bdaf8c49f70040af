"""The types of every CUDA kernel: how an element lies in memory, what it is computed in, one 128-bit access.

Half precision is widened to float by the PTX instructions themselves: no kernel needs a header of the CUDA
toolkit, which is not there on every machine that has a driver and CuPy.
"""

from __future__ import annotations

from typing import Any

from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.kernel import CudaPass
from gpubench.kernels.contract.op import ITEMSIZE
from gpubench.kernels.templates import require_dtype

DTYPES = ("float32", "float64", "float16", "bfloat16")
# The CUDA limit of a block on every device, and of a grid in x and in y.
MOST_THREADS = 1024
MOST_BLOCKS, MOST_BLOCKS_ACROSS = 2**31 - 1, 65535
# Half precision is divided to 2 ulp of float, a 4096th of its own rounding; float and double stay IEEE.
# A subnormal float16 is an ordinary float: only there may the arithmetic take subnormal floats as 0.
_OPTIONS = {"float16": ("--prec-div=false", "-ftz=true"), "bfloat16": ("--prec-div=false",)}
# Elements of 16 bits arrive twice as fast as those of 32: exp and tanh must be short. This tanh is right to 1e-5
# of itself; both of its branches are computed, because threads that part ways would cost more. A power
# below 1.2e-38 is 0 (`ftz`), which saves its scaling.
_SHORT_FUNCTIONS = """
__device__ __forceinline__ real short_exp(real x) {
  real power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.442695041f));
  return power;
}
__device__ __forceinline__ real short_tanh(real x) {
  const real z = x * x;
  const real near = x * fmaf(fmaf(fmaf(-0.05396825f, z, 0.13333333f), z, -0.33333333f), z, 1.0f);
  const real far = copysignf(1.0f - __fdividef(2.0f, short_exp(2.0f * fabsf(x)) + 1.0f), x);
  return z < 0.16f ? near : far;
}
#define exp short_exp
#define tanh short_tanh
"""
_WIDEN = {
    "float16": 'asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(v.bits));',
    "bfloat16": "value = __uint_as_float((unsigned)v.bits << 16);",
}
_NARROW = {
    "float16": '  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(v.bits) : "f"(value));',
    # Before compute capability 8.0 by hand: to nearest, ties to even, and a NaN stays one.
    "bfloat16": """#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(v.bits) : "f"(value));
#else
  const unsigned bits = __float_as_uint(value);
  v.bits = value != value ? 0x7fff : (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif""",
}


def lanes(dtype: str) -> int:
    """Elements of one 128-bit access."""
    return 16 // ITEMSIZE[dtype]


def kernel_pass(
    name: str, dtype: str, text: str, blocks: int | tuple[int, int, int], threads: int | tuple[int, int, int],
    arguments: tuple[Any, ...],
) -> CudaPass:  # fmt: skip
    """The launch of the kernel `gpubench_NAME` that the text behind the prelude defines. Raises Unsupported for another
    dtype, and beyond CUDA's largest grid."""
    require_dtype(dtype, DTYPES, "CUDA")
    grid = (blocks, 1, 1) if isinstance(blocks, int) else blocks
    block = (threads, 1, 1) if isinstance(threads, int) else threads
    if grid[0] > MOST_BLOCKS or max(grid[1:]) > MOST_BLOCKS_ACROSS:
        taken = " x ".join(str(extent) for extent in grid if extent > 1)
        raise Unsupported(f"the launch takes {taken} blocks; a CUDA grid has {MOST_BLOCKS}", reason="limit")
    return CudaPass(
        f"{prelude(dtype)}\n{text}", f"gpubench_{name}", grid, block, arguments, options=_OPTIONS.get(dtype, ())
    )


def prelude(dtype: str) -> str:
    """`stored` in memory, `real` in registers, `wide` and `narrow` between them, `Pack` for one 128-bit access."""
    return f"""{_half(dtype) if dtype in _WIDEN else _plain(dtype)}
__device__ __forceinline__ real select(bool condition, real a, real b) {{ return condition ? a : b; }}
const int LANES = {lanes(dtype)};
struct alignas(16) Pack {{ stored lane[LANES]; }};
"""


def _plain(dtype: str) -> str:
    name = "double" if dtype == "float64" else "float"
    bits = "__longlong_as_double(0xfff0000000000000ll)" if dtype == "float64" else "__int_as_float(0xff800000)"
    return f"""typedef {name} stored;
typedef {name} real;
__device__ __forceinline__ real wide(stored v) {{ return v; }}
__device__ __forceinline__ stored narrow(real v) {{ return v; }}
__device__ __forceinline__ real minus_infinity() {{ return {bits}; }}"""


def _half(dtype: str) -> str:
    return f"""struct stored {{ unsigned short bits; }};
typedef float real;
__device__ __forceinline__ real wide(stored v) {{
  real value;
  {_WIDEN[dtype]}
  return value;
}}
__device__ __forceinline__ stored narrow(real value) {{
  stored v;
{_NARROW[dtype]}
  return v;
}}
__device__ __forceinline__ real minus_infinity() {{ return __int_as_float(0xff800000); }}
{_SHORT_FUNCTIONS.strip()}"""
