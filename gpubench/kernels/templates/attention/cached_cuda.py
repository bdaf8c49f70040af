"""One token's attention over a cache, in CUDA."""

from __future__ import annotations

import math

from gpubench.kernels.contract.kernel import CudaProgram
from gpubench.kernels.templates import require_dtype
from gpubench.kernels.templates.attention import CACHE_THREADS, LOWEST, Heads, cache_group, require_threads
from gpubench.kernels.templates.cuda import DTYPES, kernel_pass, lanes


def build(append: bool, of: Heads, room: int, dtype: str) -> CudaProgram:
    """One launch. Raises Unsupported for another dtype, and for heads that are too wide."""
    require_dtype(dtype, DTYPES, "CUDA")
    require_threads(of)
    e, width = of.e, math.gcd(of.e, lanes(dtype))
    group = cache_group(e // width, room)
    source = f"""const real LOWEST = real({LOWEST});
const bool APPEND = {"true" if append else "false"};
const int E = {e}, WIDTH = {width}, UNITS = {group.units}, SHARES = {group.shares};
const int THREADS = {CACHE_THREADS}, TEAMS = {group.teams}, HELD = {group.held};
{_KERNEL}"""
    arguments = ("qkv", "position", "cache", "out", of.width // width, room)
    step = kernel_pass("attention_over_cache", dtype, source, of.heads, CACHE_THREADS, arguments)
    return CudaProgram((step,))


# LOWEST stands before the first key: what was added before it is multiplied by 0 then.
_KERNEL = """
struct alignas(WIDTH * sizeof(stored)) Unit { stored lane[WIDTH]; };

// Keys and values of a head, in units: those of the new token lie in qkv.
struct Rows {
  const Unit *qkv, *cache;
  long long head, across, last;

  __device__ __forceinline__ Unit at(long long j, int which, int unit) const {
    if (APPEND && j == last) return qkv[(1 + which) * across + head + unit];
    return cache[(2 * j + which) * across + head + unit];
  }
};

__device__ __forceinline__ real score_of(const real* parts, int key) {
  real score = 0;
  #pragma unroll
  for (int i = 0; i < SHARES; ++i) score += parts[key * SHARES + i];
  return score;
}

extern "C" __global__ void __launch_bounds__(THREADS)
gpubench_attention_over_cache(const Unit* __restrict__ qkv, const int* __restrict__ position, Unit* cache,
                              Unit* __restrict__ out, long long across, long long room) {
  __shared__ real parts[THREADS], tops[TEAMS], totals[TEAMS], sums[THREADS][WIDTH];
  const int t = threadIdx.x, share = t % SHARES, team = t / UNITS, lane = t % UNITS;
  const long long count = position[0] < room ? position[0] + 1 : room;
  const Rows rows = {qkv, cache, (long long)blockIdx.x * UNITS, across, count - 1};
  for (int i = t; APPEND && i < 2 * UNITS; i += THREADS) {
    const long long which = i / UNITS, unit = rows.head + i % UNITS;
    cache[(2 * rows.last + which) * across + unit] = qkv[(1 + which) * across + unit];
  }
  Unit query[UNITS / SHARES];
  #pragma unroll
  for (int i = 0; i < UNITS / SHARES; ++i) query[i] = qkv[rows.head + share + i * SHARES];
  real top = LOWEST, total = 0, own[WIDTH] = {};
  for (long long base = 0; base < count; base += HELD) {
    const long long j = base + t / SHARES;
    Unit value = rows.at(base + team < count ? base + team : count - 1, 1, lane);
    if (j < count) {
      real part = 0;
      #pragma unroll
      for (int i = 0; i < UNITS / SHARES; ++i) {
        const Unit key = rows.at(j, 0, share + i * SHARES);
        #pragma unroll
        for (int k = 0; k < WIDTH; ++k) part += wide(query[i].lane[k]) * wide(key.lane[k]);
      }
      parts[t] = part * real(rsqrt(real(E)));
    }
    __syncthreads();
    const int behind = count - base < HELD ? count - base : HELD;
    if (team < TEAMS) {
      const real before = top;
      for (int i = team; i < behind; i += TEAMS) {
        const real score = score_of(parts, i);
        top = score > top ? score : top;
      }
      const real less = exp(before - top);
      total *= less;
      #pragma unroll
      for (int k = 0; k < WIDTH; ++k) own[k] *= less;
      for (int i = team; i < behind; i += TEAMS) {
        const Unit next = rows.at(base + i + TEAMS < count ? base + i + TEAMS : count - 1, 1, lane);
        const real power = exp(score_of(parts, i) - top);
        total += power;
        #pragma unroll
        for (int k = 0; k < WIDTH; ++k) own[k] += power * wide(value.lane[k]);
        value = next;
      }
    }
    __syncthreads();
  }
  if (team < TEAMS && lane == 0) tops[team] = top;
  __syncthreads();
  real highest = tops[0];
  #pragma unroll 8
  for (int i = 1; i < TEAMS; ++i) highest = tops[i] > highest ? tops[i] : highest;
  const real less = exp(top - highest);
  #pragma unroll
  for (int k = 0; k < WIDTH; ++k) sums[t][k] = own[k] * less;
  if (team < TEAMS && lane == 0) totals[team] = total * less;
  __syncthreads();
  if (t >= E) return;
  real sum = 0, all = 0;
  #pragma unroll 8
  for (int i = 0; i < TEAMS; ++i) {
    sum += sums[i * UNITS + t / WIDTH][t % WIDTH];
    all += totals[i];
  }
  reinterpret_cast<stored*>(out + rows.head)[t] = narrow(sum / all);
}
"""
