"""Matrix products: the tiles of the WGSL kernels, epilogues of products, and norms.

A device may choose among the tiles. They are listed from the best one for large matrices to the best one for
small ones, and `rank` finds the default. The fastest tile depends on the size and on the driver's compiler, so
the backend may time them (docs/kernels.md).

An epilogue is applied to each element before it is written: a bias, an activation, a sum, a mask. In WGSL the
formula is written for the type `V`, a number or a vector. CUDA applies it to the output of cuBLAS in a second pass
over C; the kernel for few rows applies it before it writes. The CPU applies it to rows that are in its cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.kernel import CudaPass, Limits
from gpubench.kernels.contract.op import Array
from gpubench.kernels.templates import UNIT, ceil_div, kernel_pass, lanes, multiprocessors
from gpubench.kernels.templates.elementwise import GELU_CUBIC, GELU_SCALE, gelu
from gpubench.kernels.templates.formula import Formula, trace

# The order of the multiply-adds of one step of K in the text. A GPU's register file is faster if an instruction
# shares an operand with the one before, so every order goes back and forth. The compiler assigns registers in this
# order, so the order changes the rate: 300 orders of one tile reached 44 to 49 TFLOP/s at n = 4096.
Order = Literal["serpentine", "paired", "interleaved"]


class Tile(msgspec.Struct, frozen=True):
    """The way in which a group of threads computes a block of C = A B, in steps along K."""

    rows: int  # rows of the block
    columns: int  # columns of the block
    depth: int  # length of a step
    thread_rows: int  # rows of C that one thread computes
    thread_columns: int  # columns of C that one thread computes
    # number of teams of threads for the same block. Each team computes a part of every step of K, and the teams'
    # sums are added up at the end. This gives more threads if C has too few groups to fill the device
    slices: int = 1
    order: Order = "serpentine"  # order of the multiply-adds
    # whether C is written element by element, so that the compiler is free to place the accumulators
    scalar_stores: bool = False
    splits: int = 1  # number of groups for the same block, which divide K among them

    @property
    def name(self) -> str:
        """The name, such as `64x128x16, 8x8`. It has slices, splits and order unless they are the defaults."""
        parts = [f"{self.rows}x{self.columns}x{self.depth}, {self.thread_rows}x{self.thread_columns}"]
        parts += [f"{self.slices} slices"] if self.slices > 1 else []
        parts += [f"{self.splits} splits"] if self.splits > 1 else []
        parts += [self.order] if self.order != "serpentine" else []
        return ", ".join(parts)

    @property
    def threads_x(self) -> int:
        """The number of threads of a team along a row of C."""
        return self.columns // self.thread_columns

    @property
    def threads_y(self) -> int:
        """The number of threads of a team along a column of C."""
        return self.rows // self.thread_rows

    @property
    def team(self) -> int:
        """The number of threads that cover the block once."""
        return self.threads_x * self.threads_y

    @property
    def threads(self) -> int:
        return self.team * self.slices

    @property
    def handed(self) -> int:
        """The number of vec4s of workgroup memory in which half of the teams store sums for the other half."""
        return self.slices // 2 * self.rows * self.columns // 4

    @property
    def vectors(self) -> int:
        """The number of vec4s of workgroup memory of a group: for the tiles of both operands, or for the sums
        of the teams if these take more."""
        # + 2: each line is one vec4 longer if both operands are transposed
        return max(self.depth * (self.rows // 4 + self.columns // 4 + 2), self.handed)

    def fits(self, itemsize: int, limits: Limits) -> bool:
        """Return whether the device's limits allow a group of this tile. A number in the arithmetic has `itemsize`
        bytes."""
        threads = self.threads <= limits.max_workgroup_threads
        return threads and 4 * itemsize * self.vectors <= limits.max_workgroup_bytes

    def groups(self, m: int, n: int) -> int:
        """Return the number of blocks of an m x n matrix."""
        return ceil_div(m, self.rows) * ceil_div(n, self.columns)


def sequence(tile: Tile) -> list[tuple[int, int]]:
    """Return the (row, column) pairs of a thread's block in the order of the multiply-adds."""
    rows, columns = list(range(tile.thread_rows)), list(range(tile.thread_columns))
    if tile.order == "paired":
        columns = [column ^ 1 for column in columns]
    band = 1
    if tile.order == "interleaved":  # the same lane of each vec4 of A, two rows at a time
        band = 2
        rows = [4 * quad + lane for lane in range(4) for quad in range(tile.thread_rows // 4)]
    pairs = []
    for start in range(0, len(rows), band):
        for at, column in enumerate(columns):
            pair = rows[start : start + band]
            pairs += [(r, column) for r in (pair[::-1] if at % 2 else pair)]
        columns.reverse()
    return pairs


# Beside a tile: the size n at which it is the best one, and its rate there relative to queued cuBLAS (H200, float32,
# TF32 off).
TILES = (
    Tile(64, 128, 16, 8, 8, order="interleaved", scalar_stores=True),  # 4096: 0.96, 8192: 1.00
    Tile(128, 128, 16, 8, 8, order="paired"),  # 2048: 0.95
    Tile(64, 128, 32, 8, 8, slices=2),  # 1024: 1.05
    Tile(32, 64, 64, 8, 8, slices=4),  # 512: 1.25
    Tile(64, 64, 16, 8, 8),
    Tile(32, 32, 32, 4, 4, slices=2),  # 256: 1.40
    Tile(32, 32, 32, 4, 4),
)
# On a software adapter as fast as the smallest of TILES, and compiled in a quarter of the time.
SOFTWARE_TILE = Tile(32, 32, 8, 4, 4)
# float64 needs twice the registers and workgroup memory, so the blocks have half the size.
WIDE_TILES = (Tile(64, 64, 16, 8, 4), Tile(64, 32, 16, 4, 4), Tile(32, 32, 16, 4, 4))
# For a C with few columns, as in the last layer of a classifier. Reading A bounds it, so many loads must be in flight.
NARROW = 16
NARROW_TILES = (Tile(64, NARROW, 64, 4, 4, slices=4), Tile(64, NARROW, 32, 4, 4, slices=2))


def able(tiles: tuple[Tile, ...], itemsize: int, limits: Limits) -> list[Tile]:
    """Return the tiles that the device's limits allow (`Tile.fits`). Raises Unsupported if they allow none; the last
    of `tiles` has to be the smallest."""
    fitting = [tile for tile in tiles if tile.fits(itemsize, limits)]
    if not fitting:
        least = tiles[-1]
        raise Unsupported(
            f"the smallest tile needs {4 * itemsize * least.vectors} bytes of workgroup memory and"
            f" {least.threads} threads; the device has {limits.max_workgroup_bytes} bytes"
            f" (maxComputeWorkgroupStorageSize) and {limits.max_workgroup_threads} threads",
            reason="limit",
        )
    return fitting


def narrow(tiles: list[Tile], itemsize: int, limits: Limits) -> list[Tile]:
    """Return the tiles for a C with few columns: NARROW_TILES that the limits allow, then those of `tiles` with at
    most 4 * NARROW columns."""
    fitting = [tile for tile in NARROW_TILES if tile.fits(itemsize, limits)]
    return fitting + [tile for tile in tiles if tile.columns <= 4 * NARROW]


def _full(limits: Limits) -> int:
    """Return the number of groups that fill the device once."""
    # an eighth of the multiprocessors may stay idle
    return multiprocessors(limits) * 7 // 8


def split(m: int, n: int, k: int, tiles: list[Tile], limits: Limits) -> list[Tile]:
    """Return copies of some tiles, in which several groups divide K. These are the tiles with too few groups to fill
    the device, if K can be divided."""
    # Without such copies, a 64 x 4096 product takes 32 groups of 64 x 128 and reaches 0.63 of cuBLAS on an
    # H200.
    full, cuts = _full(limits), []
    for tile in tiles:
        splits = 1
        while 2 * splits * tile.groups(m, n) <= 2 * full and k % (4 * splits * tile.depth) == 0:
            splits *= 2
        if tile.groups(m, n) < full and splits > 1 and not tile.scalar_stores:
            cuts.append(msgspec.structs.replace(tile, splits=splits))
    return cuts


def rank(m: int, n: int, batch: int, tiles: list[Tile], limits: Limits) -> list[Tile]:
    """Return the tiles with the default first. The default is the first tile with enough groups to fill the device,
    or else the one with the most groups. On a software adapter it is `SOFTWARE_TILE`. If the first of `tiles` is
    narrow, it is the default."""
    if limits.software:
        return [SOFTWARE_TILE, *tiles[::-1]]
    if tiles[0].columns <= NARROW:
        return tiles
    # 64 x 128 at n = 1024 gives 128 groups to 132 multiprocessors, and is the fastest tile there.
    full = _full(limits)
    groups = {tile: batch * tile.groups(m, n) for tile in tiles}
    # From some twelve groups a multiprocessor on, the last, half filled round of the first tile no longer counts.
    needed = {tile: full * (1 if tile.slices > 1 else 2) for tile in tiles} | {tiles[0]: 14 * full}
    enough = [tile for tile in tiles if groups[tile] >= needed[tile]]
    # Where no tile gives enough, the one that gives the most, with slices if there is such a one.
    first = enough[0] if enough else max(tiles, key=lambda tile: (groups[tile], tile.slices))
    return [first, *(tile for tile in tiles if tile is not first)]


def promising(m: int, n: int, batch: int, tiles: list[Tile], limits: Limits) -> list[Tile]:
    """Return those of the tiles that are worth a trial. A driver takes long to build a tile."""
    full = _full(limits)
    worth = []
    for tile in tiles:
        groups = batch * tile.splits * tile.groups(m, n)
        if tile.columns <= NARROW:
            fits = True
        elif tile.thread_rows * tile.thread_columns < 32:
            # slower than larger tiles once these fill the device
            fits = groups <= 4 * full and tile.splits == 1
        else:
            # very many small blocks read each row too often
            fits = groups <= 64 * full or tile.rows * tile.columns > 4096
        # with fewer groups most of the device is idle
        if fits and 2 * groups >= full:
            worth.append(tile)
    return worth


def norms(xp: Array, x: Array, w: Array) -> Array:
    """Return, for each i and j, the norm of row i of x times the norm of column j of w."""
    rows = xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True))
    return rows * xp.sqrt(xp.sum(w * w, axis=-2, keepdims=True))


