"""The WGSL programs of matrix products: the register-blocked kernel with its candidates, and two simpler kernels
for teaching.

The simple kernels, naive and tiled, are the lower rungs of a ladder that ends with the register-blocked kernel. On
an H200 they reach 0.10 and 0.16 of cuBLAS at n = 4096, and the register-blocked kernel 0.96. Few rows have a
separate kernel (`few_rows`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import msgspec

from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.kernel import (
    Candidate,
    Kernel,
    Limits,
    WgslPass,
    WgslProgram,
    choose_kernel,
    one_dispatch,
)
from gpubench.kernels.contract.op import ITEMSIZE, Params
from gpubench.kernels.templates import (
    LANES,
    ceil_div,
    elements,
    fold,
    group_threads,
    real_dtype,
    require_bindings,
    require_dtype,
    require_grid,
    require_storage,
    shader,
)
from gpubench.kernels.templates.matmul import (
    NARROW,
    TILES,
    WIDE_TILES,
    Epilogue,
    Tile,
    able,
    few_rows,
    narrow,
    promising,
    rank,
    register,
    split,
)

_PAD_THREADS = 64
# Up to this many bytes of weights, in columns of at most this length, a GPU reads in less time than a launch takes.
# Tiles gain nothing there (on an H200 none of 15 products of up to 4 rows chose one), so there are no trials.
_LAUNCH_BYTES, _SHORT = 4 * 1024 * 1024, 2048
_LOOSE = 32  # most elements of a line that is read element by element


class Lines(msgspec.Struct, frozen=True):
    """The storage of A or B in its buffer, as lines of elements that follow each other."""

    side: str  # operand: "a" or "b"
    buffer: str  # name of the operand's buffer
    turned: bool  # whether a line runs along K; if not, it runs along the extent
    extent: int  # number of rows of A, or of columns of B
    k: int  # length of K
    deep: int  # length of K with padding

    @property
    def shape(self) -> tuple[int, int]:
        """The number of lines, and the number of elements in a line."""
        return (self.extent, self.k) if self.turned else (self.k, self.extent)

    @property
    def padded(self) -> tuple[int, int]:
        """The shape with padding, of which vec4s are read."""
        return (self.extent, self.deep) if self.turned else (self.deep, 4 * ceil_div(self.extent, 4))

    @property
    def loose(self) -> bool:
        """Whether the lines are read element by element, because they are short and not whole vec4s."""
        odd = not self.turned and self.extent % 4 != 0
        # for short lines a dispatch that makes a padded copy would cost more
        return odd and self.extent <= _LOOSE and self.k == self.deep


class Product(msgspec.Struct, frozen=True):
    """One or several products of A and B. Each product has its own matrices, but all share A if B has `patches`."""

    m: int  # rows of A
    n: int  # columns of B
    k: int  # columns of A
    batch: int  # number of products
    dtype: str  # dtype of A, B and C
    ta: bool = False  # whether A is stored column by column
    tb: bool = False  # whether B is stored column by column
    a: str = "a"  # buffer of A
    b: str = "b"  # buffer of B
    epilogue: Epilogue | None = None  # applied to each element before it is written; None: nothing is
    # the images of which B has the patches. All products then have the same A. None: B is a matrix in memory
    patches: register.Patches | None = None

    @property
    def deep(self) -> int:
        """The length of K with padding: a multiple of 4 if a line of A or B runs along K."""
        return self.k if self.ta and not self.tb else 4 * ceil_div(self.k, 4)

    @property
    def lines(self) -> list[Lines]:
        """The lines of A and, unless B has the patches of images, of B."""
        a = Lines("a", self.a, not self.ta, self.m, self.k, self.deep)
        return [a] if self.patches else [a, Lines("b", self.b, self.tb, self.n, self.k, self.deep)]

    @property
    def beside(self) -> tuple[str, ...]:
        """The buffers that the epilogue reads."""
        return tuple(self.epilogue.operands) if self.epilogue else ()

    def require(self, limits: Limits, threads: int = 1) -> None:
        """Raise Unsupported if the device lacks the dtype, has no groups of so many threads, or cannot bind all of A,
        B or C at once."""
        exact = self.epilogue is None or self.epilogue.traced.exact
        require_storage(self.dtype, limits, threads=threads, exact=exact)
        size = self.batch * ITEMSIZE[self.dtype]
        sizes = {self.a: size * self.m * self.k, self.b: size * self.k * self.n, "out": size * self.m * self.n}
        if self.patches:
            sizes = {**sizes, self.a: sizes[self.a] // self.batch, self.b: sizes[self.b] // 9}
        require_bindings(sizes, limits)


def kernel(product: Callable[[Params, str], Product]) -> Kernel:
    """Return the register-blocked kernel of the product that `product(params, dtype)` returns."""
    return chosen_from(lambda params, dtype, limits: candidates(product(params, dtype), limits))


def chosen_from(choices: Callable[[Params, str, Limits], tuple[Candidate, ...]]) -> Kernel:
    """Return a WGSL kernel. `choices(params, dtype, limits)` returns its candidates, the default first."""
    return choose_kernel("wgsl", choices, variant="register")


def candidates(product: Product, limits: Limits) -> tuple[Candidate, ...]:
    """Return the candidates, the default first: each promising tile and, if A has few rows, the kernel for few rows.
    Halves are multiplied and added in float32. Raises Unsupported for an empty matrix, and if the device lacks the
    dtype or a matrix exceeds its limits."""
    product.require(limits)
    m, n, k, batch = product.m, product.n, product.k, product.batch
    if 0 in (m, n, k, batch):
        raise Unsupported("a matrix without elements is not multiplied", reason="shape")
    thin = m <= few_rows.MOST_ROWS and batch == 1 and not product.ta and product.patches is None
    few = Candidate(few_rows.NAME, partial(_few, product, limits))
    one_group = m <= few_rows.WGSL_ROWS  # one group holds all rows: no weight is read twice
    # reading the weights takes less time than a launch
    if thin and one_group and k <= _SHORT and k * n * ITEMSIZE[product.dtype] <= _LAUNCH_BYTES:
        return (few,)
    itemsize = ITEMSIZE[real_dtype(product.dtype)]
    tiles = able(WIDE_TILES if product.dtype == "float64" else TILES, itemsize, limits)
    if n <= NARROW and product.patches is None and not limits.software:
        tiles = narrow(tiles, itemsize, limits)
    first, *rest = rank(m, n, batch, tiles, limits)
    if not limits.software:  # a software adapter takes the default
        cut = split(m, n, product.deep, tiles, limits) if batch == 1 else []
        rest = promising(m, n, batch, [*cut, *rest], limits)
    ways = [Candidate(tile.name, partial(program, product, limits, tile)) for tile in (first, *rest)]
    if thin:
        ways.insert(not one_group, few)
    return tuple(ways)


def _few(product: Product, limits: Limits) -> WgslProgram:
    names, sides = (product.a, product.b), (product.m, product.n, product.k)
    rows = few_rows.WeightedRows(names, *sides, product.dtype, product.tb, product.epilogue)
    program = few_rows.wgsl_program(rows, limits)
    assert program is not None, "they have no norm"
    return program


def program(product: Product, limits: Limits, tile: Tile) -> WgslProgram:
    """Return the program with this tile. Lines whose length is no multiple of 4 are first copied to padded ones,
    unless they are short."""
    m, n, batch, dtype = product.m, product.n, product.batch, product.dtype
    deep, names = product.deep, {"a": product.a, "b": product.b}
    whole = product.epilogue if tile.splits == 1 else None
    before, scratch, loose = [], {}, []
    for side in product.lines:
        if side.loose:
            loose.append(side.side)
        elif side.shape != side.padded:
            count = 1 if product.patches else batch
            before.append(_pad(side.buffer, (count, *side.shape), side.padded, dtype, limits))
            names[side.side] += "_padded"
            scratch[names[side.side]] = count * math.prod(side.padded) * ITEMSIZE[dtype]
    layout = register.Layout(
        tile=tile, dtype=dtype, m=m, n=n, k=deep, batch=batch, ta=product.ta, tb=product.tb, loose=tuple(loose),
        epilogue=whole, patches=product.patches,
    )  # fmt: skip
    grid = require_grid(limits, ceil_div(n, tile.columns), ceil_div(m, tile.rows), max(batch, tile.splits))
    after, out = [], "out"
    if tile.splits > 1:
        after, out = [_sum(layout, product, limits)], "partials"
        scratch[out] = tile.splits * m * n * ITEMSIZE[real_dtype(dtype)]
    require_bindings(scratch, limits)
    multiply = WgslPass(
        register.source(layout), grid, (*names.values(), out, *(product.beside if whole else ()))
    )
    return WgslProgram((*before, multiply, *after), scratch)


def _sum(layout: register.Layout, product: Product, limits: Limits) -> WgslPass:
    """Return the pass that adds up the splits of C and applies the epilogue."""
    count, stored, threads = layout.m * layout.n, elements(layout.dtype).stored, group_threads(limits)
    value = " + ".join(f"in_[i + {index * count}u]" for index in range(layout.tile.splits))
    buffers = {"in_": layout.real, "out_": stored, **{f"{name}_with": stored for name in product.beside}}
    before = ""
    if product.epilogue is not None:
        index = {"across": f"i % {layout.n}u", "all": "i"}
        reads = (f"V({name}_with[{index[along]}])" for name, along in product.epilogue.operands.items())
        value = f"finish({', '.join((value, *reads))})"
        before = f"alias V = {layout.real};\n{product.epilogue.finish()}"
    body = f"""
  let i = (group.y * groups.x + group.x) * {threads}u + thread;
  if (i < {count}u) {{ out_[i] = {stored}({value}); }}
