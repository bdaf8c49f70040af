"""Transpose in WGSL: whole vectors through a swizzled tile in workgroup memory; odd sizes through a padded one.

A thread reads a square of vectors, turns it in registers and puts it into the tile as columns; then the group
writes the tile out in long rows. All accesses are 16 bytes wide, and the exclusive or in the tile's index keeps
neighbouring threads on different memory banks in both directions.
"""

from __future__ import annotations

import msgspec

from gpubench.errors import Unsupported
from gpubench.kernels._limits import ceil_div, require_bindings
from gpubench.kernels._storage_wgsl import LANES, Storage, elements, require_storage, vectors
from gpubench.model.kernel import Limits, WgslPass, WgslProgram
from gpubench.model.op import ITEMSIZE

_BINDINGS = ("x", "out")
_TILE, _TILE_ROWS = 32, 8


class Tile(msgspec.Struct, frozen=True):
    """Squares of vectors that a group takes along a row and along a column, one a thread; powers of two."""

    across: int
    down: int

    @property
    def threads(self) -> int:
        """Threads of a group."""
        return self.across * self.down


_TILES = (Tile(16, 16), Tile(8, 8))


def build(rows: int, columns: int, dtype: str, limits: Limits, tile: Tile | None = None) -> WgslProgram:
    """One dispatch from rows x columns to columns x rows. Raises Unsupported for what it cannot do."""
    require_storage(dtype, limits)
    require_bindings(dict.fromkeys(_BINDINGS, rows * columns * ITEMSIZE[dtype]), limits)
    if rows * columns == 0:
        return WgslProgram(())
    storage = vectors(dtype)
    tile = None if rows % storage.width or columns % storage.width else tile or choose_tile(storage, limits)
    across, down = (storage.width * tile.across, storage.width * tile.down) if tile else (_TILE, _TILE)
    grid, step_x, step_y = _grid(ceil_div(columns, across), ceil_div(rows, down), limits)
    uniform = (rows, columns, step_x, step_y)
    text = vector_source(storage, tile) if tile else tile_source(dtype)
    return WgslProgram((WgslPass(text, grid, _BINDINGS, uniform=uniform),))


def _grid(across: int, down: int, limits: Limits) -> tuple[tuple[int, int, int], int, int]:
    """A grid of across x down groups, and what one step in z adds to a group's x and to its y.

    The side that is too long for its dimension goes on in z. Raises Unsupported if z is too short, too.
    """
    most = limits.max_groups_per_dimension
    z = ceil_div(max(across, down), most)
    if z > most or min(across, down) > most:
        raise Unsupported(
            f"{across} x {down} groups exceed {most} a dimension (maxComputeWorkgroupsPerDimension)",
            reason="limit",
        )
    if across > most:
        return (ceil_div(across, z), down, z), ceil_div(across, z), 0
    return (across, ceil_div(down, z), z), 0, ceil_div(down, z)


def choose_tile(storage: Storage, limits: Limits) -> Tile | None:
    """The first tile that the device's threads and workgroup memory hold."""
    for tile in _TILES:
        enough = 16 * storage.width * tile.threads <= limits.max_workgroup_bytes
        if enough and tile.threads <= limits.max_workgroup_threads:
            return tile
    return None


def turned(storage: Storage, names: list[str]) -> list[str]:
    """The transpose of a square of vectors: one expression for each of its columns."""
    if storage.stored != "f16":
        return [
            f"{storage.unit}({', '.join(f'{name}.{lane}' for name in names)})"
            for lane in LANES[: storage.width]
        ]
    columns = []
    for j in range(storage.width):
        lane = LANES[j // 2]
        pairs = zip(names[::2], names[1::2], strict=True)
        words = [
            f"({a}.{lane} >> 16u) | ({b}.{lane} & 0xffff0000u)"
            if j & 1
            else f"({a}.{lane} & 0xffffu) | ({b}.{lane} << 16u)"
            for a, b in pairs
        ]
        columns.append(f"vec4<u32>({', '.join(words)})")
    return columns


def vector_source(storage: Storage, tile: Tile) -> str:
    """Rows and columns in multiples of a vector."""
    width = storage.width
    bits = width.bit_length() - 1
    names = [f"r{i}" for i in range(width)]
    loads = "\n".join(f"    let {name} = x_[start + {i}u * across];" for i, name in enumerate(names))
    puts = "\n".join(
        f"    tile[({width}u * c + {j}u) * {tile.down}u + (r ^ (c & {tile.down - 1}u))] = {text};"
        for j, text in enumerate(turned(storage, names))
    )
    stores = "\n".join(
        f"""  let k{j} = k + {j * tile.across}u;
  if (top + k{j} < p.columns && left < down) {{
    out_[(top + k{j}) * down + left] = tile[k{j} * {tile.down}u + (v ^ ((k{j} >> {bits}u) & {tile.down - 1}u))];
  }}"""
        for j in range(width)
    )
    return f"""struct Params {{ rows: u32, columns: u32, step_x: u32, step_y: u32, }}
@group(0) @binding(0) var<storage, read> x_: array<{storage.unit}>;
@group(0) @binding(1) var<storage, read_write> out_: array<{storage.unit}>;
@group(0) @binding(2) var<uniform> p: Params;
var<workgroup> tile: array<{storage.unit}, {width * tile.threads}>;
@compute @workgroup_size({tile.threads})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {{
  let across = p.columns >> {bits}u;
  let down = p.rows >> {bits}u;
  let c = thread & {tile.across - 1}u;
  let r = thread >> {tile.across.bit_length() - 1}u;
  let group_x = group.x + group.z * p.step_x;
  let group_y = group.y + group.z * p.step_y;
  let x = group_x * {tile.across}u + c;
  let y = group_y * {tile.down}u + r;
  if (x < across && y < down) {{
    let start = {width}u * y * across + x;
{loads}
{puts}
  }}
  workgroupBarrier();
  let v = thread & {tile.down - 1}u;
  let k = thread >> {tile.down.bit_length() - 1}u;
  let top = group_x * {width * tile.across}u;
  let left = group_y * {tile.down}u + v;
{stores}
}}
"""


def tile_source(dtype: str) -> str:
    """Any size: a 32 x 32 tile in workgroup memory, read along rows and written along columns.

    The tile's rows are one element longer, so that a column does not fall into a single memory bank.
    """
    storage = elements(dtype)
    enable = "".join(f"{line}\n" for line in storage.header)
    return f"""{enable}struct Params {{ rows: u32, columns: u32, step_x: u32, step_y: u32, }}
@group(0) @binding(0) var<storage, read> x_: array<{storage.stored}>;
@group(0) @binding(1) var<storage, read_write> out_: array<{storage.stored}>;
@group(0) @binding(2) var<uniform> p: Params;
var<workgroup> tile: array<array<{storage.stored}, {_TILE + 1}>, {_TILE}>;
@compute @workgroup_size({_TILE}, {_TILE_ROWS})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {{
  let x = (group.x + group.z * p.step_x) * {_TILE}u;
  let y = (group.y + group.z * p.step_y) * {_TILE}u;
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
