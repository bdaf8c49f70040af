"""A convolution with filters of 3 x 3 by Winograd's products: 16 multiplications for 2 x 2 pixels, instead of
36.

A tile of 4 x 4 pixels is transformed to 16 numbers, and so is a filter. Neighbouring tiles share two rows or
columns. The numbers of tiles and filters are multiplied and added up over the channels, as 16 matrix products, and
the sums are transformed to 2 x 2 pixels of the result. Source: A. Lavin and S. Gray, Fast Algorithms for
Convolutional Neural Networks (2015), section 4.1, F(2 x 2, 3 x 3).

The numbers are sums of up to four pixels or nine weights. In float32 the largest error was 1.5 units of
round-off times the norms of patch and filter (an H200, eight shapes). The tolerance of the op is 8 units.

One launch writes the numbers of the filters, the other one does the rest. A block of the latter has 32 tiles,
64 filters and 16 warps, one for each product.
"""

from __future__ import annotations

from gpubench.kernels.contract.kernel import CudaProgram, Limits, WgslPass, WgslProgram
from gpubench.kernels.templates import (
    GpuText,
    ceil_div,
    elements,
    fold,
    kernel_pass,
    require_bindings,
    shader,
)

TILES, FILTERS = 32, 64  # tiles and filters of a block
CHUNK = 4  # channels that a block takes at a time
PRODUCTS, THREADS = 16, 512
FILTER_THREADS = 256  # threads of a block that computes the numbers of the filters


def tiles(side: int) -> int:
    """Return the number of tiles of an image of `side` x `side` pixels."""
    return ceil_div(side, 2) ** 2


def grid(n: int, filters: int, side: int) -> tuple[int, int, int]:
    """Return the grid of the second launch, for n images of `side` x `side` pixels: (blocks of tiles, blocks of
    filters, 1)."""
    return ceil_div(n * tiles(side), TILES), ceil_div(filters, FILTERS), 1


# ---------------------------------------------------------------- the numbers of the filters


def _transform(a: str, b: str, c: str) -> tuple[str, str, str, str]:
    """Return the expressions of the four numbers that the transform makes of three."""
    return a, f"({a} + {b} + {c}) * real(0.5)", f"({a} - {b} + {c}) * real(0.5)", c


def _filter_kernel() -> GpuText:
    """Return the kernel that transforms the filters. It writes the numbers by block of filters, channel, product and
    filter. Those that fill up the last block and the last channels are 0."""
    rows = [
        f"  let half{i}{k} = {value};"
        for k in range(3)
        for i, value in enumerate(_transform(*(f"tap{3 * i + k}" for i in range(3))))
    ]
    stores = [
        f"  numbers[to + {(4 * i + k) * FILTERS}u] = {value};"
        for i in range(4)
        for k, value in enumerate(_transform(*(f"half{i}{k}" for k in range(3))))
    ]
    lines = [
        f"  let i = block * {FILTER_THREADS}u + thread;",
        "  if (i >= count) { return; }",
        f"  let of_filters = i / (padded * {FILTERS}u);",
        f"  let channel = i / {FILTERS}u % padded;",
        f"  let lane = i % {FILTERS}u;",
        f"  let own = of_filters * {FILTERS}u + lane;",
        *(f"  var tap{k} = real();" for k in range(9)),
        "  if (channel < channels && own < filters) {",
        "    let first = (own * channels + channel) * 9u;",
        *(f"    tap{k} = wide(w[first + {k}u]);" for k in range(9)),
        "  }",
        *rows,
        f"  let to = (of_filters * padded + channel) * {PRODUCTS * FILTERS}u + lane;",
        *stores,
    ]
    buffers = {"w": "stored", "numbers": "real"}
    sizes, body = "channels filters padded count", "\n".join(lines)
    return GpuText("conv2d_filters", buffers, ("numbers",), sizes, body, threads=FILTER_THREADS)


# ---------------------------------------------------------------- CUDA


def cuda_program(n: int, channels: int, filters: int, side: int, dtype: str, limits: Limits) -> CudaProgram:
    """Return the CUDA program, with two launches. It computes out (n, filters, side, side) from x (n, channels,
    side, side) and w (filters, channels, 3, 3), with sums in float32. Raises Unsupported beyond CUDA's largest
    grid."""
    blocks = grid(n, filters, side)
    padded = ceil_div(channels, CHUNK) * CHUNK
    numbers = padded * blocks[1] * FILTERS
    transform = _filter_kernel().cuda_program(dtype, numbers, (channels, filters, padded, numbers))
    arguments = ("x", "numbers", "out", n, channels, filters, side)
    multiply = kernel_pass("conv2d_tiles", dtype, _CONSTANTS + _KERNEL, blocks, THREADS, arguments)
    return CudaProgram((*transform.passes, multiply), {"numbers": 4 * PRODUCTS * numbers})


