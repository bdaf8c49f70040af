"""conv2d: the convolution of n images with filters of 3 x 3, padded by one pixel, in the order image, channel, y, x.

As a product: filters, a row of 9 C numbers each, times the patches of an image, a column of 9 C numbers a pixel.

- CPU: patches of a band of rows that stays in cache, times the filters by a BLAS of one thread, band after band.
- CUDA: a tiled product, whose blocks read each patch from the image itself.
- WGSL: the register-blocked matmul, which reads each patch from the image itself: nothing is written in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gpubench.errors import Unsupported
from gpubench.kernels.families import ceil_div, require_dtype
from gpubench.kernels.families.cpu import Blocks, Launch, ThreadScratch
from gpubench.kernels.families.cuda import DTYPES, MOST_BLOCKS, options, prelude
from gpubench.kernels.families.elementwise import WORKING_DTYPES
from gpubench.kernels.families.matmul import wgsl
from gpubench.kernels.families.matmul.register import Patches
from gpubench.model.kernel import CudaPass, CudaProgram, Kernel, Limits
from gpubench.model.op import Array, Ladder, Op, Operand, Params, Shape, Split, Tolerance, counted_by

_CHANNELS, _FILTERS, _SIDE = 64, 64, 32
_TAPS = tuple((dy, dx) for dy in range(3) for dx in range(3))
_BAND = 256 * 1024  # elements of the patches of a band: they have to be in cache still
# NumPy multiplies halves without its BLAS: 0.6 to 0.8 GFLOP/s on one core (256 to 512, a Xeon of 2023).
_NUMPY_HALF_FLOPS_PER_S = 1e9


def _sides(params: Params) -> tuple[int, int, int]:
    """(channels, filters, side)."""
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
    """Of the taps inside the image: 3 S - 2 of 3 S along each side."""
    channels, filters, side = _sides(params)
    return 2 * params["n"] * filters * channels * (3 * side - 2) ** 2


def _fits(params: Params) -> str | None:
    return None if min(_sides(params)) >= 1 else "channels, filters and side are at least 1"


def _shifted(xp: Array, x: Array) -> list[Array]:
    """The images as each tap sees them."""
    side = x.shape[2]
    padded = xp.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    return [padded[:, :, dy : dy + side, dx : dx + side] for dy, dx in _TAPS]


def _expr(xp: Array, x: Array, w: Array) -> Array:
    """Nine products, one for each tap."""
    n, channels, side, _ = x.shape
    out = 0
    for (dy, dx), image in zip(_TAPS, _shifted(xp, x), strict=True):
        out = out + w[:, :, dy, dx] @ xp.reshape(image, (n, channels, side * side))
    return xp.reshape(out, (n, w.shape[0], side, side))


def _scale(xp: Array, x: Array, w: Array) -> Array:
    """The norm of the patch times the norm of the filter."""
    patches = sum(_shifted(xp, xp.sum(x * x, axis=1, keepdims=True)))
    return xp.sqrt(patches) * xp.reshape(xp.sqrt(xp.sum(w * w, axis=(1, 2, 3))), (1, w.shape[0], 1, 1))


# ---------------------------------------------------------------- CPU


def _cpu(np: Any, blocks: Blocks, params: Params) -> Launch:
    """Bands of rows; halves in float32."""
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
    """The patches of rows from `top` on."""
    side, count = image.shape[1], patches.shape[3]
    for dy, dx in _TAPS:
        part, first = patches[:, dy, dx], top + dy - 1
        above, below = max(0, -first), max(0, first + count - side)
        part[:, :above], part[:, count - below :] = 0, 0
        left, right = max(0, 1 - dx), max(0, dx - 1)
        part[:, :, :left], part[:, :, side - right :] = 0, 0
        inside = image[:, first + above : first + count - below, left + dx - 1 : side - right + dx - 1]
        part[:, above : count - below, left : side - right] = inside


# ---------------------------------------------------------------- GPU


class _Tile(NamedTuple):
    """What a block of threads computes: so many filters by so many pixels, and what one of its threads does."""

    filters: int
    pixels: int
    lanes: int  # of a thread, along each side

    @property
    def threads(self) -> int:
        return self.filters * self.pixels // self.lanes**2

    def grid(self, params: Params) -> tuple[int, int, int]:
        _, filters, side = _sides(params)
        return ceil_div(params["n"] * side * side, self.pixels), ceil_div(filters, self.filters), 1


# The large tile re-uses more of what it loads; the small one gives every multiprocessor a block when images are few.
_LARGE, _SMALL = _Tile(64, 128, 8), _Tile(32, 32, 4)


def _tile(params: Params, dtype: str, limits: Limits) -> _Tile:
    """The sums of a large tile in float64 would fill a thread's registers."""
    across, down, _ = _LARGE.grid(params)
    return _LARGE if dtype != "float64" and across * down >= 2 * (limits.multiprocessors or 1) else _SMALL