_THREADS = 256


class Epilogue(msgspec.Struct, frozen=True):
    """Operations on each element of a product before it is written."""

    # operands by name: a vector along a row of C ("across"), or a matrix of the shape of C ("all")
    operands: Mapping[str, Literal["across", "all"]]
    formula: Callable[..., Any]  # formula of an element `v` of the product and of the operands
    flops: int  # operations for each element
    # `in_place(np, out, room, *operands)` applies the epilogue to the array `out` by NumPy. `room(out)` returns a
    # scratch array of the shape of `out`
    in_place: Callable[..., Any]

    @property
    def traced(self) -> Formula:
        """The formula as steps."""
        return trace(self.formula, ["v", *self.operands])

    def finish(self) -> str:
        """Return the text of the WGSL function `finish(v, ...)` of an element and the operands. All have the type
        `V`, a number or a vector, which the kernel defines."""
        return self.traced.wgsl("finish", "V", "V({})")

    def cuda_finish(self) -> str:
        """Return the text of the CUDA function `finish(v, ...)` of an element and the operands, all `real`."""
        return self.traced.cuda("finish")

    def cuda_pass(self, rows: int, columns: int, dtype: str) -> CudaPass:
        """Return a pass that applies the formula to the buffer `out` (rows x columns), in place. Raises Unsupported
        beyond CUDA's largest grid."""
        width = lanes(dtype) if columns % lanes(dtype) == 0 else 1
        units = rows * columns // width
        arguments = ("out", *self.operands, units, columns // width)
        source, blocks = self._cuda_source(width), ceil_div(units, _THREADS)
        return kernel_pass("epilogue", dtype, source, blocks, _THREADS, arguments)

    def _cuda_source(self, width: int) -> str:
        arrays = "".join(f", const stored* __restrict__ {name}_" for name in self.operands)
        index = {"across": "i % across", "all": "i"}
        loads = "\n".join(
            f"  const Unit {name} = reinterpret_cast<const Unit*>({name}_)[{index[along]}];"
            for name, along in self.operands.items()
        )
        operands = "".join(f", wide({name}.lane[j])" for name in self.operands)
        return f"""const int WIDTH = {width};
{UNIT}
{self.cuda_finish()}
extern "C" __global__ void __launch_bounds__({_THREADS})
gpubench_epilogue(stored* __restrict__ out_{arrays}, long long units, long long across) {{
  const long long i = (long long)blockIdx.x * {_THREADS} + threadIdx.x;
  if (i >= units) return;
  Unit out = reinterpret_cast<Unit*>(out_)[i];
{loads}
  #pragma unroll
  for (int j = 0; j < WIDTH; ++j) out.lane[j] = narrow(finish(wide(out.lane[j]){operands}));
  reinterpret_cast<Unit*>(out_)[i] = out;
}}
"""


GELU_SLOPE = 1.13  # the largest slope of gelu, at x = 1.4


def _gelu_in_place(np: Any, out: Array, room: Callable[[Array], Array], b: Array) -> None:
    np.add(out, b, out=out)
    power = np.multiply(out, out, out=room(out))
    power *= GELU_CUBIC
    power *= out
    power += out
    power *= -2 * GELU_SCALE
    np.exp(power, out=power)
    power += 1
    np.divide(out, power, out=out)


GELU = Epilogue({"b": "across"}, lambda m, v, b: gelu(m, v + b), flops=10, in_place=_gelu_in_place)
BIAS = Epilogue(
    {"b": "across"}, lambda m, v, b: v + b, flops=1, in_place=lambda np, out, room, b: np.add(out, b, out=out)
)