_CONSTANTS = f"""
const int TILES = {TILES}, FILTERS = {FILTERS}, CHUNK = {CHUNK}, PRODUCTS = {PRODUCTS}, THREADS = {THREADS};
"""
_KERNEL = """
const int OF_FILTERS = CHUNK * PRODUCTS * FILTERS, STAGE = OF_FILTERS + CHUNK * PRODUCTS * TILES;
const int PART = 16, PITCH = TILES + 4;  // filters whose sums are exchanged at a time
struct alignas(16) Quad { real lane[4]; };
struct alignas(2 * sizeof(stored)) Two { stored lane[2]; };

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


# ---------------------------------------------------------------- WGSL


NAME = "winograd"
# The vec4s of CHUNK channels in a group's memory: those of the filters, and all. A group holds two such stages.
_OF_FILTERS = CHUNK * PRODUCTS * FILTERS // 4
_STAGE = _OF_FILTERS + CHUNK * PRODUCTS * TILES // 4
_ROOM_BYTES = 2 * 4 * CHUNK * PRODUCTS * (FILTERS + TILES)


def fits(limits: Limits) -> bool:
    """Return whether the device's groups have enough memory and threads for these kernels."""
    return limits.max_workgroup_bytes >= _ROOM_BYTES and limits.max_workgroup_threads >= THREADS