"""
    text = shader(buffers, threads, body, before=before)
    grid = fold(ceil_div(count, threads), limits)
    return WgslPass(text, grid, ("partials", "out", *product.beside))


def _pad(
    name: str, shape: tuple[int, int, int], padded: tuple[int, int], dtype: str, limits: Limits
) -> WgslPass:
    """Return the pass that copies an array of this shape to one of (batch, *padded), filled up with zeros."""
    batch, rows, columns = shape
    down, across = padded[0], padded[1] // 4
    stored = elements(dtype).stored
    copies = "\n".join(
        f"    if (inside && 4u * x + {q}u < {columns}u) {{ v.{lane} = in_[start + {q}u]; }}"
        for q, lane in enumerate(LANES)
    )
    body = f"""
  let x = id.x;
  if (x >= {across}u) {{ return; }}
  for (var y = id.y; y < {down}u; y += groups.y) {{
    let inside = y < {rows}u;
    let start = id.z * {rows * columns}u + y * {columns}u + 4u * x;
    var v = vec4<{stored}>();
{copies}
    out_[(id.z * {down}u + y) * {across}u + x] = v;
  }}
"""
    text = shader({"in_": stored, "out_": f"vec4<{stored}>"}, _PAD_THREADS, body)
    grid = require_grid(
        limits, ceil_div(across, _PAD_THREADS), min(down, limits.max_groups_per_dimension), batch
    )
    return WgslPass(text, grid, (name, f"{name}_padded"))


def ladder(source: str, product: Product, limits: Limits) -> WgslProgram:
    """Return a program for teaching, with one element of C per thread. `source` is the text `NAIVE` or `TILED`.
    Raises Unsupported for several products, transposed matrices and dtypes other than float32, and if a matrix
    exceeds the device's limits."""
    require_dtype(product.dtype, ("float32",))
    if product.batch > 1 or product.ta or product.tb:
        why = "the lower rungs of the ladder take one product a launch, row by row"
        raise Unsupported(why, reason="no-implementation")
    product.require(limits, _SIDE * _SIDE)
    grid = require_grid(limits, ceil_div(product.n, _SIDE), ceil_div(product.m, _SIDE), 1)
    uniform = (product.m, product.n, product.k)
    return one_dispatch(source, grid, ("a", "b", "out"), uniform=uniform)


