"""conv2d: the convolution of n images with filters of 3 x 3, padded by one pixel. The axes of the images are
image, channel, y, x.

A convolution is a matrix product: the filters times the patches of an image. With C channels, a filter is a row
of 9 C numbers, and the patch of a pixel is a column of 9 C numbers.

- CPU: each thread multiplies the filters by the patches of a band of rows, with one BLAS thread. The patches of a
  band stay in cache.
- CUDA: Winograd's products (templates/winograd), or a tiled product for few images and for float64. The tiled
  product reads each patch from the image.
- WGSL: Winograd's products, or the register-blocked matmul, which reads each patch from the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from gpubench.kernels.contract.kernel import Candidate, CudaProgram, Limits, by_backend
from gpubench.kernels.contract.op import Array, Ladder, Op, Operand, Params, Shape, Split, Tolerance, counted_by
from gpubench.kernels.templates import ceil_div, multiprocessors, one_launch, winograd
from gpubench.kernels.templates.cpu import SLOW_HALVES, Blocks, Launch, ThreadScratch
from gpubench.kernels.templates.matmul import wgsl
from gpubench.kernels.templates.matmul.register import Patches

_CHANNELS, _FILTERS, _SIDE = 64, 64, 32
_TAPS = tuple((dy, dx) for dy in range(3) for dx in range(3))
_BAND = 256 * 1024  # most elements of the patches of a band, so that they stay in cache
_TOGETHER = 4  # images that the float64 reference takes at a time


def _sides(params: Params) -> tuple[int, int, int]:
    """Return (channels, filters, side)."""
    return params.get("channels", _CHANNELS), params.get("filters", _FILTERS), params.get("side", _SIDE)


def _images(params: Params) -> Shape:
    channels, _, side = _sides(params)
    return (params["n"], channels, side, side)


def _filters(params: Params) -> Shape:
    channels, filters, _ = _sides(params)
    return (filters, channels, 3, 3)


def _out(params: Params) -> Shape:
    _, filters, side = _sides(params)
    return (params["n"], filters, side, side)


def _flops(params: Params) -> int:
    """Return the operations of the taps inside the image."""
    channels, filters, side = _sides(params)
    # along a side of S pixels, 3 S - 2 of 3 S taps
    return 2 * params["n"] * filters * channels * (3 * side - 2) ** 2


def _shift(xp: Array, x: Array) -> list[Array]:
    """Return nine views of the padded images, shifted by the offset of each tap."""
    side = x.shape[2]
    padded = xp.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    return [padded[:, :, dy : dy + side, dx : dx + side] for dy, dx in _TAPS]


def _expr(xp: Array, x: Array, w: Array) -> Array:
    n, channels, side, _ = x.shape
    out = 0
    for (dy, dx), image in zip(_TAPS, _shift(xp, x), strict=True):
        out = out + w[:, :, dy, dx] @ xp.reshape(image, (n, channels, side * side))
    return xp.reshape(out, (n, w.shape[0], side, side))


def _reference(xp: Array, x: Array, w: Array) -> Array:
    """Return the convolution, a few images at a time."""
    # a few images stay in the caches, which halves the time
    starts = range(0, len(x), _TOGETHER)
    return xp.concatenate([_expr(xp, x[start : start + _TOGETHER], w) for start in starts])


def _scale(xp: Array, x: Array, w: Array) -> Array:
    """Return the scale of each output element: the norm of its patch times the norm of its filter."""
    patches = sum(_shift(xp, xp.sum(x * x, axis=1, keepdims=True)))
    return xp.sqrt(patches) * xp.reshape(xp.sqrt(xp.sum(w * w, axis=(1, 2, 3))), (1, w.shape[0], 1, 1))


# ---------------------------------------------------------------- CPU


def _cpu(np: Any, blocks: Blocks, params: Params) -> Launch:
    """Return a launch that computes bands of rows. Halves are computed in float32."""
    channels, filters, side = _sides(params)
    rows = max(1, min(side, _BAND // (9 * channels * side)))
    scratch = ThreadScratch(np)

    def launch(inputs: Sequence[Array], output: Array) -> None:
        x, kind = inputs[0], np.dtype(np.float32) if output.dtype == np.float16 else output.dtype
        weights = inputs[1].reshape(filters, -1).astype(kind, copy=False)
        bands = ceil_div(side, rows)

        def band(start: int, stop: int) -> None:
            patches = scratch.arrays(1, 9 * channels * rows * side, kind)[0]
            with np.errstate(all="ignore"):
                for unit in range(start, stop):
                    image, place = divmod(unit, bands)
                    top = place * rows
                    count = min(rows, side - top)
                    part = patches[: 9 * channels * count * side].reshape(channels, 3, 3, count, side)
                    _gather(np, x[image], part, top)
                    product = np.matmul(weights, part.reshape(9 * channels, -1))
                    output[image, :, top : top + count] = product.reshape(filters, count, side)

        blocks.multiply(band, len(x) * bands, 1)

    return launch


def _gather(np: Any, image: Array, patches: Array, top: int) -> None:
    """Write the patches of the image's rows from `top` on to `patches`."""
    side, count = image.shape[1], patches.shape[3]
    for dy, dx in _TAPS:
        part, first = patches[:, dy, dx], top + dy - 1
        above, below = max(0, -first), max(0, first + count - side)
        part[:, :above], part[:, count - below :] = 0, 0
        before, right = max(0, 1 - dx), max(0, dx - 1)
        part[:, :, :before], part[:, :, side - right :] = 0, 0
        inside = image[:, first + above : first + count - below, before + dx - 1 : side - right + dx - 1]
        part[:, above : count - below, before : side - right] = inside


