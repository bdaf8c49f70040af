"""Winograd's products in CUDA."""

from __future__ import annotations

from gpubench.kernels.contract.kernel import CudaProgram, Limits
from gpubench.kernels.templates import ceil_div
from gpubench.kernels.templates.cuda import kernel_pass
from gpubench.kernels.templates.winograd import CHUNK, FILTER_THREADS, FILTERS, PRODUCTS, THREADS, TILES, grid


def program(n: int, channels: int, filters: int, side: int, dtype: str, limits: Limits) -> CudaProgram:
    """x n C S S, w K C 3 3 -> out n K S S, sums in float32. Raises Unsupported beyond CUDA's largest grid."""
    blocks = grid(n, filters, side)
    padded = ceil_div(channels, CHUNK) * CHUNK
    numbers, text = padded * blocks[1] * FILTERS, _CONSTANTS + _KERNELS
    of_filters = ("w", "numbers", channels, filters, padded, numbers)
    of_tiles = ("x", "numbers", "out", n, channels, filters, side)
    count = ceil_div(numbers, FILTER_THREADS)
    passes = (
        kernel_pass("conv2d_filters", dtype, text, count, FILTER_THREADS, of_filters),
        kernel_pass("conv2d_tiles", dtype, text, blocks, THREADS, of_tiles),
    )
    return CudaProgram(passes, {"numbers": 4 * PRODUCTS * numbers})


