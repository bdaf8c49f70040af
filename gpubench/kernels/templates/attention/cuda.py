"""Fused causal attention in CUDA."""

from __future__ import annotations

import math

from gpubench.kernels.contract.kernel import CudaProgram, Limits
from gpubench.kernels.templates import ceil_div, require_dtype
from gpubench.kernels.templates.attention import KEYS, LANES, LOWEST, Heads, QueryLayout, layout
from gpubench.kernels.templates.cuda import DTYPES, kernel_pass, lanes


def build(of: Heads, dtype: str, limits: Limits) -> CudaProgram:
    """One launch, none without tokens. Raises Unsupported for another dtype, and for heads too many or too wide."""
    require_dtype(dtype, DTYPES, "CUDA")
    found = layout(of, 8 if dtype == "float64" else 4, limits)
    if of.n == 0:
        return CudaProgram(())
    grid, arguments = (ceil_div(of.n, found.group_rows), of.heads, 1), ("qkv", "out", of.n, of.width)
    step = kernel_pass("attention", dtype, _source(of, found, dtype), grid, found.threads, arguments)
    return CudaProgram((step,))


def _source(of: Heads, found: QueryLayout, dtype: str) -> str:
    return f"""const int E = {of.e}, ROWS = {found.rows}, PARTS = {found.parts};
const real LOWEST = real({LOWEST});
const int ACROSS = {LANES}, KEYS = {KEYS}, WIDTH = {math.gcd(of.e, lanes(dtype))};
{_KERNEL}"""


# The row blocks with the most keys come first: the last ones to end are short. LOWEST stands for a
# key that a query does not see; what it adds before the first real key is multiplied by 0 when that one comes.
_KERNEL = """
struct alignas(WIDTH * sizeof(stored)) Unit { stored lane[WIDTH]; };

struct Queries {
  real q[ROWS][E], o[ROWS][E], top[ROWS], total[ROWS];

  __device__ __forceinline__ void merge(int r, real other_top, real other_total, const real* other) {
    const real highest = top[r] > other_top ? top[r] : other_top;
    const real mine = exp(top[r] - highest), theirs = exp(other_top - highest);
    total[r] = total[r] * mine + other_total * theirs;
    #pragma unroll
    for (int i = 0; i < E; ++i) o[r][i] = o[r][i] * mine + other[i * ACROSS] * theirs;
    top[r] = highest;
  }
};

extern "C" __global__ void __launch_bounds__(ACROSS * PARTS)
gpubench_attention(const stored* __restrict__ qkv, stored* __restrict__ out, long long n, long long width) {
  __shared__ real handed[PARTS > 1 ? PARTS / 2 * ROWS * (E + 2) * ACROSS : 1];
  const int lane = threadIdx.x % ACROSS, part = threadIdx.x / ACROSS;
  const long long first = (long long)(gridDim.x - 1 - blockIdx.x) * (ACROSS * ROWS);
  const long long head = (long long)blockIdx.y * E, line = 3 * width;
  Queries own;
  long long row[ROWS];
  #pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    row[r] = first + r * ACROSS + lane;
    const long long read = row[r] < n ? row[r] : n - 1;
    const Unit* q = reinterpret_cast<const Unit*>(qkv + read * line + head);
    #pragma unroll
    for (int u = 0; u < E / WIDTH; ++u) {
      const Unit unit = q[u];
      #pragma unroll
      for (int j = 0; j < WIDTH; ++j) {
        own.q[r][u * WIDTH + j] = wide(unit.lane[j]) * real(rsqrt(real(E)));
        own.o[r][u * WIDTH + j] = 0;
      }
    }
    own.top[r] = LOWEST;
    own.total[r] = 0;
  }
  const long long behind = first + ACROSS * ROWS < n ? first + ACROSS * ROWS : n;
  #pragma unroll 1
  for (long long j = (long long)part * KEYS; j < behind; j += PARTS * KEYS) {
    real p[ROWS][KEYS];
    #pragma unroll
    for (int t = 0; t < KEYS; ++t) {
      const long long key = j + t < n ? j + t : n - 1;
      const Unit* k = reinterpret_cast<const Unit*>(qkv + key * line + width + head);
      real score[ROWS] = {};
      #pragma unroll
      for (int u = 0; u < E / WIDTH; ++u) {
        const Unit unit = k[u];
        #pragma unroll
        for (int i = 0; i < WIDTH; ++i)
          #pragma unroll
          for (int r = 0; r < ROWS; ++r) score[r] += own.q[r][u * WIDTH + i] * wide(unit.lane[i]);
      }
      #pragma unroll
      for (int r = 0; r < ROWS; ++r) p[r][t] = j + t <= row[r] ? score[r] : LOWEST;
    }
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      real highest = own.top[r];
      #pragma unroll
      for (int t = 0; t < KEYS; ++t) highest = p[r][t] > highest ? p[r][t] : highest;
      const real before = exp(own.top[r] - highest);
      own.top[r] = highest;
      own.total[r] *= before;
      #pragma unroll
      for (int t = 0; t < KEYS; ++t) own.total[r] += p[r][t] = exp(p[r][t] - highest);
      #pragma unroll
      for (int i = 0; i < E; ++i) own.o[r][i] *= before;
    }
    #pragma unroll
    for (int t = 0; t < KEYS; ++t) {
      const long long key = j + t < n ? j + t : n - 1;
      const Unit* v = reinterpret_cast<const Unit*>(qkv + key * line + 2 * width + head);
      #pragma unroll
      for (int u = 0; u < E / WIDTH; ++u) {
        const Unit unit = v[u];
        #pragma unroll
        for (int i = 0; i < WIDTH; ++i)
          #pragma unroll
          for (int r = 0; r < ROWS; ++r) own.o[r][u * WIDTH + i] += p[r][t] * wide(unit.lane[i]);
      }
    }
  }
  #pragma unroll
  for (int half = PARTS / 2; half > 0; half /= 2) {
    if (part >= half && part < 2 * half)
      #pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        real* at = handed + ((part - half) * ROWS + r) * (E + 2) * ACROSS + lane;
        at[0] = own.top[r];
        at[ACROSS] = own.total[r];
        #pragma unroll
        for (int i = 0; i < E; ++i) at[(i + 2) * ACROSS] = own.o[r][i];
      }
    __syncthreads();
    if (part < half)
      #pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const real* at = handed + (part * ROWS + r) * (E + 2) * ACROSS + lane;
        own.merge(r, at[0], at[ACROSS], at + 2 * ACROSS);
      }
    __syncthreads();
  }
  if (part > 0) return;
  #pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    if (row[r] >= n) continue;
    Unit* to = reinterpret_cast<Unit*>(out + row[r] * width + head);
    const real by = real(1) / own.total[r];
    #pragma unroll
    for (int u = 0; u < E / WIDTH; ++u) {
      Unit unit;
      #pragma unroll
      for (int i = 0; i < WIDTH; ++i) unit.lane[i] = narrow(own.o[r][u * WIDTH + i] * by);
      to[u] = unit;
    }
  }
}
"""