# ---------------------------------------------------------------- GPU


class _Tile(NamedTuple):
    """The work of a block of threads: some pixels by some filters."""

    pixels: int  # pixels of a block; each thread of a group loads the patch of one of them
    lanes: int  # a thread computes `lanes` filters by `lanes` pixels; a block has lanes^2 filters
    groups: int  # groups of threads of a block, among which the channels are divided

    @property
    def filters(self) -> int:
        return self.lanes**2

    def grid(self, params: Params) -> tuple[int, int, int]:
        _, filters, side = _sides(params)
        return ceil_div(params["n"] * side * side, self.pixels), ceil_div(filters, self.filters), 1


_TILES_BESIDE = 2  # number of tiles that are candidates in WGSL if Winograd's products are the default
# With few images there are few blocks, and each must take little time.
_MEDIUM, _SMALL, _DOUBLE = _Tile(64, 8, 4), _Tile(64, 4, 8), _Tile(64, 4, 4)


def _tile(params: Params, dtype: str, limits: Limits) -> _Tile:
    """Choose the tile. It is the small one if medium ones would leave most multiprocessors idle."""
    # in float64 the sums of more than four groups would not fit into a block's memory
    if dtype == "float64":
        return _DOUBLE
    return _MEDIUM if _half_busy(_MEDIUM.grid(params), limits) else _SMALL


def _half_busy(grid: tuple[int, int, int], limits: Limits) -> bool:
    """Return whether the grid has at least one block for each two multiprocessors."""
    return 2 * grid[0] * grid[1] >= multiprocessors(limits)


def _by_winograd(params: Params, dtype: str, limits: Limits) -> bool:
    """Return whether Winograd's products are faster: they need enough blocks for the device."""
    _, filters, side = _sides(params)
    # sums in float64 would not fit into a block's memory
    return dtype != "float64" and _half_busy(winograd.grid(params["n"], filters, side), limits)


def _cuda(params: Params, dtype: str, limits: Limits) -> CudaProgram:
    """Return Winograd's two launches, or one launch of the tiled product."""
    n, (channels, filters, side) = params["n"], _sides(params)
    if _by_winograd(params, dtype, limits):
        return winograd.cuda_program(n, channels, filters, side, dtype, limits)
    tile = _tile(params, dtype, limits)
    shape = f"const int PIXELS = {tile.pixels}, LANES_A_SIDE = {tile.lanes}, GROUPS = {tile.groups};\n"
    arguments = ("x", "w", "out", n * side * side, channels, filters, side)
    threads = tile.pixels * tile.groups
    return one_launch("conv2d", dtype, shape + _CUDA, tile.grid(params), threads, arguments)


