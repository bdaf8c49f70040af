"""conv2d: the convolution of n images with filters of 3 x 3, padded by one pixel, in the order image, channel, y, x.

As a product: filters, a row of 9 C numbers each, times the patches of an image, a column of 9 C numbers a pixel.

- CPU: patches of a band of rows that stays in cache, times the filters by a BLAS of one thread, band after band.
- CUDA: patches in memory, then cuBLAS, one product an image.
- WGSL: the register-blocked matmul, which reads each patch from the image itself: nothing is written in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpubench.errors import Unsupported
from gpubench.kernels.families import ceil_div, require_dtype
from gpubench.kernels.families.cpu import Blocks, Launch, ThreadScratch
from gpubench.kernels.families.cuda import DTYPES, MOST_BLOCKS, options, prelude
from gpubench.kernels.families.elementwise import WORKING_DTYPES
from gpubench.kernels.families.matmul import wgsl
from gpubench.kernels.families.matmul.register import Patches
from gpubench.model.kernel import CudaPass, CudaProduct, CudaProgram, Kernel, Limits
from gpubench.model.op import ITEMSIZE, Array, Ladder, Op, Operand, Params, Shape, Split, Tolerance, counted_by

_CHANNELS, _FILTERS, _SIDE = 64, 64, 32
_TAPS = tuple((dy, dx) for dy in range(3) for dx in range(3))
_BAND = 256 * 1024  # elements of the patches of a band: they have to be in cache still
_THREADS = 256
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


def _cuda(params: Params, dtype: str, limits: Limits) -> CudaProgram:
    require_dtype(dtype, DTYPES, "CUDA")
    n, (channels, filters, side) = params["n"], _sides(params)
    count = n * 9 * channels * side * side
    blocks = ceil_div(max(count, 1), _THREADS)
    if blocks > MOST_BLOCKS:
        raise Unsupported(
            f"{count} elements take {blocks} blocks; a CUDA grid has {MOST_BLOCKS}", reason="limit"
        )
    if n == 0:
        return CudaProgram(())
    gather = CudaPass(
        prelude(dtype) + _GATHER, "gpubench_patches", (blocks, 1, 1), (_THREADS, 1, 1),
        ("x", "patches", count, channels, side), options=options(dtype),
    )  # fmt: skip
    product = CudaProduct("w", "patches", "out", filters, side * side, 9 * channels, batch=n)
    return CudaProgram((gather, product), {"patches": count * ITEMSIZE[dtype]})


# Neighbouring threads take neighbouring pixels of one tap.
_GATHER = f"""
extern "C" __global__ void __launch_bounds__({_THREADS})
gpubench_patches(const stored* __restrict__ x, stored* __restrict__ patches, long long count, long long channels,
                 long long side) {{
  const long long i = (long long)blockIdx.x * {_THREADS} + threadIdx.x;
  if (i >= count) return;
  const long long pixels = side * side, row = i / pixels, pixel = i - row * pixels;
  const long long plane = row / 9;  // image times channels plus channel
  const int tap = int(row - plane * 9);
  const long long y = pixel / side + tap / 3 - 1, at = pixel % side + tap % 3 - 1;
  const bool inside = y >= 0 && y < side && at >= 0 && at < side;
  patches[i] = inside ? x[plane * pixels + y * side + at] : narrow(real(0));
}}
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
