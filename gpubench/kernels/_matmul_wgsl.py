"""The WGSL matmul as programs: the register-blocked kernel with its candidates, and the ladder below it."""

from __future__ import annotations

from functools import partial

from gpubench.errors import Unsupported
from gpubench.kernels import _matmul_ladder, _matmul_register
from gpubench.kernels._limits import ceil_div, fold, require_bindings, require_dtype
from gpubench.kernels._matmul_register import Layout
from gpubench.kernels._matmul_tile import TILES, WIDE_TILES, Tile, able, promising, ranked, split
from gpubench.kernels._storage_wgsl import elements, real_dtype, require_storage
from gpubench.model.kernel import Candidate, Limits, WgslPass, WgslProgram
from gpubench.model.op import ITEMSIZE

BINDINGS = ("a", "b", "out")
_PAD_THREADS = 64
_SUM_THREADS = 256


def register(m: int, n: int, k: int, batch: int, dtype: str, limits: Limits) -> tuple[Candidate, ...]:
    """The register-blocked kernel for `batch` products of A (m x k) and B (k x n), one candidate per promising tile.

    The default comes first. Halves are multiplied and added in float32. Raises Unsupported.
    """
    _require(m, n, k, batch, dtype, limits)
    if 0 in (m, n, k, batch):
        raise Unsupported("a matrix without elements is not multiplied", reason="shape")
    tiles = able(WIDE_TILES if dtype == "float64" else TILES, ITEMSIZE[real_dtype(dtype)], limits)
    first, *rest = ranked(m, n, batch, tiles, limits)
    if not limits.software:  # which never takes any but the default
        thin = split(m, n, 4 * ceil_div(k, 4), tiles, limits) if batch == 1 else []
        rest = promising(m, n, batch, [*thin, *rest], limits)
    found = (first, *rest)
    return tuple(Candidate(tile.name, partial(program, m, n, k, batch, dtype, limits, tile)) for tile in found)


def program(m: int, n: int, k: int, batch: int, dtype: str, limits: Limits, tile: Tile) -> WgslProgram:
    """The passes with one tile: matrices whose rows are no multiple of 4 long are copied into longer rows first."""
    deep, stride = 4 * ceil_div(k, 4), 4 * ceil_div(n, 4)
    layout = Layout(tile=tile, dtype=dtype, m=m, n=n, k=deep, stride=stride, batch=batch)
    grid = _grid(ceil_div(n, tile.columns), ceil_div(m, tile.rows), max(batch, tile.splits), limits)
    before, after, names = [], [], list(BINDINGS)
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
    padded = tuple(names[:2]) if before else ()
    multiply = WgslPass(_matmul_register.source(layout), grid, tuple(names), read_only=padded)
    return WgslProgram(
        (*before, multiply, *after),
        scratch={name: ceil_div(size, 16) * 16 for name, size in scratch.items()},
    )


def _sum(layout: Layout, limits: Limits) -> WgslPass:
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
    return WgslPass(text, grid, ("partials", "out"), read_only=("partials",))


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


def tiled(m: int, n: int, k: int, batch: int, dtype: str, limits: Limits) -> WgslProgram:
    """For teaching: one element a thread, both tiles shared through workgroup memory."""
    return _ladder(_matmul_ladder.tiled, m, n, k, batch, dtype, limits)


def naive(m: int, n: int, k: int, batch: int, dtype: str, limits: Limits) -> WgslProgram:
    """For teaching: one element a thread, everything read from global memory."""
    return _ladder(_matmul_ladder.naive, m, n, k, batch, dtype, limits)


def _ladder(source: str, m: int, n: int, k: int, batch: int, dtype: str, limits: Limits) -> WgslProgram:
    require_dtype(dtype, ("float32",))
    if batch > 1:
        raise Unsupported("the lower rungs of the ladder take one product a launch", reason="no-implementation")
    _require(m, n, k, batch, dtype, limits)
    side = _matmul_ladder.SIDE
    if side * side > limits.max_workgroup_threads:
        raise Unsupported(
            f"{side * side} threads a group exceed {limits.max_workgroup_threads}", reason="limit"
        )
    grid = _grid(ceil_div(n, side), ceil_div(m, side), 1, limits)
    return WgslProgram((WgslPass(source, grid, BINDINGS, uniform=(m, n, k)),))


def _require(m: int, n: int, k: int, batch: int, dtype: str, limits: Limits) -> None:
    require_storage(dtype, limits)
    size = batch * ITEMSIZE[dtype]
    require_bindings({"a": size * m * k, "b": size * k * n, "out": size * m * n}, limits)


def _grid(x: int, y: int, z: int, limits: Limits) -> tuple[int, int, int]:
    if max(x, y, z) > limits.max_groups_per_dimension:
        raise Unsupported(
            f"{x} x {y} x {z} groups exceed {limits.max_groups_per_dimension} a dimension"
            " (maxComputeWorkgroupsPerDimension)",
            reason="limit",
        )
    return (x, y, z)
