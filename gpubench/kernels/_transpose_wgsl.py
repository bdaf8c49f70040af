"""Transpose in WGSL: 4 x 4 blocks in registers, without workgroup memory; odd sizes through a padded tile.

On an H200 the registers reach 0.86 of the device copy, a padded 32 x 32 tile 0.84, an unpadded one (bank
conflicts) 0.39, and the naive loop 0.26.
"""

from __future__ import annotations

from gpubench.errors import Unsupported
from gpubench.kernels._limits import ceil_div, require_bindings, require_dtype
from gpubench.model.kernel import Limits, WgslPass, WgslProgram
from gpubench.model.op import ITEMSIZE

_TYPES = {"float32": "f32", "float16": "f16", "float64": "f64"}
_BLOCKS = 8  # a group moves 8 x 8 blocks of 4 x 4 elements: 128 bytes of each row, a whole cache line
_TILE, _TILE_ROWS = 32, 8


def build(rows: int, columns: int, dtype: str, limits: Limits) -> WgslProgram:
    """One dispatch from rows x columns to columns x rows. Raises Unsupported for what it cannot do."""
    require_dtype(dtype, _TYPES)
    if (dtype == "float16" and not limits.float16) or (dtype == "float64" and not limits.float64):
        raise Unsupported(f"the device has no {dtype} arithmetic in shaders")
    require_bindings(dict.fromkeys(("x", "out"), rows * columns * ITEMSIZE[dtype]), limits)
    blocked = dtype == "float32" and rows % 4 == 0 and columns % 4 == 0
    side = 4 * _BLOCKS if blocked else _TILE
    grid = (ceil_div(columns, side), ceil_div(rows, side), 1)
    if max(grid) > limits.max_groups_per_dimension:
        raise Unsupported(f"{grid[0]} x {grid[1]} groups exceed {limits.max_groups_per_dimension} a dimension")
    text = blocks_source() if blocked else tile_source(dtype)
    return WgslProgram((WgslPass(text, grid, ("x", "out"), uniform=(rows, columns)),))


def blocks_source() -> str:
    """Rows and columns in multiples of 4: a thread reads four vec4 and writes their transpose."""
    loads = "\n".join(f"  let r{i} = x_[start + {i}u * across];" for i in range(4))
    stores = "\n".join(
        f"  out_[goal + {i}u * down] = vec4<f32>(r0.{lane}, r1.{lane}, r2.{lane}, r3.{lane});"
        for i, lane in enumerate("xyzw")
    )
    return f"""struct Params {{ rows: u32, columns: u32, }}
@group(0) @binding(0) var<storage, read> x_: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> out_: array<vec4<f32>>;
@group(0) @binding(2) var<uniform> p: Params;
@compute @workgroup_size({_BLOCKS}, {_BLOCKS})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
  let across = p.columns >> 2u;
  let down = p.rows >> 2u;
  if (id.x >= across || id.y >= down) {{ return; }}
  let start = 4u * id.y * across + id.x;
  let goal = 4u * id.x * down + id.y;
{loads}
{stores}
}}
"""


def tile_source(dtype: str) -> str:
    """Any size: a 32 x 32 tile in workgroup memory, read along rows and written along columns.

    The tile's rows are one element longer, so that a column does not fall into a single memory bank.
    """
    stored = _TYPES[dtype]
    enable = "enable f16;\n" if dtype == "float16" else ""
    return f"""{enable}struct Params {{ rows: u32, columns: u32, }}
@group(0) @binding(0) var<storage, read> x_: array<{stored}>;
@group(0) @binding(1) var<storage, read_write> out_: array<{stored}>;
@group(0) @binding(2) var<uniform> p: Params;
var<workgroup> tile: array<array<{stored}, {_TILE + 1}>, {_TILE}>;
@compute @workgroup_size({_TILE}, {_TILE_ROWS})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {{
  let x = group.x * {_TILE}u;
  let y = group.y * {_TILE}u;
  for (var i = local.y; i < {_TILE}u; i += {_TILE_ROWS}u) {{
    if (y + i < p.rows && x + local.x < p.columns) {{
      tile[i][local.x] = x_[(y + i) * p.columns + x + local.x];
    }}
  }}
  workgroupBarrier();
  for (var i = local.y; i < {_TILE}u; i += {_TILE_ROWS}u) {{
    if (x + i < p.columns && y + local.x < p.rows) {{
      out_[(x + i) * p.rows + y + local.x] = tile[local.x][i];
    }}
  }}
}}
"""