# The product of filters and patches in tiles, a channel at a time: its nine taps are known while compiling. A patch is
# read from the image itself, by the thread of its pixel; the next channel is on its way while the one in shared memory
# is multiplied. At the end the groups' sums are added up.
_CUDA = """
const int FILTERS = LANES_A_SIDE * LANES_A_SIDE, TAPS = 9, QUADS = LANES_A_SIDE / 4;
const int ACROSS = PIXELS / LANES_A_SIDE;  // threads of a group along its pixels
const int PITCH = FILTERS + 4;  // four more, or threads that write neighbours in a row of w would meet in one bank
const int OWN = TAPS * (PITCH + PIXELS), SUMS = FILTERS * PIXELS;
const int ROOM = GROUPS * OWN > GROUPS / 2 * SUMS ? GROUPS * OWN : GROUPS / 2 * SUMS;
const int WEIGHTS = (FILTERS * TAPS + PIXELS - 1) / PIXELS;
struct alignas(16) Quad { real lane[4]; };
struct alignas(sizeof(stored) > 4 ? 16 : 4 * sizeof(stored)) Four { stored lane[4]; };

extern "C" __global__ void __launch_bounds__(PIXELS * GROUPS)
gpubench_conv2d(const stored* __restrict__ x, const stored* __restrict__ w, stored* __restrict__ out,
                long long count, long long channels, long long filters, long long side) {
  __shared__ alignas(16) real room[ROOM];
  const int thread = threadIdx.x % PIXELS, group = threadIdx.x / PIXELS;
  real* weights = room + group * OWN;
  real* patches = weights + TAPS * PITCH;
  const int edge = int(side), length = int(TAPS * channels);
  const long long plane = side * side, first = (long long)blockIdx.x * PIXELS;
  const long long filter = (long long)blockIdx.y * FILTERS, place = first + thread, image = place / plane;
  const int pixel = int(place - image * plane), top = pixel / edge, left = pixel % edge;
  const stored* from = x + (image * channels + group) * plane + pixel;
  const stored* of = w + filter * length + group * TAPS;
  unsigned inside = 0;  // a bit for each tap
  #pragma unroll
  for (int tap = 0; tap < TAPS; ++tap) {
    const int down = top + tap / 3 - 1, along = left + tap % 3 - 1;
    if (place < count && down >= 0 && down < edge && along >= 0 && along < edge) inside |= 1u << tap;
  }
  real patch[TAPS], weight[WEIGHTS], sums[LANES_A_SIDE][LANES_A_SIDE] = {};

  auto load = [&](int channel) {
    #pragma unroll
    for (int tap = 0; tap < TAPS; ++tap) {
      const bool there = (inside >> tap & 1) && channel < channels;
      patch[tap] = there ? wide(from[(tap / 3 - 1) * edge + tap % 3 - 1]) : real(0);
    }
    #pragma unroll
    for (int i = 0; i < WEIGHTS; ++i) {
      const int at = thread + i * PIXELS;
      const bool there = at < FILTERS * TAPS && at / TAPS < filters - filter && channel < channels;
      weight[i] = there ? wide(of[at / TAPS * length + at % TAPS]) : real(0);
    }
    from += GROUPS * plane;
    of += GROUPS * TAPS;
  };

  const int across = thread % ACROSS * 4, down = thread / ACROSS * 4;
  load(group);
  for (int begin = 0; begin < channels; begin += GROUPS) {
    #pragma unroll
    for (int tap = 0; tap < TAPS; ++tap) patches[tap * PIXELS + thread] = patch[tap];
    #pragma unroll
    for (int i = 0; i < WEIGHTS; ++i) {
      const int at = thread + i * PIXELS;
      if (at < FILTERS * TAPS) weights[at % TAPS * PITCH + at / TAPS] = weight[i];
    }
    __syncthreads();
    if (begin + GROUPS < channels) load(begin + GROUPS + group);
    #pragma unroll
    for (int tap = 0; tap < TAPS; ++tap) {
      alignas(16) real a[LANES_A_SIDE];
      alignas(16) real b[LANES_A_SIDE];
      #pragma unroll
      for (int quad = 0; quad < QUADS; ++quad) {
        *(Quad*)(a + 4 * quad) = *(const Quad*)(weights + tap * PITCH + quad * (FILTERS / QUADS) + down);
        *(Quad*)(b + 4 * quad) = *(const Quad*)(patches + tap * PIXELS + quad * (PIXELS / QUADS) + across);
      }
      #pragma unroll
      for (int i = 0; i < LANES_A_SIDE; ++i) {
        #pragma unroll
        for (int j = 0; j < LANES_A_SIDE; ++j) sums[i][j] += a[i] * b[j];
      }
    }
    __syncthreads();
  }

  #pragma unroll
  for (int half = GROUPS / 2; half > 0; half /= 2) {
    real* slot = room + group % half * SUMS + thread;
    #pragma unroll
    for (int i = 0; i < FILTERS; ++i) {
      if (group >= half && group < 2 * half) slot[i * PIXELS] = sums[i / LANES_A_SIDE][i % LANES_A_SIDE];
    }
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < FILTERS; ++i) {
      if (group < half) sums[i / LANES_A_SIDE][i % LANES_A_SIDE] += slot[i * PIXELS];
    }
    __syncthreads();
  }
  if (group > 0) return;

  #pragma unroll
  for (int quad = 0; quad < QUADS; ++quad) {
    const long long at = first + quad * (PIXELS / QUADS) + across;
    #pragma unroll
    for (int i = 0; i < LANES_A_SIDE; ++i) {
      const long long own = filter + i / 4 * (FILTERS / QUADS) + down + i % 4;
      if (own >= filters) continue;
      if (plane % 4 == 0 && at < count) {  // the four lie in one image, side by side
        Four found;
        #pragma unroll
        for (int j = 0; j < 4; ++j) found.lane[j] = narrow(sums[i][4 * quad + j]);
        *(Four*)(out + (at / plane * filters + own) * plane + at % plane) = found;
      } else {
        #pragma unroll
        for (int j = 0; j < 4; ++j) {
          const long long one = at + j;
          if (one < count) out[(one / plane * filters + own) * plane + one % plane] = narrow(sums[i][4 * quad + j]);
        }
      }
    }
  }
}
"""


