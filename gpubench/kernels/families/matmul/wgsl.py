"""The WGSL matmul as programs: the register-blocked kernel with its candidates, and the ladder below it.

The two lower rungs of the ladder, naive and tiled, are kept simple to be read. On an H200 they reach 0.10 and 0.16 of
cuBLAS at n = 4096; the register-blocked kernel 0.96.
"""

from __future__ import annotations

from functools import partial

import msgspec

from gpubench.errors import Unsupported
from gpubench.kernels.families import ceil_div, fold, require_bindings, require_dtype
from gpubench.kernels.families.matmul import TILES, WIDE_TILES, Tile, able, promising, ranked, register, split
from gpubench.kernels.families.wgsl import elements, real_dtype, require_storage
from gpubench.model.kernel import Candidate, Limits, WgslPass, WgslProgram
from gpubench.model.op import ITEMSIZE

_BINDINGS = ("a", "b", "out")
_PAD_THREADS = 64
_SUM_THREADS = 256


class Product(msgspec.Struct, frozen=True):
    """`batch` products of A (m x k) and B (k x n), each of its own matrices."""

    m: int
    n: int
    k: int
    batch: int
    dtype: str

    def require(self, limits: Limits) -> None:
        """Raise Unsupported if the device lacks the dtype, or does not bind a matrix at once."""
        require_storage(self.dtype, limits)
        size = self.batch * ITEMSIZE[self.dtype]
        sizes = {"a": size * self.m * self.k, "b": size * self.k * self.n, "out": size * self.m * self.n}
        require_bindings(sizes, limits)


def candidates(product: Product, limits: Limits) -> tuple[Candidate, ...]:
    """The register-blocked kernel, one candidate per promising tile, the default first.

    Halves are multiplied and added in float32. Raises Unsupported.
    """
    product.require(limits)
    m, n, k, batch = product.m, product.n, product.k, product.batch
    if 0 in (m, n, k, batch):
        raise Unsupported("a matrix without elements is not multiplied", reason="shape")
    wide = product.dtype == "float64"
    tiles = able(WIDE_TILES if wide else TILES, ITEMSIZE[real_dtype(product.dtype)], limits)
    first, *rest = ranked(m, n, batch, tiles, limits)
    if not limits.software:  # which never takes any but the default
        thin = split(m, n, 4 * ceil_div(k, 4), tiles, limits) if batch == 1 else []
        rest = promising(m, n, batch, [*thin, *rest], limits)
    return tuple(Candidate(tile.name, partial(program, product, limits, tile)) for tile in (first, *rest))


def program(product: Product, limits: Limits, tile: Tile) -> WgslProgram:
    """The passes with one tile: matrices whose rows are no multiple of 4 long are copied into longer rows first."""
    m, n, k, batch, dtype = product.m, product.n, product.k, product.batch, product.dtype
    deep, stride = 4 * ceil_div(k, 4), 4 * ceil_div(n, 4)
    layout = register.Layout(tile=tile, dtype=dtype, m=m, n=n, k=deep, stride=stride, batch=batch)
    grid = _grid(ceil_div(n, tile.columns), ceil_div(m, tile.rows), max(batch, tile.splits), limits)
    before, after, names = [], [], list(_BINDINGS)
    scratch: dict[str, int] = {}
    if (deep, stride) != (k, n):
        before = [
            _pad("a", (batch, m, k), (m, deep), dtype, limits),
            _pad("b", (batch, k, n), (deep, stride), dtype, limits),
        ]
        names[:2] = ["a_padded", "b_padded"]
        scratch["a_padded"] = batch * m * deep * ITEMSIZE[dtype]
        scratch["b_padded"] = batch * deep * stride * ITEMSIZE[dtype]
    if tile.splits > 1:
        after = [_sum(layout, limits)]
        names[2] = "partials"
        scratch["partials"] = tile.splits * m * n * ITEMSIZE[real_dtype(dtype)]
    require_bindings(scratch, limits)
    multiply = WgslPass(register.source(layout), grid, tuple(names))
    return WgslProgram(
        (*before, multiply, *after),
        scratch={name: ceil_div(size, 16) * 16 for name, size in scratch.items()},
    )