_SIDE = 16

_RUNG = partial(shader, dict.fromkeys(("a_", "b_", "out_"), "f32"), f"{_SIDE}, {_SIDE}", params="m n k")

# Each thread goes along a row of A and a column of B, with 2 k reads for 2 k operations.
NAIVE = _RUNG("""
  let row = id.y;
  let column = id.x;
  if (row >= p.m || column >= p.n) { return; }
  var total = 0.0;
  for (var k = 0u; k < p.k; k++) {
    total = fma(a_[row * p.k + k], b_[k * p.n + column], total);
  }
  out_[row * p.n + column] = total;
""")

# The group loads a square of A and of B together, so each element comes from global memory once per group.
TILED = _RUNG(
    f"""
  let row = min(id.y, p.m - 1u);
  let column = min(id.x, p.n - 1u);
  var total = 0.0;
  for (var start = 0u; start < p.k; start += {_SIDE}u) {{
    let ka = start + local.x;
    let kb = start + local.y;
    tile_a[local.y][local.x] = select(0.0, a_[row * p.k + min(ka, p.k - 1u)], ka < p.k);
    tile_b[local.y][local.x] = select(0.0, b_[min(kb, p.k - 1u) * p.n + column], kb < p.k);
    workgroupBarrier();
    for (var k = 0u; k < {_SIDE}u; k++) {{
      total = fma(tile_a[local.y][k], tile_b[k][local.x], total);
    }}
    workgroupBarrier();
  }}
  if (id.y < p.m && id.x < p.n) {{ out_[row * p.n + column] = total; }}
""",
    before="\n".join(f"var<workgroup> tile_{x}: array<array<f32, {_SIDE}>, {_SIDE}>;" for x in "ab"),
)
