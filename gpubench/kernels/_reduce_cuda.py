"""Reductions to one number in CUDA, in one launch: blocks stride through the vectors, the last one folds.

Each block leaves one partial result; a ticket says which block is the last to do so, and that one folds them
all in a fixed order. The ticket is an integer, so the result does not depend on who came last: it is the same
in every launch. Few large blocks reach 0.99 of an H200's device copy, 4096 of 256 threads 0.91.
"""

from __future__ import annotations

import msgspec

from gpubench.kernels import _types_cuda
from gpubench.kernels._limits import ceil_div, require_dtype
from gpubench.model.kernel import CudaPass, CudaProgram
from gpubench.model.op import ITEMSIZE

# The smallest element of `max` that never wins.
MINUS_INFINITY = "minus_infinity()"


class Body(msgspec.Struct, frozen=True):
    """A reduction: `element` of the inputs `names`, each of type `real`, folded by `join` of a and b.

    `start` is a value that changes nothing. `larger(a, b)` is there for `join`: a NaN wins in it.
    """

    op: str
    names: tuple[str, ...]
    element: str
    join: str = "a + b"
    start: str = "real(0)"


class Shape(msgspec.Struct, frozen=True):
    """Threads of a block, vectors that a thread loads at once, and the most blocks."""

    threads: int
    vectors: int
    blocks: int

    def tiles(self, n: int, dtype: str) -> int:
        """Blocks that n elements take if each loads once."""
        return ceil_div(n, _types_cuda.lanes(dtype) * self.threads * self.vectors)


def shape_of(body: Body, n: int, dtype: str) -> Shape:
    """1024 threads with four loads of 16 bytes under way in each, or smaller blocks where those are too few."""
    arrays = len(body.names)
    large = Shape(1024, max(1, 4 // arrays), 1056 * arrays)
    return large if large.tiles(n, dtype) >= large.blocks else Shape(256, 4, 4096)


def build(body: Body, n: int, dtype: str, shape: Shape | None = None) -> CudaProgram:
    """One launch over n elements; of none, the result is `start`. Raises Unsupported for another dtype."""
    require_dtype(dtype, _types_cuda.DTYPES, "CUDA")
    shape = shape or shape_of(body, n, dtype)
    blocks = max(1, min(shape.tiles(n, dtype), shape.blocks))
    step = CudaPass(
        source(body, dtype, shape), f"gpubench_{body.op}", (blocks, 1, 1), (shape.threads, 1, 1),
        (*body.names, "out", "partial", "ticket", n), options=_types_cuda.options(dtype),
    )  # fmt: skip
    return CudaProgram((step,), {"partial": shape.blocks * max(4, ITEMSIZE[dtype]), "ticket": 16})


def source(body: Body, dtype: str, shape: Shape) -> str:
    """The whole translation unit; it does not depend on n."""
    pointers = ", ".join(f"const stored* __restrict__ {name}_" for name in body.names)
    arguments = ", ".join(f"stored {name}_" for name in body.names)
    widened = " ".join(f"const real {name} = wide({name}_);" for name in body.names)
    loads = " ".join(
        f"{name}[k] = reinterpret_cast<const Pack*>({name}_)[i + k * THREADS];" for name in body.names
    )
    packs = ", ".join(f"{name}[VECTORS]" for name in body.names)
    lanes = ", ".join(f"{name}[k].lane[j]" for name in body.names)
    scalars = ", ".join(f"{name}_[whole * LANES + threadIdx.x]" for name in body.names)
    return f"""{_types_cuda.prelude(dtype)}
const int THREADS = {shape.threads}, VECTORS = {shape.vectors};
{_LARGER["double" if dtype == "float64" else "float"]}
__device__ __forceinline__ real join(real a, real b) {{ return {body.join}; }}
__device__ __forceinline__ real element({arguments}) {{ {widened} return {body.element}; }}
{_FOLD}
extern "C" __global__ void __launch_bounds__(THREADS) gpubench_{body.op}(
    {pointers}, stored* __restrict__ out, real* partial, unsigned* ticket, long long n) {{
  __shared__ real spare[32];
  __shared__ bool last;
  const real start = {body.start};
  const long long whole = n / LANES, stride = (long long)gridDim.x * (THREADS * VECTORS);
  real folded[LANES];
  #pragma unroll
  for (int j = 0; j < LANES; ++j) folded[j] = start;
  long long i = (long long)blockIdx.x * (THREADS * VECTORS) + threadIdx.x;
  for (; i + (VECTORS - 1) * THREADS < whole; i += stride) {{
    Pack {packs};
    #pragma unroll
    for (int k = 0; k < VECTORS; ++k) {{ {loads} }}
    #pragma unroll
    for (int k = 0; k < VECTORS; ++k)
      #pragma unroll
      for (int j = 0; j < LANES; ++j) folded[j] = join(folded[j], element({lanes}));
  }}
  #pragma unroll 1
  for (; i < whole; i += THREADS) {{  // the last, shorter tile
    const int k = 0;
    Pack {packs.replace("VECTORS", "1")};
    {loads}
    #pragma unroll
    for (int j = 0; j < LANES; ++j) folded[j] = join(folded[j], element({lanes}));
  }}
  if (blockIdx.x == 0 && threadIdx.x < n - whole * LANES) folded[0] = join(folded[0], element({scalars}));
  #pragma unroll
  for (int far = LANES / 2; far > 0; far /= 2)
    #pragma unroll
    for (int j = 0; j < far; ++j) folded[j] = join(folded[j], folded[j + far]);
  real total = fold(folded[0], start, spare);
  if (gridDim.x > 1) {{
    if (threadIdx.x == 0) {{
      partial[blockIdx.x] = total;
      __threadfence();
      last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;  // and 0 again for the next launch
    }}
    __syncthreads();
    if (!last) return;
    __threadfence();
    total = start;
    #pragma unroll 4
    for (int b = threadIdx.x; b < gridDim.x; b += THREADS) total = join(total, __ldcg(partial + b));
    total = fold(total, start, spare);
  }}
  if (threadIdx.x == 0) *out = narrow(total);
}}
"""


_LARGER = {
    "float": """__device__ __forceinline__ float larger(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
#else
  return a != a || a > b ? a : b;
#endif
}""",
    "double": "__device__ __forceinline__ double larger(double a, double b) { return a != a || a > b ? a : b; }",
}

_FOLD = """
// The value of all threads of the block, folded: right in thread 0.
__device__ __forceinline__ real fold(real value, real start, real* spare) {
  #pragma unroll
  for (int far = 16; far > 0; far /= 2) value = join(value, __shfl_xor_sync(0xffffffffu, value, far));
  __syncthreads();
  if (threadIdx.x % 32 == 0) spare[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x >= 32) return value;
  value = threadIdx.x < THREADS / 32 ? spare[threadIdx.x] : start;
  #pragma unroll
  for (int far = 16; far > 0; far /= 2) value = join(value, __shfl_xor_sync(0xffffffffu, value, far));
  return value;
}
"""