def wgsl_program(n: int, channels: int, filters: int, side: int, dtype: str, limits: Limits) -> WgslProgram:
    """Return the WGSL program, which computes the same as `cuda_program`, for a device that has the dtype and can bind
    the operands. Raises Unsupported if it cannot bind the scratch."""
    storage = elements(dtype)
    across, down, _ = grid(n, filters, side)
    padded = ceil_div(channels, CHUNK) * CHUNK
    count = padded * down * FILTERS
    scratch = {"numbers": 4 * PRODUCTS * count}
    require_bindings(scratch, limits)
    even = side % 2 == 0
    transform = _filter_kernel().wgsl_program(dtype, count, (channels, filters, padded, count), limits)
    unit = f"vec2<{storage.stored}>" if even else storage.stored
    # WGSL's threads exchange values only through memory. So each thread reads both rows of a tile from which its row
    # of numbers is computed.
    text = shader(
        {"x_": storage.stored, "numbers_": "vec4<f32>", "out_": unit}, THREADS,
        _wgsl_tiles(even).replace("STORED", storage.stored), params="channels filters edge across count rounds",
        before=f"var<workgroup> room: array<vec4<f32>, {2 * _STAGE}>;",
    )  # fmt: skip
    uniform = (channels, filters, side, ceil_div(side, 2), n * tiles(side), padded // CHUNK)
    multiply = WgslPass(text, (*fold(across, limits)[:2], down), ("x", "numbers", "out"), uniform=uniform)
    return WgslProgram((*transform.passes, multiply), scratch)


def _wgsl_tiles(even: bool) -> str:
    """Return the body of the second dispatch, which goes on as CUDA's kernel does, except that a thread loads two rows
    of a tile."""
    quads, of_filters, stage = FILTERS // 4, _OF_FILTERS, _STAGE
    sums = "\n".join(f"  var s{i}{h} = vec4<f32>();" for i in range(8) for h in range(2))
    multiply = "\n".join(
        f"      s{i}{h} += a{i // 4}.{'xyzw'[i % 4]} * b{h};" for i in range(8) for h in range(2)
    )
    rows = "\n".join(
        f"    if ((inside & {1 << bit}u) != 0u && there) {{ e{bit % 4} += {sign}f32(x_[from_{r} + {bit % 4}u]); }}"
        for r, sign in ((0, ""), (1, "sign * "))
        for bit in range(4 * r, 4 * r + 4)
    )
    store = "\n".join(
        f"    at = to + {k * TILES}u; room[at / 4u][at % 4u] = {value};"
        for k, value in enumerate(("e0 - e2", "e1 + e2", "e2 - e1", "e1 - e3"))
    )
    # two pixels at once if the side of an image is even
    parts = "\n".join(_wgsl_part(part, even) for part in range(4))
    return f"""
  let warp = thread / 32u;
  let lane = thread % 32u;
  let own = p.across * p.across;
  let plane = p.edge * p.edge;
  let first = (group.y * groups.x + group.x) * {TILES}u;
  let row = lane / 8u;
  let tile = warp % 4u * 8u + lane % 8u;
  let from_channel = warp / 4u;
  let one = first + tile;
  let image = one / own;
  let within = one % own;
  let top = i32(within / p.across * 2u) - 1;
  let left = i32(within % p.across * 2u) - 1;
  let row_0 = top + i32(select(row, 1u, row == 3u));
  let row_1 = top + i32(select(select(3u, 1u, row == 2u), 2u, row < 2u));
  let sign = select(-1.0, 1.0, row == 1u);
  var inside = 0u;
  for (var e = 0; e < 4; e++) {{
    if (one < p.count && left + e >= 0 && left + e < i32(p.edge)) {{
      if (row_0 >= 0 && row_0 < i32(p.edge)) {{ inside |= 1u << u32(e); }}
      if (row_1 >= 0 && row_1 < i32(p.edge)) {{ inside |= 16u << u32(e); }}
    }}
  }}
  // These may lie outside; then nothing is read there.
  var from_0 = (image * p.channels + from_channel) * plane + u32(row_0 * i32(p.edge) + left);
  var from_1 = (image * p.channels + from_channel) * plane + u32(row_1 * i32(p.edge) + left);
  var of_quads = group.z * p.rounds * {of_filters}u + thread;
  let kept = {4 * of_filters}u + (from_channel * {PRODUCTS}u + 4u * row) * {TILES}u + (tile + 8u * row) % {TILES}u;
  let filters = lane % 8u;
  let pixels = lane / 8u;
  let near = (pixels + 2u * (warp / 4u)) % {TILES // 4}u;
  let far = (near + {TILES // 8}u) % {TILES // 4}u;
{sums}
  for (var round = 0u; round <= p.rounds; round++) {{
    var w0 = vec4<f32>();
    var w1 = vec4<f32>();
    var e0 = 0.0;
    var e1 = 0.0;
    var e2 = 0.0;
    var e3 = 0.0;
    if (round < p.rounds) {{
      w0 = numbers_[of_quads];
      w1 = numbers_[of_quads + {THREADS}u];
      of_quads += {of_filters}u;
      let there = round * {CHUNK}u + from_channel < p.channels;
{rows}
      from_0 += {CHUNK}u * plane;
      from_1 += {CHUNK}u * plane;
    }}
    if (round > 0u) {{
      let stage = (round - 1u) % 2u * {stage}u;
      for (var channel = 0u; channel < {CHUNK}u; channel++) {{
        let product = channel * {PRODUCTS}u + warp;
        let a0 = room[stage + product * {quads}u + filters];
        let a1 = room[stage + product * {quads}u + filters + {quads // 2}u];
        let b0 = room[stage + {of_filters}u + product * {TILES // 4}u + near];
        let b1 = room[stage + {of_filters}u + product * {TILES // 4}u + far];
{multiply}
      }}
    }}
    if (round < p.rounds) {{
      let stage = round % 2u * {stage}u;
      room[stage + thread] = w0;
      room[stage + thread + {THREADS}u] = w1;
      let to = 4u * stage + kept;
      var at = 0u;
{store}
    }}
    workgroupBarrier();
  }}
  let mine = first + lane;
  let picture = mine / own;
  let y = mine % own / p.across * 2u;
  let z = mine % own % p.across * 2u;
{parts}
"""


def _wgsl_part(part: int, even: bool) -> str:
    """Return the text that brings the 16 sums of a tile and a filter to one thread and writes their pixels."""
    pitch = TILES // 4 + 1
    store = "\n".join(
        f"    room[(warp * 16u + lane % 4u * 4u + {i}u) * {pitch}u + pixels + {4 * h}u] = s{part // 2 * 4 + i}{h};"
        for i in range(4)
        for h in range(2)
    )
    fold_rows = "\n".join(
        f"    let m{k}{i} = room[({4 * i + k}u * 16u + warp) * {pitch}u + lane / 4u][lane % 4u];"
        for k in range(4)
        for i in range(4)
    )
    upper = "\n".join(f"    let u{k} = m{k}0 + m{k}1 + m{k}2;" for k in range(4))
    lower = "\n".join(f"    let v{k} = m{k}1 - m{k}2 - m{k}3;" for k in range(4))
    pairs = {name: (f"{name}0 + {name}1 + {name}2", f"{name}1 - {name}2 - {name}3") for name in "uv"}
    if even:
        write = "\n".join(
            f"      out_[(at + {step}) / 2u] = vec2<STORED>(STORED({a}), STORED({b}));"
            for step, (a, b) in zip(("0u", "p.edge"), pairs.values(), strict=True)
        )
    else:
        write = f"""      out_[at] = STORED({pairs["u"][0]});
      if (z + 1u < p.edge) {{ out_[at + 1u] = STORED({pairs["u"][1]}); }}
      if (y + 1u < p.edge) {{ out_[at + p.edge] = STORED({pairs["v"][0]}); }}
      if (y + 1u < p.edge && z + 1u < p.edge) {{ out_[at + p.edge + 1u] = STORED({pairs["v"][1]}); }}"""
    return f"""  if (lane % 8u / 4u == {part % 2}u) {{
{store}
  }}
  workgroupBarrier();
  {{
{fold_rows}
{upper}
{lower}
    let filter_ = group.z * {FILTERS}u + {16 * part}u + warp;
    if (mine < p.count && filter_ < p.filters) {{
      let at = (picture * p.filters + filter_) * plane + y * p.edge + z;
{write}
    }}
  }}
  workgroupBarrier();"""