def _product(params: Params, dtype: str) -> wgsl.Product:
    channels, filters, side = _sides(params)
    patches = Patches(channels, side)
    return wgsl.Product(
        filters, patches.pixels, patches.taps, params["n"], dtype, a="w", b="x", patches=patches
    )


def _wgsl(params: Params, dtype: str, limits: Limits) -> tuple[Candidate, ...]:
    """Return the candidates: Winograd's products if they suit the device, and tiles."""
    products = wgsl.candidates(_product(params, dtype), limits)
    if limits.software or not (_by_winograd(params, dtype, limits) and winograd.fits(limits)):
        return products
    build = partial(winograd.wgsl_program, params["n"], *_sides(params), dtype, limits)
    # A few tiles are tried, too. On an H200, from 8 images on, Winograd's products took 0.55 to 0.75 of the
    # best tile's time.
    return (Candidate(winograd.NAME, build), *products[:_TILES_BESIDE])


OPS = (
    Op(
        name="conv2d",
        group="network",
        summary="out = x * w, filters of 3 x 3, padded by one pixel",
        params={"n": "number of images"},
        options={
            "channels": f"channels of an image ({_CHANNELS})",
            "filters": f"filters, which are the channels of the result ({_FILTERS})",
            "side": f"pixels along a side of an image ({_SIDE})",
        },
        sizes=Ladder(low=1, high=256),
        inputs=(Operand("x", _images, "normal"), Operand("w", _filters, "fan-in", role="weight")),
        output=Operand("out", _out),
        flops=_flops,
        expr=_expr,
        library={"torch": lambda torch, x, w: torch.nn.functional.conv2d(x, w, padding=1)},
        tolerance=Tolerance(8, scale=_scale),
        reference=_reference,
        blas=("numpy",),  # PyTorch uses oneDNN
        split=Split({"x": 0}, counted_by("n")),
        terms=lambda params: {"x": 1, "w": 1},
        slow=SLOW_HALVES,
        tuned=by_backend(_cpu, _cuda, wgsl.chosen_from(_wgsl)),
    ),
)