def _sum(layout: register.Layout, limits: Limits) -> WgslPass:
    """Add the splits of C up, element by element."""
    count, stored = layout.m * layout.n, elements(layout.dtype).stored
    terms = " + ".join(f"in_[i + {index * count}u]" for index in range(layout.tile.splits))
    text = f"""{"enable f16;" if stored == "f16" else ""}
@group(0) @binding(0) var<storage, read> in_: array<{layout.real}>;
@group(0) @binding(1) var<storage, read_write> out_: array<{stored}>;
@compute @workgroup_size({_SUM_THREADS})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {{
  let i = (group.y * groups.x + group.x) * {_SUM_THREADS}u + thread;
  if (i < {count}u) {{ out_[i] = {stored}({terms}); }}
}}
"""
    grid = fold(ceil_div(count, _SUM_THREADS), limits)
    return WgslPass(text, grid, ("partials", "out"))


def _pad(
    name: str, shape: tuple[int, int, int], padded: tuple[int, int], dtype: str, limits: Limits
) -> WgslPass:
    """Copy (batch, rows, columns) into (batch, *padded), zeros around it; a thread writes four neighbours."""
    batch, rows, columns = shape
    down, across = padded[0], padded[1] // 4
    stored = elements(dtype).stored
    copies = "\n".join(
        f"    if (inside && 4u * x + {q}u < {columns}u) {{ v.{lane} = in_[start + 4u * x + {q}u]; }}"
        for q, lane in enumerate("xyzw")
    )
    text = f"""{"enable f16;" if stored == "f16" else ""}
@group(0) @binding(0) var<storage, read> in_: array<{stored}>;
@group(0) @binding(1) var<storage, read_write> out_: array<vec4<{stored}>>;
@compute @workgroup_size({_PAD_THREADS})
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {{
  let x = id.x;
  if (x >= {across}u) {{ return; }}
  for (var y = id.y; y < {down}u; y += groups.y) {{
    let inside = y < {rows}u;
    let start = (id.z * {rows}u + y) * {columns}u;
    var v = vec4<{stored}>();
{copies}
    out_[(id.z * {down}u + y) * {across}u + x] = v;
  }}
}}
"""
    height = min(down, limits.max_groups_per_dimension)
    return WgslPass(
        text, _grid(ceil_div(across, _PAD_THREADS), height, batch, limits), (name, f"{name}_padded")
    )


def ladder(source: str, product: Product, limits: Limits) -> WgslProgram:
    """For teaching: one element a thread, by the text `NAIVE` or `TILED`."""
    require_dtype(product.dtype, ("float32",))
    if product.batch > 1:
        raise Unsupported("the lower rungs of the ladder take one product a launch", reason="no-implementation")
    product.require(limits)
    if limits.max_workgroup_threads < _SIDE * _SIDE:
        raise Unsupported(
            f"{_SIDE * _SIDE} threads a group exceed {limits.max_workgroup_threads}", reason="limit"
        )
    grid = _grid(ceil_div(product.n, _SIDE), ceil_div(product.m, _SIDE), 1, limits)
    uniform = (product.m, product.n, product.k)
    return WgslProgram((WgslPass(source, grid, _BINDINGS, uniform=uniform),))


def _grid(x: int, y: int, z: int, limits: Limits) -> tuple[int, int, int]:
    if max(x, y, z) > limits.max_groups_per_dimension:
        raise Unsupported(
            f"{x} x {y} x {z} groups exceed {limits.max_groups_per_dimension} a dimension"
            " (maxComputeWorkgroupsPerDimension)",
            reason="limit",
        )
    return (x, y, z)


_SIDE = 16

_HEADER = """struct Params { m: u32, n: u32, k: u32, }
@group(0) @binding(0) var<storage, read> a_: array<f32>;
@group(0) @binding(1) var<storage, read> b_: array<f32>;
@group(0) @binding(2) var<storage, read_write> out_: array<f32>;
@group(0) @binding(3) var<uniform> p: Params;
"""

# Each thread walks a row of A and a column of B: 2 k reads for 2 k operations.
NAIVE = f"""{_HEADER}
@compute @workgroup_size({_SIDE}, {_SIDE})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
  let row = id.y;
  let column = id.x;
  if (row >= p.m || column >= p.n) {{ return; }}
  var total = 0.0;
  for (var k = 0u; k < p.k; k++) {{
    total = fma(a_[row * p.k + k], b_[k * p.n + column], total);
  }}
  out_[row * p.n + column] = total;
}}
"""

# The group loads a square of A and of B together, so each element comes from global memory once per group.
TILED = f"""{_HEADER}
var<workgroup> tile_a: array<array<f32, {_SIDE}>, {_SIDE}>;
var<workgroup> tile_b: array<array<f32, {_SIDE}>, {_SIDE}>;

@compute @workgroup_size({_SIDE}, {_SIDE})
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {{
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
}}
"""