def _cuda(params: Params, dtype: str, limits: Limits) -> CudaProgram:
    """One launch. Raises Unsupported for another dtype, and beyond CUDA's largest grid."""
    require_dtype(dtype, DTYPES, "CUDA")
    n, (channels, filters, side) = params["n"], _sides(params)
    if n == 0:
        return CudaProgram(())
    tile = _tile(params, dtype, limits)
    grid = tile.grid(params)
    if grid[0] > MOST_BLOCKS or grid[1] > limits.max_groups_per_dimension:
        raise Unsupported(f"{grid[0]} by {grid[1]} blocks are more than a CUDA grid has", reason="limit")
    shape = f"const int FILTERS = {tile.filters}, PIXELS = {tile.pixels}, LANES_A_SIDE = {tile.lanes};\n"
    step = CudaPass(
        prelude(dtype) + shape + _CUDA, "gpubench_conv2d", grid, (tile.threads, 1, 1),
        ("x", "w", "out", n * side * side, channels, filters, side), options=options(dtype),
    )  # fmt: skip
    return CudaProgram((step,))


# The product of filters and patches in tiles. A patch is read from the image itself, by the thread of its pixel; the
# next step of both is on its way while the one in shared memory is multiplied.
_CUDA = """
const int STEP = LANES_A_SIDE == 8 ? 8 : 16;  // of the 9 C numbers of a patch: what is on its way takes registers
const int THREADS = FILTERS * PIXELS / (LANES_A_SIDE * LANES_A_SIDE), QUADS = LANES_A_SIDE / 4;
const int ACROSS = PIXELS / LANES_A_SIDE;  // threads of a block along its pixels
const int ROWS = THREADS / PIXELS;         // numbers of a patch that are loaded side by side
const int TAKEN = STEP / ROWS, WEIGHTS = FILTERS * STEP / THREADS;
struct alignas(16) Quad { real lane[4]; };
struct alignas(sizeof(stored) > 4 ? 16 : 4 * sizeof(stored)) Four { stored lane[4]; };

extern "C" __global__ void __launch_bounds__(THREADS, LANES_A_SIDE == 8 ? 3 : 1)
gpubench_conv2d(const stored* __restrict__ x, const stored* __restrict__ w, stored* __restrict__ out,
                long long count, long long channels, long long filters, long long side) {
  // Four more a row, or threads that write neighbours in a row of w would meet in one bank.
  __shared__ alignas(16) real weights[STEP][FILTERS + 4];
  __shared__ alignas(16) real patches[STEP][PIXELS];
  const int thread = threadIdx.x, length = int(9 * channels), edge = int(side);
  const long long plane = side * side, first = (long long)blockIdx.x * PIXELS;
  const long long filter = (long long)blockIdx.y * FILTERS;

  const int column = thread % PIXELS, row = thread / PIXELS;
  const long long place = first + column, image = place / plane;
  const int pixel = int(place - image * plane), top = pixel / edge, left = pixel % edge;
  const stored* origin = x + image * channels * plane;
  real patch[TAKEN], weight[WEIGHTS], sums[LANES_A_SIDE][LANES_A_SIDE] = {};

  auto load = [&](int begin) {
    #pragma unroll
    for (int i = 0; i < TAKEN; ++i) {
      const int k = begin + row + i * ROWS, channel = k / 9, tap = k - 9 * channel;
      const int down = top + tap / 3 - 1, along = left + tap % 3 - 1;
      const bool inside = place < count && k < length && down >= 0 && down < edge && along >= 0 && along < edge;
      patch[i] = inside ? wide(origin[channel * plane + down * edge + along]) : real(0);
    }
    #pragma unroll
    for (int i = 0; i < WEIGHTS; ++i) {
      const int at = thread + i * THREADS, k = begin + at % STEP;
      const long long own = filter + at / STEP;
      weight[i] = own < filters && k < length ? wide(w[own * length + k]) : real(0);
    }
  };

  const int across = thread % ACROSS * 4, down = thread / ACROSS * 4;
  load(0);
  for (int begin = 0; begin < length; begin += STEP) {
    #pragma unroll
    for (int i = 0; i < TAKEN; ++i) patches[row + i * ROWS][column] = patch[i];
    #pragma unroll
    for (int i = 0; i < WEIGHTS; ++i) {
      const int at = thread + i * THREADS;
      weights[at % STEP][at / STEP] = weight[i];
    }
    __syncthreads();
    if (begin + STEP < length) load(begin + STEP);
    #pragma unroll
    for (int k = 0; k < STEP; ++k) {
      alignas(16) real a[LANES_A_SIDE];
      alignas(16) real b[LANES_A_SIDE];
      #pragma unroll
      for (int quad = 0; quad < QUADS; ++quad) {
        *(Quad*)(a + 4 * quad) = *(const Quad*)&weights[k][quad * (FILTERS / QUADS) + down];
        *(Quad*)(b + 4 * quad) = *(const Quad*)&patches[k][quad * (PIXELS / QUADS) + across];
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


OP = Op(
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
    dtypes=WORKING_DTYPES,
    inputs=(Operand("x", _images, "normal"), Operand("w", _filters, "fan-in", role="weight")),
    output=Operand("out", _out),
    flops=_flops,
    fits=_fits,
    expr=_expr,
    torch=lambda torch, x, w: torch.nn.functional.conv2d(x, w, padding=1),
    tolerance=Tolerance(8, scale=_scale),
    split=Split({"x": 0}, counted_by("n")),
    slow={("numpy", "float16"): _NUMPY_HALF_FLOPS_PER_S},
    tuned={
        "numpy": (Kernel("numpy", _cpu),),
        "cupy": (Kernel("cuda", _cuda),),
        "wgpu": (wgsl.kernel(_product),),
    },
)