_CONSTANTS = f"""
const int TILES = {TILES}, FILTERS = {FILTERS}, CHUNK = {CHUNK}, PRODUCTS = {PRODUCTS}, THREADS = {THREADS};
"""
_KERNELS = """
const int OF_FILTERS = CHUNK * PRODUCTS * FILTERS, STAGE = OF_FILTERS + CHUNK * PRODUCTS * TILES;
const int PART = 16, PITCH = TILES + 4;  // filters whose sums are exchanged at a time
struct alignas(16) Quad { real lane[4]; };
struct alignas(2 * sizeof(stored)) Two { stored lane[2]; };

// By block of filters, channel, product and filter; what fills up the last block and the last channels is 0.
extern "C" __global__ void gpubench_conv2d_filters(
    const stored* __restrict__ w, real* __restrict__ numbers, long long channels, long long filters,
    long long padded, long long count) {
  const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const long long block = i / (padded * FILTERS), channel = i / FILTERS % padded, lane = i % FILTERS;
  const long long filter = block * FILTERS + lane;
  real tap[3][3], half[4][3];
  #pragma unroll
  for (int k = 0; k < 9; ++k) {
    const bool there = channel < channels && filter < filters;
    tap[k / 3][k % 3] = there ? wide(w[(filter * channels + channel) * 9 + k]) : real(0);
  }
  #pragma unroll
  for (int k = 0; k < 3; ++k) {
    half[0][k] = tap[0][k];
    half[1][k] = (tap[0][k] + tap[1][k] + tap[2][k]) * real(0.5);
    half[2][k] = (tap[0][k] - tap[1][k] + tap[2][k]) * real(0.5);
    half[3][k] = tap[2][k];
  }
  real* to = numbers + (block * padded + channel) * PRODUCTS * FILTERS + lane;
  #pragma unroll
  for (int k = 0; k < 4; ++k) {
    to[(4 * k + 0) * FILTERS] = half[k][0];
    to[(4 * k + 1) * FILTERS] = (half[k][0] + half[k][1] + half[k][2]) * real(0.5);
    to[(4 * k + 2) * FILTERS] = (half[k][0] - half[k][1] + half[k][2]) * real(0.5);
    to[(4 * k + 3) * FILTERS] = half[k][2];
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gpubench_conv2d_tiles(const stored* __restrict__ x, const real* __restrict__ numbers, stored* __restrict__ out,
                      long long n, long long channels, long long filters, long long side) {
  __shared__ alignas(16) real room[2 * STAGE];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int edge = int(side), across = (edge + 1) / 2, own = across * across;
  const long long count = n * own, plane = side * side, first = (long long)blockIdx.x * TILES;

  // What a thread loads: one row of a tile, in every fourth channel, and two quads of the filters' numbers.
  const int row = lane / 8, tile = warp % 4 * 8 + lane % 8, from_channel = warp / 4;
  const long long at = first + tile, image = at / own;
  const int within = int(at - image * own), top = within / across * 2 - 1 + row, left = within % across * 2 - 1;
  unsigned inside = 0;  // a bit for each pixel of the row
  #pragma unroll
  for (int e = 0; e < 4; ++e) {
    if (at < count && top >= 0 && top < edge && left + e >= 0 && left + e < edge) inside |= 1u << e;
  }
  const stored* from = x + (image * channels + from_channel) * plane + (long long)top * edge + left;
  const int rounds = int((channels + CHUNK - 1) / CHUNK);
  const Quad* of = (const Quad*)(numbers + (long long)blockIdx.y * rounds * OF_FILTERS) + thread;
  const int partner = (row < 2 ? 2 : 1) * 8 + lane % 8;
  real pixel[4];
  Quad weight[2];

  auto load = [&](int begin) {
    weight[0] = of[0];
    weight[1] = of[THREADS];
    of += OF_FILTERS / 4;
    #pragma unroll
    for (int e = 0; e < 4; ++e) {
      const bool there = (inside >> e & 1) && begin + from_channel < channels;
      pixel[e] = there ? wide(from[e]) : real(0);
    }
    from += CHUNK * plane;
  };
  auto store = [&](real* stage) {
    ((Quad*)stage)[thread] = weight[0];
    ((Quad*)stage)[thread + THREADS] = weight[1];
    const real along[4] = {pixel[0] - pixel[2], pixel[1] + pixel[2], pixel[2] - pixel[1], pixel[1] - pixel[3]};
    real* to = stage + OF_FILTERS + (from_channel * PRODUCTS + 4 * row) * TILES + (tile + 8 * row) % TILES;
    #pragma unroll
    for (int k = 0; k < 4; ++k) {
      const real other = __shfl_sync(0xffffffffu, along[k], partner);
      to[k * TILES] = row == 1 ? along[k] + other : row == 3 ? other - along[k] : along[k] - other;
    }
  };

  // What it multiplies: two quads of filters by two quads of tiles, of its warp's product. Tiles are turned by eight
  // for each row of products, or threads that store them would meet in one bank.
  const int of_filters = lane % 8 * 4, of_tiles = lane / 8 * 4;
  const int near = (of_tiles + 8 * (warp / 4)) % TILES, far = (near + TILES / 2) % TILES;
  real sums[8][8] = {};
  load(0);
  store(room);
  __syncthreads();
  for (int round = 0; round < rounds; ++round) {
    const bool more = round + 1 < rounds;
    const real* stage = room + round % 2 * STAGE;
    if (more) load((round + 1) * CHUNK);
    #pragma unroll 2  // all four would spill registers
    for (int channel = 0; channel < CHUNK; ++channel) {
      alignas(16) real a[8];
      alignas(16) real b[8];
      const real* weights = stage + (channel * PRODUCTS + warp) * FILTERS + of_filters;
      const real* pixels = stage + OF_FILTERS + (channel * PRODUCTS + warp) * TILES;
      *(Quad*)a = *(const Quad*)weights;
      *(Quad*)(a + 4) = *(const Quad*)(weights + FILTERS / 2);
      *(Quad*)b = *(const Quad*)(pixels + near);
      *(Quad*)(b + 4) = *(const Quad*)(pixels + far);
      #pragma unroll
      for (int i = 0; i < 8; ++i) {
        #pragma unroll
        for (int j = 0; j < 8; ++j) sums[i][j] += a[i] * b[j];
      }
    }
    if (more) store(room + (round + 1) % 2 * STAGE);
    __syncthreads();
  }

  // The 16 sums of a tile and a filter meet in one thread, a quarter of the filters at a time.
  const long long mine = first + lane, picture = mine / own;
  const int place = int(mine - picture * own), y = place / across * 2, z = place % across * 2;
  #pragma unroll
  for (int part = 0; part < FILTERS / PART; ++part) {
    if (lane % 8 / 4 == part % 2) {
      #pragma unroll
      for (int i = 0; i < 4; ++i) {
        real* to = room + (warp * PART + lane % 4 * 4 + i) * PITCH + of_tiles;
        #pragma unroll
        for (int k = 0; k < 4; ++k) {
          to[k] = sums[part / 2 * 4 + i][k];
          to[TILES / 2 + k] = sums[part / 2 * 4 + i][4 + k];
        }
      }
    }
    __syncthreads();
    const long long filter = (long long)blockIdx.y * FILTERS + part * PART + warp;
    real upper[4], lower[4];
    #pragma unroll
    for (int k = 0; k < 4; ++k) {
      real m[4];
      #pragma unroll
      for (int i = 0; i < 4; ++i) m[i] = room[((4 * i + k) * PART + warp) * PITCH + lane];
      upper[k] = m[0] + m[1] + m[2];
      lower[k] = m[1] - m[2] - m[3];
    }
    if (mine < count && filter < filters) {
      stored* to = out + (picture * filters + filter) * plane + (long long)y * edge + z;
      const Two above = {narrow(upper[0] + upper[1] + upper[2]), narrow(upper[1] - upper[2] - upper[3])};
      const Two below = {narrow(lower[0] + lower[1] + lower[2]), narrow(lower[1] - lower[2] - lower[3])};
      if (edge % 2 == 0) {
        *(Two*)to = above;
        *(Two*)(to + edge) = below;
      } else {
        to[0] = above.lane[0];
        if (z + 1 < edge) to[1] = above.lane[1];
        if (y + 1 < edge) to[edge] = below.lane[0];
        if (y + 1 < edge && z + 1 < edge) to[edge + 1] = below.lane[1];
      }
    }
    __syncthreads();
  }
}
"""
